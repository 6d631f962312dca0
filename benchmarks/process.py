"""Whole commands as a user starts them: start-up, a NumPy script beside it, text files, memory, threads.

    python benchmarks/process.py                       everything (files of up to 5 GB in --folder, one at a time)
    python benchmarks/process.py start text            some of: start script text memory threads; --folder DIR for files

Every command is a process of its own with one thread; CPU seconds are the least of several runs, calib and its peer by
turns, with all modules compiled as after an installation. `start`: against `import numpy`, on 1,000 rows of 10 classes.
`script`: the first screen with its intervals, and `--json` with 13 metrics and the diagram, against nine lines of NumPy
that print ECE, NLL, accuracy and Brier score. `text`: the parser in one process, against `np.loadtxt` and
`json.loads`. `memory`: the peak of `calib metrics` over rows and over classes. `threads`: wall time of the pass over
the scores with one thread and with two, against what two threads of `np.exp` gain in the same minute (medians by
turns): where other processes use the second core, neither gains.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from _harness import CALIB, arguments, by_turns, environment, machine, run

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


def compiled(folder: Path) -> dict[str, str]:
    """The environment of processes that have all modules compiled."""
    found = environment(PYTHONPYCACHEPREFIX=str(folder / "compiled"))
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def least(folder: Path, rounds: int, **commands: Sequence[str]) -> dict[str, float]:
    """Least CPU seconds of each command, by turns; a first round, which compiles, does not count."""
    env = compiled(folder)
    times = by_turns(commands, rounds + 1, lambda command: run(command, env).seconds)
    return {name: min(seconds[1:]) for name, seconds in times.items()}


def start(folder: Path) -> None:
    path = str(write(folder / "small.npz", 1000, 10))
    seconds = least(
        folder,
        15,
        numpy=[sys.executable, "-c", "import numpy"],
        metrics=[*CALIB, "metrics", path],
        json=[*CALIB, "metrics", path, "--json"],
        check=[*CALIB, "check", path, "--max", "ece=0.5"],
        help=[*CALIB, "--help"],
    )
    for name, value in seconds.items():
        print(f"{name:10} {1000 * value:6.0f} ms, {value / seconds['numpy']:.2f} times import numpy")


def script(folder: Path) -> None:
    for n, k in SIZES:
        path = str(write(folder / "scores.npz", n, k))
        ours = [*CALIB, "metrics", path, "--threads", "1"]
        seconds = least(folder, 3, calib=ours, json=[*ours, "--json"], script=[sys.executable, "-c", SCRIPT, path])
        costs = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
        ratios = [f"{seconds['script'] / seconds[name]:.2f}" for name in ("calib", "json")]
        print(f"{n} x {k}: {costs}, times as fast as the script: {ratios[0]}, with --json {ratios[1]}", flush=True)


def text(folder: Path) -> None:
    from calibcli.scores.files.arrays import load_any
    from calibcli.scores.files.source import Source

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

    table_of_numpy = lambda: np.loadtxt(table, delimiter=",", skiprows=1)  # noqa: E731
    peers = {"np.loadtxt": (table, table_of_numpy), "json.loads": (objects, lines)}
    for name, (path, peer) in peers.items():
        seconds = by_turns({"calib": lambda path=path: load_any(Source(path)), name: peer}, 5)
        ours, other = (min(values) for values in seconds.values())
        size = path.stat().st_size / 1e6
        print(f"{path.suffix}: {size / ours:.0f} MB/s, {name} {size / other:.0f}: {other / ours:.2f} times as fast")


def memory(folder: Path) -> None:
    env = compiled(folder)
    for n, k in (*LARGE, *WIDE):
        path = write(folder / "large.npz", n, k)
        seconds, peak, _ = run([*CALIB, "metrics", str(path), "--threads", "1", "--json"], env)
        print(f"{n} x {k}, {path.stat().st_size / 1e9:.2f} GB: peak {peak:.0f} MB, {seconds:.1f} CPU s", flush=True)
        path.unlink()


def threads(folder: Path) -> None:
    from calibcli.scores import recorded_outputs
    from calibcli.scores.columns import columns

    rows = recorded_outputs.read([write(folder / "scores.npz", 100_000, 1000)])
    blocks = [np.random.default_rng(i).standard_normal((1000, 1000)) for i in range(2)]
    outs = [np.empty_like(block) for block in blocks]

    def exp(count: int) -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda i: [np.exp(blocks[i], out=outs[i]) for _ in range(40)], range(2)))

    works: dict[str, Callable[[int], object]] = {"np.exp": exp, "pass": lambda count: columns(rows, threads=count)}

    def wall(work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    tries = {f"{name} {count}": lambda w=work, c=count: w(c) for name, work in works.items() for count in (1, 2)}
    middle = {name: statistics.median(times) for name, times in by_turns(tries, 21, wall).items()}
    gains = {name: middle[f"{name} 1"] / middle[f"{name} 2"] for name in works}
    share = gains["pass"] / gains["np.exp"]
    print(f"two threads: np.exp {gains['np.exp']:.2f} times as fast, the pass {gains['pass']:.2f}: {share:.2f} of it")


PARTS = {one.__name__: one for one in (start, script, text, memory, threads)}


if __name__ == "__main__":
    given = arguments(__doc__, "parts", folder=str)
    print(machine())
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name in given.parts or PARTS:
            print(f"\n{name}", flush=True)
            PARTS[name](Path(folder))
