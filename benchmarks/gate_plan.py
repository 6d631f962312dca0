"""Rows that a gate needs: those that `calib plan` states, against simulation; and what sharp bounds of the ECE save.

    python benchmarks/gate_plan.py --runs 600                 # plans: some minutes on one core
    python benchmarks/gate_plan.py --part power --runs 300    # chances of verdicts and rows, old against new
    python benchmarks/gate_plan.py --part metrics --runs 2500 # every mean that is planned, PASS and FAIL, at 80 %

Models have confidences spread as Beta(6, 6 (1 - a) / a) with mean a = .87 and gaps of one size: `same` sign in every
bin, or of `alternating` sign from bin to bin. `score` are the plain bounds (`--bounds score`). `sharp before` had, for
FAIL, the smallest gaps inside a confidence set (Berger and Boos 1994); `sharp` has signs predicted from the rows.
The last lines of the first table of `power` put the limit at the truth: every verdict counted there is false.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from _harness import arguments, head, row
from _populations import drawn, ece_bounds, scaled, softmax
from scipy.stats import binom

import calibcli
from calibcli.core.statistics import normal_quantile
from calibcli.gate.check import Baselines, check
from calibcli.gate.config import Config, Gate
from calibcli.gate.options import Assumptions
from calibcli.gate.plan import EcePopulation, plan, rows_for, synthetic_model
from calibcli.gate.sources import RecordedOutputs
from calibcli.metrics import METRICS
from calibcli.scores.columns import bin_index
from calibcli.scores.predictions import Predictions

BINS, ACCURACY, ALPHA, DRAWS = 15, 0.87, 0.05, 4_000
PLANS = ((0.05, 0.0, 0.8), (0.03, 0.0, 0.8), (0.02, 0.0, 0.9), (0.06, 0.03, 0.8), (0.03, 0.08, 0.8))
"""Limit, truth and the chance of the verdict."""
FAILS = (
    ("same", 0.03, 0.01, 2_000), ("same", 0.08, 0.05, 1_000), ("same", 0.08, 0.05, 2_000),
    ("same", 0.075, 0.06, 10_000), ("alternating", 0.03, 0.01, 2_000), ("alternating", 0.08, 0.03, 2_000),
    ("same", 0.03, None, 2_000), ("alternating", 0.08, None, 1_000), ("same", 0.0, None, 1_000),
)  # fmt: skip
"""Signs of the gaps, their size, limit (or the truth) and rows; then the size, limit and rows of models that pass."""
PASSES = ((0.0, 0.02, 3_000), (0.0, 0.02, 4_000), (0.0, 0.02, 5_000), (0.01, 0.03, 3_000), (0.03, None, 2_000))
LIMITS = (0.01, 0.02, 0.03, 0.05)


def draw(signs: str, gap: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences (n,) and the chances of a hit."""
    c = rng.beta(6, 6 * (1 - ACCURACY) / ACCURACY, n)
    each = gap if signs == "same" else np.where(bin_index(c, BINS) % 2, gap, -gap)
    return c, np.clip(c - each, 0, 1)


def planned(gate: Gate, **assumed: float) -> float:
    value = plan([gate], Assumptions(**assumed)).estimates[0].value
    assert value is not None
    return value


def enclosed(shares: list[float], power: float, exactly: str = "") -> str:
    within = "within 10 %" if shares[0] <= power <= shares[2] else "NOT within 10 %"
    return " ".join(f"{s:.3f}" for s in shares) + f"{exactly}; {within}"


def plans(runs: int) -> None:
    """The planned n: the chance of the verdict at .9 n, n and 1.1 n must enclose the stated one."""
    print("Rows that `calib plan` states, and the simulated chance of the verdict at 0.9 n, n, 1.1 n")
    for limit, truth, power in PLANS:
        stated = planned(Gate(metric="ece", max=limit), truth=truth, power=power)
        rng, shares = np.random.default_rng(0), []
        for n in (round(f * stated) for f in (0.9, 1.0, 1.1)):
            reached = 0
            for _ in range(runs):
                c, chance = draw("same", truth, n, rng)
                bounds = ece_bounds(c, rng.random(n) < chance)
                reached += bounds.upper <= limit if truth <= limit else bounds.lower > limit
            shares.append(reached / runs)
        verdict = f"{'PASS' if truth <= limit else 'FAIL'} at {power:.0%}"
        print(f"  ece <= {limit}, truth {truth}, {verdict}: n = {stated:.0f}; {enclosed(shares, power)}", flush=True)


def share_of_accuracy(limit: float = 0.9, truth: float = 0.92) -> None:
    """Exactly: the fewest right rows that PASS, and the chance of as many."""
    stated = planned(Gate(metric="accuracy", min=limit), truth=truth)
    shares = []
    for n in (round(f * stated) for f in (0.9, 1.0, 1.1)):
        low, high = 0, n
        while high - low > 1:
            right = (low + high) // 2
            labels = (np.arange(n) >= right).astype(int)
            result = calibcli.check([[9.0, 0.0]] * n, labels, min={"accuracy": limit}, kind="logits")
            low, high = (low, right) if result.checks[0].outcome == "pass" else (right, high)
        shares.append(float(binom.sf(high - 1, n, truth)))
    print(f"  accuracy >= {limit}, truth {truth}, PASS at 80 %: n = {stated:.0f}; {enclosed(shares, 0.8, ' (exact)')}")


def temperature_off(runs: int) -> None:
    """T off by 1.3 at margin 0: the share of FAIL at the planned n (power 90 %) and at 2,000 rows."""
    print("\nTemperature off by 1.3 against a calibrated baseline, margin 0: share of FAIL")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.npz"
        gate = Gate(metric="temperature_gain", baseline=str(path), margin=0.0)
        config = Config(gates=(gate,))
        for accuracy in (0.70, 0.76, 0.82):
            stated, rng, shares = planned(gate, accuracy=accuracy, power=0.9), np.random.default_rng(0), []
            for n in (500, round(stated), 2000):
                failed = 0
                for _ in range(runs):
                    z = scaled(rng.standard_normal((n, 10)), accuracy)
                    labels = drawn(softmax(z), rng)
                    np.savez(path, logits=z, labels=labels)
                    source = RecordedOutputs(Predictions.of(1.3 * z, labels), config)
                    failed += check(source, config, Baselines(source, {})).checks[0].outcome == "fail"
                shares.append(f"n={n}: {failed / runs:.3f}")
            print(f"  accuracy {accuracy}: planned n = {stated:.0f}; " + ", ".join(shares), flush=True)


# what sharp bounds save


def true_ece(signs: str, gap: float) -> float:
    c, chance = draw(signs, gap, 1_000_000, np.random.default_rng(0))
    return float(np.abs(np.bincount(bin_index(c, BINS), c - chance, BINS)).sum() / len(c))


def sharp_before(c: np.ndarray, y: np.ndarray, normal: np.ndarray) -> float:
    """The former lower bound: .05 α on how small the gaps may be, and the quantile of E - ECE at those."""
    index, n, r = bin_index(c, BINS), len(c), c - y
    d = np.bincount(index, r, BINS) / n
    sigma = np.sqrt(np.maximum(np.bincount(index, r * r, BINS), np.bincount(index, c * (1 - c), BINS))) / n
    used = sigma > 0
    sigma, d = sigma[used], d[used]
    least = np.maximum(np.abs(d) / sigma - normal_quantile(1 - 0.05 * ALPHA / len(d) / 2), 0)
    excess = (np.abs(normal[:, used] + least) - least) @ sigma
    return max(0.0, float(np.abs(d).sum() - np.quantile(excess, 1 - 0.95 * ALPHA)))


def chances(signs: str, gap: float, at: float | None, n: int, runs: int, fail: bool) -> str:
    """A row: how often each bound has the verdict."""
    rng, truth, found = np.random.default_rng(n), true_ece(signs, gap), []
    normal = np.random.default_rng(1).standard_normal((DRAWS, BINS))
    limit = truth if at is None else at
    for _ in range(runs):
        c, chance = draw(signs, gap, n, rng)
        y = rng.random(n) < chance
        score, sharp = (ece_bounds(c, y, method=method) for method in ("score", "sharp"))
        if fail:
            lowers = score.lower, sharp_before(c, y, normal), sharp.lower
            found.append([lower > limit + 1e-12 for lower in lowers])
        else:
            found.append([score.upper <= limit, sharp.upper <= limit])
    shares = (f"{100 * share:.0f}" for share in np.mean(found, axis=0))
    name = [f"{signs}, {gap:g}, {truth:.3f}"] if fail else [f"{truth:.3f}"]
    return row(*name, "the truth" if at is None else at, n, *shares)


def power(runs: int) -> None:
    print(head("gaps, size, true ECE", "limit", "n", "FAIL %: score", "sharp before", "sharp"))
    for signs, gap, at, n in FAILS:
        print(chances(signs, gap, at, n, runs, fail=True), flush=True)
    print("\n" + head("true ECE", "limit", "n", "PASS %: score", "sharp"))
    for gap, at, n in PASSES:
        print(chances("same", gap, at, n, runs, fail=False), flush=True)
    print("\nRows for the verdict with a chance of 80 %: PASS of a perfect model, FAIL of one off by twice the limit\n")
    print(head("limit", "PASS: score", "sharp", "saved", "FAIL: score", "sharp", "saved"))
    for limit in LIMITS:
        cells: list[str] = []
        for side, truth in ((0, 0.0), (1, 2 * limit)):
            population, needed = EcePopulation.assumed(ACCURACY, truth, bins=BINS), []
            for method in ("score", "sharp"):
                chance = population.power(limit, alpha=ALPHA, method=method)  # type: ignore[arg-type]
                needed.append(rows_for(lambda n, chance=chance, side=side: chance(n)[side], 0.8))
            cells += [f"{needed[0]:,}", f"{needed[1]:,}", f"{100 * (1 - needed[1] / needed[0]):.0f} %"]
        print(row(limit, *cells), flush=True)


MEANS = {"accuracy": 0.0216, "nll": 0.046, "brier": 0.025, "brier_top": 0.0112, "confidence_gap": 0.0188}
"""Metrics that are means over all rows, with the distance of the limit from the truth."""


def metrics(runs: int) -> None:
    """The chance of the verdict at the planned n, on rows drawn from the synthetic population."""
    print("Chance of the true verdict at the n that is planned for 80 %, K = 10 (standard error", end=" ")
    print(f"{(0.16 / runs) ** 0.5:.3f})\n\n" + head("rule", "truth", "verdict", "n", "chance"))
    z = synthetic_model(ACCURACY, 10)[0].logits
    for name, off in MEANS.items():
        better = METRICS.entries[name].traits.better
        truth = plan([Gate(metric=name, limit=0.5)], Assumptions()).estimates[0].detail["truth"]
        assert isinstance(truth, float)
        for worse in (1, -1) if better != "zero" else (1,):
            gate = Gate(metric=name, limit=round(truth + worse * off * (1 if better != "higher" else -1), 4))
            found = plan([gate], Assumptions()).estimates[0]
            n, config, rng = round(found.value or 0), Config(gates=(gate,)), np.random.default_rng(0)
            verdict, reached = found.how.partition(" ")[0], 0
            for _ in range(runs):
                drawn_z = z[rng.integers(0, len(z), n)]
                rows = RecordedOutputs(Predictions.of(drawn_z, drawn(softmax(drawn_z), rng)), config)
                reached += check(rows, config).checks[0].outcome == verdict.lower()
            print(row(found.scope, f"{truth:.4f}", verdict, n, f"{reached / runs:.3f}"), flush=True)


if __name__ == "__main__":
    given = arguments(__doc__, part=("plans", "power", "metrics"), runs=600)
    if given.part == "power":
        power(given.runs)
    elif given.part == "metrics":
        metrics(given.runs)
    else:
        plans(given.runs)
        share_of_accuracy()
        temperature_off(given.runs // 2)
