"""calib: measure, fix and gate the calibration of classifiers, and the curvature of their loss.

The public functions are loaded when they are first used, so that `import calibcli` costs nothing:

    read from_arrays from_confidence measure       calibcli.api.measuring
    inspect                                        calibcli.api.inspecting
    Accumulator                                    calibcli.api.accumulating
    fit_scaler apply load_scaler save_scaler scale calibcli.api.fixing
    find_slices                                    calibcli.api.finding
    ood                                            calibcli.api.detecting
    check compare plan                             calibcli.api.gating
    report                                         calibcli.api.reporting
    scorer Calibrator                              calibcli.api.estimator
    Watch                                          calibcli.api.watching
    curvature train loss logits                    calibcli.api.networks
    export verify                                  calibcli.api.shipping
    Predictions Result Estimate CalibError
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from calibcli import extensions

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibcli.api.accumulating import Accumulator
    from calibcli.api.detecting import ood
    from calibcli.api.estimator import Calibrator, scorer
    from calibcli.api.finding import find_slices
    from calibcli.api.fixing import apply, fit_scaler, load_scaler, save_scaler, scale
    from calibcli.api.gating import check, compare, plan
    from calibcli.api.inspecting import inspect
    from calibcli.api.measuring import from_arrays, from_confidence, measure, read
    from calibcli.api.networks import curvature, logits, loss, train
    from calibcli.api.reporting import report
    from calibcli.api.shipping import export, verify
    from calibcli.api.watching import Watch
    from calibcli.errors import CalibError
    from calibcli.predictions import Predictions
    from calibcli.result import Estimate, Result

_HOME = {
    "calibcli.api.accumulating": "Accumulator",
    "calibcli.api.detecting": "ood",
    "calibcli.api.estimator": "Calibrator scorer",
    "calibcli.api.finding": "find_slices",
    "calibcli.api.fixing": "apply fit_scaler load_scaler save_scaler scale",
    "calibcli.api.gating": "check compare plan",
    "calibcli.api.inspecting": "inspect",
    "calibcli.api.measuring": "from_arrays from_confidence measure read",
    "calibcli.api.networks": "curvature logits loss train",
    "calibcli.api.reporting": "report",
    "calibcli.api.shipping": "export verify",
    "calibcli.api.watching": "Watch",
    "calibcli.errors": "CalibError",
    "calibcli.predictions": "Predictions",
    "calibcli.result": "Estimate Result",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = [
    "Accumulator",
    "CalibError",
    "Calibrator",
    "Estimate",
    "Predictions",
    "Result",
    "Watch",
    "apply",
    "check",
    "compare",
    "curvature",
    "export",
    "find_slices",
    "fit_scaler",
    "from_arrays",
    "from_confidence",
    "inspect",
    "load_scaler",
    "logits",
    "loss",
    "measure",
    "ood",
    "plan",
    "read",
    "report",
    "save_scaler",
    "scale",
    "scorer",
    "train",
    "verify",
]


extensions.register_device_scores(lambda tensor: importlib.import_module("calibcli.device_scores").of_tensor(tensor))
extensions.register_formats(lambda: importlib.import_module("calibcli.torch_formats"))


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'calibcli' has no attribute '{name}'")
    from calibcli import spoken

    found = getattr(importlib.import_module(_MODULE[name]), name)
    globals()[name] = found if isinstance(found, type) else spoken.in_python(found, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE])
