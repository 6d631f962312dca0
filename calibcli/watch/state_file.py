"""The state of a watch, in one JSON file: its rules, their streams, and which nights and rows were counted.

Of rows that were counted, the file has a sample of the hashes of their ids, or groups, a digest of each batch, and what
recognises the last ones. Rows that wait for labels are in it, with their scores. It is written whole or not at all, a
checksum detects changes by other programs, and a process that updates it makes others wait.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from calibcli.core import validation
from calibcli.core.errors import CalibError, InputError, UsageError, printable
from calibcli.core.files import atomic
from calibcli.core.options import Alpha, Nats, PerYear, Range
from calibcli.gate.baseline import squeezed, unsqueezed
from calibcli.scores.files.source import Source
from calibcli.watch._bets import Stream, WatchedRule, thresholds
from calibcli.watch.late import FORMAT, StoredRows, Waiting

SCHEMA = 2  # 1: without `waiting` and `seen`
NIGHTS = 400  # nights of the history that are kept
BATCHES = 1024  # digests that are kept, two per batch
MOST = 1 << 26  # most bytes of the history, unpacked
LARGEST = 1 << 29  # most bytes of a state: a hundred slices of many rules with a thousand bins
IDS = 1024  # hashes that are kept, the smallest
SEEN = np.dtype([("id", "<u8"), ("scores", "<u4"), ("label", "<i4")])  # of a row; the label is -1 where there was none
RECENT = 1 << 12  # rows of which this is kept, the last
COUNTS = ("night", "nights", "rows", "rows_tonight")  # fields of a state that are stored as they are
Hashes = npt.NDArray[np.uint64]
AGAIN = "--restart starts a new state and keeps this one beside it"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that a state is started with: rules, error probabilities, and the model.

    Attributes:
        alpha: error probability of each claim, over all looks.
        per_year: probability of a false drift alarm, in a year and in all years together.
        cap: most nats that a row counts for.
        classes, names, event: number and names of the classes, and the event.  model: its name, or "".
    """

    rules: Sequence[WatchedRule]
    alpha: Alpha = 0.05
    per_year: PerYear = 0.05
    cap: Nats = 10.0
    classes: int = 0
    names: Sequence[str] = ()
    event: str = ""
    model: str = ""

    @property
    def digest(self) -> str:
        """Key that ids are hashed with; states with the same settings share it, so that they can be merged.

        It is of the values that the watch began with: those that came later do not change it.
        """
        data = dataclasses.asdict(self)
        for rule in data["rules"]:
            since = rule.pop("since")
            if since:
                rule["values"] = rule["values"][: list(since).count(1)]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class StoredState:
    """A state in the form of its file."""

    format: str
    schema: int
    version: str
    settings: Settings
    night: str
    nights: Annotated[int, Range(0, 10**7)]
    rows: Annotated[int, Range(0, 10**15)]
    rows_tonight: Annotated[int, Range(0, 10**15)]
    streams: Sequence[Mapping[str, Any]]
    history: str
    batches: Sequence[str]
    ids: str
    ids_cut: str
    waiting: Sequence[StoredRows] = ()
    seen: str = ""


@dataclass(eq=False)
class WatchState:
    """The state of a watch.

    Attributes:
        night: the night that rows are added to, `2026-11-22`; "" before the first.  nights: how many there were.
        rows: number of rows of all nights.  rows_tonight: that of this night.
        streams: by rule (its index in `settings.rules`) and slice.
        history: one entry per night: `night`, `rows`, and the numbers of each stream.
        batches: digests of the rows that were added.
        ids: the smallest hashes of the ids, or groups: all those up to `ids_cut`.
        waiting: rows that are not counted yet, as labels of their night, or of an earlier one, are to come.
        seen: the last rows that were counted, as `SEEN`.
    """

    settings: Settings
    night: str = ""
    nights: int = 0
    rows: int = 0
    rows_tonight: int = 0
    streams: dict[tuple[int, str], Stream] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    ids: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    ids_cut: int = 2**64 - 1
    waiting: list[Waiting] = field(default_factory=list)
    seen: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, SEEN))

    @property
    def nights_waiting(self) -> dict[str, tuple[int, int]]:
        """By night that waits, in order: its rows, and how many of them have labels."""
        counts = dict.fromkeys(sorted(one.night for one in self.waiting), (0, 0))
        for waiting in self.waiting:
            n, labelled = counts[waiting.night]
            counts[waiting.night] = n + waiting.rows.n, labelled + waiting.labelled
        return counts

    @classmethod
    def begin(cls, settings: Settings) -> WatchState:
        """Start a state without rows."""
        streams = {
            (i, value): Stream.begin(rule)
            for i, rule in enumerate(settings.rules)
            for value in (rule.values if rule.by else ("",))
        }
        return cls(settings, streams=streams)

    def limits(self, key: tuple[int, str]) -> dict[str, float]:
        """Return the log E at which each claim on a stream is made."""
        return thresholds(self.streams[key].watched, self.settings.alpha, self.settings.per_year, key[1])

    def widened(self, rules: Sequence[WatchedRule]) -> WatchState:
        """Return the state with these rules, which have more values than before; each new one begins a stream."""
        wide = WatchState.begin(dataclasses.replace(self.settings, rules=rules))
        old = list(self.streams)
        for key, stream in wide.streams.items():
            kept = self.streams.get(key)
            wide.streams[key] = stream if kept is None else dataclasses.replace(kept, watched=stream.watched)
            wide.streams[key].night = max(self.nights, 1) if kept is None else kept.night
        places = [old.index(key) if key in self.streams else None for key in wide.streams]
        history = [
            {**entry, "streams": [[None] * 4 if place is None else entry["streams"][place] for place in places]}
            for entry in self.history
        ]
        return dataclasses.replace(self, settings=wide.settings, streams=wide.streams, history=history)

    def pack(self, version: str) -> dict[str, Any]:
        """Return the state as plain data, with a checksum."""
        packed = StoredState(
            format=FORMAT,
            schema=SCHEMA,
            version=version,
            **{name: getattr(self, name) for name in ("settings", *COUNTS)},
            streams=[
                {"rule": i, "slice": name, "crossed": s.crossed, "arrays": _packed_arrays(s)}
                for (i, name), s in self.streams.items()
            ],
            history=_packed_history(self.history[-NIGHTS:]),
            batches=self.batches[-BATCHES:],
            ids=base64.b64encode(self.ids.astype("<u8").tobytes()).decode(),
            ids_cut=f"{self.ids_cut:x}",
            waiting=[one.pack() for one in self.waiting],
            seen=base64.b64encode(self.seen[-RECENT:].tobytes()).decode(),
        )
        data = {**vars(packed), "settings": dataclasses.asdict(self.settings)}
        data["waiting"] = [vars(one) for one in packed.waiting]
        return {**data, "checksum": checksum(data)}


def checksum(data: Mapping[str, Any]) -> str:
    """Compute the checksum of everything but itself, written in one canonical way."""
    content = {key: value for key, value in data.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load(path: str | os.PathLike[str], update: bool = False) -> WatchState:
    """Read a state; `update` says that it will be written again.

    Raises:
        InputError: the file cannot be read, is no state, was changed by another program, or is of a later version.
    """
    source, name = Source(Path(path), update=update), str(path)
    if source.size > LARGEST:
        problem = f"{name} is not the state of a watch: none has more than {LARGEST >> 20} MB"
        raise InputError(problem, "name a new file, or one that calib watch wrote")
    try:
        data = json.loads(source.read())
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{name} is not the state of a watch", "name a new file, or one that calib watch wrote")
    if data.get("schema") not in range(1, SCHEMA + 1):
        problem = f"{name} has schema {printable(str(data.get('schema')), 40)}, this version reads 1 to {SCHEMA}"
        raise InputError(problem, "upgrade calibcli, or start a new state")
    fix = "take it from a backup, or start a new state"
    if data.get("checksum") != checksum(data):
        raise InputError(f"{name} was changed by something else than calib: its checksum does not fit", fix)
    packed: StoredState = validation.read(data, StoredState, name, fix)
    state = WatchState.begin(packed.settings)
    vars(state).update({name: getattr(packed, name) for name in COUNTS}, batches=list(packed.batches))
    try:
        state.ids = np.frombuffer(base64.b64decode(packed.ids, validate=True), "<u8").astype(np.uint64)
        state.ids_cut = int(packed.ids_cut, 16)
        state.waiting = [Waiting.unpack(one, LARGEST) for one in packed.waiting]
        state.seen = np.frombuffer(base64.b64decode(packed.seen, validate=True), SEEN)
        state.history = _unpacked_history(packed.history, len(state.streams))
        for stored in packed.streams:
            key = stored["rule"], stored["slice"]
            _unpack_arrays(state.streams[key], stored["arrays"])
            state.streams[key].crossed, state.streams[key].night = dict(stored["crossed"]), max(state.nights, 1)
    except CalibError:
        raise
    except (KeyError, ValueError, TypeError, zlib.error) as error:
        raise InputError(f"{name}: its streams are damaged ({error})", fix) from None
    return state


def save(state: WatchState, path: str | os.PathLike[str], version: str) -> None:
    """Write the new state completely to the disk, then let it replace the old one."""
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(state.pack(version), allow_nan=False))
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make other updates in this folder wait until the block ends. The lock is released when the process ends."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"no folder '{folder}' to write '{Path(path).name}' into", f"mkdir -p {folder}")
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def refuse_other_settings(state: WatchState, asked: Settings, path: str) -> None:
    """Refuse another model or other rules than those of the state.

    Raises:
        InputError: the rows are of another model.  UsageError: the rules or an error probability differ.
    """
    old = state.settings
    for name, stored, given in (
        ("model", old.model, asked.model or old.model),
        ("classes", old.classes, asked.classes),
        ("event", old.event, asked.event),
        ("classes", list(old.names), list(asked.names)),
    ):
        if stored != given and (name != "model" or stored):
            problem = f"{path} belongs to another model: {name} {_shortened(stored)} there, {_shortened(given)} here"
            raise InputError(problem, f"name the state of this model, or begin one; {AGAIN}")
    rules = [[(r.rule, r.by, r.kind, tuple(r.values)) for r in one.rules] for one in (old, asked)]
    texts = [", ".join(r.rule + (f" by {r.by}" if r.by else "") for r in one.rules) for one in (old, asked)]
    if rules[0] != rules[1]:
        detail = f"{texts[0]}; now asked for: {texts[1]}" if texts[0] != texts[1] else f"other slices of {texts[0]}"
        raise UsageError(f"{path} watches {detail}", f"a rule is fixed before its rows are seen; {AGAIN}")
    for key in ("alpha", "per_year", "cap"):
        stored, given = getattr(old, key), getattr(asked, key)
        if stored != given:
            problem = f"{path} has {key.replace('_', '-')} {stored:g}, now asked for: {given:g}"
            raise UsageError(problem, f"leave it out; {AGAIN}")


def _shortened(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return (text if len(text) <= 60 else f"{text[:57]}...") or "none"


def _packed_history(history: Sequence[Mapping[str, Any]]) -> str:
    """Write the nights as JSON, and their numbers as an array (nights, streams, 4), which is shorter."""
    nights = json.dumps([{"night": entry["night"], "rows": entry["rows"]} for entry in history])
    numbers = np.array([entry["streams"] for entry in history], "<f8")  # None becomes NaN
    return squeezed(nights.encode() + b"\n" + numbers.tobytes(), 1)


def _unpacked_history(text: str, streams: int) -> list[dict[str, Any]]:
    nights, end, data = unsqueezed(text, MOST).partition(b"\n")
    history: list[dict[str, Any]] = json.loads(nights)
    if end:  # else an older state, which is JSON throughout
        numbers = np.frombuffer(data, "<f8").reshape(len(history), streams, 4)
        plain = np.where(np.isnan(numbers), None, numbers).tolist()  # type: ignore[call-overload]
        history = [{**entry, "streams": row} for entry, row in zip(history, plain, strict=True)]
    return history


def _packed_arrays(stream: Stream) -> str:
    """Join the arrays, compress them, and write them in base64; their shapes follow from the rule."""
    return squeezed(b"".join(a.astype("<f8").tobytes() for a in stream.arrays().values()))


def _unpack_arrays(stream: Stream, text: str) -> None:
    shapes = {name: a.shape for name, a in stream.arrays().items()}
    sizes = [math.prod(shape) for shape in shapes.values()]
    data = unsqueezed(text, 8 * sum(sizes))
    if len(data) != 8 * sum(sizes):
        raise ValueError(f"{sum(sizes)} numbers expected")
    parts = np.split(np.frombuffer(data, "<f8").astype(np.float64), np.cumsum(sizes)[:-1])
    for (name, shape), part in zip(shapes.items(), parts, strict=True):
        if np.isnan(part).any() or (np.isinf(part).any() and name != "drift"):
            raise ValueError(f"{name} is not finite")
        setattr(stream, name, part.reshape(shape))
