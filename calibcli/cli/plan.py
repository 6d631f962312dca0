"""`calib plan`: how many samples a gate needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from calibcli.cli.run import Run, asked, takes
from calibcli.device import Seeded
from calibcli.gate.request import LIMIT, MAX, MIN, Assumptions
from calibcli.inputs.opening import Reading
from calibcli.spec import option

PANEL = "Gate"


@takes
def command(
    *,
    max: tuple[str, ...] = option((), MAX, metavar=LIMIT),
    min: tuple[str, ...] = option((), MIN, metavar=LIMIT),
    margin: tuple[str, ...] = option(
        (), "Loss against a baseline allowed: temperature_gain=0 (calib list metrics).", metavar=LIMIT
    ),
    pilot: Path | None = option(None, "Scores of a pilot; without it, a synthetic model.", "--from", metavar="FILE"),
    assumed: Assumptions,
    seeded: Seeded,
    run: Run,
    reading: Reading,
) -> int:
    """Say how many rows a gate needs to PASS a good model, or to FAIL a bad one, with a stated chance.

    Rules come from --max, --min and --margin, else from calib.toml, else from tool.calib in pyproject.toml. Whether the
    model is good is --truth against the limit. The curve (-o plan.png) shows the chance of each verdict.

    Example: calib plan --max ece=0.02 --min accuracy=0.85
    """
    from calibcli.errors import UsageError
    from calibcli.gate import config, planning
    from calibcli.inputs.scores import recorded

    gates = [config.limit_rule(text, "max") for text in max]
    gates += [config.limit_rule(text, "min") for text in min]
    gates += [config.limit_rule(text, "margin", baseline="plan") for text in margin]
    settings = None
    if not gates:
        settings = config.load()
        alike = {(gate.metric, gate.limit, gate.max, gate.min, gate.margin): gate for gate in settings.gates}
        gates = list(alike.values())
        if assumed.alpha == Assumptions().alpha:  # an --alpha of one's own goes before that of the file
            assumed = dataclasses.replace(assumed, alpha=settings.alpha)
    if not gates:
        raise UsageError("no gate to plan", "write --max ece=0.02, or gates in calib.toml")
    rows = None if pilot is None else recorded.read(pilot, **asked(reading.whole("plan")))
    planned = planning.plan(gates, dataclasses.replace(assumed, pilot=rows, seed=seeded.seed))
    if assumed.slices == 1 and settings and any(gate.by for gate in settings.gates):
        note = "rules with `by` are planned as if of all rows: --slices N plans the rows of each of N slices"
        planned = dataclasses.replace(planned, notes=[*planned.notes, note])
    inputs = [*([] if rows is None else recorded.provenance(rows)), *(settings.files if settings else ())]
    return run.finish(dataclasses.replace(planned, provenance={"inputs": inputs, "seed": seeded.seed}))
