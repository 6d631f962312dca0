"""The `Result` that every command returns and every renderer reads, with its estimates, tables and checks.

Its JSON is the file format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from calibcli.core import extensions, validation
from calibcli.core.errors import Exit, GateFailed, InputError, printable, refusing
from calibcli.core.figure_data import SAVED_IF, SCREEN, Later, PlainData, Plot, Tier, become, finite, saved
from calibcli.core.options import Range, normal
from calibcli.core.problem import Problem
from calibcli.core.registries import alike
from calibcli.core.scope import Scope

# Display in notebooks, at the prompt, as data frames, figures and files. The work is done in `render`, which lies above
# this package and is imported when something is first shown.


class Display:
    """The methods that show a result, a fit or an estimate, and write it to a file."""

    def __str__(self) -> str:
        return str(extensions.display().text(self))

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: verdict, sentences and tables."""
        return str(extensions.display().html(self))

    def _repr_markdown_(self) -> str:
        """Return Markdown for a notebook or a document."""
        return str(extensions.display().markdown(self))

    def to_frame(self, table: str = "") -> Any:
        """Return the estimates as a pandas `DataFrame` with one row each, or a table by its name.

        >>> result = calibcli.measure(logits, labels, "ece", "nll")
        >>> list(result.to_frame().columns[:4]), result.to_frame()["n"].tolist()
        (['name', 'scope', 'value', 'low'], [997, 997])

        Raises:
            UsageError: pandas is not installed, or there is no such table.
        """
        return extensions.display().frame(self, table)

    def plot(self, ax: Any = None) -> Any:
        """Draw the main figure, or without one the estimates with their intervals, and return the Matplotlib axes.

        >>> calibcli.measure(logits, labels, "ece", diagram=True).plot().get_ylabel()
        'accuracy'

        Args:
            ax: axes to draw on; None makes a new figure.
        """
        return extensions.display().plot(self, ax)

    def write(self, path: str | Path) -> None:
        """Write a file, whole or not at all, in the format that its suffix names: .html, .json, .png, .csv, .md, ...

        >>> calibcli.measure(logits, labels, "ece").write(folder / "report.html")
        >>> (folder / "report.html").read_text()[:15]
        '<!doctype html>'

        Raises:
            UsageError: the suffix is not that of a format, or the path cannot be written.
        """
        extensions.display().write(self, Path(path))


# Schema 1: with two classes, `ece` and similar metrics were those of the predicted class, `brier` was twice as large.
# Schema 2: some metrics and fields had other names.
SCHEMA = 3
Outcome = Literal["pass", "fail", "inconclusive", "not_run"]
Cell = str | bool | int | float | None
EXITS: dict[Outcome, Exit] = {
    "fail": Exit.FAIL,
    "not_run": Exit.NOT_RUN,
    "inconclusive": Exit.INCONCLUSIVE,
    "pass": Exit.OK,
}
WORST_FIRST = tuple(EXITS)


def decisive(outcomes: Iterable[tuple[Outcome, bool]]) -> tuple[Outcome, bool] | None:
    """Return the outcome that decides a run, with whether it is fatal; None without outcomes.

    It is the worst of the fatal ones. What only warns decides where nothing else was judged.

    Args:
        outcomes: each with whether it is fatal, as every PASS of a gate is.
    """
    return min(outcomes, key=lambda one: (not one[1], WORST_FIRST.index(one[0])), default=None)


VERDICTS: Mapping[Outcome, str] = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "not_run": "NOT RUN"}
"""The names of verdicts on rules, in every format and sentence."""
CLAIM_VERDICTS: Mapping[Outcome, str] = {
    "pass": "holds",
    "fail": "reversed",
    "inconclusive": "undecided",
    "not_run": "no verdict",
}
"""The names of verdicts on claims, that fail no run unless asked to."""


@dataclass(frozen=True, kw_only=True)
class Estimate(Display):
    """A number with its uncertainty and the method behind both.

    A value that is not finite becomes None with a `reason`, since JSON cannot hold it. Whoever measures passes `scope`
    and `where` together (`**where.fields`); a `scope` alone, as in older files, is read.

    >>> nll = calibcli.measure(logits, labels, "nll")["nll"]
    >>> round(nll.value, 3), round(nll.low, 3), round(nll.high, 3), nll.unit
    (0.464, 0.341, 0.849, 'nats')

    Attributes:
        name: canonical spec, e.g. `ece:bins=30`.
        value: the point estimate, or None.
        low, high: interval at `level`; None if no valid interval exists (`reason` says why).
        level: confidence level of the interval, e.g. 0.95.
        sided: `two`, or `lower`/`upper` if only that bound is meaningful, or `each` for two one-sided bounds with a
            level of (1 + level) / 2 each.
        scope: what was measured: "" (everything), `before`, `after`, `class=3`, `site=A`, `layer=conv1`.
        where: the same in its parts. A file has it where the text of `scope` could be read otherwise.
        unit: the unit of `value`: `nats`, `probability`, ... (`percent` is shown as 4.1 %, `ratio` as 1.3×).
        better: `lower`, `higher`, `zero` (closest to zero) or "".
        how: estimator and interval method, in words.
        reason: why the value or the interval is missing.
        n: rows behind the number.  se: standard error.
        null, null_high: the value expected under perfect calibration, and its 95 % quantile.
        detail: further named numbers (sampling error, effective n, ...).
        tier: when a screen shows it.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    level: Annotated[float, Range(0, 1, open_low=True, open_high=True)] | None = None
    sided: Literal["two", "lower", "upper", "each"] = "two"
    scope: str = ""
    unit: str = ""
    better: str = ""
    how: str = ""
    reason: str = ""
    n: Annotated[int, Range(0, 10**15)] | None = None
    se: Annotated[float, Range(0)] | None = None
    null: float | None = None
    null_high: float | None = None
    detail: Mapping[str, Cell] = field(default_factory=dict)
    where: Scope = field(default=Scope(), repr=False, metadata={SAVED_IF: lambda e: e.where != Scope.read(e.scope)})
    tier: Tier = field(default="few", compare=False, repr=False, metadata=SCREEN)

    def __post_init__(self) -> None:
        if str(self.where) != self.scope:  # given, or replaced, as a text alone
            object.__setattr__(self, "where", Scope.read(self.scope))
        for key in ("value", "low", "high", "se", "null", "null_high"):
            number = getattr(self, key)
            if number is None:
                continue
            number = float(number)
            if not math.isfinite(number):
                if not self.reason:
                    problem = "not a number" if math.isnan(number) else "infinite"
                    object.__setattr__(self, "reason", f"{key} is {problem}")
                number = None
            object.__setattr__(self, key, number)
        if self.level is not None:  # 1 - 2 * 0.05 is not exactly 0.9 in floating point
            object.__setattr__(self, "level", round(float(self.level), 12))
        object.__setattr__(self, "detail", {k: finite(v) for k, v in self.detail.items()})

    def __float__(self) -> float:
        """Return the value.

        Raises:
            ValueError: there is none; the message says why.
        """
        if self.value is None:
            raise ValueError(f"{self.name} has no value: {self.reason or 'it is not defined here'}")
        return self.value

    def __format__(self, spec: str) -> str:
        """Format the value alone (`f"{e:.3f}"`), or without a format spec the value with its interval."""
        return format(float(self), spec) if spec else str(self)

    def groups_of(self, rows: int) -> int:
        """Return how many groups of this number's mean size hold `rows` rows; 0 if rows are independent.

        More rows of the same groups would not help, as the spread between groups stays.

        >>> Estimate(name="nll", value=1.0, n=600, detail={"groups": 12}).groups_of(1000)
        20
        """
        groups = self.detail.get("groups")
        return math.ceil(rows * groups / self.n) if isinstance(groups, (int, float)) and self.n else 0

    def problem(self) -> str:
        """Describe what cannot be true of a number from a file: a value of no rows, bounds in the wrong order; or "".

        >>> Estimate(name="nll", value=1.0, low=2.0).problem()
        'low is 2, above the value of 1'
        """
        if self.n == 0 and self.value is not None:
            return f"n is 0 beside a value of {self.value:g}"
        slack = 1e-9 * (1 + abs(self.value or 0.0))
        for lower, upper in (("low", "high"), ("low", "value"), ("value", "high")):
            a, b = getattr(self, lower), getattr(self, upper)
            if a is not None and b is not None and a > b + slack:
                return f"{lower} is {a:g}, above the {upper} of {b:g}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table beside the estimates (per class, per bin, ranking).

    Attributes:
        tier: when a screen shows it.  few: indices of the rows that a screen shows at first; empty for all rows.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    tier: Tier = field(default="few", compare=False, repr=False, metadata=SCREEN)
    few: Sequence[int] = field(default=(), compare=False, repr=False, metadata=SCREEN)

    def __post_init__(self) -> None:
        become(self, list, "columns")
        become(self, lambda rows: [[finite(v) for v in row] for row in rows], "rows")


@dataclass(frozen=True, kw_only=True)
class Check:
    """The verdict of one rule.

    Attributes:
        rule: canonical text of the rule, e.g. `ece <= 0.03`.
        outcome: pass, fail, inconclusive or not_run.
        message: one sentence with the numbers behind the verdict.
        estimate: the number that was judged.
        limit: the limit it was compared with.  scope: slice or class.
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
    scope: str = ""
    kind: str = ""
    n_needed: int | None = None
    fatal: bool = True
    file: str = ""
    line: int | None = None

    @property
    def rule_shown(self) -> str:
        """The rule as shown to readers: `ece <= 0.03 (binned, 15 bins)`."""
        return f"{self.rule} ({self.kind})" if self.kind else self.rule


Key = str | tuple[str, str]


class Numbers(Display, Mapping[Key, Estimate]):
    """A mapping to estimates from specs, or specs and scopes: `result["ece"]`, `result["ece", "site=A"]`.

    Any spelling of a spec will do (`ece:bins=15` is `ece`, and with two classes so is `ece:of=positive`), and so does
    the name alone if one spec of it was measured (`lambda_max` for `lambda_max:tol=0.01`). `get` returns None for a
    spec that was not measured.
    """

    estimates: Sequence[Estimate]
    facts: Mapping[str, Any]

    @property
    def predicted(self) -> Problem:
        """What is predicted and how, as the facts state it."""
        return Problem.of(self.facts)

    @cached_property
    def by_scope(self) -> Mapping[str, Sequence[Estimate]]:
        """The estimates of each scope, in order: looking for one among those of all labels or slices takes long."""
        by_scope: dict[str, list[Estimate]] = {}
        for e in self.estimates:
            by_scope.setdefault(e.scope, []).append(e)
        return by_scope

    def __repr__(self) -> str:
        return str(self)

    def __getitem__(self, key: Key) -> Estimate:
        """Return the estimate.

        Raises:
            KeyError: there is none, or the key fits several; the message lists them.
        """
        name, scope = (key, "") if isinstance(key, str) else key
        in_scope = {e.name: e for e in reversed(self.by_scope.get(scope, []))}
        for spec in (name, *sorted(alike(name, self.predicted.classes))):
            if spec in in_scope:
                return in_scope[spec]
        family = [e for spec, e in in_scope.items() if spec.partition(":")[0] == normal(name)]
        if len(family) == 1:
            return family[0]
        elsewhere = [f"'{e.name}' of '{e.scope}'" for e in self.estimates if e.name == name]
        candidates = [e.name for e in family] or elsewhere or list(reversed(in_scope)) or [str(key) for key in self]
        of_scope = f" of '{scope}'" if scope else ""
        raise KeyError(f"no estimate '{name}'{of_scope}, but {', '.join(candidates) or 'none'}")

    def __iter__(self) -> Iterator[Key]:
        return iter(dict.fromkeys((e.name, e.scope) if e.scope else e.name for e in self.estimates))

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The layout of a result on a screen, beside the tiers of its parts.

    Attributes:
        pairs: which numbers stand side by side. `change`: before, after and their difference. `models`: the values of
            two models and their difference. `errors`: both errors of a number. `scores`: the metrics of one score.
            `claims`: a claim and the numbers that decide it. `tables`: none, since the tables have all numbers. "":
            before and after, each with its interval.
        hidden: names of facts that only `-v` shows.
        one_page: whether the first screen is cut to one page.
        bins: the most rows of a reliability diagram on the first screen.
        badge: the label of a badge, by default the command.
    """

    pairs: Literal["", "change", "models", "errors", "scores", "claims", "tables"] = ""
    hidden: Sequence[str] = ()
    one_page: bool = False
    bins: int = 15
    badge: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Numbers):
    """The result of a command, as plain data: every renderer reads this and nothing else.

    It is also a mapping to its estimates (see `Numbers`): `result["ece"].high`.

    >>> result = calibcli.measure(logits, labels, "ece", "nll")
    >>> list(result), result.facts["kind"]
    (['ece', 'nll'], 'logits')

    Attributes:
        notes: warnings and remarks for the reader, one sentence each.
        facts: settings and findings that are not estimates (kind of scores, n, classes, ridge, ...).
        artefacts: files written by `--save`, by role.
        provenance: version, argv, seed, device, inputs with sha256, and the time fields `started`, `seconds`.
        screen: the layout on a screen.
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
    screen: Screen = field(default=Screen(), compare=False, repr=False, metadata=SCREEN)

    def __post_init__(self) -> None:
        become(self, list, "estimates", "tables", "checks", "notes")
        become(self, lambda plots: plots if isinstance(plots, Later) else list(plots), "plots")
        become(self, PlainData.of, "facts", "artefacts", "provenance")

    def problem(self) -> str:
        """Describe what is wrong with a result from a file: another schema, a number that is there twice, or inputs
        that are no files; or "".

        >>> Result(command="fit", estimates=[Estimate(name="nll", value=1.0)] * 2).problem()
        'nll is there twice'
        """
        if self.schema != SCHEMA:
            return f"schema is {self.schema}, this version reads {SCHEMA}"
        seen = set()
        for estimate in self.estimates:
            if (estimate.name, estimate.where) in seen:
                return f"{estimate.name}{' of ' + estimate.scope if estimate.scope else ''} is there twice"
            seen.add((estimate.name, estimate.where))
        files, seconds = self.provenance.get("inputs") or (), self.provenance.get("seconds") or 0
        if not isinstance(files, list | tuple) or not all(isinstance(file, Mapping) for file in files):
            return "provenance.inputs is no list of files"
        return "" if isinstance(seconds, int | float) else "provenance.seconds is no number"

    @property
    def deciding(self) -> tuple[Outcome, bool] | None:
        """The outcome that decides the exit code, with whether it is fatal; None if nothing was judged."""
        return decisive((check.outcome, check.fatal) for check in self.checks)

    @property
    def verdict(self) -> Outcome | None:
        """The outcome that decides the exit code: the worst (fail, not_run, inconclusive, pass) of the fatal checks.

        Where every check only warns it is the worst of these; None if nothing was judged.
        """
        return self.deciding and self.deciding[0]

    @property
    def words(self) -> Mapping[Outcome, str]:
        """Its verdicts in words: `CLAIM_VERDICTS` of the question of a study that fails no run, else `VERDICTS`."""
        judges = any(check.fatal for check in self.checks)
        return CLAIM_VERDICTS if "question" in self.facts and not judges else VERDICTS

    @property
    def verdict_word(self) -> str:
        """The verdict by the name that such verdicts have: `fail`, or of claims `reversed`; "" without one."""
        return CLAIM_VERDICTS[self.verdict] if self.verdict and self.words is CLAIM_VERDICTS else self.verdict or ""

    @property
    def inputs_read(self) -> list[Mapping[str, Any]]:
        """The inputs, each with its path, that say under `read` what they were taken for."""
        entries = self.provenance.get("inputs") or ()
        return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("read"), dict)]

    @property
    def exit_code(self) -> int:
        """The exit code of the command, by the worst of its fatal checks: 1 fail, 5 not run, 3 inconclusive, else 0."""
        outcome, fatal = self.deciding or ("pass", False)
        return int(EXITS[outcome] if fatal else Exit.OK)

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
        """Return this result if it passed.

        >>> calibcli.check(logits, labels, max={"ece": 0.1}).raise_if_failed().verdict
        'pass'

        Raises:
            GateFailed: a check fails the run; the message says which and why.
            ValueError: nothing was judged.
        """
        if self.passed:
            return self
        lines = []
        for c in sorted(self.checks, key=lambda c: WORST_FIRST.index(c.outcome)):  # what decides stands first
            if c.outcome != "pass" and c.fatal:
                part, why = f" ({c.scope})" if c.scope else "", f": {c.message}" if c.message else ""
                lines.append(f"{VERDICTS[c.outcome]} {c.rule}{part}{why}")
        failed = GateFailed("\n".join(lines))
        failed.code = Exit(self.exit_code)
        raise failed

    def __bool__(self) -> bool:
        raise TypeError(
            "a result is neither true nor false: ask .passed, .verdict or .exit_code, or .raise_if_failed()"
        )

    def to_json(self) -> str:
        """Write strict JSON (no NaN or Infinity), indented, with a checksum that reveals edits.

        >>> calibcli.measure(logits, labels, "ece").to_json()[:24]
        '{\\n  "command": "metrics"'
        """
        import json

        data = saved(self)
        as_read = json.loads(json.dumps(data, allow_nan=False))  # with keys that are texts
        data["checksum"] = _checksum(as_read)
        return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "result") -> Result:
        """Read the JSON that `to_json` writes.

        >>> Result.from_json(calibcli.measure(logits, labels, "accuracy").to_json())["accuracy"].n
        997

        Raises:
            InputError: it is not JSON, not a result, of another schema, has numbers that cannot be right, or was
                changed by another program.
        """
        import json

        fix = "pass the .json that a calib command wrote"
        problem = f"{source} is not JSON"
        with refusing((ValueError, RecursionError), lambda error: f"{problem} ({printable(str(error), 100)})", fix):
            data = json.loads(text)
        if not isinstance(data, dict) or "command" not in data or "schema" not in data:
            raise InputError(f"{source} is JSON but not a calib result", fix)
        if data["schema"] != SCHEMA:
            raise InputError(
                f"{source} has schema {printable(str(data['schema']), 40)}, this version reads {SCHEMA}",
                "upgrade calibcli, or write the result again with this version",
            )
        fix = "write it again: this is not what calib writes"
        result: Result = validation.read(data, cls, source, fix)
        if "checksum" in data and data["checksum"] != _checksum(data):  # earlier versions wrote none
            raise InputError(f"{source} was changed by something else than calib: its checksum does not fit", fix)
        return result


def _checksum(data: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of a result without its checksum and its times, which differ between equal runs.

    Keys are sorted and 1.0 is hashed as 1, since programs that copy JSON may change both.
    """
    import hashlib
    import json
    import re

    origin = {key: value for key, value in data["provenance"].items() if key not in ("started", "seconds")}
    hashed = {key: value for key, value in data.items() if key != "checksum"} | {"provenance": origin}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(re.sub(r"(?<=\d)\.0(?=[,\]}])", "", text).encode()).hexdigest()


def by_report(result: Result) -> bool:
    """Whether this result is the comparison that a report made of the results given to it."""
    return result.command == "compare" and not result.provenance


def results_of(result: Result, name: str = "") -> list[tuple[str, Result]]:
    """List the results in a report, with their names; for any other result, itself with the given name.

    Raises:
        InputError: one of them is no result that this version reads.
    """
    inside = result.facts.get("results") if result.command == "report" else None
    if not isinstance(inside, list):
        return [(name, result)]
    fix = "write it again: this is not what calib writes"
    return [
        (str(one.get("name", "")), validation.read(one.get("result"), Result, "report", fix, f"facts.results[{i}]"))
        for i, one in enumerate(inside)
        if isinstance(one, Mapping)
    ]
