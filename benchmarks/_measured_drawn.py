"""Simulated worlds with the networks of `curvature-drawn`: the claims `depends`, and `one_curve` of drawn arms.

A world has the means that the page of the study publishes for the trace, the error, the training NLL and the
temperature of its networks, and a confidence gap that follows from them. Seeds and rows move all of these as much, and
together, as in the runs of the page. `depends` asks whether the gap depends on ln T, or on the error, given the trace;
and on the trace, given ln T. `one_curve` asks whether a curve of the trace passes through all networks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from calibcli.core.result import Result
from calibcli.lab.study import _given, claims
from calibcli.lab.study.claims import MeasuredArm

PAGES = Path(__file__).resolve().parents[1] / "docs" / "studies"
X, ERROR, NLL, T, GAP = NAMES = ("trace of ce", "error", "train_nll", "temperature", "confidence_gap")
CAUSES = {"gamma": "FL", "smoothing": "smoothing", "decay": "decay", "rho": "SAM", "lr": "lr", "batch_size": "batch"}
DRAWS = 200


class Networks(NamedTuple):
    """The networks of a page, and what seeds and rows do to their numbers, as `drawn.py FOLDER` prints it of runs.

    Attributes:
        page: of docs/studies.  seeds: of the study.
        spread, together: standard deviation (5,) over seeds of the logarithms of the first four numbers and of the gap,
            and their correlations (5, 5).
        rows: what rows do to an arm beside the others, (5,).  shared: what they do to the gap of all, of which a share
            follows ln T.
        slope: gap for a unit of ln T.  gap: factor on the gaps that the worlds add.
    """

    page: str
    seeds: int
    spread: tuple[float, ...]
    together: tuple[tuple[float, ...], ...]
    rows: tuple[float, ...]
    shared: float
    slope: float
    gap: float = 1.0

    def published(self) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
        """The means of all networks of the page, by number, and the networks of each cause."""
        return _published(self.page)


DIGITS = Networks(
    "curvature-drawn",
    seeds=3,
    spread=(0.052, 0.055, 0.121, 0.036, 0.004),
    together=(
        (1.0, 0.13, 0.0, -0.04, -0.07),
        (0.13, 1.0, 0.18, 0.11, 0.65),
        (0.0, 0.18, 1.0, -0.32, -0.27),
        (-0.04, 0.11, -0.32, 1.0, 0.54),
        (-0.07, 0.65, -0.27, 0.54, 1.0),
    ),
    rows=(0.008, 0.019, 0.0, 0.0, 0.0013),
    shared=0.006,
    slope=0.112,
)
MEDIUM = Networks(
    "curvature-drawn-medium",
    seeds=3,
    spread=(0.069, 0.028, 0.083, 0.075, 0.024),
    together=(
        (1.0, 0.50, -0.36, 0.60, 0.55),
        (0.50, 1.0, 0.27, 0.52, 0.68),
        (-0.36, 0.27, 1.0, -0.08, -0.05),
        (0.60, 0.52, -0.08, 1.0, 0.87),
        (0.55, 0.68, -0.05, 0.87, 1.0),
    ),
    # what rows do, and what they share, is of 32 networks of `sharpness-along-training` on the same rows
    rows=(0.0026, 0.0035, 0.0, 0.0, 0.0019),
    shared=0.0024,
    slope=0.280,
    gap=2.0,  # its gaps have twice the spread
)
SIZES = {"digits": DIGITS, "medium": MEDIUM}


@functools.cache
def _published(page: str) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    result = Result.from_json((PAGES / f"{page}.json").read_bytes())
    found = {(str(e.scope), e.name): e.value for e in result.estimates}
    names = list(dict.fromkeys(str(e.scope) for e in result.estimates))
    causes = {c: [i for i, n in enumerate(names) if n.startswith(head)] for c, head in CAUSES.items()}
    return {name: np.array([found[arm, name] for arm in names], float) for name in NAMES}, causes


def unit(values: np.ndarray) -> np.ndarray:
    """Values with mean 0 and a standard deviation of 1."""
    return np.asarray((values - values.mean()) / values.std())


def falls(arms: dict[str, np.ndarray]) -> np.ndarray:
    return 0.01 * unit(1 / arms[X])


def turns(arms: dict[str, np.ndarray]) -> np.ndarray:
    return 0.01 * unit(unit(np.log(arms[X])) ** 2)


def fitted(arms: dict[str, np.ndarray]) -> np.ndarray:
    """The quartic of ln trace that fits the published gaps."""
    x = unit(np.log(arms[X])) / 4
    return np.asarray(chebyshev.chebval(x, chebyshev.chebfit(x, arms[GAP], 4)))


class World(NamedTuple):
    """A truth: gap as a function of the trace, and what is added to it.

    Attributes:
        of_t, of_error: gap for one standard deviation of ln T, and of ln error, over the networks.  cause, by: whose
            networks lie off, and by how much.  t_alone: the gap follows ln T, as published.
        false: claims that are false where they hold, or are reversed.  spread: what rows do to T, which a study does
            not know.  link: seeds move numbers together as in the runs.  follow: share of what rows do to all gaps that
            follows ln T.  noise: factor on what seeds do to the trace.
    """

    curve: Callable[[dict[str, np.ndarray]], np.ndarray] | None
    of_t: float = 0.0
    of_error: float = 0.0
    cause: str = ""
    by: float = 0.0
    false: tuple[str, ...] = ("T", "error", "curve")
    spread: float = 0.0
    link: bool = True
    follow: float = 0.2
    noise: float = 1.0


WORLDS = {
    "trace alone: falls": World(falls),
    "trace alone: turns": World(turns),
    "trace alone: the fitted quartic": World(fitted),
    "trace alone: falls, seeds move numbers apart": World(falls, link=False),
    "trace alone: falls, rows move the slope in ln T": World(falls, follow=0.5),
    "trace + .0025 for an SD of ln T": World(falls, of_t=0.0025, false=()),
    "trace + .005 for an SD of ln T": World(falls, of_t=0.005, false=()),
    "trace + .005 for an SD of the error": World(falls, of_error=0.005, false=()),
    "trace + .006 for one cause, batch": World(falls, cause="batch_size", by=0.006, false=()),
    "trace + .012 for one cause, batch": World(falls, cause="batch_size", by=0.012, false=()),
    "trace + .012 for one cause, smoothing": World(falls, cause="smoothing", by=0.012, false=()),
    "T alone": World(None, false=("trace",)),
    "T alone, rows move T by 3 % unseen": World(None, false=(), spread=0.03),
    "trace alone: falls, twice the noise of the trace": World(falls, false=(), noise=2.0),
    "trace alone: falls, four times the noise": World(falls, false=(), noise=4.0),
}


def simulated(of: World, rng: np.random.Generator, networks: Networks = DIGITS) -> dict[str, list[MeasuredArm]]:
    """The numbers of a study in this world."""
    arms, causes = networks.published()
    gap = of.curve(arms) if of.curve else networks.slope * np.log(arms[T])
    gap = gap if of.curve in (None, fitted) else networks.gap * gap
    gap = gap + networks.gap * (of.of_t * unit(np.log(arms[T])) + of.of_error * unit(np.log(arms[ERROR])))
    gap = gap + networks.gap * of.by * np.isin(np.arange(len(gap)), causes.get(of.cause, []))
    truth = np.stack([*(np.log(arms[name]) for name in NAMES[:-1]), gap])  # (5, A)
    root = np.linalg.cholesky(np.array(networks.together)) if of.link else np.eye(5)
    normal = rng.standard_normal((5, len(gap), networks.seeds))
    seeds = np.array(networks.spread)[:, None, None] * np.einsum("pq,qas->pas", root, normal)
    seeds[0] *= of.noise
    together = np.eye(5)
    together[1, 4] = together[4, 1] = 0.7
    root, along = np.linalg.cholesky(together), unit(np.log(arms[T]))

    def rows(*shape: int) -> np.ndarray:
        """What one set of rows does, (5, A, ...)."""
        own = np.array(networks.rows).reshape(-1, *[1] * (1 + len(shape))) * np.einsum(
            "pq,q...->p...", root, rng.standard_normal((5, len(gap), *shape))
        )
        common = networks.shared * rng.standard_normal((2, 1, *shape))
        along_t = along.reshape(-1, *[1] * len(shape))
        own[4] += (1 - of.follow) * common[0] + of.follow * along_t * common[1]
        return own

    values = truth[..., None] + seeds + rows()[..., None]  # (5, A, S)
    values[3] += of.spread * rng.standard_normal((len(gap), 1))
    drawn = values[..., None] + rows(DRAWS)[:, :, None, :]  # (5, A, S, B)
    found = {}
    for i, name in enumerate(NAMES):
        v, d = (np.exp(values[i]), np.exp(drawn[i])) if name != GAP else (values[i], drawn[i])
        found[name] = [MeasuredArm(v[k], d[k] if name in (X, ERROR, GAP) else None) for k in range(len(gap))]
    return found


def plain(of: dict[str, list[MeasuredArm]]) -> claims.ClaimVerdict:
    """The claim about T as if no number had errors."""
    chosen = [of[name] for name in (X, ERROR, NLL, T, GAP)]
    given = _given.GivenNumbers.of(np.stack([[one.values for one in arms] for arms in chosen]), [None] * len(chosen))
    p, *_ = replace(given, errors=0 * given.errors, seeds=0 * given.seeds).depends(claims._orders(len(chosen[0])))
    return claims.ClaimVerdict("holds" if p < 0.05 else "undecided", p)


JUDGES: dict[str, Callable[[dict[str, list[MeasuredArm]], dict[str, list[int]]], claims.ClaimVerdict]] = {
    "T": lambda of, _: claims.depends([of[name] for name in (X, ERROR, NLL, T, GAP)], T),
    "error": lambda of, _: claims.depends([of[name] for name in (X, NLL, ERROR, GAP)], ERROR),
    "trace": lambda of, _: claims.depends([of[name] for name in (T, ERROR, NLL, X, GAP)], X),
    "curve": lambda of, causes: claims.one_curve(of[X], of[GAP], causes),
    "T, errors ignored": lambda of, _: plain(of),
}
