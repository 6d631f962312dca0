"""Quadratic forms in second derivatives along many directions at once: for the trace, which needs no whole products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from calibcli.derivatives.calls import Call, Jet, Lost
from calibcli.derivatives.jets import Followed
from calibcli.derivatives.rules import CONSTANT, LINEAR


class Bend:
    """v'Rv of R = ∂²/∂θ² Σ ⟨s, z(θ)⟩, with s held fixed, along many directions v at once.

    A function y = f(x) inside the network bends by f''[x', x'], which counts by the adjoint δ of y: v'Rv is the sum of
    ⟨δ, f''[x', x']⟩ over all of them. The adjoints are those of one backward pass, the same for every v; a direction
    costs its first derivatives and the bends, about three products in a layer where reverse over reverse takes six.

    Args:
        run: () -> the network's outputs z, always by the same operations.
        parameters: those that move.
        slope: z -> s, like z.

    Raises:
        Lost: an operation has no rule.
    """

    def __init__(
        self, run: Callable[[], Tensor], parameters: Sequence[Tensor], slope: Callable[[Tensor], Tensor]
    ) -> None:
        self.run, self.parameters = run, list(parameters)
        with torch.enable_grad():
            with _Seen() as seen:
                z = run()
            total = (slope(z.detach()) * z).sum()
        values = list(seen.values.values())
        found = torch.autograd.grad(total, values, allow_unused=True) if values else ()
        self.adjoints = dict(zip(seen.values, found))

    def forms(self, directions: Sequence[Tensor]) -> Tensor:
        """(m,) v'Rv of (m, *shape) directions, a tensor for each parameter."""

        def one(*v: Tensor) -> Tensor:
            bends = _Bends(self, v)
            with bends:
                self.run()
            if bends.lost:
                raise Lost(bends.lost)
            return bends.total

        with torch.no_grad():
            out: Tensor = torch.func.vmap(one)(*directions)
        return out


class _Seen(Followed):
    """Keeps what function calls give, to be differentiated by."""

    def __init__(self) -> None:
        super().__init__()
        self.values = dict[int, Tensor]()

    def follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        y = func(*args, **kwargs)
        if func in LINEAR or not isinstance(y, Tensor) or not y.requires_grad or any(y is a for a in args):
            return y
        self.values[self.calls] = y
        return y.clone()  # what may be written into


class _Bends(Followed):
    """While it is on, first derivatives along one direction go with every value; sums up the bends."""

    def __init__(self, of: Bend, direction: Sequence[Tensor]) -> None:
        super().__init__()
        self.adjoints = of.adjoints
        self.total: Tensor = torch.zeros((), dtype=torch.float64, device=direction[0].device)
        for p, v in zip(of.parameters, direction):
            self.carried.hold(p, [(v, None)])

    def follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.lost or func in CONSTANT:
            return func(*args, **kwargs)
        moving = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor) and self.carried.moves(t)]
        if any(self.carried.of(t) is None for t in moving):
            self.lose(func, "a value that was written into")
        if not moving or self.lost:
            return func(*args, **kwargs)
        return self.ruled(Call(func, args, kwargs, self.carried.of, 1, strict=True), self._take)

    def _take(self, y: Tensor, jets: list[Jet]) -> None:
        ((first, bend),) = jets
        self.carried.hold(y, [(first, None)])
        if bend is None:
            return
        if self.calls not in self.adjoints:
            raise Lost("its adjoint was not seen")
        adjoint = self.adjoints[self.calls]
        if adjoint is not None:
            self.total = self.total + torch.dot(adjoint.reshape(-1), bend.reshape(-1))
