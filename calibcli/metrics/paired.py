"""Two models on the same rows: paired differences with intervals, McNemar's exact test, and multiplicity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.metrics import paired_bins
from calibcli.metrics.intervals import BOUNDLESS, IMPOSSIBLE, Rows
from calibcli.metrics.proper import UNSEEN, high
from calibcli.metrics.sample import METRICS, Sample
from calibcli.numerics import SMALLEST_P, clopper_pearson, normal_quantile
from calibcli.predictions import Floats
from calibcli.result import Estimate

NAMES = ("nll", "ece", "brier", "accuracy")
SAME = "no row changes"
Found = tuple[float, float, float, str]
"""Value, interval and how."""


def differences(
    before: Sample, after: Sample, *, level: float = 0.95, of: str = "after minus before"
) -> list[Estimate]:
    """`nll`, `ece`, `brier` and `accuracy` of `after` minus those of `before`, samples of the same rows."""
    estimates = []
    for name in NAMES:
        choice = METRICS.choose(name)
        common: dict[str, Any] = {
            "name": name,
            "of": of,
            "unit": choice.traits.get("unit", ""),
            "better": choice.traits.get("better", ""),
            "n": before.n,
        }
        found = _binned(before, after, level) if name == "ece" else _mean(name, before, after, level)
        if isinstance(found, str):
            value = float(choice(after)) - float(choice(before))
            estimates.append(Estimate(**common, value=value if math.isfinite(value) else None, reason=found))
            continue
        value, low, up, how = found
        bounded = math.isfinite(low) and math.isfinite(up)
        ends = {"low": low, "high": up, "level": level} if bounded else {"reason": BOUNDLESS}
        estimates.append(Estimate(**common, **ends, value=value, how=how))
    return estimates


def worse(found: Sequence[Estimate]) -> list[Estimate]:
    """The differences whose whole interval lies on the worse side of zero."""
    return [
        e
        for e in found
        if e.low is not None and e.high is not None and (e.low > 0 if e.better == "lower" else e.high < 0)
    ]


def _mean(name: str, before: Sample, after: Sample, level: float) -> Found | str:
    """A mean over rows: McNemar for the accuracy of independent rows, else the score form."""
    values = METRICS.choose(name).traits["rows"]
    one, two = (np.asarray(values(sample)[0], np.float64) for sample in (before, after))
    with np.errstate(invalid="ignore"):
        change = np.where(one == two, 0.0, two - one)
    if not change.any():
        return SAME
    if not np.isfinite(change).all():
        return IMPOSSIBLE
    rows = Rows.of(before, change)
    if name == "accuracy" and rows.groups is None and (rows.weights is None or rows.counts):
        w = np.ones(rows.n) if rows.weights is None else rows.weights
        gained, lost = round(float(w @ (change > 0))), round(float(w @ (change < 0)))
        low, up, _ = mcnemar(gained, lost, round(rows.total), level)
        return rows.value, low, up, "paired: McNemar's exact test and the interval that it inverts to"
    if rows.lacking:
        return rows.lacking
    low, up = rows.bounds((1 - level) / 2, *_reach(name, before, after))
    return rows.value, low, up, f"paired: mean of differences by row, score form{rows.clustered}"


def _reach(name: str, before: Sample, after: Sample) -> tuple[float, float]:
    """How far below and above 0 the difference of a row may be: of the NLL, by the worst label of one and the best of
    the other.
    """
    if name != "nll":
        most = 2.0 if name == "brier" and before.columns.k > 2 else 1.0
        return -most, most
    (best, worst), (other_best, other_worst) = (
        (-np.log(sample.columns.confidence), sample.columns.most) for sample in (before, after)
    )
    return -high(worst - other_best, UNSEEN), high(other_worst - best, UNSEEN)


def _binned(before: Sample, after: Sample, level: float) -> Found | str:
    choice = METRICS.choose("ece")
    views = before.view(choice.options["of"]), after.view(choice.options["of"])
    if np.array_equal(views[0].p, views[1].p) and np.array_equal(views[0].hit, views[1].hit):
        return SAME
    rows = Rows(views[0].p, views[0].weights, views[0].counts, views[0].groups)
    if rows.lacking:
        return rows.lacking
    tables = [choice.traits["table"](sample, **choice.options) for sample in (before, after)]
    value, low, up, _ = paired_bins.difference(views, (tables[0], tables[1]), level)
    return value, low, up, "paired: differences by row of the signed gaps, the bias of each model taken out"


def mcnemar(gained: int, lost: int, n: int, level: float) -> tuple[float, float, float]:
    """Interval and p-value of (gained - lost) / n, where two models differ in gained + lost of n rows.

    p: exact, two-sided: each of the rows that differ is gained with chance 1/2 (McNemar 1947; binomial). The interval:
    Clopper and Pearson's for that chance θ, times the share δ of rows that differ, the difference being (2θ - 1) δ. As
    the sign of an end is that of its 2θ - 1, the interval leaves out 0 exactly if p < 1 - level. δ is taken at its
    bound on the far side, at the level z tan(φ/2), sin φ = 2θ - 1, which adds the two distances as their squares.
    """
    from scipy.special import bdtr

    differ = gained + lost
    p = 1.0 if differ == 0 else min(1.0, max(2 * float(bdtr(min(gained, lost), differ, 0.5)), SMALLEST_P))
    tail = (1 - level) / 2
    chance = clopper_pearson(gained, differ, tail) if differ else (0.0, 1.0)
    z = normal_quantile(1 - tail)

    def end(theta: float, upper: bool) -> float:
        s = 2 * theta - 1
        spent = 0.5 * math.erfc(z * math.tan(math.asin(s) / 2) * (1 if s > 0 else -1) / math.sqrt(2))
        bounds = clopper_pearson(differ, n, spent)
        return s * bounds[int((s > 0) == upper)]

    value = (gained - lost) / n
    return min(value, end(chance[0], False)), max(value, end(chance[1], True)), p


def holm(p_values: Any) -> Floats:
    """Holm's step-down adjusted p-values (Holm 1979): rejecting those <= α keeps the family-wise error at α."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
