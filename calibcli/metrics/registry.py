"""The registry of metrics: the samples that they are functions of, the statistics that they return, how they are
chosen, measured and shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.core import extensions
from calibcli.core.errors import UsageError
from calibcli.core.figure_data import Tier
from calibcli.core.number_format import percent
from calibcli.core.options import Level, Range, within
from calibcli.core.problem import Problem
from calibcli.core.registries import Choice, Registry, Traits
from calibcli.core.result import Cell, Estimate
from calibcli.core.scope import WHOLE, Scope
from calibcli.core.statistics import effective_rows, one_thread
from calibcli.metrics.reliability import BinaryOutcomes, Memoized
from calibcli.scores.columns import ClassBins, Columns, columns
from calibcli.scores.histogram import CONFIDENCE, NAMES, ColumnName
from calibcli.scores.predictions import OUTCOMES, Floats, Ints, Predictions, Progress, TopOnly

# The registry, the sets of metrics that have names, and the ranges of their values.

Of = Literal["auto", "top", "positive"]
"""The class that a probability is of: the predicted one, or the event (class 1 of two). `auto` is the event of two
classes, and the predicted class of more."""
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
"""The default set."""
OF_EVENT = ("auc", "cox_slope", "cox_intercept", "observed_expected")
"""Added to the default set for two classes."""

ELSEWHERE = {
    *("auprc", "average_precision", "average_precision_score", "pr_auc", "f1", "f1_score", "mcc", "matthews_corrcoef"),
    *("balanced_accuracy", "balanced_accuracy_score", "kappa", "precision", "recall", "sensitivity", "specificity"),
}
"""Metrics of other tools that are not measured here."""


@dataclass(frozen=True, kw_only=True)
class MetricTraits(Traits):
    """What a metric says of itself; all other code reads it here."""

    # of its value

    values: Range
    """The range of its values, which lists show, and which saved results and bounds of differences keep to."""
    narrowed: Callable[[int | None, Mapping[str, Any]], Range] | None = None
    """The range for k classes (None: not known) and its options, which limits of gates must lie in."""
    unit: str = ""
    """The unit, such as `nats`, which estimates and lists show."""
    better: Literal["", "lower", "higher", "zero"] = ""
    """Which values are better, which decides the side of a gate, and the words better and worse of a comparison."""
    proper: bool = False
    """No other probabilities than the true ones are better; `scorer` warns of metrics without it."""

    # of its names

    label: str = ""
    """Its name in headlines; "" is its name here, with spaces."""
    of_top: str = ""
    """What `choose` takes, or advises, in its place where the predicted class alone has a probability."""

    # of what it reads

    reads: tuple[ColumnName, ...] = CONFIDENCE
    """The columns that it reads, all that the blocked pass computes for it; to read another one raises."""
    class_bins: Callable[..., ClassBins] | None = None
    """The class table that it reads, a function of k and its options, which the blocked pass fills."""
    needs_scores: bool = False
    """It reads the scores again; `estimates` gives it no value where they were not kept."""
    two_classes: bool = False
    """It is of two classes; `choose` refuses it for more, and leaves it out of sets."""
    view: Of = "auto"
    """The probability that it is of, where that is no option, which `histogram_error` asks for."""

    # of merging

    condensed: Callable[[Any, Mapping[str, Any], float], float | None] | None = None
    """The largest change by merging, a `histogram_error.Bound`; without it only means have a merged value."""

    # of gates and comparisons

    rows: Literal["", "zero_one", "log_loss", "cross_fitted"] = ""
    """What a row adds, for paired comparisons and plans: its outcome, -log p of its label, or the gain by a fit."""
    kept: Literal["", "nll", "brier", "correct", "gain"] = ""
    """Its column among the rows of a baseline, which a gate against it compares row by row."""
    table_bounds: bool = False
    """It has the bounds of `binned_bounds`, which gates, plans and watches compute before they measure it."""
    compared: bool = True
    """Its differences say something; `compare` and `scale` leave out by default what has False."""

    simulated: bool = False
    """Its bounds do not shrink as 1/√n, so that the rows that a verdict needs are simulated."""
    promise: str = ""
    """What a PASS means to whoever uses the model, a sentence with the {limit}, which a gate notes."""

    # of warnings

    gaps: Literal["", "one_sign", "both_signs", "largest", "squares", "of_classes"] = ""
    """The gaps of bins that it is of, "" if it is not binned: reports warn where chance makes those of one sign, those
    of both signs (also of a calibrated model) or the largest too large; gates say what binned errors do not see."""
    debiased: str = ""
    """The metric that estimates its square without bias, by which a study judges a claim again."""
    parts: bool = False
    """A report has the parts of the Brier score beside it."""

    # of headlines and screens

    error: int = 0
    """Its place among the calibration errors that a headline chooses from; 0 is none."""
    named: int = 0
    """Its place among the differences that a headline names; 0 is after all others."""
    first_screen: Literal["", "always", "slices too", "one model", "two classes", "confidence"] = ""
    """When it is among what a screen has first, the set `few`: always (of slices, too; unless models are compared), or
    only of two classes, or of recorded confidences."""

    @property
    def gives(self) -> Sequence[str]:
        return self.unit, f"{self.values}"


METRICS = Registry(
    "metric",
    MetricTraits,
    package="calibcli.metrics",
    first=DEFAULT,
    usual=("means", "binned", "temperature_gain", "smooth_ece"),
    flag="-m",
    elsewhere=ELSEWHERE,
)
SETS = ("default", "few")
"""Names of sets of metrics; `few` are those of the default set that have the trait `first_screen`."""
UNIT, SIGNED, NATS, ANY, BRIER = Range(0, 1), Range(-1, 1), Range(0), Range(), Range(0, 2)
"""Ranges of metrics, for their trait `values`."""


NO_GATE = "no gate"
"""Key of the detail of an interval that says why no gate is judged by it."""
HEAVY, UNEVEN = 1 / 8, 1 / 4
"""A share of Σw² that one row has, and n_eff/n: beyond the first and below the second no gate is judged (simulated)."""


def few_carry(weights: Floats | None, counts: bool, groups: Ints | None) -> str:
    """Say that few rows carry the sampling weights, so that no bound keeps its level, or return "".

    Bounds take the heaviest row of the file for the heaviest of the population. Weights without variance refute that
    at any number of rows: the largest keeps its share of Σw², which goes to 0 exactly if the variance is finite
    (O'Brien 1980). The rows that were not drawn are then heavier than all others together. Weights of groups are judged
    by the number of effective groups.

    Args:
        weights: (N,) or None.  counts: whether they are frequencies.  groups: (N,) or None.
    """
    if weights is None or counts or groups is not None:
        return ""
    n, n_eff, heaviest = np.count_nonzero(weights), effective_rows(weights), float(weights.max() / weights.sum())
    if heaviest * heaviest * n_eff <= HEAVY or n_eff >= UNEVEN * n:
        return ""
    return (
        f"one row has {percent(heaviest)} of the weight, and {n:,} rows count as {n_eff:.1f} equal ones, too few to "
        "vouch for rows that were not drawn: trim the largest weights, or draw more of the rows that have them"
    )


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The uncertainty of an estimate; fields as in `Estimate`."""

    low: float | None = None
    high: float | None = None
    level: float | None = None
    sided: Literal["two", "lower", "upper", "each"] = "two"
    how: str = ""
    reason: str = ""
    se: float | None = None
    null: float | None = None
    null_high: float | None = None
    n: int | None = None
    detail: Mapping[str, Cell] = field(default_factory=dict)


class Statistic:
    """A number that knows its uncertainty, as a metric returns it. Costly parts are computed when they are read."""

    @property
    def value(self) -> float:
        """The number; nan where it is not defined."""
        raise NotImplementedError

    def interval(self, level: float) -> Interval:
        """Return the interval, one-sided bounds at `level` each, or the reason why there is none."""
        raise NotImplementedError

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True, eq=False)
class Sample(Memoized):
    """Rows that metrics are functions of: their columns, weights and, where known, scores.

    Attributes:
        columns: numbers of each row, from the blocked pass over the scores.
        weights: (N,) float64, or None for equal weights.
        counts: whether weights are frequencies.
        predictions: the scores, for metrics that need to read them again.
        seed: of simulations.
    """

    columns: Columns
    weights: Floats | None = None
    counts: bool = False
    predictions: Predictions | None = None
    seed: int = 0

    @classmethod
    def of(cls, columns: Columns, predictions: Predictions | None = None, seed: int = 0) -> Sample:
        """Make the sample of some columns, with their own weights."""
        return cls(columns, columns.weights, columns.weight_kind == "count", predictions, seed)

    @property
    def n(self) -> int:
        return self.columns.condensed or self.columns.n

    @cached_property
    def few_carry(self) -> str:
        """Why no gate may be judged on rows with these weights, or ""."""
        return few_carry(self.weights, self.counts, self.columns.groups)

    @cached_property
    def top(self) -> BinaryOutcomes:
        c = self.columns
        if not c.has("confidence"):  # of metrics that read outcomes alone; what is asked of it are weights and totals
            return self.outcomes(np.empty(0), np.empty(0), c.correct)
        return self.outcomes(c.confidence, c.rest, c.correct)

    @cached_property
    def positive(self) -> BinaryOutcomes:
        c = self.columns
        return self.outcomes(c.positive, np.where(c.predicted == 1, c.rest, c.confidence), c.labels == 1)

    def outcomes(self, p: Floats, complement: Floats, hit: npt.NDArray[np.bool_]) -> BinaryOutcomes:
        """Make the outcomes of a probability p of each row; `complement` is 1 - p."""
        c = self.columns
        return BinaryOutcomes(
            p, complement, hit, self.weights, self.counts, c.groups, seed=self.seed, precision=c.precision
        )

    @cached_property
    def acyclic(self) -> Sample:
        """A copy that shares the outcomes, for memoized results to refer to.

        With a reference to this sample itself they would form a cycle, and the memory of all rows would be freed only
        when the garbage collector runs, several measurements later.
        """
        copy, c = replace(self), self.columns
        views = ("top", "positive") if c.k == 2 and c.has("confidence") else ("top",)
        vars(copy).update({name: getattr(self, name) for name in views})
        return copy

    def view(self, of: Of = "auto") -> BinaryOutcomes:
        """Return the outcomes to measure: here alone `auto` becomes the event or the top label."""
        return self.positive if of == "positive" or (of == "auto" and self.columns.k == 2) else self.top


def choose(specs: Iterable[str], k: int, top_only: TopOnly = False) -> list[Choice[MetricTraits]]:
    """Resolve specs to choices, each once.

    `all` stands for the whole registry, `default` for the default set and `few` for what a screen shows of it. Each
    choice has the shortest spec: `of=positive` is left out for two classes, `of=top` for more.

    Args:
        specs: metric specs, or names of sets.
        k: number of classes.  top_only: the predicted class alone has a probability, as in `Predictions`.

    Raises:
        UsageError: unknown metric or option, `of=positive` where there are not two classes, or what needs the
            probabilities of every class where one alone is known.
    """
    chosen: dict[str, Choice[MetricTraits]] = {}
    for spec in specs:
        usual = [*DEFAULT, *(OF_EVENT if k == 2 and not top_only else ())]
        group = spec.strip().lower()
        sets = {"default": usual, "few": [name for name in usual if traits(name).first_screen]}
        names = [*METRICS.entries] if group == "all" else sets.get(group)  # `entries` imports every metric
        for wanted in [spec] if names is None else known(names, top_only, k):
            choice = _resolved(METRICS.choose(wanted), k)
            if top_only == "outcomes" and choice.traits.reads:
                raise UsageError(f"{choice.name} {OUTCOMES[0]}", OUTCOMES[1])
            if top_only and _of_every_class(choice.name):
                problem = f"{choice.name} needs the probabilities of every class, not the confidence alone"
                fix = f"use {choice.traits.of_top or 'ece'}, or save the scores of every class"
                raise UsageError(problem, fix)
            chosen.setdefault(choice.spec, choice)
    return list(chosen.values())


def known(names: Iterable[str], top_only: TopOnly, k: int = 2) -> list[str]:
    """Leave out metrics that cannot be measured; of confidences alone, replace them where another stands for them."""
    here = [name for name in names if k == 2 or not traits(name).two_classes]
    if not top_only:
        return here
    replaced = (name if name in SETS else traits(name).of_top or name for name in here)
    names = list(dict.fromkeys(name for name in replaced if name in SETS or not _of_every_class(name)))
    return [name for name in names if name in SETS or not traits(name).reads] if top_only == "outcomes" else names


NO_TRAITS = MetricTraits(values=ANY)


def traits(spec: str) -> MetricTraits:
    """Return the traits of a metric, by its name or a spec; `NO_TRAITS`, which say nothing, for what is no metric."""
    entry = METRICS.entry(spec.partition(":")[0])
    return NO_TRAITS if entry is None else entry.traits


def _of_every_class(name: str) -> bool:
    """Return whether a metric needs the probabilities of every class."""
    has = traits(name)
    return bool(set(has.reads) - {*CONFIDENCE} or has.class_bins or has.needs_scores or has.two_classes)


def _resolved(choice: Choice[MetricTraits], k: int) -> Choice[MetricTraits]:
    """Shorten the choice to `of=auto` where that means the same for k classes."""
    view = choice.options.get("of")
    if (view == "positive" or choice.traits.two_classes) and k != 2:
        fix = f"use {choice.traits.of_top or choice.name}"
        raise UsageError(f"{choice.spec} is for two classes, these are {k}", fix)
    if view == ("positive" if k == 2 else "top"):
        return Choice(choice.entry, {**choice.options, "of": "auto"})
    return choice


METRICS.shortest = _resolved


def reads_scores(choice: Choice[MetricTraits]) -> bool:
    """Return whether a metric of some rows needs their scores: it sums over classes, or reads the scores again."""
    return choice.traits.class_bins is not None or choice.traits.needs_scores


def needed_class_bins(choices: Sequence[Choice[MetricTraits]], k: int) -> list[ClassBins]:
    """Return the class tables that these metrics read."""
    reading = [(choice.traits.class_bins, choice.options) for choice in choices]
    return list(dict.fromkeys(class_bins(k, **options) for class_bins, options in reading if class_bins is not None))


@one_thread()
def estimates(
    sample: Sample, choices: Sequence[Choice[MetricTraits]], *, level: float = 0.95, where: Scope = WHOLE
) -> list[Estimate]:
    """Measure the chosen metrics on a sample; those that read scores have no value where there are none."""
    within(level, Level, "level ")
    if sample.top.total <= 0:
        raise UsageError("every weight is 0", "pass weights of which one is positive")
    each = extensions.with_progress(choices, lambda choice: f"{choice.spec} {where}")
    return [_estimate(sample, choice, level, where) for choice in each]


def _estimate(sample: Sample, choice: Choice[MetricTraits], level: float, where: Scope) -> Estimate:
    has = choice.traits
    common: dict[str, Any] = {"name": choice.spec, "unit": has.unit, "better": has.better, **where.fields}
    if has.needs_scores and sample.predictions is None:
        return Estimate(**common, value=None, n=sample.n, reason="needs the scores, of which only columns were kept")
    statistic: Statistic = sample.memoized(_statistic, choice)
    value, fields = statistic.value, vars(statistic.interval(level)).copy()
    if not math.isfinite(value) and not fields["reason"]:
        fields["reason"] = "not defined on these rows" if math.isnan(value) else "a label has probability 0"
    if fields["n"] is None:
        fields["n"] = sample.n
    if sample.few_carry and (fields["low"], fields["high"]) != (None, None):
        fields["detail"] = {NO_GATE: sample.few_carry, **fields["detail"]}
    return Estimate(**common, value=value, **fields)


def _statistic(sample: Sample, choice: Choice[MetricTraits]) -> Statistic:
    statistic: Statistic = choice(sample.acyclic)
    return statistic


def columns_of(
    predictions: Predictions,
    choices: Sequence[Choice[MetricTraits]],
    threads: int | None = 1,
    progress: Progress | None = None,
) -> Columns:
    """Run the blocked pass with the class tables and columns that these metrics need."""
    tables = needed_class_bins(choices, predictions.k)
    return columns(predictions, class_bins=tables, names=names_read(choices), threads=threads, progress=progress)


def names_read(choices: Sequence[Choice[MetricTraits]], confidence: bool = True) -> Sequence[ColumnName]:
    """Return the columns that these metrics read, with the `confidence` even if they read outcomes alone.

    They are the first 2, 5 or 6 of `NAMES`, as the pass computes them, or none.
    """
    read = {name for choice in choices for name in choice.traits.reads}
    sets = (CONFIDENCE, NAMES[:-1], NAMES) if confidence or read else ((),)
    return next(names for names in sets if read <= {*names})


# Which numbers of a result a screen shows first, by the traits of their metrics.


def decides(name: str, problem: Problem) -> bool:
    """Return whether a number is among the few that a screen shows first, by the trait `first_screen` of its metric.

    Args:
        name: spec of the number; one that is no metric (a fitted parameter) is always shown.
        problem: what its result is about.
    """
    if name.partition(":")[0] not in METRICS:
        return True
    match traits(name).first_screen:
        case "two classes":
            return problem.classes == 2
        case "confidence":
            return problem.kind == "confidence"
        case shown:
            return bool(shown)


def tiered(estimates: Sequence[Estimate], few: Callable[[Estimate], bool]) -> list[Estimate]:
    """Set the tiers of estimates: `few` where the function says so, else `asked`."""
    tiers: list[Tier] = ["few" if few(e) else "asked" for e in estimates]
    return [
        e if e.tier == tier else dataclasses.replace(e, tier=tier) for e, tier in zip(estimates, tiers, strict=True)
    ]


def measured(estimates: Sequence[Estimate], problem: Problem) -> list[Estimate]:
    """Set the tiers of measured metrics; of slices only metrics that say so are shown first."""
    few = [e for e in estimates if decides(e.name, problem)]
    whole = any(not e.scope for e in few)
    shown = {id(e) for e in few if not whole or not e.scope or traits(e.name).first_screen == "slices too"}
    return tiered(estimates, lambda e: id(e) in shown)
