"""Curvature as figure data: the density with its band, eigenvalues, convergence of a Ritz value, bars per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from calibcli.hessian.density import Density
from calibcli.hessian.lanczos import Lanczos
from calibcli.plots import Curve, Plot
from calibcli.result import Estimate

DENSITY = "density"
"""Name of the figure that a screen shows rather than another."""


def density(d: Density, quantile: float) -> Plot:
    """Density over λ on a logarithmic scale, with the band of the random start vectors and of the steps."""
    floor = 1e-8 * float(d.values.max())
    half = quantile * d.se
    y, low, high = (v.clamp(min=floor).tolist() for v in (d.values, d.least - half, d.most + half))
    curve = _curve("density", "line", y, low, high, d.grid.tolist())
    title = f"Spectral density, smoothed with σ = {d.sigma:.3g}"
    return Plot(name=DENSITY, title=title, xlabel="eigenvalue λ", ylabel="density", yscale="log", curves=[curve])


def eigenvalues(estimates: Sequence[Estimate]) -> Plot:
    """The largest eigenvalues with their intervals."""
    y, low, high = ([getattr(e, part) for e in estimates] for part in ("value", "low", "high"))
    curve = _curve("eigenvalue", "points", y, low, high)
    return Plot(name="top", title="Largest eigenvalues", xlabel="rank", ylabel="eigenvalue λ", curves=[curve])


def convergence(run: Lanczos, index: int, which: str) -> Plot:
    """Ritz value and its residual bound after every product."""
    column = 0 if index else 2
    found = [row[column : column + 2] for row in run.history]
    curve = _curve("Ritz value ± residual", "line", *zip(*((v, v - e, v + e) for v, e in found)))
    named: dict[str, Any] = {"name": f"convergence {which}", "title": f"Convergence of {which}", "tier": "all"}
    return Plot(**named, xlabel="Hessian-vector products", ylabel="Ritz value", curves=[curve])


def layers(names: Sequence[str], values: Mapping[str, torch.Tensor]) -> list[Plot]:
    """One bar chart per column, a bar per layer."""
    plots = []
    for column, series in values.items():
        if column.startswith("±"):
            continue
        half = values.get(f"± {column}")
        low, high = (None if half is None else (series + sign * half).tolist() for sign in (-1.96, 1.96))
        curve = _curve(column, "bars", series.tolist(), low, high, range(len(names)))
        named: dict[str, Any] = {
            "name": f"layers {column}",
            "title": f"{column} per layer",
            "ylabel": column,
            "tier": "all",
        }
        plots.append(Plot(**named, labels=list(names), flip=True, group="Layers", curves=[curve]))
    return plots


def _curve(label: str, kind: Any, y: Any, low: Any = None, high: Any = None, x: Any = None) -> Curve:
    """A curve with its band, over 1, 2, 3, ... where no abscissae are given."""
    x = [float(i) for i in (range(1, len(y) + 1) if x is None else x)]
    return Curve(label=label, kind=kind, role="model", x=x, y=y, low=low, high=high)
