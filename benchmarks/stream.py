"""Peak memory of measuring 20 GB of float32 logits that are made on the fly, at K = 10 and K = 1000.

    python benchmarks/stream.py [--gigabytes 20]

Each case is a process of its own, which reports its own maximal resident size (ru_maxrss). Needs no peer: the others
hold all logits in memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.inputs.files.arrays import Column
from calibcli.metrics import measure
from calibcli.predictions import Predictions

LIMIT = 1.0  # GB
PATTERN = 1 << 15  # rows of random logits, repeated from a start that differs from read to read


@dataclass
class Made:
    """Scores that exist only while they are looked at."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.pattern = rng.standard_normal((PATTERN + 1000, self.shape[1]), dtype=np.float32) * 3

    def read(self, start: int, stop: int) -> np.ndarray:
        first = start % 997
        return self.pattern[first : first + stop - start].copy()


@dataclass
class MadeLabels:
    """0, 1, ..., K - 1, 0, 1, ..."""

    shape: tuple[int]
    dtype: np.dtype[Any]
    k: int

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop) % self.k


def case(k: int, gigabytes: float) -> None:
    n = int(gigabytes * 1e9 / 4 / k)
    labels = Column(MadeLabels((n,), np.dtype(np.int64), k))
    start = time.process_time()
    found = measure(Predictions(scores=Made((n, k), np.dtype(np.float32)), labels=labels))
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    ece = next(e for e in found if e.name == "ece")
    print(
        f"K = {k}: {n:,} rows, {gigabytes:g} GB: peak {peak:.2f} GB ({'ok' if peak < LIMIT else 'TOO MUCH'}), "
        f"{seconds / n / k * 1e9:.2f} ns CPU per logit, "
        f"ece {ece.value:.6f} [{ece.low:.6f}, {ece.high:.6f}], n {ece.n:,}",
        flush=True,
    )
    sys.exit(peak >= LIMIT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--k", type=int, help="one case, in this process")
    args = parser.parse_args()
    if args.k:
        case(args.k, args.gigabytes)
    command = [sys.executable, __file__, "--gigabytes", str(args.gigabytes), "--k"]
    return max(subprocess.run([*command, str(k)], check=False).returncode for k in (10, 1000))


if __name__ == "__main__":
    sys.exit(main())
