"""Temperature scaling side by side: time, extra memory, and error against the exact optimum; one thread.

    python benchmarks/scale.py            1e6 x 10, 1e5 x 1000 and 1e6 x 100, float32; then the commands
    python benchmarks/scale.py --quick    a tenth of the rows
    python benchmarks/scale.py --shapes 5000x10 --only calib scikit-learn    some sizes, some methods
    python benchmarks/scale.py --commands `scale --method all` at 5,000 x 10, matrix and dirichlet at 5,000 x 100
    python benchmarks/scale.py --commands FILE ...    the same on recorded outputs of your own
    python benchmarks/scale.py --focal    focal temperature and its grid at 50,000 x 100, or so many --rows

The commands run on logits like those of an overfit network: most rows certain, classes that are confused with few
others, some of them separable.

Peers that are installed take part: scikit-learn, probmetrics; torchmetrics for the grid of
temperatures. Every measurement is a process of its own, in CPU seconds; the data are synthetic with T = 1.5.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _harness import CALIB, ROOT, arguments, attempt, child, cost, environment, machine, run

SHAPES = ["1000000x10", "100000x1000", "1000000x100"]
TARGETS = {10: 15, 1000: 60}  # times faster than scikit-learn
FOCAL = {"focal_temperature": 60, "focal_temperature:grid=komisarenko": 90, "focal_temperature:objective=adaece": 90}
"""CPU seconds that a fit with its report may take at 50,000 x 100, on a machine that counts to ten million in 0.7 s."""


def make(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, k) float32 logits whose labels follow softmax(z / 1.5)."""
    rng = np.random.default_rng(0)
    z, y = np.empty((n, k), np.float32), np.empty(n, np.int64)
    step = max(1, 2_000_000 // k)
    for start in range(0, n, step):
        part = rng.standard_normal((min(step, n - start), k), dtype=np.float32)
        noise = -np.log(rng.standard_exponential(part.shape, dtype=np.float32) + np.float32(1e-30))
        y[start : start + step] = (part * np.float32(4 / 3) + noise).argmax(axis=1)
        z[start : start + step] = part * 2
    return z, y


def calib(z: np.ndarray, y: np.ndarray) -> float:
    from calibcli.scores.likelihood import fit_beta

    return fit_beta(z, y).temperature


def fit_scaler(z: np.ndarray, y: np.ndarray) -> float:
    """As a user calls it: with every check, the interval of T and its figure."""
    import calibcli

    return float(calibcli.fit_scaler(z, y)["temperature"].value or 0)


def sklearn(z: np.ndarray, y: np.ndarray) -> float:
    from sklearn.calibration import _TemperatureScaling

    return 1 / float(_TemperatureScaling().fit(z, y).beta_)


def probmetrics(z: np.ndarray, y: np.ndarray) -> float:
    import torch
    from probmetrics.calibrators import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    torch.set_num_threads(1)
    found = TemperatureScalingCalibrator()
    found.fit_torch(CategoricalLogits(torch.from_numpy(z)), torch.from_numpy(y))
    return 1 / float(found.invtemp_)


def grid_calib(z: np.ndarray, y: np.ndarray) -> float:
    from calibcli.calibrators.temperature import best_temperature
    from calibcli.scores.predictions import Predictions

    return best_temperature(Predictions.of(z, y), np.arange(1, 101) / 10, "ece").temperature


def grid_torchmetrics(z: np.ndarray, y: np.ndarray) -> float:
    """Three of the hundred points; the time is scaled."""
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    torch.set_num_threads(1)
    a, b = torch.from_numpy(z), torch.from_numpy(y)
    with torch.no_grad():
        values = {
            t: float(multiclass_calibration_error((a / t).softmax(1), b, num_classes=z.shape[1], n_bins=15))
            for t in (1.0, 1.5, 2.0)
        }
    return min(values, key=values.__getitem__)


FITS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "calib": calib,
    "calib: fit_scaler": fit_scaler,
    "scikit-learn": sklearn,
    "probmetrics": probmetrics,
    "grid: calib": grid_calib,
    "grid: torchmetrics": grid_torchmetrics,
}


def measured(name: str, n: int, k: int) -> dict[str, Any]:
    """CPU seconds (best of up to 3), extra memory in MB, and the temperature."""
    z, y = make(n, k)
    fit = FITS[name]
    fit(z[:500], y[:500])  # imports and first calls are not what is measured
    found = cost(lambda: fit(z, y), 3 if n * k <= 20_000_000 or name.startswith("calib") else 1)
    found["seconds"] *= 100 / 3 if name == "grid: torchmetrics" else 1
    return found


def exact(n: int, k: int) -> float:
    """The optimum: Newton in float64 over every row until nothing moves."""
    from calibcli.scores.likelihood import fit_beta
    from calibcli.scores.likelihood.moments import evaluate

    z, y = make(n, k)
    beta = fit_beta(z, y).beta
    for _ in range(2):
        slope, curvature, *_ = evaluate(lambda: ((z, y, None),), beta, np.float64).means()
        beta -= slope / curvature
    return 1 / beta


def realistic(k: int, n: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    """(n, k) logits of a network that is right in nine rows of ten and certain in most, wrong ones among them."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    near = (y + rng.choice([1, 2, 3], n, p=[0.6, 0.3, 0.1])) % k  # what a class is confused with
    rows, margin = np.arange(n), rng.gamma(1.5, 8.0, n)
    z = rng.standard_normal((n, k)) * 2.5 - 8
    z[rows, near] += 8 + rng.gamma(1.5, 1.5, n)
    z[rows, y] += 12 + margin
    wrong = rng.random(n) < 0.08
    z[wrong, near[wrong]] += 6 + 1.2 * margin[wrong]
    return z.astype(np.float32), y


def commands(files: list[str]) -> int:
    """Processor seconds of `calib scale` as a user runs it, against the aims."""
    late = 0
    with tempfile.TemporaryDirectory() as folder:
        if not files:
            for k in (10, 100):
                z, y = realistic(k)
                files.append(f"{folder}/{k}.npz")
                np.savez(files[-1], logits=z, labels=y)
        print(f"{'file':40}{'method':12}{'CPU s':>8}{'aim':>6}")
        for file in files:
            with np.load(file) as data:
                k = max(array.shape[-1] for array in data.values() if array.ndim == 2)
            for method, aim in (("all", 10),) if k <= 20 else (("matrix", 15), ("dirichlet", 15)):
                command = [*CALIB, "scale", file, "--method", method, "-q", "--json"]
                cost = run(command, environment(), ROOT).seconds
                late += cost > aim
                name = f"realistic, 5,000 x {k}" if folder in file else Path(file).name
                print(f"{name:40}{method:12}{cost:8.1f}{aim:6}", flush=True)
    return int(late > 0)


def focal(spec: str, rows: int) -> dict[str, Any]:
    """CPU seconds of a fit with its report, the longest silence of its progress, and its estimates."""
    import calibcli

    z, y = realistic(100, rows)
    calibcli.fit_scaler(z[:500], y[:500], spec)
    silences, last = [0.0], time.process_time()

    def progress(fraction: float, text: str) -> None:
        nonlocal last
        silences.append(time.process_time() - last)
        last = time.process_time()

    start = last
    fit = calibcli.fit_scaler(z, y, spec, progress=progress)
    seconds = time.process_time() - start
    found = {e.name: [e.value, e.low, e.high, e.n] for e in fit.estimates}
    return {"seconds": seconds, "silence": max(silences), "found": found}


def focal_fits(rows: int) -> int:
    """Processor seconds of focal temperature on all rows, against the aims of this machine's speed."""
    start = time.process_time()
    exec("s = 0\nfor i in range(10_000_000): s += i * i", {})  # as `python -c` runs it
    slower = max((time.process_time() - start) / 0.7, 1.0)
    print(f"{machine()}; {slower:.2f} times as slow as the machine of the aims")
    print(f"{rows:,} x 100, all rows; aims in CPU seconds of that machine\n")
    print(f"{'method':40}{'CPU s':>8}{'there':>8}{'aim':>6}{'silent s':>10}   value [low, high], n")
    late = 0
    for spec, aim in FOCAL.items():
        got = child(focal, spec, rows)
        late += got["seconds"] > aim * slower or got["silence"] > slower
        texts = []
        for name, (value, low, high, n) in got["found"].items():
            ends = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
            texts.append(f"{name} {value:.4g}{ends}, {n:,}")
        seconds = f"{got['seconds']:8.1f}{got['seconds'] / slower:8.1f}{aim:6}{got['silence']:10.2f}"
        print(f"{spec:40}{seconds}   {'; '.join(texts)}", flush=True)
    return int(late > 0)


def main() -> int:
    given = arguments(__doc__, quick=False, shapes=SHAPES, only=[*FITS], commands=[str], focal=False, rows=50_000)
    if given.focal:
        return focal_fits(given.rows)
    if given.commands is not None:
        return commands(given.commands)
    print(machine("torch", "sklearn", "torchmetrics", "probmetrics"))
    for n, k in (map(int, shape.split("x")) for shape in given.shapes):
        n = n // 10 if given.quick else n
        truth = child(exact, n, k)
        print(f"\n{n:,} x {k}, float32, one thread; exact T = {truth:.9f}\n")
        print(f"{'method':22}{'seconds':>10}{'x calib':>9}{'extra MB':>10}{'T':>13}{'relative error':>16}")
        least: dict[str, float] = {}
        for name in given.only:
            grid = name.startswith("grid")
            if grid and n * k > 2e7:
                continue
            got = attempt(measured, name, n, k)
            if isinstance(got, str):
                print(f"{name:22}{got}")
                continue
            least[name] = got["seconds"]
            base = least.get("grid: calib" if grid else "calib", float("nan"))
            error = "" if grid else f"{abs(got['value'] / truth - 1):.1e}"
            numbers = f"{got['seconds']:10.3f}{got['seconds'] / base:9.1f}{got['mb']:10.0f}{got['value']:13.9f}"
            print(f"{name:22}{numbers}{error:>16}", flush=True)
        for text, ours, theirs, aim in (
            ("fit_scaler, with checks, interval and figure", "calib: fit_scaler", "scikit-learn", ""),
            ("temperature", "calib", "scikit-learn", TARGETS.get(k, "")),
            ("100-point ECE grid", "grid: calib", "grid: torchmetrics", 100),
        ):
            if {ours, theirs} <= least.keys():
                times = f"{least[theirs] / least[ours]:.2f} times as fast"
                print(f"{text}, against {theirs}: {times}{f' (aim {aim})' if aim else ''}")
    print()
    return commands([])


if __name__ == "__main__":
    sys.exit(main())
