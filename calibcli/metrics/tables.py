"""Beside the estimates: the Brier score decomposed, the top k, every class, and the reliability diagrams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.columns import ClassBins, ClassTable, Edges
from calibcli.links import log_softmax
from calibcli.metrics.binned import calibrated_cells
from calibcli.metrics.bounds import table_bounds
from calibcli.metrics.intervals import Rows, percent, share_bounds
from calibcli.metrics.reliability import DRAWS, BinaryOutcomes, Bins
from calibcli.metrics.sample import Sample
from calibcli.metrics.smooth import Smoothed
from calibcli.plots import Curve, Plot
from calibcli.predictions import Floats, Predictions
from calibcli.result import Cell, Table


def brier_parts(sample: Sample, shown: ClassBins, event: str) -> Table:
    """The exact decomposition over bins (Murphy 1973; Stephenson 2008) of `brier` for two classes, else `brier_top`."""
    view = sample.view()
    parts = murphy(view, view.width_bins(shown.bins, shown.edges))
    what = f"brier, of P({event})," if event else "brier_top, of the top label,"
    title = f"{what} = reliability - resolution + uncertainty + within-bin variance - covariance"
    heads = ["brier" if event else "brier_top", *list(parts)[1:]]
    return Table(name="murphy", title=title, columns=heads, rows=[list(parts.values())])


def murphy(view: BinaryOutcomes, bins: Bins) -> dict[str, float]:
    """Reliability - resolution + uncertainty + within-bin variance - within-bin covariance = mean (p - y)².

    With shares w_b, mean probability p_b and frequency y_b: Σ w (p_b - y_b)², Σ w (y_b - ȳ)², ȳ (1 - ȳ), the variance
    of p within bins, and twice its covariance with y. The last two are left out of many decompositions, which then do
    not add up.
    """
    share = view.shares
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


def per_class(sample: Sample, shown: ClassBins, predictions: Predictions) -> Table:
    """Each class: its probability against its frequency, and the rows that are predicted as it."""
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


BAND = 0.90  # of the consistency and smooth bands, pointwise
Z_BAND = 1.6448536269514722
CELLS, POINTS = 512, 101
PERFECT = Curve(label="perfect", kind="line", role="ideal", x=[0, 1], y=[0, 1])
FEWEST = 5  # effective rows within a bandwidth below which the smooth curve is not drawn


def reliability(
    view: BinaryOutcomes, bins: Bins, *, seed: int = 0, event: str = "", name: str = "reliability"
) -> list[Plot]:
    """Two panels: accuracy and gap per bin with the band of a calibrated model, and the number of rows per bin.

    The smooth curve has the bandwidth of SmoothECE.

    Args:
        view: probabilities and hits.
        bins: their reliability table.
        seed: of the band.
        event: what the probability is of; "" for the top label.
        name: name of the panel; the histogram is `{name}_rows`.
    """
    low, high = consistency(bins, seed)
    width = bins.upper - bins.lower
    counts = bins.weight * view.total if view.counts else bins.rows
    title = f"Reliability of {f'P({event})' if event else 'the top label'}, n = {counts.sum():.0f}"
    labels = (f"P({event})", f"share of {event}") if event else ("confidence", "accuracy")
    return [
        Plot(
            name=name,
            title=title,
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel=labels[0],
            ylabel=labels[1],
            curves=[
                *_gap_bars(bins.lower, width, bins.filled, bins.accuracy, bins.confidence, low, high),
                smooth_curve(view, view.once(Smoothed.of).fixed_point[0]),
                PERFECT,
            ],
        ),
        _rows(f"{name}_rows", name, bins.lower, width, counts),
    ]


def _gap_bars(x: Any, width: Any, filled: Any, accuracy: Any, confidence: Any, low: Any, high: Any) -> list[Curve]:
    y, p = _where(filled, accuracy), _where(filled, confidence)
    low, high = _where(filled, low), _where(filled, high)
    label = f"if calibrated ({percent(BAND)})"
    return [
        Curve(label="accuracy", kind="bars", role="model", x=x, width=width, y=y),
        Curve(label="gap", kind="bars", role="gap", x=x, width=width, base=y, y=p),
        Curve(label=label, kind="band", role="null", x=x, width=width, low=low, high=high),
    ]


def _rows(name: str, under: str, x: Any, width: Any, counts: Any) -> Plot:
    bars = Curve(label="rows", kind="bars", role="count", x=x, width=width, y=counts)
    return Plot(name=name, under=under, ylabel="rows", curves=[bars])


def consistency(bins: Bins, seed: int = 0) -> tuple[Floats, Floats]:
    """Accuracy per bin of a calibrated model, 5 % and 95 % quantiles (consistency bars, Bröcker & Smith 2007).

    Hits are binomial with the bin's mean confidence and its effective rows.
    """
    gaps = bins.simulated(DRAWS, np.random.default_rng([seed, 90])) * bins.inverse
    low, high = np.quantile(bins.confidence - gaps, [(1 - BAND) / 2, (1 + BAND) / 2], axis=0)
    return low, high


def smooth_curve(view: BinaryOutcomes, sigma: float) -> Curve:
    """The diagonal plus the kernel average of (hit - confidence), with a pointwise normal band.

    Reflected Gaussian kernel of width sigma, as in SmoothECE (Błasiok & Nakkiran 2024), which integrates the same
    average. The regression of the hits alone would drag sparse confidences towards crowded ones beside them, and so
    leave the diagonal for a calibrated model.
    """
    sigma = min(max(sigma, 2 / CELLS), 0.25)
    cell = np.minimum((view.p * CELLS).astype(np.int64), CELLS - 1)
    weight = view.sums(cell, CELLS)
    hit, confidence = view.sums(cell, CELLS, view.hit), view.sums(cell, CELLS, view.p)
    square, square_hit = view.sums(cell, CELLS, 1.0, 2), view.sums(cell, CELLS, view.hit, 2)
    t: Any = np.linspace(0, 1, POINTS)
    centre = (np.arange(CELLS) + 0.5) / CELLS
    kernel = np.zeros((POINTS, CELLS))
    for image in (centre, -centre, 2 - centre):
        kernel += np.exp(-(((t[:, None] - image) / sigma) ** 2) / 2)
    mass = kernel @ weight
    near = mass * view.total > 0.01  # some row within 3 sigma
    y = np.divide(kernel @ hit, mass, out=np.zeros(POINTS), where=near)
    k2 = kernel**2
    variance = np.maximum(k2 @ square_hit * (1 - 2 * y) + k2 @ square * y * y, 0)
    # a stretch without errors is not one without noise: at least what (hits + 1/2) / (n + 1) would show
    effective = np.divide(mass**2, k2 @ square, out=np.zeros(POINTS), where=near)
    least = (y * effective + 0.5) / (effective + 1)
    variance = np.maximum(variance, k2 @ square * least * (1 - least))
    se = np.sqrt(variance) / np.where(near, mass, 1)
    shown = _rows_near(t, sigma, weight, square) >= FEWEST
    shown &= (t >= view.p.min() - 1 / CELLS) & (t <= view.p.max() + 1 / CELLS)
    half = Z_BAND * se
    y = np.clip(t + np.divide(kernel @ (hit - confidence), mass, out=np.zeros(POINTS), where=near), 0, 1)
    return Curve(
        label=f"smoothed ({percent(BAND)})",
        kind="line",
        role="smooth",
        x=t,
        y=_where(shown, y),
        low=_where(shown, np.maximum(y - half, 0)),
        high=_where(shown, np.minimum(y + half, 1)),
    )


def _rows_near(t: Floats, sigma: float, weight: Floats, square: Floats) -> Floats:
    """Effective rows within `sigma` of each t, from sums per cell: the kernel itself reaches beyond any row."""
    first = np.maximum(np.floor((t - sigma) * CELLS), 0).astype(np.int64)
    last = np.minimum(np.ceil((t + sigma) * CELLS), CELLS).astype(np.int64)
    mass, squares = (
        np.diff(np.append(0.0, np.cumsum(v))[np.stack([first, last])], axis=0)[0] for v in (weight, square)
    )
    return np.asarray(np.divide(mass**2, squares, out=np.zeros(len(t)), where=mass > 1e-15))


def class_panels(table: ClassTable, names: Sequence[str], bins: int, seed: int = 0) -> list[Plot]:
    """Small multiples, one per class: frequency of the class against its probability."""
    x: Any = np.arange(bins) / bins
    width: Any = np.full(bins, 1 / bins)
    rng = np.random.default_rng([seed, 91])
    plots = []
    for k, name in enumerate(names):
        count, p, hit = table.count[k][:bins], table.sum_p[k][:bins], table.sum_y[k][:bins]
        filled = count > 0
        n = np.where(filled, count, 1)
        share, mean = hit / n, p / n
        draws = (
            rng.binomial(np.maximum(np.round(count), 0).astype(np.int64), np.clip(mean, 0, 1), size=(DRAWS, bins)) / n
        )
        low, high = np.quantile(draws, [(1 - BAND) / 2, (1 + BAND) / 2], axis=0)
        plots.append(
            Plot(
                name=f"class_{k}",
                title=f"{name}, n = {table.sum_y[k].sum():.0f}",
                group="Reliability of each class",
                xlabel="probability",
                ylabel="frequency",
                xlim=(0, 1),
                ylim=(0, 1),
                curves=[*_gap_bars(x, width, filled, share, mean, low, high), PERFECT],
            )
        )
    return plots


def _where(shown: Any, values: Any) -> list[float | None]:
    return [float(v) if s and math.isfinite(v) else None for s, v in zip(shown, values, strict=True)]
