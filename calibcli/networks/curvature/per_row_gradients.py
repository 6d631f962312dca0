"""Squared norms ‖J_nᵀu‖² of per-row gradients of ⟨u, z_n(θ)⟩, per row and per parameter tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

from calibcli.networks import device as devices
from calibcli.networks.curvature.memory_plan import SHORT
from calibcli.networks.curvature.problem import CurvatureProblem, Inputs, T

UNMAPPED = (RuntimeError, ValueError, TypeError, AttributeError)  # raised where vmap cannot run a model
CHUNK = 128 << 20  # bytes of per-row gradients held at once
CACHED = 4 << 20  # bytes of those of one layer that are made, squared and summed before the next


class RowNorms:
    """Squared per-row gradient norms: from the layers' inputs and output gradients where there is a rule, by vmap for
    the other tensors, row by row where vmap cannot run the model.

    Which way serves which tensor is decided on two rows, where it must agree with plain gradients.

    Args:
        problem: the problem.

    Attributes:
        by_layer, by_vmap: (tensors,) which tensors each way serves; the rest goes row by row.
    """

    def __init__(self, problem: CurvatureProblem) -> None:
        self.problem = problem
        rows = torch.arange(2) % problem.layout.n
        inputs, _ = problem.batch(rows)
        u = torch.randn(2, problem.classes, generator=torch.Generator().manual_seed(0))
        u = u.to(problem.device, problem.dtype)
        true = self._row_by_row(inputs, u)
        self.by_layer = _agree(self._layers(inputs, u), true)
        self.by_vmap = torch.zeros_like(self.by_layer)
        if not bool(self.by_layer.all()):
            self.by_vmap = ~self.by_layer
            mapped = unless_unmapped(lambda: self._vmap(inputs, u))
            self.by_vmap &= torch.tensor(False) if mapped is None else _agree(mapped, true)

    @property
    def mapped(self) -> bool:
        """Whether no tensor has to go row by row."""
        return bool((self.by_layer | self.by_vmap).all())

    @property
    def chunk(self) -> int:
        """Number of rows that are worked on at once: per-row gradients of the tensors without a rule must fit."""
        row = sum(s for s, layer in zip(self.problem.sizes, self.by_layer.tolist()) if not layer)
        row *= torch.empty((), dtype=self.problem.dtype).element_size()
        room = min(CHUNK, devices.free_bytes(self.problem.device) // SHORT)
        return max(1, min(room // max(row, 1), self.problem.layout.micro))

    def __call__(self, rows: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor:
        """Compute squared norms (n, tensors), float64 on the CPU, for row indices (n,) and cotangents (n, K)."""
        return self.problem.guard(lambda: self._all(rows, cotangents))

    def _all(self, rows: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor:
        device, tensors = self.problem.device, len(self.problem.tensors)
        if not len(rows):
            return torch.zeros(0, tensors, dtype=torch.float64)
        out = [torch.zeros(0, tensors, dtype=torch.float64, device=device)]
        by_vmap = self.by_vmap.to(device)
        for r, u in zip(torch.split(rows, self.chunk), torch.split(cotangents, self.chunk)):
            inputs, _ = self.problem.batch(r)
            u = u.to(self.problem.device, self.problem.dtype)
            if not self.mapped:
                out.append(self._row_by_row(inputs, u))
                continue
            norms = (
                self._layers(inputs, u) if bool(self.by_layer.any()) else out[0].new_zeros(len(r), len(self.by_layer))
            )
            if bool(self.by_vmap.any()):
                norms = torch.where(by_vmap, self._vmap(inputs, u), norms)
            out.append(norms)
        return torch.cat(out).cpu()

    def chosen(self, rows: range, choose: Callable[[torch.Tensor], torch.Tensor | None]) -> torch.Tensor:
        """Compute squared norms (n, tensors) in one pass, for the cotangents that `choose` makes of these rows' logits.

        They are on the problem's device, NaN for tensors of layers without a rule, and for all if `choose` gives None.
        """
        inputs, labels = self.problem.batch(rows)
        return self._by_rule(inputs, len(labels), choose)

    def _layers(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        return self._by_rule(inputs, len(u), lambda logits: u)

    def _by_rule(
        self, inputs: Inputs, count: int, choose: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> torch.Tensor:
        problem = self.problem
        run = lambda: problem.forward(problem.model, inputs)  # noqa: E731
        by_name = layer_norms(problem.model, run, choose, dict(zip(problem.names, problem.scales)))
        missing = torch.full((count,), float("nan"), dtype=torch.float64, device=problem.device)
        return torch.stack([by_name.get(n, missing) for n in problem.names], 1)

    def _vmap(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        problem = self.problem
        wanted = {n: t.detach() for n, t, on in zip(problem.names, problem.tensors, self.by_vmap.tolist()) if on}

        def row_loss(parameters: dict[str, torch.Tensor], x: Inputs, cotangent: torch.Tensor) -> torch.Tensor:
            single = {k: v[None] for k, v in x.items()} if isinstance(x, dict) else x[None]
            return (problem.forward(problem.placed(parameters), single)[0] * cotangent).sum()

        gradients = vmap(grad(row_loss), in_dims=(None, 0, 0))(wanted, inputs, u)
        nothing = torch.zeros(len(u), dtype=torch.float64, device=problem.device)
        scales = dict(zip(problem.names, problem.scales))
        norms = [square(gradients[n], scales.get(n)) if n in gradients else nothing for n in problem.names]
        return torch.stack(norms, 1).detach()

    def _row_by_row(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        problem = self.problem
        out = []
        for i in range(len(u)):
            single = {k: v[i : i + 1] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[i : i + 1]
            z = problem.forward(problem.model, single)
            gradients = torch.autograd.grad((z[0] * u[i]).sum(), problem.tensors, materialize_grads=True)
            out.append(torch.cat([square(g[None]) for g in problem.scaled(gradients)]))
        return torch.stack(out)


def unless_unmapped(work: Callable[[], T]) -> T | None:
    """Run `work`; None where vmap cannot run it."""
    try:
        return work()
    except UNMAPPED as error:
        if devices.is_out_of_memory(error):
            raise
        return None


def _agree(norms: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """Compare norms to rounding on every row: (tensors,) bool, on the CPU."""
    return ((norms - true).abs() <= 1e-3 * true + 1e-7 * true.max()).all(0).cpu()


Norms = Iterator[tuple[str, torch.Tensor]]  # (parameter's name in its module, (n,) squared norms)
Scales = Mapping[str, torch.Tensor]  # by the parameter's name in its module: its coordinates' scale, if not 1


def linear(module: nn.Linear, a: torch.Tensor, d: torch.Tensor, scales: Scales) -> Norms:
    """Norms for y = a Wᵀ + b, with positions in between."""
    places = math.prod(a.shape[1:-1])  # -1 is no size where there are no outputs
    a, d = (t.reshape(len(t), places, t.shape[-1]) for t in (a, d))  # (n, places, inputs), (n, places, outputs)
    yield "weight", outer(a, d, scales.get("weight"))
    if module.bias is not None:
        yield "bias", square(d.sum(1), scales.get("bias"))


def conv2d(module: nn.Conv2d, a: torch.Tensor, d: torch.Tensor, scales: Scales) -> Norms:
    """Norms for a convolution, which is linear in its patches."""
    if module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        # (n, inputs of a patch, places); d is (n, channels, height, width), whose places these are
        patches = F.unfold(a, module.kernel_size, module.dilation, module.padding, module.stride)
        scale = scales.get("weight")
        scale = scale if scale is None or scale.ndim == 0 else scale.flatten(1)
        yield "weight", outer(patches.transpose(1, 2), d.flatten(2).transpose(1, 2), scale)
    if module.bias is not None:
        yield "bias", square(d.flatten(2).sum(2), scales.get("bias"))


def outer(a: torch.Tensor, d: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ‖S ∘ Σ_l d_l a_lᵀ‖² (n,) of (n, L, i) and (n, L, o), by the cheapest way; S is (o, i), a number or 1."""
    places, i, o = a.shape[1], a.shape[2], d.shape[2]
    if scale is not None and scale.ndim == 0:
        return outer(a, d) * scale.square()
    if scale is not None and places == 1:
        return ((d[:, 0].square() @ scale.square()) * a[:, 0].square()).double().sum(1)
    if scale is not None:  # no shorter way is known: the gradients of some rows at a time
        step, weights = max(1, CACHED // (i * o * d.element_size())), scale.square().flatten()
        parts = zip(torch.split(a, step), torch.split(d, step))
        gradients = (some.transpose(1, 2) @ x for x, some in parts)  # (n, o, i)
        return torch.cat([g.square_().flatten(1) @ weights for g in gradients]).double()
    if places * (i + o) <= i * o:
        # ‖Σ_l d_l a_lᵀ‖² = Σ_{l,m} a_lᵀa_m d_lᵀd_m, both (n, L, L)
        return ((a @ a.transpose(1, 2)) * (d @ d.transpose(1, 2))).flatten(1).double().sum(1)
    return square(d.transpose(1, 2) @ a)  # (n, o, i)


def normalised(module: Any, a: torch.Tensor, d: torch.Tensor, scales: Scales) -> Norms:
    """Norms for y = w ∘ â + b, with â the normalised input; a row's gradients are summed over the axes beside w's."""
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
        yield "weight", square((d * unit).sum(axes) if axes else d * unit, scales.get("weight"))
    if module.bias is not None:
        yield "bias", square(d.sum(axes) if axes else d, scales.get("bias"))


def embedding(module: nn.Embedding, a: torch.Tensor, d: torch.Tensor, scales: Scales) -> Norms:
    """Norms for rows of a table: positions with the same token share one."""
    tokens, d = a.unsqueeze(-1).flatten(1), d.reshape(len(d), -1, d.shape[-1])  # (n, L), (n, L, width)
    if (scale := scales.get("weight")) is not None:
        d = d * (scale[tokens] if scale.ndim else scale)
    same = tokens[:, :, None] == tokens[:, None, :]  # (n, L, L)
    if module.padding_idx is not None:
        same &= (tokens != module.padding_idx)[:, None, :]  # (n, 1, L)
    yield "weight", ((d @ d.transpose(1, 2)) * same).flatten(1).double().sum(1)  # of (n, L, L)


RULES: dict[type[nn.Module], Callable[[Any, torch.Tensor, torch.Tensor, Scales], Norms]] = {
    nn.Linear: linear,
    nn.Conv2d: conv2d,
    nn.Embedding: embedding,
    nn.LayerNorm: normalised,
    nn.GroupNorm: normalised,
    nn.BatchNorm1d: normalised,
    nn.BatchNorm2d: normalised,
}


def layer_norms(
    model: nn.Module,
    run: Callable[[], torch.Tensor],
    choose: Callable[[torch.Tensor], torch.Tensor | None],
    scales: Scales,
) -> dict[str, torch.Tensor]:
    """Compute squared norms (n,) of the per-row gradients of ⟨u, z⟩ by parameter name, for layers with a rule.

    Args:
        model: whose layers are watched.
        run: the forward pass, (n, K) logits.
        choose: (n, K) logits to cotangents (n, K), or to None, and the result is empty.
        scales: of the parameters by their names in the model, see `CurvatureProblem.view`.

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
    seen = [one for one in seen if one[-1].requires_grad]  # what a vmap of the model's own holds does not, outside it
    cotangents = choose(logits)
    if not seen or cotangents is None:
        return {}
    slopes = torch.autograd.grad((logits * cotangents).sum(), [out for *_, out in seen], materialize_grads=True)
    by_name = {}
    for (name, module, a, _), d in zip(seen, slopes):
        if len(a) == len(logits):  # else it does not see rows: position embeddings, windows of an image, experts
            part_scales = {p: scales[full] for p in ("weight", "bias") if (full := f"{name}.{p}".strip(".")) in scales}
            for part, norms in RULES[type(module)](module, a, d, part_scales):
                by_name[f"{name}.{part}".removeprefix(".")] = norms
    return by_name


def square(x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Compute the squared norm of each row of (n, ...), times a scale (...) or a number, in float64."""
    x = x if scale is None else x * scale
    norms: torch.Tensor = torch.linalg.vector_norm(x.unsqueeze(-1).flatten(1), dim=1, dtype=torch.float64)
    return norms.square()
