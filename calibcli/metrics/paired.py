"""What a map changes: metrics of the same rows before and after, as paired differences with their intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.columns import bin_index
from calibcli.metrics.intervals import IMPOSSIBLE, Rows
from calibcli.metrics.sample import METRICS, Sample
from calibcli.numerics import effective_groups, student_quantile
from calibcli.predictions import Floats
from calibcli.result import Estimate

NAMES = ("nll", "ece", "brier", "accuracy")
FEWEST = 10  # effective groups below which their spread is not known
DRAWS = 2_000  # of the resampled ECE
CHANCE = 2.0  # standard errors within which a bin's gap is as good as none
SAME = "no row changes"
Ends = tuple[tuple[float, float] | None, str, str]  # distances below and above the value, or why not; and how


def differences(
    before: Sample, after: Sample, *, level: float = 0.95, of: str = "after minus before", seed: int = 0
) -> list[Estimate]:
    """`nll`, `ece`, `brier` and `accuracy` of `after` minus those of `before`, samples of the same rows.

    Means over rows by Student's t on the paired rows (or on group sums, with (Σm²)²/Σm⁴ - 1 degrees of freedom; a
    change of class that no row shows is allowed for). The ECE by resampling rows together.
    """
    found = []
    for name in NAMES:
        choice = METRICS.choose(name)
        value = float(choice(after)) - float(choice(before))
        ends, reason, how = (
            _ece_ends(before, after, level, seed) if name == "ece" else _ends(name, before, after, level)
        )
        known = ends is not None and math.isfinite(value)
        found.append(
            Estimate(
                name=name,
                value=value if math.isfinite(value) else None,
                low=value - ends[0] if known and ends is not None else None,
                high=value + ends[1] if known and ends is not None else None,
                level=level,
                of=of,
                unit=choice.traits.get("unit", ""),
                better=choice.traits.get("better", ""),
                n=before.n,
                how=how,
                reason="" if known else reason or IMPOSSIBLE,
            )
        )
    return found


def worse(found: Sequence[Estimate]) -> list[Estimate]:
    """The differences whose whole interval lies on the worse side of zero."""
    return [
        e
        for e in found
        if e.low is not None and e.high is not None and (e.low > 0 if e.better == "lower" else e.high < 0)
    ]


def _quantile(rows: Rows, level: float) -> tuple[float, str]:
    """Student's quantile, or why there is none."""
    degrees = rows.effective - 1
    if rows.groups is not None:
        _, member = np.unique(rows.groups, return_inverse=True)
        units = effective_groups(np.bincount(member, rows.weights).astype(np.float64))
        if units < FEWEST:
            return math.nan, f"{units:.1f} effective groups are fewer than {FEWEST}: their spread is not known"
        degrees = units - 1
    return (student_quantile((1 + level) / 2, degrees), "") if degrees > 0 else (math.nan, "one row has no spread")


def _ends(name: str, before: Sample, after: Sample, level: float) -> Ends:
    """How far the interval of a mean reaches."""
    values = METRICS.choose(name).traits["rows"]
    one, two = (np.asarray(values(sample)[0], np.float64) for sample in (before, after))
    with np.errstate(invalid="ignore"):
        change = np.where(one == two, 0.0, two - one)
    if not change.any():
        return None, SAME, ""
    rows = Rows.of(before, change)
    t, reason = _quantile(rows, level)
    if reason or not np.isfinite(change).all():
        return None, reason or IMPOSSIBLE, ""
    how = "paired over rows, Student's t" + (", clustered by group" if rows.groups is not None else "")
    half = t * rows.se()
    if name != "accuracy":
        return (half, half), "", how
    unseen = 1 / (rows.effective if rows.groups is None else rows.degrees + 1)
    half = (t * t * unseen + math.sqrt((t * t * unseen) ** 2 + 4 * half * half)) / 2
    return (half, half), "", how + ", unseen changes counted"


def _ece_ends(before: Sample, after: Sample, level: float, seed: int) -> Ends:
    """The same for the difference of ECEs: its error where every bin's sum is drawn again as rows (or groups) move it.

    The sums are means over rows, so their joint normal distribution with the rows' covariance stands for resampling the
    rows. Chance makes |d| of a calibrated bin positive, by how much depends on the d that is not known: draws are
    around what was seen, and around it with bins that chance explains set to 0, before, after and both; the interval
    holds them all, so it is longer than needed rather than shorter.
    """
    views = []
    for sample in (before, after):
        options = METRICS.choose("ece").options
        view = sample.view(options["of"])
        views.append((bin_index(view.p, options["bins"], options["edges"]), np.asarray(view.residual), options["bins"]))
    if all(np.array_equal(a, b) for a, b in zip(views[0][:2], views[1][:2], strict=True)):
        return None, SAME, ""
    rows = Rows.of(before, views[0][1])
    t, reason = _quantile(rows, level)
    if reason:
        return None, reason, ""
    centre, covariance = _moments(before, views)
    rng = np.random.default_rng([seed, 7])
    values, vectors = np.linalg.eigh(covariance)
    noise = (rng.standard_normal((DRAWS, len(centre))) * np.sqrt(np.maximum(values, 0))) @ vectors.T
    bins, plain = views[0][2], centre * (np.abs(centre) > CHANCE * np.sqrt(np.diag(covariance)))

    def ece(d: Floats) -> Floats:
        size = np.abs(d)
        return np.asarray(size[..., bins:].sum(axis=-1) - size[..., :bins].sum(axis=-1))

    wide, ends = t / NormalDist().inv_cdf((1 + level) / 2), []
    for first, last in itertools.product((centre, plain), repeat=2):
        around = np.concatenate([first[:bins], last[bins:]])
        error = ece(around + noise) - ece(around)
        middle = float(np.median(error))
        ends.append(middle + wide * (np.quantile(error, [(1 - level) / 2, (1 + level) / 2]) - middle))
    low, high = np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]
    how = f"rows resampled together, {DRAWS} draws" + (", by group" if rows.groups is not None else "")
    return (float(high), float(-low)), "", how


def _moments(sample: Sample, views: Sequence[tuple[Any, Floats, int]]) -> tuple[Floats, Floats]:
    """(2 bins,) Σ w r / W of every bin before and after, and its covariance when rows (or groups) are drawn."""
    (index_a, r_a, bins), (index_b, r_b, _) = views
    w = np.ones(len(r_a)) if sample.weights is None else sample.weights
    total = float(w.sum())
    centre = np.concatenate([np.bincount(index_a, w * r_a, bins), np.bincount(index_b, w * r_b, bins)]) / total
    groups = sample.columns.groups
    if groups is not None:
        _, member = np.unique(groups, return_inverse=True)
        count = int(member.max()) + 1
        sums = np.concatenate(
            [np.bincount(member * bins + i, w * r, count * bins).reshape(count, bins) for i, r, _ in views], axis=1
        )
        mass = np.bincount(member, w, count)[:, None]
        sums = (sums - mass * centre) / total
        return centre, np.asarray(sums.T @ sums * count / max(count - 1, 1))
    power = w if sample.counts else w * w
    second = np.zeros((2 * bins, 2 * bins))
    first, last = slice(0, bins), slice(bins, 2 * bins)
    second[first, first] = np.diag(np.bincount(index_a, power * r_a * r_a, bins))
    second[last, last] = np.diag(np.bincount(index_b, power * r_b * r_b, bins))
    cross: npt.NDArray[Any] = np.bincount(index_a * bins + index_b, power * r_a * r_b, bins * bins)
    second[first, last] = cross.reshape(bins, bins)
    second[last, first] = second[first, last].T
    scale = 1.0 if sample.counts else float(power.sum()) / total
    return centre, second / total**2 - scale * np.outer(centre, centre) / total
