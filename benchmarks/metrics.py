"""Metric values against other tools: time, extra memory and error, from the same float32 logits in memory, one thread.

    python benchmarks/metrics.py [--sizes 10000x10 1000000x10 100000x1000 1000000x100] [--only WORD] [--rounds 1]

calib runs as its users call it, on arrays, with every check: `calibcli.measure(z, y)` is the default set with every
printed uncertainty, `measure(z, y, "ece")` and `check(z, y, max={"ece": .05})` one number with its own. Each other tool
computes its ECE with 15 bins alone, softmax and its own checks included. Every line is a process of its own: least CPU
seconds of three runs or more (with one thread) after a warm-up on few rows, growth of the peak resident memory beyond
data and imports, and the error of the ECE against float64 (computed in another process). The truth puts a
confidence into the bin (lo, hi]; tools that bin differently may differ by edge cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import child, installed, machine, options, peak, seconds

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


def _measure() -> Run:
    import calibcli

    return lambda z, y: float(calibcli.measure(z, y)["ece"].value or 0.0)


def _measure_ece() -> Run:
    import calibcli

    return lambda z, y: float(calibcli.measure(z, y, "ece")["ece"].value or 0.0)


def _check() -> Run:
    import calibcli

    return lambda z, y: float(calibcli.check(z, y, max={"ece": 0.05}).checks[0].estimate.value or 0.0)


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


OURS: dict[str, Callable[[], Run]] = {
    'measure(z, y, "ece")': _measure_ece,
    "check(z, y, max={'ece': .05})": _check,
    "measure(z, y): 13 with intervals": _measure,
}
PEERS: dict[str, tuple[str, Callable[[], Run]]] = {
    "torchmetrics ece": ("torchmetrics", _torchmetrics),
    "netcal ece": ("netcal", _netcal),
    "probmetrics ece": ("probmetrics", _probmetrics),
    "scikit-learn curve": ("sklearn", _sklearn),
    "relplot smECE": ("relplot", _relplot),
}
FEWEST, ENOUGH, MOST = 3, 0.5, 60.0  # runs; CPU seconds of all runs that are enough, and that end it


def measured(tool: str, n: int, k: int) -> Any:
    """One tool on one size, or the truth."""
    z, y = data(n, k)
    if tool == "truth":
        return truth(z, y)
    run = OURS[tool]() if tool in OURS else PEERS[tool][1]()
    value = run(z[:2000], y[:2000])
    before, times = peak(), []

    def once() -> None:
        nonlocal value
        value = run(z, y)

    while (len(times) < FEWEST or sum(times) < ENOUGH) and sum(times) < MOST:
        times.append(seconds(once))
    return {"seconds": min(times), "mb": peak() - before, "value": value}


def asked(tool: str, n: str, k: str) -> Any:
    """What a process of its own measures; a text where it fails."""
    try:
        return child(__file__, "--child", tool, n, k)
    except RuntimeError as error:
        return f"failed: {error}"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sizes", nargs="+", default=["10000x10", "1000000x10", "100000x1000", "1000000x100"])
    parser.add_argument("--only", nargs="+", default=[""], help="tools whose names hold one of these words")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each tool, by turns; the fastest counts")
    parser.add_argument("--child", nargs=3)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(args.child[0], int(args.child[1]), int(args.child[2]))))
        return
    print(machine("torch", *sorted({package for package, _ in PEERS.values()})))
    for size in args.sizes:
        n, k = size.split("x")
        print(f"\n{n} rows, {k} classes, float32, one thread")
        print(f"{'':36} {'CPU ms':>8} {'extra MB':>9} {'error':>9}")
        wanted, least = asked("truth", n, k), {}
        tools = [tool for tool in (*OURS, *PEERS) if any(word in tool for word in args.only)]
        there = [tool for tool in tools if tool in OURS or installed(PEERS[tool][0])]
        turns = [{tool: asked(tool, n, k) for tool in there} for _ in range(args.rounds)]
        for tool in tools:
            if tool not in there:
                print(f"{tool:36} not installed")
                continue
            rows = [turn[tool] for turn in turns]
            row = next((one for one in rows if isinstance(one, str)), None) or min(rows, key=lambda r: r["seconds"])
            if isinstance(row, str):
                print(f"{tool:36} {row}")
                continue
            least[tool] = row["seconds"]
            error = "" if tool == "relplot smECE" else f"{abs(row['value'] - wanted):9.1e}"
            print(f"{tool:36} {1000 * row['seconds']:8.1f} {row['mb']:9.0f} {error}", flush=True)
        for name in (tool for tool in OURS if tool in least):
            others = [f"{least[peer] / least[name]:.2f} {peer}" for peer in PEERS if peer in least]
            print(f"times as fast, {name}: {', '.join(others)}")


if __name__ == "__main__":
    main()
