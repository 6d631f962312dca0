"""Checkpoints: a model in eval mode from a file of any usual container, safe by default; and the writing of ours.

`load` never runs code from a file unless `trust` says so. `build` makes a fresh model from an architecture spec.
"""

from __future__ import annotations

from calibcli.inputs.checkpoint.factory import build
from calibcli.inputs.checkpoint.load import Checkpoint, beside, embeds, load
from calibcli.inputs.checkpoint.metadata import folded, save

__all__ = ["Checkpoint", "beside", "build", "embeds", "folded", "load", "save"]
