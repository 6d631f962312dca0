"""Metrics of many rows on engines and in one process: the same numbers, time and memory as ratios.

    python benchmarks/merge.py                           1e7 rows x 10 from parquet; 1e8 rows, drawn on the fly
    python benchmarks/merge.py --rows 1e6 --more 1e7     smaller; --more 0 leaves the last line out

Each line is a process of its own, with whatever it starts; CPU seconds and resident memory are sums over these, read
from /proc five times a second. `whole` reads all parts as one data set, `parts` one after the other (as `calib metrics
--partial` does); engines run the files of examples/merge on two workers. Those that are not installed are left out.
Beyond four million float32 scores `whole` works in single precision, in which rows within 2e-6 of a bin edge are on it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _harness import ROOT, arguments, call, environment, installed

EXAMPLES = ROOT / "examples" / "merge"
EXACT = ("accuracy", "nll", "brier", "ece", "classwise_ece", "mce")
K, BLOCK = 10, 1_000_000


def block(i: int, rows: int = BLOCK) -> tuple[Any, Any]:
    """Overconfident scores (rows, K) in float32 and labels; other ones for every i."""
    rng = np.random.default_rng(i)
    z = rng.standard_normal((rows, K), np.float32) * np.float32(2)
    y = (z * np.float32(0.7) - np.log(-np.log(rng.random((rows, K), np.float32) + 1e-9))).argmax(axis=1)
    return z, y


def written(folder: Path, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for i in range(0, max(1, rows // BLOCK)):
        z, y = block(i, min(rows, BLOCK))
        table = pa.table({f"logit_{k}": z[:, k] for k in range(K)} | {"label": y})
        parquet.write_table(table, folder / f"part-{i:03}.parquet")


def whole(folder: str) -> Any:
    import calibcli

    return calibcli.measure(folder)


def parts(folder: str) -> Any:
    import calibcli

    return calibcli.Accumulator().update(folder).result()


def dask(folder: str) -> Any:
    import dask as engine
    import dask.dataframe as dd
    from with_dask import measure

    with engine.config.set(scheduler="processes", num_workers=2):
        return measure(dd.read_parquet(folder))


def ray(folder: str) -> Any:
    import ray as engine
    from with_ray import measure

    engine.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    return measure(engine.data.read_parquet(folder))


def spark(folder: str) -> Any:
    from pyspark.sql import SparkSession
    from with_spark import measure

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    return measure(session.read.parquet(folder))


def made(rows: str) -> Any:
    """Blocks as they are made, and beside them accuracy and NLL by plain sums."""
    import calibcli

    found, sums = calibcli.Accumulator(), np.zeros(2)
    for i in range(int(rows) // BLOCK):
        z, y = block(i)
        found.update(z, y)
        top, own = z.max(axis=1), z[np.arange(BLOCK), y]
        loss = top + np.log(np.exp(z - top[:, None]).sum(axis=1, dtype=np.float64)) - own
        sums += (z.argmax(axis=1) == y).sum(), loss.sum(dtype=np.float64)
    result = found.result()
    plain = dict(zip(("accuracy", "nll"), sums / found.rows))
    print(f"{int(rows):.0e} rows: " + ", ".join(f"{n} off by {abs(result[n].value - v):.0e}" for n, v in plain.items()))
    return result


RUN = {"whole": whole, "parts": parts, "dask": dask, "ray": ray, "spark": spark, "made": made}
NEEDS = {"dask": "dask", "ray": "ray", "spark": "pyspark"}


def processes(first: int) -> dict[int, tuple[float, float]]:
    """CPU seconds and resident MB of a process and of all that it started, by their number."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found, parent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parent[int(path.parent.name)] = int(fields[1])
        found[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / tick, int(fields[21]) * page / 1e6

    def ours(pid: int) -> bool:
        while pid not in (0, 1, first):
            pid = parent.get(pid, 0)
        return pid == first

    return {pid: seen for pid, seen in found.items() if ours(pid)}


def case(name: str, argument: str) -> dict[str, float]:
    """Estimates by name."""
    return {e.name: e.value for e in RUN[name](argument).estimates}


def measured(name: str, argument: str) -> dict[str, Any]:
    """One case in a process of its own: estimates, CPU and wall seconds, and the most memory at once."""
    path = os.pathsep.join([str(ROOT), str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    start, seen, peak = time.monotonic(), dict[int, float](), 0.0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        env = environment(path, PYSPARK_PYTHON=sys.executable)
        process = subprocess.Popen(call(case, name, argument), env=env, stdout=out, stderr=log)
        while process.poll() is None:
            now = processes(process.pid)
            seen |= {pid: cpu for pid, (cpu, _) in now.items()}
            peak = max(peak, sum(memory for _, memory in now.values()))
            time.sleep(0.2)
        for file in (out, log):
            file.seek(0)
        if process.returncode:
            raise SystemExit(log.read()[-2000:])
        *said, values = out.read().splitlines()
    print(*said, sep="\n", end="\n" * bool(said))
    wall = time.monotonic() - start
    return {"values": json.loads(values), "cpu": sum(seen.values()), "wall": wall, "memory": peak}


def main(rows: int, more: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), rows)
        cases = [name for name in RUN if name != "made" and installed(NEEDS.get(name, "calibcli"))]
        if shutil.which("java") is None:
            cases = [name for name in cases if name != "spark"]
        found = {name: measured(name, folder) for name in cases}
    lines = {(name, rows): one for name, one in found.items()}
    if more:
        lines["made", more] = measured("made", str(more))
    first, wanted = found["whole"], found["parts"]["values"]
    print(f"{'':8} {'rows':>6}  {'off by':>7}  {'CPU':>6}  {'wall':>6}  {'memory':>6}")
    for (name, count), one in lines.items():
        off = max(abs(one["values"][e] / wanted[e] - 1) for e in EXACT)
        ratios = "  ".join(f"{one[key] / first[key]:6.2f}" for key in ("cpu", "wall", "memory"))
        print(f"{name:8} {count:6.0e}  {f'{off:.0e}' if name != 'made' else '-':>7}  {ratios}")
    print("off by: the largest relative difference of", ", ".join(EXACT), "to `parts`; the rest: times `whole`")
    print(f"whole: {first['cpu']:.1f} CPU s, {first['memory']:.0f} MB")


if __name__ == "__main__":
    given = arguments(__doc__, rows=1e7, more=1e8)
    main(int(given.rows), int(given.more))
