"""Which rows are held out, by a seed of their own: runs of several seeds are trained and judged on the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError, UsageError
from calibcli.inputs.dataset import Dataset

Index = NDArray[np.int64]
SEEDS = {"stratified": 0, "mukhoti": 1}  # where none is asked for; the paper's is the one of its code


@dataclass(frozen=True)
class Split:
    """How rows are held out; None: as of the checkpoint that is trained on, else by default.

    Attributes:
        how: `stratified`, the same share of every class; or `mukhoti`, the first share of all rows in the order of
            NumPy's legacy generator: with seed 1 the 45,000 and 5,000 of CIFAR of Mukhoti et al. (2020).
    """

    how: str | None = None
    seed: int | None = None
    share: float | None = None

    def after(self, start: Mapping[str, Any] | None) -> Split:
        """This split with nothing left open: as the start `said` its own was, where neither `how` nor `seed` is."""
        if start and self.how is None and self.seed is None:
            return Split(start["how"], start["seed"], start["share"] if self.share is None else self.share)
        how = self.how or "stratified"
        return Split(how, SEEDS[how] if self.seed is None else self.seed, 0.1 if self.share is None else self.share)

    def __call__(self, labels: Index) -> tuple[Index, Index]:
        """Rows (kept, held out), each sorted.

        Raises:
            UsageError: a share outside (0, 1), or of no row.
            InputError: a class with a single row, which cannot be in both.
        """
        whole = self.after(None)
        assert whole.how is not None
        assert whole.seed is not None
        assert whole.share is not None
        if not 0 < whole.share < 1:
            problem = f"--val-fraction {whole.share:g} is not a share"
            raise UsageError(problem, "pass a number between 0 and 1, such as 0.1")
        chosen = np.sort(HOW[whole.how](labels, whole.share, whole.seed))
        return np.setdiff1d(np.arange(len(labels)), chosen), chosen

    def said(self, data: Dataset, held: Index) -> dict[str, Any]:
        """What a result and a checkpoint say of it; the digest is of the held out rows' places in the file."""
        places = np.ascontiguousarray(data.rows[held], "<i8").tobytes()
        digest = hashlib.sha256(places).hexdigest()[:16]
        return {**vars(self), "held_out": len(held), "of": len(data), "rows_sha256": digest}


def _stratified(labels: Index, share: float, seed: int) -> Index:
    """The same share of every class, at least one row each."""
    rng = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            problem = f"class {label} has one row: it cannot be both trained on and held out"
            raise InputError(problem, "add rows of that class, or pass --validation")
        held.append(rng.permutation(rows)[: min(len(rows) - 1, max(1, round(share * len(rows))))])
    return np.concatenate(held)


def _mukhoti(labels: Index, share: float, seed: int) -> Index:
    count = int(share * len(labels))
    if not count:
        raise UsageError(f"--val-fraction {share:g} of {len(labels)} rows is none", "hold out a larger share")
    return np.random.RandomState(seed).permutation(len(labels))[:count]


DEFAULT = Split()
HOW: dict[str, Callable[[Index, float, int], Index]] = {"stratified": _stratified, "mukhoti": _mukhoti}
