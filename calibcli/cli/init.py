"""`calib init`: a calib.toml for a file."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import argument, option
from calibcli.scores.reading_options import Reading

PANEL = "Gate"


@takes
def command(
    *,
    file: Path = argument("Scores with labels, of a model that is good enough."),
    baseline: Path | None = option(
        None, "Scores, or a result, of the model in use: limits lie at the bounds of its numbers.", metavar="FILE"
    ),
    save: Path = option(Path("calib.toml"), "The configuration to write.", metavar="FILE", writes="file"),
    update: bool = option(False, "Replace how the file is read in a configuration that is there; keep its rules."),
    workflow: Path | None = option(
        None, "Also write a workflow for GitHub: .github/workflows/calib.yml.", metavar="FILE", writes="file"
    ),
    run: CommandRun,
    reading: Reading,
) -> int:
    """Write calib.toml: how a file is read, and rules for it.

    `calib check` then needs no options. Where a later export has other columns, classes or rows than the pinned ones,
    every rule is NOT RUN, and the sentence says what has changed; --update accepts it.

    Example: calib init test.npz
    """
    from calibcli.api.gating import init

    options = given_options(reading)
    options |= {"baseline": baseline, "progress": run.progress("reading")}
    return run.finish(init(file, save=save, update=update, workflow=workflow, **options))
