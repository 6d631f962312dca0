"""Several tasks of one evaluation: the mean of their estimates, in which each counts the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from calibcli.metrics.intervals import percent
from calibcli.numerics import normal_quantile
from calibcli.result import Estimate

TASK = "task"
MACRO = "mean of tasks"


def macro(found: Sequence[Estimate], tasks: int, level: float) -> list[Estimate]:
    """The mean over tasks of each metric, with the interval that independent tasks give it.

    The standard error is sqrt(Σ s²) / T of the errors s of T tasks: their rows are draws, the tasks themselves are not.

    Args:
        found: estimates of every task, metric by metric the same.  tasks: how many there are.
    """
    out = []
    for name in dict.fromkeys(e.name for e in found):
        own = [e for e in found if e.name == name]
        values = [e.value for e in own if e.value is not None]
        plain = dataclasses.replace(own[0], low=None, high=None, se=None, null=None, null_high=None, detail={}, how="")
        if len(values) < tasks:
            out.append(dataclasses.replace(plain, value=None, scope=MACRO, reason="a task has no value"))
            continue
        mean = math.fsum(values) / tasks
        errors = [e.se for e in own if e.se is not None]
        how = f"mean over {tasks} tasks, each counted once"
        if len(errors) < tasks or own[0].sided != "two":
            reason = "no interval of a mean follows from bounds of its parts"
            out.append(dataclasses.replace(plain, value=mean, scope=MACRO, n=None, how=how, reason=reason, sided="two"))
            continue
        se = math.sqrt(math.fsum(s * s for s in errors)) / tasks
        half = normal_quantile((1 + level) / 2) * se
        how += f"; normal {percent(level)} interval from the standard errors of the tasks"
        ends = dataclasses.replace(plain, low=mean - half, high=mean + half, level=level, se=se, reason="")
        out.append(dataclasses.replace(ends, value=mean, scope=MACRO, n=None, how=how))
    return out
