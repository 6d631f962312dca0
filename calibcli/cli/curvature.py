"""`calib curvature`: the Hessian of the loss around a checkpoint, every number with both its errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, cast

import typer

from calibcli import spec
from calibcli.cli import options as opt
from calibcli.cli.loading import loads
from calibcli.cli.process import ENDS
from calibcli.cli.run import Run
from calibcli.errors import Exit, UsageError

PANEL = "Measure"


@loads
def command(
    *,
    model: Annotated[Path, typer.Argument(help="Checkpoint: .safetensors, .pt, .pth, .ckpt, a folder of shards, ...")],
    data: opt.Data = None,
    what: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--what", "-w", help="Quantity, such as lambda_max, top:k=10, trace:precision=0.01. Repeatable."),
    ] = None,
    loss: Annotated[str, typer.Option("--loss", help="Loss whose Hessian is measured.")] = "ce",
    train_loss: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--train-loss", help="A second loss, measured beside it: focal:gamma=3. 'none' for none."),
    ] = None,
    params: Annotated[str, typer.Option("--params", help="Parameters that count, as globs: 'layer4.*,fc.*'.")] = "*",
    memory: Annotated[str, typer.Option("--memory", help="auto, low (no graph is kept) or high (all are).")] = "auto",
    batch_size: Annotated[
        int, opt.number(spec.OrNone, "--batch-size", help="Rows per micro-batch, up to 256; 0 lets memory decide.")
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
    """Largest and smallest eigenvalues, trace, spectral density and gradient norm of the loss around a checkpoint.

    Example: calib curvature model.safetensors --data digits.npz#test -w lambda_max -w trace -o curvature.png

    H is the Hessian of the mean loss over the data in the trainable parameters, model in eval mode, without weight
    decay. Of a checkpoint that says where its data lies, --data may be left out; one trained with another loss than
    --loss is measured with both. Ctrl-C ends the run with what is known. Several devices: torchrun --nproc-per-node N
    -m calibcli curvature ...
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli import curvature, losses
    from calibcli import device as devices
    from calibcli.inputs import checkpoint, inference

    if memory not in ("auto", "low", "high"):
        raise UsageError(f"unknown memory plan '{memory}'", "choose from: auto, low, high")
    run.claim([model, data, network["arch_file"]])
    where, precision = devices.pick(device), devices.dtype(dtype)
    devices.set_threads(threads)
    for quantity in what or ():
        curvature.QUANTITIES.choose(quantity)
    measured = losses.final(loss)
    loaded = checkpoint.load(model, **network)
    beside = train_loss or str(loaded.metadata.get("training", {}).get("loss") or "none")
    second = None if beside == "none" else losses.final(beside)
    if second is not None and second.spec == measured.spec:
        second = None
    found = loaded.open_data(data, "test", "validation", **rows, seed=seed, trust=network["trust"])
    run.claim([found.source])
    inference.check(found, loaded.model)
    run.inputs += [{"path": x.source, "sha256": x.sha256} for x in (loaded, found)]
    first = devices.rank() == 0
    with devices.process_group(where):
        result = curvature.measure(
            loaded.model,
            found,
            *(what or ()),
            loss=measured,
            train_loss=second,
            params=params,
            forward=inference.logits,
            device=where,
            dtype=precision,
            batch_size=batch_size,
            memory=cast(Literal["auto", "low", "high"], memory),
            seed=seed,
            progress=run.progress("curvature") if first else None,
            interrupts=tuple(ENDS),
        )
    if not first:
        return int(Exit.OK)
    facts = {
        "model": loaded.source,
        "architecture": loaded.architecture,
        "container": loaded.container,
        "data": found.source,
        "preprocess": found.preprocess.as_dict(),
        **result.facts,
    }
    result = dataclasses.replace(result, facts=facts, notes=[*loaded.notes, *found.notes, *result.notes])
    code = run.finish(result, seed=seed, device=str(where), dtype=dtype)
    stopped = {kind.__name__: code for kind, (_, code) in ENDS.items()}
    return int(stopped.get(str(result.facts["interrupted"]), code))
