"""ONNX Runtime: a session on the CPU, and its exceptions."""

from __future__ import annotations

import mmap
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from calibcli.core.files import reading

FAILURES = tuple(e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception))


LONGEST = 4096  # bytes of a path
KEY = b"\n\x08location"  # field 1 of an entry, the text `location`


def weights_beside(path: Path) -> list[Path]:
    """List the files beside a graph that hold its weights, found by a search of its bytes.

    In the encoding of protobuf, a tensor with external data has an entry of the key `location` and of the name as its
    value (field 2), in either order; the length of the name, 7 bits a byte, stands before it.
    """
    if not path.is_file() or not path.stat().st_size:
        return []
    names = set[bytes]()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in re.finditer(re.escape(KEY), data):
            after = data[match.end() : match.end() + LONGEST + 3]
            size, digits = _length(after[1:3])
            if after[:1] == b"\x12":
                names.add(after[1 + digits : 1 + digits + size])
            before = data[max(0, match.start() - LONGEST - 3) : match.start()]
            for size in range(1, min(LONGEST, len(before)) + 1):
                head = b"\x12" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7]))
                if before[: len(before) - size].endswith(head):
                    names.add(before[-size:])
    return [path.parent / os.fsdecode(name) for name in sorted(names) if name and b"\0" not in name]


def _length(start: bytes) -> tuple[int, int]:
    """Read a length of one or two bytes; also return how many it takes."""
    if len(start) < 2 or start[0] < 128:
        return (start[0] if start else 0), 1
    return start[0] & 127 | start[1] << 7, 2


def run(running: Any, wanted: Sequence[str], feed: Mapping[str, Any]) -> Any:
    """Run a graph in a thread, which an interrupt ends at the next operator: a loop of a graph may have no end.

    Raises:
        FAILURES: the graph does not run.
    """
    options, results, errors = onnxruntime.RunOptions(), list[Any](), list[BaseException]()
    # `Thread.join` of Python 3.11, interrupted, may take a thread that runs for one that has ended
    done = threading.Event()

    def work() -> None:
        try:
            results.append(running.run(list(wanted), dict(feed), options))
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=work, daemon=True).start()
        while not done.wait(0.2):
            pass
    except BaseException:
        options.terminate = True
        done.wait(60)  # it ends at the next operator; a thread that outlives the interpreter would abort the process
        raise
    if errors:
        raise errors[0]
    return results[0]


def session(path: Path, threads: int = 0) -> Any:
    """Open the graph of a file, ready to run.

    Args:
        threads: of one operator; 0 uses all cores.

    Raises:
        FAILURES: the graph does not run.
    """
    reading(path, *weights_beside(path))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal errors only: its warnings would stand among our output
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
