"""Everything `calib fit` does between its options and its result: where to start, which folders, one run per loss."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import torch

from calibcli import device as devices
from calibcli import losses
from calibcli.architectures import ARCHITECTURES
from calibcli.errors import UsageError, WriteError, did_you_mean
from calibcli.files import may_write
from calibcli.inputs import checkpoint
from calibcli.inputs.checkpoint.factory import is_built_in
from calibcli.result import Result
from calibcli.train import report, state
from calibcli.train.data import Parts, open_parts, standardised
from calibcli.train.recipe import Recipe
from calibcli.train.run import Fitted, Progress, Start, fit

MADE = ("model.safetensors", "model.pt", "validation.npz", "test.npz")
RUN = ("log.jsonl", "steps.jsonl", state.FILE)
"""What a folder gets at the end of a run, and what says that it holds one."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a training command was asked for, apart from the recipe. Fields are named like the options."""

    model: str
    data: str | None = None
    validation: str | None = None
    test: str | None = None
    val_fraction: float = 0.1
    missing_classes: bool = False
    penalties: tuple[str, ...] = ()
    fresh: str = "keep"
    arch: str | None = None
    arch_file: str | None = None
    loading: dict[str, Any] = field(default_factory=dict)
    trust: bool = False
    device: torch.device | None = None
    dtype: torch.dtype = torch.float32
    save: Path | None = None
    save_every: int = 500
    resume: bool = False
    overwrite: bool = False
    also_pt: bool = False
    report_link: str = "none"
    curvature_every: int = 0


def run_all(
    setup: Setup, specs: Sequence[str], options: dict[str, Any], progress: Progress, note: Callable[[str], None]
) -> tuple[Result, list[dict[str, str]]]:
    """One run per loss from the same start, and what they came to; and the input files with their sha256.

    Raises:
        UsageError, InputError: a wrong request, or inputs that were refused.
    """
    recipes = list({r.loss: r for r in (recipe(spec, setup.penalties, options) for spec in specs)}.values())
    with contextlib.ExitStack() as stack:
        stack.enter_context(_emptied(setup, recipes))
        folders = [folder_of(setup, r, len(recipes) > 1) for r in recipes]
        stack.enter_context(devices.process_group(setup.device or torch.device("cpu")))
        start, parts = begin(setup, int(options.get("seed", 0)))
        runs: list[Fitted] = []
        for i, (one, folder) in enumerate(zip(recipes, folders)):
            try:
                runs.append(
                    fit(
                        start,
                        one,
                        parts,
                        folder=folder,
                        device=setup.device,
                        dtype=setup.dtype,
                        resume=setup.resume,
                        save_every=setup.save_every,
                        also_pt=setup.also_pt,
                        report_link=setup.report_link,
                        curvature_every=setup.curvature_every,
                        progress=_part(progress, i, len(recipes), one.loss),
                    )
                )
            except BaseException as error:
                kept = folder is not None and (folder / state.FILE).exists()
                resumable = isinstance(error, WriteError) or not isinstance(error, Exception)  # no room, or a signal
                if kept and resumable and not devices.rank():
                    note(f"the state is kept in {folder}: the same command with --resume goes on from there")
                raise
        progress(1.0, "")
    if devices.rank():
        return Result(command="fit"), []
    result = report.result(runs, seed=int(options.get("seed", 0)))
    facts = {
        "model": start.source,
        "architecture": start.architecture,
        "parameters": sum(p.numel() for p in start.model.parameters()),
        "classes": parts.classes,
        "rows": {role: len(data) for role, data in parts.items()},
        "processes": devices.world(),
    }
    extra = [] if setup.save is not None else ["nothing was kept: pass --save DIR for the model, logits and log"]
    notes = [*parts.notes, *(n for _, d in parts.items() for n in d.notes), *result.notes, *extra]
    inputs = [{"path": d.source, "sha256": d.sha256} for _, d in parts.items()]
    if start.sha256:
        inputs.insert(0, {"path": start.source, "sha256": start.sha256})
    return dataclasses.replace(result, facts={**facts, **result.facts}, notes=list(dict.fromkeys(notes))), inputs


def recipe(spec: str, penalties: Sequence[str], options: dict[str, Any]) -> Recipe:
    """The recipe of a loss; words among the options are checked against their choices.

    Raises:
        UsageError: an option that is not a choice.
    """
    for name, hint in get_type_hints(Recipe).items():
        words = get_args(hint)
        if name in options and words and all(isinstance(w, str) for w in words) and options[name] not in words:
            raise UsageError(f"--{name} {options[name]} is not a choice", did_you_mean(str(options[name]), words))
    return Recipe(loss=losses.objective(spec, list(penalties)).spec, **options)


def begin(setup: Setup, seed: int) -> tuple[Start, Parts]:
    """The model to start from and the rows, which decide each other's shapes."""
    if setup.fresh not in ("keep", "fresh"):
        raise UsageError(f"--init {setup.fresh} is not a choice", "pass --init keep or --init fresh")
    opening = {
        "fraction": setup.val_fraction,
        "seed": seed,
        "missing_classes": setup.missing_classes,
        "trust": setup.trust,
        **setup.loading,
    }
    if Path(setup.model.rpartition("#")[0] or setup.model).exists() and not is_built_in(setup.model):
        loaded = checkpoint.load(setup.model, arch=setup.arch, arch_file=setup.arch_file, trust=setup.trust)
        parts = open_parts(
            setup.data,
            setup.validation,
            setup.test,
            named=loaded.data,
            classes=loaded.classes,
            preprocess=loaded.metadata.get("preprocess"),
            **opening,
        )
        model = loaded.model
        if setup.fresh == "fresh":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = checkpoint.build(None if setup.arch_file else loaded.architecture, setup.arch_file)
        start = Start(model, loaded.architecture, setup.fresh == "fresh", loaded.classes, loaded.source, loaded.sha256)
        parts.notes.extend(loaded.notes)
        return start, parts
    if setup.arch is not None:
        raise UsageError(
            f"{setup.model} is not a file, and --arch is for checkpoints", "name the architecture in place of the model"
        )
    if setup.data is None:
        raise UsageError("no training rows were named", "pass --data FILE")
    parts = open_parts(setup.data, setup.validation, setup.test, named={}, **opening)
    train = standardised(parts.train)
    alike = {
        role: d and dataclasses.replace(d, preprocess=train.preprocess, notes=[])
        for role, d in (("validation", parts.validation), ("test", parts.test))
    }
    parts = Parts(train, alike["validation"], alike["test"], parts.classes, parts.notes)
    known = {"classes": parts.classes, "inputs": int(np.prod(train.shape)), "channels": train.shape[0]}
    spec = setup.model
    if is_built_in(spec):
        spec, known = ARCHITECTURES.choose(spec, **known).spec, {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = checkpoint.build(None if setup.arch_file else spec, setup.arch_file, **known)
    return Start(model, setup.arch_file or spec, True, train.classes, setup.model), parts


def folder_of(setup: Setup, recipe: Recipe, several: bool) -> Path | None:
    """Where a run's files go; made here, and refused where it holds another run.

    Raises:
        UsageError: it holds a run and neither --resume nor --overwrite was given, or cannot be made.
    """
    if setup.save is None:
        if setup.resume:
            raise UsageError("--resume needs the folder of the run", "pass --save DIR")
        return None
    folder = _folder(setup.save, recipe, several)
    if setup.resume and setup.overwrite:
        raise UsageError("--resume and --overwrite were both given", "pass one of them")
    try:  # in every process: one that went on alone would wait for the others in vain
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder} ({error.strerror})", "name another --save folder") from None
    may_write(
        [folder / name for name in (*MADE, *RUN)],
        [setup.model, setup.data, setup.validation, setup.test, setup.arch_file],
    )
    made, held = ([folder / name for name in names if (folder / name).exists()] for names in (MADE, RUN))
    if made and not held:
        raise UsageError(f"{folder} holds a {made[0].name} that is of no run in it", "name another --save folder")
    if held and setup.overwrite:
        for path in (*made, *held):  # in this order: another process looks at them too
            path.unlink(missing_ok=True)
    elif held and not setup.resume:
        raise UsageError(f"{folder} holds a run", "pass --resume to go on with it, or --overwrite to start again")
    return folder


def _folder(save: Path, recipe: Recipe, several: bool) -> Path:
    return save / slug(recipe.loss) if several else save


@contextlib.contextmanager
def _emptied(setup: Setup, recipes: Sequence[Recipe]) -> Iterator[None]:
    """Leave no empty folder behind that was not there before, where a request is refused."""
    folders = [] if setup.save is None else [_folder(setup.save, r, len(recipes) > 1) for r in recipes]
    missing = {path for folder in folders for path in (folder, *folder.parents) if not path.exists()}
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
