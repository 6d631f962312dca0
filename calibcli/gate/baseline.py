"""Per-row values of an evaluation, kept in its result so that a later one can be compared row by row."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from calibcli import schema
from calibcli.columns import Columns
from calibcli.errors import InputError, UsageError
from calibcli.gate.paired import Mean
from calibcli.links import cross_fit_beta
from calibcli.metrics.gain import FOLDS, folds_of
from calibcli.predictions import Predictions
from calibcli.spec import Range

Array = npt.NDArray[Any]
CAP = 1_000_000
FITTED = 60  # rows: 1 + FITTED / n is what fitting the temperatures adds to the variance of gains, by simulation
KEPT = ("nll", "brier", "gain")
METRICS = {"recal_gain": "gain", "nll": "nll", "brier": "brier", "accuracy": "correct"}
"""What can be compared with a baseline, and the column that holds it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """What a comparison by rows needs: 20 bytes a row.

    Attributes:
        n: rows.
        salt: text that ids were hashed with, so that they cannot be looked up in another file.
        ids: (N,) uint64 hashes, or None when the rows have no ids.
        labels: sha256 of the label sequence.
        nll, brier: (N,) float32.  correct: (N,) bool.
        gain: (N,) float32, nats that a re-fitted temperature would save on the row (fitted without its fold).
    """

    n: int
    salt: str
    ids: npt.NDArray[np.uint64] | None
    labels: str
    nll: npt.NDArray[np.float32]
    brier: npt.NDArray[np.float32]
    gain: npt.NDArray[np.float32]
    correct: npt.NDArray[np.bool_]

    def column(self, metric: str) -> Array:
        return np.asarray(getattr(self, METRICS[metric]), dtype=np.float64)

    def pack(self) -> dict[str, Any]:
        """Plain data for a result file.

        Raises:
            UsageError: more than a million rows.
        """
        if self.n > CAP:
            raise UsageError(
                f"{self.n} rows are more than --keep-rows keeps ({CAP})", "use the scores file itself as the baseline"
            )
        return {
            "n": self.n,
            "salt": self.salt,
            "labels_sha256": self.labels,
            "folds": FOLDS,
            "ids": None if self.ids is None else _packed(self.ids.astype("<u8")),
            "correct": _packed(np.packbits(self.correct)),
            **{key: _packed(getattr(self, key).astype("<f4")) for key in KEPT},
        }

    @classmethod
    def unpack(cls, data: Mapping[str, Any], source: str) -> Rows:
        """What `pack` made.

        Raises:
            InputError: not that.
        """
        fix = "write the baseline again with --keep-rows"
        packed: Packed = schema.read(data, Packed, source, fix, "facts.rows")
        n = packed.n
        try:
            ids = None if packed.ids is None else _unpacked(packed.ids, "<u8", n).astype(np.uint64)
            floats = {key: _unpacked(getattr(packed, key), "<f4", n).astype(np.float32) for key in KEPT}
            bits = _unpacked(packed.correct, "u1", (n + 7) // 8)
        except (ValueError, zlib.error) as error:
            raise InputError(f"the rows kept in {source} are damaged ({error})", fix) from None
        if not ((floats["nll"] >= 0).all() and ((floats["brier"] >= 0) & (floats["brier"] <= 2)).all()):
            raise InputError(f"the rows kept in {source} hold an NLL or Brier score that cannot be", fix)
        correct = np.unpackbits(bits, count=n).astype(bool)
        return cls(n=n, salt=packed.salt, ids=ids, labels=packed.labels_sha256, correct=correct, **floats)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """`Rows` as they lie in the facts of a result: arrays compressed, in base64."""

    n: Annotated[int, Range(1, CAP)]
    salt: str
    labels_sha256: str
    folds: int
    ids: str | None
    correct: str
    nll: str
    brier: str
    gain: str

    def problem(self) -> str:
        """A salt that is no key, or gains of other folds than these rows have."""
        if not re.fullmatch("[0-9a-f]{1,64}", self.salt):
            return "salt is not a hexadecimal number"
        return "" if self.folds == FOLDS else f"gains are of {self.folds} folds, not {FOLDS}"


def rows(predictions: Predictions, columns: Columns, salt: str = "") -> Rows:
    """The rows of one evaluation; a new salt unless one is given."""
    salt = salt or secrets.token_hex(8)
    gain: Array = np.full(predictions.n, np.nan)  # where a label has probability 0 no temperature helps
    if np.isfinite(columns.nll).all():
        gain, _ = cross_fit_beta(predictions.logits, predictions.labels, folds_of(predictions), predictions.weights)
    return Rows(
        n=predictions.n,
        salt=salt,
        ids=None if predictions.ids is None else hashes(predictions.ids, salt),
        labels=label_digest(predictions),
        nll=columns.nll.astype(np.float32),
        brier=columns.brier.astype(np.float32),
        gain=np.asarray(gain).astype(np.float32),
        correct=columns.correct,
    )


def half(moments: Mean, metric: str, alpha: float) -> float:
    """Distance from a mean difference to its bound at 1 - alpha.

    Gains of one fold share a fitted temperature, so that few rows vary together; counts allow for what was not seen.
    """
    distance = moments.half(alpha, counts=metric == "accuracy")
    return distance * math.sqrt(1 + FITTED / moments.n) if metric == "recal_gain" else distance


def label_digest(predictions: Predictions) -> str:
    """sha256 of the label sequence."""
    return hashlib.sha256(np.ascontiguousarray(predictions.labels, dtype="<i8").tobytes()).hexdigest()


def hashes(ids: Array, salt: str) -> npt.NDArray[np.uint64]:
    """First 64 bits of BLAKE2b of each id's text, keyed with the salt."""
    key = salt.encode()
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8, key=key).digest() for i in ids.tolist())
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairing:
    """Which row of one evaluation is which row of another; `how` says by what, for the reader."""

    new: Array
    base: Array
    how: str


def pair(new: Rows, base: Rows) -> Pairing | str:
    """Rows that two evaluations share, or the reason why that cannot be told.

    Args:
        new: hashed with the salt of `base`.
        base: the baseline.
    """
    if new.ids is not None and base.ids is not None:
        for which, one in (("this input", new), ("the baseline", base)):
            if len(np.unique(one.ids)) < one.n:  # type: ignore[arg-type]
                return f"ids in {which} are not unique"
        _, i, j = np.intersect1d(new.ids, base.ids, assume_unique=True, return_indices=True)
        if len(i) == 0:
            return "no row of this input has an id of the baseline"
        order = np.argsort(i, kind="stable")
        both = "" if len(i) == new.n == base.n else f" ({len(i)} in both, {new.n} here, {base.n} in the baseline)"
        return Pairing(new=i[order], base=j[order], how="rows paired by id" + both)
    if new.n != base.n:
        return f"rows have no ids and their numbers differ ({new.n} here, {base.n} in the baseline)"
    if new.labels != base.labels:
        return "rows have no ids and the label sequences differ"
    every = np.arange(new.n)
    return Pairing(new=every, base=every, how="rows paired by position: no ids, but the same label sequence")


def identical(new: Rows, base: Rows, pairing: Pairing) -> bool:
    """Whether every kept value of every shared row is the same: the same predictions."""
    i, j = pairing.new, pairing.base
    return all(getattr(new, key)[i].tobytes() == getattr(base, key)[j].tobytes() for key in (*KEPT, "correct"))


def _packed(array: Array) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 6)).decode()


def _unpacked(text: str, dtype: str, count: int) -> Array:
    size = np.dtype(dtype).itemsize * count
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(text, validate=True), size + 1)  # bounded: no decompression bomb
    if len(data) != size:
        raise ValueError(f"{count} values expected")
    return np.frombuffer(data, dtype=dtype)
