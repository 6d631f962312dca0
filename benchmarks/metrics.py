"""Metric values against other tools: time, extra memory and error, from the same float32 logits in memory, one thread.

    python benchmarks/metrics.py [--sizes 10000x10 1000000x10 100000x1000 1000000x100] [--only WORD] [--rounds 1]

calib runs as its users call it, on arrays, with every check: `calibcli.measure(z, y)` is the default set with every
printed uncertainty, `measure(z, y, "ece")` and `check(z, y, max={"ece": .05})` one number with its own. Each other tool
computes its ECE with 15 bins alone, softmax and its own checks included. Every line is a process of its own: least CPU
seconds of three runs or more (with one thread) after a warm-up on few rows, growth of the peak resident memory beyond
data and imports, and the error of the ECE against float64 (computed in another process). The truth puts a
confidence into the bin (lo, hi]; tools that bin differently may differ by edge cases. --only has words in names of
tools, and of --rounds processes of each tool, by turns, the fastest counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import arguments, attempt, cost, installed, machine

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


def truth(n: int, k: int) -> float:
    """ECE in float64, block by block."""
    z, y = data(n, k)
    d = np.zeros(BINS)
    for start in range(0, len(z), 20_000):
        block = z[start : start + 20_000].astype(np.float64)
        c = 1 / np.exp(block - block.max(axis=1, keepdims=True)).sum(axis=1)
        hit = block.argmax(axis=1) == y[start : start + 20_000]
        d += np.bincount(np.clip(np.ceil(c * BINS) - 1, 0, BINS - 1).astype(int), c - hit, BINS)
    return float(np.abs(d).sum()) / len(z)


def measure(*specs: str) -> Run:
    import calibcli

    return lambda z, y: float(calibcli.measure(z, y, *specs)["ece"].value or 0.0)


def check() -> Run:
    import calibcli

    return lambda z, y: float(calibcli.check(z, y, max={"ece": 0.05}).checks[0].estimate.value or 0.0)


def torchmetrics() -> Run:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error as error

    torch.set_num_threads(1)
    return lambda z, y: float(error(torch.from_numpy(z), torch.from_numpy(y), z.shape[1], n_bins=BINS, norm="l1"))


def sklearn() -> Run:
    import torch
    from sklearn.calibration import calibration_curve

    torch.set_num_threads(1)

    def ece(z: Any, y: Any) -> float:  # it has no ECE: its reliability curve of the top label
        p = torch.softmax(torch.from_numpy(z), dim=1).numpy()
        c, hit = p.max(axis=1), p.argmax(axis=1) == y
        share, mean = calibration_curve(hit, c, n_bins=BINS)
        count = np.histogram(c, np.linspace(0, 1, BINS + 1))[0]
        return float(np.abs(share - mean) @ count[count > 0]) / len(y)

    return ece


def relplot() -> Run:
    from relplot.metrics import multiclass_logits_to_confidences, smECE

    return lambda z, y: float(smECE(*multiclass_logits_to_confidences(z, y)))


OURS: dict[str, Callable[[], Run]] = {
    'measure(z, y, "ece")': lambda: measure("ece"),
    "check(z, y, max={'ece': .05})": check,
    "measure(z, y): 13 with intervals": measure,
}
PEERS: dict[str, Callable[[], Run]] = {
    "torchmetrics ece": torchmetrics,
    "scikit-learn curve": sklearn,
    "relplot smECE": relplot,
}


def measured(tool: str, n: int, k: int) -> dict[str, Any]:
    """One tool on one size."""
    z, y = data(n, k)
    run = {**OURS, **PEERS}[tool]()
    run(z[:2000], y[:2000])
    return cost(lambda: run(z, y))


def main() -> None:
    sizes = ["10000x10", "1000000x10", "100000x1000", "1000000x100"]
    given = arguments(__doc__, sizes=sizes, only=[""], rounds=1)
    modules = {tool: make.__name__ for tool, make in PEERS.items()}
    print(machine("torch", *sorted(modules.values())))
    tools = [tool for tool in (*OURS, *PEERS) if any(word in tool for word in given.only)]
    there = [tool for tool in tools if tool in OURS or installed(modules[tool])]
    for size in given.sizes:
        n, k = map(int, size.split("x"))
        print(f"\n{n} rows, {k} classes, float32, one thread\n{'':36} {'CPU ms':>8} {'extra MB':>9} {'error':>9}")
        wanted, least = attempt(truth, n, k), {}
        turns = [{tool: attempt(measured, tool, n, k) for tool in there} for _ in range(given.rounds)]
        for tool in tools:
            rows = [turn.get(tool, "not installed") for turn in turns]
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
