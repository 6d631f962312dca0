"""A calibrator as JSON: everything that its .safetensors says, with the parameters as numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from calibcli import wellformed
from calibcli.errors import InputError, refusing
from calibcli.scalers import SCALERS, Scaler
from calibcli.scalers.parameters import problem

KIND = "calibrator"


def described(scaler: Scaler) -> dict[str, Any]:
    """What is written."""
    about = {
        key: scaler.metadata[key] for key in ("n", "source", "sha256", "version", "exchanged") if key in scaler.metadata
    }
    return {
        "what": KIND,
        "schema": 1,
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
    unfit = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
    with refusing(unfit, lambda e: f"{source} is not a calibrator ({type(e).__name__})", fix):
        found = json.loads(text)
        if found["what"] != KIND or found["schema"] != 1:
            raise ValueError
        k = wellformed.read(found["k"], int, source, fix, "k")
        scaler = Scaler(
            spec=SCALERS.choose(found["spec"]).spec,
            k=k,
            parameters={name: np.asarray(value) for name, value in found["parameters"].items()},
            classes=None if found["classes"] is None else tuple(map(str, found["classes"])),
            metadata={"kind": found["kind"], "columns": found["columns"], **found["fit"]},
        )
        fault = problem(scaler.choice.traits["form"], scaler.parameters, k)
    if fault:
        raise InputError(f"{source} is a damaged calibrator: {fault}", "export it again")
    return scaler
