"""How often files whose rows are not what they seem are told, and how often honest files are suspected.

    python benchmarks/misread_rows.py [--files 200] [--honest 8000] [--seed 1]

Broken files: labels shuffled, sorted by class, shifted by 1 to 10 rows, from the last to the first, or in the order of
row numbers sorted as texts; and logs of an evaluation in which samples failed, which a gate must not pass over. Their
models know something: logits are normal with a standard deviation of 1.5 to 3.5 times their truth, labels are drawn
from the truth. Honest files: three quarters such models (calibrated, over- and underconfident, with rare classes, rows
sorted by class or in slow drifts), one quarter models that know nothing (a noisy prior, an overfitted regression, votes
of trees and of neighbours, a constant), and logs without failures.

A broken file counts as told if it is refused, or measured under a note that its labels are unrelated to its
predictions. Exit 1 if an honest file is suspected, or fewer than 95 % of a kind are told at n >= 500 or K >= 3.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import calibcli
from calibcli.core.errors import CalibError

Array = np.ndarray[Any, np.dtype[Any]]
Model = tuple[Array, Array]
SIZES, CLASSES = (100, 500, 2000), (2, 3, 10)
TOLD = 0.95
LETTERS = "ABCDEFGHIJ"


def informed(rng: np.random.Generator, n: int, k: int, sharp: float = 0.0) -> Model:
    """Return logits (N, K) of a model that is sharper than its truth, and labels drawn from the truth."""
    truth = rng.normal(size=(n, k)) * rng.uniform(1.5, 3.5)
    if k > 3 and rng.random() < 0.5:
        truth[:, rng.integers(k)] -= 2  # a rare class
    labels = (truth + rng.gumbel(size=(n, k))).argmax(axis=1)
    return truth * (sharp or rng.uniform(1.0, 2.5)), labels


def drifting(rng: np.random.Generator, n: int, k: int) -> Model:
    """Return logits and labels of rows that resemble their neighbours."""
    slow = np.cumsum(rng.normal(size=(n, k)), axis=0)
    truth = 2 * (slow - slow.mean(axis=0)) / slow.std(axis=0)
    return truth * rng.uniform(0.6, 2.0), (truth + rng.gumbel(size=(n, k))).argmax(axis=1)


def uninformed(rng: np.random.Generator, n: int, k: int) -> Model:
    """Return logits of a model that knows nothing of single rows, and labels."""
    shares = rng.dirichlet(np.full(k, 4.0))
    labels = rng.choice(k, n, p=shares)
    if rng.random() < 0.4:
        labels = np.sort(labels)
    kind = rng.integers(5)
    if kind == 0:
        return np.log(shares) + rng.normal(size=(n, k)) * rng.uniform(0.05, 0.3), labels
    if kind == 1:  # a regression on as many noisy inputs as a tenth of its rows
        return np.log(shares) + rng.normal(size=(n, k)) * 0.45, labels
    if kind == 2:
        return np.tile(np.log(shares) * rng.uniform(0.5, 2.0), (n, 1)), labels
    votes = 100 if kind == 3 else 15  # trees, or neighbours
    counts = rng.multinomial(votes, shares, n) + (5.0 if kind == 3 else 0.5)
    slow = kind == 4 and rng.random() < 0.5
    return np.log(counts / counts.sum(axis=1, keepdims=True))[:: -1 if slow else 1], labels


def honest(rng: np.random.Generator, number: int, n: int, k: int) -> Model:
    if number % 4 == 3:
        return uninformed(rng, n, k)
    z, y = drifting(rng, n, k) if number % 4 == 2 else informed(rng, n, k, rng.uniform(0.4, 2.5))
    if rng.random() < 0.3:
        order = np.argsort(y, kind="stable")
        z, y = z[order], y[order]
    return z, y


def _texts(n: int) -> Array:
    return np.argsort(np.arange(n).astype(str), kind="stable")


BROKEN: dict[str, Callable[[np.random.Generator, Array], Array]] = {
    "shuffled": lambda rng, y: rng.permutation(y),
    "sorted by class": lambda rng, y: np.sort(y),
    "shifted": lambda rng, y: np.roll(y, int(rng.integers(1, 11)) * (1 if rng.random() < 0.5 else -1)),
    "reversed": lambda rng, y: y[::-1],
    "sorted as texts": lambda rng, y: y[_texts(len(y))] if rng.random() < 0.5 else y[np.argsort(_texts(len(y)))],
}


def told(z: Array, y: Array) -> bool:
    """Return whether the file is refused for its labels, or measured under the note; one column of two classes."""
    scores = z[:, 1] - z[:, 0] if z.shape[1] == 2 else z
    try:
        found = calibcli.from_arrays(scores, y, kind="logits")
    except CalibError as error:
        if "unrelated" not in error.problem:
            raise
        return True
    return found.record.unrelated


def log(folder: Path, z: Array, y: Array, failed: Sequence[int]) -> Path:
    """Write a log of Inspect in which some samples failed."""
    letters, samples = LETTERS[: z.shape[1]], []
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    for i, row in enumerate(p):
        one: dict[str, Any] = {"id": f"q{i}", "epoch": 1, "choices": list(letters), "target": letters[y[i]]}
        if i in failed:
            samples.append(one | {"output": {"choices": []}, "scores": {}, "error": {"message": "timeout"}})
            continue
        top = [{"token": c, "logprob": math.log(v + 1e-9)} for c, v in zip(letters, row)]
        best = top[int(row.argmax())]
        tokens = {"content": [best | {"top_logprobs": top}]}
        choice = {"message": {"content": best["token"]}, "logprobs": tokens}
        verdict = {"value": "CI"[best["token"] != letters[y[i]]], "answer": best["token"]}
        samples.append(one | {"output": {"choices": [choice]}, "scores": {"choice": verdict}})
    head = {"version": 2, "status": "success", "eval": {"task": "quiz"}, "plan": {"config": {}}}
    (folder / "log.txt").write_text(json.dumps(head | {"samples": samples}))
    return folder / "log.txt"


def gate_stops(folder: Path, z: Array, y: Array, failed: Sequence[int]) -> bool:
    """Return whether a gate is not run where samples without an answer decide: at the accuracy if all were wrong."""
    answered = np.delete(np.arange(len(y)), failed)
    limit = float((z.argmax(axis=1) == y)[answered].sum() / len(y))
    result = calibcli.check(log(folder, z, y, failed), min={"accuracy": limit}, min_n=50)
    return result.checks[0].outcome == "not_run" and "no answer" in result.checks[0].message


def run(
    files: int, honest_files: int, seed: int, sizes: Sequence[int] = SIZES, classes: Sequence[int] = CLASSES
) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every promise is kept."""
    rng, lines, kept = np.random.default_rng(seed), ["kind              K      n  told"], True
    cells = [(k, n) for k in classes for n in sizes]
    for kind, broken in BROKEN.items():
        for k, n in cells:
            hits = 0
            for _ in range(files):
                z, y = informed(rng, n, k)
                hits += told(z, broken(rng, y))
            judged = n >= 500 or k >= 3
            kept &= not judged or hits >= TOLD * files
            lines.append(f"{kind:<16} {k:>2} {n:>6}  {hits / files:.3f}{'' if judged else '  (not judged)'}")
    with tempfile.TemporaryDirectory() as name:
        few = max(1, files // 10)
        stopped, wrongly = 0, 0
        for _ in range(few):
            z, y = informed(rng, 120, 4)
            stopped += gate_stops(
                Path(name), z, y, [int(i) for i in rng.choice(120, rng.integers(1, 40), replace=False)]
            )
            wrongly += gate_stops(Path(name), z, y, [])
        lines += [
            f"failed samples    4    120  {stopped / few:.3f}",
            f"no failed sample  4    120  {wrongly / few:.3f}",
        ]
        kept &= stopped == few and not wrongly
    suspected = 0
    for number in range(honest_files):
        k, n = cells[(number // 4) % len(cells)]
        z, y = honest(rng, number, n, k)
        suspected += told(z, y)
    lines.append(f"honest: {suspected} of {honest_files} suspected; {honest_files // 4} of models that know nothing")
    return lines, kept and not suspected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--honest", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines, kept = run(options.files, options.honest, options.seed)
    print("\n".join(lines))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
