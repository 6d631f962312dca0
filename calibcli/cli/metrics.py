"""`calib metrics`: every calibration number with its uncertainty, and the reliability diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from calibcli import spec
from calibcli.cli import options as opt
from calibcli.cli import reading as read_options
from calibcli.cli.reading import reads
from calibcli.cli.run import Run

PANEL = "Measure"


@reads
def command(
    files: Annotated[list[Path], typer.Argument(help="Scores and labels: .npz, .npy, .csv, ...; - is stdin.")],
    reading: dict[str, Any],
    metric: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--metric", "-m", help="Metric, such as ece:bins=30; also 'default' and 'all'. Repeatable."),
    ] = None,
    bins: Annotated[Optional[int], opt.number(spec.Count, "--bins", help="Number of bins.")] = None,  # noqa: UP045
    edges: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--edges", help="right (lo, hi], left [lo, hi), or torchmetrics."),
    ] = None,
    level: Annotated[
        float, opt.number(spec.Level, "--level", help="Of two-sided intervals, and of each one-sided bound.")
    ] = 0.95,
    per_class: Annotated[bool, typer.Option("--per-class", help="Table and diagram of each class.")] = False,
    top_k: Annotated[int, opt.number(spec.OrNone, "--top-k", help="Also for the top 2, ..., k classes together.")] = 0,
    seed: opt.Seed = 0,
    threads: opt.Threads = 0,
    format: opt.Format = "table",
    json: opt.Json = False,
    output: opt.Output = None,
    quiet: opt.Quiet = False,
) -> int:
    """Measure calibration: every number with its uncertainty, and a reliability diagram.

    Example: calib metrics test.npz -o reliability.png

    Beside each calibration error stands the level that chance gives a perfectly calibrated model, and bounds that hold.
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli.metrics import report as reports

    run.claim([*files, *read_options.named(reading)])
    options = reports.Options(
        specs=metric or None,
        bins=bins,
        edges=reports.known_edges(edges),
        level=level,
        per_class=per_class,
        top_k=top_k,
        seed=seed,
        threads=threads or None,
    )
    path = files[0] if len(files) == 1 else files
    if reading["multilabel"]:
        labels = read_options.read_multilabel(run, path, reading)
        return run.finish(reports.report_multilabel(labels, options, run.progress("measuring")), seed=seed)
    predictions = read_options.read(run, path, reading)
    return run.finish(reports.report(predictions, options, run.progress("measuring")), seed=seed)
