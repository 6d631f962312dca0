"""`.pt2` and TorchScript: written, read back, run on the rows, compared."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibcli.errors import InputError, refusing
from calibcli.files import atomic
from calibcli.inputs import checkpoint, inference
from calibcli.inputs.checkpoint import trusted
from calibcli.inputs.code import FAILURES
from calibcli.inputs.dataset import Dataset
from calibcli.scalers import Scaler, same_order
from calibcli.ship.comparison import Compared, compare, of_scores, softmax
from calibcli.ship.maps import exact_enough
from calibcli.ship.target import Job, Shipped
from calibcli.ship.torch_module import Calibrated, Calibrator

BATCH = 256


def ship(job: Job, target: str) -> Shipped:
    """Write the calibrator, or the model with it.

    Raises:
        InputError: torch cannot trace it, or what was written differs.
    """
    write = _alone if job.model is None else _wrapped
    return exact_enough(job.scaler, lambda wide: write(job, target, wide))


def _alone(job: Job, target: str, wide: bool) -> Shipped:
    fed = job.fed("float32")
    module = Calibrator(job.scaler, wide).eval()

    def compared(path: Path) -> Compared:
        found = _run(_loaded(path, target), torch.from_numpy(fed)).double().numpy()
        return of_scores(job.scaler, fed, found, "float32", job.tolerance)

    return _written(job, target, module, (torch.from_numpy(fed[:2].copy()),), compared, wide)


def _wrapped(job: Job, target: str, wide: bool) -> Shipped:
    """The model with the calibrator behind its logits."""
    loaded, rows, scaler = opened(job)
    raw = logits_of(loaded.model, rows)
    expected = job.scaler.map(raw)
    module = Calibrated(loaded.model, Calibrator(scaler, wide, logs=True)).eval()
    keeps = raw if job.scaler.preserves_accuracy else None
    inputs, _ = rows.batch(slice(0, 2))
    if isinstance(inputs, Mapping):
        raise InputError(f"{job.model} takes inputs by name ({', '.join(inputs)})", "use --to checkpoint or --to onnx")

    def compared(path: Path) -> Compared:
        program = _loaded(path, target)
        starts = range(0, len(rows), BATCH)
        parts = [_run(program, rows.batch(slice(i, min(i + BATCH, len(rows))))[0]) for i in starts]
        found = torch.cat(parts).double().numpy()
        return compare(expected, softmax(found), "float32", job.tolerance, keeps)

    return _written(job, target, module, (inputs,), compared, wide, loaded.inputs(rows), [*loaded.notes, *rows.notes])


def opened(job: Job) -> tuple[checkpoint.Checkpoint, Dataset, Scaler]:
    """The network, the rows that it is compared on, and the scaler as it is called with the network's K logits.

    Raises:
        InputError: a network that has a calibrator in it, or another number of classes.
    """
    assert job.model is not None
    loaded = checkpoint.load(job.model, **job.network)
    if already := loaded.metadata.get("folded"):
        problem = f"{job.model} has {already.get('calibrator')} folded into it already"
        raise InputError(problem, "use the original")
    rows = loaded.open_data(job.data, "test", "validation", **job.reading)
    k = inference.check(rows, loaded.model)
    if k != job.scaler.k:
        problem = f"{job.model} has {k} classes, the calibrator was fitted on {job.scaler.k}"
        raise InputError(problem, "fit a calibrator on outputs of this model")
    same_order(job.scaler, loaded.classes or (), str(job.model))
    metadata = {**job.scaler.metadata, "kind": "logits", "columns": k}
    return loaded, rows, dataclasses.replace(job.scaler, metadata=metadata)


def logits_of(model: nn.Module, rows: Dataset) -> Any:
    """(n, K) float64."""
    return torch.cat(list(inference.predict(model, rows))).double().numpy()


def _written(
    job: Job,
    target: str,
    module: nn.Module,
    example: tuple[Tensor, ...],
    compared: Any,
    wide: bool,
    inputs: Any = (),
    notes: Any = (),
) -> Shipped:
    """The file, if it is within its limit."""
    fix = "use --to checkpoint, or export the calibrator alone (leave --model out)"
    made = io.BytesIO()  # torch ends the process where a file has no room
    with atomic(job.path) as temporary:
        with (
            refusing((*FAILURES, AssertionError), lambda e: f"torch cannot trace it ({str(e)[:200]})", fix),
            warnings.catch_warnings(action="ignore"),
            torch.no_grad(),
        ):
            if target == "pt2":
                rows = torch.export.Dim("rows", min=1)
                program = torch.export.export(
                    module, example, dynamic_shapes=({0: rows},) if len(example) == 1 else None
                )
                torch.export.save(program, made)
            else:
                traced = torch.jit.trace(module, example)  # type: ignore[no-untyped-call]
                torch.jit.save(traced, made)
        temporary.write_bytes(made.getbuffer())
        found: Compared = compared(temporary)
        found.require(job.path.name)
    facts = {"arithmetic": "float64" if wide else "float32", "takes": "inputs" if job.model else "scores"}
    return Shipped(files=[job.path], compared=found, facts=facts, inputs=list(inputs), notes=list(notes))


def _loaded(path: Path, target: str) -> Any:
    """The program as a user would load it."""
    with warnings.catch_warnings(action="ignore"):
        if target == "pt2":
            return torch.export.load(str(path)).module()
        return torch.jit.load(str(path))  # type: ignore[no-untyped-call]


def _run(program: Any, inputs: Any) -> Tensor:
    """All rows, and the first by itself: the batch size is not traced in."""
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        out: Tensor = program(inputs)
        one: Tensor = program(inputs[:1])
    if not torch.allclose(one, out[:1], rtol=1e-3, atol=1e-5):
        raise InputError(
            "the program gives one row something else than many", "its model's batch norm is in train mode?"
        )
    return out


def probabilities(path: Path, fed: Any, trust: bool) -> Any:
    """Probabilities (n, K) of a calibrator that `calib export --to pt2` or `torchscript` wrote by itself.

    Raises:
        InputError: it is not trusted, or takes something else.
    """
    load = trusted.exported if path.suffix == ".pt2" else trusted.torchscript
    fix = "pass --before MODEL and the inputs as --data"
    module = load(path, trust)
    with refusing(FAILURES, lambda e: f"{path} does not take scores ({str(e)[:100]})", fix), torch.no_grad():
        return module(torch.from_numpy(fed)).double().numpy()
