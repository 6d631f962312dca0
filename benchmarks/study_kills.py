"""A study whose workers are killed at random moments ends as one that was left alone, byte for byte.

    python benchmarks/study_kills.py [--kills 20] [--folder DIR]

Two workers share the runs, a third joins after half of the kills; at random shares of all epochs one of them is killed
with SIGKILL and another takes its place. Then all of them finish. A study that ends before so many kills has failed
too: raise --epochs. Weights, logits and logs of all runs are compared, and the result but for its times.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _harness import CALIB, environment, options
from studies import contents

SEEDS = 6
RECIPE = """
[study]
name = "kills"
[data]
train = "digits#train"
validation = "digits#validation"
test = "digits#test"
[axes]
arch = ["mlp:hidden=64/64"]
seeds = {seeds}
[train]
epochs = {epochs}
batch_size = 20
[[arm]]
name = "CE"
loss = "ce"
[[arm]]
name = "FL-3"
loss = "focal:gamma=3"
[[claim]]
id = "ece"
text = "focal loss has a lower ECE"
less = {{ metric = "ece", a = "FL-3", b = "CE" }}
"""


def worker(folder: Path, save: str, *more: str) -> subprocess.Popen[bytes]:
    line = [*CALIB, "study", "recipe.toml", "--save", save, "-q", *more]
    return subprocess.Popen(line, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> None:
    _, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"a worker ended with {process.returncode}: {error.decode()}")


def progress(folder: Path, epochs: int) -> float:
    """The share of all epochs that are logged; what a killed worker did since its last saved state is done again."""
    lines = sum(len(log.read_bytes().splitlines()) for log in folder.rglob("log.jsonl"))
    return lines / (2 * SEEDS * epochs)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    rng, begun = random.Random(0), time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.toml").write_text(RECIPE.format(epochs=args.epochs, seeds=SEEDS))
        ended(worker(folder, "alone"))
        workers = [worker(folder, "killed"), worker(folder, "killed")]
        done = 0
        for share in sorted(rng.uniform(0, 0.9) for _ in range(args.kills)):
            while progress(folder / "killed", args.epochs) < share and any(one.poll() is None for one in workers):
                time.sleep(0.02)
            which = rng.randrange(len(workers))
            if workers[which].poll() is None:
                workers[which].send_signal(signal.SIGKILL)
                workers[which].communicate()
                workers[which] = worker(folder, "killed")
                done += 1
            if done == args.kills // 2 and len(workers) == 2:
                workers.append(worker(folder, "killed"))
        for one in workers:
            ended(one)
        one, other = contents(folder / "alone"), contents(folder / "killed")
        left = [path for path in other if ".lock" in path]
    paths = {path for path in one.keys() | other.keys() if not path.endswith("steps.jsonl")}  # tells who began where
    differ = sorted(path for path in paths if one.get(path) != other.get(path))
    told = "the same bytes but for times" if not differ else f"{len(differ)} DIFFER: {differ[:5]}"
    print(f"{done} kills of {args.kills}, {len(workers)} workers, {len(one)} files: {told}, {len(left)} locks left")
    print(f"{time.monotonic() - begun:.0f} s in all")
    return int(bool(differ) or done < args.kills)


if __name__ == "__main__":
    sys.exit(main())
