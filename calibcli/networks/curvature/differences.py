"""Products with G and H from first derivatives alone: differences of the model's logits, or of the loss's gradients.

With f(w) the logits z or the gradient g of the mean loss, and D(ε) = (f(w + εv) - f(w - εv)) / 2ε, f changes along v by

    R = (4 D(ε) - D(2ε)) / 3 = ∂f/∂w v + O(ε⁴)    (Richardson 1911).

Of logits that is J v, and G v = (1/N) Σ_n J_nᵀ A_n (J_n v): A_n, the Hessian of the loss in the logits, is exact, and
J_nᵀ is one backward pass. Of gradients it is H v. So both run where an operation of the model can be differentiated
only once: fused attention, `torch.cdist`, custom autograd functions, and weights that are sharded over processes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointError

from calibcli.core.errors import InputError, UsageError
from calibcli.networks import device as devices
from calibcli.networks.curvature import sharded
from calibcli.networks.curvature.loss import LogitLoss
from calibcli.networks.curvature.operator import (
    Part,
    SecondDerivative,
    Total,
    curvature_along,
    ggn_scalar,
    grouped,
    hessian_scalar,
    inner,
    norm,
    norm_of_pieces,
    slope,
)
from calibcli.networks.curvature.problem import CurvatureProblem, Inputs, Scalar, padding_rows, signs

STEP = 1e-4  # ε ‖v‖ / ‖w‖: in float32 a shorter one loses more to rounding, a longer one to the third derivative
TRUNCATED = {torch.float32: 1e-4, torch.float64: 1e-8}  # of ‖H‖: the change from D(2ε) to D(ε) that is aimed at
ATTEMPTS = 8  # steps that are tried for one product
UNKNOWN = 0.02  # of ‖H‖: such a change at every step shows kinks that are not known
CHECKED = 4  # directions in which the symmetry of products is looked at
BENT = {"relu", "relu6", "leaky_relu", "hardtanh", "hardswish", "threshold", "clamp", "abs", "selu", "softshrink"}
"""Names of functions of single elements with kinks; those that end in _ work in place."""
CURVED = {"hardswish", "selu"}
"""Those with second derivatives."""
POOLED = {f"{kind}max_pool{d}d": d for kind in ("", "adaptive_") for d in (1, 2, 3)}
"""Names of functions that take the largest element of each window, and the number of dimensions of a window."""


class Choices(TorchFunctionMode):
    """Note on which side of a kink functions are at w, and which element is the largest, and keep to it elsewhere.

    A step that crosses kinks would make a difference wrong, whatever its length. A function of single elements becomes
    its expansion f(x₀) + f'(x₀) (x - x₀) + f''(x₀) (x - x₀)² / 2, a maximum the element that was it at w. First and
    second derivatives at w stay as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, Callable[[Tensor], Any]]] = []
        self.again: Iterator[tuple[str, Callable[[Tensor], Any]]] | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep to what was noted within the block.

        Raises:
            InputError: the model calls other functions than at w, or in another order.
        """
        self.again = iter(self.noted)
        try:
            with self:
                yield
            if next(self.again, None) is not None:
                raise _other_path()
        finally:
            self.again = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name, more = kwargs or {}, getattr(func, "__name__", ""), args[1:]
        dim = kwargs.get("dim", more[0] if more else None) if name == "max" else None
        known = name.rstrip("_") in BENT or name in POOLED or isinstance(dim, int)
        others = any(isinstance(other, Tensor) for other in (*more, *kwargs.values()))
        if not known or not args or others or not args[0].is_floating_point():
            return func(*args, **kwargs)
        x = args[0]
        if self.again is not None:
            before, chosen = next(self.again, ("", None))
            if before != name or chosen is None:
                raise _other_path()
            return chosen(x)
        at_w = x.detach().clone()
        result = func(*args, **kwargs)
        self.noted.append((name, self._note(func, name, at_w, dim, result, x, more, kwargs)))
        return result

    @staticmethod
    def _note(
        func: Any, name: str, at_w: Tensor, dim: Any, result: Any, x: Tensor, more: Any, kwargs: Any
    ) -> Callable[[Tensor], Any]:
        """Return the function that stands for this call elsewhere."""
        if name in POOLED:
            index, d = getattr(F, f"{name}_with_indices")(at_w, *more, **kwargs)[1], POOLED[name]
            return lambda x: x.flatten(-d).gather(-1, index.flatten(-d)).view_as(index)
        if isinstance(dim, int):
            place = result[1] if result[1].ndim == x.ndim else result[1].unsqueeze(dim)
            return lambda x: type(result)((x.gather(dim, place).view_as(result[1]), result[1]))
        bend: Tensor | None = None
        # hooks of its own, as those of a checkpoint around it count what is saved
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(Tensor.detach, Tensor.detach):
            leaf, curved = at_w.clone().requires_grad_(), name.rstrip("_") in CURVED
            value = func(leaf.clone(), *more, **kwargs)
            (tangent,) = torch.autograd.grad(value.sum(), leaf, create_graph=curved)
            if curved:
                bend = torch.autograd.grad(tangent.sum(), leaf, allow_unused=True)[0]
        value, tangent, in_place = value.detach(), tangent.detach(), result is x

        def expansion(x: Tensor) -> Tensor:
            step = x - at_w
            along = tangent if bend is None else torch.addcmul(tangent, bend, step, value=0.5)
            y = torch.addcmul(value, along, step)
            return x.copy_(y) if in_place else y

        return expansion


def _other_path() -> InputError:
    problem = "the model calls other functions at weights nearby, where its choices at kinks are to stay"
    return InputError(
        problem, "take checkpointing and branches on values out of its forward pass, or --products double"
    )


class Moving(SecondDerivative):
    """A second derivative that is found by moving the weights; they come back to the last bit."""

    def __init__(self, problem: CurvatureProblem, scalar: Scalar) -> None:
        if problem.tf32:
            raise UsageError("TF32 would round differences away", "leave --tf32 out")
        super().__init__(problem, scalar)
        self.groups.mapped = False
        # `.data`: a graph at w must not know, as w comes back
        self.data = [sharded.local(t).data for t in problem.tensors]
        self.weights = [t.clone() for t in self.data]
        self.places = sharded.places(problem.tensors)
        self.padding = padding_rows(problem)
        self.length = sharded.length(problem.tensors)  # ‖w‖

    def along(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Turn coordinates, a piece per tensor, into a direction of the weights that does not move padding."""
        along = self.problem.scaled(pieces)
        for tensor, row in self.padding:  # its gradient is 0 by definition
            along[tensor] = along[tensor].index_fill(0, torch.tensor([row], device=self.problem.device), 0.0)
        return along

    @contextlib.contextmanager
    def moved(self, along: Sequence[Tensor], by: float) -> Iterator[None]:
        """Be at w + by · along within the block."""
        sharded.let_go(self.problem.units)
        try:
            torch._foreach_add_(self.data, sharded.shares(along, self.places, self.data), alpha=by)
            yield
        finally:
            torch._foreach_copy_(self.data, self.weights)
            sharded.let_go(self.problem.units)


@dataclass(frozen=True)
class RowsAtW:
    """Logits (n, K) of some rows at w, with their graph, and what it takes to compute them elsewhere."""

    inputs: Inputs
    labels: Tensor
    logits: Tensor
    choices: Choices


class Differences(Moving):
    """G of a mean loss by differences of logits, which keeps no graphs; arguments are as for `SecondDerivative`.

    Args:
        double: whether the model has second derivatives, against which two rows are then compared.
    """

    how = " by differences of the logits"
    CARRIED = ("doubt", "_doubt")

    def __init__(self, problem: CurvatureProblem, loss: LogitLoss, double: bool = False) -> None:
        super().__init__(problem, ggn_scalar(loss))
        self.loss, self.double = loss, double
        self.doubt, self._doubt = 0.0, 0.0  # Σ δᵀA_nδ over this rank's rows, see `error`: the most of a product

    def at(self, rows: range) -> RowsAtW:
        inputs, labels = self.problem.batch(rows)
        with Choices() as choices:
            return RowsAtW(inputs, labels, self.problem.outputs(_copies(inputs)), choices)

    def slopes(self, at: RowsAtW, pieces: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Differentiate the logits along coordinates, a piece per tensor: R and D(2ε), (n, K) each."""
        along = self.along(pieces)
        length = norm_of_pieces(along)
        if length == 0:
            return torch.zeros_like(at.logits), torch.zeros_like(at.logits)
        step = STEP * max(self.length, 1e-3) / length
        fine, coarse = (
            (self._moved(at, along, by) - self._moved(at, along, -by)) / (2 * by) for by in (step, 2 * step)
        )
        return (4 * fine - coarse) / 3, coarse

    def _moved(self, at: RowsAtW, along: Sequence[Tensor], by: float) -> Tensor:
        """Compute the logits (n, K) at w + by · along, with the choices of w."""
        with self.moved(along, by), torch.no_grad(), at.choices.kept():
            return self.problem.outputs(_copies(at.inputs))

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


class GradientDifferences(Moving):
    """H of a mean loss by differences of gradients, four for a product; no graphs are kept.

    With t = ‖D(ε) - D(2ε)‖ / 3, the step of the next product is the last times √(`TRUNCATED` ‖H‖ / t), from an eighth
    to 8. It is taken again if t > 4 `TRUNCATED` ‖H‖; where t then grew as ε shrank, that is rounding. ‖H‖ is the
    largest ‖R‖ of a unit vector so far, first that of the gradient's direction. For sums by group, of which eigenvalues
    are certified, the step is then doubled while t stays as small.

    Args:
        problem: the model and data.
        loss: the loss.
        double: whether the model has second derivatives, against which two rows are then compared.
        fixed: with ∂loss/∂z held fixed as it is at w: H - G.
    """

    how = " by differences of gradients"
    CARRIED = ("step", "size_of_h", "floor", "truncation", "last_step", "last_t", "first_row", "second_row")

    def __init__(self, problem: CurvatureProblem, loss: LogitLoss, double: bool = False, fixed: bool = False) -> None:
        super().__init__(problem, hessian_scalar(loss))
        self.double, self.fixed, self.slope = double, fixed, slope(loss)
        self.step, self.size_of_h, self.floor = STEP, 0.0, 0.0  # floor: the least t that rounding allowed
        self.truncation, self.last_step, self.last_t = 0.0, 0.0, 0.0  # the largest t of a product, and of the last one
        self.first_row, self.second_row = 0, problem.layout.n - 1  # on which products are compared

    def at(self, rows: Any) -> tuple[Inputs, Scalar, Tensor, Choices]:
        """Return some rows' inputs, what is differentiated, the labels and the choices at w."""
        rows, share = self.problem.own(rows)
        inputs, labels = self.problem.batch(rows)
        with torch.no_grad(), Choices() as choices:
            logits = self.problem.outputs(_copies(inputs))
        sharded.let_go(self.problem.units)
        slopes_at_w = self.slope(logits, labels) if self.fixed else None

        def scalar(z: Tensor, labels: Tensor) -> Tensor:
            return share * (self.scalar(z, labels) if slopes_at_w is None else (slopes_at_w * z).sum())

        return inputs, scalar, labels, choices

    def _gradient(self, at: Any, along: Sequence[Tensor], by: float) -> list[Tensor]:
        """Compute the sum of the rows' gradients at w + by · along, with the choices of w."""
        inputs, scalar, labels, choices = at
        with self.moved(along, by):
            with choices.kept():
                total = scalar(self.problem.outputs(_copies(inputs)), labels)
            try:
                return self.problem.gradient_of(total)
            except CheckpointError:  # layers that are computed again, of which other tensors were saved
                raise _other_path() from None

    def _pair(self, at: Any, along: Sequence[Tensor], step: float) -> list[list[Tensor]]:
        """Compute D(ε) and D(2ε) in the coordinates, a piece per tensor."""
        found = []
        for by in (step, 2 * step):
            ahead, behind = self._gradient(at, along, by), self._gradient(at, along, -by)
            found.append(self.problem.scaled([(a - b) / (2 * by) for a, b in zip(ahead, behind)]))
        return found

    def times(self, at: Any, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Multiply the sum over some rows (see `at`) by a vector, a piece per tensor, at the step that is there."""
        along = self.along(pieces)
        if (length := norm_of_pieces(along)) == 0:
            return [torch.zeros_like(p) for p in pieces]
        fine, coarse = self._pair(at, along, self._step(length, self.step))
        return [(4 * f - c) / 3 for f, c in zip(fine, coarse)]

    def _step(self, length: float, step: float) -> float:
        return step * max(self.length, 1e-3) / length

    def _graphs(self, micro: int) -> Iterator[tuple[range, Any]]:
        for rows in self.problem.layout.batches(micro):
            yield rows, self.at(rows)

    def products(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Multiply by each vector (size,).

        Raises:
            InputError: a product is not finite, or changes with every step.
        """
        return [self._found(vector) for vector in vectors]

    def by_group(self, vector: Tensor) -> Iterator[Part]:
        self._found(vector)
        self._lengthen(vector)
        problem, pieces = self.problem, self.problem.split(vector)
        micro = min(problem.layout.micro, problem.layout.group)
        return grouped(problem, ((rows, self.times(at, pieces)) for rows, at in self._graphs(micro)))

    def _lengthen(self, vector: Tensor) -> None:
        """Take the longest step for a vector at which t is small, of those that double: rounding is least there."""
        step, t, pieces = self.last_step, self.last_t, self.problem.split(vector / norm(vector))
        for _ in range(ATTEMPTS):
            _, longer = self._once(pieces, 2 * step)
            if longer >= t and longer > 4 * TRUNCATED[self.problem.dtype] * self.size_of_h:
                break
            step, t = 2 * step, longer
        self.step, self.last_step, self.last_t, self.truncation = step, step, t, max(self.truncation, t)

    def at_home(self, vector: Tensor) -> None:
        """Find the step for vectors like this one (size,), of which rounding may hide the product."""
        self.size_of_h = 1e-300
        self._found(vector.to(self.problem.device), strict=False)

    def _found(self, vector: Tensor, strict: bool = True) -> Tensor:
        """Multiply by a vector (size,), at a step that is found."""
        if not self.size_of_h:
            self._begin()
        length = norm(vector)
        if length == 0:
            return self.problem.zero().to(vector.dtype)
        pieces, unit = self.problem.split(vector / length), TRUNCATED[self.problem.dtype]
        least, best, product, size, aim = math.inf, self.step, vector, self.size_of_h, self.floor
        step, grow = self.step, False
        for _ in range(ATTEMPTS):
            found, t = self._once(pieces, step)
            if t < least:
                least, best, product, size = t, step, found, max(self.size_of_h, norm(found))
                aim = max(unit * size, self.floor)
            elif grow:
                self.floor = least
                break
            else:
                grow = True  # a shorter step is worse: that is rounding
            if least <= 4 * aim:
                break
            step = best * (4 if grow else self._factor(aim, least))
        rounded = aim < least > self.last_t and best < self.last_step
        self.step = self.last_step if rounded else best * self._factor(aim, least)
        self.last_step, self.last_t, self.truncation, self.size_of_h = best, least, max(self.truncation, least), size
        if strict and least >= UNKNOWN * size:
            problem = f"differences of gradients change by {least / size:.1g} of their size at every step"
            fix = "the model rounds, or has kinks that are not known: try --dtype float64, or -w lambda_max_ggn"
            raise InputError(problem, fix)
        return product.mul_(length)

    @staticmethod
    def _factor(aim: float, t: float) -> float:
        return min(max(math.sqrt(aim / max(t, 1e-300)), 1 / 8), 8.0)

    def _once(self, pieces: Sequence[Tensor], step: float) -> tuple[Tensor, float]:
        """Multiply the mean over rows by a unit vector; also return ‖D(ε) - D(2ε)‖ / 3."""
        along = self.along(pieces)
        if (length := norm_of_pieces(along)) == 0:
            return self.problem.zero(), 0.0

        def work() -> list[Tensor]:
            sums = Total(self.problem), Total(self.problem)
            for _, at in self._graphs(self.problem.layout.micro):
                for total, part in zip(sums, self._pair(at, along, self._step(length, step))):
                    total.add(part)
            return [total.value() for total in sums]

        fine, coarse = map(self.mean, self.problem.guard(work))
        change = fine - coarse
        return fine.add_(change, alpha=1 / 3), norm(change) / 3

    def _begin(self) -> None:
        """Learn ‖H‖ and the step from the gradient's direction, and which rows have the steepest loss."""
        total = Total(self.problem)
        steepest: list[tuple[float, int]] = []
        for rows in self.problem.layout.batches():
            gradient = self.problem.gradients(rows, self.scalar, graph=False)
            if not steepest:
                self._check(rows, gradient)
            total.add(gradient)
            with torch.no_grad():
                z, labels = self.problem.logits(rows)
            each = self.slope(z, labels).norm(dim=1).tolist()
            steepest = sorted([*steepest, *zip(each, rows)], reverse=True)[:2]
        if steepest:
            self.first_row, self.second_row = steepest[0][1], steepest[-1][1]
        mean = self.mean(total.value())
        self.size_of_h = 1e-300
        self._found(mean if norm(mean) > 0 else torch.ones_like(mean))
        self.truncation = self.floor = self.last_step = self.last_t = 0.0

    def _check(self, rows: range, gradient: list[Tensor]) -> None:
        """Refuse a model whose gradient at w changes where choices are kept, as where layers are computed again."""
        kept = self._gradient(self.at(rows), [torch.zeros_like(g) for g in gradient], 0.0)
        off = norm_of_pieces([a - b for a, b in zip(kept, gradient)])
        if off > 1e-3 * norm_of_pieces(gradient):
            raise _other_path()

    def error(self, value: float, vector: Callable[[], Tensor]) -> float:
        """Estimate how far products with a unit vector may be off: the largest t, and twice an error of rounding.

        That is the distance from double backward of the two rows with the steepest loss, along `vector` x; or, where
        the model has no second derivative, √mean (zᵀR x - xᵀR z)² on them, z random signs: what of R is not symmetric.
        """
        x = vector().to(self.problem.device)
        rows = torch.tensor(sorted({int(self.first_row), int(self.second_row)}))
        at, count = self.at(rows), len(rows)
        product = torch.cat([p.reshape(-1) for p in self.times(at, self.problem.split(x))])
        if self.double:
            with sdpa_kernel(SDPBackend.MATH):
                gradients = self.problem.gradients(rows, self.scalar)
                exact = self.problem.product(gradients, self.problem.split(x))
            off, what = norm(product - torch.cat([p.reshape(-1) for p in exact])) / count, "from double backward"
        else:
            square = 0.0
            for number in range(CHECKED):
                z = signs(len(x), 0, 0, range(number, number + 1))[0].to(x)
                other = torch.cat([p.reshape(-1) for p in self.times(at, self.problem.split(z))])
                square += (inner(z, product) - inner(other, x)) ** 2 / CHECKED
            off = math.sqrt(square) / count
            what = "from symmetry"
        shared = devices.all_sum(torch.tensor([off**2], dtype=torch.float64, device=self.problem.device))
        off = math.sqrt(float(shared) / devices.world())
        self.how = f"{type(self).how}, {off / max(abs(value), 1e-300):.1g} of it {what} on {count} rows"
        return self.truncation + 2 * off

    def not_finite(self, what: str) -> InputError:
        fix = "look for NaN weights and infinite slopes, as that of sqrt at 0, or use --dtype float64"
        return InputError(f"{what} is not finite", fix)


def gauss_newton(problem: CurvatureProblem, loss: LogitLoss, double: bool, differences: bool) -> SecondDerivative:
    """Return G as an operator: by double backward where the model has it, unless `differences` are asked for."""
    if double and not differences:
        return SecondDerivative(problem, ggn_scalar(loss))
    return Differences(problem, loss, double)


def _copies(inputs: Inputs) -> Inputs:
    """Copy inputs, which a model may change in place."""
    return tree_map(torch.clone, inputs)
