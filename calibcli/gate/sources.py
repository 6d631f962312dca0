"""Numbers that gates judge, with their bounds: metrics of recorded outputs, or estimates of an earlier result."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, UsageError, did_you_mean, printable
from calibcli.core.figure_data import Plot
from calibcli.core.number_format import count_text
from calibcli.core.registries import Choice, alike
from calibcli.core.result import Estimate, Result
from calibcli.core.scope import CHANGE, MEANS, Scope
from calibcli.gate import pins
from calibcli.gate._left_out import error_bounds, means, unlimited
from calibcli.gate.config import FORMS, Condition, Config, Gate, parsed, rows_of
from calibcli.gate.judging import LimitRule, SupportedClaim, at_level, claim
from calibcli.gate.plan import EcePopulation, cutoff_rows, to_decide
from calibcli.metrics import METRICS, Sample, choose, columns_of, estimates
from calibcli.metrics.binned_bounds import Bounds, table_bounds
from calibcli.metrics.diagrams import reliability
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.registry import MetricTraits, names_read, reads_scores, traits
from calibcli.metrics.report import class_names
from calibcli.scores import recorded_outputs
from calibcli.scores.columns import Columns, GatheredParts, columns, rows_by
from calibcli.scores.histogram import NAMES, ColumnName
from calibcli.scores.predictions import Ints, LeftOut, Predictions

# Gates on recorded outputs: their metrics are computed here, with the bounds that PASS and FAIL need.

SCALED = ("lambda_max", "trace", "fisher_rao", "adaptive_lambda", "adaptive_trace")  # also after a temperature
OF_G = ("trace_ggn", "lambda_max_ggn", "top_ggn")
CURVATURE = ("lambda_min", "top", "density", "grad_norm", *OF_G, *SCALED, *map("{} after".format, SCALED))
FITTED = ("temperature", "gamma")
BY_CLASS = "class"


def otherwise(config: Config, read: Mapping[str, Any]) -> str:
    """Say that an input is read otherwise than the configuration pins, and in what; "" where it is not."""
    if not (differences := pins.differences(config.pins, read)):
        return ""
    where = ", ".join(config.sources) or "the configuration"
    return f"the input is read otherwise than {where} pins ({'; '.join(differences)})"


def _refusal(source: Source) -> str:
    """Say why no rule can be judged on an input that is read otherwise than is pinned, and what helps; else ""."""
    read = recorded_reading(source)
    problem = "" if read is None else otherwise(source.config, read)
    accept = f"calib init {source.config.eval or 'FILE'} --update"
    return f"{problem}: mend the export, or accept it: {accept}" if problem else ""


def recorded_reading(source: Source | Result) -> Mapping[str, Any] | None:
    """Return what an input was taken for; None of arrays, and of results that do not say."""
    if isinstance(source, RecordedOutputs):
        return None if source.predictions.record.format in ("", "arrays") else source.predictions.described
    result = source if isinstance(source, Result) else source.result
    return next((entry["read"] for entry in result.inputs_read), None)


@dataclass(eq=False)
class RecordedOutputs:
    """Recorded outputs as the input of gates. Methods return a str that says why, where there is no answer."""

    predictions: Predictions
    config: Config
    rows_of: dict[str, dict[str, Ints]] = field(default_factory=dict)

    @cached_property
    def whole(self) -> Part:
        """All rows."""
        table = columns(self.predictions, class_bins=(), names=self._names)
        rows = self.predictions
        return Part(table, lambda: rows, self.config.seed)  # not `self`: without a cycle the rows are freed at once

    @property
    def _names(self) -> Sequence[ColumnName]:
        """Return the columns that the gates read."""
        gates = self.config.gates
        if not gates or any(gate.baseline for gate in gates):
            return NAMES
        try:
            return names_read([self.judged(gate) for gate in gates])
        except UsageError:  # `judged` raises it again where that gate is judged
            return NAMES

    def diagram(self) -> list[Plot]:
        """Draw the reliability of the event of two classes, or of the top label, in the bins of the gates."""
        if self.predictions.top_only == "outcomes":
            return []
        view = Sample.of(self.whole.columns, None, self.config.seed).view()
        bins = view.width_bins(self.config.bins, self.config.edges)
        return reliability(view, bins, event=self.predictions.event)

    @property
    def files(self) -> list[dict[str, Any]]:
        """Path and sha256 of each file that was read."""
        return recorded_outputs.provenance(self.predictions)

    @property
    def refusal(self) -> str:
        """Say why no rule can be judged on these rows, or "": samples that come twice make every bound too narrow.

        Counts as weights, and groups, say which rows belong together, so that the bounds allow for it.
        """
        p = self.predictions
        if other := _refusal(self):
            return other
        repeats = p.record.repeats
        copies = p.record.copies if p.groups is None and p.weight_kind != "count" else 0
        fix = "leave them out, or name what they share with --group" if repeats is None else repeats.fix
        if copies:
            how = "(the same scores to about 4 digits, right or wrong together)"
            problem = f"{copies:,} of {p.n:,} rows are copies of others {how}"
        elif repeats is not None:
            problem = repeats.said(p.n)
        else:
            return ""
        return f"{problem}, so the bounds would be too narrow: {fix}"

    @property
    def k(self) -> int | None:
        """Number of classes; None where it is not known, as for confidences."""
        return None if self.predictions.top_only else self.predictions.k

    @property
    def design(self) -> tuple[Any, bool, Any]:
        """Weights, whether they are counts, and groups of the rows."""
        p = self.predictions
        return p.weights, p.weight_kind == "count", p.groups

    def judged(self, gate: Gate) -> Choice[MetricTraits]:
        """Return the metric of a gate with its options.

        Raises:
            UsageError: no such metric, or one that is not measured on scores.
        """
        if gate.name in (*CURVATURE, *FITTED):
            fix = "pass the result.json of the command that measures it"
            raise UsageError(f"{gate.at}{gate.name} is not measured on scores", fix)
        try:
            metric = METRICS.choose(gate.metric, bins=self.config.bins, edges=self.config.edges)
            return choose([metric.spec], self.predictions.k, self.predictions.top_only)[0]
        except UsageError as error:
            raise UsageError(gate.at + error.problem, error.fix) from None

    def better(self, gate: Gate) -> str:
        """Return the direction of the gate's metric: `lower`, `higher`, `zero` or ""."""
        if gate.scope:
            raise UsageError(f"{gate.at}scope = '{gate.scope}' chooses among the numbers of a result", "leave it out")
        return self.judged(gate).traits.better

    def slices(self, gate: Gate) -> Mapping[str, Part] | str:
        """Return the parts that the gate judges, by name; {"": all rows} without slices."""
        if not gate.by:
            return {"": self.whole}
        if gate.by not in self.rows_of:
            if gate.by in self.predictions.slices:
                column = np.asarray(self.predictions.slices[gate.by]).astype(str, copy=False)
            elif gate.by == BY_CLASS and not self.predictions.top_only:
                column = self.predicted
            elif conditions := parsed(gate.by):
                columns = dict(self.predictions.slices)
                if not self.predictions.top_only and any(c.column == BY_CLASS for c in conditions):
                    columns.setdefault(BY_CLASS, self.predicted)
                selected = rows_of(conditions, columns)
                if isinstance(selected, str):
                    return f"no column '{selected}' in {self.predictions.source}{FORMS if '!' in selected else ''}"
                self.rows_of[gate.by] = {"": np.flatnonzero(selected)}
                return self.slices(gate)
            else:
                hint = FORMS if re.search("[<>=!]", gate.by) else ""
                return f"no column '{gate.by}' in {self.predictions.source}{hint}"
            self.rows_of[gate.by] = rows_by(column)
        rows_by_name, seed = self.rows_of[gate.by], self.config.seed
        gathered = GatheredParts(self.predictions, [*rows_by_name.values()])
        return {
            name: Part(self.whole.columns, partial(gathered.take, i), seed, rows)
            for i, (name, rows) in enumerate(rows_by_name.items())
        }

    @cached_property
    def _beside(self) -> RecordedOutputs | None:
        """The rows with scores that were left out."""
        left = self.predictions.left
        return None if left is None or left.rows is None else RecordedOutputs(left.rows, self.config)

    def left(self, gate: Gate, name: str) -> LeftOut | None:
        """Return what was left out of a part, and what may belong to it."""
        left = self.predictions.left
        if left is None or not gate.by:
            return left
        rows, causes, inside = None, left.causes[:0], np.ones(left.lost, bool)
        parts = {} if self._beside is None else self._beside.slices(gate)
        if left.rows is not None and not isinstance(parts, str) and name in parts:
            index = np.asarray(parts[name].index)
            rows, causes = left.rows.take(index), left.causes[index]
        if gate.by in left.slices:
            inside = np.asarray(left.slices[gate.by]).astype(str, copy=False) == name
        elif (conditions := parsed(gate.by)) and not isinstance(chosen := rows_of(conditions, left.slices), str):
            inside = chosen
        weights = None if left.weights is None else left.weights[inside]
        groups = None if left.groups is None else left.groups[inside]
        return LeftOut(rows=rows, causes=causes, lost=int(inside.sum()), weights=weights, groups=groups)

    def left_alone(self, gate: Gate) -> list[str]:
        """Return the slices of which every row was left out."""
        left, parts = self.predictions.left, self.slices(gate)
        others = {} if self._beside is None else self._beside.slices(gate)
        named = {*others} | {str(name) for name in (left.slices.get(gate.by, ()) if left is not None else ())}
        return sorted(named - {*parts}) if gate.by and not isinstance(parts, str) else []

    def cases(
        self, rule: LimitRule, part: Part, left: LeftOut, alpha: float, family: int
    ) -> list[SupportedClaim] | str:
        """Return the claims of a part with what was left out at its smallest and its largest; or why not."""
        choice = self.judged(rule.gate)
        with closing(part):
            sample = part.sample(choice)
            if reason := unlimited(choice, sample, left):
                return reason
            if not choice.traits.table_bounds:
                error = rule.error(alpha, family)
                return [_mean_claim(choice, mean, alpha, error) for mean in means(choice, sample, left)]
            bounds = error_bounds(choice, sample, left, alpha=alpha, family=family, method=self.config.bounds)
            return [
                SupportedClaim(estimate=ece_estimate(b, choice.spec), low=b.lower, high=b.upper, error=alpha / family)
                for b in bounds
            ]

    def unjudged(self) -> list[str]:
        """Say which rows are in none of the rules on conditions, as they have no value, or lie between the rules."""
        texts = [by for by in dict.fromkeys(gate.by for gate in self.config.gates) if by in self.rows_of and parsed(by)]
        texts = [by for by in texts if by not in self.predictions.slices]
        if not texts:
            return []
        left = np.ones(self.predictions.n, bool)
        for by in texts:
            left[self.rows_of[by][""]] = False
        notes = []
        for name in dict.fromkeys(condition.column for by in texts for condition in parsed(by)):
            none = Condition(name, "=", "")
            if name in self.predictions.slices and (without := left & none.holds(self.predictions.slices[name])).any():
                rows = f"{count_text(int(without.sum()), 'row')} without a value of '{name}'"
                notes.append(f"{rows} in none of the rules on it: add --by '{none}'")
                left &= ~without
        if len(texts) > 1 and left.any():
            notes.append(f"{count_text(int(left.sum()), 'row')} in none of the rules on {', '.join(map(repr, texts))}")
        return notes

    @property
    def predicted(self) -> Any:
        """(N,) names of the predicted classes."""
        return np.array(class_names(self.predictions))[self.whole.columns.predicted]

    def where(self, gate: Gate, name: str, part: Part) -> Scope:
        """Return what a part is: a slice by its name, which may be empty, or what conditions choose."""
        if gate.by in self.predictions.slices or gate.by == BY_CLASS:
            return Scope(parts={gate.by: name})
        return Scope(subject=gate.by)

    def rows(self, part: Part, gate: Gate) -> int | None:
        """Return the number of rows of a part."""
        return part.n

    def claim(self, rule: LimitRule, part: Part, alpha: float, family: int) -> SupportedClaim | str:
        """Measure the metric of a part, with the bounds that its verdict needs; `family` claims are made together."""
        choice = self.judged(rule.gate)
        with closing(part):
            if choice.traits.table_bounds:
                return self._ece(choice, part, rule.limit, alpha, family)
            error = rule.error(alpha, family)
            near = self._measured(part, choice, alpha)
            if part.columns.groups is not None:
                near = dataclasses.replace(near, detail={**near.detail, "groups": len(np.unique(part.columns.groups))})
            supported = claim(near, alpha, near if error == alpha else self._measured(part, choice, error), error)
            undecided = (supported.low or 0.0) <= rule.limit < (supported.estimate.high or 0.0)
            # the advice takes seconds: of slices, which may be a thousand, and of groups it is that of a mean
            if undecided and choice.traits.simulated and family == 1 and part.columns.groups is None:
                rows = cutoff_rows(choice(part.sample(choice)), rule.limit, alpha=alpha, family=family)
                supported = dataclasses.replace(supported, needed=NEVER if rows is None else rows)
            return supported

    def _measured(self, part: Part, choice: Choice[MetricTraits], error: float) -> Estimate:
        """Measure the metric with bounds that each hold at 1 - error.

        They are a two-sided interval of level 1 - 2 error or two one-sided bounds of level 1 - error, whichever the
        metric has.
        """
        estimate = self._at(part, choice, 1 - 2 * error)
        one_sided = estimate.sided != "two" and estimate.level is not None
        return self._at(part, choice, 1 - error) if one_sided else estimate

    def _at(self, part: Part, choice: Choice[MetricTraits], level: float) -> Estimate:
        key = (choice.spec, level)
        if key not in part.memo:
            [part.memo[key]] = estimates(part.sample(choice), [choice], level=level)
        return part.memo[key]

    def _ece(
        self, choice: Choice[MetricTraits], part: Part, limit: float, alpha: float, family: int
    ) -> SupportedClaim | str:
        bounds = self.bounds(choice, part, alpha, family)
        if reason := bounds.reason or part.sample(choice).few_carry:
            estimate = dataclasses.replace(ece_estimate(bounds, choice.spec), low=None, high=None, reason=reason)
            return SupportedClaim(estimate=estimate, low=None, high=None)
        needed = None
        if bounds.lower <= limit < bounds.upper and part.columns.groups is None:
            ece = choice(part.sample(choice))
            population = EcePopulation.of(ece.view, ece.table)
            rows = to_decide(population, limit, alpha=alpha, family=family, method=bounds.method)
            needed = NEVER if rows is None else max(bounds.n + 1, round(rows * bounds.n / bounds.n_eff))
        estimate, error = ece_estimate(bounds, choice.spec), alpha / family
        return SupportedClaim(estimate=estimate, low=bounds.lower, high=bounds.upper, error=error, needed=needed)

    def bounds(self, choice: Choice[MetricTraits], part: Part, alpha: float, family: int = 1) -> Bounds:
        """Return the ECE of a part with its bounds."""
        ece = choice(part.sample(choice))
        return table_bounds(ece.view, ece.table, alpha=alpha, family=family, method=self.config.bounds)


def _mean_claim(choice: Choice[MetricTraits], mean: MeanOf, alpha: float, error: float) -> SupportedClaim:
    def at(tail: float) -> Estimate:
        fields = vars(mean.interval(1 - 2 * tail)) | {"n": mean.rows.n}
        has = choice.traits
        return Estimate(name=choice.spec, value=mean.value, unit=has.unit, better=has.better, **fields)

    return claim(at(alpha), alpha, at(error), error)


NEVER = 10**12
"""Rows that stand for "no number of rows would decide"."""


@dataclass(eq=False)
class Part:
    """All rows, or those of a slice; the scores of a slice are gathered only when a metric reads them.

    Samples are kept while the claims of one metric are made, and dropped by `close`: the tables and simulated levels of
    a thousand slices would take gigabytes.
    """

    whole: Columns
    scores: Callable[[], Predictions]
    seed: int
    index: Ints | None = None
    memo: dict[tuple[str, float], Estimate] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return self.whole.n if self.index is None else len(self.index)

    @cached_property
    def columns(self) -> Columns:
        return self.whole if self.index is None else self.whole.take(self.index)

    def sample(self, choice: Choice[MetricTraits]) -> Sample:
        """Return the sample that a metric is measured on, without scores where the columns are enough."""
        key = choice.spec if reads_scores(choice) else ""
        if key and key not in self.samples:
            predictions = self.scores()
            self.samples[key] = Sample.of(columns_of(predictions, [choice]), predictions, self.seed)
        elif key not in self.samples:
            self.samples[key] = Sample.of(self.columns, None, self.seed)
        return self.samples[key]

    def close(self) -> None:
        """Free what was computed for a slice; the samples of all rows serve further gates."""
        self.samples = {key: sample for key, sample in self.samples.items() if self.index is None and not key}
        vars(self).pop("columns", None)


def ece_estimate(bounds: Bounds, name: str) -> Estimate:
    """Make the estimate of an ECE with one-sided bounds that every command shows."""
    clustered = f", clustered in {bounds.groups} groups" if bounds.groups else ""
    family = f", the lower one shared by {bounds.family} claims" if bounds.family > 1 else ""
    detail: dict[str, Any] = {}
    if round(bounds.n_eff) != bounds.n:
        detail["n_eff"] = round(bounds.n_eff, 1)
    if bounds.groups:
        detail |= {"groups": bounds.groups, "effective_groups": round(bounds.effective, 1)}
    ends: dict[str, Any] = {"low": bounds.lower, "high": bounds.upper, "level": 1 - 2 * bounds.alpha}
    return Estimate(
        name=name,
        value=bounds.value,
        **({} if bounds.reason else ends),
        sided="each",
        reason=bounds.reason,
        unit="probability",
        better="lower",
        how=f"one-sided {bounds.method} bounds, each {1 - bounds.alpha:.4g}{clustered}{family}",
        n=bounds.n,
        null=bounds.floor,
        null_high=bounds.null_high,
        detail=detail,
    )


# Gates on the numbers of an earlier result: stored intervals are used where calib can have written them.


@dataclass(eq=False)
class Results:
    """A result as the input of gates, with the same methods as `RecordedOutputs`."""

    result: Result
    source: str
    files: list[dict[str, Any]] = field(default_factory=list)
    config: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        for estimate in self.result.estimates:
            if self._is_metric(estimate):
                _credible(estimate, self.source)

    @property
    def refusal(self) -> str:
        """Say why no rule can be judged on these numbers, or ""."""
        if other := _refusal(self):
            return other
        if (left := self.result.facts.get("left_out")) and isinstance(left, str):
            return f"{printable(left, 200)}: pass the scores, or measure them with --missing drop"
        repeated = self.result.facts.get("repeated")
        if not isinstance(repeated, str) or not repeated:
            return ""
        return f"{printable(repeated, 200)}, so the bounds are too narrow: give each row to one part only"

    @property
    def k(self) -> int | None:
        k = self.result.predicted.classes
        return k if k > 1 else None

    @property
    def design(self) -> tuple[Any, bool, Any]:
        return None, False, None

    def judged(self, gate: Gate) -> Choice[MetricTraits] | None:
        """Return the metric with its options; None where it is not one of scores (an eigenvalue, a missing number)."""
        names = sorted({e.name for e in self._estimates(gate)})
        return METRICS.choose(names[0]) if names and names[0].partition(":")[0] in METRICS else None

    def better(self, gate: Gate) -> str:
        name = gate.name
        if name in METRICS:
            return METRICS.entries[name].traits.better
        if name in CURVATURE:
            return "lower"
        candidates = self._estimates(gate)
        if not candidates:
            metric_names = {e.name for e in self.result.estimates} | {e.name for e in METRICS} | {*CURVATURE, *FITTED}
            if name not in {k.partition(":")[0] for k in metric_names}:
                raise UsageError(f"{gate.at}unknown metric '{name}'", did_you_mean(gate.metric, sorted(metric_names)))
            return ""
        return candidates[0].better

    def slices(self, gate: Gate) -> Mapping[str, Any] | str:
        if not self._estimates(gate):
            return f"{self.source} holds no {gate.metric}"
        candidates = [e for e in self._estimates(gate) if self._is_metric(e)]
        asked = [e for e in self._estimates(gate) if e.scope == gate.scope]
        other = not any(map(self._is_metric, asked)) if asked else not self._is_of_metric(Scope.read(gate.scope))
        if not candidates or (gate.scope and other):
            return f"{self.source} holds differences of {gate.metric}, not the metric itself"
        if gate.by:
            parts = {name: e for e in candidates if (name := e.where.within(gate.by)) is not None}
            return parts or f"{self.source} holds no {gate.metric} by {gate.by}"
        wanted = [e for e in candidates if e.scope == gate.scope]
        if not wanted and not any(e.scope for e in candidates):  # without scopes there is nothing to choose among
            wanted = candidates
        if not wanted and gate.scope:
            return f"{self.source} holds no {gate.metric} of {gate.scope}"
        if not wanted:
            scopes = sorted({e.scope for e in candidates})
            problem = f"{gate.at}{self.source} holds {gate.metric} of " + ", ".join(scopes)
            raise UsageError(problem, f"say which: scope = '{scopes[-1]}', or --scope '{scopes[-1]}'")
        names = sorted({e.name for e in wanted})
        if len(names) > 1:
            raise UsageError(f"{gate.at}'{gate.metric}' may be " + " or ".join(names), "write it in full")
        return {"": wanted[0]}

    def where(self, gate: Gate, name: str, part: Any) -> Scope:
        """Return the scope of a part; a number without one stands for whatever scope was asked for."""
        where: Scope = part.where
        return where if gate.by or part.scope else Scope.read(gate.scope)

    def rows(self, part: Any, gate: Gate) -> int | None:
        """Return the number of rows of a part; None where it is not known."""
        n: int | None = part.n
        return n if gate.name in METRICS else None

    def claim(self, rule: LimitRule, part: Any, alpha: float, family: int) -> SupportedClaim | str:
        estimate: Estimate = dataclasses.replace(part, better=self.better(rule.gate))
        unbounded = estimate.low is None and estimate.high is None
        if unbounded and estimate.value is not None and not estimate.reason:
            estimate = dataclasses.replace(estimate, reason="no interval was computed for it")
        if estimate.level is not None and at_level(estimate, alpha) == (None, None) and not estimate.reason:
            why = f"its interval is of level {estimate.level:g}, too short for alpha {alpha:g}: measure it again"
            estimate = dataclasses.replace(estimate, reason=why)
        supported, has = claim(estimate, alpha, estimate, rule.error(alpha, family)), traits(estimate.name)
        return dataclasses.replace(supported, scales=not (has.table_bounds or has.simulated))

    def _estimates(self, gate: Gate) -> list[Estimate]:
        """Return the estimates of the gate's metric: those of its spec, else those of its name with any options."""
        specs = {gate.metric, *alike(gate.metric, 2 if self.result.predicted.event else 0)}
        exact = [e for e in self.result.estimates if e.name in specs]
        return exact or [e for e in self.result.estimates if e.name.partition(":")[0] == gate.metric]

    def _is_metric(self, estimate: Estimate) -> bool:
        """Return whether an estimate is of one model, not a difference between two, or a mean of other numbers."""
        return self._is_of_metric(estimate.where) and self.result.command != "compare"

    @staticmethod
    def _is_of_metric(where: Scope) -> bool:
        # only `compare` has differences in slices, so that in an older file `site=x, y - z` is a slice `x, y - z`
        of_models = where.difference_of_models and not where.parts
        unknown = where.subject and not where.phase and not parsed(where.subject)
        return not (of_models or unknown or where.phase == CHANGE or where.subject in MEANS)


Source = RecordedOutputs | Results
"""What a gate can judge."""


def _credible(e: Estimate, source: str) -> None:
    """Refuse an estimate of a metric that calib cannot have written.

    Raises:
        InputError: not a spec of this version, outside the metric's range, or without its number of rows.
    """
    name = e.name.partition(":")[0]
    if name not in METRICS:
        return
    what = f"{source}: {e.name}" + (f" of {e.scope}" if e.scope else "")
    try:
        spec = METRICS.choose(e.name).spec
    except UsageError as error:
        raise InputError(f"{what}: {error.problem}", "write the result again with this version") from None
    fix = "write it again: this is no number that calib writes"
    if spec != e.name:
        raise InputError(f"{what} is not written as '{spec}'", fix)
    if e.value is None:
        return
    values = METRICS.entries[name].traits.values
    if not values.low - 1e-9 <= e.value <= values.high + 1e-9:
        raise InputError(f"{what} is {e.value:g}, and a {name} is {values}", fix)
    if e.n is None:
        raise InputError(f"{what} does not say of how many rows", fix)
