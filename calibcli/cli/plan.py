"""`calib plan`: how many samples a gate needs."""

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
    reading: dict[str, Any] = {},  # noqa: B006
    max: options.Max = None,
    min: options.Min = None,
    margin: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--margin", metavar="METRIC=NUMBER", help="Loss allowed against a baseline: recal_gain=0."),
    ] = None,
    pilot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--from", metavar="FILE", help="Scores of a pilot; without it, a synthetic model."),
    ] = None,
    truth: Annotated[
        Optional[float],  # noqa: UP045
        options.number(
            spec.Limit, "--truth", help="True value of the metric. Default: the pilot's; ece without one: 0."
        ),
    ] = None,
    accuracy: Annotated[
        float, options.number(spec.Accuracy, "--accuracy", help="Accuracy of the synthetic model.")
    ] = 0.87,
    n_classes: Annotated[int, options.number(spec.Classes, "--n-classes", help="Classes of the synthetic model.")] = 10,
    off: Annotated[
        float, options.number(spec.Positive, "--off", help="With --margin: factor on the new model's logits.")
    ] = 1.3,
    slices: Annotated[
        int, options.number(spec.Rows, "--slices", help="Slices judged together (FAIL shares alpha).")
    ] = 1,
    power: Annotated[
        float, options.number(spec.Power, "--power", help="Chance that the true verdict is reached.")
    ] = 0.8,
    alpha: Annotated[float, options.number(spec.Alpha, "--alpha", help="Error probability of each bound.")] = 0.05,
    seed: options.Seed = 0,
    format: options.Format = "table",
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> int:
    """Say how many rows a gate needs to PASS a good model, or to FAIL a bad one, with a stated chance.

    Whether the model is good is --truth against the limit. The curve (-o plan.png) shows the chance of each verdict.

    Example: calib plan --max ece=0.02 --min accuracy=0.85
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli.errors import UsageError
    from calibcli.gate import config, planning
    from calibcli.gate import reading as inputs
    from calibcli.inputs.scores.logits import provenance

    gates = [config.limit_rule(text, "max") for text in max or ()]
    gates += [config.limit_rule(text, "min") for text in min or ()]
    gates += [config.limit_rule(text, "margin", baseline="plan") for text in margin or ()]
    if not gates:
        raise UsageError("no gate to plan", "write --max ece=0.02")
    found = None
    run.claim([pilot, *named(reading)])
    if pilot is not None:
        found = inputs.read_scores(pilot, no_parts(reading, "plan"))
        run.inputs += provenance(found)
    assumed = planning.Assumptions(
        pilot=found,
        accuracy=accuracy,
        classes=n_classes,
        truth=truth,
        off=off,
        alpha=alpha,
        family=slices,
        power=power,
        seed=seed,
    )
    return run.finish(planning.plan(gates, assumed), seed=seed)
