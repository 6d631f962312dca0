"""calib: measure, fix and gate the calibration of classifiers, and the curvature of their loss.

The public functions are loaded when they are first used, so that `import calibcli` costs nothing:

    measure fit_scaler check read from_arrays load_scaler save_scaler loss      (calibcli.api)
    curvature                                                                    (calibcli.curvature.measure)
    Predictions Result Estimate CalibError
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibcli.api import check, fit_scaler, from_arrays, load_scaler, loss, measure, read, save_scaler
    from calibcli.errors import CalibError
    from calibcli.predictions import Predictions
    from calibcli.result import Estimate, Result

_HOME = {
    "calibcli.api": "check fit_scaler from_arrays load_scaler loss measure read save_scaler",
    "calibcli.errors": "CalibError",
    "calibcli.predictions": "Predictions",
    "calibcli.result": "Estimate Result",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = [
    "CalibError",
    "Estimate",
    "Predictions",
    "Result",
    "check",
    "fit_scaler",
    "from_arrays",
    "load_scaler",
    "loss",
    "measure",
    "read",
    "save_scaler",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'calibcli' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE])
