"""Choose the scores and labels of a file by the names in `files/roles`, or suggest the option that reads them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from calibcli.core.errors import CalibError, InputError, NoRows, UsageError, did_you_mean, printable, refusing
from calibcli.core.number_format import count_text, first_few
from calibcli.core.options import normal, real
from calibcli.scores import _column_evidence as column_evidence
from calibcli.scores import _reading_advice as lines_of_options
from calibcli.scores.columns import SMALL
from calibcli.scores.files import roles
from calibcli.scores.files.arrays import Converted, FileContents, Lazy, Memory, blocks, column_of, read_all, texts_of
from calibcli.scores.files.text_tables import MISSING, decimals_of, floats_of_text, is_number
from calibcli.scores.predictions import Array, ArrayScores, Ints, Kind, Named, Scores, logits_of, rows_of
from calibcli.scores.reading_options import Reading
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
    for candidate in KINDS:
        if normal(kind) in (candidate, {"probabilities": "probs", "log_probabilities": "log_probs"}.get(candidate)):
            return candidate
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
    if len(likely) == 1:
        likely += _others_like(contents, likely[0])
    likely = _without_margins(contents, likely)
    if len(likely) > 1:
        lines = " or ".join(f"--scores {shlex.quote(name)}" for name in likely[:4])
        raise InputError(f"{_list(likely)} in {where} could each be the scores", f"choose one: {lines}")
    if likely:
        return likely[0]
    if contents.lacking:
        raise InputError(*contents.lacking)
    top = [name for name in contents.arrays if name in roles.CONFIDENCE]
    if top:
        look = lines_of_options.ColumnLook(contents)
        named_top = [one for one in lines_of_options.candidates(look) if top[0] in one.names]
        stated = [line for line in lines_of_options.lines(look, named_top) if " --" in line]
        fix = f"choose {'one' if len(stated) > 1 else 'them'}: {' or '.join(stated)}" if stated else WITH_VERDICT
        if not stated and (wrong := [name for name in look.groups if roles.says(name, roles.ERROR_WORDS)]):
            fix = f"'{wrong[0]}' seems to say which predictions were wrong: save its opposite as a column correct"
        raise InputError(f"{where} holds only the score of the top class ('{top[0]}')", fix)

    raise InputError(f"no scores in {where}: it holds {describe(contents)}", reading_advice(contents, NO_PROBABILITY))


def _without_margins(contents: FileContents, names: list[str]) -> list[str]:
    """Return the one column that is called a probability, where all others are margins: beyond [0, 1], of no name that
    says what they are.
    """
    tables = {
        name: column_evidence.numbers(contents.arrays, [name]) for name in names if _scalars(contents.arrays[name])
    }
    claimed = [name for name in names if roles.SCORE_KINDS.get(normal(name)) == "probabilities"]
    others = [tables.get(name) for name in names if name not in claimed and normal(name) not in roles.SCORE_KINDS]
    margins = [table is not None and bool(((table < 0) | (table > 1)).any()) for table in others]
    return claimed if len(claimed) == 1 and len(others) == len(names) - 1 and all(margins) else names


def _others_like(contents: FileContents, chosen: str) -> list[str]:
    """Return further arrays that hold other probabilities of the same rows and classes, with the word of the chosen
    name in theirs where there is one class: `cal_prob` beside `prob`.
    """
    chosen_array = contents.arrays[chosen]
    out = []
    for name, array in contents.arrays.items():
        wide = len(array.shape) == 2 and array.shape[1] > 1
        words = re.split(r"[^a-z0-9]+", normal(name))
        if name == chosen or array.shape != chosen_array.shape or not (wide or normal(chosen) in words):
            continue
        if not wide and (set(words) & set(roles.NO_CLASS) or array.dtype.kind not in roles.ONE_SCORE.dtypes):
            continue
        pair = [_shares_of(a) for a in (chosen_array, array)]
        if pair[0] is None or pair[1] is None:
            continue
        theirs = 1 - pair[1] if not wide and np.allclose(pair[0] + pair[1], 1) else pair[1]
        if not np.allclose(pair[0], theirs, atol=1e-6) and not _says_class(name, contents):
            out.append(name)
    return out


def _says_class(name: str, contents: FileContents) -> bool:
    """Return whether a column such as `prob_yes` is named after a label."""
    class_name = class_in_name(name)
    labels = (contents.arrays[one] for one in label_candidates(contents.arrays))
    return bool(class_name) and (
        class_name.isdecimal() or any(class_name in column_evidence.head(array) for array in labels)
    )


def _shares_of(array: Named) -> Array | None:
    """Return the first rows of probabilities (rows, K) that sum to one, or of one column of numbers in [0, 1] that are
    not all whole; else None.
    """
    if array.dtype.kind in "USO":
        table = column_evidence.numbers({"": array}, [""])
    else:
        block = np.asarray(column_evidence.sample(array), np.float64)
        table = block.reshape(len(block), -1)
    if table is None or not len(table):
        return None
    if table.shape[1] > 1:
        return table if column_evidence.are_probabilities(table) else None
    inside = bool(((table >= 0) & (table <= 1)).all())
    return table if inside and not np.array_equal(table, np.floor(table)) else None


def refuse_lost_class(contents: FileContents, name: str, scores: Named, where: str) -> None:
    """Refuse probabilities (N, K) that sum to one with a further column, which is then of a class as well.

    Raises:
        InputError: there is such a column.
    """
    members = [*contents.members.get(name, ())]
    table = np.asarray(column_evidence.sample(scores), np.float64) if members else np.ones((0, 0))
    if not members or not column_evidence.lack_a_class(table):
        return
    for column in (n for n, a in contents.arrays.items() if n not in members and a.shape[1:] == ()):
        further = column_evidence.numbers(contents.arrays, [column])
        if further is not None and column_evidence.are_probabilities(np.hstack([table, further])):
            problem = (
                f"the rows of {first_few(members, 4)} in {where} sum to 1 with '{column}' alone: is it of a class?"
            )
            raise InputError(problem, f"--scores {shlex.quote(','.join([*members, column]))}")


def refuse_verdicts(scores: str, labels: str, where: str, width: int, stated: bool = False) -> None:
    """Refuse one score per row whose name says that it is the top class's, or labels that say whether that was right.

    Read as P(class 1) and its label they would give other numbers: where the top class is wrong, accuracy and
    confidence are those of the other event.

    Args:
        stated: the user said which class the scores are of.

    Raises:
        InputError: the names say so.
    """
    if width > 1:
        return
    name = Path(labels).stem if labels else ""
    if scores.replace("%", "").strip() in roles.CONFIDENCE and not stated:
        problem = f"'{scores}' in {where} is the confidence in the predicted class, not the probability of class 1"
    elif name in roles.CORRECT:
        problem = f"labels '{labels}' say whether a prediction was right, not which class was observed"
    else:
        return
    fix = f"{WITH_VERDICT}, with --confidence {shlex.quote(scores)}"
    raise InputError(problem, f"{fix}; if it is P(class 1) with labels 0 and 1: call them prob and label")


def unused(contents: FileContents, rows: int, used: Iterable[str], reading: Reading) -> list[str]:
    """Return the arrays with one value, or one row of numbers, per row that nothing was asked of."""
    taken = {*filter(None, used), reading.predicted, reading.correct, reading.confidence, contents.ids, contents.groups}
    parts = {part for name in taken if name for part in name.split(",")} | taken
    parts |= {name for name, members in contents.members.items() if parts.issuperset(members)}
    return [name for name, array in contents.arrays.items() if name not in parts and array.shape[:1] == (rows,)]


def candidates(contents: FileContents) -> list[str]:
    """Return the arrays that could be the scores; if there are none, the columns named after a class, such as
    `p_malignant`.
    """
    if contents.scores or contents.lacking:
        return [contents.scores] if contents.scores else []
    arrays = contents.arrays
    in_percent = [name for name, a in arrays.items() if "%" in name and contents.table and is_percent(a)]
    return (
        [name for name, array in arrays.items() if name in contents.kinds or _may_score(name, array)]
        or (in_percent if len(in_percent) == 1 else [])
        or [
            name
            for name, a in arrays.items()
            if normal(name) in roles.SCORES.weak and (len(a.shape) == 2 or (_scalars(a) and not _are_calls(a)))
        ]
        or [name for name, a in arrays.items() if class_in_name(name) and a.shape[1:] == () and _scalars(a)]
    )


def is_percent(array: Named) -> bool:
    """Return whether a column holds numbers from 0 to 100 of which some are above 1 and some are no whole numbers."""
    table = column_evidence.numbers({"": array}, [""]) if array.shape[1:] == () else column_evidence.sample(array)
    if table is None or not len(table):
        return False
    return bool(table.min() >= 0 and 1 < table.max() <= 100 and (table % 1).any())


def class_in_name(name: str) -> str:
    """Return the class in the name of a score column: `malignant` for `p_malignant`, `1` for `prob_1`, else ""."""
    match = None if "," in name else roles.OF_CLASS.match(name)  # several columns are of several classes
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
        if scores in contents.arrays and contents.arrays[scores].shape[1:] == () and "label" in likely:
            other = next(name for name in likely if name != "label")
            fix += f"; if 'label' is the prediction, as pipelines write it: --confidence {shlex.quote(scores)} "
            fix += f"--predicted label --labels {shlex.quote(other)}"
        raise InputError(f"{_list(likely)} in {where} could each be the labels", fix)
    return likely[0] if likely else None


def refuse_predictions(contents: FileContents, labels: str, where: str) -> None:
    """Refuse labels that are the class of the largest score in every row, unless their name is that of labels and no
    other column has such classes.

    Raises:
        InputError: they may be the predictions.
    """
    look = lines_of_options.ColumnLook(contents)
    own = look.groups.get(labels, set())
    others = [n for n, values in look.groups.items() if n != labels and len(values & own) > 1]
    others = [name for name in others if look.cells[name] != look.cells.get(labels)]
    if not others and (normal(labels) in roles.LABELS.names or contents.format == "arrays"):
        return
    problem = f"'{labels}' in {where} is the class of the largest score in every row: is it the prediction?"
    lines = " or ".join(f"--labels {shlex.quote(name)}" for name in others[:4])
    observed = f"name the classes that were observed: {lines}" if lines else "save the classes that were observed"
    raise InputError(problem, f"{observed}; if it was observed all the same, name it with --labels KEY")


def refuse_one_of_one_hot(contents: FileContents, scores: str, labels: str, where: str) -> None:
    """Refuse one of as many columns of 0 and 1 as there are classes, of which one is 1 in every row, as the labels.

    Raises:
        InputError: it is one of them; the fix names all of them, in the order of the scores where their names tell it.
    """
    columns = {n: a for n, a in contents.arrays.items() if a.shape[1:] == () and n != scores}
    if labels not in columns or not {*column_evidence.head(columns[labels])} <= {"0", "1"}:
        return
    one_hot = [n for n, a in columns.items() if {*column_evidence.head(a)} <= {"0", "1"}]
    members = contents.members.get(scores, ())
    if len(one_hot) != len(members) or not column_evidence.are_one_hot(column_evidence.numbers(columns, one_hot)):
        return
    ordered = [[name for name in one_hot if member in name] for member in members]
    in_order = [names[0] for names in ordered] if all(len(names) == 1 for names in ordered) else one_hot
    raise InputError(
        f"'{labels}' in {where} is 0 or 1, and of {_list(one_hot)} one is 1 in every row: one column for each class",
        f"name all of them, in the order of the scores: --labels {shlex.quote(','.join(in_order))}",
    )


def named(contents: FileContents, name: str, option: str, where: str) -> str:
    """Return `name` as it is spelled in the file.

    Raises:
        InputError: the file has no such array.
    """
    if name in contents.arrays:
        return name
    for array_name in contents.arrays:
        if normal(array_name) == normal(name):
            return array_name
    problem = f"{option} {name}: no such array in {where}, it holds {describe(contents)}"
    if option == "--by" and re.search("[<>=]", name):
        quoted = shlex.quote(name)
        raise InputError(problem, f"name a column; parts of it are slices of a gate: calib check --by {quoted}")
    columns = [column for column in _columns(contents) if column.isdecimal()]
    if columns and {*columns} == {str(i) for i in range(len(columns))} and name.isdecimal():
        raise InputError(problem, f"columns without a header are called 0 to {len(columns) - 1}, from the left")
    hidden = bool(_without_names(contents))
    raise InputError(problem, "name a column of the header" if hidden else did_you_mean(name, [*contents.arrays][:20]))


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


def columns_there(contents: FileContents, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the columns that a file has, each once."""
    there = []
    for name in dict.fromkeys(names):
        with contextlib.suppress(CalibError):
            column(contents, name, "by", "")
            there.append(name)
    return tuple(there)


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

    Names are left out, too, where they may be values.
    """
    if text := _without_names(contents):
        return text
    shown = [f"{name} {shape_text(array)}" for name, array in contents.arrays.items()]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more if shown else "nothing"


def _without_names(contents: FileContents) -> str:
    """Describe a table whose first line may be no header, without what stands there; "" for any other file.

    A table without a number may have no header, nor is its first line one where it holds a number that is no class.
    """
    if not contents.table:
        return ""
    numeric, cells = any(map(is_numeric, contents.arrays.values())), _begins_with_cells(contents)
    if numeric and not cells:
        return ""
    rows = max((array.shape[0] for array in contents.arrays.values()), default=0)
    first, of_text = "a first line with a number" if cells else "a header", "" if numeric else " of text"
    return f"{count_text(len(contents.arrays), 'column')}{of_text}, {count_text(rows, 'row')} and {first}"


def _begins_with_cells(contents: FileContents) -> bool:
    """Return whether the first line of a table holds cells, not names: a number that is no class 0 .. K-1 or 1 .. K."""
    numbers = sorted(float(name) for name in contents.arrays if contents.table and is_number(name))
    counted = [[float(first + i) for i in range(len(numbers))] for first in (0, 1)]
    return bool(numbers) and len(numbers) < len(contents.arrays) and numbers not in counted


def shape_text(array: Named) -> str:
    text = array.dtype.kind in "USO"
    kind = str(array.dtype) if not text else "numbers" if is_numeric(array) else "text"
    return f"{tuple(array.shape)} {kind}"


def _may_score(name: str, array: Named) -> bool:
    key = normal(name)
    dims = len(array.shape)
    if dims == 0 or (key not in roles.SCORES and not (key in roles.ONE_SCORE and dims == 1)):
        return False
    if dims == 1 and (key in roles.CLASS_CALLS or _are_calls(array)):
        return False
    return _scalars(array) if dims == 1 else array.dtype.kind in roles.SCORES.dtypes


def _are_calls(array: Named) -> bool:
    """Return whether a column of text holds 0 and 1 alone, in enough rows to tell."""
    cells = column_evidence.head(array)
    return array.dtype.kind == "O" and len(cells) >= FEWEST and {*cells} == {"0", "1"}


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
        [name for name, key in spelled.items() if key in words]
        for words in (roles.LABELS.names, roles.LABELS.weak, last)
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
        raise InputError(problem, "pass one row per sample: shape (N, K); of tokens or pixels, labels of every one")
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


def shares_out_of(scores: Named, wanted: str, name: str) -> Named:
    """Return scores (N, C) divided by a number, or each row by its sum.

    Args:
        wanted: `sum`, `percent`, or the number.

    Raises:
        UsageError: another text, or the sum of one column.  InputError: scores that are negative or add up to nothing.
    """
    if normal(wanted) == "sum":
        if scores.shape[1] < 2:
            raise UsageError(
                f"--out-of sum is for several columns of scores, '{name}' is one", "pass a number: --out-of 100"
            )
        return Converted(scores, lambda block: _by_sums(block, name), scores.shape[1:], np.dtype(np.float64))
    try:
        total = 100.0 if normal(wanted) in ("percent", "%") else real(wanted)
    except ValueError:
        total = math.nan
    if not 0 < total < math.inf:
        raise UsageError(f"--out-of {wanted} is no number above 0", "pass sum, percent, or a number: --out-of 100")
    return Converted(scores, lambda block: block / total, scores.shape[1:], np.dtype(np.float64))


def _by_sums(block: Array, name: str) -> Array:
    sums = block.sum(axis=1, keepdims=True)
    if (block < 0).any() or (sums == 0).any():
        problem = f"--out-of sum, but '{name}' has scores that are negative, or rows that sum to 0"
        raise InputError(problem, "leave --out-of out, or leave these rows out")
    return np.asarray(block / sums)


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
    present = [text for text in texts if text.lower() not in MISSING]
    if texts and all(any(map(str.isalpha, text)) and not is_number(text) for text in present):
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
LAST_WORD = re.compile(r"^(.*(?:[_.\-: ](?=.)|\D(?=\d)))([^_.\-: ]+)$")
Group = tuple[Sequence[str], Sequence[str], str]
"""Columns, the classes that they are of, and what their names have in common."""


def grouped(
    contents: Sequence[FileContents],
    wanted: str | None,
    where: Sequence[str],
    labels: str | None = None,
    sure: bool = False,
) -> list[FileContents]:
    """Join the score columns of a table into one array if they can be recognised, and choose its labels where values
    say which column they are; else return the table unchanged.

    Args:
        contents: of the files of one data set: the columns are those of the first, the labels that of all.
        wanted: `--scores`: several columns by comma are the scores in this order; or what the names of a family share.
        where: names of the files.
        labels: `--labels`: several columns by comma are one array (N, L).
        sure: the user said what kind of scores they are.

    Raises:
        InputError: a column that was asked for, or that another file has, is not there, or holds no numbers; or there
            are several families of scores, or several columns of labels.
    """
    first = contents[0]
    if not first.table:
        return [*contents]
    if labels and "," in labels and labels not in first.arrays:
        contents = [
            replace(c, arrays={**c.arrays, labels: _block(c, labels.split(","), "--labels", f)})
            for c, f in zip(contents, where)
        ]
    contents = [_by_class(c, f) for c, f in zip(contents, where)]
    if wanted and wanted not in contents[0].arrays and wanted in _columns(contents[0]):  # one of those that were joined
        contents = [replace(c, arrays={**c.arrays, wanted: _columns(c)[wanted]}) for c in contents]
    first = contents[0]
    if wanted and wanted not in first.arrays:
        group = _asked_for(contents, wanted, where[0])
    elif wanted or first.scores:
        group = None
    else:
        group = _only_family(contents, where[0])
    joined = [*contents] if group is None else [_joined(c, group, f, wanted or "") for c, f in zip(contents, where)]
    return joined if labels else _with_labels(joined, wanted, where, sure)


def _by_class(contents: FileContents, where: str) -> FileContents:
    """Return scores by class, where a table has the largest K of each row beside the classes that they are of.

    Raises:
        InputError: the rows do not name the same classes.
    """
    if not contents.members:
        columns = _columns(contents)
        numbered = _numbered([*columns], any_word=True)
        classes_listed = any(
            all(not is_number(c) or c.isdecimal() for c in column_evidence.head(columns[g[0][0]])) for g in numbered
        )
        for group in numbered if classes_listed else ():
            table = column_evidence.numbers(columns, group[0])
            if table is not None and column_evidence.ranked(table):
                contents = replace(_joined(contents, group, where), scores="")
                break
    for name, members in contents.members.items():
        free = [n for n, a in contents.arrays.items() if n != name and a.shape[1:] == ()]
        if len(members) < 3 or not column_evidence.ranked(np.asarray(column_evidence.sample(contents.arrays[name]))):
            continue
        numbers = [match[2] for member in members if (match := NUMBERED.match(member))]
        for family in column_evidence.families(
            free, numbers if len(numbers) == len(members) else _words(contents, name)
        ):
            listed = np.column_stack([np.char.strip(texts_of(read_all(contents.arrays[n]))) for n in family])  # (N, K)
            ordered = np.sort(listed, axis=1)
            if (ordered[:, 1:] == ordered[:, :-1]).any():
                continue
            if (ordered != ordered[0]).any():
                problem = f"'{first_few(members, 3)}' in {where} are the largest scores of each row, of the classes in "
                problem += f"'{first_few(family, 3)}', which differ from row to row"
                raise InputError(problem, EVERY_CLASS)
            order, scores = np.argsort(listed, axis=1), read_all(contents.arrays[name])
            heads = [column_evidence.head(contents.arrays[n]) for n in family]  # these columns, and copies of them
            note = f"'{first_few(members, 3)}' are sorted in each row: put in the order of the classes by "
            return replace(
                contents,
                arrays={
                    **{n: a for n, a in contents.arrays.items() if column_evidence.head(a) not in heads},
                    name: Memory(np.take_along_axis(scores, order, axis=1)),
                },
                scores=name,
                classes={**contents.classes, name: ordered[0].tolist()},
                notes=[*contents.notes, f"{note}'{first_few(family, 3)}'"],
            )
    return contents


def _asked_for(contents: Sequence[FileContents], wanted: str, where: str) -> Group | None:
    """Return the columns that `--scores` names, by comma or by what they share."""
    columns = _columns(contents[0])
    if "," in wanted:
        chosen = [_spelled(columns, name.strip(), "--scores", where, contents[0]) for name in wanted.split(",")]
        if len(set(chosen)) < len(chosen):
            raise InputError(f"--scores {wanted} names a column twice", "name every class once, in order")
        read = ((members, _words(contents[0], name)) for name, members in contents[0].members.items())
        families = [*read, *((group[0], group[1]) for group in score_families(contents))]
        names = next((words for members, words in families if [*members] == chosen), None)
        return chosen, names or class_names_of(chosen), ""
    return next((group for group in score_families(contents) if normal(_shared(group)) == normal(wanted)), None)


def _columns(contents: FileContents) -> dict[str, Named]:
    """Return every column of a table by its name, also those that its reader has joined."""
    out = dict(contents.arrays)
    for name, members in contents.members.items():
        out |= {member: _part(contents.arrays[name], i) for i, member in enumerate(members) if member not in out}
    return out


def _part(array: Named, column: int) -> Named:
    return Converted(array, lambda block: block[:, column], (), array.dtype)


def _spelled(columns: Mapping[str, Named], name: str, option: str, where: str, contents: FileContents) -> str:
    """Return the name of a column as it is spelled in the file."""
    if name in columns:
        return name
    return next((column_name for column_name in columns if normal(column_name) == normal(name)), "") or named(
        contents, name, option, where
    )


def _shared(group: Group) -> str:
    """Return what the names of a family have in common, as `--scores` takes it."""
    return group[2].strip("_.-: ")


def _choice(group: Group) -> str:
    """Return the option that chooses a family."""
    columns = group[0]
    short = len(columns) > lines_of_options.SHOWN and _shared(group)
    return f"--scores {shlex.quote(short or ','.join(columns))}"


def _only_family(contents: Sequence[FileContents], where: str) -> Group | None:
    """Return the family of score columns to join, or None where the reader has joined it, or there is none.

    Raises:
        InputError: there are several.
    """
    first = contents[0]
    by_name = [group for group in score_families(contents) if _alike(first, group)]
    read = [(members, _words(first, name), name) for name, members in first.members.items() if len(members) > 1]
    every: list[Group] = [*read, *by_name] or _by_values(first)
    if len(every) == 1 and _of_several(first, every[0]):
        read, every = [], _by_values(first) or every
    if len(every) == 1:
        every = [*every, *rivals(first, every[0])]
    if len(every) < 2:
        taken = {name for group in every for name in group[0]}
        numbered = _numbered([name for name in _columns(first) if name not in taken], any_word=True)
        others = [group for group in numbered if _are_shares(_columns(first), group[0])]
        others = [group for group in others if not any(_same_numbers(first, group, one) for one in every)]
        alone: list[Group] = [([name], [], name) for name in candidates(first) if first.arrays[name].shape[1:] == ()]
        every = [*every, *others, *alone] if others and (every or alone) else every
    if len(every) > 1 and not (len(read) == len(every) and len(candidates(first)) < 2):
        listed = " and ".join(f"'{first_few(columns, 3)}'" for columns, *_ in every[:4])
        lines = " or ".join(map(_choice, every[:4]))
        raise InputError(f"{listed} in {where} could each be the scores", f"choose one: {lines}")
    if read and read[0][2] in first.arrays and read[0][2] not in candidates(first):
        return [read[0][2]], [], read[0][2]
    return None if read or not every else every[0]


def _same_numbers(contents: FileContents, family: Group, other: Group) -> bool:
    """Return whether two families hold the same numbers, in any order of the columns."""
    pair = [column_evidence.numbers(_columns(contents), group[0]) for group in (family, other)]
    if pair[0] is None or pair[1] is None or pair[0].shape != pair[1].shape:
        return False
    return bool(np.allclose(np.sort(pair[0], axis=1), np.sort(pair[1], axis=1), atol=1e-6))


def _alike(contents: FileContents, group: Group) -> bool:
    """Return whether all columns of a family that vary hold fractions, or none does: else some are no scores."""
    table = column_evidence.numbers(_columns(contents), group[0])
    if table is None or len(table) < FEWEST:
        return True
    fractions = (table % 1 != 0).any(axis=0)[np.ptp(table, axis=0) > 0]
    return bool(fractions.all()) or not bool(fractions.any())


def _of_several(contents: FileContents, group: Group) -> bool:
    """Return whether the columns of a family are shares that add up to several wholes, as those of two models do."""
    table = column_evidence.numbers(_columns(contents), group[0])
    if table is None or not len(table) or not bool(((table >= 0) & (table <= 1)).all()):
        return False
    total = table.sum(axis=1)
    return bool((np.abs(total - np.round(total[0])) <= column_evidence.SUM).all()) and bool(total[0] > 1.5)


def _words(contents: FileContents, name: str) -> Sequence[str]:
    """Return the words in which the names of columns differ that a reader has joined."""
    return contents.classes.get(name) or _differing(contents.members[name])


def _differing(columns: Sequence[str]) -> list[str]:
    """Return what differs in names that have the same text before it, as `score_families` joins them."""
    before = os.path.commonprefix(list(columns))  # noqa: RUF071
    while before[-1:].isdecimal():  # the 1 of prob_10 and prob_11
        before = before[:-1]
    return [column[len(before) :] for column in columns]


def rivals(contents: FileContents, group: Group) -> list[Group]:
    """Return further columns of the same classes that hold other probabilities than the family."""
    members, words, _ = group
    columns = _columns(contents)
    taken = {*members, *contents.members}
    free = [n for n, a in columns.items() if n not in taken and a.shape[1:] == ()]
    out: list[Group] = []
    for family in column_evidence.families(free, words):
        table, ours = column_evidence.numbers(columns, family), column_evidence.numbers(columns, members)
        same = table is not None and ours is not None and np.array_equal(table, ours)
        if column_evidence.are_probabilities(table) and not same:
            out.append((family, words, family[0].replace(words[0], "", 1)))
    return out


def rivals_of(contents: FileContents, scores: str) -> list[Group]:
    """Return other columns of a table that could be the scores as well as those that are read."""
    return (
        rivals(contents, (contents.members[scores], _words(contents, scores), "")) if scores in contents.members else []
    )


def _by_values(contents: FileContents) -> list[Group]:
    """Return families that no name gives away: lists whose numbers are probabilities; else columns called by the values
    of a column, alone or with the same text around them, or by the words of one-hot columns, whose rows are
    probabilities.
    """
    columns = {name: a for name, a in _columns(contents).items() if a.shape[1:] == () and a.shape[0]}
    wide = [name for name, a in contents.arrays.items() if len(a.shape) == 2 and a.shape[1] > 1]
    if any(name in roles.SCORES and name not in contents.members for name in wide):
        return []
    if lists := [n for n in wide if n not in contents.members and _shares_of(contents.arrays[n]) is not None]:
        return [([name], [], name) for name in lists]
    if not 2 < len(columns) <= column_evidence.WIDEST:
        return []
    cells = {name: column_evidence.head(a) for name, a in columns.items() if a.dtype.kind in "USO"}
    texts = {n: c for n, c in cells.items() if not any(map(is_number, c))}
    words = [w for c in texts.values() if 1 < len(w := column_evidence.classes_in(c)) <= len(columns)]
    numbered = [group for group in _numbered([*columns], any_word=True) if _are_shares(columns, group[0])]
    if len(numbered) > 1 or any(contents.members or group[0][0] == "0" for group in numbered):
        return numbered
    named = [(members, members) for names in words if len(members := [name for name in columns if name in names]) > 1]
    named += [(family, names) for names in words for family in column_evidence.families(list(columns), names)]
    for one_hot in one_hot_groups(columns):
        names = _differing(one_hot)
        named += [(family, names) for family in column_evidence.families(list(columns), names) if family != one_hot]
        named += [(names, names)] * (set(names) <= set(columns))
    out: list[Group] = []
    for family, names in named:
        before, _, after = family[0].partition(names[0])
        alike = [
            n for n in columns if before + after and n.startswith(before) and n.endswith(after) and n not in family
        ]
        # a class that no row is labelled with may have a column too: of the same form, or what the others lack
        choices = [[*family, *alike], family]
        if not (before + after or _are_shares(columns, family)):
            spare = [name for name in columns if name not in family and _are_shares(columns, [*family, name])]
            choices = [[*family, name] for name in spare] if len(spare) == 1 else [family]
        alike = [*alike, *(name for name in choices[0] if name not in (*family, *alike))]
        classes = dict(zip(family, names)) | {n: n[len(before) : len(n) - len(after)] for n in alike}
        for wanted in choices:
            members = [name for name in columns if name in wanted]
            if column_evidence.are_probabilities(column_evidence.numbers(columns, members)):
                break
        else:
            continue
        members = [n for n in members if n in family or _may_be_class(columns[n], classes[n])]
        if all(set(members) != set(taken) for taken, *_ in out):
            out.append((members, [classes[name] for name in members], ""))
    return out


def _are_shares(columns: Mapping[str, Named], names: Sequence[str]) -> bool:
    return column_evidence.are_probabilities(column_evidence.numbers(columns, names))


def one_hot_groups(columns: Mapping[str, Named]) -> list[list[str]]:
    """Return groups of columns of 0 and 1 with one 1 in every row, whose names differ in their last word."""
    by_prefix: dict[str, list[str]] = {}
    for name in columns:
        if match := LAST_WORD.match(name):
            by_prefix.setdefault(match[1], []).append(name)
    groups = (names for names in by_prefix.values() if len(names) > 1)
    return [names for names in groups if column_evidence.are_one_hot(column_evidence.numbers(columns, names))]


def score_columns(contents: Sequence[FileContents]) -> Group | None:
    """Find the score columns of a table, by their names and by the labels of all files."""
    families = score_families(contents) or (_by_values(contents[0]) if contents[0].table else [])
    return families[0] if families else None


def score_families(contents: Sequence[FileContents]) -> list[Group]:
    """Find all families of score columns, by their names and by the labels of all files."""
    first = contents[0]
    label = named_labels[0] if len(named_labels := label_candidates(first.arrays)) == 1 else ""
    not_scores = (label, *(name for name in first.arrays if name in roles.IDS or name in roles.ROW_NUMBERS))
    columns = [name for name, array in first.arrays.items() if name not in not_scores and array.shape[1:] == ()]
    if not first.table or len(columns) < 2:  # no group, whatever the labels are
        return []
    return groups_of(columns, label_names([c.arrays[label] for c in contents if label in c.arrays]), first)


def groups_of(own: Sequence[str], labels: Sequence[str], contents: FileContents) -> list[Group]:
    """Find the families of columns among `own` that are named after classes; `labels` are the labels if names."""
    return _by_labels(own, labels, contents) or _numbered(own) or _named(own, labels)


def _with_labels(
    contents: Sequence[FileContents], wanted: str | None, where: Sequence[str], sure: bool
) -> list[FileContents]:
    """Choose the labels of a table where no name does: the one column of classes that is not the prediction, or the
    one-hot columns of the classes.

    Raises:
        InputError: the label by name equals the prediction, and another column could be the labels.
    """
    first = contents[0]
    name = first.scores or (wanted if wanted in first.arrays else "") or next(iter(_joined_names(first)), "")
    name = name or (score_names[0] if len(score_names := candidates(first)) == 1 else "")
    array = first.arrays.get(name)
    if array is not None and _holds_texts(array):
        return [*contents]
    if array is not None and first.labels in first.arrays and label_candidates([first.labels]) == []:
        table = np.asarray(column_evidence.sample(array), np.float64)
        classes = [str(i) for i in range(table.shape[-1])]
        cells = column_evidence.head(first.arrays[first.labels])
        if table.ndim == 2 and table.shape[1] > 2 and column_evidence.is_prediction(cells, table, classes):
            return [replace(c, labels="") for c in contents]  # chosen by its place, and no observation
    if array is None or first.labels:
        return [*contents]
    if array.shape[1:] in ((), (1,)):
        return _with_labels_of_one(contents, name, array, where, sure)
    if len(array.shape) != 2:
        return [*contents]
    labels = [one for one in label_candidates(first.arrays) if one != name]
    classes = [*first.classes.get(name, map(str, range(array.shape[1])))]
    columns = {n: a for n, a in first.arrays.items() if a.shape == array.shape[:1] and n != name}
    if not labels and (family := _one_hot_truth(columns, classes, first, name)):
        text = ", ".join(family)
        note = f"labels are the one-hot columns {first_few(family, 4)}"
        return [
            replace(
                c,
                arrays={**c.arrays, text: Memory(_names_of(c, family, classes, f))},
                labels=text,
                notes=[*c.notes, *([note] if i == 0 else [])],
            )
            for i, (c, f) in enumerate(zip(contents, where))
        ]
    if name not in first.classes:  # numbers may be anything
        return _with_labels_of_numbers(contents, name, array, where)
    predicted, others = _of_classes(columns, np.asarray(column_evidence.sample(array), np.float64), classes)
    free = [one for one in others if one not in labels]
    if len(labels) == 1 and labels[0] in predicted and len(free) == 1:
        problem = f"'{labels[0]}' in {where[0]} is the class of the largest score in every row, '{free[0]}' is not"
        observed, predicted_one = (f"--labels {shlex.quote(column)}" for column in (free[0], labels[0]))
        fix = f"{observed} if '{labels[0]}' is the prediction, or {predicted_one}"
        raise InputError(problem, fix)
    others = [one for one in others if one not in first.inside]
    if labels or len(others) != 1:
        return [*contents]
    beside = f", not the prediction '{predicted[0]}'" if predicted else ""
    return _labelled(contents, others[0], beside)


def _holds_texts(array: Named) -> bool:
    """Return whether an array holds cells that are no numbers, such as empty ones."""
    cells = column_evidence.sample(array).reshape(-1)
    return cells.dtype.kind in "USO" and not all(is_number(str(cell).strip()) for cell in cells.tolist())


def _labelled(contents: Sequence[FileContents], name: str, beside: str = "") -> list[FileContents]:
    """Return the files with that column as their labels, and a note."""
    note = f"labels are '{name}', the one column of classes{beside}"
    return [replace(c, labels=name, notes=[*c.notes, *([note] if i == 0 else [])]) for i, c in enumerate(contents)]


def _with_labels_of_numbers(
    contents: Sequence[FileContents], name: str, array: Named, where: Sequence[str]
) -> list[FileContents]:
    """Choose the labels of scores (N, K) of numbered classes: the one column of their numbers, where no other column
    but predictions could be of classes.

    Raises:
        InputError: the labels are names, and predictions prove which column is of which.
    """
    first, k = contents[0], array.shape[1]
    named = label_candidates([n for n in first.arrays if n != name])
    if named and first.arrays[named[0]].dtype.kind in "biuf":  # the rest need not be read: prompts, say
        return [*contents]
    look, table = lines_of_options.ColumnLook(first), np.asarray(column_evidence.sample(array), np.float64)
    numbers = [str(i) for i in range(k)]
    free = {n: values for n, values in look.groups.items() if n != name}
    proved = [n for n in free if column_evidence.order_of(look.cells[n], table)]
    if proved and len(named) == 1 and named[0] not in proved and not any(map(is_number, free.get(named[0], ["0"]))):
        stated = lines_of_options.lines_with_labels(first, name, table, None)
        problem = f"labels '{named[0]}' in {where[0]} are names; '{proved[0]}' tells which column is of which"
        raise InputError(problem, " or ".join(line for line in stated if named[0] in line) or EVERY_CLASS)
    others = [n for n in free if not column_evidence.is_prediction(look.cells[n], table, numbers)]
    sure = len(others) < len(free) or len(first.arrays) == 2  # the rest beside a prediction, or all there is
    if named or len(others) != 1 or others[0] in first.inside or not (sure and free[others[0]] <= {*numbers}):
        return [*contents]
    return _labelled(contents, others[0])


def _with_labels_of_one(
    contents: Sequence[FileContents], name: str, array: Named, where: Sequence[str], sure: bool
) -> list[FileContents]:
    """Choose the labels of one score a row: the one column of two names that does not follow from the score.

    Raises:
        InputError: the labels by name are one of two columns of the same classes, of which the score is a confidence.
    """
    first, look = contents[0], lines_of_options.ColumnLook(contents[0])
    score = column_evidence.numbers({name: array}, [name]) if array.shape[1:] == () else None
    if score is None or not first.table:
        return [*contents]
    free = {n: values for n, values in look.groups.items() if n != name}
    named = label_candidates([n for n in first.arrays if n != name])
    if named and named[0] in free and not sure:
        same = [n for n, values in free.items() if n != named[0] and values == free[named[0]]]
        if same and name in look.shares and float(score.min()) >= 1 / len(free[named[0]]):
            choices = [one for one in lines_of_options.candidates(look) if name in one.names]
            problem = f"'{name}' is never below {1 / len(free[named[0]]):.3g}, and '{named[0]}' and '{same[0]}' in "
            problem += f"{where[0]} are of the same classes: is it the confidence in one of them?"
            raise InputError(problem, f"choose one: {' or '.join(lines_of_options.lines(look, choices))}")
    if named:
        return [*contents]
    predicted = [n for n in free if len(free[n]) == 2 and column_evidence.event_of(score[:, 0], look.cells[n])]
    others = [n for n in free if n not in predicted and n not in first.inside]
    two = [n for n in others if len(free[n]) == 2]
    plain = predicted and len(two) == 1 and (len(others) == 1 or not any(map(is_number, free[two[0]])))
    return _labelled(contents, two[0]) if plain else [*contents]


def _joined_names(contents: FileContents) -> list[str]:
    """Return the arrays that are families of score columns, if there is but one."""
    names = [name for name, members in contents.members.items() if len(members) > 1]
    return names if len(names) == 1 else []


def _one_hot_truth(
    columns: Mapping[str, Named], classes: Sequence[str], contents: FileContents, name: str
) -> list[str] | None:
    """Return the one group of columns of 0 and 1 that are named after the classes, one 1 in every row."""
    words = {tuple(classes), tuple(_words(contents, name)) if name in contents.members else tuple(classes)}
    families = [
        family
        for names in words
        for family in column_evidence.families(list(columns), names)
        if column_evidence.are_one_hot(column_evidence.numbers(columns, family))
    ]
    return families[0] if len(families) == 1 else None


def _names_of(contents: FileContents, family: Sequence[str], classes: Sequence[str], where: str) -> Array:
    """Return (N,) names of the classes whose columns hold the 1 of each row.

    Raises:
        InputError: a row without a 1, or with several.
    """
    table = read_all(_block(contents, family, "column", where))
    odd = np.flatnonzero(~(((table == 0) | (table == 1)).all(axis=1) & (table.sum(axis=1) == 1)))
    if len(odd):
        problem = f"row {odd[0]} of {where} is not one-hot in {first_few(family, 4)}"
        raise InputError(problem, "name the column of the labels with --labels; several classes in a row: --multilabel")
    return column_of([classes[i] for i in table.argmax(axis=1).tolist()])


def _of_classes(columns: Mapping[str, Named], table: Array, classes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns whose values are classes: those that are the prediction of the scores (rows, K), and the
    others.
    """
    predicted, others = list[str](), list[str]()
    for name, array in columns.items():
        cells = column_evidence.head(array) if array.dtype.kind in "USO" else []
        if cells and len(set(cells)) > 1 and set(cells) <= set(classes):
            (predicted if column_evidence.is_prediction(cells, table, classes) else others).append(name)
    return predicted, others


def label_names(labels: Sequence[Named]) -> list[str]:
    """Return the distinct labels if they are names, else []."""
    texts = (texts_of(read_all(part)).tolist() for part in labels if part.dtype.kind in "USO")
    names = sorted({str(text).strip() for text in chain.from_iterable(texts)} - {""})
    return [] if len(names) > 10_000 or all(is_number(text) for text in names) else names


def _by_labels(column_names: Sequence[str], labels: Sequence[str], contents: FileContents) -> list[Group]:
    """Find columns that are named after the labels, alone or all with the same words before or after the label.

    Where they have the names alone, no other column may hold numbers: a class that no label names would be lost.
    Columns of text are no scores, and one of zeros in angle brackets (`<UNK>`) is of no class.
    """
    families: list[Group] = []
    if len(labels) < 2:
        return families
    around = {(m[0], m[2]) for column in column_names if (m := column.partition(labels[0]))[1]}
    for before, after in sorted(around, key=lambda words: (len(words[0] + words[1]), words)):
        if not {f"{before}{label}{after}" for label in labels} <= set(column_names):
            continue
        columns = [
            c for c in column_names if c.startswith(before) and c.endswith(after) and len(c) > len(before + after)
        ]
        names = [c[len(before) : len(c) - len(after)] for c in columns]
        scored = [
            i for i, name in enumerate(names) if name in labels or _may_be_class(contents.arrays[columns[i]], name)
        ]
        columns, names = [columns[i] for i in scored], [names[i] for i in scored]
        if not before + after:
            columns = names = [c for c in column_names if c in labels]
        others = [contents.arrays[c] for c in column_names if c not in columns]
        if before + after or not any(is_number(str(other.read(0, 1)[0])) for other in others if other.shape[0]):
            families.append((columns, names, before + after))
    return [
        group
        for group in families
        if not column_evidence.are_one_hot(column_evidence.numbers(contents.arrays, group[0]))
    ]


def _may_be_class(array: Named, name: str) -> bool:
    """Return whether a column beside those of the labels' classes may be of a further class."""
    table = column_evidence.numbers({name: array}, [name])
    return table is not None and (bool(table.any()) or not (name.startswith("<") and name.endswith(">")))


def _numbered(column_names: Sequence[str], any_word: bool = False) -> list[Group]:
    """Find columns numbered 0 .. K-1, with a word for scores beside the number, or with nothing but numbers.

    Args:
        any_word: any word may stand beside the number, and numbers may begin at 1.
    """
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for column in column_names:
        if parts := NUMBERED.match(column):
            groups.setdefault((parts[1], parts[3]), {})[int(parts[2])] = column
    families: list[Group] = []
    for (before, after), columns in groups.items():
        words = set(re.split(r"[^a-z]+", f"{before} {after}".lower())) - {""}
        numbers = sorted(columns)
        first = numbers[0] if any_word and numbers[0] < 2 else 0
        from_zero = numbers == list(range(first, first + len(numbers)))
        if (
            len(numbers) > 1
            and from_zero
            and (any_word or (words & roles.ABOUT_SCORES if words else len(columns) == len(column_names)))
        ):
            families.append(([columns[k] for k in numbers], [str(k) for k in numbers], before + after))
    return families


def _named(column_names: Sequence[str], labels: Sequence[str]) -> list[Group]:
    """Find columns such as `p_benign, p_malignant` beside labels that are numbers."""
    pairs = [(m[1].lower(), m[2], c) for c in column_names if class_in_name(c) and (m := roles.OF_CLASS.match(c))]
    if labels or len(pairs) < 2 or len({prefix for prefix, *_ in pairs}) > 1:
        return []
    return [([c for *_, c in pairs], [name for _, name, _ in pairs], pairs[0][0])]


def _joined(contents: FileContents, group: Group, where: str, name: str = "") -> FileContents:
    wanted, names, common = group
    if len(wanted) == 1 and len(contents.arrays[wanted[0]].shape) == 2:
        return replace(contents, scores=wanted[0])
    by_name = _columns(contents)
    columns = [_spelled(by_name, column, "--scores" if name else "column", where, contents) for column in wanted]
    block = read_all(_block(contents, columns, "column", where))
    name = name or ", ".join(wanted)
    prefix = normal(common).strip("_").replace("__", "_")
    texts = [
        str(cell) for one in columns if by_name[one].dtype.kind in "USO" for cell in by_name[one].read(0, 1000).tolist()
    ]
    return replace(
        contents,
        arrays={name: Memory(block), **{n: a for n, a in contents.arrays.items() if n not in columns}},
        members={**contents.members, name: columns},
        kinds={**contents.kinds, name: roles.PREFIXES.get(prefix, "")},
        decimals={**contents.decimals, name: max(map(decimals_of, texts))} if texts else contents.decimals,
        classes={**contents.classes, **({} if all(map(is_number, names)) else {name: list(names)})},
        scores=name,
    )


def _block(contents: FileContents, columns: Sequence[str], option: str, where: str) -> Memory:
    """Return columns of numbers side by side, (N, columns)."""
    by_name = _columns(contents)
    names = [_spelled(by_name, column.strip(), option, where, contents) for column in columns]
    return Memory(np.column_stack([_numbers(read_all(by_name[name]), name, where) for name in names]))


def _numbers(column: Array, name: str, where: str) -> Array:
    if column.ndim != 1:
        raise InputError(f"'{name}' in {where} is not one column", "name columns of one number each")
    return floats_of_text(column, name, where) if column.dtype.kind in "USO" else column


def class_names_of(columns: Sequence[str]) -> list[str]:
    """Strip the words that all names share at either end: `cat_prob`, `dog_prob` give `cat`, `dog`."""
    words = [re.split(r"(?<=[_.\- ])|(?=[_.\- ])", column) for column in columns]
    while len({w[0] for w in words}) == 1 and min(map(len, words)) > 1:
        words = [w[1:] for w in words]
    while len({w[-1] for w in words}) == 1 and min(map(len, words)) > 1:
        words = [w[:-1] for w in words]
    return ["".join(w).strip("_.- ") or column for w, column in zip(words, columns)]


# Advice for files in which no array has a known name.


def reading_advice(contents: FileContents, no_probability: str) -> str:
    """Return a sentence that says which options would read the file.

    Args:
        no_probability: what to do where no array holds scores.
    """
    if _begins_with_cells(contents):
        return "write a first line with the names of the columns, such as label,prob_0,prob_1"
    return lines_of_options.advice(contents, no_probability)


def no_labels(contents: FileContents, scores: str, raw: Named) -> str:
    """Return the lines that say what the labels are, of a file in which no name does."""
    table = np.asarray(column_evidence.sample(raw), np.float64)
    members = contents.members.get(scores, ())
    shares = bool(((table >= 0) & (table <= 1)).all()) and len(members) > 1
    if shares and declared_kind(contents, scores) == "probabilities" and not column_evidence.are_probabilities(table):
        look = lines_of_options.ColumnLook(contents)  # each may be of one class, by another model
        each = [lines_of_options.of_one(name, column) for name, column in zip(members, table.T, strict=True)]
        labelled = [line for line in lines_of_options.lines(look, each) if "--labels" in line or "--correct" in line]
        if 0 < len(labelled) <= 2 * len(members):
            return f"choose one: {' or '.join(labelled)}"
    option_lines = lines_of_options.lines_with_labels(contents, scores, table, contents.classes.get(scores))
    fix = "labels in a file of their own: --labels FILE"
    return (
        f"choose them: {' or '.join(option_lines)}; {fix}"
        if option_lines
        else f"choose them with --labels KEY, or {fix}"
    )


def without_header(contents: FileContents) -> str:
    """Return the lines that read a table without a header."""
    plain = "or name the columns in the first row: logit_0,logit_1,...,label"
    if contents.labels:
        return f"pass --no-header, {plain}"
    contents = grouped([contents], None, [""])[0]
    if contents.scores:
        raw = contents.arrays[contents.scores]
        table = np.asarray(column_evidence.sample(raw), np.float64)
        option_lines = lines_of_options.lines_with_labels(contents, contents.scores, table, None) or ["--labels FILE"]
    else:
        look = lines_of_options.ColumnLook(contents)
        option_lines = lines_of_options.lines(look, lines_of_options.candidates(look))
    return " or ".join(f"--no-header {line}" for line in option_lines[:4] or [""]) + f"; {plain}"


def is_numeric(array: Named) -> bool:
    """Return whether an array holds numbers, or texts that are numbers."""
    if array.dtype.kind not in "USO":
        return True
    return bool(array.shape and array.shape[0]) and all(map(is_number, column_evidence.head(array)))
