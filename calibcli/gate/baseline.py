"""Pair the rows of two files by id or position, and keep the values of rows in a result for a later comparison."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from calibcli.core import validation
from calibcli.core.errors import InputError, UsageError, did_you_mean, refusing
from calibcli.core.options import Range
from calibcli.gate.config import Gate
from calibcli.metrics import paired
from calibcli.metrics.intervals import IMPOSSIBLE, End, WeightedMean, average
from calibcli.metrics.paired import MeanDifference
from calibcli.metrics.registry import METRICS, Sample, few_carry, traits
from calibcli.metrics.temperature_gain import FOLDS, crossed
from calibcli.scores.columns import Columns
from calibcli.scores.files.text_tables import is_number
from calibcli.scores.likelihood import nll_rows
from calibcli.scores.predictions import Ints, Predictions

# How rows of two files are paired: by id, or else by position, and only where their labels agree.

Array = npt.NDArray[Any]
TOGETHER = 4
"""Rows whose labels share one bit of a kept baseline: eight of the sixteen labellings of four binary rows fit it, so
that somebody who guesses the ids still learns no label."""
ENOUGH = 10
"""Bits that must be compared: labels of other data agree in all of them with a probability of 1 / 1024."""
EVERY = slice(None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Keys:
    """Ids and labels of the rows of one evaluation, by which they are paired with those of another.

    Attributes:
        n: rows.
        ids: (N,) uint64 hashes, or None when the rows have no ids.
        labels: (N,) class of each row; None for rows that a result keeps, which have digest and label bits instead.
        digest: sha256 of the label sequence; "" where only the correctness of each prediction is known.
        label_bits: (N // TOGETHER,) bits of rows that a result keeps, see `label_bits`; None where it keeps none.
        labelled: whether the labels belong to the rows, so that two models of the same rows must agree on them.
        classes: K names of the classes, in the order of their numbers; () where they are not known.
    """

    n: int
    ids: npt.NDArray[np.uint64] | None
    labels: Ints | None
    digest: str
    label_bits: npt.NDArray[np.bool_] | None = None
    labelled: bool = True
    classes: Sequence[str] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairing:
    """Indices of the same rows in two evaluations; `how` tells the reader what they were paired by."""

    new: Array
    base: Array
    how: str


@dataclass(frozen=True)
class Unpaired:
    """The reason why rows do not pair, and what to do about it."""

    problem: str
    fix: str = "give both files an 'id' column"

    def __str__(self) -> str:
        return f"{self.problem}: {self.fix}"


def keys(predictions: Predictions, salt: str = "") -> Keys:
    """Return the keys of the rows of one evaluation, ids hashed with the salt."""
    top_only = predictions.top_only
    return Keys(
        n=predictions.n,
        ids=None if predictions.ids is None else hashes(predictions.ids, salt),
        labels=predictions.labels,
        digest="" if top_only else _digest(predictions.labels),
        labelled=not top_only and predictions.record.labelled,
        classes=() if top_only else [str(name) for name in predictions.classes or ()],
    )


def hashes(ids: Array, salt: str) -> npt.NDArray[np.uint64]:
    """Hash each id as text to 64 bits by BLAKE2b, keyed with the salt."""
    key = salt.encode()
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8, key=key).digest() for i in ids.tolist())
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def pair(new: Keys, base: Keys, names: tuple[str, str] = ("this input", "the baseline")) -> Pairing | Unpaired:
    """Pair the rows that two evaluations share, or say why that cannot be done.

    Rows pair by id where both have ids; the labels of the shared rows must then be equal. Otherwise they pair by
    position, and the sequences of labels must be equal. Labels are equal if their classes have the same name: two
    files may have the columns of the classes in another order, which gives the classes other numbers.

    Args:
        new: keys of the new evaluation, hashed with the salt of `base`.
        base: keys of the baseline.
        names: of both, for messages.
    """
    here, there = names
    same_numbers = _numbered_alike(new, base)
    if isinstance(same_numbers, Unpaired):
        return same_numbers
    new, base = same_numbers
    if new.ids is not None and base.ids is not None:
        for which, evaluation in ((here, new), (there, base)):
            if len(np.unique(evaluation.ids)) < evaluation.n:  # type: ignore[arg-type]
                return Unpaired(f"ids in {which} are not unique", "give each row its own id")
        _, i, j = np.intersect1d(new.ids, base.ids, assume_unique=True, return_indices=True)
        if len(i) == 0:
            return Unpaired(f"no row of {here} has an id of {there}", "pass the same rows, under the same ids")
        order = np.argsort(i, kind="stable")
        i, j = i[order], j[order]
        if new.labelled and base.labelled and (refusal := _label_conflict(new, base, i, j, there)):
            return refusal
        counts = "" if len(i) == new.n == base.n else f" ({len(i)} in both, {new.n} {_in(here)}, {base.n} in {there})"
        return Pairing(new=i, base=j, how="rows paired by id" + counts)
    if not (new.digest and base.digest):
        return Unpaired("rows have no ids, and confidences alone do not pair")
    if new.n != base.n:
        return Unpaired(f"rows have no ids and their numbers differ ({new.n} {_in(here)}, {base.n} in {there})")
    if new.digest != base.digest:
        return Unpaired("rows have no ids and the label sequences differ")
    every = np.arange(new.n)
    return Pairing(new=every, base=every, how="rows paired by position: no ids, but the same label sequence")


def _numbered_alike(new: Keys, base: Keys) -> tuple[Keys, Keys] | Unpaired:
    """Give the classes of both the same numbers, by their names; classes that are numbers themselves keep their place.

    Labels that a result keeps are known by their digest alone, so that it is the other's which take its numbers.
    """
    a, b = [*new.classes], [*base.classes]
    numbered = any(all(is_number(name) for name in names) for names in (a, b))
    if a == b or not (new.labelled and base.labelled) or (numbered and {*a} != {*b}):
        return new, base
    if base.labels is not None:
        return new, _renumbered(base, a)
    if new.labels is not None:
        return _renumbered(new, b), base
    return Unpaired("both are results, whose classes are in another order", "pass the scores")


def _renumbered(evaluation: Keys, classes: Sequence[str]) -> Keys:
    """Number the labels by the place of their class in `classes`; a class that is not there gets a number above."""
    place = {name: i for i, name in enumerate(classes)}
    numbers = np.array([place.get(name, len(classes) + i) for i, name in enumerate(evaluation.classes)], np.int64)
    labels = numbers[np.asarray(evaluation.labels)]
    return dataclasses.replace(evaluation, labels=labels, digest=evaluation.digest and _digest(labels), classes=classes)


def label_bits(
    ids: npt.NDArray[np.uint64], labels: Ints, whole: npt.NDArray[np.bool_] | slice = EVERY
) -> npt.NDArray[np.bool_]:
    """Compute one bit for every TOGETHER rows in the order of their hashed ids, from BLAKE2b of ids and labels.

    A later evaluation that has the labels can compare them with these bits, which give no label away.

    Args:
        ids: (N,) hashes of all rows.
        labels: (N,) classes.
        whole: mask or slice of the groups of TOGETHER rows that are wanted.
    """
    order = np.argsort(ids, kind="stable")
    table = np.column_stack([ids[order], labels[order].astype(np.uint64)]).astype("<u8")
    starts = _starts(len(ids))
    ends = np.append(starts[1:], len(ids))
    spans = zip(starts[whole].tolist(), ends[whole].tolist(), strict=True)
    bits = [hashlib.blake2b(table[start:end].tobytes(), digest_size=1).digest()[0] & 1 for start, end in spans]
    return np.array(bits, bool)


def _starts(n: int) -> Ints:
    """Return the first row of each group of TOGETHER; the last group takes the remaining rows too."""
    return np.arange(max(1, n // TOGETHER)) * TOGETHER


def _label_conflict(new: Keys, base: Keys, i: Array, j: Array, there: str) -> Unpaired | None:
    """Compare the labels of the rows `i` of `new` and `j` of `base`; None where they are known to be the same."""
    fix = "check the ids: the same id must name the same row"
    if new.labels is not None and base.labels is not None:
        wrong = int((new.labels[i] != base.labels[j]).sum())
        return Unpaired(f"{wrong:,} of {len(i):,} rows of the same id have another label", fix) if wrong else None
    differ = Unpaired("rows of the same id have another label", fix)
    if new.labels is None and base.labels is None:
        same = new.n == base.n == len(i) and np.array_equal(i, j) and new.digest == base.digest
        return None if same else Unpaired("both are results, whose labels cannot be compared", "pass the scores")
    full, kept = (new, base) if base.labels is None else (base, new)
    in_full, in_kept = (i, j) if base.labels is None else (j, i)
    labels = np.zeros(kept.n, np.int64)
    labels[in_kept] = full.labels[in_full]  # type: ignore[index]
    if len(in_full) == kept.n:
        return None if _digest(labels) == kept.digest else differ
    fix = f"pass the scores file that {there} was made of, or rows of which more are in both"
    if kept.label_bits is None:
        return Unpaired(f"{there} keeps no labels of single rows, as an earlier version wrote it", fix)
    shared = np.zeros(kept.n, bool)
    shared[in_kept] = True
    starts = _starts(kept.n)
    whole = np.logical_and.reduceat(shared[np.argsort(kept.ids, kind="stable")], starts)  # type: ignore[arg-type]
    bits = label_bits(kept.ids, labels, whole)  # type: ignore[arg-type]
    if not np.array_equal(bits, kept.label_bits[whole]):
        return differ
    if len(bits) < ENOUGH:
        return Unpaired(
            f"{len(in_full)} of the {kept.n} rows that {there} keeps are too few to compare the labels", fix
        )
    return None


def _digest(labels: Ints) -> str:
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def _in(name: str) -> str:
    """Say where rows are in messages: `here`, or `in b.npz`."""
    return "here" if name == "this input" else f"in {name}"


# Per-row values of an evaluation, kept in its result so that a later one can be compared row by row.

CAP = 1_000_000  # rows of 26 bytes: a result of some 35 MB in base64
FITTED = 1.92
"""Factor on V / (n F''): the 95 % quantile of what fitting a temperature costs, half of that of a chi-square (3.84)."""
KEPT = dict.fromkeys(("nll", "brier", "gain"), "<f4") | dict.fromkeys(("least", "most", "beta"), "<f2")
"""Columns of a kept row with the types that they are packed as."""
AT_ONCE = 3.69
"""-ln .025: rows that may have stayed undrawn together, at the level of a two-sided 95 % interval whatever alpha is.

A second statement of `core.statistics.rows_at_once`, which takes max(z², -ln α) and so says 3.84 at this level. The
number stays: using the function here, or this constant there, would move bounds that are published and simulated.
"""
UNFITTED = "no temperature fits all but one fold of these rows: none is wrong, or the scores mislead"


class Missing(str):
    """The reason why a baseline has no rows: there is no such file (yet)."""

    __slots__ = ()


def known(gate: Gate) -> None:
    """Refuse a metric that is not compared row by row.

    Raises:
        UsageError: no column of the kept rows is the metric, or it has options.
    """
    if not traits(gate.metric).kept or ":" in gate.metric:
        problem = f"{gate.at}{gate.metric} is not compared with a baseline row by row"
        raise UsageError(problem, did_you_mean(gate.metric, [e.name for e in METRICS if e.traits.kept]))


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselineRows(Keys):
    """The values of rows that a comparison row by row needs: 26 bytes a row.

    Attributes:
        salt: text that ids were hashed with, so that the same id cannot be recognised in another file.
        nll, brier: (N,) float32.  correct: (N,) bool.
        gain: (N,) float32, nats that a re-fitted temperature would save on the row (fitted without its fold); NaN
            where a label has probability 0 or some fold has no temperature.
        least, most: (N,) float16, what the row's best and worst label would cost in nats.
        beta: (N,) float16, 1/T that the gain was measured with.
        cost: nats per row, twice what fitting the temperature is expected to cost: V / (n F'') of the folds' fits, or
            more where these gains are farther below those of one temperature fitted to all rows: see `rows`.
        curvature: F'', second derivative of the mean NLL in 1/T at the folds' fits; None in files that lack it.
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
    curvature: float | None = None

    def column(self, metric: str) -> Array:
        """Return the (N,) values of a metric."""
        return np.asarray(getattr(self, traits(metric).kept), dtype=np.float64)

    def pack(self) -> dict[str, Any]:
        """Pack the rows as plain data for a result file.

        Raises:
            UsageError: more than a million rows.
        """
        if self.n > CAP:
            problem = f"{self.n} rows are more than --keep-rows keeps ({CAP})"
            raise UsageError(problem, "use the scores file itself as the baseline")
        bits = self.label_bits
        if self.ids is not None and self.labels is not None and self.labelled:
            bits = label_bits(self.ids, self.labels)
        return {
            "n": self.n,
            "salt": self.salt,
            "labels_sha256": self.digest,
            "classes": [*self.classes],
            "label_bits": None if bits is None else _packed(np.packbits(bits)),
            "folds": FOLDS,
            "cost": self.cost,
            "curvature": self.curvature,
            "ids": None if self.ids is None else _packed(self.ids.astype("<u8")),
            "correct": _packed(np.packbits(self.correct)),
            **{key: _packed(getattr(self, key).astype(dtype)) for key, dtype in KEPT.items()},
        }

    @classmethod
    def unpack(cls, data: Mapping[str, Any], source: str) -> BaselineRows:
        """Unpack what `pack` returned.

        Raises:
            InputError: these are not packed rows.
        """
        fix = "write the baseline again with --keep-rows"
        packed: CompressedRows = validation.read(data, CompressedRows, source, fix, "facts.rows")
        n = packed.n
        errors = (ValueError, zlib.error)
        with refusing(errors, lambda error: f"the rows kept in {source} are damaged ({error})", fix):
            ids = None if packed.ids is None else _unpacked(packed.ids, "<u8", n)
            kept: dict[str, Any] = {key: _unpacked(getattr(packed, key), dtype, n) for key, dtype in KEPT.items()}
            bits = _unpacked(packed.correct, "u1", (n + 7) // 8)
            kept_label_bits = None
            if packed.label_bits is not None:
                count = len(_starts(n))
                octets = _unpacked(packed.label_bits, "u1", (count + 7) // 8)
                kept_label_bits = np.unpackbits(octets, count=count).astype(bool)
        if not ((kept["nll"] >= 0).all() and ((kept["brier"] >= 0) & (kept["brier"] <= 2)).all()):
            raise InputError(f"the rows kept in {source} hold an NLL or Brier score that cannot be", fix)
        kept |= {"correct": np.unpackbits(bits, count=n).astype(bool), "cost": packed.cost, "salt": packed.salt}
        kept["curvature"] = packed.curvature
        kept |= {"classes": packed.classes or ()}
        kept |= {"digest": packed.labels_sha256, "label_bits": kept_label_bits, "labelled": packed.labels_sha256 != ""}
        return cls(n=n, ids=ids, labels=None, **kept)


@dataclass(frozen=True, kw_only=True)
class CompressedRows:
    """`BaselineRows` as a result stores them in `facts.rows`: arrays compressed, in base64."""

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
    curvature: Annotated[float, Range(0)] | None = None
    label_bits: str | None = None
    classes: list[str] | None = None

    def problem(self) -> str:
        """Report a salt that is no key, or gains of another number of folds than this version uses."""
        if not re.fullmatch("[0-9a-f]{1,64}", self.salt):
            return "salt is not a hexadecimal number"
        return "" if self.folds == FOLDS else f"gains are of {self.folds} folds, not {FOLDS}"


def rows(predictions: Predictions, columns: Columns, salt: str = "", sample: Sample | None = None) -> BaselineRows:
    """Keep the rows of one evaluation, with a new salt unless one is given.

    Args:
        sample: of predictions and columns, where there is one, so that cross-fitted gains are computed once.
    """
    salt = salt or secrets.token_hex(8)
    gain, beta, cost = np.full(predictions.n, np.nan), np.ones(predictions.n), 0.0
    curvature: float | None = None
    if columns.has("nll") and np.isfinite(columns.nll).all():  # other metrics are compared without gains
        cross_fit = (sample or Sample.of(columns, predictions)).acyclic.memoized(crossed)
        if cross_fit is not None:
            z, y, w = predictions.logits, predictions.labels, predictions.weights
            fold, (gains, fits, whole) = cross_fit
            if all(fit.status == "ok" for fit in fits):
                gain, beta = gains, np.array([fit.beta for fit in fits])[fold]
                cost = float(np.mean([(fit.se or 0.0) ** 2 * fit.hessian for fit in fits]))
                # where few rows decide the temperature, folds without one of them are far from that of all rows
                most = average(columns.nll - nll_rows(z, y, whole.usable), w)
                cost = max(cost, (most - average(gains, w)) / FITTED)
                curvature = float(np.mean([fit.hessian for fit in fits]))
    # a comparison in metrics that read some columns alone keeps no others
    numbers = {name: columns.numbers.get(name, np.empty(0)) for name in ("nll", "brier", "most")}
    numbers |= {"least": -np.log(columns.confidence), "gain": gain, "beta": beta}
    kept: dict[str, Any] = {key: numbers[key].astype(dtype.replace("<", "=")) for key, dtype in KEPT.items()}
    return BaselineRows(
        **vars(keys(predictions, salt)), salt=salt, correct=columns.correct, cost=cost, curvature=curvature, **kept
    )


def difference(
    new: BaselineRows, base: BaselineRows, pairing: Pairing, metric: str, weights: Any, counts: bool, groups: Any
) -> MeanDifference | str:
    """Compare a metric row by row: `new` minus `base` on the rows of the pairing, or the reason why that is not known.

    A cross-fitted gain is that of a fitted temperature, less than that of the best one by about half a chi-square.
    """
    i, j = pairing.new, pairing.base
    values = new.column(metric)[i] - base.column(metric)[j]
    if not np.isfinite(values).all():
        fitted = np.isfinite(new.nll[i]).all() and np.isfinite(base.nll[j]).all()
        return UNFITTED if traits(metric).rows == "cross_fitted" and fitted else IMPOSSIBLE
    pick = [None if column is None else column[i] for column in (weights, groups)]
    mean = WeightedMean(values, pick[0], counts, pick[1])
    if lacking := mean.lacking or few_carry(mean.weights, counts, mean.groups):
        return lacking
    low, top = difference_range(new, base, pairing, metric)
    lost = (0.0, 0.0)
    if traits(metric).rows == "cross_fitted":
        curvature = new.curvature if base.curvature is None else base.curvature
        lost = (
            FITTED * base.cost + moved(mean.largest_contribution(base.most[j].astype(np.float64)), curvature),
            FITTED * new.cost + moved(mean.largest_contribution(new.most[i].astype(np.float64)), new.curvature),
        )
    return MeanDifference(mean=mean, low=low, high=top, lost=lost)


@dataclass(frozen=True, eq=False, kw_only=True)
class Unshared:
    """Rows that only one of two evaluations has: they belong to the comparison, and half of each is not known.

    Attributes:
        here, there: how many are in the new file alone, and in the baseline alone.
        best, worst: the difference over all rows of both, with the smallest and the largest loss of the new model that
            these rows can have.
    """

    here: int
    there: int
    best: MeanDifference
    worst: MeanDifference


def unshared(
    new: BaselineRows, base: BaselineRows, pairing: Pairing, metric: str, delta: MeanDifference, lower: bool
) -> Unshared | None:
    """Bound what the rows that only one file has can do to a difference; None where both have the same rows.

    The value that is missing lies between the smallest and the largest that any row of that model could have, which for
    `nll` and gains are those of the best and the worst labels. Such a row has the mean weight, and is its own group.

    Args:
        lower: whether smaller values of the metric are better.
    """
    alone = [np.setdiff1d(np.arange(one.n), shared) for one, shared in ((new, pairing.new), (base, pairing.base))]
    here, there = map(len, alone)
    if not here + there:
        return None
    mean, values = (
        delta.mean,
        [one.column(metric)[alone_rows] for one, alone_rows in zip((new, base), alone, strict=True)],
    )
    (new_low, new_high), (base_low, base_high) = (_possible(one, metric) for one in (new, base))
    low = np.concatenate([mean.values, values[0] - base_high, new_low - values[1]])
    high = np.concatenate([mean.values, values[0] - base_low, new_high - values[1]])
    weights, groups = mean.weights, mean.groups
    if weights is not None:
        weights = np.append(weights, np.full(here + there, weights.mean()))
    if groups is not None:
        groups = np.append(groups, groups.max() + 1 + np.arange(here + there))
    ends: dict[str, Any] = {"low": float(np.min(delta.low)), "high": float(np.max(delta.high)), "lost": delta.lost}
    best, worst = (
        MeanDifference(mean=WeightedMean(column, weights, mean.counts, groups), **ends)
        for column in ((low, high) if lower else (high, low))
    )
    return Unshared(here=here, there=there, best=best, worst=worst)


def _possible(rows: BaselineRows, metric: str) -> tuple[float, float]:
    """Return the smallest and the largest value that a row of this evaluation could have with any label."""
    metric_traits = traits(metric)
    if metric_traits.rows not in ("log_loss", "cross_fitted"):
        return metric_traits.values.low, metric_traits.values.high
    low, high = _range(rows, metric_traits.rows == "cross_fitted")
    return float(low.min()), float(high.max())


def moved(largest_contribution: float, curvature: float | None) -> float:
    """Bound the gain that rows which were not drawn may add by moving the best temperature.

    A share h of rows whose worst label costs m nats moves the mean of F' by at most h m, so that a new optimum saves
    (h m)² / 2F'' more (to second order), and never more than h m.

    Args:
        largest_contribution: m times the share of one row.  curvature: F''.
    """
    most = AT_ONCE * largest_contribution
    return min(most, most**2 / (2 * curvature)) if curvature else most


def difference_range(new: BaselineRows, base: BaselineRows, pairing: Pairing, metric: str) -> tuple[End, End]:
    """Return how far below and above 0 the difference of any row, or of each, may be.

    See `metrics.paired.difference_range`.
    """
    metric_traits = traits(metric)
    if metric_traits.rows not in ("log_loss", "cross_fitted"):
        width = metric_traits.values.high - metric_traits.values.low
        return -width, width
    gain = metric_traits.rows == "cross_fitted"
    low, top = (end[pairing.new] for end in _range(new, gain))
    base_low, base_top = (end[pairing.base] for end in _range(base, gain))
    return paired.difference_range((base_low, base_top), (low, top))


def _range(rows: BaselineRows, gain: bool) -> tuple[Array, Array]:
    """Return the smallest and largest NLL, or gain, over the labels of each row, which were rounded: outward."""
    rounded = np.nextafter(rows.least, np.float16(-np.inf)), np.nextafter(rows.most, np.float16(np.inf))
    least, most = np.maximum(rounded[0].astype(np.float64), 0.0), rounded[1].astype(np.float64)
    if not gain:
        return least, most
    # the gain is linear in the label's logit: nll(z) - nll(βz) = gain_y - (1 - β)(z_k - z_y), z_y = -nll_y + const
    slope = 1.0 - rows.beta.astype(np.float64)
    with np.errstate(invalid="ignore"):  # a label of probability 0 gains nothing where the temperature is 1
        ends = [rows.gain - np.where(slope == 0, 0.0, slope * (rows.nll - end)) for end in (least, most)]
    return np.minimum(*ends), np.maximum(*ends)


def identical(new: BaselineRows, base: BaselineRows, pairing: Pairing) -> bool:
    """Return whether every kept value of every shared row is the same, as of the same predictions."""
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
    """Compress bytes and write them in base64."""
    return base64.b64encode(zlib.compress(data, effort)).decode()


def unsqueezed(text: str, most: int) -> bytes:
    """Undo `squeezed`, up to `most` bytes and one more where there are more: no decompression bomb."""
    return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), most + 1)
