"""Data of reliability diagrams: bins and the isotonic curve with their bands, the smooth curve, panels of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibcli.core.figure_data import Curve, Plot
from calibcli.core.number_format import number, percent
from calibcli.core.options import Drawn
from calibcli.core.statistics import Binomials, counted, quantiles
from calibcli.metrics.decisions import DecisionCurve, odds
from calibcli.metrics.reliability import DRAWS, BinaryOutcomes, Bins
from calibcli.scores.columns import ClassTable
from calibcli.scores.predictions import Floats

BAND = 0.90  # level of the consistency and smooth bands, pointwise
Z_BAND = 1.6448536269514722  # normal quantile of .95
CELLS, POINTS = 512, 101  # of the smooth curve: cells that rows are summed in, and points that are drawn
PERFECT = Curve(label="perfect", kind="line", role="ideal", x=[0, 1], y=[0, 1])
FEWEST = 5  # effective rows within a bandwidth below which the smooth curve is not drawn


def reliability(
    view: BinaryOutcomes,
    bins: Bins,
    *,
    event: str = "",
    name: str = "reliability",
    curve: Drawn = "corp",
    about: str = "",
) -> list[Plot]:
    """Draw two panels: accuracy and gap per bin with the band of a calibrated model, and the rows per bin.

    Args:
        view: probabilities and hits.
        bins: their reliability table.
        event: name of the event of two classes; "" for the top label.
        name: name of the panel; the histogram is `{name}_rows`.
        curve: what pictures draw instead of bins: CORP's curve with its band, or the smooth one, which has the
            bandwidth of SmoothECE.
        about: scope of the estimates that are written inside the panel.
    """
    low, high = consistency(bins)
    width = bins.upper - bins.lower
    counts = bins.weight * view.total if view.counts else bins.rows
    title = f"Reliability of {f'P({event})' if event else 'the top label'}, n = {counts.sum():.0f}"
    labels = (f"P({event})", f"share of {event}") if event else ("confidence", "accuracy")
    rows: Any = {"x": bins.lower, "width": width, "y": counts}
    return [
        Plot(
            name=name,
            title=title,
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel=labels[0],
            ylabel=labels[1],
            about=about,
            curves=[
                *_gap_bars(labels[1], bins.lower, width, bins.filled, bins.accuracy, bins.confidence, low, high),
                *drawn(view, curve),
                PERFECT,
            ],
        ),
        Plot(
            name=f"{name}_rows",
            under=name,
            ylabel="rows",
            curves=[Curve(label="rows", kind="bars", role="count", **rows)],
        ),
    ]


def drawn(view: BinaryOutcomes, curve: Drawn) -> list[Curve]:
    """Return the curves that a picture draws instead of bins."""
    if curve == "smooth":
        from calibcli.metrics.smooth_ece import Smoothed

        return [smooth_curve(view, view.memoized(Smoothed.of).fixed_point[0])]
    return corp_curves(view) if curve == "corp" else []


def with_curve(plot: Plot, view: BinaryOutcomes, curve: Drawn) -> Plot:
    """Add such curves to a panel, before its last curve, the diagonal."""
    return replace(plot, curves=[*plot.curves[:-1], *drawn(view, curve), plot.curves[-1]])


def corp_curves(view: BinaryOutcomes) -> list[Curve]:
    """Draw the isotonic regression, and the band of that of a calibrated model (Dimitriadis et al. 2021)."""
    from calibcli.metrics.corp import Isotonic

    fit = view.memoized(Isotonic.of)
    knots: Any = fit.knots
    cells = fit.cells
    t: Any = counted(np.append(np.linspace(cells.p[0], cells.p[-1], POINTS), cells.p[[0, -1]]))[0]
    low, high = (np.interp(t, cells.p, end) for end in cells.band(BAND))
    return [
        Curve(label=f"if calibrated ({percent(BAND)})", kind="band", role="corp_null", x=t, low=low, high=high),
        Curve(label="isotonic regression", kind="line", role="corp", x=knots[0], y=knots[1]),
    ]


def decision(curve: DecisionCurve) -> Plot:
    """Draw the net benefit over the threshold, of acting on the model, on all, and on none (Vickers & Elkin 2006)."""
    most = max(float(curve.everybody[0] + odds(curve.t[0])), 0.0)
    least, most = -0.25 * most, 1.05 * most
    t, keep = curve.t, curve.model >= least
    curves = [
        Curve(label=name, kind="line", role=role, x=t, y=_where(y >= least, y))
        for name, role, y in (
            ("model", "model", curve.model),
            ("treat all", "before", curve.everybody),
            ("treat none", "ideal", 0 * t),
        )
    ]
    if np.isfinite(curve.low).all() and np.isfinite(curve.high).all():
        low, high = (np.clip(end, least, most)[keep] for end in (curve.low, curve.high))
        curves.insert(
            0, Curve(label=f"{percent(curve.level)} at each", kind="band", role="smooth", x=t[keep], low=low, high=high)
        )
    title = f"Net benefit of acting on P({curve.event}), n = {curve.n:,}"
    axes: Any = {
        "xlabel": f"threshold of P({curve.event})",
        "ylabel": "net benefit",
        "xlim": (0, t[-1]),
        "ylim": (least, most),
    }
    return Plot(name="decision", title=title, **axes, curves=curves)


def _gap_bars(
    name: str, x: Any, width: Any, filled: Any, share: Any, confidence: Any, low: Any, high: Any
) -> list[Curve]:
    """Draw the share of each bin, which is called by its name on the axis, its gap, and the band."""
    y, p = _where(filled, share), _where(filled, confidence)
    low, high = _where(filled, low), _where(filled, high)
    label = f"if calibrated ({percent(BAND)})"
    return [
        Curve(label=name, kind="bars", role="model", x=x, width=width, y=y),
        Curve(label="gap", kind="bars", role="gap", x=x, width=width, base=y, y=p),
        Curve(label=label, kind="band", role="null", x=x, width=width, low=low, high=high),
    ]


def consistency(bins: Bins) -> tuple[Floats, Floats]:
    """Simulate the accuracy per bin of a calibrated model: 5 % and 95 % quantiles (Bröcker & Smith 2007).

    Hits are binomial with the bin's mean confidence and its effective rows.
    """
    accuracy = bins.confidence - bins.null_gaps * bins.inverse
    low, high = quantiles(accuracy, [(1 - BAND) / 2, (1 + BAND) / 2])
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)  # against rounding


def smooth_curve(view: BinaryOutcomes, sigma: float) -> Curve:
    """Draw the diagonal plus the kernel average of (hit - confidence), with a pointwise normal band.

    Reflected Gaussian kernel of width sigma, as in SmoothECE (Błasiok & Nakkiran 2024), which integrates the same
    average. A regression of the hits alone would pull sparse confidences towards crowded ones next to them, and so
    leave the diagonal for a calibrated model.
    """
    sigma = min(max(sigma, 2 / CELLS), 0.25)
    cell = np.minimum((view.p * CELLS).astype(np.int64), CELLS - 1)
    weight = view.sums(cell, CELLS)
    hit, confidence = view.sums(cell, CELLS, view.hit), view.sums(cell, CELLS, view.p)
    square, square_hit = view.sums(cell, CELLS, power=2), view.sums(cell, CELLS, view.hit, 2)
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
    # where no row is wrong the variance is not 0: at least that of a share of (hits + 1/2) / (n + 1)
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
    """Count effective rows within `sigma` of each t, from sums per cell; the kernel itself reaches beyond any row."""
    first = np.maximum(np.floor((t - sigma) * CELLS), 0).astype(np.int64)
    last = np.minimum(np.ceil((t + sigma) * CELLS), CELLS).astype(np.int64)
    ends = np.stack([first, last])
    mass, squares = (np.diff(np.append(0.0, np.cumsum(v))[ends], axis=0)[0] for v in (weight, square))
    return np.asarray(np.divide(mass**2, squares, out=np.zeros(len(t)), where=mass > 1e-15))


def class_panels(table: ClassTable, names: Sequence[str], bins: int, seed: int = 0) -> list[Plot]:
    """Draw small multiples, one per class: frequency of the class against its probability."""
    x: Any = np.arange(bins) / bins
    width: Any = np.full(bins, 1 / bins)
    rng = np.random.default_rng([seed, 91])
    plots = []
    for k, name in enumerate(names):
        count, p, hit = table.count[k][:bins], table.sum_p[k][:bins], table.sum_y[k][:bins]
        filled = count > 0
        n = np.where(filled, count, 1)
        share, mean = hit / n, p / n
        rows = np.maximum(np.round(count), 0).astype(np.int64)
        draws = Binomials(rows, np.clip(mean, 0, 1)).draw(DRAWS, rng) / n
        low, high = quantiles(draws, [(1 - BAND) / 2, (1 + BAND) / 2])
        error = number(float(np.abs(table.sum_y[k] - table.sum_p[k]).sum() / max(table.count[k].sum(), 1)), 3)
        plots.append(
            Plot(
                name=f"class_{k}",
                title=f"{name}, n = {table.sum_y[k].sum():.0f}, ECE {error}",
                group="Reliability of each class",
                xlabel="probability",
                ylabel="frequency",
                xlim=(0, 1),
                ylim=(0, 1),
                curves=[*_gap_bars("frequency", x, width, filled, share, mean, low, high), PERFECT],
            )
        )
    return plots


def _where(shown: Any, values: Any) -> list[float | None]:
    return [float(v) if s and math.isfinite(v) else None for s, v in zip(shown, values, strict=True)]
