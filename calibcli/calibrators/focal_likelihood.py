"""The NLL of focal temperature scaling over (T, γ): profile, minimum, the confidence set around it, and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.calibrators.calibrator import Array
from calibcli.calibrators.temperature import FEWEST, effective_units, per_unit, too_few
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.statistics import bisect, effective_rows, normal_quantile, root, student_quantile
from calibcli.scores.likelihood.focal_map import Shifted, focal_rows
from calibcli.scores.predictions import Predictions

# T and γ trade off along a ridge, T*(γ) nearly linear in γ, on which the NLL is flat and may have several minima.

LOW, HIGH = -0.5, 5.0  # search range of γ
GRID = np.arange(-2, 21) / 4  # γ of the profile: -0.5, -0.25, ..., 5
STARTS = np.array([-0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0])  # γ of a fit without a report
REACH = math.log(1e6)  # change of ln β at which the search for T ends: T is then at a bound


@dataclass(frozen=True)
class Point:
    """A point of the surface: γ, u = ln β, the mean NLL, its derivative in γ, and its second derivative in u."""

    gamma: float
    u: float
    nll: float
    slope: float
    curvature: float = 0.0

    @property
    def temperature(self) -> float:
        return math.exp(-self.u)


class Surface:
    """Mean NLL of φ_γ(softmax(β z)) with u = ln β.

    Args:
        logits: (N, K).
        labels: (N,).
        weights: (N,) or None.
    """

    def __init__(self, logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        self.data = Shifted.of(logits, labels)
        self.weights = weights
        self.n = len(labels)

    def gradient(self, u: float, gamma: float) -> tuple[float, float, float]:
        """Return NLL, dNLL/du and dNLL/dγ."""
        beta = math.exp(u)
        rows = focal_rows(self.data, beta, [gamma])[0]
        return self._mean(rows.nll), beta * self._mean(rows.d_beta), self._mean(rows.d_gamma)

    def hessian(self, at: Point, step: float = 1e-4) -> Array:
        """Compute second derivatives in (u, γ), (2, 2), from differences of the gradient."""
        h = np.empty((2, 2))
        for column, (du, dg) in enumerate(np.eye(2) * step):
            above, below = (np.array(self.gradient(at.u + s * du, at.gamma + s * dg)[1:]) for s in (1, -1))
            h[:, column] = (above - below) / (2 * step)
        return (h + h.T) / 2

    def values(self, u: float, gammas: Sequence[float]) -> list[float]:
        """Return the NLL at one u and several γ."""
        return [self._mean(rows.nll) for rows in focal_rows(self.data, math.exp(u), gammas, gradient=False)]

    def confidence(self, u: float, gamma: float) -> Array:
        """Return the top probability of each row, (N,)."""
        return focal_rows(self.data, math.exp(u), [gamma], gradient=False)[0].confidence

    def scores(self, u: float, gamma: float) -> tuple[Array, Array]:
        """Return the NLL (N,) and the gradient in (u, γ) (N, 2) of each row."""
        beta = math.exp(u)
        rows = focal_rows(self.data, beta, [gamma])[0]
        return rows.nll, np.stack([beta * rows.d_beta, rows.d_gamma], axis=1)

    def best(self, gamma: float, start: float, tolerance: float = 1e-12, curvature: float = 0.0) -> Point:
        """Find the best u at this γ, by secant steps on dNLL/du in a bracket that grows from `start`.

        Args:
            curvature: a guess of the second derivative in u; 0 is none.
        """
        known: dict[float, tuple[float, float]] = {}

        def slope(u: float) -> float:
            value, d_u, d_gamma = self.gradient(u, gamma)
            known[u] = (value, d_gamma)
            return d_u

        u, step = start, 0.05
        f = slope(u)
        low, high, f_low, f_high = -math.inf, math.inf, 0.0, 0.0
        for _ in range(60):
            if f < 0:
                low, f_low = u, f
            else:
                high, f_high = u, f
            if low > -math.inf and high < math.inf and curvature <= 0:
                curvature = (f_high - f_low) / (high - low)
            move = -f / curvature if curvature > 0 else math.copysign(step, -f)
            next_u = u + move
            if not low < next_u < high:
                next_u = 0.5 * (low + high)
            if abs(next_u - start) > REACH:
                break
            g = slope(next_u)
            moved = next_u - u
            secant = (g - f) / moved if moved else 0.0
            curvature = secant if secant > 0 else 0.0
            step *= 3
            u, f = next_u, g
            if f == 0 or abs(f) <= tolerance * max(curvature, 1e-3):
                break
            if curvature and abs(f / curvature) <= tolerance:
                break
        value, d_gamma = known[u]
        return Point(gamma, u, value, d_gamma, curvature)

    def profile(self, gammas: Array, start: float, tolerance: float = 1e-6) -> list[Point]:
        """Find the best T of each γ, from the γ nearest to 0 outwards; each starts on the line through the last two."""
        first = int(np.abs(gammas).argmin())
        points: dict[int, Point] = {first: self.best(float(gammas[first]), start, tolerance)}
        for indices in (range(first + 1, len(gammas)), range(first - 1, -1, -1)):
            step = 1 if indices.step > 0 else -1
            for i in indices:
                last = points[i - step]
                before_last = points.get(i - 2 * step)
                guess = last.u
                if before_last is not None and last.gamma != before_last.gamma:
                    rate = (last.temperature - before_last.temperature) / (last.gamma - before_last.gamma)
                    t = last.temperature + rate * (float(gammas[i]) - last.gamma)
                    guess = -math.log(t) if t > 0 else last.u
                points[i] = self.best(float(gammas[i]), guess, tolerance, last.curvature)
        return [points[i] for i in range(len(gammas))]

    def optimum(self, points: Sequence[Point], tie: float = 0.0) -> Point:
        """Return the lowest minimum along the profile, refined in γ; within `tie` nats of it, the one nearest γ = 0."""
        minima = []
        for i, point in enumerate(points):
            before, after = points[max(i - 1, 0)], points[min(i + 1, len(points) - 1)]
            if point.nll <= before.nll and point.nll <= after.nll:
                minima.append(self._refine(before, point, after))
        lowest = min(p.nll for p in minima)
        return min((p for p in minima if p.nll <= lowest + tie), key=lambda p: (abs(p.gamma), p.nll))

    def _refine(self, before: Point, point: Point, after: Point) -> Point:
        """Find the root of the profile's slope between neighbours, which is dNLL/dγ (envelope theorem)."""
        low, high = (point, after) if point.slope < 0 else (before, point)
        if low.slope >= 0 or high.slope <= 0 or low is high:  # the minimum is at an end of the range
            return self.best(point.gamma, point.u, 1e-11, point.curvature)
        known = {low.gamma: low, high.gamma: high}

        def slope(gamma: float) -> float:
            if gamma not in known:
                left = max((p for p in known.values() if p.gamma < gamma), key=lambda p: p.gamma)
                right = min((p for p in known.values() if p.gamma > gamma), key=lambda p: p.gamma)
                share = (gamma - left.gamma) / (right.gamma - left.gamma)
                known[gamma] = self.best(gamma, left.u + share * (right.u - left.u), 1e-11, point.curvature)
            return known[gamma].slope

        best = root(slope, low.gamma, high.gamma, 1e-9)
        slope(best)
        return known[best]

    def _mean(self, values: Array) -> float:
        return float(values.mean() if self.weights is None else np.average(values, weights=self.weights))


def acceptable(points: Sequence[Point], limit: float) -> list[tuple[float, float]]:
    """Return the intervals of γ where the profile lies below `limit`, with edges by linear interpolation."""
    steps = np.diff([0, *(int(p.nll <= limit) for p in points), 0])
    sets = []
    for first, last in zip(np.flatnonzero(steps > 0).tolist(), (np.flatnonzero(steps < 0) - 1).tolist()):
        low = _crossing(points[first - 1], points[first], limit) if first > 0 else points[0].gamma
        high = _crossing(points[last + 1], points[last], limit) if last + 1 < len(points) else points[-1].gamma
        sets.append((low, high))
    return sets


def _crossing(outside: Point, inside: Point, limit: float) -> float:
    share = (limit - inside.nll) / (outside.nll - inside.nll)
    return inside.gamma + share * (outside.gamma - inside.gamma)


@dataclass(frozen=True)
class Spread:
    """Uncertainty of (ln β, γ) at a point.

    Attributes:
        inverse: H⁻¹ of the mean NLL, (2, 2); NaN where H is not positive definite.
        covariance: sandwich covariance of the estimate, (2, 2): H⁻¹ (Σ ψψ') H⁻¹ over rows or groups, times G / (G - 2).
    """

    inverse: Array
    covariance: Array


@dataclass(frozen=True)
class Information:
    """The amount of information on T that the rows hold.

    Attributes:
        what: the independent units, "rows" or "groups".  units: effective number of them for T.
        size: number of rows of equal weight.  level: confidence level.
    """

    what: str
    units: float
    size: float
    level: float

    @classmethod
    def of(cls, rows: Predictions, beta: float, level: float) -> Information:
        """Measure it at a given β."""
        _, curvature, times = per_unit(rows, beta)
        grouped = rows.groups is not None
        w = np.ones(rows.n) if rows.weights is None else rows.weights
        size = float(w.sum() if rows.weight_kind == "count" else effective_rows(w))
        return cls("groups" if grouped else "rows", effective_units(curvature, times, grouped), size, level)

    @property
    def lacking(self) -> str:
        """Why there is no interval, or ""."""
        return too_few(self.units, self.what) if self.units < FEWEST else ""

    def rise(self, spread: Spread, which: int) -> float:
        """Return by how much the NLL may rise along the profile of ln β (0) or γ (1) inside the confidence set.

        It is the limit of the likelihood ratio, or that of the sandwich variance where it is wider.
        """
        t = student_quantile((1 + self.level) / 2, self.units - 1) if not self.lacking else math.inf
        widened = spread.covariance[which, which] / spread.inverse[which, which]
        if not math.isfinite(t * widened):
            return normal_quantile((1 + self.level) / 2) ** 2 / 2 / self.size
        return 0.5 * t * t * max(1 / self.size, float(widened))


def spread_at(surface: Surface, at: Point, units: Callable[[Array], tuple[Array, Array]]) -> Spread:
    """Compute the sandwich at a point; `units` sums (N,) values over rows or groups, as `units_of` does."""
    h = surface.hessian(at)
    unknown = np.full((2, 2), np.nan)
    if not np.isfinite(h).all() or np.linalg.eigvalsh(h).min() <= 0:
        return Spread(unknown, unknown)
    _, psi = surface.scores(at.u, at.gamma)
    w = float(surface.n if surface.weights is None else surface.weights.sum())
    (first, times), (second, _) = units(psi[:, 0]), units(psi[:, 1])
    sums, count = np.stack([first, second], axis=1) / w, float(times.sum())
    if count <= 2:
        return Spread(unknown, unknown)
    sums = sums - times @ sums / count
    inverse = np.asarray(np.linalg.inv(h), np.float64)
    meat = (sums * times[:, None]).T @ sums * (count / (count - 2))
    covariance = np.asarray(inverse @ meat @ inverse, np.float64)
    return Spread(inverse, covariance)


def reach(surface: Surface, best: Point, rise: float) -> tuple[float, float]:
    """Find the ends of ln β up to which the NLL at the best γ rises by at most `rise`; infinite where it never does."""

    def above(u: float) -> float:
        lowest = _lowest(np.array(surface.values(u, list(GRID))))
        return min(lowest, best.nll if u == best.u else math.inf) - best.nll - rise

    ends = []
    for sign in (-1.0, 1.0):
        near, step = 0.0, 0.05
        while step <= REACH and above(best.u + sign * step) < 0:
            near, step = step, 2 * step
        if step > REACH:
            ends.append(sign * math.inf)
            continue
        near, far = bisect(lambda s, sign=sign: -above(best.u + sign * s), near, step, 12)  # type: ignore[misc]
        ends.append(best.u + sign * 0.5 * (near + far))
    return ends[0], ends[1]


def confined(surface: Surface, ends: Sequence[float]) -> bool:
    """Return whether the range of γ confines ln β: the ends are finite, and the best γ of each is at a bound."""
    bounds = (0, len(GRID) - 1)
    return all(math.isfinite(u) and np.argmin(surface.values(u, list(GRID))) in bounds for u in ends)


def _lowest(values: Array) -> float:
    """Interpolate the least of (G,) NLLs on GRID by a parabola; at an end of GRID, return the value there."""
    i = int(values.argmin())
    if not 0 < i < len(values) - 1:
        return float(values[i])
    left, middle, right = values[i - 1 : i + 2].tolist()
    curvature = left - 2 * middle + right
    return float(middle - (left - right) ** 2 / (8 * curvature)) if curvature > 0 else float(middle)


def polish(whole: Surface, part: Surface, start: Point) -> Point:
    """Refine the optimum on all rows from that on few, by Newton with their Hessian; a γ at a bound stays there."""
    if start.gamma in (LOW, HIGH):
        return whole.best(start.gamma, start.u)
    h = part.hessian(start)
    if np.linalg.eigvalsh(h).min() <= 0:
        return whole.best(start.gamma, start.u)
    u, gamma = start.u, start.gamma
    for _ in range(8):
        _, *g = whole.gradient(u, gamma)
        step = np.linalg.solve(h, g)
        u, gamma = u - step[0], float(np.clip(gamma - step[1], LOW, HIGH))
        if abs(float(step @ np.array(g))) < 1e-13:
            break
    return whole.best(gamma, u)


# Figures of the NLL over T and γ.


def profile(points: Sequence[Point], best: Point, limit: float, n: int) -> Plot:
    """Plot the smallest NLL of each γ, with the edge of the confidence set."""
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
    """Plot the NLL over T x γ, with the ridge, the optimum and the set around it."""
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
