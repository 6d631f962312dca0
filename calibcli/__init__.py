"""calib: measure, fix and gate the calibration of classifiers, and the curvature of their loss.

The public functions are loaded when they are first used, so that `import calibcli` costs nothing:

    read from_arrays from_confidence measure Accumulator  calibcli.api.measuring
    inspect                                        calibcli.api.inspecting
    fit_scaler apply load_scaler save_scaler scale calibcli.api.fixing
    find_slices ood                                calibcli.api.finding
    check compare init plan report threshold Watch calibcli.api.gating
    scorer Calibrator                              calibcli.api.estimator
    curvature hessian train loss logits            calibcli.api.networks
    study                                          calibcli.api.experiments
    export verify                                  calibcli.api.shipping
    Predictions Result Estimate CalibError
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from calibcli.core import extensions

if TYPE_CHECKING:
    from calibcli.api.estimator import Calibrator, scorer
    from calibcli.api.experiments import study
    from calibcli.api.finding import find_slices, ood
    from calibcli.api.fixing import apply, fit_scaler, load_scaler, save_scaler, scale
    from calibcli.api.gating import Watch, check, compare, init, plan, report, threshold
    from calibcli.api.inspecting import inspect
    from calibcli.api.measuring import Accumulator, from_arrays, from_confidence, measure, read
    from calibcli.api.networks import curvature, hessian, logits, loss, train
    from calibcli.api.shipping import export, verify
    from calibcli.core.errors import CalibError
    from calibcli.core.result import Estimate, Result
    from calibcli.scores.predictions import Predictions

__version__ = "0.1.0"


_HOME = {
    "calibcli.api.estimator": "Calibrator scorer",
    "calibcli.api.experiments": "study",
    "calibcli.api.finding": "find_slices ood",
    "calibcli.api.fixing": "apply fit_scaler load_scaler save_scaler scale",
    "calibcli.api.gating": "check compare init plan report threshold Watch",
    "calibcli.api.inspecting": "inspect",
    "calibcli.api.measuring": "Accumulator from_arrays from_confidence measure read",
    "calibcli.api.networks": "curvature hessian logits loss train",
    "calibcli.api.shipping": "export verify",
    "calibcli.core.errors": "CalibError",
    "calibcli.scores.predictions": "Predictions",
    "calibcli.core.result": "Estimate Result",
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
    "hessian",
    "init",
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
    "study",
    "threshold",
    "train",
    "verify",
]


extensions.register_device_scores(
    lambda tensor: importlib.import_module("calibcli.networks.device_scores").of_tensor(tensor)
)
extensions.register_formats(lambda: importlib.import_module("calibcli.networks.formats"))
extensions.register_display(lambda: importlib.import_module("calibcli.render.notebook"))
extensions.register_entries("target", lambda: importlib.import_module("calibcli.networks.deploy.targets"))


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'calibcli' has no attribute '{name}'")
    from calibcli.core import python_errors

    attribute = getattr(importlib.import_module(_MODULE[name]), name)
    globals()[name] = attribute if isinstance(attribute, type) else python_errors.in_python(attribute, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE])
