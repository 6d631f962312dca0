"""The NLL of focal temperature scaling over (T, γ): profile, minimum, the confidence set around it, and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.calibrators.calibrator import Array
from calibcli.calibrators.temperature import FEWEST, effective_units, per_unit, too_few
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.statistics import effective_rows, normal_quantile, root, student_quantile
from calibcli.scores.likelihood.focal_map import FocalRows, Shifted, focal_rows
from calibcli.scores.predictions import Predictions

# T and γ trade off along a ridge, T*(γ) nearly linear in γ, on which the NLL is flat and may have several minima.

LOW, HIGH = -0.5, 5.0  # search range of γ
GRID = np.arange(-2, 21) / 4  # γ of the profile: -0.5, -0.25, ..., 5
STARTS = np.array([-0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0])  # γ of a fit without a report
REACH = math.log(1e6)  # change of ln β at which the search for T ends: T is then at a bound
ROUNDING = 1e-13  # nats by which rounding may move the mean NLL of many rows
NEAR = 1e-15  # nats: a quadratic model that gains less than this ends a search for the optimum
NEAR_ENOUGH = 1e-9  # nats: the same of the search for the best γ of a T, and so for the ends of an interval of T
BLOCK = 500_000  # logits between two reports of progress
KEPT = 1 << 25  # most logits that a surface keeps prepared in memory, as float64; of more, each pass prepares them anew


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
        data = Shifted.of(logits, labels)
        self.weights = weights
        self.n = len(labels)
        self.prepared: Callable[[], Iterator[Shifted]] = lambda: iter((data,))
        self.step: Callable[[int], None] = lambda logits: None

    @classmethod
    def of(cls, rows: Predictions, step: Callable[[int], None] = lambda logits: None) -> Surface:
        """Return the surface of all rows; scores that lie on disk are read block by block.

        Args:
            step: called with a number of logits whenever a pass has gone over that many, about 500,000; with 0 after a
                block was prepared, which is no pass but takes time, so that progress is shown meanwhile.
        """
        surface = cls.__new__(cls)
        surface.weights, surface.n, surface.step = rows.weights, rows.n, step

        def prepared() -> Iterator[Shifted]:
            for start, block in rows.blocks(max(1, BLOCK // rows.k)):
                yield Shifted.of(block, rows.labels[start : start + len(block)])
                step(0)

        kept = list(prepared()) if rows.n * rows.k <= KEPT else None
        surface.prepared = prepared if kept is None else lambda: iter(kept)
        return surface

    def rows(self, u: float, gammas: Sequence[float], gradient: bool = True) -> list[FocalRows]:
        """Return the numbers of each row at one u, for each γ: NLL, and with `gradient` its derivatives in β and γ."""
        blocks: list[list[FocalRows]] = []
        for part in self.prepared():
            blocks.append(focal_rows(part, math.exp(u), gammas, gradient))
            self.step(part.z.size)
        if len(blocks) == 1:
            return blocks[0]
        names = [field.name for field in fields(FocalRows)]
        return [
            FocalRows(*(np.concatenate([getattr(rows, name) for rows in blocks_of_gamma]) for name in names))
            for blocks_of_gamma in zip(*blocks)
        ]

    def gradient(self, u: float, gamma: float) -> tuple[float, float, float]:
        """Return NLL, dNLL/du = β dNLL/dβ and dNLL/dγ."""
        rows = self.rows(u, [gamma])[0]
        return self.mean(rows.nll), math.exp(u) * self.mean(rows.d_beta), self.mean(rows.d_gamma)

    def hessian(self, point: Point, step: float = 1e-4) -> Array:
        """Compute second derivatives in (u, γ), (2, 2), from central differences of the gradient: in u, then in γ."""
        h = np.empty((2, 2))
        above = np.array(self.gradient(point.u + step, point.gamma)[1:])
        below = np.array(self.gradient(point.u - step, point.gamma)[1:])
        h[:, 0] = (above - below) / (2 * step)
        above = np.array(self.gradient(point.u, point.gamma + step)[1:])
        below = np.array(self.gradient(point.u, point.gamma - step)[1:])
        h[:, 1] = (above - below) / (2 * step)
        return (h + h.T) / 2

    def values(self, u: float, gammas: Sequence[float]) -> list[float]:
        """Return the NLL at one u and several γ."""
        return [self.mean(rows.nll) for rows in self.rows(u, gammas, gradient=False)]

    def scores(self, u: float, gamma: float) -> Array:
        """Return the gradient ψ_i of the NLL of each row in (u, γ), (N, 2)."""
        rows = self.rows(u, [gamma])[0]
        return np.stack([math.exp(u) * rows.d_beta, rows.d_gamma], axis=1)

    def best(self, gamma: float, start: float, tolerance: float = 1e-12, curvature: float = 0.0) -> Point:
        """Find the best u at this γ: the root of f(u) = dNLL/du, by secant steps in a bracket that grows from `start`.

        A step is -f / (df/du), with df/du from the last two points or, where that is not positive, from the ends of the
        bracket. While one end is open and df/du is not known, it is a length that triples each time. A step out of the
        bracket goes to its middle. The search ends where the next step would be within `tolerance`, or at a distance of
        `REACH` from the start, as T is then at a bound.

        Args:
            curvature: a guess of the second derivative in u; 0 is none.
        """
        seen: dict[float, tuple[float, float]] = {}  # NLL and dNLL/dγ, by u

        def slope(u: float) -> float:
            value, d_u, d_gamma = self.gradient(u, gamma)
            seen[u] = (value, d_gamma)
            return d_u

        u, step = start, 0.05
        f = slope(u)
        if curvature > 0 and abs(f) <= tolerance * curvature:
            return self._moved(gamma, u, f, curvature, *seen[u])
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
            next_f = slope(next_u)
            moved = next_u - u
            secant = (next_f - f) / moved if moved else 0.0
            curvature = secant if secant > 0 else 0.0
            step *= 3
            u, f = next_u, next_f
            if f == 0 or abs(f) <= tolerance * max(curvature, 1e-3):  # so small where the surface is flat
                break
            if curvature and abs(f / curvature) <= tolerance:
                break
        return self._moved(gamma, u, f if curvature and abs(f) <= tolerance * curvature else 0.0, curvature, *seen[u])

    def _moved(self, gamma: float, u: float, f: float, curvature: float, value: float, d_gamma: float) -> Point:
        """Return the point after a last Newton step f / curvature, which lowers the NLL by f² / (2 curvature).

        It is so short that the NLL there is known without a pass. With f = 0 there is no step.
        """
        move = f / curvature if f else 0.0
        return Point(gamma, u - move, value - move * f / 2, d_gamma, curvature)

    def profile(self, gammas: Array, start: float, tolerance: float = 1e-6, near: Sequence[Point] = ()) -> list[Point]:
        """Find the best T of each γ, from the γ nearest to 0 outwards.

        Each starts from T on the line through the last two, as T*(γ) is nearly linear; the first one beside the start
        from T itself.

        Args:
            near: the same points of some of the rows: then each point starts as far from that in u as the last one was.
        """
        first = int(np.abs(gammas).argmin())
        curvature = near[first].curvature if near else 0.0
        points: dict[int, Point] = {first: self.best(float(gammas[first]), start, tolerance, curvature)}

        def outwards(indices: range) -> None:
            step = indices.step  # 1 or -1
            for i in indices:
                last = points[i - step]
                before_last = points.get(i - 2 * step)
                guess, curvature = last.u, last.curvature
                if near:
                    guess, curvature = near[i].u + last.u - near[i - step].u, near[i].curvature
                elif before_last is not None and last.gamma != before_last.gamma:
                    rate = (last.temperature - before_last.temperature) / (last.gamma - before_last.gamma)
                    t = last.temperature + rate * (float(gammas[i]) - last.gamma)
                    guess = -math.log(t) if t > 0 else last.u
                points[i] = self.best(float(gammas[i]), guess, tolerance, curvature)

        outwards(range(first + 1, len(gammas)))
        outwards(range(first - 1, -1, -1))
        return [points[i] for i in range(len(gammas))]

    def optimum(self, points: Sequence[Point], tie: float = 0.0) -> Point:
        """Return the lowest minimum along the profile, refined in γ; within `tie` nats of it, the one nearest γ = 0."""
        return lowest([self._refine(*valley) for valley in valleys(points)], tie)

    def descend(self, start: Point, of_few: Surface) -> Point:
        """Find the minimum near a point, γ within its range, by quasi-Newton steps (BFGS), shortened until they help.

        With x = (u, γ), gradient g and Hessian h, the quadratic model of the NLL gains -(gᵀd + dᵀh d / 2) by a step d.
        It is best at each d_γ with d_u = -(g_u + h_uγ d_γ) / h_uu; what is then left in γ has the slope g_γ - h_uγ g_u
        / h_uu and the curvature h_γγ - h_uγ² / h_uu, whose minimum is cut to the range of γ.

        After a step d with the change c of the gradient, h becomes h - (h d)(h d)ᵀ / dᵀh d + c cᵀ / cᵀd, so that h d =
        c. The first h is that of few rows; where it is not positive definite there, its diagonal.
        """
        x, h = np.array([start.u, start.gamma]), of_few.hessian(start)
        if not np.isfinite(h).all() or np.linalg.eigvalsh(h).min() <= 1e-9 * abs(h).max():
            h = np.diag(np.maximum(abs(np.diag(h)), 1e-6))
        value, *slopes = self.gradient(*x)
        for _ in range(60):
            g = np.array(slopes)
            reduced = h[1, 1] - h[0, 1] ** 2 / h[0, 0]
            d_gamma = float(np.clip(x[1] - (g[1] - h[0, 1] * g[0] / h[0, 0]) / reduced, LOW, HIGH)) - x[1]
            move = np.array([-(g[0] + h[0, 1] * d_gamma) / h[0, 0], d_gamma])
            gain = -float(g @ move + move @ h @ move / 2)
            if gain <= NEAR:
                x, value = x + move, value - max(gain, 0.0)
                break
            share, reached = 1.0, self.gradient(*(x + move))
            while not reached[0] <= value + ROUNDING and share > 1e-6:
                share /= 4
                reached = self.gradient(*(x + share * move))
            moved, change = share * move, np.array(reached[1:]) - g
            x, (value, *slopes) = x + moved, reached
            if change @ moved > 0:  # else h would not stay positive definite
                predicted = h @ moved
                h = h - np.outer(predicted, predicted) / (moved @ predicted)
                h = h + np.outer(change, change) / (change @ moved)
        return Point(float(np.clip(x[1], LOW, HIGH)), float(x[0]), value, slopes[1], float(h[0, 0]))

    def _refine(self, before: Point, point: Point, after: Point, tolerance: float = 1e-9) -> Point:
        """Find the root of the profile's slope between neighbours.

        That is dNLL/dγ alone, as dNLL/du is 0 at the best u (envelope theorem). Each search for u starts on the line
        between the nearest points of the profile that are known.
        """
        low, high = (point, after) if point.slope < 0 else (before, point)
        if low.slope >= 0 or high.slope <= 0 or low is high:  # the minimum is at an end of the range
            return self.best(point.gamma, point.u, tolerance / 100, point.curvature)
        by_gamma = {low.gamma: low, high.gamma: high}

        def slope(gamma: float) -> float:
            if gamma not in by_gamma:
                left = max((p for p in by_gamma.values() if p.gamma < gamma), key=lambda p: p.gamma)
                right = min((p for p in by_gamma.values() if p.gamma > gamma), key=lambda p: p.gamma)
                share = (gamma - left.gamma) / (right.gamma - left.gamma)
                by_gamma[gamma] = self.best(
                    gamma, left.u + share * (right.u - left.u), tolerance / 100, point.curvature
                )
            return by_gamma[gamma].slope

        best = root(slope, low.gamma, high.gamma, tolerance)
        slope(best)
        return by_gamma[best]

    def lowest(self, u: float) -> tuple[float, float]:
        """Return the least NLL of this u over the range of γ, and the γ of the profile's grid that is nearest to it.

        The least is first that of the grid, whose best point and neighbours define a parabola in γ. From the minimum of
        the parabola Newton steps with its second derivative follow; a step δ at the slope s changes the NLL by s δ / 2.
        """
        values = self.values(u, list(GRID))
        i = int(np.argmin(values))
        low, high = float(GRID[max(i - 1, 0)]), float(GRID[min(i + 1, len(GRID) - 1)])
        middle = min(max(i, 1), len(GRID) - 2)
        parabola = np.polyfit(GRID[middle - 1 : middle + 2], values[middle - 1 : middle + 2], 2)
        bend, least = 2 * float(parabola[0]), values[i]
        gamma = float(np.clip(-parabola[1] / bend, low, high)) if bend > 0 else float(GRID[i])
        for _ in range(4 if bend > 0 else 0):
            value, _, slope = self.gradient(u, gamma)
            following = float(np.clip(gamma - slope / bend, low, high))
            least = min(least, value + slope * (following - gamma) / 2)
            if abs(slope * (following - gamma)) < NEAR_ENOUGH:
                break
            gamma = following
        return least, float(GRID[i])

    def mean(self, values: Array) -> float:
        """Return the weighted mean of (N,) values."""
        return float(values.mean() if self.weights is None else np.average(values, weights=self.weights))


def valleys(points: Sequence[Point]) -> list[tuple[Point, Point, Point]]:
    """Return the points of a profile that are no higher than their neighbours, between these; an end is its own."""
    padded = [points[0], *points, points[-1]]
    return [(a, b, c) for a, b, c in zip(padded, points, padded[2:], strict=False) if b.nll <= min(a.nll, c.nll)]


def lowest(points: Sequence[Point], tie: float = 0.0) -> Point:
    """Return the lowest point; of those within `tie` nats of it, the one nearest γ = 0."""
    least = min(p.nll for p in points)
    return min((p for p in points if p.nll <= least + tie), key=lambda p: (abs(p.gamma), p.nll))


def acceptable(surface: Surface, points: Sequence[Point], limit: float) -> list[tuple[float, float]]:
    """Return the intervals of γ where the profile lies below `limit`, with its best point among `points`.

    Each is a run of points below the limit, up to where the profile crosses the limit on the way to the next point.
    """
    changes = np.diff([0, *(int(p.nll <= limit) for p in points), 0])  # 1 where a run begins, -1 after its last point
    intervals = []
    for first, last in zip(np.flatnonzero(changes > 0).tolist(), (np.flatnonzero(changes < 0) - 1).tolist()):
        low = _crossing(surface, points[first], points[first - 1], limit) if first > 0 else points[0].gamma
        ends = last + 1 < len(points)
        high = _crossing(surface, points[last], points[last + 1], limit) if ends else points[-1].gamma
        intervals.append((low, high))
    return intervals


def _crossing(surface: Surface, inside: Point, outside: Point, limit: float) -> float:
    """Find the γ between two points at which the profile crosses `limit`."""

    def above(share: float) -> float:
        if share in (0.0, 1.0):
            return (outside if share else inside).nll - limit
        gamma = inside.gamma + share * (outside.gamma - inside.gamma)
        u = inside.u + share * (outside.u - inside.u)
        return surface.best(gamma, u, 1e-5, inside.curvature).nll - limit

    share = root(above, 0.0, 1.0, 1e-4)
    return inside.gamma + share * (outside.gamma - inside.gamma)


@dataclass(frozen=True)
class Spread:
    """Uncertainty of (ln β, γ) at a point.

    Attributes:
        inverse: H⁻¹ of the mean NLL, (2, 2); NaN where H is not positive definite.
        covariance: sandwich covariance of the estimate, (2, 2), as in `spread_at`.
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
        """Measure it at a given β: the effective number of units, (Σ m²)² / Σ m⁴.

        `per_unit` returns for each row or group, (G,): the sum of dNLL/dβ, which is not needed here; I_j, the sum of
        d²NLL/dβ²; and how often the unit occurs, its count or else 1. In `effective_units` m² is the variance that a
        unit may add to the estimate: I_j of a row, as the information is the variance of its score; up to I_j² of a
        group, whose rows may all be off to the same side.
        """
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

        It is t² / (2 n), the limit of the likelihood ratio. If the sandwich variance C is more than (H⁻¹) / n, the
        variance that this ratio relies on, it is larger by their quotient: t² C / (2 H⁻¹). t is Student's quantile.
        Where it, or C, is not known, the normal quantile takes its place.
        """
        t = student_quantile((1 + self.level) / 2, self.units - 1) if not self.lacking else math.inf
        widened = spread.covariance[which, which] / spread.inverse[which, which]
        if not math.isfinite(t * widened):
            return normal_quantile((1 + self.level) / 2) ** 2 / 2 / self.size
        return 0.5 * t * t * max(1 / self.size, float(widened))


def spread_at(surface: Surface, point: Point, units: Callable[[Array], tuple[Array, Array]]) -> Spread:
    """Compute the sandwich covariance H⁻¹ (Σ_j t_j U_j U_jᵀ) H⁻¹ G / (G - 2) of (ln β, γ) at a point.

    H is the Hessian of the mean NLL. U_j (2,) is the sum of w ψ_i over the rows of unit j, over the sum W of all
    weights: by its part of the gradient the unit moves the optimum by H⁻¹U_j. t_j is how often the unit occurs and G =
    Σ t_j their number; two parameters are fitted. U_j is taken from its mean, which is not 0 where γ is at an end of
    its range.

    Args:
        units: sums (N,) values over units, as `units_of` does: returns (units,) the sums of w times value over each
            group, or of each row, and (units,) ones. Of a row that counts for several it returns the value alone, and
            the count.
    """
    h = surface.hessian(point)
    unknown = np.full((2, 2), np.nan)
    if not np.isfinite(h).all() or np.linalg.eigvalsh(h).min() <= 0:
        return Spread(unknown, unknown)
    psi = surface.scores(point.u, point.gamma)  # (N, 2)
    total_weight = float(surface.n if surface.weights is None else surface.weights.sum())
    in_u, times = units(psi[:, 0])
    in_gamma, _ = units(psi[:, 1])
    sums, count = np.stack([in_u, in_gamma], axis=1) / total_weight, float(times.sum())  # U (units, 2), G
    if count <= 2:
        return Spread(unknown, unknown)
    sums = sums - times @ sums / count
    inverse = np.asarray(np.linalg.inv(h), np.float64)
    meat = (sums * times[:, None]).T @ sums * (count / (count - 2))
    covariance = np.asarray(inverse @ meat @ inverse, np.float64)
    return Spread(inverse, covariance)


def reach(surface: Surface, best: Point, rise: float, guess: float = 0.05) -> tuple[float, float]:
    """Find the ends of ln β up to which the NLL at the best γ rises by at most `rise`; infinite where it never does.

    Outwards from the best point, by growing steps, the first distance is found at which it rises more; between it and
    the last, secants find the end. They need few steps, as the root of the rise is nearly linear in ln β.

    Args:
        guess: how far from the best point the ends may be.
    """
    root_of_limit = math.sqrt(rise)

    def end(sign: float) -> float:
        """Return ln β at the lower end (-1) or at the upper end (1)."""
        seen = {0.0: -root_of_limit}  # root of the rise less that of the limit, by distance

        def above(distance: float) -> float:
            risen = surface.lowest(best.u + sign * distance)[0] - best.nll
            return math.sqrt(max(risen, 0.0)) - root_of_limit

        inside, distance = 0.0, min(guess, 1.0)
        while distance <= REACH:
            seen[distance] = above(distance)
            if seen[distance] >= 0:
                break
            inside, distance = distance, max(2 * distance, 0.05) if distance > 2 * guess else 1.3 * distance
        if distance > REACH:
            return sign * math.inf
        crossing = root(lambda s: seen.get(s) or above(s), inside, distance, 1e-4 * min(distance, 1.0))
        return best.u + sign * crossing

    return end(-1.0), end(1.0)


def confined(surface: Surface, ends: Sequence[float]) -> bool:
    """Return whether the range of γ confines ln β: the ends are finite, and the best γ of each is at a bound."""
    return all(math.isfinite(u) and surface.lowest(u)[1] in (GRID[0], GRID[-1]) for u in ends)


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


def heat(surface: Surface, points: Sequence[Point], best: Point, limit: float, whole: int) -> Plot:
    """Plot the NLL over T x γ, with the ridge, the optimum and the set around it, all of the surface's rows.

    Args:
        whole: number of rows that the surface's were drawn from.
    """
    n = surface.n
    ts = [p.temperature for p in points]
    grid = np.geomspace(min(ts) / 1.5, max(ts) * 1.5, 31)
    gammas = [float(g) for g in np.arange(-1, 11) / 2]
    table = [surface.values(-math.log(t), gammas) for t in grid]
    return Plot(
        name="t_gamma",
        title=f"NLL over T and gamma, n = {n:,}" + (f" random rows of {whole:,}" if n < whole else ""),
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
