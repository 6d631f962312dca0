"""Verdicts on the claims of a study, and its figures.

Seeds and rows are crossed: every arm has every seed, and all runs are measured on the same rows. The error of a mean
over seeds has two parts: the seeds that were drawn (variance of the paired differences over S) and the rows (the mean
covariance of two seeds in a bootstrap of the rows, since what is a seed's own is in the first part already). Both
count: a verdict is about the recipe and the population, not about these rows.
"""

from __future__ import annotations

import bisect
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

Word = Literal["holds", "reversed", "undecided", "not comparable", "no verdict"]
LEVEL = 0.95  # of the intervals, and of the verdicts
DRAWS = 200  # bootstrap draws of the rows
MOST_SEEDS = 10_000  # beyond which no number of seeds is suggested
ASKEW = 25  # factor on the p-value of a claim whose seeds may lie askew, see `close_to`


@dataclass(frozen=True)
class MeasuredArm:
    """One metric of one arm.

    Attributes:
        values: (S,) one for each seed.
        draws: (S, B) each of them on each draw of the rows; None where the error over rows is not known.
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
    def of(cls, arm: MeasuredArm) -> SeedMean:
        count = len(arm.values)
        seeds = float(arm.values.var(ddof=1)) / count if count > 1 else math.nan
        return cls(float(arm.values.mean()), seeds, 0.0 if arm.draws is None else _shared(arm.draws), count)

    @property
    def error(self) -> float:
        return math.sqrt(self.seeds + self.rows)

    def half(self, level: float = LEVEL, rows: bool = True) -> float:
        """Half the width of the interval at `level`; without `rows`, for these rows alone."""
        return math.sqrt(_square(self.seeds, self.count, self.rows if rows else 0.0, level))

    def interval(self, rows: bool = True) -> tuple[float, float]:
        """The interval at `LEVEL`; without `rows`, for these rows alone. Of one seed it is the value twice."""
        half = self.half(rows=rows) if self.count > 1 else 0.0
        return self.value - half, self.value + half

    def p(self, against: float = 0.0) -> float:
        """Two-sided p-value of the hypothesis that the mean is `against`: that of the interval that just reaches it."""
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

    def needed(self) -> tuple[int | None, float | None]:
        """Return the number of seeds that would decide the sign at these values, or else how many times the rows.

        With infinitely many seeds the error is that of the rows: where that alone is too large, more rows are needed.
        """
        square, most = self.value**2, self.rows * student_quantile((1 + LEVEL) / 2, math.inf) ** 2
        if square <= most:
            return None, most / square if square else None

        def decides(count: int) -> bool:
            return _square(self.seeds * self.count / count, count, self.rows, LEVEL) < square

        count = 2 + bisect.bisect_left(range(2, MOST_SEEDS + 1), True, key=decides)
        return (count if count <= MOST_SEEDS else None), None


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim.

    Attributes:
        p: p-value of the hypothesis that must be refuted for the word; corrected for the number of claims by `holm`.
        about: the difference that decides, or the worst of several.
        seeds_needed, rows_times: the number of seeds, or the factor on the rows, that would decide.
    """

    word: Word
    p: float = 1.0
    about: SeedMean | None = None
    seeds_needed: int | None = None
    rows_times: float | None = None
    why: str = ""


def less(a: MeasuredArm, b: MeasuredArm) -> ClaimVerdict:
    """Judge the claim a < b."""
    return _signed(SeedMean.of(a - b))


def both(first: ClaimVerdict, second: ClaimVerdict) -> ClaimVerdict:
    """Combine the verdicts of two estimators on the same claim: undecided where they disagree."""
    if first.word == second.word:
        return replace(first, p=max(first.p, second.p))
    return replace(first, word="undecided", p=max(first.p, second.p), why="two estimators of the error disagree")


def preserved(a: MeasuredArm, b: MeasuredArm, margin: float) -> ClaimVerdict:
    """Judge the claim |a - b| < margin by two one-sided tests (Schuirmann 1987).

    It is reversed where the difference is significantly beyond the margin.
    """
    difference = SeedMean.of(a - b)
    tails = [_one_sided(difference, margin, -1), _one_sided(difference, -margin, 1)]
    if max(tails) < 1 - LEVEL:
        return ClaimVerdict("holds", max(tails), difference)
    nearest = difference.p(math.copysign(margin, difference.value))
    if abs(difference.value) > margin and nearest < 1 - LEVEL:
        return ClaimVerdict("reversed", nearest, difference)
    return ClaimVerdict("undecided", max(tails), difference, why=f"the difference is not shown to be within {margin:g}")


def decreasing(levels: Sequence[MeasuredArm]) -> ClaimVerdict:
    """Judge the claim that every step falls (intersection-union test, which needs no correction).

    It is reversed where any step rises significantly.
    """
    verdict = _all_below([SeedMean.of(after - before) for before, after in itertools.pairwise(levels)])
    return verdict if verdict.word != "undecided" else replace(verdict, why="not every step is shown to fall")


def crosses(first: MeasuredArm, last: MeasuredArm) -> ClaimVerdict:
    """Judge the claim that a difference is below 0 at first and above it at last.

    It is reversed where either is significantly the other way round.
    """
    turned = MeasuredArm(-last.values, None if last.draws is None else -last.draws)
    return _all_below([SeedMean.of(first), SeedMean.of(turned)])


def interior_minimum(levels: Sequence[MeasuredArm]) -> ClaimVerdict:
    """Judge the claim that the least is at neither end.

    The level that is compared with the ends is chosen for each seed on the other seeds.
    """
    if len(levels) < 3:
        return ClaimVerdict("no verdict", why="an interior needs three levels")
    values = np.stack([one.values for one in levels])
    others = (values.sum(axis=1, keepdims=True) - values)[1:-1]
    chosen = 1 + others.argmin(axis=0)
    seeds = np.arange(values.shape[1])
    draws = _stacked(levels)
    inside = MeasuredArm(values[chosen, seeds], None if draws is None else draws[chosen, seeds])
    return _all_below([SeedMean.of(inside - levels[0]), SeedMean.of(inside - levels[-1])])


def slope(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm], sign: int) -> ClaimVerdict:
    """Judge the claim that y rises (`sign` 1) or falls (-1) with x over the arms.

    The slope is that of least squares, for each seed and each draw of the rows.
    """
    u, v = (np.stack([one.values for one in side]) for side in (x, y))
    of_x, of_y = _stacked(x), _stacked(y)
    draws = None if of_x is None or of_y is None else -sign * _slopes(of_x, of_y)
    return _signed(SeedMean.of(MeasuredArm(-sign * _slopes(u, v), draws)))


def close_to(a: MeasuredArm, low: float, high: float) -> ClaimVerdict:
    """Judge the claim that the mean lies in [low, high]; reversed where it significantly does not.

    This is no difference of two arms: its seeds may have a skewed distribution, as squares of normal numbers have (a
    NLL around its least). A nominal interval of 95 % misses the mean of three to ten of those in 18 % of cases;
    therefore the p-value is multiplied by `ASKEW`.
    """
    mean = SeedMean.of(a)
    p = max(min(1.0, ASKEW * mean.p(end)) for end in (low, high))
    if p >= 1 - LEVEL:
        return ClaimVerdict("undecided", p, mean)
    return ClaimVerdict("holds" if low < mean.value < high else "reversed", p, mean)


def holm(verdicts: Mapping[str, ClaimVerdict]) -> dict[str, ClaimVerdict]:
    """Correct the p-values of a study's verdicts for their number (Holm 1979)."""
    judged = [key for key, v in verdicts.items() if v.word in ("holds", "reversed", "undecided")]
    decisive = [verdicts[key].word != "undecided" for key in judged]
    adjusted = paired.holm([verdicts[key].p if decided else 1.0 for key, decided in zip(judged, decisive, strict=True)])
    kept = dict(verdicts)
    for key, decided, p in zip(judged, decisive, adjusted.tolist(), strict=True):
        if decided:
            kept[key] = replace(verdicts[key], p=p)
            if p >= 1 - LEVEL:
                why = f"not after correction for {len(judged)} claims"
                kept[key] = replace(kept[key], word="undecided", why=why)
    return kept


def _signed(mean: SeedMean) -> ClaimVerdict:
    p = mean.p()
    if p < 1 - LEVEL:
        return ClaimVerdict("holds" if mean.value < 0 else "reversed", p, mean)
    return ClaimVerdict("undecided", p, mean, *mean.needed())


def _all_below(means: Sequence[SeedMean]) -> ClaimVerdict:
    """Judge the claim that all are below 0 (intersection-union); reversed where any is significantly above."""
    worst = max(means, key=lambda one: one.value / one.error if one.error else one.value)
    if all(one.value < 0 and one.p() < 1 - LEVEL for one in means):
        return ClaimVerdict("holds", max(one.p() for one in means), worst)
    above = [one for one in means if one.value > 0 and len(means) * one.p() < 1 - LEVEL]
    if above:
        worst = min(above, key=lambda one: one.p())
        return ClaimVerdict("reversed", len(means) * worst.p(), worst)
    return ClaimVerdict("undecided", 1.0, worst, *(worst.needed() if worst.value < 0 else (None, None)))


def _one_sided(mean: SeedMean, limit: float, side: int) -> float:
    """Compute p of the hypothesis that the mean is not beyond `limit` towards `side` (1: above)."""
    half = mean.p(limit) / 2
    return half if side * (mean.value - limit) > 0 else 1 - half


def _square(seeds: float, count: int, rows: float, level: float) -> float:
    """Compute the square of half the width of an interval."""
    student, normal = (student_quantile((1 + level) / 2, degrees) for degrees in (count - 1, math.inf))
    return student**2 * seeds + normal**2 * rows


def _shared(draws: Floats) -> float:
    """Compute the mean covariance of two different seeds from (S, B) draws of the rows; for one seed its variance."""
    count, of_mean = len(draws), float(draws.mean(axis=0).var())
    return max(0.0, (count * of_mean - float(draws.var(axis=1).mean())) / (count - 1)) if count > 1 else of_mean


def _stacked(levels: Sequence[MeasuredArm]) -> Floats | None:
    """Stack the draws of all arms, (A, S, B), where all have them."""
    known = [one.draws for one in levels if one.draws is not None]
    return np.stack(known) if len(known) == len(levels) else None


def _slopes(x: Floats, y: Floats) -> Floats:
    """Compute least squares slopes (S, ...) over arms (A, S, ...)."""
    centred = x - x.mean(axis=0)
    return np.asarray((centred * (y - y.mean(axis=0))).sum(axis=0) / np.maximum((centred**2).sum(axis=0), 1e-300))


# The figures of a study: the differences that decide its claims, metrics along an axis, the log by epoch.

POINTS = 100  # of the curve of a log
MeasuredArms = Mapping[str, Mapping[str, Mapping[str, MeasuredArm]]]  # by network, arm and metric


def strip(
    study: Study, judged: Mapping[str, tuple[StudyClaim, ClaimVerdict]], own: Mapping[str, float | None]
) -> list[Plot]:
    """Draw each claim's difference with both error bars and the paper's own value; a panel for each metric.

    Args:
        own: the paper's own difference by name of the claim, where it has one.
    """
    kinds: dict[str, list[tuple[str, StudyClaim, ClaimVerdict, SeedMean]]] = {}
    for name, (claim, verdict) in judged.items():
        if verdict.about is not None and np.isfinite(verdict.about.error):
            kind = str(claim.keys["metric"]).partition(" ")[0]
            kinds.setdefault(kind, []).append((name, claim, verdict, verdict.about))
    return [_forest(study, kind, entries, own) for kind, entries in kinds.items()]


def _forest(
    study: Study,
    kind: str,
    entries: list[tuple[str, StudyClaim, ClaimVerdict, SeedMean]],
    printed: Mapping[str, float | None],
) -> Plot:
    x = [float(i) for i in range(len(entries))]
    value = [mean.value for *_, mean in entries]

    def bars(label: str, role: str, rows: bool) -> Curve:
        low, high = zip(*(mean.interval(rows) for *_, mean in entries), strict=True)
        return Curve(label=label, kind="points", role=role, x=x, y=value, low=low, high=high)

    own = [printed.get(name) for name, *_ in entries]
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
        labels=[f"{name}: {verdict_text(verdict)}" for name, _, verdict, _ in entries],
        flip=True,
        curves=curves,
    )


def verdict_text(verdict: ClaimVerdict) -> str:
    """Return the verdict and the number of seeds that would decide it."""
    if verdict.word == "undecided" and verdict.seeds_needed:
        return f"undecided, {verdict.seeds_needed} seeds would"
    return verdict.word


def printed(claim: StudyClaim, arms: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the paper's own difference, from its numbers of the arms on the same network and rows."""
    metric = str(claim.keys["metric"])
    if claim.kind not in ("less", "preserved", "close_to"):
        return None
    first = arms.get(str(claim.keys["a"]), {}).get(metric)
    if claim.kind == "close_to" or first is None:
        return first
    second = arms.get(str(claim.keys["b"]), {}).get(str(claim.keys.get("than", metric)))
    return None if second is None else first - second


def scoped(study: Study, name: str, arch: str) -> str:
    """Add the network to a name, where a study has several."""
    return f"{name}, {arch}" if len(study.arch) > 1 else name


def ordered(study: Study, axis: str) -> list[Arm]:
    """Return the arms on an axis, in its order."""
    return sorted((arm for arm in study.arms if axis in arm.at), key=lambda arm: arm.at[axis])


def along(study: Study, measured: MeasuredArms) -> list[Plot]:
    """Draw the metrics of claims along their axis."""
    asked = {(str(c.keys["metric"]), str(c.keys["along"])): None for c in study.claims if "along" in c.keys}
    plots = []
    for metric, axis in asked:
        for arch, arms in measured.items():
            levels = [arm for arm in ordered(study, axis) if arm.name in arms]
            means = [SeedMean.of(arms[arm.name][metric]) for arm in levels]
            curve = Curve(
                label="mean over seeds",
                kind="points",
                x=[arm.at[axis] for arm in levels],
                y=[mean.value for mean in means],
                low=[mean.interval()[0] for mean in means],
                high=[mean.interval()[1] for mean in means],
                role="model",
            )
            name = scoped(study, f"{metric} along {axis}", arch)
            plots.append(Plot(name=name, title=name, xlabel=axis, ylabel=metric, curves=[curve]))
    return plots


def against(study: Study, measured: MeasuredArms) -> list[Plot]:
    """Draw each arm as a point with both error bars, for claims about the slope of one metric against another."""
    plots = []
    for claim in (one for one in study.claims if one.kind == "slope"):
        names = [str(claim.keys[key]) for key in ("against", "metric")]
        for arch, arms in measured.items():
            curves = []
            for name in (arm.name for arm in ordered(study, str(claim.keys["along"])) if arm.name in arms):
                x, y = (SeedMean.of(arms[name][metric]) for metric in names)
                low, high = y.interval()
                point = Curve(label=name, kind="points", role=name, x=[x.value], y=[y.value], low=[low], high=[high])
                curves += [point, Curve(label="", kind="line", role=name, x=x.interval(), y=[y.value, y.value])]
            title = scoped(study, f"{names[1]} against {names[0]}", arch)
            plots.append(Plot(name=title, title=title, xlabel=names[0], ylabel=names[1], curves=curves))
    return plots


def epochs(study: Study, log: Callable[[Arm, str, int], list[dict[str, Any]]], measured: MeasuredArms) -> list[Plot]:
    """Draw the log of each arm, mean over seeds."""
    plots = []
    for arch, arms in measured.items() if study.log else ():
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
            title = scoped(study, f"{name} of validation rows", arch)
            plots.append(Plot(name=f"log {name} {arch}", title=title, xlabel="epoch", ylabel=name, curves=curves))
    return plots


def number(value: Any) -> float:
    """Convert a value of the log to a float; nan where it is missing."""
    return float(value) if isinstance(value, int | float) else np.nan
