"""The shelf of metrics, and `measure`: every number with its uncertainty."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from calibcli.columns import ClassBins, Columns, columns
from calibcli.errors import UsageError
from calibcli.metrics import smooth  # the shelf lists metrics in the order of these imports

# isort: split
from calibcli.metrics import binned, classwise, gain, kernel, proper, significance
from calibcli.metrics.intervals import Ask, Interval
from calibcli.metrics.sample import METRICS, Sample
from calibcli.predictions import Predictions
from calibcli.result import Estimate
from calibcli.spec import Choice, Level, within

__all__ = ["DEFAULT", "METRICS", "BySpec", "Sample", "choose", "estimates", "measure", "needed_class_bins", "values"]
Progress = Callable[[float, str], None]
T = TypeVar("T")
_ALL = (proper, binned, classwise, smooth, kernel, significance, gain)  # importing them fills the shelf

DEFAULT = (
    "accuracy",
    "nll",
    "brier",
    "mean_confidence",
    "gap",
    "ece",
    "adaece",
    "classwise_ece",
    "mce",
    "smece",
    "ece2_debiased",
    "recal_gain",
    "calibration_p",
)
"""What is measured when nothing is asked for."""


def choose(specs: Iterable[str], k: int) -> list[Choice]:
    """Spec strings as choices, each once; `all` stands for the whole shelf and `default` for the default set.

    The spec of a choice is the shortest: of two classes `of=positive` goes without saying, of more `of=top`.

    Raises:
        UsageError: unknown metric or option, or `of=positive` where there are not two classes.
    """
    chosen: dict[str, Choice] = {}
    for spec in specs:
        groups = {"all": [*METRICS.entries], "default": [*DEFAULT]}
        for one in groups.get(spec.strip().lower(), [spec]):
            choice = _resolved(METRICS.choose(one), k)
            for option, least in (("bins", 1), ("draws", 1)):
                if choice.options.get(option, least) < least:
                    raise UsageError(
                        f"{choice.spec}: {option} must be at least {least}", f"pass {option}={least} or more"
                    )
            chosen.setdefault(choice.spec, choice)
    return list(chosen.values())


def _resolved(choice: Choice, k: int) -> Choice:
    """The choice with `of=auto` where that says as much for k classes."""
    of = choice.options.get("of")
    if of == "positive" and k != 2:
        raise UsageError(f"{choice.spec} is for two classes, these are {k}", f"use {choice.name}")
    if of == ("positive" if k == 2 else "top"):
        return Choice(choice.entry, {**choice.options, "of": "auto"})
    return choice


class BySpec(Mapping[str, T]):
    """Numbers of metrics by spec, in any spelling: `ece:bins=15` and (k = 2) `ece:of=positive` are `ece`."""

    def __init__(self, numbers: Mapping[str, T], k: int) -> None:
        """numbers: by canonical spec."""
        self.numbers, self.k = numbers, k

    def __getitem__(self, spec: str) -> T:
        try:
            return self.numbers[_resolved(METRICS.choose(spec), self.k).spec]
        except (UsageError, KeyError):
            raise KeyError(f"'{spec}' was not measured, but {', '.join(self.numbers)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return repr(self.numbers)


def needed_class_bins(choices: Sequence[Choice], k: int) -> list[ClassBins]:
    """The class tables that these metrics read."""
    tables = []
    for choice in choices:
        if "class_bins" in choice.traits:
            options = {o: v for o, v in choice.options.items() if o != "norm"}
            tables.append(choice.traits["class_bins"](k, **options))
    return list(dict.fromkeys(tables))


def measure(
    predictions: Predictions,
    specs: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
    threads: int | None = 1,
    progress: Progress | None = None,
) -> list[Estimate]:
    """Metrics of predictions, each with its uncertainty or the reason why it has none.

    Args:
        predictions: what to measure.
        specs: metric specs (`ece:bins=30`); None: the default set.
        level: confidence level of intervals; one-sided bounds hold at this level each.
        seed: of what is simulated.
        threads: worker threads of the pass over the scores.
        progress: called with (fraction done, text).

    Raises:
        UsageError: unknown metric or option, or a level outside (0, 1).
    """
    choices = choose(DEFAULT if specs is None else specs, predictions.k)
    table = columns(
        predictions, class_bins=needed_class_bins(choices, predictions.k), threads=threads, progress=progress
    )
    return estimates(Sample.of(table, predictions, seed), choices, level=level)


def values(predictions: Predictions, specs: Sequence[str] | None = None, *, threads: int | None = 1) -> BySpec[float]:
    """The numbers alone, by spec: `measure` without uncertainty. nan where one is not defined."""
    choices = choose(DEFAULT if specs is None else specs, predictions.k)
    sample = dataclasses.replace(Sample.of(columns_of(predictions, choices, threads), predictions), values_only=True)
    return BySpec({choice.spec: float(choice(sample)) for choice in choices}, predictions.k)


def estimates(sample: Sample, choices: Sequence[Choice], *, level: float = 0.95, of: str = "") -> list[Estimate]:
    """The chosen metrics of a sample; metrics that read scores again are null where there are none."""
    within(level, Level, "level ")
    if sample.top.total <= 0:
        raise UsageError("every weight is 0", "pass weights of which one is positive")
    return [_estimate(sample, choice, level, of) for choice in choices]


def _estimate(sample: Sample, choice: Choice, level: float, of: str) -> Estimate:
    traits = choice.traits
    common = {
        "name": choice.spec,
        "of": of,
        "unit": traits.get("unit", ""),
        "better": traits.get("better", ""),
    }
    if traits.get("needs_scores") and sample.predictions is None:
        return Estimate(**common, value=None, n=sample.n, reason="needs the scores, of which only columns were kept")
    value = float(choice(sample))
    interval: Interval = traits["interval"](Ask(sample, choice, value, level, sample.seed))
    reason = interval.reason
    if not math.isfinite(value) and not reason:
        reason = "not defined on these rows" if math.isnan(value) else "a label has probability 0"
    fields = {name: getattr(interval, name) for name in ("low", "high", "level", "sided", "se", "null", "null_high")}
    how = "; ".join(filter(None, [traits.get("how", ""), interval.how]))
    n = sample.n if interval.n is None else interval.n
    return Estimate(**common, **fields, value=value, how=how, reason=reason, n=n, detail=interval.detail)


def columns_of(predictions: Predictions, choices: Sequence[Choice], threads: int | None = 1) -> Columns:
    """The blocked pass with the class tables that these metrics need."""
    return columns(predictions, class_bins=needed_class_bins(choices, predictions.k), threads=threads)
