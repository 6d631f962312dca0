"""Options of `calib check` and `calib plan`. Imports nothing that computes, so that help starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from calibcli.core.errors import UsageError
from calibcli.core.options import (
    Accuracy,
    Alpha,
    Classes,
    Count,
    Limit,
    Positive,
    Power,
    Range,
    Rows,
    Seed,
    argument,
    check_options,
    convert,
    option,
)

LIMIT = "METRIC=NUMBER"
MAX = "Largest value allowed of a metric (calib list metrics). Repeatable."
MIN = "Smallest value allowed of a metric (calib list metrics). Repeatable."
ACCEPT = "Also judge the promise of this threshold (calib threshold --save) on the rows."
Risk = Annotated[float, Range(1e-6, 1, open_high=True)]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a threshold promises of other rows; one of the first three."""

    max_risk: Risk | None = option(None, "Largest share of the accepted rows that may be wrong, such as 0.05.")
    min_precision: str | None = option(
        None,
        "Of two classes: accept by P(NAME); smallest share of the accepted rows that must be NAME.",
        metavar="NAME=SHARE",
    )
    max_fpr: Risk | None = option(
        None, "Of two classes: accept by P(event); largest share of the other class that may be accepted."
    )
    alpha: Alpha = option(0.05, "Probability that the threshold breaks the promise.")

    def __post_init__(self) -> None:
        check_options(self)
        given = [name for name in ("max_risk", "min_precision", "max_fpr") if getattr(self, name) is not None]
        if len(given) != 1:
            problem = " and ".join(f"--{name.replace('_', '-')}" for name in given) or "no promise"
            raise UsageError(f"{problem}: a threshold keeps one promise", "write --max-risk 0.05")
        self.limit  # noqa: B018 (refused here if it is no number)

    @property
    def of(self) -> Literal["risk", "precision", "fpr"]:
        """What is bounded."""
        return "risk" if self.max_risk is not None else "precision" if self.min_precision is not None else "fpr"

    @property
    def name(self) -> str:
        """The class that `min_precision` names; else ""."""
        return (self.min_precision or "").rpartition("=")[0].strip()

    @property
    def limit(self) -> float:
        """The number that is promised."""
        if self.min_precision is None:
            return float(self.max_risk or self.max_fpr or 0)
        if not self.name:
            raise UsageError(
                f"--min-precision {self.min_precision} is not NAME=SHARE", "write --min-precision spam=0.95"
            )
        limit: float = convert(self.min_precision.rpartition("=")[2].strip(), Risk, f"--min-precision {self.name}=")
        return limit

    @property
    def risk(self) -> float:
        """The largest share of errors: of a precision 1 minus it."""
        return round(1 - self.limit, 12) if self.of == "precision" else self.limit

    @property
    def rule(self) -> str:
        """The promise as a text."""
        sign = ">=" if self.of == "precision" else "<="
        return f"{self.of}{' of ' * bool(self.name)}{self.name} {sign} {self.limit:.12g}"


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
        (),
        "Largest allowed loss against the baseline, such as temperature_gain=0.005 (calib list metrics).",
        metavar=LIMIT,
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
    threshold: str | None = option(None, ACCEPT, metavar="FILE")
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
