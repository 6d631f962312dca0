"""One thread everywhere, so that numbers and timings do not depend on the machine's load; `--shuffle SEED`."""

import os
import random

import pytest

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

pytest_plugins = ["keeps_schema"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="Run the files, and the tests in each, in this order.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files and, within each, tests in a random order: what a test leaves behind shows in another."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    rng = random.Random(seed)
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    rng.shuffle(groups)
    for group in groups:
        rng.shuffle(group)
    items[:] = [item for group in groups for item in group]
