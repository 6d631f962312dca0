"""What slices cost: CPU seconds and peak memory of whole processes, beside the same run without slices.

    python benchmarks/slices_speed.py [--runs 3] [--only check metrics arrays] [--against FOLDER]

`check` judges every value of a column and `metrics --by` measures every value beside the whole, from an uncompressed
`.npz` (and Parquet, where pyarrow is installed); `arrays` is `measure(z, y, by=...)` in Python. Each
line is the least of the runs, which alternate between the sides; `--against` names the folder of another version of
calib and adds how many times its seconds this one takes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent.parent
TWO = ("--max", "ece=0.2", "--min", "accuracy=0.5")
VALUES = (25, 50, 200)
Case = tuple[str, str, tuple[str, ...]]  # what, file, arguments


def made(folder: Path, n: int, k: int, values: tuple[int, ...], suffix: str) -> None:
    """Logits of a plausible classifier, labels, and a column of text for each number of values."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    z = rng.standard_normal((n, k), dtype=np.float32)
    z[np.arange(n), y] += 3.0
    columns = {f"v{count}": np.char.mod("s%03d", rng.permutation(n) % count) for count in values}
    if suffix == "npz":
        np.savez(folder / f"{n}x{k}.npz", logits=z, labels=y, **columns)
        return
    import pyarrow as pa
    from pyarrow import parquet

    flat = pa.FixedSizeListArray.from_arrays(pa.array(z.reshape(-1)), k)
    parquet.write_table(pa.table({"logits": flat, "labels": y, **columns}), folder / f"{n}x{k}.parquet")


def arrays(count: int) -> None:
    """CPU seconds of `measure` on arrays that are there already; the peak includes them."""
    import calibcli

    rng = np.random.default_rng(0)
    n, k = 100_000, 1000
    y = rng.integers(0, k, n)
    z = rng.standard_normal((n, k), dtype=np.float32)
    z[np.arange(n), y] += 3.0
    by = {"by": {"site": rng.permutation(n) % count}} if count else {}
    start = time.process_time()
    calibcli.measure(z, y, **by)
    print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def cost(command: list[str], root: Path, folder: Path) -> tuple[float, float]:
    """CPU seconds and peak MB of a process, by its own account where it prints one."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    out = subprocess.PIPE if "--child" in command else subprocess.DEVNULL
    environment = {**os.environ, **threads, "PYTHONPATH": str(root)}
    child = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.PIPE, text=True)
    said, error = child.stdout.read() if child.stdout else "", child.stderr.read() if child.stderr else ""
    _, status, used = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1, 3):  # PASS, FAIL, INCONCLUSIVE
        raise RuntimeError(f"{' '.join(command)}: {error[-500:]}")
    if said:
        seconds, peak = map(float, said.split())
        return seconds, peak
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def cases() -> dict[str, list[Case]]:
    """By section; the first line of one is what the others are compared with."""
    few = ("--min-n", "50")
    found: dict[str, list[Case]] = {
        "check": [
            ("ece, accuracy", "1000000x10.npz", TWO),
            ("ece, accuracy by 200", "1000000x10.npz", (*TWO, "--by", "v200")),
            ("ece, accuracy by 1,000", "1000000x10.npz", (*TWO, "--by", "v1000")),
        ],
        "check smece": [
            ("smece", "100000x10.npz", ("--max", "smece=0.2")),
            ("smece by 1,000", "100000x10.npz", ("--max", "smece=0.2", "--by", "v1000", *few)),
        ],
        "check classwise": [
            ("classwise_ece", "100000x1000.npz", ("--max", "classwise_ece=0.001")),
            ("classwise_ece by 200", "100000x1000.npz", ("--max", "classwise_ece=0.001", "--by", "v200", *few)),
        ],
        "metrics": [("default", "100000x1000.npz", ())],
        "metrics 1e6x10": [
            ("default", "1000000x10.npz", ()),
            ("default, --by 200", "1000000x10.npz", ("--by", "v200")),
        ],
        "metrics parquet": [
            ("default", "100000x1000.parquet", ()),
            ("default, --by 200", "100000x1000.parquet", ("--by", "v200")),
        ],
        "metrics all 13": [
            ("-m default", "100000x1000.npz", ("-m", "default")),
            ("-m default, --by 50", "100000x1000.npz", ("-m", "default", "--by", "v50")),
        ],
    }
    found["metrics"] += [(f"default, --by {v}", "100000x1000.npz", ("--by", f"v{v}")) for v in VALUES]
    found["arrays"] = [("measure(z, y)", "", ("0",)), *((f"by {v} values", "", (str(v),)) for v in VALUES)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="sections that begin so")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--child", nargs="+")
    args = parser.parse_args()
    if args.child and args.child[0] == "arrays":
        arrays(int(args.child[1]))
        return
    if args.child:
        folder, n, k, values, suffix = args.child[1:]
        made(Path(folder), int(n), int(k), tuple(int(v) for v in values.split(",")), suffix)
        return
    sides = [HERE, *([args.against.resolve()] if args.against else [])]
    with tempfile.TemporaryDirectory() as name:
        for section, lines in cases().items():
            if not args.only or any(section.startswith(one) for one in args.only):
                told(section, lines, Path(name), sides, args.runs)


def told(section: str, lines: list[Case], folder: Path, sides: list[Path], runs: int) -> None:
    """Print one section."""
    me = [sys.executable, "-P", str(Path(__file__).resolve()), "--child"]
    if section.endswith("parquet") and importlib.util.find_spec("pyarrow") is None:
        print(f"\n{section}: pyarrow is not installed")
        return
    for file in {file for _, file, _ in lines if file and not (folder / file).exists()}:
        size, suffix = file.split(".")
        values = "25,50,200,1000" if suffix == "npz" else "200"
        subprocess.run([*me, "made", str(folder), *size.split("x"), values, suffix], check=True)
    against = "   before: s      MB    ratio" if len(sides) > 1 else ""
    print(f"\n{section:28} {'CPU s':>7} {'peak MB':>8} {'x first':>8}{against}", flush=True)
    first = 0.0
    for what, file, arguments in lines:
        command = [sys.executable, "-m", "calibcli", section.split()[0], file, *arguments, "--json"]
        if not file:
            command = [*me, "arrays", *arguments]
        found: list[list[Any]] = [[cost(command, side, folder) for side in sides] for _ in range(runs)]
        best = [tuple(min(run[side][i] for run in found) for i in (0, 1)) for side in range(len(sides))]
        first = first or best[0][0]
        more = f"{best[1][0]:12.2f} {best[1][1]:7.0f} {best[0][0] / best[1][0]:8.2f}" if len(sides) > 1 else ""
        print(f"{what:28} {best[0][0]:7.2f} {best[0][1]:8.0f} {best[0][0] / first:8.2f}{more}", flush=True)


if __name__ == "__main__":
    main()
