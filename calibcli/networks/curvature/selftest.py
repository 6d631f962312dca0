"""The self-test of `calib curvature`: outputs and second derivatives are checked on a few rows before all else."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from calibcli.core.errors import InputError
from calibcli.core.memory import trim
from calibcli.networks import device as devices
from calibcli.networks.curvature import sharded
from calibcli.networks.curvature.differences import Differences, GradientDifferences
from calibcli.networks.curvature.loss import LogitLoss
from calibcli.networks.curvature.memory_plan import counted_graph
from calibcli.networks.curvature.operator import SecondDerivative, hessian_scalar, norm_of_pieces
from calibcli.networks.curvature.per_row_gradients import unless_unmapped
from calibcli.networks.curvature.problem import (
    RESERVED,
    CurvatureProblem,
    has_twin,
    normal,
    padding_rows,
    second,
    signs,
    twin,
)

SYMMETRIC = 1e-3  # relative difference of two forms from which a second derivative is taken to be none
WRONG = 0.05  # relative difference from which a second derivative is taken to be wrong
ROUNDED = 0.01  # relative error of products in float32 from which a note says so
CLOSE = 1e-3  # up to which it is taken to be right at the first try
ASIDE = (1e-3, 0.1)  # of the root mean square parameter: how far away it is tried again
FIRST = (1e-7,)  # move of the differences at the first try, which crosses few kinks
STEPS = (1e-6, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3)  # of the norm of the parameters: moves of the differences
CUSTOM = "(a custom autograd function may not be)"
LARGEST = 20_000_000  # elements of the tensors that are moved: the smaller ones of a larger model


class AttentionWatch(TorchFunctionMode):
    """Note whether a forward pass calls scaled-dot-product attention."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.seen = True
        return func(*args, **(kwargs or {}))


class NoSecondDerivative(InputError):
    """The model's second derivative is missing or wrong."""


@dataclass
class SelfTest:
    """Relative errors on the test rows, and notes for the reader; whether the model has second derivatives."""

    double: bool = True
    asymmetry: float = 0.0
    difference: float | None = None
    notes: list[str] = field(default_factory=list)


def check(problem: CurvatureProblem, loss: LogitLoss, by_group: bool = True, first_order: bool = False) -> SelfTest:
    """Check outputs, labels, determinism and second derivatives; then choose the memory plan.

    `first_order` says that second derivatives may be missing.

    Raises:
        InputError: a check fails.
    """
    problem.check_room(0)
    result = problem.guard(lambda: _check(problem, loss, first_order))
    trim()
    problem.choose_plan(by_group)
    rows = 1 if problem.plan.fixed else min(problem.layout.micro, problem.layout.n)
    problem.check_room(2 * problem.graph_bytes * rows)
    if not result.double or problem.from_gradients:
        problem.plan = replace(problem.plan, keep=False)  # differences keep none
    return result


def _check(problem: CurvatureProblem, loss: LogitLoss, first_order: bool) -> SelfTest:
    result = SelfTest()
    logits = _outputs(problem, result)
    _labels(problem, logits.shape[1])
    try:
        if problem.sharded:
            _sharded(problem, loss, logits, result)
        else:
            with sdpa_kernel(SDPBackend.MATH):
                _second_order(problem, loss, logits, result)
    except NoSecondDerivative as error:
        result.double, result.difference = False, None
        try:
            result.asymmetry = _first_order(problem, loss, logits)
        except (InputError, RuntimeError) as other:
            if devices.is_out_of_memory(other):
                raise
            raise (other if first_order and isinstance(other, InputError) else error) from None
        if problem.from_gradients:
            return result
        if not first_order:
            error.fix = (
                "ask for what needs none: -w lambda_max_ggn, or hessian(..., matrix='ggn'); or pass"
                f" --products gradients; or {error.fix}"
            )
            raise
        result.notes.append(f"{error.problem}: what is asked for takes first derivatives alone")
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in problem.model.modules()):
        result.notes.append("BatchNorm uses its running statistics (eval mode)")
    return result


def _sharded(problem: CurvatureProblem, loss: LogitLoss, logits: torch.Tensor, result: SelfTest) -> None:
    """Compare the gradient, which processes put together, with a difference of the loss; also guess the graph's size.

    Raises:
        InputError: the two disagree, or outputs change from call to call.
    """
    rows, scalar, operator = _rows(problem), hessian_scalar(loss), GradientDifferences(problem, loss)
    result.double, result.difference = False, None
    with torch.no_grad(), sharded.output_bytes(problem.model) as sizes:
        again = problem.logits(rows)[0]
    (problem.graph_bytes,) = devices.all_least(problem.device, 4 * sum(sizes) // len(rows))
    if not torch.allclose(logits, again, rtol=1e-5, atol=1e-6 * float(logits.abs().max())):
        raise InputError("the model's outputs change from call to call", "switch off dropout and noise in eval mode")
    gradient = problem.gradients(rows, scalar)
    length, step = norm_of_pieces(gradient), FIRST[0] ** 0.5 * operator.length
    if length == 0:
        return
    losses = []
    for by in (step, -step):
        with operator.moved([g / length for g in gradient], by), torch.no_grad():
            losses.append(float(scalar(*problem.logits(rows)).double()))
    off = abs((losses[0] - losses[1]) / (2 * step) / length - 1)
    if off > WRONG:
        fix = "leave the factors of reductions as fully_shard sets them, and gradients unscaled"
        raise InputError(f"the sharded gradient disagrees with a difference of the loss (by {off:.2g} of it)", fix)


def _first_order(problem: CurvatureProblem, loss: LogitLoss, logits: torch.Tensor) -> float:
    """Compare Jᵀu of a backward pass with Jv of differences, u = Jv: the relative error. It also counts the graph.

    Raises:
        InputError: the two disagree.  RuntimeError: there is no backward pass, or it is not finite.
    """
    rows, operator = _rows(problem), Differences(problem, loss)
    v = _normal([t.detach() for t in problem.tensors])
    with counted_graph(problem.model) as sizes:
        here = operator.at(rows)
    problem.graph_bytes = 2 * sum(sizes.values()) // len(rows)  # what is noted of kinks takes as much again
    slopes = operator.slopes(here, [p.to(problem.dtype) for p in v])[0]  # (n, K)
    found = torch.autograd.grad(here.logits, problem.tensors, slopes, allow_unused=True)
    # a gradient of 0, as behind a dead channel, is one
    _refuse_without_gradient(
        problem, rows, logits, [logits.new_zeros(1) if g is None else g.new_ones(1) for g in found]
    )
    gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(problem.tensors, found)]
    if not math.isfinite(norm_of_pieces(gradients)):
        raise RuntimeError("the gradient is not finite either")
    square = float(slopes.double().square().sum())
    off = abs(_dot(gradients, [p.to(problem.dtype) for p in v]) - square) / max(square, 1e-300)
    if off > WRONG:
        fix = "use operations whose backward pass is that of their forward pass (rounding straight through is not)"
        raise InputError(f"the gradient disagrees with a difference of outputs (relative error {off:.2g})", fix)
    return off


def _second_order(problem: CurvatureProblem, loss: LogitLoss, logits: torch.Tensor, result: SelfTest) -> None:
    """Check that the second derivative is there, symmetric and that of a difference of gradients."""
    v, w = _directions(problem)
    all_four = [v, w, *_products(problem, loss, logits, [v, w])]
    hv = all_four[2]
    result.asymmetry = _asymmetry(*all_four)
    if not math.isfinite(result.asymmetry):  # as one of the products then is not
        infinite = SecondDerivative(problem, hessian_scalar(loss)).not_finite("a Hessian-vector product")
        raise NoSecondDerivative(infinite.problem, infinite.fix)
    if result.asymmetry > SYMMETRIC and (why := _asymmetric(problem, loss, all_four, result.asymmetry)):
        raise why
    length = sum(p.numel() for p in v) ** 0.5  # of v and w
    unit = [*torch._foreach_div(v, length)]
    del v, w, all_four  # memory
    torch._foreach_div_(hv, length)
    result.difference, kinks = _difference(problem, loss, unit, hv, result.notes)
    if kinks:
        where = "units lie exactly at a kink (a ReLU of 0, as behind a dead channel)"
        result.notes.append(f"{where}: the gradient jumps there, and H is that of PyTorch's choice of a side")
    elif result.difference is not None and result.difference > WRONG:
        error = f"relative error {result.difference:.2g} on {len(_rows(problem))} rows"
        fix = (
            f"use operations whose backward pass is differentiable {CUSTOM}, take nothing that depends on the weights"
            " out of the graph (detach(), no_grad()), and leave the weights as they are"
        )
        raise NoSecondDerivative(f"the second derivative disagrees with a difference of gradients ({error})", fix)


def _asymmetry(*pieces: list[torch.Tensor]) -> float:
    """Compute |wᵀHv - vᵀHw| from signs v, w, Hv and Hw, relative to the size that either might have.

    It is NaN where one of them is not finite.
    """
    v, w, hv, hw = pieces
    scale = (norm_of_pieces(hv) + norm_of_pieces(hw)) * sum(p.numel() for p in v) ** 0.5 / 2
    return 0.0 if scale == 0 else abs(_dot(w, hv) - _dot(v, hw)) / scale


def _asymmetric(
    problem: CurvatureProblem, loss: LogitLoss, vectors_and_products: list[list[torch.Tensor]], error: float
) -> InputError | None:
    """Say why the products of v, w, Hv, Hw are not symmetric: a derivative that is wrong, or rounding.

    A float64 copy decides. None where the rounding is small beside H times a Gaussian vector: H is then next to 0 along
    v and w by chance.
    """
    rows = _rows(problem)
    with contextlib.suppress(RuntimeError, KeyError):  # as for `_difference`
        v, w, *products = ([p.double() for p in pieces] for pieces in vectors_and_products)
        wide = twin(problem, _moved(problem))
        *exact, scale = (_Along(wide, rows, loss, pieces).product() for pieces in (v, w, _normal(v)))
        if problem.dtype != torch.float64 and _asymmetry(v, w, *exact) <= SYMMETRIC / 10:
            off = max(norm_of_pieces([*torch._foreach_sub(a, b)]) for a, b in zip(products, exact)) / norm_of_pieces(
                scale
            )
            rounded = f"products in {str(problem.dtype)[6:]} are rounded to {off:.1g} of their size"
            problem_text = f"{rounded} (on {len(rows)} rows)"
            return InputError(problem_text, "pass --dtype float64") if off > SYMMETRIC else None
    problem_text = f"the second derivative is not symmetric (relative error {error:.1g} on {len(rows)} rows)"
    fix = f"use operations whose backward pass is differentiable and deterministic {CUSTOM}"
    return NoSecondDerivative(problem_text, fix)


def _labels(problem: CurvatureProblem, classes: int) -> None:
    """Set the number of classes, and refuse labels that are not below it."""
    labels = torch.as_tensor(problem.source.labels)
    problem.classes = classes
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        problem_text = f"label {low if low < 0 else high} is beyond the model's {classes} outputs"
        fix = f"pass labels from 0 to {classes - 1}, or the model that belongs to this data set"
        raise InputError(problem_text, fix)


def _rows(problem: CurvatureProblem) -> range:
    """Return the rows that are tested."""
    return range(min(4 if problem.size <= LARGEST else 2, problem.layout.n, problem.layout.micro))


def _moved(problem: CurvatureProblem) -> list[int]:
    """Choose the parameter tensors that the test moves: all, or of a large model the smaller ones."""
    chosen: list[int] = []
    total = 0
    for i in sorted(range(len(problem.sizes)), key=problem.sizes.__getitem__):
        total += problem.sizes[i]
        if total > LARGEST and chosen:
            break
        chosen.append(i)
    return sorted(chosen)


def _directions(problem: CurvatureProblem) -> list[list[torch.Tensor]]:
    """Draw two directions of random signs, a piece for each tensor that is moved."""
    moved = _moved(problem)
    tensors = [problem.tensors[i] for i in moved]
    sizes = [t.numel() for t in tensors]
    drawn = signs(sum(sizes), 0, 0, range(RESERVED + 1, RESERVED + 3)).to(problem.device).to(tensors[0].dtype)
    pieces = [p.view(2, *t.shape) for p, t in zip(torch.split(drawn, sizes, 1), tensors)]  # (2, *shape) each
    for number, row in padding_rows(problem):
        if number in moved:
            pieces[moved.index(number)][:, row] = 0
    return [[piece[i] for piece in pieces] for i in range(2)]


def _outputs(problem: CurvatureProblem, result: SelfTest) -> torch.Tensor:
    rows = _rows(problem)
    try:
        with torch.no_grad(), AttentionWatch() as watch:
            logits, _ = problem.logits(rows)
    except RuntimeError as error:
        raise devices.of_dtype(error, problem.dtype) or error from None
    attends = watch.seen or any(isinstance(m, nn.MultiheadAttention) for m in problem.model.modules())
    if attends and not problem.from_gradients:
        result.notes.append("attention runs in its math form: the fused kernels have no second derivative")
    if logits.ndim != 2 or len(logits) != len(rows):
        raise InputError(
            f"the model gives {tuple(logits.shape)} for {len(rows)} rows",
            "pass a model with outputs (rows, classes); of a model of sequences a row is one position of each, as of a"
            " module around it that returns logits[:, -1]",
        )
    if not bool(logits.isfinite().all()):
        named = dict(problem.model.named_parameters())
        bad = [n for n, p in named.items() if not bool(p.isfinite().all())]
        where = f"parameter '{bad[0]}' is not finite" if bad else "its weights are finite"
        raise InputError(f"the model's outputs are not finite ({where})", "check the checkpoint and the inputs' scale")
    return logits


def _products(
    problem: CurvatureProblem, loss: LogitLoss, logits: torch.Tensor, vectors: list[list[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Compute H v for each of the vectors, in the tensors that are moved.

    The pass also counts the bytes that its graph holds, and its outputs must be those of the first call, `logits`.
    """
    again: list[torch.Tensor] = []
    rows, moved = _rows(problem), _moved(problem)

    def scalar(z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        again.append(z.detach())
        return loss(z, labels).sum()

    try:
        with counted_graph(problem.model) as sizes:
            gradients = problem.gradients(rows, scalar)
        problem.graph_bytes = sum(sizes.values()) // len(rows)
        if not torch.allclose(logits, again[0], rtol=1e-5, atol=1e-6 * float(logits.abs().max())):
            problem_text = "the model's outputs change from call to call"
            raise InputError(problem_text, "switch off dropout and noise in eval mode")
        _refuse_without_gradient(problem, rows, logits, gradients)
        some, tensors = [gradients[i] for i in moved], [problem.tensors[i] for i in moved]
        return _of_each(problem, some, tensors, vectors)
    except RuntimeError as error:
        if devices.is_out_of_memory(error):
            raise
        if "same device" in str(error):
            problem_text = f"the model or its loss holds tensors that did not move to {problem.device}"
            fix = "register them as buffers (register_buffer), or make them on the device of what they are used with"
            raise InputError(problem_text, fix) from None
        fix = "use operations whose backward pass is differentiable, or --params to leave out those that lack it"
        raise NoSecondDerivative(f"the model has no second derivative ({str(error).splitlines()[0]})", fix) from None


def _refuse_without_gradient(
    problem: CurvatureProblem, rows: range, logits: torch.Tensor, gradients: list[torch.Tensor]
) -> None:
    """Refuse parameters that the outputs depend on without a gradient: second derivatives would be wrong too."""
    for name, tensor, gradient in zip(problem.names, problem.tensors, gradients):
        if gradient.grad_fn is not None or bool(gradient.any()):
            continue
        with torch.no_grad():
            before = tensor.clone()
            tensor.mul_(1.1).add_(0.01)
            moved = problem.logits(rows)[0]
            tensor.copy_(before)
        if not torch.allclose(logits, moved, rtol=1e-5, atol=1e-6 * float(logits.abs().max())):
            raise InputError(
                f"the model's outputs depend on parameter '{name}', but have no gradient in it",
                "leave no_grad(), detach() and reentrant checkpointing (use_reentrant=False does) out of its forward"
                " pass, or leave the parameter out by --params",
            )


def _of_each(
    problem: CurvatureProblem,
    gradients: list[torch.Tensor],
    tensors: list[torch.Tensor],
    vectors: list[list[torch.Tensor]],
) -> list[list[torch.Tensor]]:
    """Multiply the second derivative by each vector: together on a device where `vmap` can, else in turn.

    In turn the self-test of a ResNet-20 takes 2,942 kernels, together 2,440 (`tests/device/test_counts.py`).
    """
    if problem.device.type != "cpu" and all(g.requires_grad for g in gradients):
        batched = [torch.stack(pieces) for pieces in zip(*vectors)]
        work = partial(torch.autograd.grad, gradients, tensors, batched, retain_graph=True, is_grads_batched=True)
        if (products := unless_unmapped(work)) is not None:
            return [[p[i] for p in products] for i in range(len(vectors))]
    return [second(gradients, tensors, v) for v in vectors]


def _difference(
    problem: CurvatureProblem, loss: LogitLoss, v: list[torch.Tensor], hv: list[torch.Tensor], notes: list[str]
) -> tuple[float | None, bool]:
    """Compare the double backward along a unit vector v with central differences of gradients in a float64 copy.

    Returns the relative error, None for a model that does not run in float64, and whether it is that of a point aside,
    because units of the model lie at a kink. The products at hand come first; where they differ, those of the copy
    decide, free of rounding. At a kink differences grow as 1/step, whatever the derivative; a derivative that is wrong
    is wrong at other points too. They must be far enough: where batch norm's biases are 0 and signals shrink, all units
    lie near a kink.
    """
    if not has_twin(problem):
        return None, False
    try:
        along = _Along(twin(problem, _moved(problem)), _rows(problem), loss, v)
        here = along.disagreement(hv, FIRST)
        if here <= CLOSE:
            return here, False
        exact = along.product()
        if problem.dtype == torch.float32 and (off := _rounding(along, hv, exact)) > ROUNDED:
            rounded = f"products in float32 are rounded to {off:.1g} of their size (on {len(along.rows)} rows)"
            notes.append(f"{rounded}: --dtype float64 has less rounding")
        here = along.disagreement(exact)
    except (RuntimeError, KeyError):
        return None, False  # a model that does not run in float64, or not within the memory
    if here <= WRONG:
        return here, False
    tensors, u = along.twin.tensors, _normal(v)
    size = norm_of_pieces(tensors) / sum(p.numel() for p in v) ** 0.5
    for share in ASIDE:
        with torch.no_grad():
            torch._foreach_add_(tensors, u, alpha=share * size)
        aside = along.disagreement(along.product())
        if aside <= WRONG:
            return aside, True
    return here, False


def _rounding(along: _Along, product: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Relative error of a product along a unit vector; as it may be 0 by chance, one along a Gaussian counts too."""
    u = _normal(along.v)
    size = max(norm_of_pieces(exact), norm_of_pieces(replace(along, v=u).product()) / norm_of_pieces(u), 1e-300)
    return norm_of_pieces([a - b for a, b in zip(product, exact)]) / size


def _normal(like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Draw standard normal pieces of these shapes, in float64."""
    sizes = [p.numel() for p in like]
    pieces = torch.split(normal(sum(sizes), 0, 0), sizes)
    return [piece.view_as(p).to(p.device) for piece, p in zip(pieces, like)]


@dataclass
class _Along:
    """Derivatives of a float64 model along a direction, a piece for each of its tensors."""

    twin: CurvatureProblem
    rows: range
    loss: LogitLoss
    v: list[torch.Tensor]

    def product(self) -> list[torch.Tensor]:
        gradients = self.twin.gradients(self.rows, hessian_scalar(self.loss))
        return second(gradients, self.twin.tensors, [p.double() for p in self.v])

    def disagreement(self, exact: list[torch.Tensor], steps: tuple[float, ...] = STEPS) -> float:
        """Relative error at the point where the model is, which is moved by rounding only.

        Kinks crossed by the step make differences wrong, not the derivative: the best of the steps counts. A model
        that computes in float32 within needs long ones.
        """
        tensors, size = self.twin.tensors, norm_of_pieces(exact)
        norm, errors, place = norm_of_pieces(tensors), [], 0.0
        for step in steps:
            step *= max(norm, 1e-3)
            sides: list[list[torch.Tensor]] = []
            for side in (step, -step):
                self._move(side - place)
                place = side
                sides.append(self.twin.gradients(self.rows, hessian_scalar(self.loss), graph=False))
            slope, slopes = norm_of_pieces(sides[0]), sides[0]
            torch._foreach_sub_(slopes, sides.pop())
            torch._foreach_div_(slopes, 2 * step)
            torch._foreach_sub_(slopes, exact)
            error = norm_of_pieces(slopes)
            rounding = 1e-8 * slope / max(step, FIRST[0] * norm)  # a finer step is no excuse
            errors.append(error / max(size, rounding, 1e-300))
            if errors[-1] < CLOSE:
                break
        self._move(-place)
        return min(errors)

    def _move(self, by: float) -> None:
        with torch.no_grad():
            torch._foreach_add_(self.twin.tensors, self.v, alpha=by)


def _dot(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    left, right = (torch.cat([p.reshape(-1) for p in pieces]) for pieces in (a, b))
    return float(torch.dot(left, right))
