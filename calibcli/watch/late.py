"""Rows that wait for their labels, labels that come later, and files that are named by their night."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import glob
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from calibcli.core.errors import InputError, printable
from calibcli.core.number_format import first_few
from calibcli.core.options import normal
from calibcli.gate.baseline import hashes, squeezed, unsqueezed
from calibcli.gate.check import held_to
from calibcli.scores import array_names, recorded_outputs
from calibcli.scores.files.arrays import load_any, read_all, texts_of
from calibcli.scores.files.roles import IDS, LABELS
from calibcli.scores.files.source import Source
from calibcli.scores.files.text_tables import NO_VALUE
from calibcli.scores.predictions import Array, ArrayScores, Ints, Kind, Predictions
from calibcli.scores.reading_options import Reading

FORMAT = "calib-watch"


def is_state(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is the state of a watch, by its first bytes."""
    if Path(path).suffix != ".json" or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return f'"format": "{FORMAT}"'.encode() in file.read(64)


# The night that a name says.

DATE = re.compile(r"(?<!\d)(?:(?:19|20)\d\d-\d\d-\d\d|(?:19|20)\d{6})(?!\d)")


def dates_in(name: str) -> list[str]:
    """Return the different ISO dates in the name of a file."""
    dates = dict[str, None]()
    for text in DATE.findall(name):
        with contextlib.suppress(ValueError):
            dates[datetime.date.fromisoformat(text).isoformat()] = None
    return [*dates]


def by_night(files: Sequence[Path]) -> list[tuple[str, Path]]:
    """Return files with the night that the name of each says, in the order of the nights; "" of a file alone.

    Raises:
        InputError: a name with two dates, or one without any among several files.
    """
    dates = {file: dates_in(file.name) for file in files}
    for file, days in dates.items():
        if len(days) > 1:
            problem = f"the name of {file.name} has {len(days)} dates, {' and '.join(days[:2])}: which is the night?"
            raise InputError(problem, f"say it: --night {days[0]}, or leave one date in the name")
    without = [file.name for file, days in dates.items() if not days]
    if without and len(files) > 1:
        has = "has no date in its name" if len(without) == 1 else "have no date in their names"
        problem = f"{len(files)} files, and {first_few(without, 3)} {has}: which night is it?"
        fix = "all of one night: --night DATE, or --shards if they are its parts; else name each by its date, as in"
        raise InputError(problem, f"{fix} scores-2026-11-28.csv")
    return sorted((((days or [""])[0], file) for file, days in dates.items()), key=lambda one: one[0])


def nights_of(
    named: Sequence[str | Path], night: str, reading: Reading, labels: Labels | None
) -> list[tuple[str, Path]]:
    """Return the files, and states, that paths stand for, each with the night that is given or that its name says.

    Raises:
        InputError: as `by_night`; a folder or pattern without files.
    """
    if reading.shards or reading.tasks:
        return [(night, Path(path)) for path in named]
    files, used = list[Path](), {str(one.get("path")) for one in (labels.files if labels else ())}
    for path in named:
        several = not recorded_outputs.is_saved_dataset(path) and not os.path.isfile(path)
        paths = recorded_outputs.files_of(path, reading) if several else [path]
        files += [Path(one) for one in paths if len(paths) == 1 or str(one) not in used]
    states = [path for path in files if is_state(path)]
    rows = [path for path in files if path not in states]
    return [*(("", path) for path in states), *([(night, path) for path in rows] if night else by_night(rows))]


# Labels of a file of their own, or of a column with gaps.

WRONG = "?"  # in place of the column of labels: there are several, or something is wrong with them
WHOLE = re.compile(r"[+-]?\d{1,18}(\.0*)?")


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of rows by id.

    Attributes:
        name: of their file.  ids, texts: (M,) of each.  files: path and sha256 of each.  memo: hashes by
            salt.
    """

    name: str
    ids: Array
    texts: Array
    files: Sequence[Mapping[str, Any]] = ()
    memo: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, ids: Array, values: Array, ignored: int | None, files: Sequence[Any] = ()) -> Self:
        """Leave out what stands for no label: an empty cell, NaN, and `ignored`.

        Raises:
            InputError: another number of ids than of labels, or several labels for each.
        """
        if values.ndim != 1 or ids.shape != values.shape:
            raise InputError(f"ids {ids.shape} and labels {values.shape}", "pass one label, a class, for each id")
        texts = label_texts(values)
        there = ~absent(texts, ignored)
        return cls(name, np.asarray(ids)[there], texts[there], files)

    def hashed(self, salt: str) -> npt.NDArray[np.uint64]:
        """Return the hashes of the ids."""
        if salt not in self.memo:
            self.memo[salt] = hashed(self.ids, salt)
        id_hashes: npt.NDArray[np.uint64] = self.memo[salt]
        return id_hashes

    def given(self, rows: Predictions, these: Ints, at: Ints, base: int) -> Predictions:
        """Return rows with some of these labels, each for the row in its place of `at`, which may come several times.

        Raises:
            InputError: a label of no class, or a row with another label.
        """
        label_codes = codes(self.texts[these], rows.classes or (), rows.k, base, self.ids[these])
        every = rows.labels.copy()
        every[at] = np.where(every[at] < 0, label_codes, every[at])
        odd = np.flatnonzero(every[at] != label_codes)
        if len(odd):
            first = odd[0]
            label, other = (
                str(code if not rows.classes else rows.classes[code]) for code in (label_codes[first], every[at[first]])
            )
            problem = (
                f"{self.name}: id {printable(str(self.ids[these[first]]), 40)} has the label {label}, and {other} too"
            )
            more = f" ({len(odd):,} rows in all)" if len(odd) > 1 else ""
            raise InputError(f"{problem}{more}; nothing was counted", "give each row one label")
        return dataclasses.replace(rows, labels=every)


def gaps(values: Array) -> bool:
    """Return whether labels (N,) have gaps."""
    if values.ndim != 1 or values.dtype.kind not in "fOUS":
        return False
    return bool(np.isnan(values).any() if values.dtype.kind == "f" else absent(label_texts(values)).any())


def label_texts(values: Array) -> Array:
    """Return labels (N,) as texts: `3` of 3, 3.0 and `3.0`; 1 and 0 of true and false."""
    texts = texts_of(values.astype(np.int64) if values.dtype.kind == "b" else values)
    plain = [text.strip() for text in texts.tolist()]
    return np.array([str(int(float(t))) if WHOLE.fullmatch(t) and "." in t else t for t in plain], dtype=np.str_)


def absent(texts: Array, ignored: int | None = None) -> npt.NDArray[np.bool_]:
    """Return which of some texts stand for no label."""
    return np.array([t.lower() in NO_VALUE or t == str(ignored) for t in texts.tolist()], bool)


def label_files(wanted: str | Path) -> list[str | Path] | None:
    """Return the files that `--labels` names: none yet in an empty folder, or for a pattern; None for a key."""
    if not os.path.exists(wanted):
        return None if not set("*?[") & set(str(wanted)) else sorted(glob.glob(str(wanted), recursive=True))
    if os.path.isdir(wanted) and not os.listdir(wanted):
        return []
    return recorded_outputs.files_of(wanted, Reading())


def labels_of(path: Any, reading: Mapping[str, Any]) -> Labels | None:
    """Read the labels by id that a path stands for; None of a key, or of one file without ids."""
    files = label_files(path)
    return None if files is None else labels_in(files, reading)


def labels_in(files: Sequence[str | Path], reading: Mapping[str, Any]) -> Labels | None:
    """Read labels by id of some files; None of one file that has labels without ids.

    Raises:
        InputError: a file without labels, or one of several without ids.
    """
    ids, texts, used = list[Array](), list[Array](), list[Any]()
    for file in files:
        source = Source(file)
        contents = load_any(source)
        columns = {name: one for name, one in contents.arrays.items() if len(one.shape) == 1}
        n = max((one.shape for one in columns.values()), default=(0,))
        key = next((name for name in (reading.get("ids"), contents.ids, IDS.first(columns, n)) if name in columns), "")
        others = [name for name in columns if name != key]
        name = others[0] if len(others) == 1 else array_names.pick_labels(contents, None, "", source.name)
        if not key and len(files) == 1:
            return None
        if name not in columns or not key:
            problem = f"{source.name} has no {'ids' if name in columns else 'labels'}: it holds "
            fix = "a file of labels has the columns id and label; of other names: --ids KEY, and a label's name"
            raise InputError(problem + array_names.describe(contents), fix)
        ids.append(texts_of(read_all(columns[key])))
        texts.append(label_texts(read_all(columns[name])))
        used.append(source.entry())
    every = [np.concatenate(parts) if parts else np.empty(0, np.str_) for parts in (ids, texts)]
    name = Path(files[0]).name if len(files) == 1 else f"{len(files)} files of labels"
    return Labels.of(name, every[0], every[1], reading.get("ignore_label"), used)


def read(
    path: Path,
    reading: Mapping[str, Any],
    by: Sequence[str],
    labels: Labels | None,
    pinned: Mapping[str, Any],
    own: Mapping[str, Any],
) -> tuple[Predictions, Array | None]:
    """Read the rows of a file as `gate.check.read_scores` does, and the texts of labels in a column with gaps.

    Labels of a column that has all are those of the rows; else these have none (`record.labelled`). `labels` are by id.

    Args:
        pinned: keys of `[data]` that the rows are held to.  own: options of the command line alone.
    """
    options = Reading(**{**reading, "by": ()})
    sources = recorded_outputs.open_all(path, options)
    contents = recorded_outputs.load_all(sources, options)
    columns = array_names.columns_there(contents[0], by)
    options = dataclasses.replace(options, by=columns)
    if labels is not None and options.labels not in contents[0].arrays:
        options = dataclasses.replace(options, labels=None)
    key, texts = _column(contents, sources, options)
    if (key if labels is None else key not in ("", WRONG)) and (texts is None or not absent(texts).any()):
        return held_to(pinned, contents, sources, {**reading, "labels": options.labels}, columns, own), None
    kept = {*columns, options.ids, options.group, options.weights, options.scores, contents[0].ids}
    out = {normal(name) for name in (key, contents[0].labels, *LABELS.all)}
    bare = [
        dataclasses.replace(
            c, labels="", arrays={name: a for name, a in c.arrays.items() if name in kept or normal(name) not in out}
        )
        for c in contents
    ]
    options = dataclasses.replace(options, labels=None, ignore_label=None, need_labels=False)
    rows = recorded_outputs.predictions(bare, sources, options)
    if texts is not None and len(texts) != rows.n:
        problem = f"{rows.source} has rows without a label, and {len(texts) - rows.n:,} rows that an option drops"
        raise InputError(problem, "leave out the rows to drop, or give all rows their labels")
    return rows, texts


def _column(contents: Sequence[Any], sources: Sequence[Source], options: Reading) -> tuple[str, Array | None]:
    """Return the name of the column of labels and its texts; None of what can have no gaps, or is a mistake."""
    try:
        files = array_names.grouped(contents, options.scores, [s.name for s in sources], options.labels)
        scores = array_names.pick_scores(files[0], options.scores, sources[0].name)
        name, values, _ = recorded_outputs.label_array(files, sources, options, scores, [])
    except InputError:  # which `predictions` says
        return WRONG, None
    return name, None if values is None or len(values.shape) > 1 else label_texts(read_all(values))


def codes(texts: Array, names: Sequence[str], k: int, base: int, ids: Array) -> Ints:
    """Return the codes of labels among K classes, whose names are as the scores have them.

    Raises:
        InputError: a label that is none of them.
    """
    code_of = {str(name).strip(): i for i, name in enumerate(names)}
    numbers = not any(map(WHOLE.fullmatch, code_of))
    event = next((n for n in code_of if f"not {n}" in code_of and WHOLE.fullmatch(n)), None)  # else of a number: not it
    table = dict[str, int]()
    for text in np.unique(texts).tolist():
        code = code_of.get(text)
        if code is None and WHOLE.fullmatch(text):
            code = 0 if event is not None else int(text) - base if numbers and 0 <= int(text) - base < k else None
        if code is None:
            row = str(ids[np.flatnonzero(texts == text)[0]])
            classes = first_few([*code_of] or [str(i + base) for i in range(k)], 5)
            problem = f"the label {text[:40]!r} of id {printable(row, 40)} is none of the {k} classes ({classes})"
            fix = "begin a state with the names of the classes, --classes A,B, where the scores are read"
            raise InputError(problem, f"{fix}; labels from 1 on: --label-base 1")
        table[text] = code
    return np.array([table[text] for text in texts.tolist()], np.int64)


# Rows that wait, in the state.

MOST_NUMBERS = 1 << 27  # scores of a batch that may wait
PLAIN = ("kind", "source", "weight_kind")
PER_ROW = ("labels", "ids", "weights", "groups", "predicted")
KINDS = {"scores": "f", "labels": "i", "ids": "u", "weights": "f", "groups": "i", "predicted": "i", "group_names": "u"}


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Rows that wait in the form of the state's file; `arrays` has name, dtype and shape of each in `data`."""

    night: str
    kind: Kind
    source: str
    weight_kind: Literal["sampling", "count"]
    classes: Sequence[str] | None
    arrays: Sequence[Sequence[Any]]
    data: str


@dataclass(frozen=True, eq=False)
class Waiting:
    """Rows of a night that wait for labels, their own or those of an earlier night.

    Attributes:
        night: their date.
        rows: with the label -1 where it is not known; ids, and names of groups, are hashes.
    """

    night: str
    rows: Predictions

    @classmethod
    def of(cls, night: str, rows: Predictions, salt: str) -> Self:
        """Keep what counting needs of some rows.

        Raises:
            InputError: rows without ids, or too many numbers.
        """
        if rows.ids is None:
            problem = f"rows of {rows.source} wait for labels, and have no ids, by which a label finds its row"
            raise InputError(problem, "name the column that has them: --ids KEY; or pass the rows with all labels")
        if rows.n * rows.k > MOST_NUMBERS:
            problem = f"{rows.source} has {rows.n * rows.k:,} scores, and {MOST_NUMBERS:,} may wait in a state"
            raise InputError(problem, "pass these rows when they have labels")
        names = None if rows.group_names is None else hashed(rows.group_names, salt)
        kept = {name: getattr(rows, name) for name in (*PER_ROW, *PLAIN, "classes", "slices")}
        kept |= {"scores": ArrayScores(rows.logits), "ids": hashed(rows.ids, salt), "group_names": names}
        return cls(night, Predictions(**kept))

    @property
    def ids(self) -> Array:
        """Hashes of the ids (N,)."""
        return np.asarray(self.rows.ids)

    @property
    def labelled(self) -> int:
        """Number of rows whose label is known."""
        return int((self.rows.labels >= 0).sum())

    def pack(self) -> StoredRows:
        """Return the rows as plain data."""
        rows = self.rows
        arrays = {"scores": rows.logits, **{name: getattr(rows, name) for name in (*PER_ROW, "group_names")}}
        arrays |= {f"by {name}": np.asarray(column).astype(np.str_) for name, column in rows.slices.items()}
        there = {name: np.ascontiguousarray(a) for name, a in arrays.items() if a is not None}
        return StoredRows(
            night=self.night,
            kind=rows.kind,
            source=rows.source,
            weight_kind=rows.weight_kind,
            classes=None if rows.classes is None else list(map(str, rows.classes)),
            arrays=[[name, a.dtype.str, *a.shape] for name, a in there.items()],
            data=squeezed(b"".join(a.tobytes() for a in there.values()), 1),
        )

    @classmethod
    def unpack(cls, data: StoredRows, most: int) -> Self:
        """Undo `pack`.

        Raises:
            ValueError, KeyError, TypeError: the data are damaged.
        """
        arrays, offset, raw = dict[str, Array](), 0, unsqueezed(data.data, most)
        for name, dtype, *shape in data.arrays:
            kind = np.dtype(dtype)
            if kind.kind != KINDS.get(name, "U") or min(shape) < 0:
                raise ValueError(f"{name[:20]} is of the kind {kind}")
            arrays[name] = np.frombuffer(raw, kind, math.prod(shape), offset).reshape(shape)
            offset += kind.itemsize * math.prod(shape)
        n, k = arrays["scores"].shape
        slices = {name[3:]: column for name, column in arrays.items() if name.startswith("by ")}
        if offset != len(raw) or {arrays[name].shape for name in ("labels", "ids", *PER_ROW) if name in arrays} != {
            (n,)
        }:
            raise ValueError("a night that waits has rows of several lengths")
        if arrays["labels"].min(initial=0) < -1 or arrays["labels"].max(initial=0) >= k:
            raise ValueError("a night that waits has labels of no class")
        datetime.date.fromisoformat(data.night)
        more: dict[str, Any] = {name: arrays.get(name) for name in (*PER_ROW, "group_names")}
        more |= {name: getattr(data, name) for name in (*PLAIN, "classes")}
        return cls(data.night, Predictions(scores=ArrayScores(arrays["scores"]), slices=slices, **more))


def hashed(ids: Array, salt: str) -> npt.NDArray[np.uint64]:
    """Return the hash of each id as text, whatever type it has."""
    return hashes(texts_of(ids) if ids.dtype.kind in "Sf" else ids, salt)


def matches(these: npt.NDArray[np.uint64], known: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Return which of these hashes are known, and the place of each among those known, which are unique."""
    if not len(known):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(known)
    places = order[np.minimum(np.searchsorted(known[order], these), len(known) - 1)]
    there = np.flatnonzero(known[places] == these)
    return there, places[there]
