"""Choose the scores and labels of a file by the names in `files/roles`, or suggest the option that reads them."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from calibcli.core.errors import InputError, NoRows, UsageError, did_you_mean, printable, refusing
from calibcli.core.number_format import count_text, first_few
from calibcli.core.options import normal
from calibcli.scores.columns import SMALL
from calibcli.scores.files import roles
from calibcli.scores.files.arrays import Converted, FileContents, Lazy, Memory, blocks, column_of, read_all, texts_of
from calibcli.scores.files.text_tables import MISSING, decimals_of, floats_of_text, is_number
from calibcli.scores.predictions import Array, ArrayScores, Ints, Kind, Named, Scores, logits_of, rows_of
from calibcli.scores.softmax import DeviceScores

# Which arrays are the scores and the labels.


NO_PROBABILITY = (
    "there is no probability to be measured: save the logits or probabilities of every class (predict_proba, softmax), "
    "not the class that was predicted"
)
EVERY_CLASS = "save the scores of every class as an array (N, K): logits or probabilities"
WITH_VERDICT = f"{EVERY_CLASS}; or name the column that says which predictions were right: --correct KEY"
FEWEST = 20  # rows from which zeros and ones are taken for predicted classes: probabilities would vary by then
HOLD = 128 << 20  # bytes of scores that are kept in memory; larger arrays stay in the file
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "log_probabilities")


def kind_option(kind: str | None) -> Kind | None:
    """Return the kind of scores that `--kind` names; None means that it is to be recognised.

    Raises:
        UsageError: no such kind.
    """
    if kind is None or normal(kind) == "auto":
        return None
    for known in KINDS:
        if normal(kind) in (known, {"probabilities": "probs", "log_probabilities": "log_probs"}.get(known)):
            return known
    raise UsageError(f"--kind {kind} is not a kind of scores", did_you_mean(normal(kind), KINDS))


def pick_scores(contents: FileContents, wanted: str | None, where: str) -> str:
    """Return the name of the array that holds the scores.

    Raises:
        InputError: none, more than one, or no array of the wanted name.
    """
    if wanted:
        return named(contents, wanted, "--scores", where)
    if contents.scores:
        return contents.scores
    likely = candidates(contents)
    if len(likely) > 1:
        fix = f"choose one, e.g. --scores {likely[0]}"
        raise InputError(f"{_list(likely)} in {where} could each be the scores", fix)
    if likely:
        return likely[0]
    if contents.lacking:
        raise InputError(*contents.lacking)
    top = [name for name in contents.arrays if name in roles.CONFIDENCE]
    if top:
        raise InputError(f"{where} holds only the score of the top class ('{top[0]}')", WITH_VERDICT)

    raise InputError(f"no scores in {where}: it holds {describe(contents)}", reading_advice(contents, NO_PROBABILITY))


def refuse_verdicts(scores: str, labels: str, where: str, width: int) -> None:
    """Refuse one score per row whose name says that it is the top class's, or labels that say whether that was right.

    Read as P(class 1) and its label they would give other numbers: where the top class is wrong, accuracy and
    confidence are those of the other event.

    Raises:
        InputError: the names say so.
    """
    if width > 1:
        return
    name = Path(labels).stem if labels else ""
    if scores in roles.CONFIDENCE:
        problem = f"'{scores}' in {where} is the confidence in the predicted class, not the probability of class 1"
    elif name in roles.CORRECT:
        problem = f"labels '{labels}' say whether a prediction was right, not which class was observed"
    else:
        return
    fix = f"{WITH_VERDICT}, with --confidence {scores}"
    raise InputError(problem, f"{fix}; if it is P(class 1) with labels 0 and 1: call them prob and label")


def candidates(contents: FileContents) -> list[str]:
    """Return the arrays that could be the scores; if there are none, the columns named after a class, such as
    `p_malignant`.
    """
    if contents.scores or contents.lacking:
        return [contents.scores] if contents.scores else []
    arrays = contents.arrays
    return (
        [name for name, array in arrays.items() if name in contents.kinds or _may_score(name, array)]
        or [
            name
            for name, a in arrays.items()
            if normal(name) in roles.SCORES.weak and (len(a.shape) == 2 or _scalars(a))
        ]
        or [name for name, a in arrays.items() if class_in_name(name) and a.shape[1:] == () and _scalars(a)]
    )


def class_in_name(name: str) -> str:
    """Return the class in the name of a score column: `malignant` for `p_malignant`, `1` for `prob_1`, else ""."""
    match = roles.OF_CLASS.match(name)
    return "" if match is None or normal(match[2]) in roles.NO_CLASS else match[2]


def pick_labels(contents: FileContents, wanted: str | None, scores: str, where: str) -> str | None:
    """Return the name of the array that holds the labels, or None when there is none (`recorded_outputs` refuses that).

    Raises:
        InputError: more than one, or no array of the wanted name.
    """
    if wanted:
        return named(contents, wanted, "--labels", where)
    if contents.labels:
        return contents.labels
    event = normal(class_in_name(scores))  # `malignant` beside `p_malignant`
    names = [name for name, array in contents.arrays.items() if array.shape and name != scores]
    likely = label_candidates(names, (event,) if event and not event.isdecimal() else ())
    if len(likely) > 1:
        fix = f"choose one, e.g. --labels {likely[0]}"
        raise InputError(f"{_list(likely)} in {where} could each be the labels", fix)
    return likely[0] if likely else None


def named(contents: FileContents, name: str, option: str, where: str) -> str:
    """Return `name` as it is spelled in the file.

    Raises:
        InputError: the file has no such array.
    """
    if name in contents.arrays:
        return name
    for known in contents.arrays:
        if normal(known) == normal(name):
            return known
    problem = f"{option} {name}: no such array in {where}, it holds {describe(contents)}"
    raise InputError(problem, did_you_mean(name, list(contents.arrays)[:20]))


def column(contents: FileContents, name: str, option: str, where: str) -> Named:
    """Return the array of that name. `meta.subject` is the value `subject` of the JSON objects in a column `meta`.

    Raises:
        InputError: there is none.
    """
    head, _, path = name.partition(".")
    objects = contents.arrays.get(head)
    if name in contents.arrays or not path or objects is None or objects.dtype.kind != "O":
        return contents.arrays[named(contents, name, option, where)]
    return Memory(column_of([_inner(text, path, i, name, where) for i, text in enumerate(read_all(objects).tolist())]))


def _inner(text: Any, path: str, row: int, name: str, where: str) -> str:
    errors = (ValueError, TypeError, KeyError, RecursionError)
    with refusing(errors, f"row {row} of {where} has no '{name}'", "name a value that every row has"):
        value = json.loads(text)
        for key in path.split("."):
            value = value[key]
    return value if isinstance(value, str) else json.dumps(value)[:200]


def declared_kind(contents: FileContents, name: str) -> str:
    """Return the kind of scores that the name itself claims, or ""."""
    if name in contents.kinds:
        return contents.kinds[name]
    key = normal(name)
    if key not in roles.SCORES and key not in roles.ONE_SCORE and class_in_name(name):
        key = str(roles.OF_CLASS.match(name)[1]).lower()  # type: ignore[index]
    return roles.SCORE_KINDS.get(key, "")


def describe(contents: FileContents, limit: int = 8) -> str:
    """Describe the arrays by name, shape and type: `logits (1000, 10) float32`. Values are left out, as they may be
    secret.

    A text table without a number may have none of the names either: its first line is then no header.
    """

    if contents.table and not any(map(is_numeric, contents.arrays.values())):
        rows = max((array.shape[0] for array in contents.arrays.values()), default=0)
        return f"{count_text(len(contents.arrays), 'column')} of text, {count_text(rows, 'row')} and a header"
    shown = [f"{name} {shape_text(array)}" for name, array in contents.arrays.items()]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more if shown else "nothing"


def shape_text(array: Named) -> str:
    kind = {"O": "text", "U": "text", "S": "text"}.get(array.dtype.kind, str(array.dtype))
    return f"{tuple(array.shape)} {kind}"


def _may_score(name: str, array: Named) -> bool:
    key = normal(name)
    dims = len(array.shape)
    if dims == 0 or (key not in roles.SCORES and not (key in roles.ONE_SCORE and dims == 1)):
        return False
    if dims == 1 and key in roles.CLASS_CALLS:
        return False
    return _scalars(array) if dims == 1 else array.dtype.kind in roles.SCORES.dtypes


def _scalars(array: Named) -> bool:
    """Return whether a column may be scores: it holds fractions, or text that can be parsed."""
    return bool(array.shape) and array.dtype.kind in roles.ONE_SCORE.dtypes


def _list(names: list[str]) -> str:
    quoted = [f"'{n}'" for n in names[:4]]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]


def label_candidates(names: Iterable[str], last: Sequence[str] = ()) -> list[str]:
    """Return the names that stand for labels: the most common words first, then weaker ones, then those in `last`."""
    spelled = {name: normal(name) for name in names}
    matches = (
        [name for name, key in spelled.items() if key in known]
        for known in (roles.LABELS.names, roles.LABELS.weak, last)
    )
    return next(filter(None, matches), [])


def two_dimensional(raw: Named, name: str, where: str, labels: int | None, kind_given: bool) -> Named:
    """Convert `raw` to (N, K) real numbers; (N,) becomes (N, 1).

    Args:
        labels: how many labels there are, to recognise transposed scores.
        kind_given: whether the user said what kind of scores they are.

    Raises:
        InputError: transposed, of another shape, text, or class numbers instead of scores.
    """
    if raw.dtype.kind in "USO":
        if len(raw.shape) != 1:
            raise InputError(f"'{name}' in {where} is text", "save the scores as float32")
        raw = Memory(_numbers_of(read_all(raw), name, where))
    if len(raw.shape) == 3 and raw.shape[1] == 1:
        raw = Converted(raw, lambda block: block[:, 0], raw.shape[2:], raw.dtype)
    dims = len(raw.shape)
    if dims not in (1, 2):
        problem = f"scores '{name}' in {where} have shape {shape_text(raw)}"
        raise InputError(problem, "pass one row per sample: shape (N, K); tokens or pixels: reshape to (N * T, K)")
    if raw.shape[0] == 0 or (dims == 2 and raw.shape[1] == 0):
        kind = InputError if raw.shape[0] else NoRows
        raise kind(f"scores '{name}' in {where} are empty: {shape_text(raw)}", "is the file truncated?")
    if dims == 2 and labels is not None and raw.shape[0] != labels and raw.shape[1] == labels:
        raise InputError(f"scores '{name}' are {tuple(raw.shape)} with {labels:,} labels: transposed", f"save {name}.T")
    if dims == 2 and labels is not None and raw.shape[0] != labels:
        problem = f"{count_text(raw.shape[0], 'row')} of scores ('{name}') but {count_text(labels, 'label')}"
        raise InputError(problem, "pass the labels of exactly these rows, in the same order")
    if raw.dtype.kind == "b":
        raise InputError(f"scores '{name}' in {where} are true or false", "save the logits or probabilities")
    if raw.dtype.kind in "iu" and _hard(raw):
        problem = f"scores '{name}' in {where} are predicted classes, not scores ({shape_text(raw)})"
        raise InputError(problem, NO_PROBABILITY)
    if not kind_given and (dims == 1 or raw.shape[1] == 1) and raw.dtype.kind == "f" and _zeros_and_ones(raw):
        problem = f"scores '{name}' in {where} are 0 and 1 alone: predicted classes, not probabilities?"
        raise InputError(problem, f"{NO_PROBABILITY}; if they are probabilities: --kind probabilities")
    if raw.dtype.kind in "iu" or raw.dtype.itemsize > 8:
        raw = Converted(raw, lambda block: block.astype(np.float64), raw.shape[1:], np.dtype(np.float64))
    return raw if dims == 2 else Converted(raw, lambda block: block[:, None], (1,), raw.dtype)


def in_order(scores: Named, classes: Sequence[str], wanted: Sequence[str], where: str) -> Named:
    """Return the columns of `scores`, which are of `classes`, in the order `wanted`, as other files have them.

    Raises:
        InputError: they are of other classes.
    """
    if sorted(classes) != sorted(wanted):
        problem = f"{where} has the classes {first_few(classes, 4)[:85]}, other files {first_few(wanted, 4)[:85]}"
        raise InputError(problem, "shards must have the same classes")
    order = [classes.index(name) for name in wanted]
    return Converted(scores, lambda block: block[:, order], scores.shape[1:], scores.dtype)


def as_scores(scores: Named, kind: Kind, clip: float = 0.0, ends: tuple[Ints, Array] | None = None) -> Scores:
    """Return logits or log-probabilities (N, K), K >= 2, that are read in blocks.

    Args:
        clip: what smaller probabilities are raised to.  ends: as in `ArrayScores`.
    """
    n, k = scores.shape
    wide = scores.dtype.itemsize > 4 or (n * k <= SMALL and (k == 1 or kind != "logits"))
    dtype = np.dtype(np.float64 if wide else np.float32)
    if isinstance(scores, DeviceScores):
        return scores.measured(kind, dtype, clip)
    if kind != "logits":  # of which some that differ have equal logarithms
        ends = None
    elif isinstance(scores, Memory | Lazy) and k > 1:
        return ArrayScores(np.ascontiguousarray(read_all(scores), dtype=dtype), ends)
    streamed = Converted(scores, lambda block: _measured(block, kind, dtype, clip), (max(k, 2),), dtype, ends)
    if n * max(k, 2) * dtype.itemsize <= HOLD:
        return ArrayScores(streamed.read(0, n), ends)
    return cast(Scores, streamed)


def in_memory(array: Named) -> Named:
    """Return `array` in memory if it is small, else unchanged."""
    small = math.prod(array.shape) * array.dtype.itemsize <= HOLD
    return Memory(read_all(array)) if small and not isinstance(array, Memory | DeviceScores) else array


def _measured(block: Array, kind: Kind, dtype: np.dtype[Any], clip: float) -> Array:
    """Convert a block of scores to what is measured: probabilities become logarithms, one column becomes two."""
    with np.errstate(invalid="ignore"):
        logits = logits_of(np.ascontiguousarray(block, dtype=dtype), kind)
    return np.maximum(logits, np.asarray(np.log(clip), logits.dtype)) if clip and kind != "logits" else logits


def _numbers_of(column: Array, name: str, where: str) -> Array:
    """Convert a column of text to (N,) float64.

    Raises:
        InputError: it holds names of classes, or a cell that is not a number.
    """
    texts = [str(cell).strip() for cell in column[:1000].tolist()]
    known = [text for text in texts if text.lower() not in MISSING]
    if texts and all(any(map(str.isalpha, text)) and not is_number(text) for text in known):
        raise InputError(f"scores '{name}' in {where} are names, not numbers", NO_PROBABILITY)
    return floats_of_text(column, name, where)


def _zeros_and_ones(column: Named) -> bool:
    """Return whether a column holds zeros and ones, both of them and nothing else, in enough rows to tell."""
    seen = [np.unique(block) for _, block in blocks(column) if ((block == 0) | (block == 1)).all()]
    rows = column.shape[0]
    return rows >= FEWEST and len(seen) == -(-rows // rows_of(column)) and len(np.unique(np.concatenate(seen))) == 2


def _hard(raw: Named) -> bool:
    """Return whether integers are class numbers or one-hot rows rather than scores."""
    head = raw.read(0, min(raw.shape[0], 1000))
    if len(raw.shape) == 1 or raw.shape[1] == 1:
        return True
    return bool(((head == 0) | (head == 1)).all() and (head.sum(axis=1) == 1).all())


def folded_calibrator(contents: FileContents) -> str:
    """Return the note of `calib logits` on a calibrator that is already part of the model, or ""."""
    array, note = contents.arrays.get(roles.FOLDED), contents.metadata.get(roles.FOLDED, "").strip('[]"')
    if array is not None and array.shape == (1,) and array.dtype.kind == "U":
        note = str(array.read(0, 1)[0])
    return note and printable(note, 200)


# Tables whose score columns are named after classes: `cat_prob, dog_prob`, `class_0, class_1`, `benign, malignant`.


NUMBERED = re.compile(r"^(.*?)(\d{1,7})(.*)$")
Group = tuple[Sequence[str], Sequence[str], str]
"""Columns, the classes that they are of, and what their names have in common."""


def grouped(contents: Sequence[FileContents], wanted: str | None, where: Sequence[str]) -> list[FileContents]:
    """Join the score columns of a table into one array if they can be recognised; else return the table unchanged.

    Args:
        contents: of the files of one data set: the columns are those of the first, the labels that of all.
        wanted: `--scores`: several columns by comma are the scores in this order.  where: names of the files.

    Raises:
        InputError: a column that was asked for, or that another file has, is not there, or holds no numbers.
    """
    first = contents[0]
    group = None if wanted or first.scores else score_columns(contents)
    if wanted and "," in wanted and first.table and wanted not in first.arrays:
        columns = [named(first, name.strip(), "--scores", where[0]) for name in wanted.split(",")]
        if len(set(columns)) < len(columns):
            raise InputError(f"--scores {wanted} names a column twice", "name every class once, in order")
        group = columns, _stripped(columns), ""
    return [*contents] if group is None else [_joined(c, group, f, wanted or "") for c, f in zip(contents, where)]


def score_columns(contents: Sequence[FileContents]) -> Group | None:
    """Find the score columns of a table, by their names and by the labels of all files."""
    first = contents[0]
    label = one[0] if len(one := label_candidates(first.arrays)) == 1 else ""
    known = (label, *(name for name in first.arrays if name in roles.IDS or name in roles.ROW_NUMBERS))
    own = [name for name, array in first.arrays.items() if name not in known and array.shape[1:] == ()]
    if not first.table or len(own) < 2:  # no group, whatever the labels are
        return None
    of_labels = _label_names([c.arrays[label] for c in contents if label in c.arrays])
    return _by_labels(own, of_labels, first) or _numbered(own) or _named(own, of_labels)


def _label_names(labels: Sequence[Named]) -> list[str]:
    """Return the distinct labels if they are names, else []."""
    texts = (texts_of(read_all(part)).tolist() for part in labels if part.dtype.kind in "USO")
    names = sorted({str(text).strip() for text in chain.from_iterable(texts)} - {""})
    return [] if len(names) > 10_000 or all(is_number(text) for text in names) else names


def _by_labels(own: Sequence[str], labels: Sequence[str], contents: FileContents) -> Group | None:
    """Find columns that are named after the labels, alone or all with the same words before or after the label.

    Where they have the names alone, no other column may hold numbers: a class that no label names would be lost.
    """
    if len(labels) < 2:
        return None
    around = {(m[0], m[2]) for column in own if (m := column.partition(labels[0]))[1]}
    for before, after in sorted(around, key=lambda words: (len(words[0] + words[1]), words)):
        if not {f"{before}{label}{after}" for label in labels} <= set(own):
            continue
        columns = [c for c in own if c.startswith(before) and c.endswith(after) and len(c) > len(before + after)]
        names = [c[len(before) : len(c) - len(after)] for c in columns]
        if not before + after:
            columns = names = [c for c in own if c in labels]
        others = [contents.arrays[c] for c in own if c not in columns]
        if before + after or not any(is_number(str(other.read(0, 1)[0])) for other in others if other.shape[0]):
            return columns, names, before + after
    return None


def _numbered(own: Sequence[str]) -> Group | None:
    """Find columns numbered 0 .. K-1, with a word for scores beside the number, or with nothing but numbers."""
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for column in own:
        if parts := NUMBERED.match(column):
            groups.setdefault((parts[1], parts[3]), {})[int(parts[2])] = column
    for (before, after), columns in groups.items():
        words = set(re.split(r"[^a-z]+", f"{before} {after}".lower())) - {""}
        numbers = sorted(columns)
        from_zero = numbers == list(range(len(numbers)))
        if len(numbers) > 1 and from_zero and (words & roles.ABOUT_SCORES if words else len(columns) == len(own)):
            return [columns[k] for k in numbers], [str(k) for k in numbers], before + after
    return None


def _named(own: Sequence[str], labels: Sequence[str]) -> Group | None:
    """Find columns such as `p_benign, p_malignant` beside labels that are numbers."""
    pairs = [(m[1].lower(), m[2], c) for c in own if class_in_name(c) and (m := roles.OF_CLASS.match(c))]
    if labels or len(pairs) < 2 or len({prefix for prefix, *_ in pairs}) > 1:
        return None
    return [c for *_, c in pairs], [name for _, name, _ in pairs], pairs[0][0]


def _joined(contents: FileContents, group: Group, where: str, name: str = "") -> FileContents:
    wanted, names, common = group
    columns = [named(contents, column, "--scores" if name else "column", where) for column in wanted]
    cells = [read_all(contents.arrays[name]) for name in columns]
    block = np.column_stack([_numbers(column, name, where) for name, column in zip(columns, cells)])
    name = name or ", ".join(wanted)
    prefix = normal(common).strip("_").replace("__", "_")
    texts = [str(cell) for column in cells if column.dtype.kind in "USO" for cell in column[:1000].tolist()]
    return replace(
        contents,
        arrays={name: Memory(block), **{n: a for n, a in contents.arrays.items() if n not in columns}},
        kinds={**contents.kinds, name: roles.PREFIXES.get(prefix, "")},
        decimals={**contents.decimals, name: max(map(decimals_of, texts))} if texts else contents.decimals,
        classes={**contents.classes, **({} if all(map(is_number, names)) else {name: list(names)})},
        scores=name,
    )


def _numbers(column: Array, name: str, where: str) -> Array:
    if column.ndim != 1:
        raise InputError(f"'{name}' in {where} is not one column", "name columns of one number each")
    return floats_of_text(column, name, where) if column.dtype.kind in "USO" else column


def _stripped(columns: Sequence[str]) -> list[str]:
    """Strip the words that all names share at either end: `cat_prob`, `dog_prob` give `cat`, `dog`."""
    words = [re.split(r"(?<=[_.\- ])|(?=[_.\- ])", column) for column in columns]
    while len({w[0] for w in words}) == 1 and min(map(len, words)) > 1:
        words = [w[1:] for w in words]
    while len({w[-1] for w in words}) == 1 and min(map(len, words)) > 1:
        words = [w[:-1] for w in words]
    return ["".join(w).strip("_.- ") or column for w, column in zip(words, columns)]


# Advice for files in which no array has a known name: the options that would read them. Values are never shown.

ROWS, SHOWN = 1000, 6  # rows that are looked at, columns that the advice names
TWO = ({"0", "1"}, *map(set, roles.OUTCOMES))
PERCENT = ("conf", "confidence", "percent", "%", "certainty", "sure")
"""Parts of names that make numbers from 0 to 100 look like confidences."""


def reading_advice(contents: FileContents, no_probability: str) -> str:
    """Return a sentence that says which options would read the file.

    Args:
        no_probability: what to do where no array holds scores.
    """
    columns = {name: a for name, a in contents.arrays.items() if a.shape[1:] in ((), (1,)) and a.shape and a.shape[0]}
    cells = {name: _cells(array) for name, array in columns.items()}
    wide = [name for name, a in contents.arrays.items() if len(a.shape) == 2 and a.shape[1] > 1 and a.dtype.kind == "f"]
    fractions = [name for name, column in cells.items() if _are_shares(column)]
    label = _label(cells, contents.arrays[wide[0]].shape[1] if wide else len(fractions))
    with_labels = f" --labels {shlex.quote(label)}" if label else ""
    by_label = [name for name in cells if label and name in set(cells[label])]
    predicted = next((n for n in cells if n in roles.PREDICTED and n not in (label, *fractions)), "")
    shares = [name for name in fractions if name != label]
    if wide:
        return f"choose them: --scores {shlex.quote(wide[0])}{with_labels}; or name them logits or probs"
    if len(by_label) > 1:
        return f"choose them: --scores {shlex.quote(','.join(by_label))}{with_labels}; or name them logits or probs"
    percent = [name for name, column in cells.items() if name not in (label, predicted) and _are_percents(name, column)]
    if predicted and label and (shares or percent):
        one, scale = (shares[0], "") if shares else (percent[0], " --confidence-scale percent")
        options = f"--confidence {shlex.quote(one)}{scale}{with_labels}"
        return f"a confidence beside the predicted class '{predicted}': {options}"
    if shares:
        options = f"--scores {shlex.quote(','.join(shares[:SHOWN]))}{with_labels}"
        return f"choose them: {options}; or name them logits or probs"
    return f"if one of these holds scores: --scores KEY; else {no_probability}"


def is_numeric(array: Named) -> bool:
    """Return whether an array holds numbers, or texts that are numbers."""
    if array.dtype.kind not in "USO":
        return True
    return bool(array.shape[0]) and all(map(is_number, _cells(array)))


def _cells(array: Named) -> list[str]:
    """Return the first rows of a column as texts, whole numbers without a decimal point."""
    return [str(cell).strip().removesuffix(".0") for cell in array.read(0, ROWS).reshape(-1).tolist()]


def _label(cells: dict[str, list[str]], k: int) -> str:
    """Return the column that holds the labels, or "" where none looks like it. Candidates, in this order: a column with
    a label's name, one that holds names of columns, one with numbers of the k classes, one of two outcomes, and the
    last column of two whole numbers or names.
    """
    for known in (roles.LABELS.names, roles.LABELS.weak):
        if named := [name for name in cells if normal(name) in known]:
            return named[0]
    for name, column in cells.items():
        if len(set(column) & set(cells)) > 1:  # the names of columns
            return name
    numbers = {str(i) for i in range(k)}
    if k > 1 and (numbered := [name for name, column in cells.items() if set(column) <= numbers]):
        return numbered[-1]
    free = {name: set(column) for name, column in cells.items() if name not in roles.PREDICTED}
    outcomes = [name for name, values in free.items() if {v.lower() for v in values} in TWO]
    fractions = {v for values in free.values() if len(values) == 2 for v in values if is_number(v) and float(v) % 1}
    two = [name for name, values in free.items() if len(values) == 2 and not values & fractions]
    return (outcomes or two or [""])[-1]


def _are_shares(column: Sequence[str]) -> bool:
    """Return whether the cells are numbers in [0, 1] that are not all whole; `63.4%` counts as 0.634."""
    bare = [cell.removesuffix("%") for cell in column]
    if not all(map(is_number, bare)):
        return False
    values = np.array([float(b) / (100 if b != c else 1) for b, c in zip(bare, column, strict=True)])
    return bool(((values >= 0) & (values <= 1)).all()) and not np.array_equal(values, np.floor(values))


def _are_percents(name: str, column: Sequence[str]) -> bool:
    """Return whether the cells are numbers in [0, 100] under a name that says that they are confidences."""
    if not (any(word in name.lower() for word in PERCENT) and all(map(is_number, column))):
        return False
    values = np.array([float(cell) for cell in column])
    return bool(((values >= 0) & (values <= 100)).all())
