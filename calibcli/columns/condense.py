"""Columns of more rows than memory holds: two weighted rows for each cell of a fine confidence histogram.

A cell holds the rows of one of CELLS equal intervals of confidence and of one outcome. Its two rows stand at mean - sd
and mean + sd of every column, so that sums and sums of squares over any union of cells are those of all its rows.
CELLS is a multiple of every usual number of bins, so that no bin edge cuts a cell; what is lost is the place of a row
within its cell, less than 1 / CELLS in confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibcli.numerics import bin_index
from calibcli.predictions import Floats, Ints

CELLS = 25_200
NAMES = ("confidence", "rest", "nll", "most", "brier", "entropy")


class Cells:
    """Counts, sums and sums of squares per cell, filled span by span."""

    def __init__(self, k: int, top_only: bool = False) -> None:
        self.k, self.top_only = k, top_only
        self.count = np.zeros(2 * CELLS)
        self.sums = {name: np.zeros((2, 2 * CELLS)) for name in NAMES}

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> None:
        """Rows of one span."""
        if self.k == 2:  # by P(y = 1) and label, so that both can be told from the cell
            value, side = np.where(predicted == 1, out["confidence"], out["rest"]), labels
        else:
            value, side = out["confidence"], (predicted == labels).astype(np.int64)
        cell = bin_index(value, CELLS) + CELLS * side
        self.count += np.bincount(cell, minlength=2 * CELLS)
        for name in NAMES:
            column = out[name]
            self.sums[name][0] += np.bincount(cell, column, 2 * CELLS)
            self.sums[name][1] += np.bincount(cell, column * column, 2 * CELLS)

    def columns(self) -> dict[str, Any]:
        """Two rows per occupied cell, weights their counts: the fields of `Columns` without class tables."""
        used = np.flatnonzero(self.count)
        count = self.count[used]
        out: dict[str, Any] = {}
        for name in NAMES:
            mean = self.sums[name][0][used] / count
            with np.errstate(invalid="ignore"):  # inf - inf where the NLL is infinite
                spread = np.sqrt(np.maximum(self.sums[name][1][used] / count - mean * mean, 0.0))
            spread = np.where(np.isfinite(mean), spread, 0.0)
            out[name] = np.concatenate([mean - spread, mean + spread])
        for name in ("confidence", "rest"):  # one place for both, within the cell
            mean = self.sums[name][0][used] / count
            out[name] = np.concatenate([mean, mean])
        side = np.concatenate([used // CELLS, used // CELLS])
        if self.k == 2:
            positive = np.concatenate([used % CELLS, used % CELLS]) >= CELLS // 2
            predicted, labels = (positive | self.top_only).astype(np.int64), side
        else:
            predicted, labels = np.zeros_like(side), 1 - side
        return {
            **out,
            "predicted": predicted,
            "labels": labels,
            "correct": predicted == labels,
            "k": self.k,
            "top_only": self.top_only,
            "weights": np.concatenate([count, count]) / 2,
            "weight_kind": "count",
            "condensed": int(count.sum()),
        }
