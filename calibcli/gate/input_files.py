"""The inputs of a gate: scores or an earlier result, and the baseline to compare with."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from calibcli.columns import columns
from calibcli.errors import CalibError, InputError
from calibcli.gate import baseline
from calibcli.gate.baseline import Missing, Rows
from calibcli.gate.conditions import parsed
from calibcli.gate.config import Config
from calibcli.gate.pairing import hashes
from calibcli.gate.sources import BY_CLASS, Scores
from calibcli.gate.stored import Results, Source
from calibcli.inputs.files.source import Source as InputFile
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import keys, recorded
from calibcli.predictions import Predictions
from calibcli.result import Result


def open_source(given: Any, config: Config, reading: Mapping[str, Any]) -> Source:
    """What the gates are asked about: what Python has, or `eval`, a scores file or the JSON of any command.

    Args:
        given: predictions, a result, several files, or the name of a file, which `config` has too.
        reading: options of `inputs.scores.recorded.read`.

    Raises:
        InputError: refused.
    """
    if isinstance(given, Predictions):
        return Scores(given, config)
    if isinstance(given, Result):
        return Results(given, "result")
    if not isinstance(given, list) and Path(config.eval).suffix == ".json":
        result, entry = read_result(config.eval)
        return Results(result, config.eval, files=[entry])
    named = given if isinstance(given, list) else config.eval
    return Scores(read_scores(named, reading, [*config.slices, *columns_wanted(config)]), config)


def columns_wanted(config: Config) -> list[str]:
    """Columns that gates judge by, or whose values are conditions of theirs."""
    named = [gate.by for gate in config.gates if gate.by]
    named += [condition.column for text in named for condition in parsed(text)]
    return [name for name in named if name != BY_CLASS]


def read_result(path: str | Path) -> tuple[Result, dict[str, str]]:
    """The result in a JSON file, and path and sha256 of the bytes that it was read from.

    Raises:
        InputError: it cannot be read, or is no result.
    """
    source = InputFile(path)
    return Result.from_json(source.read(), str(path)), source.entry()


def read_scores(path: recorded.Paths, reading: Mapping[str, Any], by: Sequence[str] = ()) -> Predictions:
    """Recorded outputs with those of the columns `by` that the file has."""
    how = Reading(**{**reading, "by": ()})
    sources = recorded.open_all(path, how)
    contents = [recorded.load(source) for source in sources]

    there = []
    for name in dict.fromkeys(by):
        with contextlib.suppress(CalibError):
            keys.column(contents[0], name, "by", "")
            there.append(name)
    return recorded.predictions(contents, sources, dataclasses.replace(how, by=tuple(there)))


def check_overlap(fit: str, found: Predictions, reading: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """A note on rows that are in `fit` too, or ""; and path and sha256 of what was read.

    Raises:
        InputError: more than 1 % are; or it has other classes.
    """
    from calibcli.inputs.scores.fingerprints import refuse_overlap  # here, as few checks say what was fitted on

    fitted = read_scores(fit, {**reading, "weights": None, "group": None, "ids": None})
    if fitted.k != found.k:
        problem = f"{fitted.source}, which was fitted on, has {fitted.k} classes, {found.source} {found.k}"
        raise InputError(problem, "pass outputs of the same model (--fitted-on)")
    return refuse_overlap(fitted, found, way_out=""), recorded.provenance(fitted)


@dataclass(eq=False)
class Baselines:
    """Rows of the input beside those of a baseline; each is worked out once."""

    source: Source
    reading: Mapping[str, Any]
    files: list[dict[str, Any]] = field(default_factory=list)
    used: dict[str, Rows | str] = field(default_factory=dict)

    def __call__(self, path: str) -> tuple[Rows, Rows] | str:
        """(rows of the input, hashed with the baseline's salt; rows of the baseline), or why there are none."""
        if path not in self.used:
            self.used[path] = self._read(path)
        base = self.used[path]
        if isinstance(base, str):
            return base
        if self.own is None:
            return "the input is a result without rows; pass the scores, or write it with --keep-rows"
        if isinstance(self.source, Scores) and self.source.predictions.ids is not None:
            ids = hashes(self.source.predictions.ids, base.salt)
            return dataclasses.replace(self.own, salt=base.salt, ids=ids), base
        return self.own, base

    @cached_property
    def own(self) -> Rows | None:
        """Rows of the input; None of a result that was written without them."""
        if isinstance(self.source, Scores):
            found, table = self.source.predictions, self.source.whole.columns
            return baseline.rows(found, table if len(table.nll) else columns(found, class_bins=()))
        return kept_rows(self.source.result, self.source.source)

    def _read(self, path: str) -> Rows | str:
        if not os.path.exists(path):
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
