"""Figures of the NLL over temperature and γ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calibcli.plots import Curve, Plot
from calibcli.scalers.ridge import Point, Surface


def profile(points: Sequence[Point], best: Point, limit: float, n: int) -> Plot:
    """The smallest NLL of each γ, and the limit of the set around the best."""
    return Plot(
        name="gamma_profile",
        title=f"Profile of the NLL over gamma, n = {n:,}",
        xlabel="gamma",
        ylabel="NLL at the best T (nats)",
        curves=[
            Curve(label="profile", kind="line", role="model", x=[p.gamma for p in points], y=[p.nll for p in points]),
            Curve(label="edge of the confidence set", kind="hline", role="limit", y=[limit]),
            Curve(label="best", kind="points", role="best", x=[best.gamma], y=[best.nll]),
        ],
    )


def heat(surface: Surface, points: Sequence[Point], best: Point, limit: float, n: int) -> Plot:
    """NLL over T x γ with the ridge, the optimum and the set around it."""
    ts = [p.temperature for p in points]
    grid = np.geomspace(min(ts) / 1.5, max(ts) * 1.5, 31)
    gammas = [float(g) for g in np.arange(-1, 11) / 2]
    table = [surface.values(-math.log(t), gammas) for t in grid]
    return Plot(
        name="t_gamma",
        title=f"NLL over T and gamma, n = {n:,}",
        kind="heat",
        xlabel="gamma",
        ylabel="temperature T",
        x=gammas,
        y=list(grid),
        yscale="log",
        z=table,
        zlabel="NLL (nats)",
        zscale="log",
        levels=[limit],
        levels_label=f"within {(limit - best.nll) * n:.3g}/n of the best",
        curves=[
            Curve(label="best T of each gamma", kind="line", role="ridge", x=[p.gamma for p in points], y=ts),
            Curve(label="best", kind="points", role="best", x=[best.gamma], y=[best.temperature]),
        ],
    )
