"""Find labels that are unrelated to the predictions: rows of another order than their labels, or of another file.

Shuffled, sorted or shifted labels look like overconfidence: accuracy falls to the level of chance, while the
probabilities stay as sure as they were. The labels are therefore compared with what independent ones would give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calibcli.core.errors import InputError
from calibcli.scores._score_kind import KeptRows, Scan
from calibcli.scores.input_mistakes import PAIRS, ClassOrder, auc_and_z
from calibcli.scores.predictions import Array, Floats, Ints, Kind, logits_of, rows_of
from calibcli.scores.softmax import DeviceScores

FEWEST = 50  # rows; of fewer, even a sure model that is right by chance shows little
CHANCE_Z = 4.0  # standard errors above independent labels up to which labels count as unrelated: once in 30,000
CLAIM_Z = 8.0  # standard errors by which the confidence must exceed that level: twice what would not be noticed
CLAIM = 0.4  # share of the way from chance to certainty that it must exceed: uninformative models claim less
CELLS = 1 << 24  # probabilities that are added up for that
SHIFTS = 10  # rows by which labels are shifted, in either direction
ORDER_P = 1e-6  # p-value below which the best of all tries is no chance
GAIN_Z = math.sqrt(2.0)  # a try must also exceed the order of the file; their difference has twice the variance


@dataclass(frozen=True)
class Agreement:
    """How well labels fit predictions, beside independent labels of the same numbers per class.

    Attributes:
        z: excess over independent labels, in standard errors.
        log_p: of a bound on the chance that independent labels fit as well.
        accuracy: share of rows where the label is the predicted class.
        chance: the accuracy of independent labels.  spread: its standard error.
    """

    z: float
    log_p: float
    accuracy: float
    chance: float
    spread: float


def agreement(predicted: Ints, margins: Floats | None, labels: Ints, k: int) -> Agreement:
    """Compare labels with predictions.

    Of two classes the ranks of the margins tell more than the predicted classes, which may all be one. Otherwise the
    matches are compared with those of labels that are dealt out at random, whose mean Σ a b / n and variance are
    exact (Hoeffding 1951, of a matrix of ones where the classes agree; a and b count predictions and labels).

    Args:
        predicted, labels: (N,) int64 in [0, k).  margins: (N,) of two classes, score of the second less the first.
    """
    n = len(labels)
    a, b = (np.bincount(one, minlength=k).astype(np.float64) for one in (predicted, labels))
    right, total = int((predicted == labels).sum()), float(a @ b)
    squares = total - float(a @ b**2) / n - float(b @ a**2) / n + total**2 / n**2
    variance, mean = max(squares, 0.0) / (n - 1), total / n
    spread = math.sqrt(variance) / n
    if margins is not None:
        z = auc_and_z(margins, labels)[1]
        z = 0.0 if math.isnan(z) else z
        return Agreement(z, -(max(z, 0.0) ** 2) / 2, right / n, mean / n, spread)
    z = (right - mean) / math.sqrt(variance) if variance > 0 else 0.0
    return Agreement(z, _log_tail(right - mean, variance), right / n, mean / n, spread)


def _log_tail(excess: float, variance: float) -> float:
    """Bound the log of the chance of such an excess (Bennett 1962): few matches of many classes have a longer tail than
    the normal distribution.
    """
    if excess <= 0 or variance <= 0:
        return 0.0
    u = excess / variance
    return -variance * ((1 + u) * math.log1p(u) - u)


def unrelated(scan: Scan, rows: KeptRows, kind: Kind, name: str, labels: str) -> str:
    """Return a note if the labels are unrelated to the predictions, although these claim to know them; else "". Ours.

    Args:
        name, labels: of the arrays.

    Raises:
        InputError: another order of the labels fits beyond chance, or the labels are sorted by class.
    """
    seen, k = scan[ClassOrder], max(scan.k, 2)
    if not seen.predicted or scan.finite < FEWEST:
        return ""
    predicted, codes = np.concatenate(seen.predicted), np.concatenate(seen.labels)
    margins = np.concatenate(seen.margins) if seen.margins else None
    if scan.k == 1 and kind != "probabilities":  # the pass counts a column above 1/2 as class 1
        half = 0.0 if kind == "logits" else math.log(0.5)
        predicted = (np.concatenate(seen.margins) > half).astype(np.int64)
    if len(codes) < FEWEST or bool((codes == codes[0]).all()):
        return ""
    observed = agreement(predicted, None, codes, k)
    if observed.z <= CHANCE_Z and margins is not None:
        observed = agreement(predicted, margins, codes, k)
    if observed.z > CHANCE_Z:
        return ""
    whole = len(codes) == scan.finite <= PAIRS
    tried = [*_orders(len(codes), whole)]
    limit = math.log(ORDER_P / len(tried))
    fits = [_moved(predicted, margins, codes, k, order) for order, _ in tried]
    best_index = int(np.argmax([fit.z for fit in fits]))
    best, how = fits[best_index], tried[best_index][1]
    beside = [fits[i].z for i in (best_index - 2, best_index + 2) if max(i, best_index) < 2 * SHIFTS and i >= 0]
    if best.log_p < limit and best.z - max(observed.z, *beside, 0.0) > GAIN_Z * CHANCE_Z:
        raise InputError(
            f"the labels '{labels}' are unrelated to the scores '{name}' row by row (accuracy {observed.accuracy:.3f}; "
            f"independent labels would give {observed.chance:.3f}), and {how} they fit: accuracy {best.accuracy:.3f}",
            "write scores and labels in the same order; shuffle=False where they are computed",
        )
    mean, level = _claimed(rows, kind, np.bincount(predicted, minlength=k) / len(predicted))
    if mean - level < max(CLAIM * (1 - level), CLAIM_Z * observed.spread):
        return ""
    text = (
        f"the labels '{labels}' are unrelated to the predictions: accuracy {observed.accuracy:.3f}, which independent "
        f"labels would give too ({observed.chance:.3f}), at a mean confidence of {mean:.3f}"
    )
    if k > 2 and not (codes > 1).any():
        problem = f"{text}; and they are 0 and 1 alone, of {k} classes"
        raise InputError(problem, "choose the column of the class that was observed, not of a verdict or one class")
    if whole and _sorted(codes) and not _sorted(predicted):
        fix = "write scores and labels in the same order; shuffle=False where the scores are computed"
        raise InputError(f"{text}; and the labels are sorted by class, the predictions are not", fix)
    best_text = "shifts by 1 to 10 rows and sorted orders do not help" if whole else "shifts do not help"
    return f"{text}; are the rows in the same order, and of the same file? ({best_text})"


def _orders(n: int, whole: bool) -> Iterator[tuple[slice | Ints, str]]:
    """Yield other orders of the labels, and what they are called: shifts; and, where all rows are seen, from the last
    to the first, and those in which numbers of rows are sorted as texts (10 before 2).
    """
    for rows in range(1, SHIFTS + 1):
        noun = "row" if rows == 1 else "rows"
        yield slice(rows, n), f"shifted up by {rows} {noun}"
        yield slice(-rows, None), f"shifted down by {rows} {noun}"
    if not whole:
        return
    yield np.arange(n)[::-1], "from the last to the first"
    for base in (0, 1):
        texts = np.argsort(np.arange(base, base + n).astype(str), kind="stable")
        yield texts, "sorted by the numbers of their rows as texts (1, 10, 2)"
        yield np.argsort(texts), "with numbers of rows that were sorted as texts (1, 10, 2) sorted as numbers"


def _moved(predicted: Ints, margins: Floats | None, labels: Ints, k: int, order: slice | Ints) -> Agreement:
    """Return the agreement with the labels in another order; a shift leaves out rows that it pushes over the end."""
    if not isinstance(order, slice):
        return agreement(predicted, margins, labels[order], k)
    if order.stop is not None:  # row i has the label of row i + s
        rows = len(labels) - order.start
        return agreement(predicted[:rows], None if margins is None else margins[:rows], labels[order.start :], k)
    down = -order.start  # row i has the label of row i - s
    return agreement(predicted[down:], None if margins is None else margins[down:], labels[:-down], k)


def _sorted(codes: Ints) -> bool:
    """Return whether class numbers only rise, or only fall."""
    steps = np.diff(codes)
    return bool((steps >= 0).all() or (steps <= 0).all())


def _claimed(rows: KeptRows, kind: Kind, predicted: Floats) -> tuple[float, float]:
    """Return the mean confidence over the first rows, and what it would be without any knowledge of single rows: the
    accuracy of these predictions under independent labels of the mean probabilities.

    Args:
        predicted: (K,) share of the rows in which each class is predicted.
    """
    scores, device = rows.scores, isinstance(rows.scores, DeviceScores)  # few rows are copied from a device
    n = min(rows.scores.shape[0], 1000 if device else PAIRS, max(1000, CELLS // len(predicted)))
    total, seen, shares = 0.0, 0, np.zeros(len(predicted))
    step = n if device else rows_of(scores)
    for start in range(0, n, step):
        block: Array = np.asarray(scores.read(start, min(start + step, n)), np.float64)
        z = logits_of(block, kind)  # (rows, K)
        with np.errstate(all="ignore"):
            p = np.exp(z - z.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
        p = p[np.isfinite(p).all(axis=1)]
        total, seen, shares = total + float(p.max(axis=1).sum()), seen + len(p), shares + p.sum(axis=0)
    return total / max(seen, 1), float(predicted @ shares) / max(seen, 1)
