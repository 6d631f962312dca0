"""Curvature of a loss around a checkpoint: eigenvalues, trace, density, gradient norm, each with both its errors.

H is the Hessian of the mean loss over a stated data set in the trainable parameters, model in eval mode, without
weight decay. Every number carries the error of its estimator (for this data) and of the sample (for the population).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from calibcli.architectures.classify import logits
from calibcli.errors import UsageError
from calibcli.hessian import figures
from calibcli.hessian.engine import Engine, Progress, Shared
from calibcli.hessian.indexed_data import IndexedData, Tensors
from calibcli.hessian.loss import LogitLoss, Placed, name
from calibcli.hessian.outputs import independent
from calibcli.hessian.problem import Forward, Memory, Problem
from calibcli.hessian.quantities import DEFAULT, QUANTITIES, Found
from calibcli.hessian.selftest import SelfTest, check
from calibcli.hessian.settings import held_together, memory_said, plain_recurrence, second_order
from calibcli.losses import final
from calibcli.plots import Plot, first_alone
from calibcli.result import Cell, Estimate, Result, Screen, Table
from calibcli.shelves import Choice

HIDDEN = ("model", "data", "container", "tensors", "memory_plan", "krylov_basis", "ranks")
"""Facts that a screen shows with `-v` alone: where the numbers come from, and how they were computed."""
__all__ = ["DEFAULT", "QUANTITIES", "IndexedData", "LogitLoss", "Tensors", "measure"]


def measure(
    model: nn.Module,
    data: IndexedData | tuple[Any, torch.Tensor],
    *quantities: str,
    loss: LogitLoss | str | None = None,
    train_loss: LogitLoss | str | None = None,
    params: str = "*",
    forward: Forward = logits,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    batch_size: int = 0,
    memory: Memory = "auto",
    tf32: bool = False,
    seed: int = 0,
    level: float = 0.95,
    progress: Progress | None = None,
    interrupts: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
) -> Result:
    """Curvature of the mean loss of `model` over `data`. The model and torch's global state are left as they were.

    >>> from calibcli.hessian import measure
    >>> measure(model, (images, labels), "lambda_max", "trace")["trace"].value  # doctest: +SKIP

    Args:
        model: any classifier; evaluated in eval mode.
        data: (inputs, labels) in memory, inputs a tensor or a dict of tensors by argument name; or an indexed data
            set with `len()`, `labels` and `batch(rows, device=, dtype=)`.
        quantities: specs from the shelf `QUANTITIES`, `DEFAULT` when none are given.
        loss: `(logits, labels) -> (N,)`, or the spec of one, `focal:gamma=3`; cross-entropy by default.
        train_loss: a second loss, measured beside it; its estimates are `scope="loss=NAME"`.
        params: which trainable parameters count, as globs separated by commas.
        forward: `(model, inputs) -> logits (n, K)`; by default a tensor, the `logits` of an output object or dict, the
            first of a tuple; one column is the log-odds of class 1.
        device, dtype: where and in which precision; those of the model's first parameter by default.
        batch_size, memory: see `Problem`; they change time and memory, not results.
        tf32: TF32 for the products of the Krylov run on a CUDA device; certificates, traces and gradients in float32.
        seed: of start vectors and probes, which depend on it, on the block of 256 rows and on their number alone.
        level: of the intervals.
        progress: called with (fraction, text).
        interrupts: exceptions after which what is known so far is returned (`facts["interrupted"]` names it).

    Raises:
        UsageError: an unknown quantity or option, `params` that match nothing, or TF32 elsewhere than in float32 on
            a CUDA device.
        InputError: data or a model that cannot be measured, or memory that does not suffice.
    """
    choices = [QUANTITIES.choose(spec) for spec in quantities or DEFAULT]
    source = Tensors(*data) if isinstance(data, tuple) else data
    first = next(iter(model.parameters()), torch.empty(0))
    where = torch.device(device) if device is not None else first.device
    plan: dict[str, Any] = {"device": where, "dtype": dtype or first.dtype, "batch_size": batch_size, "memory": memory}
    if tf32 and (where.type != "cuda" or plan["dtype"] != torch.float32):
        raise UsageError("TF32 is for float32 on a CUDA device", "leave --tf32 out, or pass --device cuda")
    problem = Problem(model, source, params=params, forward=forward, tf32=tf32, **plan)
    given = [loss or "ce", *([train_loss] if train_loss is not None else [])]
    losses: list[LogitLoss] = [Placed(final(one) if isinstance(one, str) else one, where) for one in given]
    with second_order(where), plain_recurrence(problem.model), memory_said(problem), held_together() as signals:
        certified = any(c.traits.get("certifies") and c.options.get("bound") != "estimate" for c in choices)
        test = check(problem, losses[0], by_group=certified)
        independent(problem)
        shared = Shared(problem, seed, level, progress, signals)
        found: list[tuple[LogitLoss, Choice, Found]] = []
        for one in losses:
            engine = Engine(shared, one)
            found += [(one, choice, f) for choice, f in _run(engine, choices, interrupts)]
        try:
            shared.quality()
        except interrupts as interrupt:
            shared.stopped = type(interrupt).__name__
    return _result(problem, shared, test, losses, found)


def _run(
    engine: Engine, choices: Sequence[Choice], interrupts: tuple[type[BaseException], ...]
) -> list[tuple[Choice, Found]]:
    """Each choice's finding, in the order asked; worked off in the order that shares most."""
    shared = engine.shared
    order = sorted(range(len(choices)), key=lambda i: int(choices[i].traits["order"]))
    found: dict[int, Found] = {}
    report = shared.progress
    for position, i in enumerate(order):
        shared.progress = _within(report, position, len(order))
        try:
            shared.agree()
            found[i] = choices[i](engine)
        except interrupts as interrupt:
            shared.stopped = type(interrupt).__name__
            found[i] = choices[i](engine)
    shared.progress = report
    engine.hessian.drop()
    return [(choices[i], found[i]) for i in range(len(choices))]


def _within(report: Progress, position: int, total: int) -> Callable[[float, str], None]:
    return lambda fraction, text: report((position + min(max(fraction, 0.0), 1.0)) / total * 0.999, text)


def _result(
    problem: Problem,
    shared: Shared,
    test: SelfTest,
    losses: list[LogitLoss],
    found: list[tuple[LogitLoss, Choice, Found]],
) -> Result:
    estimates: list[Estimate] = []
    plots: list[Plot] = []
    tables: list[Table] = []
    notes = [*test.notes, *shared.notes]
    for number, loss in enumerate(losses):
        label = f"loss={name(loss)}" if number else ""
        layers: dict[str, torch.Tensor] = {}
        for owner, choice, f in found:
            if owner is not loss:
                continue
            for e in f.estimates:
                scope = ", ".join(filter(None, (label, e.scope)))
                level = shared.level if e.low is not None and "sampling_se" in e.detail and e.se is not None else None
                number_of = choice.traits.get("estimate", choice.name) + choice.spec.removeprefix(choice.name)
                estimates.append(
                    dataclasses.replace(
                        e,
                        name=number_of,
                        scope=scope,
                        level=level,
                        n=problem.layout.n,
                        tier=choice.traits.get("tier", "few"),
                    )
                )
            plots += [_labelled(p, label) for p in f.plots]
            notes += f.notes
            layers.update(f.layers)
        if layers:
            names, columns = by_layer(problem, layers)
            tables.append(_layer_table(names, columns, problem, label))
            plots += [_labelled(p, label) for p in figures.layers(names, columns)]
    if problem.tf32:
        notes.append("the products of the Krylov run are in TF32; residuals, traces and gradients are in float32")
    if shared.stopped:
        notes.append("interrupted: what was known by then is reported")
    return Result(
        command="curvature",
        estimates=estimates,
        tables=[_error_table(estimates), *tables],
        plots=first_alone(
            sorted(plots, key=lambda plot: plot.name.startswith("convergence")),  # how a number was got comes last
            lambda plot: plot.name == figures.DENSITY,
        ),
        notes=list(dict.fromkeys(notes)),
        facts={
            "rows": problem.layout.n,
            **shared.known_quality,
            "parameters": problem.size,
            "tensors": len(problem.tensors),
            "losses": [name(one) for one in losses],
            "memory_plan": problem.plan_text,
            **({"tf32": True} if problem.tf32 else {}),
            **({"krylov_basis": shared.basis} if shared.basis else {}),
            "ranks": problem.layout.world,
            "interrupted": shared.stopped,
            "self_test": {"asymmetry": test.asymmetry, "difference": test.difference},
        },
        screen=Screen(pairs="errors", hidden=HIDDEN, one_page=True),
    )


def _error_table(estimates: list[Estimate]) -> Table:
    """Both errors side by side: what the estimator leaves open on this data, and what the sample brings."""
    errors = ("estimator_low", "estimator_high", "sampling_se")
    return Table(
        name="errors",
        title="Error of the estimator (this data) and of the sample (the population)",
        columns=["quantity", "scope", "value", *(error.replace("_", " ") for error in errors)],
        rows=[[e.name, e.scope, e.value, *(e.detail.get(error) for error in errors)] for e in estimates],
        tier="all",
    )


def by_layer(problem: Problem, values: dict[str, torch.Tensor]) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Columns summed over the tensors of each module; norms and errors add in squares."""
    owners = [n.rpartition(".")[0] or n for n in problem.names]
    names = list(dict.fromkeys(owners))
    index = torch.tensor([names.index(o) for o in owners])
    columns = {}
    for column, series in values.items():
        quadratic = column.startswith("±") or "norm" in column
        total = torch.zeros(len(names), dtype=torch.float64).index_add_(0, index, series**2 if quadratic else series)
        columns[column] = total.sqrt() if quadratic else total
    return names, columns


def _layer_table(names: list[str], columns: dict[str, torch.Tensor], problem: Problem, label: str) -> Table:
    counts = dict.fromkeys(names, 0)
    for tensor, size in zip(problem.names, problem.sizes):
        counts[tensor.rpartition(".")[0] or tensor] += size
    rows: list[list[Cell]] = [[n, counts[n], *(float(c[i]) for c in columns.values())] for i, n in enumerate(names)]
    name, title = (f"layers {label}", f"Per layer, {label}") if label else ("layers", "Per layer")
    return Table(name=name, columns=["layer", "parameters", *columns], rows=rows, title=title, tier="all")


def _labelled(plot: Plot, label: str) -> Plot:
    return dataclasses.replace(plot, name=f"{plot.name} {label}", title=f"{plot.title} ({label})") if label else plot
