"""Rows that are added more than once, in many ways of splitting, and honest rows that look alike: what a gate says.

    python benchmarks/repeated_parts.py [--sets 120] [--honest 200]

Three tables. Ways: 640 rows with an ECE between the bounds of one evaluation, repeated in fifty ways (ranks, orders,
sizes of batches, parts that overlap, ids): how many are NOT RUN, or noted, and how many a gate would judge in silence.
Limit: data sets whose accuracy is the limit of the gate, each evaluated by four ranks: PASS and FAIL of the merged
result, with what a gate without marks would say. Honest: rows of models with few distinct scores, in parts that share
no row: how many are accused, which none should be. Exit 1 if a way is silent, PASS is above 6 %, or a file is accused.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import _harness
import numpy as np

import calibcli
from calibcli import Accumulator

Floats, Ints = Any, Any
WORST = 0.06  # share of PASS at the limit


def drawn(n: int, k: int, rng: np.random.Generator, spread: float = 2.0) -> tuple[Floats, Ints]:
    """Logits (n, k) of a calibrated model, and labels."""
    z = rng.normal(0, spread, (n, k))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return z, (p.cumsum(axis=1) >= rng.random((n, 1))).argmax(axis=1)


def merged(z: Floats, y: Ints, parts: Sequence[Ints], batch: int, ids: bool = False, tree: bool = False) -> Accumulator:
    """The state of parts, each given by the indices of its rows and added batch by batch."""
    states = []
    for part in parts:
        state = Accumulator(kind="logits")
        for at in range(0, len(part), batch):
            rows = part[at : at + batch]
            state.update(z[rows], y[rows], **({"ids": rows} if ids else {}))
        states.append(state)
    while tree and len(states) > 1:
        states = [a.merge(*b) for a, *b in (states[i : i + 2] for i in range(0, len(states), 2))]
    return Accumulator(kind="logits").merge(*states)


def ways(n: int) -> Iterator[tuple[str, list[Ints], int, bool, bool]]:
    """Ways in which rows come twice: name, indices of each part, rows of a batch, whether ids are given, as a tree."""
    rng = np.random.default_rng(0)
    every = np.arange(n)
    for ranks, batch, order in itertools.product((2, 3, 4, 8, 16), (7, 64, n), ("same", "shuffled")):
        if order == "same" and batch == n:
            continue  # equal parts are refused
        parts = [rng.permutation(n) if order == "shuffled" else every for _ in range(ranks)]
        yield f"{ranks} ranks, batches of {batch}, {order}", parts, batch, False, ranks == 4
    for batch in (1, 50, n):
        yield (
            f"one part with all rows twice, batches of {batch}",
            [rng.permutation(np.r_[every, every])],
            batch,
            False,
            False,
        )
    for shared, batch in itertools.product((0.3, 0.4, 0.5, 0.7), (64, n)):
        cut, more = int(n * (1 + shared) / 2), int(n * (1 - shared) / 2)
        yield f"two parts that share {shared:.0%}, batches of {batch}", [every[:cut], every[more:]], batch, False, False
    for shared in (0.02, 0.05, 0.1, 0.2):
        cut = int(n * (1 - shared))
        parts = [every, rng.permutation(every)[: n - cut]]
        yield f"{shared:.0%} again in another part, with ids", parts, 64, True, False
    for ranks in (2, 3, 5, 8):
        yield f"{ranks} ranks with ids, shuffled", [rng.permutation(n) for _ in range(ranks)], 32, True, True
    for count in (3, 6):
        yield f"{count} random halves", [rng.permutation(n)[: n // 2] for _ in range(count)], 64, False, False
    for count in (2, 6, 12):
        parts = [rng.permutation(n)[: n // 2] for _ in range(count)]
        yield f"{count} random halves with ids", parts, 64, True, False
    padded = np.r_[every, every[:3]]
    yield "padding of a sampler with ids", [padded[i::4] for i in range(4)], 64, True, False


def rounded(z: Floats, digits: int) -> Floats:
    """Logits of rounded probabilities."""
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return np.log(np.maximum(np.round(p, digits), 10.0 ** -(digits + 1)))


def honest(rng: np.random.Generator) -> Iterator[tuple[str, Floats, Ints]]:
    """Rows of different samples that look alike."""
    n = int(rng.choice([400, 1500, 6000]))
    for digits in (1, 2, 3, 4):
        z, y = drawn(n, 2, rng)
        yield f"two columns with {digits} digits", rounded(z, digits), y
    z, y = drawn(n, 4, rng)
    yield "four columns with 2 digits", rounded(z, 2), y
    for bins in (30, 100):
        rank = np.argsort(np.argsort(z[:, 0], kind="stable"), kind="stable")
        q = np.clip((rank * bins // n + 0.5) / bins, 0.01, 0.99)
        yield f"{bins} equal groups", np.log(np.column_stack([1 - q, q])), (rng.random(n) < q).astype(int)
    q = rng.choice([0.55, 0.65, 0.75, 0.85, 0.95], n)
    yield "five levels", np.log(np.column_stack([1 - q, q])), (rng.random(n) < q).astype(int)
    q = rng.dirichlet(np.ones(50))[rng.integers(0, 50, n)] + 0.01
    yield "leaves of a tree", np.log(np.column_stack([1 - q / 2, q / 2])), (rng.random(n) < q / 2).astype(int)
    x = rng.integers(0, 3, (n, 6))  # six questions of three answers
    m = (x - 1) @ np.array([1.0, 0.7, 0.5, 0.4, 0.3, 0.2])
    yield "few features", np.column_stack([-m / 2, m / 2]), (rng.random(n) < 1 / (1 + np.exp(-m))).astype(int)
    x = (rng.random((n, 12)) < 0.4).astype(int)
    m = (x - 0.4) @ rng.normal(0, 1, 12)
    yield (
        "labels of few features",
        np.column_stack([-m / 2, m / 2]),
        (m + np.sin(x @ np.arange(12) * 7.3) > 0).astype(int),
    )
    votes = rng.binomial(100, rng.beta(0.5, 0.5, n)) / 100
    yield (
        "a hundred trees",
        np.log(np.column_stack([1.005 - votes, votes + 0.005])),
        (rng.random(n) < votes).astype(int),
    )
    z, y = drawn(n, 10, rng, 40.0)
    yield "saturated", z.astype(np.float16).astype(float), y
    z, y = drawn(n, 3, rng)
    twins = rng.integers(0, n // 50, n // 20)  # a population in which some items are many
    z[: len(twins)], y[: len(twins)] = z[twins], y[twins]
    yield "a population with doubles", z, y
    order = np.argsort(z[:, 0], kind="stable")
    yield "sorted rows, dealt out", rounded(z, 2)[order], y[order]


def verdict(state: Accumulator, silent: bool = False, **rule: Any) -> tuple[str, bool]:
    """The verdict of a gate on a state, and whether repeated rows are noted."""
    result = state.result(*(metric for limits in rule.values() for metric in limits))
    said = any(word in note for note in result.notes for word in ("are copies", "more than once", "left out"))
    if silent:
        result = dataclasses.replace(result, facts={**result.facts, "repeated": ""})
    return calibcli.check(result, **rule).checks[0].outcome, said


def of_ways(n: int, show: Callable[[str], Any]) -> tuple[int, int, int]:
    """Number of ways that are NOT RUN, only noted, or silent."""
    z, y = drawn(n, 4, np.random.default_rng(1))
    counts = [0, 0, 0]
    for name, parts, batch, ids, tree in ways(n):
        outcome, said = verdict(merged(z, y, parts, batch, ids, tree), max={"ece": 0.06})
        kind = 0 if outcome == "not_run" else 1 if said else 2
        counts[kind] += 1
        if kind:
            show(f"  {'noted' if kind == 1 else 'silent'}: {name}, {outcome}")
    return counts[0], counts[1], counts[2]


def at_limit(sets: int, n: int = 640, ranks: int = 4) -> dict[str, list[int]]:
    """PASS and FAIL at the true accuracy: of one evaluation, of all ranks without marks, and as it is."""
    found = {"once": [0, 0], "unnoticed": [0, 0], "merged": [0, 0]}
    rng = np.random.default_rng(2)
    for _ in range(sets):
        z, _ = drawn(n, 4, rng)
        right = rng.random(n) < 0.8
        y = np.where(right, z.argmax(axis=1), (z.argmax(axis=1) + 1) % 4)
        parts = [rng.permutation(n) for _ in range(ranks)]
        states = {"once": merged(z, y, parts[:1], 64), "merged": merged(z, y, parts, 64)}
        for name, state in [*states.items(), ("unnoticed", states["merged"])]:
            outcome, _ = verdict(state, name == "unnoticed", min={"accuracy": 0.8})
            found[name][0] += outcome == "pass"
            found[name][1] += outcome == "fail"
    return found


def accused(sets: int, show: Callable[[str], Any]) -> tuple[int, int]:
    """Honest files that are accused, and how many there are."""
    rng, wrong, count = np.random.default_rng(3), 0, 0
    while count < sets:
        for name, z, y in honest(rng):
            ranks = int(rng.choice([1, 2, 4, 9]))
            batch = int(rng.choice([64, 500, 10_000]))
            outcome, said = verdict(
                merged(z, y, [np.arange(len(y))[i::ranks] for i in range(ranks)], batch), max={"ece": 0.5}
            )
            count += 1
            if outcome == "not_run" or (said and name != "labels of few features"):  # a note there asks a question
                wrong += 1
                show(f"  accused: {name}, {len(y)} rows, {ranks} parts, {outcome}")
    return wrong, count


def main(sets: int, files: int, show: Callable[[str], Any] = print) -> int:
    not_run, noted, silent = of_ways(640, show)
    show(f"{not_run + noted + silent} ways of repeating rows: NOT RUN {not_run}, noted {noted}, silent {silent}")
    found = at_limit(sets)
    for name, (passed, failed) in found.items():
        show(f"{sets} data sets at the limit, {name}: PASS {passed}, FAIL {failed}")
    wrong, count = accused(files, show)
    show(f"{count} honest files: accused {wrong}")
    return int(silent > 0 or found["merged"][0] > WORST * sets or wrong > 0)


if __name__ == "__main__":
    given = _harness.arguments(__doc__, sets=120, honest=200)
    sys.exit(main(int(given.sets), int(given.honest)))
