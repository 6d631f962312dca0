"""Calibration maps, fitted on labelled scores: the shelf `SCALERS`, and fit, cross_fit, apply, save and load."""

from calibcli.scalers.fitting import apply, check_classes, cross_fit, fit, same_order
from calibcli.scalers.output import stream
from calibcli.scalers.per_label import Labels
from calibcli.scalers.scaler import SCALERS, Fit, Scaler
from calibcli.scalers.store import load, save
from calibcli.scalers.subsets import fold_of_rows

__all__ = [
    "SCALERS",
    "Fit",
    "Labels",
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
