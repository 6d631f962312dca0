"""Data sets: rows of inputs and labels from arrays, image folders, CSV or the user's own code, read when asked for."""

from __future__ import annotations

from calibcli.inputs.dataset.load import load, splits
from calibcli.inputs.dataset.preprocess import Preprocess
from calibcli.inputs.dataset.rows import Dataset, in_order, tight

__all__ = ["Dataset", "Preprocess", "in_order", "load", "splits", "tight"]
