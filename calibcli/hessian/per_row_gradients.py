"""‖J_nᵀu‖² per row and per parameter tensor: squared norms of per-row gradients of ⟨u, z_n(θ)⟩."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.func import grad, vmap

from calibcli import device as devices
from calibcli.hessian.indexed_data import Inputs
from calibcli.hessian.layers import layer_norms, square
from calibcli.hessian.problem import Problem

UNMAPPED = (RuntimeError, ValueError, TypeError, AttributeError)  # raised where vmap cannot run a model
CHUNK = 128 << 20  # bytes of per-row gradients held at once


class RowNorms:
    """Squared per-row gradient norms: from the layers' inputs and output gradients where there is a rule, by vmap for
    the other tensors, row by row where vmap cannot run the model.

    Which way serves which tensor is decided on two rows, where it must agree with plain gradients.

    Args:
        problem: the problem.

    Attributes:
        by_layer, by_vmap: (tensors,) which tensors each way serves; the rest goes row by row.
    """

    def __init__(self, problem: Problem) -> None:
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
            try:
                mapped = self._vmap(inputs, u)
            except UNMAPPED as error:
                if devices.is_out_of_memory(error):
                    raise
                self.by_vmap = torch.zeros_like(self.by_layer)
            else:
                self.by_vmap &= _agree(mapped, true)

    @property
    def mapped(self) -> bool:
        """Whether no tensor has to go row by row."""
        return bool((self.by_layer | self.by_vmap).all())

    @property
    def chunk(self) -> int:
        """Rows at once: what per-row gradients of the tensors without a rule leave room for."""
        row = sum(s for s, layer in zip(self.problem.sizes, self.by_layer.tolist()) if not layer)
        row *= torch.empty((), dtype=self.problem.dtype).element_size()
        return max(1, min(CHUNK // max(row, 1), self.problem.layout.micro))

    def __call__(self, rows: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor:
        """(n,) row indices and (n, K) cotangents to (n, tensors) float64 squared norms, on the CPU."""
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
            found = (
                self._layers(inputs, u) if bool(self.by_layer.any()) else out[0].new_zeros(len(r), len(self.by_layer))
            )
            if bool(self.by_vmap.any()):
                found = torch.where(by_vmap, self._vmap(inputs, u), found)
            out.append(found)
        return torch.cat(out).cpu()

    def chosen(self, rows: range, choose: Callable[[torch.Tensor], torch.Tensor | None]) -> torch.Tensor:
        """(n, tensors) squared norms for the cotangents that `choose` makes of these rows' logits, from one pass.

        On the problem's device. NaN for tensors of layers without a rule, and for all where it makes none.
        """
        inputs, labels = self.problem.batch(rows)
        return self._by_rule(inputs, len(labels), choose)

    def _layers(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        return self._by_rule(inputs, len(u), lambda logits: u)

    def _by_rule(
        self, inputs: Inputs, count: int, choose: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> torch.Tensor:
        problem = self.problem
        found = layer_norms(problem.model, lambda: problem.forward(problem.model, inputs), choose)
        missing = torch.full((count,), float("nan"), dtype=torch.float64, device=problem.device)
        return torch.stack([found.get(n, missing) for n in problem.names], 1)

    def _vmap(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        problem = self.problem
        wanted = {n: t.detach() for n, t, on in zip(problem.names, problem.tensors, self.by_vmap.tolist()) if on}

        def one(parameters: dict[str, torch.Tensor], x: Inputs, cotangent: torch.Tensor) -> torch.Tensor:
            single = {k: v[None] for k, v in x.items()} if isinstance(x, dict) else x[None]
            return (problem.forward(problem.placed(parameters), single)[0] * cotangent).sum()

        found = vmap(grad(one), in_dims=(None, 0, 0))(wanted, inputs, u)
        nothing = torch.zeros(len(u), dtype=torch.float64, device=problem.device)
        return torch.stack([square(found[n]) if n in found else nothing for n in problem.names], 1).detach()

    def _row_by_row(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        problem = self.problem
        out = []
        for i in range(len(u)):
            single = {k: v[i : i + 1] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[i : i + 1]
            z = problem.forward(problem.model, single)
            found = torch.autograd.grad((z[0] * u[i]).sum(), problem.tensors, materialize_grads=True)
            out.append(torch.cat([square(g[None]) for g in found]))
        return torch.stack(out)


def _agree(found: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """(tensors,) bool, on the CPU: equal to rounding on every row."""
    return ((found - true).abs() <= 1e-3 * true + 1e-7 * true.max()).all(0).cpu()
