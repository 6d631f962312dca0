"""Second derivatives of a mean loss as linear operators (`size`, `matvec`), also summed by groups of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Protocol

import torch
from torch.func import grad, vjp, vmap
from torch.utils._pytree import tree_map

from calibcli.core.errors import InputError
from calibcli.networks import device as devices
from calibcli.networks.curvature.loss import LogitLoss
from calibcli.networks.curvature.per_row_gradients import unless_unmapped
from calibcli.networks.curvature.problem import RESERVED, CurvatureProblem, Inputs, Scalar, signs
from calibcli.networks.curvature.saved_state import Pieces
from calibcli.networks.derivatives.jets import Jets
from calibcli.networks.device import free_bytes

# Gradients and products summed over each group of rows: one group after the other, or on a device many at once. A group
# is small, and a device would wait for its launches: mapped over groups, an operation is launched once for all. A
# certificate of a ResNet-20 then takes 2,112 kernels for 20,092, 64 probes of every cell of a ViT 901 for 34,322
# (`benchmarks/results/device.txt`).

SHARE = 16  # part of the free memory for what is mapped at once to hold one vector for each group
Part = tuple[int, torch.Tensor]
"""(first group, (g, size) sums over the rows of each of g groups); float64, or the model's dtype."""


class Groups:
    """Sums over the rows of each group of the gradient of `scalar`, and of products with its second derivative."""

    def __init__(self, problem: CurvatureProblem, scalar: Scalar) -> None:
        self.problem, self.scalar = problem, scalar

    @cached_property
    def mapped(self) -> bool:
        """Whether groups are mapped: where vmap runs the model and `scalar`."""
        return maps(self.problem) and self.problem.guard(self._row_by_row)

    def _row_by_row(self) -> bool:
        with torch.no_grad():
            logits, labels = self.problem.logits(range(2))

        def row(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.scalar(z[None], y[None])

        mapped_gradients = unless_unmapped(lambda: vmap(grad(row))(logits, labels))
        z = logits.requires_grad_()
        return mapped_gradients is not None and _agree(
            mapped_gradients, torch.autograd.grad(self.scalar(z, labels), z)[0]
        )

    @property
    def at_once(self) -> int:
        """Number of groups that are mapped together; 0 where a single one takes too much memory."""
        return min(self.problem.plan.rows // self.problem.layout.group, vectors_at_once(self.problem))

    def gradients(self) -> Iterator[Part]:
        """Sum gradients over the rows of this rank's groups, in order; `at_once` must not be 0."""
        return map(self._part, self._runs())

    def products(self, vector: torch.Tensor, plain: Callable[[range], torch.Tensor]) -> Iterator[Part] | None:
        """Multiply by a vector (size,), with sums over the rows of this rank's groups in order; None if not mapped.

        Where it is not known yet whether groups can be mapped, the first of them are the trial: their sum must be the
        `plain` product of these rows. A trial of its own (`maps`) would take as much again as a certificate.
        """
        if not self.at_once or ("mapped" in vars(self) and not self.mapped):
            return None
        runs, part = list(self._runs()), partial(self._part, vector=vector)
        if not runs or self.problem.maps is not None or not _worth(self.problem):
            return map(part, runs) if self.mapped else None
        first = unless_unmapped(lambda: part(runs[0]))
        self.mapped = first is not None and _agree(first[1].sum(0), plain(runs[0]))
        if first is None or not self.mapped:
            return None
        self.problem.maps = True
        return chain([first], map(part, runs[1:]))

    def _runs(self) -> Iterator[range]:
        """Cut the rows into runs of as many groups as are mapped together, then those of a smaller last group."""
        group, local = self.problem.layout.group, self.problem.layout.local
        whole, step = local.stop - len(local) % group, self.at_once * group
        yield from (range(start, min(start + step, whole)) for start in range(local.start, whole, step))
        if whole < local.stop:
            yield range(whole, local.stop)

    def _part(self, rows: range, vector: torch.Tensor | None = None) -> Part:
        group = self.problem.layout.group
        inputs, labels = self.problem.batch(rows)
        parts = max(1, len(rows) // group)
        return rows.start // group, mapped(self.problem, self.scalar, fold(inputs, parts), fold(labels, parts), vector)


def vectors_at_once(problem: CurvatureProblem) -> int:
    """Number of vectors (size,), with the copies that are made of them, that a share of the free memory takes."""
    return free_bytes(problem.device) // SHARE // (4 * problem.size * problem.dtype.itemsize)


def maps(problem: CurvatureProblem) -> bool:
    """Whether rows are mapped: on a device, if vmap runs the model and two rows agree with a plain product."""
    if problem.maps is None:
        problem.maps = _worth(problem) and problem.guard(lambda: _try_vmap(problem))
    return problem.maps


def _worth(problem: CurvatureProblem) -> bool:
    return problem.device.type != "cpu" and problem.layout.n > 1 and problem.layout.micro > 1


def _try_vmap(problem: CurvatureProblem) -> bool:
    rows = range(2)
    inputs, labels = problem.batch(rows)
    v = signs(problem.size, 0, 0, range(RESERVED + 1, RESERVED + 2))[0].to(problem.device).to(problem.dtype)
    products = unless_unmapped(lambda: mapped(problem, _squares, fold(inputs, 2), fold(labels, 2), v))
    if products is None:
        return False
    pieces = problem.product(problem.gradients(rows, _squares), problem.split(v))
    return _agree(products.sum(0), torch.cat([piece.reshape(-1) for piece in pieces]))


def _agree(values: torch.Tensor, true: torch.Tensor) -> bool:
    return bool((values - true).norm() <= 1e-3 * true.norm())


def _squares(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.square().sum()


def fold(rows: Inputs, parts: int) -> Inputs:
    """Reshape (parts · n, ...) to (parts, n, ...)."""
    return tree_map(lambda part: part.unflatten(0, (parts, -1)), rows)


def mapped(
    problem: CurvatureProblem, scalar: Scalar, inputs: Inputs, labels: torch.Tensor, vectors: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute (parts, size) gradients of `scalar` summed over each part's rows, or products with its second derivative.

    Args:
        problem: the model.
        scalar: of (logits, labels), a sum over rows.
        inputs, labels: (parts, n, ...) rows.
        vectors: (size,), or (parts, size) each part's own, to multiply by; gradients without.

    Raises:
        UNMAPPED: where vmap cannot run the model.
    """
    weights = {name: t.detach() for name, t in zip(problem.names, problem.tensors)}

    def gradient(parameters: dict[str, torch.Tensor], x: Inputs, y: torch.Tensor) -> dict[str, torch.Tensor]:
        def total(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return scalar(problem.outputs(x, problem.placed(parameters)), y)

        gradients: dict[str, torch.Tensor] = grad(total)(parameters)
        return gradients

    def product(x: Inputs, y: torch.Tensor, v: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        products: dict[str, torch.Tensor] = vjp(lambda parameters: gradient(parameters, x, y), weights)[1](v)[0]
        return products

    if vectors is None:
        by_name = vmap(gradient, (None, 0, 0))(weights, inputs, labels)
    else:
        v = dict(zip(problem.names, problem.scaled(problem.pieces(vectors))))
        by_name = vmap(product, (0, 0, None if vectors.ndim == 1 else 0))(inputs, labels, v)
        by_name = dict(zip(problem.names, problem.scaled([by_name[name] for name in problem.names])))
    return torch.cat([by_name[name].flatten(1) for name in problem.names], 1).detach()


# Sums over long vectors in float64, block by block: no wide copy is made.

BLOCK = 1 << 16  # elements: 256 KiB of float32, which stay in a CPU's cache


def blocks(vector: torch.Tensor) -> Iterator[slice]:
    """Cut (..., size) vectors into slices: cache-sized on a CPU, all of it elsewhere."""
    size = vector.shape[-1]
    step = BLOCK if vector.device.type == "cpu" else size
    return (slice(i, i + step) for i in range(0, size, step))


def inner(a: torch.Tensor, b: torch.Tensor) -> float:
    """Compute aᵀb of two (size,) vectors of any precision, in float64."""
    return math.fsum(float(torch.dot(a[s].double(), b[s].double())) for s in blocks(a))


def norm(a: torch.Tensor) -> float:
    """Compute ‖a‖ of a (size,) vector, in float64."""
    return math.sqrt(inner(a, a))


def norm_of_pieces(pieces: Sequence[torch.Tensor]) -> float:
    """Compute the norm of a vector that is given as a piece per tensor, in their precision."""
    return float(torch.stack(torch._foreach_norm([p.detach() for p in pieces])).norm())


# Second derivatives of a mean over the data as operators, exact for ragged batches and shards.
#
# Reverse over reverse: the gradient of a micro-batch is differentiated once more per vector. Keeping its graph saves
# the forward and first backward pass (6 instead of 9 units of a forward pass's work). Sums over rows are followed by
# one all-reduce and one division by N; they are in float64, but for those of a few micro-batches.

FEW = 8  # micro-batches that are summed in the model's dtype, see `Total`


class Operator(Protocol):
    """A symmetric matrix as the Lanczos run knows it."""

    size: int

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """(size,) float32 or float64 to a new (size,) vector: float64, or the model's dtype (see `Total`)."""
        ...


def hessian_scalar(loss: LogitLoss) -> Scalar:
    """Return the sum of the losses as a function of logits and labels: its second derivative is H."""
    return lambda logits, labels: loss(logits, labels).sum()


def slope(loss: LogitLoss) -> Scalar:
    """Return ∂loss/∂z (n, K) as a function of logits and labels."""

    def derivative(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        z = logits.detach().requires_grad_()
        return torch.autograd.grad(loss(z, labels).sum(), z)[0]

    return derivative


def rest_scalar(loss: LogitLoss) -> Scalar:
    """Return Σ ⟨∂loss/∂z, z⟩ with the slope held fixed: its second derivative is H - G."""
    fixed = slope(loss)
    return lambda logits, labels: (fixed(logits, labels) * logits).sum()


def ggn_scalar(loss: LogitLoss) -> Scalar:
    """Return Σ loss - ⟨∂loss/∂z, z⟩ with the slope held fixed: its second derivative is G.

    Its slope in the logits is 0 where they are, so that their second derivatives have no part in it.
    """
    hessian, remainder = hessian_scalar(loss), rest_scalar(loss)
    return lambda logits, labels: hessian(logits, labels) - remainder(logits, labels)


class SecondDerivative:
    """∂²/∂θ² of (1/N) Σ scalar over the data.

    Args:
        problem: model, data and memory plan.
        scalar: sum over a micro-batch of the function to differentiate.
    """

    how = ""  # how products are made, where it is worth a word
    CARRIED: Sequence[str] = ()  # names of numbers that a product changes, which a saved state must hold (see `Pieces`)

    def __init__(self, problem: CurvatureProblem, scalar: Scalar) -> None:
        self.problem, self.scalar = problem, scalar
        self.size = problem.size
        self.groups = Groups(problem, scalar)
        self._kept: dict[range, list[torch.Tensor]] = {}

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """H v.

        Raises:
            InputError: the product is not finite.
        """
        (product,) = self.products([vector])
        return product

    def products(self, vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """H v of each vector (size,), in one pass over the data; errors are as in `matvec`."""

        def work() -> list[torch.Tensor]:
            pieces = [self.problem.split(vector) for vector in vectors]
            totals = [Total(self.problem) for _ in vectors]
            for _, gradients in self._graphs(self.problem.layout.micro):
                for total, of_vector in zip(totals, pieces):
                    total.add(self._product(gradients, of_vector))
            return [total.value() for total in totals]

        with devices.full_float32(self.problem.tf32):
            sums = self.problem.guard(work)
        return [self.mean(total) for total in sums]

    def by_group(self, vector: torch.Tensor) -> Iterator[Part]:
        """Sum H_n v over each group's rows, for the groups of this rank in order."""
        problem = self.problem
        if problem.tf32 or not problem.plan.keep:
            self.drop()  # certificates take float32
        pieces = problem.split(vector)

        def plain(rows: range) -> torch.Tensor:
            gradients = self._kept.get(rows) or problem.gradients(rows, self.scalar)
            return torch.cat([piece.reshape(-1) for piece in problem.product(gradients, pieces)])

        if (mapped_products := self.groups.products(vector.to(problem.device, problem.dtype), plain)) is not None:
            return mapped_products

        def products() -> Iterator[tuple[range, Sequence[torch.Tensor]]]:
            for rows, gradients in self._graphs(min(problem.layout.micro, problem.layout.group)):
                group_products = self._product(gradients, pieces)
                del gradients  # memory, here and below: the next is made before a loop lets go of the last one
                yield rows, group_products
                del group_products

        return grouped(problem, products())

    def gradients(self) -> Iterator[Part]:
        """Sum the gradients over each group's rows, for the groups of this rank in order."""
        problem = self.problem
        if not problem.plan.keep:
            self.drop()
        if self.groups.mapped and self.groups.at_once:
            return self.groups.gradients()
        batches = problem.layout.batches(min(problem.layout.micro, problem.layout.group))
        return grouped(problem, ((rows, problem.gradients(rows, self.scalar, graph=False)) for rows in batches))

    def mean(self, total: torch.Tensor) -> torch.Tensor:
        """Turn a rank's sum over rows into the mean over all of them, in place.

        Raises:
            InputError: it is not finite.
        """
        devices.all_sum(total).div_(self.problem.layout.n)
        if not math.isfinite(float(total.sum())):
            raise self.not_finite("a Hessian-vector product")
        return total

    def not_finite(self, what: str) -> InputError:
        """The error to raise where `what` is not finite."""
        if not (name := culprit(self.problem, self.scalar)):
            return InputError(f"{what} is not finite", "look for NaN weights, or use --dtype float64")
        fix = "keep it away from where its slope is infinite, as sqrt(x + 1e-12) does, or use --dtype float64"
        return InputError(f"{what} is not finite: the gradient of '{name}' is not", fix)

    def drop(self) -> None:
        """Free the kept graphs."""
        self._kept.clear()

    def share(self, other: SecondDerivative) -> None:
        """Keep graphs together with another: of the same function, in other coordinates."""
        self._kept = other._kept

    def error(self, value: float, vector: Callable[[], torch.Tensor]) -> float:
        """Estimate by how much products with a unit vector are off, beside rounding; `value` is the matrix's norm."""
        return 0.0

    def _product(self, gradients: Any, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Multiply the sum over the rows of a graph by a vector, a piece for each tensor."""
        return self.problem.product(gradients, pieces)

    def _graphs(self, micro: int) -> Iterator[tuple[range, Any]]:
        """Yield micro-batches of `micro` rows and their gradients, whose graphs are kept where the plan says so."""
        problem = self.problem
        if not problem.plan.keep:
            self.drop()
        for rows in problem.layout.batches(micro):
            gradients = self._kept.get(rows)
            if gradients is None:
                gradients = problem.gradients(rows, self.scalar)
                if problem.plan.keep and micro == problem.layout.micro:
                    self._kept[rows] = gradients
            yield rows, gradients
            del gradients


def grouped(problem: CurvatureProblem, parts: Iterable[tuple[range, Sequence[torch.Tensor]]]) -> Iterator[Part]:
    """Add up what runs of rows give, a piece per tensor, to one sum for each group, in order.

    A sum is float64, or of the model's dtype where one run of rows is the whole group.
    """
    size, total = problem.layout.group, None
    for rows, pieces in parts:
        part = torch.cat([piece.reshape(-1) for piece in pieces])
        del pieces  # memory
        total = part if total is None else total.double().add_(part)
        del part
        if rows.stop % size == 0 or rows.stop == problem.layout.n:
            done, total = total[None], None
            yield rows.start // size, done
            del done


class Total:
    """A sum of vectors in float64, of which every FEW are summed in the model's dtype first.

    Adding float32 to float64 takes ten times longer than to float32, and twice the memory: where there are no more
    than FEW, and one process, the sum stays in the model's dtype.
    """

    def __init__(self, problem: CurvatureProblem) -> None:
        self.problem = problem
        self.total: torch.Tensor | None = problem.zero() if problem.layout.world > 1 else None
        self.part: torch.Tensor | None = None
        self.count = 0

    def add(self, pieces: Sequence[torch.Tensor]) -> None:
        """Add one piece per tensor."""
        if self.count and self.count % FEW == 0:
            self.total, self.part = self._wide(), None
        self.count += 1
        if self.part is None:
            self.part = torch.cat([piece.reshape(-1) for piece in pieces])
        else:
            torch._foreach_add_(self.problem.pieces(self.part), list(pieces))

    def value(self) -> torch.Tensor:
        """Return the sum (size,), once: it is used up."""
        return self._wide() if self.total is not None or self.part is None else self.part

    def _wide(self) -> torch.Tensor:
        total = self.problem.zero() if self.total is None else self.total
        return total if self.part is None else total.add_(self.part)


Question = Callable[[], bool]
ELEMENTS = 1024  # of a diagonal that are one piece of a saved state


class Diagonals:
    """Traces of the parameter tensors' diagonal blocks of ∂²Σ scalar by cell of rows, each computed once.

    Args:
        problem: model and data.
        scalar: what is differentiated twice, a sum over rows.
        tensors: (tensors,) bool, those that are wanted.
        asked: whether this process was asked to stop: it leaves off before the next element.
        agree: raises in all processes where one of them was asked to stop.
        pieces: elements that are known from a saved state.
    """

    def __init__(
        self,
        problem: CurvatureProblem,
        scalar: Scalar,
        tensors: torch.Tensor,
        *,
        asked: Question,
        agree: Question,
        pieces: Pieces | None = None,
    ) -> None:
        self.problem, self.scalar, self.asked, self.agree = problem, scalar, asked, agree
        self.pieces = pieces or Pieces()
        self.tensors: list[bool] = tensors.tolist()
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, cell: int, chosen: torch.Tensor | None = None) -> torch.Tensor:
        """Return traces (cells, tensors), each summed over its `cell` rows, of the `chosen` (cells,) ones or of all."""
        cells = torch.ones(-(-self.problem.layout.n // cell), dtype=torch.bool) if chosen is None else chosen
        key = cell, *cells.nonzero().flatten().tolist()
        while key not in self._known:
            traces = self.problem.guard(lambda: self._own(cell, cells))
            whole = all(devices.all_least(self.problem.device, int(traces is not None)))
            self.agree()
            if whole and traces is not None:
                self._known[key] = devices.all_sum_of_host(traces, self.problem.device)
        return self._known[key]

    def _own(self, cell: int, cells: torch.Tensor) -> torch.Tensor | None:
        """Compute the traces over this rank's rows; None where it was asked to stop."""
        layout = self.problem.layout
        traces = torch.zeros(len(cells), len(self.tensors), dtype=torch.float64)
        for rows in layout.batches(min(layout.micro, cell)):
            if not cells[rows.start // cell]:
                continue
            gradients = self.problem.gradients(rows, self.scalar)
            for k, (gradient, tensor) in enumerate(zip(gradients, self.problem.tensors)):
                if not self.tensors[k] or not gradient.requires_grad:
                    continue
                flat = gradient.reshape(-1)
                scale = self.problem.scales[k].expand(tensor.shape).reshape(-1) if self.problem.scales else None
                for start in range(0, len(flat), ELEMENTS):
                    name = f"diagonal of rows {rows.start} to {rows.stop}, tensor {k} from {start}"
                    known, total = self.pieces.recall(name), 0.0
                    for i in () if known else range(start, min(start + ELEMENTS, len(flat))):
                        if self.asked():
                            return None
                        (row,) = torch.autograd.grad(flat[i], tensor, retain_graph=True, materialize_grads=True)
                        element = row.reshape(-1)[i]
                        total += float(element if scale is None else element * scale[i] ** 2)
                    if not known:
                        self.pieces.keep(name, known := [torch.tensor(total, dtype=torch.float64)])
                    traces[rows.start // cell, k] += known[0]
        return traces


# Row by row along one direction.


def slopes_along(problem: CurvatureProblem, vector: torch.Tensor) -> torch.Tensor:
    """Differentiate every row's logits along a vector (size,): J_n v, (N, K) in float64 on the CPU.

    The gradient of Σ ⟨w, z⟩ is linear in w; its inner product with v is differentiated in w.
    """

    def work() -> torch.Tensor:
        out = torch.zeros(problem.layout.n, problem.classes, dtype=torch.float64)
        pieces = problem.scaled(problem.split(vector))
        for rows in problem.layout.batches():
            weights: list[torch.Tensor] = []

            def weighted(z: torch.Tensor, _: torch.Tensor, weights: list[torch.Tensor] = weights) -> torch.Tensor:
                weights.append(torch.zeros_like(z, requires_grad=True))
                return (weights[0] * z).sum()

            live = [(g, v) for g, v in zip(problem.gradients(rows, weighted), pieces) if g.requires_grad]
            (part,) = torch.autograd.grad([g for g, _ in live], weights, [v for _, v in live])
            out[rows.start : rows.stop] = part.double().cpu()
        return out

    return devices.all_sum_of_host(problem.guard(work), problem.device)


def forms_along(problem: CurvatureProblem, loss: LogitLoss, vector: torch.Tensor) -> torch.Tensor | None:
    """Differentiate every row's loss twice along a vector (size,): vᵀH_n v, (N,) in float64 on the CPU.

    None where an operation has no rule to carry derivatives forward (`Jets`).
    """

    def work() -> torch.Tensor | None:
        out = torch.zeros(problem.layout.n, dtype=torch.float64)
        pieces = problem.scaled(problem.split(vector))
        for rows in problem.layout.batches():
            inputs, labels = problem.batch(rows)
            with Jets(problem.tensors, [pieces]) as jets:
                z = problem.outputs(inputs)
            jet = jets.of(z)
            if jet is None:
                return None
            first, second = (torch.zeros_like(z) if d is None else d.detach().to(z.dtype) for d in jet[0])
            out[rows.start : rows.stop] = curvature_along(loss, z.detach(), labels, first, second)
        return out

    forms = problem.guard(work)
    complete = all(devices.all_least(problem.device, int(forms is not None)))
    return devices.all_sum_of_host(forms, problem.device) if complete and forms is not None else None


def curvature_along(
    loss: LogitLoss, logits: torch.Tensor, labels: torch.Tensor, first: torch.Tensor, second: torch.Tensor | None = None
) -> torch.Tensor:
    """Differentiate each row's loss twice along a curve of the logits with these derivatives (n, K): (n,) float64."""
    t = logits.new_zeros(len(logits), 1, requires_grad=True)
    z = logits + t * first + (0 if second is None else t.square() / 2 * second)
    (slopes,) = torch.autograd.grad(loss(z, labels).sum(), t, create_graph=True)
    if not slopes.requires_grad:
        return torch.zeros(len(logits), dtype=torch.float64)
    return torch.autograd.grad(slopes.sum(), t)[0][:, 0].double().cpu()


@dataclass(frozen=True)
class Gradient:
    """(size,) gradient of the mean loss, the standard error of its norm, and √(tr Σ / N), the noise it stands in."""

    vector: torch.Tensor
    se: float
    noise: float


def mean_gradient(hessian: SecondDerivative) -> Gradient:
    """Compute the gradient of the mean loss and its spread between groups.

    One pass over the data, or two where the gradients of all groups do not fit into memory.
    """
    problem, layout = hessian.problem, hessian.problem.layout
    room = free_bytes(problem.device) // 16 // (problem.size * problem.dtype.itemsize)
    kept: list[Part] = []

    def sum_of_all() -> torch.Tensor:
        kept.clear()
        total = Total(problem)
        if layout.groups > room:
            for rows in layout.batches():
                total.add(problem.gradients(rows, hessian.scalar, graph=False))
            return total.value()
        for part in hessian.gradients():
            kept.append(part)
            total.add(problem.pieces(part[1].sum(0)))
        return total.value()

    total = devices.all_sum(problem.guard(sum_of_all)).div_(layout.n)
    length = max(norm(total), 1e-300)
    weights = layout.weights.to(problem.device)
    along = torch.zeros(layout.groups, dtype=torch.float64, device=problem.device)
    squares = torch.zeros(1, dtype=torch.float64, device=problem.device)

    def spread() -> None:
        squares.zero_()  # where memory ran out it starts again, without the gradients that were kept
        along.zero_()
        sums = [*kept]
        kept.clear()
        for first, g in sums or hessian.gradients():
            here = slice(first, first + len(g))
            for s in blocks(total):
                mean = total[s].double()
                share = g[:, s].double().div_(layout.n).sub_(weights[here, None] * mean)
                along[here] += share @ mean / length
                squares.add_(share.square().sum())

    problem.guard(spread)
    devices.all_sum(along)
    devices.all_sum(squares)
    correct = layout.groups / max(layout.groups - 1, 1)
    errors = torch.cat([along.square().sum()[None], squares]).mul_(correct).sqrt_().tolist()
    return Gradient(total, *errors)


def culprit(problem: CurvatureProblem, scalar: Scalar) -> str:
    """Name the first operation whose gradient, or the gradient of whose gradient, is not finite; "" if there is none.

    `torch.autograd.detect_anomaly` would name another one where the gradient is infinite before it is NaN.
    """
    found: list[str] = []

    def watched(node: Any) -> Callable[[Any, Any], None]:
        def hook(after: Any, before: Any) -> None:
            lost = [any(g is not None and not bool(g.isfinite().all()) for g in some) for some in (before, after)]
            if lost == [False, True]:
                found.append(re.sub(r"Backward\d*$", "", node.name()))

        return hook

    def backward(outputs: Sequence[torch.Tensor], along: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        open_nodes, seen = [t.grad_fn for t in outputs], set[Any]()
        while open_nodes:
            node = open_nodes.pop()
            if node is not None and node not in seen:
                seen.add(node)
                open_nodes += [next_node for next_node, _ in node.next_functions]
        handles = [node.register_hook(watched(node)) for node in seen]
        try:
            return torch.autograd.grad(outputs, problem.tensors, along, create_graph=True, materialize_grads=True)
        finally:
            for handle in handles:
                handle.remove()

    for rows in problem.layout.batches(problem.layout.micro):
        total = scalar(*problem.logits(rows))
        gradients = backward([total], [torch.ones_like(total)])
        if not found and (live := [g for g in gradients if g.requires_grad]):
            backward(live, [torch.ones_like(g) for g in live])
        if found:
            return found[0]
    return ""
