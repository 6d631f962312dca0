"""`calib check`: a release gate on limits, slices and a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from calibcli import spec
from calibcli.cli import options
from calibcli.cli.reading import named, reads
from calibcli.cli.run import Run

PANEL = "Gate"


@reads
def command(
    input: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="Scores with labels, or the result.json of any command; default: eval of calib.toml."),
    ] = None,
    reading: dict[str, Any] = {},  # noqa: B006
    max: options.Max = None,
    min: options.Min = None,
    baseline: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--baseline", metavar="FILE", help="Earlier result (with --keep-rows) or scores to compare with."),
    ] = None,
    margin: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--margin", metavar="METRIC=NUMBER", help="Loss against the baseline allowed; recal_gain=0."),
    ] = None,
    of: Annotated[str, typer.Option("--of", help="Of a result, the numbers of: before, after, ...")] = "",
    min_n: Annotated[
        Optional[int],  # noqa: UP045
        options.number(spec.Rows, "--min-n", help="Rows below which a gate is NOT RUN; default: 200."),
    ] = None,
    on_inconclusive: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--on-inconclusive", help="fail (exit 3) or warn; default: fail."),
    ] = None,
    alpha: Annotated[
        Optional[float],  # noqa: UP045
        options.number(spec.Alpha, "--alpha", help="Error probability of each bound; default: 0.05."),
    ] = None,
    bins: Annotated[
        Optional[int],  # noqa: UP045
        options.number(spec.Count, "--bins", help="Bins of binned metrics; default: 15."),
    ] = None,
    bounds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--bounds", help="Bounds of ece: sharp (fewer rows decide), or score; default: sharp."),
    ] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--config", help="Instead of calib.toml, and tool.calib in pyproject.toml, here."),
    ] = None,
    fit: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--fit", metavar="FILE", help="What the calibrator was fitted on: must not overlap the input."),
    ] = None,
    keep_rows: Annotated[
        bool, typer.Option("--keep-rows", help="Keep per-row values in the JSON, as a later baseline (n <= 1,000,000).")
    ] = False,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        options.number(spec.Seed, "--seed", help="Seed of everything random."),
    ] = None,
    format: options.Format = "table",
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> int:
    """Judge limits on metrics: PASS, FAIL, INCONCLUSIVE or NOT RUN.

    PASS and FAIL are claims about the population that hold with 95 % confidence, not about these rows. Rules come from
    --max, --min and --baseline, else from calib.toml, else from tool.calib in pyproject.toml.

    Exit codes: 0 passed, 1 failed, 3 inconclusive, 5 not run (or no rule), 2 wrong request, 4 input refused.

    Example: calib check test.npz --max ece=0.05 --min accuracy=0.9
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli.gate import session

    request = session.Request(
        input=input,
        reading=reading,
        max=max or (),
        min=min or (),
        baseline=baseline or "",
        margin=margin or (),
        of=of,
        min_n=min_n,
        on_inconclusive=on_inconclusive,
        alpha=alpha,
        bins=bins,
        bounds=bounds,
        config=config,
        fit=fit,
        keep_rows=keep_rows,
        seed=seed,
    )
    settings = session.settings(request)
    run.claim([*session.named(settings), *named(reading)])
    result, files = session.run(request, settings, run.progress("checking"))
    run.inputs += files
    return run.finish(result, seed=settings.seed)
