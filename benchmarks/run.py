"""Run the benchmarks one after the other and write what they print to benchmarks/RESULTS.md.

    python benchmarks/run.py                       everything
    python benchmarks/run.py metrics scale         some
    python benchmarks/run.py --data DIR curvature  with a folder of real data for those that take one

Each script is its own process with one thread, prints ratios against named peers where these are installed
(`pip install` them beside calib; torch first), and skips those that are not.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"


def scripts() -> dict[str, Path]:
    """Benchmarks by name: every script here but this one."""
    return {p.stem: p for p in sorted(HERE.glob("*.py")) if p.stem != "run" and not p.stem.startswith("_")}


def takes_data(path: Path) -> bool:
    return "--data" in path.read_text()


def run(path: Path, data: str | None) -> tuple[str, float, int]:
    """(what it printed, seconds, exit code)"""
    command = [sys.executable, str(path), *(["--data", data] if data and takes_data(path) else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    start = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    text = done.stdout + (done.stderr[-2000:] if done.returncode else "")
    return text, time.monotonic() - start, done.returncode


def keep(name: str, section: str) -> None:
    """Put a section into RESULTS.md in place of the one of the same name."""
    old = (
        RESULTS.read_text()
        if RESULTS.exists()
        else "# What the benchmarks printed\n\nSeconds depend on the machine; ratios travel.\n"
    )
    head, *sections = re.split(r"(?m)^(?=## )", old)
    kept = {re.match(r"## (\S+)", text)[1]: text for text in sections}  # type: ignore[index]
    kept[name] = section
    RESULTS.write_text(head.rstrip() + "\n\n" + "\n".join(kept[key].rstrip() + "\n" for key in sorted(kept)))


def main() -> int:
    known = scripts()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(known)}")
    parser.add_argument("--data", help="folder of real data (CIFAR-10 arrays and a trained ResNet-20)")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    worst = 0
    for name in args.names or known:
        print(f"== {name}", flush=True)
        text, seconds, code = run(known[name], args.data)
        print(text)
        worst = max(worst, code)
        if code == 0:
            machine = f"{platform.machine()}, Python {platform.python_version()}"
            where = f"`python benchmarks/run.py {name}`, {machine}, {seconds:.0f} s"
            keep(name, f"## {name}\n\n{where}\n\n```\n{text.rstrip()}\n```\n")
    return worst


if __name__ == "__main__":
    sys.exit(main())
