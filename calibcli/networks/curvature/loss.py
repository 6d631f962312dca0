"""Losses as the curvature engine sees them: values in the logits, and the Hessian of a row as signed pairs.

Tr(G) needs, for every row, A = Σ_c l_c u_c u_cᵀ = ∂²loss/∂z². A loss may know this split (`pair_weights`, with
u_c = e_c - p); otherwise it is the eigendecomposition of A, found by automatic differentiation.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import nn

from calibcli.core.errors import CalibError, InputError
from calibcli.networks import device as devices
from calibcli.networks.curvature.per_row_gradients import RowNorms
from calibcli.networks.curvature.problem import CurvatureProblem, twin

PART = 1 << 22  # numbers of an (N, K) array that are worked on at once, 32 MiB in float64
MOST_CLASSES = 256  # of a loss that does not know its split: an eigendecomposition per row beyond this is too dear


class LogitLoss(Protocol):
    """`loss(logits (N, K), labels (N,)) -> (N,)`; optionally `pair_weights(logits, labels) -> (N, K)` and `spec`."""

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, /) -> torch.Tensor: ...


def name(loss: LogitLoss) -> str:
    """Name a loss for a result: its `spec` or `name`, else that of the function or class."""
    given = getattr(loss, "spec", "") or getattr(loss, "name", "")
    return str(given or getattr(loss, "__name__", type(loss).__name__))


def known_weights(loss: LogitLoss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
    """Return the (N, K) coefficients l of the pairs (l_c, e_c - p), or None where the loss does not know them."""
    if not hasattr(loss, "pair_weights"):
        return None
    weights = cast(torch.Tensor | None, loss.pair_weights(logits, labels))
    return None if weights is None else weights.detach()


class PlacedLoss:
    """A loss on the model's device: it takes logits of any device, and its values come back to theirs.

    A module is copied to the device. A loss that refuses float64, as one with float32 class weights does, gets float32.

    Raises:
        InputError: at a call, where the loss does not give one value per row.
    """

    def __init__(self, loss: LogitLoss, device: torch.device) -> None:
        self.loss: Any = copy.deepcopy(loss).to(device) if isinstance(loss, nn.Module) else loss
        self.device, self.name, self.narrow = device, name(loss), False

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        z, y = logits.to(self.device), labels.to(self.device)
        values = self._values(z, y)
        if values.shape != y.shape:
            problem = f"the loss gives shape {tuple(values.shape)} for {len(y)} rows"
            raise InputError(problem, 'pass a loss with one value per row: reduction="none"')
        return values.to(logits.device, logits.dtype)

    def _values(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not self.narrow:
            try:
                return cast(torch.Tensor, self.loss(z, labels))
            except RuntimeError as error:
                if z.dtype != torch.float64 or devices.is_out_of_memory(error):
                    raise
        values = cast(torch.Tensor, self.loss(z.float(), labels))
        self.narrow = True
        return values

    def pair_weights(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
        """The coefficients of `known_weights`, on the device of the logits."""
        weights = known_weights(self.loss, logits.to(self.device), labels.to(self.device))
        return None if weights is None else weights.to(logits.device)


class Pairs:
    """Signed pairs (l, u) of each row n: A_n = ∂²loss/∂z² = Σ_c l_nc u_nc u_ncᵀ; one pair of two classes, else K.

    Four words, as all files of this folder use them:

    pair: one term of A_n (K, K): a number l_nc, of either sign, and a vector u_nc (K,). As
        G = (1/N) Σ_n J_nᵀ A_n J_n, it adds l_nc ‖J_nᵀu_nc‖² / N to Tr(G).
    split: the sum above. A loss that knows its split has `pair_weights`, which gives the l_nc of the vectors
        u_nc = e_c - p, with p = softmax(z_n). For other losses it is the eigendecomposition of A_n.
    mass: |l_nc| ‖u_nc‖², the size of the pair's part in Tr(A_n): known before any backward pass.
    heaviest: of a row's pairs, that of the largest mass.

    Arrays of shape (N, pairs) are kept: where the loss knows its split, the u of a pair are made when they are asked
    for, and rows are worked on in blocks of `PART` logits.

    Args:
        loss: the loss.
        logits: (N, K), detached.
        labels: (N,) int64.

    Attributes:
        weights: (N, pairs) coefficients l, in float64 or, beyond `PART` of them, in the precision of the logits.
        mass: (N, pairs) |l_c| ‖u_c‖², the size of a pair's part of the trace when the Jacobian does not vary.
        rows: (N,) float64 sums of `mass`.
    """

    def __init__(self, loss: LogitLoss, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self.vectors: torch.Tensor | None = None  # (N, K, pairs) the u, where they are kept
        self.loss, self.logits = loss, logits
        n, k = logits.shape
        if known_weights(loss, logits[:1].double(), labels[:1]) is None:
            z = logits.double()
            self.weights, self.vectors = torch.linalg.eigh(logit_hessian(loss, z, labels))
            self.mass = self.weights.abs()
            self.rows = self.mass.sum(1)
            return
        if k == 2:  # both vectors are multiples of (1, -1): one pair is enough
            direction = torch.tensor([1.0, -1.0], dtype=torch.float64, device=logits.device)
            self.vectors = direction[None, :, None].expand(n, 2, 1)  # (N, K, pairs)
        like = logits if n * k > PART else logits.new_empty(0, dtype=torch.float64)
        self.weights, self.mass = like.new_empty(n, k if k > 2 else 1), like.new_empty(n, k if k > 2 else 1)
        for s in parts(n, k):
            z = logits[s].double()
            pair_weights, p = known_weights(loss, z, labels[s]), z.softmax(1)
            assert pair_weights is not None
            if k == 2:
                self.weights[s] = (pair_weights * p.flip(1).square()).sum(1, keepdim=True)
                self.mass[s] = 2 * self.weights[s].abs()
            else:
                self.weights[s] = pair_weights
                others = (p * p).sum(1, keepdim=True) - p * p
                self.mass[s] = pair_weights.abs() * ((1 - p).square() + others)
        self.rows = row_sums(self.mass)

    def cotangents(self, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        """Return the u of pairs (row, column), (n, K) in float64."""
        if self.vectors is not None:
            return self.vectors[row, :, column]  # (n, K)
        u = -self.logits[row].double().softmax(1)
        return u.scatter_add_(1, column[:, None], u.new_ones(len(row), 1))


def parts(n: int, k: int) -> Iterator[slice]:
    """Cut the rows of an (n, k) array into slices of at most `PART` numbers, at least one row each."""
    step = max(1, PART // k)
    return (slice(i, i + step) for i in range(0, n, step))


def row_sums(array: torch.Tensor) -> torch.Tensor:
    """Sum each row of an (n, k) array in float64, without a wide copy of it."""
    sums = [array[s].sum(1, dtype=torch.float64) for s in parts(*array.shape)]
    return torch.cat([array.new_zeros(0, dtype=torch.float64), *sums])


def logit_hessian(loss: LogitLoss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Differentiate each row's loss twice in its logits, (N, K, K)."""
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(z, labels).sum(), z, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros(*z.shape, z.shape[1], dtype=z.dtype, device=z.device)  # (N, K, K)
        columns = [torch.autograd.grad(slope[:, c].sum(), z, retain_graph=True)[0] for c in range(z.shape[1])]
    return torch.stack(columns, 2)  # (N, K, K)


# One pass over all rows.

SAME = 1e-3  # relative difference up to which two rows of logits are the same
FAINT = 1e-4  # of the mean mass: rows below it are mostly left out of the exact part of Tr(G)


def read(
    problem: CurvatureProblem, heaviest: tuple[LogitLoss, torch.Tensor, RowNorms] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute all logits (N, K) and, where that is cheap, ‖J_nᵀu‖² of the heaviest pair of each row (see `Pairs`).

    The second array is (N, 1 + tensors): the class of that pair, and its ‖J_nᵀu‖² by tensor; NaN where not known. Both
    are on the CPU and on every rank; logits in the model's precision, at least float32, the rest in float64.

    Args:
        problem: model and data.
        heaviest: the loss, the labels (N,) and the per-row norms, to ask for the second array. It is filled where every
            layer has a rule and the loss knows its pairs, for micro-batches most of whose rows count: one backward
            pass to the layers' outputs then saves another forward and backward pass.

    Raises:
        InputError: logits that are not finite.
    """
    problem.check_outputs_fit(1)
    n, k = len(problem.source), problem.classes
    precision = problem.dtype if problem.dtype.itemsize >= 4 else torch.float32

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.zeros(n, k, dtype=precision)
        heaviest_pairs = torch.zeros(n, 1 + len(problem.tensors), dtype=torch.float64, device=problem.device)
        for rows in problem.layout.batches():
            batch = slice(rows.start, rows.stop)
            part = heaviest_pairs.new_full((len(rows), heaviest_pairs.shape[1]), torch.nan, device=problem.device)
            if heaviest and bool(heaviest[2].by_layer.all()):
                loss, labels, norms = heaviest
                seen: list[torch.Tensor] = []
                part[:, 1:] = norms.chosen(rows, partial(_choose, loss, labels[batch], part[:, 0], seen))
                logits[batch], heaviest_pairs[batch] = seen[0].cpu(), part
            else:
                with torch.no_grad():
                    logits[batch], heaviest_pairs[batch] = problem.logits(rows)[0].cpu(), torch.nan
        return logits, heaviest_pairs.cpu()

    logits, heaviest_pairs = (devices.all_sum_of_host(part, problem.device) for part in problem.guard(work))
    bad = (~logits.isfinite()).any(1).nonzero()
    if len(bad):
        raise InputError(f"the model's outputs are not finite (first at row {int(bad[0])})", "check that input")
    return logits, heaviest_pairs


def independent(problem: CurvatureProblem) -> None:
    """Refuse a model whose output for a row depends on the rows beside it: its mean loss is no mean over rows.

    Raises:
        InputError: it does, or its outputs are rounded as much, or the model takes no row alone.
    """
    if min(problem.layout.n, problem.layout.micro) < 2:
        return
    fix = "take nothing from the other rows of a batch in eval mode, as a batch norm without running statistics does"
    try:
        off = _dependence(problem)
    except CalibError:
        raise
    except (RuntimeError, ValueError) as error:
        if devices.is_out_of_memory(error):
            raise
        raise InputError(f"the model does not take one row alone ({str(error).splitlines()[0]})", fix) from None
    if off <= SAME:
        return
    with contextlib.suppress(RuntimeError, KeyError):  # a model that does not run in float64, or not within the memory
        if problem.dtype != torch.float64 and _dependence(twin(problem, [])) <= SAME / 10:
            if off <= 10 * SAME:
                return
            problem_text = f"outputs in {str(problem.dtype)[6:]} are rounded to {off:.1g} of their size"
            raise InputError(problem_text, "pass --dtype float64")
    raise InputError("the model's output for a row depends on the rows beside it", fix)


def _dependence(problem: CurvatureProblem) -> float:
    """Compare the logits of the first and the last row, beside each other and alone: their relative difference."""
    ends = torch.tensor([0, problem.layout.n - 1])
    with torch.no_grad():
        beside, alone = problem.logits(ends)[0], torch.cat([problem.logits(ends[i : i + 1])[0] for i in range(2)])
    sizes = beside.abs().amax(1, keepdim=True).clamp(min=torch.finfo(beside.dtype).tiny)
    return float(((alone - beside).abs() / sizes).max())


def _choose(
    loss: LogitLoss, labels: torch.Tensor, chosen: torch.Tensor, seen: list[torch.Tensor], z: torch.Tensor
) -> torch.Tensor | None:
    """Return cotangents (n, K) of these rows' heaviest pairs, or None; write logits to `seen`, classes to `chosen`."""
    logits, labels = (z if z.dtype.itemsize >= 4 else z.float()).detach(), labels.to(z.device)
    seen.append(logits)
    if known_weights(loss, logits[:1].double(), labels[:1]) is None:
        return None
    pairs = Pairs(loss, logits, labels)
    if not bool(logits.isfinite().all() & ((pairs.rows > FAINT * pairs.rows.mean()).double().mean() >= 0.5)):
        return None
    column = pairs.mass.argmax(1)
    chosen.copy_(column)
    return pairs.cotangents(torch.arange(len(column), device=column.device), column).to(z)
