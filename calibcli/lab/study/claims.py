"""Verdicts on claims about arms that were trained with several seeds and measured on the same rows, with their
figures.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from calibcli.core.figure_data import Curve, Plot
from calibcli.core.statistics import student_quantile, two_sided
from calibcli.lab.study.experiment import Arm, Study, StudyClaim
from calibcli.metrics import paired
from calibcli.scores.predictions import Floats

# Verdicts on claims about arms that were trained with several seeds and measured on the same rows.
#
# Seeds and rows are crossed: every arm has every seed, and all runs are measured on the same rows. A mean over seeds
# errs
# by the seeds that were drawn (variance of the paired differences over S) and by the rows: the mean covariance of two
# seeds in a bootstrap of the rows, as what is a seed's own is in the first part already. Both count: a verdict is
# about
# the recipe and the population, not about these rows.

Word = Literal["holds", "reversed", "undecided", "not comparable", "no verdict"]
DRAWS = 200
MOST_SEEDS = 10_000
ASKEW = 25


@dataclass(frozen=True)
class MeasuredArm:
    """One metric of one arm.

    Attributes:
        values: (S,) one for each seed.
        draws: (S, B) each of them on each draw of the rows; None where what rows add is not known.
    """

    values: Floats
    draws: Floats | None = None

    def __sub__(self, other: MeasuredArm) -> MeasuredArm:
        known = self.draws is not None and other.draws is not None
        return MeasuredArm(self.values - other.values, self.draws - other.draws if known else None)  # type: ignore[operator]


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds with both of its errors.

    The squares of the two half widths, Student's for the seeds and the normal one for the rows, add up: an interval is
    never shorter than for these rows alone, however few the seeds (Welch's and Satterthwaite's degrees of freedom are a
    guess from as few, and too many: 92 % of 3 seeds cover).

    Attributes:
        seeds, rows: variances of the mean that come from either.
    """

    value: float
    seeds: float
    rows: float
    count: int

    @classmethod
    def of(cls, found: MeasuredArm) -> SeedMean:
        count = len(found.values)
        seeds = float(found.values.var(ddof=1)) / count if count > 1 else math.nan
        return cls(float(found.values.mean()), seeds, 0.0 if found.draws is None else _shared(found.draws), count)

    @property
    def error(self) -> float:
        return math.sqrt(self.seeds + self.rows)

    def half(self, level: float, rows: bool = True) -> float:
        """Half the width of the interval at `level`; without `rows`, for these rows alone."""
        return math.sqrt(_square(self.seeds, self.count, self.rows if rows else 0.0, level))

    def p(self, against: float = 0.0) -> float:
        """Two-sided, of a mean of `against`: of the interval that just reaches it."""
        off = abs(self.value - against)
        if self.error == 0:
            return float(off == 0)
        if self.seeds == 0:
            return two_sided(off / self.error)
        low, high = 0.0, off / math.sqrt(self.seeds)  # Student's t of the seeds, the largest without rows
        for _ in range(60 if self.rows else 0):
            t = (low + high) / 2
            normal = student_quantile(two_sided(t, self.count - 1) / 2, math.inf)
            low, high = (t, high) if t**2 * self.seeds + normal**2 * self.rows < off**2 else (low, t)
        return two_sided(high, self.count - 1)

    def needed(self, level: float) -> tuple[int | None, float | None]:
        """Seeds that would decide the sign, were the values as they are; or else how many times the rows.

        With seeds without end the error is that of the rows: where that alone is too large, more rows are needed.
        """
        square, most = self.value**2, self.rows * student_quantile((1 + level) / 2, math.inf) ** 2
        if square <= most:
            return None, most / square if square else None
        low, high = 1, 2  # too few, and perhaps enough
        while not self._decides(high, level):
            low, high = high, 2 * high
            if high > MOST_SEEDS:
                return None, None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._decides(middle, level) else (middle, high)
        return high, None

    def _decides(self, count: int, level: float) -> bool:
        """Whether so many seeds would decide the sign."""
        return _square(self.seeds * self.count / count, count, self.rows, level) < self.value**2


@dataclass(frozen=True)
class ClaimVerdict:
    """What became of a claim.

    Attributes:
        p: of the hypothesis that must be refuted for the word; corrected for the number of claims by `holm`.
        about: the difference that decides, or the worst of several; `seeds_needed`, `rows_times`: what would.
    """

    word: Word
    p: float = 1.0
    about: SeedMean | None = None
    seeds_needed: int | None = None
    rows_times: float | None = None
    why: str = ""


def less(a: MeasuredArm, b: MeasuredArm, level: float = 0.95) -> ClaimVerdict:
    """a < b."""
    return _signed(SeedMean.of(a - b), level)


def both(first: ClaimVerdict, second: ClaimVerdict) -> ClaimVerdict:
    """The same claim by two estimators: undecided where they disagree."""
    if first.word == second.word:
        return replace(first, p=max(first.p, second.p))
    return replace(first, word="undecided", p=max(first.p, second.p), why="two estimators of the error disagree")


def preserved(a: MeasuredArm, b: MeasuredArm, margin: float, level: float = 0.95) -> ClaimVerdict:
    """|a - b| < margin: two one-sided tests (Schuirmann 1987). Reversed where the difference is surely beyond it."""
    found = SeedMean.of(a - b)
    tails = [_one_sided(found, margin, -1), _one_sided(found, -margin, 1)]
    if max(tails) < 1 - level:
        return ClaimVerdict("holds", max(tails), found)
    nearest = found.p(math.copysign(margin, found.value))
    if abs(found.value) > margin and nearest < 1 - level:
        return ClaimVerdict("reversed", nearest, found)
    return ClaimVerdict("undecided", max(tails), found, why=f"the difference is not shown to be within {margin:g}")


def decreasing(levels: Sequence[MeasuredArm], level: float = 0.95) -> ClaimVerdict:
    """Every step falls (intersection-union, so that no correction is due); reversed where any surely rises."""
    found = _all_below([SeedMean.of(after - before) for before, after in itertools.pairwise(levels)], level)
    return found if found.word != "undecided" else replace(found, why="not every step is shown to fall")


def crosses(first: MeasuredArm, last: MeasuredArm, level: float = 0.95) -> ClaimVerdict:
    """A difference is below 0 at first and above it at last; reversed where either is surely the other way round."""
    turned = MeasuredArm(-last.values, None if last.draws is None else -last.draws)
    return _all_below([SeedMean.of(first), SeedMean.of(turned)], level)


def interior_minimum(levels: Sequence[MeasuredArm], level: float = 0.95) -> ClaimVerdict:
    """The least is at neither end. Which level is compared with the ends is chosen for each seed on the other seeds."""
    if len(levels) < 3:
        return ClaimVerdict("no verdict", why="an interior needs three levels")
    values = np.stack([one.values for one in levels])
    others = (values.sum(axis=1, keepdims=True) - values)[1:-1]
    chosen = 1 + others.argmin(axis=0)
    seeds = np.arange(values.shape[1])
    draws = _stacked(levels)
    inside = MeasuredArm(values[chosen, seeds], None if draws is None else draws[chosen, seeds])
    return _all_below([SeedMean.of(inside - levels[0]), SeedMean.of(inside - levels[-1])], level)


def slope(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm], sign: int, level: float = 0.95) -> ClaimVerdict:
    """y rises (`sign` 1) or falls (-1) with x over the arms: least squares for each seed and each draw of the rows."""
    u, v = (np.stack([one.values for one in side]) for side in (x, y))
    of_x, of_y = _stacked(x), _stacked(y)
    draws = None if of_x is None or of_y is None else -sign * _slopes(of_x, of_y)
    return _signed(SeedMean.of(MeasuredArm(-sign * _slopes(u, v), draws)), level)


def close_to(a: MeasuredArm, low: float, high: float, level: float = 0.95) -> ClaimVerdict:
    """The mean lies in [low, high]; reversed where it surely does not.

    No difference of two: its seeds may lie askew, as squares of normal numbers do (a NLL around its least). At 95 %
    three to ten of those are surely on a wrong side of their mean in 18 %; their p is taken `ASKEW` times.
    """
    found = SeedMean.of(a)
    p = max(min(1.0, ASKEW * found.p(end)) for end in (low, high))
    if p >= 1 - level:
        return ClaimVerdict("undecided", p, found)
    return ClaimVerdict("holds" if low < found.value < high else "reversed", p, found)


def holm(found: Mapping[str, ClaimVerdict], level: float = 0.95) -> dict[str, ClaimVerdict]:
    """The verdicts of a study with their p-values corrected for their number (Holm 1979)."""
    judged = [key for key, v in found.items() if v.word in ("holds", "reversed", "undecided")]
    worded = [found[key].word != "undecided" for key in judged]
    adjusted = paired.holm([found[key].p if said else 1.0 for key, said in zip(judged, worded, strict=True)])
    kept = dict(found)
    for key, said, p in zip(judged, worded, adjusted.tolist(), strict=True):
        if said:
            kept[key] = replace(found[key], p=p)
            if p >= 1 - level:
                why = f"not after correction for {len(judged)} claims"
                kept[key] = replace(kept[key], word="undecided", why=why)
    return kept


def _signed(found: SeedMean, level: float) -> ClaimVerdict:
    p = found.p()
    if p < 1 - level:
        return ClaimVerdict("holds" if found.value < 0 else "reversed", p, found)
    return ClaimVerdict("undecided", p, found, *found.needed(level))


def _all_below(found: Sequence[SeedMean], level: float) -> ClaimVerdict:
    """All below 0 (intersection-union); reversed where any is surely above."""
    worst = max(found, key=lambda one: one.value / one.error if one.error else one.value)
    if all(one.value < 0 and one.p() < 1 - level for one in found):
        return ClaimVerdict("holds", max(one.p() for one in found), worst)
    above = [one for one in found if one.value > 0 and len(found) * one.p() < 1 - level]
    if above:
        worst = min(above, key=lambda one: one.p())
        return ClaimVerdict("reversed", len(found) * worst.p(), worst)
    return ClaimVerdict("undecided", 1.0, worst, *(worst.needed(level) if worst.value < 0 else (None, None)))


def _one_sided(found: SeedMean, limit: float, side: int) -> float:
    """p of the hypothesis that the mean is not beyond `limit` towards `side` (1: above)."""
    half = found.p(limit) / 2
    return half if side * (found.value - limit) > 0 else 1 - half


def _square(seeds: float, count: int, rows: float, level: float) -> float:
    """The square of half the width of an interval."""
    student, normal = (student_quantile((1 + level) / 2, degrees) for degrees in (count - 1, math.inf))
    return student**2 * seeds + normal**2 * rows


def _shared(draws: Floats) -> float:
    """The mean covariance of two different seeds, (S, B) on draws of the rows; of one seed its variance."""
    count, of_mean = len(draws), float(draws.mean(axis=0).var())
    return max(0.0, (count * of_mean - float(draws.var(axis=1).mean())) / (count - 1)) if count > 1 else of_mean


def _stacked(levels: Sequence[MeasuredArm]) -> Floats | None:
    """(A, S, B) draws of all arms, where all have them."""
    known = [one.draws for one in levels if one.draws is not None]
    return np.stack(known) if len(known) == len(levels) else None


def _slopes(x: Floats, y: Floats) -> Floats:
    """(S, ...) least squares slopes of (A, S, ...) arms."""
    centred = x - x.mean(axis=0)
    return np.asarray((centred * (y - y.mean(axis=0))).sum(axis=0) / np.maximum((centred**2).sum(axis=0), 1e-300))


# The figures of a study: the differences that decide its claims, metrics along an axis, the log by epoch.


LEVEL = 0.95
POINTS = 100  # of the curve of a log
Found = Mapping[str, Mapping[str, Mapping[str, MeasuredArm]]]  # by network, arm and metric


def strip(study: Study, judged: Mapping[str, tuple[StudyClaim, ClaimVerdict]]) -> list[Plot]:
    """Each claim's difference with both of its bars and the paper's own value; a panel for each kind of number."""
    kinds: dict[str, list[tuple[str, StudyClaim, ClaimVerdict, SeedMean]]] = {}
    for name, (claim, verdict) in judged.items():
        if verdict.about is not None and np.isfinite(verdict.about.error):
            kind = str(claim.keys["metric"]).partition(" ")[0]
            kinds.setdefault(kind, []).append((name, claim, verdict, verdict.about))
    return [_forest(study, kind, found) for kind, found in kinds.items()]


def _forest(study: Study, kind: str, found: list[tuple[str, StudyClaim, ClaimVerdict, SeedMean]]) -> Plot:
    x = [float(i) for i in range(len(found))]
    value = [about.value for *_, about in found]

    def bars(label: str, role: str, rows: bool) -> Curve:
        half = [about.half(LEVEL, rows) for *_, about in found]
        low, high = ([v + side * h for v, h in zip(value, half, strict=True)] for side in (-1, 1))
        return Curve(label=label, kind="points", role=role, x=x, y=value, low=low, high=high)

    own = [printed(study, claim) for _, claim, *_ in found]
    curves = [
        Curve(label="", kind="hline", role="ideal", y=[0.0]),
        bars("seeds and rows", "model", True),
        bars("these rows alone", "before", False),
    ]
    if any(one is not None for one in own):
        curves.append(Curve(label="the paper", kind="points", role="printed", x=x, y=own))
    return Plot(
        name=f"claims {kind}",
        title=kind,
        group=f"Differences that decide the claims, {study.seeds} seeds",
        ylabel=f"difference of {kind}",
        labels=[f"{name}: {told(verdict)}" for name, _, verdict, _ in found],
        flip=True,
        curves=curves,
    )


def told(verdict: ClaimVerdict) -> str:
    """The verdict, and what would decide it."""
    if verdict.word == "undecided" and verdict.seeds_needed:
        return f"undecided, {verdict.seeds_needed} seeds would"
    return verdict.word


def printed(study: Study, claim: StudyClaim) -> float | None:
    """The paper's own difference, where its numbers are in the recipe."""
    arms = {arm.name: arm.printed for arm in study.arms}
    metric = str(claim.keys["metric"])
    if claim.kind not in ("less", "preserved", "close_to"):
        return None
    first = arms[str(claim.keys["a"])].get(metric)
    if claim.kind == "close_to" or first is None:
        return first
    second = arms[str(claim.keys["b"])].get(str(claim.keys.get("than", metric)))
    return None if second is None else first - second


def ordered(study: Study, axis: str) -> list[Arm]:
    """The arms on an axis, in its order."""
    return sorted((arm for arm in study.arms if axis in arm.at), key=lambda arm: arm.at[axis])


def along(study: Study, found: Found) -> list[Plot]:
    """Metrics of claims along their axis."""
    asked = {(str(c.keys["metric"]), str(c.keys["along"])): None for c in study.claims if "along" in c.keys}
    plots = []
    for metric, axis in asked:
        for arch, arms in found.items():
            levels = [arm for arm in ordered(study, axis) if arm.name in arms]
            means = [SeedMean.of(arms[arm.name][metric]) for arm in levels]
            half = [mean.half(LEVEL) if study.seeds > 1 else 0.0 for mean in means]
            curve = Curve(
                label="mean over seeds",
                kind="points",
                x=[arm.at[axis] for arm in levels],
                y=[mean.value for mean in means],
                low=[mean.value - h for mean, h in zip(means, half, strict=True)],
                high=[mean.value + h for mean, h in zip(means, half, strict=True)],
                role="model",
            )
            name = f"{metric} along {axis}" + (f", {arch}" if len(found) > 1 else "")
            plots.append(Plot(name=name, title=name, xlabel=axis, ylabel=metric, curves=[curve]))
    return plots


def against(study: Study, found: Found) -> list[Plot]:
    """Each arm as a point with both of its bars, for claims about the slope of one metric against another."""
    plots = []
    for claim in (one for one in study.claims if one.kind == "slope"):
        names = [str(claim.keys[key]) for key in ("against", "metric")]
        for arch, arms in found.items():
            curves = []
            for name in (arm.name for arm in ordered(study, str(claim.keys["along"])) if arm.name in arms):
                x, y = (SeedMean.of(arms[name][metric]) for metric in names)
                wide, high = (mean.half(LEVEL) if study.seeds > 1 else 0.0 for mean in (x, y))
                bars = {"low": [y.value - high], "high": [y.value + high]}
                curves.append(Curve(label=name, kind="points", role=name, x=[x.value], y=[y.value], **bars))
                across = [x.value - wide, x.value + wide]
                curves.append(Curve(label="", kind="line", role=name, x=across, y=[y.value, y.value]))
            title = f"{names[1]} against {names[0]}" + (f", {arch}" if len(found) > 1 else "")
            plots.append(Plot(name=title, title=title, xlabel=names[0], ylabel=names[1], curves=curves))
    return plots


def epochs(study: Study, log: Callable[[Arm, str, int], list[dict[str, Any]]], found: Found) -> list[Plot]:
    """The log of each arm, mean over seeds."""
    plots = []
    for arch, arms in found.items() if study.log else ():
        of = {arm.name: arm for arm in study.arms if arm.name in arms}
        runs = {name: [log(arm, arch, seed) for seed in range(study.seeds)] for name, arm in of.items()}
        for name in study.log:
            curves = []
            for arm, lines in runs.items():
                length = min(map(len, lines))
                each = np.array([[number(line.get(name)) for line in one[:length]] for one in lines])
                at = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
                x = [float(i + 1) for i in at]
                curves.append(Curve(label=arm, kind="line", x=x, y=each.mean(axis=0)[at]))
            title = f"{name} of validation rows" + (f", {arch}" if len(found) > 1 else "")
            plots.append(Plot(name=f"log {name} {arch}", title=title, xlabel="epoch", ylabel=name, curves=curves))
    return plots


def number(found: Any) -> float:
    """Of a line of the log; nan where it has none."""
    return float(found) if isinstance(found, int | float) else np.nan
