"""One session with a watch: open its state, add nights and other states, and look at the evidence."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibcli import __version__
from calibcli.core.errors import InputError, NoRows, UsageError
from calibcli.core.options import Nats, PerYear, check_options
from calibcli.core.result import Result
from calibcli.gate import check
from calibcli.gate.baseline import hashes as hashes_of
from calibcli.gate.check import Baselines, columns_wanted, read_scores
from calibcli.gate.config import Config, Gate
from calibcli.gate.options import Request
from calibcli.gate.sources import RecordedOutputs
from calibcli.scores.predictions import Predictions
from calibcli.watch import report, state_file
from calibcli.watch import rules as watching
from calibcli.watch.bets import Watched, joined
from calibcli.watch.state_file import IDS, NIGHTS, Hashes, Settings, WatchState

# Adding to a state: the rows of a night, and the states of other parts or machines.

NIGHT = re.compile(r"\d{4}-\d\d-\d\d")
DISTINCT = 20  # confidences by which a batch without ids is known again
LARGE = 690.0  # e^690 is a float


def today() -> str:
    """The date in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def tomorrow() -> str:
    """The latest date that it can be anywhere while it is `today` in UTC."""
    return (datetime.date.fromisoformat(today()) + datetime.timedelta(days=1)).isoformat()


def which(night: str, state: WatchState, path: str) -> str:
    """The night that rows are added to: the one asked for, or today's.

    Raises:
        UsageError: it is no date, or has not come anywhere.  InputError: it is over, or the state is from the future.
    """
    if night:
        try:
            if not NIGHT.fullmatch(night):
                raise ValueError
            datetime.date.fromisoformat(night)
        except ValueError:
            raise UsageError(f"--night {night[:40]} is no date", f"write --night {today()}") from None
    found = night or today()
    if found > tomorrow():
        problem = f"the night {found} has not come yet, and would close the state to every night before it"
        raise UsageError(problem, f"write the date of the rows, such as {today()}")
    if state.night > found:
        if not night:
            problem = f"the last night of {path} is {state.night}, which has not come yet: today is {found}"
            raise InputError(problem, "set the clock, or say which night it is: --night DATE")
        problem = f"the night {found} is over: {path} is at {state.night}"
        raise InputError(problem, f"count late labels on the night that they come: --night {state.night}")
    return found


def refuse_future(state: WatchState, name: str) -> None:
    """Refuse a state with a night that has not come: the nights before it could not be added any more.

    Raises:
        InputError: it has one.
    """
    if state.night > tomorrow():
        problem = f"the last night of {name} is {state.night}, which has not come yet: today is {today()}"
        raise InputError(problem, "set the clock of the machine that counted its rows, and count them again")


def turn(state: WatchState, night: str) -> None:
    """Go on to a night."""
    if night == state.night:
        return
    if state.night:
        for stream in state.streams.values():
            stream.close()
    state.night, state.nights, state.rows_tonight = night, state.nights + 1, 0


def add(state: WatchState, source: RecordedOutputs, baselines: Any, path: str, night: str) -> str:
    """Count the rows of a source; a note where they are in the state already and nothing was added.

    Everything that may refuse them comes before the first change.

    Args:
        baselines: of `gate.input_files`, for rules against a baseline.  path: of the baseline.

    Raises:
        InputError: rows of which some are in the state, sampling weights, a column that is missing.
    """
    name = source.predictions.source
    watching.independent(source)
    found = {}
    for i, rule in enumerate(state.settings.rules):
        said = watching.evidence(rule, source, baselines, path, state.settings.cap)
        if isinstance(said, str):
            raise InputError(
                f"{rule.rule} cannot be watched tonight: {said}", "nothing was counted; see --by, --baseline"
            )
        found[i] = said
    digest, hashes = _digest(state, source)
    content = _content(source)
    if digest and digest in state.batches:
        return f"{name}: these rows are in the state already, and count once"
    if content and content in state.batches:
        problem = f"the scores and labels of {name} are in the state already, in another order or under other ids"
        raise InputError(f"{problem}; nothing was counted", "pass rows that are new, under the ids that they keep")
    if hashes is not None:
        _refuse_repeated(state, hashes, name, source.predictions.groups is not None)
        _remember(state, hashes)
    turn(state, night)
    for i, parts in found.items():
        for value, evidence in parts.items():
            state.streams[i, value].add(*evidence)
    state.rows += source.predictions.n
    state.rows_tonight += source.predictions.n
    state.batches += [one for one in (digest, content) if one]
    return ""


def record(state: WatchState) -> None:
    """Look at the evidence: note what is decided, and tonight's line of the history."""
    numbers = []
    for stream in state.streams.values():
        found = {key: float(value) for key, value in stream.evidence().items()}
        for key, limit in state.limits(stream).items():
            if found[key] >= limit:
                stream.crossed.setdefault(key, state.night)
        tonight = stream.value(tonight=True)
        shown = [found[key] / np.log(10) for key in ("fail", "pass", "drift")]
        numbers.append([_rounded(tonight), *map(_rounded, shown)])
    entry = {"night": state.night, "rows": state.rows_tonight, "streams": numbers}
    kept = [one for one in state.history if one["night"] != state.night]
    state.history = _in_order([*kept, entry])


def empty(state: WatchState, night: str) -> None:
    """Note a night without rows in the history. The streams stay at the night before: it is none of theirs."""
    if all(entry["night"] != night for entry in state.history):
        entry = {"night": night, "rows": 0, "streams": [[None] * 4 for _ in state.streams]}
        state.history = _in_order([*state.history, entry])


def merged(one: WatchState, other: WatchState, path: str) -> WatchState:
    """Both states' rows: parts of a night in any order give the state of all of them.

    A part, which has one night, is added to that night. Of two with earlier nights of their own the wealth multiplies
    too; the drift alarm is then the mean of both, which is valid, but not that of one stream.

    Raises:
        InputError: other rules or another model, rows that both have, or a night that is over.
    """
    if one.settings.digest != other.settings.digest:
        problem = f"{path} has other rules, or is of another model"
        raise InputError(problem, "merge states that were begun with the same rules, --alpha and --name")
    if set(one.batches) & set(other.batches):
        raise InputError(f"{path} holds rows that the state has too", "merge each part once")
    _refuse_repeated(one, other.ids[other.ids <= one.ids_cut], path)
    if not (one.night and other.night):
        return one if one.night else other
    parts = [state.nights <= 1 for state in (one, other)]
    late = min(one.night, other.night)
    if late != max(one.night, other.night):
        behind = one if one.night == late else other
        if behind.nights <= 1 and max(one.nights, other.nights) > 1:
            problem = f"the night {late} of {path} is over: the state is at {max(one.night, other.night)}"
            raise InputError(problem, "merge parts before the next night begins")
        turn(behind, max(one.night, other.night))
    for state, part in zip((one, other), parts):
        for stream in state.streams.values():
            stream.crossed = {} if part else stream.crossed
    found = WatchState(one.settings, one.night, max(one.nights, other.nights), one.rows + other.rows)
    found.rows_tonight = one.rows_tonight + other.rows_tonight
    found.streams = {key: joined(stream, other.streams[key]) for key, stream in one.streams.items()}
    found.history = _histories(one.history, other.history)
    found.batches = [*one.batches, *other.batches]
    found.ids, found.ids_cut = one.ids, min(one.ids_cut, other.ids_cut)
    _remember(found, other.ids)
    return found


def _in_order(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By night, the last that are kept: a night without rows may be noted before one that is earlier."""
    return sorted(history, key=lambda one: str(one["night"]))[-NIGHTS:]


def _histories(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By night; of a night that both have, the rows: its numbers are of both only from now on."""
    found = {entry["night"]: entry for entry in one}
    for entry in other:
        both = found.get(entry["night"])
        if both is not None:
            nothing = [[None] * 4 for _ in entry["streams"]]
            entry = {**entry, "rows": both["rows"] + entry["rows"], "streams": nothing}
        found[entry["night"]] = entry
    return [found[night] for night in sorted(found)]


def copied(state: WatchState) -> WatchState:
    """As it is, whatever happens to the other: an update that is refused changes nothing."""
    streams = {key: dataclasses.replace(stream, crossed=dict(stream.crossed)) for key, stream in state.streams.items()}
    return dataclasses.replace(state, streams=streams, history=[*state.history], batches=[*state.batches])


def _digest(state: WatchState, source: RecordedOutputs) -> tuple[str, Hashes | None]:
    """What the same rows give again, or "" where other rows may well look like them; and the hashes of what must not
    come twice: groups, where there are some, else ids.

    Raises:
        InputError: ids that are there twice.
    """
    rows, table = source.predictions, source.whole.columns
    if rows.ids is not None and len(np.unique(rows.ids)) < len(rows.ids):
        problem = f"ids in {rows.source} are not unique, so that a row may be there twice"
        raise InputError(problem, "give each row its own id")
    names = rows.ids
    if rows.groups is not None and rows.group_names is not None:
        names = rows.group_names[np.unique(rows.groups)]
    hashes = None if names is None else hashes_of(names, state.settings.digest)
    if hashes is None and len(np.unique(table.confidence[:100_000])) < DISTINCT:
        return "", None
    made = hashlib.blake2b(digest_size=8)
    for column in (rows.labels, table.confidence, hashes):
        made.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
    return made.hexdigest(), hashes


def _content(source: RecordedOutputs) -> str:
    """What the same labels and confidences give again, in any order and under any ids; "" where others may too."""
    labels, confidence = source.predictions.labels, source.whole.columns.confidence
    if len(np.unique(confidence[:100_000])) < DISTINCT:
        return ""
    order = np.lexsort((labels, confidence))
    made = hashlib.blake2b(digest_size=8, person=b"content")
    for column in (labels, confidence):
        made.update(np.ascontiguousarray(column[order]).tobytes())
    return made.hexdigest()


def _refuse_repeated(state: WatchState, hashes: Hashes, name: str, grouped: bool = False) -> None:
    known = int(np.isin(hashes[hashes <= state.ids_cut], state.ids).sum())
    if known:
        what = "groups" if grouped else "rows"
        share = "" if state.ids_cut == 2**64 - 1 else f", of the {'groups' if grouped else 'ids'} that a state keeps"
        problem = f"{known} {what} of {name} are in the state already{share}; nothing was counted"
        fix = "pass all rows of a group at once, or leave out groups that came before: --group is for rows of one night"
        raise InputError(problem, fix if grouped else "pass the rows that are new")


def _remember(state: WatchState, hashes: Hashes) -> None:
    """Keep the smallest hashes: a sample of the ids that needs no more room, and can be merged."""
    every = np.unique(np.concatenate([state.ids, hashes]))
    every = every[every <= state.ids_cut]
    if len(every) > IDS:
        every = every[:IDS]
        state.ids_cut = int(every[-1])
    state.ids = every


def _rounded(number: float) -> float | None:
    return float(f"{number:.3g}") if np.isfinite(number) else None


# One watch: a state with its file, opened, added to, and looked at.


BLOCK = 2_000_000  # rows whose columns are in memory at once


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a watch is begun with; None leaves it to the state, or to the default.

    Attributes:
        rules: `max`, `min`, `margin`, `baseline`, `alpha`, `bins` and `config` of a gate.
        reading: how files are read.
    """

    rules: Request
    per_year: PerYear | None = None
    nll_cap: Nats | None = None
    model: str = ""
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)


class Keeper:
    """A state, in a file or (path None) in memory.

    Args:
        path: of the state; it need not be there yet.
        restart: begin anew, and keep what is there beside it.

    Raises:
        InputError: a file that is no state, or was tampered with.
    """

    def __init__(self, path: str | os.PathLike[str] | None, terms: Terms, restart: bool = False) -> None:
        self.path, self.terms = path, terms
        self.name = "the state" if path is None else str(path)
        there = path is not None and os.path.exists(path)
        self.state: WatchState | None = (
            state_file.load(path, own=True) if there and path is not None and not restart else None
        )
        self.aside = restart and there
        self.files: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def update(self, given: Predictions | str | Path, night: str = "", baseline: str = "") -> None:
        """Count rows, of a file or as they are; a file that is a state is merged. `keep` makes it last.

        Raises:
            InputError: rows, or a state, that are refused: nothing of them is counted.
        """
        if not isinstance(given, Predictions) and state_file.is_state(given):
            self.merge(state_file.load(given), str(given))
            return
        config = self._config(str(given) if not isinstance(given, Predictions) else "rows", baseline)
        reading = check.reading(self.terms.reading, config)
        try:
            rows = given if isinstance(given, Predictions) else read_scores(given, reading, columns_wanted(config))
        except NoRows as error:
            if self.state is None:  # what its scores are is known from rows
                raise
            self._nothing(night, error.problem)
            return
        source = RecordedOutputs(rows, config)
        settings = self._settings(source, config)
        state = WatchState.begin(settings) if self.state is None else copied(self.state)
        if self.state is not None:
            state_file.same(self.state, settings, self.name)
        asked, night = night, which(night, state, self.name)
        if not asked and state.night == night and state.rows_tonight and not self.files:
            self.notes.append(
                f"{night}, today in UTC, has {state.rows_tonight:,} rows already, and these count for the same night, "
                "in which no drift is seen; if they are of another night, write its date: --night DATE"
            )
        baselines = Baselines(source, reading)
        for part in _blocks(source):
            said = add(state, part, baselines, baseline or _baseline(config), night)
            self.notes += [said] if said else []
        self.notes += source.predictions.notes
        if source.predictions.ids is None and source.predictions.groups is None:
            self.notes.append("rows have no ids: rows that come twice are noticed only where a whole batch does")
        record(state)
        self.state, self.files = state, [*self.files, *source.files, *baselines.files]
        self.files += [dict(entry) for entry in config.files]

    def _nothing(self, night: str, found: str) -> None:
        """A night without rows: the history has it, and nothing else changes."""
        assert self.state is not None
        state = copied(self.state)
        night = which(night, state, self.name)
        empty(state, night)
        self.notes.append(f"{found}: a night of 0 rows changes nothing; was there no traffic on {night}?")
        self.state = state

    def merge(self, other: WatchState, name: str) -> None:
        """Add the rows of another state.

        Raises:
            InputError: it has other rules, or rows that are in this one.
        """
        refuse_future(other, name)
        other = copied(other)
        self.state = merged(copied(self.state), other, name) if self.state else other
        if self.state.night:
            record(self.state)

    def keep(self) -> None:
        """Write the state."""
        if self.path is None or self.state is None:
            return
        if self.aside:
            self._put_aside()
        state_file.save(self.state, self.path, __version__)

    def result(self) -> Result:
        """What the watch says now.

        Raises:
            UsageError: there is no state.
        """
        if self.state is None:
            raise UsageError(
                f"{self.name} is not there yet", "pass rows and rules: calib watch STATE NEW --max ece=0.03"
            )
        found = report.result(self.state)
        notes = list(dict.fromkeys([*found.notes, *self.notes]))
        return dataclasses.replace(found, notes=notes, provenance={"inputs": self.files})

    def _config(self, named: str, baseline: str) -> Config:
        """The rules asked for; those of the state where none are."""
        rules = self.terms.rules
        asked = bool(rules.max or rules.min or rules.margin or rules.config)
        beside = (baseline or rules.baseline) if rules.margin else None
        config = check.asked(dataclasses.replace(rules, input=named, baseline=beside, reading=self.terms.reading))
        if self.state is not None and not asked:
            if any(rule.baseline for rule in self.state.settings.rules) and not baseline:
                raise UsageError(f"{self.name} has a rule against a baseline", "pass tonight's: --baseline FILE")
            gates = tuple(watching.gate_of(rule, baseline) for rule in self.state.settings.rules)
            return dataclasses.replace(config, gates=gates, files=())
        if not config.gates:
            raise UsageError("no rule to watch", "write --max ece=0.03, or gates in calib.toml")
        return config

    def _settings(self, source: RecordedOutputs, config: Config) -> Settings:
        """What a state of these rules and rows is begun with; what is not said is that of the state."""
        old, rows = self.state.settings if self.state else None, source.predictions
        cap = self.terms.nll_cap or (old.cap if old else Settings.cap)
        found, unwatched, fixes = list[Watched](), list[str](), list[str]()
        for gate in config.gates:
            try:
                found.append(self._known(watching.watched(gate, source, cap), gate, source))
            except UsageError as error:
                if not gate.file:
                    raise
                unwatched.append(f"not watched: {error.problem}")
                fixes.append(error.fix)
        if not found:
            raise UsageError("; ".join(unwatched), fixes[0])
        self.notes += unwatched
        alpha = self.terms.rules.alpha or (old.alpha if old else config.alpha)
        return Settings(
            rules=found,
            alpha=alpha,
            per_year=self.terms.per_year or (old.per_year if old else Settings.per_year),
            cap=cap,
            classes=source.k or 0,
            names=list(map(str, rows.classes or ())),
            event=rows.event,
            model=self.terms.model or (old.model if old else ""),
        )

    def _known(self, rule: Watched, gate: Gate, source: RecordedOutputs) -> Watched:
        """With the slices that the state watches, where tonight's rows have others."""
        if self.state is None or not rule.by:
            return rule
        mine = next((r for r in self.state.settings.rules if (r.rule, r.by) == (rule.rule, rule.by)), rule)
        new = [value for value in source.slices(gate) if value not in mine.values]
        if new and not isinstance(source.slices(gate), str):
            shown = ", ".join(new[:5]) + (", ..." if len(new) > 5 else "")
            self.notes.append(f"{rule.by} = {shown} came after the watch began, and is not watched")
        return mine

    def _put_aside(self) -> None:
        assert self.path is not None
        old = Path(self.path)
        for i in range(1, 1000):
            kept = old.with_name(f"{old.stem}.before-{today()}{'' if i == 1 else f'-{i}'}{old.suffix}")
            if not kept.exists():
                shutil.copy2(old, kept)
                self.notes.append(f"the state that was there is kept as {kept}")
                self.aside = False
                return
        raise InputError(f"there are 1,000 states beside {old} already", "move them to another folder")


def _blocks(source: RecordedOutputs) -> Iterator[RecordedOutputs]:
    """The rows some at a time, where they are more than fit; rows in groups, or beside a baseline, stay together."""
    rows, config = source.predictions, source.config
    if rows.n <= BLOCK or rows.groups is not None or _baseline(config):
        yield source
        return
    for start in range(0, rows.n, BLOCK):
        yield RecordedOutputs(rows.take(np.arange(start, min(start + BLOCK, rows.n))), config)


def _baseline(config: Config) -> str:
    """The baseline of the first rule that has one."""
    return next((gate.baseline for gate in config.gates if gate.baseline), "")
