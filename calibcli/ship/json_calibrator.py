"""A calibrator as JSON: everything that its .safetensors says, with the parameters as numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from calibcli.calibrators import Scaler
from calibcli.calibrators.store import KIND, SCHEMA, UNFIT, checked
from calibcli.core.errors import refusing


def described(scaler: Scaler) -> dict[str, Any]:
    """What is written."""
    about = {
        key: scaler.metadata[key] for key in ("n", "source", "sha256", "version", "exchanged") if key in scaler.metadata
    }
    return {
        "what": KIND,
        "schema": SCHEMA,
        "spec": scaler.spec,
        "k": scaler.k,
        "kind": scaler.kind,
        "columns": scaler.columns,
        "classes": None if scaler.classes is None else list(scaler.classes),
        "parameters": {name: np.asarray(value).tolist() for name, value in scaler.parameters.items()},
        "fit": about,
    }


def scaler_of(text: str | bytes, source: str) -> Scaler:
    """The calibrator of a text that `calib export --to json` wrote.

    Raises:
        InputError: it is something else.
    """
    fix = "pass a file of calib export --to json"
    with refusing(UNFIT, lambda e: f"{source} is not a calibrator ({type(e).__name__})", fix):
        read = json.loads(text)
        parameters = {name: np.asarray(value) for name, value in read["parameters"].items()}
        about = {key: read.get(key) for key in ("schema", "what", "spec", "k", "classes")}
        fit = {**read["fit"], "kind": read["kind"], "columns": read["columns"]}
        return checked({**about, "preserves_accuracy": False, "fit": fit}, parameters, source, fix)
