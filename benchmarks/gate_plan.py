"""How often a gate is wrong: false PASS and false FAIL by simulation, and the sample sizes that `calib plan` states.

    python benchmarks/gate.py            # everything, about 20 minutes on one core
    python benchmarks/gate.py --short    # a minute

Every scenario has an exact population: rows are drawn from a pool of (reported confidence, true chance of being
right), so the population ECE is known. The limit is put at that ECE, where a wrong verdict is most likely: PASS there
is false (the limit is not undercut), and so is FAIL.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import binom, norm

from calibcli.columns import bin_index, columns
from calibcli.gate import baseline, paired
from calibcli.gate.config import Gate
from calibcli.gate.planning import Assumptions, plan
from calibcli.metrics.bounds import ece_bounds
from calibcli.predictions import Predictions

SIZES = (200, 500, 1000, 2000, 5000, 20000)
CLASSES = (2, 10, 100)
ACCURACY = {"spread": 0.8, "saturated": 0.985}
SHARPEN = {"calibrated": 1.0, "overconfident": 1.5, "underconfident": 1 / 1.5}
POOL = 100_000
ALPHA = 0.05
ALLOWED = 0.06


@dataclass(frozen=True, eq=False)
class Pool:
    """Reported confidences and the chance that the row is right."""

    name: str
    confidence: np.ndarray
    chance: np.ndarray

    @property
    def ece(self) -> float:
        gap = np.bincount(bin_index(self.confidence, 15), weights=self.confidence - self.chance, minlength=15)
        return float(np.abs(gap).sum() / len(self.confidence))

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.integers(0, len(self.confidence), n)
        return self.confidence[rows], rng.random(n) < self.chance[rows]

    def draw_groups(self, sizes: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Rows of a group share part of what decides their confidence and part of what decides their outcome."""
        order = np.argsort(self.confidence)
        member = np.repeat(np.arange(len(sizes)), sizes)

        def shared() -> np.ndarray:
            common, own = rng.standard_normal(len(sizes)), rng.standard_normal(len(member))
            return norm.cdf(math.sqrt(share) * common[member] + math.sqrt(1 - share) * own)

        rows = order[np.minimum((shared() * len(order)).astype(int), len(order) - 1)]
        return self.confidence[rows], shared() < self.chance[rows], member


def pools() -> Iterator[Pool]:
    """K classes x spread or saturated x calibrated, too sure, not sure enough."""
    for k in CLASSES:
        rng = np.random.default_rng(k)
        base = rng.standard_normal((POOL, k))
        for shape, accuracy in ACCURACY.items():
            z = scaled(base, accuracy)
            for model, factor in SHARPEN.items():
                yield Pool(f"K={k} {shape} {model}", softmax(factor * z).max(axis=1), softmax(z).max(axis=1))


def scaled(z: np.ndarray, accuracy: float) -> np.ndarray:
    """Logits scaled so that a calibrated model of them has this accuracy."""
    low, high = 0.0, 200.0
    for _ in range(40):
        middle = (low + high) / 2
        if softmax(middle * z[:20_000]).max(axis=1).mean() < accuracy:
            low = middle
        else:
            high = middle
    return low * z


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def exact(n: int, confidence: float, errors: float) -> tuple[float, float]:
    """False PASS and false FAIL of a constant confidence, summed over the binomial number of errors."""
    truth = abs(confidence - (1 - errors))
    wrong = np.arange(n + 1)
    weight = binom.pmf(wrong, n, errors)
    false_pass = false_fail = 0.0
    for k in wrong[weight > 1e-12]:
        bounds = ece_bounds(np.full(n, confidence), np.arange(n) >= k, alpha=ALPHA)
        false_pass += weight[k] * (bounds.upper <= truth + 1e-12)
        false_fail += weight[k] * (bounds.lower > truth + 1e-12)
    return float(false_pass), float(false_fail)


def simulated(
    draw: Callable[[np.random.Generator], tuple[np.ndarray, ...]],
    truth: float,
    runs: int,
    seed: int,
    method: str = "score",
) -> tuple[float, float]:
    """False PASS and false FAIL at the limit `truth` over `runs` data sets."""
    rng = np.random.default_rng(seed)
    false_pass = false_fail = 0
    for _ in range(runs):
        confidence, correct, *groups = draw(rng)
        if method == "score" and undecided(confidence, correct, truth):
            continue
        bounds = ece_bounds(confidence, correct, alpha=ALPHA, groups=groups[0] if groups else None, method=method)
        false_pass += bounds.upper <= truth
        false_fail += bounds.lower > truth + 1e-12
    return false_pass / runs, false_fail / runs


def undecided(confidence: np.ndarray, correct: np.ndarray, truth: float) -> bool:
    """Whether neither bound can be on the wrong side, without working them out: saves most of the time.

    U > E, and E - L is at least the mean of the norm whose quantile it is, for the smallest variances it may have.
    """
    index, n = bin_index(confidence, 15), len(confidence)
    value = np.abs(np.bincount(index, weights=confidence - correct, minlength=15)).sum() / n
    floor = math.sqrt(2 / math.pi) * np.sqrt(np.bincount(index, weights=confidence * (1 - confidence))).sum() / n
    return bool(truth <= value <= truth + floor)


def independent(runs: int, sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    for pool in pools():
        for n in sizes:
            yield f"{pool.name} n={n}", *simulated(partial(pool.draw, n), pool.ece, runs, n)


def constant(sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    for n in sizes:
        for confidence in (0.98, 0.985, 0.99, 0.995, 0.998, 0.999):
            for errors in (0.01, 0.015, 0.02, 0.03, 0.04, 0.05):
                yield f"constant {confidence} errors {errors:.1%} n={n}", *exact(n, confidence, errors)


def clustered(runs: int, sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    """Groups of 1 to 19 rows (mean 10) with weak and strong dependence."""
    for pool in pools():
        if "K=100" in pool.name:
            continue
        for n in sizes:
            for share in (0.2, 0.7):
                counts = 1 + np.arange(max(n // 10, 2)) % 19
                draw = partial(pool.draw_groups, counts, share)
                yield f"groups ({share:g}) {pool.name} n={n}", *simulated(draw, pool.ece, runs, n)


def families(runs: int, slices: int = 20) -> Iterator[tuple[str, float, float]]:
    """Slices judged together, each at its own limit or all calibrated at limit 0: the share of runs with any FAIL.

    The first number is the false PASS of the whole when one slice is at its limit and all others surely pass.
    """
    chosen = [p for p in pools() if p.name.startswith("K=10 ")]
    for pool in chosen:
        for n in (200, 1000):
            rng = np.random.default_rng(n)
            any_fail = passes = 0
            for _ in range(runs):
                failed = False
                for s in range(slices):
                    confidence, correct = pool.draw(n, rng)
                    bounds = ece_bounds(confidence, correct, alpha=ALPHA, family=slices)
                    failed |= bounds.lower > pool.ece + 1e-12
                    passes += (s == 0) * (bounds.upper <= pool.ece)
                any_fail += failed
            yield f"{slices} slices {pool.name} n={n} each", passes / runs, any_fail / runs
    n, confidence = 500, 0.99
    for errors in (0.01, 0.02, 0.05):
        truth, weight = abs(confidence - (1 - errors)), binom.pmf(np.arange(n + 1), n, errors)
        bad = sum(
            weight[k]
            for k in np.flatnonzero(weight > 1e-12)
            if ece_bounds(np.full(n, confidence), np.arange(n) >= k, family=slices).lower > truth + 1e-12
        )
        yield (
            f"{slices} slices constant .99 errors {errors:.0%} n={n} each (exact)",
            0.0,
            1 - (1 - float(bad)) ** slices,
        )


def vague_and_sharp(n: int, accuracy: float, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Log-probabilities of two calibrated models of the same rows, the second sharper, and the labels.

    The first knows the second's probabilities up to a swap of the two leading classes: it reports their average.
    """
    z = scaled(rng.standard_normal((n, classes)), accuracy)
    p = softmax(z)
    labels = np.minimum((p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), classes - 1)
    order = np.argsort(-p, axis=1)
    average = p.copy()
    rows, swap = np.arange(n), rng.random(n) < 0.3
    first, second = order[:, 0], order[:, 1]
    half = (p[rows, first] + p[rows, second]) / 2
    average[rows[swap], first[swap]] = half[swap]
    average[rows[swap], second[swap]] = half[swap]
    return np.log(average), np.log(p), labels


def against_baseline(runs: int, sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    """The recal_gain gate at margin 0, both models calibrated: PASS and FAIL, both claims about a difference of 0."""
    for classes in (2, 10):
        for accuracy in (0.70, 0.82):
            for n in (s for s in sizes if s <= 5000):
                rng = np.random.default_rng(n)
                outcomes = [baseline_gate(*vague_and_sharp(n, accuracy, classes, rng)) for _ in range(runs)]
                passed, failed = outcomes.count("pass") / runs, outcomes.count("fail") / runs
                yield f"baseline K={classes} accuracy {accuracy} n={n}", passed, failed


def baseline_gate(base: np.ndarray, new: np.ndarray, labels: np.ndarray) -> str:
    """Verdict of the recal_gain gate at margin 0."""
    gains = []
    for z in (base, new):
        predictions = Predictions.of(z, labels)
        gains.append(baseline.rows(predictions, columns(predictions, class_bins=()), "x").gain.astype(np.float64))
    moments = paired.mean(gains[1] - gains[0])
    half = baseline.half(moments, "recal_gain", ALPHA)
    return "pass" if moments.value + half <= 0 else "fail" if moments.value - half > 0 else "inconclusive"


def temperature_off(runs: int) -> None:
    """T off by 1.3 at margin 0: the share of FAIL at the planned n (power 90 %) and at 2,000 rows."""
    print("\nTemperature off by 1.3 against a calibrated baseline, margin 0: share of FAIL")
    for accuracy in (0.70, 0.76, 0.82):
        gate = Gate(metric="recal_gain", baseline="x", margin=0.0)
        planned = plan([gate], Assumptions(accuracy=accuracy, power=0.9)).estimates[0].value
        assert planned is not None
        rng = np.random.default_rng(0)
        shares = []
        for n in (500, round(planned), 2000):
            failed = 0
            for _ in range(runs):
                z = scaled(rng.standard_normal((n, 10)), accuracy)
                labels = np.minimum((softmax(z).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), 9)
                failed += baseline_gate(z, 1.3 * z, labels) == "fail"
            shares.append(f"n={n}: {failed / runs:.3f}")
        print(f"  accuracy {accuracy}: planned n = {planned:.0f}; " + ", ".join(shares), flush=True)


def plans(runs: int) -> None:
    """The planned n against simulation: the chance of the verdict at .9 n, n and 1.1 n must enclose the stated one."""
    print("\nRows that `calib plan` states, and the simulated chance of the verdict at 0.9 n, n, 1.1 n")
    for limit, truth, power in (
        (0.05, 0.0, 0.8),
        (0.03, 0.0, 0.8),
        (0.02, 0.0, 0.9),
        (0.06, 0.03, 0.8),
        (0.03, 0.08, 0.8),
    ):
        assumed = Assumptions(truth=truth, power=power)
        planned = plan([Gate(metric="ece", max=limit)], assumed).estimates[0].value
        assert planned is not None
        rng = np.random.default_rng(0)
        shares = []
        for n in (round(f * planned) for f in (0.9, 1.0, 1.1)):
            reached = 0
            for _ in range(runs):
                confidence = rng.beta(6, 6 * 0.13 / 0.87, n)
                bounds = ece_bounds(confidence, rng.random(n) < confidence - truth)
                reached += bounds.upper <= limit if truth <= limit else bounds.lower > limit
            shares.append(reached / runs)
        verdict = "PASS" if truth <= limit else "FAIL"
        within = "within 10 %" if shares[0] <= power <= shares[2] else "NOT within 10 %"
        text = " ".join(f"{s:.3f}" for s in shares)
        print(
            f"  ece <= {limit}, truth {truth}, {verdict} at {power:.0%}: n = {planned:.0f}; {text}; {within}",
            flush=True,
        )
    share_of_accuracy(runs)


def share_of_accuracy(runs: int) -> None:
    planned = plan([Gate(metric="accuracy", min=0.9)], Assumptions(truth=0.92)).estimates[0].value
    assert planned is not None
    z = norm.ppf(1 - ALPHA)
    shares = []
    for n in (round(f * planned) for f in (0.9, 1.0, 1.1)):
        right = np.arange(n + 1)
        p = right / n
        low = (p + z * z / (2 * n) - z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)
        shares.append(float(binom.pmf(right, n, 0.92)[low >= 0.9].sum()))
    text = " ".join(f"{s:.3f}" for s in shares)
    within = "within 10 %" if shares[0] <= 0.8 <= shares[2] else "NOT within 10 %"
    print(f"  accuracy >= 0.9, truth 0.92, PASS at 80 %: n = {planned:.0f}; {text} (exact); {within}")


def adversarial(runs: int, sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    """Sharp bounds where they are most at risk: every filled bin has a gap of x times its noise, signs alternate."""
    shapes = {"spread": (6.0, 0.9), "wide": (2.0, 1.0), "saturated": (30.0, 0.5)}
    for shape, (a, b) in shapes.items():
        confidence = np.random.default_rng(1).beta(a, b, POOL)
        index = bin_index(confidence, 15)
        mass = np.bincount(index, minlength=15) / POOL
        variance = np.bincount(index, weights=confidence * (1 - confidence), minlength=15) / POOL
        sign = np.where(np.arange(15) % 2, 1.0, -1.0)
        for n in (s for s in sizes if s <= 5000):
            for x in (0.3, 0.7, 1.0, 1.5, 2.5, 4.0):
                gap = sign * x * np.sqrt(variance / n) / np.maximum(mass, 1e-12)
                pool = Pool("", confidence, np.clip(confidence - gap[index], 0, 1))
                draw = partial(pool.draw, n)
                yield f"sharp {shape} x={x} n={n}", *simulated(draw, pool.ece, runs, n, "sharp")


def sharp_power(runs: int) -> None:
    """Share of PASS and FAIL with either kind of bounds on the same data."""
    print("\nPower of the score and the sharp bounds, accuracy .87")
    for limit, truth, sizes in (
        (0.02, 0.0, (3000, 4000, 5000)),
        (0.05, 0.08, (2000, 4000)),
        (0.06, 0.075, (10000, 20000)),
    ):
        for n in sizes:
            rng = np.random.default_rng(n)
            reached = {"score": 0, "sharp": 0}
            for _ in range(runs):
                confidence = rng.beta(6, 6 * 0.13 / 0.87, n)
                correct = rng.random(n) < confidence - truth
                for method in reached:
                    bounds = ece_bounds(confidence, correct, method=method)  # type: ignore[arg-type]
                    reached[method] += bounds.upper <= limit if truth <= limit else bounds.lower > limit
            verdict = "PASS" if truth <= limit else "FAIL"
            text = ", ".join(f"{method} {count / runs:.3f}" for method, count in reached.items())
            print(f"  ece <= {limit}, truth {truth}, n = {n}: {verdict} {text}", flush=True)


def report(title: str, rows: Iterator[tuple[str, float, float]], show: int = 4) -> list[tuple[str, float, float]]:
    """Print the worst scenarios; return all."""
    found = list(rows)
    print(f"\n{title}: {len(found)} scenarios")
    for name, column in (("false PASS", 1), ("false FAIL", 2)):
        worst = sorted(found, key=lambda r: -float(r[column]))[:show]
        print(f"  {name}: worst " + "; ".join(f"{r[column]:.3f} ({r[0]})" for r in worst), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    sizes = (200, 1000) if arguments.short else SIZES
    runs = 150 if arguments.short else arguments.runs
    parts: dict[str, Callable[[], object]] = {
        "constant": lambda: report("Constant confidence, exact", constant(sizes)),
        "independent": lambda: report("Independent rows", independent(runs, sizes)),
        "clustered": lambda: report("Clustered rows", clustered(runs, sizes)),
        "slices": lambda: report("Slices: any FAIL", families(runs // 3, 20)),
        "baseline": lambda: report("Baseline gate, both calibrated", against_baseline(runs, sizes)),
        "off": lambda: temperature_off(runs // 2),
        "plan": lambda: plans(runs),
        "sharp": lambda: (report("Sharp bounds", adversarial(runs // 2, sizes)), sharp_power(runs // 2)),
    }
    for name, part in parts.items():
        if arguments.only in ("", name):
            part()


if __name__ == "__main__":
    main()
