"""`calib export`: a calibrator in the form that the model runs in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from calibcli.cli.run import CommandRun, takes
from calibcli.core.options import NotNegative, argument, option
from calibcli.scores import reading_options

PANEL = "Fix and train"


@dataclass
class Reported(CommandRun):
    """A run whose -o is the exported file; the result is written by --output."""

    output: Sequence[Path] = option(
        (),
        "Also write the result to this file; its suffix decides the format. Repeatable.",
        "--output",
        kind=tuple[Path, ...],
        writes="file",
    )


@takes
def command(
    *,
    calibrator: Path = argument("Calibrator written by calib scale --save."),
    to: str = option(..., "Target: checkpoint, onnx, json, ... (calib list targets)."),
    save: Path = option(..., "File or folder to write.", "--save", "-o", writes="either"),
    model: Path | None = option(
        None, "Model to put the calibrator into: a checkpoint, a Hugging Face folder, an .onnx, a classifier in a .pkl."
    ),
    data: str | None = option(
        None,
        "Rows to compare on: recorded scores or, for a model, inputs (default: those of the fit, or the model's own).",
    ),
    tolerance: NotNegative | None = option(
        None, "Largest allowed difference of a probability (default: 1e-6 in float32)."
    ),
    kind: str | None = option(
        None,
        "Kind of recorded scores: logits, probabilities or log_probabilities; with --model, logits if all lie in "
        "[0, 1].",
    ),
    run: Reported,
    network: reading_options.NetworkOptions,
    rows: reading_options.DatasetOptions,
) -> int:
    """Write a calibrator as a checkpoint, ONNX or a function.

    It is first compared with the original on real rows.

    Example: calib export temperature.safetensors --model model.safetensors --to checkpoint -o calibrated.safetensors

    With --model, the rows of --data are inputs; otherwise they are recorded scores. A file that would differ from the
    calibrator by more than --tolerance is not written (exit 4).
    """
    progress = run.progress("exporting")
    from calibcli.api.shipping import export

    reading = {"kind": kind, **({"labels": rows.labels} if model is None else vars(rows))}
    options = {**vars(network), **{key: value for key, value in reading.items() if value is not None}}
    options |= {"model": model, "data": data, "tolerance": tolerance, "progress": progress}
    return run.finish(export(calibrator, to, save=save, **options))
