"""Watch a model night by night, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, cast

import numpy.typing as npt

from calibcli.api.gating import Limits, file_of, rules
from calibcli.api.measuring import Scores, given, is_path, spread
from calibcli.gate.config import load as rules_of
from calibcli.gate.request import Request
from calibcli.inputs.scores.from_arrays import How
from calibcli.result import Result
from calibcli.spoken import in_python
from calibcli.watch.keeper import Keeper, Terms
from calibcli.watch.ledger import load, locked

__all__ = ["Watch"]


class Watch:
    """A gate that may be looked at every night: all looks together are wrong with probability alpha at the most.

    Each claim is a bet whose wealth is an e-process (Ville 1939; Waudby-Smith and Ramdas 2024).

    >>> watch = calibcli.Watch(min={"accuracy": 0.85})
    >>> watch.update(logits, labels, night="2026-11-22").verdict
    'pass'

    Args:
        path: of the state, a .json file; None keeps it in memory. It need not be there yet.
        max, min, margin: limits by metric, `max={"ece": 0.03}`, fixed when the state is made; `margin` is what may be
            lost against a baseline. Of a state that is there they may be left out.
        alpha: error probability of each claim, over all looks [0.05].  per_year: of a drift alarm, in a year
            and in all years together [0.05].
        nll_cap: nats that a row counts for at the most [10].  bins: of ece [15].
        config: a calib.toml with the rules.  name: of the model; rows of another one are refused.
        restart: begin anew, and keep the state that is there beside it.

    Raises:
        InputError: a file that is no state, or that something else has changed.
    """

    @in_python
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max: Limits | None = None,
        min: Limits | None = None,
        margin: Limits | None = None,
        alpha: float | None = None,
        per_year: float | None = None,
        nll_cap: float | None = None,
        bins: int | None = None,
        config: str | Path | None = None,
        name: str = "",
        restart: bool = False,
    ) -> None:
        request = Request(
            max=rules(max),
            min=rules(min),
            margin=rules(margin),
            alpha=alpha,
            bins=bins,
            config=None if config is None else Path(config),
        )
        rules_of(request.config)  # what it names is no place for an output, also where these rules go before its own
        terms = Terms(rules=request, per_year=per_year, nll_cap=nll_cap, model=name)
        self._keeper = Keeper(path, terms, restart)
        self._path = path

    def __repr__(self) -> str:
        return f"Watch({'in memory' if self._path is None else repr(os.fspath(self._path))})"

    @in_python
    @spread
    def update(
        self,
        scores: Scores,
        /,
        labels: npt.ArrayLike | None = None,
        *,
        night: str | datetime.date = "",
        baseline: str | Path | None = None,
        **how: Unpack[How],
    ) -> Result:
        """Count the rows of a night, write the state, and say what it knows now.

        >>> watch = calibcli.Watch(max={"ece": 0.2})
        >>> watch.update(logits, labels, night="2026-11-22").facts["n"]
        997

        Args:
            scores, labels, how: (N, K) and (N,), as for `measure`. With `by`, every slice is watched too.
            night: date of the rows, `2026-11-22`, as text or a date; today, in UTC.
            baseline: scores of another model on the same rows, with `margin`.

        Raises:
            InputError: rows that are refused, of another model, or in the state already: none of them is counted.
            UsageError: a rule without a meaning, or others than those of the state.
        """
        more: dict[str, Any] = {**how, **({} if labels is None else {"labels": labels})}
        more |= {"by": (how["by"],)} if isinstance(how.get("by"), str) else {}
        if is_path(scores):
            parts: list[Any] = [Path(scores)] if isinstance(scores, str | Path) else list(cast(Any, scores))
        else:
            parts = [given(Watch.update, scores, labels, how)]
            more = {"by": tuple(parts[0].slices)} if parts[0].slices else {}

        def count(keeper: Keeper) -> None:
            for part in parts:
                keeper.update(part, night if isinstance(night, str) else str(night)[:10], file_of(baseline))

        return self._kept(count, more)

    def merge(self, other: Watch | str | os.PathLike[str]) -> Result:
        """Add the rows of another part, or machine, that was begun with the same rules; write the state.

        >>> one, two = (calibcli.Watch(min={"accuracy": 0.85}) for _ in range(2))
        >>> a, b = one.update(logits[:500], labels[:500]), two.update(logits[500:], labels[500:])
        >>> one.merge(two).facts["n"]
        997

        Args:
            other: a watch, or the file of its state.

        Raises:
            InputError: it has other rules, or rows that are in this one too.
        """
        state = other._keeper.state if isinstance(other, Watch) else load(other)
        if state is None:
            return self.result()
        name = other._keeper.name if isinstance(other, Watch) else str(other)
        return self._kept(lambda keeper: keeper.merge(state, name), {})

    def result(self) -> Result:
        """What the state knows: a check for each rule and slice, its evidence, the nights, and their picture.

        >>> watch = calibcli.Watch(min={"accuracy": 0.85})
        >>> watch.update(logits, labels).verdict == watch.result().verdict
        True

        Raises:
            UsageError: there is no state yet.
        """
        return self._keeper.result()

    def _kept(self, change: Callable[[Keeper], None], reading: dict[str, Any]) -> Result:
        """After a change of the state that its file holds now, and writing it."""
        path = self._keeper.path
        with contextlib.nullcontext() if path is None else locked(path):
            if path is not None and os.path.exists(path) and not self._keeper.aside:
                self._keeper.state = load(path, own=True)
            self._keeper.notes, self._keeper.files = [], []
            self._keeper.terms = dataclasses.replace(self._keeper.terms, reading=reading)
            change(self._keeper)
            self._keeper.keep()
        return self.result()
