"""`calib curvature`: the Hessian of the loss around a checkpoint, every number with both its errors."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.app import ENDS
from calibcli.cli.run import CommandRun, is_main_process, takes
from calibcli.core.options import OrNone, argument, option
from calibcli.networks import device as devices
from calibcli.scores import reading_options

PANEL = "Measure"


@takes
def command(
    *,
    model: Path = argument(reading_options.MODEL),
    data: str | None = option(None, reading_options.DATA),
    quantity: tuple[str, ...] = option(
        (),
        "Quantity, such as lambda_max, top:k=10, trace:precision=0.01 (calib list quantities). Repeatable.",
        "--quantity",
        "-w",
    ),
    loss: str = option("ce", "Loss whose Hessian is measured (calib list losses)."),
    train_loss: str | None = option(
        None,
        "A second loss to measure, such as focal:gamma=3, or none (calib list losses). Default: the training loss.",
    ),
    params: str = option("*", "Parameters in which the loss is differentiated, as globs: 'layer4.*,fc.*'."),
    memory: str = option("auto", "Graphs kept between products: auto, low (none) or high (all)."),
    batch_size: OrNone = option(0, "Rows per micro-batch, up to 256 on a CPU; 0 lets memory decide."),
    products: str = option("double", "Products: double (backward), or gradients (differences) for models without one."),
    tf32: bool = option(False, "Use TF32 for Krylov products on a CUDA device; certificates stay in float32."),
    save_state: Path | None = option(
        None, "Folder for the state of a long run: the same command goes on after a kill.", writes="folder"
    ),
    machine: devices.Machine,
    run: CommandRun,
    network: reading_options.NetworkOptions,
    outputs: reading_options.OutputOptions,
    rows: reading_options.DatasetOptions,
) -> int:
    """Measure eigenvalues, trace and spectrum of the loss's Hessian.

    Example: calib curvature model.safetensors --data digits.npz#test -w lambda_max -w trace -o curvature.png

    H is the Hessian of the mean loss over the data in the trainable parameters, model in eval mode, without weight
    decay. If the checkpoint names its data, --data can be left out. If it was trained with another loss than --loss, it
    is measured with both. Ctrl-C ends the run with the numbers so far. Several devices: torchrun --nproc-per-node N
    -m calibcli curvature ...
    """
    progress = run.progress("curvature")
    progress(0.0, "loading PyTorch")
    from calibcli.api.networks import curvature

    devices.set_threads(machine.threads)
    result = curvature(
        model,
        data,
        *quantity,
        loss=loss,
        train_loss=train_loss,
        params=params,
        memory=memory,  # type: ignore[arg-type]
        batch_size=batch_size,
        tf32=tf32,
        products=products,  # type: ignore[arg-type]
        **{**vars(network), **vars(outputs), **vars(rows)},
        device=machine.device,
        dtype=machine.dtype,
        seed=machine.seed,
        progress=progress,
        interrupts=tuple(ENDS),
        save_state=save_state,
        note=run.note,
    )
    code = run.finish(result, asked=bool(quantity))
    stopped = {kind.__name__: code for kind, (_, code) in ENDS.items()}
    return int(stopped.get(str(result.facts["interrupted"]), code)) if is_main_process() else code
