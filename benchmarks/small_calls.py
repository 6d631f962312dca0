"""What calls on few rows cost, against the code before, torchmetrics and scikit-learn.

    python benchmarks/small_calls.py [--sizes 100x2 100x10 ...] [--rounds 5] [--before PATH] [--only WORD]

The calls are `measure(z, y)` with 13 metrics and their intervals, `measure(z, y, "ece")` and the same of "accuracy", on
float32 logits in memory, with one thread. The other tools compute the same ECE (15 bins) and accuracy without
intervals, scikit-learn log loss and accuracy. `checks` is the part of a call that checks its input, `exponentials` what
NumPy takes for those of all scores in double precision. --before has the folder of another checkout of calib, --only
words in names of packages. Each package is a process of its own, by turns in every round. A cell is the median CPU time
of its calls in the fastest round, and ratios are medians over rounds [least, largest].
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import arguments, child, environment, installed, machine, ratio, seconds

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


def measured(package: str, sizes: list[str]) -> dict[str, float]:
    """Median CPU milliseconds of each call, by size and name."""
    found = {}
    for size in sizes:
        for name, call in PACKAGES[package](*data(*map(int, size.split("x")))).items():
            times = [seconds(call) for _ in range(2 + (8 if name == "measure" else 30))][2:]
            found[f"{size} {name}"] = 1000 * statistics.median(times)
    return found


def main() -> None:
    given = arguments(__doc__, sizes=SIZES, rounds=5, before=str, only=[""])
    there = ["calib", *(name for name in ("torchmetrics", "sklearn") if installed(name))]
    there = [name for name in there if any(word in name for word in given.only)]
    works = {name: (name, environment()) for name in there}
    if given.before:
        works["before"] = ("calib", environment(given.before))
    print(machine("torch", "torchmetrics", "sklearn"))
    rounds = [
        {name: child(measured, package, given.sizes, env=env) for name, (package, env) in works.items()}
        for _ in range(given.rounds)
    ]
    for key in rounds[0]["calib"]:
        times = {name: [one[name][key] for one in rounds] for name in works if key in rounds[0][name]}
        costs = ", ".join(f"{name} {min(values):.2f} ms" for name, values in times.items())
        others = [f"{ratio(times['calib'], values, 2)} of {name}" for name, values in times.items() if name != "calib"]
        print(f"{key}: {costs}" + f"; calib costs {', '.join(others)}" * bool(others), flush=True)


if __name__ == "__main__":
    main()
