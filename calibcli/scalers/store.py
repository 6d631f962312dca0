"""Calibrators on disk: safetensors with the parameters, JSON metadata with everything else. No code is ever loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from calibcli import wellformed
from calibcli.errors import InputError, UsageError, check_path, refusing
from calibcli.files import atomic, reading
from calibcli.predictions import Kind
from calibcli.result import Estimate
from calibcli.scalers.parameters import problem
from calibcli.scalers.scaler import SCALERS, Fit, Scaler
from calibcli.spec import Range

SCHEMA = 1
KIND = "calibrator"
LIMIT = 1 << 30  # bytes: the largest honest calibrator, matrix scaling of 10,000 classes, is smaller


@dataclass(frozen=True, kw_only=True)
class About:
    """What a calibrator's file says about itself, beside its parameters."""

    schema: int
    what: str
    spec: str
    k: Annotated[int, Range(2, 1_000_000)]
    classes: Sequence[str] | None = None
    preserves_accuracy: bool
    fit: Mapping[str, Any] = field(default_factory=dict)

    def problem(self) -> str:
        """Another file, of a newer calib, or names for another number of classes."""
        if self.what != KIND:
            return f"holds a {self.what}, not a calibrator"
        if self.schema > SCHEMA:
            return f"has schema {self.schema}, this calib reads up to {SCHEMA}"
        return (
            "" if self.classes is None or len(set(self.classes)) == self.k else "classes are not k names, all different"
        )


@dataclass(frozen=True, kw_only=True)
class FittedOn:
    """What must be right about how it was fitted."""

    kind: Kind = "logits"
    columns: int = 0
    estimates: Sequence[Estimate] = ()


def save(scaler: Scaler | Fit, path: str | Path) -> None:
    """Write `scaler` as safetensors (Hugging Face 2022).

    Its metadata hold schema, spec, classes, the data's fingerprint and the version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     calibcli.save_scaler(calibcli.fit_scaler(logits, labels).scaler, f"{folder}/scaler.safetensors")
    ...     calibcli.load_scaler(f"{folder}/scaler.safetensors").spec
    'temperature'

    Args:
        scaler: of `fit_scaler`: the fit, or its `scaler`.
        path: of the file to write.

    Raises:
        UsageError: the folder does not exist or cannot be written.
    """
    from safetensors.numpy import save_file

    scaler = scaler.scaler if isinstance(scaler, Fit) else scaler
    about = About(
        schema=SCHEMA,
        what=KIND,
        spec=scaler.spec,
        k=scaler.k,
        classes=scaler.classes,
        preserves_accuracy=scaler.preserves_accuracy,
        fit=dict(scaler.metadata),
    )
    tensors = {name: np.asarray(value, order="C") for name, value in scaler.parameters.items()}
    with atomic(path) as temporary:
        save_file(tensors, temporary, metadata={"calib": json.dumps(vars(about), allow_nan=False)})


def load(path: str | Path) -> Scaler:
    """Read a calibrator from safetensors (Hugging Face 2022), which hold no code.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     calibcli.save_scaler(calibcli.fit_scaler(logits, labels).scaler, f"{folder}/scaler.safetensors")
    ...     calibcli.load_scaler(f"{folder}/scaler.safetensors").spec
    'temperature'

    Args:
        path: of a file that `save_scaler` or `calib scale --save` wrote.

    Raises:
        InputError: the file is missing, is not safetensors, or does not hold a calibrator that this version knows.
    """
    tensors, header = _read(Path(path))
    fix = "pass a file written by calib scale --save"
    if "calib" not in header:
        raise InputError(f"{path} is not a calibrator", fix)
    with refusing(UNFIT, lambda error: f"{path} is not a calibrator that this calib can read ({error})", fix):
        return checked(json.loads(header["calib"]), tensors, str(path), fix)


UNFIT = (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, OverflowError, UsageError)
"""What a file that is no calibrator, or a damaged one, raises when it is read."""


def checked(about: Any, parameters: Mapping[str, Any], source: str, fix: str) -> Scaler:
    """The calibrator of what its file says about it and of its arrays.

    Args:
        about: the fields of `About`, as JSON has them.
        parameters: arrays by name.
        source: name of the file, for errors.
        fix: what to do when it is something else.

    Raises:
        InputError: a field has another type, or does not fit to the arrays.
        Exception: one of UNFIT; it cannot be a calibrator.
    """
    about = wellformed.read(about, About, source, fix)
    wellformed.read(about.fit, FittedOn, source, fix, "fit")
    scaler = Scaler(
        spec=SCALERS.choose(about.spec).spec,
        k=about.k,
        parameters=dict(parameters),
        classes=None if about.classes is None else tuple(about.classes),
        metadata=dict(about.fit),
    )
    fault = problem(scaler.choice.traits["form"], scaler.parameters, scaler.k)
    if scaler.columns not in ((1, 2) if scaler.k == 2 else (scaler.k,)):
        fault = f"it was fitted on {scaler.columns} columns for {scaler.k} classes"
    if fault:
        raise InputError(f"{source} is a damaged calibrator: {fault}", "fit it again")
    return scaler


NO_CALIBRATOR = "pass a calibrator, which calib scale --save writes; calib apply takes it before the scores"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    errors = (SafetensorError, ValueError, TypeError, KeyError)
    reading(path)
    with (
        refusing(OSError, lambda error: f"cannot read {path} ({error.strerror or error})", check_path(path)),
        refusing(errors, lambda error: f"{path} is not a safetensors file ({error})", NO_CALIBRATOR),
    ):
        if path.is_dir():
            problem = f"{path} is a folder, a calibrator is a file"
            raise InputError(problem, "pass one of its files; the labels of calib scale --multilabel have one each")
        if path.stat().st_size > LIMIT:
            raise InputError(f"{path} is too large for a calibrator", "pass a file written by calib scale --save")
        with safe_open(str(path), framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, dict(file.metadata() or {})
