"""A CUDA device for every test here: the real one, or on a build of torch without CUDA a pretended one (`pretend/`).

Run by itself, `make test-device`: the pretended one has to be there before torch is imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pretend import build

os.environ.setdefault("PRETEND_GPUS", "2")
REAL = build.has_cuda()
PROBLEM = ""
if not REAL:
    import pretend

    if "torch" in sys.modules:
        PROBLEM = "torch is imported already: run tests/device by itself"
    elif build.compiler() is None:
        PROBLEM = "no C++ compiler"
    else:
        pretend.load()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    torch.set_num_threads(1)
    missing = PROBLEM or ("" if torch.cuda.is_available() else "no CUDA device")
    for item in items:
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))
        elif REAL and item.get_closest_marker("pretended"):
            item.add_marker(pytest.mark.skip(reason="counts and limits of the pretended device"))
