"""Losses of the user's own: a module, a class, a function of logits and labels, or what makes one of these.

On the command line they are named `module:name`, in Python they are passed as they are; a file alone loads nothing.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from calibcli.errors import CalibError, InputError
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


def spec_of(given: Callable[..., Any]) -> str:
    """How a loss of Python is spelled: `module:name`, or the spec that it was made from.

    Raises:
        TypeError: it is nothing that can be called.
    """
    if not callable(given):
        raise TypeError(f"a loss is a text, a module, a class or a function, not {type(given).__name__}")
    if isinstance(given, Loss) and given.spec:
        return given.spec
    named = given if hasattr(given, "__qualname__") else type(given)
    return f"{named.__module__}:{named.__qualname__.rpartition('.')[2]}"


def factory_of(given: Callable[..., Any]) -> Callable[[], Any]:
    """What makes the loss that is meant.

    A module gives copies of itself, a class an instance; a function that can be called without arguments makes the
    loss, any other is the loss.
    """
    if isinstance(given, nn.Module):
        return functools.partial(copy.deepcopy, given)
    if isinstance(given, type):
        return given
    try:
        inspect.signature(given).bind()
    except (TypeError, ValueError):  # it takes logits and labels; or is built in
        return lambda: given
    return given


def one(given: Callable[..., Any]) -> Callable[..., Any]:
    """The loss itself of what was passed in Python.

    Raises:
        TypeError: it is nothing that can be called.
    """
    spec_of(given)
    return given if isinstance(given, nn.Module) else factory_of(given)()


def build(spec: str) -> Loss:
    """A loss that was added."""
    made = OWN[spec]()
    loss = made if isinstance(made, Loss) else Own(made)
    loss.spec = spec
    return loss


def add(spec: str, given: Callable[..., Any]) -> None:
    """Make `spec` known. The loss is tried on three rows, of as many classes as it takes.

    Args:
        given: as `factory_of` takes it.

    Raises:
        InputError: it is no loss per row.  Whatever it raises on rows of three classes, if it does so on all others.
    """
    OWN[spec] = factory_of(given)
    found, first = None, None
    for k in CLASSES:
        logits = torch.zeros(3, k).scatter(1, torch.tensor([[1], [0], [0]]), 2.0).requires_grad_()
        try:
            found = build(spec)(logits, torch.arange(3) % k)
            break
        except CalibError:
            raise
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
