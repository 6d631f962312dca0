"""Rules of a gate and where they come from: command line, then calib.toml, then [tool.calib] of pyproject.toml.

A key set in a stronger source replaces that key of a weaker one; the list of gates is one key.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from calibcli.errors import UsageError, did_you_mean, printable
from calibcli.inputs.files.source import Source
from calibcli.spec import Alpha, Count, Limit, Rows, Seed, convert, normal, within

SCHEMA = 1
NAME = "calib.toml"
MIN_N = 200
EDGES = ("right", "left", "torchmetrics")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One rule as written.

    Attributes:
        metric: spec of the metric.
        limit: in the metric's own direction (largest ECE, smallest accuracy); or `max` or `min`, said outright.
        by: slice column, or `class` for the predicted class; every slice is judged.
        values: slices that must be there; one that is missing is NOT RUN.
        scope: which estimate of a result file: `before`, `after`, `layer=conv1`, ...
        min_n: rows below which the gate (or slice) is NOT RUN.
        on_inconclusive, on_not_run: `fail` or `warn`; of what is NOT RUN, parts with few rows or without a valid bound
            may warn, a column, slice or number that is missing may not.
        baseline: earlier result (written with --keep-rows) or scores file to compare with; `margin` is then allowed.
        missing: `fail` or `warn` where there is no such file yet.
        file, line: where the rule is written; line None where that is not known.
    """

    metric: str
    limit: float | None = None
    max: float | None = None
    min: float | None = None
    by: str = ""
    values: tuple[str, ...] = ()
    scope: str = ""
    min_n: int = MIN_N
    on_inconclusive: str = "fail"
    on_not_run: str = "fail"
    baseline: str = ""
    missing: str = "fail"
    margin: float | None = None
    file: str = ""
    line: int | None = None

    @property
    def name(self) -> str:
        """The metric without its options."""
        return self.metric.partition(":")[0]

    @property
    def at(self) -> str:
        """`calib.toml:12: `, where the rule is written; "" for the command line."""
        return f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a check needs to know besides the input; paths are relative to the folder of their file.

    Attributes:
        eval, fitted_on: scores files; `fitted_on` is what a calibrator was fitted on and must not overlap `eval`.
        slices, group, weights, weight_kind, ids, scores, labels, kind, classes, event: how the scores files are read,
            as the options of those names.
        alpha: error probability of each bound.  bins, edges: of `ece` where its spec is silent.  seed: of draws.
        bounds: of `ece`: `sharp` (rows in groups: `score` all the same), or `score`.
        sources: files that were read.  files: path and sha256 of each.
    """

    eval: str = ""
    fitted_on: str = ""
    slices: tuple[str, ...] = ()
    group: str = ""
    weights: str = ""
    weight_kind: str = ""
    ids: str = ""
    scores: str = ""
    labels: str = ""
    kind: str = ""
    classes: tuple[str, ...] = ()
    event: str = ""
    alpha: float = 0.05
    bins: int = 15
    edges: str = "right"
    bounds: str = "sharp"
    seed: int = 0
    gates: tuple[Gate, ...] = ()
    sources: tuple[str, ...] = ()
    files: tuple[Mapping[str, str], ...] = ()

    def over(self, **values: Any) -> Config:
        """This configuration with the values that are not None in its place."""
        return dataclasses.replace(self, **{k: v for k, v in values.items() if v is not None})


def load(path: Path | None = None, folder: Path = Path()) -> Config:
    """The configuration of `path`, or of calib.toml and pyproject.toml in `folder`.

    Raises:
        InputError: it cannot be read.
        UsageError: not TOML, an unknown key, or a value of the wrong kind; says where.
    """
    if path is not None:
        return Config(**_read(path, required=True))
    return Config(**_read(folder / "pyproject.toml", required=False) | _read(folder / NAME, required=False))


def limit_rule(text: str, side: str, **keys: Any) -> Gate:
    """A gate from `METRIC=NUMBER` of the command line; the metric may have options: `ece:bins=30=0.03`.

    Args:
        text: what was passed.
        side: `max`, `min` or `margin`.
        keys: further fields of the gate.

    Raises:
        UsageError: not of that form.
    """
    metric, equals, number = text.rpartition("=")
    if not equals or not metric.strip() or not number.strip():
        example = {"max": "ece=0.03", "min": "accuracy=0.9", "margin": "temperature_gain=0.005"}[side]
        raise UsageError(f"--{side} {printable(text, 60)} is not METRIC=NUMBER", f"write --{side} {example}")
    value = convert(number.strip(), Limit, f"--{side} {metric.strip()}=") + 0.0  # no negative zero
    return _checked(Gate(**{"metric": _spec(metric), side: value, **keys}), f"--{side} {text}")


def _read(path: Path, *, required: bool) -> dict[str, Any]:
    """Fields of `Config` that this file sets."""
    if not required and not (os.path.isfile(path) and os.path.getsize(path)):
        return {}
    source = Source(path)
    try:
        text = source.read().decode()
        data: Mapping[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        said = str(error)
        raise UsageError(f"{path} is not TOML ({said[:1].lower()}{said[1:]})", "correct that line") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply", "write the tables that docs/gate.md shows") from None
    prefix = ""
    if path.name == "pyproject.toml":
        data = data.get("tool", {}).get("calib") or {}
        prefix = "tool.calib."
        if not data:
            return {}
    return {**_fields(data, path, prefix, text), "sources": (str(path),), "files": (source.entry(),)}


def _fields(data: Mapping[str, Any], path: Path, prefix: str, text: str) -> dict[str, Any]:
    _known(data, ("schema", "data", "stats", "gate"), str(path), prefix.rstrip("."))
    if data.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(f"{path} has schema {data['schema']}, this version reads {SCHEMA}", f"write schema = {SCHEMA}")
    found: dict[str, Any] = {}
    for section, kinds in (("data", DATA), ("stats", STATS)):
        where = f"{path}, [{prefix}{section}]"
        table = _table(data.get(section, {}), where)
        _known(table, kinds, where)
        found |= {key: kinds[key](value, f"{where} {key}") for key, value in table.items()}
    for key in ("eval", "fitted_on"):
        if key in found:
            found[key] = _beside(path, found[key])
    if "gate" in data:
        found["gates"] = tuple(_gates(data["gate"], path, prefix, text))
    return found


def _gates(tables: Any, path: Path, prefix: str, text: str) -> list[Gate]:
    if not isinstance(tables, list):
        raise UsageError(f"{path}: [{prefix}gate] is one table", f"write [[{prefix}gate]], once for each gate")
    lines = gate_lines(text, len(tables), prefix)
    gates = []
    for table, line in zip(tables, lines, strict=True):
        where = f"{path}:{line}" if line else str(path)
        table = _table(table, where)
        _known(table, GATE, f"{where}, [[{prefix}gate]]")
        if "metric" not in table:
            raise UsageError(f"{where}: a gate without a metric", 'write metric = "ece"')
        fields = {key: GATE[key](value, f"{where}, {key}") for key, value in table.items()}
        fields["metric"] = _spec(fields["metric"])
        fields |= fields.pop("baseline", {})
        if "baseline" in fields:
            fields["baseline"] = _beside(path, fields["baseline"])
        gates.append(_checked(Gate(**fields, file=str(path), line=line), where))
    return gates


def gate_lines(text: str, count: int, prefix: str = "") -> list[int | None]:
    """1-based line of every `[[gate]]` header; all None when they cannot be told for sure.

    TOML readers give no line numbers. A header inside a multi-line string, or gates written inline, make the number
    of headers differ from the number of gates.
    """
    name = r"\s*\.\s*".join(rf"[\"']?{part}[\"']?" for part in f"{prefix}gate".split("."))
    header = re.compile(rf"\s*\[\[\s*{name}\s*\]\]\s*(#.*)?$")
    lines = [i for i, line in enumerate(text.splitlines(), 1) if header.match(line)]
    return list(lines) if len(lines) == count else [None] * count


def _checked(gate: Gate, where: str) -> Gate:
    """`gate`, if it says what is judged against what."""
    given = [k for k in ("limit", "max", "min") if getattr(gate, k) is not None]
    if gate.margin is not None and not gate.baseline:
        raise UsageError(f"{where}: a margin without a baseline", 'add baseline = "result.json", or write a limit')
    if gate.baseline and (given or gate.by):
        word = given[0] if given else "by"
        raise UsageError(f"{where}: a gate against a baseline takes no {word}", "write margin, and a second gate")
    if gate.values and not gate.by:
        raise UsageError(f"{where}: values without by", 'write by = "COLUMN", whose values these are')
    if not gate.baseline and len(given) != 1:
        said = " and ".join(given) or "no limit"
        raise UsageError(f"{where}: {gate.metric} has {said}", "write one of limit, max, min (or baseline and margin)")
    return gate


def _known(table: Mapping[str, Any], known: Mapping[str, Any] | Sequence[str], where: str, inside: str = "") -> None:
    for key in table:
        if key not in known:
            what = f"[{inside}] " if inside else ""
            raise UsageError(f"{where}: unknown key '{key}'", (what + did_you_mean(key, known)).strip())


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a table", "write KEY = VALUE lines below its header")
    return value


def _beside(path: Path, target: str) -> str:
    """`target` relative to the folder of the configuration file, as the working folder sees it."""
    return target if Path(target).is_absolute() else str(path.parent / target)


def _spec(text: str) -> str:
    """A metric's spec with `-` and `_` made the same in its name."""
    name, colon, rest = text.strip().partition(":")
    return normal(name) + colon + rest


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where} is {value!r}, not a text", "put it in quotes")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise UsageError(f"{where} is {value!r}, not a list of texts", 'write ["one", "two"]')
    return tuple(_text(v, where) for v in value)


def _values(value: Any, where: str) -> tuple[str, ...]:
    return _texts([str(v) if isinstance(v, int) else v for v in value] if isinstance(value, list) else value, where)


def _number(kind: Any) -> Callable[[Any, str], float]:
    """Reads a number of this type, in its range."""
    types, noun = (int, "whole number") if get_args(kind)[0] is int else (int | float, "number")

    def read(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, types):
            raise UsageError(f"{where} is {value!r}, not a {noun}", "write a plain number, without quotes")
        within(value, kind, f"{where} = ")
        return value if types is int else float(value) + 0.0  # no negative zero

    return read


def _one_of(*choices: str) -> Callable[[Any, str], str]:
    def read(value: Any, where: str) -> str:
        if value not in choices:
            raise UsageError(f"{where} is {value!r}", did_you_mean(str(value), choices))
        return str(value)

    return read


def _baseline(value: Any, where: str) -> dict[str, str]:
    """`"result.json"`, or `{ file = "result.json", missing = "warn" }`."""
    if not isinstance(value, dict):
        return {"baseline": _text(value, where)}
    _known(value, ("file", "missing"), where)
    missing = _one_of("fail", "warn")(value.get("missing", "fail"), f"{where}.missing")
    return {"baseline": _text(value.get("file"), f"{where}.file"), "missing": missing}


Reader = Callable[[Any, str], Any]
DATA: dict[str, Reader] = {
    **dict.fromkeys(("eval", "fitted_on", "group", "weights", "ids", "scores", "labels", "kind"), _text),
    "slices": _texts,
    "classes": _texts,
    "weight_kind": _one_of("sampling", "count"),
}
STATS: dict[str, Reader] = {
    "alpha": _number(Alpha),
    "bins": _number(Count),
    "edges": _one_of(*EDGES),
    "bounds": _one_of("score", "sharp"),
    "seed": _number(Seed),
}
GATE: dict[str, Reader] = {
    **dict.fromkeys(("metric", "by", "scope"), _text),
    "baseline": _baseline,
    **dict.fromkeys(("limit", "max", "min", "margin"), _number(Limit)),
    "values": _values,
    "min_n": _number(Rows),
    **dict.fromkeys(("on_inconclusive", "on_not_run"), _one_of("fail", "warn")),
}
