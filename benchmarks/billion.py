"""A billion rows x 10 in a thousand parts, through states and `calib merge`, as far as an hour and the disk go.

    python benchmarks/billion.py [--rows 1e9] [--parts 1000] [--minutes 60] [--folder DIR]

One part at a time is drawn, written, measured by `calib metrics --partial` and deleted: the folder holds one part and
the states. When the time is over, or the disk would not take another part, or all parts are done, `calib merge`
measures a quarter of the states and all of them. Accuracy and NLL are compared with plain sums over the same rows. CPU
seconds, user and system, with one thread; the peak is that of a process. What all parts would take is what each took
times their number; of the merge, what each further state took. Exit 1 if a number is off by more than 1e-6, or if the
exponent between the two merges is above 1.1.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _harness import CALIB, machine, run
from merge import K, block

LIMIT, OFF = 1.1, 1e-6
SPARE = 1e9  # bytes of the disk that stay free


def part(i: int, rows: int, folder: Path) -> tuple[float, float, np.ndarray]:
    """CPU seconds and peak of measuring part i, whose state stays, and its number of right rows and sum of the NLL."""
    z, y = block(i, rows)
    top, own = z.max(axis=1), z[np.arange(rows), y]
    loss = top + np.log(np.exp(z - top[:, None]).sum(axis=1, dtype=np.float64)) - own
    sums = np.array([(z.argmax(axis=1) == y).sum(), loss.sum(dtype=np.float64)])
    path = folder / "part.npz"
    np.savez(path, logits=z, labels=y)
    state = folder / f"state-{i:04}.npz"
    spent, peak, _ = run([*CALIB, "metrics", str(path), "--partial", str(state), "--threads", "1", "--json"])
    path.unlink()
    return spent, peak, sums


def merged(states: list[Path]) -> tuple[float, float, dict[str, float]]:
    """CPU seconds and peak of a merge, and its estimates by name."""
    names = [str(state) for state in states]
    spent, peak, text = run([*CALIB, "merge", *names, "--json"])
    return spent, peak, {e["name"]: e["value"] for e in json.loads(text)["estimates"]}


def main(rows: int, parts: int, minutes: float, folder: Path) -> int:
    each, start, costs, sums = rows // parts, time.monotonic(), [], np.zeros(2)
    while len(costs) < parts and time.monotonic() - start < 60 * minutes and shutil.disk_usage(folder).free > SPARE:
        spent, peak, own = part(len(costs), each, folder)
        costs.append((spent, peak))
        sums += own
    states, m = sorted(folder.glob("state-*.npz")), len(costs)
    if m < 2:
        raise SystemExit("fewer than two parts: pass more --minutes, or a --folder with more room")
    size = sum(state.stat().st_size for state in states) / m / 1e6
    seconds, peaks = zip(*costs, strict=True)
    last = statistics.median(seconds[-max(1, m // 10) :])
    print(f"{m} of {parts} parts of {each:,} x {K}: {statistics.median(seconds):.2f} CPU s each, the last {last:.2f}")
    print(f"peak of a part {max(peaks):.0f} MB, a state {size:.2f} MB")
    few = max(1, m // 4)
    (less, _, _), (more, peak, found) = merged(states[:few]), merged(states)
    exponent, further = math.log(more / less) / math.log(m / few), (more - less) / (m - few)
    print(f"merge of {few} states {less:.2f} CPU s, of {m} {more:.2f}: exponent {exponent:.2f}, peak {peak:.0f} MB")
    plain = dict(zip(("accuracy", "nll"), sums / (m * each), strict=True))
    off = {name: abs(found[name] - value) for name, value in plain.items()}
    print(f"{m * each:.2e} rows:", ", ".join(f"{name} off by {value:.0e}" for name, value in off.items()))
    whole = sum(seconds) / m * parts, more + further * (parts - m)
    how = "measured" if m == parts else "from the parts so far"
    print(f"{rows:.0e} rows, {how}: parts {whole[0]:.0f} CPU s, merge {whole[1]:.0f}, states {size * parts:.0f} MB")
    return int(exponent > LIMIT or max(off.values()) > OFF)


if __name__ == "__main__":
    given = _harness.arguments(__doc__, rows=1e9, parts=1000, minutes=60.0, folder=str)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        sys.exit(main(int(given.rows), given.parts, given.minutes, Path(folder)))
