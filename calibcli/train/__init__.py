"""Training with losses that calibrate: recipes, the loop, and what a run leaves behind."""

from __future__ import annotations

from calibcli.train.loop import Trainer
from calibcli.train.recipe import Recipe
from calibcli.train.rows import Loader, stratified_split

__all__ = ["Loader", "Recipe", "Trainer", "stratified_split"]
