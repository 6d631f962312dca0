"""Read files of confidences: how sure every prediction was and whether it was right, without scores per class."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from calibcli.core.errors import InputError, UsageError
from calibcli.core.number_format import count_text
from calibcli.core.options import exclusive, normal, real
from calibcli.scores import _column_evidence as column_evidence
from calibcli.scores import _per_row as per_row
from calibcli.scores import array_names, left_out, repeated_samples
from calibcli.scores.files.arrays import FileContents, Memory, Role, read_all, texts_of
from calibcli.scores.files.roles import CONFIDENCE, CORRECT, LABELS, PREDICTED, RIGHT_WORDS, WRONG_WORDS
from calibcli.scores.files.source import Digests, Source, fingerprint
from calibcli.scores.files.text_tables import MISSING, is_number
from calibcli.scores.predictions import (
    WRONG_OR_RIGHT,
    Array,
    ArrayScores,
    Floats,
    Ints,
    LeftOut,
    Predictions,
    two_columns,
)
from calibcli.scores.reading_options import Reading
from calibcli.scores.reading_record import ReadingRecord

ABSENT = {*MISSING, "nan", "<na>", "-"}
SCALES = {"1": 1.0, "10": 10.0, "100": 100.0, "percent": 100.0}
MIXED = 0.01  # share of confidences below 1 % above which they are taken to be out of 1
ROUNDING = 1e-6  # a confidence may be so far above 1
ELSEWHERE = ("scores", "classes", "event", "kind", "label_base", "ignore_label", "multilabel", "clip")
"""Options of reading that are for scores of classes."""


AS_IS = Reading()


@dataclass(frozen=True)
class ConfidenceNames:
    """Names of the columns that hold the confidence and the verdict, or the prediction and the label whose equality is
    the verdict.
    """

    confidence: str
    correct: str = ""
    predicted: str = ""
    label: str = ""


def columns(contents: FileContents, reading: Reading = AS_IS, where: str = "") -> ConfidenceNames | None:
    """Return the columns of a file that holds confidences alone, by option or by name; None if the file has no such
    columns.

    Raises:
        InputError: a column that was asked for is not there.
    """
    spellings = {name: normal(name) for name, array in contents.arrays.items() if array.shape[1:] in ((), (1,))}

    def first(role: Role, wanted: str | None = None, option: str = "", names: Sequence[str] = tuple(spellings)) -> str:
        if wanted:
            array_names.column(contents, wanted, option, where)
            return wanted
        return next((name for words in (role.names, role.weak) for name in names if spellings[name] in words), "")

    confidence = first(CONFIDENCE, reading.confidence, "--confidence")
    exclusive(
        "what says which predictions were right", correct=bool(reading.correct), predicted=bool(reading.predicted)
    )
    correct = "" if reading.predicted else first(CORRECT, reading.correct, "--correct")
    predicted = "" if correct else first(PREDICTED, reading.predicted, "--predicted")
    of_label = [name for name in spellings if name != predicted]
    label = "" if correct else first(LABELS, reading.labels, "--labels", of_label)
    if confidence and (correct or (predicted and label)):
        return ConfidenceNames(confidence, correct, predicted, label)
    if not (reading.confidence or reading.correct or reading.predicted):
        return None
    if confidence and not reading.need_labels:
        return ConfidenceNames(confidence)
    description = array_names.describe(contents)
    if not confidence:
        raise InputError(f"no confidence in {where}: it holds {description}", "choose it with --confidence KEY")
    fix = "choose it with --correct KEY, or name two columns predicted and label"
    raise InputError(f"{where} does not say which predictions were right: it holds {description}", fix)


@np.errstate(invalid="ignore")
def predictions(
    contents: Sequence[FileContents], sources: Sequence[Source], reading: Reading, named: ConfidenceNames
) -> Predictions:
    """Return (confidence, correct) of every row as predictions of two classes, `wrong` and `right`, with `top_only`.

    Rows without a confidence are left out; a note has their number and their accuracy.

    Raises:
        InputError: a confidence that is no number in [0, 1] (of the scale), or a verdict that is neither yes nor no.
        UsageError: an option that is for the scores of classes.
    """
    for name in ELSEWHERE:
        if getattr(reading, name) not in (None, False):
            problem = f"--{name.replace('_', '-')} is for scores of classes, not for a confidence alone"
            raise UsageError(problem, "leave it out")
    where = sources[0].name if len(sources) == 1 else f"{len(sources)} shards"
    labelled = bool(named.correct or named.label)
    notes = [note for c in contents for note in c.notes]

    def column(name: str) -> Array:
        parts = [array_names.column(c, name, "column", s.name) for c, s in zip(contents, sources)]
        values = read_all(per_row.of_all_files(parts, name, contents, sources, named.confidence))
        return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values

    with Digests(sources, reading.hashed) as digests:
        c = _shares(column(named.confidence), named.confidence, where, reading.confidence_scale, notes)
        refuse_one_class(c, named, column, contents[0], where)
        about_verdicts: list[str] = []
        y = _right(named, column, len(c), where, about_verdicts)
        if (y < 0).any() and not reading.need_labels:  # the rows to be mended are mostly those that nobody checked
            about_verdicts = [f"{int((y < 0).sum()):,} of {len(y):,} rows have no verdict: no row's is kept"]
            named, labelled, y = ConfidenceNames(named.confidence), False, np.zeros_like(y)
        notes += about_verdicts
        _refuse_turned(c, y, named, where)
        scored, judged = ~np.isnan(c), y >= 0
        n, missing = len(c), int((~scored).sum())
        if missing == n:
            raise InputError(f"no row of {where} holds a confidence ('{named.confidence}')", "is it another column?")
        bare, lost = scored & ~judged, ~scored
        if bare.any() and reading.fate("labels") == "refuse":
            first = int(np.flatnonzero(bare)[0])
            problem = f"{count_text(int(bare.sum()), 'row')} of {where} without a verdict, first row {first}"
            by_a_judge = [
                f"or calib metrics {where} --confidence {shlex.quote(named.confidence)} "
                f"--correct {shlex.quote(named.correct)} --judge {shlex.quote(n)}, if it judges all rows"
                for n in _judges(contents, named)
            ]
            raise InputError(
                f"{problem} ('{named.correct or named.label}')", "; ".join([per_row.LEAVE_OUT, *by_a_judge])
            )
        order = [np.flatnonzero(rows) for rows in (scored & judged, bare, lost)]
        row_order, ends = np.concatenate(order), np.cumsum([0, *map(len, order)])
        keep: Ints | None = None if ends[1] == n else order[0]
        if missing and reading.fate("answers") != "wrong":
            sure = lost & judged
            shares = f": {y[sure].mean():.1%} of them are right, of the others {y[order[0]].mean():.1%}"
            notes.append(
                f"{missing:,} of {n:,} rows hold no confidence and are left out"
                + shares * (labelled and bool(sure.any()))
            )
        aside = c[bare]
        c, y = c[order[0]], y[order[0]]
        values = len(np.unique(c[: 1 << 20]))
        if values <= 21 < len(c):  # as 0 %, 5 %, ..., 100 % have
            few = count_text(values, "value")
            notes.append(f"the confidence takes {few} only: bins and curves can show no more than these")
        verdict = named.correct or named.label
        every = None if keep is None else row_order
        further, names_of = per_row.per_row_fields(
            contents, sources, reading, n, every, named.confidence, verdict, notes
        )
        taken = [*filter(None, dataclasses.astuple(named)), reading.weights or "", reading.group or contents[0].groups]
        may_be_ids = repeated_samples.columns(contents, reading, n, keep, taken)
        files = digests.files()
    counts = {str(k): int(rows) for k, rows in enumerate(np.bincount(y)) if rows and labelled}
    read = Predictions(
        scores=ArrayScores(two_columns(c, "probabilities")),
        labels=y,
        kind="probabilities",
        source=where,
        classes=WRONG_OR_RIGHT,
        top_only=True,
        notes=notes,
        # of several shards the digests of all, else that of the file itself, which is the first
        sha256=fingerprint(files[: None if len(sources) > 1 else 1]),
        record=ReadingRecord(
            format=contents[0].format,
            files=files,
            evaluation=dict(contents[0].facts),
            scores=named.confidence,
            labels=verdict,
            predicted=named.predicted,
            columns=1,
            dtype="float64",
            kind="confidence in the predicted class",
            why="asked for"
            if reading.confidence or reading.correct or reading.predicted
            else "by the names of the columns",
            labelled=labelled,
            class_rows=counts,  # equal confidences are no sign of equal rows, so that `repeated_rows` is not known
            grounds={
                "scores": "stated" if reading.confidence else "named",
                "labels": "stated" if reading.correct or reading.predicted else "named",
            },
            stated=reading.stated if contents[0].format != "arrays" else {},
            unused=array_names.unused(contents[0], n, taken, reading),
            ids=names_of.get("ids", ""),
            group=names_of["group"],
            weights=names_of["weights"],
        ),
        **left_out.split_fields(further, slice(int(ends[1]))),
    )
    read = repeated_samples.seen(read, may_be_ids, reading.ids, contents[0].ids) if labelled else read
    others, none = (left_out.split_fields(further, slice(int(i), int(j))) for i, j in pairwise(ends[1:]))
    scores, zeros = ArrayScores(two_columns(aside, "probabilities")), np.zeros(len(aside), np.int64)
    beside = dataclasses.replace(read, scores=scores, labels=zeros, **others) if len(aside) else None
    fields = {name: none[name] for name in ("weights", "groups", "slices") if name in none}
    gone = LeftOut(lost=missing, **fields)
    return left_out.decided(read, beside, np.full(len(aside), "labels"), gone, reading)


def refuse_one_class(
    c: Floats, named: ConfidenceNames, column: Callable[[str], Array], contents: FileContents, where: str
) -> None:
    """Refuse the probability of one of two classes as that of the predicted class: it is below 1/2, and low where one
    class is predicted and high where the other is.

    Args:
        c: (N,) in [0, 1], NaN where there is none.

    Raises:
        InputError: it is the probability of one class.
    """
    rows = np.flatnonzero(~np.isnan(c))
    if len(rows) < column_evidence.FEWEST or not float(c[rows].min()) < 0.5:
        return
    label = named.label or next((n for n in contents.arrays if n in LABELS and n != named.confidence), "")
    if named.predicted:
        predicted = [text for i, text in enumerate(_same_form(column(named.predicted))) if not np.isnan(c[i])]
    elif label and named.correct:  # the label where the prediction was right, the other class elsewhere
        verdicts = _verdicts(column(named.correct), named.correct, where)
        rows = rows[verdicts[rows] >= 0]
        right = verdicts[rows] == 1
        texts = np.array(_same_form(column(label)), object)[rows]
        classes = sorted(set(texts.tolist()))
        if len(classes) != 2:
            return
        predicted = np.where(right == (texts == classes[0]), classes[0], classes[1]).tolist()
    else:
        return
    event = column_evidence.event_of(c[rows], predicted)
    if not event:
        return
    by = f"'{named.predicted}' is {event}" if named.predicted else f"{event} is predicted"
    options = f"--scores {shlex.quote(named.confidence)} --event {shlex.quote(event)}"
    options += f" --labels {shlex.quote(label)}" if label else ""
    raise InputError(
        f"'{named.confidence}' in {where} is high where {by}, low elsewhere, and goes down to {c[rows].min():.3g}: "
        f"it is the probability of {event}, not of the predicted class",
        f"read it as that: {options}",
    )


def _refuse_turned(c: Floats, y: Ints, named: ConfidenceNames, where: str) -> None:
    """Refuse the probability of one of two classes: below 1/2, predictions are right the more often the lower it is.

    Args:
        c: (N,) in [0, 1], NaN where there is none.  y: (N,) 1 right, 0 wrong, -1 unknown.

    Raises:
        InputError: it is the probability of one class.
    """
    low = (c < 0.5) & (y >= 0)
    if not (column_evidence.rises(-c[low], y[low], column_evidence.SURE) and y[low].mean() > 0.5):
        return
    raise InputError(
        f"where '{named.confidence}' in {where} is below 1/2, predictions are right the more often the lower it is "
        f"({y[low].mean():.0%} of {int(low.sum()):,} rows): is it the probability of one class?",
        "save the observed class, and measure it as that: --scores KEY --labels KEY; or save the larger of p and 1 - p",
    )


def _right(named: ConfidenceNames, column: Callable[[str], Array], n: int, where: str, notes: list[str]) -> Ints:
    """Return 1 where the prediction was right, -1 where nobody knows, and 0 in every row if the file does not say."""
    if named.correct:
        y = _verdicts(column(named.correct), named.correct, where)
    elif not named.label:
        return np.zeros(n, np.int64)
    else:
        predicted, label = (_same_form(column(name)) for name in (named.predicted, named.label))
        label_texts, absent = {*label}, {text for text in label if text.lower() in ABSENT} - {*predicted}
        y = np.array([-1 if b in absent else a == b for a, b in zip(predicted, label)], np.int64)
        values = column(named.predicted)
        if values.dtype.kind in "USO":
            turned = f"--predicted {shlex.quote(named.label)} --labels {shlex.quote(named.predicted)}"
            fix = f"the other way round, if '{named.label}' is the prediction: {turned}; or give every row a prediction"
            fix = "give every row a prediction" if absent else fix  # both have gaps
            per_row.refuse_missing(Memory(values), named.predicted, [*map(str, values.tolist())], "prediction", fix)
        for row, (a, b) in enumerate(zip(predicted, label)):
            if a != b and a not in label_texts and a.casefold() == b.casefold():
                problem = f"row {row} of {where} predicts {a[:40]!r} of {b[:40]!r}, which differ in case alone"
                raise InputError(problem, f"write the classes in '{named.predicted}' and '{named.label}' alike")
        notes.append(f"right is where '{named.predicted}' equals '{named.label}'")
    if len(y) != n:
        raise InputError(f"{n:,} confidences but {len(y):,} verdicts in {where}", "pass one of each for every row")
    return y


def _judges(contents: Sequence[FileContents], named: ConfidenceNames) -> list[str]:
    """Return columns that may hold the verdicts of a judge on every row: the words of the verdicts, without gaps."""
    if not named.correct:
        return []
    cells = {name: {cell.lower() for cell in column_evidence.head(array)} for name, array in contents[0].arrays.items()}
    words = cells[named.correct] - ABSENT
    return [
        name
        for name, values in cells.items()
        if name not in (named.correct, named.confidence) and values - ABSENT == words
    ]


def _shares(values: Array, name: str, where: str, scale: str | None, notes: list[str]) -> Floats:
    """Return confidences in [0, 1], NaN where a row has none."""
    most, percent = None if scale is None else SCALES[scale], 0
    if values.dtype.kind in "USO":
        cells = [str(cell).strip() for cell in values.tolist()]
        present = [cell for cell in cells if cell.lower() not in ABSENT]
        percent = sum(cell.endswith("%") for cell in present)
        if percent and percent < len(present) and most is None:
            problem = (
                f"{percent:,} of {len(present):,} confidences ('{name}') in {where} are percentages, the others not"
            )
            raise InputError(problem, "pass --confidence-scale percent if all of them are")
        if percent and most is None:
            most = 100.0
            notes.append(f"confidences '{name}' are percentages: divided by 100")
        values = np.array([_number(cell, row, name, where) for row, cell in enumerate(cells)], np.float64)
    elif values.dtype.kind not in "biuf" or values.ndim != 1:
        problem = f"confidences '{name}' in {where} are {array_names.shape_text(Memory(values))}"
        raise InputError(problem, "pass one number for each row")
    c = values.astype(np.float64)
    highest = float(np.nanmax(c, initial=0.0))
    if most is None and highest > 1 + ROUNDING:
        guess = "10" if highest <= 10 else "100"
        problem = f"confidences '{name}' in {where} go up to {highest:g}, but a probability to 1"
        raise InputError(problem, f"pass --confidence-scale {guess} if they are out of {guess}")
    if most is not None and most > 1 and highest <= 1:
        problem = f"no confidence ('{name}') in {where} is above 1: they are not out of {most:g}"
        raise InputError(problem, "leave --confidence-scale out")
    small = int(((c > 0) & (c < 1)).sum())
    if most == 100 and not percent and small > MIXED * len(c):
        problem = f"{small:,} of {len(c):,} confidences ('{name}') in {where} lie between 0 and 1, others go up to "
        problem += f"{highest:g}: some are out of 1 and some out of 100"
        raise InputError(problem, "write all of them in one way: as shares of 1, or as percentages with their % sign")
    if most == 100 and small:
        notes.append(f"{small:,} of {len(c):,} confidences ('{name}') are below 1 %: are they out of 1?")
    c /= most or 1.0
    outside = np.flatnonzero((c < 0) | (c > 1 + ROUNDING))
    if len(outside):
        row = int(outside[0])
        problem = f"the confidence in row {row} ('{name}') is {values[row]:g}, outside [0, {most or 1:g}]"
        raise InputError(problem, "correct it, or leave it empty")
    return np.minimum(c, 1.0)


def _number(cell: str, row: int, name: str, where: str) -> float:
    if cell.lower() in ABSENT:
        return np.nan
    try:
        return real(cell.removesuffix("%").strip())
    except ValueError:
        problem = f"the confidence in row {row} ('{name}') of {where} is {cell[:40]!r}, not a number"
        raise InputError(problem, "write a number, or leave it empty") from None


def _verdicts(values: Array, name: str, where: str) -> Ints:
    """Return 1 where the prediction was right, 0 where it was wrong, -1 where there is no verdict."""
    if values.ndim != 1:
        problem = f"verdicts '{name}' in {where} are {array_names.shape_text(Memory(values))}"
        raise InputError(problem, "pass one for each row")
    absent = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if values.dtype.kind in "biuf":
        right, wrong = values == 1, values == 0
    else:
        cells = [str(cell).strip().lower() for cell in values.tolist()]
        right, wrong = (np.array([cell in words for cell in cells], bool) for words in (RIGHT_WORDS, WRONG_WORDS))
        absent = np.array([cell in ABSENT for cell in cells], bool)
    odd = np.flatnonzero(~(right | wrong | absent))
    if len(odd):
        shown = str(values[odd[0]])[:40]
        problem = f"row {odd[0]} of '{name}' in {where} is {shown!r}: neither right nor wrong"
        raise InputError(problem, "write 1 or 0, true or false, yes or no, correct or incorrect")
    return np.where(absent, -1, right).astype(np.int64)


def _same_form(values: Array) -> list[str]:
    """Return class names or numbers as comparable texts: 1, 1.0 and '1' become the same."""
    cells = map(str.strip, map(str, (texts_of(values) if values.dtype.kind in "USO" else values).tolist()))
    return [f"{real(cell):.15g}" if is_number(cell) else cell for cell in cells]
