"""Find the confidence above which a prediction may be used without a person: `calib threshold`.

Derivation of the level and of the effective rows: docs/statistics/threshold.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.core import number_format
from calibcli.core.errors import InputError, UsageError, did_you_mean
from calibcli.core.figure_data import Curve, Later, Plot
from calibcli.core.number_format import count_text, exact, percent
from calibcli.core.result import Check, Estimate, Result, Screen
from calibcli.core.scope import Scope
from calibcli.core.statistics import beta_tails, bisect, clopper_pearson, effective_rows, group_places
from calibcli.gate.check import MOST_SLICES
from calibcli.gate.config import Config, Gate
from calibcli.gate.decision import FACT, Decision, marks
from calibcli.gate.judging import most_rows, too_close
from calibcli.gate.options import Promise
from calibcli.gate.sources import RecordedOutputs
from calibcli.metrics.intervals import FEWEST_GROUPS, WeightedMean, share_bounds
from calibcli.metrics.registry import Sample
from calibcli.metrics.report import class_names
from calibcli.scores import left_out
from calibcli.scores.columns import MANY, Columns
from calibcli.scores.predictions import Floats, Ints, Predictions

# The walk: candidates from the highest score down, the level that each is tested at, and the last that passes.

PARTS = 80  # candidates at equal ratios, and as many at equal steps
DIGITS = 3  # of a threshold, so that it can be copied; of its distance from 1 above 1/2
CLEAR = 1e-7  # distance from every score on whose rows it was found, more than single precision rounds
Chance = Callable[[float, float, float], float]
"""`chance_of` or `chance_above`: of so few, or so many, wrong rows if the risk were the limit."""
WIDE = 1 << 22  # products from which on a convolution is done by Fourier transforms


@dataclass(frozen=True, eq=False)
class Judged:
    """Rows to choose a threshold on.

    Attributes:
        score: (N,) in [0, 1]; rows are accepted from the highest down.  wrong: (N,) bool.
        weights: (N,) or None.  counts: whether weights are frequencies.  groups: (N,) codes of groups, or None.
    """

    score: Floats
    wrong: npt.NDArray[np.bool_]
    weights: Floats | None = None
    counts: bool = False
    groups: Ints | None = None

    def at(self, rows: npt.NDArray[Any]) -> Judged:
        """Return some of the rows."""
        weights, groups = (None if a is None else a[rows] for a in (self.weights, self.groups))
        return Judged(self.score[rows], self.wrong[rows], weights, self.counts, groups)


def fewest(limit: float, level: float) -> int:
    """Compute ⌈ln level / ln(1 - limit)⌉, the fewest rows without an error that show a risk of at most `limit`."""
    return math.ceil(math.log(level) / math.log1p(-limit))


def rounded_down(score: Floats) -> Floats:
    """Return thresholds (N,) of few digits, each below its score by `CLEAR` or more; of scores below that, 0."""
    x = np.maximum(score - CLEAR, 0.0)
    small = np.minimum(x, 1 - x)  # the side whose digits count
    unit = 10.0 ** (np.floor(np.log10(np.maximum(small, CLEAR))) + 1 - DIGITS)
    floor = np.where(x < 0.5, np.floor(x / unit) * unit, 1 - np.ceil((1 - x) / unit) * unit)
    return np.asarray(np.round(floor, 12))


def level_of(rows: Sequence[int], limit: float, alpha: float) -> float:
    """Compute the level a* of all candidates: with a risk of `limit` everywhere, P(any passes) <= alpha.

    A candidate of k rows passes with so few wrong ones that P(Bin(k, limit) <= wrong) <= a*. From one candidate to the
    next the number of wrong rows grows by Bin(step, limit); the paths that pass are cut off and their probability is
    added up. That sum rises with a*, which is found by bisection. Ours; exact where the risk is the same everywhere.

    Args:
        rows: of the candidates, rising.
    """
    steps = [_binomial(int(step), limit) for step in np.diff(rows, prepend=0)]
    shares = [(low, np.cumsum(p)) for low, p in (_binomial(int(k), limit) for k in rows)]

    def passes(level: float) -> float:
        first, paths, passed = 0, np.ones(1), 0.0  # paths[i]: that none has passed, and first + i rows are wrong
        for (least, step), (low, share) in zip(steps, shares, strict=True):
            first, paths = first + least, _convolved(paths, step)
            last = low + int(np.searchsorted(share, level, side="right"))  # from here on too many are wrong
            cut = min(max(last - first, 0), len(paths))
            passed += float(paths[:cut].sum())
            first, paths = first + cut, paths[cut : max(low + len(share) - first, 0)]
            if passed > alpha or not len(paths):
                break
        return passed

    ends = math.log(alpha / (2 * len(rows))), math.log(alpha)
    return math.exp(bisect(lambda log_level: alpha - passes(math.exp(log_level)), *ends)[0])


def _binomial(n: int, p: float) -> tuple[int, Floats]:
    """Return the least number that a binomial takes with a chance that matters, and the chances from there on."""
    reach = 10 * math.sqrt(n * p * (1 - p)) + 30
    low, high = max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach))
    hits = np.arange(low, high + 1)
    logs = np.append(0.0, np.cumsum(np.log((n - hits[:-1]) / hits[1:] * (p / (1 - p)))))
    chances = np.exp(logs - logs.max())
    return low, chances / chances.sum()


def _convolved(a: Floats, b: Floats) -> Floats:
    if len(a) * len(b) < WIDE:
        return np.convolve(a, b)
    size = len(a) + len(b) - 1
    padded = 1 << size.bit_length()
    return np.maximum(np.fft.irfft(np.fft.rfft(a, padded) * np.fft.rfft(b, padded), padded)[:size], 0.0)


@dataclass(frozen=True, eq=False)
class Walk:
    """The candidates for a threshold in falling order, each with the rows that it accepts.

    Attributes:
        limit: largest risk of accepted rows.  alpha: chance of a threshold whose risk is larger.
        tau: (M,) thresholds.  rows: (M,) rows with at least that score.  share: (M,) of the weight.
        seen: (M,) share of the accepted weight that is wrong.  effective: (M,) independent rows of equal weight.
    """

    limit: float
    alpha: float
    tau: Floats
    rows: Ints
    share: Floats
    seen: Floats
    effective: Floats

    @classmethod
    def of(cls, judged: Judged, limit: float, alpha: float) -> Walk:
        """Choose the candidates by the scores alone, and count what each accepts."""
        n, least = len(judged.score), fewest(limit, alpha)
        judged = judged.at(np.argsort(-judged.score, kind="stable"))
        spread = [np.geomspace(least, n, PARTS), np.linspace(least, n, PARTS)] if least <= n else [np.empty(0)]
        ranks = np.unique(np.rint(np.concatenate(spread)).astype(np.int64))
        tau = np.unique(rounded_down(judged.score[ranks - 1]))[::-1]
        rows = np.searchsorted(-judged.score, -tau, side="right")
        rows, first = np.unique(rows, return_index=True)  # of thresholds that accept the same rows the highest
        share, seen, effective = _counted(judged, rows)
        some = effective >= 1
        return cls(limit, alpha, tau[first][some], rows[some], share[some], seen[some], effective[some])

    @cached_property
    def level(self) -> float:
        """The level a* of each candidate."""
        rows = np.maximum.accumulate(np.floor(self.effective).astype(np.int64))
        return level_of(rows.tolist(), self.limit, self.alpha) if len(rows) else self.alpha

    @cached_property
    def chances(self) -> Floats:
        """(M,) chance of so few wrong rows if the risk were the limit."""
        return np.array([chance_of(n, seen, self.limit) for n, seen in zip(self.effective, self.seen, strict=True)])

    @cached_property
    def chosen(self) -> int | None:
        """The candidate that accepts most of those that pass; None if none does."""
        passed = np.flatnonzero(self.chances <= self.level)
        return int(passed[-1]) if len(passed) else None

    @cached_property
    def bounds(self) -> Floats:
        """(M,) upper bounds of the risk at the level a*."""
        return np.array(
            [clopper_pearson(n * seen, n, self.level)[1] for n, seen in zip(self.effective, self.seen, strict=True)]
        )


def _counted(judged: Judged, rows: Ints) -> tuple[Floats, Floats, Floats]:
    """Count of the first k rows, for each k of `rows`: their share, that of wrong ones among them, effective rows."""
    weights = np.ones(len(judged.score)) if judged.weights is None else judged.weights
    total, wrong, ends = np.cumsum(weights), np.cumsum(weights * judged.wrong), rows - 1
    return total[ends] / total[-1], wrong[ends] / total[ends], _effective(judged, rows)


def chance_of(n: float, seen: float, limit: float) -> float:
    """Compute P(Bin(n, limit) <= n seen) by the beta distribution, as neither number need be whole."""
    return 1.0 if seen >= limit else beta_tails(limit, 1 - limit, n * seen + 1, n - n * seen)[1]


def _effective(judged: Judged, rows: Ints) -> Floats:
    """Compute how many independent rows of equal weight the first k rows count as, for each k of `rows`.

    Σw / h / (1 + (m - 1) ρ). h is what a wrong row weighs, Σw² e / Σw e of the k rows or of all, or a row, Σw² / Σw,
    whichever is most: weights may depend on the outcome. m = Σ_g c_g² / Σw², with c_g the weight of group g, is the
    number of rows of a group, and ρ the correlation of being wrong within groups, from all rows.
    """
    w = np.ones(len(judged.score)) if judged.weights is None else judged.weights
    square = w if judged.counts else w * w
    total, squares = np.cumsum(w), np.cumsum(square)
    ends = rows - 1
    wrong, wrong_squares = np.cumsum(w * judged.wrong), np.cumsum(square * judged.wrong)
    heavy = np.divide(wrong_squares, wrong, out=np.zeros(len(w)), where=wrong > 0)
    effective: Floats = total[ends] / np.maximum(np.maximum(heavy[ends], heavy[-1]), squares[ends] / total[ends])
    if judged.groups is None:
        return effective
    correlation, sizes, before = _correlation(judged, w, square), np.zeros(int(judged.groups.max()) + 1), 0
    for i, k in enumerate(rows.tolist()):
        sizes += np.bincount(judged.groups[before:k], w[before:k], len(sizes))
        effective[i] /= 1 + max(float(sizes @ sizes) / squares[k - 1] - 1, 0.0) * correlation
        if effective_rows(sizes) < FEWEST_GROUPS:
            effective[i] = 0.0
        before = k
    return effective


def _correlation(judged: Judged, w: Floats, square: Floats) -> float:
    """Estimate the correlation of being wrong within groups from the squares of the groups' sums, in [0, 1].

    A standard error of these squares is added: where few groups have wrong rows, a sample that has too few of them
    shows too little correlation as well.
    """
    deviation = judged.wrong - np.average(judged.wrong, weights=w)
    codes, member = group_places(np.asarray(judged.groups))
    sums, sizes = np.bincount(member, w * deviation), np.bincount(member, w)
    within = float(square @ deviation**2)
    pairs = float(sizes @ sizes) - float(square.sum())
    if pairs <= 0 or within <= 0:
        return 0.0
    power, count = sums * sums, len(codes)
    spread = math.sqrt(max(float(power @ power) - float(power.sum()) ** 2 / count, 0.0))  # standard error of the sum
    between = float(power.sum()) * count / max(count - 1, 1) + spread - within
    return min(max(between / pairs * float(square.sum()) / within, 0.0), 1.0)


# Where there is no threshold: whether there surely is none that is of use, or else how many rows would decide it.

USEFUL = 0.05  # a threshold that accepts less of the rows, or of a class so many, is of little use


@dataclass(frozen=True, eq=False)
class Useful:
    """Thresholds that accept a useful share of the rows, from the highest score down.

    Attributes:
        limit: largest risk of accepted rows.  alpha: chance of the claim that there is none, where there is one.
        n: rows of the file.  seen: (M,) share of the accepted weight that is wrong.  effective: (M,) rows that count.
    """

    limit: float
    alpha: float
    n: int
    seen: Floats
    effective: Floats

    @classmethod
    def of(cls, judged: Judged, limit: float, alpha: float, fewest: float, of: int) -> Useful:
        """Take thresholds that accept `fewest` rows or more, each with its ties; `of`: rows of the file."""
        n = len(judged.score)
        if n == 0:
            return cls(limit, alpha, of, np.empty(0), np.empty(0))
        judged = judged.at(np.argsort(-judged.score, kind="stable"))
        ranks = np.unique(np.rint(np.geomspace(min(max(math.ceil(fewest), 1), n), n, PARTS)).astype(np.int64))
        rows = np.unique(np.searchsorted(-judged.score, -judged.score[ranks - 1], side="right"))
        return cls(limit, alpha, of, *_counted(judged, rows)[1:])

    @property
    def surely_none(self) -> bool:
        """Whether each of them surely breaks the limit.

        Each is tested at level α. If one of them keeps the limit, all are rejected only where this one is, so that the
        claim is wrong with a probability of at most α, whatever their number (intersection-union test, Berger 1982).
        """
        return len(self.seen) > 0 and all(
            n >= 1 and chance_above(n, seen, self.limit) <= self.alpha
            for n, seen in zip(self.effective, self.seen, strict=True)
        )

    def rows_needed(self, level: float) -> int | None:
        """Return about how many rows would decide if all shares stay; None where no number in reach does.

        For the threshold that passes first, at a level that falls with the logarithm of the rows, as a* does; or, if
        none has a risk within the limit, until each is surely beyond it.

        Args:
            level: a* of these rows.
        """
        pairs = [pair for pair in zip(self.effective.tolist(), self.seen.tolist(), strict=True) if pair[0] > 0]
        most = math.log(most_rows(self.n) / self.n)

        def times(chance: Chance, n: float, seen: float, level: Callable[[float], float]) -> float:
            """Return the factor on the rows at which a chance is down to its level."""

            def excess(log: float) -> float:
                return chance(n * math.exp(log), seen, self.limit) - level(log)

            return math.exp(bisect(excess, 0.0, most)[1]) if excess(most) <= 0 else math.inf

        if within := [pair for pair in pairs if pair[1] < self.limit]:
            factor = min(times(chance_of, *pair, lambda log: level / (1 + log)) for pair in within)
        else:
            factor = max((times(chance_above, *pair, lambda log: self.alpha) for pair in pairs), default=math.inf)
        return None if math.isinf(factor) else max(math.ceil(self.n * factor), self.n + 1)


def chance_above(n: float, seen: float, limit: float) -> float:
    """Compute P(Bin(n, limit) >= n seen) by the beta distribution, as neither number need be whole."""
    return 1.0 if seen <= limit else beta_tails(limit, 1 - limit, n * seen, n - n * seen + 1)[0]


# The false positive rate falls as the threshold rises, so that the first candidate that fails ends a walk at level α.


def above_negatives(negatives: Judged, limit: float, alpha: float) -> float | None:
    """Return the smallest threshold that surely at most `limit` of the negatives reach; None where there is none.

    Of n negatives in falling order it lies just above the (k + 1)-th, k the largest with P(Bin(n, limit) <= k) <=
    alpha: a bound of a quantile (Wilks 1941). Rows of a group count as one.
    """
    n = len(negatives.score)
    negatives = negatives.at(np.argsort(-negatives.score, kind="stable"))
    w = np.ones(n) if negatives.weights is None else negatives.weights
    square = w if negatives.counts else w * w
    heavy, total = np.cumsum(square) / np.cumsum(w), float(w.sum())
    groups = w if negatives.groups is None else np.bincount(negatives.groups, w)
    clustered = 1.0 if negatives.groups is None else max(float(groups @ groups / square.sum()), 1.0)

    def passes(k: int) -> bool:
        independent = total / max(heavy[k - 1] if k else 0.0, heavy[-1]) / clustered
        return chance_of(independent, float(w[:k].sum()) / total, limit) <= alpha

    if n == 0 or not passes(0):
        return None
    low, high = 0, n  # the largest k that passes lies between them
    while low < high:
        k = (low + high + 1) // 2
        low, high = (k, high) if passes(k) else (low, k - 1)
    if low == n:
        return 0.0
    tau = float(1 - rounded_down(1 - negatives.score[low : low + 1])[0])
    return round(tau, 12) if tau < 1 - CLEAR else None


# The result of `calib threshold`.


@dataclass(frozen=True, eq=False)
class Found:
    """The threshold of all rows, or of one slice; None where there is none.

    Attributes:
        accepted: whether each row is accepted.  seen: risk, precision or rate of these rows.
        needed: rows without an error that would show what is promised.  walk: the candidates, where there are several.
        broken: whether surely no useful threshold keeps the promise.  rows: that would decide; None: too many.
    """

    tau: float | None
    accepted: WeightedMean
    seen: float | None
    needed: int
    walk: Walk | None = None
    broken: bool = False
    rows: int | None = None


def _found(table: Columns, promise: Promise, event: bool, alpha: float) -> Found:
    """Find the threshold of the rows of a table; `event`: the class that is named is the event of two classes."""
    sample = Sample.of(table)
    score, hit = table.confidence, table.correct
    if promise.of != "risk":
        view = sample.positive
        score, hit = (view.p, view.hit) if event else (view.complement, ~view.hit)
    judged, walk = Judged(score, ~hit, sample.weights, sample.counts, table.groups), None
    level = alpha
    if promise.of == "fpr":
        tau, needed = above_negatives(judged.at(~hit), promise.risk, alpha), fewest(promise.risk, alpha)
    else:
        walk = Walk.of(judged, promise.risk, alpha)
        tau, level = None if walk.chosen is None else float(walk.tau[walk.chosen]), walk.level
        needed = fewest(promise.risk, level)
    accepted = np.zeros(len(score), bool) if tau is None else score >= tau
    mean = WeightedMean.of(sample, accepted)
    if tau is None:
        if promise.of == "fpr":  # no threshold lies above negatives whose score is as good as 1
            negatives = judged.at(~hit)
            at_one = 1 - rounded_down(1 - negatives.score) >= 1 - CLEAR
            judged, least = dataclasses.replace(negatives, wrong=at_one), float(len(at_one))
        else:
            least = USEFUL * float(hit.sum() if promise.of == "precision" else len(hit))
        useful = Useful.of(judged, promise.risk, alpha, least, len(hit))
        broken = useful.surely_none
        return Found(tau, mean, None, needed, walk, broken, None if broken else useful.rows_needed(level))
    among = (accepted, ~hit) if promise.of == "fpr" else (~hit, accepted)
    seen = WeightedMean.of(sample, *among).value
    return Found(tau, mean, 1 - seen if promise.of == "precision" else seen, needed, walk)


def report(rows: Predictions, promise: Promise, by: str = "", calibrator: str = "") -> Result:
    """Find the threshold from which on the promise is kept, for all rows or for each value of the column `by`.

    Args:
        calibrator: digest of the file of the map that the scores were passed through, or "".

    Raises:
        InputError: rows that cannot vouch for others, or without the column.
        UsageError: a promise of two classes for other rows, or of an unknown class.
    """
    source = RecordedOutputs(rows, Config())
    _refuse(source, promise)
    parts = source.slices(Gate(metric="accuracy", by=by))
    if isinstance(parts, str):
        raise InputError(parts, "name another column: --by COLUMN")
    if len(parts) > MOST_SLICES:
        raise UsageError(f"'{by}' has {len(parts):,} values, more than {MOST_SLICES:,}", "choose a coarser column")
    alpha, event = promise.alpha / len(parts), promise.name in ("", class_names(rows)[1])
    found = {name: _found(part.columns, promise, event, alpha) for name, part in parts.items()}
    some = any(one.tau is not None for one in found.values())
    estimates, checks, shares = list[Estimate](), list[Check](), dict[str, float]()
    for name, one in found.items():
        where = Scope(parts={by: name}) if by else Scope()
        tau, share, seen = _estimates(one, promise, alpha, where)
        estimates += [tau, share, seen]
        check = Check(rule=promise.rule, outcome="pass", estimate=seen, limit=promise.limit, scope=str(where))
        if one.tau is None:  # a slice of which nothing is accepted keeps the promise, if others have a threshold
            check = dataclasses.replace(
                check,
                outcome="fail" if one.broken else "inconclusive",
                message=tau.reason,
                n_needed=one.rows,
                fatal=not some,
            )
        elif share.value is not None and share.low is not None and share.high is not None:
            shares[name] = max(round(share.value - (share.high - share.low), 3), 0.0)
        checks.append(check)
    decision = Decision(
        of=promise.of,
        limit=promise.limit,
        alpha=promise.alpha,
        name="" if promise.of == "risk" else promise.name or class_names(rows)[1],
        by=by,
        tau={name: one.tau for name, one in found.items()},
        share=shares,
        calibrator=calibrator,
        rows=[file["sha256"] for file in rows.record.files if file.get("sha256")],
    )
    decision = dataclasses.replace(decision, marks=marks(decision.scores(rows)[0], rows.labels))
    walks = {name: one.walk for name, one in found.items() if one.walk is not None and len(one.walk.tau)}
    level = {"level": walks[""].level} if "" in walks else {}
    return Result(
        command="threshold",
        estimates=estimates,
        plots=Later(
            lambda: [_plot(walk, found[name], promise, name and f"{by}={name}") for name, walk in walks.items()]
        ),
        checks=checks,
        notes=[*rows.notes],
        facts={"n": rows.n, **rows.problem.facts, "alpha": promise.alpha, **level, FACT: dataclasses.asdict(decision)},
        screen=Screen(hidden=(FACT,), one_page=True),
    )


def _refuse(source: RecordedOutputs, promise: Promise) -> None:
    rows, names = source.predictions, class_names(source.predictions)
    rows.refuse_outcomes("a threshold")
    if rows.left is not None:
        counts = rows.left.counts
        raise InputError(f"{left_out.said(counts, rows.n)}, and may be wrong", left_out.options(counts))
    if promise.of != "risk" and (rows.k != 2 or rows.top_only):
        problem = f"{promise.rule} is of two classes, these are {'confidences' if rows.top_only else rows.k}"
        fix = "--max-risk 0.05 is of any; with --by class each predicted class has a threshold of its own"
        raise UsageError(problem, fix)
    if promise.name and promise.name not in names:
        raise UsageError(f"no class '{promise.name}'", did_you_mean(promise.name, names))
    if rows.n > MANY:
        raise InputError(f"{rows.n:,} rows are more than {MANY:,}", "pass a part of them, drawn at random")
    sample = Sample.of(source.whole.columns)
    groups = "" if rows.groups is None else WeightedMean.of(sample, source.whole.columns.correct).lacking
    if why := source.refusal or sample.few_carry or groups:
        problem, _, fix = why.partition(": ")
        raise InputError(problem, fix)


def _estimates(one: Found, promise: Promise, alpha: float, where: Scope) -> tuple[Estimate, Estimate, Estimate]:
    """Return threshold, share accepted, and what is promised of accepted rows, with the limit as its bound."""
    rows_named = (
        f"{one.needed:,} rows that are not the event" if promise.of == "fpr" else count_text(one.needed, "accepted row")
    )
    alike = f", all of them {promise.name}" if promise.of == "precision" else " without an error"
    how = f"{len(one.walk.tau)} candidates, each at {one.walk.level:.3g}" if one.walk else "bound of a quantile"
    common: dict[str, Any] = {"unit": "probability", "n": one.accepted.n, **where.fields}
    parts = [_none_of_use(promise) if one.broken else f"that takes {rows_named}{alike}"]
    if one.walk is not None and len(one.walk.tau):
        parts.append(_nearest(one.walk, promise))
    if not one.broken:
        n = len(one.accepted.values)
        would = "would decide if the shares stay"
        parts.append(too_close(n) if one.rows is None else f"{number_format.rows_needed(one.rows, n)} {would}")
    reason = "" if one.tau is not None else f"no threshold: {'; '.join(parts)}"
    interval, bound = dict[str, Any](), {**common, "how": how, "reason": reason, "sided": "each"}
    if one.tau is not None:
        bound |= {"low" if promise.of == "precision" else "high": promise.limit, "level": 1 - 2 * alpha}
        if ends := share_bounds(one.accepted, 0.025):
            interval = {"low": ends[0], "high": ends[1], "level": 0.95}
    if promise.of != "fpr":
        bound["n"] = int(one.accepted.values.sum())
    exactly = "Clopper-Pearson interval" if one.accepted.binomial else f"score form{one.accepted.clustered}"
    return (
        Estimate(name="threshold", value=one.tau, how=how, reason=reason, detail={"exact": True}, **common),
        Estimate(name="accepted", value=one.accepted.value, how=exactly, **interval, **common),
        Estimate(name=promise.of, value=one.seen, **bound),
    )


def _none_of_use(promise: Promise) -> str:
    """Say of which thresholds surely none keeps the promise."""
    if promise.of == "fpr":
        return "surely more of them have a score that is as good as 1"
    least = f"{percent(USEFUL)} of the rows"
    if promise.of == "precision":
        least = f"{percent(USEFUL)} of the number of rows that are {promise.name}"
    return f"surely none that accepts at least {least} keeps it"


def _nearest(walk: Walk, promise: Promise) -> str:
    """Describe the candidate of the lowest bound."""
    i = int(np.argmin(walk.bounds))
    seen, most = percent(float(walk.seen[i])), percent(float(walk.bounds[i]))
    wrong = f"not {promise.name}" if promise.of == "precision" else "wrong"
    return f"nearest is {exact(float(walk.tau[i]))}: {seen} of {int(walk.rows[i]):,} {wrong}, which may be up to {most}"


def _plot(walk: Walk, one: Found, promise: Promise, where: str) -> Plot:
    """Draw risk, its bound and the limit over the share of rows that is accepted."""
    x = walk.share.tolist()
    curves = [
        Curve(label="bound", kind="line", role="null", x=x, y=walk.bounds.tolist()),
        Curve(label="risk", kind="line", role="model", x=x, y=walk.seen.tolist()),
        Curve(label="limit", kind="hline", role="limit", y=[walk.limit]),
    ]
    if one.tau is not None:
        curves.append(Curve(label=f"threshold {exact(one.tau)}", kind="vline", role="best", x=[one.accepted.value]))
    return Plot(
        name="_".join(filter(None, ["threshold", where])),
        title=f"Risk of accepted rows, n = {one.accepted.n:,}" + (f", {where}" if where else ""),
        xlabel="share of rows accepted",
        ylabel="wrong rows of those accepted" if promise.of == "risk" else f"accepted rows that are not {promise.name}",
        xlim=(0, 1),
        ylim=(0, min(1.0, max(4 * walk.limit, 1.1 * float(walk.seen.max())))),
        curves=curves,
        group="Slices" if where else "",
    )
