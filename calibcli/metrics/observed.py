"""How often something happened against how often it was said to: calibration in the large."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from calibcli.metrics.intervals import Interval, Rows, Statistic, average
from calibcli.metrics.lossy import unchanged
from calibcli.metrics.sample import METRICS, BinaryOutcomes, Of, Sample
from calibcli.numerics import root
from calibcli.spec import Range

FARTHEST = 1e6  # a ratio beyond which there is no upper bound


@METRICS.add(values=Range(0), better="", unit="", condensed=unchanged, first_screen="two classes")
def observed_expected(sample: Sample, *, of: Of = "auto") -> Statistic:
    """O:E, mean of what came true over mean of what was said; 1 if calibrated in the large (Debray et al. 2017).

    >>> round(calibcli.measure(logits, labels, "observed_expected")["observed_expected"].value, 4)
    0.9337
    """
    return Ratio(sample.view(of))


@dataclass(frozen=True, eq=False)
class Ratio(Statistic):
    """The θ at which the mean of y - θ p is 0; its interval holds the θ at which that mean is not refuted as 0."""

    view: BinaryOutcomes

    @cached_property
    def value(self) -> float:
        said = average(self.view.p, self.view.weights)
        return average(self.view.hit, self.view.weights) / said if said > 0 else math.nan

    def interval(self, level: float) -> Interval:
        """Fieller's, with the score form in place of the normal one."""
        if not math.isfinite(self.value):
            return Interval(reason="every probability is 0")
        if lacking := self._rows(self.value).lacking:
            return Interval(reason=lacking)
        tail = (1 - level) / 2

        def under(theta: float) -> float:
            return -self._rows(theta).bounds(tail, -theta, 1.0)[0]

        def over(theta: float) -> float:
            return -self._rows(theta).bounds(tail, -theta, 1.0)[1]

        low, far = root(under, 0.0, self.value, 1e-6), max(2 * self.value, 1.0)
        while over(far) < 0 and far < FARTHEST:
            far *= 4
        high = root(over, self.value, far, 1e-6) if far < FARTHEST else None
        reason = "" if high is not None else "no ratio is too large for so few rows"
        how = f"score form of y - θ p, solved for θ{self._rows(self.value).clustered}"
        return Interval(low=low, high=high, level=level, how=how, reason=reason, detail={"calibrated": 1.0})

    def _rows(self, theta: float) -> Rows:
        view = self.view
        return Rows(view.hit - theta * view.p, view.weights, view.counts, view.groups)
