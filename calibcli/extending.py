"""What a package of your own imports to add a metric, a map, a loss, an architecture, a quantity, a target or a format.

These names stay here, wherever the code behind them moves. A module that is named in an entry point of a package is
found by every command once the package is installed:

    [project.entry-points."calibcli.metrics"]
    sharpness = "calib_sharpness"

The groups are `calibcli.metrics`, `.scalers`, `.losses`, `.architectures`, `.quantities`, `.targets` and `.formats`.
The name of an entry point is that of the entry, and examples/extension is a package that does so. CONTRIBUTING.md in
the repository says what each kind of entry has; nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibcli.calibrators.calibrator import SCALERS, FitContext, FittedParameters, Form, Parameters, ScalerTraits
    from calibcli.calibrators.program import Operations
    from calibcli.core.errors import InputError, UsageError
    from calibcli.core.options import Range
    from calibcli.core.registries import Traits
    from calibcli.core.result import Estimate, Result
    from calibcli.metrics.intervals import MeanOf
    from calibcli.metrics.registry import (
        ANY,
        BRIER,
        METRICS,
        NATS,
        SIGNED,
        UNIT,
        Interval,
        MetricTraits,
        Sample,
        Statistic,
    )
    from calibcli.networks.architectures.registry import ARCHITECTURES, Size
    from calibcli.networks.curvature.quantities import QUANTITIES, QuantityTraits
    from calibcli.networks.losses.registry import LOSSES, PENALTIES, Loss
    from calibcli.scores.files.arrays import FileContents, Memory
    from calibcli.scores.files.source import Source
    from calibcli.scores.likelihood import log_softmax
    from calibcli.scores.predictions import Predictions
    from calibcli.ship.target import TARGETS, TargetTraits

_HOME = {
    "calibcli.calibrators.calibrator": "SCALERS FitContext FittedParameters Form Parameters ScalerTraits",
    "calibcli.calibrators.program": "Operations",
    "calibcli.core.errors": "InputError UsageError",
    "calibcli.core.options": "Range",
    "calibcli.core.result": "Estimate Result",
    "calibcli.core.registries": "Traits",
    "calibcli.metrics.intervals": "MeanOf",
    "calibcli.metrics.registry": "ANY BRIER METRICS NATS SIGNED UNIT Interval MetricTraits Sample Statistic",
    "calibcli.networks.architectures.registry": "ARCHITECTURES Size",
    "calibcli.networks.curvature.quantities": "QUANTITIES QuantityTraits",
    "calibcli.networks.losses.registry": "LOSSES PENALTIES Loss",
    "calibcli.scores.files.arrays": "FileContents Memory",
    "calibcli.scores.files.source": "Source",
    "calibcli.scores.likelihood": "log_softmax",
    "calibcli.scores.predictions": "Predictions",
    "calibcli.ship.target": "TARGETS TargetTraits",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = [
    "ANY",
    "ARCHITECTURES",
    "BRIER",
    "LOSSES",
    "METRICS",
    "NATS",
    "PENALTIES",
    "QUANTITIES",
    "SCALERS",
    "SIGNED",
    "TARGETS",
    "UNIT",
    "Estimate",
    "FileContents",
    "FitContext",
    "FittedParameters",
    "Form",
    "InputError",
    "Interval",
    "Loss",
    "MeanOf",
    "Memory",
    "MetricTraits",
    "Operations",
    "Parameters",
    "Predictions",
    "QuantityTraits",
    "Range",
    "Result",
    "Sample",
    "ScalerTraits",
    "Size",
    "Source",
    "Statistic",
    "TargetTraits",
    "Traits",
    "UsageError",
    "log_softmax",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'calibcli.extending' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE])
