"""The options of training commands. This file does not import torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from calibcli.core.options import (
    Epochs,
    LearningRate,
    OrNone,
    Positive,
    Range,
    Rows,
    Share,
    Warmup,
    argument,
    check_options,
    in_tuples,
    option,
)
from calibcli.networks.device import Machine
from calibcli.scores import reading_options

Progress = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that decides the result of a run, given model, data, loss and seed.

    Attributes:
        epochs: passes over the training rows.  batch_size: rows per step, over all processes.
        lr: peak learning rate.  optimizer, schedule: specs.  warmup: share of the steps with a linear rise.
        reduction: `mean`, or `sum` as some published runs have it (the learning rate then counts per row).
        clip_norm: largest norm of the gradient, or None.
        augment: `crop:pad=4+flip`, or "".
        amp: `off`, `bf16` or `fp16` autocast.
        keep: weights to keep: of the `last` epoch, or of the `best` by `select` on validation rows.
        select: `nll`, `error`, `ece`, `adaece` or `loss`.  patience: epochs without a better `select` before it
            stops, or None.  stop_nll: it also stops after an epoch with at most this NLL of the training rows, or None.
        freeze: globs of parameters that stay as they are.  head_only: train the last linear layer alone.
    """

    epochs: Epochs = option(30, "Passes over the training rows.")
    batch_size: Rows = option(128, "Rows per step, over all processes.")
    lr: LearningRate = option(0.1, "Peak learning rate.")
    optimizer: str = option("sgd", "Optimizer: sgd:weight_decay=0.0005, adamw, sgd+sam (calib list optimizers).")
    schedule: str = option(
        "step", "Learning rate schedule: step:at=0.43/0.71,factor=0.1, cosine or constant (calib list schedules)."
    )
    warmup: Warmup = option(0.0, "Fraction of the steps in which the learning rate rises linearly.")
    reduction: Literal["mean", "sum"] = option("mean", "Reduction of the loss over the rows of a batch: mean or sum.")
    clip_norm: Positive | None = option(None, "Largest norm of the gradient.")
    augment: str = option("", "Augmentation: crop:pad=4+flip for images, mixup (calib list augmentations).")
    amp: Literal["off", "bf16", "fp16"] = option("off", "Mixed precision: off, bf16 or fp16.")
    keep: Literal["last", "best"] = option("last", "Weights to keep: of the last epoch, or of the best by --select.")
    select: Literal["nll", "error", "ece", "adaece", "loss"] = option(
        "nll", "Criterion of the best epoch, on validation rows: nll, error, ece, adaece or loss."
    )
    patience: Epochs | None = option(None, "Stop after this many epochs without an improvement of --select.")
    stop_nll: Positive | None = option(None, "Stop after the first epoch with at most this NLL on the training rows.")
    freeze: tuple[str, ...] = option((), "Parameters that are not trained, such as 'layer1.*'. Repeatable.")
    head_only: bool = option(False, "Train the last linear layer alone, on features computed once.")


@dataclass(frozen=True)
class Given:
    """Model and rows. `model` and `data` are names from the command line, or Python objects."""

    model: Any = argument("Checkpoint to start from, or an architecture: mlp:hidden=64/64.", kind=str)
    data: Any = option(None, reading_options.DATA, kind=str)
    _: KW_ONLY
    validation: Any = option(None, "Validation rows.", kind=str)
    test: Any = option(None, "Test rows.", kind=str)
    embeddings: Any = option(
        None, "Word vectors for text_cnn or tree_lstm, in the text format of GloVe.", metavar="FILE", kind=str
    )
    split: Literal["stratified", "mukhoti"] | None = option(
        None,
        "How validation rows are held out if there is no validation set: stratified by class (default), or shuffled "
        "as in Mukhoti et al. (mukhoti).",
    )
    val_fraction: Share | None = option(None, "Fraction of the rows that is held out (default: 0.1; 0 for none).")
    missing_classes: bool = option(False, "Allow classes without training or validation rows.")
    loss: str | Callable[..., Any] | tuple[str | Callable[..., Any], ...] = option(
        ("ce",),
        "Loss: ce, focal:gamma=3, FLA-53, brier, ... (calib list losses), your own module:name, or with a penalty: "
        "ce+mmce. Repeat to compare.",
        kind=tuple[str, ...],
    )
    penalty: tuple[str, ...] = option(
        (), "Penalty added to every loss: trace:weight=0.01,kind=ggn or mmce:weight=2 (calib list penalties)."
    )


@dataclass(frozen=True, kw_only=True)
class RunOutputs(reading_options.OutputOptions):
    """The outputs of a run, and what those of the network are."""

    init: Literal["keep", "fresh"] = option(
        "keep", "Initial weights: keep those of the checkpoint, or draw fresh ones."
    )
    save: Path | None = option(
        None, "Folder for the model, logits, log and state; with several losses, a subfolder for each.", writes="folder"
    )
    save_every: Rows = option(500, "Steps between saved states.")
    resume: bool = option(False, "Continue from the state saved in --save.")
    overwrite: bool = option(False, "Replace the run that --save holds.")
    pt: bool = option(False, "Also write model.pt.")
    report_link: Literal["none", "phi"] = option(
        "none", "Link of reported probabilities: none (softmax), or phi (the focal map, for focal losses)."
    )
    curvature_every: OrNone = option(0, "Epochs between measurements of λmax and the trace (0: never).")
    curvature_rows: OrNone = option(256, "Validation rows that --curvature-every takes at most (0: all).")
    log_every: Epochs = option(1, "Epochs between evaluations that are logged.")
    log_rows: tuple[Literal["train", "test"], ...] = option(
        (), "Also log NLL, error and ECE on train or test rows, epoch by epoch. Repeatable."
    )
    snapshot: Annotated[tuple[int, ...], Range(1, 1_000_000)] = option(
        (), "Also keep the weights after this epoch, as epoch-N.safetensors. Repeatable.", kind=tuple[Epochs, ...]
    )


@dataclass(frozen=True)
class Setup(reading_options.DatasetOptions, reading_options.NetworkOptions, Machine, RunOutputs, Training, Given):
    """All options of a training command; in Python also the callbacks `progress(fraction, text)` and `note(text)`."""

    PANEL: ClassVar[str] = "Model, rows and training"
    OFTEN: ClassVar[tuple[str, ...]] = (  # what --help shows, in this order
        "model", "data", "loss", "epochs", "lr", "batch_size", "save", "validation", "test", "penalty", "optimizer",
        "schedule", "augment", "init", "resume", "overwrite", "device", "seed", "arch", "trust",
    )  # fmt: skip
    _: KW_ONLY
    progress: Progress = lambda fraction, text: None
    note: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        in_tuples(self)
        check_options(self)

    @property
    def files(self) -> list[str | Path]:
        """The files that the options name."""
        asked = (self.model, self.data, self.validation, self.test, self.arch_file, self.embeddings)
        return [name for name in asked if isinstance(name, str | Path)]

    def fields_of(self, kind: type) -> dict[str, Any]:
        """Return the options of a base class, by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(kind)}
