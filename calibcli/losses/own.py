"""Losses of the user's own, `module:factory`, once whoever runs calib has named them: a file alone loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibcli.errors import InputError
from calibcli.losses.shelf import Loss

OWN: dict[str, Callable[[], Any]] = {}  # by how they are spelled


class Own(Loss):
    """A callable `(logits (N, K), labels (N,)) -> (N,)` as a loss; a module keeps its state and its parameters."""

    def __init__(self, made: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.made = made

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        return self.made(z, labels)


def build(spec: str) -> Loss:
    """A loss that was added."""
    made = OWN[spec]()
    loss = made if isinstance(made, Loss) else Own(made)
    loss.spec = spec
    return loss


def add(spec: str, factory: Callable[[], Any]) -> None:
    """Make `spec` known. What the factory makes is tried on three rows.

    Raises:
        InputError: it is no loss per row.
    """
    OWN[spec] = factory
    logits = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    found = build(spec)(logits, torch.tensor([0, 1, 2]))
    if not isinstance(found, Tensor) or found.shape != (3,) or not found.requires_grad:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        del OWN[spec]
        fix = "let it return a number for each row, as torch's losses do with reduction='none'"
        raise InputError(f"loss {spec} gives {shape} for 3 rows", fix)
