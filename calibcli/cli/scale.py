"""`calib scale`: fit a calibration map, and say what it changes on rows that it was not fitted on."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import Folds, Level, Seed, argument, option
from calibcli.networks.device import Work
from calibcli.scores.reading_options import Reading

PANEL = "Fix and train"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores and labels to fit on: .npz, .npy, .csv, ..."),
    method: tuple[str, ...] = option(
        (), "Method, such as focal-temperature; 'all' fits and ranks every one (calib list methods). Repeatable."
    ),
    test: tuple[Path, ...] = option(
        (), "Scores of other rows, to measure before and after on. Repeatable with --tasks or --shards."
    ),
    folds: Folds | None = option(
        None, "Without --test: number of cross-validation folds (default: 5).", metavar="FOLDS"
    ),
    split_seed: Seed | None = option(None, "Seed of the folds (default: 0).", metavar="SEED"),
    metric: tuple[str, ...] = option(
        (), "Metric to measure before and after (calib list metrics). Repeatable.", "--metric", "-m"
    ),
    save: Path | None = option(
        None,
        "Write the calibrator to this file (.safetensors); with --multilabel, to a folder with a file for each label.",
        writes="either",
    ),
    level: Level = option(0.95, "Confidence level of intervals."),
    work: Work,
    run: CommandRun,
    reading: Reading,
) -> int:
    """Fit a calibration map; measure it on rows it has not seen.

    Example: calib scale validation.npz --test test.npz --save temperature.safetensors

    Without --test, before and after come from cross-fitting: every row is mapped by a fit that did not see it.
    """
    from calibcli.api.fixing import scale

    options = {"labels": None, **given_options(reading)}
    result = scale(
        files,
        options.pop("labels"),
        *method,
        test=test or None,
        folds=folds,
        split_seed=split_seed,
        metrics=metric,
        save=save,
        level=level,
        progress=run.progress("fitting"),
        **vars(work),
        **options,
    )
    return run.finish(result, asked=bool(metric))
