"""Calibration maps, fitted on labelled scores: the registry `SCALERS`, and fit, cross_fit, apply, save and load."""

from calibcli.calibrators.calibrator import SCALERS, Fit, Scaler
from calibcli.calibrators.fitting import apply, check_classes, cross_fit, fit, fold_of_rows, same_order, stream
from calibcli.calibrators.per_label import LabelCalibrators
from calibcli.calibrators.store import load, save

__all__ = [
    "SCALERS",
    "Fit",
    "LabelCalibrators",
    "Scaler",
    "apply",
    "check_classes",
    "cross_fit",
    "fit",
    "fold_of_rows",
    "load",
    "same_order",
    "save",
    "stream",
]
