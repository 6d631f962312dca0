"""Gates on recorded outputs, and what may be claimed of their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from calibcli.columns import Columns, columns
from calibcli.errors import UsageError
from calibcli.gate.config import Config, Gate
from calibcli.gate.limits import Rule
from calibcli.gate.plan import EcePopulation, to_decide
from calibcli.gate.verdict import Claim, claim
from calibcli.inputs.scores import recorded
from calibcli.metrics import METRICS, Sample, choose, estimates, measure
from calibcli.metrics.bounds import Bounds, table_bounds
from calibcli.metrics.sample import lean
from calibcli.predictions import Array, Predictions
from calibcli.result import Estimate
from calibcli.shelves import Choice

CURVATURE = ("lambda_max", "lambda_min", "top", "trace", "trace_ggn", "density", "grad_norm")
FITTED = ("temperature", "gamma")
BY_CLASS = "class"


@dataclass(eq=False)
class Scores:
    """Gates on recorded outputs. A method returns a str where the answer is "cannot be said", and why."""

    predictions: Predictions
    config: Config
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)

    @cached_property
    def whole(self) -> Part:
        table = columns(self.predictions, class_bins=(), lean=self._lean)
        return Part(table, self.predictions, seed=self.config.seed)

    @property
    def _lean(self) -> bool:
        """Whether there are gates that read how often a probability comes true, and none that reads more."""
        gates = self.config.gates
        if not gates or any(gate.baseline for gate in gates):
            return False
        try:
            return lean([self.judged(gate) for gate in gates])
        except UsageError:  # said where that gate is judged
            return False

    @property
    def files(self) -> list[dict[str, Any]]:
        """Path and sha256 of each file that was read."""
        return recorded.provenance(self.predictions)

    @property
    def k(self) -> int | None:
        """Classes; None where they are not known, as of confidences."""
        return None if self.predictions.top_only else self.predictions.k

    @property
    def design(self) -> tuple[Any, bool, Any]:
        """Weights, whether they are counts, and groups of the rows."""
        p = self.predictions
        return p.weights, p.weight_kind == "count", p.groups

    def judged(self, gate: Gate) -> Choice:
        """The metric with its options.

        Raises:
            UsageError: no such metric.
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
        """`lower`, `higher`, `zero` or "" for the gate's metric."""
        if gate.scope:
            raise UsageError(f"{gate.at}scope = '{gate.scope}' chooses among the numbers of a result", "leave it out")
        return str(self.judged(gate).traits.get("better", ""))

    def slices(self, gate: Gate) -> Mapping[str, Part] | str:
        """The parts that the gate judges, by name; {"": ...} for everything."""
        if not gate.by:
            return {"": self.whole}
        if gate.by in self.predictions.slices:
            column = np.asarray(self.predictions.slices[gate.by]).astype(str)
        elif gate.by == BY_CLASS and not self.predictions.top_only:
            names = range(self.predictions.k) if self.predictions.classes is None else self.predictions.classes
            column = np.asarray(names).astype(str)[self.whole.columns.predicted]
        else:
            return f"no column '{gate.by}' in {self.predictions.source}"
        return {name: self._part(gate.by, name, column == name) for name in np.unique(column).tolist()}

    def rows(self, part: Part, gate: Gate) -> int | None:
        """Rows of a part."""
        return part.columns.n

    def claim(self, rule: Rule, part: Part, alpha: float, family: int) -> Claim | str:
        """The metric of a part with its bounds; `family` claims are made together."""
        choice = self.judged(rule.gate)
        if choice.name == "ece":
            return self._ece(choice, part, rule.limit, alpha, family)
        error = rule.error(alpha, family)
        near = self._measured(part, choice, alpha)
        return claim(near, alpha, near if error == alpha else self._measured(part, choice, error), error)

    def _measured(self, part: Part, choice: Choice, error: float) -> Estimate:
        """The metric with bounds that each hold at 1 - error: a two-sided interval of level 1 - 2 error, or two
        one-sided bounds of level 1 - error, as the metric has them.
        """
        estimate = self._at(part, choice, 1 - 2 * error)
        one_sided = estimate.sided != "two" and estimate.level is not None
        return self._at(part, choice, 1 - error) if one_sided else estimate

    def _at(self, part: Part, choice: Choice, level: float) -> Estimate:
        key = (choice.spec, level)
        if key not in part.memo:
            if "class_bins" in choice.traits or choice.traits.get("needs_scores"):
                [estimate] = measure(part.predictions, [choice.spec], level=level, seed=self.config.seed)
            else:
                [estimate] = estimates(part.sample, [choice], level=level)
            part.memo[key] = estimate
        return part.memo[key]

    def _ece(self, choice: Choice, part: Part, limit: float, alpha: float, family: int) -> Claim | str:
        bounds = self.bounds(choice, part, alpha, family)
        if bounds.reason:
            return bounds.reason
        needed = None
        if bounds.lower <= limit < bounds.upper and part.columns.groups is None:
            ece = choice(part.sample)
            population = EcePopulation.of(ece.view, ece.table)
            rows = to_decide(population, limit, alpha=alpha, family=family, method=bounds.method)
            needed = NEVER if rows is None else max(bounds.n + 1, round(rows * bounds.n / bounds.n_eff))
        estimate, error = ece_estimate(bounds, choice.spec), alpha / family
        return Claim(estimate=estimate, low=bounds.lower, high=bounds.upper, error=error, needed=needed)

    def bounds(self, choice: Choice, part: Part, alpha: float, family: int = 1) -> Bounds:
        """The ECE of a part."""
        ece = choice(part.sample)
        return table_bounds(ece.view, ece.table, alpha=alpha, family=family, method=self.config.bounds)

    def _part(self, by: str, name: str, mask: Array) -> Part:
        key = (by, name)
        if key not in self.parts:
            self.parts[key] = Part(self.whole.columns.take(mask), self.predictions, mask, seed=self.config.seed)
        return self.parts[key]


NEVER = 10**12
"""Rows that stand for "no number of rows would decide"."""


@dataclass(eq=False)
class Part:
    """All rows, or those of a slice; the scores of a slice are gathered only when a metric reads them."""

    columns: Columns
    whole: Predictions
    mask: Array | None = None
    memo: dict[tuple[str, float], Estimate] = field(default_factory=dict)
    seed: int = 0

    @cached_property
    def sample(self) -> Sample:
        """Of the columns alone; shared, so that tables and simulated levels are worked out once."""
        return Sample.of(self.columns, None, self.seed)

    @cached_property
    def predictions(self) -> Predictions:
        return self.whole if self.mask is None else self.whole.take(self.mask)


def ece_estimate(bounds: Bounds, name: str) -> Estimate:
    """An ECE with its one-sided bounds, as every command shows it."""
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
