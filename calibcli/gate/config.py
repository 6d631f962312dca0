"""Rules of a gate from the command line, calib.toml and pyproject.toml, and conditions on columns that choose rows."""

from __future__ import annotations

import dataclasses
import os
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from calibcli.core.errors import UsageError, did_you_mean, printable
from calibcli.core.files import reading
from calibcli.core.options import BINS, Alpha, Count, Cut, Label, Limit, Rows, Seed, Shift, convert, normal, within
from calibcli.core.validation import toml
from calibcli.gate.pins import AGAIN, PINNED
from calibcli.metrics.registry import METRICS
from calibcli.scores.columns import Edges, coded
from calibcli.scores.files.source import Source
from calibcli.scores.files.text_tables import NO_VALUE, is_number

# Conditions such as `site=A & age<=30` choose rows, where a gate's `by` is not the name of a column.

Op = Literal["=", "<=", ">", "<", ">="]
COMPARED = {"<=": np.less_equal, ">": np.greater, "<": np.less, ">=": np.greater_equal}
NO_NUMBER = {*NO_VALUE, "-", "."}  # texts in a column of numbers
FORMS = '; conditions are COLUMN=VALUE, COLUMN<=NUMBER, <, >=, > or COLUMN="" (no value), joined by &'
TEXT = r'"(?:[^"\\]|\\.)*"'
PLAIN = r"[^\s=<>&\"\\]+"
ONE = re.compile(rf"\s*({TEXT}|{PLAIN})\s*(<=|>=|<|>|==?)\s*({TEXT}|{PLAIN})\s*(&|$)")


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with a text (=) or a number (<=, <, >=, >).

    `=""` holds where there is no value: of numbers, also where a text such as `NA` says so.
    """

    column: str
    op: Op
    value: str

    def __str__(self) -> str:
        return f"{_quoted(self.column)}{self.op}{_quoted(self.value)}"

    def holds(self, column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return (N,) whether the value of each row meets the condition; what is no number meets no bound.

        Raises:
            UsageError: the condition compares with a number, and the column holds texts.
        """
        if self.op == "=" and not self.value and (given := numbers(column)) is not None:
            return np.isnan(given)
        if self.op == "=":
            return np.asarray(column.astype(str, copy=False) == self.value)
        values = numbers(column)
        if values is None or (bound := numbers(np.array([self.value]))) is None:
            raise UsageError(f"'{self}' asks for numbers, and '{self.column}' has others", "write COLUMN=VALUE")
        return np.asarray(COMPARED[self.op](values, bound[0]))


def parsed(text: str) -> list[Condition]:
    """Parse a text of conditions joined by `&`; an empty list where the text is something else.

    >>> [str(c) for c in parsed('site=A & "heart rate"<=60')]
    ['site=A', '"heart rate"<=60']
    """
    conditions, position = [], 0
    while match := ONE.match(text, position):
        column, op, value, more = match.groups()
        same = "=" if op == "==" else op
        conditions.append(Condition(_plain(column), same, _plain(value)))  # type: ignore[arg-type]
        position = match.end()
        if not more:
            return conditions
    return []


def text_of(conditions: Sequence[Condition]) -> str:
    """Write conditions as the text that `parsed` reads."""
    return " & ".join(map(str, conditions))


def rows_of(conditions: Sequence[Condition], columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_] | str:
    """Return (N,) whether all conditions hold; or the name of the first column that is missing."""
    missing = next((c.column for c in conditions if c.column not in columns), None)
    if missing is not None:
        return missing
    return np.asarray(np.logical_and.reduce([c.holds(np.asarray(columns[c.column])) for c in conditions]))


def numbers(column: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """Return (N,) values as numbers, nan where a text is empty or says so; None where a text is something else."""
    if column.dtype.kind in "fiu":
        return column.astype(np.float64)
    texts, codes = coded(column.astype(str, copy=False))
    try:
        values = ["nan" if text.strip().lower() in NO_NUMBER else text for text in texts]
        return np.array([*map(float, values)])[codes]
    except ValueError:
        return None


def _quoted(text: str) -> str:
    if re.fullmatch(PLAIN, text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


# Sources of rules, the strongest first: command line, calib.toml, [tool.calib] of pyproject.toml. A key that a stronger
# source sets replaces that key of a weaker one; the list of gates is one key.

SCHEMA = 1
NAME = "calib.toml"
MIN_N = 200
FailOrWarn = Literal["fail", "warn"]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One rule as written.

    Attributes:
        metric: spec of the metric.
        limit: in the direction of the metric (largest ECE, smallest accuracy). `max` or `min` name the direction.
        by: slice column, or `class` for the predicted class; every slice is judged.
        values: slices that must be present; one that is missing is NOT RUN.
        scope: which estimate of a result file: `before`, `after`, `layer=conv1`, ...
        min_n: rows below which the gate (or slice) is NOT RUN.
        on_inconclusive, on_not_run: `fail` or `warn`. on_not_run applies to parts with few rows or without a valid
            bound; a column, slice or number that is missing always fails.
        baseline: earlier result (written with --keep-rows) or scores file to compare with.
        margin: loss against the baseline that is allowed.
        missing: `fail` or `warn` where there is no baseline file yet.
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
        """Prefix of messages that says where the rule is written, `calib.toml:12: `; "" for the command line."""
        return f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The table `baseline = { file = "result.json", missing = "warn" }` of a gate."""

    file: str
    missing: FailOrWarn


@dataclass(frozen=True, kw_only=True)
class Data:
    """The section `[data]`: files to read, and options of reading by the names that the command line has.

    Paths are relative to the folder of the configuration file.

    Attributes:
        eval: scores file to judge.  fitted_on: scores that the calibrator was fitted on, which must not overlap `eval`.
        left_out: share of the rows that were left out when the rules were written, by cause (`calib init`).
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
    event: str = ""
    confidence: str = ""
    correct: str = ""
    predicted: str = ""
    confidence_scale: str = ""
    label_base: Label | None = None
    ignore_label: Label | None = None
    class_axis: str = ""
    shift: Shift | None = None
    drop_nonfinite: bool = False
    clip: Cut | None = None
    no_header: bool = False
    choices: tuple[str, ...] = ()
    lm_norm: str = ""
    unlisted: str = ""
    answer_token: str = ""
    missing: str = ""
    left_out: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Stats:
    """The section `[stats]`: options of the bounds.

    Attributes:
        alpha: error probability of each bound.  bins, edges: of binned metrics whose spec has none.  seed: of draws.
        bounds: of `ece`: `sharp` or `score`; rows in groups always have `score`.
    """

    alpha: Alpha = 0.05
    bins: Count = BINS
    edges: Edges = "right"
    bounds: Literal["score", "sharp"] = "sharp"
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Config(Stats, Data):
    """All settings of a check.

    Attributes:
        sources: files that were read.  files: path and sha256 of each.
    """

    gates: tuple[Gate, ...] = ()
    sources: tuple[str, ...] = ()
    files: tuple[Mapping[str, str], ...] = ()

    @property
    def pins(self) -> dict[str, Any]:
        """What `[data]` says of how the input is read: an input that is read otherwise is not judged."""
        named = {name: getattr(self, name) for name in (*PINNED, "left_out")}
        lists = {name: [*value] if isinstance(value, tuple) else value for name, value in named.items()}
        return {name: value for name, value in lists.items() if value or (name == "left_out" and value is not None)}

    @property
    def hints(self) -> dict[str, Any]:
        """The pins that are options only where a file does not say the same by itself; other files share them."""
        return {name: value for name, value in self.pins.items() if name in AGAIN}

    def named(self) -> list[str]:
        """Return every file that a check may read, whether it exists or not."""
        paths = [self.eval, self.fitted_on, *(gate.baseline for gate in self.gates), *self.sources]
        labels = [self.labels] if os.path.isfile(self.labels) else []  # else it names an array
        return list(filter(None, dict.fromkeys([*paths, *labels])))

    def over(self, **values: Any) -> Self:
        """Replace the settings whose value is not None."""
        return dataclasses.replace(self, **{k: v for k, v in values.items() if v is not None})


def load(path: Path | None = None, folder: Path = Path(), rules: bool = True) -> Config:
    """Load the configuration of `path`, or of calib.toml and pyproject.toml in `folder`.

    Files that it names are noted as inputs, which no output may overwrite.

    Args:
        rules: whether its gates will be judged, so that their baselines are inputs too.

    Raises:
        InputError: it cannot be read.
        UsageError: not TOML, an unknown key, or a value of the wrong kind; says where.
    """
    if path is not None:
        config = Config(**_read(path, required=True))
    else:
        config = Config(**_read(folder / "pyproject.toml", required=False) | _read(folder / NAME, required=False))
    reading(*(config if rules else dataclasses.replace(config, gates=())).named(), pipes=True)
    return config


def of_text(text: str, path: Path) -> Config:
    """Return the settings of the text of a calib.toml, which is no input that an output may not replace.

    Raises:
        UsageError: as `load`.
    """
    return Config(**_fields(toml(text, str(path)), path, "", text))


def limit_rule(text: str, side: str, **keys: Any) -> Gate:
    """Make a gate from `METRIC=NUMBER` of the command line; the metric may have options: `ece:bins=30=0.03`.

    Args:
        text: the value of the option.
        side: `max`, `min` or `margin`.
        keys: further fields of the gate.

    Raises:
        UsageError: not of that form.
    """
    metric, equals, number = text.rpartition("=")
    plain = number.strip().removesuffix("%").strip()
    if equals and re.fullmatch(r"-?\d*,\d+", plain):
        problem = f"--{side} {printable(text, 60)} is not a number"
        raise UsageError(problem, f"write it with a point: --{side} {metric.strip()}={plain.replace(',', '.')}")
    if equals and number.strip().endswith("%") and is_number(plain):
        problem = f"--{side} {printable(text, 60)}: limits are shares of one, not percent"
        raise UsageError(problem, f"write --{side} {metric.strip()}={float(plain) / 100:.12g}")
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
    """Read the fields of `Config` that a file sets."""
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
        tool = data.get("tool")
        prefix = "tool.calib."
        if not isinstance(tool, dict) or "calib" not in tool:
            return {}
        data = _table(tool["calib"], f"{path}, [tool.calib]")
    return {**_fields(data, path, prefix, text), "sources": (str(path),), "files": (source.entry(),)}


def _fields(data: Mapping[str, Any], path: Path, prefix: str, text: str) -> dict[str, Any]:
    _known(data, ("schema", "data", "stats", "gate"), str(path), prefix.rstrip("."))
    if data.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(f"{path} has schema {data['schema']}, this version reads {SCHEMA}", f"write schema = {SCHEMA}")
    fields: dict[str, Any] = {}
    for section, kind in (("data", Data), ("stats", Stats)):
        fields |= _section(data.get(section, {}), kind, f"{path}, [{prefix}{section}]")
    for key in ("eval", "fitted_on"):
        if key in fields:
            fields[key] = _beside(path, fields[key])
    if "gate" in data:
        fields["gates"] = tuple(_gates(data["gate"], path, prefix, text))
    return fields


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
    """Find the line (from 1) of every `[[gate]]` header; all None where it is not certain.

    TOML readers give no line numbers. A header inside a multi-line string, or gates written inline, make the number
    of headers differ from the number of gates.
    """
    name = r"\s*\.\s*".join(rf"[\"']?{part}[\"']?" for part in f"{prefix}gate".split("."))
    header = re.compile(rf"\s*\[\[\s*{name}\s*\]\]\s*(#.*)?$")
    lines = [i for i, line in enumerate(text.splitlines(), 1) if header.match(line)]
    return list(lines) if len(lines) == count else [None] * count


def _checked(gate: Gate, where: str) -> Gate:
    """Return the gate if its keys go together.

    Raises:
        UsageError: they do not.
    """
    given = [k for k in ("limit", "max", "min") if getattr(gate, k) is not None]
    if gate.margin is not None and not gate.baseline:
        raise UsageError(f"{where}: a margin without a baseline", 'add baseline = "result.json", or write a limit')
    if gate.baseline and (given or gate.by):
        word = given[0] if given else "by"
        raise UsageError(f"{where}: a gate against a baseline takes no {word}", "write margin, and a second gate")
    if gate.values and not gate.by:
        raise UsageError(f"{where}: values without by", 'write by = "COLUMN", whose values these are')
    if not gate.baseline and len(given) != 1:
        problem = f"{where}: {gate.metric} has {' and '.join(given) or 'no limit'}"
        raise UsageError(problem, "write one of limit, max, min (or baseline and margin)")
    return gate


def _known(table: Mapping[str, Any], allowed: Collection[str], where: str, inside: str = "") -> None:
    for key in table:
        if key not in allowed:
            what = f"[{inside}] " if inside else ""
            raise UsageError(f"{where}: unknown key '{key}'", (what + did_you_mean(key, allowed)).strip())


def _beside(path: Path, target: str) -> str:
    """Resolve `target`, relative to the folder of the configuration file, for the working folder."""
    return target if Path(target).is_absolute() else str(path.parent / target)


def _spec(text: str) -> str:
    """Write the spec of a metric with `_` for `-` in its name."""
    name, colon, options = text.strip().partition(":")
    return normal(name) + colon + options


def _section(table: Any, kind: type, where: str, but: Collection[str] = ()) -> dict[str, Any]:
    """Read the fields of a dataclass from a table, which may not have the keys of `but`."""
    kinds = {key: hint for key, hint in get_type_hints(kind, include_extras=True).items() if key not in but}
    _known(_table(table, where), kinds, where)
    return {key: _value(value, kinds[key], f"{where} {key}") for key, value in table.items()}


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a table", "write KEY = VALUE lines below its header")
    return value


def _value(value: Any, kind: Any, where: str) -> Any:
    """Convert a value of the file to the type of its field: a text, texts, a choice, or a number in its range."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # with None, which TOML does not have
        return _value(value, args[0], where)
    if origin is tuple:
        if not isinstance(value, str | list):
            raise UsageError(f"{where} is {value!r}, not a list of texts", 'write ["one", "two"]')
        return tuple(_value(v, str, where) for v in ([value] if isinstance(value, str) else value))
    if origin is Literal:
        if value not in args:
            raise UsageError(f"{where} is {value!r}", did_you_mean(str(value), args))
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{where} is {value!r}", "write true or false")
        return value
    if origin is Mapping:
        return {key: _value(number, args[1], f"{where}.{key}") for key, number in _table(value, where).items()}
    if kind is str:
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where} is {value!r}, not a text", "put it in quotes")
        return value
    noun, numbers = ("whole number", int) if (args or (kind,))[0] is int else ("number", int | float)
    if isinstance(value, bool) or not isinstance(value, numbers):
        raise UsageError(f"{where} is {value!r}, not a {noun}", "write a plain number, without quotes")
    if args:
        within(value, kind, f"{where} = ")
    return value if (args or (kind,))[0] is int else float(value) + 0.0  # no negative zero
