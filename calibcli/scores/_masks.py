"""Find scores that are masks: so far below the others of their row that they stand for a class that was left out.

A model that may not answer with a class gets its logit replaced by, or added to, a large negative number: -1e4, -65504,
-1e9, the smallest float. Such a number is no measurement, as -inf is none. Ours: how it is told from a logit.

Depth is the largest score of a row minus another one. Scores are masks if their depth is at least `LEAST`, and `APART`
times that of every score that is not: of a model, however sure it is, the depths have no such gap. No temperature that
leaves the others apart lets a mask count. A class that was left out is not the label, so scores that the labels have
are no masks; nor are they if other scores differ in hardly any row, as those of one-hot vectors do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from calibcli.core.number_format import count_text
from calibcli.scores.files.arrays import Converted, Memory, blocks
from calibcli.scores.predictions import Array, Floats, Ints, Named
from calibcli.scores.softmax import DeviceScores

LEAST = 900.0  # nats
APART = 10.0
ORDINARY = 0.01  # share of the rows in which scores that are no masks must differ
LABELS = 0.01  # share of the rows with masks whose label may be one: labels have errors
HELD = 1 << 28  # bytes up to which scores without masks are kept in memory


@dataclass(frozen=True)
class Masks:
    """Scores that are masks.

    Attributes:
        depth: from which on a score is a mask.  ordinary: largest depth of the others.
        low, high: smallest and largest mask.  rows: with a mask.  labels: rows whose label has one.
        differ: rows in which other scores differ.  n: all rows.
    """

    depth: float
    ordinary: float
    low: float
    high: float
    rows: int = 0
    labels: int = 0
    differ: int = 0
    n: int = 0

    @property
    def found(self) -> bool:
        """Whether they are masks, by labels and rows."""
        return self.labels <= LABELS * self.rows and self.differ >= ORDINARY * self.n

    @property
    def note(self) -> str:
        """Say what they are taken for, and why."""
        values = f"{self.high:.6g}" if self.low == self.high else f"{self.low:.6g} to {self.high:.6g}"
        where = f"{count_text(self.rows, 'row')} of {self.n:,} have scores of {values}"
        if self.found:
            return (
                f"{where}, where others lie at most {self.ordinary:.3g} below the largest of their row: they are taken "
                "for masks, as -inf, and those classes have probability 0"
            )
        if self.labels > LABELS * self.rows:
            return (
                f"{where}, far below all others, and {count_text(self.labels, 'label')} among them: they are not taken "
                "for masks; were these labels left out by mistake?"
            )
        return (
            f"{where}, {LEAST:g} or more below the largest of their row, and in hardly any row do other scores differ: "
            "they are not taken for masks, but for those of a model that is always certain"
        )


def find(scores: Named, labels: Ints | None) -> Masks | None:
    """Return the scores (N, K) that are masks, or that would be but for the labels; None if there are none."""
    if scores.shape[1] < 2:
        return None
    ends: dict[int, tuple[float, float]] = {}  # smallest and largest depth, by power of two
    for _, depth, _ in _depths(scores):
        depths = depth[depth > 0]
        octave = np.frexp(depths)[1]
        for power in np.unique(octave).tolist():
            some = depths[octave == power]
            low, high = ends.get(power, (np.inf, 0.0))
            ends[power] = min(low, float(some.min())), max(high, float(some.max()))
    refused = None
    powers = sorted(ends)
    for below, above in pairwise(powers):
        ordinary, least = ends[below][1], ends[above][0]
        if least >= max(LEAST, APART * ordinary):
            masks = _counted(scores, labels, Masks(max(LEAST, APART * ordinary) / 2, ordinary, np.inf, -np.inf))
            if masks.found:
                return masks
            refused = refused or masks
    if powers and ends[powers[0]][0] >= LEAST:
        return _counted(scores, labels, Masks(LEAST / 2, 0.0, np.inf, -np.inf))
    return refused


def _depths(scores: Named) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield the first row, the depths of the next rows (n, K), NaN where a score is not finite, and their scores."""
    with np.errstate(invalid="ignore", over="ignore"):
        for start, block in blocks(scores):
            z = np.asarray(block, np.float64)
            finite = np.isfinite(z)
            z = np.where(finite & ~(np.isnan(z) | (z == np.inf)).any(axis=1, keepdims=True), z, np.nan)
            top = np.where(np.isnan(z), -np.inf, z).max(axis=1, keepdims=True)
            yield start, top - z, z


def _counted(scores: Named, labels: Ints | None, masks: Masks) -> Masks:
    """Count the rows with masks, with a label that is one, and in which other scores differ."""
    for start, depth, z in _depths(scores):
        mask = depth >= masks.depth
        at_label = None if labels is None else mask[np.arange(len(mask)), labels[start : start + len(mask)]]
        values = z[mask]
        masks = replace(
            masks,
            low=min(masks.low, float(values.min(initial=np.inf))),
            high=max(masks.high, float(values.max(initial=-np.inf))),
            rows=masks.rows + int(mask.any(axis=1).sum()),
            labels=masks.labels + (0 if at_label is None else int(at_label.sum())),
            differ=masks.differ + int(((depth > 0) & ~mask).any(axis=1).sum()),
            n=masks.n + len(mask),
        )
    return masks


def left_out(scores: Named, masks: Masks) -> Named:
    """Return the scores with -inf for masks."""
    if isinstance(scores, DeviceScores):
        return scores.left_out(masks.depth)
    dtype = scores.dtype if scores.dtype.kind == "f" else np.dtype(np.float64)

    def without(block: Array) -> Array:
        z = block.astype(dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            wide = z.astype(np.float64)
            z[wide.max(axis=1, keepdims=True) - wide >= masks.depth] = -np.inf
        return z

    converted = Converted(scores, without, scores.shape[1:], dtype)
    n, k = scores.shape
    return Memory(converted.read(0, n)) if n * k * dtype.itemsize <= HELD else converted
