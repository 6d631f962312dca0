"""Networks from Python: the curvature of their loss, training, and the losses themselves."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from torch import nn

from calibcli import device as devices
from calibcli import headline, hessian, losses
from calibcli.errors import UsageError, check_keywords
from calibcli.files import claim, guarding, known_suffix
from calibcli.inputs import checkpoint, inference, opening
from calibcli.inputs.dataset import Dataset
from calibcli.losses import Loss
from calibcli.numerics import clopper_pearson
from calibcli.result import Estimate, Result, Screen
from calibcli.spec import Level, OrNone, Rows, Seed, check_options, within
from calibcli.training.command import MODULE, run_all
from calibcli.training.setup import Setup

__all__ = ["curvature", "logits", "loss", "train"]

Progress = Callable[[float, str], None]
P = ParamSpec("P")
T = TypeVar("T")


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
    level: float = 0.95,
    arch: str | None = None,
    arch_file: str | None = None,
    trust: bool = False,
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
) -> Result:
    """Eigenvalues, trace, density and gradient norm of the mean loss around a network's weights, each with both errors.

    >>> import torch
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(model.weight).shape
    torch.Size([2, 1])
    >>> found = curvature(model, (torch.ones(40, 1), torch.arange(40) % 2), "trace:exact=true", device="cpu")
    >>> round(found["trace"].value, 6)  # p (1 - p) of each of two outputs
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
        arch, arch_file, trust: of a checkpoint; mean to split_seed: of the data set; see `calib curvature --help`.
        device: auto, cpu, cuda or cuda:N.  dtype: float32 or float64.  seed: of start vectors and probes.
        progress: called with (fraction, text).  interrupts: exceptions after which what is known is returned.

    Raises:
        InputError: a model or data that is refused.  UsageError: a wrong option.  TypeError: a quantity not in text.
    """
    _check(quantities, memory, level, batch_size, seed)
    where, precision = devices.pick(device), devices.dtype(dtype)
    measured = losses.final(loss)
    loaded = _loaded(model, arch, arch_file, trust).with_gradients()
    both = {"loss": measured, "train_loss": _beside(measured, train_loss, loaded)}
    rows = {"mean": mean, "std": std, "size": size, "resize": resize, "crop": crop, "interpolation": interpolation}
    rows |= {"layout": layout, "inputs": inputs, "labels": labels}
    found = loaded.open_data(data, "test", "validation", **rows, subset=subset, split_seed=split_seed, trust=trust)
    plan = {"params": params, "batch_size": batch_size, "memory": memory, "tf32": tf32, "seed": seed, "level": level}
    how = {**both, **plan, "device": where, "dtype": precision, "progress": progress, "interrupts": interrupts}
    return headline.headed(_measured(loaded, found, quantities, how))


def named(options: Callable[P, Any]) -> Callable[[Callable[[Any], T]], Callable[P, T]]:
    """Give a function of an instance the keywords of its dataclass, for readers, editors and type checkers alike."""

    def give(function: Callable[[Any], T]) -> Callable[P, T]:
        signature = inspect.signature(options)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            check_keywords(kwargs, signature.parameters, function.__name__)
            return function(options(*args, **kwargs))

        call.__signature__ = signature.replace(return_annotation=Result)  # type: ignore[attr-defined]
        return call

    return give


@named(Setup)
@guarding()
def train(setup: Setup) -> Result:
    """Train with losses that calibrate, and measure the calibration before and after temperature.

    A module that is passed holds the trained weights afterwards; of a checkpoint or an architecture, `save` keeps them.

    >>> import torch
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> model = torch.nn.Linear(2, 2)
    >>> found = train(model, (x, (x[:, 0] > 0).long()), loss="focal:gamma=2", epochs=5, batch_size=20, device="cpu")
    >>> bool((model(x).argmax(1) == (x[:, 0] > 0)).float().mean() > 0.9), found.command
    (True, 'fit')

    Args:
        model: a module, a checkpoint, or an architecture (`mlp:hidden=64/64`).
        data, validation, test: rows as `curvature` takes them; None: where the checkpoint says.
        split, split_seed, val_fraction: how rows are held out where there is no validation set.
        loss: spec (`calib list losses`), or a module, class or function of your own that gives one value per row, in
            nats; several, but of a module that is trained one.
        penalty: specs of what is added to each.
        epochs, batch_size, lr, optimizer, ...: see `calibcli.training.setup`, where each says what it is.
        save: folder for model, logits and log.
        device, dtype, seed, threads: as for `curvature`.  progress: called with (fraction, text).

    Raises:
        InputError: a model or rows that are refused.  UsageError: an option that cannot be.
        TypeError: an unknown keyword.
    """
    return headline.headed(run_all(setup))


@dataclass(frozen=True)
class LogitsRequest(opening.Rows, opening.Network, devices.Machine):
    """What `logits` is asked for."""

    model: Any
    data: Any = None
    _: KW_ONLY
    save: str | Path
    batch_size: Rows = 256
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_options(self)


@named(LogitsRequest)
@guarding()
def logits(request: LogitsRequest) -> Result:
    """Run a network over a data set and write its logits and labels, in a file that `read` takes.

    Rows stream through in batches, so memory does not grow with the data set.

    >>> import tempfile, torch
    >>> data = (torch.eye(40, 3), torch.arange(40) % 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = calibcli.logits(torch.nn.Linear(3, 2), data, save=f"{folder}/test.npz", device="cpu")
    ...     calibcli.read(f"{folder}/test.npz").n, found.facts["classes"]
    (40, 2)

    Args:
        model: a module, or a checkpoint.  data: rows (N, ...) as `curvature` takes them; None: the test set of the
            checkpoint.
        save: .npz or .safetensors with `logits` (N, K) of float32 and `labels` (N,) of int64; or .npy, of the logits.
        batch_size: rows per forward pass.
        arch, arch_file, trust: of a checkpoint; mean to split_seed: of the data set; see `calib logits --help`.
        device, dtype, seed, threads: as for `curvature`.  progress: called with (fraction, text).

    Returns:
        The accuracy, a probability, with its interval (Clopper and Pearson 1934).

    Raises:
        InputError: a model or rows that are refused.  UsageError: an option or a path that cannot be.
        TypeError: an unknown keyword.
    """
    target = known_suffix(Path(request.save), inference.SUFFIXES, "logits")
    claim(*inference.files_of(target))
    where, precision = devices.pick(request.device), devices.dtype(request.dtype)
    devices.set_threads(request.threads)
    loaded = _loaded(request.model, request.arch, request.arch_file, request.trust)
    prepared = {f.name: getattr(request, f.name) for f in dataclasses.fields(opening.Rows)}
    rows = loaded.open_data(request.data, "test", "validation", **prepared, trust=request.trust)
    written = inference.write_logits(
        loaded.model,
        rows,
        target,
        batch_size=request.batch_size,
        device=where,
        dtype=precision,
        progress=request.progress,
        folded=checkpoint.folded(loaded.metadata),
    )
    facts = loaded.facts(rows)
    sizes = {"rows": written.rows, "classes": written.classes, "inputs": list(rows.shape)}
    result = Result(
        command="logits",
        estimates=[accuracy(written.correct, written.rows)],
        notes=[*loaded.notes, *rows.notes, *written.notes],
        facts={**facts, **sizes, "preprocess": facts["preprocess"]},
        artefacts={"logits" if i == 0 else "labels": str(path) for i, path in enumerate(written.paths)},
        provenance={"inputs": loaded.inputs(rows), "seed": request.seed, "device": str(where), "dtype": request.dtype},
        screen=Screen(hidden=("container",)),
    )
    return headline.headed(result)


def accuracy(correct: int, rows: int) -> Estimate:
    """Share of rows whose largest logit is the label, with its 95 % interval (Clopper and Pearson 1934)."""
    p = correct / rows
    low, high = clopper_pearson(correct, rows, 0.025)
    return Estimate(
        name="accuracy",
        value=p,
        low=low,
        high=high,
        level=0.95,
        better="higher",
        unit="probability",
        how="share of rows whose largest logit is the label; Clopper-Pearson interval",
        n=rows,
    )


def loss(spec: str) -> Loss:
    """A loss as a module, `(logits (N, K), labels (N,)) -> (N,)` in nats, of their dtype: reduce it as you like.

    >>> import torch
    >>> loss("focal:gamma=2")(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))  # 0.5**2 log 2
    tensor([0.1733])

    Args:
        spec: e.g. `ce`, `focal:gamma=2`; see `calib list losses`.

    Raises:
        UsageError: an unknown loss or option.
    """
    return losses.objective(spec).loss


def _loaded(model: Any, arch: str | None, arch_file: str | None, trust: bool) -> checkpoint.Checkpoint:
    if not isinstance(model, nn.Module):
        if not isinstance(model, str | Path):
            raise TypeError(f"a model is a torch module or a path, not {type(model).__name__}")
        return checkpoint.load(model, arch=arch, arch_file=arch_file, trust=trust)
    if arch or arch_file:
        raise UsageError("a module has its architecture", "leave arch and arch_file out")
    return checkpoint.Checkpoint(model, type(model).__name__, {}, MODULE, "", "module")


def _check(quantities: tuple[str, ...], memory: str, level: float, batch_size: int, seed: int) -> None:
    for name, number, kind in (("level", level, Level), ("batch-size", batch_size, OrNone), ("seed", seed, Seed)):
        within(number, kind, f"--{name} ")
    if memory not in ("auto", "low", "high"):
        raise UsageError(f"unknown memory plan '{memory}'", "choose from: auto, low, high")
    for quantity in quantities:
        if not isinstance(quantity, str):
            raise TypeError(f"a quantity is a text, not {type(quantity).__name__}: curvature(model, data, 'trace')")
        hessian.QUANTITIES.choose(quantity)


def _beside(measured: Any, asked: str | Callable[..., Any] | None, loaded: checkpoint.Checkpoint) -> Any:
    """The second loss: the one asked for, else the checkpoint's own; None where it is the first."""
    named = asked or str(loaded.metadata.get("training", {}).get("loss") or "none")
    second = None if named == "none" else losses.final(named)
    return None if getattr(second, "spec", second) == getattr(measured, "spec", measured) else second


def _measured(loaded: checkpoint.Checkpoint, rows: Dataset, quantities: tuple[str, ...], how: dict[str, Any]) -> Result:
    """What `hessian.measure` finds of a checkpoint, with where model and rows come from."""
    inference.check(rows, loaded.model)
    with devices.process_group(how["device"]):
        found = hessian.measure(loaded.model, rows, *quantities, forward=inference.logits, **how)
    run = {"seed": how["seed"], "device": str(how["device"]), "dtype": str(how["dtype"]).removeprefix("torch.")}
    return dataclasses.replace(
        found,
        facts={**loaded.facts(rows), **found.facts},
        notes=[*loaded.notes, *rows.notes, *found.notes],
        provenance={"inputs": loaded.inputs(rows), **run},
    )
