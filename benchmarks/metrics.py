"""Metric values against other tools: time, extra memory and error, from the same float32 logits in memory, one thread.

    python benchmarks/metrics.py [--sizes 1000000x10 100000x1000 1000000x100]

calib works out fourteen metrics together (`values`) and, in a second line, the default set with every printed
uncertainty (`measure`); each other tool works out its ECE with 15 bins alone, softmax included. Every line is a process
of its own: least CPU seconds of three runs (there is one thread) after a warm-up on few rows, growth of the peak
resident memory, and the error of the ECE against float64. The truth puts a confidence into the bin (lo, hi]; tools that
bin otherwise may differ by edge cases.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

TOGETHER = (
    *("accuracy", "nll", "brier", "brier_top", "ece", "mce", "ece_l2", "adaece", "classwise_ece", "oce", "uce"),
    *("confidence_gap", "entropy", "high_confidence_share"),
)
BINS = 15
Run = Callable[[Any, Any], float]


def data(n: int, k: int) -> tuple[Any, Any]:
    """Overconfident logits of a plausible classifier, and labels."""
    rng = np.random.default_rng(0)
    z = np.empty((n, k), dtype=np.float32)
    y = np.empty(n, dtype=np.int64)
    for start in range(0, n, 50_000):
        block = rng.standard_normal((min(50_000, n - start), k), dtype=np.float32)
        label = rng.integers(0, k, len(block))
        block[np.arange(len(block)), label] += 2.5
        z[start : start + len(block)], y[start : start + len(block)] = 1.6 * block, label
    return z, y


def truth(z: Any, y: Any) -> float:
    """ECE in float64, block by block."""
    d = np.zeros(BINS)
    for start in range(0, len(z), 20_000):
        block = z[start : start + 20_000].astype(np.float64)
        e = np.exp(block - block.max(axis=1, keepdims=True))
        c = 1 / e.sum(axis=1)
        hit = block.argmax(axis=1) == y[start : start + 20_000]
        d += np.bincount(np.clip(np.ceil(c * BINS) - 1, 0, BINS - 1).astype(int), c - hit, BINS)
    return float(np.abs(d).sum()) / len(z)


def _calib() -> Run:
    from calibcli.metrics import values
    from calibcli.predictions import Predictions

    return lambda z, y: values(Predictions.of(z, y), TOGETHER)["ece"]


def _calib_measure() -> Run:
    from calibcli.metrics import measure
    from calibcli.predictions import Predictions

    return lambda z, y: next(e.value or 0.0 for e in measure(Predictions.of(z, y)) if e.name == "ece")


def _calib_pass() -> Run:
    from calibcli.metrics import values
    from calibcli.predictions import Predictions

    return lambda z, y: values(Predictions.of(z, y), ["ece"])["ece"]


def _torchmetrics() -> Run:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    torch.set_num_threads(1)

    def ece(z: Any, y: Any) -> float:
        k = z.shape[1]
        return float(multiclass_calibration_error(torch.from_numpy(z), torch.from_numpy(y), k, n_bins=BINS, norm="l1"))

    return ece


def _softmax() -> Callable[[Any], Any]:
    import torch

    torch.set_num_threads(1)
    return lambda z: torch.softmax(torch.from_numpy(z), dim=1).numpy()


def _netcal() -> Run:
    from netcal.metrics import ECE

    softmax, metric = _softmax(), ECE(BINS)
    return lambda z, y: float(metric.measure(softmax(z), y))


def _probmetrics() -> Run:
    import torch
    from probmetrics.distributions import CategoricalLogits
    from probmetrics.metrics import Metrics

    torch.set_num_threads(1)
    metrics = Metrics.from_names(["ece-15"])

    def ece(z: Any, y: Any) -> float:
        found = metrics.compute_all_from_labels_logits(torch.from_numpy(y), torch.from_numpy(z))
        return float(next(iter(found.values())))

    del CategoricalLogits
    return ece


def _sklearn() -> Run:
    from sklearn.calibration import calibration_curve

    softmax = _softmax()

    def ece(z: Any, y: Any) -> float:  # it has no ECE: its reliability curve of the top label
        p = softmax(z)
        c, hit = p.max(axis=1), p.argmax(axis=1) == y
        share, mean = calibration_curve(hit, c, n_bins=BINS)
        count = np.histogram(c, np.linspace(0, 1, BINS + 1))[0]
        return float(np.abs(share - mean) @ count[count > 0]) / len(y)

    return ece


def _relplot() -> Run:
    from relplot.metrics import multiclass_logits_to_confidences, smECE

    return lambda z, y: float(smECE(*multiclass_logits_to_confidences(z, y)))


TOOLS: dict[str, tuple[str, Callable[[], Run]]] = {
    "calib values (14 metrics)": ("calibcli", _calib),
    "calib measure (default, intervals)": ("calibcli", _calib_measure),
    "calib ece alone": ("calibcli", _calib_pass),
    "torchmetrics ece": ("torchmetrics", _torchmetrics),
    "netcal ece": ("netcal", _netcal),
    "probmetrics ece": ("probmetrics", _probmetrics),
    "scikit-learn curve": ("sklearn", _sklearn),
    "relplot smECE": ("relplot", _relplot),
}
OURS = list(TOOLS)[:3]


def child(tool: str, n: int, k: int) -> None:
    """One tool on one size; prints JSON."""
    z, y = data(n, k)
    wanted = truth(z, y)
    run = TOOLS[tool][1]()
    run(z[:2000], y[:2000])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, value = [], 0.0
    for _ in range(3):
        start = time.process_time()
        value = run(z, y)
        times.append(time.process_time() - start)
        if sum(times) > 60:
            break
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": min(times), "mb": grown / 1024, "value": value, "error": abs(value - wanted)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["1000000x10", "100000x1000", "1000000x100"])
    parser.add_argument("--child", nargs=3)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], int(args.child[1]), int(args.child[2]))
        return
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    for size in args.sizes:
        n, k = size.split("x")
        print(f"\n{n} rows, {k} classes, float32, one thread")
        print(f"{'tool':36} {'seconds':>8} {'extra MB':>9} {'error':>9}")
        seconds = {}
        for tool, (package, _) in TOOLS.items():
            if importlib.util.find_spec(package) is None:
                print(f"{tool:36} not installed")
                continue
            command = [sys.executable, "-P", __file__, "--child", tool, n, k]  # not our coverage.py
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads})
            if done.returncode:
                print(f"{tool:36} failed: {(done.stderr.strip().splitlines() or ['killed'])[-1][:100]}")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            seconds[tool] = row["seconds"]
            error = "" if tool == "relplot smECE" else f"{row['error']:9.1e}"
            print(f"{tool:36} {row['seconds']:8.3f} {row['mb']:9.0f} {error}", flush=True)
        others = {tool: s for tool, s in seconds.items() if tool not in OURS}
        if others:
            best = min(others, key=lambda tool: others[tool])
            ratio = others[best] / seconds[OURS[0]]
            print(f"calib's 14 metrics are {ratio:.1f} times as fast as the fastest other tool's one ({best})")
        print(f"every printed uncertainty: {seconds[OURS[1]] / seconds[OURS[0]]:.1f} times the values alone")


if __name__ == "__main__":
    main()
