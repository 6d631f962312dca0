"""Calibrators on disk: safetensors with the parameters, JSON metadata with everything else. No code is ever loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from calibcli import schema
from calibcli.errors import InputError, UsageError
from calibcli.files import atomic
from calibcli.scalers.scaler import SCALERS, Scaler
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
        return "" if self.classes in (None, []) or len(self.classes or ()) == self.k else "classes are not k names"


def save(path: str | Path, scaler: Scaler) -> None:
    """Write `scaler` as safetensors; its metadata hold schema, spec, classes, the data's fingerprint and the version.

    Raises:
        UsageError: the folder does not exist or cannot be written.
    """
    from safetensors.numpy import save_file

    about = {
        "schema": SCHEMA,
        "what": KIND,
        "spec": scaler.spec,
        "k": scaler.k,
        "classes": scaler.classes,
        "preserves_accuracy": scaler.preserves_accuracy,
        "fit": dict(scaler.metadata),
    }
    tensors = {name: np.asarray(value, order="C") for name, value in scaler.parameters.items()}
    with atomic(path) as temporary:
        save_file(tensors, temporary, metadata={"calib": json.dumps(about, allow_nan=False)})


def load(path: str | Path) -> Scaler:
    """Read a calibrator.

    Raises:
        InputError: the file is missing, is not safetensors, or does not hold a calibrator that this version knows.
    """
    tensors, header = _read(Path(path))
    fix = "pass a file written by calib scale --save"
    if "calib" not in header:
        raise InputError(f"{path} is not a calibrator", fix)
    try:
        about: About = schema.read(json.loads(header["calib"]), About, str(path), fix)
        k = about.k
        scaler = Scaler(
            spec=SCALERS.choose(about.spec).spec,
            k=k,
            parameters=tensors,
            classes=None if about.classes is None else tuple(about.classes),
            metadata=dict(about.fit),
        )
        if not all(np.isfinite(value).all() for value in tensors.values()):
            raise InputError(f"{path} holds parameters that are not finite", "fit it again")
        with np.errstate(all="ignore"):
            mapped = scaler.map(np.stack([np.zeros(k), np.linspace(-3, 3, k), np.linspace(50, -50, k)]))
        if mapped.shape != (3, k):
            raise ValueError(f"maps {k} classes to {mapped.shape[1]}")
        if not (mapped <= 1e-6).all():  # NaN too
            raise ValueError("its probabilities are not between 0 and 1")
        if "beta" in tensors and not (tensors["beta"] >= 0).all():
            raise ValueError("a negative 1/T reverses the classes")
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, OverflowError, UsageError) as error:
        raise InputError(f"{path} is not a calibrator that this calib can read ({error})", fix) from None
    return scaler


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > LIMIT:
            raise InputError(f"{path} is too large for a calibrator", "pass a file written by calib scale --save")
        with safe_open(str(path), framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, dict(file.metadata() or {})
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error})", "check the path") from None
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not a safetensors file ({error})", "pass a calibrator") from None
