"""What `calib study --jobs 2` gains, beside two independent copies of the same work: in one run, in turns.

    python benchmarks/study_jobs.py [--rounds 5]

One worker does the study alone (a); two workers share one study (b); two copies, each alone with half of the seeds, run
side by side (c). The gain is a/b, the gain of copies a/c, and their ratio c/b what sharing keeps of it. Other work on
the machine slows all three; the rounds go in turns, and the medians of their ratios count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start(save: Path, seeds: int, jobs: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "calibcli", "study", "step-size", "--save", str(save), "--seeds", str(seeds)]
    return subprocess.Popen([*line, "--jobs", str(jobs), "-q"], env=environment, stdout=subprocess.DEVNULL)


def wall(*asked: tuple[int, int]) -> float:
    """Seconds until all studies of (seeds, jobs) that were started together are done."""
    with tempfile.TemporaryDirectory() as temporary:
        begun = time.monotonic()
        running = [start(Path(temporary) / str(i), *one) for i, one in enumerate(asked)]
        if any(process.wait() for process in running):
            raise SystemExit("a study failed")
        return time.monotonic() - begun


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    seeds, shared, copies = 10, [], []
    for number in range(args.rounds):
        alone, both, two = wall((seeds, 1)), wall((seeds, 2)), wall((seeds // 2, 1), (seeds // 2, 1))
        shared, copies = [*shared, alone / both], [*copies, alone / two]
        print(f"round {number + 1}: alone {alone:.1f} s, --jobs 2 {both:.1f} s, two copies {two:.1f} s", flush=True)
    kept = statistics.median(a / b for a, b in zip(shared, copies, strict=True))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", end="; ")
    print(
        f"--jobs 2 gains {statistics.median(shared):.2f}, two copies {statistics.median(copies):.2f}: {kept:.2f} of it"
    )
