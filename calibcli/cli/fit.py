"""`calib fit`: train with losses that calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from calibcli import spec
from calibcli.cli import options as opt
from calibcli.cli.loading import loads
from calibcli.cli.run import Run

PANEL = "Train"


@loads
def command(
    *,
    model: Annotated[str, typer.Argument(help="Checkpoint to start from, or an architecture: mlp:hidden=64/64.")],
    data: opt.Data = None,
    validation: Annotated[Optional[str], typer.Option("--validation", help="Validation rows.")] = None,  # noqa: UP045
    test: Annotated[Optional[str], typer.Option("--test", help="Test rows.")] = None,  # noqa: UP045
    val_fraction: Annotated[
        float,
        opt.number(
            spec.Share, "--val-fraction", help="Hold out this share of each class where there is no validation set."
        ),
    ] = 0.1,
    missing_classes: Annotated[
        bool, typer.Option("--missing-classes", help="Allow classes without training or validation rows.")
    ] = False,
    loss: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--loss", help="ce, focal:gamma=3, FLA-53, brier, ce+mmce, ... Repeat to compare."),
    ] = None,
    penalty: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--penalty", help="Added to every loss: trace:weight=0.01,kind=ggn or mmce:weight=2."),
    ] = None,
    epochs: Annotated[int, opt.number(spec.Epochs, "--epochs", help="Passes over the training rows.")] = 30,
    batch_size: Annotated[int, opt.number(spec.Rows, "--batch-size", help="Rows per step, over all processes.")] = 128,
    lr: Annotated[float, opt.number(spec.LearningRate, "--lr", help="Peak learning rate.")] = 0.1,
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="sgd:momentum=0.9,weight_decay=0.0005,nesterov=true or adamw.")
    ] = "sgd",
    schedule: Annotated[
        str, typer.Option("--schedule", help="step:at=0.43/0.71,factor=0.1, cosine or constant.")
    ] = "step",
    warmup: Annotated[float, opt.number(spec.Warmup, "--warmup", help="Share of the steps with a linear rise.")] = 0.0,
    reduction: Annotated[str, typer.Option("--reduction", help="mean or sum over the rows of a batch.")] = "mean",
    clip: Annotated[
        Optional[float],  # noqa: UP045
        opt.number(spec.Positive, "--clip", help="Largest norm of the gradient."),
    ] = None,
    augment: Annotated[str, typer.Option("--augment", help="crop:pad=4+flip, for images.")] = "",
    amp: Annotated[str, typer.Option("--amp", help="off, bf16 or fp16: mixed precision.")] = "off",
    keep: Annotated[
        str, typer.Option("--keep", help="Weights of the last epoch, or of the best by --select.")
    ] = "last",
    select: Annotated[
        str, typer.Option("--select", help="nll, error, ece, adaece or loss, on validation rows.")
    ] = "nll",
    patience: Annotated[
        Optional[int],  # noqa: UP045
        opt.number(spec.Epochs, "--patience", help="Stop after so many epochs without a better --select."),
    ] = None,
    freeze: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--freeze", help="Parameters that stay: 'layer1.*'. Repeatable."),
    ] = None,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Train the last linear layer alone, on features computed once.")
    ] = False,
    init: Annotated[str, typer.Option("--init", help="Of a checkpoint: keep its weights, or fresh ones.")] = "keep",
    save: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--save", help="Folder for the model, logits, log and state; one folder per loss inside it."),
    ] = None,
    save_every: Annotated[int, opt.number(spec.Rows, "--save-every", help="Steps between saved states.")] = 500,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the state in --save.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again where --save holds a run.")] = False,
    pt: Annotated[bool, typer.Option("--pt", help="Also write model.pt.")] = False,
    report_link: Annotated[
        str, typer.Option("--report-link", help="phi: report the focal map of a focal network's softmax, or none.")
    ] = "none",
    curvature_every: Annotated[
        int, opt.number(spec.OrNone, "--curvature-every", help="Epochs between looks at λmax and trace; 0 for never.")
    ] = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "float32",
    seed: opt.Seed = 0,
    threads: opt.Threads = 0,
    format: opt.Format = "table",
    json: opt.Json = False,
    output: opt.Output = None,
    quiet: opt.Quiet = False,
    network: dict[str, Any],
    rows: dict[str, Any],
) -> int:
    """Train with losses that calibrate, and measure the calibration before and after temperature.

    Example: calib fit mlp:hidden=64/64 --data digits.npz --loss ce --loss focal:gamma=3 --epochs 20 --save out/fit

    The folder gets model.safetensors, validation.npz and test.npz (logits), log.jsonl (a line per epoch) and state.pt.
    A run that was stopped goes on with --resume and ends with the same weights, bit for bit. Under torchrun every
    process takes its share of each batch.
    """
    from calibcli import device as devices

    run = Run(format=format, json=json, output=output, quiet=quiet or devices.rank() > 0)
    from calibcli.train.command import Setup, run_all

    run.claim([model, data, validation, test, network["arch_file"]])
    devices.set_threads(threads)
    setup = Setup(
        model=model,
        data=data,
        validation=validation,
        test=test,
        val_fraction=val_fraction,
        missing_classes=missing_classes,
        penalties=tuple(penalty or ()),
        fresh=init,
        loading=rows,
        **network,
        device=devices.pick(device),
        dtype=devices.dtype(dtype),
        save=save,
        save_every=save_every,
        resume=resume,
        overwrite=overwrite,
        also_pt=pt,
        report_link=report_link,
        curvature_every=curvature_every,
    )
    recipe: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "optimizer": optimizer,
        "schedule": schedule,
        "warmup": warmup,
        "reduction": reduction,
        "clip": clip,
        "augment": augment,
        "amp": amp,
        "keep": keep,
        "select": select,
        "patience": patience,
        "freeze": tuple(freeze or ()),
        "head_only": head_only,
        "seed": seed,
    }
    result, inputs = run_all(setup, loss or ["ce"], recipe, run.progress("training"), run.note)
    if devices.rank():
        return 0
    run.inputs += inputs
    return run.finish(result, seed=seed, device=str(setup.device), dtype=dtype)
