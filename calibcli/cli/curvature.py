"""`calib curvature`: the Hessian of the loss around a checkpoint, every number with both its errors."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.app import ENDS
from calibcli.cli.run import CommandRun, speaks, takes
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
        None, "A second loss (calib list losses), measured beside it: focal:gamma=3. 'none' for none."
    ),
    params: str = option("*", "Parameters that count, as globs: 'layer4.*,fc.*'."),
    memory: str = option("auto", "Graphs kept between products: auto, low (none) or high (all)."),
    batch_size: OrNone = option(0, "Rows per micro-batch, up to 256 on a CPU; 0 lets memory decide."),
    tf32: bool = option(False, "Krylov products in TF32, on a CUDA device; certificates stay in float32."),
    machine: devices.Machine,
    run: CommandRun,
    network: reading_options.NetworkOptions,
    rows: reading_options.DatasetOptions,
) -> int:
    """Largest and smallest eigenvalues, trace, spectral density and gradient norm of the loss around a checkpoint.

    Example: calib curvature model.safetensors --data digits.npz#test -w lambda_max -w trace -o curvature.png

    H is the Hessian of the mean loss over the data in the trainable parameters, model in eval mode, without weight
    decay. Of a checkpoint that says where its data lies, --data may be left out; one trained with another loss than
    --loss is measured with both. Ctrl-C ends the run with what is known. Several devices: torchrun --nproc-per-node N
    -m calibcli curvature ...
    """
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
        **{**vars(network), **vars(rows)},
        device=machine.device,
        dtype=machine.dtype,
        seed=machine.seed,
        progress=run.progress("curvature"),
        interrupts=tuple(ENDS),
    )
    code = run.finish(result, asked=bool(quantity))
    stopped = {kind.__name__: code for kind, (_, code) in ENDS.items()}
    return int(stopped.get(str(result.facts["interrupted"]), code)) if speaks() else code
