"""Plan a gate: the chance of each verdict as a function of n, and the rows at which it is large enough.

The sentence that its result opens with is written in `headlines/gates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.core import extensions, number_format
from calibcli.core.errors import InputError, UsageError
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.options import BINS
from calibcli.core.registries import Choice
from calibcli.core.result import Estimate, Result, Table
from calibcli.core.scope import Scope
from calibcli.core.statistics import bisect, normal_quantile, normal_share, normals, unseen_reach
from calibcli.gate import baseline, judging
from calibcli.gate._simulated import CutoffPopulation
from calibcli.gate.baseline import Pairing
from calibcli.gate.config import MIN_N, Gate
from calibcli.gate.judging import Side, rule
from calibcli.gate.options import Assumptions
from calibcli.metrics import Sample, binned_bounds, choose, columns_of, estimates
from calibcli.metrics.binned_bounds import Method, norm_quantile
from calibcli.metrics.cutoffs import CutoffStatistic
from calibcli.metrics.intervals import End, MeanOf, WeightedMean
from calibcli.metrics.registry import MetricTraits, Statistic
from calibcli.metrics.reliability import BinaryOutcomes, Bins
from calibcli.scores.columns import Edges, bin_index, columns
from calibcli.scores.likelihood import fit_beta, log_softmax, nll_rows
from calibcli.scores.predictions import PickedScores, Predictions

# The chance that a gate reaches its verdict, as a function of the number of rows n.

Floats = npt.NDArray[np.float64]
FEWEST, LARGEST = 10, 10**9  # rows that are planned
DRAWS = 4_000  # simulated evaluations of a plan
QUICK = 2_000  # and of the advice in an INCONCLUSIVE verdict
LABELINGS, ELEMENTS = 16, 1 << 24  # labels of each row of a synthetic population, and scores of all, at most
GOLDEN = (math.sqrt(5) - 1) / 2
SAME = 1e-4  # distance of a share from the accuracy that was asked for, which it then is
DECIDED = 0.8  # chance of a verdict that this advice is for
SECANTS = 8  # steps along the quantile of a chance, before its interval is halved


@dataclass(frozen=True, eq=False, kw_only=True)
class EcePopulation:
    """Moments, by bin, of what one row of the future evaluation adds to the binned calibration error.

    Attributes:
        gap: (B,) population d_b = E[(c - y) 1_b].
        square: (B,) E[(c - y)² 1_b].
        null: (B,) E[c (1 - c) 1_b].
        fourth: (B,) E[(c - y)⁴ 1_b].
    """

    gap: Floats
    square: Floats
    null: Floats
    fourth: Floats

    @property
    def ece(self) -> float:
        """The population ECE, Σ |d_b|."""
        return float(np.abs(self.gap).sum())

    @classmethod
    def of(cls, view: BinaryOutcomes, table: Bins, truth: float | None = None) -> EcePopulation:
        """Estimate the population from a pilot and its table of equal-width bins.

        Args:
            truth: population ECE to assume; the pilot's gaps are scaled to it. None: the pilot's own gaps are shrunk
                towards 0 by the part of Σd̂² that is noise (James and Stein 1961).
        """
        assert table.index is not None
        per_bin = partial(view.sums, table.index, len(table.weight))
        square, null, fourth = map(per_bin, (view.residual**2, view.p * view.complement, view.residual**4))
        raw = cls(gap=table.weighted_gap, square=square, null=null, fourth=fourth)
        return raw.with_gaps(raw.gap, float(view.shares @ view.shares), truth)

    def with_gaps(self, gap: Floats, noise: float, truth: float | None) -> EcePopulation:
        """Replace the gaps by those of a pilot, scaled to `truth` or shrunk by their noise.

        Args:
            gap: (B,) gaps of the pilot.  noise: 1 / effective rows of the pilot.
        """
        if truth is not None:
            shape = gap if np.abs(gap).sum() > 0 else self.square
            gap = shape * (truth / np.abs(shape).sum())
        else:
            energy = float(gap @ gap)
            excess = float((self.square - gap**2).sum()) * noise
            gap = gap * math.sqrt(max(0.0, 1 - excess / energy)) if energy > 0 else gap
        return replace(self, gap=gap)

    def pilots(self, noise: float, truth: float | None, count: int, seed: int) -> list[EcePopulation]:
        """Draw the populations that other pilots of the same size would have led to."""
        draws = np.random.default_rng([seed, count]).standard_normal((count, len(self.gap)))
        root = np.sqrt(np.maximum(self.square - self.gap**2, 0) * noise)
        return [self.with_gaps(self.gap + root * z, noise, truth) for z in draws]

    @classmethod
    def assumed(
        cls, accuracy: float, truth: float, *, bins: int = BINS, edges: Edges = "right", event: bool = False
    ) -> EcePopulation:
        """Assume confidences from Beta(6, 6 (1 - a) / a), with mean a = accuracy, each too high by `truth`.

        Args:
            event: the rows are P(class 1) of two classes, each of which is predicted equally often.
        """
        c = _spread_confidences(accuracy)
        hit = np.clip(c - truth, 0, 1)
        if event:
            c, hit = np.concatenate([c, 1 - c]), np.concatenate([hit, 1 - hit])
        index, width = bin_index(c, bins, edges), bins + (edges == "torchmetrics")
        square, fourth = (hit * (1 - c) ** m + (1 - hit) * c**m for m in (2, 4))
        columns = (c - hit, square, c * (1 - c), fourth)
        gap, square, null, fourth = (np.bincount(index, x / len(c), width).astype(np.float64) for x in columns)
        return cls(gap=gap, square=square, null=null, fourth=fourth)

    def power(
        self,
        limit: float,
        *,
        alpha: float,
        family: int = 1,
        draws: int = DRAWS,
        seed: int = 0,
        method: Method = "sharp",
    ) -> Power:
        """Return the chance of PASS and FAIL as a function of n, from normal noise around the population's gaps."""
        passes, fails = self.chances(limit, alpha=alpha, family=family, draws=draws, seed=seed, method=method)
        return lambda n: (passes(n), fails(n))

    def chances(
        self, limit: float, *, alpha: float, family: int, draws: int, seed: int = 0, method: Method
    ) -> tuple[Chance, Chance]:
        """Return the chance of PASS, and that of FAIL, each as a function of n; of FAIL it takes far longer."""
        used = self.square > 0
        covariance = np.diag(self.square[used]) - np.outer(self.gap[used], self.gap[used])
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        noise = normals((draws, int(used.sum())), seed) @ root.T
        gap, square = self.gap[used], self.square[used]
        variance, fourth = np.maximum(square, self.null[used]), self.fourth[used]
        z, error, each = normal_quantile(1 - alpha), alpha / family, np.ones(len(gap))
        whole = error * binned_bounds.WHOLE if method == "sharp" else error

        def passes(n: float) -> float:
            length = unseen_reach(z, float(square.sum()) / n, 1 / n, 1 / n)
            most = limit - length
            if method == "sharp":
                most = binned_bounds.sharp_largest(limit, length, gap, square / n, fourth / n**3, 1 / n, alpha)
            return float((np.abs(gap + noise / math.sqrt(n)) @ each <= most).mean())

        @cache
        def reach() -> float:
            return norm_quantile(variance, 1 - whole, seed)

        def fails(n: float) -> float:
            d = gap + noise / math.sqrt(n)
            estimate = np.abs(d) @ each
            failed = estimate - reach() / math.sqrt(n) > limit
            if method == "sharp":  # a bound by signs is never above the estimate: few draws need it
                open_ = ~failed & (estimate > limit)
                failed[open_] = binned_bounds.signed(d[open_], variance / n, error - whole) > limit
            return float(failed.mean())

        return passes, fails


Chance = Callable[[float], float]
"""n -> chance of a verdict."""
Power = Callable[[float], tuple[float, float]]
"""n -> (chance of PASS, chance of FAIL)."""


def mean_power(
    truth: float,
    sd: float,
    limit: float,
    *,
    side: Side,
    alpha: float,
    family: int = 1,
    at_limit: float | None = None,
    above: tuple[float, End] = (0.0, 0.0),
    below: tuple[float, End] = (0.0, 0.0),
    lost: float = 0.0,
    moved: Callable[[float], float] = lambda n: 0.0,
    skew: float = 0.0,
) -> Power:
    """Return the chance of PASS and FAIL for a mean of independent rows.

    Args:
        truth, sd: mean and standard deviation of one row.
        side: which side of the limit passes; `zero` judges both, so that each bound of FAIL has half the error.
        at_limit: standard deviation that the bounds take (that of a share equal to the limit); None: `sd`.
        above, below: two numbers for one row, on either side: the rate at which its variance grows, and how far from
            the truth a row that was not drawn may lie (`seen` and `unseen` of `core.statistics.unseen_reach`). Of a
            rising array of distances that of the dearest of n rows is taken.
        lost: distance that is added to each bound, times n.  moved: distance that is added at n rows.
        skew: third moment over variance. Samples whose mean lies by d above the truth have a variance that is larger
            by `skew` d, so that the bound that decides is that of the samples whose bound is at the limit.
    """
    used = sd if at_limit is None else at_limit
    z, z_fail = normal_quantile(1 - alpha), normal_quantile(1 - alpha / family / (2 if side == "zero" else 1))
    least = {"max": -math.inf, "min": limit, "zero": -limit}[side]  # values from `least` to `most` pass
    most = {"max": limit, "min": math.inf, "zero": limit}[side]

    def chance(n: float) -> tuple[float, float]:
        if sd == 0:
            passes = least <= truth <= most
            return float(passes), float(not passes)
        root, spread = math.sqrt(n) / sd, used * used / n

        def reach(quantile: float, end: tuple[float, End], edge: float, sign: int) -> float:
            """How far a bound lies from an estimate such that it touches `edge`, on its side `sign`."""
            far, seen = 0.0, spread
            for _ in range(2 if skew else 1):
                far = (
                    lost / n + moved(n) + unseen_reach(quantile, seen, end[0] / n, largest_contribution(end[1], n) / n)
                )
                off = edge - sign * far - truth
                seen = spread * min(max(1 + skew * off / (used * used), 0.5), 2.0) if math.isfinite(off) else spread
            return far

        up, down = reach(z, above, most, 1), reach(z, below, least, -1)
        up_fail, down_fail = reach(z_fail, above, least, 1), reach(z_fail, below, most, -1)

        def share(distance: float) -> float:
            return normal_share(distance * root)

        passed = share(most - up - truth) - share(least + down - truth)
        return max(passed, 0.0), share(least - up_fail - truth) + share(truth - most - down_fail)

    return chance


def share_power(truth: float, limit: float, *, side: Side, alpha: float, family: int = 1) -> Power:
    """Return the chance of PASS and FAIL for a share of independent rows, whose bounds are exact (Clopper-Pearson).

    The share of right rows passes a smallest value from the count on that the limit explains with a probability of at
    most alpha; binomial counts and no normal ones, which would promise up to 5 % more.

    Args:
        truth, limit: between 0 and 1, the limit not at an end.  side: `min`, or `max`, which counts the other rows.
    """
    from scipy.special import bdtr, bdtrik

    p, threshold = (truth, limit) if side == "min" else (1 - truth, 1 - limit)

    def chance(rows: float) -> tuple[float, float]:
        n = round(rows)
        short = math.ceil(bdtrik(1 - alpha, n, threshold) - 1e-9)  # right rows with which it just does not pass
        bad = math.floor(bdtrik(alpha / family, n, threshold) + 1e-9)  # and with which it just fails
        bad -= bad >= 0 and bdtr(bad, n, threshold) > alpha / family
        passed = 1.0 if short < 0 else 0.0 if short >= n else 1 - float(bdtr(short, n, p))
        return passed, float(bdtr(bad, n, p)) if bad >= 0 else 0.0

    return chance


def largest_contribution(costs: End, n: float) -> float:
    """Return the largest cost to expect among n rows: the quantile 1 - 1/n of rising costs, or the one cost of all."""
    if not isinstance(costs, np.ndarray):
        return costs
    return float(costs[min(math.floor(len(costs) * (1 - 1 / n)), len(costs) - 1)])


def rows_for(chance: Chance, power: float) -> int | None:
    """Search the smallest n >= 10 with chance(n) >= power, for a chance that grows with n; None beyond 10⁹."""
    high = FEWEST
    while chance(high) < power:
        if high >= LARGEST:
            return None
        high = min(2 * high, LARGEST)
    low = max(FEWEST, high // 2)
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= power else (middle, high)
    return high


def to_decide(
    population: EcePopulation, limit: float, *, alpha: float, family: int, method: Method = "sharp"
) -> int | None:
    """Return the rows at which a gate on ECE reaches the true verdict of this population in 4 of 5 cases.

    They are exact to 2 %, the error of the draws. None where no number of rows decides.
    """
    if population.ece == limit:
        return None
    chances = population.chances(limit, alpha=alpha, family=family, draws=QUICK, method=method)
    side = 0 if population.ece < limit else 1
    z = normal_quantile(1 - (alpha, alpha / family)[side])
    root = (z + normal_quantile(DECIDED)) * math.sqrt(float(population.square.sum())) / abs(limit - population.ece)
    return rows_near(chances[side], DECIDED, root, z)


def rows_near(chance: Chance, power: float, root: float, z: float) -> int | None:
    """Search n >= 10 with chance(n) near `power`, of a chance that was simulated with QUICK draws; None beyond 10⁹.

    The chance of a normal estimate to pass its limit by z standard errors is Φ(a √n - z): its quantile is straight in
    √n, which is followed from √n = `root` until the chance is within half the standard error of the draws. Where it
    is a step, as that of rows without spread, the quantile says nothing: after SECANTS steps the interval is halved.
    """
    aim, error = normal_quantile(power), math.sqrt(power * (1 - power) / QUICK) / 2
    least, most = low, high = math.sqrt(FEWEST), math.sqrt(LARGEST)
    root = min(max(root, least), most)
    slope, before, steps = (aim + z) / root, None, 0
    while high > 1.01 * low:
        share, steps = chance(root**2), steps + 1
        if abs(share - power) <= error:
            return round(root**2)
        low, high = (root, high) if share < power else (low, root)
        if low == most:
            return None
        point = root, normal_quantile(min(max(share, 1 / QUICK), 1 - 1 / QUICK))
        if before and (point[1] - before[1]) * (point[0] - before[0]) > 0:
            slope = (point[1] - before[1]) / (point[0] - before[0])
        before, following = point, min(max(root + (aim - point[1]) / slope, root / 2, low), 2 * root, high)
        inside = low < following < high or following == (least if following == low else most)
        root = following if inside and steps < SECANTS else math.sqrt(low * high)
    return None if high == most else math.ceil(high**2 - 1e-6)


def synthetic_logits(
    accuracy: float, classes: int = 10, rows: int = 20_000, seed: int = 0
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Draw logits of a perfectly calibrated model of the given accuracy: z ~ s·N(0, 1) per class, y ~ softmax(z).

    Returns:
        logits (rows, classes) and labels (rows,).
    """
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((rows, classes))

    def softmax(scale: float) -> Floats:
        return np.exp(log_softmax(scale * base))

    scale, _ = bisect(lambda s: accuracy - float(softmax(s).max(axis=1).mean()), 0.0, 50.0, 60, 1e-9)
    labels = (softmax(scale).cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return scale * base, np.minimum(labels, classes - 1).astype(np.int64)


@lru_cache(maxsize=1)  # rules of one plan share it
def synthetic_model(accuracy: float, classes: int) -> tuple[Predictions, Predictions]:
    """Return the rows of a calibrated model, and its population, where each of these rows occurs with many labels.

    The logits are those of `synthetic_logits`. The labels of a row are its probabilities, taken systematically: label
    number (j + u) / m of the cumulated probabilities, the largest first, for j < m, with a u that is spread evenly over
    rows of the same confidence (multiples of the golden ratio). So no number of the population depends on how a draw
    came out, and the accuracy is the one that was asked for.
    """
    z, _ = synthetic_logits(accuracy, classes)
    n, many = len(z), max(1, min(LABELINGS, ELEMENTS // z.size))
    order = np.argsort(-z, axis=1)
    reached = np.exp(log_softmax(np.take_along_axis(z, order, axis=1))).cumsum(axis=1)  # (n, K)
    u = np.empty(n)
    u[np.argsort(reached[:, 0], kind="stable")] = np.arange(n) * GOLDEN % 1

    def labels(j: int, m: int) -> npt.NDArray[np.int64]:
        place = np.minimum((reached < ((j + u) / m)[:, None]).sum(axis=1), classes - 1)
        return np.take_along_axis(order, place[:, None], axis=1)[:, 0]

    rows = Predictions.of(z, labels(0, 1))
    every = np.repeat(np.arange(n), many)
    drawn = np.column_stack([labels(j, many) for j in range(many)]).ravel()
    return rows, replace(rows, scores=PickedScores(rows.scores, every), labels=drawn)


# `calib plan`: the rows that a gate needs to reach its verdict, from a pilot or from stated assumptions.

POWERS = (0.5, 0.8, 0.9, 0.95)
POINTS = 40

PILOTS, QUICK_DRAWS = 25, 500  # other pilots that are simulated, and the draws for each
CUTOFF_DRAWS, QUICK_CUTOFF = 150, 50  # samples of a number of rows, where each is simulated; of advice and other pilots
NORMAL_90 = 1.2815515655446004  # normal quantile of .9
CROSS_FITTED = 1.14  # gains are measured with fitted temperatures, for which simulations need 14 % more rows


@dataclass(frozen=True, kw_only=True)
class Need:
    """A gate with its chances of PASS and FAIL as a function of n.

    Attributes:
        metric, side, limit: of the rule.
        truth: value of the population.  assumed: the other assumptions, as text.
        chance: of PASS and of FAIL.  others: chances by other pilots of the same size.
        independent: whether the rows were taken to be independent.

    Raises:
        UsageError: the truth is the limit.
    """

    metric: str
    side: Side
    limit: float
    truth: float
    assumed: str
    chance: Power
    others: Sequence[Power] = ()
    independent: bool = False

    def __post_init__(self) -> None:
        if (abs(self.truth) if self.side == "zero" else self.truth) == self.limit:
            problem = f"{self.rule}: the truth assumed is the limit itself, which no number of rows decides"
            raise UsageError(problem, "pass --truth")

    @property
    def rule(self) -> str:
        return rule(self.metric, self.side, self.limit)

    @property
    def verdict(self) -> Literal["PASS", "FAIL"]:
        """The verdict that is true of the population."""
        good = {"max": self.truth < self.limit, "min": self.truth > self.limit, "zero": abs(self.truth) < self.limit}
        return "PASS" if good[self.side] else "FAIL"

    def rows(self, power: float, chance: Power | None = None) -> int | None:
        """Return the fewest rows that reach the true verdict with this chance; None beyond 10⁹."""
        chance_at, which = chance or self.chance, 0 if self.verdict == "PASS" else 1
        return rows_for(lambda n: chance_at(n)[which], power)


def plan(gates: Sequence[Gate], a: Assumptions) -> Result:
    """Plan the rows of every gate, with the chance of each verdict as a curve over n.

    Raises:
        UsageError: a gate that cannot be planned, or a truth that is the limit itself.
    """
    if a.logit_factor == 1:
        problem = f"--logit-factor {a.logit_factor:g} makes no difference"
        raise UsageError(problem, "pass a factor on the logits such as 1.3")
    if a.pilot is not None and a.pilot.n < 2:
        raise InputError("a pilot of 1 row has no spread", "pass a pilot of more rows, or none")
    needs = [_need(gate, a) for gate in extensions.with_progress(gates, lambda gate: gate.metric)]
    planned, rows = list[Estimate](), list[list[Any]]()
    for need in extensions.with_progress(needs, lambda need: f"rows of {need.rule}"):
        planned.append(_rows(need, a))
        rows.append([need.rule, need.verdict, need.truth, *map(need.rows, POWERS)])
    heads = ["rule", "verdict", "truth", *(f"{p:.0%}" for p in POWERS)]
    title = "Rows by the chance of the verdict that is true"
    table = Table(name="power", title=title, columns=heads, rows=rows)
    facts: dict[str, Any] = {"alpha": a.alpha, "power": a.power, "slices": a.slices, "min_n": MIN_N}
    if a.pilot is not None:
        facts |= a.pilot.event_fact
    plots = [_plot(need, estimate, a) for need, estimate in zip(needs, planned, strict=True)]
    return Result(
        command="plan", estimates=planned, tables=[table], plots=plots, notes=_notes(needs, planned, a), facts=facts
    )


def _notes(needs: Sequence[Need], planned: Sequence[Estimate], a: Assumptions) -> list[str]:
    notes = [
        f"{e.scope}: {e.value:.0f} rows would do, but a gate runs from {MIN_N} rows (min_n)"
        for e in planned
        if e.value is not None and e.value < MIN_N
    ]
    grouped = a.pilot is not None and a.pilot.groups is not None
    if grouped and any(need.independent for need in needs):
        notes.append("rows are planned as independent for ece and baselines: rows that belong together must be more")
    return notes


def _rows(need: Need, a: Assumptions) -> Estimate:
    """Return the planned rows; with a pilot the 90 % quantile over pilots that could have been drawn.

    The rows at the pilot's own value are too few for half of all pilots.
    """
    at_truth = need.rows(a.power)
    how = f"{need.verdict} with a chance of {number_format.percent(a.power)}; {need.assumed}"
    common: dict[str, Any] = {"name": "n", "unit": "rows", **Scope(subject=need.rule).fields}
    if not need.others:
        if at_truth is None:
            return Estimate(value=None, reason="more than 10⁹ rows", how=how, **common)
        return Estimate(value=at_truth, how=how, detail={"truth": need.truth}, **common)
    every = sorted([at_truth or math.inf, *(need.rows(a.power, chance) or math.inf for chance in need.others)])
    low, high = (every[round(share * (len(every) - 1))] for share in (0.1, 0.9))
    detail: dict[str, Any] = {"truth": need.truth, "rows_at_truth": at_truth}
    assert a.pilot is not None
    if math.isinf(high):
        reason = f"pilots of {a.pilot.n:,} rows do not tell this rule's verdict: pass --truth, or a larger pilot"
        ends: dict[str, Any] = {} if math.isinf(low) else {"low": low, "level": 0.9, "sided": "lower"}
        return Estimate(value=None, reason=reason, how=how, detail=detail, **ends, **common)
    how += f"; pilots of {a.pilot.n:,} rows say {low:,} to {high:,} in 8 of 10 cases: the most of these is planned"
    return Estimate(value=high, low=low, high=high, level=0.8, how=how, detail=detail, **common)


def _need(gate: Gate, a: Assumptions) -> Need:
    k = a.pilot.k if a.pilot is not None else a.n_classes
    if gate.baseline:
        judging.resolved(gate, "", k)
        return _against_baseline(gate, a)
    choice = choose([gate.metric], k, a.pilot is not None and a.pilot.top_only)[0]
    resolved = judging.resolved(gate, choice.traits.better, k)
    side, limit = resolved.side, resolved.limit
    values = judging.possible(choice.spec, k)
    if a.truth is not None and not values.low <= a.truth <= values.high:
        problem = f"--truth {a.truth:g} is out of range: {choice.name} is {values}"
        raise UsageError(problem, f"pass a value that is {values}")
    if choice.traits.table_bounds:
        return _ece(choice.options, choice.spec, limit, a)
    pilot = _rows_of(a)
    sample = Sample.of(columns_of(pilot, [choice]), pilot, a.seed)
    [e] = estimates(sample, [choice], level=0.9)
    statistic = choice(sample)
    if isinstance(statistic, CutoffStatistic):
        return _cutoff(statistic, e, choice, limit, a)
    # the rows of one outcome, a slope or an area need other arithmetic than that of `mean_power`
    every = isinstance(statistic, MeanOf) and statistic.rows.n == pilot.n
    if e.value is None or e.n is None or not every:
        problem = f"{gate.metric} cannot be planned: it is no mean over all rows"
        raise UsageError(problem, "plan one of: accuracy, ece, nll, brier; or a --margin against a baseline")
    truth = _truth(choice, e.value, a)
    sd = (e.se or 0.0) * math.sqrt(e.n)
    at_limit = sd
    if choice.traits.rows == "zero_one":  # an exact interval takes the spread that the limit implies
        sd, at_limit = math.sqrt(truth * (1 - truth)), math.sqrt(max(limit * (1 - limit), 0.0))
    arguments: dict[str, Any] = {"side": side, "at_limit": at_limit, "alpha": a.alpha, "family": a.slices}
    arguments |= _steps(statistic, truth)
    truth_se = (e.se or 0.0) if a.pilot is not None and a.truth is None else 0.0
    if choice.traits.rows == "zero_one" and 0 < limit < 1 and pilot.weights is None and pilot.groups is None:
        del arguments["at_limit"]
        chances = _chances(lambda truth: share_power(min(max(truth, 0.0), 1.0), limit, **arguments), truth, truth_se)
    else:
        chances = _chances(lambda truth: mean_power(truth, sd, limit, **arguments), truth, truth_se)
    source = "the pilot's spread" if a.pilot is not None else f"a calibrated synthetic model of {a.n_classes} classes"
    assumed = f"{source}, true {choice.spec} {truth:.4g}"
    return Need(metric=choice.spec, side=side, limit=limit, truth=truth, assumed=assumed, **chances)


@lru_cache(maxsize=1)  # rules of one plan share it: SciPy takes half of a plan's time for these quantiles
def _spread_confidences(accuracy: float) -> Floats:
    """Return 200,000 quantiles of Beta(6, 6 (1 - a) / a), which has the mean a = accuracy."""
    from scipy.special import betaincinv

    return np.asarray(betaincinv(6.0, 6 * (1 - accuracy) / accuracy, (np.arange(200_000) + 0.5) / 200_000))


def _chances(chance_of: Callable[[float], Power], truth: float, se: float) -> dict[str, Any]:
    """Return `chance` and `others` of a need: at the truth, and at the ends of the interval that a pilot has for it."""
    chance, *others = (chance_of(truth + z * se) for z in ((0, -NORMAL_90, NORMAL_90) if se else (0,)))
    return {"chance": chance, "others": others}


def _ece(options: Any, spec: str, limit: float, a: Assumptions) -> Need:
    binning = {"bins": options["bins"], "edges": options["edges"]}
    if a.pilot is None:
        event = a.n_classes == 2 and options["of"] == "auto"
        population = EcePopulation.assumed(a.accuracy, a.truth or 0.0, event=event, **binning)
        assumed = f"confidences spread around {a.accuracy:g}, each too high by {a.truth or 0.0:g}"
        pilots: list[EcePopulation] = []
    else:
        view = Sample.of(columns(a.pilot, class_bins=())).view(options["of"])
        population = EcePopulation.of(view, view.width_bins(**binning), a.truth)
        if a.truth is None and population.ece == 0:
            none = f"the pilot's {a.pilot.n:,} rows show no {spec}"
            problem = f"{none} beyond what is noise, which may hide any small one"
            raise UsageError(problem, "pass --truth with the value to plan for (0: a calibrated model), or more rows")
        assumed = f"confidences of the pilot, true ECE {population.ece:.4g}"
        assumed += " (its own, less what is noise)" if a.truth is None else ""
        pilots = population.pilots(1 / view.effective, a.truth, PILOTS, a.seed)
    power = partial(EcePopulation.power, limit=limit, alpha=a.alpha, family=a.slices, seed=a.seed)
    truth = population.ece if a.truth is None else a.truth
    rule: dict[str, Any] = {"metric": spec, "side": "max", "limit": limit}
    others = [power(pilot, draws=QUICK_DRAWS) for pilot in pilots]
    return Need(**rule, truth=truth, assumed=assumed, chance=power(population), others=others, independent=True)


def _cutoff(
    statistic: CutoffStatistic, e: Estimate, choice: Choice[MetricTraits], limit: float, a: Assumptions
) -> Need:
    """Plan by simulation, at the value of the pilot less what chance adds to it, or of a calibrated model."""
    own = a.pilot is not None and a.truth is None
    truth = statistic.beyond_chance if own else a.truth or 0.0
    if own and truth == 0:
        none = f"the pilot's {e.n:,} rows show no {choice.spec}"
        problem = f"{none} beyond what is noise, which may hide any small one"
        raise UsageError(problem, "pass --truth with the value to plan for (0: a calibrated model), or more rows")
    populations = [
        CutoffPopulation.of(statistic, value, own_gaps=a.pilot is not None)
        for value in (truth, *((e.low or 0.0, e.high or truth) if own else ()))
    ]
    if populations[0].truth < 0.99 * truth:
        most = f"{choice.spec} is at most {populations[0].truth:.3g} with these probabilities"
        problem = f"--truth {truth:g} is out of reach: {most}"
        raise UsageError(problem, "pass a smaller one")

    def power(population: CutoffPopulation, draws: int) -> Power:
        if (population.truth > limit) != (truth > limit):  # no number of rows shows it another verdict than its own
            return lambda n: (0.0, 0.0)
        return lambda n: (
            population.chance(0, n, limit, a.alpha, draws),
            population.chance(1, n, limit, a.alpha / a.slices, draws),
        )

    chance, *others = map(power, populations, (CUTOFF_DRAWS, QUICK_CUTOFF, QUICK_CUTOFF))
    synthetic = f"a calibrated synthetic model of {a.n_classes} classes"
    source = synthetic if a.pilot is None else "probabilities of the pilot"
    assumed = f"{source}, true {choice.spec} {truth:.4g}" + (" (its own, less what is noise)" if own else "")
    rule: dict[str, Any] = {"metric": choice.spec, "side": "max", "limit": limit, "independent": True}
    return Need(**rule, truth=truth, assumed=assumed, chance=chance, others=others)


def cutoff_rows(statistic: CutoffStatistic, limit: float, *, alpha: float, family: int) -> int | None:
    """Return about the rows at which a gate reaches the true verdict in 4 of 5 cases; None beyond 10⁹."""
    truth, n = statistic.beyond_chance, statistic.view.effective
    population, (side, error) = (
        CutoffPopulation.of(statistic, truth),
        (1, alpha / family) if truth > limit else (0, alpha),
    )
    rows = rows_for(lambda m: population.chance(side, m, limit, error, QUICK_CUTOFF) if m > n else 0.0, DECIDED)
    per_row = 1.0 if statistic.view.counts else statistic.view.n / n
    return None if rows is None else round(rows * per_row)


def _against_baseline(gate: Gate, a: Assumptions) -> Need:
    """Plan a gate against a baseline, for a new model whose logits are `logit_factor` times those of the baseline."""
    choice = choose([gate.metric], a.n_classes if a.pilot is None else a.pilot.k)[0]
    gain = choice.traits.rows == "cross_fitted"
    if choice.traits.rows == "zero_one":
        raise UsageError("a factor on the logits changes no accuracy", "plan temperature_gain, nll or brier")
    pilot = _rows_of(a)
    z, y = pilot.logits, pilot.labels
    beta = fit_beta(z, y, pilot.weights).beta if a.pilot is not None else 1.0
    factors = (beta, beta * a.logit_factor)
    models = [Predictions.of(z * f, y) for f in factors]
    tables = [columns(model, class_bins=()) for model in models]
    # the re-fitted temperatures make both models the same, so that gains differ by the NLL
    first, second = (
        nll_rows(z, y, f) if gain else choice(Sample.of(t)).values for t, f in zip(tables, factors, strict=True)
    )
    delta = second - first
    truth, sd = float(delta.mean()), float(delta.std(ddof=1))
    margin = gate.margin or 0.0
    every = np.arange(len(y))
    old, new = (baseline.rows(*pair) for pair in zip(models, tables, strict=True))
    low, high = baseline.difference_range(new, old, Pairing(new=every, base=every, how=""), gate.metric)
    rows = WeightedMean(delta, None, False, None)
    lost, cost = (baseline.FITTED * old.cost * len(y), CROSS_FITTED) if gain else (0.0, 1.0)
    arguments: dict[str, Any] = {"side": "max", "alpha": a.alpha, "family": a.slices, "lost": lost}
    if gain:
        dear = np.sort(old.most.astype(np.float64))
        arguments["moved"] = lambda n: baseline.moved(largest_contribution(dear, n) / n, old.curvature)

    def chance_of(truth: float) -> Power:
        of_mean = mean_power(truth, sd, margin, **(arguments | _steps_of(rows, truth, low, high)))
        return lambda n: of_mean(n / cost)

    chances = _chances(chance_of, truth, sd / math.sqrt(len(delta)) if a.pilot is not None else 0.0)
    source = "the pilot's re-scaled logits" if a.pilot is not None else f"a synthetic model of accuracy {a.accuracy:g}"
    assumed = f"logits {a.logit_factor:g} times those of a calibrated baseline ({source}), difference {truth:.4g}"
    rule: dict[str, Any] = {"metric": f"{gate.metric} - baseline", "side": "max", "limit": margin}
    return Need(**rule, truth=truth, assumed=assumed, **chances, independent=True)


def _steps(statistic: Statistic, truth: float) -> dict[str, Any]:
    """Return `above`, `below` and `skew` of `mean_power` for a metric; none for exact bounds."""
    if not isinstance(statistic, MeanOf) or statistic.share:
        return {}
    return _steps_of(statistic.rows, truth, *statistic.range)


def _steps_of(rows: WeightedMean, truth: float, low: End, high: End) -> dict[str, Any]:
    """Return `above`, `below` and `skew` of `mean_power` for rows that may each have any value from `low` to `high`."""
    skew = rows.skew * rows.effective
    up, down = (np.maximum(np.sort(far), 0.0) if np.ndim(far) else far for far in (high - truth, truth - low))
    return {"above": (max(skew, 0.0), up), "below": (max(-skew, 0.0), down), "skew": skew}


def _rows_of(a: Assumptions) -> Predictions:
    """Return the pilot, or the rows of a synthetic model."""
    return a.pilot if a.pilot is not None else synthetic_model(a.accuracy, a.n_classes)[0]


def _truth(choice: Choice[MetricTraits], measured: float, a: Assumptions) -> float:
    """Return the value that a metric is planned for: as asked, or that of the pilot or of the synthetic population."""
    if a.truth is not None or a.pilot is not None:
        return measured if a.truth is None else a.truth
    population = synthetic_model(a.accuracy, a.n_classes)[1]
    statistic = choice(Sample.of(columns_of(population, [choice]), population))
    value = measured if statistic.value is None else float(statistic.value)
    return a.accuracy if choice.traits.rows == "zero_one" and abs(value - a.accuracy) < SAME else value


def _plot(need: Need, estimate: Estimate, a: Assumptions) -> Plot:
    middle = estimate.value or 1e5
    grid = np.unique(np.geomspace(max(10, middle / 10), middle * 5, POINTS).round()).tolist()
    chances = [need.chance(n) for n in grid]
    curves = [
        Curve(label="PASS", kind="line", role="model", x=grid, y=[p for p, _ in chances]),
        Curve(label="FAIL", kind="line", role="gap", x=grid, y=[f for _, f in chances]),
        Curve(label="INCONCLUSIVE", kind="line", role="null", x=grid, y=[1 - p - f for p, f in chances]),
        Curve(label=number_format.percent(a.power), kind="hline", role="ideal", y=[a.power]),
    ]
    if estimate.value is not None:
        curves.append(Curve(label="planned n", kind="vline", role="best", x=[estimate.value]))
    return Plot(
        name="power",
        title=f"{need.rule}, truth {need.truth:.4g}" + (f": n = {estimate.value:.0f}" if estimate.value else ""),
        xlabel="rows n",
        ylabel="chance of the verdict",
        xscale="log",
        ylim=(0.0, 1.0),
        curves=curves,
        group="Chance of each verdict",
    )
