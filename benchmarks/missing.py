"""Whether the smallest and the largest value of a gate hold the truth, where what is missing depends on the outcome.

    python benchmarks/missing.py [--runs 1000] [--seed 1]

Each run draws N rows of a model that is calibrated, over- or underconfident, of two or more classes, and takes labels,
classes or answers away, mostly where the prediction is wrong, or right, or its confidence is high, or at random. Two
things are checked for every metric of `METRICS`:

- the value on all rows, which a simulation knows, lies between the two ends that the gate computes without it;
- for accuracy, the gate is NOT RUN exactly where k of n + m and k + m of n + m lead to two verdicts, by the exact
  intervals of SciPy, and has the common verdict elsewhere.

Exit 1 if either fails once. How far the ends are apart is printed beside it, and how often a gate that leaves the rows
out would PASS though the accuracy of all rows is below the limit.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import _harness as bench
import numpy as np
from scipy.stats import beta

import calibcli
from calibcli.gate.config import Config, limit_rule
from calibcli.gate.judging import resolved
from calibcli.gate.sources import RecordedOutputs

Array = np.ndarray[Any, np.dtype[Any]]
METRICS = ("accuracy", "ece", "brier", "nll", "confidence_gap", "brier_top", "mean_confidence")
OF_ANSWERS = ("accuracy", "ece", "brier_top", "confidence_gap")
KINDS, DEPENDS = ("labels", "classes", "answers"), ("wrong", "right", "sure", "random")
ALPHA, ROUNDING = 0.05, 1e-9


class Drawn(NamedTuple):
    """Rows as they were (p, labels; confidence and hit), and which of them are missing, and how."""

    p: Array
    labels: Array
    missing: Array
    kind: str


def drawn(rng: np.random.Generator, n: int, k: int, kind: str, depends: str) -> Drawn:
    """Draw rows, of which up to a third are missing."""
    truth = rng.normal(size=(n, k)) * rng.uniform(1, 3)
    labels = (truth + rng.gumbel(size=(n, k))).argmax(axis=1)
    z = truth * rng.uniform(0.5, 2.0)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    hit = p.argmax(axis=1) == labels
    share = {"wrong": ~hit, "right": hit, "sure": p.max(axis=1) > np.median(p.max(axis=1)), "random": hit | ~hit}
    missing = rng.random(n) < np.where(share[depends], rng.uniform(0, 0.5), 0.02)
    missing[:2] = True
    missing[-2:] = False
    return Drawn(p, labels, missing, kind)


def rows_of(one: Drawn, whole: bool = False) -> Any:
    """Return the rows as a gate reads them; `whole`: as they were, nothing missing."""
    hit = one.p.argmax(axis=1) == one.labels
    if one.kind == "answers":
        confidence = one.p.max(axis=1)
        return calibcli.from_confidence(np.where(one.missing & (not whole), np.nan, confidence), hit)
    if whole:
        return calibcli.from_arrays(one.p, one.labels)
    odd = np.where(one.missing, np.nan if one.kind == "labels" else one.p.shape[1] + 3, one.labels)
    from calibcli.scores.from_arrays import checked

    return checked(one.p, odd, {}, judged=True)


def ends(rows: Any, metric: str) -> tuple[float, float] | str:
    """Return the smallest and the largest value that the gate computes; or why there is none."""
    source = RecordedOutputs(rows, Config())
    gate = limit_rule(f"{metric}=0.5", "max" if metric != "accuracy" else "min")
    rule = resolved(gate, source.better(gate), source.k)
    cases = source.cases(rule, source.whole, source.left(gate, ""), ALPHA, 1)
    return cases if isinstance(cases, str) else tuple(c.estimate.value for c in cases)  # type: ignore[return-value]


def verdict(k: int, n: int, limit: float) -> str:
    """Judge accuracy >= limit by the exact one-sided bounds of k of n."""
    low = beta.ppf(ALPHA, k, n - k + 1) if k else 0.0
    high = beta.ppf(1 - ALPHA, k + 1, n - k) if k < n else 1.0
    return "pass" if low >= limit else "fail" if high < limit else "inconclusive"


def expected(one: Drawn, limit: float) -> str:
    """The verdict that a gate must give."""
    n, m = len(one.labels), int(one.missing.sum())
    k = int((one.p.argmax(axis=1) == one.labels)[~one.missing].sum())
    low, high = verdict(k, n, limit), verdict(k + m, n, limit)
    return low if low == high else "not_run"


def faults(rng: np.random.Generator, number: int) -> tuple[list[str], list[float], bool | None]:
    """Return what is wrong in one run, the widths of the ends, and whether leaving rows out passes a model falsely."""
    n, k = int(rng.integers(250, 700)), (3, 2, 10)[number % 3]
    kind, depends = KINDS[number % 7 % 3], DEPENDS[number % 4]
    one = drawn(rng, n, k, kind, depends)
    rows, found, widths = rows_of(one), [], []
    metrics = OF_ANSWERS if kind == "answers" else METRICS
    truth = {e.name: e.value for e in calibcli.measure(rows_of(one, whole=True), *metrics).estimates}
    for metric in metrics:
        pair = ends(rows, metric)
        if isinstance(pair, str):
            if not (kind == "classes" and metric in ("brier", "nll") and k > 2):
                found.append(f"run {number} ({kind}, {depends}): {metric} {pair}")
            continue
        widths.append(pair[1] - pair[0])
        if not pair[0] - ROUNDING <= truth[metric] <= pair[1] + ROUNDING:
            found.append(f"run {number} ({kind}, {depends}): {metric} {truth[metric]:.5f} is outside {pair}")
    for limit in np.round(truth["accuracy"] + np.array([-0.25, -0.1, -0.04, 0.0, 0.1]), 3):
        if 0 < limit < 1:
            [check] = calibcli.check(rows, min={"accuracy": float(limit)}, min_n=1).checks
            if check.outcome != expected(one, float(limit)):
                found.append(f"run {number}: accuracy >= {limit} is {check.outcome}, not {expected(one, float(limit))}")
    limit = truth["accuracy"] + 0.02  # a model that is not good enough
    hits = int((one.p.argmax(axis=1) == one.labels)[~one.missing].sum())
    false = verdict(hits, int((~one.missing).sum()), limit) == "pass" if depends == "wrong" else None
    return found, widths, false


def main() -> int:
    args = bench.arguments(__doc__, runs=1000, seed=1)
    rng, found, widths, false = np.random.default_rng(args.seed), list[str](), list[float](), list[bool]()
    for number in range(args.runs):
        more, wide, passed = faults(rng, number)
        found, widths = found + more, widths + wide
        false += [] if passed is None else [passed]
    print(f"{args.runs:,} runs, {len(widths):,} pairs of ends: {len(found)} do not hold the value on all rows, or give")
    print(f"a wrong verdict; they are {np.median(widths):.3f} apart in the median, {max(widths):.3f} at most")
    print(
        f"where wrong predictions are missing, leaving them out passes {np.mean(false):.0%} of models that are .02 off"
    )
    print(*found[:20], sep="\n")
    print(bench.machine("scipy"))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
