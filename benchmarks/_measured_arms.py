"""Simulated arms whose x is measured too: claims along a measured axis, about drawn arms, and about causes.

Row i has x = (μ_k + seed) e_ik w_i and y = m_k + seed + v_ik in arm k, the same rows for every arm and seed: e and w
are lognormal, so that few rows have most of x, as of a trace. What a seed and what a row does to x and y of an arm may
be correlated (`link`). The spreads are those of the small study of `curvature-gamma`: a seed moves x by 3 of about 50
and y by .006, and the rows of an arm by as much as there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calibcli.lab.study import claims
from calibcli.lab.study._readings import draws
from calibcli.lab.study.claims import ClaimVerdict, MeasuredArm

ROW_DRAWS = 200  # of the rows: a study has five times as many, which only makes its errors surer
POOLS = 20  # of draws, used in turn
SEED_X, SEED_Y, ROW_X, ROW_Y = 3.0, 0.006, 0.6, 0.1
BASE = 50.0
Truth = Callable[[np.random.Generator], tuple[Sequence[float], Sequence[float]]]


class Simulated(NamedTuple):
    """Arms and a claim about them: x and y of each arm in truth (from a random generator, where arms are drawn).

    Attributes:
        holds, turned: whether the claim is false where it holds, and where it is reversed.
        link: correlation of what seeds and rows do to x and y.
        noise: factor on what seeds and rows do.
    """

    truth: Truth
    judge: Callable[[Sequence[MeasuredArm], Sequence[MeasuredArm]], ClaimVerdict]
    holds: bool
    turned: bool
    link: float = 0.0
    noise: float = 1.0


def fixed(x: Sequence[float], y: Sequence[float]) -> Truth:
    return lambda rng: (x, y)


def independent(arms: int, spread: float, correlation: float = 0.0) -> Truth:
    """Arms that are drawn: x and y lognormal, `spread` times as far apart as seeds are."""

    def truth(rng: np.random.Generator) -> tuple[Sequence[float], Sequence[float]]:
        a, b = rng.standard_normal((2, arms))
        b = correlation * a + (1 - correlation**2) ** 0.5 * b
        scale = 1.0 if correlation == 0 else 0.1  # of skew
        x, y = ((np.exp(scale * one) - 1) / scale for one in (a, b))
        return list(BASE + SEED_X * spread * x), list(0.05 + SEED_Y * spread * y)

    return truth


@functools.lru_cache(maxsize=2 * POOLS)
def pool(n: int, number: int) -> np.ndarray:
    return draws(n, ROW_DRAWS, number)


def measured(
    of: Simulated, seeds: int, n: int, rng: np.random.Generator, run: int
) -> tuple[list[MeasuredArm], list[MeasuredArm]]:
    """x and y of each arm, (S,) values and (S, B) draws."""
    x, y = of.truth(rng)
    link, noise, times = of.link, of.noise, pool(n, run % POOLS)

    def linked(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        a, b = rng.standard_normal((2, *shape))
        return a, link * a + (1 - link**2) ** 0.5 * b

    arms = len(x)
    of_x, of_y = linked(n, arms)
    weight = np.exp(0.5 * rng.standard_normal((n, 1)) - 0.125)
    factor = np.exp(noise * ROW_X * of_x - (noise * ROW_X) ** 2 / 2) * weight
    own = noise * ROW_Y * of_y + 0.2 * (weight - 1)
    parts = np.hstack([factor, own])
    mean, drawn = parts.mean(axis=0), (times @ parts.astype(np.float32)).astype(np.float64) / n
    seed_x, seed_y = linked(arms, seeds)
    level = np.asarray(x)[:, None] + noise * SEED_X * seed_x
    shift = np.asarray(y)[:, None] + noise * SEED_Y * seed_y

    def one(k: int) -> tuple[MeasuredArm, MeasuredArm]:
        return (
            MeasuredArm(level[k] * mean[k], np.outer(level[k], drawn[:, k])),
            MeasuredArm(shift[k] + mean[arms + k], shift[k][:, None] + drawn[:, arms + k]),
        )

    both = [one(k) for k in range(arms)]
    return [a for a, _ in both], [b for _, b in both]


# causes: a base arm, and two doses of each

STEP = {"gamma": 8.8, "decay": 11.3, "rate": -33.3, "penalty": -5.4, "sam": -18.6, "batch": 51.1}
"""What a step of a dose does to x, as in a pilot on digits."""
PER_X = -0.0005


def doses(x: Mapping[str, float], y: Mapping[str, float]) -> Truth:
    """The base arm, and arms one and two steps of each cause from it."""
    levels = [(BASE + 20 + i * x[c] / 2, 0.05 + i * y[c] / 2) for c in x for i in (1, 2)]
    return fixed([BASE + 20, *(a for a, _ in levels)], [0.05, *(b for _, b in levels)])


def alike(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm]) -> ClaimVerdict:
    """The claim on the arms of `doses`."""
    causes = [(0, 1 + 2 * c, 2 + 2 * c) for c in range(len(x) // 2)]
    return claims.alike(
        {
            str(c): (claims.contrast([x[i] for i in arms], 0), claims.contrast([y[i] for i in arms], 0))
            for c, arms in enumerate(causes)
        }
    )


def matched(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm]) -> ClaimVerdict:
    """The claim on the arms of `doses`: all pairs of different causes."""
    pairs = [(a, b) for a, b in itertools.combinations(range(1, len(x)), 2) if (a - 1) // 2 != (b - 1) // 2]
    return claims.matched(x[0], {f"{a}, {b}": (x[a] - x[b], y[a] - y[b]) for a, b in pairs})


def _ladder(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm]) -> ClaimVerdict:
    return claims.interior_minimum(y)


def _slope(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm]) -> ClaimVerdict:
    return claims.slope(x, y, 1, drawn=True)


def _proportional(factor: float) -> Truth:
    """Two causes have `factor` times the slope of the others."""
    return doses(STEP, {c: PER_X * dx * (factor if c in ("gamma", "decay") else 1) for c, dx in STEP.items()})


def _at_border(share: float, y: Callable[[int], float]) -> Truth:
    """Three causes of two doses, whose x differ by the share of the base's, or do not at all; y by cause."""
    x = [BASE + share * BASE * (c % 2) for c in range(3) for _ in range(2)]
    return fixed([BASE, *x], [0.05, *(y(c) for c in range(3) for _ in range(2))])


NARROW, WIDE = [46.6, 47.1, 48.0, 49.7, 52.1, 59.9], [30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
RISES, FLAT, U = [0.02, 0.025, 0.03, 0.04, 0.06, 0.1], [0.05] * 6, [0.06, 0.04, 0.02, 0.02, 0.04, 0.06]
HALF = [0.08, 0.06, 0.04, 0.04, 0.04, 0.04]  # falls, then flat
TWO, ONE_LOW = [46.0] * 3 + [60.0] * 3, [0.05, 0.02, 0.05, 0.05, 0.05, 0.05]
LONG, LONG_HALF = [10.0 * i for i in range(3, 12)], [0.08, 0.06] + [0.04] * 7
middle, falls = claims.interior_minimum_along, claims.decreasing_along

FAMILIES: dict[str, Simulated] = {}
for _link in (0.0, 0.9, -0.9):
    _more = f", linked {_link:+g}" if _link else ""
    FAMILIES |= {
        f"middle: rises, wide{_more}": Simulated(fixed(WIDE, RISES), middle, True, False, _link),
        f"middle: rises, narrow{_more}": Simulated(fixed(NARROW, RISES), middle, True, False, _link),
        f"middle: flat, wide{_more}": Simulated(fixed(WIDE, FLAT), middle, True, True, _link),
        f"middle: flat, narrow{_more}": Simulated(fixed(NARROW, FLAT), middle, True, True, _link),
        f"middle: falls, then flat{_more}": Simulated(fixed(WIDE, HALF), middle, True, False, _link),
        f"middle: one x, one y low{_more}": Simulated(fixed([50.0] * 6, ONE_LOW), middle, True, True, _link),
        f"middle: one x, one y{_more}": Simulated(fixed([50.0] * 6, FLAT), middle, True, True, _link),
        f"middle: two x, one y low{_more}": Simulated(fixed(TWO, ONE_LOW), middle, True, False, _link),
        f"middle: many flat ends{_more}": Simulated(fixed(LONG, LONG_HALF), middle, True, False, _link),
        f"ladder: many flat levels{_more}": Simulated(fixed(LONG, LONG_HALF), _ladder, True, False, _link),
        f"falls: flat, wide{_more}": Simulated(fixed(WIDE, FLAT), falls, True, True, _link),
        f"falls: flat, narrow{_more}": Simulated(fixed(NARROW, FLAT), falls, True, True, _link),
        f"falls: falls, then flat{_more}": Simulated(fixed(WIDE, HALF), falls, True, False, _link),
        f"falls: one x, one y{_more}": Simulated(fixed([50.0] * 6, FLAT), falls, True, True, _link),
        f"slope: 5 arms, near{_more}": Simulated(independent(5, 1.0), _slope, True, True, _link),
        f"slope: 9 arms, near{_more}": Simulated(independent(9, 1.0), _slope, True, True, _link),
        f"slope: 6 arms, apart{_more}": Simulated(independent(6, 5.0), _slope, True, True, _link),
        f"alike: one slope{_more}": Simulated(_proportional(1.0), alike, False, True, _link),
        f"alike: y stays{_more}": Simulated(doses(STEP, dict.fromkeys(STEP, 0.0)), alike, False, True, _link),
        f"alike: x and y stay{_more}": Simulated(
            doses(dict.fromkeys(STEP, 0.0), dict.fromkeys(STEP, 0.0)), alike, True, True, _link
        ),
        f"alike: twice the slope{_more}": Simulated(_proportional(2.0), alike, True, False, _link),
        f"matched: y follows x{_more}": Simulated(
            doses(STEP, {c: 0.0004 * dx for c, dx in STEP.items()}), matched, False, True, _link
        ),
        f"matched: y apart by the margin{_more}": Simulated(
            _at_border(0, lambda c: 0.05 + 0.005 * (c % 2)), matched, True, True, _link
        ),
        f"matched: x apart by 15 %, y far{_more}": Simulated(
            _at_border(0.15, lambda c: 0.05 + 0.03 * (c % 2)), matched, False, True, _link
        ),
    }
POWER: dict[str, Simulated] = {
    "middle: U, wide": Simulated(fixed(WIDE, U), middle, False, True),
    "middle: U, narrow": Simulated(fixed(NARROW, U), middle, False, True),
    "falls: wide": Simulated(fixed(WIDE, [0.16, 0.13, 0.1, 0.07, 0.04, 0.01]), falls, False, True),
    "falls: narrow": Simulated(fixed(NARROW, RISES[::-1]), falls, False, True),
    **{
        f"slope: {a} arms, correlation .9": Simulated(independent(a, 5.0, 0.9), _slope, False, False)
        for a in (5, 6, 7, 9)
    },
    **{f"alike: {r} times the slope": Simulated(_proportional(r), alike, True, False) for r in (3, 5, 10)},
    "alike: one slope, half the noise": Simulated(_proportional(1.0), alike, False, True, noise=0.5),
    "matched: y apart by .02": Simulated(_at_border(0, lambda c: 0.05 + 0.02 * (c % 2)), matched, True, False),
    "matched: y apart by .01": Simulated(_at_border(0, lambda c: 0.05 + 0.01 * (c % 2)), matched, True, False),
    "matched: same y": Simulated(_at_border(0, lambda c: 0.05), matched, False, True),
}
