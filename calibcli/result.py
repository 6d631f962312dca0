"""The one value every command returns and every renderer reads: a `Result`. Its JSON is the file format."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from calibcli import wellformed
from calibcli.errors import Exit, GateFailed, InputError, printable
from calibcli.spec import Range, alike, normal

SCHEMA = 2  # 1: of two classes `ece` and its like were of the predicted class, `brier` was twice as large
Outcome = Literal["pass", "fail", "inconclusive", "not_run"]
Cell = str | bool | int | float | None
EXITS: dict[Outcome, Exit] = {
    "fail": Exit.FAIL,
    "not_run": Exit.NOT_RUN,
    "inconclusive": Exit.INCONCLUSIVE,
    "pass": Exit.OK,
}
WORST_FIRST = tuple(EXITS)


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
        unit: the unit that `value` is in: `nats`, `probability`, ... (`percent` is shown as 4.1 %, `ratio` as 1.3×).
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
    level: Annotated[float, Range(0, 1, open_low=True, open_high=True)] | None = None
    sided: Literal["two", "lower", "upper", "each"] = "two"
    of: str = ""
    unit: str = ""
    better: str = ""
    how: str = ""
    reason: str = ""
    n: Annotated[int, Range(0, 10**15)] | None = None
    se: Annotated[float, Range(0)] | None = None
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
        if self.level is not None:  # 1 - 2 * 0.05 is 0.9 to the reader
            object.__setattr__(self, "level", round(float(self.level), 12))
        object.__setattr__(self, "detail", {k: _finite(v) for k, v in self.detail.items()})

    def problem(self) -> str:
        """What of a number that was read cannot be: a value of no rows, bounds that do not hold it; or ""."""
        if self.n == 0 and self.value is not None:
            return f"n is 0 beside a value of {self.value:g}"
        slack = 1e-9 * (1 + abs(self.value or 0.0))
        for lower, upper in (("low", "high"), ("low", "value"), ("value", "high")):
            a, b = getattr(self, lower), getattr(self, upper)
            if a is not None and b is not None and a > b + slack:
                return f"{lower} is {a:g}, above the {upper} of {b:g}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One drawn thing; `kind` is its geometry, `role` what it stands for. Nulls leave a gap.

    kind:
        `line`: y over x; with `low`/`high`, a shaded band around it.
        `band`: filled from `low` to `high` over x (with `width`: one step per bin, x its left edge).
        `bars`: from `base` (0 when absent) to y; x is the left edge and `width` the width (without `width`: centred on
            x). `low`/`high` are error bars.
        `steps`: y[i] holds from x[i] to x[i + 1]; x may be one longer than y.
        `points`: markers, `low`/`high` their error bars.
        `vline`: a line across the panel at each x.  `hline`: one at each y (x is empty).

    role: a role has one colour in every panel of a figure, so the line and the band of one thing share a role.
        `model`, `before`, `after`: the thing measured (accuracy of a bin, a metric, ...).
        `gap`: bars from accuracy (`base`) to mean confidence (y).    `count`: numbers of rows.
        `ideal`: the diagonal, or what a perfect model shows.         `null`: what chance allows a perfect model.
        `smooth`: a smoothed estimate.                                `limit`: a gate's limit, a target.
        `best`: the optimum or the choice made.                       `ridge`: the ridge on a heat map.
        Anything else (`focal`, `layer1`, ...) takes the next colour of the palette; "" a new one for each curve.

    label: the legend's text; "" keeps the curve out of the legend.
    """

    label: str
    kind: Literal["line", "band", "bars", "steps", "points", "vline", "hline"]
    x: Sequence[float] = ()
    y: Sequence[float | None] = ()
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    width: Sequence[float] | None = None
    base: Sequence[float | None] | None = None
    role: str = ""

    def __post_init__(self) -> None:
        for key in ("x", "y", "low", "high", "width", "base"):
            series = getattr(self, key)
            if series is not None:
                object.__setattr__(self, key, [_finite(v) for v in series])


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Data of one figure panel: labelled axes with units, a title that says what and n.

    A reliability diagram is two of them, and every renderer (the terminal's too) knows it by these roles::

        Plot(name="reliability", title="Reliability of the top label, n = 500", xlim=(0, 1), ylim=(0, 1),
             xlabel="confidence", ylabel="accuracy", curves=[
                 Curve(label="accuracy", kind="bars", role="model", x=edges[:-1], width=widths, y=accuracy),
                 Curve(label="gap", kind="bars", role="gap", x=edges[:-1], width=widths, base=accuracy, y=confidence),
                 Curve(label="if calibrated", kind="band", role="null", x=edges[:-1], width=widths, low=.., high=..),
                 Curve(label="smoothed", kind="line", role="smooth", x=grid, y=.., low=.., high=..),
                 Curve(label="perfect", kind="line", role="ideal", x=[0, 1], y=[0, 1])])
        Plot(name="confidence", under="reliability", ylabel="rows", curves=[
                 Curve(label="rows", kind="bars", role="count", x=edges[:-1], width=widths, y=counts)])

    Attributes:
        kind: `xy` (curves) or `heat` (`z[row][column]` at the centres `y[row]`, `x[column]`; `curves` are drawn on it).
        xlim, ylim: (low, high), or None to fit the data.
        labels: names of the categorical x positions 0, 1, ... (layers, classes, differences).
        flip: draw x upwards, first at the top, y to the right; for long labels (forest plot, bars per layer).
        zlabel, zscale: colour bar of a heat map; with `log`, z <= 0 takes the lowest colour.
        levels: contours of z with their meaning as `levels_label` (the acceptable set: `levels=[best + 1.92 / n]`).
        group: panels of the same group are small multiples under that heading; "" is a row of its own.
        under: name of the Plot under which this one is a low strip with the same x axis.
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
    zlabel: str = ""
    zscale: Literal["linear", "log"] = "linear"
    levels: Sequence[float] = ()
    levels_label: str = ""
    labels: Sequence[str] = ()
    flip: bool = False
    group: str = ""
    under: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "z", [[_finite(v) for v in row] for row in self.z])
        for key in ("xlim", "ylim", "x", "y", "levels", "labels", "curves"):
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
        kind: how a binned metric is binned (`binned, 15 bins`), or "".
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
    kind: str = ""
    n_needed: int | None = None
    fatal: bool = True
    file: str = ""
    line: int | None = None

    @property
    def said(self) -> str:
        """The rule as a reader is shown it: `ece <= 0.03 (binned, 15 bins)`."""
        return f"{self.rule} ({self.kind})" if self.kind else self.rule


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

    def problem(self) -> str:
        """The same number twice."""
        seen = set()
        for estimate in self.estimates:
            if (estimate.name, estimate.of) in seen:
                return f"{estimate.name}{' of ' + estimate.of if estimate.of else ''} is there twice"
            seen.add((estimate.name, estimate.of))
        return ""

    def get(self, name: str, of: str = "") -> Estimate:
        """The estimate of that name: a spec in any spelling (`ece:bins=15` is `ece`), or the name alone where one spec
        of it was measured (`lambda_max` for `lambda_max:tol=0.01`).

        Raises:
            KeyError: there is none, or several that may be meant; says which there are.
        """
        there = {e.name: e for e in reversed(self.estimates) if e.of == of}
        for spec in (name, *sorted(alike(name))):
            if spec in there:
                return there[spec]
        family = [e for spec, e in there.items() if spec.partition(":")[0] == normal(name)]
        if len(family) == 1:
            return family[0]
        known = sorted({e.name for e in family} or there)
        about = f" of '{of}'" if of else ""
        raise KeyError(f"no estimate '{name}'{about}, but {', '.join(known) or 'none'}")

    @property
    def verdict(self) -> Outcome | None:
        """The worst outcome of the checks: fail, not_run, inconclusive, pass; None where nothing was judged.

        A check that only warns counts as well: `exit_code` is what leaves it out.
        """
        outcomes = {check.outcome for check in self.checks}
        return next((o for o in WORST_FIRST if o in outcomes), None)

    @property
    def exit_code(self) -> int:
        """What `calib` exits with, the worst of its fatal checks: 1 fail, 5 not run, 3 inconclusive, else 0."""
        outcomes = {check.outcome for check in self.checks if check.fatal}
        return int(next((EXITS[o] for o in WORST_FIRST if o in outcomes), Exit.OK))

    @property
    def passed(self) -> bool:
        """Whether something was judged and nothing fails the run.

        Raises:
            ValueError: nothing was judged.
        """
        if not self.checks:
            raise ValueError(f"calib {self.command} judges nothing: pass it to check, with limits")
        return self.exit_code == 0

    def raise_if_failed(self) -> Result:
        """This result, if it passed.

        Raises:
            GateFailed: a check fails the run; says which and why.
            ValueError: nothing was judged.
        """
        if self.passed:
            return self
        lines = []
        for c in self.checks:
            if c.outcome != "pass" and c.fatal:
                part, why = f" ({c.of})" if c.of else "", f": {c.message}" if c.message else ""
                lines.append(f"{c.outcome.upper().replace('_', ' ')} {c.rule}{part}{why}")
        failed = GateFailed("\n".join(lines))
        failed.code = Exit(self.exit_code)
        raise failed

    def __bool__(self) -> bool:
        raise TypeError(
            "a result is neither true nor false: ask .passed, .verdict or .exit_code, or .raise_if_failed()"
        )

    def to_json(self) -> str:
        """Strict JSON (no NaN or Infinity), two-space indent, final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "result") -> Result:
        """Read what `to_json` wrote.

        Raises:
            InputError: not JSON, not a result, written by a newer schema, or with numbers that cannot be.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{source} is not JSON ({printable(str(error), 100)})", "pass the .json that a calib command wrote"
            ) from None
        if not isinstance(data, dict) or "command" not in data or "schema" not in data:
            raise InputError(f"{source} is JSON but not a calib result", "pass the .json that a calib command wrote")
        if data["schema"] != SCHEMA:
            raise InputError(
                f"{source} has schema {printable(str(data['schema']), 40)}, this version reads {SCHEMA}",
                "upgrade calibcli, or write the result again with this version",
            )
        made: Result = wellformed.read(data, cls, source, "write it again: this is not what calib writes")
        return made


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
