"""The shelf of scalers, what a fitted one is, and how one is put on the shelf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibcli.errors import InputError
from calibcli.result import Cell, Estimate, Plot, Table
from calibcli.spec import Choice, Shelf

Array = NDArray[np.float64]
Parameters = dict[str, NDArray[Any]]
Progress = Callable[[float, str], None]

SCALERS = Shelf("scaler", dash="-")
"""An entry is a function `(predictions, job, *, options) -> Fitted`, put here with the traits

apply: `(parameters, logits (n, K) float64) -> log-probabilities (n, K) float64`.
preserves_accuracy: True where the predicted class of raw logits is kept; or a function of the options.
"""


@dataclass(frozen=True)
class Job:
    """How a method is run: seed of everything random, and whether anybody reads more than the parameters."""

    seed: int = 0
    report: bool = True
    level: float = 0.95


@dataclass(frozen=True)
class Fitted:
    """What a method returns: parameters, and what there is to say about them."""

    parameters: Parameters
    estimates: Sequence[Estimate] = ()
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Scaler:
    """A fitted calibration map.

    Attributes:
        spec: canonical spec of the method.
        k: number of classes.
        classes: their names, or None.
        parameters: arrays by name.
        metadata: how it was fitted (data, number of rows, version).
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
        trait = self.choice.traits["preserves_accuracy"]
        return bool(trait(self.choice.options)) if callable(trait) else bool(trait)

    def __call__(self, logits: ArrayLike) -> Array:
        """Calibrated log-probabilities.

        Args:
            logits: (n, K) logits or log-probabilities.

        Returns:
            (n, K) float64.

        Raises:
            InputError: the number of classes differs.
        """
        z = np.asarray(logits, np.float64)
        if z.ndim != 2 or z.shape[1] != self.k:
            raise InputError(
                f"scores of shape {z.shape} for a calibrator of {self.k} classes", f"pass an array (n, {self.k})"
            )
        result: Array = self.choice.traits["apply"](self.parameters, z)
        return result


@dataclass(frozen=True)
class Fit:
    """A scaler with the numbers, notes and figures of its fit."""

    scaler: Scaler
    estimates: Sequence[Estimate] = ()
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, Cell] = field(default_factory=dict)
