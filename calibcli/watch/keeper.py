"""One watch: a state with its file, opened, added to, and looked at."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibcli import __version__
from calibcli.errors import InputError, NoRows, UsageError
from calibcli.gate import session
from calibcli.gate.config import Config, Gate
from calibcli.gate.input_files import Baselines, columns_wanted, read_scores
from calibcli.gate.request import Request
from calibcli.gate.sources import Scores
from calibcli.predictions import Predictions
from calibcli.result import Result
from calibcli.spec import Nats, PerYear, check_options
from calibcli.watch import ledger, nightly, told
from calibcli.watch import watched as watching
from calibcli.watch.ledger import Settings, State
from calibcli.watch.streams import Watched

BLOCK = 2_000_000  # rows whose columns are in memory at once


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a watch is begun with; None leaves it to the state, or to the default.

    Attributes:
        rules: `max`, `min`, `margin`, `baseline`, `alpha`, `bins` and `config` of a gate.
        reading: how files are read.
    """

    rules: Request
    per_year: PerYear | None = None
    nll_cap: Nats | None = None
    model: str = ""
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)


class Keeper:
    """A state, in a file or (path None) in memory.

    Args:
        path: of the state; it need not be there yet.
        restart: begin anew, and keep what is there beside it.

    Raises:
        InputError: a file that is no state, or was tampered with.
    """

    def __init__(self, path: str | os.PathLike[str] | None, terms: Terms, restart: bool = False) -> None:
        self.path, self.terms = path, terms
        self.name = "the state" if path is None else str(path)
        there = path is not None and os.path.exists(path)
        self.state: State | None = ledger.load(path, own=True) if there and path is not None and not restart else None
        self.aside = restart and there
        self.files: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def update(self, given: Predictions | str | Path, night: str = "", baseline: str = "") -> None:
        """Count rows, of a file or as they are; a file that is a state is merged. `keep` makes it last.

        Raises:
            InputError: rows, or a state, that are refused: nothing of them is counted.
        """
        if not isinstance(given, Predictions) and ledger.is_state(given):
            self.merge(ledger.load(given), str(given))
            return
        config = self._config(str(given) if not isinstance(given, Predictions) else "rows", baseline)
        reading = session.reading(self.terms.reading, config)
        try:
            rows = given if isinstance(given, Predictions) else read_scores(given, reading, columns_wanted(config))
        except NoRows as error:
            if self.state is None:  # what its scores are is known from rows
                raise
            self._nothing(night, error.problem)
            return
        source = Scores(rows, config)
        settings = self._settings(source, config)
        state = State.begin(settings) if self.state is None else nightly.copied(self.state)
        if self.state is not None:
            ledger.same(self.state, settings, self.name)
        asked, night = night, nightly.which(night, state, self.name)
        if not asked and state.night == night and state.rows_tonight and not self.files:
            self.notes.append(
                f"{night}, today in UTC, has {state.rows_tonight:,} rows already, and these count for the same night, "
                "in which no drift is seen; if they are of another night, write its date: --night DATE"
            )
        baselines = Baselines(source, reading)
        for part in _blocks(source):
            said = nightly.add(state, part, baselines, baseline or _baseline(config), night)
            self.notes += [said] if said else []
        self.notes += source.predictions.notes
        if source.predictions.ids is None and source.predictions.groups is None:
            self.notes.append("rows have no ids: rows that come twice are noticed only where a whole batch does")
        nightly.record(state)
        self.state, self.files = state, [*self.files, *source.files, *baselines.files]
        self.files += [dict(entry) for entry in config.files]

    def _nothing(self, night: str, found: str) -> None:
        """A night without rows: the history has it, and nothing else changes."""
        assert self.state is not None
        state = nightly.copied(self.state)
        night = nightly.which(night, state, self.name)
        nightly.empty(state, night)
        self.notes.append(f"{found}: a night of 0 rows changes nothing; was there no traffic on {night}?")
        self.state = state

    def merge(self, other: State, name: str) -> None:
        """Add the rows of another state.

        Raises:
            InputError: it has other rules, or rows that are in this one.
        """
        nightly.refuse_future(other, name)
        other = nightly.copied(other)
        self.state = nightly.merged(nightly.copied(self.state), other, name) if self.state else other
        if self.state.night:
            nightly.record(self.state)

    def keep(self) -> None:
        """Write the state."""
        if self.path is None or self.state is None:
            return
        if self.aside:
            self._put_aside()
        ledger.save(self.state, self.path, __version__)

    def result(self) -> Result:
        """What the watch says now.

        Raises:
            UsageError: there is no state.
        """
        if self.state is None:
            raise UsageError(
                f"{self.name} is not there yet", "pass rows and rules: calib watch STATE NEW --max ece=0.03"
            )
        found = told.result(self.state)
        notes = list(dict.fromkeys([*found.notes, *self.notes]))
        return dataclasses.replace(found, notes=notes, provenance={"inputs": self.files})

    def _config(self, named: str, baseline: str) -> Config:
        """The rules asked for; those of the state where none are."""
        rules = self.terms.rules
        asked = bool(rules.max or rules.min or rules.margin or rules.config)
        beside = (baseline or rules.baseline) if rules.margin else None
        config = session.asked(dataclasses.replace(rules, input=named, baseline=beside, reading=self.terms.reading))
        if self.state is not None and not asked:
            if any(rule.baseline for rule in self.state.settings.rules) and not baseline:
                raise UsageError(f"{self.name} has a rule against a baseline", "pass tonight's: --baseline FILE")
            gates = tuple(watching.gate_of(rule, baseline) for rule in self.state.settings.rules)
            return dataclasses.replace(config, gates=gates, files=())
        if not config.gates:
            raise UsageError("no rule to watch", "write --max ece=0.03, or gates in calib.toml")
        return config

    def _settings(self, source: Scores, config: Config) -> Settings:
        """What a state of these rules and rows is begun with; what is not said is that of the state."""
        old, rows = self.state.settings if self.state else None, source.predictions
        cap = self.terms.nll_cap or (old.cap if old else Settings.cap)
        found, unwatched, fixes = list[Watched](), list[str](), list[str]()
        for gate in config.gates:
            try:
                found.append(self._known(watching.watched(gate, source, cap), gate, source))
            except UsageError as error:
                if not gate.file:
                    raise
                unwatched.append(f"not watched: {error.problem}")
                fixes.append(error.fix)
        if not found:
            raise UsageError("; ".join(unwatched), fixes[0])
        self.notes += unwatched
        alpha = self.terms.rules.alpha or (old.alpha if old else config.alpha)
        return Settings(
            rules=found,
            alpha=alpha,
            per_year=self.terms.per_year or (old.per_year if old else Settings.per_year),
            cap=cap,
            classes=source.k or 0,
            names=list(map(str, rows.classes or ())),
            event=rows.event,
            model=self.terms.model or (old.model if old else ""),
        )

    def _known(self, rule: Watched, gate: Gate, source: Scores) -> Watched:
        """With the slices that the state watches, where tonight's rows have others."""
        if self.state is None or not rule.by:
            return rule
        mine = next((r for r in self.state.settings.rules if (r.rule, r.by) == (rule.rule, rule.by)), rule)
        new = [value for value in source.slices(gate) if value not in mine.values]
        if new and not isinstance(source.slices(gate), str):
            shown = ", ".join(new[:5]) + (", ..." if len(new) > 5 else "")
            self.notes.append(f"{rule.by} = {shown} came after the watch began, and is not watched")
        return mine

    def _put_aside(self) -> None:
        assert self.path is not None
        old = Path(self.path)
        for i in range(1, 1000):
            kept = old.with_name(f"{old.stem}.before-{nightly.today()}{'' if i == 1 else f'-{i}'}{old.suffix}")
            if not kept.exists():
                shutil.copy2(old, kept)
                self.notes.append(f"the state that was there is kept as {kept}")
                self.aside = False
                return
        raise InputError(f"there are 1,000 states beside {old} already", "move them to another folder")


def _blocks(source: Scores) -> Iterator[Scores]:
    """The rows some at a time, where they are more than fit; rows in groups, or beside a baseline, stay together."""
    rows, config = source.predictions, source.config
    if rows.n <= BLOCK or rows.groups is not None or _baseline(config):
        yield source
        return
    for start in range(0, rows.n, BLOCK):
        yield Scores(rows.take(np.arange(start, min(start + BLOCK, rows.n))), config)


def _baseline(config: Config) -> str:
    """The baseline of the first rule that has one."""
    return next((gate.baseline for gate in config.gates if gate.baseline), "")
