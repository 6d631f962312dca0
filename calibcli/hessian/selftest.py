"""What is checked on a few rows before any number is trusted."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import nn

from calibcli import device as devices
from calibcli.errors import InputError
from calibcli.hessian.indexed_data import normal, signs
from calibcli.hessian.loss import LogitLoss
from calibcli.hessian.operator import hessian_scalar
from calibcli.hessian.problem import Problem
from calibcli.hessian.settings import AttentionWatch

WRONG = 0.05  # relative difference from which a second derivative is taken to be wrong
ASIDE = (1e-3, 0.1)  # of the root mean square parameter: how far away it is tried again
LARGEST = 20_000_000  # parameters up to which the double backward is compared with differences in float64


@dataclass
class SelfTest:
    """Relative errors found on the test rows, and remarks for the reader."""

    asymmetry: float = 0.0
    difference: float | None = None
    notes: list[str] = field(default_factory=list)


def check(problem: Problem, loss: LogitLoss, by_group: bool = True) -> SelfTest:
    """Outputs, labels, determinism, second derivatives; then the memory plan (`Problem.plan`).

    Raises:
        InputError: any of them is not as it must be.
    """
    found = problem.guard(lambda: _check(problem, loss))
    problem.guard(lambda: problem.plan(hessian_scalar(loss), by_group))
    return found


def _check(problem: Problem, loss: LogitLoss) -> SelfTest:
    found = SelfTest()
    rows = range(min(4, problem.layout.n, problem.layout.micro))
    logits = _outputs(problem, rows, found)
    labels = torch.as_tensor(problem.source.labels)
    problem.classes = logits.shape[1]
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= problem.classes:
        bad = low if low < 0 else high
        raise InputError(
            f"label {bad} is beyond the model's {problem.classes} outputs",
            f"pass labels from 0 to {problem.classes - 1}, or the model that belongs to this data set",
        )
    v, w = signs(problem.size, 0, 0, range((1 << 31) + 1, (1 << 31) + 3)).to(problem.device, torch.float64)
    _hold_padding(problem, v)
    hv, hw, again = _products(problem, rows, loss, [v, w, v])
    largest = max(float(p.abs().max()) for p in hv)
    if not all(torch.equal(a, b) or torch.allclose(a, b, rtol=1e-4, atol=1e-5 * largest) for a, b in zip(hv, again)):
        raise InputError("two equal Hessian products differ", "make the model's forward pass deterministic")
    length = problem.size**0.5  # of v and w
    scale = (_norm(hv) + _norm(hw)) * length / 2
    found.asymmetry = abs(_dot(w, hv) - _dot(v, hw)) / scale if scale > 0 else 0.0
    if found.asymmetry > 1e-3:
        raise InputError(
            f"the second derivative is not symmetric (relative error {found.asymmetry:.1g} on {len(rows)} rows)",
            "use operations whose backward pass is differentiable (a custom autograd function may not be)",
        )
    del w, hv, hw, again  # memory
    if problem.size <= LARGEST:
        found.difference, kinks = _difference(problem, rows, loss, v.div_(length))
        if kinks:
            found.notes.append(
                "units lie exactly at a kink (a ReLU of 0, as behind a dead channel): the gradient jumps there, and"
                " H is that of PyTorch's choice of a side"
            )
        elif found.difference is not None and found.difference > WRONG:
            raise InputError(
                "the second derivative disagrees with a difference of gradients "
                f"(relative error {found.difference:.2g} on {len(rows)} rows)",
                "use operations whose backward pass is differentiable (a custom autograd function may not be)",
            )
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in problem.model.modules()):
        found.notes.append("BatchNorm uses its running statistics (eval mode)")
    return found


def _hold_padding(problem: Problem, v: torch.Tensor) -> None:
    """Let a direction (size,) not move the rows for padding of embeddings, which have no gradient by definition."""
    kinds = nn.Embedding, nn.EmbeddingBag
    rows = {id(m.weight): m.padding_idx for m in problem.model.modules() if isinstance(m, kinds)}
    for piece, tensor in zip(torch.split(v, problem.sizes), problem.tensors):
        if (row := rows.get(id(tensor))) is not None:
            piece.view_as(tensor)[row] = 0


def _outputs(problem: Problem, rows: range, found: SelfTest) -> torch.Tensor:
    with torch.no_grad(), AttentionWatch() as watch:
        logits, _ = problem.logits(rows)
        again, _ = problem.logits(rows)
    if watch.seen or any(isinstance(m, nn.MultiheadAttention) for m in problem.model.modules()):
        found.notes.append("attention runs in its math form: the fused kernels have no second derivative")
    if logits.ndim != 2 or len(logits) != len(rows):
        raise InputError(
            f"the model gives {tuple(logits.shape)} for {len(rows)} rows", "pass a model with outputs (rows, classes)"
        )
    if not bool(logits.isfinite().all()):
        named = dict(problem.model.named_parameters())
        bad = [n for n, p in named.items() if not bool(p.isfinite().all())]
        where = f"parameter '{bad[0]}' is not finite" if bad else "its weights are finite"
        raise InputError(f"the model's outputs are not finite ({where})", "check the checkpoint and the inputs' scale")
    if not torch.allclose(logits, again, rtol=1e-5, atol=1e-6 * float(logits.abs().max())):
        raise InputError("the model's outputs change from call to call", "switch off dropout and noise in eval mode")
    return logits


def _products(problem: Problem, rows: range, loss: LogitLoss, vectors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    try:
        gradients = problem.gradients(rows, hessian_scalar(loss))
        return [problem.product(gradients, problem.split(v)) for v in vectors]
    except RuntimeError as error:
        if devices.is_out_of_memory(error):
            raise
        if "same device" in str(error):
            raise InputError(
                f"the model or its loss holds tensors that did not move to {problem.device}",
                "register them as buffers (register_buffer), or make them on the device of what they are used with",
            ) from None
        raise InputError(
            f"the model has no second derivative ({str(error).splitlines()[0]})",
            "use operations whose backward pass is differentiable, or --params to leave out those that lack it",
        ) from None


def _difference(problem: Problem, rows: range, loss: LogitLoss, v: torch.Tensor) -> tuple[float | None, bool]:
    """Relative error of the double backward against central differences of gradients in a float64 copy, and whether
    it is that of a point aside, since units of the model lie at a kink.

    At a kink differences grow as 1/step, whatever the derivative. A derivative that is wrong is so at other points too.
    Points far enough: where batch norm's biases are 0 and signals shrink from layer to layer, all units lie near one.
    None of a model that does not run in float64.
    """
    twin = copy.copy(problem)
    try:
        twin.model = copy.deepcopy(problem.model).double()
        twin.dtype = torch.float64
        chosen = dict(twin.model.named_parameters())
        twin.tensors = [chosen[n] for n in problem.names]
        here = _disagreement(twin, rows, loss, v)
    except (RuntimeError, KeyError):
        return None, False  # a model that does not run in float64, or not within the memory
    if here <= WRONG:
        return here, False
    length = _norm(twin.tensors) / problem.size**0.5
    for share in ASIDE:
        with torch.no_grad():
            for t, step in zip(twin.tensors, twin.split(normal(problem.size, 0, 0))):
                t.add_(step, alpha=share * length)
        aside = _disagreement(twin, rows, loss, v)
        if aside <= WRONG:
            return aside, True
    return here, False


def _disagreement(twin: Problem, rows: range, loss: LogitLoss, v: torch.Tensor) -> float:
    """Relative error at the point where the copy is, which is moved by rounding only.

    Kinks crossed by the step make differences wrong, not the derivative: the best of the steps counts. A model that
    computes in float32 within needs long ones.
    """
    pieces = twin.split(v)
    gradients = twin.gradients(rows, hessian_scalar(loss))
    exact = twin.product(gradients, pieces)
    del gradients
    norm, size = _norm(twin.tensors), _norm(exact)
    errors, place = [], 0.0
    for step in (1e-6, 1e-7, 1e-5, 1e-4, 1e-3):
        step *= max(norm, 1e-3)
        sides: list[list[torch.Tensor]] = []
        for side in (step, -step):
            with torch.no_grad():
                for t, p in zip(twin.tensors, pieces):
                    t.add_(p, alpha=side - place)
            place = side
            sides.append(twin.gradients(rows, hessian_scalar(loss), graph=False))
        slope = _norm(sides[0])
        error = _norm([torch.sub(a, b).div_(2 * step).sub_(e) for a, b, e in zip(*sides, exact)])
        errors.append(error / max(size, 1e-8 * slope / step, 1e-300))
        if errors[-1] < 1e-3:
            break
    with torch.no_grad():
        for t, p in zip(twin.tensors, pieces):
            t.sub_(p, alpha=place)
    return min(errors)


def _dot(vector: torch.Tensor, pieces: list[torch.Tensor]) -> float:
    parts = torch.split(vector, [p.numel() for p in pieces])
    return sum(float(torch.dot(v, p.reshape(-1).double())) for v, p in zip(parts, pieces))


def _norm(pieces: list[torch.Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(p.detach()) for p in pieces]).norm())
