"""Tables beside the estimates: the Brier score decomposed, the top k, and every class."""

from __future__ import annotations

import numpy as np

from calibcli.columns import ClassBins, Edges
from calibcli.metrics.bounds import view_bounds
from calibcli.metrics.classwise import mean_absolute_deviation
from calibcli.metrics.intervals import Rows, percent, share_bounds
from calibcli.metrics.reliability import Bins
from calibcli.metrics.sample import Sample, View
from calibcli.metrics.topk import views
from calibcli.predictions import Predictions
from calibcli.result import Cell, Table


def brier_parts(sample: Sample, shown: ClassBins, event: str) -> Table:
    """The exact decomposition over bins (Murphy 1973; Stephenson 2008) of `brier` for two classes, else `brier_top`."""
    view = sample.view()
    parts = murphy(view, view.width_bins(shown.bins, shown.edges))
    what = f"brier, of P({event})," if event else "brier_top, of the top label,"
    title = f"{what} = reliability - resolution + uncertainty + within-bin variance - covariance"
    heads = ["brier" if event else "brier_top", *list(parts)[1:]]
    return Table(name="murphy", title=title, columns=heads, rows=[list(parts.values())])


def murphy(view: View, bins: Bins) -> dict[str, float]:
    """Reliability - resolution + uncertainty + within-bin variance - within-bin covariance = mean (p - y)².

    With shares w_b, mean probability p_b and frequency y_b: Σ w (p_b - y_b)², Σ w (y_b - ȳ)², ȳ (1 - ȳ), the variance
    of p within bins, and twice its covariance with y. The last two are left out of many decompositions, which then do
    not add up.
    """
    share = view.share()
    p, y = bins.confidence, bins.accuracy
    base = float(bins.hit.sum())
    both = float(np.sum((view.p * share)[view.hit]))
    return {
        "brier": float(np.sum(view.residual**2 * share)),
        "reliability": float((bins.weight * bins.gap**2).sum()),
        "resolution": float((bins.weight * (y - base) ** 2).sum()),
        "uncertainty": base * (1 - base),
        "variance": float(np.sum(view.p**2 * share) - (bins.weight * p**2).sum()),
        "covariance": 2 * (both - float((bins.weight * p * y).sum())),
    }


def top_k(sample: Sample, most: int, *, bins: int, edges: Edges, level: float) -> Table:
    """Accuracy, confidence and ECE of the top 1, ..., `most` classes taken together."""
    ks = list(range(1, most + 1)) if most <= 10 else [1, 2, 3, 5, 10, most]
    rows: list[list[Cell]] = []
    for k, view in views(sample, sorted(set(ks))).items():
        accuracy = float(np.sum(view.hit * view.share()))
        hits = Rows(view.hit, view.weights, view.counts, view.groups)
        low, high = share_bounds(hits, (1 - level) / 2) or (None, None)
        b = view_bounds(view, bins=bins, edges=edges, alpha=1 - level)
        mean = float(np.sum(view.p * view.share()))
        bounds = [None, None] if b.reason else [b.lower, b.upper]
        rows.append([k, accuracy, low, high, mean, b.value, *bounds, b.floor])
    return Table(
        name="top_k",
        title=f"Is the label among the k most probable classes ({percent(level)} interval), and as likely as said",
        columns=["k", "accuracy", "low", "high", "confidence", "ece", "ece low", "ece high", "if calibrated"],
        rows=rows,
    )


def class_names(predictions: Predictions) -> list[str]:
    return [str(c) for c in predictions.classes] if predictions.classes else [str(i) for i in range(predictions.k)]


def whole(count: float) -> float | int:
    """A count as a whole number, where it is one."""
    return int(count) if float(count).is_integer() else float(count)


def per_class(sample: Sample, shown: ClassBins, predictions: Predictions) -> Table:
    """Each class: its probability against its frequency, and the rows that are predicted as it."""
    table = sample.columns.classes[shown]
    total, columns = sample.top.total, sample.columns
    w = sample.weights
    each = np.abs(table.sum_p - table.sum_y).sum(axis=1) / total
    design = total / sample.top.effective
    count = np.where(table.count > 0, table.count, 1)
    null = mean_absolute_deviation((count / design).ravel(), np.clip(table.sum_p / count, 0, 1).ravel()).reshape(
        count.shape
    )
    null = np.where(table.count > 0, null, 0).sum(axis=1) * design / total
    said = np.bincount(columns.predicted, w, columns.k)
    right = np.bincount(columns.predicted, columns.correct * (1.0 if w is None else w), columns.k)
    confidence = np.bincount(columns.predicted, columns.confidence * (1.0 if w is None else w), columns.k)
    labels = table.sum_y.sum(axis=1) if shown.threshold <= 0 else np.bincount(columns.labels, w, columns.k)
    rows: list[list[Cell]] = []
    for i, name in enumerate(class_names(predictions)):
        precision = [right[i] / said[i], confidence[i] / said[i]] if said[i] > 0 else [None, None]
        recall = right[i] / labels[i] if labels[i] > 0 else None
        share = [table.sum_p[i].sum() / total, labels[i] / total]
        rows.append([name, whole(labels[i]), *share, each[i], null[i], whole(said[i]), *precision, recall])
    columns_ = ["class", "rows", "mean p", "frequency", "ece", "if calibrated"]
    return Table(
        name="per_class",
        title="Per class: its probability over all rows, and the rows predicted as it",
        columns=[*columns_, "predicted", "precision", "confidence", "recall"],
        rows=rows,
    )
