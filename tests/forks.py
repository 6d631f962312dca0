"""Children that are forked, so that torch is loaded once: one that does some work, or the ranks of one launch."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable


def forked(work: Callable[[], object], **environment: str) -> int:
    """The process id of a child that does the work; exit 0, or 1 where it raised."""
    child = os.fork()
    if child:
        return child
    try:
        os.environ |= environment
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        work()
    except BaseException as error:
        os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    os._exit(0)


def ended(child: int) -> int:
    """Its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def ranks(work: Callable[[], object], world: int = 2) -> list[int]:
    """The children that do the work together, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    return [forked(work, RANK=str(rank), LOCAL_RANK=str(rank), **launch) for rank in range(world)]
