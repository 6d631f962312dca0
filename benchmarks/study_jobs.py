"""What `calib study --jobs 2` gains, beside two independent copies of the same work: in one run, in turns.

    python benchmarks/study_jobs.py [--study curvature-gamma --seeds 12 --rounds 2]

One worker does the study alone (a); two workers share one study (b); two copies, each alone with half of the seeds, run
side by side (c). The gain is a/b, the gain of copies a/c, and their ratio c/b what sharing keeps of it. Other work on
the machine slows b and c alike; rounds go there and back in turns, and the medians of their ratios count. CPU seconds
stand beside: what b has beyond c is what sharing costs, whatever else runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start(study: str, save: Path, seeds: int, jobs: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "calibcli", "study", study, "--save", str(save), "--seeds", str(seeds)]
    return subprocess.Popen([*line, "--jobs", str(jobs), "-q"], env=environment, stdout=subprocess.DEVNULL)


def spent(study: str, *asked: tuple[int, int]) -> tuple[float, float]:
    """Seconds until all studies of (seeds, jobs) that were started together are done, and of all their CPUs."""
    with tempfile.TemporaryDirectory() as temporary:
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        running = [start(study, Path(temporary) / str(i), *one) for i, one in enumerate(asked)]
        if any(process.wait() for process in running):
            raise SystemExit("a study failed")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.monotonic() - begun, cpu


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="curvature-gamma")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    ways = {
        "alone": [(args.seeds, 1)],
        "--jobs 2": [(args.seeds, 2)],
        "two copies": [(args.seeds // 2, 1)] * 2,
    }
    rounds: list[dict[str, float]] = []
    for number in range(args.rounds):
        found = {way: spent(args.study, *ways[way]) for way in [*ways][:: -1 if number % 2 else 1]}
        rounds.append({way: wall for way, (wall, _) in found.items()})
        told = ", ".join(f"{way} {found[way][0]:.1f} s ({found[way][1]:.1f} CPU s)" for way in ways)
        print(f"round {number + 1}: {told}", flush=True)
    shared, copies, kept = (
        statistics.median(one[a] / one[b] for one in rounds)
        for a, b in (("alone", "--jobs 2"), ("alone", "two copies"), ("two copies", "--jobs 2"))
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", end="; ")
    print(f"--jobs 2 gains {shared:.2f}, two copies {copies:.2f}: {kept:.2f} of it")
