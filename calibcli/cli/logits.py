"""`calib logits`: run a model over a data set, and write a file that the other commands read."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, takes
from calibcli.core.options import Rows, argument, option
from calibcli.networks.device import Machine
from calibcli.scores import reading_options

PANEL = "Measure"


@takes
def command(
    *,
    model: Path = argument(reading_options.MODEL),
    save: Path = option(..., "File to write: .npz, .safetensors or .npy.", writes="file"),
    data: str | None = option(None, reading_options.DATA),
    batch_size: Rows = option(256, "Rows per forward pass."),
    machine: Machine,
    run: CommandRun,
    network: reading_options.NetworkOptions,
    outputs: reading_options.OutputOptions,
    positions: reading_options.PositionOptions,
    rows: reading_options.DatasetOptions,
) -> int:
    """Run a model over a data set and save its logits and labels.

    Example: calib logits model.safetensors --data digits.npz#test --save test.npz

    Rows are read in batches, so memory does not grow with the data set. If the checkpoint names its data, the test set
    is used when --data is left out.
    """
    progress = run.progress("logits")
    progress(0.0, "loading PyTorch")
    from calibcli.api.networks import logits

    options = {**vars(machine), **vars(network), **vars(outputs), **vars(positions), **vars(rows)}
    return run.finish(logits(model, data, save=save, batch_size=batch_size, progress=progress, **options))
