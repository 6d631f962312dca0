"""Second derivatives along directions in parameter space, carried forward with the values of a network.

At parameters θ + t v every intermediate value is a curve y(t); with it go y'(0) and y''(0), its jet. Forward, a layer
that is bilinear in input and weight costs five products in place of one, and v'Hv is one number at the end, which a
single backward pass differentiates: about 13 products where three reverse passes on top of each other take 24 (Griewank
and Walther 2008, chapter 13; Bettencourt, Johnson and Duvenaud 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from calibcli.networks.derivatives import normalisation
from calibcli.networks.derivatives.rules import COMPOSED, CONSTANT, LINEAR, RULES, Call, Jet, Lost, generic


class Followed(TorchFunctionMode):
    """Hand every function call to `follow`, in the form that rules know, and number it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.lost, self.carried = 0, "", Carried()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        func, kwargs = normalisation.EXACT.get(func, func), kwargs or {}
        if func in COMPOSED:
            with self:
                return COMPOSED[func](*args, **kwargs)
        self.calls += 1
        return self.follow(func, args, kwargs)

    def follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def ruled(self, call: Call, take: Callable[[Any, list[Jet]], None]) -> Any:
        """Compute the value of a call by its rule; pass each tensor in it with its jets to `take`, and note a loss."""
        try:
            y, jets = RULES.get(call.func, generic)(call)
            if jets is not None:
                for tensor, jet in zip(y, jets) if isinstance(y, tuple | list) else [(y, jets)]:
                    take(tensor, jet)
        except Lost as error:
            why, *value = error.args
            self.lose(call.func, why)
            return value[0] if value else call.value()
        return y

    def lose(self, func: Callable[..., Any], why: str) -> None:
        self.lost = f"{getattr(func, '__name__', func)}: {why}"
        self.carried = Carried()


class Carried:
    """The jets of values, by identity."""

    def __init__(self) -> None:
        # with the tensor, so that the id stays its own, and its version, so that no write goes unseen
        self.entries: dict[int, tuple[Tensor, int, list[Jet]]] = {}

    def hold(self, y: Tensor, jets: list[Jet]) -> None:
        self.entries[id(y)] = y, y._version, [(_like(a, y), _like(b, y)) for a, b in jets]

    def of(self, y: Tensor) -> list[Jet] | None:
        entry = self.entries.get(id(y))
        return entry[2] if entry is not None and entry[1] == y._version else None

    def moves(self, y: Tensor) -> bool:
        """Whether it has a jet, or had one before it was written into."""
        return id(y) in self.entries


class Jets(Followed):
    """Carry jets along with every value that depends on the parameters, while it is on.

    Values and their autograd graph are PyTorch's up to rounding (on a CPU images are laid out channels last, where
    convolutions are faster), with normalisations that can be differentiated thrice. Smooth functions without a rule go
    through forward-mode differentiation twice. At any other operation the jets are lost: `of` then gives None.

    Args:
        parameters: those that move.  directions: one list of tensors like them for each direction.

    Attributes:
        lost: why, or "".  directions: as given.
    """

    def __init__(self, parameters: Sequence[Tensor], directions: Sequence[Sequence[Tensor]]) -> None:
        super().__init__()
        self.directions = [list(v) for v in directions]
        for i, p in enumerate(parameters):
            self.carried.hold(p, [(v[i], None) for v in directions])

    def of(self, y: Tensor) -> list[Jet] | None:
        """Return the jet of a value in each direction."""
        return self.carried.of(y)

    def follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.conv2d:
            args = channels_last(args)
        if self.lost or func in CONSTANT or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        if any(t.requires_grad and self.of(t) is None for t in tensors):
            self.lose(func, "a value whose history was not seen")
            return func(*args, **kwargs)
        if not any(self.carried.moves(t) for t in tensors):
            return func(*args, **kwargs)
        return self.ruled(Call(func, args, kwargs, self.of, len(self.directions)), self._take)

    def _take(self, y: Tensor, jets: list[Jet]) -> None:
        if y.requires_grad:
            self.carried.hold(y, jets)


def channels_last(args: tuple[Any, ...]) -> tuple[Any, ...]:
    x = args[0] if args else None
    if isinstance(x, Tensor) and x.ndim == 4 and x.device.type == "cpu":
        # what depends on no parameter has no jet to lose; the rest comes from a convolution and is laid out so already
        return (x.contiguous(memory_format=torch.channels_last), *args[1:]) if not x.requires_grad else args
    return args


def _like(d: Tensor | None, y: Tensor) -> Tensor | None:
    if d is None:
        return None
    return (d if d.dtype == y.dtype else d.to(y.dtype)).expand_as(y)


# Quadratic forms along many directions at once, for the trace, which needs no whole products.


class Bend:
    """Compute v'Rv of R = ∂²/∂θ² Σ ⟨s, z(θ)⟩, with s held fixed, along many directions v at once.

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
            with _SavedCalls() as seen:
                z = run()
            total = (slope(z.detach()) * z).sum()
        values = list(seen.values.values())
        adjoints = torch.autograd.grad(total, values, allow_unused=True) if values else ()
        self.adjoints = dict(zip(seen.values, adjoints))

    def forms(self, directions: Sequence[Tensor]) -> Tensor:
        """Compute v'Rv (m,) for directions (m, *shape), a tensor for each parameter."""

        def form(*v: Tensor) -> Tensor:
            bends = _Bends(self, v)
            with bends:
                self.run()
            if bends.lost:
                raise Lost(bends.lost)
            return bends.total

        with torch.no_grad():
            out: Tensor = torch.func.vmap(form)(*directions)
        return out


class _SavedCalls(Followed):
    """Keep the results of function calls, to differentiate in them."""

    def __init__(self) -> None:
        super().__init__()
        self.values = dict[int, Tensor]()

    def follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        y = func(*args, **kwargs)
        if func in LINEAR or not isinstance(y, Tensor) or not y.requires_grad or any(y is a for a in args):
            return y
        self.values[self.calls] = y
        return y.clone()  # the model may write into its copy, not into the kept value


class _Bends(Followed):
    """Carry first derivatives along one direction with every value, while it is on, and sum up the bends."""

    def __init__(self, bend: Bend, direction: Sequence[Tensor]) -> None:
        super().__init__()
        self.adjoints = bend.adjoints
        self.total: Tensor = torch.zeros((), dtype=torch.float64, device=direction[0].device)
        for p, v in zip(bend.parameters, direction):
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
