"""Focal temperature against an independent computation on all rows of recorded outputs.

    python benchmarks/focal_rows.py FILE ...            the files: .npz with logits or probabilities, and labels
    python benchmarks/focal_rows.py FILE ... --rows 2000     so many rows of each half, instead of all

Half of the rows fit, the other half is the held-out file. scipy minimises the NLL of φ_γ(softmax(z / T)), written out
here, over (T, γ); walks along the profile to the ends of both sets; and fits each of five folds for the gain. The
published grid is computed point by point by NLL and by AdaECE. The recommendation is compared with the paired table
that `calib scale` prints below it. Exits with 1 where anything differs.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _harness import CALIB, ROOT, arguments, machine, run

from calibcli import calibrators
from calibcli.calibrators.fitting import fold_of_rows
from calibcli.calibrators.focal import GAMMAS
from calibcli.scores.predictions import Predictions

sys.path.append(str(ROOT / "tests"))
from test_scalers import Slow

Array = np.ndarray[Any, Any]
TEMPERATURES = np.arange(1, 101) / 20  # 0.05, 0.1, ..., 5


def read(file: str, rows: int) -> tuple[Predictions, Predictions]:
    """Return the even and the odd rows of a file, as float64 logits."""
    with np.load(file) as saved:
        arrays = [saved[name] for name in saved.files]
    scores = next(a for a in arrays if a.ndim == 2 and a.shape[1] > 1).astype(np.float64)
    labels = next(a for a in arrays if a.dtype.kind in "iu" and a.size == len(scores)).reshape(-1)
    if scores.min() >= 0 and scores.max() <= 1 + 1e-6:
        scores = np.log(np.clip(scores, 1e-30, 1))
    return Predictions.of(scores[::2][:rows], labels[::2][:rows]), Predictions.of(
        scores[1::2][:rows], labels[1::2][:rows]
    )


def focal_map(scores: Array, t: float, gamma: float) -> Array:
    """φ_γ(softmax(scores / t)): h(p) / Σ h(p), h(p) = p / ((1 - p)^γ - γ p ln p (1 - p)^(γ - 1))."""
    z = scores / t
    z -= z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    p = np.exp(log_p)
    q = np.maximum(np.where(p > 0.5, -np.expm1(log_p), 1 - p), 1e-300)
    log_h = log_p - gamma * np.log(q) - np.log1p(-gamma * p * log_p / q)
    log_h -= log_h.max(axis=1, keepdims=True)
    h = np.exp(log_h)
    return h / h.sum(axis=1, keepdims=True)


def adaptive_error(confidence: Array, right: Array, bins: int = 15) -> float:
    """AdaECE: rows in the order of their confidence, cut into parts of the same size."""
    order = np.argsort(confidence, kind="stable")
    parts = zip(np.array_split(confidence[order], bins), np.array_split(right[order], bins), strict=True)
    return float(sum(abs(c.sum() - r.sum()) for c, r in parts) / len(right))


def grid(p: Predictions) -> dict[str, Array]:
    """Both objectives at every point, (temperatures, gammas)."""
    right, own = p.logits.argmax(axis=1) == p.labels, (np.arange(p.n), p.labels)
    tables = {"nll": np.empty((len(TEMPERATURES), len(GAMMAS))), "adaece": np.empty((len(TEMPERATURES), len(GAMMAS)))}
    for i, t in enumerate(TEMPERATURES):
        for j, gamma in enumerate(GAMMAS):
            q = focal_map(p.logits, t, gamma)
            tables["nll"][i, j] = -np.log(np.maximum(q[own], 1e-300)).mean()
            tables["adaece"][i, j] = adaptive_error(q.max(axis=1), right)
    return tables


def compared(p: Predictions) -> list[tuple[str, float, float, float]]:
    """Each number of the fit, its independent value, and how far apart they may be."""
    fit, slow = calibrators.fit("focal_temperature", p), Slow(p)
    t, gamma, gain = fit.estimates
    best = slow.optimum()
    lines = [("T", t.value, math.exp(-best[0]), 1e-4), ("gamma", gamma.value, best[1], 1e-4)]
    if gamma.reason:  # at the end of its range: only T has an interval there
        ends_of = {"T": (0, [-math.log(t.high), -math.log(t.low)])}
    else:
        ends_of = {"T": (0, [-math.log(t.high), -math.log(t.low)]), "gamma": (1, [gamma.low, gamma.high])}
    for name, (which, ends) in ends_of.items():
        width = ends[1] - ends[0]
        for side, mine, theirs in zip(("low", "high"), ends, slow.ends(which, best), strict=True):
            lines.append((f"{'ln 1/T' if which == 0 else name}, {side} end", mine, theirs, 2e-3 * width))
    folds, gains = fold_of_rows(p, 5, 0), np.empty(p.n)
    for k in range(5):
        inside, outside = Slow(p.take(folds != k)), Slow(p.take(folds == k))
        gains[folds == k] = outside.rows(inside.plain(), 0.0) - outside.rows(*inside.optimum())
    se = gains.std(ddof=1) / math.sqrt(p.n)
    lines += [("gain", gain.value, gains.mean(), 1e-6), ("gain, standard error", gain.se, se, 1e-6)]
    for objective, table in grid(p).items():
        setting = "grid=komisarenko" if objective == "nll" else f"objective={objective}"
        found = calibrators.fit(f"focal_temperature:{setting}", p).estimates
        i, j = divmod(int(table.argmin()), len(GAMMAS))
        lines += [(f"grid by {objective}: T", found[0].value, TEMPERATURES[i], 1e-9)]
        lines += [(f"grid by {objective}: gamma", found[1].value, GAMMAS[j], 1e-9)]
    return lines


def recommended(halves: tuple[Predictions, Predictions]) -> tuple[str, str]:
    """What `calib scale` recommends of the two methods, and what its paired table says."""
    with tempfile.TemporaryDirectory() as folder:
        for name, p in zip(("fit", "test"), halves, strict=True):
            np.savez(Path(folder) / f"{name}.npz", logits=p.logits, labels=p.labels)
        line = ["scale", "fit.npz", "--test", "test.npz", "--json", "--metric", "nll"]
        line += ["--method", "temperature", "--method", "focal-temperature"]
        result = json.loads(run([*CALIB, *line], cwd=folder).text)
    [(value, low, high)] = [
        (e["value"], e["low"], e["high"])
        for e in result["estimates"]
        if e["name"] == "nll_difference" and any(m in e["scope"] for m in ("=temperature", "=focal_temperature"))
    ]
    best = "focal_temperature" if result["facts"]["method"] == "focal_temperature" else "temperature"
    table = "focal_temperature" if best == "focal_temperature" and low > 0 else "temperature"
    print(f"    paired difference to the best, {best}: {value:.5f} [{low:.5f}, {high:.5f}]")
    return result["facts"].get("recommended", result["facts"]["method"]), table


def main() -> None:
    options = arguments(__doc__, "files", rows=1_000_000)
    print(machine(), end="\n\n")
    wrong = 0
    for file in options.files:
        halves = read(file, options.rows)
        print(f"{Path(file).name}: {halves[0].n:,} x {halves[0].k} of either half")
        for part, p in zip(("even rows", "odd rows"), halves, strict=True):
            print(f"  {part}")
            for name, mine, theirs, tolerance in compared(p):
                differs = not abs(mine - theirs) <= tolerance
                wrong += differs
                print(f"    {name:<26} {mine:>13.8g} {theirs:>13.8g}{'   DIFFERS' * differs}", flush=True)
        for order in (halves, halves[::-1]):
            given, table = recommended(order)
            wrong += given != table
            print(f"    recommended: {given}; by the table: {table}{'   DIFFERS' * (given != table)}", flush=True)
    print(f"\n{wrong} numbers differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
