"""Verdicts: what the bounds of a number allow to be said about its limit."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from calibcli.metrics.intervals import NO_GATE
from calibcli.numbers import exact
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
        low, high: bounds that each hold at 1 - error, error = α/m of m claims made together: what FAIL needs.
            error None: that of the estimate.
        needed: rows that would decide, by the metric's own arithmetic; None to scale the bounds with 1/sqrt(n).
        scales: whether the bounds shrink with 1/sqrt(n); those of an ECE do not, and its rows alone say how they do.
    """

    estimate: Estimate
    low: float | None
    high: float | None
    error: float | None = None
    needed: int | None = None
    scales: bool = True


@dataclass(frozen=True)
class Verdict:
    """An outcome, the estimate whose bounds decided it, a short reason, and the rows that would decide.

    Where the bound that FAIL needs holds at another level than the one that PASS needs, `detail` of the estimate has
    it: `fail_level`.
    """

    outcome: Outcome
    estimate: Estimate
    message: str = ""
    n_needed: int | None = None


def judge(claim: Claim, side: Side, limit: float) -> Verdict:
    """PASS iff the number is within the limit with the one-sided confidence 1 - α, FAIL iff it is beyond it with
    1 - α/m; else INCONCLUSIVE, as is what no bound allows to FAIL. No value, or no bound that PASS needs: NOT RUN.
    """
    e = claim.estimate
    needs = {"max": (e.high,), "min": (e.low,), "zero": (e.low, e.high)}[side]
    if e.value is None or None in needs:
        return Verdict("not_run", e, e.reason or ("no value" if e.value is None else "no valid bound"))
    low, high = _ends(e.low, e.high)
    least, most = _ends(claim.low, claim.high)
    beyond = (least > limit, most < (-limit if side == "zero" else limit))
    passed = {"max": high <= limit, "min": low >= limit, "zero": -limit <= low and high <= limit}[side]
    failed = {"max": beyond[0], "min": beyond[1], "zero": any(beyond)}[side]
    shown = _shown(claim, side, failed and not passed)
    if passed:
        return Verdict("pass", shown)
    if failed:
        where = {"max": "above", "min": "below", "zero": "further from 0 than"}[side]
        return Verdict("fail", shown, f"surely {where} the limit")
    if (claim.low if side == "max" else claim.high) is None:
        return Verdict("inconclusive", shown, "not passed, and no bound allows to fail it")
    if claim.needed is None and not claim.scales:
        fix = "pass the scores to see how many rows would decide"
        return Verdict("inconclusive", shown, f"the limit lies between the bounds; {fix}")
    needed = claim.needed if claim.needed is not None else scaled(e, side, limit)
    if needed is None or needed > MANY:
        return Verdict("inconclusive", shown, "too close to the limit to be decided by more rows")
    groups = f", in {e.groups_of(needed)} groups," if e.groups_of(needed) else ""
    decide = f"about {needed} rows{groups} would decide"
    return Verdict("inconclusive", shown, f"the limit lies between the bounds; {decide}", needed)


def _ends(low: float | None, high: float | None) -> tuple[float, float]:
    return -math.inf if low is None else low, math.inf if high is None else high


def _shown(claim: Claim, side: Side, failed: bool) -> Estimate:
    """The estimate with the bounds that a reader needs: that of PASS, and that of FAIL with its own level."""
    e, error = claim.estimate, claim.error
    if side == "zero":
        level = e.level if error is None else 1 - 2 * error
        return dataclasses.replace(e, low=claim.low, high=claim.high, level=level) if failed else e
    shown = dataclasses.replace(e, low=claim.low) if side == "max" else dataclasses.replace(e, high=claim.high)
    fails = claim.low if side == "max" else claim.high
    if fails is None or error is None or e.level is None or math.isclose(1 - e.level, 2 * error):
        return shown
    return dataclasses.replace(shown, detail={**e.detail, "fail_level": 1 - error})


def scaled(e: Estimate, side: Side, limit: float) -> int | None:
    """Rows at which the bound that now reaches over the limit would touch it, were the value the same."""
    if e.value is None or not e.n or e.low is None or e.high is None:
        return None
    value = abs(e.value) if side == "zero" else e.value
    half = (e.high - e.low) / 2
    reach = half if side == "zero" else e.high - value if value <= limit else value - e.low
    gap = abs(limit - value)
    if gap == 0 or reach <= 0:
        return None
    return max(e.n + 1, math.ceil(e.n * (reach / gap) ** 2))


def rule(metric: str, side: Side, limit: float) -> str:
    """`ece <= 0.03`: the canonical text of a rule."""
    number = exact(limit)
    return {"max": f"{metric} <= {number}", "min": f"{metric} >= {number}", "zero": f"|{metric}| <= {number}"}[side]


def at_level(e: Estimate, alpha: float, *, widen: bool = False) -> tuple[float | None, float | None]:
    """The bounds of a stored interval as one-sided bounds at 1 - α.

    An interval that is already as sure is taken as it is. A less sure one gives none, as a bound that counts what was
    not seen grows faster than a normal one; with `widen` it is widened in proportion to the normal quantiles.
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


def claim(e: Estimate, alpha: float, far: Estimate, error: float) -> Claim:
    """With the bounds of one estimate at 1 - alpha, and those of another of the same number at 1 - error.

    Bounds that are surer than asked keep their own level. Where the metric says why no gate holds, there are none.
    """
    if why := e.detail.get(NO_GATE):
        return Claim(estimate=dataclasses.replace(e, low=None, high=None, reason=str(why)), low=None, high=None)
    low, high = at_level(e, alpha)
    far_low, far_high = at_level(far, error)
    alpha, error = (
        at if one.level is None else min(at, _error(one.level, one.sided)) for one, at in ((e, alpha), (far, error))
    )
    shown = dataclasses.replace(e, low=low, high=high, level=1 - 2 * alpha, sided="each")
    return Claim(estimate=shown, low=far_low, high=far_high, error=error)


def _error(level: float, sided: str) -> float:
    """The error probability of each bound of an interval."""
    return 1 - level if sided in ("lower", "upper") else (1 - level) / 2
