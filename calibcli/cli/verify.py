"""`calib verify`: what is deployed against its calibrator."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, takes
from calibcli.core.options import NotNegative, argument, option
from calibcli.gate.options import LIMIT, MAX, MIN
from calibcli.scores import reading_options

PANEL = "Gate"


@takes
def command(
    *,
    deployed: Path = argument("Deployed file: an export of calib, a model, or recorded outputs of a server."),
    calibrator: Path = option(..., "Calibrator that was deployed.", "--with"),
    data: str = option(..., "Recorded scores before calibration; with --before, the inputs of both models."),
    before: Path | None = option(None, "Model without the calibrator, if the deployed file is a model."),
    max: tuple[str, ...] = option((), MAX, metavar=LIMIT),
    min: tuple[str, ...] = option((), MIN, metavar=LIMIT),
    config: Path | None = option(None, "Configuration to read instead of calib.toml or tool.calib in pyproject.toml."),
    tolerance: NotNegative | None = option(None, "Largest allowed difference of a probability (default: 1e-6)."),
    kind: str | None = option(
        None,
        "Kind of recorded scores: logits, probabilities or log_probabilities; with --before, logits if all lie in "
        "[0, 1].",
    ),
    run: CommandRun,
    network: reading_options.NetworkOptions,
    rows: reading_options.DatasetOptions,
) -> int:
    """Check that what is deployed gives the calibrator's numbers.

    PASS if no probability differs by more than --tolerance on these rows. With limits, or gates in calib.toml, the
    table also has the verdicts of the gate before and after. They do not count in the exit code.

    Example: calib verify calibrated.onnx --with temperature.safetensors --data test.npz --max ece=0.05
    """
    progress = run.progress("verifying")
    from calibcli.api.shipping import verify

    reading = {"kind": kind, **({"labels": rows.labels} if before is None else vars(rows))}
    options = {**vars(network), **{key: value for key, value in reading.items() if value is not None}}
    result = verify(
        deployed,
        calibrator,
        data,
        before=before,
        max=max,
        min=min,
        config=config,
        tolerance=tolerance,
        progress=progress,
        **options,
    )
    return run.finish(result)
