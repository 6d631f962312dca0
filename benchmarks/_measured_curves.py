"""Simulated arms of several causes whose y follows a curve of ln x: the claim `one_curve`.

Means and errors are those of the published results of `curvature-cause`, on digits and at the medium size: x is the
trace and y the confidence gap. A seed moves x and y of an arm. Every row has an effect on both that all seeds share in
part, and all arms by the correlation `rows` (.8, as on digits). Either 200 draws of 300 rows are judged, or the
moments: the covariance of what the rows do, as it is. A step and a shift are in units of SE, the standard error of an
arm's y beside the others, without what the rows do to all of them, with as many seeds as were published; y
ranges as the published arms do. Truths of the family `SHARP` are no such polynomials: they are scaled so that the best
one misses them by a given number of SE, with as many seeds as are judged. `ALLOWED` are those that are missed by 1 SE,
where the claim allows for that (`miss = 1`), and `ALLOWED_POWER` causes that are off by more.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _measured_arms import pool

from calibcli.core.result import Result
from calibcli.lab.study import claims
from calibcli.lab.study.claims import ClaimVerdict, MeasuredArm

STUDIES = Path(__file__).resolve().parents[1] / "docs" / "studies"
PUBLISHED = {"digits": "curvature-cause", "medium": "curvature-cause-medium"}
CAUSES = {
    "gamma": ("FL-1", "FL-3"),
    "rho": ("SAM 0.1", "SAM 0.2"),
    "lr": ("lr 0.02", "lr 0.1"),
    "batch": ("batch 12", "batch 100"),
    "decay": ("decay 0.002", "decay 0.008"),
    "smoothing": ("smoothing 0.01", "smoothing 0.05"),
    "weight": ("trace 0.002", "trace 0.005"),
}
SEEDS = (3, 4, 5, 10)
ROWS = 300
MARGIN = 0.2
OWN = 0.7  # what a row does to one seed alone, beside what it does to all: a part of what is published of seeds


Truth = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


@functools.cache
def page(of: str) -> Result:
    """The published result."""
    return Result.from_json((STUDIES / f"{PUBLISHED[of]}.json").read_bytes())


def full(of: str) -> int:
    """The number of seeds that were published."""
    return int(str(page(of).facts["seeds"]))


@functools.cache
def published(of: str) -> tuple[dict[str, tuple[float, float]], dict[str, np.ndarray]]:
    """Mean x and y of each arm, and (2, 2) its spreads: over seeds and from the rows, of x and y."""
    result = page(of)
    table = next(table for table in result.tables if table.name.startswith("arms "))
    spreads = {
        (str(row[0]), name): float(str(cell).partition(" ± ")[2])
        for row in table.rows
        for name, cell in zip(table.columns[1:], row[1:], strict=True)
    }
    names = ("trace of ce", "confidence_gap")
    found = {(str(e.scope), e.name): e for e in result.estimates if e.name in names}
    means, errors = {}, {}
    for arm in ("CE", *itertools.chain(*CAUSES.values())):
        both = [found[arm, name] for name in names]
        seeds = np.array([spreads[arm, name] for name in names])
        whole = np.array([one.se for one in both])
        means[arm] = (both[0].value, both[1].value)
        errors[arm] = np.stack([seeds, np.sqrt(np.maximum(0, whole**2 - seeds**2 / full(of)))])
    return means, errors


class Curved(NamedTuple):
    """Arms of a truth and the claim about them.

    Attributes:
        of: `digits` or `medium`.  truth: y as a function of x, of t (ln x in [-1, 1]) and of SE; None as published.
            arms: how many.
        shift: cause, and by how many SE its arms lie off the curve.  share: or by which share of the range of y.
        holds, turned: whether the claim is false where it holds, and where it is reversed.
        rows: correlation of what a row does to two arms.  link: of what seeds and rows do to x and y.
        cause: correlation of what a seed does to the arms of a cause.  moments: judged from moments, not from draws.
        noise: factor on what seeds and rows do.  line: the claim is `alike`, one straight line.
        miss: by how many SE the best polynomial of the highest degree misses y, which is scaled so; or 0.
        allowed: the claim is asked with this `miss`.
    """

    of: str
    truth: Truth | None
    arms: int = 15
    shift: tuple[str, float] = ("", 0.0)
    share: float = 0.0
    holds: bool = False
    turned: bool = True
    rows: float = 0.8
    link: float = 0.0
    cause: float = 0.0
    moments: bool = False
    noise: float = 1.0
    line: bool = False
    miss: float = 0.0
    allowed: float = 0.0

    def judge(self, x: list[MeasuredArm], y: list[MeasuredArm]) -> ClaimVerdict:
        causes = layout(self.of, self.arms).causes
        if self.line:  # the base is the first arm of each
            levels = {cause: [0, *arms] for cause, arms in causes.items()}
            return claims.alike(
                {
                    cause: tuple(claims.contrast([side[i] for i in arms], 0) for side in (x, y))
                    for cause, arms in levels.items()
                }
            )
        return claims.one_curve(x, y, causes, f"{100 * MARGIN:g}%", self.allowed)


class Layout(NamedTuple):
    """x, y and noise of the published arms, t (ln x in [-1, 1]) and the arms of each cause."""

    x: np.ndarray
    y: np.ndarray
    t: np.ndarray
    spreads: np.ndarray
    causes: dict[str, list[int]]

    def se(self, of: Curved, count: int = 0) -> float:
        """The median standard error of an arm's y beside the others, with so many seeds or with those published."""
        seeds, rows = self.spreads[:, :, 1].T
        return float(np.median(np.hypot(seeds / (count or full(of.of)) ** 0.5, rows * (1 - of.rows) ** 0.5)))


@functools.cache
def layout(of: str, arms: int) -> Layout:
    """The base, and two arms of each cause; a last cause may have one, and more arms lie between those of a cause."""
    means, spreads = published(of)
    x, y, noise, causes = [means["CE"][0]], [means["CE"][1]], [spreads["CE"]], {}
    for cause, names in CAUSES.items():
        for name in names:
            if len(x) < arms:
                causes.setdefault(cause, []).append(len(x))
                x.append(means[name][0])
                y.append(means[name][1])
                noise.append(spreads[name])
    for cause, (first, last) in CAUSES.items():
        if len(x) < arms:
            causes[cause].append(len(x))
            x.append((means[first][0] * means[last][0]) ** 0.5)
            y.append((means[first][1] + means[last][1]) / 2)
            noise.append((spreads[first] + spreads[last]) / 2)
    log = np.log(x)
    t = 2 * (log - log.min()) / np.ptp(log) - 1
    return Layout(np.array(x), np.array(y), t, np.stack(noise), causes)


def left(of: Curved, y: np.ndarray) -> float:
    """By how much the polynomial of the highest degree that fits best (least squares) misses y where it is worst."""
    t, degree = layout(of.of, of.arms).t, min(claims.MOST_CURVED, (of.arms - 1) // 2 - 1)
    return float(np.abs(np.polynomial.Chebyshev.fit(t, y, degree)(t) - y).max())


def means(of: Curved, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y of all arms in truth; y depends on the number of seeds where SE with so many are its unit."""
    arms = layout(of.of, of.arms)
    if of.truth is None:
        return arms.x, arms.y
    y = of.truth(arms.x, arms.t, arms.se(of))
    if of.miss:
        return arms.x, y * (of.miss * arms.se(of, seeds) / left(of, y))
    if np.ptp(y) > 2.5 * arms.se(of):  # all but steps, and what is flat
        y = y * (np.ptp(arms.y) / np.ptp(y))
    cause, by = of.shift
    if cause:
        marked = np.isin(np.arange(len(y)), arms.causes[cause])
        alone = y + by * arms.se(of) * marked
        for _ in range(100 * bool(of.share)):  # the offset is a share of a range that the shifted arms are in
            alone = y + of.share * np.ptp(alone) * marked
        y = alone
    return arms.x, y


def follows(of: Curved, seeds: int) -> float:
    """By how many SE of an arm with so many seeds the best polynomial of the highest degree misses the truth."""
    return left(of, means(of, seeds)[1]) / layout(of.of, of.arms).se(of, seeds)


def spans(of: Curved, seeds: int) -> float:
    """How many SE of an arm with so many seeds the truth ranges over."""
    return float(np.ptp(means(of, seeds)[1])) / layout(of.of, of.arms).se(of, seeds)


def measured(of: Curved, seeds: int, n: int, rng: np.random.Generator, run: int) -> tuple[list[MeasuredArm], ...]:
    """x and y of each arm, (S,) values and (S, B) draws of at most `ROWS` rows, with errors of published ones."""
    n = min(n, ROWS)
    arms, (x, y) = layout(of.of, of.arms), means(of, seeds)
    count, spreads = len(x), of.noise * arms.spreads.transpose(1, 2, 0)  # (2: seeds and rows, 2: x and y, A)

    def linked(*shape: int) -> np.ndarray:
        """Effects on x and y (2, ...) that are correlated by `link`."""
        a, b = rng.standard_normal((2, *shape))
        return np.stack([a, of.link * a + (1 - of.link**2) ** 0.5 * b])

    own, shared = linked(count, seeds), linked(len(arms.causes), seeds)
    for k, members in enumerate(arms.causes.values()):
        own[:, members] = of.cause**0.5 * shared[:, [k]] + (1 - of.cause) ** 0.5 * own[:, members]
    alone = 0.0 if of.moments else OWN * spreads[1]
    values = (
        np.stack([x, y])[..., None] + np.sqrt(np.maximum(0, spreads[0] ** 2 - alone**2))[..., None] * own
    )  # (2, A, S)
    if of.moments:
        among = of.rows + (1 - of.rows) * np.eye(count)
        covariance = np.kron(np.array([[1, of.link], [of.link, 1]]), among)  # (2A, 2A)
        root = np.linalg.cholesky(covariance + 1e-12 * np.eye(2 * count))
        exact = rng.standard_normal((2 * count, 4 * count))  # draws with this very covariance
        exact -= exact.mean(axis=1, keepdims=True)
        exact = np.linalg.solve(np.linalg.cholesky(exact @ exact.T / (4 * count)), exact)
        size = spreads[1].reshape(-1)
        values = values + (size * (root @ rng.standard_normal(2 * count))).reshape(2, count, 1)
        drawn = np.broadcast_to(size[:, None] * (root @ exact), (seeds, 2 * count, 4 * count))
        draws = values[..., None] + drawn.reshape(seeds, 2, count, -1).transpose(1, 2, 0, 3)  # (2, A, S, B)
    else:
        common = of.rows**0.5 * linked(n, 1) + (1 - of.rows) ** 0.5 * linked(n, count)  # (2, n, A)
        skewed = np.stack([(np.exp(0.8 * common[0]) - np.exp(0.32)) / (np.exp(1.28) - np.exp(0.64)) ** 0.5, common[1]])
        rows = skewed[..., None] + OWN * rng.standard_normal((2, n, count, seeds))  # (2, n, A, S)
        rows *= n**0.5 * spreads[1][:, None, :, None]
        flat = rows.transpose(1, 0, 2, 3).reshape(n, -1)
        values = values + flat.mean(axis=0).reshape(2, count, seeds)
        off = ((pool(n, run % 20) @ flat.astype(np.float32)).astype(np.float64) / n - flat.mean(axis=0)).T
        draws = values[..., None] + off.reshape(2, count, seeds, -1)
    return tuple([MeasuredArm(v, d) for v, d in zip(side, drawn_, strict=True)] for side, drawn_ in zip(values, draws))


def printed(of: str, rows: float, count: int) -> tuple[list[MeasuredArm], ...]:
    """The arms of a page from its means and errors: seeds in which x and y are unrelated, and the moments of rows."""
    arms = layout(of, 15)
    seeds = np.linalg.qr(np.c_[np.ones(count), np.eye(count)[:, :2]])[0][:, 1:].T * (count - 1) ** 0.5  # (2, S)
    shape = np.random.default_rng(0).standard_normal((30, 120))
    shape -= shape.mean(axis=1, keepdims=True)
    shape = np.linalg.solve(np.linalg.cholesky(shape @ shape.T / 120), shape)
    root = np.linalg.cholesky(np.kron(np.eye(2), rows + (1 - rows) * np.eye(15)))
    drawn = arms.spreads[:, 1].T.reshape(-1, 1) * (root @ shape)  # (2A, B)
    values = np.concatenate([arms.x, arms.y])[:, None] + np.concatenate(
        [np.outer(arms.spreads[:, 0, side], seeds[side]) for side in (0, 1)]
    )
    made = [MeasuredArm(v, np.tile(d, (count, 1)) + v[:, None]) for v, d in zip(values, drawn, strict=True)]
    return made[:15], made[15:]


def inverse(x: np.ndarray, t: np.ndarray, se: float) -> np.ndarray:
    return 1 / x


def saturating(x: np.ndarray, t: np.ndarray, se: float) -> np.ndarray:
    return -np.exp(-x / np.median(x))


def bent(x: np.ndarray, t: np.ndarray, se: float) -> np.ndarray:
    return t**2


def hinged(x: np.ndarray, t: np.ndarray, se: float) -> np.ndarray:
    return np.maximum(0, t)


def flat(x: np.ndarray, t: np.ndarray, se: float) -> np.ndarray:
    return 0 * t


def step(by: float) -> Truth:
    return lambda x, t, se: by * se * (t > np.median(t))


def risen(place: float) -> Truth:
    return lambda x, t, se: 1.0 * (t > place)


def kinked(place: float) -> Truth:
    return lambda x, t, se: np.maximum(0, t - place)


def levelling(steep: float) -> Truth:
    return lambda x, t, se: np.tanh(steep * t)


SMOOTH = {"c/x": inverse, "saturating": saturating, "U": bent, "flat": flat}
STEPS = {"step of 1 SE": step(1), "step of 2 SE": step(2)}
SUDDEN = {"a step at -.3": risen(-0.3), "tanh 8t": levelling(8)}
BENDS = {  # with the misses, in SE: on digits a small one is hardly ever noticed
    "digits": ({**SUDDEN, "a bend at 0": kinked(0.0)}, (1.0, 2.0)),
    "medium": (
        {**SUDDEN, "a step at .7": risen(0.7), "a bend at .5": kinked(0.5), "tanh 2t": levelling(2)},
        (0.5, 0.75, 1.0),
    ),
}
FAMILIES: dict[str, Curved] = {}
POWER: dict[str, Curved] = {}
for _of in PUBLISHED:
    for _name, _truth in {**SMOOTH, **STEPS}.items():
        FAMILIES[f"{_of}: {_name}"] = Curved(_of, _truth)
    for _name, _truth in {**SMOOTH, "step of 1 SE": step(1)}.items():
        FAMILIES[f"{_of}: {_name}, 9 arms"] = Curved(_of, _truth, 9)
    FAMILIES[f"{_of}: c/x, 10 arms"] = Curved(_of, inverse, 10)
    FAMILIES[f"{_of}: saturating, 20 arms"] = Curved(_of, saturating, 20)
    FAMILIES[f"{_of}: saturating, rows 0"] = Curved(_of, saturating, rows=0.0)
    FAMILIES[f"{_of}: saturating, rows .5"] = Curved(_of, saturating, rows=0.5)
    FAMILIES[f"{_of}: saturating, rows .9"] = Curved(_of, saturating, rows=0.9)
    FAMILIES[f"{_of}: c/x, moments"] = Curved(_of, inverse, moments=True)
    FAMILIES[f"{_of}: flat, moments"] = Curved(_of, flat, moments=True)
    FAMILIES[f"{_of}: saturating, x and y linked +.9"] = Curved(_of, saturating, link=0.9)
    FAMILIES[f"{_of}: saturating, x and y linked -.9"] = Curved(_of, saturating, link=-0.9)
    FAMILIES[f"{_of}: saturating, seeds of a cause .5"] = Curved(_of, saturating, cause=0.5)
    for _cause, _noise in (("smoothing", 0.3), ("smoothing", 1.0), ("lr", 0.3)):
        FAMILIES[f"{_of}: {_cause} off by the margin, noise x {_noise:g}"] = Curved(
            _of, saturating, shift=(_cause, 0.0), share=MARGIN, holds=True, turned=False, noise=_noise
        )
    for _cause, _by in itertools.product(("gamma", "lr"), (2.0, 4.0, 8.0)):
        POWER[f"{_of}: {_cause} off by {_by:g} SE"] = Curved(_of, inverse, shift=(_cause, _by), turned=False)
    POWER[f"{_of}: as published"] = Curved(_of, None, turned=False)
    POWER[f"{_of}: c/x, a straight line"] = Curved(_of, inverse, line=True, turned=False)
    POWER[f"{_of}: c/x, nothing off"] = Curved(_of, inverse)
    POWER[f"{_of}: c/x, nothing off, noise x 0.3"] = Curved(_of, inverse, noise=0.3)
for _of, _arms in itertools.product(PUBLISHED, (9, 15)):  # no polynomial, though no cause is off it
    POWER[f"{_of}: a sharp bend, {_arms} arms"] = Curved(_of, hinged, _arms, turned=False)
# Further truths of the same kinds, after the others, as the place of a family seeds it
for _of in PUBLISHED:
    POWER[f"{_of}: a sharp bend, 10 arms"] = Curved(_of, hinged, 10, turned=False)
    _more = {**SMOOTH, "step of 1 SE": step(1)}
    for _arms, _name in itertools.product((10, 12, 20), _more):
        FAMILIES.setdefault(f"{_of}: {_name}, {_arms} arms", Curved(_of, _more[_name], _arms))
    for _rows, _name in itertools.product((0.0, 0.5, 0.9), ("c/x", "U", "flat", "step of 1 SE")):
        FAMILIES[f"{_of}: {_name}, rows {_rows:g}".replace(" 0.", " .")] = Curved(_of, _more[_name], rows=_rows)
    for _rows, _arms in itertools.product((0.0, 0.9), (9, 20)):
        FAMILIES[f"{_of}: saturating, {_arms} arms, rows {_rows:g}".replace(" 0.", " .")] = Curved(
            _of, saturating, _arms, rows=_rows
        )
    for _name in ("saturating", "U", "step of 1 SE"):
        FAMILIES[f"{_of}: {_name}, moments"] = Curved(_of, _more[_name], moments=True)
    for _cause, _share, _arms, _rows in (
        ("gamma", MARGIN, 15, 0.8),
        ("smoothing", -MARGIN, 15, 0.8),
        ("gamma", MARGIN, 9, 0.8),
        ("smoothing", MARGIN, 20, 0.8),
        ("smoothing", MARGIN, 15, 0.0),
        ("smoothing", MARGIN, 15, 0.9),
    ):
        _under = "below" if _share < 0 else "off"
        FAMILIES[f"{_of}: {_cause} {_under} by the margin, {_arms} arms, rows {_rows:g}".replace(" 0.", " .")] = Curved(
            _of, saturating, _arms, (_cause, 0.0), _share, holds=True, turned=False, rows=_rows, noise=0.3
        )
SHARP = {
    f"{_of}: {_name}, {_arms} arms, off by {_miss:g} SE".replace(" 0.", " ."): Curved(_of, _truth, _arms, miss=_miss)
    for _of, (_truths, _misses) in BENDS.items()
    for _arms, (_name, _truth), _miss in itertools.product((9, 15, 20), _truths.items(), _misses)
}
ALLOWED = {
    f"{_of}: {_name}, {_arms} arms, off by 1 SE": Curved(_of, _truth, _arms, miss=1.0, allowed=1.0)
    for _of, (_truths, _) in BENDS.items()
    for _arms, (_name, _truth) in itertools.product((9, 10, 15, 20), _truths.items())
}
ALLOWED_POWER = {
    name: one._replace(allowed=1.0) for name, one in POWER.items() if name.endswith(("SE", "as published"))
}
