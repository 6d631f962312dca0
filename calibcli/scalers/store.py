"""Calibrators on disk: safetensors with the parameters, JSON metadata with everything else. No code is ever loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.errors import InputError, UsageError
from calibcli.files import atomic
from calibcli.scalers.scaler import SCALERS, Scaler

SCHEMA = 1
KIND = "calibrator"
LIMIT = 1 << 30  # bytes: the largest honest calibrator, matrix scaling of 10,000 classes, is smaller


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
        about = json.loads(header["calib"])
        schema, spec, k, classes = about["schema"], about["spec"], int(about["k"]), about["classes"]
        if about["what"] != KIND:
            raise InputError(f"{path} holds a {about['what']}, not a calibrator", fix)
        if schema > SCHEMA:
            raise InputError(f"{path} has schema {schema}, this calib reads up to {SCHEMA}", "upgrade calib")
        scaler = Scaler(
            spec=SCALERS.choose(spec).spec,
            k=k,
            parameters=tensors,
            classes=None if classes is None else tuple(map(str, classes)),
            metadata=dict(about["fit"]),
        )
        if not all(np.isfinite(value).all() for value in tensors.values()):
            raise InputError(f"{path} holds parameters that are not finite", "fit it again")
        with np.errstate(all="ignore"):
            shape = scaler.map(np.zeros((1, k))).shape
        if shape != (1, k):
            raise ValueError(f"maps {k} classes to {shape[1]}")
    except (KeyError, TypeError, ValueError, IndexError, UsageError) as error:
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
