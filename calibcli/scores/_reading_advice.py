"""The roles that columns can have by what they hold, and the lines of options that state them. No value is shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibcli.core.options import normal
from calibcli.scores import _column_evidence as column_evidence
from calibcli.scores.files import roles
from calibcli.scores.files.arrays import FileContents
from calibcli.scores.files.text_tables import NO_VALUE, is_number
from calibcli.scores.predictions import Floats, Named

SHOWN = 6  # columns that a line names one by one
LINES, MANY = 4, 8  # lines that one error proposes; beyond the second number they decide nothing
MOST = 1000  # classes of a column of classes
PERCENT = ("conf", "confidence", "percent", "%", "certainty", "sure")
"""Parts of names that make numbers from 0 to 100 look like confidences."""
VERDICTS = ({"true", "false"}, {"correct", "incorrect"}, {"right", "wrong"}, {"pass", "fail"}, {"passed", "failed"},
            {"1", "0"}, {"yes", "no"})  # fmt: skip
"""Words for right and wrong, the plainest first; the last may be classes as well."""
UNKNOWN = {"-", "-1", "?"}
"""Cells beside such words where nobody knows."""


@dataclass(frozen=True)
class ScoreColumns:
    """Columns that may be the scores.

    Attributes:
        option: that names them, "" where they are the scores without it.
        table: their first rows (rows, K), K = 1 for one score a row.
        classes: the names of the classes, None where nothing tells them.  names: of the columns.
    """

    option: str
    table: Floats
    classes: Sequence[str] | None
    names: Sequence[str]


class ColumnLook:
    """The columns of a file by their first rows.

    Attributes:
        cells: of columns with one value a row, as texts.
    """

    def __init__(self, contents: FileContents) -> None:
        self.contents = contents
        columns = {n: a for n, a in contents.arrays.items() if a.shape and a.shape[0] and a.shape[1:] in ((), (1,))}
        self.cells = {name: column_evidence.head(array) for name, array in columns.items()}

    @cached_property
    def groups(self) -> dict[str, set[str]]:
        """The values of each column that may be of classes: few, not all different, and no fractions."""
        out: dict[str, set[str]] = {}
        for name, cells in self.cells.items():
            values = {cell for cell in cells if cell.lower() not in NO_VALUE}
            few = 1 < len(values) <= min(MOST, max(2, len(cells) // 2))
            if few and not any(is_number(value) and float(value) % 1 for value in values):
                out[name] = values
        return out

    @cached_property
    def shares(self) -> dict[str, Floats]:
        """The columns of numbers in [0, 1], or with percent signs, that are not all whole and not all equal."""
        out: dict[str, Floats] = {}
        for name, cells in self.cells.items():
            values = shares_of(cells)
            if values is not None:
                out[name] = values
        return out

    def named(self, role: object, names: Sequence[str]) -> list[str]:
        return [name for name in names if normal(name) in role]  # type: ignore[operator]


def shares_of(cells: Sequence[str]) -> Floats | None:
    """Return numbers in [0, 1] that are neither all whole nor all equal; `63.4%` counts as 0.634. None for others."""
    bare = [cell.removesuffix("%").strip() for cell in cells]
    if not cells or not all(map(is_number, bare)):
        return None
    values = np.array([float(b) / (100 if c.endswith("%") else 1) for b, c in zip(bare, cells, strict=True)])
    inside = bool(((values >= 0) & (values <= 1)).all())
    return values if inside and not np.array_equal(values, np.floor(values)) and np.ptp(values) > 0 else None


def advice(contents: FileContents, no_probability: str) -> str:
    """Return a sentence with the lines that would read a file without known names.

    Args:
        no_probability: what to do where no array holds scores.
    """
    look = ColumnLook(contents)
    proposed = lines(look, candidates(look))
    if len(proposed) == 1:
        return f"choose them: {proposed[0]}; or name them logits or probs"
    if 1 < len(proposed) <= MANY:
        return "choose one: " + " or ".join(proposed)
    for name, values in look.shares.items():
        for other in look.groups:
            observed = [n for n in look.groups if n != name and _says_truth(n)]
            if not observed and _follows(look, other, values):
                return (
                    f"'{other}' follows from '{name}' by a threshold, so that nothing was observed: save the true class"
                )
    return f"if one of these holds scores: --scores KEY; else {no_probability}"


def lines_with_labels(contents: FileContents, name: str, table: Floats, classes: Sequence[str] | None) -> list[str]:
    """Return the lines that say what the labels of known scores are.

    Args:
        table: the first rows of the scores (rows, K).  classes: their names, or None.
    """
    members = contents.members.get(name, (name,))
    option = f"--scores {shlex.quote(','.join(members) if len(members) <= SHOWN else name)}"
    return lines(
        ColumnLook(contents), [ScoreColumns(option if len(members) > 1 else "", table, classes, members)], True
    )


def lines(look: ColumnLook, options: Sequence[ScoreColumns], scores_known: bool = False) -> list[str]:
    """Return the lines that read a file, at least one for each of the scores it may hold.

    Args:
        scores_known: the scores need not be named but for the order of their classes.
    """
    out: list[str] = []
    for scores in options:
        if scores.table.shape[1] > 1:
            out += _of_classes(look, scores, scores_known)
        else:
            out += _of_one(look, scores)
    return list(dict.fromkeys(line.strip() for line in out if line.strip()))


def of_one(name: str, values: Floats) -> ScoreColumns:
    """Return a column that may be the scores by itself."""
    return ScoreColumns(f"--scores {shlex.quote(name)}", values[:, None], None, [name])


def candidates(look: ColumnLook) -> list[ScoreColumns]:
    """Return what may be the scores: lists, columns called by the values of a column, shares, or other fractions."""
    contents = look.contents
    arrays = contents.arrays
    wide = [name for name, array in arrays.items() if may_be_table(name, array, contents)]
    if wide:
        return [
            ScoreColumns(f"--scores {shlex.quote(name)}", _table(arrays[name]), contents.classes.get(name), [name])
            for name in wide
        ]
    for values in look.groups.values():
        columns = [name for name in look.cells if name in values and not is_number(name)]
        table = column_evidence.numbers(arrays, columns) if len(columns) > 1 else None
        if table is not None and len(columns) == len(values):
            return [ScoreColumns(f"--scores {shlex.quote(','.join(columns))}", table, columns, columns)]
    names = _by_number([*look.shares])
    if len(names) > 1:
        table = np.column_stack([look.shares[name] for name in names])
        if column_evidence.are_probabilities(table):
            return [ScoreColumns(f"--scores {shlex.quote(','.join(names))}", table, None, names)]
    if names:
        called = [name for name in names if roles.says(name, roles.SCORE_WORDS)]  # others may be features
        return [of_one(name, look.shares[name]) for name in look.shares if name in called or not called]
    percent = [name for name in look.cells if _percents(name, look.cells[name])]
    if percent:
        tables = [np.array([float(cell) for cell in look.cells[name]])[:, None] / 100 for name in percent]
        return [
            ScoreColumns(f"--scores {shlex.quote(name)} --out-of percent", one, None, [name])
            for name, one in zip(percent, tables, strict=True)
        ]
    fractions = [name for name, cells in look.cells.items() if _fractions(cells)]
    if len(fractions) != 1 or len(_by_name(look, [*look.groups])) != 1:
        return []
    raw = np.array([float(cell) for cell in look.cells[fractions[0]]])
    return [ScoreColumns(f"--scores {shlex.quote(fractions[0])}", raw[:, None], None, fractions)]


def _of_classes(look: ColumnLook, scores: ScoreColumns, scores_known: bool) -> list[str]:
    """Return the lines for scores of each class."""
    k = scores.table.shape[1]
    falling = np.argsort(-scores.table.mean(axis=0), kind="stable")
    if column_evidence.ranked(scores.table[:, falling]):  # the largest of each row are of no class
        return []
    free = {name: values for name, values in look.groups.items() if name not in scores.names}
    classes = [*(scores.classes or ())]
    proved = {
        name: order
        for name in free
        if not classes and (order := column_evidence.order_of(look.cells[name], scores.table))
    }
    order = next(iter(proved.values()), list[str]())
    option = "" if scores_known and not order else scores.option
    if order and all(map(is_number, order)):
        if len(scores.names) == k:
            names = [name for _, name in sorted(zip(map(float, order), scores.names, strict=True))]
            option = "" if scores_known and names == [*scores.names] else f"--scores {shlex.quote(','.join(names))}"
    elif order:
        option += f" --classes {shlex.quote(','.join(order))}"
    class_names = {*(order or classes)} or {str(i) for i in range(k)}
    called = classes or [str(i) for i in range(k)]
    predicted = {n for n in free if n in proved or column_evidence.is_prediction(look.cells[n], scores.table, called)}
    verdict = {"0", "1"} if k > 2 else set[str]()
    predicted |= {name for name in free if roles.says(name, roles.PREDICTION_WORDS)}
    fits = [n for n, v in free.items() if n not in predicted and v <= class_names and not v <= verdict]
    if not fits and not classes:  # names, as many as there are columns
        fits = [n for n, v in free.items() if n not in predicted and len(v) == k and not any(map(is_number, v))]
    if scores_known:
        return [f"{option} --labels {shlex.quote(name)}" for name in fits]
    by_name = [
        n for n in _by_name(look, [n for n in look.cells if n not in predicted]) if len(free.get(n, class_names)) <= k
    ]
    return [f"{option} --labels {shlex.quote(name)}" for name in by_name or fits] or [option]


def _of_one(look: ColumnLook, scores: ScoreColumns) -> list[str]:
    """Return the lines for one score a row: the probability of a class, or the confidence in a prediction."""
    score_name, score = scores.names[0], scores.table[:, 0]
    inside = bool(((score >= 0) & (score <= 1)).all())
    free = {name: values for name, values in look.groups.items() if name != score_name}
    two = {n: v for n, v in free.items() if len(v) == 2}
    events = {n: column_evidence.event_of(score, look.cells[n]) for n in two}
    predicted = [n for n, event in events.items() if event and not _says_truth(n)]
    labels = _by_name(look, [n for n in look.cells if n not in predicted and n != score_name])
    out: list[str] = []
    low = bool(score.min() < 0.5) or not inside
    no_truth = roles.PREDICTION_WORDS | roles.SCORE_WORDS
    unnamed = [n for n in two if n not in predicted and not roles.says(n, no_truth)]
    candidates = [n for n in labels if n in two] or (
        [] if labels else [n for n in unnamed if score_name in n] or unnamed
    )
    guesses = [n for n in free if n not in labels and n in roles.PREDICTED]
    if low and not (guesses and not predicted):
        for name in candidates:
            words = two[name]
            event = next((events[n] for n in predicted if two[n] == words), "")
            event_option = f" --event {shlex.quote(event)}" if event else ""
            out.append(f"{scores.option} --labels {shlex.quote(name)}{event_option}")
    if inside and not predicted and scores.option:
        confidence = scores.option.replace("--scores", "--confidence").replace("--out-of", "--confidence-scale")
        is_confidence = score_name in roles.CONFIDENCE
        pairs = [pair for pair in _pairs(look, free) if is_confidence or score.min() >= 1 / len(free[pair[0]])]
        looks = {pair: _verdicts_or_classes(look, score, *pair) for pair in pairs}
        judged = dict.fromkeys(name for pair in pairs if "verdicts" in looks[pair] for name in pair)
        verdict_lines = _verdict_lines(look, [*judged])
        sure = {name for pair in pairs if looks[pair] == ("verdicts",) for name in pair}
        classes = [pair for pair in pairs if "classes" in looks[pair] and not sure & {*pair}]
        verdict_lines += [f"--predicted {shlex.quote(a)} --labels {shlex.quote(b)}" for a, b in classes]
        if not pairs and (is_confidence or not (low and out)) and all(_gaps(look, n) for n in labels if n in free):
            verdict_lines += _verdict_lines(look, _verdicts(look, two, score))
        out = [*(() if is_confidence and verdict_lines else out), *(f"{confidence} {line}" for line in verdict_lines)]
    return out or ([] if predicted else [scores.option])


def _pairs(look: ColumnLook, free: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Return the pairs of a column of predictions and one of labels: two that share most of their values."""
    names = [*free]
    out: list[tuple[str, str]] = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            common = len({*_lower([*free[a]])} & {*_lower([*free[b]])})
            both = [(x, y) for x, y in zip(look.cells[a], look.cells[b], strict=True) if x in free[a] and y in free[b]]
            equal = sum(x.lower() == y.lower() for x, y in both)
            unrelated = equal < 0.2 * len(both) / len(free[a])  # far below chance: players, not classes
            if 2 * common > max(len(free[a]), len(free[b])) and look.cells[a] != look.cells[b] and not unrelated:
                says = [roles.says(name, roles.PREDICTION_WORDS) for name in (a, b)]
                if all(says):
                    continue
                first = (  # b is the prediction; people label some rows, a model predicts all
                    b in roles.PREDICTED
                    or says[1]
                    or (a not in roles.PREDICTED and not says[0] and normal(b) == "label")
                    or (not says[0] and _labels(a) > _labels(b))
                    or (_labels(a) == _labels(b) and _gaps(look, a) and not _gaps(look, b))
                )
                out.append((b, a) if first else (a, b))
    named = [pair for pair in out if pair[0] in roles.PREDICTED or _labels(pair[1])]
    by_people = [pair for pair in named or out if _gaps(look, pair[1])]  # others are of two models, or judges
    return (by_people or named or out)[:LINES]


def _verdicts_or_classes(look: ColumnLook, score: Floats, a: str, b: str) -> tuple[str, ...]:
    """Return what two columns of the same words may be: `classes`, predicted and observed, which agree the more often
    the higher the confidence; or `verdicts` of two judges, each of whom then says yes more often. Both, if that does
    not tell, and the words may be either.
    """
    values = {cell.lower() for cell in look.groups[a] | look.groups[b]}
    words = next((v for v in VERDICTS if values - UNKNOWN == v), None)
    if words is None or a in roles.PREDICTED or b in roles.PREDICTED:
        return ("classes",)
    cells = np.array([_lower(look.cells[name]) for name in (a, b)])  # (2, rows)
    there, yes = np.isin(cells, [*words]), np.isin(cells, [*roles.RIGHT_WORDS])
    both = there.all(axis=0)
    verdicts = all(column_evidence.rises(score[there[i]], yes[i, there[i]]) for i in (0, 1))
    classes = column_evidence.rises(score[both], cells[0, both] == cells[1, both])
    return ("verdicts", "classes") if verdicts == classes else ("verdicts" if verdicts else "classes",)


def _verdict_lines(look: ColumnLook, names: Sequence[str]) -> list[str]:
    """Return the lines for columns of verdicts: the one with gaps is of people, and the others of judges."""
    lacking = {name: _gaps(look, name) for name in names}
    most = sorted(lacking.values())[-2:]
    gaps = [name for name in names if lacking[name] == most[-1] and most[-1] > 2 * most[0]]  # a judge may lack some
    if len(gaps) == 1 and len(names) > 1:
        return [f"--correct {shlex.quote(gaps[0])} --judge {shlex.quote(name)}" for name in names if name not in gaps]
    return [f"--correct {shlex.quote(name)}" for name in names]


def _by_number(names: Sequence[str]) -> list[str]:
    """Return names that differ in their numbers alone in the order of these."""
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(part[::2]) for part in parts}) > 1:
        return [*names]
    return [name for _, name in sorted(zip(([int(n) for n in part[1::2]] for part in parts), names, strict=True))]


def _says_truth(name: str) -> bool:
    """Return whether a name says that its classes were observed; `label` alone may be of either."""
    alone = normal(name) in ("label", "labels") or roles.says(name, roles.PREDICTION_WORDS)
    return not alone and roles.says(name, roles.TRUTH_WORDS)


def _gaps(look: ColumnLook, name: str) -> int:
    """Return how many cells of a column hold no value."""
    return sum(cell.lower() in NO_VALUE or cell in UNKNOWN for cell in look.cells[name])


def _lower(cells: Sequence[str]) -> list[str]:
    return [cell.lower() for cell in cells]


def _labels(name: str) -> int:
    return 2 * (normal(name) in roles.LABELS.names) + (normal(name) in roles.LABELS.weak)


def _verdicts(look: ColumnLook, two: Mapping[str, set[str]], score: Floats) -> list[str]:
    """Return the columns that say whether predictions were right, each content once: all of them, if one has gaps, else
    those of the plainest words. Words that may be classes must say yes the more often the higher the confidence is.
    """
    of_words = [[n for n, values in two.items() if {*_lower([*values])} == words] for words in VERDICTS]
    of_words[-1] = [
        name
        for name in of_words[-1]
        if _gaps(look, name) or column_evidence.rises(score, np.isin(_lower(look.cells[name]), ["yes"]))
    ]
    other = roles.ERROR_WORDS | roles.PREDICTION_WORDS
    of_words = [[name for name in names if not roles.says(name, other)] for names in of_words]
    every = [name for names in of_words for name in names]
    if not any(_gaps(look, name) for name in every):
        every = next((names for names in of_words if names), [])
    return [n for i, n in enumerate(every) if all(look.cells[n] != look.cells[m] for m in every[:i])]


def _by_name(look: ColumnLook, names: Sequence[str]) -> list[str]:
    """Return the columns that a label's name gives away, or a word in it."""
    for label_names in (roles.LABELS.names, roles.LABELS.weak):
        if columns := [name for name in names if normal(name) in label_names]:
            return columns
    words = {word for word in roles.LABELS.all if len(word) > 1}
    named = [n for n in names if words & {*re.split(r"[^a-z0-9]+", normal(n).replace("_", " "))} and n in look.groups]
    return [name for name in named if not roles.says(name, roles.PREDICTION_WORDS)]


def _follows(look: ColumnLook, name: str, score: Floats) -> bool:
    return len(look.groups[name]) == 2 and bool(column_evidence.event_of(score, look.cells[name]))


def may_be_table(name: str, array: Named, contents: FileContents) -> bool:
    """Return whether an array may be scores of classes: rows of one length, and not the log-probabilities of the tokens
    of a text.
    """
    wide = len(array.shape) == 2 and array.shape[1] > 1 and array.dtype.kind == "f"
    return wide and name not in contents.ragged and "token" not in name.lower()


def _table(array: Named) -> Floats:
    return np.asarray(column_evidence.sample(array), np.float64)


def _fractions(cells: Sequence[str]) -> bool:
    return all(map(is_number, cells)) and any(float(cell) % 1 for cell in cells)


def _percents(name: str, cells: Sequence[str]) -> bool:
    """Return whether the cells are numbers in [0, 100] under a name that says that they are confidences."""
    if not (any(word in name.lower() for word in PERCENT) and all(map(is_number, cells))):
        return False
    values = np.array([float(cell) for cell in cells])
    return bool(((values >= 0) & (values <= 100)).all()) and len({*cells}) > 2
