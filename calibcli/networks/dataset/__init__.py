"""Data sets: rows of inputs and labels from arrays, image folders, CSV or the user's own code, read when asked for."""

from __future__ import annotations

from calibcli.networks.dataset.decoded import decoded_once, undecoded
from calibcli.networks.dataset.loading import load, splits
from calibcli.networks.dataset.rows import Dataset, Preprocess, in_order, tight

__all__ = ["Dataset", "Preprocess", "decoded_once", "in_order", "load", "splits", "tight", "undecoded"]
