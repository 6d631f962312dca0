"""Binned calibration errors: norms of the signed gaps d_b of a reliability table.

With w_b the share of rows in bin b, gap_b = mean confidence minus accuracy and d_b = w_b gap_b, every one of these is a
function of the table alone. Empty bins count for nothing. Of two classes the probability is that of the event, class 1,
and `accuracy` its frequency; `of=top` measures the predicted class instead, which folds P(event) at one half.
"""

from __future__ import annotations

import numpy as np

from calibcli.columns import Edges
from calibcli.metrics import binned_intervals as intervals
from calibcli.metrics.norms import debiased, l1, l2, largest, over, over_by_confidence, under
from calibcli.metrics.reliability import Bins
from calibcli.metrics.sample import METRICS, SIGNED, UNIT, Equal, Of, Sample
from calibcli.spec import Count


def width(sample: Sample, *, bins: int, edges: Edges = "right", of: Of = "auto") -> Bins:
    """The equal-width table that `ece`, `mce`, ... read."""
    return sample.view(of).width_bins(bins, edges)


def mass(sample: Sample, *, bins: int, method: Equal = "split-merge", of: Of = "auto") -> Bins:
    """The equal-mass table that `adaece` and `ece2_debiased` read."""
    return sample.view(of).mass_bins(bins, method)


@METRICS.add(values=UNIT, better="lower", unit="probability", table=width, norm=l1, interval=intervals.gate)
def ece(sample: Sample, *, bins: Count = 15, edges: Edges = "right", of: Of = "auto") -> float:
    """Expected calibration error, Σ_b |d_b| over equal-width bins (Naeini 2015; Guo 2017).

    `edges`: `right` (lo, hi] with 0 in the first; `left` [lo, hi) with 1 in the last; `torchmetrics` as `left` with
    one bin more that holds exactly 1.
    """
    return float(l1(width(sample, bins=bins, edges=edges, of=of)))


@METRICS.add(values=UNIT, better="lower", unit="probability", table=width, norm=largest, interval=intervals.no_interval)
def mce(sample: Sample, *, bins: Count = 15, edges: Edges = "right", of: Of = "auto") -> float:
    """Maximum calibration error, max_b |gap_b| over filled equal-width bins (Naeini 2015)."""
    return float(largest(width(sample, bins=bins, edges=edges, of=of)))


@METRICS.add(values=UNIT, better="lower", unit="probability", table=width, norm=l2, interval=intervals.signed)
def ece_l2(sample: Sample, *, bins: Count = 15, edges: Edges = "right", of: Of = "auto") -> float:
    """Root mean square calibration error, (Σ_b w_b gap_b²)^½ over equal-width bins."""
    return float(l2(width(sample, bins=bins, edges=edges, of=of)))


@METRICS.add(values=UNIT, better="lower", unit="probability", table=width, norm=over, interval=intervals.signed)
def oce(sample: Sample, *, bins: Count = 15, edges: Edges = "right", of: Of = "auto") -> float:
    """Overconfident part of the ECE, Σ_b max(d_b, 0); `oce` + `uce` = `ece`."""
    return float(over(width(sample, bins=bins, edges=edges, of=of)))


@METRICS.add(values=UNIT, better="lower", unit="probability", table=width, norm=under, interval=intervals.signed)
def uce(sample: Sample, *, bins: Count = 15, edges: Edges = "right", of: Of = "auto") -> float:
    """Underconfident part of the ECE, Σ_b max(-d_b, 0)."""
    return float(under(width(sample, bins=bins, edges=edges, of=of)))


@METRICS.add(
    values=UNIT, better="lower", unit="probability", table=width, norm=over_by_confidence, interval=intervals.signed
)
def overconfidence_error(sample: Sample, *, bins: Count = 15, edges: Edges = "right", of: Of = "auto") -> float:
    """Overconfidence error, Σ_b conf_b max(d_b, 0) (Thulasidasan 2019)."""
    return float(over_by_confidence(width(sample, bins=bins, edges=edges, of=of)))


@METRICS.add(values=UNIT, better="lower", unit="probability", table=mass, norm=l1, interval=intervals.signed)
def adaece(sample: Sample, *, bins: Count = 15, method: Equal = "split-merge", of: Of = "auto") -> float:
    """Adaptive ECE, Σ_b |d_b| over bins of equal mass (Nguyen & O'Connor 2015; Mukhoti 2020).

    `method`: `split` cuts the rows sorted by confidence into groups whose sizes differ by at most 1, ties by row order;
    `split-merge` as `split`, but rows of equal confidence share their accuracy, so that row order does not matter;
    `mukhoti` the released code of that paper: interpolated edges, bins (lo, hi], which drops the smallest confidence;
    `whole` as `split`, but all rows of equal confidence go to the bin that their middle falls in.
    """
    return float(l1(mass(sample, bins=bins, method=method, of=of)))


@METRICS.add(values=SIGNED, better="lower", unit="", table=mass, norm=debiased, interval=intervals.debiased_square)
def ece2_debiased(sample: Sample, *, bins: Count = 15, method: Equal = "whole", of: Of = "auto") -> float:
    """Debiased squared calibration error, Σ_b w_b [gap_b² - acc_b (1 - acc_b) / (n_b - 1)] (Bröcker 2012; Kumar 2019).

    Over equal-mass bins with n_b >= 2; may be negative, when the gaps are smaller than chance makes them. Each bin's
    own noise is taken off, so bins must not share rows: `whole` keeps ties in one bin, `split` cuts them by row order;
    `split-merge` and `mukhoti` (see `adaece`) are biased where ties meet a cut, and then have no bounds.
    """
    return float(debiased(mass(sample, bins=bins, method=method, of=of)))


@METRICS.add(values=UNIT, better="lower", unit="probability", interval=intervals.no_interval)
def ece_sweep(sample: Sample, *, of: Of = "auto") -> float:
    """ECE with the most equal-mass bins whose accuracies still rise with confidence (Roelofs 2022)."""
    return sweep(sample, of=of)[1]


def sweep(sample: Sample, *, of: Of = "auto") -> tuple[int, float]:
    """The number of bins that `ece_sweep` stops at, and the ECE there."""
    view = sample.view(of)
    order = view.stable_order
    w = np.ones(view.n) if view.weights is None else view.weights[order]
    position = np.append(0.0, np.cumsum(w))
    p = np.append(0.0, np.cumsum(w * view.p[order]))
    hit = np.append(0.0, np.cumsum(w * view.hit[order]))
    best = (1, abs(p[-1] - hit[-1]) / view.total)
    for bins in range(2, view.n + 1):
        cuts = view.cuts(bins)
        sums = np.diff(np.interp(cuts, position, hit))
        mass = np.diff(cuts)
        if np.any(np.diff(sums / mass) < 0):
            break
        best = (bins, float(np.abs(np.diff(np.interp(cuts, position, p)) - sums).sum()) / view.total)
    return best
