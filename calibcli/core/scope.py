"""What a number is of: some of the rows, one phase, one model or the difference of two. Only here it becomes text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

CHANGE: Literal["after minus before"] = "after minus before"
"""The phase of the difference between the phases `before` and `after`, paired over rows."""
Phase = Literal["", "before", "after", "after minus before"]
MEAN_OF_TASKS, MEAN_OF_LABELS = MEANS = ("mean of tasks", "mean of labels")
"""Subjects of means over slices, in which each counts the same."""
PHASES: tuple[Phase, ...] = (CHANGE, *(one for one in get_args(Phase) if one not in ("", CHANGE)))
SEVERAL = ("loss", "score")
"""Names after whose value another name, or a subject, may follow: `loss=focal, k=1`, `score=energy, model=x`."""
KEPT = 4096  # texts that are read once, as many numbers share a scope


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What distinguishes numbers of the same name. Its text is the `scope` of an estimate, and for readers alone.

    Values and names are whatever users write, so that the text may mislead: of `visit=day before` either the group is
    `day before`, or this is `before` of the group `day`. Whoever measures says which; other code asks these fields.

    >>> print(Scope(parts={"site": "A"}, phase="after"), "|", Scope(parts={"site": "A"}).minus("b", "a"))
    site=A after | site=A, b - a

    Attributes:
        parts: column and value of a slice, `{"site": "A"}`, or another name and value, `{"layer": "conv1"}`.
        subject: what has a name alone: the loss of a run, the arm of a study, conditions on rows, `mean of tasks`.
        phase: `before` or `after` a change, or the difference between these.
        model, against: of a difference between two models, their names; `against` alone of one to a baseline.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""
    phase: Phase = ""
    model: str = ""
    against: str = ""

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and self._key == other._key

    @property
    def _key(self) -> tuple[Any, ...]:
        """All fields, with the order of the parts, which their text has too."""
        return (*self.parts.items(), None, self.subject, self.phase, self.model, self.against)

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.parts.items()]
        text = ", ".join([*named, *([self.subject] if self.subject else [])])
        if self.phase:
            text = f"{text} {self.phase}" if text else self.phase
        if not self.difference_of_models:
            return text
        difference = f"{self.model} - {self.against}" if self.model else f"minus {self.against}"
        return f"{text}, {difference}" if text else difference

    @property
    def fields(self) -> dict[str, Any]:
        """The two fields of an estimate that say this: `Estimate(name="ece", value=0.1, **where.fields)`."""
        return {"scope": str(self), "where": self}

    @property
    def difference_of_models(self) -> bool:
        """Whether the number is one model's minus another's."""
        return bool(self.model or self.against)

    @property
    def whole(self) -> bool:
        """Whether the number is of nothing in particular: of all rows and the one model."""
        return not (self.parts or self.subject or self.phase or self.difference_of_models)

    @property
    def without_phase(self) -> Scope:
        """The same without its phase: what was changed."""
        return dataclasses.replace(self, phase="")

    def without(self, name: str) -> Scope:
        """Return the same without one of its parts."""
        return dataclasses.replace(self, parts={key: value for key, value in self.parts.items() if key != name})

    def within(self, name: str) -> str | None:
        """Return what stands behind `name=` in the text, so the value of that column; None if it does not begin so."""
        return str(self)[len(name) + 1 :] if next(iter(self.parts), None) == name else None

    def at(self, phase: Phase) -> Scope:
        """Return the same before or after a change; what has a phase, or is a difference, is then a subject."""
        if self.phase or self.difference_of_models:
            return Scope(subject=str(self), phase=phase)
        return dataclasses.replace(self, phase=phase)

    def minus(self, model: str, against: str) -> Scope:
        """Return the difference of two models in this; a difference is then a subject."""
        if self.difference_of_models:
            return Scope(subject=str(self), model=model, against=against)
        return dataclasses.replace(self, model=model, against=against)

    def compared(self, model: str, against: str) -> Scope | None:
        """Return what these two models differ in, or None if this is no difference of them.

        The names decide how the text of an older file is read, of which `read` cannot know where a name begins.
        """
        if (self.model, self.against) == (model, against):
            return dataclasses.replace(self, model="", against="")
        text, difference = str(self), f"{model} - {against}"
        if self != Scope.read(text):  # known from the measurement
            return None
        if text == difference:
            return WHOLE
        return Scope.read(text.removesuffix(f", {difference}")) if text.endswith(f", {difference}") else None

    @classmethod
    @lru_cache(KEPT)
    def read(cls, text: str) -> Scope:
        """Read the text of a scope, of a file that has nothing else: it may be about something else that is written so.

        >>> Scope.read("site=A, b - a").parts, Scope.read("day before").subject
        ({'site': 'A'}, 'day')
        """
        scope = _difference(text) or _phase(text) or _parts(text)
        return scope if str(scope) == text else cls(subject=text)


WHOLE = Scope()
"""All rows of the one model."""
CHANGED, TO_BASELINE = Scope(phase=CHANGE), Scope(against="baseline")
"""What a calibration changed; one model minus a baseline."""


def _difference(text: str) -> Scope | None:
    """Read `site=A, b - a` and `minus baseline`; None for `site=18 - 30`."""
    if text == str(TO_BASELINE):
        return TO_BASELINE
    scope, _, difference = text.rpartition(", ")
    model, _, against = difference.rpartition(" - ")
    return Scope.read(scope).minus(model, against) if model and against and "=" not in difference else None


def _phase(text: str) -> Scope | None:
    """Read `ce after`."""
    for phase in PHASES:
        if text == phase:
            return Scope(phase=phase)
        if text.endswith(f" {phase}"):
            return _parts(text.removesuffix(f" {phase}")).at(phase)
    return None


def _parts(text: str) -> Scope:
    """Read `site=A`, of which all behind the sign is the value, but for `SEVERAL`; `ece <= 0.1` is none."""
    name, equals, value = text.partition("=")
    if not equals or name.endswith(("<", ">")):
        return Scope(subject=text)
    if name not in SEVERAL:
        return Scope(parts={name: value})
    value, _, more = value.partition(", ")
    remaining = _parts(more)
    return Scope(parts={name: value, **remaining.parts}, subject=remaining.subject)
