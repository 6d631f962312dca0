"""A function call whose arguments move along a curve, and sums and products of their derivatives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

Jet = tuple[Tensor | None, Tensor | None]
"""First and second derivative; None is zero."""


class Lost(Exception):
    """An operation that jets do not go through; with its value, where there is one already."""


@cache
def signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)


@dataclass
class Call:
    """A function call with a moving argument.

    Attributes:
        lookup: the jets of a value, None where it does not move.
        directions: their number.
        strict: whether any real number without a rule is lost, or only what PyTorch's autograd follows.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    lookup: Callable[[Any], list[Jet] | None]
    directions: int
    strict: bool = False

    def value(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def bound(self) -> dict[str, Any]:
        """Arguments by name, defaults included, of a function written in Python."""
        found = signature(self.func).bind(*self.args, **self.kwargs)
        found.apply_defaults()
        return found.arguments

    def jets(self, value: Any) -> list[Jet]:
        """Of an argument, one for each direction; zero for what does not move."""
        found = self.lookup(value) if isinstance(value, Tensor) else None
        return [(None, None)] * self.directions if found is None else found


def total(*terms: Tensor | None) -> Tensor | None:
    out: Tensor | None = None
    for t in terms:
        out = t if out is None else out if t is None else out + t
    return out


def each(f: Callable[[Tensor], Any], jet: Jet) -> Jet:
    """The jet through a linear function."""
    first, second = (None if d is None else f(d) for d in jet)
    return first, second


def plus(a: Jet, b: Jet) -> Jet:
    return total(a[0], b[0]), total(a[1], b[1])


def times(a: Tensor | None, d: Tensor | None) -> Tensor | None:
    """a d, of a factor that is 1 where it is None and a derivative that is zero where it is None."""
    return d if a is None or d is None else a * d


def derivatives(f: Callable[[Tensor], Tensor], t: Tensor) -> tuple[Tensor, Tensor]:
    """f'(t) and f''(t) in forward mode, of a curve in one number or a function of each number of t."""

    def slope(t: Tensor) -> Any:
        return torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]

    with torch.enable_grad():  # without it some functions have no second derivative in forward mode
        first, second, *_ = torch.func.jvp(slope, (t,), (torch.ones_like(t),))
    return first, second
