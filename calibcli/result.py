"""The one value every command returns and every renderer reads: a `Result`. Its JSON is the file format."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from calibcli.errors import InputError

SCHEMA = 1
Outcome = Literal["pass", "fail", "inconclusive", "not_run"]
Cell = str | float | int | None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its uncertainty and how that was got.

    A value that is not finite becomes None with a `reason`, so that what is in memory is what JSON can hold.

    Attributes:
        name: canonical spec, e.g. `ece:bins=30`.
        value: the point estimate, or None.
        low, high: interval at `level`; None where no valid interval exists (`reason` says why).
        level: confidence level of the interval, e.g. 0.95.
        sided: `two`, or `lower`/`upper` where only that bound is meaningful, or `each` for two one-sided bounds
            that each hold at (1 + level) / 2.
        of: what the number is of: "" (everything), `before`, `after`, `class=3`, `site=A`, `layer=conv1`.
        unit: `nats`, `probability`, ...
        better: `lower`, `higher`, `zero` (closest to zero) or "".
        how: estimator and interval method, in words.
        reason: why value or interval is missing.
        n: rows behind the number.  se: standard error.
        null, null_high: level to expect under perfect calibration, and its 95 % quantile.
        detail: further named numbers (sampling error, effective n, ...).
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    sided: Literal["two", "lower", "upper", "each"] = "two"
    of: str = ""
    unit: str = ""
    better: str = ""
    how: str = ""
    reason: str = ""
    n: int | None = None
    se: float | None = None
    null: float | None = None
    null_high: float | None = None
    detail: Mapping[str, Cell] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("value", "low", "high", "se", "null", "null_high"):
            number = getattr(self, key)
            if number is None:
                continue
            number = float(number)
            if not math.isfinite(number):
                if not self.reason:
                    what = "not a number" if math.isnan(number) else "infinite"
                    object.__setattr__(self, "reason", f"{key} is {what}")
                number = None
            object.__setattr__(self, key, number)
        object.__setattr__(self, "detail", {k: _finite(v) for k, v in self.detail.items()})


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One drawn thing. `y` belongs to `x`; `low`/`high` make a band or error bars around it.

    kind: `line`, `band`, `bars` (x are left edges, `width` their widths), `steps`, `points`.
    role: what it stands for, which decides its colour: `model`, `gap`, `count`, `ideal`, `null`, `smooth`, ...
    """

    label: str
    kind: Literal["line", "band", "bars", "steps", "points"]
    x: Sequence[float]
    y: Sequence[float | None] = ()
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    width: Sequence[float] | None = None
    role: str = ""

    def __post_init__(self) -> None:
        for key in ("x", "y", "low", "high", "width"):
            series = getattr(self, key)
            if series is not None:
                object.__setattr__(self, key, [_finite(v) for v in series])


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Data of one figure panel. Panels of the same `group` share a figure row.

    kind: `xy` (curves) or `heat` (`z[row][column]` over `y` and `x` ticks).
    `labels` names categorical x positions 0, 1, ... when given.
    """

    name: str
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    kind: Literal["xy", "heat"] = "xy"
    curves: Sequence[Curve] = ()
    xscale: Literal["linear", "log"] = "linear"
    yscale: Literal["linear", "log"] = "linear"
    xlim: Sequence[float] | None = None
    ylim: Sequence[float] | None = None
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    z: Sequence[Sequence[float | None]] = ()
    labels: Sequence[str] = ()
    group: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "z", [[_finite(v) for v in row] for row in self.z])
        for key in ("xlim", "ylim", "x", "y", "labels", "curves"):
            series = getattr(self, key)
            if series is not None:
                object.__setattr__(self, key, [_finite(v) if key != "curves" else v for v in series])


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a table beside the estimates (per class, per bin, ranking)."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", list(self.columns))
        object.__setattr__(self, "rows", [[_finite(v) for v in row] for row in self.rows])


@dataclass(frozen=True, kw_only=True)
class Check:
    """The verdict of one rule.

    Attributes:
        rule: canonical text of the rule, e.g. `ece <= 0.03`.
        outcome: pass, fail, inconclusive or not_run.
        message: one sentence with the numbers behind the verdict.
        estimate: the number that was judged.
        limit: what it was judged against.  of: slice or class.
        n_needed: rows that would decide an inconclusive rule.
        fatal: whether this outcome fails the run (an inconclusive rule may only warn).
        file, line: where the rule is written.
    """

    rule: str
    outcome: Outcome
    message: str = ""
    estimate: Estimate | None = None
    limit: float | None = None
    of: str = ""
    n_needed: int | None = None
    fatal: bool = True
    file: str = ""
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a command found. Plain data: every renderer reads this and nothing else.

    Attributes:
        notes: warnings and remarks for the reader, one sentence each.
        facts: settings and findings that are not estimates (kind of scores, n, classes, ridge, ...).
        artefacts: files written by `--save`, by role.
        provenance: version, argv, seed, device, inputs with sha256, and the time fields `started`, `seconds`.
    """

    command: str
    estimates: Sequence[Estimate] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    artefacts: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for key in ("estimates", "tables", "plots", "checks", "notes"):
            object.__setattr__(self, key, list(getattr(self, key)))
        for key in ("facts", "artefacts", "provenance"):
            object.__setattr__(self, key, _finite(dict(getattr(self, key))))

    def get(self, name: str, of: str = "") -> Estimate:
        """The estimate of that name.

        Raises:
            KeyError: there is none.
        """
        for estimate in self.estimates:
            if estimate.name == name and estimate.of == of:
                return estimate
        raise KeyError(f"no estimate '{name}'" + (f" of '{of}'" if of else ""))

    def to_json(self) -> str:
        """Strict JSON (no NaN or Infinity), two-space indent, final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "result") -> Result:
        """Read what `to_json` wrote.

        Raises:
            InputError: not JSON, not a result, or written by a newer schema.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source} is not JSON ({error})", "pass the .json that a calib command wrote") from None
        if not isinstance(data, dict) or "command" not in data or "schema" not in data:
            raise InputError(f"{source} is JSON but not a calib result", "pass the .json that a calib command wrote")
        if data["schema"] != SCHEMA:
            raise InputError(
                f"{source} has schema {data['schema']}, this version reads {SCHEMA}",
                "upgrade calibcli, or write the result again with this version",
            )
        try:
            lists = {
                "estimates": [_build(Estimate, e) for e in data.get("estimates", ())],
                "tables": [_build(Table, t) for t in data.get("tables", ())],
                "plots": [
                    _build(Plot, {**p, "curves": [_build(Curve, c) for c in p.get("curves", ())]})
                    for p in data.get("plots", ())
                ],
                "checks": [
                    _build(Check, {**c, "estimate": _build(Estimate, c["estimate"]) if c.get("estimate") else None})
                    for c in data.get("checks", ())
                ],
            }
            return _build(cls, {**data, **lists})
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise InputError(f"{source} is not a well-formed calib result ({error})", "write it again") from None


T = TypeVar("T")


def _build(cls: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass from a mapping, ignoring keys that a later minor version may have added."""
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{k: v for k, v in data.items() if k in known})


def _finite(value: Any) -> Any:
    """Plain Python data: NumPy scalars and arrays unpacked, non-finite numbers None, tuples lists."""
    if isinstance(value, bool | str | int | None):
        return value
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
