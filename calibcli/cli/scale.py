"""`calib scale`: fit a calibration map, and say what it changes on rows that it was not fitted on."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibcli.cli.run import Run, asked, takes
from calibcli.device import Work
from calibcli.errors import InputError, UsageError
from calibcli.inputs.opening import Reading
from calibcli.spec import Folds, Level, Seed, argument, option

if TYPE_CHECKING:
    from calibcli.result import Result
    from calibcli.scalers.ranking import Options

PANEL = "Fix"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores and labels to fit on: .npz, .npy, .csv, ..."),
    method: tuple[str, ...] = option(
        (), "Method, such as focal-temperature (calib list methods); 'all' fits and ranks every one. Repeatable."
    ),
    test: tuple[Path, ...] = option(
        (), "Other rows, on which before and after are measured. Repeatable with --tasks or --shards."
    ),
    folds: Folds | None = option(None, "Without --test: folds of before and after; default: 5.", metavar="FOLDS"),
    split_seed: Seed | None = option(None, "Seed of the folds, apart from --seed; default: 0.", metavar="SEED"),
    metric: tuple[str, ...] = option(
        (), "Metric to measure before and after (calib list metrics). Repeatable.", "--metric", "-m"
    ),
    save: Path | None = option(
        None,
        "Write the calibrator here (.safetensors); with --multilabel a folder, a file for each label.",
        writes="either",
    ),
    level: Level = option(0.95, "Confidence level of intervals."),
    work: Work,
    run: Run,
    reading: Reading,
) -> int:
    """Fit a calibration map such as a temperature, and measure before and after on rows it was not fitted on.

    Example: calib scale validation.npz --test test.npz --save temperature.safetensors

    Without --test, before and after come from cross-fitting: every row is mapped by a fit that did not see it.
    """
    from calibcli import scalers
    from calibcli.inputs.scores import fingerprints, recorded
    from calibcli.scalers import before_after, ranking

    if len(files) > 1 and not (test or reading.shards or reading.tasks):
        one, two = (shlex.quote(str(file)) for file in files[:2])
        problem = f"{len(files)} files: one to fit on and one to test on, or parts of one data set?"
        fix = f"to test on the second: calib scale {one} --test {two}; parts: --shards; tasks: --tasks"
        raise InputError(problem, fix)
    if test and folds is not None:
        raise UsageError("--test and --folds are two ways to get the same numbers", "pass one of them")
    folded = not test or len(method) > 1 or "all" in map(str.lower, method)
    if split_seed is not None and not folded:
        raise UsageError("--split-seed is of folds, and --test makes none", "pass one of them")
    if save is not None and not reading.multilabel and save.suffix != ".safetensors":
        raise UsageError(f"a calibrator is not written as '{save.name}'", "use the suffix .safetensors")
    options = ranking.Options(
        methods=method,
        specs=metric or None,
        folds=5 if folds is None else folds,
        split_seed=split_seed or 0,
        level=level,
        seed=work.seed,
        threads=work.threads or None,
    )
    how = {"progress": run.progress("reading"), **asked(reading)}
    if reading.multilabel:
        result = _labels(files, test, options, how, save, run)
        return run.finish(result, asked=bool(metric))
    predictions = recorded.read(files, **how)
    held_out = recorded.read(test, **how) if test else None
    result, scaler = before_after.report(predictions, options, held_out, run.progress("fitting"))
    remarks = [fingerprints.refuse_overlap(predictions, held_out)] if held_out is not None else []
    if save is not None:
        scalers.save(scaler, save)
    result = dataclasses.replace(
        result,
        notes=[*result.notes, *filter(None, remarks), *before_after.on_top(predictions)],
        artefacts={} if save is None else {"calibrator": str(save)},
        provenance={
            "inputs": [file for p in (predictions, held_out) if p is not None for file in recorded.provenance(p)],
            "seed": work.seed,
            **({"split": {"folds": options.folds, "seed": options.split_seed}} if folded else {}),
        },
    )
    return run.finish(result, asked=bool(metric))


def _labels(
    files: tuple[Path, ...],
    test: tuple[Path, ...],
    options: Options,
    how: dict[str, Any],
    save: Path | None,
    run: Run,
) -> Result:
    """A map for each label of a multi-label problem."""
    from calibcli.inputs.scores import multilabel, recorded
    from calibcli.scalers import per_label

    if save is not None:
        per_label.may_save(save)
    parts, held_out = multilabel.read(files, **how), multilabel.read(test, **how) if test else None
    if held_out is not None and list(held_out) != list(parts):
        raise InputError("--test has other labels than the rows to fit on", "pass the same labels, in the same order")
    made = per_label.fit_labels(parts, options, held_out, run.progress("fitting"))
    n = next(iter(parts.values())).n
    where = f"rows of --test, fitted on {n:,}" if held_out else f"{n:,} rows, each mapped by a fit that did not see it"
    result = per_label.report(made, options, where)
    if save is not None:
        per_label.save_labels(made, save)
    return dataclasses.replace(
        result,
        artefacts={} if save is None else {"calibrators": str(save)},
        provenance={
            "inputs": [f for p in (parts, held_out) if p for f in recorded.provenance(next(iter(p.values())))],
            "seed": options.seed,
        },
    )
