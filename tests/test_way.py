"""A number's way: how many files a command runs code of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLLOW = """
import sys, threading
from calibcli.__main__ import main

def body(code):  # of a module or a class: it runs once, when its file is imported
    return not code.co_flags & 0x1

def follow(frame, event, argument):
    if event != "call" or PACKAGE not in frame.f_code.co_filename or frame.f_code.co_filename in entered:
        return
    outer = frame
    while outer is not None:
        if PACKAGE in outer.f_code.co_filename and body(outer.f_code):
            return
        outer = outer.f_back
    entered.add(frame.f_code.co_filename)

PACKAGE, entered = sys.argv.pop(1), set()
threading.setprofile(follow)
sys.setprofile(follow)
try:
    main()
finally:
    sys.setprofile(None)
    print(*sorted(entered), sep="\\n", file=sys.stderr)
"""
READERS, ALL = 5, 51  # none of what only goes wrong, and no curve that a screen does not draw


def test_metrics_of_a_file_run_code_of_few_files() -> None:
    package = str(ROOT / "calibcli") + os.sep
    argv = [sys.executable, "-c", FOLLOW, package, "metrics", str(ROOT / "sample_data" / "test.npz"), "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, encoding="utf-8", check=True)
    entered = [line.removeprefix(package) for line in done.stderr.splitlines() if line.startswith(package)]
    assert "scores/files/source.py" in entered
    readers = [name for name in entered if name.startswith("scores/files/")]
    assert len(readers) <= READERS, chr(10).join(entered)
    assert len(entered) <= ALL, chr(10).join(entered)
