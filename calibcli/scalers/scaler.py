"""The shelf of scalers, what a fitted one is, and how one is put on the shelf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibcli.array_likes import like, precision
from calibcli.plots import Plot
from calibcli.predictions import Kind
from calibcli.result import Cell, Estimate, Numbers, Table
from calibcli.scalers.kinds import as_logits
from calibcli.scalers.program import apply
from calibcli.shelves import Choice, Shelf

Array = NDArray[np.float64]
Parameters = dict[str, NDArray[Any]]
Progress = Callable[[float, str], None]

SCALERS = Shelf(
    "scaler",
    joint="-",
    package="calibcli.scalers",
    first=("temperature", "focal_temperature", "vector"),
    flag="--method",
)
"""An entry is a function `(predictions, job, *, options) -> Fitted`, put here with the traits

map: the program `(o, parameters, logits (n, K)) -> log-probabilities (n, K)`, in the operations of `program`.
steep: whether it has jumps, steep knots or 1 - p, so that float32 is off (by up to .07): runtimes work in float64
    (optional).
form: its parameters by name, as `parameters.Form`.
search: a function of the options, whether settings are chosen by cross-validation (optional).
preserves_accuracy: True where the predicted class of raw logits is kept; or a function of the options (optional).
"""


TIED = 2  # units in the last place that rounding can make of one


def keep_first(out: NDArray[Any], first: NDArray[Any]) -> NDArray[Any]:
    """In each row raise the class `first` just above others that rounding made equal to it, in place.

    Returns:
        Rows in which another class is higher by more.
    """
    best = out.argmax(axis=1)
    rows = np.flatnonzero(best != first)
    highest = out[rows, best[rows]]
    tied = highest - out[rows, first[rows]] <= TIED * np.spacing(np.abs(highest))
    out[rows[tied], first[rows[tied]]] = np.nextafter(highest[tied], np.asarray(np.inf, out.dtype))
    return np.asarray(rows[~tied])


@dataclass(frozen=True)
class Job:
    """How a method is run: seed of everything random, whether anybody reads more than the parameters, and progress.

    Attributes:
        step: called with (fraction of this fit, text) by methods that take seconds.
        memory: what a fit to all rows found out about its own settings, for fits to parts of these rows.
        rows: indices of this fit's rows among all rows, where it is a fit to a part.
    """

    seed: int = 0
    report: bool = True
    level: float = 0.95
    step: Progress = lambda fraction, text: None
    memory: dict[str, Any] = field(default_factory=dict)
    rows: NDArray[Any] | None = None


@dataclass(frozen=True)
class Fitted:
    """What a method returns: parameters, and what there is to say about them."""

    parameters: Parameters
    estimates: Sequence[Estimate] = ()
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, Cell] = field(default_factory=dict)


def keeps_classes(choice: Choice) -> bool:
    """Whether a method with its options keeps the predicted class of raw logits."""
    trait = choice.traits.get("preserves_accuracy")
    return bool(trait(choice.options)) if callable(trait) else bool(trait)


@dataclass(frozen=True)
class Scaler:
    """A fitted calibration map.

    >>> scaler = calibcli.fit_scaler(logits, labels).scaler
    >>> scaler.spec, scaler.k, scaler.kind, scaler.preserves_accuracy
    ('temperature', 10, 'logits', True)

    Attributes:
        spec: canonical spec of the method.
        k: number of classes.
        classes: their names, or None.
        parameters: arrays by name.
        metadata: how it was fitted (kind of scores and their columns, data, number of rows, version).
    """

    spec: str
    k: int
    parameters: Parameters
    classes: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choice(self) -> Choice:
        return SCALERS.choose(self.spec)

    @property
    def preserves_accuracy(self) -> bool:
        """Whether the predicted class is, by definition, that of the raw logits."""
        return keeps_classes(self.choice)

    @property
    def kind(self) -> Kind:
        """What the scores were that it was fitted on, and are that it is called with."""
        found: Kind = self.metadata.get("kind", "logits")
        return found

    @property
    def columns(self) -> int:
        """Columns of the scores that it was fitted on: 1 where two classes came as one column."""
        return int(self.metadata.get("columns", self.k))

    def __call__(self, scores: ArrayLike) -> Array:
        """Calibrated log-probabilities of scores of the kind that the fit was on.

        >>> calibcli.fit_scaler(logits, labels).scaler(logits[:5]).shape
        (5, 10)

        Args:
            scores: (n, K) of `kind`; (n,) where the fit was on one column. Array-like, torch tensors too.

        Returns:
            (n, K) float64; of a tensor a tensor on its device, float32 unless it is float64, without a graph.

        Raises:
            InputError: another number of classes, or scores that cannot be of this kind.
        """
        return self._as_given(scores, np.asarray)

    def predict_proba(self, scores: ArrayLike) -> Array:
        """Calibrated probabilities (n, K) of what `__call__` takes, in the form that it returns.

        >>> calibcli.fit_scaler(logits, labels).scaler.predict_proba(logits[:1]).sum().round(6).item()
        1.0

        Raises:
            InputError: as `__call__`.
        """
        return self._as_given(scores, np.exp)

    def _as_given(self, scores: ArrayLike, form: Callable[[Array], Array]) -> Array:
        mapped, logits = self._mapped(scores)
        out = form(mapped).astype(precision(scores), copy=False)
        if self.preserves_accuracy:
            keep_first(out, logits.argmax(axis=1))
        return cast(Array, like(out, scores))

    def _mapped(self, scores: ArrayLike) -> tuple[Array, Array]:
        """What is returned, in float64, and the logits that it is of."""
        logits = as_logits(scores, self.kind, self.k, self.columns)
        return self.map(logits), logits

    def map(self, logits: NDArray[Any]) -> Array:
        """Calibrated log-probabilities (n, K) of scores as `Predictions` hold them: logits or log-probabilities.

        >>> calibcli.fit_scaler(logits, labels).scaler.map(logits[:5]).shape
        (5, 10)
        """
        return apply(self.choice.traits["map"], self.parameters, np.asarray(logits, np.float64))


@dataclass(frozen=True, repr=False)
class Fit(Numbers, Fitted):
    """A scaler with the numbers, notes and figures of its fit; a mapping of its estimates: `fit["temperature"]`.

    >>> fit = calibcli.fit_scaler(logits, labels)
    >>> round(fit["temperature"].value, 2), fit.scaler.spec
    (2.81, 'temperature')
    """

    scaler: Scaler = field(kw_only=True)

    def predict_proba(self, scores: ArrayLike) -> Array:
        """Calibrated probabilities (n, K) of scores of the kind and shape that the fit was on.

        >>> calibcli.fit_scaler(logits, labels).predict_proba(logits).shape
        (997, 10)

        Raises:
            InputError: another number of classes, or scores that cannot be of this kind.
        """
        return self.scaler.predict_proba(scores)
