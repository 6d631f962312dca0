"""Run `calib fit`: where to start, which folders, one run for each loss, and the result over all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from calibcli import calibrators, metrics
from calibcli.core.errors import UsageError, WriteError
from calibcli.core.figure_data import Curve, Plot, first_alone
from calibcli.core.files import alone, claim, reading, sha256
from calibcli.core.options import exclusive
from calibcli.core.problem import Problem
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.core.scope import CHANGE, WHOLE, Phase, Scope
from calibcli.lab.training import _state as state
from calibcli.lab.training._evaluation import CONFIDENCES, NORMS, snapshot_name
from calibcli.lab.training._one_model import Start, TrainedModel, fit, train_numbers, write
from calibcli.lab.training.batches import Loader, Parts, Split, open_parts, standardised
from calibcli.lab.training.options import Progress, Setup, Training
from calibcli.lab.training.recipes import CHANGES, Recipe, own_loss, relabelled
from calibcli.metrics import registry
from calibcli.metrics.paired import differences
from calibcli.networks import checkpoint, inference, losses
from calibcli.networks import device as devices
from calibcli.networks.architectures import ARCHITECTURES
from calibcli.networks.architectures.text import TextCNN, TreeLSTM
from calibcli.networks.checkpoint.factory import is_built_in
from calibcli.networks.dataset.vocabulary import vectors
from calibcli.scores import reading_options
from calibcli.scores.columns import columns
from calibcli.scores.files.arrays import split_part
from calibcli.scores.predictions import Predictions

# The `Result` of finished runs: calibration before and after temperature, the log as figures.

METRICS = ("accuracy", "nll", "ece", "adaece")


def calibration(run: TrainedModel, scope: Scope, seed: int, split_seed: int) -> list[Estimate]:
    """Measure error, NLL, ECE and AdaECE before and after a temperature that was fitted on other rows."""
    judged = run.test or run.validation
    if judged is None:
        run.notes.append("nothing is measured: there are no validation and no test rows")
        return []
    if run.validation is None:
        run.notes.append("no temperature is fitted: there are no validation rows")
        return estimates(judged, scope.at("before"), seed)
    fitted = calibrators.fit("temperature", run.validation, seed=seed, report=False)
    if run.test is not None:
        after = calibrators.apply(fitted.scaler, run.test)
    else:
        after = calibrators.cross_fit("temperature", run.validation, seed=seed, split_seed=split_seed)
    run.notes += fitted.notes
    (t,) = (dataclasses.replace(e, **scope.fields) for e in fitted.estimates if e.name == "temperature")
    samples = (metrics.Sample.of(columns(rows, class_bins=())) for rows in (judged, after))
    changed = (e for e in differences(*samples, level=0.95) if e.name in METRICS[1:])
    moved = [dataclasses.replace(e, **scope.at(CHANGE).fields) for e in changed]
    return [t, *estimates(judged, scope.at("before"), seed), *estimates(after, scope.at("after"), seed), *moved]


def estimates(predictions: Predictions, where: Scope, seed: int) -> list[Estimate]:
    """Measure error and calibration of predictions, each with its interval."""
    accuracy, *others = metrics.measure(predictions, METRICS, seed=seed)
    return [dataclasses.replace(e, **where.fields) for e in (error_of(accuracy), *others)]


def error_of(accuracy: Estimate) -> Estimate:
    """Turn the accuracy and its interval into the share of wrong rows."""
    value, low, high = (None if v is None else 1 - v for v in (accuracy.value, accuracy.high, accuracy.low))
    return dataclasses.replace(accuracy, name="error", value=value, low=low, high=high, better="lower")


def table_rows(run: TrainedModel, estimates: Sequence[Estimate], scope: Scope) -> list[list[Any]]:
    """Make the two rows of a run in the comparison: before and after."""
    if not estimates:
        return []
    by = {(e.name, e.where): e for e in estimates}
    t = by.get(("temperature", scope))
    rows = []
    phases: Sequence[Phase] = ("before", "after") if t else ("before",)
    for when in phases:
        cells = [text(by[name, scope.at(when)]) for name in ("error", *METRICS[1:])]
        rows.append([run.recipe.loss, when, *cells, text(t) if t and when == "after" else "1"])
    return rows


def text(estimate: Estimate) -> str:
    """Format an estimate as `0.0412 [0.031, 0.052]`."""
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4f}"
    return f"{estimate.value:.4f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def facts(run: TrainedModel) -> dict[str, Any]:
    last = dict(run.history[-1]) if run.history else {}
    last.pop("snapshot", None)
    snapshots = [{"epoch": r["epoch"], **r["snapshot"]} for r in run.history if "snapshot" in r]
    return {
        "loss": run.recipe.loss,
        "recipe": run.recipe.as_dict(),
        "epochs": len(run.history),
        "steps": run.steps,
        "kept_epoch": run.best_epoch,
        "continued_at_step": run.continued,
        "train_seconds": round(run.seconds, 3),
        "train_nll": run.train["nll"],
        "train_error": run.train["error"],
        "train_confidence_gap": run.train["confidence_gap"],
        "last_epoch": last,
        **({"snapshots": snapshots} if snapshots else {}),
    }


PANELS = (
    (
        "nll",
        "NLL",
        {"nll": "validation", "train_loss": "training loss", "train_nll": "training rows", "test_nll": "test rows"},
    ),
    ("nll_split", "NLL of right and wrong rows", {"nll_correct": "right", "nll_wrong": "wrong"}),
    (
        "calibration",
        "calibration error",
        {"ece": "ECE", "adaece": "AdaECE", "train_ece": "ECE, training", "test_ece": "ECE, test"},
    ),
    ("temperature", "best temperature", {"temperature": "best temperature"}),
    ("confidence", "entropy and probability of the label", {"entropy": "entropy", "p_true": "probability"}),
    ("norms", "norms of the last layer", {"last_weight_norm": "weights", "last_gradient_norm": "gradient"}),
    ("curvature", "curvature of cross-entropy", {"lambda_max": "λmax", "trace": "trace"}),
)
COMPARED = {
    "nll": "NLL",
    "train_loss": "training loss",
    "error": "error",
    "ece": "ECE",
    "temperature": "best temperature",
    "nll_wrong": "NLL of wrong rows",
    "entropy": "entropy",
    "train_nll": "NLL of training rows",
    "train_error": "error of training rows",
    "test_nll": "NLL of test rows",
    "test_error": "error of test rows",
    "test_ece": "ECE of test rows",
    "last_weight_norm": "weight norm of the last layer",
    "trace": "trace of the curvature of cross-entropy",
}


def plots(runs: Sequence[TrainedModel]) -> list[Plot]:
    """Draw the logs over epochs, on validation rows: of one run in pairs of quantities, of several one panel each."""
    named: list[tuple[str, str, list[tuple[TrainedModel, str, str, str]]]] = [
        (name, title, [(runs[0], key, label, key) for key, label in keys.items()]) for name, title, keys in PANELS
    ]
    if len(runs) > 1:
        named = [
            (key, title, [(run, key, run.recipe.loss, run.recipe.loss) for run in runs])
            for key, title in COMPARED.items()
        ]
    panels = []
    for name, title, series in named:
        curves = []
        for run, key, label, role in series:
            points = [(r["epoch"], r[key]) for r in run.history if r.get(key) is not None]
            if points:
                x, y = zip(*points)
                curves.append(Curve(label=label, kind="line", x=x, y=y, role=role))
        group = "Log of training, on validation rows"
        panels.append(Plot(name=name, title=title, xlabel="epoch", ylabel=title, curves=curves, group=group))
    return [panel for panel in [*panels, *_snapshots(runs)] if panel.curves]


def _snapshots(runs: Sequence[TrainedModel]) -> Iterator[Plot]:
    """Draw histograms at each snapshot: confidences of wrong rows, and gradient norms of the last layer by row."""
    several = len(runs) > 1
    confidences = [i / CONFIDENCES for i in range(CONFIDENCES + 1)]
    norm_edges = np.linspace(*NORMS[:2], NORMS[2] + 1).tolist()
    for epoch in sorted({r["epoch"] for run in runs for r in run.history if "snapshot" in r}):
        wrong, norms = [], []
        snapshots = [(run.recipe.loss, r) for run in runs for r in run.history if r["epoch"] == epoch]
        for loss, shown in ((loss, r["snapshot"]) for loss, r in snapshots if "snapshot" in r):
            counts = shown["wrong_confidence"]
            for role in ["test"] if several and "test" in counts else list(counts)[: 1 if several else None]:
                label = loss if several else role
                wrong.append(Curve(label=label, kind="steps", x=confidences, y=counts[role], role=label))
            if shown["gradient_norms"]:
                norms.append(Curve(label=loss, kind="steps", x=norm_edges, y=shown["gradient_norms"], role=loss))
        for name, group, axis, curves in (
            ("wrong", "Wrong rows", "confidence", wrong),
            ("gradients", "Gradients of the last layer, training rows", "log10 of the norm", norms),
        ):
            title = f"epoch {epoch}"
            yield Plot(name=f"{name}_{epoch}", title=title, xlabel=axis, ylabel="rows", curves=curves, group=group)


# From the options of `calib fit` to its runs: the start, the folders, one run per loss.

MADE = ("model.safetensors", "model.pt", "validation.npz", "test.npz")
"""Files that a folder gets at the end of a run."""
LOCK = ".calib-fit.lock"
FEW = 64  # training rows on which a changed network is compared with the one that it was
RUN = ("log.jsonl", "steps.jsonl", state.FILE)
"""Files that show that a folder holds a run."""


def run_all(setup: Setup) -> Result:
    """Train one run per loss from the same start, and report them. A module that was given then has the kept weights.

    Raises:
        UsageError, InputError: a wrong request, or inputs that were refused.
    """
    where = devices.pick(setup.device)
    devices.set_threads(setup.threads)
    given = setup.loss if isinstance(setup.loss, tuple | list) else (setup.loss,)
    asked = (losses.objective(own_loss(loss), list(setup.penalty)).spec for loss in given or ("ce",))
    recipes = [Recipe(loss=spec, seed=setup.seed, **setup.fields_of(Training)) for spec in dict.fromkeys(asked)]
    if len(recipes) > 1 and isinstance(setup.model, nn.Module):
        raise UsageError(f"{len(recipes)} losses for one module", "train a copy with each, or pass a checkpoint")
    save = setup.save and Path(setup.save)
    reading(*(path for name in setup.files if os.path.exists(path := split_part(str(name))[0])), pipes=True)
    folders = [save / slug(r.loss) if save and len(recipes) > 1 else save for r in recipes]
    if save is None and not isinstance(setup.model, nn.Module):
        setup.note("nothing will be kept: pass --save DIR for the model, logits and log")
    with _emptied(folders), contextlib.ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_alone(folder))
            _prepare(setup, folder)
        stack.enter_context(devices.process_group(where))
        start, parts = begin(setup)
        runs: list[TrainedModel] = []
        for i, (recipe, folder) in enumerate(zip(recipes, folders)):
            progress = _part(setup.progress, i, len(recipes), recipe.loss)
            dtype = devices.dtype(setup.dtype)
            try:
                runs.append(
                    fit(start, recipe, parts, setup, folder=folder, device=where, dtype=dtype, progress=progress)
                )
            except BaseException as error:
                kept = folder is not None and (folder / state.FILE).exists()
                resumable = isinstance(error, WriteError) or not isinstance(error, Exception)  # no room, or a signal
                if kept and resumable and not devices.rank():
                    setup.note(f"the state is kept in {folder}: the same command with --resume goes on from there")
                raise
        setup.progress(1.0, "")
    if isinstance(setup.model, nn.Module):
        setup.model.load_state_dict(runs[0].model.state_dict())
    if devices.rank():
        return Result(command="fit")
    return _result(setup, start, parts, runs, str(where))


def changed(setup: Setup, weights: Path, change: str) -> dict[str, Any]:
    """Change a trained network or its labels (`CHANGES`), and write what `run_all` writes of a trained one.

    Args:
        setup: the options that it was trained with, but for the folder.  weights: its parameters, as `fit` writes them.

    Returns:
        Facts of the run, as those of `run_all`.

    Raises:
        InputError: it cannot be changed so.
    """
    where, dtype = devices.pick(setup.device), devices.dtype(setup.dtype)
    devices.set_threads(setup.threads)
    start, parts = begin(setup)
    model = start.model.to(where, dtype).eval()
    model.load_state_dict(load_file(weights, str(where)))
    few, _ = parts.train.batch(np.arange(min(FEW, len(parts.train))), device=where, dtype=dtype)
    measured: dict[str, Any] = {role: relabelled(data, change) for role, data in parts.items()}
    parts = dataclasses.replace(parts, **measured)
    if not (chosen := CHANGES.choose(change)).traits.labels:
        with torch.no_grad(), devices.full_float32():
            chosen(model, lambda: inference.logits(model, few))
    loss = setup.loss if isinstance(setup.loss, str) else "ce"
    run = TrainedModel(Recipe(loss=loss, seed=setup.seed, **setup.fields_of(Training)), setup.save, model)
    run.train = train_numbers(model, Loader(parts.train, where, dtype), setup.batch_size)
    write(run, start, parts, where, dtype)
    return {"runs": [facts(run)], **_of_rows(parts)}


def _of_rows(parts: Parts) -> dict[str, Any]:
    published = {"data": parts.train.published} if parts.train.published else {}
    return {"rows": {role: len(data) for role, data in parts.items()}, **published}


def _result(setup: Setup, start: Start, parts: Parts, runs: Sequence[TrainedModel], where: str) -> Result:
    """Make the result: estimates of every run, a table that compares them, and the figures of their logs."""
    several = len(runs) > 1
    estimates: list[Estimate] = []
    rows: list[list[Any]] = []
    for run in runs:
        scope = Scope(subject=run.recipe.loss) if several else WHOLE
        run_estimates = calibration(run, scope, setup.seed, parts.split.seed or 0)
        estimates += run_estimates
        rows += table_rows(run, run_estimates, scope)
    columns = ["loss", "", "error", "NLL", "ECE", "AdaECE", "T"]
    title = "before and after temperature, on " + ("test rows" if runs[0].test is not None else "validation rows")
    notes = [*parts.notes, *(n for _, d in parts.items() for n in d.notes), *(n for run in runs for n in run.notes)]
    if setup.save is None:
        notes.append("nothing was kept: pass --save DIR for the model, logits and log")
    inputs = [{"path": start.source, "sha256": start.sha256}] if start.sha256 else []
    inputs += [{"path": d.source, "sha256": d.sha256} for _, d in parts.items()]
    if start.vectors:
        inputs.append({"path": str(setup.embeddings), "sha256": start.vectors})
    return Result(
        command="fit",
        estimates=registry.tiered(estimates, lambda e: e.where.phase == CHANGE or registry.decides(e.name, Problem())),
        tables=[Table(name="fit", columns=columns, rows=rows, title=title, tier="all")] if several and rows else [],
        plots=first_alone(plots(runs)),
        notes=list(dict.fromkeys(notes)),
        facts={
            "model": start.source,
            "architecture": start.architecture,
            "parameters": sum(p.numel() for p in start.model.parameters()),
            "classes": parts.classes,
            **_of_rows(parts),
            **({"split": parts.held_out} if parts.held_out else {}),
            "processes": devices.world(),
            "runs": [facts(run) for run in runs],
        },
        artefacts={
            (f"{run.recipe.loss} {role}" if several else role): path for run in runs for role, path in run.files.items()
        },
        provenance={"inputs": inputs, "seed": setup.seed, "device": where, "dtype": setup.dtype},
        screen=Screen(pairs="change", hidden=("processes",), one_page=True),
    )


def begin(setup: Setup) -> tuple[Start, Parts]:
    """Open the model to start from and the rows, which decide each other's shapes."""
    options = setup.fields_of(reading_options.DatasetOptions)
    del options["split_seed"]  # which is in the split
    rows = functools.partial(
        open_parts,
        setup.data,
        setup.validation,
        setup.test,
        split=Split(setup.split, setup.split_seed, setup.val_fraction),
        missing_classes=setup.missing_classes,
        trust=setup.trust,
        **options,
    )
    if isinstance(setup.model, nn.Module):
        if setup.arch or setup.arch_file or setup.init == "fresh":
            raise UsageError("a module has its architecture and its weights", "leave arch, arch_file and init out")
        given = checkpoint.of(setup.model).with_gradients(1, devices.pick(setup.device))
        parts = rows(embeds=checkpoint.embeds(given.model))
        parts.notes.extend(given.notes)
        return Start(given.model, given.architecture, False, source=given.source), parts
    model_name = str(setup.model)
    checkpointed = Path(model_name.rpartition("#")[0] or model_name).exists() and not is_built_in(model_name)
    if checkpointed:
        if setup.embeddings is not None:
            raise UsageError("--embeddings with a checkpoint, which has its vectors", "leave it out")
        loaded = checkpoint.load(model_name, **setup.fields_of(reading_options.NetworkOptions))
        loaded.with_gradients(1, devices.pick(setup.device))
        parts = rows(named=loaded.data, classes=loaded.classes, start=loaded.metadata, **loaded.preparing)
        fresh = setup.init == "fresh"
        model = _drawn(setup, loaded.architecture) if fresh else loaded.model
        start = Start(model, loaded.architecture, fresh, loaded.classes, loaded.source, loaded.sha256)
        parts.notes.extend(loaded.notes)
        return start, parts
    if setup.arch is not None:
        problem = f"{model_name} is not a file, and --arch is for checkpoints"
        raise UsageError(problem, "name the architecture in place of the model")
    parts = rows()
    train = standardised(parts.train)
    others: Any = {role: dataclasses.replace(d, preprocess=train.preprocess, notes=[]) for role, d in parts.items()[1:]}
    parts = dataclasses.replace(parts, train=train, **others)
    sizes = {"classes": parts.classes, "inputs": int(np.prod(train.shape)), "channels": train.shape[0]}
    spec = model_name
    if is_built_in(spec):
        spec, sizes = ARCHITECTURES.choose(spec, **sizes).spec, {}
    model = _drawn(setup, spec, **sizes)
    digest = "" if setup.embeddings is None else _embedded(model, spec.partition(":")[0], setup.embeddings, parts)
    return Start(model, setup.arch_file or spec, True, train.classes, model_name, vectors=digest), parts


def _embedded(model: nn.Module, name: str, path: str, parts: Parts) -> str:
    """Put the vectors of a file into a network of words, and return the file's digest.

    Raises:
        UsageError: a network or rows without words.  InputError: as `vocabulary.vectors`.
    """
    if not isinstance(model, TextCNN | TreeLSTM):
        raise UsageError("--embeddings is for text_cnn and tree_lstm", "leave it out")
    if not parts.train.words:
        problem = f"the words of {parts.train.source} are not known, only their numbers"
        raise UsageError(problem, "leave --embeddings out, or pass texts such as 20_newsgroups.tar.gz")
    capacity, width = model.vectors.shape
    word_vectors, count = vectors(path, parts.train.words, width)
    if len(word_vectors) > capacity:
        raise UsageError(
            f"{len(word_vectors):,} words, and {name} has {capacity:,}", f"pass {name}:vocabulary={len(word_vectors)}"
        )
    with torch.no_grad():
        model.vectors.zero_()[: len(word_vectors)] = torch.from_numpy(word_vectors)
    parts.notes.append(f"{count:,} of {len(word_vectors) - 1:,} words have a vector in {path}, the others are 0")
    return sha256(path)


def _drawn(setup: Setup, spec: str, **sizes: Any) -> nn.Module:
    """Build a network of the spec, or of the user's code, with weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        return checkpoint.build(None if setup.arch_file else spec, setup.arch_file, **sizes)


def _prepare(setup: Setup, folder: Path | None) -> None:
    """Make the folder of a run's files, and refuse one that holds another run.

    Raises:
        UsageError: it holds a run and neither --resume nor --overwrite was given, or cannot be made.
    """
    if folder is None:
        if setup.resume:
            raise UsageError("--resume needs the folder of the run", "pass --save DIR")
        if setup.snapshot:
            raise UsageError("--snapshot needs a folder", "pass --save DIR")
        return
    if late := [epoch for epoch in setup.snapshot if epoch > setup.epochs]:
        raise UsageError(f"--snapshot {late[0]} is beyond the {setup.epochs} epochs", "lower it, or raise --epochs")
    exclusive("go on, or begin anew", resume=setup.resume, overwrite=setup.overwrite)
    try:  # in every process: one that went on alone would wait for the others in vain
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder} ({error.strerror})", "name another --save folder") from None
    claim(*(folder / name for name in (*MADE, *map(snapshot_name, setup.snapshot), *RUN)))
    outputs, run_files = ([folder / name for name in names if (folder / name).exists()] for names in (MADE, RUN))
    outputs += folder.glob(snapshot_name("[0-9]*"))
    if outputs and not run_files:
        raise UsageError(
            f"{folder} holds a {outputs[0].name} that belongs to no run in it", "name another --save folder"
        )
    if run_files and setup.overwrite:
        for path in (*outputs, *run_files):  # in this order: another process looks at them too
            path.unlink(missing_ok=True)
    elif run_files and not setup.resume:
        raise UsageError(f"{folder} holds a run", "pass --resume to go on with it, or --overwrite to start again")


def _alone(folder: Path | None) -> contextlib.AbstractContextManager[None]:
    """Keep the folder of a run for this run until it ends (see `alone`); of several processes the first keeps it."""
    if folder is None or devices.rank() > 0:
        return contextlib.nullcontext()
    return alone(folder / LOCK, "--save")


@contextlib.contextmanager
def _emptied(folders: Sequence[Path | None]) -> Iterator[None]:
    """Leave no empty folder behind that was not there before, where a request is refused."""
    missing = {path for folder in folders if folder for path in (folder, *folder.parents) if not path.exists()}
    try:
        yield
    except BaseException:
        for path in sorted(missing, key=lambda p: -len(p.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def slug(spec: str) -> str:
    """Make a folder name of a loss: `focal-gamma-3`."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in spec)


def _part(progress: Progress, index: int, count: int, loss: str) -> Progress:
    text = f"{loss}: " if count > 1 else ""
    return lambda fraction, detail: progress((index + min(fraction, 0.999)) / count, text + detail)
