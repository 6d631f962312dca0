"""‖J_nᵀu‖² per row and per parameter tensor: squared norms of per-row gradients of ⟨u, z_n(θ)⟩."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call, grad, vmap

from calibcli.curvature.problem import Problem
from calibcli.curvature.rows import Inputs

CHUNK = 128 << 20  # bytes of per-row gradients held at once


class RowNorms:
    """Squared per-row gradient norms, by vmap where the model allows it, else row by row.

    Which way is decided on two rows: both must agree there.

    Args:
        problem: the problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.mapped = self.chunk > 1 and self._vmap_agrees()

    @property
    def chunk(self) -> int:
        row = self.problem.size * torch.empty((), dtype=self.problem.dtype).element_size()
        return max(1, min(64, CHUNK // row, self.problem.layout.micro))

    def __call__(self, rows: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor:
        """(n,) row indices and (n, K) cotangents to (n, tensors) float64 squared norms, on the CPU."""
        return self.problem.guard(lambda: self._all(rows, cotangents))

    def _all(self, rows: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor:
        out = []
        for r, u in zip(torch.split(rows, self.chunk), torch.split(cotangents, self.chunk)):
            inputs, _ = self.problem.batch(r)
            u = u.to(self.problem.device, self.problem.dtype)
            out.append((self._by_vmap if self.mapped and len(r) > 1 else self._by_row)(inputs, u))
        return torch.cat(out) if out else torch.zeros(0, len(self.problem.tensors), dtype=torch.float64)

    def _by_vmap(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        problem = self.problem

        def one(parameters: dict[str, torch.Tensor], x: Inputs, cotangent: torch.Tensor) -> torch.Tensor:
            def model(*args: Any, **kwargs: Any) -> Any:
                return functional_call(problem.model, parameters, args, kwargs)

            single = {k: v[None] for k, v in x.items()} if isinstance(x, dict) else x[None]
            return (problem.forward(model, single)[0] * cotangent).sum()

        parameters = {n: t.detach() for n, t in zip(problem.names, problem.tensors)}
        found = vmap(grad(one), in_dims=(None, 0, 0))(parameters, inputs, u)
        return torch.stack([_square_norms(found[n]) for n in problem.names], 1).cpu()

    def _by_row(self, inputs: Inputs, u: torch.Tensor) -> torch.Tensor:
        problem = self.problem
        out = []
        for i in range(len(u)):
            single = {k: v[i : i + 1] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[i : i + 1]
            z = problem.forward(problem.model, single)
            found = torch.autograd.grad((z[0] * u[i]).sum(), problem.tensors, materialize_grads=True)
            out.append(torch.stack([_square_norms(g[None])[0] for g in found]))
        return torch.stack(out).cpu()

    def _vmap_agrees(self) -> bool:
        rows = torch.arange(2) % self.problem.layout.n
        inputs, _ = self.problem.batch(rows)
        u = torch.randn(2, self.problem.classes, generator=torch.Generator().manual_seed(0))
        u = u.to(self.problem.device, self.problem.dtype)
        try:
            mapped = self._by_vmap(inputs, u)
        except (RuntimeError, ValueError, NotImplementedError, TypeError, AttributeError):  # whatever vmap cannot do
            return False
        return torch.allclose(mapped, self._by_row(inputs, u), rtol=1e-3, atol=1e-6 * float(mapped.max()))


def _square_norms(gradients: torch.Tensor) -> torch.Tensor:
    """(n, ...) to (n,) float64."""
    norms: torch.Tensor = torch.linalg.vector_norm(gradients.flatten(1), dim=1, dtype=torch.float64)
    return norms.square()
