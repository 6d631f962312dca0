"""The end of a command that takes too long or too much memory (`--time-limit`, `--memory-limit`).

An alarm ends it as Ctrl-C does, so that a long run saves its state. Code of a library that does not come back, and
memory that is already taken, are ended from a thread with the whole process. Outputs are written whole or not at all,
so that nothing half-written is left.
"""

from __future__ import annotations

import os
import signal
import threading

from calibcli.core import extensions, memory
from calibcli.core.errors import Exit, UsageError

GRACE = 5.0  # seconds between the alarm and the end of the process
EVERY = 0.05  # seconds between two looks at the memory
FIX = "raise --time-limit, or use a smaller input"
_ended = threading.Event()


def start(seconds: float | None, gigabytes: float | None) -> None:
    """Watch over the command that starts.

    Raises:
        UsageError: the interpreter alone takes more memory than is allowed.
    """
    global _ended
    _ended = threading.Event()
    if gigabytes is not None:
        taken = memory.taken_memory()
        if taken >= gigabytes * 1e9:
            problem = f"--memory-limit {gigabytes:g} is less than the {taken / 1e9:.2g} GB that calib starts with"
            raise UsageError(problem, f"pass --memory-limit {2 * taken / 1e9:.1g} or more")
        memory.limit_memory(int(gigabytes * 1e9))
        threading.Thread(target=_watch_memory, args=(_ended, gigabytes), daemon=True).start()
    if seconds is not None:
        if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, seconds)
        threading.Thread(target=_watch_time, args=(_ended, seconds + GRACE), daemon=True).start()


def stop() -> None:
    """Watch no longer: the command has ended, in a process that may go on."""
    _ended.set()
    memory.limit_memory(None)
    if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)


def passed() -> str:
    """Say that the time has passed, and what was running."""
    return "the time limit has passed" + _during()


def _during() -> str:
    return f" while {doing}" if (doing := extensions.doing()) else ""


def _watch_time(ended: threading.Event, seconds: float) -> None:
    if not ended.wait(seconds):
        _end(passed(), FIX)


def _watch_memory(ended: threading.Event, gigabytes: float) -> None:
    while not ended.wait(EVERY):
        if memory.taken_memory() > gigabytes * 1e9:
            problem = f"more than the {gigabytes:g} GB of --memory-limit are needed{_during()}"
            _end(problem, "raise --memory-limit, or use a smaller input, or fewer rows at a time")


def _end(problem: str, fix: str) -> None:
    os.write(2, f"\nerror: {problem}\n  fix: {fix}\n".encode())
    os._exit(int(Exit.REFUSED))
