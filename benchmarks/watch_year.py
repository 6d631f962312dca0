"""A year of `calib watch` on rows of a real model: the night of the alarm after a drift, and updates that are killed.

    python benchmarks/watch_year.py [FILE] [--nights 365] [--drift 200] [--times 2] [--kills 20]

FILE has recorded outputs, else sample_data/test.npz; a temperature is fitted to them first. Each night draws 200 of the
rows with replacement; from the night of the drift on, all logits are `--times` as large, in the control they are not.
Limits: the ECE after the temperature and .03, the accuracy less .05. A further night, counted by `calib watch`, is
compared with the 20th by turns: the ratio of CPU seconds is the median of seven [least, largest]. Then `--kills` nights
are counted by a process that is killed (SIGKILL) at a moment of its run chosen at random, and run again: the state is
that of nights without kills, or exit 1.
"""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _harness import CALIB, ROOT, by_turns, ratio, run

import calibcli
from calibcli.watch import state_file

SAMPLE = ROOT / "sample_data" / "test.npz"
ROWS = 200
FIRST, EARLY = datetime.date(2019, 1, 1), 20


def rows(file: Any, night: int, times: float) -> dict[str, Any]:
    """Of one night: logits, labels, ids, and the date."""
    at = np.random.default_rng([11, night]).integers(0, file.n, ROWS)
    date = (FIRST + datetime.timedelta(days=night)).isoformat()
    ids = np.arange(ROWS) + ROWS * night
    return {"logits": times * file.logits[at], "labels": file.labels[at], "ids": ids, "night": date}


def year(file: Any, limits: dict[str, Any], nights: int, drift: int, times: float, state: Path) -> str:
    """The nights on which each rule alarmed, counted from 1."""
    watch = calibcli.Watch(state, **limits)
    start, first = time.process_time(), dict[str, int]()
    for night in range(nights):
        given = rows(file, night, times if night >= drift else 1.0)
        if night == EARLY - 1:
            shutil.copy(state, state.with_suffix(".early"))
        found = watch.update(given["logits"], given["labels"], kind="logits", ids=given["ids"], night=given["night"])
        for check in found.checks:
            if check.outcome == "fail":
                first.setdefault(check.rule, night + 1)
    spent = time.process_time() - start
    said = ", ".join(f"{rule}: night {night}" for rule, night in first.items()) or "none"
    return f"alarms: {said}; {spent:.0f} CPU s, state {state.stat().st_size / 1000:.0f} kB"


def later(file: Any, limits: list[str], nights: int, state: Path) -> str:
    """What the next night costs as a command, beside the 20th."""
    given = rows(file, nights, 1.0)
    path, date, copy = state.with_name("tonight.npz"), given.pop("night"), state.with_name("copy.json")
    np.savez(path, **given)

    def night(before: Path) -> float:
        shutil.copy(before, copy)
        return run([*CALIB, "watch", str(copy), str(path), *limits, "--night", date, "-q"]).seconds

    times = by_turns({"early": state.with_suffix(".early"), "late": state}, 7, night)
    return f"night {nights + 1} costs {ratio(times['late'], times['early'], 2)} of night {EARLY}"


def same(one: Path, other: Path) -> bool:
    """Whether two states hold the same rows: everything but when they were written."""
    both = [state_file.load(path) for path in (one, other)]
    a, b = ([(s.rows, s.nights), {k: v.arrays() for k, v in s.streams.items()}] for s in both)
    return a[0] == b[0] and all(
        np.array_equal(array, b[1][key][name]) for key, arrays in a[1].items() for name, array in arrays.items()
    )


def killed(file: Any, limits: list[str], kills: int, folder: Path) -> tuple[int, bool]:
    """How many of the updates were killed before they ended by themselves, and whether nothing was lost or repeated."""
    rng, ended = np.random.default_rng(0), 0
    plain, state = folder / "plain.json", folder / "killed.json"
    took = 0.0
    for night in range(kills + 1):
        given = rows(file, night, 1.0)
        path, date = folder / f"{night}.npz", given.pop("night")
        np.savez(path, **given)
        line = [str(path), *limits, "--night", date, "-q"]
        start = time.perf_counter()
        run([*CALIB, "watch", str(plain), *line])
        took = took or time.perf_counter() - start
        again = [*CALIB, "watch", str(state), *line]
        if night:
            process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(took * rng.uniform(0.2, 1.1))
            process.kill()
            ended += process.wait() == -9
        run(again)
    return ended, same(plain, state)


def main() -> int:
    given = _harness.arguments(__doc__, "file", nights=365, drift=200, times=2.0, kills=20)
    path = Path([SAMPLE, *given.file][-1])
    raw = calibcli.read(path)
    tempered = calibcli.fit_scaler(raw).predict_proba(raw.logits if raw.kind == "logits" else np.exp(raw.logits))
    file = calibcli.from_arrays(np.log(np.maximum(tempered, 1e-300)), raw.labels, kind="logits")
    found = calibcli.measure(file, "ece", "accuracy")
    limits = {
        "max": {"ece": round(found["ece"].value + 0.03, 3)},
        "min": {"accuracy": round(found["accuracy"].value - 0.05, 3)},
    }
    print(f"{path.name}, tempered (ECE {found['ece'].value:.3f}): {limits}, {given.nights} nights of {ROWS} rows")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name, begins in (("control", given.nights), ("drift", given.drift)):
            said = year(file, limits, given.nights, begins, given.times, folder / f"{name}.json")
            print(f"{name}: {said}", flush=True)
        options = [f"--{side}={metric}={limit}" for side, of in limits.items() for metric, limit in of.items()]
        print(later(file, options, given.nights, folder / "control.json"), flush=True)
        ended, kept = killed(file, options, given.kills, folder)
    result = "equal" if kept else "NOT EQUAL"
    print(f"{given.kills} updates killed at random, {ended} of them before their end: {result}")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
