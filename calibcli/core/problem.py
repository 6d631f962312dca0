"""What is predicted and how, as results state it among their facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EVENT_SHARE = "share of the event"
"""The fact of a result of two classes that says how often the event came."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The problem that recorded outputs answer, written to the facts of a result and read from them again.

    >>> Problem.of(calibcli.measure(logits, labels, "nll").facts).classes
    10

    Attributes:
        classes: how many; 0 of confidences alone, or where a result does not say.
        event: of two classes, the one that is measured; "" of more.
        kind: of the scores, in words; `confidence` where those of the predicted class are all there is.
        guess_nll, guess_accuracy: what a guess would give where the number of choices varies; else 0.
        unrelated: whether the labels look unrelated to the predictions.
    """

    classes: int = 0
    event: str = ""
    kind: str = ""
    guess_nll: float = 0.0
    guess_accuracy: float = 0.0
    unrelated: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of it, as facts of a result."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Problem:
        """Read it from the facts of a result; facts of another type are left out."""
        kinds = {name: (int, float) if isinstance(default, float) else type(default) for name, default in DEFAULTS}
        return cls(**{name: facts[name] for name, kind in kinds.items() if isinstance(facts.get(name), kind)})


DEFAULTS = tuple(vars(Problem()).items())
