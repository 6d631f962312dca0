"""Gates on the numbers of an earlier result, which are believed only where they can be what calib wrote."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from calibcli.errors import InputError, UsageError, did_you_mean
from calibcli.gate.config import Gate
from calibcli.gate.limits import Rule
from calibcli.gate.sources import CURVATURE, FITTED, Scores
from calibcli.gate.verdict import Claim, at_level, claim
from calibcli.metrics import METRICS
from calibcli.metrics.sample import traits
from calibcli.result import Estimate, Result
from calibcli.shelves import Choice, alike

CHOSEN = re.compile(r"before|after|[^=]+=.*", re.DOTALL)
"""What a number of the metric itself may be of; differences between models are not."""


@dataclass(eq=False)
class Results:
    """Gates on the estimates of a result file; methods as of `Scores`."""

    result: Result
    source: str
    files: list[dict[str, Any]] = field(default_factory=list)
    refusal: ClassVar[str] = ""  # the rows are not known

    def __post_init__(self) -> None:
        for estimate in self.result.estimates:
            if self._is_metric(estimate):
                _credible(estimate, self.source)

    @property
    def k(self) -> int | None:
        k = self.result.facts.get("classes")
        return k if isinstance(k, int) and k > 1 else None

    @property
    def design(self) -> tuple[Any, bool, Any]:
        return None, False, None

    def judged(self, gate: Gate) -> Choice | None:
        """The metric with its options; None where it is not one of scores (an eigenvalue, a missing number)."""
        names = sorted({e.name for e in self._found(gate)})
        return METRICS.choose(names[0]) if names and names[0].partition(":")[0] in METRICS else None

    def better(self, gate: Gate) -> str:
        name = gate.name
        if name in METRICS:
            return str(METRICS.entries[name].traits.get("better", ""))
        if name in CURVATURE:
            return "lower"
        found = self._found(gate)
        if not found:
            known = {e.name for e in self.result.estimates} | {e.name for e in METRICS} | {*CURVATURE, *FITTED}
            if name not in {k.partition(":")[0] for k in known}:
                raise UsageError(f"{gate.at}unknown metric '{name}'", did_you_mean(gate.metric, sorted(known)))
            return ""
        return found[0].better

    def slices(self, gate: Gate) -> Mapping[str, Any] | str:
        found = self._found(gate)
        if not found:
            return f"{self.source} holds no {gate.metric}"
        found = [e for e in found if self._is_metric(e)]
        if not found or (gate.scope and not CHOSEN.fullmatch(gate.scope)):
            return f"{self.source} holds differences of {gate.metric}, not the metric itself"
        if gate.by:
            parts = {e.scope.removeprefix(f"{gate.by}="): e for e in found if e.scope.startswith(f"{gate.by}=")}
            return parts or f"{self.source} holds no {gate.metric} by {gate.by}"
        wanted = [e for e in found if e.scope == gate.scope]
        if not wanted and not any(e.scope for e in found):  # a number that is there once needs no choice
            wanted = found
        if not wanted and gate.scope:
            return f"{self.source} holds no {gate.metric} of {gate.scope}"
        if not wanted:
            scopes = sorted({e.scope for e in found})
            problem = f"{gate.at}{self.source} holds {gate.metric} of " + ", ".join(scopes)
            raise UsageError(problem, f"say which: scope = '{scopes[-1]}', or --scope '{scopes[-1]}'")
        names = sorted({e.name for e in wanted})
        if len(names) > 1:
            raise UsageError(f"{gate.at}'{gate.metric}' may be " + " or ".join(names), "write it in full")
        return {"": wanted[0]}

    def rows(self, part: Any, gate: Gate) -> int | None:
        """Rows of a part; None where that is not known."""
        n: int | None = part.n
        return n if gate.name in METRICS else None

    def claim(self, rule: Rule, part: Any, alpha: float, family: int) -> Claim | str:
        estimate: Estimate = dataclasses.replace(part, better=self.better(rule.gate))
        bare = estimate.low is None and estimate.high is None
        if bare and estimate.value is not None and not estimate.reason:
            estimate = dataclasses.replace(estimate, reason="no interval was computed for it")
        if estimate.level is not None and at_level(estimate, alpha) == (None, None) and not estimate.reason:
            why = f"its interval is of level {estimate.level:g}, too short for alpha {alpha:g}: measure it again"
            estimate = dataclasses.replace(estimate, reason=why)
        made = claim(estimate, alpha, estimate, rule.error(alpha, family))
        return dataclasses.replace(made, scales=not traits(estimate.name).get("table_bounds"))

    def _found(self, gate: Gate) -> list[Estimate]:
        """Estimates of the gate's metric: the exact spec, else those of that name."""
        specs = {gate.metric, *alike(gate.metric, 2 if self.result.facts.get("event") else 0)}
        exact = [e for e in self.result.estimates if e.name in specs]
        return exact or [e for e in self.result.estimates if e.name.partition(":")[0] == gate.metric]

    def _is_metric(self, estimate: Estimate) -> bool:
        """Whether it is a number of one model, not a difference between two."""
        return self.result.command != "compare" and (not estimate.scope or CHOSEN.fullmatch(estimate.scope) is not None)


Source = Scores | Results
"""What a gate can be asked about."""


def _credible(e: Estimate, source: str) -> None:
    """Refuse a number of the shelf that the metric cannot have.

    Raises:
        InputError: not a spec of this version, outside the metric's values, or without its rows.
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
    values = METRICS.entries[name].traits["values"]
    if not values.low - 1e-9 <= e.value <= values.high + 1e-9:
        raise InputError(f"{what} is {e.value:g}, and a {name} is {values}", fix)
    if e.n is None:
        raise InputError(f"{what} does not say of how many rows", fix)
