"""One session with a watch: open its state, add nights and other states, and look at the evidence."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibcli import __version__
from calibcli.core import extensions
from calibcli.core.errors import InputError, NoRows, UsageError, printable
from calibcli.core.files import stamp
from calibcli.core.number_format import first_few
from calibcli.core.options import Nats, PerYear, Rows, Share, check_options
from calibcli.core.result import Result
from calibcli.gate import check
from calibcli.gate.check import AskedConfig, Baselines, columns_wanted
from calibcli.gate.config import Config
from calibcli.gate.options import Request
from calibcli.gate.sources import RecordedOutputs, otherwise, recorded_reading
from calibcli.scores.columns import columns
from calibcli.scores.predictions import ArrayScores, Predictions
from calibcli.watch import _rules as rules
from calibcli.watch import late, report, state_file
from calibcli.watch._bets import WatchedRule, joined
from calibcli.watch.late import Labels, Waiting
from calibcli.watch.state_file import AGAIN, IDS, NIGHTS, SEEN, Hashes, Settings, WatchState

# Functions on states: add the rows of a night, or merge another state.

NIGHT = re.compile(r"\d{4}-\d\d-\d\d")
DISTINCT = 20  # distinct confidences from which a batch without ids can be recognised


def today() -> str:
    """Return the date in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def tomorrow() -> str:
    """Return the latest date that it can be in any time zone while it is `today` in UTC."""
    return (datetime.date.fromisoformat(today()) + datetime.timedelta(days=1)).isoformat()


def resolved_night(night: str, state: WatchState, path: str) -> str:
    """Return the night that rows are added to: `night`, or by default today.

    Raises:
        UsageError: it is no date, or has not come in any time zone.
        InputError: it is over, or the state has a night in the future.
    """
    if night:
        try:
            if not NIGHT.fullmatch(night):
                raise ValueError
            datetime.date.fromisoformat(night)
        except ValueError:
            raise UsageError(f"--night {night[:40]} is no date", f"write --night {today()}") from None
    date = night or today()
    if date > tomorrow():
        problem = f"the night {date} has not come yet, and would close the state to every night before it"
        raise UsageError(problem, f"write the date of the rows, such as {today()}")
    if state.night > date:
        if not night:
            problem = f"the last night of {path} is {state.night}, which has not come yet: today is {date}"
            raise InputError(problem, "set the clock, or say which night it is: --night DATE")
        problem = f"the night {date} is over: {path} is at {state.night}"
        raise InputError(problem, "pass nights in order; labels of its rows may come later (--labels), rows may not")
    return date


def refuse_future(state: WatchState, name: str) -> None:
    """Refuse a state with a night in the future, as the nights before it could no longer be added.

    Raises:
        InputError: the last night has not come yet.
    """
    if state.night > tomorrow():
        problem = f"the last night of {name} is {state.night}, which has not come yet: today is {today()}"
        raise InputError(problem, "set the clock of the machine that counted its rows, and count them again")


def go_on_to(night: str, state: WatchState) -> None:
    """End the current night and begin `night`, unless it is the current one."""
    if night == state.night:
        return
    if state.night:
        for stream in state.streams.values():
            stream.close()
    state.night, state.nights, state.rows_tonight = night, state.nights + 1, 0


def add(
    state: WatchState,
    source: RecordedOutputs,
    baselines: Any,
    path: str,
    night: str,
    hashed: bool = False,
    labelled: bool = True,
) -> str:
    """Count the rows of a source. Return a note if they are in the state already and nothing was added, else "".

    Rows are refused before anything is changed.

    Args:
        baselines: baselines by path, for rules against a baseline.  path: tonight's baseline.
        hashed: whether ids are hashes.  labelled: False counts the rows at the worst of all labels.

    Raises:
        InputError: some of the rows are in the state, they have sampling weights, or a column is missing.
    """
    name = source.predictions.source
    rules.refuse_sampling_weights(source)
    evidence_by_rule = {}
    for i, rule in enumerate(extensions.with_progress(state.settings.rules, lambda rule: rule.rule)):
        cap = state.settings.cap
        by_slice = (
            rules.evidence(rule, source, baselines, path, cap) if labelled else rules.worst_evidence(rule, source, cap)
        )
        if isinstance(by_slice, str):
            problem = f"{rule.rule} cannot be watched tonight: {by_slice}"
            raise InputError(problem, "nothing was counted; see --by, --baseline")
        evidence_by_rule[i] = by_slice
    digest, hashes = _batch_digest(state, source, hashed)
    content = _content_digest(source) if labelled else ""
    if digest and digest in state.batches:
        return _counted_already(name)
    if content and content in state.batches and hashed:  # they wait no more
        return f"{name}: its scores and labels are in the state already, under other ids, and do not count again"
    if content and content in state.batches:
        problem = f"the scores and labels of {name} are in the state already, in another order or under other ids"
        raise InputError(f"{problem}; nothing was counted", "pass rows that are new, under the ids that they keep")
    if hashes is not None:
        _refuse_repeated(state, hashes, name, source.predictions.groups is not None)
        _remember(state, hashes)
    go_on_to(night, state)
    for i, by_slice in evidence_by_rule.items():
        for value, evidence in by_slice.items():
            state.streams[i, value].add(*evidence)
    state.rows += source.predictions.n
    state.rows_tonight += source.predictions.n
    state.batches += [one for one in (digest, content) if one]
    if (ids := source.predictions.ids) is not None:
        new = np.empty(min(len(ids), state_file.RECENT), SEEN)
        last = source.predictions.take(np.arange(len(ids) - len(new), len(ids)))
        new["id"] = last.ids if hashed else late.hashed(np.asarray(last.ids), state.settings.digest)
        new["scores"], new["label"] = _fingerprints(last), last.labels if labelled else -1
        state.seen = np.concatenate([state.seen, new])[-state_file.RECENT :]
    return ""


def _counted_already(name: str) -> str:
    return f"{name}: these rows are in the state already, and count once"


def _fingerprints(rows: Predictions) -> Any:
    """Return (N,) uint32 that differ where the confidence or the prediction does."""
    table = columns(dataclasses.replace(rows, labels=np.maximum(rows.labels, 0)), class_bins=())
    bits = table.confidence.astype(np.float64).view(np.uint64) ^ table.predicted.astype(np.uint64) << np.uint64(40)
    return (bits * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)


def unseen(state: WatchState, rows: Predictions, ids: Any) -> tuple[Predictions, str]:
    """Return the rows that are new, and a note on those that are not; these may bring labels to rows that wait.

    Args:
        ids: hashes of the ids.

    Raises:
        InputError: a row is in the state with other scores, or another label.
    """
    old = np.zeros(rows.n, bool)
    for i, waiting in enumerate(state.waiting):
        here, there = late.matches(ids, waiting.ids)
        if len(here):
            same = (rows.take(here).logits == waiting.rows.take(there).logits).all(axis=1)
            _refuse_changed(rows, here[~same], "other scores")
            labelled = rows.labels[here] >= 0
            labels = waiting.rows.labels.copy()
            _refuse_changed(
                rows, here[labelled & (labels[there] >= 0) & (labels[there] != rows.labels[here])], "another label"
            )
            labels[there[labelled]] = rows.labels[here[labelled]]
            state.waiting[i] = dataclasses.replace(waiting, rows=dataclasses.replace(waiting.rows, labels=labels))
            old[here] = True
    here, there = late.matches(ids, state.seen["id"])
    if len(here):
        _refuse_changed(rows, here[_fingerprints(rows.take(here)) != state.seen["scores"][there]], "other scores")
        labels = state.seen["label"][there]
        _refuse_changed(
            rows, here[(labels >= 0) & (rows.labels[here] >= 0) & (labels != rows.labels[here])], "another label"
        )
        old[here] = True
    note = f"{rows.source}: {old.sum():,} of {rows.n:,} rows are in the state already, and count once"
    if old.all():
        note = _counted_already(rows.source)
    return (rows.take(np.flatnonzero(~old)), note) if old.any() else (rows, "")


def _refuse_changed(rows: Predictions, changed: Any, what: str) -> None:
    if len(changed):
        problem = (
            f"id {printable(str(np.asarray(rows.ids)[changed[0]]), 40)} of {rows.source} is in the state with {what}"
        )
        more = f" ({len(changed):,} rows in all)" if len(changed) > 1 else ""
        raise InputError(f"{problem}{more}; nothing was counted", "pass each row once, or as it was")


def record(state: WatchState) -> None:
    """Decide which rules raise an alarm or are kept, by their evidence, and record tonight's entry of the history."""
    numbers = []
    for place, stream in state.streams.items():
        logs = {key: float(value) for key, value in stream.log_evidence().items()}
        for key, limit in state.limits(place).items():
            if logs[key] >= limit:
                stream.crossed.setdefault(key, state.night)
        tonight = stream.value(tonight=True)
        powers = [logs[key] / np.log(10) for key in ("fail", "pass", "drift")]
        numbers.append([_rounded(tonight), *map(_rounded, powers)])
    entry = {"night": state.night, "rows": state.rows_tonight, "streams": numbers}
    earlier = [one for one in state.history if one["night"] != state.night]
    state.history = _by_night([*earlier, entry])


def record_empty(state: WatchState, night: str) -> None:
    """Record a night without rows in the history. The streams stay at the night before."""
    if all(entry["night"] != night for entry in state.history):
        entry = {"night": night, "rows": 0, "streams": [[None] * 4 for _ in state.streams]}
        state.history = _by_night([*state.history, entry])


def merged(first: WatchState, other: WatchState, path: str) -> WatchState:
    """Merge two states. Parts of a night, merged in any order, give the state of all their rows.

    A part has one night, and is added to that night. If both states have earlier nights, their wealth multiplies too,
    and the drift alarm is the mean of both, which is valid but not the same as that of one stream.

    Raises:
        InputError: rules or models differ, both have the same rows, or the night of a part is over.
    """
    if first.settings.digest != other.settings.digest:
        problem = f"{path} has other rules, or belongs to another model"
        raise InputError(problem, "merge states that were started with the same rules, --alpha and --name")
    if set(first.batches) & set(other.batches):
        raise InputError(f"{path} holds rows that the state has too", "merge each part once")
    _refuse_repeated(first, other.ids[other.ids <= first.ids_cut], path)
    mine, its = (np.concatenate([one.seen["id"], *(w.ids for w in one.waiting)]) for one in (first, other))
    if len(np.intersect1d(mine, its)):
        raise InputError(f"{path} holds rows that the state has too", "merge each part once")
    waiting = [*first.waiting, *other.waiting]
    if over := [one.night for one in waiting if one.night < max(first.night, other.night)]:
        problem = f"the night {min(over)}, which waits for labels, is over in the other state"
        raise InputError(problem, "merge parts before the next night is counted")
    if not (first.night and other.night):
        return dataclasses.replace(first if first.night else other, waiting=waiting)
    parts = [state.nights <= 1 for state in (first, other)]
    late = min(first.night, other.night)
    if late != max(first.night, other.night):
        behind = first if first.night == late else other
        if behind.nights <= 1 and max(first.nights, other.nights) > 1:
            problem = f"the night {late} of {path} is over: the state is at {max(first.night, other.night)}"
            raise InputError(problem, "merge parts before the next night begins")
        go_on_to(max(first.night, other.night), behind)
    for state, part in zip((first, other), parts):
        for stream in state.streams.values():
            stream.crossed = {} if part else stream.crossed
    first, other = _same_slices(first, other)
    union = WatchState(first.settings, first.night, max(first.nights, other.nights), first.rows + other.rows)
    union.rows_tonight = first.rows_tonight + other.rows_tonight
    union.streams = {key: joined(stream, other.streams[key]) for key, stream in first.streams.items()}
    union.history = _merged_history(first.history, other.history)
    union.batches = [*first.batches, *other.batches]
    union.waiting, union.seen = waiting, np.concatenate([first.seen, other.seen])[-state_file.RECENT :]
    union.ids, union.ids_cut = first.ids, min(first.ids_cut, other.ids_cut)
    _remember(union, other.ids)
    return union


def _same_slices(first: WatchState, other: WatchState) -> tuple[WatchState, WatchState]:
    """Give two states the slices of both. One that both got has the smaller of its two shares of α."""
    rules = []
    for mine, its in zip(first.settings.rules, other.settings.rules, strict=True):
        came = dict(zip(its.values, its.since))
        for value, k in zip(mine.values, mine.since):
            came[value] = max(k, came.get(value, 0))
        values = sorted(came, key=lambda value: came[value])  # as they came
        rules.append(
            dataclasses.replace(mine, values=values, since=[came[value] for value in values]) if came else mine
        )
    return first.widened(rules), other.widened(rules)


def _by_night(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the history by night, as a night without rows may be recorded before an earlier one; keep the last ones."""
    return sorted(history, key=lambda one: str(one["night"]))[-NIGHTS:]


def _merged_history(first: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge histories by night. A night of both has only the sum of its rows until the evidence is looked at again."""
    by_night = {entry["night"]: entry for entry in first}
    for entry in other:
        earlier = by_night.get(entry["night"])
        if earlier is not None:
            nothing = [[None] * 4 for _ in entry["streams"]]
            entry = {**entry, "rows": earlier["rows"] + entry["rows"], "streams": nothing}
        by_night[entry["night"]] = entry
    return [by_night[night] for night in sorted(by_night)]


def copied(state: WatchState) -> WatchState:
    """Copy a state, so that an update that is refused changes nothing."""
    streams = {key: dataclasses.replace(stream, crossed=dict(stream.crossed)) for key, stream in state.streams.items()}
    history, batches, waiting = [*state.history], [*state.batches], [*state.waiting]
    return dataclasses.replace(state, streams=streams, history=history, batches=batches, waiting=waiting)


def _batch_digest(
    state: WatchState, source: RecordedOutputs, hashed: bool = False, labels: bool = False
) -> tuple[str, Hashes | None]:
    """Return a digest of the rows, and the hashes of their groups, or ids, none of which may come twice.

    The digest is "" where other rows may well look the same.

    Args:
        hashed: whether ids, and names of groups, are hashes already.  labels: whether labels are in the digest of rows
            with ids, which may come again with more of them; they were in states of schema 1.

    Raises:
        InputError: samples are there twice, or the ids are not unique.
    """
    rows, table = source.predictions, source.whole.columns
    repeats = rows.record.repeats
    if rows.groups is None and rows.ids is not None and len(np.unique(rows.ids)) < len(rows.ids):
        problem = f"ids in {rows.source} are not unique, so that a row may be there twice"
        fix = "give each row its own id (--ids KEY)"
        raise InputError(problem, fix if repeats is None else f"{fix}; {repeats.fix}")
    if repeats is not None:
        raise InputError(f"{rows.source}: {repeats.said(rows.n)}; nothing was counted", repeats.fix)
    names = rows.ids
    if rows.groups is not None and rows.group_names is not None:
        names = rows.group_names[np.unique(rows.groups)]
    hashes = names if names is None or hashed else late.hashed(names, state.settings.digest)
    if hashes is None and len(np.unique(table.confidence[:100_000])) < DISTINCT:
        return "", None
    digest = hashlib.blake2b(digest_size=8)
    for column in (rows.labels if labels or rows.ids is None else None, table.confidence, hashes):
        digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
    return digest.hexdigest(), hashes


def _content_digest(source: RecordedOutputs) -> str:
    """Return a digest of labels and confidences in any order, without ids; "" where other rows may have the same."""
    labels, confidence = source.predictions.labels, source.whole.columns.confidence
    if len(np.unique(confidence[:100_000])) < DISTINCT:
        return ""
    order = np.lexsort((labels, confidence))
    digest = hashlib.blake2b(digest_size=8, person=b"content")
    for column in (labels, confidence):
        digest.update(np.ascontiguousarray(column[order]).tobytes())
    return digest.hexdigest()


def _refuse_repeated(state: WatchState, hashes: Hashes, name: str, grouped: bool = False) -> None:
    repeated = int(np.isin(hashes[hashes <= state.ids_cut], state.ids).sum())
    if repeated:
        units = "groups" if grouped else "rows"
        share = "" if state.ids_cut == 2**64 - 1 else f", of the {'groups' if grouped else 'ids'} that a state keeps"
        problem = f"{repeated} {units} of {name} are in the state already{share}; nothing was counted"
        fix = "pass all rows of a group at once, or leave out groups that came before: --group is for rows of one night"
        raise InputError(problem, fix if grouped else "pass the rows that are new")


def _remember(state: WatchState, hashes: Hashes) -> None:
    """Keep the smallest hashes: a sample of the ids that stays small and can be merged."""
    every = np.unique(np.concatenate([state.ids, hashes]))
    every = every[every <= state.ids_cut]
    if len(every) > IDS:
        every = every[:IDS]
        state.ids_cut = int(every[-1])
    state.ids = every


def _rounded(number: float) -> float | None:
    return float(f"{number:.3g}") if np.isfinite(number) else None


# A session: a state with its file.

BLOCK = 2_000_000  # most rows whose columns are in memory at once


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Options of a watch. None stands for the value of the state, or the default.

    Attributes:
        rules: `max`, `min`, `margin`, `baseline`, `alpha`, `bins` and `config` of a gate.
        per_year: probability of a false drift alarm.  nll_cap: most nats of a row.  model: name of the model.
        labelled: share of its rows that have labels from which on a night counts, the others at their worst.
        most_waiting: nights that may wait for labels; with more the watch is stuck, and NOT RUN.
        reading: how files are read.
    """

    rules: Request
    per_year: PerYear | None = None
    nll_cap: Nats | None = None
    model: str = ""
    labelled: Share = 1.0
    most_waiting: Rows = report.MOST_WAITING
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)


class WatchSession:
    """A state that is read from a file, or kept in memory, updated, and written.

    Args:
        path: file of the state, which need not exist yet; None for memory.
        restart: start a new state, and keep the existing file under another name.

    Raises:
        InputError: the file is no state, or was changed by another program.
    """

    def __init__(self, path: str | os.PathLike[str] | None, terms: Terms, restart: bool = False) -> None:
        self.path, self.terms = path, terms
        self.name = "the state" if path is None else str(path)
        self.state: WatchState | None = None
        self.read_stamp: tuple[int, ...] = ()  # stamp of the file that holds the state; () after a change
        self.aside = restart and path is not None and os.path.exists(path)
        self.read_again()
        self.files: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def read_again(self) -> None:
        """Read the state that is in the file now, unless it is the one that was read or written last.

        Raises:
            InputError: as for a new session.
        """
        if self.path is None or self.aside or not os.path.exists(self.path):
            return
        current = stamp(self.path)
        if current != self.read_stamp:
            self.state = state_file.load(self.path, update=True)
        self.read_stamp = current

    def update(
        self, given: Predictions | str | Path, night: str = "", baseline: str = "", labels: Labels | None = None
    ) -> None:
        """Count rows in memory or of a file, or merge a file that is a state. `keep` writes the result.

        Args:
            labels: of these rows and others, by id.

        Raises:
            InputError: the rows or the state are refused, and nothing of them is counted.
        """
        self.read_stamp = ()
        if not isinstance(given, Predictions) and late.is_state(given):
            self.merge(state_file.load(given), str(given))
            return
        config = self._config(str(given) if not isinstance(given, Predictions) else "rows", baseline)
        reading = check.reading(self.terms.reading, config)
        texts = None
        try:
            if isinstance(given, Predictions):
                rows = given
            else:
                wanted = columns_wanted(config)
                rows, texts = late.read(Path(given), reading, wanted, labels, config.pins, self.terms.reading)
        except NoRows as error:
            if self.state is None:  # a new state needs rows, to know what their scores are
                raise
            state = copied(self.state)
            night = resolved_night(night, state, self.name)
            record_empty(state, night)
            no_rows = f"{error.problem}: a night of 0 rows changes nothing"
            self.notes.append(f"{no_rows}; was there no traffic on {night}?")
            self.state = state
            return
        old = self.state and self.state.settings
        if old and not rows.record.labelled and (rows.classes is None or rows.event == old.event):
            rows = dataclasses.replace(rows, classes=old.names or rows.classes)
        source = RecordedOutputs(rows, config)
        if config.decision is not None:
            config.decision.refuse_rows(source.files, rows, self.terms.rules.threshold)
        read = recorded_reading(source)
        if read is not None and (problem := otherwise(config, read)):
            raise InputError(f"{problem}; nothing was counted", "mend the export, or calib init --update")
        settings = self._settings(source, config)
        state = WatchState.begin(settings) if self.state is None else copied(self.state)
        if self.state is not None:
            state_file.refuse_other_settings(self.state, settings, self.name)
        digests = {""} if rows.n > BLOCK else {_batch_digest(state, source, labels=one)[0] for one in (False, True)}
        if rows.ids is not None:
            ids = late.hashed(rows.ids, state.settings.digest)
            rows, note = unseen(state, self._labelled(rows, ids, texts, labels, state.settings.digest), ids)
            self.notes += [note] if note else []
        if rows.n and digests & {one for one in state.batches if one}:
            self.notes.append(_counted_already(rows.source))
        elif rows.n:
            state = self._take_in(state, RecordedOutputs(rows, config), reading, night, baseline)
        self.state = self._count_nights(state, config)
        self.files += [*source.files, *map(dict, config.files)]

    def label(self, labels: Labels) -> None:
        """Give labels to rows that wait, by id, and count the nights that need no more of them.

        Raises:
            InputError: a label of no class, or a row has another one.
        """
        if self.state is None:
            return
        state, settings, base = copied(self.state), self.state.settings, self.terms.reading.get("label_base") or 0
        ids, matched = labels.hashed(settings.digest), np.zeros(len(labels.ids), bool)
        for i, waiting in enumerate(state.waiting):
            here, there = late.matches(ids, waiting.ids)
            matched[here] = True
            state.waiting[i] = dataclasses.replace(waiting, rows=labels.given(waiting.rows, here, there, base))
        here, there = late.matches(ids, state.seen["id"])
        matched[here] = True
        if len(here) and settings.classes:
            every = state.seen["label"].astype(np.int64)
            counted = Predictions(
                scores=ArrayScores(np.empty((len(every), settings.classes))),
                labels=every,
                classes=settings.names or None,
            )
            labels.given(counted, here, there, base)  # which refuses other labels than those
            if missed := int((every[there] < 0).sum()):
                self.notes.append(f"{missed:,} labels came after their night was counted, at the worst case for these")
        # Rows that were counted long ago, or in this call, are remembered by their number alone.
        if (~matched).sum() > max(0, state.rows - state_file.RECENT):
            rows = f"{(~matched).sum():,} of {len(matched):,} labels in {labels.name}"
            self.notes.append(
                f"{rows} are of rows that neither wait nor are among the last {state_file.RECENT:,} counted"
            )
        self.read_stamp = ()
        self.state = self._count_nights(state, self._config("labels", ""))
        self.files += [dict(entry) for entry in labels.files]

    def _labelled(self, rows: Predictions, ids: Any, texts: Any, labels: Labels | None, salt: str) -> Predictions:
        """Return rows with the labels of their file, or those that come by id; -1 where there is none."""
        if rows.record.labelled:
            return rows
        rows, base = dataclasses.replace(rows, labels=np.full(rows.n, -1)), self.terms.reading.get("label_base") or 0
        if texts is not None:
            labelled = np.flatnonzero(~late.absent(texts))
            rows = Labels(rows.source, np.asarray(rows.ids), texts).given(rows, labelled, labelled, base)
        if labels is not None:
            rows = labels.given(rows, *late.matches(labels.hashed(salt), ids), base)
        return rows

    def _take_in(
        self, state: WatchState, source: RecordedOutputs, reading: Mapping[str, Any], night: str, baseline: str
    ) -> WatchState:
        """Count new rows, or let them wait for labels: their own, or those of a night before."""
        asked_night, night = night, resolved_night(night, state, self.name)
        if not asked_night and state.night == night and state.rows_tonight and not self.files:
            self.notes.append(
                f"{night}, today in UTC, has {state.rows_tonight:,} rows already, and these count for the same night, "
                "in which no drift is seen; if they are of another night, write its date: --night DATE"
            )
        rows, path = source.predictions, baseline or _baseline(source.config)
        if (not rows.record.labelled and (rows.ids is None or (rows.labels < 0).any())) or any(
            one.night <= night for one in state.waiting
        ):
            if path:
                fix = "pass the rows when all of them have labels"
                raise InputError("rows that are compared with a baseline cannot wait for labels", fix)
            self._refuse_for_good(state, source)
            state.waiting.append(Waiting.of(night, rows, state.settings.digest))
        else:
            state = self._with_new_slices(state, source)
            baselines = Baselines(source, reading)
            for part in _blocks(source):
                note = add(state, part, baselines, path, night)
                self.notes += [note] if note else []
            record(state)
            self.files += baselines.files
        self.notes += [*source.unjudged(), *rows.notes]
        if rows.ids is None and rows.groups is None:
            unique = rows.record.unique
            which = f"--ids {shlex.quote(unique[0])} if that names them" if unique else "name them with --ids"
            note = "rows have no ids: rows that come twice are noticed only where a whole batch does"
            self.notes.append(f"{note}; {which}")
        return state

    def _refuse_for_good(self, state: WatchState, source: RecordedOutputs) -> None:
        """Refuse rows that could never be counted, as rows that wait are in the state to stay."""
        rules.refuse_sampling_weights(source)
        hashes, rows = _batch_digest(state, source)[1], source.predictions
        if hashes is not None:
            groups = [one.rows.group_names for one in state.waiting if one.rows.group_names is not None]
            for ids in (state.ids, *(groups if rows.groups is not None else ())):
                compared = dataclasses.replace(state, ids=ids, ids_cut=state.ids_cut if ids is state.ids else 2**64 - 1)
                _refuse_repeated(compared, hashes, rows.source, rows.groups is not None)

    def _count_nights(self, state: WatchState, config: Config) -> WatchState:
        """Count the nights that need no more labels, in order, up to the first that does."""
        gates = tuple(rules.gate_of(rule) for rule in state.settings.rules)
        config = dataclasses.replace(config, gates=gates)
        for night, (n, labelled) in state.nights_waiting.items():
            if labelled < n and labelled < self.terms.labelled * n - 1e-9:
                break
            for rows in [one.rows for one in state.waiting if one.night == night]:
                has_label = rows.labels >= 0
                if rows.groups is not None:  # a group counts as one row
                    has_label = ~np.isin(rows.groups, rows.groups[~has_label])
                whole = RecordedOutputs(dataclasses.replace(rows, labels=np.maximum(rows.labels, 0)), config)
                state = self._with_new_slices(state, whole)
                for chosen, there in ((has_label, True), (~has_label, False)):
                    if chosen.any():
                        part = (
                            whole
                            if chosen.all()
                            else RecordedOutputs(whole.predictions.take(np.flatnonzero(chosen)), config)
                        )
                        note = add(state, part, None, "", night, hashed=True, labelled=there)
                        self.notes += [note] if note else []
                if not has_label.all():
                    state.batches.append(_batch_digest(state, whole, hashed=True)[0])
                    missing = f"{(~has_label).sum():,} of {rows.n:,} rows of {night}"
                    self.notes.append(f"{missing} have no label, and count at the worst case for each claim")
            state.waiting = [one for one in state.waiting if one.night != night]
            record(state)
        return state

    def merge(self, other: WatchState, name: str) -> None:
        """Add the rows of another state.

        Raises:
            InputError: it has other rules, or rows that are in this one too.
        """
        self.read_stamp = ()
        refuse_future(other, name)
        other = copied(other)
        self.state = merged(copied(self.state), other, name) if self.state else other
        if self.state.night:
            record(self.state)
        if self.state.waiting:
            self.state = self._count_nights(self.state, self._config(name, ""))

    def keep(self) -> None:
        """Write the state to its file."""
        if self.path is None or self.state is None:
            return
        if self.aside:
            self._keep_old_file()
        state_file.save(self.state, self.path, __version__)
        self.read_stamp = stamp(self.path)

    def result(self) -> Result:
        """Make the result of the state as it is now.

        Raises:
            UsageError: there is no state.
        """
        if self.state is None:
            fix = "pass rows and rules: calib watch STATE NEW --max ece=0.03"
            raise UsageError(f"{self.name} is not there yet", fix)
        result = report.result(self.state, self.terms.most_waiting)
        notes = list(dict.fromkeys([*result.notes, *self.notes]))
        return dataclasses.replace(result, notes=notes, provenance={"inputs": self.files})

    def _config(self, named: str, baseline: str) -> AskedConfig:
        """Return the rules of the options, or without any those of the state."""
        request = self.terms.rules
        asked = bool(request.max or request.min or request.margin or request.config or request.threshold)
        beside = (baseline or request.baseline) if request.margin else None
        reading = dict(self.terms.reading)
        if self.state is not None and not asked and reading.get("by"):
            columns = sorted({rule.by for rule in self.state.settings.rules if rule.by})
            if sorted(set(reading.pop("by"))) != columns:
                problem = f"{self.name} watches slices by {', '.join(columns) or 'no column'}"
                raise UsageError(problem, f"leave --by out, or repeat the rules with it; {AGAIN}")
        config = check.asked(dataclasses.replace(request, input=named, baseline=beside, reading=reading))
        if self.state is not None and not asked:
            if any(rule.baseline for rule in self.state.settings.rules) and not baseline:
                raise UsageError(f"{self.name} has a rule against a baseline", "pass tonight's: --baseline FILE")
            gates = tuple(rules.gate_of(rule, baseline) for rule in self.state.settings.rules)
            return dataclasses.replace(config, gates=gates, files=())
        if not config.gates:
            raise UsageError("no rule to watch", "write --max ece=0.03, or gates in calib.toml")
        return config

    def _settings(self, source: RecordedOutputs, config: Config) -> Settings:
        """Return the settings for these rules and rows; options that are not given have the values of the state."""
        old, rows = self.state.settings if self.state else None, source.predictions
        cap = self.terms.nll_cap or (old.cap if old else Settings.cap)
        watched, unwatched, fixes = list[WatchedRule](), list[str](), list[str]()
        for gate in config.gates:
            try:
                watched.append(self._as_stored(rules.watched(gate, source, cap, begins=old is None)))
            except UsageError as error:
                if not gate.file:
                    raise
                unwatched.append(f"not watched: {error.problem}")
                fixes.append(error.fix)
        if not watched:
            raise UsageError("; ".join(unwatched), fixes[0])
        self.notes += unwatched
        alpha = self.terms.rules.alpha or (old.alpha if old else config.alpha)
        return Settings(
            rules=watched,
            alpha=alpha,
            per_year=self.terms.per_year or (old.per_year if old else Settings.per_year),
            cap=cap,
            classes=source.k or 0,
            names=list(map(str, rows.classes or ())),
            event=rows.event,
            model=self.terms.model or (old.model if old else ""),
        )

    def _as_stored(self, rule: WatchedRule) -> WatchedRule:
        """Return the rule with the slices that the state watches."""
        if self.state is None or not rule.by:
            return rule
        return next((r for r in self.state.settings.rules if (r.rule, r.by) == (rule.rule, rule.by)), rule)

    def _with_new_slices(self, state: WatchState, source: RecordedOutputs) -> WatchState:
        """Return the state with the slices that only these rows have, or note that they are not watched."""
        watched = []
        for rule in state.settings.rules:
            parts = source.slices(rules.gate_of(rule)) if rule.by else ""
            new = [] if isinstance(parts, str) or not any(parts) else sorted(v for v in parts if v not in rule.values)
            if new and rule.since and len(rule.values) + len(new) <= rules.MOST_SLICES:
                rule = rule.widened(new)
                share = f"an alarm on each needs E of {rule.family(new[0]) / state.settings.alpha:,.0f}"
                self.notes.append(f"{rule.by} = {first_few(new, 5)}: watched from now on; {share}")
            elif new:
                why = f"a state watches {rules.MOST_SLICES}" if rule.since else "its slices were fixed when it began"
                self.notes.append(f"{rule.by} = {first_few(new, 5)} came later and is not watched: {why}; {AGAIN}")
            watched.append(rule)
        return state if watched == list(state.settings.rules) else state.widened(watched)

    def _keep_old_file(self) -> None:
        assert self.path is not None
        old = Path(self.path)
        for i in range(1, 1000):
            copy = old.with_name(f"{old.stem}.before-{today()}{'' if i == 1 else f'-{i}'}{old.suffix}")
            if not copy.exists():
                shutil.copy2(old, copy)
                self.notes.append(f"the state that was there is kept as {copy}")
                self.aside = False
                return
        raise InputError(f"there are 1,000 states beside {old} already", "move them to another folder")


def _blocks(source: RecordedOutputs) -> Iterator[RecordedOutputs]:
    """Split many rows into blocks; rows in groups, or beside a baseline, must stay together."""
    rows, config = source.predictions, source.config
    if rows.n <= BLOCK or rows.groups is not None or _baseline(config):
        yield source
        return
    for start in range(0, rows.n, BLOCK):
        yield RecordedOutputs(rows.take(np.arange(start, min(start + BLOCK, rows.n))), config)


def _baseline(config: Config) -> str:
    """Return the baseline of the first rule that has one, or ""."""
    return next((gate.baseline for gate in config.gates if gate.baseline), "")
