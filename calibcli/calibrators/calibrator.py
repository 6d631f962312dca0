"""Calibration maps: their registry, the scaler that a fit returns, and the scores that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibcli.calibrators.program import apply
from calibcli.core.array_likes import Tensor, array, like, precision
from calibcli.core.errors import InputError
from calibcli.core.figure_data import Plot
from calibcli.core.registries import Choice, Registry, Traits
from calibcli.core.result import Cell, Estimate, Numbers, Table
from calibcli.core.statistics import parts
from calibcli.scores.data_frames import names_of, refuse_moved_columns
from calibcli.scores.predictions import SHARE_OFF, UNIT_HIGH, UNIT_LOW, Floats, Kind, kind_words, logits_of, two_columns

# Scores that a scaler is called with: checked against the kind of the fit, and turned into logits.

FEW = 10  # fewer log-odds than this may all lie in [0, 1] by chance; from here on they are taken for probabilities


def as_logits(scores: ArrayLike, kind: Kind, k: int, columns: int) -> Floats:
    """Turn scores of `kind` into logits or log-probabilities, (n, K) float64.

    Args:
        scores: (n, K); (n,), (n, 1) or (n, 2) where the fit was on one column. Any array-like, torch tensors too.
        kind: kind of the scores in the fit.
        k: number of classes.
        columns: number of columns of the scores in the fit.

    Raises:
        InputError: the shape is another one, or the scores cannot be of this kind.
    """
    raw = array(scores)
    z = np.asarray(raw, np.float64)
    if columns == 1 and (z.ndim == 1 or (z.ndim == 2 and z.shape[1] == 1)):
        column = z.reshape(-1)
        _refuse(_column_fault(column, kind), kind, "(n,)")
        return two_columns(column, kind)
    if z.ndim != 2 or z.shape[1] != k:
        shape = "(n,) or (n, 2)" if columns == 1 else f"(n, {k})"
        raise InputError(f"scores of shape {z.shape} for a calibrator of {k} classes", f"pass an array {shape}")
    # how far the sum of a row of probabilities may be from one: float16 rounds each of them to 3 digits
    tolerance = 1e-4 if raw.dtype.itemsize > 2 or raw.dtype.kind != "f" else 1e-2
    _refuse(_fault(z, kind, tolerance), kind, f"(n, {k})")
    return logits_of(z, kind)


def _refuse(fault: str, kind: Kind, shape: str) -> None:
    if fault:
        logarithm = "; log p of a probability is one" * (kind == "logits")
        fix = f"pass {kind_words(kind)} {shape} as in the fit{logarithm}"
        raise InputError(f"{fault}, and the calibrator was fitted on {kind_words(kind)}", fix)


def _probabilities(z: Array, tolerance: float) -> NDArray[np.bool_]:
    """Return whether each row is a distribution, (n,)."""
    inside = (z.min(axis=1) >= UNIT_LOW) & (z.max(axis=1) <= UNIT_HIGH)
    return np.asarray(inside & (np.abs(z.sum(axis=1) - 1) <= tolerance))


def _fault(z: Floats, kind: Kind, tolerance: float) -> str:
    """Return why rows cannot be of this kind, or "": up to a share of SHARE_OFF of them may sum to something else.

    `tolerance` is of sums of probabilities. For log-probabilities the logarithm of the sum may be off by ten times as
    much, since logarithms are often written with few digits.
    """
    if not len(z):
        return ""
    bad = np.isnan(z).any(axis=1) | (z == np.inf).any(axis=1) | (z == -np.inf).all(axis=1)
    if bad.any():
        return f"row {int(bad.argmax())} holds NaN, infinity, or nothing but -infinity"
    if kind == "logits":
        return "every row is a distribution of probabilities" if _probabilities(z, tolerance).all() else ""
    if kind == "probabilities":
        odd = ~_probabilities(z, tolerance)
    else:
        with np.errstate(divide="ignore"):
            odd = ~((z.max(axis=1) <= 1e-6) & (np.abs(np.log(np.exp(np.minimum(z, 1)).sum(axis=1))) <= 10 * tolerance))
    if odd.sum() <= SHARE_OFF * len(z):
        return ""
    row = int(odd.argmax())
    total = np.exp(np.minimum(z[row], 700)).sum() if kind == "log_probabilities" else z[row].sum()
    return f"row {row} lies in {z[row].min():.4g} to {z[row].max():.4g} and its probabilities would sum to {total:.4g}"


def _column_fault(z: Floats, kind: Kind) -> str:
    """Return why one column cannot hold the probability of class 1, its logarithm or its log-odds, or ""."""
    bad = np.isnan(z) | (np.isinf(z) & ~((z < 0) & (kind == "log_probabilities")))
    if bad.any():
        return f"row {int(bad.argmax())} is NaN or infinite"
    inside = (z >= UNIT_LOW) & (z <= UNIT_HIGH)
    if kind == "logits":
        return "every value lies in [0, 1] as a probability does" if inside.all() and len(z) >= FEW else ""
    odd = ~inside if kind == "probabilities" else z > 1e-6
    return f"row {int(odd.argmax())} is {z[int(odd.argmax())]:.4g}" if odd.any() else ""


# The registry, what a method receives and returns, and the scaler that users hold.

Array = NDArray[np.float64]
Parameters = dict[str, NDArray[Any]]
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Form:
    """Shape and range of one parameter.

    Attributes:
        shape: a letter per axis: `k` classes, `c` curves (1 for two classes, else k), `n` any number; "" is one number.
        low, high: range of its values, inclusive.
        optional: whether it may be missing.
        whole: whether its values are integers.
    """

    shape: str = ""
    low: float = -math.inf
    high: float = math.inf
    optional: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not {*self.shape} <= {*"kcn"}:
            raise TypeError(f"the shape of a parameter has the letters k, c and n, not {self.shape!r}")

    def _shape(self, k: int) -> tuple[int, ...]:
        return tuple({"k": k, "c": 1 if k == 2 else k}.get(letter, -1) for letter in self.shape)

    def size(self, k: int) -> float:
        """Return the number of its values for k classes; infinite where it may be any."""
        shape = self._shape(k)
        return math.inf if -1 in shape else math.prod(shape)

    def problem(self, value: NDArray[Any], k: int) -> str:
        """Return what is wrong with a value, or ""."""
        wanted = self._shape(k)
        if value.ndim != len(wanted) or any(w not in (-1, n) for w, n in zip(wanted, value.shape, strict=True)):
            text = " x ".join("n" if w < 0 else str(w) for w in wanted) or "one number"
            return f"has shape {list(value.shape)}, not {text}"
        if value.dtype.kind not in "fiu" or (value.dtype.kind == "f" and value.dtype.itemsize < 4):
            return f"is of type {value.dtype}"
        if value.size == 0 or not np.isfinite(value).all():
            return "holds values that are not finite numbers"
        if value.min() < self.low or value.max() > self.high:
            return f"lies in {value.min():.4g} to {value.max():.4g}, outside {self.low:g} to {self.high:g}"
        return "is not whole" if self.whole and (value != np.floor(value)).any() else ""


@dataclass(frozen=True, kw_only=True)
class ScalerTraits(Traits):
    """What a method says of itself."""

    map: Callable[[Any, Parameters, Any], Any]
    """`(o, parameters, logits (n, K)) -> log-probabilities (n, K)`: the program that `map` runs and `export` writes."""
    form: Mapping[str, Form]
    """The form of each parameter by name, which reading a calibrator checks, and by which a ranking counts them."""
    preserves_accuracy: bool | Callable[[Mapping[str, Any]], bool] = False
    """Whether the predicted class of raw logits is kept, or a function of the options; `keeps_classes` asks for it."""
    steep: bool = False
    """Its jumps, steep knots or 1 - p put float32 off by up to .07, so that exports work in float64."""
    search: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether settings are chosen by cross-validation, a function of the options; `cross_fit` then does it once."""
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Ends of the range of a parameter that no option of its name sets; a ranking marks fits that lie there."""
    cuts: bool = False
    """Logarithms of probabilities of 0 and 1 decide its fit, so that `fitting.fit` chooses where they are cut."""
    of_confidence: bool = False
    """It can be fitted to confidences alone, of which `applicable` lists no others."""


SCALERS = Registry(
    "scaler",
    ScalerTraits,
    joint="-",
    package="calibcli.calibrators",
    first=("temperature", "focal_temperature", "vector"),
    flag="--method",
)
"""An entry is a function `(predictions, context, *, options) -> FittedParameters`."""

TIED = 32  # units in the last place by which rounding can separate equal probabilities, whose logarithms are rounded


def keep_first(out: NDArray[Any], first: NDArray[Any]) -> NDArray[Any]:
    """Raise the class `first` of each row, in place, just above others that rounding made equal to it.

    Returns:
        Indices of the rows in which another class is higher by more than rounding.
    """
    best = out.argmax(axis=1)
    rows = np.flatnonzero(best != first)
    highest = out[rows, best[rows]]
    tied = highest - out[rows, first[rows]] <= TIED * np.spacing(np.abs(highest))
    out[rows[tied], first[rows[tied]]] = np.nextafter(highest[tied], np.asarray(np.inf, out.dtype))
    return np.asarray(rows[~tied])


@dataclass(frozen=True)
class FitContext:
    """Settings of one fit, which every method receives.

    Attributes:
        seed: seed of everything random.
        report: whether estimates, figures and notes are wanted, beside the parameters.
        level: confidence level of intervals.
        step: called with (fraction of this fit, text) by methods that take seconds.
        memory: settings that a fit to all rows has chosen, for fits to parts of these rows.
        rows: indices of this fit's rows among all rows, in a fit to a part of them.
        gain_over: estimates by how much the NLL of this method is below that of another one, of the given spec, on rows
            that neither was fitted on: the paired comparison of the ranking (`fitting.HeldOutRows`).
    """

    seed: int = 0
    report: bool = True
    level: float = 0.95
    step: Progress = lambda fraction, text: None
    memory: dict[str, Any] = field(default_factory=dict)
    rows: NDArray[Any] | None = None
    gain_over: Callable[[str, Progress], Estimate] = lambda spec, progress: Estimate(name="gain", value=None)


@dataclass(frozen=True)
class FittedParameters:
    """Parameters that a method has fitted, with the estimates, notes, figures and tables about them."""

    parameters: Parameters
    estimates: Sequence[Estimate] = ()
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, Cell] = field(default_factory=dict)


def keeps_classes(choice: Choice[ScalerTraits]) -> bool:
    """Return whether a method with its options keeps the predicted class of raw logits."""
    keeps = choice.traits.preserves_accuracy
    return keeps(choice.options) if callable(keeps) else keeps


@dataclass(frozen=True)
class Scaler:
    """A fitted calibration map.

    >>> scaler = calibcli.fit_scaler(logits, labels).scaler
    >>> scaler.spec, scaler.k, scaler.kind, scaler.preserves_accuracy
    ('temperature', 10, 'logits', True)

    Attributes:
        spec: canonical spec of the method.
        k: number of classes.
        parameters: arrays by name.
        classes: names of the classes, or None.
        metadata: how it was fitted (kind of scores and their columns, data, number of rows, version).
    """

    spec: str
    k: int
    parameters: Parameters
    classes: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choice(self) -> Choice[ScalerTraits]:
        return SCALERS.choose(self.spec)

    @property
    def preserves_accuracy(self) -> bool:
        """Whether the predicted class is, by definition, that of the raw logits."""
        return keeps_classes(self.choice)

    @property
    def kind(self) -> Kind:
        """Kind of the scores that it was fitted on, and that it is called with."""
        kind: Kind = self.metadata.get("kind", "logits")
        return kind

    @property
    def columns(self) -> int:
        """Number of columns of the scores that it was fitted on: 1 where two classes came as one column."""
        return int(self.metadata.get("columns", self.k))

    @property
    def reading(self) -> Mapping[str, Any]:
        """The options that named scores and labels of the rows that it was fitted on; {} where none did."""
        return dict(self.metadata.get("read") or {})

    @overload
    def __call__(self, scores: Tensor) -> Tensor: ...

    @overload
    def __call__(self, scores: ArrayLike) -> Array: ...

    def __call__(self, scores: Any) -> Any:
        """Compute calibrated log-probabilities of scores of the kind that the fit was on.

        >>> calibcli.fit_scaler(logits, labels).scaler(logits[:5]).shape
        (5, 10)

        Args:
            scores: (n, K) of `kind`; (n,) where the fit was on one column. Array-like, torch tensors too.

        Returns:
            (n, K) float64. A tensor gives a tensor on its device, without a graph: float64 if it is, else float32.

        Raises:
            InputError: the number of classes is another one, or the scores cannot be of this kind; or they are a data
                frame whose columns are named otherwise than the classes, or in another order.
        """
        return self._as_given(scores, np.asarray)

    @overload
    def predict_proba(self, scores: Tensor) -> Tensor: ...

    @overload
    def predict_proba(self, scores: ArrayLike) -> Array: ...

    def predict_proba(self, scores: Any) -> Any:
        """Compute calibrated probabilities (n, K); takes the scores, and returns the type, of `__call__`.

        >>> calibcli.fit_scaler(logits, labels).scaler.predict_proba(logits[:1]).sum().round(6).item()
        1.0

        Raises:
            InputError: as `__call__`.
        """
        return self._as_given(scores, lambda log_p: np.exp(log_p, out=log_p))

    def _as_given(self, scores: ArrayLike, form: Callable[[Array], Array]) -> Array:
        mapped, logits = self._mapped(scores)
        out = form(mapped).astype(precision(scores), copy=False)
        if self.preserves_accuracy:
            keep_first(out, logits.argmax(axis=1))
        return cast(Array, like(out, scores))

    def _mapped(self, scores: ArrayLike) -> tuple[Array, Array]:
        """Return the calibrated log-probabilities in float64, and the logits they were computed from."""
        refuse_moved_columns(names_of(scores), self.classes)
        logits = as_logits(scores, self.kind, self.k, self.columns)
        return self.map(logits), logits

    def map(self, logits: NDArray[Any]) -> Array:
        """Compute calibrated log-probabilities (n, K) of logits or log-probabilities, as `Predictions` hold them.

        >>> calibcli.fit_scaler(logits, labels).scaler.map(logits[:5]).shape
        (5, 10)
        """
        z, program = np.asarray(logits), self.choice.traits.map
        out = np.empty(z.shape)
        for rows in parts(len(z)):
            out[rows] = apply(program, self.parameters, z[rows].astype(np.float64, copy=False))
        return out


@dataclass(frozen=True, repr=False)
class Fit(Numbers, FittedParameters):
    """A scaler with the estimates, notes and figures of its fit. It maps names to estimates: `fit["temperature"]`.

    >>> fit = calibcli.fit_scaler(logits, labels)
    >>> round(fit["temperature"].value, 2), fit.scaler.spec
    (2.81, 'temperature')
    """

    scaler: Scaler = field(kw_only=True)

    @overload
    def predict_proba(self, scores: Tensor) -> Tensor: ...

    @overload
    def predict_proba(self, scores: ArrayLike) -> Array: ...

    def predict_proba(self, scores: Any) -> Any:
        """Compute calibrated probabilities (n, K) of scores of the kind and shape that the fit was on.

        >>> calibcli.fit_scaler(logits, labels).predict_proba(logits).shape
        (997, 10)

        Raises:
            InputError: the number of classes is another one, or the scores cannot be of this kind.
        """
        return self.scaler.predict_proba(scores)
