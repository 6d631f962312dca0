"""Checkpoints: a model in eval mode from a file of any usual container, safe by default; and the writing of ours.

`load` never runs code from a file unless `trust` says so. `build` makes a fresh model from an architecture spec.
"""

from __future__ import annotations

from calibcli.networks.checkpoint.factory import build, folded, save
from calibcli.networks.checkpoint.loading import IN_MEMORY, Checkpoint, beside, embeds, load, of

__all__ = ["IN_MEMORY", "Checkpoint", "beside", "build", "embeds", "folded", "load", "of", "save"]
