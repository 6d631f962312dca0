"""`calib fit`: train with losses that calibrate."""

from __future__ import annotations

from calibcli.cli.run import CommandRun, takes
from calibcli.lab.training.options import Setup

PANEL = "Fix and train"


@takes
def command(setup: Setup, run: CommandRun) -> int:
    """Train with losses that calibrate, then fit a temperature.

    Example: calib fit mlp:hidden=64/64 --data digits.npz --loss ce --loss focal:gamma=3 --epochs 20 --save out/fit

    The folder gets model.safetensors, validation.npz and test.npz (logits), log.jsonl (a line per epoch) and state.pt.
    A run that was stopped continues with --resume and ends with the same weights, bit for bit. Under torchrun every
    process takes its share of each batch.
    """
    progress = run.progress("training")
    progress(0.0, "loading PyTorch")
    from calibcli.api.networks import train

    return run.finish(train(**{**setup.fields_of(Setup), "progress": progress, "note": run.note}))
