"""Second derivatives along directions in parameter space, carried forward through a network with its values.

At parameters θ + t v every intermediate value is a curve y(t); with it go y'(0) and y''(0), its jet. Forward, a layer
that is bilinear in input and weight costs five products in place of one, and v'Hv is one number at the end, which a
single backward pass differentiates: about 13 products where three reverse passes on top of each other take 24 (Griewank
and Walther 2008, chapter 13; Bettencourt, Johnson and Duvenaud 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from calibcli.losses import norms
from calibcli.losses.jet_norm import JetNorm
from calibcli.losses.logspace import upcast

Jet = tuple[Tensor | None, Tensor | None]
"""First and second derivative; None is zero."""


class Lost(Exception):
    """An operation that jets do not go through; with its value, where there is one already."""


class Jets(TorchFunctionMode):
    """While it is on, jets go along with every value that depends on the parameters.

    Values and their autograd graph are PyTorch's up to rounding (on a CPU images are laid out channels last, where
    convolutions are faster), with normalisations that can be differentiated thrice. Smooth functions without a rule go
    through forward-mode differentiation twice. At any other operation the jets are lost: `of` then gives None.

    Args:
        parameters: those that move.  directions: one list of tensors like them for each direction.

    Attributes:
        lost: why, or "".  directions: as given.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], directions: Sequence[Sequence[Tensor]]) -> None:
        super().__init__()
        self.lost, self.directions = "", [list(v) for v in directions]
        # by id, with the tensor, so that the id stays its own, and its version, so that no write goes unseen
        self._held: dict[int, tuple[Tensor, int, list[Jet]]] = {}
        for i, p in enumerate(parameters):
            self._hold(p, [(v[i], None) for v in directions])

    def _hold(self, y: Tensor, jets: list[Jet]) -> None:
        self._held[id(y)] = y, y._version, jets

    def of(self, y: Tensor) -> list[Jet] | None:
        """The jet of a value in each direction."""
        found = self._held.get(id(y))
        return found[2] if found is not None and found[1] == y._version else None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        func = norms.EXACT.get(func, func)
        if func is torch.conv2d:
            args = channels_last(args)
        if self.lost or func in CONSTANT or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        if any(t.requires_grad and self.of(t) is None for t in tensors):
            self._lose(func, "a value whose history was not seen")
            return func(*args, **kwargs)
        if not any(id(t) in self._held for t in tensors):
            return func(*args, **kwargs)
        call = Call(func, args, kwargs, self.of, len(self.directions))
        try:
            y, jets = RULES.get(func, generic)(call)
        except Lost as error:
            why, *value = error.args
            self._lose(func, why)
            return value[0] if value else func(*args, **kwargs)
        if jets is not None:
            for one, jet in zip(y, jets) if isinstance(y, tuple | list) else [(y, jets)]:
                if one.requires_grad:
                    self._hold(one, [(_like(a, one), _like(b, one)) for a, b in jet])
        return y

    def _lose(self, func: Callable[..., Any], why: str) -> None:
        self.lost = f"{getattr(func, '__name__', func)}: {why}"
        self._held.clear()


@dataclass
class Call:
    """A function call with a moving argument; `jet` looks one up. `directions` is their number."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    lookup: Callable[[Any], list[Jet] | None]
    directions: int

    def value(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def jet(self, value: Any, direction: int) -> Jet:
        """Of an argument; zero for what does not move."""
        found = self.lookup(value) if isinstance(value, Tensor) else None
        return (None, None) if found is None else found[direction]


Rule = Callable[[Call], tuple[Any, Any]]


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


def _sum(*terms: Tensor | None) -> Tensor | None:
    total: Tensor | None = None
    for t in terms:
        total = t if total is None else total if t is None else total + t
    return total

    """Bilinear functions, some with a bias: f(a, b)'' = f(a'', b) + 2 f(a', b') + f(a, b'')."""


def added(call: Call) -> tuple[Any, Any]:
    """a + b."""
    if len(call.args) != 2 or call.kwargs:
        return generic(call)
    a, b = call.args
    pairs = [(call.jet(a, k), call.jet(b, k)) for k in range(call.directions)]
    return call.value(), [(_sum(p[0], q[0]), _sum(p[1], q[1])) for p, q in pairs]


def linear_in_first(call: Call) -> tuple[Any, Any]:
    """Functions of one moving argument that commute with sums and factors: layout, selection, averages."""
    x, *rest = call.args or (None,)
    if call.lookup(x) is None or any(isinstance(r, Tensor) and call.lookup(r) is not None for r in rest):
        return generic(call)
    y = call.value()
    if y is x:
        return y, None

    def through(d: Tensor | None) -> Any:
        return None if d is None else call.func(d, *rest, **call.kwargs)

    jets = [tuple(through(d) for d in call.jet(x, k)) for k in range(call.directions)]
    if not isinstance(y, tuple | list):
        return y, jets
    return y, [[tuple(None if d is None else d[i] for d in jet) for jet in jets] for i in range(len(y))]


def product(call: Call) -> tuple[Any, Any]:
    """Bilinear functions, some with a bias: f(a, b)'' = f(a'', b) + 2 f(a', b') + f(a, b'')."""
    if len(call.args) < 2 or {"bias", "input", "weight", "out"} & set(call.kwargs):
        return generic(call)
    (a, b), rest = call.args[:2], call.args[2:]
    c, rest = (rest[0], rest[1:]) if call.func in BIASED and rest else (None, rest)

    def f(a: Any, b: Any, c: Any = None) -> Tensor | None:
        if a is None or b is None:
            return None
        out: Tensor = call.func(a, b, *((c, *rest) if call.func in BIASED else rest), **call.kwargs)
        return out

    jets = []
    for k in range(call.directions):
        (a1, a2), (b1, b2), (c1, c2) = (call.jet(t, k) for t in (a, b, c))
        if c2 is not None or (c1 is not None and b1 is None):
            return generic(call)
        mixed = None if b1 is None or a1 is None else f(a1, 2 * b1)
        jets.append((_sum(f(a1, b), f(a, b1, c1)), _sum(f(a2, b), mixed, f(a, b2))))
    return call.value(), jets


def rectified(call: Call) -> tuple[Any, Any]:
    """max(x, 0), in place or not."""
    jets = [call.jet(call.args[0], k) for k in range(call.directions)]
    y = call.value()

    def through(d: Tensor | None) -> Any:
        return None if d is None else torch.ops.aten.threshold_backward(d, y.detach(), 0)

    return y, [(through(first), through(second)) for first, second in jets]


def dropped(call: Call) -> tuple[Any, Any]:
    """Dropout: a product with a mask."""
    x = call.args[0]
    mask = call.func(torch.ones_like(x, requires_grad=False), *call.args[1:], **call.kwargs)
    return product(Call(torch.mul, (x, mask), {}, call.lookup, call.directions))


def normed(call: Call) -> tuple[Any, Any]:
    """Batch norm; in train mode it has a function of its own."""
    defaults = dict(zip(BATCH_NORM, (None, None, None, None, None, False, 0.1, 1e-5)))
    got = {**defaults, **dict(zip(BATCH_NORM, call.args)), **call.kwargs}
    if not got.pop("training"):
        return generic(call)
    x, w, b = got.pop("input"), got["weight"], got["bias"]
    if any(call.jet(p, k)[1] is not None for p in (w, b) for k in range(call.directions)):
        raise Lost("its weight moves in another way than a parameter does")
    y, centre, rate = norms.train_norm(x, **got)
    zero = torch.zeros_like(rate)
    jets = []
    for k in range(call.directions):
        d1, d2 = (torch.zeros_like(x) if d is None else d for d in call.jet(x, k))
        w1, b1 = (zero if d is None else d for d in (call.jet(w, k)[0], call.jet(b, k)[0]))
        scale = zero + 1 if w is None else w
        jets.append(JetNorm.apply(*(upcast(v) for v in (x, d1, d2, scale, w1, b1)), centre, rate))  # type: ignore[no-untyped-call]
    return y, jets


def instance_normed(call: Call) -> tuple[Any, Any]:
    """Instance norm without running statistics: group norm with a channel to a group."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    got = {**dict(zip(names, call.args)), **call.kwargs}
    if got.get("running_mean") is not None or not got.get("use_input_stats", True):
        raise Lost("it keeps running statistics")
    x, eps = got["input"], got.get("eps", 1e-5)
    args = (x, x.shape[1], got.get("weight"), got.get("bias"), eps)
    return generic(Call(norms.group_norm, args, {}, call.lookup, call.directions))


def generic(call: Call) -> tuple[Any, Any]:
    """A smooth function of tensors: t -> f(x + t x' + t² x''/2) is differentiated twice at 0 in forward mode.

    Raises:
        Lost: f is not among those known to allow that.
    """
    if call.func not in SMOOTH:
        y = call.value()
        if any(isinstance(t, Tensor) and t.requires_grad for t in tree_flatten(y)[0]):
            raise Lost("it has no rule", y)
        return y, None
    leaves, tree = tree_flatten((call.args, call.kwargs))
    y = call.value()
    if any(y is t for t in leaves):
        raise Lost("it writes into its argument", y)
    zero = torch.zeros((), dtype=y.dtype, device=y.device)

    def along(direction: int) -> Callable[[Tensor], Tensor]:
        def curve(t: Tensor) -> Tensor:
            moved = []
            for x in leaves:
                first, second = call.jet(x, direction)
                x = x if first is None else x + t * first
                moved.append(x if second is None else x + t * t / 2 * second)
            args, kwargs = tree_unflatten(moved, tree)
            out: Tensor = call.func(*args, **kwargs)
            return out

        return curve

    def slope(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def derivative(t: Tensor) -> Tensor:
            out: Tensor = torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]
            return out

        return derivative

    return y, [torch.func.jvp(slope(along(k)), (zero,), (zero + 1,)) for k in range(call.directions)]


BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
BIASED = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}
CONSTANT = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]
LINEAR = (
    *(torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape, torch.reshape),
    *(torch.Tensor.__getitem__, F.pad, torch.Tensor.mean, torch.mean, torch.Tensor.sum, torch.sum),
    *(F.avg_pool2d, F.adaptive_avg_pool2d, torch.Tensor.contiguous, torch.Tensor.float, torch.Tensor.to),
    *(torch.Tensor.transpose, torch.transpose, torch.Tensor.permute, torch.permute, torch.Tensor.neg),
    *(torch.Tensor.squeeze, torch.Tensor.unsqueeze, torch.Tensor.expand, torch.Tensor.chunk, torch.chunk),
    *(torch.Tensor.unbind, torch.unbind, torch.Tensor.split, torch.Tensor.t),
)
SMOOTH = {
    *(norms.layer_norm, norms.group_norm, norms.rms_norm, norms.batch_norm),
    *(F.gelu, F.silu, F.elu, F.selu, F.softplus, F.leaky_relu, F.mish, F.hardtanh, F.relu6),
    *(
        torch.tanh,
        torch.Tensor.tanh,
        F.tanh,
        torch.sigmoid,
        torch.Tensor.sigmoid,
        F.sigmoid,
        torch.exp,
        torch.Tensor.exp,
    ),
    *(F.softmax, torch.softmax, torch.Tensor.softmax, F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax),
    *(torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, torch.sub, torch.Tensor.sub),
    *(
        torch.Tensor.__sub__,
        torch.Tensor.__rsub__,
        torch.Tensor.__truediv__,
        torch.div,
        torch.Tensor.div,
        torch.Tensor.__neg__,
    ),
    *(torch.cat, torch.stack, torch.square, torch.Tensor.square, torch.Tensor.__pow__, torch.Tensor.pow),
    *(F.max_pool2d, F.max_pool1d),
    *(torch.sqrt, torch.Tensor.sqrt, torch.rsqrt, torch.Tensor.rsqrt, torch.einsum, *BIASED),
}
"""Functions that are right when differentiated twice in forward mode, and once more in reverse."""
RULES: dict[Any, Rule] = {
    **dict.fromkeys(LINEAR, linear_in_first),
    **dict.fromkeys((torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__), added),
    **dict.fromkeys((torch.Tensor.__iadd__, torch.Tensor.add_), added),
    **dict.fromkeys((torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__), product),
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, *BIASED), product),
    **dict.fromkeys((F.relu, torch.relu, torch.Tensor.relu, torch.relu_, torch.Tensor.relu_), rectified),
    F.dropout: dropped,
    norms.batch_norm: normed,
    norms.instance_norm: instance_normed,
}
