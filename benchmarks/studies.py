"""Cost of the small sizes of all studies, and whether the same command twice gives the same bytes.

    python benchmarks/studies.py [--only NAME ...] [--again SEEDS] [--save DIR]

CPU seconds, the system's included, are those of all processes of a study with one thread each, from its start to its
report. Each study is run again with fewer seeds, and every file of that folder is compared with the first one's, judged
at as many seeds. Times are left out: `seconds` of runs, `spent` of the result, where and when it was written, and the
digest that covers these.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _harness import CALIB, head, options, row
from _harness import run as harness

from calibcli.lab.study.experiment import built_in

TIMES = {"seconds", "spent", "provenance", "checksum"}  # the last is a digest of the others, times included
LIMIT = 20  # CPU minutes of all together


def run(name: str, save: Path, *more: str) -> float:
    """CPU seconds of `calib study NAME --save SAVE`; what it says is kept there too."""
    save.mkdir(parents=True, exist_ok=True)
    spent, _, text = harness([*CALIB, "study", name, "--save", str(save), "-q", "--json", *more])
    (save / "said.json").write_text(text)
    return spent


def beyond(seeds: int, _: str, names: list[str]) -> list[str]:
    """Folders of runs with further seeds."""
    return [name for name in names if name.startswith("seed-") and int(name.removeprefix("seed-")) >= seeds]


def without_times(found: Any) -> Any:
    """JSON without its times."""
    if isinstance(found, dict):
        return {key: without_times(value) for key, value in found.items() if key not in TIMES}
    return [without_times(value) for value in found] if isinstance(found, list) else found


def contents(save: Path) -> dict[str, str]:
    """Digests of all files of a study; the page is made of the result."""
    found = {}
    for path in sorted(p for p in save.rglob("*") if p.is_file() and p.suffix != ".html"):
        data = path.read_bytes()
        if path.suffix == ".json":
            data = json.dumps(without_times(json.loads(data)), sort_keys=True).encode()
        found[str(path.relative_to(save))] = hashlib.sha256(data).hexdigest()
    return found


def again(name: str, save: Path, seeds: int) -> tuple[int, list[str]]:
    """How many files there are of the study with fewer seeds, and which differ from the first one's."""
    run(name, save / f"{name}-again", "--seeds", str(seeds))
    shutil.copytree(save / name, save / f"{name}-fewer", ignore=partial(beyond, seeds))
    run(name, save / f"{name}-fewer", "--seeds", str(seeds), "--report-only")
    one, other = contents(save / f"{name}-fewer"), contents(save / f"{name}-again")
    return len(other), sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", default=built_in())
    parser.add_argument("--again", type=int, default=2, help="seeds of the second time; 0 for none")
    parser.add_argument("--save", type=Path, help="keep the folders there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        save, total, wrong = args.save or Path(temporary), 0.0, 0
        print(head("study", "CPU seconds", "files, done again", "differ"), flush=True)
        for name in args.only:
            total += (seconds := run(name, save / name))
            files, differ = again(name, save, args.again) if args.again else (0, [])
            print(row(f"`{name}`", f"{seconds:.0f}", files, f"{len(differ)} {' '.join(differ[:5])}"), flush=True)
            wrong += len(differ)
        print(row("together", f"{total:.0f}: {total / 60:.1f} minutes, of {LIMIT}", "", wrong))
    raise SystemExit(total > 60 * LIMIT or wrong > 0)
