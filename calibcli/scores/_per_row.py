"""Labels as codes 0..K-1, and weights, ids, groups and slices of the rows; mistakes are reported with their row."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, UsageError, nearest
from calibcli.core.number_format import count_text, first_few
from calibcli.scores import _column_evidence as column_evidence
from calibcli.scores import array_names
from calibcli.scores.array_names import shape_text
from calibcli.scores.files.arrays import (
    Converted,
    FileColumn,
    FileContents,
    Memory,
    blocks,
    column_of,
    distinct,
    joined,
    load_any,
    read_all,
    texts_of,
)
from calibcli.scores.files.roles import IDS, LABELS
from calibcli.scores.files.source import Source
from calibcli.scores.files.text_tables import MISSING, NO_VALUE, floats_of_text, is_number
from calibcli.scores.predictions import Array, ArrayScores, Floats, Ints, Named, PickedScores, Predictions
from calibcli.scores.reading_options import Reading

# Labels as codes 0..K-1. Mistakes are reported with their row.


HELD = 20_000_000  # labels; more of them stay in the file
OBSERVED = "pass the class that was observed, one integer per row"
NO_LABEL = {"", "nan", "<na>", "nat"}  # of texts that are no class; `none` and `na`, in NO_VALUE, may be classes
LEAVE_OUT = "--missing drop leaves such rows out, as they are neither right nor wrong; or give every row a label"
UNKNOWN = "--missing drop leaves such rows out, --missing wrong counts them as wrong"
A_COLUMN = "the scores of many rows sum to less than 1: choose the column of every class with --scores KEY"
VOID = 255  # label of pixels without a class in PASCAL VOC, Cityscapes and data sets like them
MOST_NAMED = 12  # classes up to which an error lists all of them
WHOLE = re.compile(r"^\s*[+-]?\d{1,18}(\.0*)?\s*$")


@dataclass(frozen=True, eq=False)
class LabelCodes:
    """Codes of all rows. `dropped`: mask of the rows to leave out, or None. `names`: whether they were names of
    classes.
    """

    codes: Any
    dropped: Array | None = None
    notes: Sequence[str] = ()
    counts: Mapping[int, int] = field(default_factory=dict)
    names: bool = False


def read_labels(labels: Named, name: str, scores: Named, classes: Sequence[str] | None, reading: Reading) -> LabelCodes:
    """Check labels against (N, C) scores and convert them to int64 codes in [0, K), where K = max(C, 2).

    Args:
        classes: names of the classes, to translate labels that are names.
        reading: tells what the first class is called (`label_base`, 0 or 1) and which label drops its row
            (`ignore_label`).

    Raises:
        InputError: any of the mistakes that labels can have.
    """
    (n, columns), label_base, ignore_label = scores.shape, reading.label_base, reading.ignore_label
    k = max(columns, 2)
    notes: list[str] = []
    labels = _one_dimension(labels, name, n, notes)
    if labels.shape[0] != n:
        problem = f"{count_text(n, 'row')} of scores but {count_text(labels.shape[0], 'label')} ('{name}')"
        raise InputError(problem, "pass the labels of exactly these rows, in the same order")
    if labels.dtype.kind == "b" and k > 2:
        problem = f"labels '{name}' are true or false, there are {k} classes: do they say whether the model was right?"
        raise InputError(problem, OBSERVED)
    convert = _translator(labels, name, k, classes or _letters(labels, k, notes), scores)
    base = label_base or 0
    ignored = None if ignore_label is None else ignore_label - base
    codes: Named = Converted(labels, lambda block: convert(block) - base, (), np.dtype(np.int64))
    seen = _survey(codes, ignored, k)
    if not seen.counts and seen.negative is None and seen.beyond is None:
        raise InputError(f"all {n:,} labels are {ignore_label}", "pass rows that have labels")
    if seen.beyond and label_base is None:
        _counted_from_one(codes, ignored, seen, k, scores)
    _refuse_outside(seen, name, k, scores, base)
    dropped = None
    if ignored is not None:
        dropped = np.concatenate([block == ignored for _, block in blocks(codes)])
        total = int(dropped.sum())
        notes.append(f"{count_text(total, 'row')} with label {ignore_label} dropped")
        dropped = dropped if total else None
    all_codes = read_all(codes) if n <= HELD else FileColumn(codes)
    return LabelCodes(all_codes, dropped, notes, seen.counts, labels.dtype.kind in "USO" and bool(classes))


def without_class(labels: Named, scores: Named, classes: Sequence[str] | None, reading: Reading) -> dict[str, Ints]:
    """Return the rows without a label (`labels`), and those of a class that the model does not know (`classes`).

    What may be a mistake in all rows is left to `read_labels`: negative labels, numbers from 1 to K, names where the
    classes have none.
    """
    (n, width), base = scores.shape, reading.label_base or 0
    if labels.dtype.kind == "b" or labels.shape not in ((n,), (n, 1)):
        return {}
    class_numbers = [int(float(name)) for name in classes] if classes and all(map(WHOLE.match, classes)) else []
    numbers = np.array(class_numbers or range(base, base + max(width, 2)))
    if labels.dtype.kind in "iuf":
        odd, low, high = _odd_numbers(labels, numbers, width > 1 or bool(class_numbers), reading.ignore_label)
    else:
        odd, low, high = _odd_texts(labels, numbers, classes or (), width > 1, reading.ignore_label)
    if (low, high) == (1, max(width, 2)) and reading.label_base is None and not class_numbers:
        odd.pop("classes", None)
    return {cause: rows for cause, rows in odd.items() if len(rows)}


def _odd_numbers(
    labels: Named, numbers: Ints, beyond: bool, ignored: int | None
) -> tuple[dict[str, Ints], float, float]:
    """Return the rows of each cause, and the smallest and the largest label; `beyond`: others may be of a class."""
    absent, unknown, low, high = [], [], np.inf, -np.inf
    gapless = bool((np.diff(numbers) == 1).all())  # then a whole label between the first and the last is one of them
    for start, stored in blocks(labels):
        block = stored.reshape(-1)
        nan = np.isnan(block) if block.dtype.kind == "f" else np.zeros(len(block), bool)
        if len(present := block[~nan]):
            low, high = min(low, float(present.min())), max(high, float(present.max()))
        odd = np.zeros(len(block), bool)
        if beyond and not (gapless and numbers[0] <= low and high <= numbers[-1]):
            odd = ~nan & (block >= 0) & ~np.isin(block, numbers) & (np.floor(block) == block)
        absent.append(np.flatnonzero(nan) + start)
        unknown.append(np.flatnonzero(odd & (block != ignored) if ignored is not None else odd) + start)
    return {"labels": np.concatenate(absent), "classes": np.concatenate(unknown)}, low, high


def _odd_texts(
    labels: Named, numbers: Ints, classes: Sequence[str], several: bool, ignored: int | None
) -> tuple[dict[str, Ints], float, float]:
    """Return the same of texts: names of `classes`, or `numbers`, of which `several` columns may not have all."""
    texts = {text for _, block in blocks(labels) for text in set(_texts(block.reshape(-1)))}
    names = {spelled for name in classes for spelled in (name, _plain(name))}
    odd = {text for text in texts if text not in names and _plain(text) not in names}
    absent = {text for text in odd if text.strip().lower() in NO_VALUE}
    unknown, whole = odd - absent, {text: float(_plain(text)) for text in odd if is_whole(text)}
    if len(odd) == len(texts) and not whole:  # names, and the classes have none: `none` and `na` may be two of them
        plain = {text for text in absent if text.strip().lower() in NO_LABEL}
        absent, unknown = absent if len(texts - plain) > len(numbers) else plain, set()
    elif len(odd) == len(texts):
        beyond = {text for text, value in whole.items() if value >= 0 and value not in numbers and several}
        unknown = {text for text in unknown if not is_number(text)} | beyond
    unknown -= {text for text, value in whole.items() if value == ignored}
    cause = {**dict.fromkeys(absent, 1), **dict.fromkeys(unknown, 2)}
    if not cause:
        return {}, 0, 0
    each = np.concatenate([[cause.get(text, 0) for text in _texts(block.reshape(-1))] for _, block in blocks(labels)])
    rows = {"labels": np.flatnonzero(each == 1), "classes": np.flatnonzero(each == 2)}
    return rows, min(whole.values(), default=0), max(whole.values(), default=0)


def as_names(labels: Named | None, name: str, classes: Sequence[str] | None) -> Named | None:
    """Convert labels that are numbers to texts if the classes are called by numbers other than 0 .. K-1, so that labels
    of arrays are looked up among the names as labels of tables are.
    """
    if labels is None or classes is None or labels.dtype.kind not in "iuf" or labels.shape[1:] not in ((), (1,)):
        return labels
    if list(classes) == [str(i) for i in range(len(classes))] or not all(map(WHOLE.match, classes)):
        return labels
    if labels.dtype.kind == "f":
        _whole_numbers(labels, name)
    return Converted(labels, lambda block: block.astype(np.int64).astype(str), labels.shape[1:], np.dtype("U20"))


def _of_no_class(scores: Named) -> str:
    """Return what to do about labels that are of none of the classes that scores (N, K) are of."""
    table = np.asarray(column_evidence.sample(scores), np.float64)
    return A_COLUMN if column_evidence.lack_a_class(table) else UNKNOWN


def _refuse_outside(seen: _LabelRange, name: str, k: int, scores: Named, base: int) -> None:
    """Refuse labels that are none of the classes.

    Raises:
        InputError: a label that is none of the classes.
    """
    if scores.shape[1] == 1 and max(seen.largest, max(seen.counts, default=0)) > 1:
        problem = f"one score per row but labels up to {seen.largest + base}: is it only the score of the top class?"
        other = "" if base else "; labels 1 and 2: --label-base 1"
        raise InputError(problem, f"save the scores of every class as an array (N, K){other}")
    if seen.negative:
        value = seen.negative[1] + base
        drop = "two classes called -1 and 1: --classes=-1,1; " if (value, k) == (-1, 2) else ""
        problem = f"label {value} in row {seen.negative[0]} ('{name}') is negative"
        raise InputError(problem, "check --label-base" if base else f"{drop}--ignore-label {value} drops such rows")
    if seen.beyond:
        belong = "do the scores and labels belong together? if the first class is called 1: --label-base 1"
        if seen.largest + base == VOID:
            belong += f"; if {VOID} marks what has no class: --ignore-label {VOID}"
        raise InputError(
            f"label {seen.beyond[1] + base} in row {seen.beyond[0]} ('{name}') is outside {base}..{k - 1 + base}, "
            f"as there are {k} score columns ({count_text(seen.above, 'row')})",
            f"{belong}; {_of_no_class(scores)}",
        )


def _one_dimension(labels: Named, name: str, n: int, notes: list[str]) -> Named:
    shape = labels.shape
    if len(shape) == 1:
        return labels
    if len(shape) == 2 and shape[1] == 1:
        notes.append(f"labels '{name}' have shape {tuple(shape)}: read as ({shape[0]},)")
        return Converted(labels, lambda block: block[:, 0], (), labels.dtype)
    if len(shape) == 2 and shape[0] == 1 and shape[1] == n:
        notes.append(f"labels '{name}' have shape {tuple(shape)}: read as ({n},)")
        return Memory(read_all(labels)[0])
    if len(shape) != 2 or labels.dtype.kind not in "biuf":
        problem = f"labels '{name}' have shape {shape_text(labels)}"
        raise InputError(problem, "pass one label per row: shape (N,), integers")
    ones, hard, simplex, first_soft = True, True, True, -1
    for start, stored in blocks(labels):
        block = stored.astype(np.float64)
        zero_one = ((block == 0) | (block == 1)).all(axis=1)
        hard &= bool(zero_one.all())
        ones &= bool((zero_one & (block.sum(axis=1) == 1)).all())
        inside = (block >= -1e-6).all(axis=1) & (np.abs(block.sum(axis=1) - 1) < 1e-2)
        simplex &= bool(inside.all())
        if first_soft < 0 and not zero_one.all():
            first_soft = start + int(np.flatnonzero(~zero_one)[0])
    if ones:
        notes.append(f"labels '{name}' are one-hot {tuple(shape)}: converted to class numbers")
        return Converted(labels, lambda block: block.argmax(axis=1), (), np.dtype(np.int64))
    if hard:
        problem = f"labels '{name}' {tuple(shape)} have rows with several classes or none: multi-label targets"
        raise InputError(problem, "add --multilabel to measure every label as a binary problem of its own")
    if simplex:
        raise InputError(f"labels '{name}' {tuple(shape)} are soft targets (row {first_soft} is not one-hot)", OBSERVED)
    problem = f"labels '{name}' have shape {shape_text(labels)} and are neither one-hot nor 0/1"
    raise InputError(problem, "pass one integer label per row")


def _translator(
    labels: Named, name: str, k: int, classes: Sequence[str] | None, scores: Named
) -> Callable[[Array], Ints]:
    """Return a function that converts a block of the labels of scores (N, K) to int64."""
    kind = labels.dtype.kind
    if labels.dtype == np.uint64:
        return lambda block: np.minimum(block, np.uint64(2**62)).astype(np.int64)
    if kind in "biuf":
        if kind == "f":
            _whole_numbers(labels, name)
        return lambda block: block.astype(np.int64)
    texts: set[str] = set()
    for _, block in blocks(labels):
        texts.update(_texts(block))
        if len(texts) > 1_000_000:
            break
    code_of = {name: i for i, text in enumerate(classes or ()) for name in (_plain(text), text)}
    if code_of and all(t in code_of or _plain(t) in code_of for t in texts):
        return _lookup({t: code_of.get(t, code_of.get(_plain(t), 0)) for t in texts})
    if all(map(is_whole, texts)):
        return _lookup({t: int(float(t.strip())) for t in texts})
    strange = sorted((t for t in texts if _plain(t) not in code_of), key=lambda t: (is_whole(t), t))
    refuse_missing(labels, name, strange)
    odd = strange[0]
    if classes:
        if len(strange) == len(texts) == k <= MOST_NAMED and not any("," in text for text in texts):
            words = sorted({text.strip() for text in texts})
            order = column_evidence.named_in_order(classes, words)
            problem = f"labels '{name}' are {' and '.join(words)}, and the columns are called {' and '.join(classes)}"
            sure = "" if order else " if that is the order of the columns, else in theirs"
            raise InputError(problem, f"pass --classes {shlex.quote(','.join(order or words))}{sure}")
        cells, near = [text for _, block in blocks(labels) for text in _texts(block)], nearest(odd, classes)
        fix = f"did you mean {near!r}? Else " if near else ""
        fix += f"{_of_no_class(scores)}; "
        fix += "if a column is of that class, give --classes every name, in the order of the columns"
        others = sum(text in strange for text in cells) - cells.count(odd)
        problem = f"label {odd[:40]!r} ('{name}') is not one of the {len(classes)} classes"
        problem += f" ({count_text(cells.count(odd), 'row')}, first row {cells.index(odd)}"
        problem += f"; {count_text(others, 'row')} of others)" if others else ")"
        raise InputError(problem, fix)
    if all(is_number(t) for t in texts):
        raise InputError(f"labels '{name}' are not whole numbers ({odd[:20]}): soft targets?", OBSERVED)
    problem = f"labels '{name}' are names ({first_few(sorted(texts), 4)[:85]})"
    every = sorted({text.strip() for text in texts})
    fix = "pass --classes A,B,C: all class names in the order of the score columns"
    if len(every) == k <= MOST_NAMED and not any("," in one for one in every):
        fix = f"pass --classes {shlex.quote(','.join(every))} if that is the order of the score columns, else in theirs"
    raise InputError(problem, fix)


def refuse_missing(labels: Named, name: str, texts: Sequence[str], what: str = "label", fix: str = LEAVE_OUT) -> None:
    """Refuse rows without a label, or `what`, if one of `texts`, which are no classes, stands for a missing value.

    Raises:
        InputError: there are such rows.
    """
    absent = {text.strip() for text in texts if text.strip().lower() in NO_VALUE}
    every = ((start + i, text) for start, block in blocks(labels) for i, text in enumerate(_texts(block)))
    rows = [(row, text) for row, text in every if text.strip() in absent] if absent else []
    if not rows:
        return
    row, text = rows[0]
    raise InputError(f"{_without(len(rows), what)} ('{name}' is {text.strip()!r} in row {row})", fix)


def _without(rows: int, what: str) -> str:
    return f"1 row has no {what}" if rows == 1 else f"{rows:,} rows have no {what}"


def _letters(labels: Named, k: int, notes: list[str]) -> list[str] | None:
    """Return A, B, C, ... if the classes have no names and the labels are such letters, else None."""
    alphabet = [chr(ord("A") + i) for i in range(min(k, 26))]
    if labels.dtype.kind not in "USO" or len(labels.shape) != 1 or k > 26:
        return None
    if any(text.strip() not in alphabet for _, block in blocks(labels) for text in set(_texts(block))):
        return None
    notes.append(f"labels are letters: {alphabet[0]} is the first class, {alphabet[-1]} the last")
    return alphabet


def _counted_from_one(labels: Named, ignored: int | None, seen: _LabelRange, k: int, scores: Named) -> None:
    if seen.largest != k or 0 in seen.counts:
        return
    block = scores.read(0, min(labels.shape[0], 20_000))
    best = block.argmax(axis=1) if block.shape[1] > 1 else (block[:, 0] > 0.5).astype(np.int64)
    codes = labels.read(0, len(best))
    usable = np.ones(len(codes), bool) if ignored is None else codes != ignored
    if not usable.any():
        return
    shifted, plain = np.mean((codes - 1 == best)[usable]), np.mean((codes == best)[usable])
    if shifted > plain:
        raise InputError(
            f"labels run from 1 to {k} for {k} classes; reduced by one they match the top class in {shifted:.0%} of "
            f"the rows, unchanged in {plain:.0%}",
            "pass --label-base 1",
        )


@dataclass
class _LabelRange:
    """Rows per class, (row, code) of the first label below 0 and of the first above k - 1, and how many are above."""

    counts: dict[int, int]
    negative: tuple[int, int] | None = None
    beyond: tuple[int, int] | None = None
    above: int = 0
    largest: int = -1


def _survey(labels: Named, ignored: int | None, k: int) -> _LabelRange:
    total = np.zeros(k, np.int64)
    seen = _LabelRange({})
    for start, codes in blocks(labels):
        if ignored is None and len(codes) and codes.min() >= 0 and codes.max() < k:
            total += np.bincount(codes, minlength=k)
            seen.largest = max(seen.largest, int(codes.max()))
            continue
        usable = np.ones(len(codes), bool) if ignored is None else codes != ignored
        low = np.flatnonzero(usable & (codes < 0))
        high = np.flatnonzero(usable & (codes >= k))
        if len(low) and seen.negative is None:
            seen.negative = (start + int(low[0]), int(codes[low[0]]))
        seen.above += len(high)
        if len(high) and seen.beyond is None:
            seen.beyond = (start + int(high[0]), int(codes[high[0]]))
        if usable.any():
            seen.largest = max(seen.largest, int(codes[usable].max()))
        total += np.bincount(codes[usable & (codes >= 0) & (codes < k)], minlength=k)
    seen.counts = {i: int(c) for i, c in enumerate(total) if c}
    return seen


def _whole_numbers(labels: Named, name: str) -> None:
    without = sum(int(np.isnan(block).sum()) for _, block in blocks(labels))
    for start, block in blocks(labels):
        with np.errstate(invalid="ignore"):
            odd = np.flatnonzero(~(np.floor(block) == block) | (np.abs(block) > 2**53))
        if len(odd):
            row, value = start + int(odd[0]), float(block[odd[0]])
            if np.isnan(value):
                raise InputError(f"{_without(int(without), 'label')} ('{name}' is NaN in row {row})", LEAVE_OUT)
            problem = f"labels '{name}' are not whole numbers (row {row} has {value:g}): soft targets?"
            raise InputError(problem, OBSERVED)


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number: 3, 3.0 or, as `np.savetxt` writes it, 3.000000000000000000e+00."""
    if WHOLE.match(text):
        return True
    return "e" in text.lower() and is_number(text) and abs(value := float(text)) <= 2**53 and value == int(value)


def _plain(text: str) -> str:
    """Strip a name; 3.0 becomes 3."""
    return str(int(float(text.strip()))) if is_whole(text) else text.strip()


def _lookup(table: Mapping[str, int]) -> Callable[[Array], Ints]:
    return lambda block: np.fromiter((table[text] for text in _texts(block)), np.int64, len(block))


def _texts(block: Array) -> list[str]:
    """Return a block as a list of texts. Objects go one by one, as an array as wide as the longest text could be
    large.
    """
    return [str(text) for text in block.tolist()] if block.dtype.kind == "O" else texts_of(block).tolist()


# Labels in a file of their own. Their rows are matched by ids where both files have them.


def labels_of(source: Source, contents: Sequence[FileContents], reading: Reading, notes: list[str]) -> Named:
    """Read the labels of the rows of the scores. If they had to be reordered, `notes` gets a note.

    They are the file's only array, or the one with a label's name.

    Raises:
        InputError: there are none; or a row of the scores has an id that none of theirs has, or several have.
    """
    file = load_any(source)
    names = list(file.arrays)
    name = names[0] if len(names) == 1 else array_names.pick_labels(file, None, "", source.name)
    if name is None:
        problem = f"no labels in {source.name}: it holds {array_names.describe(file)}"
        raise InputError(problem, "name the array 'labels'")
    labels = file.arrays[name]
    if file.table and len(names) == 1 and name not in LABELS.all:
        labels = _without_header(name, labels, contents, notes)
    for column, array in file.arrays.items():
        row_ids = None if column == name or array.shape != labels.shape[:1] else _ids(contents, column, reading)
        if row_ids is None or (theirs := texts_of(read_all(array)).tolist()) == row_ids:
            continue
        row_of = {id: row for row, id in enumerate(theirs)}
        lost = next((row for row, id in enumerate(row_ids) if id not in row_of), None)
        if lost is None and len(row_of) == len(theirs):
            rows = np.array([row_of[id] for id in row_ids], np.int64)
            notes.append(f"labels of {source.name} belong to the rows by their '{column}'")
            return Memory(read_all(labels)[rows])
        if column in IDS or column in (reading.ids, contents[0].ids):
            twice = f"'{column}' names rows twice"
            has = twice if lost is None else f"no '{column}' is {row_ids[lost][:40]!r} (row {lost})"
            raise InputError(f"in {source.name} {has}", "give every row of the scores its label, once")
    return labels


def _without_header(name: str, labels: Named, contents: Sequence[FileContents], notes: list[str]) -> Named:
    """Return a column of labels with what was taken for its header, where that is a label and its row is missing."""
    rows = sum(max((a.shape[0] for a in c.arrays.values() if a.shape), default=0) for c in contents)
    cells = texts_of(read_all(labels)).tolist() if labels.shape == (rows - 1,) else []
    if name not in {str(cell).strip() for cell in cells}:
        return labels
    notes.append(f"the first row of the labels, {name!r}, is a label and no header")
    return Memory(column_of([name, *cells]))


def _ids(contents: Sequence[FileContents], column: str, reading: Reading) -> list[str] | None:
    """Return what names the rows of the scores as `column` does in the labels' file: the column of that name, or the
    ids of both.
    """
    first, asked = contents[0].arrays, reading.ids or contents[0].ids
    id_column = asked or next((n for n in first if n in IDS), "")
    here = column if column in first else id_column if column in IDS else ""
    parts = [c.arrays.get(here) for c in contents]
    id_parts = [part for part in parts if part is not None and len(part.shape) == 1 and part.dtype.kind in IDS.dtypes]
    if len(id_parts) < len(parts):
        return None
    return [id for part in id_parts for id in texts_of(read_all(part)).tolist()]


# Ids, weights, groups and slices.


def per_row_fields(
    contents: Sequence[FileContents],
    sources: Sequence[Source],
    reading: Reading,
    n: int,
    keep: Ints | None,
    score_name: str,
    label_name: str,
    notes: list[str],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the per-row fields of `Predictions` that are asked for or recognised (ids), for the rows that are kept.

    Also returns the names of their columns, as the record of what was read has them.
    """

    def column(name: str, option: str) -> Array:
        parts = [array_names.column(c, name, option, s.name) for c, s in zip(contents, sources)]
        return _per_row(of_all_files(parts, name, contents, sources, score_name), name, option, n, keep)

    out: dict[str, Any] = {}
    names_of = {"weights": reading.weights or "", "group": reading.group or contents[0].groups}
    ids = reading.ids
    if ids is None and n <= HELD:
        rows = array_names.column(contents[0], score_name, "column", sources[0].name).shape[:1]
        ids = contents[0].ids or IDS.first(contents[0].arrays, rows)
        ids = None if ids in (score_name, label_name) or any(ids not in c.arrays for c in contents) else ids
    if ids:
        id_values = column(ids, "--ids")
        if (
            reading.ids or len(contents) == 1 or distinct(id_values) == len(id_values)
        ):  # else each file may number its rows anew
            out["ids"], names_of["ids"] = id_values, ids
    if reading.weights:
        kind = reading.weight_kind or "sampling"
        if kind not in ("sampling", "count"):
            raise UsageError(f"--weight-kind {kind} is unknown", "choose sampling or count")
        out["weights"] = weights(column(reading.weights, "--weights"), reading.weights, kind)
        out["weight_kind"] = kind
    if group := reading.group or contents[0].groups:
        groups = column(group, "--group")
        names, codes = np.unique(texts_of(groups) if groups.dtype.kind == "O" else groups, return_inverse=True)
        out["group_names"], out["groups"] = names, codes.astype(np.int64)
        empty = [i for i, text in enumerate(texts_of(names)) if text.strip().lower() in (*MISSING, "nan")]
        if without := int(np.isin(codes, empty).sum()) if empty else 0:
            notes.append(f"group '{group}': {without:,} rows have none; they count as rows of one group")
    if reading.by:
        columns = ((name, column(name, "--by")) for name in reading.by)
        out["slices"] = {k: a if reading.numbers and a.dtype.kind in "fiu" else texts_of(a) for k, a in columns}
    return out, names_of


def of_all_files(
    parts: Sequence[Named], name: str, contents: Sequence[FileContents], sources: Sequence[Source], scores: str
) -> Named:
    """Return arrays that every file has for each row of its `scores`, one after the other.

    Raises:
        InputError: of several files one has another shape than the first, or than the rows of its own scores.
    """
    for part, c, source in zip(parts, contents, sources if len(parts) > 1 else ()):
        rows = c.arrays.get(scores, part).shape[:1]
        if not rows or part.shape != rows + parts[0].shape[1:]:
            problem = f"'{name}' in {source.name} has shape {shape_text(part)}, its scores {rows[0] if rows else 'no'}"
            raise InputError(f"{problem} rows", "save one value per row, in every file in the same way")
    return joined(parts)


def _per_row(array: Named, name: str, option: str, n: int, keep: Ints | None) -> Array:
    """Return one value per row, for the rows that are kept.

    Raises:
        InputError: another shape.
    """
    if len(array.shape) == 2 and array.shape[1] == 1:
        array = Memory(read_all(array)[:, 0])
    if array.shape != (n,):
        raise InputError(f"{option} {name} has shape {shape_text(array)} for {n:,} rows", "pass one value per row")
    values = read_all(array)
    return values if keep is None else values[keep]


def weights(values: Array, name: str, kind: str) -> Floats:
    """Check weights and return them as float64, finite and >= 0.

    Raises:
        InputError: otherwise, or `count` weights that are not whole.
    """
    if values.dtype.kind in "USO":
        values = floats_of_text(values, name, "the weights")
    w = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0)))
    if len(bad):
        raise InputError(f"weight {w[bad[0]]:g} in row {bad[0]} ('{name}')", "weights are finite and not negative")
    if not w.any():
        raise InputError(f"weights '{name}' are all 0", "pass weights that are not all 0")
    with np.errstate(over="ignore"):
        total = float(w.sum())
    if kind == "count" and total > 2**53:
        raise InputError(f"weights '{name}' count {total:.3g} rows", "use --weight-kind sampling")
    used = w[w > 0]
    if used.min() < 1e-100 or used.max() > 1e100:  # their squares are summed
        problem = f"weights '{name}' run from {used.min():.3g} to {used.max():.3g}"
        raise InputError(problem, "divide them by the largest of them")
    odd = np.flatnonzero(w != np.floor(w))
    if kind == "count" and len(odd):
        problem = f"weight {w[odd[0]]:g} in row {odd[0]} ('{name}') is not a count"
        raise InputError(problem, "use --weight-kind sampling")
    return w


def without_zero_weights(rows: Predictions) -> Predictions:
    """Leave out rows of weight 0, as neither a number nor a bound nor a fold may depend on them."""
    if rows.weights is None or rows.weights.all():
        return rows
    index = np.flatnonzero(rows.weights)
    memory = isinstance(rows.scores, ArrayScores)
    kept = rows.take(index) if memory else rows.with_rows(index, PickedScores(rows.scores, index))
    note = f"weight 0: {rows.n - kept.n:,} of {rows.n:,} rows left out"
    return dataclasses.replace(kept, notes=[*kept.notes, note])
