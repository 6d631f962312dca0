"""What condensing rows to cells does to a metric: nothing, no more than is said here, or what cannot be said.

Within a cell the rows of one outcome keep their number, mean and variance (see `columns.condense`), so that means,
binned errors whose bins the cells divide, and whatever is quadratic in the confidence stay as they are. Of others, the
bound is what these rows could do wherever in their cell they lay. With shares s of the rows, residuals r = p - y:

    a cell that a bin edge cuts     Σ|d_b| changes by at most 2 ρ, ρ = Σ s|r| over its rows (and their share by 2 μ)
    a smooth function h of p        Σ s h(p) changes by at most Σ s variance · max|h''| over the cells
    a Lipschitz function h of p     Σ s h(p) changes by at most 2 Σ s deviation · max|h'|
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from calibcli.columns.condense import CELLS, PLACES, interval
from calibcli.metrics import kernel, smooth
from calibcli.metrics.discrimination import harmonic
from calibcli.metrics.isotonic import Blocks, Isotonic, pool
from calibcli.metrics.recalibration import cox, log_odds
from calibcli.metrics.sample import Of, Sample
from calibcli.predictions import Floats
from calibcli.result import Estimate
from calibcli.shelves import Choice

ERROR = "cell_error"  # key of `Estimate.detail`
UNKNOWN = "rows that are kept as sums over cells of confidence do not tell it: measure up to 5,000,000 of them together"
EXACT = frozenset(
    (
        *("accuracy", "nll", "brier", "brier_top", "mean_confidence", "confidence_gap", "classwise_ece"),
        *("observed_expected", "corp_unc"),
        *("entropy", "entropy_correct", "entropy_wrong", "nll_correct", "nll_wrong"),
        "temperature_gain",  # whose interval says what the rows that were kept tell
    )
)
BEND, BEND_SLOPE = 0.968, 0.798  # ∫|K''| σ² and ∫|K'| σ of the Gaussian kernel
TRIWEIGHT = 7.52  # ∫|K''| of the triweight kernel
ALONE = 1e-30  # variance within cells that is rounding
STEEP = 10.0  # the most that the second derivative of (1 - 2p)² p (1 - p) can be
Bound = Callable[["Placed", Mapping[str, Any], float], float | None]


class Placed:
    """Rows of a sample of cells, with what each cell holds of a view.

    Attributes:
        mass, weight: (cells,) share of the rows and Σ s|r|.
        variance, deviation: Σ s (p - mean)² and Σ s times the standard deviation, over cells and outcomes.
    """

    def __init__(self, sample: Sample, of: Of) -> None:
        columns = sample.columns
        assert columns.place is not None
        self.sample, self.view = sample, sample.view(of)
        side = columns.predicted if columns.k == 2 and self.view is sample.positive else 0 * columns.predicted
        _, self.cell = np.unique(columns.place + PLACES * side, return_inverse=True)
        share, size = self.view.shares, int(self.cell.max()) + 1
        self.mass = np.bincount(self.cell, share, size)
        self.weight = np.bincount(self.cell, share * np.abs(self.view.residual), size)
        outcomes, self.outcome = np.unique(4 * self.cell + 2 * columns.labels + columns.predicted, return_inverse=True)
        own = np.bincount(self.outcome, share)
        mean = np.bincount(self.outcome, share * self.view.p) / own
        square = np.bincount(self.outcome, share * (self.view.p - mean[self.outcome]) ** 2, len(outcomes))
        self.variance, self.deviation = float(square.sum()), float(np.sqrt(square * own).sum())

    def cut_by_width(self, bins: int) -> tuple[Floats, Floats]:
        """(bins - 1,) Σ s|r| and the share of the rows of the cell that each inner edge of equal-width bins cuts."""
        edge = np.arange(1, bins)
        at, cuts = (edge * CELLS) // bins, (edge * CELLS) % bins != 0
        index = interval(self.view.p)
        of = (self.view.shares * np.abs(self.view.residual), self.view.shares)
        rho, mass = (np.where(cuts, np.bincount(index, values, CELLS)[at], 0.0) for values in of)
        return rho, mass

    def cut_by_mass(self, bins: int) -> tuple[float, float]:
        """Σ s|r| and the share of the rows of the cells that cuts between bins of equal mass fall in.

        Cells lie apart, so that no tie reaches from one to another.
        """
        view, order = self.view, self.view.order
        assert view.weights is not None
        at = np.minimum(np.searchsorted(np.cumsum(view.weights[order]), view.cuts(bins)[1:-1]), view.n - 1)
        cells = np.unique(self.cell[order][at])
        return float(self.weight[cells].sum()), float(self.mass[cells].sum())


def stated(sample: Sample, choices: Sequence[Choice], estimates: Sequence[Estimate]) -> list[Estimate]:
    """Estimates of condensed rows with the most that condensing may have changed them by, in `detail`; without a value
    where that is not known.
    """
    found = []
    for choice, e in zip(choices, estimates, strict=True):
        if choice.name in EXACT or e.value is None:
            found.append(e)
            continue
        of = "top" if choice.name in ("failure_auroc", "aurc") else choice.options.get("of", "auto")
        bound, at = BOUNDS.get(choice.name), sample.once(Placed, of)
        error = None if bound is None else bound(at, choice.options, e.value)
        if error is None:
            e = Estimate(name=e.name, value=None, scope=e.scope, unit=e.unit, better=e.better, n=e.n, reason=UNKNOWN)
            found.append(e)
        elif error > 0:
            found.append(dataclasses.replace(e, detail={**e.detail, ERROR: error}))
        else:
            found.append(e)
    return found


def _signed(times_rho: float, times_mass: float = 0.0, root: bool = False) -> Bound:
    """Of errors over equal-width bins that change by so many ρ and μ, or whose squares do."""

    def bound(at: Placed, options: Mapping[str, Any], value: float) -> float:
        rho, mass = at.cut_by_width(options["bins"])
        change = float(times_rho * rho.sum() + times_mass * mass.sum())
        return _root(change, value) if root else min(change, 1.0)

    return bound


def _root(change: float, value: float) -> float:
    """Of a root whose square changes by so much."""
    return min(math.sqrt(change), change / value if value > 0 else math.inf, 1.0)


def _largest(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """The gap of a bin changes by what of its weight comes or goes."""
    bins = options["bins"]
    mass = at.cut_by_width(bins)[1]
    moved = np.append(mass, 0.0) + np.append(0.0, mass)
    left = at.view.width_bins(bins, options["edges"]).weight[:bins] - moved
    change = np.where(left > 0, 2 * moved / np.maximum(left, 1e-300), 1.0)
    return min(float(np.where(moved > 0, change, 0.0).max()), 1.0)


def _confident(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """The cell that the threshold lies in, as a share of the rows beyond it."""
    tau = options["tau"]
    if abs(tau * CELLS - round(tau * CELLS)) < 1e-9:
        return 0.0
    p = at.sample.columns.confidence
    cut = float(at.view.shares[interval(p) == int(tau * CELLS)].sum())
    return min(cut, 1.0)


def _confident_accuracy(at: Placed, options: Mapping[str, Any], value: float) -> float:
    cut = _confident(at, options, value)
    beyond = float(at.view.shares[at.sample.columns.confidence >= options["tau"]].sum()) - cut
    return min(2 * cut / beyond, 1.0) if beyond > 0 else float(cut > 0)


def _equal_mass(at: Placed, options: Mapping[str, Any], value: float) -> float:
    return min(2 * at.cut_by_mass(options["bins"])[0], 1.0)


def _debiased(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """Beside the squares, the chance that is taken off, at most 1 / 2N in each bin."""
    bins = options["bins"]
    rho, mass = at.cut_by_mass(bins)
    return min(4 * rho + 2 * mass, 2.0) + (bins / (2 * at.view.total) if mass > 0 else 0.0)


def _smooth(at: Placed, options: Mapping[str, Any], value: float) -> float | None:
    if options["variant"] != "exact":
        return None
    sigma = options["sigma"] or max(value, smooth.LEAST)
    spread = 2e-5 if at.sample.n > smooth.EXACT or at.view.n > smooth.EXACT else 0.0  # what `smooth` says of its cells
    return min(at.variance * (2 * BEND_SLOPE / sigma + BEND / sigma**2) + spread, 1.0)


def _kernel(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """u(p) r with u the potential of all residuals, 2 Σs|r| large and as steep over the width."""
    view, scale = at.view, 1.0
    if options["weighted"]:
        right = float(view.shares[view.hit].sum())
        scale = 1 / max(min(right, 1 - right), 1e-12)
    mean = float(at.weight.sum())
    rounding = 1e-13 * math.sqrt(view.total) * mean
    change = (4 * (1 + 1 / options["width"]) * at.deviation + rounding) * mean * scale**2
    return change if options["square"] else _root(change, value)


def _density(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """Twice the density and once that of the hits; both are spread over a grid first."""
    width = kernel.kde_bandwidth(at.view)
    spread = at.variance + 2 * (1 / kernel.CELLS) ** 2 / 4
    return min(3 * TRIWEIGHT * spread / width**2, 1.0)


def _pairs(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """A hit and a miss of one cell may be ordered either way."""
    view = at.view
    hit, all_ = (np.bincount(at.cell, view.shares * values) for values in (view.hit, np.ones(view.n)))
    both = float(hit.sum() * (all_ - hit).sum())
    return min(float(hit @ (all_ - hit)) / both, 1.0) if both > 0 else 1.0


def _cells_in_order(at: Placed) -> tuple[Floats, Floats]:
    """(cells,) misses and hits as shares of the rows, cells by rising odds."""
    p, complement, hits = (
        np.bincount(at.cell, at.view.shares * v) for v in (at.view.p, at.view.complement, at.view.hit)
    )
    with np.errstate(divide="ignore"):
        order = np.argsort(np.log(p) - np.log(complement), kind="stable")
    return np.maximum(at.mass - hits, 0.0)[order], np.asarray(hits[order], np.float64)


def _risk(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """The area is least where the hits of every cell are surer than its misses, and largest where they are less sure.

    A miss of rank k by falling confidence adds (H_n - H_{k-1}) / n, with H the harmonic numbers.
    """
    misses, hits = (np.rint(part[::-1] * at.sample.n) for part in _cells_in_order(at))
    end = np.cumsum(misses + hits)
    ends = []
    for first in (end - misses - hits, end - misses):  # ranks before the misses of each cell
        last = first + misses
        h_first, h_last = harmonic(first), harmonic(last)
        cost = misses * (harmonic(end[-1:]) - h_last) + misses - first * (h_last - h_first)
        ends.append(float(cost.sum()) / at.sample.n)
    return max(abs(end - value) for end in ends)


def _recalibrated(blocks: Blocks, score: str) -> float:
    """Mean score of a regression, which is the uncertainty within its blocks."""
    rate = np.clip(blocks.hits / blocks.weight, 0.0, 1.0)
    if score == "brier":
        return float(blocks.weight @ (rate * (1 - rate)))
    inside = np.clip(rate, 1e-300, 1.0), np.clip(1 - rate, 1e-300, 1.0)
    return -float(blocks.weight @ (rate * np.log(inside[0]) + (1 - rate) * np.log(inside[1])))


def _isotonic(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """The regression scores best where the misses of every cell lie below its hits, and worst where all are tied."""
    misses, hits = _cells_in_order(at)
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


def _spiegelhalter(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """Its numerator stays as it is; of the variance under the root, a quartic of p."""
    view = at.view
    variance = float(view.shares @ ((view.complement - view.p) ** 2 * view.p * view.complement))
    lost = STEEP * at.variance / variance
    rounding = 1e-12 * math.sqrt(view.total)  # sums of N rows over the root of N
    return abs(value) * (1 / math.sqrt(1 - lost) - 1) + rounding if lost < 1 else math.inf


def _cox(coefficient: int) -> Bound:
    """What the score at the fit changes by where every cell's rows, outcome by outcome, stand at their mean, brought
    through the Hessian; three times, for rows that stand neither there nor where they are put.
    """

    def bound(at: Placed, options: Mapping[str, Any], value: float) -> float:
        view, fit = at.view, at.view.once(cox)
        assert fit is not None
        own = np.maximum(np.bincount(at.outcome, view.shares), 1e-300)

        def scores(p: Floats, complement: Floats) -> tuple[Floats, Floats]:
            """(2, rows) regressors, and those times the residual of the fit."""
            x = np.stack([np.ones(view.n), log_odds(p, complement)])
            return x, x * ((1 + np.tanh(fit.beta @ x / 2)) / 2 - view.hit)

        mean = [(np.bincount(at.outcome, view.shares * v) / own)[at.outcome] for v in (view.p, view.complement)]
        x, there = scores(view.p, view.complement)
        change = view.shares * (there - scores(*mean)[1])
        moved = np.array([np.abs(np.bincount(at.outcome, row)).sum() for row in change])
        p = (1 + np.tanh(fit.beta @ x / 2)) / 2
        return float(3 * np.abs(np.linalg.inv((x * (view.shares * p * (1 - p))) @ x.T))[coefficient] @ moved)

    return bound


def _chance(at: Placed, options: Mapping[str, Any], value: float) -> float | None:
    """Of the same table, the same draws, but for one that rounding may turn."""
    if options["statistic"] != "ece" or at.cut_by_width(options["bins"])[1].any():
        return None
    return 0.0


BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(("ece", "oce", "uce"), _signed(2.0)),
    "overconfidence_error": _signed(2.0, 4.0),
    "ece_l2": _signed(4.0, 2.0, root=True),
    "mce": _largest,
    "high_confidence_share": _confident,
    "high_confidence_accuracy": _confident_accuracy,
    "adaece": _equal_mass,
    "ece2_debiased": _debiased,
    "smece": _smooth,
    "mmce": _kernel,
    "kde_ece": _density,
    "spiegelhalter_z": _spiegelhalter,
    **dict.fromkeys(("auc", "failure_auroc"), _pairs),
    "aurc": _risk,
    "corp_mcb": _miscalibration,
    "corp_dsc": _isotonic,
    "calibration_p": _chance,
    "cox_intercept": _cox(0),
    "cox_slope": _cox(1),
}
