"""`calib logits`: a data set through a model, into a file that every other command reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibcli.cli import options as opt
from calibcli.cli.loading import loads
from calibcli.cli.run import Run
from calibcli.numerics import clopper_pearson
from calibcli.result import Estimate, Result

PANEL = "Measure"


@loads
def command(
    *,
    model: Annotated[Path, typer.Argument(help="Checkpoint: .safetensors, .pt, .pth, .ckpt, a folder of shards, ...")],
    save: Annotated[Path, typer.Option("--save", help="File to write: .npz, .safetensors or .npy.")],
    data: opt.Data = None,
    batch_size: opt.BatchSize = 256,
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
    """Run a model over a data set and save its logits and labels for the other commands.

    Example: calib logits model.safetensors --data digits.npz#test --save test.npz

    Rows stream through in batches, so memory does not grow with the data set. Of a checkpoint that says where its data
    lies, the test set is used when --data is left out.
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli import device as devices
    from calibcli.inputs import checkpoint, inference

    target = inference.known_suffix(save)
    run.claim([model, data, network["arch_file"]], *inference.files_of(target))
    where, precision = devices.pick(device), devices.dtype(dtype)
    devices.set_threads(threads)
    loaded = checkpoint.load(model, **network)
    found = loaded.open_data(data, "test", "validation", **rows, seed=seed, trust=network["trust"])
    run.claim([found.source], *inference.files_of(target))
    run.inputs += [{"path": x.source, "sha256": x.sha256} for x in (loaded, found)]
    written = inference.write_logits(
        loaded.model,
        found,
        target,
        batch_size=batch_size,
        device=where,
        dtype=precision,
        progress=run.progress("logits"),
    )
    result = Result(
        command="logits",
        estimates=[accuracy(written.correct, written.rows)],
        notes=[*loaded.notes, *found.notes],
        facts={
            "model": loaded.source,
            "architecture": loaded.architecture,
            "container": loaded.container,
            "data": found.source,
            "rows": written.rows,
            "classes": written.classes,
            "inputs": list(found.shape),
            "preprocess": found.preprocess.as_dict(),
        },
        artefacts={"logits" if i == 0 else "labels": str(path) for i, path in enumerate(written.paths)},
    )
    return run.finish(result, seed=seed, device=str(where), dtype=dtype)


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
