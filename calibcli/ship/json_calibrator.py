"""A calibrator as JSON: the contents of its .safetensors file, with the parameters as numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from calibcli.calibrators import Scaler
from calibcli.calibrators.store import KIND, SCHEMA, UNFIT, checked
from calibcli.core.errors import refusing


def described(scaler: Scaler) -> dict[str, Any]:
    """Return the JSON object of a calibrator."""
    fit = {
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
        "fit": fit,
    }


def scaler_of(text: str | bytes, source: str) -> Scaler:
    """Read a calibrator from the text that `calib export --to json` wrote.

    Raises:
        InputError: the text is something else.
    """
    fix = "pass a file of calib export --to json"
    with refusing(UNFIT, lambda e: f"{source} is not a calibrator ({type(e).__name__})", fix):
        read = json.loads(text)
        parameters = {name: np.asarray(value) for name, value in read["parameters"].items()}
        header = {key: read.get(key) for key in ("schema", "what", "spec", "k", "classes")}
        fit = {**read["fit"], "kind": read["kind"], "columns": read["columns"]}
        return checked({**header, "preserves_accuracy": False, "fit": fit}, parameters, source, fix)
