"""`calib compare`: differences between models, and which of them are real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from calibcli import spec
from calibcli.cli import options
from calibcli.cli.reading import named, no_parts, reads
from calibcli.cli.run import Run

PANEL = "Gate"


@reads
def command(
    inputs: Annotated[list[Path], typer.Argument(help="Scores of the same rows by each model, or results of calib.")],
    reading: dict[str, Any],
    metric: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--metric", "-m", help="Metric spec instead of the default set. Repeatable."),
    ] = None,
    alpha: Annotated[
        float, options.number(spec.Alpha, "--alpha", help="Family-wise error of what is called real.")
    ] = 0.05,
    format: options.Format = "table",
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> int:
    """Compare models: differences of every metric to the first input, with intervals.

    On scores, rows are paired by id, or by position where the label sequence is the same. On results (result.json) the
    comparison is unpaired, and says so. p-values are adjusted for the number of comparisons (Holm).

    Example: calib compare before.npz after.npz -o differences.png
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli.gate import compare
    from calibcli.gate.reading import read_result, read_scores
    from calibcli.inputs.scores.logits import provenance

    names = compare.names_of(inputs)
    run.claim([*inputs, *named(reading)])
    kinds = {path.suffix == ".json" for path in inputs}
    if kinds == {True}:
        read = [read_result(path) for path in inputs]
        run.inputs += [entry for _, entry in read]
        return run.finish(compare.results([result for result, _ in read], names, alpha), seed=0)
    if len(kinds) > 1:
        from calibcli.errors import UsageError

        raise UsageError("scores and results cannot be compared with each other", "pass all scores, or all results")
    how = no_parts(reading, "compare")
    found = [read_scores(path, how) for path in inputs]
    run.inputs += [entry for predictions in found for entry in provenance(predictions)]
    return run.finish(compare.scores(found, names, metric or None, alpha), seed=0)
