"""Train one model: from a start and a recipe to weights, logits and a log on disk."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import atomic
from calibcli.lab.training import _state as state
from calibcli.lab.training import batches
from calibcli.lab.training._evaluation import EvaluationPlan, room, snapshot_name
from calibcli.lab.training._loop import Trainer
from calibcli.lab.training.batches import Index, Loader, Parts, Split
from calibcli.lab.training.options import Progress, RunOutputs
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import checkpoint, inference, losses
from calibcli.networks import device as devices
from calibcli.scores.likelihood import log_phi
from calibcli.scores.predictions import Predictions, same_rows


@dataclass(frozen=True)
class Start:
    """The model that runs start from.

    Attributes:
        model: with the weights to start from; every run trains its own copy.
        architecture: canonical spec, or a description where the network is not built in.
        fresh: drawn at random rather than read from a checkpoint.  classes: class names, or None.
        source: the name that the user gave.  sha256, vectors: of the checkpoint and of a file of word vectors, or "".
    """

    model: nn.Module
    architecture: str
    fresh: bool
    classes: list[str] | None = None
    source: str = ""
    sha256: str = ""
    vectors: str = ""


@dataclass
class TrainedModel:
    """A finished run.

    Attributes:
        recipe: of the run.  folder: where its files are, or None.  model: with the kept weights.
        history: the log, a record per epoch.
        train: NLL and error on the training rows, in eval mode and without augmentation.
        validation, test: predictions, where there are such rows.
        seconds: of training in this process.  steps: of the whole run.  continued: the step it was continued at.
        best_epoch: the epoch whose weights were kept.  epochs: that a snapshot has seen.  files: by role.
    """

    recipe: Recipe
    folder: Path | None
    model: nn.Module
    history: list[dict[str, Any]] = field(default_factory=list)
    train: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    continued: int | None = None
    best_epoch: int = 0
    epochs: int = 0
    validation: Predictions | None = None
    test: Predictions | None = None
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def fit(
    start: Start,
    recipe: Recipe,
    parts: Parts,
    kept: RunOutputs,
    *,
    folder: Path | None,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
) -> TrainedModel:
    """Train a copy of the start's model, and write weights, logits and logs.

    `folder` gets `model.safetensors` (and `model.pt` with `kept.pt`), `validation.npz` and `test.npz`, `log.jsonl`
    (a line per epoch), `steps.jsonl` (a line per step) and `state.pt`, from which `kept.resume` goes on. With
    `kept.report_link` `phi` the logits and numbers of a focal loss are ln φ_γ(softmax z), the map that undoes its
    underconfidence.

    Raises:
        UsageError: a recipe that does not fit the start, or a state of another run.
        InputError: rows or labels that do not fit the model, a loss that is not finite, no memory.
    """
    model = copy.deepcopy(start.model).to(device, dtype)
    notes = _misfits(recipe, model, parts, kept.kind)
    # γ of the loss as it is in the last epochs of its schedule; None where it is no focal loss of one γ
    gamma = losses.final(losses.objective(recipe.loss).loss.spec).link_gamma if kept.report_link == "phi" else None
    if gamma is not None:
        note = f"{recipe.loss}: logits and numbers are of the focal map φ of the network's softmax at γ = {gamma:g}"
        notes.append(f"{note}; the saved model is the network alone")
    elif kept.report_link == "phi":
        notes.append(f"{recipe.loss}: no focal map is applied, which is for focal losses of one γ")
    batches.freeze(model, recipe.freeze)
    train = whole = Loader(parts.train, device, dtype)
    steers = parts.validation
    if steers is not None and (loss := losses.objective(recipe.loss).loss).needs_validation:
        steers = steers.select(_halves(parts)[1])
        steered = f"{loss.spec.partition(':')[0]} is steered by half of the validation rows"
        notes.append(f"{steered}, which the temperature is not fitted on")
    steering = None if steers is None else Loader(steers, device, dtype)
    trained: nn.Module = model
    if recipe.head_only:
        trained = batches.layer(model)
        train, steering = batches.features(model, train), steering and batches.features(model, steering)
    fitted = TrainedModel(recipe, folder, model, notes=notes)
    rows = {"train": train} if "train" in kept.log_rows else {}
    if "test" in kept.log_rows:
        if parts.test is None:
            raise UsageError("--log-rows test needs test rows", "pass --test FILE")
        test = Loader(parts.test, device, dtype)
        rows["test"] = batches.features(model, test) if recipe.head_only else test
    if folder is not None and kept.snapshot:
        room(model, folder, len(set(kept.snapshot)))

    def snapshot(epoch: int) -> None:
        """Save the weights as they are after an epoch, as a checkpoint whose metadata name the epoch."""
        if folder is not None and not devices.rank():
            now = dataclasses.replace(fitted, epochs=epoch, best_epoch=epoch, notes=[])
            checkpoint.save(folder / snapshot_name(epoch), model, metadata(now, start, parts, folder))

    evaluations = EvaluationPlan(
        every=kept.log_every, rows=rows, snapshots=tuple(kept.snapshot), train=train, keep=snapshot
    )
    trainer = Trainer(
        trained,
        recipe,
        train,
        steering,
        evaluations=evaluations,
        folder=folder,
        identity=_identity(start, parts, dtype),
        save_every=kept.save_every,
        curvature_every=kept.curvature_every,
        curvature_rows=kept.curvature_rows,
        progress=progress,
    )
    continued = None
    if kept.resume and folder is not None and (folder / state.FILE).exists():
        trainer.resume()
        continued = trainer.position.epoch * trainer.batches.steps + trainer.position.step
    began = time.perf_counter()
    with devices.deterministic(device):
        history = fitted.history = trainer.run()
    model.eval()
    fitted.train = train_numbers(model, whole, recipe.batch_size)
    fitted.seconds = time.perf_counter() - began
    fitted.steps, fitted.continued = len(history) * trainer.batches.steps, continued
    best = trainer.position.best
    fitted.best_epoch = best["epoch"] if best and recipe.keep == "best" else len(history)
    if devices.rank() == 0:
        write(fitted, start, parts, device, dtype, kept.pt, gamma)
    return fitted


def _misfits(recipe: Recipe, model: nn.Module, parts: Parts, kind: str | None) -> list[str]:
    """Check that recipe, model and rows fit together; return notes on what fits badly.

    Raises:
        UsageError, InputError: they do not fit at all.
    """
    for role, data in parts.items():
        # only training rows may change from one reading to the next, as those that are augmented do
        outputs = inference.check(data, model, kind, drawn=role == "train")
        if role == "train" and parts.classes > outputs:
            raise InputError(f"the labels have {parts.classes} classes, the model {outputs}", "use a model with more")
    if recipe.amp != "off" and any(p.dtype == torch.float64 for p in model.parameters()):
        problem = f"--amp {recipe.amp} with --dtype float64, which autocast leaves as it is"
        raise UsageError(problem, "leave one of them out")
    if recipe.head_only and (recipe.augment or recipe.freeze):
        raise UsageError(
            "--head-only trains on features computed once", "leave --augment and --freeze out, or use --freeze alone"
        )
    notes = []
    if devices.world() > 1:
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            notes.append(f"batch-norm statistics are of each of the {devices.world()} processes' own rows")
        if any(p.pairs_rows for p in losses.objective(recipe.loss).penalties):
            notes.append(f"MMCE is of each of the {devices.world()} processes' own rows")
    return notes


def _halves(parts: Parts) -> tuple[Index, Index]:
    """Split validation rows into those that are measured and those that may steer the loss."""
    assert parts.validation is not None
    return Split("stratified", parts.split.seed, 0.5)(parts.validation.labels)


def _identity(start: Start, parts: Parts, dtype: torch.dtype) -> dict[str, Any]:
    data = {
        role: {
            "file": d.sha256[:16],
            "rows": len(d),
            "places": hashlib.sha256(np.ascontiguousarray(d.rows, np.int64).tobytes()).hexdigest()[:16],
            "labels": hashlib.sha256(np.ascontiguousarray(d.labels, np.int64).tobytes()).hexdigest()[:16],
            "inputs": sorted(d.inputs),
            "preprocess": dict(d.prepared) or d.preprocess.as_dict(),
        }
        for role, d in parts.items()
    }
    identity = {"architecture": start.architecture, "start": start.sha256, "data": data, "dtype": str(dtype)}
    return {**identity, "vectors": start.vectors} if start.vectors else identity


def train_numbers(model: nn.Module, loader: Loader, batch_size: int) -> dict[str, float]:
    """Compute NLL, error and confidence gap of the training rows, the metrics of those names, in eval mode."""
    nll = wrong = gap = 0.0
    with torch.no_grad(), devices.full_float32():
        for rows in torch.split(torch.arange(len(loader)), max(256, batch_size)):
            inputs, labels = loader(rows)
            logits = inference.logits(model, inputs)
            nll += float(losses.CrossEntropy()(logits, labels).double().sum())
            p, right = logits.double().softmax(1), (logits.argmax(1) == labels).double()
            wrong += float((1 - right).sum())
            gap += float((p[:, 1] - labels if p.shape[1] == 2 else p.amax(1) - right).sum())  # of two: of the event
    return {k: v / len(loader) for k, v in (("nll", nll), ("error", wrong), ("confidence_gap", gap))}


def write(
    fitted: TrainedModel,
    start: Start,
    parts: Parts,
    where: torch.device,
    dtype: torch.dtype,
    also_pt: bool = False,
    gamma: float | None = None,
) -> None:
    """Predict validation and test rows, and write them, the model and the names of the logs."""
    folder = fitted.folder
    for role, data in parts.items()[1:]:
        rows = data
        if role == "validation" and losses.objective(fitted.recipe.loss).loss.needs_validation:
            rows = data.select(_halves(parts)[0])
        logits = torch.cat(list(inference.predict(fitted.model, rows, device=where, dtype=dtype))).numpy()
        if gamma:
            logits = log_phi(logits, gamma).astype(logits.dtype)
        setattr(fitted, role, Predictions.of(logits, rows.labels, source=role))
        if len(logits) > 1 and (logits == logits[0]).all():
            parts.notes.append(f"{role}: {same_rows(len(logits), 'logits')}")
        if folder is not None:
            fitted.files[role] = str(folder / f"{role}.npz")
            named = {"ids": rows.ids, "classes": rows.classes and np.array(rows.classes)}
            arrays: dict[str, Any] = {k: v for k, v in named.items() if v is not None}
            with atomic(fitted.files[role]) as temporary:
                np.savez(temporary, logits=logits, labels=rows.labels, **arrays)
    if folder is None:
        return
    described = metadata(fitted, start, parts, folder)
    for name in ("model.safetensors", "model.pt") if also_pt else ("model.safetensors",):
        checkpoint.save(folder / name, fitted.model, described)
        fitted.files["model" if name.endswith("s") else "model.pt"] = str(folder / name)
    for record in fitted.history:
        if "snapshot" in record and (path := folder / snapshot_name(record["epoch"])).exists():
            fitted.files[f"epoch {record['epoch']}"] = str(path)
    fitted.files |= {name: str(folder / f"{name}.jsonl") for name in ("log", "steps")}


def metadata(fitted: TrainedModel, start: Start, parts: Parts, folder: Path) -> dict[str, Any]:
    """Make the metadata of the checkpoint, so that other commands need no options for it."""
    from calibcli.networks.checkpoint.factory import is_built_in
    from calibcli.networks.checkpoint.huggingface import HEADS

    train = parts.train
    entries: dict[str, Any] = {
        **({} if train.prepared else {"preprocess": train.preprocess.as_dict()}),  # a library's is not ours to write
        "data": {role: _relative(d.source, folder) for role, d in parts.items() if Path(_path(d.source)).exists()},
        "training": {
            **fitted.recipe.as_dict(),
            "rows": len(train),
            "trained_epochs": fitted.epochs or len(fitted.history),
            "kept_epoch": fitted.best_epoch,
            "start": "fresh" if start.fresh else start.source,
        },
        "data_sha256": train.sha256,
    }
    if parts.validation is not None and parts.validation.source == train.source:
        entries["data"].pop("validation", None)  # rows of the training file that its name cannot tell
    if parts.held_out:
        entries["split"] = parts.held_out
    if is_built_in(start.architecture):
        entries["architecture"] = start.architecture
    else:
        fix = f"load the checkpoint with --arch {start.architecture}"
        if start.architecture.endswith(HEADS):
            fix = f"put the files of {start.source} beside model.safetensors, but for its weights, and pass that folder"
        fitted.notes.append(f"the network is not built in: {fix}")
    if names := start.classes or train.classes:
        entries["classes"] = list(names)
    return entries


def _path(source: str) -> str:
    """Remove `#SPLIT` from a source, unless a file has that in its name."""
    return source if Path(source).exists() else source.rpartition("#")[0] or source


def _relative(source: str, folder: Path) -> str:
    return os.path.relpath(Path(path := _path(source)).resolve(), folder.resolve()) + source[len(path) :]
