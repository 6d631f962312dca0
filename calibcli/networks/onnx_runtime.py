"""ONNX Runtime: a session on the CPU, and its exceptions."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from calibcli.core.files import reading

FAILURES = tuple(e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception))


def weights_beside(path: Path) -> list[Path]:
    """List the files beside a graph that hold its weights, found by a search of its bytes.

    In the encoding of protobuf, a tensor with external data has the entry `location`: the length of the name, then the
    name.
    """
    if not path.is_file() or not path.stat().st_size:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        locations = {data[m.end() : m.end() + m[1][0]] for m in re.finditer(rb"\n\x08location\x12(.)", data, re.DOTALL)}
    names = (os.fsdecode(name) for name in sorted(locations) if b"\0" not in name)
    return [path.parent / name for name in names]


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
