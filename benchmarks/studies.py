"""Cost of the small sizes of all studies, whether a command gives the same bytes twice, and workers that are killed.

    python benchmarks/studies.py [--only NAME ...] [--again SEEDS] [--save DIR]
    python benchmarks/studies.py --kills 20 [--epochs 100] [--save DIR]
    python benchmarks/studies.py --steps 10 [--longest 60] [--only NAME ...]

CPU seconds, the system's included, are those of all processes of a study with one thread each, from its start to its
report. Each study is run again with fewer seeds (--again, 0 for none), and every file of that folder is compared with
the first one's, judged at as many seeds. Times are left out: `seconds` of runs, `spent` of the result, where and when
it was written, and the digest that covers these.

--kills: a study whose workers are killed at random moments ends as one that was left alone, byte for byte. Two workers
share the runs, a third joins after half of the kills; at random shares of all epochs one of them is killed with SIGKILL
and another takes its place. Then all of them finish. A study that ends before so many kills has failed too: raise
--epochs.

--steps: the first steps of each recipe at the size of its paper, on drawn rows of the shape of its data, and what all
of its runs would take on this machine. Arms that differ in the loss alone are timed once, and so are recipes that
have the same network, rows, batches and kind of optimizer; networks that are changed without training are left out. A
recipe whose steps take more than --longest seconds in all is stopped before; the table says how many steps there were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _harness import CALIB, TWO_ARMS, arguments, environment, head, machine, row
from _harness import run as harness

from calibcli.lab.study import parsing, runs
from calibcli.lab.study.experiment import SIZES, Study, built_in, text_of
from calibcli.lab.training.fit import run_all
from calibcli.lab.training.recipes import optimizer_choices

TIMES = {"seconds", "spent", "provenance", "checksum"}  # the last is a digest of the others, times included
LIMIT = 20  # CPU minutes of all together
SEEDS = 6  # of the study whose workers are killed


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


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


def again(name: str, save: Path, seeds: int) -> tuple[int, list[str]]:
    """How many files there are of the study with fewer seeds, and which differ from the first one's."""
    run(name, save / f"{name}-again", "--seeds", str(seeds))
    shutil.copytree(save / name, save / f"{name}-fewer", ignore=partial(beyond, seeds))
    run(name, save / f"{name}-fewer", "--seeds", str(seeds), "--report-only")
    other = contents(save / f"{name}-again")
    return len(other), differing(contents(save / f"{name}-fewer"), other)


def costs(names: list[str], seeds: int, save: Path) -> int:
    """The table of all studies; 1 if they take too long or a file differs."""
    total, wrong = 0.0, 0
    print(head("study", "CPU seconds", "files, done again", "differ"), flush=True)
    for name in names:
        total += (seconds := run(name, save / name))
        files, differ = again(name, save, seeds) if seeds else (0, [])
        print(row(f"`{name}`", f"{seconds:.0f}", files, f"{len(differ)} {' '.join(differ[:5])}"), flush=True)
        wrong += len(differ)
    print(row("together", f"{total:.0f}: {total / 60:.1f} minutes, of {LIMIT}", "", wrong))
    return int(total > 60 * LIMIT or wrong > 0)


# workers that are killed


def worker(folder: Path, save: str) -> subprocess.Popen[bytes]:
    line = [*CALIB, "study", "recipe.toml", "--save", save, "-q"]
    return subprocess.Popen(line, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> None:
    _, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"a worker ended with {process.returncode}: {error.decode()}")


def progress(folder: Path, epochs: int) -> float:
    """The share of all epochs that are logged; what a killed worker did since its last saved state is done again."""
    lines = sum(len(log.read_bytes().splitlines()) for log in folder.rglob("log.jsonl"))
    return lines / (2 * SEEDS * epochs)


def killed(kills: int, epochs: int, folder: Path) -> int:
    """Kill workers and compare their study with one that was left alone; 1 unless both have the same bytes."""
    rng, begun, done = random.Random(0), time.monotonic(), 0
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(TWO_ARMS.format(name="kills", hidden="64/64", epochs=epochs, seeds=SEEDS))
    ended(worker(folder, "alone"))
    workers = [worker(folder, "killed"), worker(folder, "killed")]
    for share in sorted(rng.uniform(0, 0.9) for _ in range(kills)):
        while progress(folder / "killed", epochs) < share and any(one.poll() is None for one in workers):
            time.sleep(0.02)
        which = rng.randrange(len(workers))
        if workers[which].poll() is None:
            workers[which].kill()
            workers[which].communicate()
            workers[which] = worker(folder, "killed")
            done += 1
        if done == kills // 2 and len(workers) == 2:
            workers.append(worker(folder, "killed"))
    for one in workers:
        ended(one)
    alone, other = contents(folder / "alone"), contents(folder / "killed")
    differ = [path for path in differing(alone, other) if not path.endswith("steps.jsonl")]  # tells who began where
    said = "the same bytes but for times" if not differ else f"{len(differ)} DIFFER: {differ[:5]}"
    locks = sum(".lock" in path for path in other)
    print(f"{done} kills of {kills}, {len(workers)} workers, {len(alone)} files: {said}, {locks} locks left")
    print(f"{time.monotonic() - begun:.0f} s in all")
    return int(bool(differ) or done < kills)


# the first steps at the size of the paper

PICTURES = {"tiny-imagenet": (64, 200, 100_000)}  # size, classes, training rows; of the others CIFAR's
CIFAR = (32, 10, 45_000)
TEXTS = {
    "text": ("drawn-posts", 15_098),
    "sentiment": ("drawn-trees", 6_920 * 37),
}  # posts; phrases, 25 sentences a batch


class EnoughError(Exception):
    """There were enough steps."""


def drawn(save: Path, size: int, classes: int, rows: int) -> Path:
    """Pictures of noise in the parts of a data set."""
    rng, path = np.random.default_rng(0), save / f"pictures-{size}.npz"
    arrays = {}
    for part, count in (("train", rows), ("validation", 2 * classes), ("test", 2 * classes)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 3, size, size)).astype(np.uint8)
        arrays[f"{part}_labels"] = np.arange(count) % classes
    np.savez(path, **arrays)
    return path


def timed(study: Study, one: runs.StudyRun, save: Path, steps: int, longest: float) -> tuple[int, float]:
    """How many steps there were after the first, and the median of their CPU seconds."""
    times: list[float] = []

    def progress(fraction: float, text: str) -> None:
        if "epoch" in text:
            times.append(time.process_time())
        if len(times) > steps or (len(times) > 1 and times[-1] - times[0] > longest):
            raise EnoughError

    with contextlib.suppress(EnoughError):
        run_all(runs.setup_of(dataclasses.replace(study, threads=1, device="cpu"), one, save, progress=progress))
    seconds = np.diff(times)
    return len(seconds), float(np.median(seconds))


def first_steps(names: list[str], steps: int, longest: float, save: Path) -> int:
    """The table of steps and of what all runs would take."""
    print(machine("torch"))
    print(head("study, size", "network", "arm", "rows, batch", "steps", "CPU seconds a step", "all its runs, CPU days"))
    known: dict[tuple[Any, ...], tuple[int, float]] = {}
    for name in names:
        text, source = text_of(name)
        for size in [size for size in tomllib.loads(text).get("size", {}) if size not in SIZES[:-1]]:
            shown, classes, rows = PICTURES.get(size, CIFAR)
            data, rows = TEXTS[name] if name in TEXTS else (drawn(save, shown, classes, 128 * (steps + 2)), rows)
            study = parsing.parse(text, source, size, str(data))
            if study.computes:
                continue
            study = dataclasses.replace(
                study, embeddings="", split="", **{part: f"{data}#{part}" for part in parsing.PARTS}
            )
            days, lines, trained = 0.0, [], [arm for arm in study.arms if not arm.source]
            for arm in trained:
                options = {**study.options, **arm.options}
                penalty = "trace" in arm.loss
                batch, optimizer = options.get("batch_size", 128), options.get("optimizer", "sgd")
                steps_of = [choice.name for choice in optimizer_choices(optimizer)]  # options take no time
                key = (study.arch[0], shown, batch, *steps_of, penalty, options.get("augment", ""))
                if key not in known:
                    known[key] = timed(study, runs.StudyRun(arm, study.arch[0], 0), save, steps, longest)
                    lines.append(arm.name)
                of_run = options["epochs"] * -(-rows // batch) * known[key][1] / 86_400
                days += study.seeds * of_run
                if arm.name in lines or arm is study.arms[0]:
                    count, seconds = known[key]
                    what = (f"`{name}`, {size}", study.arch[0], arm.name, f"{rows:,}, {batch}", count, f"{seconds:.2f}")
                    print(row(*what, f"{of_run:.2g} a run"), flush=True)
            print(
                row(
                    f"`{name}`, {size}",
                    "",
                    f"all {len(trained)} with {study.seeds} seeds",
                    "",
                    "",
                    "",
                    f"{days:.3g}",
                )
            )
    return 0


if __name__ == "__main__":
    given = arguments(__doc__, only=built_in(), again=2, save=Path, kills=0, epochs=100, steps=0, longest=60.0)
    with tempfile.TemporaryDirectory() as temporary:
        save = given.save or Path(temporary)
        if given.steps:
            sys.exit(first_steps(given.only, given.steps, given.longest, save))
        sys.exit(killed(given.kills, given.epochs, save) if given.kills else costs(given.only, given.again, save))
