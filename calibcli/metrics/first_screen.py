"""Which numbers, tables and figures of a result a screen shows first, by the traits of their metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from calibcli.metrics.sample import METRICS
from calibcli.plots import Tier
from calibcli.result import Estimate, Result


def decides(name: str, facts: Any) -> bool:
    """Whether a number is among the few that decide: the trait `first_screen` of its metric.

    Args:
        name: spec of the number; one that is not of a metric (a fitted parameter) is among them.
        facts: of its result: its number of `classes`, and whether it is of confidences (`kind`).
    """
    where = trait(name, "first_screen", "always" if name.partition(":")[0] not in METRICS else "")
    return bool(
        where == "always"
        or (where == "two classes" and facts.get("classes") == 2)
        or (where == "confidence" and facts.get("kind") == "confidence")
    )


def trait(name: str, key: str, default: Any = None) -> Any:
    """A trait of the metric of a spec."""
    entry = METRICS.entry(name.partition(":")[0])
    return default if entry is None else entry.traits.get(key, default)


def tiered(estimates: Sequence[Estimate], few: Callable[[Estimate], bool]) -> list[Estimate]:
    """Estimates of which a screen shows these first, the others where they are asked for."""
    tiers: dict[bool, Tier] = {True: "few", False: "asked"}
    return [dataclasses.replace(e, tier=tiers[few(e)]) for e in estimates]


def measured(result: Result) -> Result:
    """What was measured: of the parts of all rows only what its metric wants shown (the trait `of_parts`)."""
    few = [e for e in result.estimates if decides(e.name, result.facts)]
    whole = any(not e.scope for e in few)
    shown = {id(e) for e in few if not whole or not e.scope or trait(e.name, "of_parts")}
    return dataclasses.replace(result, estimates=tiered(result.estimates, lambda e: id(e) in shown))
