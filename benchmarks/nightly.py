"""What is too long for every change: the full simulations, one after another. `make nightly`, some hours on one core.

    python benchmarks/nightly.py [--data DIR] [--out FOLDER] [NAME ...]

Output goes to FOLDER/NAME.txt, the gate's cells to FOLDER/gate (it goes on where it was stopped). Exit 1 if one failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RUNS = {
    "gate": ["gate.py", "--out", "{out}/gate"],
    "gate-report": ["gate.py", "--out", "{out}/gate", "--report"],
    "gate-plan": ["gate_plan.py"],
    "power": ["power.py"],
    "coverage": ["coverage.py", "--save", "{out}/coverage.json"],
    "scale-coverage": ["scale_coverage.py"],
    "curvature-coverage": ["curvature_coverage.py"],
    "derivatives": ["derivatives.py"],
}
TAKE_DATA = ("gate", "gate-report")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of " + ", ".join(RUNS))
    parser.add_argument("--data", help="folder of recorded outputs")
    parser.add_argument("--out", type=Path, default=Path("out/nightly"))
    given = parser.parse_args()
    unknown = set(given.names) - set(RUNS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    given.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in given.names or RUNS:
        script, *options = [part.format(out=given.out) for part in RUNS[name]]
        data = ["--data", given.data] if given.data and name in TAKE_DATA else []
        start = time.monotonic()
        with open(given.out / f"{name}.txt", "w") as log:
            code = subprocess.call([sys.executable, str(HERE / script), *options, *data], stdout=log, stderr=log)
        print(f"{name}: {'ok' if code == 0 else f'exit {code}'}, {time.monotonic() - start:.0f} s", flush=True)
        failed += [name] if code else []
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
