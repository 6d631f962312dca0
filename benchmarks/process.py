"""Whole commands as a user starts them: start-up, a NumPy script beside it, text files, memory, threads.

    python benchmarks/process.py                       everything (files of up to 5 GB in --folder, one at a time)
    python benchmarks/process.py start text            some of: start script text memory threads

CPU seconds of processes of their own with one thread, least of several, calib and its peer by turns; all modules are
compiled before, as after an installation. `start`: against `import numpy`, 1,000 rows of 10 classes. `script`: the
numbers of a screen with their intervals, and all that `--json` has, 13 metrics and the diagram, against nine lines of
NumPy that print ECE, NLL, accuracy and Brier score.
`text`: the parser in one process, against `np.loadtxt` and `json.loads`. `memory`: the peak of `calib metrics` over
rows and over classes. `threads`: wall time of the pass over the scores with one thread and with two, against what two
threads of `np.exp` gain in the same minute (medians by turns): where others have the second core, neither gains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

SCRIPT = """
import sys
import numpy as np
with np.load(sys.argv[1]) as file:
    z, y = file["logits"], file["labels"]
p = np.exp(z - z.max(axis=1, keepdims=True))
p /= p.sum(axis=1, keepdims=True)
c, hit, own = p.max(axis=1), p.argmax(axis=1) == y, p[np.arange(len(y)), y]
b = np.clip(np.ceil(c * 15).astype(int) - 1, 0, 14)
ece = np.abs(np.bincount(b, c - hit, 15)).sum() / len(y)
print(ece, -np.log(own).mean(), hit.mean(), ((p * p).sum(axis=1) - 2 * own + 1).mean())
"""
SIZES = ((1_000, 10), (1_000_000, 10), (100_000, 1000), (1_000_000, 100))
LARGE = ((10**4, 10), (10**5, 10), (10**6, 10), (5 * 10**6, 10), (10**7, 10), (10**8, 10))
WIDE = ((10**6, 100), (10**5, 1000), (10**4, 10_000))
CALIB = [sys.executable, "-m", "calibcli"]


def write(path: Path, n: int, k: int) -> Path:
    """Logits of an overconfident classifier, float32, with labels, as an uncompressed .npz, piece by piece."""
    rng = np.random.default_rng(0)
    rows = max(1, 2_000_000 // k)
    pattern = rng.standard_normal((min(n, rows), k), dtype=np.float32)
    label = rng.integers(0, k, len(pattern))
    pattern[np.arange(len(pattern)), label] += 2.5
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, kind, shape in (("logits", "<f4", (n, k)), ("labels", "<i8", (n,))):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
                for i, start in enumerate(range(0, n, rows)):
                    block = pattern * np.float32(1.6 + i / 1e4) if name == "logits" else label
                    file.write(block[: n - start].tobytes())
    return path


class Processes:
    """Starts processes that find all modules compiled."""

    def __init__(self, folder: Path) -> None:
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        root = str(Path(__file__).parent.parent)
        self.environment = os.environ | threads | {"PYTHONPATH": root, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(self, command: Sequence[str]) -> tuple[float, float]:
        """(CPU seconds, peak MB)"""
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=self.environment, stdout=quiet, stderr=quiet)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024

    def turns(self, times: int, **commands: Sequence[str]) -> dict[str, float]:
        """Least CPU seconds of each; one run of each before counts for nothing."""
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(times + 1):
            for name, command in commands.items():
                found[name].append(self.run(command)[0])
        return {name: min(seconds[1:]) for name, seconds in found.items()}


def start(processes: Processes, folder: Path) -> None:
    path = str(write(folder / "small.npz", 1000, 10))
    seconds = processes.turns(
        15,
        numpy=[sys.executable, "-c", "import numpy"],
        metrics=[*CALIB, "metrics", path],
        json=[*CALIB, "metrics", path, "--json"],
        ece=[*CALIB, "metrics", path, "-m", "ece"],
        check=[*CALIB, "check", path, "--max", "ece=0.5"],
        help=[*CALIB, "--help"],
        version=[*CALIB, "--version"],
        python=[sys.executable, "-c", "pass"],
    )
    for name, value in seconds.items():
        print(f"{name:10} {1000 * value:6.0f} ms, {value / seconds['numpy']:.2f} times import numpy")


def script(processes: Processes, folder: Path) -> None:
    for n, k in SIZES:
        path = str(write(folder / "scores.npz", n, k))
        ours = [*CALIB, "metrics", path, "--threads", "1"]
        seconds = processes.turns(3, calib=ours, json=[*ours, "--json"], script=[sys.executable, "-c", SCRIPT, path])
        said = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
        ratios = [f"{seconds['script'] / seconds[name]:.2f}" for name in ("calib", "json")]
        print(f"{n} x {k}: {said}, times as fast as the script: {ratios[0]}, with --json {ratios[1]}", flush=True)


def least(*work: Callable[[], Any]) -> list[float]:
    """CPU seconds of each, by turns."""
    found: list[list[float]] = [[] for _ in work]
    for _ in range(5):
        for seconds, one in zip(found, work, strict=True):
            begin = time.process_time()
            one()
            seconds.append(time.process_time() - begin)
    return [min(seconds) for seconds in found]


def text(processes: Processes, folder: Path) -> None:
    from calibcli.inputs.files.source import Source, load_any

    n, k = 200_000, 10
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((n, k), dtype=np.float32).round(5).tolist(), rng.integers(0, k, n).tolist()
    table, objects = folder / "t.csv", folder / "t.jsonl"
    header = ",".join([*(f"logit_{i}" for i in range(k)), "label"])
    table.write_text("\n".join([header, *(",".join(map(str, [*a, b])) for a, b in zip(z, y))]) + "\n")
    objects.write_text("".join(json.dumps({"logits": a, "label": b}) + "\n" for a, b in zip(z, y)))
    del z, y

    def lines() -> None:
        with open(objects) as file:
            for line in file:
                json.loads(line)

    peers = {
        "np.loadtxt": (table, lambda: np.loadtxt(table, delimiter=",", skiprows=1)),
        "json.loads": (objects, lines),
    }
    for name, (path, peer) in peers.items():
        ours, other = least(lambda path=path: load_any(Source(path)), peer)
        size = path.stat().st_size / 1e6
        print(f"{path.suffix}: {size / ours:.0f} MB/s, {name} {size / other:.0f}: {other / ours:.2f} times as fast")


def memory(processes: Processes, folder: Path) -> None:
    for n, k in (*LARGE, *WIDE):
        path = write(folder / "large.npz", n, k)
        seconds, peak = processes.run([*CALIB, "metrics", str(path), "--threads", "1", "--json"])
        print(f"{n} x {k}, {path.stat().st_size / 1e9:.2f} GB: peak {peak:.0f} MB, {seconds:.1f} CPU s", flush=True)
        path.unlink()


def threads(processes: Processes, folder: Path) -> None:
    from calibcli.columns import columns
    from calibcli.inputs.scores import recorded

    rows = recorded.read([write(folder / "scores.npz", 100_000, 1000)])
    blocks = [np.random.default_rng(i).standard_normal((1000, 1000)) for i in range(2)]
    outs = [np.empty_like(block) for block in blocks]

    def exp(count: int) -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda i: [np.exp(blocks[i], out=outs[i]) for _ in range(40)], range(2)))

    works: dict[str, Callable[[int], object]] = {"np.exp": exp, "pass": lambda count: columns(rows, threads=count)}
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(21):
        for name, work in works.items():
            for count in (1, 2):
                begin = time.perf_counter()
                work(count)
                seconds.setdefault((name, count), []).append(time.perf_counter() - begin)
    gains = {name: float(np.median(seconds[name, 1]) / np.median(seconds[name, 2])) for name in works}
    share = gains["pass"] / gains["np.exp"]
    print(f"two threads: np.exp {gains['np.exp']:.2f} times as fast, the pass {gains['pass']:.2f}: {share:.2f} of it")


PARTS = {one.__name__: one for one in (start, script, text, memory, threads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--folder", default=None, help="where files are written; default: the system's temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        processes = Processes(Path(folder))
        for name in args.parts or PARTS:
            print(f"\n{name}", flush=True)
            PARTS[name](processes, Path(folder))


if __name__ == "__main__":
    main()
