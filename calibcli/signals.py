"""Signals wait until a step is whole: what is saved can be continued, and ranks stop together."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

HELD = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopping(BaseException):
    """A signal asked the run to stop; raised only where the state is whole."""


class Signals:
    """SIGINT, SIGTERM and SIGHUP remembered. A second one acts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise `Stopping` if a signal came."""
        if self.received is not None:
            raise Stopping

    def release(self) -> None:
        """Put the former handlers back and let the signal that came act."""
        number, self.received = self.received, None
        self._restore()
        if number is not None:
            signal.raise_signal(number)

    def _take(self) -> None:
        for number in HELD:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a job of a script's background ignores Ctrl-C
                self._before[number] = signal.signal(number, self._remember)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.release()
        self.received = number


@contextlib.contextmanager
def held_signals() -> Iterator[Signals]:
    """Hold these signals back inside the block (elsewhere than in the main thread: leave them alone)."""
    signals = Signals()
    with contextlib.suppress(ValueError):
        signals._take()
    try:
        yield signals
    finally:
        signals._restore()
