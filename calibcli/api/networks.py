"""Networks from Python: the curvature of their loss, training, and the losses themselves."""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli import headlines
from calibcli.core.files import claim, guarding, known_suffix
from calibcli.core.options import Rows, check_options, named
from calibcli.core.result import Estimate, Result, Screen
from calibcli.core.statistics import clopper_pearson
from calibcli.lab.training.fit import run_all
from calibcli.lab.training.options import Setup
from calibcli.metrics.registry import METRICS, Sample, estimates
from calibcli.networks import checkpoint, dataset, inference, losses
from calibcli.networks import device as devices
from calibcli.networks.curvature import curvature
from calibcli.networks.curvature.matrix import hessian
from calibcli.networks.losses import Loss
from calibcli.scores import reading_options
from calibcli.scores.columns import Columns
from calibcli.scores.predictions import Progress

__all__ = ["curvature", "hessian", "logits", "loss", "train"]


@named(Setup)
@guarding()
def train(setup: Setup) -> Result:
    """Train with losses that calibrate, and measure the calibration before and after temperature.

    A module that is passed is trained in place; for a checkpoint or an architecture, `save` keeps the trained weights.

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
        epochs, batch_size, lr, optimizer, ...: see `calibcli.lab.training.options`, where each says what it is.
        save: folder for model, logits and log.
        device, dtype, seed, threads: as for `curvature`.  progress: called with (fraction, text).

    Raises:
        InputError: a model or rows that are refused.  UsageError: an option that cannot be.
        TypeError: an unknown keyword.
    """
    return headlines.headed(run_all(setup))


@dataclass(frozen=True)
class LogitsRequest(
    reading_options.DatasetOptions,
    reading_options.PositionOptions,
    reading_options.OutputOptions,
    reading_options.NetworkOptions,
    devices.Machine,
):
    """The arguments of `logits`."""

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

    Rows are read in batches, so memory does not grow with the data set.

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
        kind: `logits` says that outputs are logits though all lie in [0, 1].
        shift, ignore_label, class_axis, position_share: of labels of every position, (N, T) or (N, H, W): see
            `calib logits --help`. The file then has a row for each position that is counted, and `row_of_position`.
        arch, arch_file, trust: of a checkpoint; mean to split_seed: of the data set; see `calib logits --help`.
        device, dtype, seed, threads: as for `curvature`.  progress: called with (fraction, text).

    Returns:
        The accuracy, a probability, with its interval (Clopper and Pearson 1934; of positions, over rows as groups).

    Raises:
        InputError: a model or rows that are refused.  UsageError: an option or a path that cannot be.
        TypeError: an unknown keyword.
    """
    target = known_suffix(Path(request.save), inference.SUFFIXES, "logits")
    claim(*inference.files_of(target))
    where, precision = devices.pick(request.device), devices.dtype(request.dtype)
    devices.set_threads(request.threads)
    loaded = checkpoint.of(request.model, request.arch, request.arch_file, request.trust, request.data)
    prepared = {f.name: getattr(request, f.name) for f in dataclasses.fields(reading_options.DatasetOptions)}
    prepared |= {"trust": request.trust, "positions": True, "ignore_label": request.ignore_label}
    rows = dataset.decoded_once(loaded.open_data(request.data, "test", "validation", **prepared), keep=False)
    next_token = bool(rows.inside) and loaded.preparation.next_token
    shift = request.shift if request.shift is not None else int(next_token)
    if next_token and request.shift is None:
        rows.notes.append("the label of a position is the next token, as the model predicts it (--shift 1)")
    written = inference.write_logits(
        loaded.model,
        rows,
        target,
        batch_size=request.batch_size,
        device=where,
        dtype=precision,
        progress=request.progress,
        kind=request.kind,
        folded=checkpoint.folded(loaded.metadata),
        shift=shift,
        class_axis=request.class_axis,
        share=request.position_share or 1.0,
        seed=request.split_seed or 0,
    )
    facts = loaded.facts(rows)
    of_each = {} if written.row is None else {"positions": len(written.row)}
    sizes = {"rows": written.rows, **of_each, "classes": written.classes, "inputs": list(rows.shape)}
    result = Result(
        command="logits",
        estimates=[_accuracy(written)],
        notes=[*loaded.notes, *rows.notes, *written.notes],
        facts={**facts, **sizes, "preprocess": facts["preprocess"]},
        artefacts={"logits" if i == 0 else "labels": str(path) for i, path in enumerate(written.paths)},
        provenance={"inputs": loaded.inputs(rows), "seed": request.seed, "device": str(where), "dtype": request.dtype},
        screen=Screen(hidden=("container",)),
    )
    return headlines.headed(result)


def _accuracy(written: inference.WrittenLogits) -> Estimate:
    """Estimate the accuracy; positions of one row are one draw."""
    if written.row is None:
        return accuracy(int(written.correct.sum()), written.rows)
    zeros = np.zeros(len(written.row), np.int64)
    columns = Columns(
        numbers={}, correct=written.correct, predicted=zeros, labels=zeros, k=written.classes, groups=written.row
    )
    return estimates(Sample.of(columns), [METRICS.choose("accuracy")])[0]


def accuracy(correct: int, rows: int) -> Estimate:
    """Estimate the accuracy, with its 95 % interval (Clopper and Pearson 1934)."""
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
    """Return a loss as a module, `(logits (N, K), labels (N,)) -> (N,)` in nats, of their dtype, to be reduced by you.

    >>> import torch
    >>> loss("focal:gamma=2")(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))  # 0.5**2 log 2
    tensor([0.1733])

    Args:
        spec: e.g. `ce`, `focal:gamma=2`; see `calib list losses`.

    Raises:
        UsageError: an unknown loss or option, or a penalty (`ce+mmce`), which a loss of single rows cannot hold.
    """
    return losses.of_rows(spec)
