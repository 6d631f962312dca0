"""Rules by which second-order jets go through functions.

A rule gives the value of a function and, for each direction, its first and second derivative. Smooth functions without
a rule go through forward-mode differentiation twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from calibcli.networks.derivatives import normalisation
from calibcli.networks.derivatives.normalisation import JetNorm, upcast

Jet = tuple[Tensor | None, Tensor | None]
"""First and second derivative; None is zero."""


class Lost(Exception):
    """An operation that jets do not go through; its value is the second argument, where there is one already."""


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
        """Return the arguments by name, defaults included, of a function written in Python."""
        bound = signature(self.func).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return bound.arguments

    def jets(self, value: Any) -> list[Jet]:
        """Return the jets of an argument, one for each direction; zero for what does not move."""
        jets = self.lookup(value) if isinstance(value, Tensor) else None
        return [(None, None)] * self.directions if jets is None else jets


def total(*terms: Tensor | None) -> Tensor | None:
    """Add up terms, of which None is zero."""
    out: Tensor | None = None
    for t in terms:
        out = t if out is None else out if t is None else out + t
    return out


def each(f: Callable[[Tensor], Any], jet: Jet) -> Jet:
    """Apply a linear function to a jet."""
    first, second = (None if d is None else f(d) for d in jet)
    return first, second


def plus(a: Jet, b: Jet) -> Jet:
    return total(a[0], b[0]), total(a[1], b[1])


def times(a: Tensor | None, d: Tensor | None) -> Tensor | None:
    """Compute a d, with a factor that is 1 where it is None and a derivative that is zero where it is None."""
    return d if a is None or d is None else a * d


def derivatives(f: Callable[[Tensor], Tensor], t: Tensor) -> tuple[Tensor, Tensor]:
    """Compute f'(t) and f''(t) in forward mode, of a curve in one number or a function of each number of t."""

    def slope(t: Tensor) -> Any:
        return torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]

    with torch.enable_grad():  # without it some functions have no second derivative in forward mode
        first, second, *_ = torch.func.jvp(slope, (t,), (torch.ones_like(t),))
    return first, second


# The rules.


def named(names: str) -> tuple[Any, ...]:
    """Return methods of tensors, and torch's functions of the same names."""
    functions = [getattr(where, name, None) for name in names.split() for where in (torch.Tensor, torch)]
    return tuple(f for f in functions if callable(f))


Rule = Callable[[Call], tuple[Any, Any]]
"""From a call to its value y, a tensor, or a tuple of them, and their jets.

The jets of one tensor are a list with a `Jet` for each direction; those of a tuple are a list of such lists. None
stands in their place where y has no new jets: y is the argument itself, which keeps its own, or nothing that moves.
"""


def added(call: Call) -> tuple[Any, Any]:
    """The rule of a + b."""
    if len(call.args) != 2 or call.kwargs:
        return generic(call)
    a, b = call.args
    jets = [*map(plus, call.jets(a), call.jets(b))]  # before a is written into
    return call.value(), jets


def linear_in_first(call: Call) -> tuple[Any, Any]:
    """The rule of functions of one moving argument that are linear: layout, selection, averages."""
    x, *others = call.args or (None,)
    if call.lookup(x) is None or any(isinstance(r, Tensor) and call.lookup(r) is not None for r in others):
        return generic(call)
    y = call.value()
    if y is x:  # as x.float() of floats
        return y, None

    jets = [each(lambda d: call.func(d, *others, **call.kwargs), jet) for jet in call.jets(x)]
    if not isinstance(y, tuple | list):
        return y, jets
    return y, [[tuple(None if d is None else d[i] for d in jet) for jet in jets] for i in range(len(y))]


def product(call: Call) -> tuple[Any, Any]:
    """The rule of bilinear functions, some with a bias: f(a, b)'' = f(a'', b) + 2 f(a', b') + f(a, b'')."""
    if len(call.args) < 2 or {"bias", "input", "weight", "out"} & set(call.kwargs):
        return generic(call)
    (a, b), others = call.args[:2], call.args[2:]
    c, others = (others[0], others[1:]) if call.func in BIASED and others else (None, others)

    def f(a: Any, b: Any, c: Any = None) -> Any:
        if a is None or b is None:
            return None
        return call.func(a, b, *((c, *others) if call.func in BIASED else others), **call.kwargs)

    jets = []
    for (a1, a2), (b1, b2), (c1, c2) in zip(*map(call.jets, (a, b, c))):
        if c2 is not None or (c1 is not None and b1 is None):
            return generic(call)
        mixed = None if b1 is None or a1 is None else f(a1, 2 * b1)
        jets.append((total(f(a1, b), f(a, b1, c1)), total(f(a2, b), mixed, f(a, b2))))
    return call.value(), jets


def rectified(call: Call) -> tuple[Any, Any]:
    """The rule of max(x, 0), in place or not."""
    jets = call.jets(call.args[0])
    y = call.value()
    return y, [each(lambda d: torch.ops.aten.threshold_backward(d, y.detach(), 0), jet) for jet in jets]


def dropped(call: Call) -> tuple[Any, Any]:
    """The rule of dropout: a product with a mask."""
    x = call.args[0]
    mask = call.func(torch.ones_like(x, requires_grad=False), *call.args[1:], **call.kwargs)
    return product(replace(call, func=torch.mul, args=(x, mask), kwargs={}))


def normed(call: Call) -> tuple[Any, Any]:
    """The rule of batch norm; in train mode it has a function of its own."""
    arguments = call.bound()
    if not arguments.pop("training"):
        return generic(call)
    x, w, b = arguments.pop("input"), arguments["weight"], arguments["bias"]
    if any(second is not None for _, second in (*call.jets(w), *call.jets(b))):
        raise Lost("its weight moves in another way than a parameter does")
    y, centre, rate = normalisation.train_norm(x, **arguments)
    zero = torch.zeros_like(rate)
    jets = []
    for jet, (w1, _), (b1, _) in zip(*map(call.jets, (x, w, b))):
        d1, d2 = (torch.zeros_like(x) if d is None else d for d in jet)
        w1, b1 = (zero if d is None else d for d in (w1, b1))
        scale = zero + 1 if w is None else w
        jets.append(JetNorm.apply(*(upcast(v) for v in (x, d1, d2, scale, w1, b1)), centre, rate))  # type: ignore[no-untyped-call]
    return y, jets


def instance_normed(call: Call) -> tuple[Any, Any]:
    """The rule of instance norm without running statistics: group norm with a channel to a group."""
    arguments = call.bound()
    if arguments["running_mean"] is not None or not arguments["use_input_stats"]:
        raise Lost("it keeps running statistics")
    args = (arguments["input"], arguments["input"].shape[1], arguments["weight"], arguments["bias"], arguments["eps"])
    return generic(replace(call, func=normalisation.group_norm, args=args, kwargs={}))


def elementwise(call: Call) -> tuple[Any, Any]:
    """The rule of smooth functions of one number each: f(x)' = f_x x', f(x)'' = f_xx x'² + f_x x''."""
    x, *others = call.args or (None,)
    if call.lookup(x) is None:
        return generic(call)

    y = call.value()
    if y is x:
        raise Lost("it writes into its argument", y)
    f1, f2 = derivatives(lambda t: call.func(t, *others, **call.kwargs), x)
    jets = []
    for x1, x2 in call.jets(x):
        jets.append((times(f1, x1), total(None if x1 is None else f2 * x1.square(), times(f1, x2))))
    return y, jets


def softmax(call: Call) -> tuple[Any, Any]:
    """The rule of softmax: with c = x' - Σ p x', p' = p c and p'' = p (c² - Σ p c²) + p (x'' - Σ p x'')."""
    x, *others = call.args or (None,)
    dim = others[0] if others else call.kwargs.get("dim")
    if call.lookup(x) is None or dim is None or len(others) > 1 or call.kwargs.get("dtype") is not None:
        return generic(call)
    p = call.value()

    def centred(v: Tensor) -> Any:
        return v - (p * v).sum(dim, keepdim=True)

    jets = []
    for jet in call.jets(x):
        c, c2 = each(centred, jet)
        jets.append((times(p, c), times(p, total(None if c is None else centred(c.square()), c2))))
    return p, jets


def layer_normed(call: Call) -> tuple[Any, Any]:
    """The rule of y = w u + b, u = (x - mean x) rate: the formulas of `JetNorm`, over the last dimensions."""
    arguments = call.bound()
    x, w, b = upcast(arguments["input"]), arguments["weight"], arguments["bias"]
    if any(second is not None for _, second in (*call.jets(w), *call.jets(b))):
        return generic(call)
    dims = tuple(range(x.ndim - len(arguments["normalized_shape"]), x.ndim))
    u, rate = normalisation.standardised(x, dims, arguments["eps"])

    def mean(v: Tensor) -> Tensor:
        return v.mean(dims, keepdim=True)

    jets = []
    for (x1, x2), (w1, _), (b1, _) in zip(*map(call.jets, (arguments["input"], w, b))):
        u1 = u2 = None
        if x1 is not None:
            c, s = x1 - mean(x1), mean(u * x1)
            u1 = rate * (c - s * u)
            u2 = -rate * (rate * (mean(c.square()) - s.square()) * u + 2 * s * u1)
        if x2 is not None:
            u2 = total(u2, rate * (x2 - mean(x2) - mean(u * x2) * u))
        mixed = None if u1 is None or w1 is None else 2 * u1 * w1
        jets.append((total(times(w, u1), times(u, w1), b1), total(times(w, u2), mixed)))
    return call.value(), jets


def added_product(call: Call) -> tuple[Any, Any]:
    """The rule of a + b c."""
    if len(call.args) != 3 or call.kwargs:
        return generic(call)
    a, b, c = call.args
    _, jets = product(replace(call, func=torch.mul, args=(b, c)))
    return call.value(), [*map(plus, call.jets(a), jets)]


def embedded(call: Call) -> tuple[Any, Any]:
    """The rule of embedding: rows of a table."""
    arguments = call.bound()
    if arguments["max_norm"] is not None:
        return generic(call)
    jets = call.jets(arguments["weight"])
    return call.value(), [each(lambda d: F.embedding(arguments["input"], d), jet) for jet in jets]


def generic(call: Call) -> tuple[Any, Any]:
    """Differentiate t -> f(x + t x' + t² x''/2) twice at 0 in forward mode, for a smooth function of tensors.

    Raises:
        Lost: f is not among those known to allow that, and its value may move: it has a gradient, or with `strict` it
            holds real numbers, or is nothing, as of a function that writes into an argument.
    """
    if call.func not in SMOOTH:
        y = call.value()
        tensors = [t for t in tree_flatten(y)[0] if isinstance(t, Tensor)]
        written = call.strict and y is None  # as by x.__setitem__
        if written or any(t.requires_grad or (call.strict and t.is_floating_point()) for t in tensors):
            raise Lost("it has no rule", y)
        return y, None
    leaves, tree = tree_flatten((call.args, call.kwargs))
    y = call.value()
    if any(y is t for t in leaves):
        raise Lost("it writes into its argument", y)
    zero = torch.zeros((), dtype=y.dtype, device=y.device)

    def along(jets: Sequence[Jet]) -> Callable[[Tensor], Tensor]:
        def curve(t: Tensor) -> Any:
            moved = []
            for x, (first, second) in zip(leaves, jets):
                x = x if first is None else x + t * first
                moved.append(x if second is None else x + t * t / 2 * second)
            args, kwargs = tree_unflatten(moved, tree)
            return call.func(*args, **kwargs)

        return curve

    return y, [derivatives(along(jets), zero) for jets in zip(*map(call.jets, leaves))]


BIASED = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}
CONSTANT = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]
SUM, SOFTMAX = named("add __add__ __radd__"), named("softmax")
LINEAR = (
    *named("flatten view reshape mean sum contiguous float to double transpose permute neg squeeze unsqueeze expand t"),
    *named("chunk unbind split repeat repeat_interleave unflatten select narrow index_select movedim swapaxes roll"),
    *(torch.Tensor.__getitem__, torch.flip, F.pad, F.avg_pool2d, F.adaptive_avg_pool2d),
)
ELEMENTWISE = (
    *(F.gelu, F.silu, F.elu, F.selu, F.softplus, F.leaky_relu, F.mish, F.hardtanh, F.relu6, F.tanh, F.sigmoid),
    *named("tanh sigmoid exp square sqrt rsqrt"),
)
SMOOTH = {
    *(normalisation.layer_norm, normalisation.group_norm, normalisation.rms_norm, normalisation.batch_norm),
    *(*ELEMENTWISE, *SUM, *SOFTMAX, F.softmax, F.log_softmax, *named("log_softmax addcmul div __truediv__")),
    *(*named("sub __sub__ __rsub__ __neg__ __pow__"), torch.Tensor.pow, torch.cat, torch.stack),
    *(F.max_pool2d, F.max_pool1d, torch.einsum, *BIASED),
}
"""Functions that are right when differentiated twice in forward mode, and once more in reverse."""
# Rules of functions that are in SMOOTH too are there for speed. Without one a step with the penalty `trace` takes 1.4
# times as long for `softmax` and `layer_normed` (ViT), 1.4 to 1.6 for `added` (ResNet-20, ViT), and 1.15 to 1.6 for
# `elementwise` (ViT, cnn with silu, perceptrons with tanh and gelu); one thread of a CPU, 2026-11-25. Joined values
# (`cat`, `stack`) are as fast without one.
RULES: dict[Any, Rule] = {
    **dict.fromkeys(LINEAR, linear_in_first),
    **dict.fromkeys((*SUM, torch.Tensor.__iadd__, torch.Tensor.add_), added),
    **dict.fromkeys(named("mul __mul__ __rmul__ matmul __matmul__"), product),
    **dict.fromkeys((torch.bmm, *BIASED), product),
    **dict.fromkeys((F.relu, *named("relu relu_")), rectified),
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys((F.softmax, *SOFTMAX), softmax),
    torch.addcmul: added_product,
    F.embedding: embedded,
    F.dropout: dropped,
    normalisation.layer_norm: layer_normed,
    normalisation.batch_norm: normed,
    normalisation.instance_norm: instance_normed,
}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `F.scaled_dot_product_attention` from functions that have rules."""
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    # (..., heads, queries, keys)
    scores = torch.matmul(query, key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill(~attn_mask, -torch.inf)
        scores = torch.add(scores, attn_mask)
    return torch.matmul(F.dropout(torch.softmax(scores, -1), dropout_p), value)


COMPOSED: dict[Any, Any] = {F.scaled_dot_product_attention: attention}
"""The function to call in place of PyTorch's."""
