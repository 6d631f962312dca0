"""Everything `calib fit` does between its options and its result: where to start, which folders, one run per loss."""

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
from torch import nn

from calibcli import device as devices
from calibcli import losses
from calibcli.architectures import ARCHITECTURES
from calibcli.architectures.text_cnn import TextCNN
from calibcli.architectures.tree_lstm import TreeLSTM
from calibcli.errors import UsageError, WriteError
from calibcli.files import claim, reading, sha256
from calibcli.inputs import checkpoint, opening
from calibcli.inputs.checkpoint.factory import is_built_in
from calibcli.inputs.dataset.vocabulary import vectors
from calibcli.inputs.files.names import parted
from calibcli.result import Result
from calibcli.training import state, summary
from calibcli.training.data import Parts, Split, open_parts, standardised
from calibcli.training.looks import snapshot_name
from calibcli.training.one_model import Fitted, Start, fit
from calibcli.training.recipe import Recipe, own_loss
from calibcli.training.setup import Progress, Setup, Training

MODULE = "(module)"
MADE = ("model.safetensors", "model.pt", "validation.npz", "test.npz")
RUN = ("log.jsonl", "steps.jsonl", state.FILE)
"""What a folder gets at the end of a run, and what says that it holds one."""


def run_all(setup: Setup) -> Result:
    """One run per loss from the same start, and what they came to. A module that was given has the kept weights then.

    Raises:
        UsageError, InputError: a wrong request, or inputs that were refused.
    """
    where = devices.pick(setup.device)
    devices.set_threads(setup.threads)
    given = setup.loss if isinstance(setup.loss, tuple | list) else (setup.loss,)
    asked = [own_loss(loss) for loss in given or ("ce",)]
    recipes = list({r.loss: r for r in (recipe(setup, spec) for spec in asked)}.values())
    if len(recipes) > 1 and isinstance(setup.model, nn.Module):
        raise UsageError(f"{len(recipes)} losses for one module", "train a copy with each, or pass a checkpoint")
    save = setup.save and Path(setup.save)
    reading(*(parted(str(name))[0] for name in setup.files if os.path.exists(parted(str(name))[0])))
    folders = [save / slug(r.loss) if save and len(recipes) > 1 else save for r in recipes]
    with _emptied(folders), contextlib.ExitStack() as stack:
        for folder in folders:
            _prepare(setup, folder)
        stack.enter_context(devices.process_group(where))
        start, parts = begin(setup)
        runs: list[Fitted] = []
        for i, (one, folder) in enumerate(zip(recipes, folders)):
            progress = _part(setup.progress, i, len(recipes), one.loss)
            try:
                dtype = devices.dtype(setup.dtype)
                runs.append(fit(start, one, parts, setup, folder=folder, device=where, dtype=dtype, progress=progress))
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
    return _told(setup, start, parts, runs, str(where))


def _told(setup: Setup, start: Start, parts: Parts, runs: Sequence[Fitted], where: str) -> Result:
    result = summary.result(runs, seed=setup.seed, split_seed=parts.split.seed or 0)
    facts = {
        "model": start.source,
        "architecture": start.architecture,
        "parameters": sum(p.numel() for p in start.model.parameters()),
        "classes": parts.classes,
        "rows": {role: len(data) for role, data in parts.items()},
        **({"split": parts.held_out} if parts.held_out else {}),
        "processes": devices.world(),
    }
    extra = [] if setup.save is not None else ["nothing was kept: pass --save DIR for the model, logits and log"]
    notes = [*parts.notes, *(n for _, d in parts.items() for n in d.notes), *result.notes, *extra]
    inputs = [{"path": d.source, "sha256": d.sha256} for _, d in parts.items()]
    if start.sha256:
        inputs.insert(0, {"path": start.source, "sha256": start.sha256})
    if start.vectors:
        inputs.append({"path": str(setup.embeddings), "sha256": start.vectors})
    return dataclasses.replace(
        result,
        facts={**facts, **result.facts},
        notes=list(dict.fromkeys(notes)),
        provenance={"inputs": inputs, "seed": setup.seed, "device": where, "dtype": setup.dtype},
    )


def recipe(setup: Setup, loss: str) -> Recipe:
    """The recipe of a loss.

    Raises:
        UsageError: an option that is not a choice, or out of range.
    """
    spec = losses.objective(loss, list(setup.penalty)).spec
    return Recipe(loss=spec, seed=setup.seed, **setup.fields_of(Training))


def begin(setup: Setup) -> tuple[Start, Parts]:
    """The model to start from and the rows, which decide each other's shapes."""
    rows = functools.partial(
        open_parts,
        setup.data,
        setup.validation,
        setup.test,
        split=Split(setup.split, setup.split_seed, setup.val_fraction),
        missing_classes=setup.missing_classes,
        trust=setup.trust,
        **{name: value for name, value in setup.fields_of(opening.Rows).items() if name != "split_seed"},
    )
    if isinstance(setup.model, nn.Module):
        if setup.arch or setup.arch_file or setup.init == "fresh":
            raise UsageError("a module has its architecture and its weights", "leave arch, arch_file and init out")
        return Start(setup.model, type(setup.model).__name__, False, source=MODULE), rows(
            embeds=checkpoint.embeds(setup.model)
        )
    model_name = str(setup.model)
    checkpointed = Path(model_name.rpartition("#")[0] or model_name).exists() and not is_built_in(model_name)
    if checkpointed and setup.embeddings is not None:
        raise UsageError("--embeddings with a checkpoint, which has its vectors", "leave it out")
    if checkpointed:
        loaded = checkpoint.load(model_name, **setup.fields_of(opening.Network)).with_gradients()
        parts = rows(named=loaded.data, classes=loaded.classes, start=loaded.metadata, **loaded.preparing)
        fresh = setup.init == "fresh"
        model = _drawn(setup, loaded.architecture) if fresh else loaded.model
        start = Start(model, loaded.architecture, fresh, loaded.classes, loaded.source, loaded.sha256)
        parts.notes.extend(loaded.notes)
        return start, parts
    if setup.arch is not None:
        raise UsageError(
            f"{model_name} is not a file, and --arch is for checkpoints", "name the architecture in place of the model"
        )
    parts = rows()
    train = standardised(parts.train)
    others: dict[str, Any] = {
        role: dataclasses.replace(data, preprocess=train.preprocess, notes=[]) for role, data in parts.items()[1:]
    }
    parts = dataclasses.replace(parts, train=train, **others)
    known = {"classes": parts.classes, "inputs": int(np.prod(train.shape)), "channels": train.shape[0]}
    spec = model_name
    if is_built_in(spec):
        spec, known = ARCHITECTURES.choose(spec, **known).spec, {}
    model = _drawn(setup, spec, **known)
    digest = "" if setup.embeddings is None else _embedded(model, spec.partition(":")[0], setup.embeddings, parts)
    return Start(model, setup.arch_file or spec, True, train.classes, model_name, vectors=digest), parts


def _embedded(model: nn.Module, name: str, path: str, parts: Parts) -> str:
    """Put the vectors of a file into a network of words; the file's digest.

    Raises:
        UsageError: a network or rows without words.  InputError: as `vocabulary.vectors`.
    """
    if not isinstance(model, TextCNN | TreeLSTM):
        raise UsageError("--embeddings is for text_cnn and tree_lstm", "leave it out")
    if not parts.train.words:
        problem = f"the words of {parts.train.source} are not known, only their numbers"
        raise UsageError(problem, "leave --embeddings out, or pass texts such as 20_newsgroups.tar.gz")
    held, width = model.vectors.shape
    found, count = vectors(path, parts.train.words, width)
    if len(found) > held:
        raise UsageError(f"{len(found):,} words, and {name} has {held:,}", f"pass {name}:vocabulary={len(found)}")
    with torch.no_grad():
        model.vectors.zero_()[: len(found)] = torch.from_numpy(found)
    parts.notes.append(f"{count:,} of {len(found) - 1:,} words have a vector in {path}, the others are 0")
    return sha256(path)


def _drawn(setup: Setup, spec: str, **known: Any) -> nn.Module:
    """A network of the spec, or of the user's code, with weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        return checkpoint.build(None if setup.arch_file else spec, setup.arch_file, **known)


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
    if setup.resume and setup.overwrite:
        raise UsageError("--resume and --overwrite were both given", "pass one of them")
    try:  # in every process: one that went on alone would wait for the others in vain
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder} ({error.strerror})", "name another --save folder") from None
    claim(*(folder / name for name in (*MADE, *map(snapshot_name, setup.snapshot), *RUN)))
    made, held = ([folder / name for name in names if (folder / name).exists()] for names in (MADE, RUN))
    made += folder.glob(snapshot_name("[0-9]*"))
    if made and not held:
        raise UsageError(f"{folder} holds a {made[0].name} that is of no run in it", "name another --save folder")
    if held and setup.overwrite:
        for path in (*made, *held):  # in this order: another process looks at them too
            path.unlink(missing_ok=True)
    elif held and not setup.resume:
        raise UsageError(f"{folder} holds a run", "pass --resume to go on with it, or --overwrite to start again")


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
    """A folder name of a loss: `focal-gamma-3`."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in spec)


def _part(progress: Progress, index: int, count: int, loss: str) -> Progress:
    text = f"{loss}: " if count > 1 else ""
    return lambda fraction, what: progress((index + min(fraction, 0.999)) / count, text + what)
