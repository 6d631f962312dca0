"""Verdicts: what the bounds of a number allow to be said about its limit."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from calibcli.numerics import normal_quantile
from calibcli.result import Estimate, Outcome

Side = Literal["max", "min", "zero"]
"""`max`: at most the limit. `min`: at least. `zero`: no further from 0 than the limit."""
SIDES: dict[str, Side] = {"lower": "max", "higher": "min", "zero": "zero"}
MANY = 10**9  # rows beyond which "more rows" is no advice


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A number with what may be claimed about it.

    Attributes:
        estimate: bounds that each hold at 1 - α: what PASS needs.
        low, high: bounds that each hold at 1 - α/m, m claims made together: what FAIL needs.
        needed: rows that would decide, by the metric's own arithmetic; None to scale the bounds with 1/sqrt(n).
    """

    estimate: Estimate
    low: float | None
    high: float | None
    needed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An outcome, the estimate whose bounds decided it, a short reason, and the rows that would decide."""

    outcome: Outcome
    estimate: Estimate
    message: str = ""
    n_needed: int | None = None


def judge(claim: Claim, side: Side, limit: float) -> Verdict:
    """PASS iff the number is within the limit with the one-sided confidence 1 - α, FAIL iff it is beyond it with
    1 - α/m; else INCONCLUSIVE, as is what no bound allows to FAIL. No value, or no bound that PASS needs: NOT RUN.
    """
    e = claim.estimate
    if e.value is None:
        return Verdict(outcome="not_run", estimate=e, message=e.reason or "no value")
    needs = {"max": (e.high,), "min": (e.low,), "zero": (e.low, e.high)}[side]
    if any(bound is None for bound in needs):
        return Verdict(outcome="not_run", estimate=e, message=e.reason or "no valid bound")
    low, high = claim.low, claim.high
    if side == "max":
        passed, failed = _number(e.high) <= limit, low is not None and low > limit
        shown = dataclasses.replace(e, low=low)
    elif side == "min":
        passed, failed = _number(e.low) >= limit, high is not None and high < limit
        shown = dataclasses.replace(e, high=high)
    else:
        passed = -limit <= _number(e.low) and _number(e.high) <= limit
        failed = _number(low) > limit or _number(high) < -limit
        shown = dataclasses.replace(e, low=low, high=high) if failed else e
    if passed:
        return Verdict(outcome="pass", estimate=shown)
    if failed:
        return Verdict(outcome="fail", estimate=shown, message=_reason(e.value, side, limit))
    if (low if side == "max" else high) is None:
        return Verdict(outcome="inconclusive", estimate=shown, message="not passed, and no bound allows to fail it")
    needed = claim.needed if claim.needed is not None else scaled(e, side, limit)
    if needed is None or needed > MANY:
        return Verdict(
            outcome="inconclusive", estimate=shown, message="too close to the limit to be decided by more rows"
        )
    return Verdict(
        outcome="inconclusive",
        estimate=shown,
        message=f"the bounds hold the limit; about {needed} rows would decide",
        n_needed=needed,
    )


def scaled(e: Estimate, side: Side, limit: float) -> int | None:
    """Rows at which the bound that now reaches over the limit would touch it, were the value the same."""
    if e.value is None or not e.n or e.low is None or e.high is None:
        return None
    if side == "zero":
        side, value, low, high = "max", abs(e.value), abs(e.value) - (e.high - e.low) / 2, 0.0
        high = abs(e.value) + (e.high - e.low) / 2
    else:
        value, low, high = e.value, e.low, e.high
    reach = high - value if value <= limit else value - low
    gap = abs(limit - value)
    if gap == 0 or reach <= 0:
        return None
    return max(e.n + 1, math.ceil(e.n * (reach / gap) ** 2))


def rule(metric: str, side: Side, limit: float) -> str:
    """`ece <= 0.03`: the canonical text of a rule."""
    number = repr(float(limit)).removesuffix(".0")
    return {"max": f"{metric} <= {number}", "min": f"{metric} >= {number}", "zero": f"|{metric}| <= {number}"}[side]


def at_level(e: Estimate, alpha: float, *, widen: bool = False) -> tuple[float | None, float | None]:
    """The bounds of a stored interval as one-sided bounds at 1 - α.

    An interval that is already as sure is taken as it is. A less sure one gives none, as a bound that counts what was
    not seen grows faster than a normal one; with `widen` it is widened in proportion to the normal quantiles.
    """
    if e.value is None or e.level is None:
        return None, None
    error = 1 - e.level if e.sided in ("lower", "upper") else (1 - e.level) / 2
    stretch = 1.0
    if error > alpha * (1 + 1e-9):
        if not widen:
            return None, None
        stretch = normal_quantile(1 - alpha) / normal_quantile(1 - error) if error < 0.5 else math.inf
    low = None if e.low is None or e.sided == "upper" else e.value - stretch * (e.value - e.low)
    high = None if e.high is None or e.sided == "lower" else e.value + stretch * (e.high - e.value)
    return low, high


def share_of_error(error: float, e: Estimate, limit: float | None) -> float:
    """What each end of a claim may err by: half where a number may be too far from 0 on either side."""
    return error / 2 if e.better == "zero" and limit is not None else error


def claim(e: Estimate, alpha: float, far: Estimate, error: float) -> Claim:
    """With the bounds of one estimate at 1 - alpha, and those of another of the same number at 1 - error."""
    low, high = at_level(e, alpha)
    far_low, far_high = at_level(far, error)
    shown = dataclasses.replace(e, low=low, high=high, level=1 - 2 * alpha, sided="each")
    return Claim(estimate=shown, low=far_low, high=far_high)


def _reason(value: float, side: Side, limit: float) -> str:
    if side == "zero":
        return "surely further from 0 than the limit"
    return "surely above the limit" if side == "max" else "surely below the limit"


def _number(value: float | None) -> float:
    assert value is not None
    return value
