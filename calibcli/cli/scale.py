"""`calib scale`: fit a calibration map, and say what it changes on rows that it was not fitted on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from calibcli.cli.run import Run, asked, named, takes
from calibcli.device import Work
from calibcli.errors import UsageError
from calibcli.inputs.opening import Reading
from calibcli.spec import Folds, Level, argument, option

PANEL = "Fix"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores and labels to fit on: .npz, .npy, .csv, ..."),
    method: tuple[str, ...] = option(
        (), "Method, such as focal-temperature (calib list methods); 'all' fits and ranks every one. Repeatable."
    ),
    test: Path | None = option(None, "Other rows, on which before and after are measured."),
    folds: Folds | None = option(
        None, "Without --test: folds that before and after come from; default: 5.", metavar="FOLDS"
    ),
    metric: tuple[str, ...] = option(
        (), "Metric to measure before and after (calib list metrics). Repeatable.", "--metric", "-m"
    ),
    save: Path | None = option(None, "Write the calibrator here (.safetensors)."),
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

    if test is not None and folds is not None:
        raise UsageError("--test and --folds are two ways to get the same numbers", "pass one of them")
    if reading.multilabel:
        raise UsageError("--multilabel has one calibrator per label", "pass one label at a time as a binary problem")
    if save is not None and save.suffix != ".safetensors":
        raise UsageError(f"a calibrator is not written as '{save.name}'", "use the suffix .safetensors")
    run.claim([*files, test, *named(reading)], *([save] if save else []))
    options = ranking.Options(
        methods=method or ("temperature",),
        specs=metric or None,
        folds=5 if folds is None else folds,
        level=level,
        seed=work.seed,
        threads=work.threads or None,
    )
    how, progress = asked(reading), run.progress("reading")
    predictions = recorded.read(files, progress=progress, **how)
    held_out = None if test is None else recorded.read(test, progress=progress, **how)
    overlap = fingerprints.refuse_overlap(predictions, held_out) if held_out is not None else ""
    result, scaler = before_after.report(predictions, options, held_out, run.progress("fitting"))
    said = str(predictions.facts.get("folded", ""))
    folded = [f"{said}: this one goes on top of it; of the model before, pass its logits"] if said else []
    if save is not None:
        scalers.save(scaler, save)
    result = dataclasses.replace(
        result,
        notes=[*result.notes, *([overlap] if overlap else []), *folded],
        artefacts={} if save is None else {"calibrator": str(save)},
        provenance={
            "inputs": [
                entry for rows in (predictions, held_out) if rows is not None for entry in recorded.provenance(rows)
            ],
            "seed": work.seed,
        },
    )
    return run.finish(result)
