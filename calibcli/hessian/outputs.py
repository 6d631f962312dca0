"""One pass over all rows: their logits and, where that is cheap, what the heaviest pair of each row weighs."""

from __future__ import annotations

import contextlib
from functools import partial

import torch

from calibcli import device as devices
from calibcli.errors import CalibError, InputError
from calibcli.hessian.loss import LogitLoss, Pairs, known_weights
from calibcli.hessian.per_row_gradients import RowNorms
from calibcli.hessian.problem import Problem, twin
from calibcli.hessian.tuning import FAINT

SAME = 1e-3  # relative difference up to which two rows of logits are the same


def read(
    problem: Problem, heaviest: tuple[LogitLoss, torch.Tensor, RowNorms] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, K), and (N, 1 + tensors) the class of each row's heaviest pair and its ‖Jᵀu‖², NaN where not known.

    On the CPU and on every rank; logits in the model's precision, at least float32, the rest float64.

    Args:
        problem: model and data.
        heaviest: the loss, the labels (N,) and how per-row norms are had, to ask for the second. It is given where
            every layer has a rule and the loss knows its pairs, for micro-batches most of whose rows count: one
            backward pass to the layers' outputs, which saves another forward pass and that.

    Raises:
        InputError: logits that are not finite.
    """
    problem.room(1)
    n, k = len(problem.source), problem.classes
    precision = problem.dtype if problem.dtype.itemsize >= 4 else torch.float32

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.zeros(n, k, dtype=precision)
        found = torch.zeros(n, 1 + len(problem.tensors), dtype=torch.float64, device=problem.device)
        for rows in problem.layout.batches():
            at = slice(rows.start, rows.stop)
            part = found.new_full((len(rows), found.shape[1]), torch.nan, device=problem.device)
            if heaviest and bool(heaviest[2].by_layer.all()):
                loss, labels, norms = heaviest
                seen: list[torch.Tensor] = []
                part[:, 1:] = norms.chosen(rows, partial(_choose, loss, labels[at], part[:, 0], seen))
                logits[at], found[at] = seen[0].cpu(), part
            else:
                with torch.no_grad():
                    logits[at], found[at] = problem.logits(rows)[0].cpu(), torch.nan
        return logits, found.cpu()

    logits, found = (devices.all_sum_of_host(part, problem.device) for part in problem.guard(work))
    bad = (~logits.isfinite()).any(1).nonzero()
    if len(bad):
        raise InputError(f"the model's outputs are not finite (first at row {int(bad[0])})", "check that input")
    return logits, found


def independent(problem: Problem) -> None:
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
            what = f"outputs in {str(problem.dtype)[6:]} are rounded to {off:.1g} of their size"
            raise InputError(what, "pass --dtype float64")
    raise InputError("the model's output for a row depends on the rows beside it", fix)


def _dependence(problem: Problem) -> float:
    """Relative difference of the first and the last row's logits, beside each other and alone."""
    ends = torch.tensor([0, problem.layout.n - 1])
    with torch.no_grad():
        beside, alone = problem.logits(ends)[0], torch.cat([problem.logits(ends[i : i + 1])[0] for i in range(2)])
    sizes = beside.abs().amax(1, keepdim=True).clamp(min=torch.finfo(beside.dtype).tiny)
    return float(((alone - beside).abs() / sizes).max())


def _choose(
    loss: LogitLoss, labels: torch.Tensor, chosen: torch.Tensor, seen: list[torch.Tensor], z: torch.Tensor
) -> torch.Tensor | None:
    """Cotangents (n, K) of these rows' heaviest pairs, or None; logits are noted in `seen`, classes in `chosen`."""
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
