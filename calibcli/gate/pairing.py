"""Which row of one evaluation is which row of another: by id, or by position, and only where their labels agree."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.predictions import Ints, Predictions

Array = npt.NDArray[Any]
TOGETHER = 4
"""Rows whose labels share one bit of a kept baseline: eight of the sixteen labellings of four binary rows fit it, so
that somebody who guesses the ids still learns no label."""
ENOUGH = 10
"""Bits that must be compared: labels of other data agree in all of them with a probability of 1 / 1024."""
EVERY = slice(None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Keys:
    """What rows are paired by.

    Attributes:
        n: rows.
        ids: (N,) uint64 hashes, or None when the rows have no ids.
        labels: (N,) class of each row; None of rows that a result keeps, which hold what follows instead.
        digest: sha256 of the label sequence; "" where all that is known is whether each prediction was right.
        label_bits: (N // TOGETHER,) of rows that a result keeps, see `label_bits`; None where it keeps none.
        labelled: whether the labels belong to the rows, so that two models of the same rows must agree on them.
    """

    n: int
    ids: npt.NDArray[np.uint64] | None
    labels: Ints | None
    digest: str
    label_bits: npt.NDArray[np.bool_] | None = None
    labelled: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairing:
    """Which row of one evaluation is which row of another; `how` says by what, for the reader."""

    new: Array
    base: Array
    how: str


@dataclass(frozen=True)
class Unpaired:
    """Why rows do not pair, and what to do about it."""

    problem: str
    fix: str = "give both files an 'id' column"

    def __str__(self) -> str:
        return f"{self.problem}: {self.fix}"


def keys(predictions: Predictions, salt: str = "") -> Keys:
    """The keys of one evaluation's rows, ids hashed with the salt."""
    top_only = predictions.top_only
    return Keys(
        n=predictions.n,
        ids=None if predictions.ids is None else hashes(predictions.ids, salt),
        labels=predictions.labels,
        digest="" if top_only else _digest(predictions.labels),
        labelled=not top_only and predictions.facts.get("labelled") is not False,
    )


def hashes(ids: Array, salt: str) -> npt.NDArray[np.uint64]:
    """First 64 bits of BLAKE2b of each id's text, keyed with the salt."""
    key = salt.encode()
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8, key=key).digest() for i in ids.tolist())
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def pair(new: Keys, base: Keys, names: tuple[str, str] = ("this input", "the baseline")) -> Pairing | Unpaired:
    """Pair the rows that two evaluations share, or say why that cannot be done.

    Rows pair by id where both have ids, and the labels of the shared rows must be equal. Else they pair by position,
    and the sequences of labels must be equal.

    Args:
        new: hashed with the salt of `base`.
        base: the baseline.
        names: of both, for messages.
    """
    here, there = names
    if new.ids is not None and base.ids is not None:
        for which, one in ((here, new), (there, base)):
            if len(np.unique(one.ids)) < one.n:  # type: ignore[arg-type]
                return Unpaired(f"ids in {which} are not unique", "give each row its own id")
        _, i, j = np.intersect1d(new.ids, base.ids, assume_unique=True, return_indices=True)
        if len(i) == 0:
            return Unpaired(f"no row of {here} has an id of {there}", "pass the same rows, under the same ids")
        order = np.argsort(i, kind="stable")
        i, j = i[order], j[order]
        if new.labelled and base.labelled and (refusal := _differing(new, base, i, j, there)):
            return refusal
        both = "" if len(i) == new.n == base.n else f" ({len(i)} in both, {new.n} {_in(here)}, {base.n} in {there})"
        return Pairing(new=i, base=j, how="rows paired by id" + both)
    if not (new.digest and base.digest):
        return Unpaired("rows have no ids, and confidences alone do not pair")
    if new.n != base.n:
        return Unpaired(f"rows have no ids and their numbers differ ({new.n} {_in(here)}, {base.n} in {there})")
    if new.digest != base.digest:
        return Unpaired("rows have no ids and the label sequences differ")
    every = np.arange(new.n)
    return Pairing(new=every, base=every, how="rows paired by position: no ids, but the same label sequence")


def label_bits(
    ids: npt.NDArray[np.uint64], labels: Ints, whole: npt.NDArray[np.bool_] | slice = EVERY
) -> npt.NDArray[np.bool_]:
    """One bit for every TOGETHER rows, in the order of their hashed ids: of BLAKE2b of those ids with their labels.

    Args:
        ids: (N,) hashes of all rows.
        labels: (N,) classes.
        whole: which groups of TOGETHER rows are asked for.
    """
    order = np.argsort(ids, kind="stable")
    table = np.column_stack([ids[order], labels[order].astype(np.uint64)]).astype("<u8")
    starts = _starts(len(ids))
    ends = np.append(starts[1:], len(ids))
    spans = zip(starts[whole].tolist(), ends[whole].tolist(), strict=True)
    bits = [hashlib.blake2b(table[start:end].tobytes(), digest_size=1).digest()[0] & 1 for start, end in spans]
    return np.array(bits, bool)


def _starts(n: int) -> Ints:
    """First row of each group of TOGETHER; the last group takes the remaining rows too."""
    return np.arange(max(1, n // TOGETHER)) * TOGETHER


def bits_of(n: int) -> int:
    """Number of label bits of `n` rows."""
    return len(_starts(n))


def _differing(new: Keys, base: Keys, i: Array, j: Array, there: str) -> Unpaired | None:
    """Why the labels of the rows `i` of `new` and `j` of `base` are not known to be the same; None where they are."""
    fix = "check the ids: the same id must name the same row"
    if new.labels is not None and base.labels is not None:
        wrong = int((new.labels[i] != base.labels[j]).sum())
        return Unpaired(f"{wrong:,} of {len(i):,} rows of the same id have another label", fix) if wrong else None
    differ = Unpaired("rows of the same id have another label", fix)
    if new.labels is None and base.labels is None:
        same = new.n == base.n == len(i) and np.array_equal(i, j) and new.digest == base.digest
        return None if same else Unpaired("both are results, whose labels cannot be compared", "pass the scores")
    full, kept = (new, base) if base.labels is None else (base, new)
    at, to = (i, j) if base.labels is None else (j, i)
    labels = np.zeros(kept.n, np.int64)
    labels[to] = full.labels[at]  # type: ignore[index]
    if len(at) == kept.n:
        return None if _digest(labels) == kept.digest else differ
    fix = f"pass the scores file that {there} was made of, or rows of which more are in both"
    if kept.label_bits is None:
        return Unpaired(f"{there} keeps no labels of single rows, as an earlier version wrote it", fix)
    shared = np.zeros(kept.n, bool)
    shared[to] = True
    starts = _starts(kept.n)
    whole = np.logical_and.reduceat(shared[np.argsort(kept.ids, kind="stable")], starts)  # type: ignore[arg-type]
    bits = label_bits(kept.ids, labels, whole)  # type: ignore[arg-type]
    if not np.array_equal(bits, kept.label_bits[whole]):
        return differ
    if len(bits) < ENOUGH:
        return Unpaired(f"{len(at)} of the {kept.n} rows that {there} keeps are too few to compare the labels", fix)
    return None


def _digest(labels: Ints) -> str:
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def _in(name: str) -> str:
    """Where rows are, for messages: `here`, or `in b.npz`."""
    return "here" if name == "this input" else f"in {name}"
