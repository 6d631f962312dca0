"""Simulated logs of runs, of two numbers at M moments of the training: the claim `tracks`.

Each run's x and y are what all runs go through (its phases: a fast beginning, then a slow drift) and a walk of its own,
whose steps have a spread that falls along training, as learning does. Steps of x and y of one run are correlated by
`link`; beside them every measurement has noise of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibcli.lab.study import claims
from calibcli.lab.study.claims import ClaimVerdict, MeasuredArm


class Logged(NamedTuple):
    """Runs and a claim about them.

    Attributes:
        moments: how many.  phases: size of what all runs go through, beside their own steps.
        link: correlation of steps of x and y of one run.  noise: of each measurement.
        heavy: whether steps have heavy tails.  own: the claim is about the run's own x.
        holds, turned: whether the claim is false where it holds, and where it is reversed.
    """

    moments: int = 20
    phases: float = 0.0
    link: float = 0.0
    noise: float = 0.0
    heavy: bool = False
    own: bool = False
    holds: bool = True
    turned: bool = True

    def judge(self, x: list[MeasuredArm], y: list[MeasuredArm]) -> ClaimVerdict:
        return claims.tracks(x, y, self.own)


def measured(of: Logged, seeds: int, n: int, rng: np.random.Generator, run: int) -> tuple[list[MeasuredArm], ...]:
    """x and y at each moment, (S,) values; rows have no part in it."""
    a, b = rng.standard_t(3, (2, seeds, of.moments)) if of.heavy else rng.standard_normal((2, seeds, of.moments))
    falling = np.geomspace(1, 0.1, of.moments)
    steps = np.stack([a, of.link * a + (1 - of.link**2) ** 0.5 * b]) * falling  # (2, S, M)
    phase = of.phases * falling * np.where(np.arange(of.moments) < of.moments // 3, 1, -0.3)
    both = (steps + phase).cumsum(axis=2) + of.noise * rng.standard_normal(steps.shape)
    return tuple([MeasuredArm(one, one[:, None]) for one in side.T] for side in both)


FAMILIES: dict[str, Logged] = {}
for _moments in (5, 10, 20):
    FAMILIES[f"unrelated, {_moments} moments"] = Logged(_moments)
    for _phases in (1.0, 4.0):
        FAMILIES[f"own: phases of {_phases:g} alone, {_moments} moments"] = Logged(_moments, _phases, own=True)
FAMILIES["unrelated, heavy tails"] = Logged(heavy=True)
FAMILIES["unrelated, noise of 1"] = Logged(noise=1.0)
FAMILIES["own: phases of 1 alone, heavy tails"] = Logged(phases=1.0, heavy=True, own=True)
FAMILIES["own: phases of 1 alone, noise of 1"] = Logged(phases=1.0, noise=1.0, own=True)
POWER: dict[str, Logged] = {"phases of 1 alone": Logged(phases=1.0, holds=False)}
for _link in (0.2, 0.4, 0.8):
    POWER[f"steps correlated {_link:g}"] = Logged(link=_link, holds=False)
    POWER[f"own: steps correlated {_link:g}, phases of 1"] = Logged(phases=1.0, link=_link, own=True, holds=False)
