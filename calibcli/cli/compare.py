"""`calib compare`: differences between models, and which of them are real."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import Alpha, argument, option
from calibcli.scores.reading_options import Reading

PANEL = "Gate"


@takes
def command(
    *,
    inputs: tuple[Path, ...] = argument("Scores of each model on the same rows, or results (result.json)."),
    metric: tuple[str, ...] = option(
        (),
        "Metric, such as ece:bins=30 (calib list metrics), instead of the default set. Repeatable.",
        "--metric",
        "-m",
    ),
    alpha: Alpha = option(0.05, "Family-wise error probability of calling a difference real."),
    config: Path | None = option(
        None,
        "Read the files as this calib.toml pins them; refuse one that is read otherwise.",
        metavar="FILE",
    ),
    run: CommandRun,
    reading: Reading,
) -> int:
    """Compare models: differences of every metric, with intervals.

    On scores, rows are paired by id, or by position where the label sequence is the same. On results (result.json) the
    comparison is unpaired, and says so. p-values are adjusted for the number of comparisons (Holm).

    Example: calib compare before.npz after.npz -o differences.png
    """
    from calibcli.api.gating import compare

    run.progress("comparing")
    result = compare(*inputs, metrics=metric or None, alpha=alpha, config=config, **given_options(reading))
    return run.finish(result, asked=bool(metric))
