"""Run benchmarks one after the other and write what each prints to out/benchmarks/NAME.txt.

    python benchmarks/run.py                       all but the simulations, which nightly.py runs
    python benchmarks/run.py metrics scale         some
    python benchmarks/run.py --data DIR curvature  with a folder of real data for those that take one

Each script is a process of its own with one thread, prints ratios against named peers where these are installed
(`pip install` them beside calib; torch first), and skips those that are not. Copy output that backs a claim to
benchmarks/results/, and its figure to RESULTS.md.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

from _harness import HERE, arguments, machine, run
from nightly import RUNS

OUT = Path("out/benchmarks")


def main() -> int:
    known = {path.stem: path for path in sorted(HERE.glob("[a-z]*.py")) if path.stem not in ("run", "nightly")}
    simulations = {Path(line.split()[0]).stem for line, _ in RUNS.values()}
    given = arguments(__doc__, "names", data=str)
    if unknown := [name for name in given.names if name not in known]:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    OUT.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in given.names or [name for name in known if name not in simulations]:
        print(f"== {name}", flush=True)
        path = known[name]
        takes = re.search(r"arguments\([^)]*\bdata=", path.read_text())
        data = ["--data", given.data] if given.data and takes else []
        try:
            text = run([sys.executable, str(path), *data]).text
        except RuntimeError as error:
            print(error)
            failed += 1
            continue
        print(text)
        command = " ".join(["python", f"benchmarks/{path.name}", *data])
        where = f"{command}, {datetime.date.today()}, {machine('torch')}"
        (OUT / f"{name}.txt").write_text(f"{where}\n\n{text.strip()}\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
