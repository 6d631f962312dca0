"""The inputs of a gate: scores or an earlier result, and the baseline to compare with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibcli.columns import columns
from calibcli.errors import CalibError
from calibcli.gate import baseline
from calibcli.gate.baseline import Missing, Rows
from calibcli.gate.config import Config
from calibcli.gate.sources import BY_CLASS, Scores
from calibcli.gate.stored import Results
from calibcli.inputs.files.source import Source
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import keys, recorded
from calibcli.inputs.scores.fingerprints import refuse_overlap
from calibcli.predictions import Predictions
from calibcli.result import Result

Progress = Callable[[float, str], None]


def read_source(
    path: str | Path, config: Config, reading: Mapping[str, Any], progress: Progress | None = None
) -> Scores | Results:
    """What the gates are asked about.

    Args:
        path: a scores file, or the JSON of any command.
        reading: options of `inputs.scores.recorded.read`.

    Raises:
        InputError: refused, or `config.fitted_on` overlaps it.
    """
    if Path(path).suffix == ".json":
        result, entry = read_result(path)
        return Results(result, str(path), files=[entry])
    wanted = [gate.by for gate in config.gates if gate.by and gate.by != BY_CLASS]
    found = read_scores(path, reading, [*config.slices, *wanted], progress)
    return Scores(found, config)


def read_result(path: str | Path) -> tuple[Result, dict[str, str]]:
    """The result in a JSON file, and path and sha256 of the bytes that it was read from.

    Raises:
        InputError: it cannot be read, or is no result.
    """
    source = Source(path)
    return Result.from_json(source.read(), str(path)), source.entry()


def read_scores(
    path: str | Path, reading: Mapping[str, Any], by: Sequence[str] = (), progress: Progress | None = None
) -> Predictions:
    """Recorded outputs with those of the columns `by` that the file has."""
    how = Reading(**{**reading, "by": ()})
    sources = recorded.open_all(path, how.shards)
    contents = [recorded.load(source) for source in sources]

    def has(name: str) -> bool:
        try:
            keys.named(contents[0], name, "by", "")
        except CalibError:
            return False
        return True

    there = tuple(name for name in dict.fromkeys(by) if has(name))
    return recorded.predictions(contents, sources, dataclasses.replace(how, by=there), progress)


def check_overlap(fit: str, found: Predictions, reading: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """A note on rows that are in `fit` too, or ""; and path and sha256 of what was read.

    Raises:
        InputError: more than 1 % are.
    """
    fitted = read_scores(fit, {**reading, "weights": None, "group": None, "ids": None})
    return refuse_overlap(fitted, found, way_out=""), recorded.provenance(fitted)


class Baselines:
    """Rows of the input beside those of a baseline; each is worked out once."""

    def __init__(self, source: Scores | Results, reading: Mapping[str, Any]) -> None:
        self.source = source
        self.reading = reading
        self.own: Rows | None = None
        self.used: dict[str, Rows | str] = {}
        self.files: list[dict[str, Any]] = []

    def __call__(self, path: str) -> tuple[Rows, Rows] | str:
        """(rows of the input, hashed with the baseline's salt; rows of the baseline), or why there are none."""
        if path not in self.used:
            self.used[path] = self._read(path)
        base = self.used[path]
        if isinstance(base, str):
            return base
        own = self.rows()
        if own is None:
            return "the input is a result without rows; pass the scores, or write it with --keep-rows"
        if isinstance(self.source, Scores) and self.source.predictions.ids is not None:
            own = dataclasses.replace(own, salt=base.salt, ids=baseline.hashes(self.source.predictions.ids, base.salt))
        return own, base

    def rows(self) -> Rows | None:
        """Rows of the input."""
        if self.own is None:
            if isinstance(self.source, Scores):
                self.own = baseline.rows(self.source.predictions, self.source.whole.columns)
            else:
                self.own = kept_rows(self.source.result, self.source.source)
        return self.own

    def _read(self, path: str) -> Rows | str:
        if not os.path.isfile(path):
            return Missing(f"no baseline at {path}")
        if Path(path).suffix == ".json":
            result, entry = read_result(path)
            self.files.append(entry)
            kept = kept_rows(result, path)
            return kept if kept is not None else f"{path} holds no rows; write it with --keep-rows"
        found = read_scores(path, {**self.reading, "weights": None, "group": None})
        self.files += recorded.provenance(found)
        return baseline.rows(found, columns(found, class_bins=()))


def kept_rows(result: Result, source: str) -> Rows | None:
    """The rows that a result was written with, or None."""
    packed = result.facts.get("rows")
    return Rows.unpack(packed, source) if isinstance(packed, dict) else None
