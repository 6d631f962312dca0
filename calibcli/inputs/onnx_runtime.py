"""ONNX Runtime: a session on the CPU, and what it raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

FAILURES = tuple(e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception))


def session(path: Path, threads: int = 0) -> Any:
    """The graph of a file, ready to run.

    Args:
        threads: of one operator; 0: as many as there are cores.

    Raises:
        FAILURES: it is no graph that runs.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it warns of is no result
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
