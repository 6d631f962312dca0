"""Squared norms of per-row gradients layer by layer, without forming those gradients where that is dearer.

A layer's input a and the gradient δ of its output give the per-row gradient of its weight, δ aᵀ summed over positions.
Its squared norm is ‖δ‖²‖a‖² without positions (Goodfellow 2015), Σ_ij (δ_i·δ_j)(a_i·a_j) with them (Li et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Norms = Iterator[tuple[str, torch.Tensor]]  # (parameter's name in its module, (n,) squared norms)


def linear(module: nn.Linear, a: torch.Tensor, d: torch.Tensor) -> Norms:
    """y = a Wᵀ + b, positions in between."""
    places = math.prod(a.shape[1:-1])  # -1 is no size where there are no outputs
    a, d = (t.reshape(len(t), places, t.shape[-1]) for t in (a, d))
    yield "weight", outer(a, d)
    if module.bias is not None:
        yield "bias", square(d.sum(1))


def conv2d(module: nn.Conv2d, a: torch.Tensor, d: torch.Tensor) -> Norms:
    """A convolution is linear in its patches."""
    if module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        patches = F.unfold(a, module.kernel_size, module.dilation, module.padding, module.stride)
        yield "weight", outer(patches.transpose(1, 2), d.flatten(2).transpose(1, 2))
    if module.bias is not None:
        yield "bias", square(d.flatten(2).sum(2))


def outer(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """(n, L, i) and (n, L, o) to (n,) ‖Σ_l d_l a_lᵀ‖², by the cheaper of two ways."""
    places, i, o = a.shape[1], a.shape[2], d.shape[2]
    if places * (i + o) <= i * o:
        return ((a @ a.transpose(1, 2)) * (d @ d.transpose(1, 2))).flatten(1).double().sum(1)
    return square(d.transpose(1, 2) @ a)


def normalised(module: Any, a: torch.Tensor, d: torch.Tensor) -> Norms:
    """y = w ∘ â + b with â the normalised input."""
    if isinstance(module, nn.LayerNorm):
        axes = tuple(range(1, a.ndim - len(module.normalized_shape)))
        unit = F.layer_norm(a, module.normalized_shape, eps=module.eps)
    else:
        axes = tuple(range(2, a.ndim))
        if isinstance(module, nn.GroupNorm):
            unit = F.group_norm(a, module.num_groups, eps=module.eps)
        else:
            unit = F.batch_norm(a, module.running_mean, module.running_var, eps=module.eps)
    if module.weight is not None:
        yield "weight", square((d * unit).sum(axes) if axes else d * unit)
    if module.bias is not None:
        yield "bias", square(d.sum(axes) if axes else d)


def embedding(module: nn.Embedding, a: torch.Tensor, d: torch.Tensor) -> Norms:
    """Rows of a table: positions with the same token share one."""
    tokens, d = a.flatten(1), d.reshape(len(d), -1, d.shape[-1])
    same = tokens[:, :, None] == tokens[:, None, :]
    if module.padding_idx is not None:
        same &= (tokens != module.padding_idx)[:, None, :]
    yield "weight", ((d @ d.transpose(1, 2)) * same).flatten(1).double().sum(1)


RULES: dict[type[nn.Module], Callable[[Any, torch.Tensor, torch.Tensor], Norms]] = {
    nn.Linear: linear,
    nn.Conv2d: conv2d,
    nn.Embedding: embedding,
    nn.LayerNorm: normalised,
    nn.GroupNorm: normalised,
    nn.BatchNorm1d: normalised,
    nn.BatchNorm2d: normalised,
}


def layer_norms(
    model: nn.Module, run: Callable[[], torch.Tensor], choose: Callable[[torch.Tensor], torch.Tensor | None]
) -> dict[str, torch.Tensor]:
    """(n,) squared norms of the per-row gradients of ⟨u, z⟩ by parameter name, for layers with a rule.

    Args:
        model: whose layers are watched.
        run: the forward pass, (n, K) logits.
        choose: (n, K) logits to cotangents (n, K), or to None, and nothing is found.

    A layer that runs twice, or whose parameters are used elsewhere, gives a wrong number: the caller compares.
    """
    seen: list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]] = []
    hooks = []
    for name, module in model.named_modules():
        if type(module) in RULES and any(p.requires_grad for p in module.parameters(False)):

            def note(m: nn.Module, args: tuple[Any, ...], out: torch.Tensor, name: str = name) -> None:
                seen.append((name, m, args[0].detach(), out))

            hooks.append(module.register_forward_hook(note))
    try:
        logits = run()
    finally:
        for hook in hooks:
            hook.remove()
    cotangents = choose(logits)
    if not seen or cotangents is None:
        return {}
    slopes = torch.autograd.grad((logits * cotangents).sum(), [out for *_, out in seen], materialize_grads=True)
    found = {}
    for (name, module, a, _), d in zip(seen, slopes):
        if len(a) == len(logits):  # else it does not see rows: position embeddings, windows of an image, experts
            for part, norms in RULES[type(module)](module, a, d):
                found[f"{name}.{part}".removeprefix(".")] = norms
    return found


def square(x: torch.Tensor) -> torch.Tensor:
    """(n, ...) to (n,) float64 squared norms."""
    norms: torch.Tensor = torch.linalg.vector_norm(x.unsqueeze(-1).flatten(1), dim=1, dtype=torch.float64)
    return norms.square()
