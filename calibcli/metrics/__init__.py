"""The shelf of metrics, and `measure`: every number with its uncertainty."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from calibcli.columns import ClassBins, Columns, columns
from calibcli.errors import UsageError
from calibcli.metrics.intervals import Statistic
from calibcli.metrics.sample import METRICS, Sample
from calibcli.predictions import Predictions
from calibcli.result import Estimate
from calibcli.shelves import Choice
from calibcli.spec import Level, within

__all__ = ["DEFAULT", "METRICS", "Sample", "choose", "estimates", "measure", "needed_class_bins", "values"]
Progress = Callable[[float, str], None]

DEFAULT = (
    "accuracy",
    "nll",
    "brier",
    "mean_confidence",
    "confidence_gap",
    "ece",
    "adaece",
    "classwise_ece",
    "mce",
    "smece",
    "ece2_debiased",
    "temperature_gain",
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


METRICS.shortest = _resolved


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
    table = columns_of(predictions, choices, threads, progress)
    return estimates(Sample.of(table, predictions, seed), choices, level=level)


def values(predictions: Predictions, specs: Sequence[str], *, threads: int | None = 1) -> dict[str, float]:
    """The numbers alone, by spec as it was asked for: `measure` without uncertainty. nan where one is not defined."""
    choices = {spec: choose([spec], predictions.k)[0] for spec in specs}
    table = columns_of(predictions, [*choices.values()], threads)
    sample = dataclasses.replace(Sample.of(table, predictions), values_only=True)
    return {spec: float(choice(sample)) for spec, choice in choices.items()}


def estimates(sample: Sample, choices: Sequence[Choice], *, level: float = 0.95, scope: str = "") -> list[Estimate]:
    """The chosen metrics of a sample; metrics that read scores again are null where there are none."""
    within(level, Level, "level ")
    if sample.top.total <= 0:
        raise UsageError("every weight is 0", "pass weights of which one is positive")
    return [_estimate(sample, choice, level, scope) for choice in choices]


def _estimate(sample: Sample, choice: Choice, level: float, scope: str) -> Estimate:
    traits = choice.traits
    common = {"name": choice.spec, "scope": scope, "unit": traits.get("unit", ""), "better": traits.get("better", "")}
    if traits.get("needs_scores") and sample.predictions is None:
        return Estimate(**common, value=None, n=sample.n, reason="needs the scores, of which only columns were kept")
    statistic: Statistic = sample.once(_statistic, choice)
    value, fields = statistic.value, vars(statistic.interval(level)).copy()
    if not math.isfinite(value) and not fields["reason"]:
        fields["reason"] = "not defined on these rows" if math.isnan(value) else "a label has probability 0"
    if fields["n"] is None:
        fields["n"] = sample.n
    return Estimate(**common, value=value, **fields)


def _statistic(sample: Sample, choice: Choice) -> Statistic:
    found: Statistic = choice(sample)
    return found


def columns_of(
    predictions: Predictions, choices: Sequence[Choice], threads: int | None = 1, progress: Progress | None = None
) -> Columns:
    """The blocked pass with the class tables that these metrics need."""
    tables = needed_class_bins(choices, predictions.k)
    return columns(predictions, class_bins=tables, threads=threads, progress=progress)
