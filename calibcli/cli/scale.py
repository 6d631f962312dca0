"""`calib scale`: fit a calibration map, and say what it changes on rows that it was not fitted on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from calibcli import spec
from calibcli.cli import options as opt
from calibcli.cli import reading as read_options
from calibcli.cli.reading import named, reads
from calibcli.cli.run import Run
from calibcli.errors import UsageError

PANEL = "Fix"


@reads
def command(
    files: Annotated[list[Path], typer.Argument(help="Scores and labels to fit on: .npz, .npy, .csv, ...")],
    reading: dict[str, Any],
    method: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--method", help="Method, such as temperature or focal-temperature; 'all' ranks. Repeatable."),
    ] = None,
    test: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--test", help="Other rows, on which before and after are measured."),
    ] = None,
    crossfit: Annotated[
        Optional[int],  # noqa: UP045
        opt.number(
            spec.Folds, "--crossfit", metavar="FOLDS", help="Without --test: folds that before and after come from [5]."
        ),
    ] = None,
    metric: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--metric", "-m", help="Metric to measure before and after. Repeatable."),
    ] = None,
    save: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--save", help="Write the calibrator here (.safetensors)."),
    ] = None,
    level: Annotated[float, opt.number(spec.Level, "--level", help="Confidence level of intervals.")] = 0.95,
    seed: opt.Seed = 0,
    threads: opt.Threads = 0,
    format: opt.Format = "table",
    json: opt.Json = False,
    output: opt.Output = None,
    quiet: opt.Quiet = False,
) -> int:
    """Fit a calibration map such as a temperature, and measure before and after on rows it was not fitted on.

    Example: calib scale validation.npz --test test.npz --save temperature.safetensors

    Without --test, before and after come from cross-fitting: every row is mapped by a fit that did not see it.
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli import scalers
    from calibcli.inputs.scores import fingerprints
    from calibcli.scalers import report as reports

    if test is not None and crossfit is not None:
        raise UsageError("--test and --crossfit are two ways to get the same numbers", "pass one of them")
    if reading["multilabel"]:
        raise UsageError("--multilabel has one calibrator per label", "pass one label at a time as a binary problem")
    if save is not None and save.suffix != ".safetensors":
        raise UsageError(f"a calibrator is not written as '{save.name}'", "use the suffix .safetensors")
    run.claim([*files, test, *named(reading)], *([save] if save else []))
    options = reports.Options(
        methods=method or ("temperature",),
        specs=metric or None,
        folds=5 if crossfit is None else crossfit,
        level=level,
        seed=seed,
        threads=threads or None,
    )
    predictions = read_options.read(run, files[0] if len(files) == 1 else files, reading)
    held_out, notes = None, []
    if test is not None:
        held_out = read_options.read(run, test, reading)
        notes = [text for text in [fingerprints.refuse_overlap(predictions, held_out)] if text]
    result, scaler = reports.report(predictions, options, held_out, run.progress("fitting"))
    artefacts = {}
    if save is not None:
        scalers.save(save, scaler)
        artefacts["calibrator"] = str(save)
    result = dataclasses.replace(result, notes=[*result.notes, *notes], artefacts=artefacts)
    return run.finish(result, seed=seed)
