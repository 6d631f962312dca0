"""A study whose workers are killed at random moments ends as one that was left alone, byte for byte.

    python benchmarks/study_kills.py [--kills 20] [--folder DIR]

Two workers share the runs; at random shares of all epochs one of them is killed with SIGKILL and another takes its
place. Then both are let finish. A study that ends before so many kills has failed too: raise --epochs. Also printed:
the wall time of two workers over that of one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "calibcli", "study", "recipe.toml", "--save", save, "-q", *more]
    return subprocess.Popen(line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> None:
    _, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"a worker ended with {process.returncode}: {error.decode()}")


def kept(folder: Path) -> dict[str, bytes]:
    """Weights and logits of all runs."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.npz")} | {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")
    }


def progress(folder: Path, epochs: int) -> float:
    """The share of all epochs that are logged; what a killed worker did since its last saved state is done again."""
    lines = sum(len(log.read_bytes().splitlines()) for log in folder.rglob("log.jsonl"))
    return lines / (2 * SEEDS * epochs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    rng, begun = random.Random(0), time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.toml").write_text(RECIPE.format(epochs=args.epochs, seeds=SEEDS))
        spent = {}
        for jobs in (1, 2):
            start = time.monotonic()
            ended(worker(folder, f"jobs-{jobs}", "--jobs", str(jobs)))
            spent[jobs] = time.monotonic() - start
        both = [worker(folder, "killed"), worker(folder, "killed")]
        done = 0
        for share in sorted(rng.uniform(0, 0.9) for _ in range(args.kills)):
            while progress(folder / "killed", args.epochs) < share and any(one.poll() is None for one in both):
                time.sleep(0.02)
            which = rng.randrange(2)
            if both[which].poll() is None:
                both[which].send_signal(signal.SIGKILL)
                both[which].communicate()
                both[which] = worker(folder, "killed")
                done += 1
        for one in both:
            ended(one)
        whole = kept(folder / "jobs-1")
        differing = [name for name, data in kept(folder / "killed").items() if whole.get(name) != data]
        same = kept(folder / "killed").keys() == whole.keys() and not differing and kept(folder / "jobs-2") == whole
        locks = len(list((folder / "killed").rglob("run.lock*")))
    told = "the same bytes" if same else f"DIFFERENT: {differing}"
    print(f"{done} kills of {args.kills}, {len(whole)} files: {told}, {locks} locks left")
    print(f"wall time of two workers over one: {spent[2] / spent[1]:.2f}; {time.monotonic() - begun:.0f} s in all")
    return int(not same or locks > 0 or done < args.kills)


if __name__ == "__main__":
    sys.exit(main())
