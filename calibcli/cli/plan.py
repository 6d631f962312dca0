"""`calib plan`: how many samples a gate needs."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import option
from calibcli.gate.options import LIMIT, MAX, MIN, Assumptions
from calibcli.networks.device import Seeded
from calibcli.scores.reading_options import Reading

PANEL = "Gate"


@takes
def command(
    *,
    max: tuple[str, ...] = option((), MAX, metavar=LIMIT),
    min: tuple[str, ...] = option((), MIN, metavar=LIMIT),
    margin: tuple[str, ...] = option(
        (),
        "Largest allowed loss against a baseline, such as temperature_gain=0.005 (calib list metrics).",
        metavar=LIMIT,
    ),
    pilot: Path | None = option(None, "Scores of a pilot (default: a synthetic model).", "--from", metavar="FILE"),
    assumed: Assumptions,
    seeded: Seeded,
    run: CommandRun,
    reading: Reading,
) -> int:
    """Compute how many rows a gate needs for a verdict.

    Rules come from --max, --min and --margin, else from calib.toml, else from tool.calib in pyproject.toml. Whether the
    model is good is --truth against the limit. The curve (-o plan.png) shows the chance of each verdict.

    Example: calib plan --max ece=0.02 --min accuracy=0.85
    """
    from calibcli.api.gating import plan

    options = {**vars(assumed), "pilot": pilot, "seed": seeded.seed, "progress": run.progress("reading")}
    return run.finish(plan(max=max, min=min, margin=margin, **options, **given_options(reading)))
