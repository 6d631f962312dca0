"""`calib ood`: how well a model's scores tell rows of its distribution from others."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.errors import UsageError
from calibcli.core.options import Alpha, Level, Positive, argument, option
from calibcli.networks.device import Work
from calibcli.scores.reading_options import Reading

PANEL = "Measure"


@takes
def command(
    *,
    inside: Path = argument("Scores of in-distribution rows, such as the test set."),
    outside: Path = argument("Scores of out-of-distribution rows by the same model; labels are not needed."),
    score: tuple[Literal["confidence", "entropy", "energy", "max_logit"], ...] = option(
        (), "Score: confidence, entropy, energy or max_logit (default: all that the files allow). Repeatable."
    ),
    against: tuple[Path, ...] = option(
        (), "Scores of another model on the same rows; pass it twice: in-distribution, then out-of-distribution."
    ),
    calibrator: Path | None = option(
        None, "Compare with the same scores after a calibrator (calib scale --save).", "--with", metavar="FILE"
    ),
    temperature: Positive = option(1.0, "Temperature T of the energy score, T log Σ exp(z / T)."),
    level: Level = option(0.95, "Confidence level of the intervals."),
    alpha: Alpha = option(0.05, "Family-wise error probability of calling a difference real."),
    work: Work,
    run: CommandRun,
    reading: Reading,
) -> int:
    """Detect rows of another distribution by the model's scores.

    Every number has an interval; differences between scores, or between two models on the same rows, are DeLong's.

    Example: calib ood test.npz svhn.npz -o ood.png
    """
    from calibcli.api.finding import ood

    if len(against) not in (0, 2):
        problem = f"{len(against)} files to compare with" if against[1:] else "one file to compare with"
        raise UsageError(problem, "pass --against INSIDE --against OUTSIDE")
    result = ood(
        inside,
        outside,
        against=(against[0], against[1]) if against else None,
        calibrator=calibrator,
        scores_of=score,
        temperature=temperature,
        level=level,
        alpha=alpha,
        threads=work.threads,
        progress=run.progress("measuring"),
        **given_options(reading),
    )
    return run.finish(result)
