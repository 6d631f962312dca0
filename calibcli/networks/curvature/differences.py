"""Products with the Gauss-Newton matrix from first derivatives alone: Jv is a difference of the model's logits.

G v = (1/N) Σ_n J_nᵀ A_n (J_n v). With D(ε) = (z(w + εv) - z(w - εv)) / 2ε, the logits change along v by

    R = (4 D(ε) - D(2ε)) / 3 = J v + O(ε⁴),    ε = STEP ‖w‖ / ‖v‖    (Richardson 1911).

A_n, the Hessian of the loss in the logits, is exact, and J_nᵀ is one backward pass. So this runs where an operation of
the model can be differentiated only once: fused attention, `torch.cdist`, custom autograd functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from calibcli.core.errors import UsageError
from calibcli.networks import device as devices
from calibcli.networks.curvature.loss import LogitLoss
from calibcli.networks.curvature.operator import SecondDerivative, curvature_along, ggn_scalar
from calibcli.networks.curvature.problem import CurvatureProblem, Inputs, padding_rows

STEP = 1e-4  # ε ‖v‖ / ‖w‖: in float32 a shorter one loses more to rounding, a longer one to the third derivative
BENT = {"relu", "relu6", "leaky_relu", "hardtanh", "hardswish", "threshold", "clamp", "abs", "selu", "softshrink"}
"""Names of functions of single elements with kinks; those that end in _ work in place."""
POOLED = {f"{kind}max_pool{d}d": d for kind in ("", "adaptive_") for d in (1, 2, 3)}
"""Names of functions that take the largest element of each window, and the number of dimensions of a window."""


class Choices(TorchFunctionMode):
    """Note on which side of a kink functions are at w, and which element is the largest, and keep to it elsewhere.

    A step that crosses kinks would make a difference wrong, whatever its length. A function of single elements becomes
    its tangent f(x₀) + f'(x₀) (x - x₀), a maximum the element that was it at w. Derivatives at w stay as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Callable[[Tensor], Any]] = []
        self.again: Iterator[Callable[[Tensor], Any]] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name, more = kwargs or {}, getattr(func, "__name__", ""), args[1:]
        dim = kwargs.get("dim", more[0] if more else None) if name == "max" else None
        known = name.rstrip("_") in BENT or name in POOLED or isinstance(dim, int)
        others = any(isinstance(other, Tensor) for other in (*more, *kwargs.values()))
        if not known or not args or others or not args[0].is_floating_point():
            return func(*args, **kwargs)
        x = args[0]
        if self.again:
            chosen = next(self.again, None)
            return chosen(x) if chosen else func(*args, **kwargs)
        before = x.detach().clone()
        result = func(*args, **kwargs)
        if name in POOLED:
            index, d = getattr(F, f"{name}_with_indices")(before, *more, **kwargs)[1], POOLED[name]
            self.noted.append(lambda x: x.flatten(-d).gather(-1, index.flatten(-d)).view_as(index))
        elif isinstance(dim, int):
            place = result[1] if result[1].ndim == x.ndim else result[1].unsqueeze(dim)
            self.noted.append(lambda x: type(result)((x.gather(dim, place).view_as(result[1]), result[1])))
        else:
            # hooks of its own, as those of a checkpoint around it count what is saved
            with torch.autograd.graph.saved_tensors_hooks(Tensor.detach, Tensor.detach):
                leaf = before.clone().requires_grad_()
                value = func(leaf.clone(), *more, **kwargs)
                (slope,) = torch.autograd.grad(value.sum(), leaf)
            value, in_place = value.detach(), result is x
            self.noted.append(lambda x: (x.copy_ if in_place else torch.clone)(torch.addcmul(value, slope, x - before)))
        return result


@dataclass(frozen=True)
class RowsAtW:
    """Logits (n, K) of some rows at w, with their graph, and what it takes to compute them elsewhere."""

    inputs: Inputs
    labels: Tensor
    logits: Tensor
    choices: Choices


class Differences(SecondDerivative):
    """G of a mean loss by differences of logits, which keeps no graphs; arguments are as for `SecondDerivative`.

    Args:
        double: whether the model has second derivatives, against which two rows are then compared.
    """

    how = " by differences of the logits"
    CARRIED = ("doubt", "_doubt")

    def __init__(self, problem: CurvatureProblem, loss: LogitLoss, double: bool = False) -> None:
        if problem.tf32:
            raise UsageError("TF32 would round differences of the logits away", "leave --tf32 out")
        super().__init__(problem, ggn_scalar(loss))
        self.loss, self.double = loss, double
        self.groups.mapped = False
        self.weights = [t.detach().clone() for t in problem.tensors]
        self.padding = padding_rows(problem)
        self.doubt, self._doubt = 0.0, 0.0  # Σ δᵀA_nδ over this rank's rows, see `error`: the most of a product

    def at(self, rows: range) -> RowsAtW:
        inputs, labels = self.problem.batch(rows)
        with Choices() as choices:
            return RowsAtW(inputs, labels, self.problem.outputs(_copies(inputs)), choices)

    def slopes(self, at: RowsAtW, pieces: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Differentiate the logits along coordinates, a piece per tensor: R and D(2ε), (n, K) each."""
        along = self.problem.scaled(pieces)
        for tensor, row in self.padding:  # its gradient is 0 by definition
            along[tensor] = along[tensor].index_fill(0, torch.tensor([row], device=self.problem.device), 0.0)
        length, size = (float(torch.stack(torch._foreach_norm(list(p))).norm()) for p in (along, self.weights))
        if length == 0:
            return torch.zeros_like(at.logits), torch.zeros_like(at.logits)
        step = STEP * max(size, 1e-3) / length
        fine, coarse = (
            (self._moved(at, along, by) - self._moved(at, along, -by)) / (2 * by) for by in (step, 2 * step)
        )
        return (4 * fine - coarse) / 3, coarse

    def _moved(self, at: RowsAtW, along: Sequence[Tensor], by: float) -> Tensor:
        """Compute the logits (n, K) at w + by · along, with the choices of w. Then w is as before, to the last bit."""
        data = [t.data for t in self.problem.tensors]  # `.data`: the graph at w must not know, as w comes back
        at.choices.again = iter(at.choices.noted)
        try:
            torch._foreach_add_(data, list(along), alpha=by)
            with torch.no_grad(), at.choices:
                return self.problem.outputs(_copies(at.inputs))
        finally:
            torch._foreach_copy_(data, self.weights)

    def _graphs(self, micro: int) -> Iterator[tuple[range, RowsAtW]]:
        self._doubt = 0.0
        for rows in self.problem.layout.batches(micro):
            yield rows, self.at(rows)

    def _product(self, at: RowsAtW, pieces: Sequence[Tensor]) -> list[Tensor]:
        slopes, coarse = self.slopes(at, pieces)
        z = at.logits.detach()
        self._doubt += float(curvature_along(self.loss, z, at.labels, slopes - coarse).abs().sum())
        self.doubt = max(self.doubt, self._doubt)
        z.requires_grad_()
        (slope,) = torch.autograd.grad(self.loss(z, at.labels).sum(), z, create_graph=True)
        bent = torch.autograd.grad(slope, z, slopes)[0] if slope.requires_grad else torch.zeros_like(z)  # A_n R
        found = torch.autograd.grad(at.logits, self.problem.tensors, bent, retain_graph=True, materialize_grads=True)
        return self.problem.scaled(found)

    def error(self, value: float, vector: Callable[[], Tensor]) -> float:
        """Estimate how far products with a unit vector may be off: G̃ instead of G, of norm |`value`|.

        With δ = R - D(2ε), 4/3 of D(ε) - D(2ε), which R is hardly ever farther from J v than, G = BᵀB gives
        ‖(1/N) Σ J_nᵀ A_n δ_n‖ <= √(‖G‖ (1/N) Σ δ_nᵀ A_n δ_n). The largest of all products counts. To this comes what
        two rows are off along `vector`, where second derivatives tell.
        """
        total = devices.all_sum(torch.tensor([self.doubt], dtype=torch.float64, device=self.problem.device))
        off = math.sqrt(abs(value) * float(total) / self.problem.layout.n)
        if not self.double:
            return off
        rows, pieces = range(min(2, self.problem.layout.n)), self.problem.split(vector())
        exact = self.problem.product(self.problem.gradients(rows, self.scalar), pieces)
        apart = torch._foreach_sub(self._product(self.at(rows), pieces), exact)
        return off + float(torch.stack(torch._foreach_norm(list(apart))).norm()) / len(rows)


def gauss_newton(problem: CurvatureProblem, loss: LogitLoss, double: bool, differences: bool) -> SecondDerivative:
    """Return G as an operator: by double backward where the model has it, unless `differences` are asked for."""
    if double and not differences:
        return SecondDerivative(problem, ggn_scalar(loss))
    return Differences(problem, loss, double)


def _copies(inputs: Inputs) -> Inputs:
    """Copy inputs, which a model may change in place."""
    return tree_map(torch.clone, inputs)
