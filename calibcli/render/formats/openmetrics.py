"""OpenMetrics 1.0 text: estimates, bounds, limits and verdicts as gauges and a state set, for dashboards and trends.

The format is that of Hartmann et al. (2020).

>>> render(result).splitlines()[-1]
'# EOF'
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping

from calibcli.core.result import Check, Result
from calibcli.render import terminal

NUMBERS = True
SUFFIXES = (".prom",)
REPORT = "metrics.txt"
PLACES = 6
OUTCOMES = ("pass", "fail", "inconclusive", "not_run")


HISTORY = {
    "value": ("calib_watch", "Metric of the night."),
    "log10_e_fail": ("calib_watch_log10_e_fail", "Evidence that the rule is broken."),
    "log10_e_drift": ("calib_watch_log10_e_drift", "Evidence that it is broken since some night."),
    "log10_e_pass": ("calib_watch_log10_e_pass", "Evidence that the rule is kept."),
}
"""Fields of the nights of a watch, whose dates are written; the last sample of each rule is tonight's."""


def render(result: Result) -> str:
    """Render gauges with fixed decimals, more only if rounding would move a number across its limit."""
    limits = {(c.estimate.name, c.estimate.scope): c.limit for c in result.checks if c.estimate is not None}
    lines: list[str] = []
    for family, key, text in (
        ("calib_estimate", "value", "Point estimate of a metric."),
        ("calib_lower_bound", "low", "Lower end of its interval."),
        ("calib_upper_bound", "high", "Upper end of its interval."),
        ("calib_if_calibrated", "null", "Level to expect of a perfectly calibrated model."),
        ("calib_rows", "n", "Rows behind the estimate."),
    ):
        lines += _family(family, "gauge", text)
        seen = set()
        for e in result.estimates:
            labels = _labels({"metric": e.name, "scope": e.scope})
            value = getattr(e, key)
            if value is not None and labels not in seen:
                seen.add(labels)
                lines.append(f"{family}{labels} {_number(value, limits.get((e.name, e.scope)))}")
    if result.checks:
        lines += _family("calib_gate_limit", "gauge", "Limit of a gate.")
        for i, check in enumerate(result.checks, 1):
            if check.limit is not None:
                lines.append(f"calib_gate_limit{_labels(_names(i, check))} {_number(check.limit, None)}")
        lines += _family("calib_gate", "stateset", "Verdict of a gate.")
        for i, check in enumerate(result.checks, 1):
            for outcome in OUTCOMES:
                labels = _labels({**_names(i, check), "calib_gate": outcome})
                lines.append(f"calib_gate{labels} {int(check.outcome == outcome)}")
    nights = result.facts.get("history") or ()
    for key, (family, text) in HISTORY.items() if nights else ():
        lines += _family(family, "gauge", text)
        series: dict[str, list[str]] = {}
        for entry in nights:
            if entry[key] is not None:
                labels = _labels({"rule": entry["rule"], "scope": entry["scope"]})
                timestamp = calendar.timegm(time.strptime(entry["night"], "%Y-%m-%d"))
                series.setdefault(labels, []).append(f"{family}{labels} {_number(entry[key], None)} {timestamp}")
        lines += [line for one in series.values() for line in one]
    lines += _family("calib", "info", "What wrote this.")
    version = str(result.provenance.get("version") or "")
    lines.append(f"calib_info{_labels({'command': result.command, 'version': version})} 1")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(name: str, kind: str, text: str) -> list[str]:
    return [f"# TYPE {name} {kind}", f"# HELP {name} {text}"]


def _names(i: int, check: Check) -> dict[str, str]:
    return {"gate": str(i), "rule": check.rule, "scope": check.scope}


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(text: str) -> str:
        return terminal.clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items()) + "}"


def _number(value: float, limit: float | None) -> str:
    if isinstance(value, int):
        return str(value)
    for places in range(PLACES, 18):
        text = f"{value:.{places}f}"
        small = value != 0 and abs(value) < 10.0 ** (1 - places)
        if not small and (limit is None or (float(text) > limit) == (value > limit)):
            return text
    return repr(value)
