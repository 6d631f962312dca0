"""What a gate can be asked about: a file of scores, or the result of an earlier command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from calibcli.columns import Columns, columns
from calibcli.errors import UsageError
from calibcli.gate.config import Config, Gate
from calibcli.gate.plan import EcePopulation, to_decide
from calibcli.gate.verdict import Claim, claim, share_of_error
from calibcli.metrics import METRICS, Sample, choose, estimates, measure
from calibcli.metrics.bounds import Bounds, view_bounds
from calibcli.predictions import Array, Predictions
from calibcli.result import Estimate
from calibcli.spec import Choice

CURVATURE = ("lambda_max", "lambda_min", "top", "trace", "trace_ggn", "density", "grad_norm")
FITTED = ("temperature", "gamma")
BY_CLASS = "class"


class Source(Protocol):
    """Where numbers come from. A method returns a str where the answer is "cannot be said", and why."""

    def better(self, gate: Gate) -> str:
        """`lower`, `higher`, `zero` or "" for the gate's metric.

        Raises:
            UsageError: no such metric.
        """

    def judged(self, gate: Gate) -> Choice | None:
        """The metric with its options; None where it is not one of scores (an eigenvalue, a missing number)."""

    def slices(self, gate: Gate) -> Mapping[str, Any] | str:
        """The parts that the gate judges, by name; {"": ...} for everything."""

    def rows(self, part: Any, gate: Gate) -> int | None:
        """Rows of a part; None where that is not known."""

    def claim(self, gate: Gate, part: Any, alpha: float, family: int) -> Claim | str:
        """The metric of a part with its bounds."""


@dataclass(eq=False)
class Scores:
    """Gates on recorded outputs."""

    predictions: Predictions
    config: Config
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)

    @cached_property
    def whole(self) -> Part:
        return Part(self.predictions, columns(self.predictions, class_bins=()))

    def choice(self, gate: Gate) -> Choice:
        name = gate.metric.partition(":")[0]
        if name in (*CURVATURE, *FITTED):
            raise UsageError(
                f"{at(gate)}{name} is not measured on scores", "pass the result.json of the command that measures it"
            )
        try:
            metric = METRICS.choose(gate.metric, bins=self.config.bins, edges=self.config.edges)
            return choose([metric.spec], self.predictions.k)[0]
        except UsageError as error:
            raise UsageError(at(gate) + error.problem, error.fix) from None

    def judged(self, gate: Gate) -> Choice | None:
        return self.choice(gate)

    def better(self, gate: Gate) -> str:
        if gate.of:
            raise UsageError(f"{at(gate)}of = '{gate.of}' chooses among the numbers of a result", "leave it out")
        return str(self.choice(gate).traits.get("better", ""))

    def slices(self, gate: Gate) -> Mapping[str, Any] | str:
        if not gate.by:
            return {"": self.whole}
        if gate.by in self.predictions.slices:
            column = np.asarray(self.predictions.slices[gate.by]).astype(str)
        elif gate.by == BY_CLASS:
            column = self._class_names()[self.whole.columns.predicted]
        else:
            return f"no column '{gate.by}' in {self.predictions.source}"
        return {name: self._part(gate.by, name, column == name) for name in np.unique(column).tolist()}

    def rows(self, part: Any, gate: Gate) -> int | None:
        return int(part.columns.n)

    def claim(self, gate: Gate, part: Any, alpha: float, family: int) -> Claim | str:
        choice = self.choice(gate)
        if choice.name == "ece":
            return self._ece(choice, part.columns, gate, alpha, family)
        pass_estimate = self._measured(part, choice, alpha)
        error = share_of_error(alpha / family, pass_estimate, gate.limit if gate.max is None else gate.max)
        far = pass_estimate if error == alpha else self._measured(part, choice, error)
        return claim(pass_estimate, alpha, far, error)

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
                part.sample = part.sample or Sample.of(part.columns, None, self.config.seed)
                [estimate] = estimates(part.sample, [choice], level=level)
            part.memo[key] = estimate
        return part.memo[key]

    def _ece(self, choice: Choice, c: Columns, gate: Gate, alpha: float, family: int) -> Claim | str:
        bounds = self.bounds(choice, c, alpha, family)
        if bounds.reason:
            return bounds.reason
        estimate = ece_estimate(bounds, choice.spec)
        needed = None
        limit = gate.limit if gate.limit is not None else gate.max
        if limit is not None and bounds.lower <= limit < bounds.upper and c.groups is None:
            how = {"bins": choice.options["bins"], "edges": choice.options["edges"]}
            view = Sample.of(c).view(choice.options["of"])
            population = EcePopulation.from_rows(view.p, view.hit, weights=view.weights, **how)
            design = bounds.n / bounds.n_eff
            rows = to_decide(population, limit, alpha=alpha, family=family, method=bounds.method)
            needed = None if rows is None else max(bounds.n + 1, round(rows * design))
            needed = needed or NEVER
        return Claim(estimate=estimate, low=bounds.lower, high=bounds.upper, needed=needed)

    def bounds(self, choice: Choice, c: Columns, alpha: float, family: int = 1) -> Bounds:
        """The ECE of a part."""
        return view_bounds(
            Sample.of(c).view(choice.options["of"]),
            bins=choice.options["bins"],
            edges=choice.options["edges"],
            alpha=alpha,
            family=family,
            method="score" if self.config.bounds == "score" else "sharp",
            seed=self.config.seed,
        )

    def _part(self, by: str, name: str, mask: Array) -> Part:
        key = (by, name)
        if key not in self.parts:
            self.parts[key] = Part(None, self.whole.columns.take(mask), self.predictions, mask)
        return self.parts[key]

    def _class_names(self) -> Array:
        names = self.predictions.classes
        return np.asarray(names if names is not None else [str(k) for k in range(self.predictions.k)])


NEVER = 10**12
"""Rows that stand for "no number of rows would decide"."""


@dataclass(eq=False)
class Part:
    """All rows, or those of a slice; the scores of a slice are gathered only when a metric reads them."""

    whole: Predictions | None
    columns: Columns
    parent: Predictions | None = None
    mask: Array | None = None
    memo: dict[tuple[str, float], Estimate] = field(default_factory=dict)
    sample: Sample | None = None  # shared, so that tables and simulated levels are worked out once

    @cached_property
    def predictions(self) -> Predictions:
        if self.whole is not None:
            return self.whole
        assert self.parent is not None
        assert self.mask is not None
        return self.parent.take(self.mask)


def ece_estimate(bounds: Bounds, name: str) -> Estimate:
    """An ECE with its one-sided bounds, as every command shows it."""
    clustered = f", clustered in {bounds.groups} groups" if bounds.groups else ""
    family = f", the lower one shared by {bounds.family} claims" if bounds.family > 1 else ""
    detail: dict[str, Any] = {}
    if round(bounds.n_eff) != bounds.n:
        detail["n_eff"] = round(bounds.n_eff, 1)
    if bounds.groups:
        detail |= {"groups": bounds.groups, "effective_groups": round(bounds.effective, 1)}
    return Estimate(
        name=name,
        value=bounds.value,
        low=None if bounds.reason else bounds.lower,
        high=None if bounds.reason else bounds.upper,
        level=None if bounds.reason else 1 - 2 * bounds.alpha,
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


class Missing(str):
    """Why there are no rows of a baseline: there is no such file (yet)."""

    __slots__ = ()


def at(gate: Gate) -> str:
    if not gate.file:
        return ""
    return f"{gate.file}:{gate.line}: " if gate.line else f"{gate.file}: "
