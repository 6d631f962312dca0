"""Losses of the user's own, `module:factory`, once whoever runs calib has named them: a file alone loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibcli.errors import InputError
from calibcli.losses.shelf import Loss

CLASSES = (3, 2, *range(4, 21), 100, 200, 1000)  # some losses take only their own number, as with a weight for each
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
    """Make `spec` known. What the factory makes is tried on three rows, of as many classes as it takes.

    Raises:
        InputError: it is no loss per row.  Whatever it raises on rows of three classes, if it does so on all others.
    """
    OWN[spec] = factory
    found, first = None, None
    for k in CLASSES:
        logits = torch.zeros(3, k).scatter(1, torch.tensor([[1], [0], [0]]), 2.0).requires_grad_()
        try:
            found = build(spec)(logits, torch.arange(3) % k)
            break
        except (RuntimeError, IndexError, ValueError, AssertionError) as error:
            first = first or error
    else:
        del OWN[spec]
        assert first is not None
        raise first
    if not isinstance(found, Tensor) or found.shape != (3,) or not found.requires_grad:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        del OWN[spec]
        fix = "let it return a number for each row, as torch's losses do with reduction='none'"
        raise InputError(f"loss {spec} gives {shape} for 3 rows", fix)
