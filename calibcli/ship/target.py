"""The shelf of targets, what one is asked to write, and what it says about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError, UsageError
from calibcli.files import sha256
from calibcli.inputs.scores import multilabel, recorded
from calibcli.predictions import Predictions, words
from calibcli.result import Cell
from calibcli.scalers import Labels, Scaler, check_classes
from calibcli.scalers.per_label import check_labels
from calibcli.shelves import Shelf
from calibcli.ship.comparison import Compared

Array = NDArray[Any]
TARGETS = Shelf("target", joint="-", package="calibcli.ship.targets", first=("checkpoint", "onnx", "json"))
"""An entry is a function `(job, *, options) -> Shipped` that writes after it compared, put here with the traits

suffixes: of the file that it writes; () where that depends on the model.
data: what rows are: `scores` (recorded outputs), `inputs` (a model's), `either` (--model decides).
"""
ROWS = 10_000  # that are compared, evenly spaced over the file


@dataclass(frozen=True)
class Job:
    """What to write, and what it is held against.

    Attributes:
        scaler: the calibrator.  calibrator: its file, "" of one in memory.  path: what to write.
        model: the network that it goes into, or None.  network: options of `checkpoint.load`.
        data: rows: recorded outputs, or a data set of inputs.  reading: options of `recorded.read` or `dataset.load`.
        tolerance: largest difference of a probability; None is the target's own.
        estimator: what makes a scikit-learn estimator of a scaler, and of a fitted classifier where there is one.
    """

    scaler: Scaler
    path: Path
    calibrator: str = ""
    model: Path | None = None
    data: Any = None
    network: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = None
    estimator: Callable[[Scaler, Any], Any] | None = None

    @cached_property
    def scores(self) -> Predictions:
        """Recorded outputs to compare on: those of --data, or those that the calibrator was fitted on.

        Raises:
            UsageError: none were named, and the file of the fit is not there, or is another one now.
            InputError: they cannot be read, or are not of this calibrator's classes.
        """
        rows = self.data
        if not isinstance(rows, Predictions):
            how = {"labels": None, **self.reading, "need_labels": False}
            rows = recorded.read(self._source(), **how)
        check_classes(self.scaler, rows)
        if rows.n > ROWS:
            rows = rows.take(np.linspace(0, rows.n - 1, ROWS).astype(np.int64))
        return rows

    @cached_property
    def labelled(self) -> Predictions:
        """All rows of --data, with labels.

        Raises:
            UsageError: none were named, or they have no labels.
            InputError: they cannot be read, or are not of this calibrator's classes.
        """
        rows = self.data
        if not isinstance(rows, Predictions):
            if rows is None:
                raise UsageError("labelled rows are needed, and none were named", "pass --data ROWS")
            rows = recorded.read(rows, **self.reading)
        if not rows.facts.get("labelled", True):
            raise UsageError(f"{rows.source} has no labels", "pass labelled rows")
        check_classes(self.scaler, rows)
        return rows

    def _source(self) -> Any:
        if self.data is not None:
            return self.data
        about = self.scaler.metadata
        source = str(about.get("source", ""))
        if not (source and os.path.isfile(source) and about.get("sha256") == sha256(source)):
            raise UsageError("an export is compared on real rows, and none were named", "pass --data ROWS")
        return source

    def fed(self, dtype: str) -> Array:
        """The rows as the calibrator is called with them, rounded to `dtype`: (n, columns).

        Raises:
            InputError: as `fed`.
        """
        if isinstance(self.scaler, Labels):
            parts = multilabel.read(self._source(), **{**self.reading, "need_labels": False})
            check_labels([*parts], [*(self.scaler.classes or ())])
            pairs = zip(self.scaler.parts, parts.values(), strict=True)
            found = np.concatenate([fed(one, rows, dtype) for one, rows in pairs], axis=1)
            return found[np.linspace(0, len(found) - 1, min(len(found), ROWS)).astype(np.int64)]
        return fed(self.scaler, self.scores, dtype)

    @property
    def read(self) -> list[str]:
        """Names of files that --data may be."""
        return [str(self.data)] if isinstance(self.data, str | Path) else []

    def provenance(self) -> list[dict[str, Any]]:
        """Path and sha256 of what was read."""
        files = [self.calibrator] if self.calibrator else []
        if isinstance(self.scaler, Labels):
            files = sorted(map(str, Path(self.calibrator).glob("*.safetensors")))
        if self.model is not None and self.model.is_file():
            files.append(str(self.model))
        return [{"path": path, "sha256": sha256(path)} for path in files]


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What was written and how far it is from the calibrator."""

    files: Sequence[Path]
    compared: Compared | None
    notes: Sequence[str] = ()
    facts: Mapping[str, Cell] = field(default_factory=dict)
    inputs: Sequence[Mapping[str, Any]] = ()


def fed(scaler: Scaler, rows: Predictions, dtype: str) -> Array:
    """Rows as a calibrator is called with them, rounded to `dtype`: (n, columns).

    Raises:
        InputError: they are of another kind than those of the fit.
    """
    z = np.asarray(rows.logits, np.float64)
    if (scaler.kind == "logits") != (rows.kind == "logits"):
        problem = f"{rows.source} holds {words(rows.kind)}, the calibrator was fitted on {words(scaler.kind)}"
        raise InputError(problem, "pass rows of the kind of the fit")
    if scaler.columns == 1:
        z = z[:, 1:] - z[:, :1] if scaler.kind == "logits" else z[:, 1:]
    z = np.exp(z) if scaler.kind == "probabilities" else z
    return z.astype(dtype)
