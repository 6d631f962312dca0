"""Curvature as figure data: the density with its band, eigenvalues, convergence of a Ritz value, bars per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from calibcli.curvature.density import Density
from calibcli.curvature.lanczos import Lanczos
from calibcli.result import Curve, Estimate, Plot


def density(d: Density, quantile: float) -> Plot:
    """Density over λ on a logarithmic scale, with the band of the random start vectors."""
    floor = 1e-8 * float(d.values.max())
    low = (d.values - quantile * d.se).clamp(min=floor)
    return Plot(
        name="density",
        title=f"Spectral density, smoothed with σ = {d.sigma:.3g}",
        xlabel="eigenvalue λ",
        ylabel="density",
        yscale="log",
        curves=[
            Curve(
                label="density",
                kind="line",
                role="model",
                x=d.grid.tolist(),
                y=d.values.clamp(min=floor).tolist(),
                low=low.tolist(),
                high=(d.values + quantile * d.se).clamp(min=floor).tolist(),
            )
        ],
    )


def eigenvalues(estimates: Sequence[Estimate]) -> Plot:
    """The largest eigenvalues with their intervals."""
    return Plot(
        name="top",
        title="Largest eigenvalues",
        xlabel="rank",
        ylabel="eigenvalue λ",
        curves=[
            Curve(
                label="eigenvalue",
                kind="points",
                role="model",
                x=[float(i) for i in range(1, len(estimates) + 1)],
                y=[e.value for e in estimates],
                low=[e.low for e in estimates],
                high=[e.high for e in estimates],
            )
        ],
    )


def convergence(run: Lanczos, index: int, which: str) -> Plot:
    """Ritz value and its residual bound after every product."""
    column = 0 if index else 2
    values = [row[column] for row in run.history]
    errors = [row[column + 1] for row in run.history]
    return Plot(
        name=f"convergence {which}",
        title=f"Convergence of {which}",
        xlabel="Hessian-vector products",
        ylabel="Ritz value",
        curves=[
            Curve(
                label="Ritz value ± residual",
                kind="line",
                role="model",
                x=[float(i) for i in range(1, len(values) + 1)],
                y=values,
                low=[v - e for v, e in zip(values, errors)],
                high=[v + e for v, e in zip(values, errors)],
            )
        ],
    )


def layers(names: Sequence[str], values: Mapping[str, torch.Tensor]) -> list[Plot]:
    """One bar chart per column, a bar per layer."""
    return [
        Plot(
            name=f"layers {column}",
            title=f"{column} per layer",
            ylabel=column,
            labels=list(names),
            flip=True,
            group="Layers",
            curves=[
                Curve(
                    label=column,
                    kind="bars",
                    role="model",
                    x=[float(i) for i in range(len(names))],
                    y=series.tolist(),
                    low=(series - 1.96 * values[f"± {column}"]).tolist() if f"± {column}" in values else None,
                    high=(series + 1.96 * values[f"± {column}"]).tolist() if f"± {column}" in values else None,
                )
            ],
        )
        for column, series in values.items()
        if not column.startswith("±")
    ]
