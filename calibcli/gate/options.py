"""Options of `calib check` and `calib plan`. Imports nothing that computes, so that help starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from calibcli.core.options import (
    Accuracy,
    Alpha,
    Classes,
    Count,
    Limit,
    Positive,
    Power,
    Rows,
    Seed,
    argument,
    check_options,
    option,
)

LIMIT = "METRIC=NUMBER"
MAX = "Largest value allowed of a metric (calib list metrics). Repeatable."
MIN = "Smallest value allowed of a metric (calib list metrics). Repeatable."


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of one check, which take precedence over the configuration file; None and "" leave the choice to it.

    Attributes:
        input: a file or several; from Python also predictions or a result.
        reading: how files are read, see `recorded_outputs.read`; for predictions, `by` names the columns to judge by.
    """

    input: Any = argument(
        "Scores with labels, or the result.json of any command (default: eval of calib.toml).",
        None,
        kind=tuple[Path, ...],
    )
    max: tuple[str, ...] = option((), MAX, metavar=LIMIT)
    min: tuple[str, ...] = option((), MIN, metavar=LIMIT)
    baseline: str | None = option(
        None, "Scores, or an earlier result with --keep-rows, to compare with.", metavar="FILE"
    )
    margin: tuple[str, ...] = option(
        (), "Largest allowed loss against the baseline, such as temperature_gain=0 (calib list metrics).", metavar=LIMIT
    )
    scope: str = option("", "For a result.json: judge the numbers with this scope, such as before or after.")
    min_n: Rows | None = option(None, "Fewest rows; a rule with fewer is NOT RUN (default: 200).")
    on_inconclusive: Literal["fail", "warn"] | None = option(
        None, "What an inconclusive rule does: fail (exit 3, default) or warn (exit 0)."
    )
    alpha: Alpha | None = option(None, "Error probability of each bound (default: 0.05).")
    bins: Count | None = option(None, "Number of bins of binned metrics (default: 15).")
    bounds: Literal["score", "sharp"] | None = option(
        None, "Bounds of ece: sharp (default; needs fewer rows) or score."
    )
    config: Path | None = option(None, "Configuration to read instead of calib.toml or tool.calib in pyproject.toml.")
    fitted_on: str | None = option(
        None, "Scores that the calibrator was fitted on; they must not share rows with the input.", metavar="FILE"
    )
    keep_rows: bool = option(False, "Keep per-row values in the JSON, for use as a baseline (at most 1,000,000 rows).")
    seed: Seed | None = option(None, "Random seed.")
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Assumptions about the evaluation that is planned; `pilot`: some of its rows as `Predictions`, or None."""

    truth: Limit | None = option(
        None, "True value of the metric (default: that of the pilot; 0 for ece without a pilot)."
    )
    accuracy: Accuracy = option(0.87, "Accuracy of the synthetic model.")
    n_classes: Classes = option(10, "Classes of the synthetic model.")
    logit_factor: Positive = option(1.3, "With --margin: factor by which the new model's logits are multiplied.")
    slices: Rows = option(1, "Number of slices judged together; FAIL divides alpha among them.")
    power: Power = option(0.8, "Probability of reaching the true verdict.")
    alpha: Alpha = option(0.05, "Error probability of each bound.")
    pilot: Any = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_options(self)
