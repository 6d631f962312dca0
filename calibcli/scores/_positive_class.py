"""Decide which of two classes is the event, and to which of them a single column of scores belongs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibcli.core.errors import InputError, UsageError, did_you_mean
from calibcli.core.options import normal
from calibcli.scores import _column_evidence as column_evidence
from calibcli.scores._per_row import NO_LABEL, WHOLE, as_names, refuse_missing
from calibcli.scores._score_kind import KeptRows, Scan
from calibcli.scores.array_names import class_in_name
from calibcli.scores.files.arrays import Converted, FileContents, blocks, read_all, texts_of
from calibcli.scores.files.roles import OUTCOMES, PREDICTED
from calibcli.scores.files.text_tables import is_number
from calibcli.scores.input_mistakes import auc_and_z
from calibcli.scores.predictions import Array, ArrayScores, Kind, MappedScores, Named, Predictions
from calibcli.scores.reading_options import Reading

# Is a single score per row that of one class, or that of whichever class was predicted, as some pipelines write it?

FEWEST, MOST_LEVELS = 20, 100_000  # rows: the fewest that are judged, the most that are looked at
SAME_RANKS = 0.9  # between the AUC of a score for its own prediction, 1, and that of a confidence, about 1/2
RANK_Z, GAP_Z = 1.5, 4.0


def refuse_confidence(
    scan: Scan, rows: KeptRows, kind: Kind, contents: FileContents, name: str, labels: str, event: str
) -> None:
    """Refuse P of the predicted class as that of one class. Ours: none is below 1/2, and they do not rank the rows.

    A score above 1/2 in every row may be either. Of the predicted class it is no larger where the event is predicted
    than where it is not; without predictions, the event is no more frequent where it is larger, and rarer than it says.

    Args:
        name, labels: of the arrays.  event: what the class of the scores is called, "" where labels are numbers.

    Raises:
        InputError: they are of the predicted class.
    """
    if scan.k != 1 or kind != "probabilities" or scan.low < 0.5 or scan.high == scan.low or scan.finite < FEWEST:
        return
    p = np.asarray(rows.scores.read(0, MOST_LEVELS)[:, 0], np.float64)
    beside = next((c for c, a in contents.arrays.items() if c in PREDICTED and c not in (name, labels)), None)
    predicted = None if beside is None else _is_event(contents, beside, rows, event)
    if predicted is not None and len(predicted) == len(p) and 0 < predicted.sum() < len(p):
        top, why = auc_and_z(p, predicted)[0] < SAME_RANKS, f"and is as large where '{beside}' is another class"
    elif rows.codes is not None:
        y = np.asarray(rows.codes[: len(p)], np.int64)
        z, gap = auc_and_z(p, y)[1], float(np.mean(p - y))
        top = z < RANK_Z and gap > GAP_Z * math.sqrt(float(np.mean(p * (1 - p))) / len(p))
        why = f"and its mean {p.mean():.3f} is far from the share of that class, {y.mean():.3f}"
    else:
        return
    if top:
        file = contents.format != "arrays"
        option = f"--confidence {name}, beside the columns predicted and label" if file else "calibcli.from_confidence"
        raise InputError(
            f"'{name}' is never below 0.5 {why}: is it the probability of the predicted class?",
            f"then {option}; if it is of {event or 'class 1'} in every row: --kind probabilities",
        )


def _is_event(contents: FileContents, column: str, rows: KeptRows, event: str) -> Array | None:
    """Return whether each of the kept rows is predicted as the event, or None if the column does not have one value per
    row.
    """
    array = contents.arrays[column]
    if array.shape[1:] not in ((), (1,)):
        return None
    values = read_all(array).reshape(-1)
    values = values if rows.keep is None or len(values) <= rows.keep.max(initial=0) else values[rows.keep]
    texts = np.char.strip(texts_of(values[:MOST_LEVELS]))
    return np.isin(texts, [event] if event else ["1", "1.0", "True", "true"])


# Which of two classes is the event, and which of them a single column of scores belongs to. The alphabet never decides.


MOST = 4  # distinct names of labels after which the search stops; two are allowed


@dataclass(frozen=True)
class BinaryReading:
    """The classes of the score columns in order, the labels to read, and whether the event is the first class.

    Attributes:
        classes: two names, or None where labels are numbers and nothing names them.
        labels: the array as it is to be read, None where there is none.
        first: the event is the first of the classes: columns and labels change places once they are read.
        turned: labels that are numbers change places while they are read.
    """

    classes: list[str] | None
    labels: Named | None
    first: bool = False
    turned: bool = False


def read_binary(
    reading: Reading, column: str, width: int, classes: list[str] | None, labels: Named | None, name: str
) -> BinaryReading:
    """Decide which classes (N, 1) or (N, 2) scores belong to, and which of them is the event.

    Args:
        column: name of the scores.  width: 1 or 2; more is refused.
        classes: names that are given, in the order of the scores.
        labels: as they are in the file, or None; `name` is theirs.

    Raises:
        UsageError: --event for more than two classes.
        InputError: labels are names and nothing says which of them one column is of; or --event is none of them.
    """
    labels = as_names(labels, name, classes)
    if width > 2:
        raise UsageError(f"--event is for two classes, these are {width}", "leave it out")
    names = _names(labels)
    if labels is not None and classes is None:
        refuse_missing(labels, name, names if len(names) > 2 else [n for n in names if n.lower() in NO_LABEL])
    if width == 1 and classes is None and len(names) > 2:
        problem = f"one score per row but labels '{name}' have {len(names)} names or more ({', '.join(names)})"[:200]
        raise InputError(problem, "save the scores of every class as an array (N, K)")
    base = reading.label_base or 0
    numbers = [str(base), str(base + 1)]
    if width == 2 and classes is None:
        classes = plain_order(names)
    if width == 2 or classes is not None:
        shown = list(classes or numbers)
        event = _known(reading.event, shown)
        column_class = class_in_name(column) if width == 1 and labels is not None else ""
        if column_class and _same(column_class, shown[0]):
            problem = f"column '{column}' is of {shown[0]!r}, --classes makes {shown[1]!r} the class of the scores"
            raise InputError(problem, f"pass --classes {shown[1]},{shown[0]}")
        turned = event is None and reading.classes is None and plain_order(shown) == shown[::-1]  # `yes` before `no`
        if event == shown[0] or turned:
            return BinaryReading(shown, labels, first=True)
        return BinaryReading(classes, labels)
    return _named(reading, column, labels, names, name) if names else _numbered(reading, column, labels, numbers)


def _numbered(reading: Reading, column: str, labels: Named | None, numbers: list[str]) -> BinaryReading:
    """Read one column with labels 0 and 1, or none, as the score of class 1, unless its name or --event says 0."""
    column_class = class_in_name(column)
    if column_class and column_class not in numbers and (reading.event in (None, column_class, *numbers[1:])):
        return BinaryReading([f"not {column_class}", column_class], labels)
    if labels is None and reading.event:
        return BinaryReading([f"not {reading.event}", reading.event], None)
    event = _known(reading.event, numbers)
    if column_class == numbers[0]:
        if event is None:
            raise InputError(
                f"the only score column is '{column}': of class {numbers[0]}, or the first of one?",
                f"--event {numbers[0]} if it is P(y = {numbers[0]}), --event {numbers[1]} to measure the other class; "
                f"name it prob_{numbers[1]} if it is P(y = {numbers[1]})",
            )
        return BinaryReading(numbers[::-1], _other_way(labels, numbers), first=event == numbers[1], turned=True)
    if event == numbers[0]:  # what the column is of is said by --event alone
        return BinaryReading(numbers[::-1], _other_way(labels, numbers), turned=True)
    if not reading.label_base:
        return BinaryReading(None, labels)
    plain = None if labels is None else Converted(labels, _number, labels.shape[1:], np.dtype(np.float64))
    return BinaryReading(numbers, plain)


def _named(reading: Reading, column: str, labels: Named | None, names: list[str], name: str) -> BinaryReading:
    """Read one column with names as labels."""
    column_class = class_in_name(column)
    in_name = column_evidence.named_in_order([column, ""], names)  # `P(malignant)`
    scored_class = next((n for n in names if column_class and _same(column_class, n)), in_name[0] if in_name else None)
    if scored_class is None and reading.event is None and (pair := plain_order(names)):
        names, scored_class = pair, pair[1]
    event = reading.event
    if event is not None and len(names) > 1:
        event = _known(event, names)
    elif event is not None:  # one name alone was seen: the other may be new
        event = next((n for n in names if _same(event or "", n)), event)
    if scored_class is None and event is None:
        shown = " and ".join(names)
        raise InputError(
            f"labels '{name}' are names ({shown}), and '{column}' does not say which of them it is of",
            f"pass --event {' or --event '.join(names)}: the class whose probability the column is",
        )
    scored_class = scored_class or event
    others = [n for n in names if n != scored_class] or [
        event if event and event != scored_class else f"not {scored_class}"
    ]
    classes = [others[0], str(scored_class)]
    return BinaryReading(classes, labels, first=event == classes[0])


def plain_order(names: Sequence[str]) -> list[str] | None:
    """Return the two classes that these labels belong to in their natural order, as `no` and `yes`; else None."""
    spelled = {name.lower(): name for name in names}
    pair = next((pair for pair in OUTCOMES if spelled and set(spelled) <= set(pair)), None)
    return None if pair is None else [spelled.get(name, name) for name in pair]


def swap_classes(read: Predictions) -> Predictions:
    """Exchange two classes, so that the event is class 1."""
    scores = read.scores
    if isinstance(scores, ArrayScores):
        turned: ArrayScores | MappedScores = ArrayScores(np.ascontiguousarray(scores.array[:, ::-1]))
    else:
        turned = MappedScores(scores, lambda block: block[:, ::-1])
    counts = {str(1 - int(c)): rows for c, rows in read.record.class_rows.items()}
    values = read.record.label_values
    labels = read.labels if values is None else 1 - np.asarray(read.labels[:])
    return dataclasses.replace(
        read,
        scores=turned,
        labels=labels,
        classes=list(read.classes or ())[::-1],
        record=dataclasses.replace(
            read.record,
            exchanged=True,
            class_rows=dict(sorted(counts.items())),
            label_values=values and values[::-1],
        ),
    )


def _names(labels: Named | None) -> list[str]:
    """Return the names among the labels in alphabetical order, at most MOST; [] if they are numbers."""
    if labels is None or labels.dtype.kind not in "USO" or len(labels.shape) > 2:
        return []
    names: set[str] = set()
    for _, block in blocks(labels):
        names.update(str(text).strip() for text in texts_of(block.reshape(-1)).tolist())
        if len(names) >= MOST:
            break
    return [] if all(WHOLE.match(text) or is_number(text) for text in names) else sorted(names)


def _other_way(labels: Named | None, numbers: list[str]) -> Named | None:
    """Exchange two labels that are numbers."""
    if labels is None:
        return None
    total = int(numbers[0]) + int(numbers[1])
    return Converted(labels, lambda block: total - _number(block), labels.shape[1:], np.dtype(np.float64))


def _number(block: Array) -> Array:
    if block.dtype.kind not in "USO":
        return block.astype(np.float64)
    texts = texts_of(block.reshape(-1)).tolist()
    odd = next((text for text in texts if not is_number(text)), None)
    if odd is not None:
        raise InputError(f"label {odd[:40]!r} is not a number, others are", "give every row a label of one kind")
    return np.array([float(text) for text in texts]).reshape(block.shape)


def _known(event: str | None, names: Sequence[str]) -> str | None:
    """Return the event as it is spelled among the names.

    Raises:
        InputError: it is none of them.
    """
    if event is None:
        return None
    if spelled := next((one for one in names if _same(one, event)), ""):
        return spelled
    raise InputError(f"--event {event}: the classes are {' and '.join(names)}", did_you_mean(event, names))


def _same(a: str, b: str) -> bool:
    """Return whether two names differ in case, spaces, `-` and `_` alone."""
    return normal(a).replace(" ", "_") == normal(b).replace(" ", "_")
