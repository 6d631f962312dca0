"""Per-row values of an evaluation, kept in its result so that a later one can be compared row by row."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from calibcli import wellformed
from calibcli.columns import Columns
from calibcli.errors import InputError, UsageError, did_you_mean, refusing
from calibcli.gate.config import Gate
from calibcli.links import cross_fit_beta
from calibcli.metrics import paired
from calibcli.metrics.gain import FOLDS, folds_of
from calibcli.metrics.intervals import IMPOSSIBLE
from calibcli.metrics.intervals import Rows as Mean
from calibcli.metrics.paired import MeanDifference
from calibcli.predictions import Predictions
from calibcli.spec import Range

Array = npt.NDArray[Any]
CAP = 1_000_000
FITTED = 1.92  # times V / (n F''): 95 % quantile of what fitting the temperatures costs, half a chi-square
KEPT = dict.fromkeys(("nll", "brier", "gain"), "<f4") | dict.fromkeys(("least", "most", "beta"), "<f2")
"""Columns of a kept row, and what they are packed as."""
UNFITTED = "no temperature fits all but one fold of these rows: none is wrong, or the scores mislead"
METRICS = {"temperature_gain": "gain", "nll": "nll", "brier": "brier", "accuracy": "correct"}
"""What can be compared with a baseline, and the column that holds it."""


class Missing(str):
    """Why there are no rows of a baseline: there is no such file (yet)."""

    __slots__ = ()


def known(gate: Gate) -> None:
    """Refuse a metric that is not compared row by row.

    Raises:
        UsageError: it is not.
    """
    if gate.metric not in METRICS:
        problem = f"{gate.at}{gate.metric} is not compared with a baseline row by row"
        raise UsageError(problem, did_you_mean(gate.metric, METRICS))


@dataclass(frozen=True, eq=False, kw_only=True)
class Keys:
    """What rows are paired by.

    Attributes:
        n: rows.
        ids: (N,) uint64 hashes, or None when the rows have no ids.
        labels: sha256 of the label sequence.
    """

    n: int
    ids: npt.NDArray[np.uint64] | None
    labels: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Keys):
    """What a comparison by rows needs: 26 bytes a row.

    Attributes:
        salt: text that ids were hashed with, so that they cannot be looked up in another file.
        nll, brier: (N,) float32.  correct: (N,) bool.
        gain: (N,) float32, nats that a re-fitted temperature would save on the row (fitted without its fold); NaN
            where a label has probability 0 or some fold has no temperature.
        least, most: (N,) float16, what the row's best and worst label would cost in nats.
        beta: (N,) float16, 1/T that the gain was measured with.
        cost: nats per row, twice what fitting the temperature is expected to cost: V / (n F'') of the folds' fits.
    """

    salt: str
    nll: npt.NDArray[np.float32]
    brier: npt.NDArray[np.float32]
    gain: npt.NDArray[np.float32]
    correct: npt.NDArray[np.bool_]
    least: npt.NDArray[np.float16]
    most: npt.NDArray[np.float16]
    beta: npt.NDArray[np.float16]
    cost: float

    def column(self, metric: str) -> Array:
        return np.asarray(getattr(self, METRICS[metric]), dtype=np.float64)

    def pack(self) -> dict[str, Any]:
        """Plain data for a result file.

        Raises:
            UsageError: more than a million rows.
        """
        if self.n > CAP:
            problem = f"{self.n} rows are more than --keep-rows keeps ({CAP})"
            raise UsageError(problem, "use the scores file itself as the baseline")
        return {
            "n": self.n,
            "salt": self.salt,
            "labels_sha256": self.labels,
            "folds": FOLDS,
            "cost": self.cost,
            "ids": None if self.ids is None else _packed(self.ids.astype("<u8")),
            "correct": _packed(np.packbits(self.correct)),
            **{key: _packed(getattr(self, key).astype(dtype)) for key, dtype in KEPT.items()},
        }

    @classmethod
    def unpack(cls, data: Mapping[str, Any], source: str) -> Rows:
        """What `pack` made.

        Raises:
            InputError: these are not packed rows.
        """
        fix = "write the baseline again with --keep-rows"
        packed: Packed = wellformed.read(data, Packed, source, fix, "facts.rows")
        n = packed.n
        errors = (ValueError, zlib.error)
        with refusing(errors, lambda error: f"the rows kept in {source} are damaged ({error})", fix):
            ids = None if packed.ids is None else _unpacked(packed.ids, "<u8", n)
            kept: dict[str, Any] = {key: _unpacked(getattr(packed, key), dtype, n) for key, dtype in KEPT.items()}
            bits = _unpacked(packed.correct, "u1", (n + 7) // 8)
        if not ((kept["nll"] >= 0).all() and ((kept["brier"] >= 0) & (kept["brier"] <= 2)).all()):
            raise InputError(f"the rows kept in {source} hold an NLL or Brier score that cannot be", fix)
        kept |= {"correct": np.unpackbits(bits, count=n).astype(bool), "cost": packed.cost, "salt": packed.salt}
        return cls(n=n, ids=ids, labels=packed.labels_sha256, **kept)


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
    least: str
    most: str
    beta: str
    cost: Annotated[float, Range(0)]

    def problem(self) -> str:
        """A salt that is no key, or gains of other folds than these rows have."""
        if not re.fullmatch("[0-9a-f]{1,64}", self.salt):
            return "salt is not a hexadecimal number"
        return "" if self.folds == FOLDS else f"gains are of {self.folds} folds, not {FOLDS}"


def rows(predictions: Predictions, columns: Columns, salt: str = "") -> Rows:
    """The rows of one evaluation; a new salt unless one is given."""
    salt = salt or secrets.token_hex(8)
    gain, beta, cost = np.full(predictions.n, np.nan), np.ones(predictions.n), 0.0
    if np.isfinite(columns.nll).all():
        fold = np.unique(folds_of(predictions, nll=columns.nll), return_inverse=True)[1]
        if fold.max() > 0:
            gains, fits = cross_fit_beta(predictions.logits, predictions.labels, fold, predictions.weights)
            if all(fit.status == "ok" for fit in fits):
                gain, beta = gains, np.array([fit.beta for fit in fits])[fold]
                cost = float(np.mean([(fit.se or 0.0) ** 2 * fit.hessian for fit in fits]))
    known = {"nll": columns.nll, "brier": columns.brier, "gain": gain, "beta": beta}
    known |= {"least": -np.log(columns.confidence), "most": columns.most}
    kept: dict[str, Any] = {key: known[key].astype(dtype.replace("<", "=")) for key, dtype in KEPT.items()}
    return Rows(**vars(keys(predictions, salt)), salt=salt, correct=columns.correct, cost=cost, **kept)


def difference(
    new: Rows, base: Rows, pairing: Pairing, metric: str, weights: Any, counts: bool, groups: Any
) -> MeanDifference | str:
    """The metric of `new` minus that of `base` (METRICS) on the rows of the pairing, or why it is not known.

    A cross-fitted gain is that of a fitted temperature: less than that of the best one, by about a chi-square.
    """
    i, j = pairing.new, pairing.base
    values = new.column(metric)[i] - base.column(metric)[j]
    if not np.isfinite(values).all():
        fitted = np.isfinite(new.nll[i]).all() and np.isfinite(base.nll[j]).all()
        return UNFITTED if metric == "temperature_gain" and fitted else IMPOSSIBLE
    pick = [None if column is None else column[i] for column in (weights, groups)]
    mean = Mean(values, pick[0], counts, pick[1])
    if mean.lacking:
        return mean.lacking
    low, top = reach(new, base, pairing, metric, pick[0] if counts else None)
    lost = (FITTED * base.cost, FITTED * new.cost) if metric == "temperature_gain" else (0.0, 0.0)
    return MeanDifference(mean=mean, low=low, high=top, lost=lost)


def reach(new: Rows, base: Rows, pairing: Pairing, metric: str, counts: Array | None = None) -> tuple[float, float]:
    """How far below and above 0 the difference of a row may be: see `metrics.paired.reach`."""
    if metric in ("accuracy", "brier"):
        most = 1.0 if metric == "accuracy" else 2.0
        return -most, most
    low, top = (end[pairing.new] for end in _range(new, metric))
    base_low, base_top = (end[pairing.base] for end in _range(base, metric))
    return paired.reach((base_low, base_top), (low, top), counts)


def _range(rows: Rows, metric: str) -> tuple[Array, Array]:
    """Smallest and largest value of the metric over the labels of each row."""
    least, most = rows.least.astype(np.float64), rows.most.astype(np.float64)
    if metric == "nll":
        return least, most
    # the gain is linear in the label's logit: nll(z) - nll(βz) = gain_y - (1 - β)(z_k - z_y), z_y = -nll_y + const
    slope = 1.0 - rows.beta.astype(np.float64)
    ends = [rows.gain - slope * (rows.nll - end) for end in (least, most)]
    return np.minimum(*ends), np.maximum(*ends)


def keys(predictions: Predictions, salt: str = "") -> Keys:
    """The keys of one evaluation's rows, ids hashed with the salt."""
    return Keys(
        n=predictions.n,
        ids=None if predictions.ids is None else hashes(predictions.ids, salt),
        labels=hashlib.sha256(np.ascontiguousarray(predictions.labels, dtype="<i8").tobytes()).hexdigest(),
    )


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


def pair(new: Keys, base: Keys) -> Pairing | str:
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
    columns = ("nll", "brier", "gain", "correct")
    return all(getattr(new, key)[i].tobytes() == getattr(base, key)[j].tobytes() for key in columns)


def _packed(array: Array) -> str:
    return squeezed(array.tobytes(), 6)


def _unpacked(text: str, dtype: str, count: int) -> Array:
    size = np.dtype(dtype).itemsize * count
    data = unsqueezed(text, size)
    if len(data) != size:
        raise ValueError(f"{count} values expected")
    return np.frombuffer(data, dtype).astype(dtype.replace("<", "="))


def squeezed(data: bytes, effort: int = 9) -> str:
    """Compressed, in base64."""
    return base64.b64encode(zlib.compress(data, effort)).decode()


def unsqueezed(text: str, most: int) -> bytes:
    """No more than `most` bytes, and one more where there are more: no decompression bomb."""
    return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), most + 1)
