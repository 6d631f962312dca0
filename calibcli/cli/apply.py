"""`calib apply`: a calibrator over a file of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibcli.cli import options as opt
from calibcli.cli import reading as read_options
from calibcli.cli.reading import named, reads
from calibcli.cli.run import Run
from calibcli.errors import UsageError, did_you_mean
from calibcli.files import unchanged
from calibcli.result import Result

PANEL = "Fix"
KINDS = ("probabilities", "logits")


@reads
def command(
    calibrator: Annotated[Path, typer.Argument(help="Calibrator written by calib scale --save.")],
    files: Annotated[list[Path], typer.Argument(help="Scores, with labels or without: .npz, .npy, .csv, ...")],
    reading: dict[str, Any],
    save: Annotated[Path, typer.Option("--save", help="File to write: .npz, .npy or .csv.")],
    kind_out: Annotated[
        str, typer.Option("--as", help="Write probabilities, or logits (log-probabilities).")
    ] = "probabilities",
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or float64.")] = "float32",
    format: opt.Format = "table",
    json: opt.Json = False,
    output: opt.Output = None,
    quiet: opt.Quiet = False,
) -> int:
    """Apply a saved calibrator to a file of any size and write calibrated probabilities or logits.

    Example: calib apply temperature.safetensors new.npz --save calibrated.npz

    Rows stream through in blocks. Methods that keep predicted classes keep them exactly. Labels, if there are any, are
    copied beside the scores.
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli import scalers
    from calibcli.scalers import output as writer

    if kind_out not in KINDS:
        raise UsageError(f"--as {kind_out} is not a choice", did_you_mean(kind_out, KINDS))
    if dtype not in ("float32", "float64"):
        raise UsageError(f"--dtype {dtype} is not a choice", "pass float32 or float64")
    if reading["multilabel"]:
        raise UsageError("--multilabel has one calibrator per label", "pass one label at a time as a binary problem")
    target = writer.known_target(save)
    run.claim([calibrator, *files, *named(reading)], target)
    with unchanged(calibrator):
        scaler = scalers.load(calibrator)
        run.input(calibrator)
    predictions = read_options.read(run, files[0] if len(files) == 1 else files, reading, need_labels=False)
    written = scalers.stream(
        scaler,
        predictions,
        target,
        probabilities=kind_out == "probabilities",
        dtype=dtype,
        progress=run.progress("applying"),
    )
    facts = {
        "method": scaler.spec,
        "written": f"{predictions.n:,} rows of {predictions.k} {kind_out}, {dtype}",
        "n": predictions.n,
        "classes": predictions.k,
        "keeps predicted classes": scaler.preserves_accuracy,
        "predicted classes changed": written.changed,
    }
    notes = list(predictions.notes)
    if written.raised:
        notes.append(
            f"{written.raised:,} rows hold probabilities too small for {dtype}: the smallest number stands in "
            "for them; --as logits keeps them"
        )
    artefacts = {"scores": str(target)}
    return run.finish(Result(command="apply", notes=notes, facts=facts, artefacts=artefacts))
