"""The `Result` that every command returns and every renderer reads, its estimates, tables and checks. Its JSON is the
file format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from calibcli.core import extensions, validation
from calibcli.core.errors import Exit, GateFailed, InputError, printable
from calibcli.core.figure_data import SCREEN, Plot, Tier, become, finite, saved
from calibcli.core.options import Range, normal
from calibcli.core.shelves import alike

# Values that readers look at: in a notebook, at a prompt, as a data frame, drawn, or written to a file.
#
# How they look is `render`'s, above this room; it is asked by its name when somebody looks, and costs nothing before.


class Display:
    """A result, a fit or an estimate as its reader wants it."""

    def __str__(self) -> str:
        return str(extensions.display().text(self))

    def _repr_html_(self) -> str:
        """For a notebook: verdict, sentences and tables."""
        return str(extensions.display().html(self))

    def _repr_markdown_(self) -> str:
        """For a notebook or a document that takes Markdown."""
        return str(extensions.display().markdown(self))

    def to_frame(self, table: str = "") -> Any:
        """The estimates as a pandas `DataFrame`, one row each; or a table by its name.

        >>> found = calibcli.measure(logits, labels, "ece", "nll")
        >>> list(found.to_frame().columns[:4]), found.to_frame()["n"].tolist()
        (['name', 'scope', 'value', 'low'], [997, 997])

        Raises:
            UsageError: pandas is not installed, or there is no such table.
        """
        return extensions.display().frame(self, table)

    def plot(self, ax: Any = None) -> Any:
        """Draw the main figure, or the estimates with their intervals where there is none; the Matplotlib axes.

        >>> calibcli.measure(logits, labels, "ece", diagram=True).plot().get_ylabel()
        'accuracy'

        Args:
            ax: axes to draw on; None makes a figure.
        """
        return extensions.display().plot(self, ax)

    def write(self, path: str | Path) -> None:
        """Write a file, whole or not at all, in the format of its suffix: .html, .json, .png, .csv, .md, ...

        >>> calibcli.measure(logits, labels, "ece").write(folder / "report.html")
        >>> (folder / "report.html").read_text()[:15]
        '<!doctype html>'

        Raises:
            UsageError: a suffix that is no format, or a path that cannot be written.
        """
        extensions.display().write(self, Path(path))


# The one value every command returns and every renderer reads: a `Result`. Its JSON is the file format.


SCHEMA = (
    3  # 1: of two classes `ece` and its like were of the predicted class, `brier` was twice as large; 2: other names
)
Outcome = Literal["pass", "fail", "inconclusive", "not_run"]
Cell = str | bool | int | float | None
EXITS: dict[Outcome, Exit] = {
    "fail": Exit.FAIL,
    "not_run": Exit.NOT_RUN,
    "inconclusive": Exit.INCONCLUSIVE,
    "pass": Exit.OK,
}
WORST_FIRST = tuple(EXITS)
CHANGE = "after minus before"
"""The scope of what changed between the scopes `before` and `after`, paired over rows."""
VERDICTS: Mapping[Outcome, str] = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "not_run": "NOT RUN"}
"""The words of a verdict on a rule, in every format and sentence."""
CLAIMS: Mapping[Outcome, str] = {
    "pass": "holds",
    "fail": "reversed",
    "inconclusive": "undecided",
    "not_run": "no verdict",
}
"""The words of a verdict on a claim, which fails nothing."""


@dataclass(frozen=True, kw_only=True)
class Estimate(Display):
    """A number with its uncertainty and how that was got.

    A value that is not finite becomes None with a `reason`, so that what is in memory is what JSON can hold.

    >>> found = calibcli.measure(logits, labels, "nll")["nll"]
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.unit
    (0.464, 0.341, 0.849, 'nats')

    Attributes:
        name: canonical spec, e.g. `ece:bins=30`.
        value: the point estimate, or None.
        low, high: interval at `level`; None where no valid interval exists (`reason` says why).
        level: confidence level of the interval, e.g. 0.95.
        sided: `two`, or `lower`/`upper` where only that bound is meaningful, or `each` for two one-sided bounds
            that each hold at (1 + level) / 2.
        scope: what the number is of: "" (everything), `before`, `after`, `class=3`, `site=A`, `layer=conv1`.
        unit: the unit that `value` is in: `nats`, `probability`, ... (`percent` is shown as 4.1 %, `ratio` as 1.3×).
        better: `lower`, `higher`, `zero` (closest to zero) or "".
        how: estimator and interval method, in words.
        reason: why value or interval is missing.
        n: rows behind the number.  se: standard error.
        null, null_high: level to expect under perfect calibration, and its 95 % quantile.
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
    tier: Tier = field(default="few", compare=False, repr=False, metadata=SCREEN)

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
        object.__setattr__(self, "detail", {k: finite(v) for k, v in self.detail.items()})

    def __float__(self) -> float:
        """The value.

        Raises:
            ValueError: there is none; says why.
        """
        if self.value is None:
            raise ValueError(f"{self.name} has no value: {self.reason or 'it is not defined here'}")
        return self.value

    def __format__(self, spec: str) -> str:
        """`f"{e:.3f}"` is the value alone, `f"{e}"` has its interval too."""
        return format(float(self), spec) if spec else str(self)

    def groups_of(self, rows: int) -> int:
        """Groups of this number's mean size that hold so many rows; 0 where rows are independent. More rows of the same
        groups decide nothing, as the spread between groups stays.

        >>> Estimate(name="nll", value=1.0, n=600, detail={"groups": 12}).groups_of(1000)
        20
        """
        groups = self.detail.get("groups")
        return math.ceil(rows * groups / self.n) if isinstance(groups, (int, float)) and self.n else 0

    def problem(self) -> str:
        """What of a number that was read cannot be: a value of no rows, bounds that do not hold it; or "".

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
    """Rows of a table beside the estimates (per class, per bin, ranking).

    Attributes:
        tier: when a screen shows it.  few: the rows that a screen shows at first, by number; none: all of them.
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
        limit: what it was judged against.  scope: slice or class.
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
        """The rule as a reader is shown it: `ece <= 0.03 (binned, 15 bins)`."""
        return f"{self.rule} ({self.kind})" if self.kind else self.rule


Key = str | tuple[str, str]


class Numbers(Display, Mapping[Key, Estimate]):
    """Estimates by spec, or by spec and what they are of: `found["ece"]`, `found["ece", "site=A"]`.

    A spec may be in any spelling (`ece:bins=15`, and of two classes `ece:of=positive`, are `ece`), or a name alone
    where one spec of it was measured (`lambda_max` for `lambda_max:tol=0.01`). `get` gives None where there is none.
    """

    estimates: Sequence[Estimate]
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return str(self)

    def __getitem__(self, key: Key) -> Estimate:
        """The estimate.

        Raises:
            KeyError: there is none, or several that may be meant; says which there are.
        """
        name, scope = (key, "") if isinstance(key, str) else key
        there = {e.name: e for e in reversed(self.estimates) if e.scope == scope}
        classes = self.facts.get("classes")
        for spec in (name, *sorted(alike(name, classes if isinstance(classes, int) else 0))):
            if spec in there:
                return there[spec]
        family = [e for spec, e in there.items() if spec.partition(":")[0] == normal(name)]
        if len(family) == 1:
            return family[0]
        elsewhere = [f"'{e.name}' of '{e.scope}'" for e in self.estimates if e.name == name]
        known = [e.name for e in family] or elsewhere or list(reversed(there)) or [str(key) for key in self]
        about = f" of '{scope}'" if scope else ""
        raise KeyError(f"no estimate '{name}'{about}, but {', '.join(known) or 'none'}")

    def __iter__(self) -> Iterator[Key]:
        return iter(dict.fromkeys((e.name, e.scope) if e.scope else e.name for e in self.estimates))

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True, kw_only=True)
class Screen:
    """How a command lays its result out on a screen, beside the tiers of its parts.

    Attributes:
        pairs: which numbers stand beside each other. `change`: before, after and their difference. `models`: the values
            of two models and their difference. `errors`: both errors of a number. `scores`: the metrics of one score.
            `claims`: a claim and what decides it. `tables`: none, the tables have the numbers. "": before and after,
            each with its interval.
        hidden: names of facts that only `-v` shows.
        one_page: whether what is shown at first is cut to the height of a screen.
        bins: the most rows of a diagram that is shown at first.
        badge: what a badge calls the result, by default its command.
    """

    pairs: Literal["", "change", "models", "errors", "scores", "claims", "tables"] = ""
    hidden: Sequence[str] = ()
    one_page: bool = False
    bins: int = 15
    badge: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Numbers):
    """What a command found. Plain data: every renderer reads this and nothing else.

    It is a mapping of its estimates too, see `Numbers`: `result["ece"].high`.

    >>> found = calibcli.measure(logits, labels, "ece", "nll")
    >>> list(found), found.facts["kind"]
    (['ece', 'nll'], 'logits')

    Attributes:
        notes: warnings and remarks for the reader, one sentence each.
        facts: settings and findings that are not estimates (kind of scores, n, classes, ridge, ...).
        artefacts: files written by `--save`, by role.
        provenance: version, argv, seed, device, inputs with sha256, and the time fields `started`, `seconds`.
        screen: how a screen lays it out.
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
        become(self, list, "estimates", "tables", "plots", "checks", "notes")
        become(self, lambda held: finite(dict(held)), "facts", "artefacts", "provenance")

    def problem(self) -> str:
        """The same number twice, or another schema.

        >>> Result(command="fit", estimates=[Estimate(name="nll", value=1.0)] * 2).problem()
        'nll is there twice'
        """
        if self.schema != SCHEMA:
            return f"schema is {self.schema}, this version reads {SCHEMA}"
        seen = set()
        for estimate in self.estimates:
            if (estimate.name, estimate.scope) in seen:
                return f"{estimate.name}{' of ' + estimate.scope if estimate.scope else ''} is there twice"
            seen.add((estimate.name, estimate.scope))
        return ""

    @property
    def verdict(self) -> Outcome | None:
        """The worst outcome of the checks: fail, not_run, inconclusive, pass; None where nothing was judged.

        A check that only warns counts as well: `exit_code` is what leaves it out.
        """
        outcomes = {check.outcome for check in self.checks}
        return next((o for o in WORST_FIRST if o in outcomes), None)

    @property
    def words(self) -> Mapping[Outcome, str]:
        """What its verdicts are called: those of a result that answers a question are on claims."""
        return CLAIMS if "question" in self.facts else VERDICTS

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

        >>> calibcli.check(logits, labels, max={"ece": 0.1}).raise_if_failed().verdict
        'pass'

        Raises:
            GateFailed: a check fails the run; says which and why.
            ValueError: nothing was judged.
        """
        if self.passed:
            return self
        lines = []
        for c in self.checks:
            if c.outcome != "pass" and c.fatal:
                part, why = f" ({c.scope})" if c.scope else "", f": {c.message}" if c.message else ""
                lines.append(f"{c.outcome.upper().replace('_', ' ')} {c.rule}{part}{why}")
        failed = GateFailed("\n".join(lines))
        failed.code = Exit(self.exit_code)
        raise failed

    def __bool__(self) -> bool:
        raise TypeError(
            "a result is neither true nor false: ask .passed, .verdict or .exit_code, or .raise_if_failed()"
        )

    def to_json(self) -> str:
        """Strict JSON (no NaN or Infinity), two-space indent, final newline, with a checksum that notices edits.

        >>> calibcli.measure(logits, labels, "ece").to_json()[:24]
        '{\\n  "command": "metrics"'
        """
        import json

        data = saved(self)
        data["checksum"] = _checksum(json.loads(json.dumps(data, allow_nan=False)))  # as it is read: keys are texts
        return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "result") -> Result:
        """Read what `to_json` wrote.

        >>> Result.from_json(calibcli.measure(logits, labels, "accuracy").to_json())["accuracy"].n
        997

        Raises:
            InputError: not JSON, not a result, written by a newer schema, with numbers that cannot be, or changed by
                something else than calib.
        """
        import json

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
        fix = "write it again: this is not what calib writes"
        made: Result = validation.read(data, cls, source, fix)
        if "checksum" in data and data["checksum"] != _checksum(data):  # earlier versions wrote none
            raise InputError(f"{source} was changed by something else than calib: its checksum does not fit", fix)
        return made


def _checksum(data: Mapping[str, Any]) -> str:
    """SHA-256 of a result without its checksum and its times, which two runs do not share.

    It is that of one spelling: programs may order keys anew, and write 1 for 1.0.
    """
    import hashlib
    import json
    import re

    rest = {key: value for key, value in data.items() if key != "checksum"}
    rest["provenance"] = {key: value for key, value in data["provenance"].items() if key not in ("started", "seconds")}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(re.sub(r"(?<=\d)\.0(?=[,\]}])", "", text).encode()).hexdigest()


def by_report(result: Result) -> bool:
    """Whether a report made this result itself, by comparing those that it was given."""
    return result.command == "compare" and not result.provenance


def results_of(result: Result, name: str = "") -> list[tuple[str, Result]]:
    """The results that a report holds, by name; any other result is its own, by the name given.

    Raises:
        InputError: one of them is no result of this version.
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
