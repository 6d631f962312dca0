"""The shelf of metrics: the samples that they are functions of, how they are chosen, measured and shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from calibcli.core import extensions
from calibcli.core.errors import UsageError
from calibcli.core.figure_data import Tier
from calibcli.core.options import Edges, Level, Range, within
from calibcli.core.result import Estimate
from calibcli.core.shelves import Choice, Shelf
from calibcli.core.statistics import DOUBLE, effective_rows, odds, one_thread, parts
from calibcli.metrics.reliability import Bins, Equal, Ranked, mass_table, residual, width_table
from calibcli.scores.columns import ClassBins, Columns, columns
from calibcli.scores.histogram import LEAN, NAMES
from calibcli.scores.predictions import Floats, Ints, Predictions, Progress

if TYPE_CHECKING:
    from calibcli.metrics.intervals import Statistic

# The shelf, the sets of metrics that have names, and the ranges of their values.

T = TypeVar("T")
Rowwise = Callable[[slice], npt.NDArray[Any]]
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

METRICS = Shelf(
    "metric",
    package="calibcli.metrics",
    first=DEFAULT,
    usual=("means", "binned", "temperature_gain", "smooth_ece"),
    flag="-m",
)
SETS = ("default", "few")
"""Names of sets of metrics; `few` are those of the default set that have the trait `first_screen`."""
UNIT, SIGNED, NATS, ANY, BRIER = Range(0, 1), Range(-1, 1), Range(0), Range(), Range(0, 2)
"""Ranges of metrics, for their trait `values`."""


class Memoized:
    """An object that keeps results computed from it, as long as it lives."""

    def once(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return `function(self, *arguments)`, computed once."""
        kept: dict[Any, T] = self.__dict__.setdefault("_kept", {})
        key = (function, *arguments)
        if key not in kept:
            kept[key] = function(self, *arguments)
        return kept[key]

    def know(self, function: Callable[..., T], result: T) -> None:
        """Let `once` return this result of a function, which was computed in another way."""
        self.__dict__.setdefault("_kept", {})[(function,)] = result


@dataclass(frozen=True, eq=False)
class BinaryOutcomes(Memoized):
    """A probability for each row and whether it came true: of the predicted class, or of the event of two classes.

    Attributes:
        p: (N,).  complement: (N,) 1 - p with all its digits.  hit: (N,) bool.
        weights: (N,) or None.  counts: whether weights are frequencies.  groups: (N,) or None.
        values_only: whether what only intervals need is left out; the variances of tables are then 0.
        seed: of simulations.  precision: relative, of p.
    """

    p: Floats
    complement: Floats
    hit: npt.NDArray[np.bool_]
    weights: Floats | None
    counts: bool
    groups: Ints | None
    values_only: bool = False
    seed: int = 0
    precision: float = DOUBLE

    @property
    def n(self) -> int:
        return len(self.hit)

    @cached_property
    def total(self) -> float:
        return float(self.n if self.weights is None else self.weights.sum())

    @property
    def effective(self) -> float:
        """(Σw)²/Σw², or the sum of counts."""
        if self.weights is None or self.counts:
            return self.total
        return effective_rows(self.weights)

    @cached_property
    def steps(self) -> tuple[float, float]:
        """How far one row that was drawn, and one that was not, may move a sum of gaps.

        They are `seen` and `unseen` of `core.statistics.unseen_reach`. For gaps whose signs are not known the first is
        Σ |c|³ / Σ c², c = w (p - y) / W, and at least Σ w² / W², as small gaps say little about large ones. A row that
        was not drawn may have the largest weight, and the wrong label.
        """
        if self.weights is None or self.counts:
            return 1 / self.total, 1 / self.total
        c = np.abs(self.residual * self.shares)
        square = float(c @ c)
        drawn = float(c**2 @ c) / square if square > 0 else 0.0
        return max(drawn, 1 / self.effective), float(self.weights.max()) / self.total

    @cached_property
    def residual(self) -> Floats:
        """p - y."""
        return residual(self.p, self.complement, self.hit)

    @cached_property
    def ranked(self) -> Ranked:
        order = None if self.weights is None else self.order
        return Ranked.of(self.p, self.complement, self.hit, self.weights, order)

    @cached_property
    def order(self) -> Ints:
        """Rows by odds, ties in any order."""
        return np.argsort(odds(self.p, self.complement))

    @cached_property
    def stable_order(self) -> Ints:
        """Rows by odds, ties in row order."""
        return np.argsort(odds(self.p, self.complement), kind="stable")

    @cached_property
    def shares(self) -> Floats:
        """(N,) w / W."""
        return np.broadcast_to(1 / self.total if self.weights is None else self.weights / self.total, (self.n,))

    def sums(
        self,
        index: Rowwise | npt.NDArray[Any],
        bins: int,
        values: Rowwise | npt.NDArray[Any] | None = None,
        power: int = 1,
    ) -> Floats:
        """Sum share^power · values in each bin (values None: 1); counts enter once whatever the power.

        `index` and `values` may be functions of a slice of the rows, which take no memory for all rows.
        """
        total = np.zeros(bins)
        for part in parts(self.n):
            w = None if self.weights is None else self.weights[part]
            if w is not None and power > 1 and not self.counts:
                w = w**power
            v = values(part) if callable(values) else None if values is None else values[part]
            both = v if w is None else w if v is None else w * v
            total += np.bincount(index(part) if callable(index) else index[part], both, bins)
        return total / self.total**power

    def mean(self, values: Floats, times: Floats) -> float:
        """Return Σ share · values · times."""
        return float(values @ times) / self.n if self.weights is None else float((self.shares * values) @ times)

    def width_bins(self, bins: int, edges: Edges) -> Bins:
        """Return the table of equal-width bins of [0, 1]."""
        return self.once(width_table, bins, edges)

    def mass_bins(self, bins: int, method: Equal) -> Bins:
        """Return the table of bins of equal weight; see `adaece` for the methods."""
        return self.once(mass_table, bins, method)

    def cuts(self, bins: int) -> Floats:
        """Return (bins + 1,) positions where equal-mass bins begin, in weight along `stable_order`.

        Rows and counts are not divided: where bins are uneven, the first are larger by 1.
        """
        return self.cut(np.arange(bins + 1), bins)

    def cut(self, which: Ints, bins: int) -> Floats:
        """Return some of `cuts`, by number."""
        if self.weights is None or self.counts:
            size, extra = divmod(round(self.total), bins)
            return np.asarray(which * size + np.minimum(which, extra), np.float64)
        return np.asarray(self.total * which / bins)


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
    def top(self) -> BinaryOutcomes:
        return self.outcomes(self.columns.confidence, self.columns.rest, self.columns.correct)

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
    def own(self) -> Sample:
        """A copy that shares the outcomes, for memoized results to refer to.

        With a reference to this sample itself they would form a cycle, and the memory of all rows would be freed only
        when the garbage collector runs, several measurements later.
        """
        copy, c = replace(self), self.columns
        views = ("top", "positive") if c.k == 2 and len(c.confidence) else ("top",)
        vars(copy).update({name: getattr(self, name) for name in views})
        return copy

    def view(self, of: Of = "auto") -> BinaryOutcomes:
        """Return the outcomes to measure: here alone `auto` becomes the event or the top label."""
        return self.positive if of == "positive" or (of == "auto" and self.columns.k == 2) else self.top


def choose(specs: Iterable[str], k: int, top_only: bool = False) -> list[Choice]:
    """Resolve specs to choices, each once.

    `all` stands for the whole shelf, `default` for the default set and `few` for what a screen shows of it. Each choice
    has the shortest spec: `of=positive` is left out for two classes, `of=top` for more.

    Args:
        specs: metric specs, or names of sets.
        k: number of classes.  top_only: the predicted class alone has a probability, as in `Predictions`.

    Raises:
        UsageError: unknown metric or option, `of=positive` where there are not two classes, or what needs the
            probabilities of every class where one alone is known.
    """
    chosen: dict[str, Choice] = {}
    for spec in specs:
        usual = [*DEFAULT, *(OF_EVENT if k == 2 and not top_only else ())]
        group = spec.strip().lower()
        sets = {"default": usual, "few": [name for name in usual if "first_screen" in traits(name)]}
        names = [*METRICS.entries] if group == "all" else sets.get(group)  # `entries` imports every metric
        for one in [spec] if names is None else known(names, top_only, k):
            choice = _resolved(METRICS.choose(one), k)
            if top_only and _of_every_class(choice.name):
                problem = f"{choice.name} needs the probabilities of every class, not the confidence alone"
                fix = f"use {choice.traits.get('of_top', 'ece')}, or save the scores of every class"
                raise UsageError(problem, fix)
            chosen.setdefault(choice.spec, choice)
    return list(chosen.values())


def known(names: Iterable[str], top_only: bool, k: int = 2) -> list[str]:
    """Leave out metrics that cannot be measured; of confidences alone, replace them where another stands for them."""
    here = [name for name in names if k == 2 or not traits(name).get("two_classes")]
    if not top_only:
        return here
    replaced = (name if name in SETS else traits(name).get("of_top", name) for name in here)
    return list(dict.fromkeys(name for name in replaced if name in SETS or not _of_every_class(name)))


def traits(spec: str) -> Mapping[str, Any]:
    """Return the traits of a metric, by its name or a spec; an empty mapping for what is no metric.

    Of its value: `values`, `unit`, `better` (lower, higher, zero or neither), and `narrowed`, its range for k classes
    (None: not known) and its options.
    Of its names: `label` in sentences, `called` by other tools, `of_top` of the metric that stands for it where the
    probability of the predicted class is all that is known.
    Of what it reads: `distribution`, `class_bins`, `needs_scores`, `two_classes`, `entropy`; `binned` and `lean`, one
    probability of each row and its outcome alone; `binary`, the outcome alone; `view`, the probability that it is of
    where that is no option.
    Of merging: `condensed`, see `histogram_error`.
    Of gates and comparisons: `kept`, its column among the rows that a baseline keeps; `binary`, rows are right or
    wrong; `by_label`, rows are -log of a probability of theirs; `refitted`, rows depend on a fit to others;
    `table_bounds`, it has the bounds of `binned_bounds`; `compared=False`, differences of it say nothing; `proper`,
    no other probabilities than the true ones are better.
    Of warnings: `raised`, chance makes it too large; `two_sided`, also where the model is calibrated; `largest_gap`,
    it is that of one bin; `debiased`, what estimates its square without bias.  `parts`: shown with those of the Brier
    score.
    Of sentences: `error` and `named`, its place among the calibration errors and differences to speak of.
    Of lists: `first_screen`, when a screen shows it (always, "two classes" or "confidence"); `papers`, only papers use
    it.
    """
    entry = METRICS.entry(spec.partition(":")[0])
    return {} if entry is None else entry.traits


def _of_every_class(name: str) -> bool:
    """Return whether a metric needs the probabilities of every class."""
    return bool(traits(name).keys() & {"distribution", "class_bins", "needs_scores", "two_classes"})


def _resolved(choice: Choice, k: int) -> Choice:
    """Shorten the choice to `of=auto` where that means the same for k classes."""
    of = choice.options.get("of")
    if (of == "positive" or choice.traits.get("two_classes")) and k != 2:
        fix = f"use {choice.traits.get('of_top', choice.name)}"
        raise UsageError(f"{choice.spec} is for two classes, these are {k}", fix)
    if of == ("positive" if k == 2 else "top"):
        return Choice(choice.entry, {**choice.options, "of": "auto"})
    return choice


METRICS.shortest = _resolved


def reads_scores(choice: Choice) -> bool:
    """Return whether a metric of some rows needs their scores: it sums over classes, or reads the scores again."""
    return "class_bins" in choice.traits or bool(choice.traits.get("needs_scores"))


def needed_class_bins(choices: Sequence[Choice], k: int) -> list[ClassBins]:
    """Return the class tables that these metrics read."""
    reading = [choice for choice in choices if "class_bins" in choice.traits]
    return list(dict.fromkeys(choice.traits["class_bins"](k, **choice.options) for choice in reading))


@one_thread()
def estimates(sample: Sample, choices: Sequence[Choice], *, level: float = 0.95, scope: str = "") -> list[Estimate]:
    """Measure the chosen metrics on a sample; those that read scores have no value where there are none."""
    within(level, Level, "level ")
    if sample.top.total <= 0:
        raise UsageError("every weight is 0", "pass weights of which one is positive")
    each = extensions.steps(choices, lambda choice: f"{choice.spec} {scope}")
    return [_estimate(sample, choice, level, scope) for choice in each]


def _estimate(sample: Sample, choice: Choice, level: float, scope: str) -> Estimate:
    has = choice.traits
    common = {"name": choice.spec, "scope": scope, "unit": has.get("unit", ""), "better": has.get("better", "")}
    if has.get("needs_scores") and sample.predictions is None:
        return Estimate(**common, value=None, n=sample.n, reason="needs the scores, of which only columns were kept")
    statistic: Statistic = sample.once(_statistic, choice)
    value, fields = statistic.value, vars(statistic.interval(level)).copy()
    if not math.isfinite(value) and not fields["reason"]:
        fields["reason"] = "not defined on these rows" if math.isnan(value) else "a label has probability 0"
    if fields["n"] is None:
        fields["n"] = sample.n
    return Estimate(**common, value=value, **fields)


def _statistic(sample: Sample, choice: Choice) -> Statistic:
    statistic: Statistic = choice(sample.own)
    return statistic


def columns_of(
    predictions: Predictions, choices: Sequence[Choice], threads: int | None = 1, progress: Progress | None = None
) -> Columns:
    """Run the blocked pass with the class tables and columns that these metrics need."""
    tables = needed_class_bins(choices, predictions.k)
    names = names_read(choices) or LEAN
    return columns(predictions, class_bins=tables, names=names, threads=threads, progress=progress)


def names_read(choices: Sequence[Choice]) -> Sequence[str]:
    """Return the columns that these metrics read; some read a probability and its outcome alone."""
    if all(choice.traits.get("binary") for choice in choices):
        return ()
    lean = (choice.traits.keys() & {"binned", "lean", "binary"} for choice in choices)
    if all(lean) and not any("class_bins" in choice.traits for choice in choices):
        return LEAN
    return NAMES if any(choice.traits.get("entropy") for choice in choices) else NAMES[:-1]


# Which numbers of a result a screen shows first, by the traits of their metrics.


def decides(name: str, facts: Any) -> bool:
    """Return whether a number is among the few that a screen shows first, by the trait `first_screen` of its metric.

    Args:
        name: spec of the number; one that is no metric (a fitted parameter) is always shown.
        facts: of its result, of which the number of `classes` and `kind` (confidences or not) are read.
    """
    if name.partition(":")[0] not in METRICS:
        return True
    holds = {"two classes": facts.get("classes") == 2, "confidence": facts.get("kind") == "confidence", "always": True}
    return bool(holds.get(traits(name).get("first_screen", "")))


def tiered(estimates: Sequence[Estimate], few: Callable[[Estimate], bool]) -> list[Estimate]:
    """Set the tiers of estimates: `few` where the function says so, else `asked`."""
    tiers: list[Tier] = ["few" if few(e) else "asked" for e in estimates]
    return [
        e if e.tier == tier else dataclasses.replace(e, tier=tier) for e, tier in zip(estimates, tiers, strict=True)
    ]


def measured(estimates: Sequence[Estimate], facts: Any) -> list[Estimate]:
    """Set the tiers of measured metrics; of slices only those with the trait `of_parts` are shown first."""
    few = [e for e in estimates if decides(e.name, facts)]
    whole = any(not e.scope for e in few)
    shown = {id(e) for e in few if not whole or not e.scope or "of_parts" in traits(e.name)}
    return tiered(estimates, lambda e: id(e) in shown)
