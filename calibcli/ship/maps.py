"""From the scores that a calibrator is called with to log-probabilities, in the operations of any runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from calibcli.scalers import Labels, Scaler
from calibcli.scalers.program import Operations
from calibcli.ship.comparison import Inexact

T = TypeVar("T")


def exact_enough(scaler: Scaler, write: Callable[[bool], T]) -> T:
    """What `write(wide)` gives in float32, or in float64 where float32 is known or found to be too far off.

    Raises:
        Inexact: float64 is too far off as well.
    """
    if not scaler.choice.traits.get("steep"):
        with contextlib.suppress(Inexact):
            return write(False)
    return write(True)


def log_probabilities(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """(n, K) of scores (n, columns); of the calibrators of labels (n, L), each of its own column."""
    if isinstance(scaler, Labels):
        return o.join(*(o.column(mapped(o, one, o.column(scores, i)), 1) for i, one in enumerate(scaler.parts)))
    return mapped(o, scaler, scores)


def classes(scaler: Scaler) -> int:
    """K of the maps in it: of labels 2, whether a row has one."""
    return 2 if isinstance(scaler, Labels) else scaler.k


def mapped(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """(n, K) of scores (n, columns)."""
    return scaler.choice.traits["map"](o, scaler.parameters, as_logits(o, scaler, scores))


def as_logits(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """(n, K) logits or log-probabilities of what the calibrator takes."""
    if scaler.columns == 1:
        if scaler.kind == "logits":
            return o.join(scores * 0.0, scores)
        p = o.exp(scores) if scaler.kind == "log_probabilities" else scores
        return o.join(o.log1p(0.0 - p), o.log(p))
    return o.log(o.most(scores, 0.0)) if scaler.kind == "probabilities" else scores
