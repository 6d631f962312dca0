"""`--to pt2` and `--to torchscript`: write a calibrator, or a model with it, as a program that torch loads."""

from __future__ import annotations

import dataclasses
import io
import operator
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibcli.calibrators import Scaler, same_order
from calibcli.calibrators.program import Operations
from calibcli.core.errors import InputError, refusing
from calibcli.core.files import atomic
from calibcli.networks import checkpoint, inference
from calibcli.networks.architectures.registry import logits
from calibcli.networks.checkpoint import containers
from calibcli.networks.dataset import Dataset
from calibcli.networks.user_code import FAILURES
from calibcli.ship.target import (
    Compared,
    ExportRequest,
    Shipped,
    classes,
    compare,
    exact_enough,
    log_probabilities,
    of_scores,
    softmax,
)

# The calibrator as a torch module.


class TorchOps(Operations):
    """The operations of a calibrator on tensors. Constants are buffers of the module, in the order of their use."""

    def __init__(self, module: nn.Module, classes: int, dtype: torch.dtype, eps: float) -> None:
        self.module, self.classes, self.dtype, self.eps = module, classes, dtype, eps
        self.used = 0

    exp, log, log1p, abs = (staticmethod(f) for f in (torch.exp, torch.log, torch.log1p, torch.abs))
    same = staticmethod(torch.eq)
    max, min, sum = (staticmethod(partial(f, dim=-1, keepdim=True)) for f in (torch.amax, torch.amin, torch.sum))
    argmax = staticmethod(partial(torch.argmax, dim=-1, keepdim=True))
    deep, flat = (staticmethod(partial(f, dim=-1)) for f in (torch.unsqueeze, torch.squeeze))
    index, take = staticmethod(Tensor.long), staticmethod(operator.getitem)

    def least(self, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.minimum(self.lifted(x), self.lifted(y))

    def most(self, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.maximum(self.lifted(x), self.lifted(y))

    def where(self, condition: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.where(condition, self.lifted(x), self.lifted(y))

    def lifted(self, x: Tensor | float) -> Tensor:
        return x if isinstance(x, Tensor) else self.const(x)

    def const(self, array: Any, whole: bool = False) -> Tensor:
        name = f"c{self.used}"
        self.used += 1
        if name not in self.module._buffers:
            self.module.register_buffer(name, torch.tensor(np.asarray(array), dtype=None if whole else self.dtype))
        buffer: Tensor = getattr(self.module, name)
        return buffer

    def number(self, condition: Tensor) -> Tensor:
        return condition.to(self.dtype)

    def column(self, x: Tensor, k: int) -> Tensor:
        return x[:, k : k + 1]

    def join(self, *columns: Tensor) -> Tensor:
        return torch.cat(columns, -1)


class CalibratorModule(nn.Module):
    """Maps scores (n, columns) to probabilities (n, K), or to log-probabilities if `logs`, in the dtype of the scores.

    Args:
        wide: compute in float64, whatever the dtype of the scores.
        like: the dtype of the scores.
    """

    def __init__(self, scaler: Scaler, wide: bool, like: torch.dtype = torch.float32, logs: bool = False) -> None:
        super().__init__()
        self.__dict__["scaler"], self.logs = scaler, logs
        self.dtype = torch.float64 if wide else like
        self.eps = float(torch.finfo(like).eps)
        with torch.no_grad():
            self(torch.full((2, scaler.columns), 0.5, dtype=like))

    def forward(self, scores: Tensor) -> Tensor:
        scaler = self.__dict__["scaler"]
        o = TorchOps(self, classes(scaler), self.dtype, self.eps)
        log_p: Tensor = log_probabilities(o, scaler, scores.to(self.dtype))
        return (log_p if self.logs else log_p.exp()).to(scores.dtype)


class Calibrated(nn.Module):
    """A model of logits followed by its calibrator; returns log-probabilities."""

    def __init__(self, model: nn.Module, calibrator: CalibratorModule) -> None:
        super().__init__()
        self.model, self.calibrator = model, calibrator

    def forward(self, inputs: Tensor) -> Tensor:
        log_p: Tensor = self.calibrator(logits(self.model, inputs))
        return log_p


# Write the program, read it back, run it on the rows, and compare.

BATCH = 256


def write(job: ExportRequest, target: str) -> Shipped:
    """Write the calibrator, or the model with it.

    Raises:
        InputError: torch cannot trace it, or the file that was written differs.
    """
    write = _alone if job.model is None else _wrapped
    return exact_enough(job.scaler, lambda wide: write(job, target, wide))


def _alone(job: ExportRequest, target: str, wide: bool) -> Shipped:
    fed = job.fed("float32")
    module = CalibratorModule(job.scaler, wide).eval()

    def compared(path: Path) -> Compared:
        probabilities = _run(_loaded(path, target), torch.from_numpy(fed)).double().numpy()
        return of_scores(job.scaler, fed, probabilities, "float32", job.tolerance)

    return _written(job, target, module, torch.from_numpy(fed[:2].copy()), compared, wide)


def _wrapped(job: ExportRequest, target: str, wide: bool) -> Shipped:
    """Write the model with the calibrator behind its logits."""
    loaded, rows, scaler = opened(job)
    raw = logits_of(loaded.model, rows)
    expected = job.scaler.map(raw)
    module = Calibrated(loaded.model, CalibratorModule(scaler, wide, logs=True)).eval()
    keeps = raw if job.scaler.preserves_accuracy else None
    inputs, _ = rows.batch(slice(0, 2))
    if isinstance(inputs, Mapping):
        raise InputError(f"{job.model} takes inputs by name ({', '.join(inputs)})", "use --to checkpoint or --to onnx")

    def compared(path: Path) -> Compared:
        program = _loaded(path, target)
        starts = range(0, len(rows), BATCH)
        parts = [_run(program, rows.batch(slice(i, min(i + BATCH, len(rows))))[0]) for i in starts]
        log_p = torch.cat(parts).double().numpy()
        return compare(expected, softmax(log_p), "float32", job.tolerance, keeps)

    shipped = _written(job, target, module, inputs, compared, wide)
    return dataclasses.replace(shipped, inputs=loaded.inputs(rows), notes=[*loaded.notes, *rows.notes])


def opened(job: ExportRequest) -> tuple[checkpoint.Checkpoint, Dataset, Scaler]:
    """Load the network and the rows to compare on, and adapt the scaler to the K logits of the network.

    Raises:
        InputError: the network already contains a calibrator, or has another number of classes.
    """
    assert job.model is not None
    loaded = checkpoint.load(job.model, **job.network)
    if already := loaded.metadata.get("folded"):
        problem = f"{job.model} has {already.get('calibrator')} folded into it already"
        raise InputError(problem, "use the original")
    rows = loaded.open_data(job.data, "test", "validation", **job.reading)
    k = inference.check(rows, loaded.model, job.kind)
    if k != job.scaler.k:
        problem = f"{job.model} has {k} classes, the calibrator was fitted on {job.scaler.k}"
        raise InputError(problem, "fit a calibrator on outputs of this model")
    same_order(job.scaler, loaded.classes or (), str(job.model))
    metadata = {**job.scaler.metadata, "kind": "logits", "columns": k}
    return loaded, rows, dataclasses.replace(job.scaler, metadata=metadata)


def logits_of(model: nn.Module, rows: Dataset) -> Any:
    """Compute the logits (n, K) float64 of a model."""
    return torch.cat(list(inference.predict(model, rows))).double().numpy()


def _written(job: ExportRequest, target: str, module: nn.Module, example: Tensor, compared: Any, wide: bool) -> Shipped:
    """Write the file, if the difference is within its limit."""
    fix = "use --to checkpoint, or export the calibrator alone (leave --model out)"
    buffer = io.BytesIO()  # not a file: torch ends the process if the disk is full
    with atomic(job.path) as temporary:
        with (
            refusing((*FAILURES, AssertionError), lambda e: f"torch cannot trace it ({str(e)[:200]})", fix),
            warnings.catch_warnings(action="ignore"),
            torch.no_grad(),
        ):
            if target == "pt2":
                rows = torch.export.Dim("rows", min=1)
                program = torch.export.export(module, (example,), dynamic_shapes=({0: rows},))
                torch.export.save(program, buffer)
            else:
                traced = torch.jit.trace(module, (example,))  # type: ignore[no-untyped-call]
                torch.jit.save(traced, buffer)
        temporary.write_bytes(buffer.getbuffer())
        difference: Compared = compared(temporary)
        difference.require(job.path.name)
    facts = {"arithmetic": "float64" if wide else "float32", "takes": "inputs" if job.model else "scores"}
    return Shipped(files=[job.path], compared=difference, facts=facts)


def _loaded(path: Path, target: str) -> Any:
    """Load the program as a user would."""
    with warnings.catch_warnings(action="ignore"):
        if target == "pt2":
            return torch.export.load(str(path)).module()
        return torch.jit.load(str(path))  # type: ignore[no-untyped-call]


def _run(program: Any, inputs: Any) -> Tensor:
    """Run all rows, and the first row alone, to see that the batch size is not a constant of the program."""
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        out: Tensor = program(inputs)
        single: Tensor = program(inputs[:1])
    if not torch.allclose(single, out[:1], rtol=1e-3, atol=1e-5):
        problem = "the program gives a different result for one row alone"
        raise InputError(problem, "its model's batch norm is in train mode?")
    return out


def probabilities(path: Path, fed: Any, trust: bool) -> Any:
    """Compute the probabilities (n, K) of a calibrator that `calib export --to pt2` or `torchscript` wrote alone.

    Raises:
        InputError: the file is not trusted, or does not take scores.
    """
    load = containers.exported if path.suffix == ".pt2" else containers.torchscript
    fix = "pass --before MODEL and the inputs as --data"
    module = load(path, trust)
    with refusing(FAILURES, lambda e: f"{path} does not take scores ({str(e)[:100]})", fix), torch.no_grad():
        return module(torch.from_numpy(fed)).double().numpy()
