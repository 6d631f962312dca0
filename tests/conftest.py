"""One thread everywhere, so that numbers and timings do not depend on the machine's load; `--shuffle SEED`.

With CI=true a test that a missing package or tool would skip fails. Without torch, tests that need it are skipped.
"""

import gc
import importlib.util
import os
import random
import re
from collections import Counter
from collections.abc import Generator

import pytest

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

pytest_plugins = ["schema"]
MISSING = re.compile(r"could not import|is not installed|no C\+\+ compiler")
NO_TORCH = importlib.util.find_spec("torch") is None
NEEDS_TORCH = re.compile(r"needs torch, which is not installed|No module named 'torch'")
ROWS = Counter[str]()  # of each test that has rows, as they are collected
Report = pytest.TestReport | pytest.CollectReport


def _complete(report: Report) -> Report:
    """Fails with CI=true where something is missing; skips what cannot run without torch."""
    said = "\n".join([str(report.longrepr), *(text for _, text in report.sections)])
    if NO_TORCH and report.failed and NEEDS_TORCH.search(said):
        report.outcome, report.longrepr = "skipped", (str(report.fspath), 0, "Skipped: needs torch")
    if report.skipped and os.environ.get("CI") == "true" and MISSING.search(str(report.longrepr)):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    return _complete((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Report, Report]:
    return _complete((yield))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="Run the files, and the tests in each, in this order.")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks as slow what `one_in(n)` leaves to `make test-slow`: all rows of a test but each n-th."""
    mark = item.get_closest_marker("one_in")
    if mark:
        test = item.nodeid.partition("[")[0]
        if ROWS[test] % mark.args[0]:
            item.add_marker("slow")
        ROWS[test] += 1


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


def pytest_collection_finish() -> None:
    """Tests and what they import stay until the end: the garbage collector need not look through them each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # the default looks for cycles every 700 objects: a twentieth of the time
