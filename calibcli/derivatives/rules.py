"""How jets go through functions: a rule gives the value and, for each direction, its first and second derivative.

Smooth functions without a rule go through forward-mode differentiation twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from calibcli.derivatives import norms
from calibcli.derivatives.jet_norm import JetNorm
from calibcli.derivatives.norms import upcast

Jet = tuple[Tensor | None, Tensor | None]
"""First and second derivative; None is zero."""


class Lost(Exception):
    """An operation that jets do not go through; with its value, where there is one already."""


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

    def jet(self, value: Any, direction: int) -> Jet:
        """Of an argument; zero for what does not move."""
        found = self.lookup(value) if isinstance(value, Tensor) else None
        return (None, None) if found is None else found[direction]


Rule = Callable[[Call], tuple[Any, Any]]


def _sum(*terms: Tensor | None) -> Tensor | None:
    total: Tensor | None = None
    for t in terms:
        total = t if total is None else total if t is None else total + t
    return total


def _plus(a: Jet, b: Jet) -> Jet:
    return _sum(a[0], b[0]), _sum(a[1], b[1])


def added(call: Call) -> tuple[Any, Any]:
    """a + b."""
    if len(call.args) != 2 or call.kwargs:
        return generic(call)
    a, b = call.args
    jets = [_plus(call.jet(a, k), call.jet(b, k)) for k in range(call.directions)]  # before a is written into
    return call.value(), jets


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
    return product(replace(call, func=torch.mul, args=(x, mask), kwargs={}))


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
    return generic(replace(call, func=norms.group_norm, args=args, kwargs={}))


def elementwise(call: Call) -> tuple[Any, Any]:
    """Smooth functions of one number each: f(x)' = f_x x', f(x)'' = f_xx x'² + f_x x''."""
    x, *rest = call.args or (None,)
    if call.lookup(x) is None:
        return generic(call)

    def f(t: Tensor) -> Tensor:
        out: Tensor = call.func(t, *rest, **call.kwargs)
        return out

    y = call.value()
    if y is x:
        raise Lost("it writes into its argument", y)
    f1, f2 = derivatives(f, x)
    jets = []
    for k in range(call.directions):
        x1, x2 = call.jet(x, k)
        jets.append((_times(f1, x1), _sum(None if x1 is None else f2 * x1.square(), _times(f1, x2))))
    return y, jets


def softmax(call: Call) -> tuple[Any, Any]:
    """p of x: with c = x' - Σ p x', p' = p c and p'' = p (c² - Σ p c²) + p (x'' - Σ p x'')."""
    x, *rest = call.args or (None,)
    dim = rest[0] if rest else call.kwargs.get("dim")
    if call.lookup(x) is None or dim is None or len(rest) > 1 or call.kwargs.get("dtype") is not None:
        return generic(call)
    p = call.value()

    def centred(v: Tensor | None) -> Tensor | None:
        return None if v is None else v - (p * v).sum(dim, keepdim=True)

    jets = []
    for k in range(call.directions):
        c, c2 = (centred(d) for d in call.jet(x, k))
        jets.append((_times(p, c), _times(p, _sum(None if c is None else centred(c.square()), c2))))
    return p, jets


def layer_normed(call: Call) -> tuple[Any, Any]:
    """y = w u + b, u = (x - mean x) rate; the formulas are those of `JetNorm`, over the last dimensions."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    got = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(names, call.args)), **call.kwargs}
    x, w, b = upcast(got["input"]), got["weight"], got["bias"]
    if any(call.jet(p, k)[1] is not None for p in (w, b) for k in range(call.directions)):
        return generic(call)
    dims = tuple(range(x.ndim - len(got["normalized_shape"]), x.ndim))
    u, rate = norms.standardised(x, dims, got["eps"])

    def mean(v: Tensor) -> Tensor:
        return v.mean(dims, keepdim=True)

    jets = []
    for k in range(call.directions):
        x1, x2 = call.jet(got["input"], k)
        w1, b1 = call.jet(w, k)[0], call.jet(b, k)[0]
        u1 = u2 = None
        if x1 is not None:
            c, s = x1 - mean(x1), mean(u * x1)
            u1 = rate * (c - s * u)
            u2 = -rate * (rate * (mean(c.square()) - s.square()) * u + 2 * s * u1)
        if x2 is not None:
            u2 = _sum(u2, rate * (x2 - mean(x2) - mean(u * x2) * u))
        mixed = None if u1 is None or w1 is None else 2 * u1 * w1
        jets.append((_sum(_times(w, u1), _times(u, w1), b1), _sum(_times(w, u2), mixed)))
    return call.value(), jets


def _times(a: Tensor | None, d: Tensor | None) -> Tensor | None:
    """a d, of a factor that is 1 where it is None and a derivative that is zero where it is None."""
    return d if a is None or d is None else a * d


def added_product(call: Call) -> tuple[Any, Any]:
    """a + b c."""
    if len(call.args) != 3 or call.kwargs:
        return generic(call)
    a, b, c = call.args
    _, jets = product(replace(call, func=torch.mul, args=(b, c)))
    return call.value(), [_plus(call.jet(a, k), jet) for k, jet in enumerate(jets)]


def joined(call: Call) -> tuple[Any, Any]:
    """Values side by side."""
    if not call.args:
        return generic(call)
    values, *rest = call.args

    def through(order: int, k: int) -> Tensor | None:
        moved = [call.jet(x, k)[order] for x in values]
        if all(d is None for d in moved):
            return None
        zeros = (torch.zeros_like(x) if d is None else d for x, d in zip(values, moved))
        out: Tensor = call.func(list(zeros), *rest, **call.kwargs)
        return out

    return call.value(), [(through(0, k), through(1, k)) for k in range(call.directions)]


def embedded(call: Call) -> tuple[Any, Any]:
    """Rows of a table."""
    names = ("input", "weight", "padding_idx", "max_norm")
    got = {**dict(zip(names, call.args)), **call.kwargs}
    if got.get("max_norm") is not None:
        return generic(call)
    jets = [
        tuple(None if d is None else F.embedding(got["input"], d) for d in call.jet(got["weight"], k))
        for k in range(call.directions)
    ]
    return call.value(), jets


def generic(call: Call) -> tuple[Any, Any]:
    """A smooth function of tensors: t -> f(x + t x' + t² x''/2) is differentiated twice at 0 in forward mode.

    Raises:
        Lost: f is not among those known to allow that.
    """
    if call.func not in SMOOTH:
        y = call.value()
        found = [t for t in tree_flatten(y)[0] if isinstance(t, Tensor)]
        written = call.strict and y is None
        if written or any(t.requires_grad or (call.strict and t.is_floating_point()) for t in found):
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

    return y, [derivatives(along(k), zero) for k in range(call.directions)]


def derivatives(f: Callable[[Tensor], Tensor], t: Tensor) -> tuple[Tensor, Tensor]:
    """f'(t) and f''(t) in forward mode, of a curve in one number or a function of each number of t."""

    def slope(t: Tensor) -> Tensor:
        out: Tensor = torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]
        return out

    with torch.enable_grad():  # without it some functions have no second derivative in forward mode
        first, second, *_ = torch.func.jvp(slope, (t,), (torch.ones_like(t),))
    return first, second


BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
BIASED = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}
CONSTANT = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]
LINEAR = (
    *(torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape, torch.reshape),
    *(torch.Tensor.__getitem__, F.pad, torch.Tensor.mean, torch.mean, torch.Tensor.sum, torch.sum),
    *(F.avg_pool2d, F.adaptive_avg_pool2d, torch.Tensor.contiguous, torch.Tensor.float, torch.Tensor.to),
    *(torch.Tensor.transpose, torch.transpose, torch.Tensor.permute, torch.permute, torch.Tensor.neg),
    *(torch.Tensor.squeeze, torch.Tensor.unsqueeze, torch.Tensor.expand, torch.Tensor.chunk, torch.chunk),
    *(torch.Tensor.unbind, torch.unbind, torch.Tensor.split, torch.Tensor.t, torch.Tensor.double),
    *(torch.Tensor.repeat, torch.Tensor.repeat_interleave, torch.Tensor.unflatten, torch.unflatten),
    *(torch.Tensor.select, torch.select, torch.Tensor.narrow, torch.narrow, torch.Tensor.index_select),
    *(torch.Tensor.movedim, torch.movedim, torch.Tensor.swapaxes, torch.roll, torch.Tensor.roll, torch.flip),
)
ELEMENTWISE = (
    *(F.gelu, F.silu, F.elu, F.selu, F.softplus, F.leaky_relu, F.mish, F.hardtanh, F.relu6),
    *(torch.tanh, torch.Tensor.tanh, F.tanh, torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid),
    *(torch.exp, torch.Tensor.exp, torch.square, torch.Tensor.square),
    *(torch.sqrt, torch.Tensor.sqrt, torch.rsqrt, torch.Tensor.rsqrt),
)
SMOOTH = {
    *(norms.layer_norm, norms.group_norm, norms.rms_norm, norms.batch_norm),
    *ELEMENTWISE,
    *(torch.addcmul, torch.Tensor.addcmul),
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
    *(torch.cat, torch.stack, torch.Tensor.__pow__, torch.Tensor.pow),  # the first two where not by position
    *(F.max_pool2d, F.max_pool1d),
    *(torch.einsum, *BIASED),
}
"""Functions that are right when differentiated twice in forward mode, and once more in reverse."""
RULES: dict[Any, Rule] = {
    **dict.fromkeys(LINEAR, linear_in_first),
    **dict.fromkeys((torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__), added),
    **dict.fromkeys((torch.Tensor.__iadd__, torch.Tensor.add_), added),
    **dict.fromkeys((torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__), product),
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, *BIASED), product),
    **dict.fromkeys((F.relu, torch.relu, torch.Tensor.relu, torch.relu_, torch.Tensor.relu_), rectified),
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys((F.softmax, torch.softmax, torch.Tensor.softmax), softmax),
    norms.layer_norm: layer_normed,
    **dict.fromkeys((torch.cat, torch.stack), joined),
    torch.addcmul: added_product,
    F.embedding: embedded,
    F.dropout: dropped,
    norms.batch_norm: normed,
    norms.instance_norm: instance_normed,
}
