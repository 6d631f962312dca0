"""What calls on few rows cost, against the code before, torchmetrics and scikit-learn.

    python benchmarks/small_calls.py [--sizes 100x2 100x10 ...] [--rounds 60] [--before PATH] [--only WORD]

The calls are `measure(z, y)` with 13 metrics and their intervals, `measure(z, y, "ece")` and the same of "accuracy", on
float32 logits in memory, with one thread. The other tools compute the same ECE (15 bins) and accuracy without
intervals, scikit-learn log loss and accuracy. `checks` is the part of a call that checks its input, `exponentials` what
NumPy takes for those of all scores in double precision. --before has the folder of another checkout of calib, --only
words in names of packages. Each package is a process of its own, and all of them take turns of a few calls.
Milliseconds are the median CPU time of a call in the fastest turn, ratios medians over turns with their 95 % interval.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from _harness import arguments, call, environment, installed, machine, seconds

SIZES = [f"{n}x{k}" for n in (100, 1_000, 10_000) for k in (2, 10, 100)]
Calls = dict[str, Callable[[], object]]


def data(n: int, k: int) -> tuple[Any, Any]:
    """Overconfident logits of a plausible classifier, and labels."""
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((n, k)).astype(np.float32), rng.integers(0, k, n)
    z[np.arange(n), y] += 2.5
    return 1.6 * z, y


def calib(z: Any, y: Any) -> Calls:
    import calibcli

    wide = z.astype(np.float64)
    return {
        "measure": lambda: calibcli.measure(z, y),
        "ece": lambda: calibcli.measure(z, y, "ece"),
        "accuracy": lambda: calibcli.measure(z, y, "accuracy"),
        "checks": lambda: calibcli.from_arrays(z, y),
        "exponentials": lambda: np.exp(wide),
    }


def torchmetrics(z: Any, y: Any) -> Calls:
    import torch
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

    torch.set_num_threads(1)
    k, logits, labels = z.shape[1], torch.from_numpy(z), torch.from_numpy(y)
    return {
        "ece": lambda: float(multiclass_calibration_error(logits, labels, k, n_bins=15, norm="l1")),
        "accuracy": lambda: float(multiclass_accuracy(logits, labels, k, average="micro")),
    }


def sklearn(z: Any, y: Any) -> Calls:
    from scipy.special import softmax
    from sklearn.metrics import accuracy_score, log_loss

    classes = list(range(z.shape[1]))
    return {
        "log loss": lambda: log_loss(y, softmax(z.astype(np.float64), axis=1), labels=classes),
        "accuracy": lambda: accuracy_score(y, z.argmax(axis=1)),
    }


PACKAGES = {"calib": calib, "torchmetrics": torchmetrics, "sklearn": sklearn}


def serve(package: str) -> str:
    """Answer each line, a size and a call, with the median CPU milliseconds of some calls; null if there is none."""
    calls: dict[str, Calls] = {}
    for line in sys.stdin:
        size, name = line.rstrip().split(" ", 1)
        if size not in calls:
            calls[size] = PACKAGES[package](*data(*map(int, size.split("x"))))
            for work in calls[size].values():
                seconds(work)
        turn = 5 if name == "measure" else 12
        times = [seconds(calls[size][name]) for _ in range(turn)] if name in calls[size] else []
        print(json.dumps(1000 * statistics.median(times) if times else None), flush=True)
    return ""


def ask(process: subprocess.Popen[str], size: str, name: str) -> float | None:
    assert process.stdin
    assert process.stdout
    print(size, name, file=process.stdin, flush=True)
    answer: float | None = json.loads(process.stdout.readline())
    return answer


def middle(ratios: Sequence[float]) -> str:
    """The median and its 95 % interval by ranks, which assumes nothing but turns that are alike."""
    ordered, n = sorted(ratios), len(ratios)
    below = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return f"{statistics.median(ordered):.2f} [{ordered[below]:.2f}, {ordered[n - 1 - below]:.2f}]"


def main() -> None:
    given = arguments(__doc__, sizes=SIZES, rounds=60, before=str, only=[""])
    there = ["calib", *(name for name in ("torchmetrics", "sklearn") if installed(name))]
    works = {name: (name, environment()) for name in there if any(word in name for word in given.only)}
    if given.before:
        works["before"] = ("calib", environment(given.before))
    print(machine("torch", "torchmetrics", "sklearn"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = {name: subprocess.Popen(call(serve, of), env=env, **pipes) for name, (of, env) in works.items()}
    for size in given.sizes:
        for name in ("measure", "ece", "accuracy", "log loss", "checks", "exponentials"):
            asked = {who: [ask(process, size, name)] for who, process in processes.items()}
            times = {who: [] for who, (first,) in asked.items() if first is not None}  # the first turn warms up
            for turn in range(given.rounds):
                for who in [*times][:: -1 if turn % 2 else 1]:
                    times[who].append(ask(processes[who], size, name))
            costs = ", ".join(f"{who} {min(values):.2f} ms" for who, values in times.items())
            others = [
                f"{middle([a / b for a, b in zip(times['calib'], values, strict=True)])} of {who}"
                for who, values in times.items()
                if who != "calib" and "calib" in times
            ]
            print(f"{size} {name}: {costs}" + f"; calib costs {', '.join(others)}" * bool(others), flush=True)
    for process in processes.values():
        process.communicate()


if __name__ == "__main__":
    main()
