"""The result of a watch: a verdict per rule and slice, its evidence, and tables and plots of the nights."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.core import number_format
from calibcli.core.figure_data import Curve, Later, PlainList, Plot
from calibcli.core.result import Check, Estimate, Outcome, Result, Table
from calibcli.core.scope import TO_BASELINE, Scope
from calibcli.gate import judging
from calibcli.gate.check import judged_estimates
from calibcli.headlines import listed
from calibcli.metrics import METRICS
from calibcli.watch._bets import Stream
from calibcli.watch.state_file import WatchState

SHOWN = 10  # nights in the table; the plot and the JSON have all that are kept
MOST_WAITING = 30  # nights that may wait for labels before a watch is stuck
HELD_UP = 7  # complete nights behind one that lacks labels, from which on these do not seem to come any more
OVER = 3  # last nights none of which is beyond a limit: then it is bad no more
LABELS = "labels of all nights"
PANELS = 6  # most streams that are plotted
WAITING = ("night", "rows", "labelled")
LARGEST = 300.0  # power of ten that a float can still hold
BROKEN, DRIFT, KEPT = "rule broken", "drift", "rule kept"
LINES = (("fail", BROKEN), ("drift", DRIFT), ("pass", KEPT))
REASON = "a watch has evidence E instead of an interval: E may be looked at every night"


def result(state: WatchState, most_waiting: int = MOST_WAITING) -> Result:
    """Make the result of a state.

    The verdict is FAIL where a rule is surely broken or an alarm was raised, PASS where it is surely kept, and else
    INCONCLUSIVE, which fails no run. A watch that is stuck, as its labels do not come, is NOT RUN.

    Args:
        most_waiting: nights that may wait for labels before the watch counts as stuck.
    """
    checks, notes = [], dict[str, None]()
    for key, stream in state.streams.items():
        checks.append(_check(state, *key, stream))
        if stream.watched.bins:
            notes[judging.blind_spot(METRICS.choose(stream.watched.metric).name, stream.watched.kind)] = None
    settings, evidence = state.settings, _evidence(state, checks)
    sentences = headline(state, checks) + _waits(state)
    if why := _stuck(state, most_waiting):
        checks.append(Check(rule=LABELS, outcome="not_run", message=why))
        sentences = f"NOT RUN, labels do not come: {why}. {sentences}"
    facts: dict[str, Any] = {
        "headline": sentences,
        "nights": state.nights,
        "last_night": state.night,
        "n": state.rows,
        "alpha": settings.alpha,
        "per_year": settings.per_year,
        "model": settings.model,
        "waiting": [dict(zip(WAITING, (night, *counts))) for night, counts in state.nights_waiting.items()],
        "history": history(state),
    }
    return Result(
        command="watch",
        estimates=judged_estimates(checks),
        checks=checks,
        tables=[_nights_waiting(state), evidence, *_nights(state)],
        plots=Later(lambda: night_plots(state)),
        notes=[*notes],
        facts=facts,
    )


def headline(state: WatchState, checks: Sequence[Check]) -> str:
    """Write the verdicts in one to three sentences."""
    if not state.nights:
        return "No night is counted yet."
    seen = f"{number_format.count_text(state.nights, 'night')} and {number_format.count_text(state.rows, 'row')}"
    failed = [(i, c) for i, c in enumerate(checks) if c.outcome == "fail"]
    if failed:
        alarms = "; ".join(f"{_rule_and_scope(c)}: {c.message}{_bad_nights(state, i)}" for i, c in failed[:3])
        return f"Alarm after {seen}. {alarms}{f'; and {len(failed) - 3} more' if len(failed) > 3 else ''}."
    groups = {
        "Surely kept": [_rule_and_scope(c) for c in checks if c.outcome == "pass"],
        "Undecided so far": [
            _rule_and_scope(c)
            + (f" (at {number_format.number(c.estimate.value, 3)})" if c.estimate and c.estimate.value else "")
            for c in checks
            if c.outcome == "inconclusive"
        ],
    }
    return " ".join([f"No alarm in {seen}.", *(f"{word}: {listed(some)}." for word, some in groups.items() if some)])


def _bad_nights(state: WatchState, i: int) -> str:
    """Say since about when the nights of a stream are bad, and how many of these are beyond its limit by themselves.

    A drift began where two means, before and since, fit the nights best: k (n - k) / n (mean since - mean before)² is
    largest of k nights since (Hawkins 1977). If those before are beyond the limit too, it began with the first.
    """
    if not state.history:
        return ""
    watched = [*state.streams.values()][i].watched
    sign = -1 if watched.side == "min" else 1
    nights = [(one["night"], one["streams"][i][0]) for one in state.history if one["streams"][i][0] is not None]
    excess = np.array([sign * ((abs(v) if watched.side == "zero" else v) - watched.limit) for _, v in nights])
    beyond = np.flatnonzero(excess > 0)
    if not len(beyond):
        return ""
    if beyond[-1] < len(nights) - OVER:  # what is left is the alarm
        return f"; the last night beyond it by itself is {nights[beyond[-1]][0]}"
    first = int(beyond[0])
    if len(nights) > 1:
        since, before = np.cumsum(excess[::-1])[::-1][1:], np.cumsum(excess)[:-1]
        k = np.arange(len(nights) - 1, 0, -1)
        rise = since / k - before / (len(nights) - k)
        change = int(np.argmax(np.where(rise > 0, k * (len(nights) - k) * rise**2, 0)))
        first = first if before[change] > 0 else change + 1
    bad = int((beyond >= first).sum())
    return f"; bad since about {nights[first][0]}, {bad} of these {len(nights) - first} nights beyond it by themselves"


def _stuck(state: WatchState, most: int) -> str:
    """Say why no night is counted though later ones could be, with what helps; "" where the watch is not stuck."""
    waiting = [*state.nights_waiting.items()]
    complete = sum(labelled == n for _, (n, labelled) in waiting)
    if complete < HELD_UP and len(waiting) <= most:
        return ""
    night, (n, labelled) = waiting[0]
    nights = f"{len(waiting)} nights wait, the oldest is {night} with labels for {labelled:,} of {n:,} rows"
    share = math.floor(100 * labelled / n) / 100
    fix = f"--labelled {share:g} counts it" if share > 0 else f"pass its labels (--labels FILE), by the ids of {night}"
    longer = "" if complete >= HELD_UP else f"; --most-waiting {2 * len(waiting)} if labels take that long"
    return f"{nights}; {fix}{longer}"


def _waits(state: WatchState) -> str:
    """Say which nights wait, with their labels and rows, as a sentence behind the verdicts."""
    nights = [f"{night} ({labelled:,} of {n:,} rows)" for night, (n, labelled) in state.nights_waiting.items()]
    more = f" and {number_format.count_text(len(nights) - 3, 'more night')}" if len(nights) > 3 else ""
    return f" Waiting for labels: {', '.join(nights[:3])}{more}." if nights else ""


def _rule_and_scope(check: Check) -> str:
    return check.rule + (f" of {check.scope}" if check.scope else "")


def _where(stream: Stream, name: str) -> Scope:
    if stream.watched.baseline:
        return TO_BASELINE
    several = len(stream.watched.values) > 1  # what conditions choose has no name, and a slice may have an empty one
    return Scope(parts={stream.watched.by: name}) if name or several else Scope(subject=stream.watched.by)


def _scope(stream: Stream, name: str) -> str:
    return str(_where(stream, name))


def _check(state: WatchState, i: int, name: str, stream: Stream) -> Check:
    watched, limits = stream.watched, state.limits((i, name))
    where, rows = _where(stream, name), stream.rows
    common: dict[str, Any] = {"rule": watched.rule, "scope": str(where), "limit": watched.limit, "kind": watched.kind}
    if rows == 0:
        return Check(**common, outcome="not_run", message="no rows yet", fatal=False)
    logs = {key: float(value) for key, value in stream.log_evidence().items()}
    estimate = Estimate(
        name=watched.metric,
        value=stream.value(),
        **where.fields,
        unit=watched.unit,
        better=watched.better,
        how="mean over all nights" if not watched.bins else "of all nights",
        reason=REASON,
        n=round(rows),
        detail={**{f"e_{key}": _power(logs[key]) for key, _ in LINES}, "tonight": stream.value(tonight=True)},
    )
    outcome, message = _verdict(stream, logs, limits)
    return Check(**common, outcome=outcome, message=message, estimate=estimate, fatal=outcome == "fail")


def _verdict(stream: Stream, logs: dict[str, float], limits: dict[str, float]) -> tuple[Outcome, str]:
    """Return the outcome and why, with the night on which it was first known."""
    outcomes: dict[str, tuple[Outcome, str]] = {
        "fail": ("fail", "surely beyond the limit"),
        "drift": ("fail", "drifted beyond the limit"),
        "pass": ("pass", "surely within the limit, all nights together"),
    }
    for key, (outcome, message) in outcomes.items():
        if key in stream.crossed:
            now = f"evidence E {_power_text(logs[key])} now, {_power_text(limits[key])} needed"
            return outcome, f"{message}, known on {stream.crossed[key]} ({now})"
    parts = [f"{word} {_power_text(logs[key])} of {_power_text(limits[key])}" for key, word in LINES]
    return "inconclusive", "no alarm; E: " + ", ".join(parts)


def _evidence(state: WatchState, checks: Sequence[Check]) -> Table:
    """Tabulate E of each claim, and the E that decides it."""
    rows: list[Sequence[Any]] = []
    for (place, stream), check in zip(state.streams.items(), checks, strict=True):
        limits, logs = state.limits(place), stream.log_evidence()
        for key, word in LINES:
            rows.append([check.rule, check.scope, word, _power_text(float(logs[key])), _power_text(limits[key])])
    columns = ["rule", "scope", "claim", "E", "E needed"]
    return Table(name="evidence", title="Evidence for each claim, and what is needed", columns=columns, rows=rows)


def _nights_waiting(state: WatchState) -> Table:
    """Tabulate the nights that wait for labels, their own or those of the night before.

    Without rows where none waits, so that the file of an earlier night in the same folder becomes empty.
    """
    rows: list[Sequence[Any]] = [(night, *counts) for night, counts in state.nights_waiting.items()]
    return Table(name="waiting", title="Nights that wait for labels; they count in order", columns=WAITING, rows=rows)


def _nights(state: WatchState) -> list[Table]:
    """Tabulate all nights that are kept, of the first streams; a screen shows the last ones."""
    if len(state.history) < 2:
        return []
    names = [s.watched.rule + (f" {scope}" if (scope := _scope(s, key[1])) else "") for key, s in state.streams.items()]
    rows: list[Sequence[Any]] = []
    for entry in state.history:
        numbers = [numbers[0] for numbers in entry["streams"][:PANELS]]
        rows.append([entry["night"], entry["rows"], *numbers])
    columns = ["night", "rows", *names[:PANELS]]
    few = range(len(rows))[-SHOWN:] if len(rows) > SHOWN else ()
    return [Table(name="nights", title="The last nights, each by itself", columns=columns, rows=rows, few=few)]


def history(state: WatchState) -> list[dict[str, Any]]:
    """List by stream and night the metric of that night, and log10 of E at its end."""
    entries = PlainList()
    for i, (key, stream) in enumerate(state.streams.items()):
        rule, scope = stream.watched.rule, _scope(stream, key[1])
        for entry in state.history:
            value, fail, passed, drift = entry["streams"][i]
            logs = {"log10_e_fail": fail, "log10_e_pass": passed, "log10_e_drift": drift}
            night = {"night": entry["night"], "rule": rule, "scope": scope, "rows": entry["rows"], "value": value}
            entries.append(night | logs)
    return entries


def night_plots(state: WatchState) -> list[Plot]:
    """Plot, per stream, the metric of each night with its limit, and log10 of E over the E needed."""
    if len(state.history) < 2:
        return []
    days = [_day(entry["night"]) for entry in state.history]
    plots = []
    for i, (key, stream) in enumerate(list(state.streams.items())[:PANELS]):
        watched, limits = stream.watched, state.limits(key)
        rule = watched.rule + (f", {scope}" if (scope := _scope(stream, key[1])) else "")
        nights = [entry["streams"][i] for entry in state.history]
        alarm = [_day(stream.crossed[key]) for key in ("fail", "drift") if key in stream.crossed]
        marks = [Curve(label="alarm", kind="vline", x=[min(alarm)], role="best")] if alarm else []
        nightly = Curve(label="each night", kind="points", x=days, y=[n[0] for n in nights], role="model")
        limit = [watched.limit, -watched.limit] if watched.side == "zero" else [watched.limit]
        bound = Curve(label="limit", kind="hline", y=limit, role="limit")
        shared: dict[str, Any] = {"xlabel": "night", "xscale": "date", "group": rule}
        curves = [nightly, bound, *marks]
        title = f"{rule}, each night"
        plots.append(Plot(name=f"nights{i}", title=title, ylabel=watched.metric, curves=curves, **shared))
        powers = []
        for index, claim, word in ((1, "fail", BROKEN), (3, "drift", DRIFT), (2, "pass", KEPT)):
            needed = limits[claim] / math.log(10)
            above = [None if night[index] is None else max(night[index] - needed, -6.0) for night in nights]
            powers.append(Curve(label=word, kind="line", x=days, y=above, role=word))
        decides = Curve(label="needed", kind="hline", y=[0.0], role="limit")
        curves, label = [*powers, decides, *marks], "log10 of E / E needed"
        top = max((y for curve in powers for y in curve.y if y is not None), default=0.0)
        ylim = (-6.0, min(max(1.0, top + 0.5), 6.0))
        names: dict[str, Any] = {"name": f"evidence{i}", "title": f"{rule}, evidence so far"}
        plots.append(Plot(**names, ylabel=label, ylim=ylim, curves=curves, **shared))
    return plots


def _day(night: str) -> int:
    return datetime.date.fromisoformat(night).toordinal()


def _power(log: float) -> float:
    """Return E itself, capped at the largest power that a float can hold."""
    return float(f"{math.exp(min(log, LARGEST * math.log(10))):.4g}")


def _power_text(log: float) -> str:
    """Write E: `0.41`, `23`, `7,300`, `3e12`."""
    number = _power(log)
    if number >= 1e6:
        return f"{number:.0e}".replace("e+", "e")
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
