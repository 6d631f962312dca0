"""Beside the estimates: the top k, and every class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from calibcli.columns import ClassBins, Edges
from calibcli.links import log_softmax
from calibcli.metrics.binned import calibrated_cells
from calibcli.metrics.bounds import table_bounds
from calibcli.metrics.corp import Decomposed, Part
from calibcli.metrics.intervals import Rows, percent, share_bounds
from calibcli.metrics.sample import BinaryOutcomes, Sample
from calibcli.predictions import Predictions
from calibcli.result import Cell, Table


def top_k(sample: Sample, most: int, *, bins: int, edges: Edges, level: float) -> Table:
    """Accuracy, confidence and ECE of the top 1, ..., `most` classes taken together."""
    ks = list(range(1, most + 1)) if most <= 10 else [1, 2, 3, 5, 10, most]
    rows: list[list[Cell]] = []
    for k, view in top_views(sample, sorted(set(ks))).items():
        accuracy = float(np.sum(view.hit * view.shares))
        hits = Rows(view.hit, view.weights, view.counts, view.groups)
        low, high = share_bounds(hits, (1 - level) / 2) or (None, None)
        b = table_bounds(view, view.width_bins(bins, edges), alpha=1 - level)
        mean = float(np.sum(view.p * view.shares))
        bounds = [None, None] if b.reason else [b.lower, b.upper]
        rows.append([k, accuracy, low, high, mean, b.value, *bounds, b.floor])
    return Table(
        name="top_k",
        title=f"Is the label among the k most probable classes ({percent(level)} interval), and as likely as said",
        columns=["k", "accuracy", "low", "high", "confidence", "ece", "ece low", "ece high", "if calibrated"],
        rows=rows,
    )


def top_views(sample: Sample, ks: Sequence[int]) -> dict[int, BinaryOutcomes]:
    """For each k, the probability mass of the top k classes and whether the label is among them.

    Ahead of the label are classes of a larger score; of equal scores the lower class.
    """
    predictions = sample.predictions
    assert predictions is not None
    rank = np.empty(predictions.n, dtype=np.int64)
    mass = {k: np.empty(predictions.n) for k in ks}
    for start, block in predictions.blocks():
        here = slice(start, start + len(block))
        labels = predictions.labels[here]
        own = block[np.arange(len(block)), labels][:, None]
        tied = (block == own) & (np.arange(block.shape[1]) < labels[:, None])
        rank[here] = (block > own).sum(axis=1) + tied.sum(axis=1)
        p = np.exp(log_softmax(block.astype(np.float64)))
        p.partition(sorted({p.shape[1] - k for k in ks if k < p.shape[1]}), axis=1)
        for k in ks:
            mass[k][here] = np.minimum(p[:, -k:].sum(axis=1), 1.0)
    return {k: sample.outcomes(mass[k], 1 - mass[k], rank < k) for k in ks}


def class_names(predictions: Predictions) -> list[str]:
    return [str(c) for c in predictions.classes] if predictions.classes else [str(i) for i in range(predictions.k)]


def whole(count: float) -> float | int:
    """A count as a whole number, where it is one."""
    return int(count) if float(count).is_integer() else float(count)


def class_views(sample: Sample, predictions: Predictions) -> Iterator[BinaryOutcomes]:
    """The probability of each class, one after the other; none of rows that are condensed."""
    n, k = predictions.n, predictions.k
    if sample.columns.condensed:
        return
    step = max(1, HELD // n)
    for first in range(0, k, step):
        held = np.empty((min(step, k - first), n))
        for start, block in predictions.blocks():
            p = np.exp(log_softmax(block.astype(np.float64)))
            held[:, start : start + len(block)] = p[:, first : first + step].T
        for label, p in enumerate(held, first):
            yield sample.outcomes(p, 1 - p, predictions.labels == label)


def per_class(
    sample: Sample,
    shown: ClassBins,
    predictions: Predictions,
    seen: Callable[[int, BinaryOutcomes], None] | None = None,
) -> Table:
    """Each class: its probability against its frequency, and the rows that are predicted as it.

    Args:
        seen: called with each class and its outcomes, which are not kept.
    """
    table = sample.columns.classes[shown]
    total, columns = sample.top.total, sample.columns
    w = sample.weights
    each = np.abs(table.sum_p - table.sum_y).sum(axis=1) / total
    null = calibrated_cells(table, sample.top)[2].sum(axis=1) / sample.top.effective
    said, right, confidence = (
        columns.by_predicted
        if columns.by_predicted is not None
        else (
            np.bincount(columns.predicted, values if w is None else w * values, columns.k)
            for values in (np.ones(columns.n), columns.correct, columns.confidence)
        )
    )
    corp: list[list[float | None]] = []
    for label, view in enumerate(class_views(sample, predictions)):
        corp.append([Decomposed(view, "brier", part).value for part in PARTS])
        if seen is not None:
            seen(label, view)
    corp = corp or [[None, None]] * columns.k
    labels = table.sum_y.sum(axis=1) if shown.threshold <= 0 else np.bincount(columns.labels, w, columns.k)
    rows: list[list[Cell]] = []
    for i, name in enumerate(class_names(predictions)):
        precision = [right[i] / said[i], confidence[i] / said[i]] if said[i] > 0 else [None, None]
        recall = right[i] / labels[i] if labels[i] > 0 else None
        share = [table.sum_p[i].sum() / total, labels[i] / total]
        rows.append([name, whole(labels[i]), *share, each[i], null[i], *corp[i], whole(said[i]), *precision, recall])
    columns_ = ["class", "rows", "mean p", "frequency", "ece", "if calibrated", "mcb", "dsc"]
    return Table(
        name="per_class",
        title="Per class: its probability over all rows, and the rows predicted as it",
        columns=[*columns_, "predicted", "precision", "confidence", "recall"],
        rows=rows,
    )


HELD = 1 << 25  # probabilities of classes that are held at once
PARTS: tuple[Part, Part] = ("mcb", "dsc")
