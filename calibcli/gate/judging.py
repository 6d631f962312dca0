"""Verdicts of a gate: which limit a rule means, which bounds of a metric are held against it, and what they allow.

The bounds themselves are the metrics': `metrics/intervals` for means, `metrics/binned_bounds` for binned errors. Their
α is `config.Stats.alpha`, one for all rules. `judge` writes the reason of a verdict, `headlines/gates` the sentence
around it, which leaves out the "surely" that a reason begins with.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from calibcli.core.errors import UsageError
from calibcli.core.number_format import exact
from calibcli.core.options import Range
from calibcli.core.registries import Choice
from calibcli.core.result import Check, Estimate, Outcome
from calibcli.core.statistics import normal_quantile
from calibcli.gate import baseline
from calibcli.gate.config import Gate
from calibcli.metrics import METRICS
from calibcli.metrics.registry import NO_GATE, MetricTraits

# What a rule asks for: a side and a limit that lies among the values of its metric.

Side = Literal["max", "min", "zero"]
"""`max`: at most the limit. `min`: at least. `zero`: no further from 0 than the limit."""
SIDES: dict[str, Side] = {"lower": "max", "higher": "min", "zero": "zero"}
OTHER_RANGES = {**dict.fromkeys(("temperature", "grad_norm", "trace_ggn"), Range(0)), "negative_fraction": Range(0, 1)}
"""Ranges of numbers that a gate may judge in a result though they are not in the registry of metrics."""


@dataclass(frozen=True, kw_only=True)
class LimitRule:
    """A gate with the side and the limit that it means; of a baseline, those of the difference."""

    gate: Gate
    side: Side
    limit: float

    @property
    def text(self) -> str:
        metric = self.gate.metric
        return rule(f"{metric} - baseline" if self.gate.baseline else metric, self.side, self.limit)

    def error(self, alpha: float, family: int) -> float:
        """Return the error probability of each bound that FAIL needs: halved where either side of 0 may be too far."""
        return alpha / family / (2 if self.side == "zero" else 1)

    def check(self, outcome: Outcome, message: str, excused: bool = False, **fields: Any) -> Check:
        """Record a verdict of this rule; `excused`: it does not fail the run though nothing was judged."""
        gate = self.gate
        warns = excused or (outcome == "inconclusive" and gate.on_inconclusive == "warn")
        fields |= {"limit": self.limit, "fatal": not warns, "file": gate.file, "line": gate.line}
        return Check(rule=self.text, outcome=outcome, message=message, **fields)


def resolved(gate: Gate, better: str, k: int | None = None) -> LimitRule:
    """Resolve a gate as written to the side and the limit that it means.

    Args:
        gate: has one of limit, max, min; or a margin.
        better: direction of its metric: `lower`, `higher`, `zero` or "".
        k: number of classes, where it is known.

    Raises:
        UsageError: the metric has no direction; or the limit lies outside its values, bounds its better side, or is
            met by every model.
    """
    values = possible(gate.metric, k)
    if gate.baseline:
        return _margin(gate, better, values)
    side: Side = "min" if gate.min is not None or (gate.limit is not None and better == "higher") else "max"
    limit = next(v for v in (gate.max, gate.min, gate.limit) if v is not None)
    text = rule(gate.metric, side, limit)
    if not values.low <= limit <= values.high:
        fix = _percent(limit, values.high) or f"write a limit that is {values}"
        raise UsageError(f"{gate.at}{text}: {gate.name} never lies there: it is {values}", fix)
    if {"max": "higher", "min": "lower"}[side] == better:
        other, good = ("min", "high") if side == "max" else ("max", "low")
        problem = f"{gate.at}{text} limits the better side of {gate.name}: {gate.name} is better {good}"
        raise UsageError(problem, f"write --{other} {gate.metric}={limit:g}, or {other} = {limit:g}")
    if gate.limit is not None and better not in SIDES:
        raise UsageError(f"{gate.at}neither end of {gate.metric} is better", "write max or min instead of limit")
    if better == "zero" and side == "max":  # as far below 0 is as bad
        if gate.limit is not None and limit < 0:
            raise UsageError(f"{gate.at}limit {limit:g} for a distance from 0", "write a limit that is positive")
        side, limit = "zero", abs(limit)
    ends = {"max": values.high, "min": values.low, "zero": max(-values.low, values.high)}
    if limit == ends[side] or (side == "zero" and limit > ends[side]):
        fix = f"write a limit {'above' if side == 'min' else 'below'} {limit:.6g}"
        raise UsageError(f"{gate.at}{text} cannot fail: {gate.name} is {values}", fix)
    return LimitRule(gate=gate, side=side, limit=limit)


def _margin(gate: Gate, better: str, values: Range) -> LimitRule:
    """Resolve a margin against a baseline, a limit on the difference."""
    baseline.known(gate)
    margin, width = gate.margin or 0.0, values.high - values.low
    if not -width <= margin < width:
        what = "cannot fail" if margin == width else "is out of reach"
        problem = f"{gate.at}margin {margin:g} {what}: no two values of {gate.name} are further apart than {width:g}"
        raise UsageError(problem, _percent(margin, width) or f"write a margin of less than {width:g}")
    if better == "higher":
        return LimitRule(gate=gate, side="min", limit=0.0 - margin)  # -0.0 would be shown
    return LimitRule(gate=gate, side="max", limit=margin)


def possible(metric: str, k: int | None = None) -> Range:
    """Return the range of a metric, for `k` classes where their number is known."""
    name = metric.partition(":")[0]
    if name not in METRICS:
        return OTHER_RANGES.get(name, Range())
    try:
        choice = METRICS.choose(metric)
    except UsageError:  # a spec with bad options is refused elsewhere; here the range of the default spec serves
        choice = METRICS.choose(name)
    narrowed = choice.traits.narrowed
    return narrowed(k, choice.options) if narrowed else choice.traits.values


def _percent(number: float, most: float) -> str:
    """Suggest the share that a number above 1 most likely means (5 is 5 %); "" where the metric has no such maximum."""
    return f"{number:g} % is {number / 100:g}" if math.isfinite(most) and 1 < abs(number) <= 100 else ""


def rule(metric: str, side: Side, limit: float) -> str:
    """Write a rule as its canonical text: `ece <= 0.03`."""
    number = exact(limit)
    return {"max": f"{metric} <= {number}", "min": f"{metric} >= {number}", "zero": f"|{metric}| <= {number}"}[side]


# The bounds of a number: those that PASS needs, and those that FAIL needs.


@dataclass(frozen=True, kw_only=True)
class SupportedClaim:
    """An estimate with the bounds that a gate may use.

    Attributes:
        estimate: bounds that each hold at 1 - α: what PASS needs.
        low, high: bounds that each hold at 1 - error, error = α/m of m claims made together: what FAIL needs.
            error None: that of the estimate.
        needed: rows that would decide, by the metric's own arithmetic; None to scale the bounds with 1/sqrt(n).
        scales: whether the bounds shrink with 1/sqrt(n). Those of an ECE do not: only its rows tell how they shrink.
    """

    estimate: Estimate
    low: float | None
    high: float | None
    error: float | None = None
    needed: int | None = None
    scales: bool = True


def claim(e: Estimate, alpha: float, far: Estimate, error: float) -> SupportedClaim:
    """Take the bounds that PASS needs from `e`, at 1 - alpha, and those that FAIL needs from `far`, at 1 - error.

    Both estimate the same number. Bounds that hold at a higher level than needed keep it. A metric that gives a reason
    against gates has no bounds.
    """
    if why := e.detail.get(NO_GATE):
        unbounded = dataclasses.replace(e, low=None, high=None, reason=str(why))
        return SupportedClaim(estimate=unbounded, low=None, high=None)
    low, high = at_level(e, alpha)
    far_low, far_high = at_level(far, error)
    alpha, error = (
        wanted if one.level is None else min(wanted, _error(one.level, one.sided))
        for one, wanted in ((e, alpha), (far, error))
    )
    shown = dataclasses.replace(e, low=low, high=high, level=1 - 2 * alpha, sided="each")
    return SupportedClaim(estimate=shown, low=far_low, high=far_high, error=error)


def at_level(e: Estimate, alpha: float, *, widen: bool = False) -> tuple[float | None, float | None]:
    """Return the ends of a stored interval as one-sided bounds at 1 - α.

    An interval of that level or a higher one is taken as it is. One of a lower level gives no bounds, as the part of a
    bound that allows for rows not drawn grows faster than a normal one; with `widen` it is widened in proportion to
    the normal quantiles.
    """
    if e.value is None or e.level is None:
        return None, None
    error = _error(e.level, e.sided)
    stretch = 1.0
    if error > alpha * (1 + 1e-9):
        if not widen:
            return None, None
        stretch = normal_quantile(1 - alpha) / normal_quantile(1 - error) if error < 0.5 else math.inf
    low = None if e.low is None or e.sided == "upper" else e.value - stretch * (e.value - e.low)
    high = None if e.high is None or e.sided == "lower" else e.value + stretch * (e.high - e.value)
    return low, high


def _error(level: float, sided: str) -> float:
    """Return the error probability of each bound of an interval."""
    return 1 - level if sided in ("lower", "upper") else (1 - level) / 2


# The verdict: PASS, FAIL, INCONCLUSIVE or NOT RUN (`core.result.VERDICTS` has these words), by bounds and limit.

# Rows beyond which "more rows" is no advice: MOST_TIMES times those that are there, but LEAST_MOST at least.
MOST_ROWS, MOST_TIMES, LEAST_MOST = 10**9, 100, 100_000


def most_rows(n: int | None) -> int:
    """Return the most rows that are worth naming to somebody who has n."""
    return MOST_ROWS if not n else min(max(MOST_TIMES * n, LEAST_MOST), MOST_ROWS)


def too_close(n: int | None) -> str:
    """Say in plain words that no number of rows in reach of somebody who has n would decide."""
    even = f": even {most_rows(n):,} rows would not do if the value stays" if n else ""
    return f"too close to the limit to be decided by more rows{even}"


@dataclass(frozen=True)
class GateVerdict:
    """An outcome, the estimate whose bounds decided it, a short reason, and the rows that would decide.

    Where FAIL needs a bound of another level than PASS does, `estimate.detail["fail_level"]` has that level.
    """

    outcome: Outcome
    estimate: Estimate
    message: str = ""
    n_needed: int | None = None


def judge(claim: SupportedClaim, side: Side, limit: float) -> GateVerdict:
    """Judge an estimate by its bounds.

    PASS iff the number is within the limit with one-sided confidence 1 - α, FAIL iff it is beyond the limit with
    confidence 1 - α/m (m claims are made together), else INCONCLUSIVE. Without a value, or without a bound that PASS
    needs, the gate is NOT RUN.
    """
    e = claim.estimate
    needs = {"max": (e.high,), "min": (e.low,), "zero": (e.low, e.high)}[side]
    if e.value is None or None in needs:
        return GateVerdict("not_run", e, e.reason or ("no value" if e.value is None else "no valid bound"))
    low, high = _ends(e.low, e.high)
    least, most = _ends(claim.low, claim.high)
    beyond = (least > limit, most < (-limit if side == "zero" else limit))
    passed = {"max": high <= limit, "min": low >= limit, "zero": -limit <= low and high <= limit}[side]
    failed = {"max": beyond[0], "min": beyond[1], "zero": any(beyond)}[side]
    shown = _shown(claim, side, failed and not passed)
    if passed:
        return GateVerdict("pass", shown)
    if failed:
        where = {"max": "above", "min": "below", "zero": "further from 0 than"}[side]
        return GateVerdict("fail", shown, f"surely {where} the limit")
    if (claim.low if side == "max" else claim.high) is None:
        return GateVerdict("inconclusive", shown, "not passed, and no bound allows to fail it")
    if claim.needed is None and not claim.scales:
        fix = "pass the scores to see how many rows would decide"
        return GateVerdict("inconclusive", shown, f"the limit lies between the bounds; {fix}")
    needed = claim.needed if claim.needed is not None else rows_by_scaling(e, side, limit)
    if needed is None or needed > most_rows(e.n):
        return GateVerdict("inconclusive", shown, too_close(e.n))
    groups = f", in {e.groups_of(needed)} groups," if e.groups_of(needed) else ""
    decide = f"about {needed} rows{groups} would decide"
    return GateVerdict("inconclusive", shown, f"the limit lies between the bounds; {decide}", needed)


def _ends(low: float | None, high: float | None) -> tuple[float, float]:
    return -math.inf if low is None else low, math.inf if high is None else high


def _shown(claim: SupportedClaim, side: Side, failed: bool) -> Estimate:
    """Return the estimate with the bound that decides PASS and the one that decides FAIL, with its own level."""
    e, error = claim.estimate, claim.error
    if side == "zero":
        level = e.level if error is None else 1 - 2 * error
        return dataclasses.replace(e, low=claim.low, high=claim.high, level=level) if failed else e
    shown = dataclasses.replace(e, low=claim.low) if side == "max" else dataclasses.replace(e, high=claim.high)
    fails = claim.low if side == "max" else claim.high
    if fails is None or error is None or e.level is None or math.isclose(1 - e.level, 2 * error):
        return shown
    return dataclasses.replace(shown, detail={**e.detail, "fail_level": 1 - error})


def rows_by_scaling(e: Estimate, side: Side, limit: float) -> int | None:
    """Return the rows at which the bound that crosses the limit would touch it, scaled by 1/sqrt(n)."""
    if e.value is None or not e.n or e.low is None or e.high is None:
        return None
    value = abs(e.value) if side == "zero" else e.value
    half = (e.high - e.low) / 2
    reach = half if side == "zero" else e.high - value if value <= limit else value - e.low
    gap = abs(limit - value)
    if gap == 0 or reach <= 0:
        return None
    return max(e.n + 1, math.ceil(e.n * (reach / gap) ** 2))


# Which of the binned calibration errors a gate judges, and what its PASS cannot show.


def kind(choice: Choice[MetricTraits] | None) -> str:
    """Describe how a metric is binned and of which probability, such as `binned, 15 bins`; "" for other metrics."""
    if choice is None or not choice.traits.gaps:
        return ""
    options = choice.options
    text = f"binned, {options['bins']} bins"
    if "method" in options:
        text += " of equal mass"
    if choice.traits.class_bins:
        text += " per class"
    if options.get("edges", "right") != "right":
        text += f", {options['edges']} edges"
    return text + (", positive class" if options.get("of") == "positive" else "")


def blind_spot(metric: str, kind: str) -> str:
    """Write the note under every gate on a binned metric: gaps within a bin that a PASS cannot rule out."""
    return (
        f"{metric} is the binned number ({kind.removeprefix('binned, ')}): a PASS does not see gaps that cancel "
        "within a bin (cutoff_loss bounds what they cost); a FAIL holds without bins too"
    )


def promise(rule: LimitRule, choice: Choice[MetricTraits] | None, k: int | None) -> str:
    """Write the note under a rule that passed, on what that means to whoever uses the model; "" for most metrics."""
    if choice is None or not choice.traits.promise:
        return ""
    said = choice.traits.promise.format(limit=exact(rule.limit))
    if choice.options["of"] == "top" or (k != 2 and choice.options["of"] == "auto"):
        said += "; to act is to accept the prediction"
    return f"{said}; in each part by {rule.gate.by}" if rule.gate.by else said
