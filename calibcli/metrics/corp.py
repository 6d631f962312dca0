"""CORP: a proper score in parts, of which recalibration by isotonic regression tells one from the other.

With S the mean score, S_c that of the isotonic regression on the probabilities and S_r that of the base rate,
S = MCB - DSC + UNC, where MCB = S - S_c (miscalibration), DSC = S_r - S_c (discrimination), UNC = S_r (uncertainty):
without bins, exact, and each part at least 0 (Dimitriadis, Gneiting, Jordan 2021).

The regression fits its own rows best, so both MCB and DSC are too large, most where they are small, and resampling adds
that once more. What holds: above, the regression that is best for all rows is no better on these than theirs, so what
is missing is the noise of a mean; below, one of the other rows is worse than the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from calibcli.metrics.intervals import IMPOSSIBLE, Interval, Rows, Statistic, counted, one_sided, percent, share_bounds
from calibcli.metrics.isotonic import FOLDS, Blocks, Cells, Isotonic, Score, pool
from calibcli.metrics.lossy import Placed, unchanged
from calibcli.metrics.sample import METRICS, NATS, UNIT, BinaryOutcomes, Of, Sample
from calibcli.numerics import bisect, normal_quantile, normal_share, quantile, student_quantile, unseen_reach
from calibcli.predictions import Floats
from calibcli.spec import Range

Part = Literal["mcb", "dsc", "unc"]
NOTHING = 1e-12  # an MCB of rounding
ALONE = 1e-30  # variance within cells that is rounding


def _recalibrated(blocks: Blocks, score: str) -> float:
    """Mean score of a regression, which is the uncertainty within its blocks."""
    rate = np.clip(blocks.hits / blocks.weight, 0.0, 1.0)
    if score == "brier":
        return float(blocks.weight @ (rate * (1 - rate)))
    inside = np.clip(rate, 1e-300, 1.0), np.clip(1 - rate, 1e-300, 1.0)
    return -float(blocks.weight @ (rate * np.log(inside[0]) + (1 - rate) * np.log(inside[1])))


def _isotonic(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """The regression scores best where the misses of every cell lie below its hits, and worst where all are tied."""
    misses, hits = at.in_order()
    apart = np.stack([misses, hits], 1).ravel()
    some, there = apart > 0, misses + hits > 0
    best = pool(apart[some], np.stack([0 * hits, hits], 1).ravel()[some])
    worst = pool((misses + hits)[there], hits[there])
    own = _recalibrated(at.view.once(Isotonic.of).blocks, options["score"])
    return max(abs(_recalibrated(blocks, options["score"]) - own) for blocks in (best, worst))


def _miscalibration(at: Placed, options: Mapping[str, Any], value: float) -> float | None:
    """The mean of a Brier score stays as it is. That of a logarithm is the NLL of two classes, whose sum is kept; of
    more classes it is known where rows of one outcome share no cell.
    """
    error = _isotonic(at, options, value)
    if options["score"] == "brier":
        return error
    if at.sample.columns.k > 2 or at.sample.columns.top_only:
        return error if at.variance < ALONE else None
    view = at.view
    with np.errstate(divide="ignore"):
        own = -np.log(np.where(view.hit, view.p, view.complement))
    moved = float(view.shares @ own) - float(view.shares @ at.sample.columns.nll)
    return error + abs(moved) if math.isfinite(moved) else None


def _of_base_rate(k: int | None, options: Mapping[str, Any]) -> Range:
    """At most the score of the base rate 1/2."""
    return Range(0, math.log(2) if options["score"] == "log" else 0.25)


def _of_score(k: int | None, options: Mapping[str, Any]) -> Range:
    return NATS if options["score"] == "log" else UNIT


@METRICS.add(values=NATS, narrowed=_of_score, better="lower", unit="", condensed=_miscalibration)
def corp_mcb(sample: Sample, *, score: Score = "brier", of: Of = "auto") -> Statistic:
    """Miscalibration, the part of a score that isotonic recalibration takes away (Dimitriadis et al. 2021).

    `score`: `brier`, (p - y)²; `log`, -log of the probability of what happened, in nats. Of the event of two classes,
    else of the top label; `corp_mcb` - `corp_dsc` + `corp_unc` is the score (`brier` of two classes, else `brier_top`).

    >>> round(calibcli.measure(logits, labels, "corp_mcb")["corp_mcb"].value, 4)
    0.0148
    """
    return Decomposed(sample.view(of), score, "mcb")


@METRICS.add(values=NATS, narrowed=_of_base_rate, better="higher", unit="", condensed=_isotonic)
def corp_dsc(sample: Sample, *, score: Score = "brier", of: Of = "auto") -> Statistic:
    """Discrimination, what recalibrated probabilities score better than the base rate (Dimitriadis et al. 2021).

    `score` as for `corp_mcb`.

    >>> round(calibcli.measure(logits, labels, "corp_dsc")["corp_dsc"].value, 4)
    0.0248
    """
    return Decomposed(sample.view(of), score, "dsc")


@METRICS.add(values=NATS, narrowed=_of_base_rate, unit="", condensed=unchanged)
def corp_unc(sample: Sample, *, score: Score = "brier", of: Of = "auto") -> Statistic:
    """Uncertainty, the score of the base rate: ȳ (1 - ȳ), or the entropy of ȳ in nats (Dimitriadis et al. 2021).

    `score` as for `corp_mcb`.

    >>> round(calibcli.measure(logits, labels, "corp_unc")["corp_unc"].value, 4)
    0.0813
    """
    return Decomposed(sample.view(of), score, "unc")


def scored(score: Score, hit: Any, p: Any, complement: Any) -> Floats:
    """Score of a probability p where it comes true (`hit`) or not."""
    if score == "brier":
        return np.asarray(np.where(hit, complement, p) ** 2)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(np.where(hit, p, complement)))


@dataclass(frozen=True, eq=False)
class Decomposed(Statistic):
    """One part of the score."""

    view: BinaryOutcomes
    score: Score
    part: Part

    @property
    def fit(self) -> Isotonic:
        return self.view.once(Isotonic.of)

    @cached_property
    def base(self) -> float:
        return float(self.view.shares @ self.view.hit)

    def gain(self, fitted: Floats | float, base: Floats | float, hit: Any = None) -> Floats:
        """(N,) what each row gains by a recalibration: over its own probability, or over the base rate."""
        view = self.view
        hit = view.hit if hit is None else hit
        own = (view.p, view.complement) if self.part == "mcb" else (base, 1 - base)
        with np.errstate(invalid="ignore"):
            return counted(scored(self.score, hit, *own) - scored(self.score, hit, fitted, 1 - fitted), view.shares)

    @property
    def value(self) -> float:
        if self.part == "unc":
            return self.uncertainty(self.base)
        mean = float(self.view.shares @ self.gain(self.fit.fitted, self.base))
        return max(mean, 0.0) if math.isfinite(mean) else mean

    def uncertainty(self, rate: float) -> float:
        """Score of a constant, were it right."""
        if self.score == "brier":
            return rate * (1 - rate)
        return -sum(q * math.log(q) for q in (rate, 1 - rate) if q > 0)

    def interval(self, level: float) -> Interval:
        view = self.view
        rows = Rows(view.hit, view.weights, view.counts, view.groups)
        null: dict[str, Any] = {}
        if self.part == "mcb" and view.groups is None:
            cells: Cells = self.fit.cells
            draws = cells.miscalibration(self.score)
            null = {"null": float(draws.mean()), "null_high": quantile(draws, 0.95)}
        null["detail"] = {"blocks": len(self.fit.blocks.start)} if self.part != "unc" else {}
        if not math.isfinite(self.value):
            return Interval(reason=IMPOSSIBLE)
        if rows.lacking:
            return Interval(reason=rows.lacking, **null)
        if self.part == "unc":
            return self._of_rate(rows, level)
        low, up = self._bounds(rows, 1 - level)
        how = f"one-sided bounds, each {percent(level)}: the best recalibration above, {FOLDS}-fold cross-fitting below"
        how += rows.clustered + ("; simulated null level" if self.part == "mcb" else "")
        return one_sided(level, min(max(0.0, low), self.value), max(self.value, up), how, **null)

    def _bounds(self, rows: Rows, alpha: float) -> tuple[float, float]:
        """Of the gain by the regression on all rows, which is too large, above; of that by the rows of other folds,
        which is too small, below. Rows that were not drawn gain what their probabilities tell of either outcome
        (`numerics.unseen_reach`); above, over the base rate, all that it costs there, as few rows may hold all
        discrimination.

        Above, the base rate is that of the other rows, whose score is no smaller than that of the true one; below that
        of all, whose score is no larger.
        """
        view, n = self.view, max(rows.effective, 2.0)
        others = np.clip((self.base - view.hit / n) * n / (n - 1), 0.5 / n, 1 - 0.5 / n)
        edge = min(0.5, -math.log(alpha) * rows.unseen)  # what a regression of 0 or 1 may be for all rows
        inside = np.clip(self.fit.fitted, edge, 1 - edge)
        ends = []
        for fitted, best, base, sign in (
            (self.fit.left_out, (self.fit.left_out, self.fit.left_out), self.base, -1),
            (self.fit.fitted, (0.0, 1.0) if self.part == "dsc" else (inside, inside), others, 1),
        ):
            gain = replace(rows, values=self.gain(fitted, base))
            either = np.maximum(*(sign * self.gain(best[hit], base, hit) for hit in (False, True)))
            unseen = max(gain.dearest(either - sign * gain.value), 0.0)
            seen = max(sign * gain.skew, 0.0) + (self._curvature(gain) if sign > 0 and self.part == "mcb" else 0.0)
            t = student_quantile(1 - alpha, gain.units - 1)
            ends.append(gain.value + sign * unseen_reach(t, gain.se**2, seen, unseen))
        return ends[0], ends[1]

    def _curvature(self, gain: Rows) -> float:
        """2κ / n, κ = variance / 4 MCB of one row, with √MCB <= √(MCB of these rows) + z √(κ / n).

        Near a calibrated model the gain and its variance are 0 together, so that where these rows happen to look
        calibrated their variance says too little. But between their own probabilities p and the best ones g, which gain
        G, lie those of p + s (g - p), monotone too. With noise ε, on these rows they gain 2 s (G + ε √G) - s² G, at the
        best s (√G + ε)²: no regression gains less than that.
        """
        if gain.value > NOTHING:
            return gain.se**2 / (2 * gain.value)
        fitted = self.fit.fitted
        return 2 * gain.unseen * (0.5 if self.score == "log" else float(self.view.shares @ (fitted * (1 - fitted))))

    def _of_rate(self, rows: Rows, level: float) -> Interval:
        """Bounds of the base rate, through the score, which falls with the distance from one half.

        A rate near one half may come out too far from it on either side: above, both tails share the level.
        """
        alpha = (1 - level) / 2
        low, up = share_bounds(rows, alpha) or (0.0, 1.0)
        least = min(self.uncertainty(low), self.uncertainty(up))
        far = abs(self.base - 0.5)

        def nearest(tail: float) -> float:
            """Signed distance from one half of the bound on its side, at this level."""
            low, up = share_bounds(rows, tail) or (0.0, 1.0)
            return low - 0.5 if self.base > 0.5 else 0.5 - up

        def left(tail: float) -> float:
            """Of alpha, where this much is on the one side."""
            near, z = nearest(tail), normal_quantile(1 - tail)
            return alpha - tail - normal_share(-z * (far + near) / max(far - near, 1e-12)) if near > 0 else 1.0

        tail = bisect(left, alpha / 2, alpha, 20)[0]
        most = self.uncertainty(0.5 + max(nearest(tail), 0.0))
        how = f"bounds of the base rate{rows.clustered}"
        return Interval(low=least, high=max(most, self.value), level=level, how=how)
