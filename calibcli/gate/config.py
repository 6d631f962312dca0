"""Rules of a gate and where they come from: command line, calib.toml, pyproject.toml; conditions on columns that
choose rows.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from calibcli.core.errors import UsageError, did_you_mean, printable
from calibcli.core.files import reading
from calibcli.core.options import Alpha, Count, Limit, Rows, Seed, convert, normal, within
from calibcli.core.validation import toml
from calibcli.metrics.shelf import METRICS
from calibcli.scores.columns import Edges, coded
from calibcli.scores.files.source import Source
from calibcli.scores.files.text_tables import is_number

# `site=A & age<=30`: rows by conditions on their columns, where a gate's `by` names no column of that name.

Op = Literal["=", "<=", ">"]
TEXT = r'"(?:[^"\\]|\\.)*"'
PLAIN = r"[^\s=<>&\"\\]+"
ONE = re.compile(rf"\s*({TEXT}|{PLAIN})\s*(<=|>|=)\s*({TEXT}|{PLAIN})\s*(&|$)")


@dataclass(frozen=True)
class Condition:
    """A column, and what its value is held against: a text (=), or a number (<=, >)."""

    column: str
    op: Op
    value: str

    def __str__(self) -> str:
        return f"{_quoted(self.column)}{self.op}{_quoted(self.value)}"

    def holds(self, column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """(N,) of the rows' values; one that is no number is on neither side of a number.

        Raises:
            UsageError: a number is asked for, and the column has none.
        """
        if self.op == "=":
            return np.asarray(column.astype(str, copy=False) == self.value)
        values = numbers(column)
        if values is None or (at := numbers(np.array([self.value]))) is None:
            raise UsageError(f"'{self}' asks for numbers, and '{self.column}' has others", "write COLUMN=VALUE")
        return np.asarray(values <= at[0] if self.op == "<=" else values > at[0])


def parsed(text: str) -> list[Condition]:
    """The conditions of a rule; none where the text is not one.

    >>> [str(c) for c in parsed('site=A & "heart rate"<=60')]
    ['site=A', '"heart rate"<=60']
    """
    found, at = [], 0
    while match := ONE.match(text, at):
        column, op, value, more = match.groups()
        found.append(Condition(_plain(column), op, _plain(value)))  # type: ignore[arg-type]
        at = match.end()
        if not more:
            return found
    return []


def text_of(conditions: Sequence[Condition]) -> str:
    """What `parsed` reads."""
    return " & ".join(map(str, conditions))


def rows_of(conditions: Sequence[Condition], columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_] | str:
    """(N,) whether all of them hold; or the first column that is not there."""
    missing = next((c.column for c in conditions if c.column not in columns), None)
    if missing is not None:
        return missing
    return np.asarray(np.logical_and.reduce([c.holds(np.asarray(columns[c.column])) for c in conditions]))


def numbers(column: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """(N,) values as numbers, nan where there is none (`nan` or empty); None where a text is something else."""
    if column.dtype.kind in "fiu":
        return column.astype(np.float64)
    known, codes = coded(column.astype(str, copy=False))
    try:
        values = [
            float("nan") if text.strip().lower() in ("", "nan", "none", "null") else float(text) for text in known
        ]
    except ValueError:
        return None
    return np.array(values)[codes]


def _quoted(text: str) -> str:
    if re.fullmatch(PLAIN, text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


# Rules of a gate and where they come from: command line, then calib.toml, then [tool.calib] of pyproject.toml.
#
# A key set in a stronger source replaces that key of a weaker one; the list of gates is one key.


SCHEMA = 1
NAME = "calib.toml"
MIN_N = 200
FailOrWarn = Literal["fail", "warn"]


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
    limit: Limit | None = None
    max: Limit | None = None
    min: Limit | None = None
    by: str = ""
    values: tuple[str, ...] = ()
    scope: str = ""
    min_n: Rows = MIN_N
    on_inconclusive: FailOrWarn = "fail"
    on_not_run: FailOrWarn = "fail"
    baseline: str = ""
    missing: FailOrWarn = "fail"
    margin: Limit | None = None
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
class Earlier:
    """`baseline = { file = "result.json", missing = "warn" }` of a gate."""

    file: str
    missing: FailOrWarn


@dataclass(frozen=True, kw_only=True)
class Data:
    """`[data]`: what is read, and how, as the options of those names; paths are relative to the folder of their file.

    Attributes:
        eval, fitted_on: scores files; `fitted_on` is what a calibrator was fitted on and must not overlap `eval`.
    """

    eval: str = ""
    fitted_on: str = ""
    slices: tuple[str, ...] = ()
    group: str = ""
    weights: str = ""
    weight_kind: Literal["sampling", "count"] | None = None
    ids: str = ""
    scores: str = ""
    labels: str = ""
    kind: str = ""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stats:
    """`[stats]`: how sure the bounds are.

    Attributes:
        alpha: error probability of each bound.  bins, edges: of `ece` where its spec is silent.  seed: of draws.
        bounds: of `ece`: `sharp` (rows in groups: `score` all the same), or `score`.
    """

    alpha: Alpha = 0.05
    bins: Count = 15
    edges: Edges = "right"
    bounds: Literal["score", "sharp"] = "sharp"
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Config(Stats, Data):
    """Everything a check needs to know besides the input.

    Attributes:
        sources: files that were read.  files: path and sha256 of each.
    """

    gates: tuple[Gate, ...] = ()
    sources: tuple[str, ...] = ()
    files: tuple[Mapping[str, str], ...] = ()

    def named(self) -> list[str]:
        """Every file that a check may read, there or not."""
        paths = [self.eval, self.fitted_on, *(gate.baseline for gate in self.gates), *self.sources]
        labels = [self.labels] if os.path.isfile(self.labels) else []  # not the name of an array
        return list(filter(None, dict.fromkeys([*paths, *labels])))

    def over(self, **values: Any) -> Config:
        """This configuration with the values that are not None in its place."""
        return dataclasses.replace(self, **{k: v for k, v in values.items() if v is not None})


def load(path: Path | None = None, folder: Path = Path(), rules: bool = True) -> Config:
    """The configuration of `path`, or of calib.toml and pyproject.toml in `folder`. Files that it names are inputs.

    Args:
        rules: whether its rules are asked, so that their baselines are inputs too.

    Raises:
        InputError: it cannot be read.
        UsageError: not TOML, an unknown key, or a value of the wrong kind; says where.
    """
    if path is not None:
        found = Config(**_read(path, required=True))
    else:
        found = Config(**_read(folder / "pyproject.toml", required=False) | _read(folder / NAME, required=False))
    reading(*(found if rules else dataclasses.replace(found, gates=())).named())
    return found


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
    bare = number.strip().removesuffix("%").strip()
    if equals and re.fullmatch(r"-?\d*,\d+", bare):
        problem = f"--{side} {printable(text, 60)} is not a number"
        raise UsageError(problem, f"write it with a point: --{side} {metric.strip()}={bare.replace(',', '.')}")
    if equals and number.strip().endswith("%") and is_number(bare):
        problem = f"--{side} {printable(text, 60)}: limits are shares of one, not percent"
        raise UsageError(problem, f"write --{side} {metric.strip()}={float(bare) / 100:.12g}")
    if not equals or not metric.strip() or not number.strip():
        example = {"max": "ece=0.03", "min": "accuracy=0.9", "margin": "temperature_gain=0.005"}[side]
        parts = re.fullmatch(r"\s*([\w:.-]+)\s*(?:<=?|>=?|:|\s)\s*(\S+)\s*", text)
        if parts and is_number(parts[2]) and parts[1] in METRICS:
            example = f"{parts[1]}={parts[2]}"
        elif text.strip() in METRICS:
            example = f"{text.strip()}={example.partition('=')[2]}"
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
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not TOML ({error})", "write it as UTF-8") from None
    if path.name == "pyproject.toml" and "calib" not in text:
        return {}
    data: Mapping[str, Any] = toml(text, str(path))
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
    for section, kind in (("data", Data), ("stats", Stats)):
        found |= _section(data.get(section, {}), kind, f"{path}, [{prefix}{section}]")
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
        header = f"{where}, [[{prefix}gate]]"
        table, earlier = dict(_table(table, header)), dict[str, Any]()
        if isinstance(table.get("values"), list):
            table["values"] = [str(v) if isinstance(v, int) else v for v in table["values"]]
        if isinstance(table.get("baseline"), dict):
            earlier = _section(table["baseline"], Earlier, f"{header} baseline")
            table["baseline"] = earlier.pop("file", None)
        fields = _section(table, Gate, header, but=("missing", "file", "line")) | earlier
        if "metric" not in fields:
            raise UsageError(f"{where}: a gate without a metric", 'write metric = "ece"')
        fields["metric"] = _spec(fields["metric"])
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


def _known(table: Mapping[str, Any], known: Collection[str], where: str, inside: str = "") -> None:
    for key in table:
        if key not in known:
            what = f"[{inside}] " if inside else ""
            raise UsageError(f"{where}: unknown key '{key}'", (what + did_you_mean(key, known)).strip())


def _beside(path: Path, target: str) -> str:
    """`target` relative to the folder of the configuration file, as the working folder sees it."""
    return target if Path(target).is_absolute() else str(path.parent / target)


def _spec(text: str) -> str:
    """A metric's spec with `-` and `_` made the same in its name."""
    name, colon, rest = text.strip().partition(":")
    return normal(name) + colon + rest


def _section(table: Any, kind: type, where: str, but: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass that a table sets, `but` those that no table may."""
    kinds = {key: of for key, of in get_type_hints(kind, include_extras=True).items() if key not in but}
    _known(_table(table, where), kinds, where)
    return {key: _value(value, kinds[key], f"{where} {key}") for key, value in table.items()}


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a table", "write KEY = VALUE lines below its header")
    return value


def _value(value: Any, kind: Any, where: str) -> Any:
    """A value of the file as its field is annotated: a text, texts, a choice, or a number in its range."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # with None, which TOML has not
        return _value(value, args[0], where)
    if origin is tuple:
        if not isinstance(value, str | list):
            raise UsageError(f"{where} is {value!r}, not a list of texts", 'write ["one", "two"]')
        return tuple(_value(v, str, where) for v in ([value] if isinstance(value, str) else value))
    if origin is Literal:
        if value not in args:
            raise UsageError(f"{where} is {value!r}", did_you_mean(str(value), args))
        return value
    if kind is str:
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where} is {value!r}, not a text", "put it in quotes")
        return value
    noun, numbers = ("whole number", int) if args[0] is int else ("number", int | float)
    if isinstance(value, bool) or not isinstance(value, numbers):
        raise UsageError(f"{where} is {value!r}, not a {noun}", "write a plain number, without quotes")
    within(value, kind, f"{where} = ")
    return value if args[0] is int else float(value) + 0.0  # no negative zero
