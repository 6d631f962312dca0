"""Curvature of a loss around a checkpoint: eigenvalues, trace, density, gradient norm, each with both its errors.

H is the Hessian of the mean loss over a stated data set in the trainable parameters, model in eval mode, without
weight decay. Every number carries the error of its estimator (for this data) and of the sample (for the population).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from calibcli import headlines
from calibcli.core.errors import UsageError
from calibcli.core.figure_data import Plot, first_alone
from calibcli.core.files import claim, guarding
from calibcli.core.options import Level, OrNone, Seed, within
from calibcli.core.registries import Choice
from calibcli.core.result import Cell, Estimate, Result, Screen, Table
from calibcli.networks import checkpoint, inference
from calibcli.networks import device as devices
from calibcli.networks.architectures.registry import logits
from calibcli.networks.curvature import quantities as figures
from calibcli.networks.curvature.engine import Engine, Progress, Shared
from calibcli.networks.curvature.loss import LogitLoss, PlacedLoss, independent, name
from calibcli.networks.curvature.memory_plan import Memory
from calibcli.networks.curvature.problem import (
    CurvatureProblem,
    Forward,
    IndexedData,
    Products,
    Tensors,
    second_order,
)
from calibcli.networks.curvature.quantities import DEFAULT, QUANTITIES, QuantityEstimates, QuantityTraits
from calibcli.networks.curvature.saved_state import State, identity
from calibcli.networks.curvature.selftest import SelfTest, check
from calibcli.networks.dataset import Dataset, decoded_once
from calibcli.networks.device import held_signals
from calibcli.networks.losses import final, objective, pressing

HIDDEN = ("model", "data", "container", "tensors", "memory_plan", "krylov_basis", "ranks")
"""Facts that a screen shows with `-v` alone: the origin of the numbers, and how they were computed."""
__all__ = ["DEFAULT", "QUANTITIES", "IndexedData", "LogitLoss", "Tensors", "curvature", "measure"]


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
    products: Products = "double",
    seed: int = 0,
    level: float = 0.95,
    progress: Progress | None = None,
    interrupts: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
    terms: dict[str, Any] | None = None,
    state: State | None = None,
) -> Result:
    """Measure the curvature of the mean loss of `model` over `data`; model and torch's global state stay as they were.

    >>> from calibcli.networks.curvature import measure
    >>> measure(model, (images, labels), "lambda_max", "trace")["trace"].value  # doctest: +SKIP

    Args:
        model: any classifier; evaluated in eval mode.
        data: (inputs, labels) in memory, inputs a tensor or a dict of tensors by argument name; or an indexed data
            set with `len()`, `labels` and `batch(rows, device=, dtype=)`.
        quantities: specs from the registry `QUANTITIES`, `DEFAULT` when none are given.
        loss: `(logits, labels) -> (N,)`, or the spec of one, `focal:gamma=3`; cross-entropy by default.
        train_loss: a second loss, measured beside it; its estimates are `scope="loss=NAME"`.
        params: which trainable parameters count, as globs separated by commas.
        forward: `(model, inputs) -> logits (n, K)`; by default a tensor, the `logits` of an output object or dict, the
            first of a tuple; one column is the log-odds of class 1.
        device, dtype: where and in which precision; those of the model's first parameter by default.
        batch_size, memory: see `CurvatureProblem`; they change time and memory, not results.
        tf32: TF32 for the products of the Krylov run on a CUDA device; certificates, traces and gradients in float32.
        products: `double` backward; or differences of `gradients`, for models that can be differentiated once.
        seed: of start vectors and probes, which depend on it, on the block of 256 rows and on their number alone.
        level: of the intervals.
        progress: called with (fraction, text).
        interrupts: exceptions after which the results so far are returned (`facts["interrupted"]` names it).
        terms: is filled with the terms of the rows under `loss`, (N,) float64 for each spec that has them: their mean
            is the estimate, and their spread its error over rows.
        state: an opened one, in which work that is done is kept and found.

    Raises:
        UsageError: an unknown quantity or option, `params` that match nothing, or TF32 elsewhere than in float32 on
            a CUDA device.
        InputError: data or a model that cannot be measured, or memory that does not suffice.
    """
    given = [loss or "ce", *([train_loss] if train_loss is not None else [])]
    plan: dict[str, Any] = {"params": params, "forward": forward, "batch_size": batch_size, "memory": memory}
    problem, losses = posed(model, data, given, device=device, dtype=dtype, tf32=tf32, products=products, **plan)
    choices = chosen(problem, quantities)
    run: dict[str, Any] = {"seed": seed, "level": level, "progress": progress, "interrupts": interrupts}
    return measured(problem, losses, choices, **run, terms=terms, state=state)


def chosen(problem: CurvatureProblem, quantities: Sequence[str]) -> list[Choice[QuantityTraits]]:
    """Return what is asked for, or the default quantities that the problem has.

    Raises:
        UsageError: an unknown quantity or option, or one that needs more than gradients, or than sharded weights have.
    """
    choices = [QUANTITIES.choose(spec) for spec in quantities or DEFAULT]
    if not problem.from_gradients:
        return choices

    def had(traits: QuantityTraits) -> bool:
        return traits.sharded if problem.sharded else traits.from_gradients

    have = [c for c in choices if had(c.traits)]
    left_out = [c for c in choices if c not in have] if quantities else []
    left_out += [c for c in have if c.options.get("exact") and c.name != "trace_ggn"]
    if left_out:
        names = ", ".join(one.name for one in QUANTITIES if had(one.traits))
        why = "weights that are sharded" if problem.sharded else "products from gradients alone"
        raise UsageError(f"{left_out[0].spec} cannot be had of {why}", f"ask for {names}; of a trace without exact")
    return have


def posed(
    model: nn.Module,
    data: IndexedData | tuple[Any, torch.Tensor],
    losses: Sequence[LogitLoss | str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    tf32: bool = False,
    products: Products = "double",
    **plan: Any,
) -> tuple[CurvatureProblem, list[LogitLoss]]:
    """Pose the problem of a model and data, with the losses on its device; arguments and errors are as in `measure`."""
    source = Tensors(*data) if isinstance(data, tuple) else data
    first = next(iter(model.parameters()), torch.empty(0))
    where, precision = torch.device(device) if device is not None else first.device, dtype or first.dtype
    if tf32 and (where.type != "cuda" or precision != torch.float32):
        raise UsageError("TF32 is for float32 on a CUDA device", "leave --tf32 out, or pass --device cuda")
    kind: dict[str, Any] = {"tf32": tf32, "products": products}
    problem = CurvatureProblem(model, source, device=where, dtype=precision, **kind, **plan)
    return problem, [PlacedLoss(final(one) if isinstance(one, str) else one, where) for one in losses]


def measured(
    problem: CurvatureProblem,
    losses: list[LogitLoss],
    choices: Sequence[Choice[QuantityTraits]],
    *,
    seed: int,
    level: float,
    progress: Progress | None,
    interrupts: tuple[type[BaseException], ...],
    terms: dict[str, Any] | None = None,
    state: State | None = None,
) -> Result:
    """Measure the quantities of a problem under each loss; arguments and errors are as in `measure`."""
    # one process holds no signals back; of several all must have heard of one
    holding = held_signals() if devices.world() > 1 else contextlib.nullcontext()
    as_wanted = second_order(problem.device, problem.model, problem.from_gradients)
    with as_wanted, problem.memory_errors(), holding as signals:
        certified = any(c.traits.certifies and c.options.get("bound") != "estimate" for c in choices)
        test = check(problem, losses[0], certified, first_order=all(c.traits.first_order for c in choices))
        independent(problem)
        if state:
            state.go_on(problem, losses)
        shared = Shared(problem, seed, level, progress, signals, state.pieces if state else None)
        shared.by_row, shared.double = terms is not None, test.double
        if any(c.traits.folds for c in choices):
            shared.head  # noqa: B018  # refused before anything is measured
        findings: list[tuple[LogitLoss, Choice[QuantityTraits], QuantityEstimates]] = []
        for number, loss in enumerate(losses):
            engine = Engine(shared, loss, pieces=shared.pieces.part(f"loss {number}"))
            findings += [(loss, choice, f) for choice, f in _run(engine, choices, interrupts)]
        try:
            shared.quality()
        except interrupts as interrupt:
            shared.stopped = type(interrupt).__name__
        if state:
            state.finished = not shared.stopped
    if terms is not None:
        first_terms = ((choice, f.terms) for owner, choice, f in findings if owner is losses[0])
        terms |= {choice.spec: of_rows.double().numpy() for choice, of_rows in first_terms if of_rows is not None}
    return _result(problem, shared, test, losses, findings)


def _run(
    engine: Engine, choices: Sequence[Choice[QuantityTraits]], interrupts: tuple[type[BaseException], ...]
) -> list[tuple[Choice[QuantityTraits], QuantityEstimates]]:
    """Compute each choice, in the order that shares most work; the estimates come in the order asked."""
    shared = engine.shared
    order = sorted(range(len(choices)), key=lambda i: _place(choices[i]))
    findings: dict[int, QuantityEstimates] = {}
    report = shared.progress
    for position, i in enumerate(order):
        shared.progress = _within(report, position, len(order))
        try:
            shared.agree()
            findings[i] = choices[i](engine)
        except interrupts as interrupt:
            shared.stopped = type(interrupt).__name__
            findings[i] = choices[i](engine)
    shared.progress = report
    engine.drop()
    return [(choices[i], findings[i]) for i in range(len(choices))]


def _place(choice: Choice[QuantityTraits]) -> tuple[float | str, ...]:
    """Where a choice comes in the order of measuring.

    Of one order the finest comes first, as it serves the others, and `trace` before `trace_ggn`: unasked it is finer.
    """
    options = choice.options
    return choice.traits.order, not options.get("exact"), options.get("precision") or 1.0, choice.name


def _within(report: Progress, position: int, total: int) -> Callable[[float, str], None]:
    return lambda fraction, text: report((position + min(max(fraction, 0.0), 1.0)) / total * 0.999, text)


def _result(
    problem: CurvatureProblem,
    shared: Shared,
    test: SelfTest,
    losses: list[LogitLoss],
    findings: list[tuple[LogitLoss, Choice[QuantityTraits], QuantityEstimates]],
) -> Result:
    estimates: list[Estimate] = []
    plots: list[Plot] = []
    tables: list[Table] = []
    notes = [*test.notes, *shared.notes]
    for number, loss in enumerate(losses):
        label = f"loss={name(loss)}" if number else ""
        layers: dict[str, torch.Tensor] = {}
        for owner, choice, f in findings:
            if owner is not loss:
                continue
            for e in f.estimates:
                where = dataclasses.replace(e.where, parts={"loss": name(loss), **e.where.parts}) if number else e.where
                level = shared.level if e.low is not None and "sampling_se" in e.detail and e.se is not None else None
                named = (choice.traits.estimate or choice.name) + choice.spec.removeprefix(choice.name)
                tier, n = choice.traits.tier, problem.layout.n
                estimates.append(dataclasses.replace(e, name=named, level=level, n=n, tier=tier, **where.fields))
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
        notes.append("interrupted: the results until then are reported")
    plots.sort(key=lambda plot: plot.name.startswith("convergence"))  # how a number was got comes last
    facts: dict[str, Any] = {"rows": problem.layout.n, **shared.known_quality, "parameters": problem.size}
    facts |= {"tensors": len(problem.tensors), "losses": [name(one) for one in losses]}
    facts |= {"products": "gradients"} if problem.from_gradients else {}
    facts |= {"memory_plan": problem.plan_text, **({"tf32": True} if problem.tf32 else {})}
    facts |= {"krylov_basis": shared.basis} if shared.basis else {}
    facts |= {"ranks": problem.layout.world, "interrupted": shared.stopped}
    facts["self_test"] = {"asymmetry": test.asymmetry, "difference": test.difference}
    return Result(
        command="curvature",
        estimates=estimates,
        tables=[_error_table(estimates), *tables],
        plots=first_alone(plots, lambda plot: plot.name == figures.DENSITY),
        notes=list(dict.fromkeys(notes)),
        facts=facts,
        screen=Screen(pairs="errors", hidden=HIDDEN, one_page=True),
    )


def _error_table(estimates: list[Estimate]) -> Table:
    """Tabulate both errors side by side: that of the estimator on this data, and that of the sample."""
    errors = ("estimator_low", "estimator_high", "sampling_se")
    return Table(
        name="errors",
        title="Error of the estimator (this data) and of the sample (the population)",
        columns=["quantity", "scope", "value", *(error.replace("_", " ") for error in errors)],
        rows=[[e.name, e.scope, e.value, *(e.detail.get(error) for error in errors)] for e in estimates],
        tier="all",
    )


def by_layer(problem: CurvatureProblem, values: dict[str, torch.Tensor]) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Sum columns over the tensors of each module; norms and errors add in squares."""
    owners = [n.rpartition(".")[0] or n for n in problem.names]
    names = list(dict.fromkeys(owners))
    index = torch.tensor([names.index(o) for o in owners])
    columns = {}
    for column, series in values.items():
        quadratic = column.startswith("±") or "norm" in column
        total = torch.zeros(len(names), dtype=torch.float64).index_add_(0, index, series**2 if quadratic else series)
        columns[column] = total.sqrt() if quadratic else total
    return names, columns


def _layer_table(names: list[str], columns: dict[str, torch.Tensor], problem: CurvatureProblem, label: str) -> Table:
    counts = dict.fromkeys(names, 0)
    for tensor, size in zip(problem.names, problem.sizes):
        counts[tensor.rpartition(".")[0] or tensor] += size
    rows: list[list[Cell]] = [[n, counts[n], *(float(c[i]) for c in columns.values())] for i, n in enumerate(names)]
    name, title = (f"layers {label}", f"Per layer, {label}") if label else ("layers", "Per layer")
    return Table(name=name, columns=["layer", "parameters", *columns], rows=rows, title=title, tier="all")


def _labelled(plot: Plot, label: str) -> Plot:
    return dataclasses.replace(plot, name=f"{plot.name} {label}", title=f"{plot.title} ({label})") if label else plot


@guarding()
def curvature(
    model: nn.Module | str | Path,
    data: Any = None,
    *quantities: str,
    loss: str | Callable[..., Any] = "ce",
    train_loss: str | Callable[..., Any] | None = None,
    params: str = "*",
    memory: Literal["auto", "low", "high"] = "auto",
    batch_size: int = 0,
    tf32: bool = False,
    products: Products = "double",
    level: float = 0.95,
    arch: str | None = None,
    arch_file: str | None = None,
    trust: bool = False,
    kind: Literal["logits"] | None = None,
    mean: str | None = None,
    std: str | None = None,
    size: str | None = None,
    resize: str | None = None,
    crop: str | None = None,
    interpolation: str | None = None,
    layout: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    subset: int | None = None,
    split_seed: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    interrupts: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
    terms: dict[str, Any] | None = None,
    save_state: str | Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Result:
    """Eigenvalues, trace, density and gradient norm of the mean loss around a network's weights, each with both errors.

    >>> import torch
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(model.weight).shape
    torch.Size([2, 1])
    >>> result = curvature(model, (torch.ones(40, 1), torch.arange(40) % 2), "trace:exact=true", device="cpu")
    >>> round(result["trace"].value, 6)  # p (1 - p) of each of two outputs
    0.5

    Args:
        model: a module, which is left as it was; or a checkpoint.
        data: (inputs, labels), a `torch.utils.data.Dataset` of such pairs, or where a data set lies; None: where the
            checkpoint says. Inputs (N, ...) of any float, whole or byte type, or a dict of them by their names; whole
            numbers in a dict, or before an embedding, stay whole (tokens, masks); labels (N,) integers.
        quantities: specs such as `trace:precision=0.01`, in units of the loss (`calib list quantities` has their
            sources); the default set without.
        loss: spec of the loss, or a module, class or function of your own, `(logits (N, K), labels (N,)) -> (N,)`.
        train_loss: a second one beside it; None: that of the checkpoint, or "none".
        params: parameters that count, as globs separated by commas.
        memory, batch_size: time and memory, not results.  tf32: TF32 for the products of the Krylov run, on a CUDA
            device; certificates, traces and gradients stay in float32.  level: confidence level of the intervals.
        products: `double` backward; or differences of `gradients`, for models that can be differentiated once alone,
            those under `fully_shard` among them.
        kind: `logits` says that the model's outputs are logits though all lie in [0, 1].
        arch, arch_file, trust: of a checkpoint; mean to split_seed: of the data set; see `calib curvature --help`.
        device: auto, cpu, cuda or cuda:N.  dtype: float32 or float64.  seed: of start vectors and probes.
        progress: called with (fraction, text).  interrupts: exceptions after which what is known is returned.
        terms: a dict that is filled with the terms of the rows, (N,) float64 for each quantity that has them: their
            mean is its value, their spread its error over rows. Two networks on the same rows: subtract theirs.
        save_state: a folder in which the state of the run is kept. The same call goes on with a run that was killed,
            and ends with the same numbers.  note: is told in words what was found there.

    Raises:
        InputError: a model or data that is refused.  UsageError: a wrong option.  TypeError: a quantity not in text.
    """
    check_arguments(quantities, memory, level, batch_size, seed, kind, products)
    if save_state is not None:
        claim(save_state, folder=True)
    where, precision = devices.pick(device), devices.dtype(dtype)
    first = final(loss)
    rows: dict[str, Any] = {"mean": mean, "std": std, "size": size, "resize": resize, "crop": crop}
    rows |= {"interpolation": interpolation, "layout": layout, "inputs": inputs, "labels": labels}
    rows |= {"subset": subset, "split_seed": split_seed}
    network: dict[str, Any] = {"arch": arch, "arch_file": arch_file, "trust": trust}
    loaded, dataset = opened(model, data, kind=kind, products=products, device=where, **network, **rows)
    loss_options = {"loss": first, "train_loss": _beside(first, train_loss, loaded)}
    plan: dict[str, Any] = {"params": params, "batch_size": batch_size, "memory": memory, "tf32": tf32, "level": level}
    plan |= {"seed": seed, "device": where, "dtype": precision, "progress": progress, "interrupts": interrupts}
    plan |= {"terms": terms, "products": products}
    asked: dict[str, Any] = {"quantities": ", ".join(QUANTITIES.choose(spec).spec for spec in quantities or DEFAULT)}
    asked |= {option: name(one) if one is not None else "none" for option, one in loss_options.items()}
    asked |= {"params": params, "level": level, "seed": seed, "device": where.type, "dtype": dtype, "tf32": tf32}
    asked |= {"products": products} if products != "double" else {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(devices.process_group(where))
        if save_state is not None:
            of = identity(loaded.model, dataset, asked)
            state = State(Path(save_state), of, note, memory=memory, batch_size=batch_size)
            plan |= {"state": stack.enter_context(state.opened())}
        result = measure(loaded.model, dataset, *quantities, forward=inference.logits, **loss_options, **plan)
    facts, notes = {**loaded.facts(dataset), **result.facts}, [*loaded.notes, *dataset.notes, *result.notes]
    provenance = {"inputs": loaded.inputs(dataset), "seed": seed, "device": str(where), "dtype": dtype}
    return headlines.headed(dataclasses.replace(result, facts=facts, notes=notes, provenance=provenance))


def opened(
    model: nn.Module | str | Path,
    data: Any,
    *,
    arch: str | None,
    arch_file: str | None,
    trust: bool,
    kind: Literal["logits"] | None,
    products: Products = "double",
    device: torch.device | None = None,
    **rows: Any,
) -> tuple[checkpoint.Checkpoint, Dataset]:
    """Open model and data as `curvature` does, and check that they fit; `rows` are options of `dataset.load`."""
    once = products == "gradients"
    loaded = checkpoint.of(model, arch, arch_file, trust, data, fully_sharded=once)
    loaded = loaded.with_gradients(1 if once else 2, device, fully_sharded=once)
    dataset = decoded_once(loaded.open_data(data, "test", "validation", **rows, trust=trust))
    inference.check(dataset, loaded.model, kind)
    return loaded, dataset


def check_arguments(
    quantities: tuple[str, ...],
    memory: str,
    level: float,
    batch_size: int,
    seed: int,
    kind: str | None,
    products: str = "double",
) -> None:
    """Refuse arguments of `curvature` that cannot be, before anything is opened."""
    for option, number, bounds in (("level", level, Level), ("batch-size", batch_size, OrNone), ("seed", seed, Seed)):
        within(number, bounds, f"--{option} ")
    if kind not in (None, "logits"):
        raise UsageError(f"--kind {kind} is not a choice", "a network gives logits: leave --kind out, or pass logits")
    if memory not in ("auto", "low", "high"):
        raise UsageError(f"unknown memory plan '{memory}'", "choose from: auto, low, high")
    if products not in get_args(Products):
        raise UsageError(f"unknown products '{products}'", f"choose from: {', '.join(get_args(Products))}")
    for quantity in quantities:
        if not isinstance(quantity, str):
            raise TypeError(f"a quantity is a text, not {type(quantity).__name__}: curvature(model, data, 'trace')")
        QUANTITIES.choose(quantity)


def _beside(first: Any, asked: str | Callable[..., Any] | None, loaded: checkpoint.Checkpoint) -> Any:
    """Return the second loss: the one asked for, else the checkpoint's own; None where it is the first.

    Penalties that the checkpoint was trained with are left out, with a note.
    """
    named = asked
    if not asked and (trained := loaded.metadata.get("training", {}).get("loss")):
        run = objective(str(trained))
        named = run.loss.spec
        if left_out := pressing(run):
            note = f"the model was trained with {run.spec}; curvature is that of losses of single rows"
            loaded.notes.append(f"{note}: the penalty {left_out}, which is of a batch, is not in it")
    second = None if named in (None, "", "none") else final(named)
    return None if getattr(second, "spec", second) == getattr(first, "spec", first) else second
