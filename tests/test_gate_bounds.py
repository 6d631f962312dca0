"""The ECE bounds: a worked vector, a slow oracle, invariances, and their coverage by simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from populations import ece_bounds

import calibcli
from calibcli.core.statistics import (
    bisect,
    normal_quantile,
    normal_share,
    normals,
    score_bound,
    student_quantile,
    unseen_reach,
)
from calibcli.gate.judging import possible
from calibcli.metrics import METRICS, Sample, paired
from calibcli.metrics import binned_bounds as sharp
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.registry import few_carry
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.columns import bin_index, columns
from calibcli.scores.predictions import Predictions

Z = 1.6448536269514722


def vector(n: int, m: float) -> tuple[Any, Any]:
    i = np.arange(n)
    confidence = 0.5 + 0.5 * (i + 0.5) / n
    return confidence, ((7919 * i) % n + 0.5) / n < m * confidence


def rows(seed: int, n: int = 400) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    confidence = rng.beta(5, 2, n)
    return confidence, rng.random(n) < confidence**1.2


@pytest.mark.parametrize(
    ("n", "m", "value", "lower", "upper", "floor"),
    [
        (2000, 1.0, 0.00611, 0.0, 0.02188, 0.01994),
        (2000, 0.9, 0.07650, 0.0430, 0.09405, 0.01994),
        (20000, 0.9, 0.07490, 0.0643, 0.08028, 0.00630),
    ],
)
def test_vector(n: int, m: float, value: float, lower: float, upper: float, floor: float) -> None:
    bounds = ece_bounds(*vector(n, m), method="score")
    assert round(bounds.value, 5) == value
    assert round(bounds.upper, 5) == upper
    assert round(bounds.floor, 5) == floor
    assert bounds.lower == pytest.approx(lower, abs=2e-4)
    assert (bounds.n, bounds.n_eff, bounds.groups) == (n, pytest.approx(n), None)


def oracle(confidence: Any, correct: Any, bins: int) -> tuple[float, float, float]:
    """E, U and floor by loops over rows."""
    n = len(confidence)
    sums, variance = [0.0] * bins, [0.0] * bins
    square = 0.0
    for c, y in zip(confidence, correct):
        b = next(k for k in range(bins) if c <= (k + 1) / bins)
        sums[b] += c - y
        variance[b] += c * (1 - c)
        square += (c - y) ** 2 / n
    value = sum(abs(s) for s in sums) / n
    a = max(Z**2, -math.log(0.05)) / n
    upper = value + (a + math.sqrt(a * a + 4 * Z**2 / n * square)) / 2
    return value, min(1.0, upper), math.sqrt(2 / math.pi) / n * sum(math.sqrt(v) for v in variance)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_against_loops(bins: int) -> None:
    confidence, correct = rows(bins)
    bounds = ece_bounds(confidence, correct, bins=bins, method="score")
    assert (bounds.value, bounds.upper, bounds.floor) == pytest.approx(oracle(confidence, correct, bins), rel=1e-10)


def test_lower_bound_of_one_bin_is_the_normal_quantile() -> None:
    confidence, correct = np.full(500, 0.9), np.arange(500) < 300
    bounds = ece_bounds(confidence, correct, method="score")
    spread = math.sqrt(((confidence - correct) ** 2).sum()) / 500
    assert bounds.value == pytest.approx(0.3)
    assert bounds.lower == pytest.approx(0.3 - 1.959963984540054 * spread, rel=1e-10)


@pytest.mark.parametrize("scale", [1.0, 1e-60])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.9999])
def test_quantiles_of_norms_are_those_of_all_draws(level: float, scale: float) -> None:
    """In float32 and of filled bins alone, of variances that float32 does not hold as well."""
    variance = np.array([0, 0, 3.0, 0, 1e-3, 2.0, 0]) * scale
    norms = np.abs(normals((sharp.DRAWS, 7), 4)) @ np.sqrt(variance)
    wanted = np.quantile(norms, level)
    if level == 0.9999:
        wanted = np.quantile(norms, 0.5) + math.sqrt(variance.sum()) * normal_quantile(level)
    assert sharp.norm_quantile(variance, level, 4) == pytest.approx(wanted, rel=1e-6)


def test_lower_bounds_are_the_better_of_two_also_where_one_is_not_simulated() -> None:
    rng, simulated = np.random.default_rng(5), set[bool]()
    for _ in range(40):
        n, bins = int(rng.integers(20, 2000)), int(rng.integers(2, 20))
        confidence = rng.beta(rng.uniform(0.5, 5), rng.uniform(0.5, 3), n)
        wave = rng.choice([0.0, 0.3]) * np.sign(np.sin(confidence * 40))  # over in one bin and under in the next
        hit = rng.random(n) < confidence ** rng.uniform(0.3, 3) + wave
        view = BinaryOutcomes(confidence, 1 - confidence, hit, None, False, None)
        table = view.width_bins(bins, "right")
        variance, d = np.maximum(table.gap_variance, table.null_variance), table.weighted_gap
        for alpha in (0.05, 0.6):  # a level of the simulation above that of the quantile under calibration, and below
            whole = np.abs(d).sum() - sharp.norm_quantile(variance, 1 - 0.2 * alpha, 0)
            signs = float(sharp.signed(d, variance, 0.8 * alpha))
            lower = sharp.table_bounds(view, table, alpha=alpha).lower
            assert lower == pytest.approx(max(0.0, whole, signs), abs=1e-12)
            simulated.add(whole > max(0.0, signs))
    assert simulated == {True, False}


def test_counts_are_repetition() -> None:
    confidence, correct = rows(3)
    times = np.random.default_rng(0).integers(0, 4, len(confidence))
    repeated = ece_bounds(np.repeat(confidence, times), np.repeat(correct, times))
    weighted = ece_bounds(confidence, correct, weights=times, weight_kind="count")
    for key in ("value", "lower", "upper", "floor", "n", "n_eff"):
        assert getattr(weighted, key) == pytest.approx(getattr(repeated, key), rel=1e-9), key


def test_sampling_weights_cost_rows() -> None:
    confidence, correct = rows(4)
    plain = ece_bounds(confidence, correct)
    same = ece_bounds(confidence, correct, weights=np.full(len(confidence), 7.0))
    assert (same.value, same.lower, same.upper) == pytest.approx((plain.value, plain.lower, plain.upper))
    skewed = ece_bounds(confidence, correct, weights=np.random.default_rng(1).pareto(2, len(confidence)))
    assert skewed.n_eff < 0.8 * len(confidence)
    assert skewed.upper - skewed.value > 1.1 * (plain.upper - plain.value)


def test_groups_of_one_row_are_no_groups() -> None:
    confidence, correct = rows(5, 2000)
    plain = ece_bounds(confidence, correct, method="score")
    single = ece_bounds(confidence, correct, groups=np.arange(2000))
    assert (single.value, single.lower, single.upper) == pytest.approx(
        (plain.value, plain.lower, plain.upper), abs=1e-4
    )


def test_copied_rows_in_groups_count_once() -> None:
    confidence, correct = rows(6)
    plain = ece_bounds(confidence, correct, method="score")
    copied = ece_bounds(np.repeat(confidence, 9), np.repeat(correct, 9), groups=np.repeat(np.arange(len(correct)), 9))
    assert copied.upper == pytest.approx(plain.upper, rel=1e-2)
    assert copied.lower == pytest.approx(plain.lower, abs=2e-3)


def test_family_widens_the_lower_bound_only() -> None:
    confidence, correct = vector(2000, 0.8)
    bounds = [ece_bounds(confidence, correct, family=m) for m in (1, 10, 20, 21, 40, 1000)]
    lowers = [b.lower for b in bounds]
    assert lowers == sorted(lowers, reverse=True)
    assert len({b.upper for b in bounds}) == 1


def test_bounds_of_one_bin_of_grouped_rows_in_closed_form() -> None:
    """Sixty groups of two rows: G / (G - 1), Student's t with 59 degrees, and alpha shared among five claims."""
    rng, family, alpha = np.random.default_rng(8), 5, 0.05
    member, confidence = np.repeat(np.arange(60), 2), np.full(120, 0.95)
    correct = np.repeat(rng.random(60) < 0.5, 2)
    bounds = ece_bounds(confidence, correct, groups=member, family=family, alpha=alpha)
    sums = np.bincount(member, (confidence - correct) / 120)
    variance = float(sums @ sums) * 60 / 59
    value, level = abs(sums.sum()), 1 - alpha / family
    above, below = student_quantile(1 - alpha, 59), student_quantile(level, 59)
    assert bounds.value == pytest.approx(value)
    assert bounds.upper == pytest.approx(min(1.0, score_bound(value, above, 1 / 60, variance)))
    reach = math.sqrt(variance) * normal_quantile((1 + level) / 2) * below / normal_quantile(level)
    assert bounds.lower == pytest.approx(value - reach)
    assert bounds.lower > 0


def test_the_spread_of_a_bin_is_counted_on_where_ten_rows_hold_it() -> None:
    """Less its own standard error and the square of the gap; nothing of fewer than ten effective rows."""
    spread, d, unit = np.array([0.04, 0.04, 0.04]), np.array([0.1, 0.1, 0.0]), 0.01
    fourth = spread**2 / np.array([9.9, 10.1, 100.0])
    expected = [0.0, math.sqrt(0.04 - math.sqrt(fourth[1]) - 0.1**2 * unit), math.sqrt(0.04 - math.sqrt(fourth[2]))]
    assert sharp._known_deviation(d, spread, fourth, unit).tolist() == pytest.approx(expected)


def test_seed_moves_only_the_lower_bound_and_little() -> None:
    confidence, correct = vector(2000, 0.9)
    one, two = (ece_bounds(confidence, correct, seed=seed, method="score") for seed in (1, 2))
    assert one.upper == two.upper
    assert one.lower != two.lower
    assert one.lower == pytest.approx(two.lower, abs=4e-4)


@pytest.mark.parametrize(
    "truth", [lambda c: c, lambda c: c**1.5, lambda c: c**0.7], ids=["calibrated", "over", "under"]
)
@pytest.mark.one_in(3)
def test_coverage(truth: Any) -> None:
    """Each bound misses the population ECE at most 6 % of the time."""
    rng = np.random.default_rng(7)
    population = rng.beta(6, 1.2, 200_000)
    gap = np.bincount(bin_index(population, 15), weights=population - truth(population), minlength=15) / len(population)
    ece, runs, above, below = np.abs(gap).sum(), 400, 0, 0
    for _ in range(runs):
        confidence = rng.beta(6, 1.2, 300)
        bounds = ece_bounds(confidence, rng.random(300) < truth(confidence))
        above += bounds.lower > ece + 1e-12
        below += bounds.upper < ece - 1e-12
    assert max(above, below) <= 0.06 * runs


def test_sharp_bounds_are_within_the_plain_ones_or_nearly() -> None:
    for n, m in ((2000, 1.0), (2000, 0.9), (20000, 0.9)):
        plain, sharp = ece_bounds(*vector(n, m), method="score"), ece_bounds(*vector(n, m), method="sharp")
        assert sharp.value == plain.value
        assert plain.value < sharp.upper <= plain.upper
        assert sharp.lower >= plain.lower - 0.03 * (plain.value - plain.lower)
    assert sharp.lower > plain.lower + 0.003  # every gap is surely there: two thirds of the distance
    calibrated = ece_bounds(*rows(1, 4000), method="sharp")
    assert calibrated.method == "sharp"
    grouped = ece_bounds(*rows(1), method="sharp", groups=np.arange(400) // 2)
    assert grouped.method == "score"


def test_sharp_upper_bound_against_a_search_over_gaps() -> None:
    """The dual bound of the quantile is below the normal quantile of E at random gaps of the same sum."""
    rng = np.random.default_rng(0)
    spread = rng.random(8) * 1e-5
    sigma = np.sqrt(spread)
    x, mean, variance, _ = sharp._folded()
    for tau in (0.002, 0.01, 0.03):
        found = sharp._quantile(sigma, spread, 0.0, Z).at(tau)
        assert found >= tau - Z * math.sqrt(spread.sum()) - 1e-12
        for _ in range(300):
            gap = rng.dirichlet(np.full(8, rng.choice([0.1, 1.0, 10.0]))) * tau
            at = gap / sigma
            centre = float(sigma @ np.interp(at, x, mean))
            assert found <= centre - Z * math.sqrt(float(spread @ np.interp(at, x, variance))) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("times", [0.7, 1.5, 4.0])
def test_sharp_coverage_where_it_is_hardest(times: float) -> None:
    """Gaps of a size with their noise, in every bin."""
    rng, n, runs = np.random.default_rng(5), 1000, 200
    population = rng.beta(6, 0.9, 100_000)
    index = bin_index(population, 15)
    mass = np.maximum(np.bincount(index, minlength=15) / 100_000, 1e-9)
    noise = np.sqrt(np.bincount(index, weights=population * (1 - population), minlength=15) / 100_000 / n) / mass
    chance = np.clip(population - (np.where(np.arange(15) % 2, 1, -1) * times * noise)[index], 0, 1)
    ece = np.abs(np.bincount(index, weights=population - chance, minlength=15)).sum() / 100_000
    above = below = 0
    for _ in range(runs):
        drawn = rng.integers(0, 100_000, n)
        bounds = ece_bounds(population[drawn], rng.random(n) < chance[drawn], method="sharp")
        above += bounds.lower > ece
        below += bounds.upper < ece
    assert max(above, below) <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


@pytest.mark.regression
@pytest.mark.parametrize("method", ["sharp", "score"])
@pytest.mark.parametrize("groups", [None, np.arange(400) // 4])
def test_bounds_at_a_level_of_one_half(method: Any, groups: Any) -> None:
    """Normal and Student's quantiles are both 0 there; it was a division by zero."""
    half, near = (ece_bounds(*rows(2), alpha=alpha, method=method, groups=groups) for alpha in (0.5, 0.4999))
    assert half.lower == pytest.approx(near.lower, abs=1e-4)
    assert half.value <= half.upper <= half.value + 0.01


@pytest.mark.regression
@pytest.mark.parametrize("alpha", [0.05, 0.15, 0.2, 0.25, 0.3, 0.4])
@pytest.mark.parametrize("gap", [0.3, 1.0])
def test_sharp_upper_bound_of_one_bin_keeps_its_level_at_every_alpha(alpha: float, gap: float) -> None:
    """Exactly: E = σ|gap + Z| of 200,000 rows. The bound was too low in 30 % at alpha = .25 and in 47 % at .4."""
    n, z = 200_000, normal_quantile(1 - alpha)
    spread = np.array([0.25 / n])
    sigma = math.sqrt(spread[0])
    length = unseen_reach(z, float(spread[0]), 1 / n, 1 / n)

    def upper(size: float) -> float:
        d = np.array([size * sigma])
        return sharp.sharp_upper(float(d[0]), float(d[0]) + length, d, spread, spread**2 / n, 1 / n, alpha) / sigma

    assert alpha <= 0.16 or all(upper(size) >= size for size in np.linspace(0, 4, 81))
    least = bisect(lambda size: gap - upper(size), 0.0, 5.0)[1] if upper(0.0) < gap else 0.0
    missed = normal_share(least - gap) - normal_share(-least - gap)
    assert (
        missed <= alpha + 0.012
    )  # at .16 and less a sharp bound rests on a normal quantile, which is an approximation


def test_sharp_upper_bound_up_to_alpha_16_is_sharp() -> None:
    d, spread = np.linspace(-2e-3, 3e-3, 12), np.full(12, 4e-6)
    for alpha, sharper in ((0.05, True), (1 - 0.84, True), (0.161, False), (0.5, False)):
        found = sharp.sharp_upper(float(np.abs(d).sum()), 0.03, d, spread, spread**2 / 50, 1e-3, alpha)
        assert (found < 0.03) == sharper, alpha


@pytest.mark.regression
@pytest.mark.parametrize("events", [1.0, 40.0], ids=["no bin has enough rows", "every bin has"])
def test_the_largest_passing_ece_is_the_one_whose_upper_bound_is_the_limit(events: float) -> None:
    """Where no bin had enough rows, an ECE of 0 passed any limit, and a plan asked for 10 rows instead of 300."""
    spread, length = np.array([2e-5, 4e-5, 1e-5]), 0.02
    arguments: Any = np.array([0.004, -0.01, 0.002]), spread, spread**2 / events, 1e-3, 0.05
    for limit in (0.001, 0.015, 0.03, 0.08):
        largest = sharp.sharp_largest(limit, length, *arguments)
        if largest < 0:  # not even an ECE of 0 passes
            assert sharp.sharp_upper(0.0, length, *arguments) > limit
        else:
            assert sharp.sharp_upper(largest, largest + length, *arguments) == pytest.approx(limit)


def test_chance_level_of_rows_in_groups_is_that_of_the_groups() -> None:
    """Rows that are written ten times each tell no more than once."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(200, 10)) * 2
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels, many = (shares.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1), np.repeat(np.arange(200), 10)
    once = calibcli.measure(logits, labels, "ece")["ece"]
    often = calibcli.measure(logits[many], labels[many], "ece", group=many)["ece"]
    assert once.null_high is not None
    assert often.null_high == pytest.approx(once.null_high, rel=0.1)
    assert calibcli.measure(logits[many], labels[many], "adaece", group=many)["adaece"].null is None


@pytest.mark.regression
def test_a_gate_is_not_run_where_few_rows_carry_the_weights() -> None:
    """Weights without variance: whatever the metric, no rule is judged, and `metrics` and `compare` say why."""
    rng = np.random.default_rng(2)
    p = rng.random(1000)
    y = (rng.random(1000) < p).astype(np.int64)
    heavy = rng.random(1000) ** (-1 / 1.2)
    better = {name: METRICS.entries[name].traits.better for name in METRICS.entries}
    limits = {
        "max": {name: max(possible(name, 2).low, 0) + 0.2 for name in better if better[name] == "lower"},
        "min": {name: 0.01 for name in better if better[name] == "higher"},
    }
    judged = calibcli.check(p, y, **limits, weights=heavy)
    assert {one.outcome for one in judged.checks} == {"not_run"}
    assert sum("of the weight" in one.message for one in judged.checks) > 15
    measured = calibcli.measure(p, y, "nll", weights=heavy)
    assert measured["nll"].low is not None
    assert any("of the weight" in note for note in measured.notes)
    again = calibcli.check(measured, max={"nll": 3.0})
    assert again.checks[0].outcome == "not_run"
    rows = Predictions.of(np.stack([1 - p, p], 1), y, kind="probabilities", weights=heavy)
    other = Predictions.of(np.stack([1 - p**2, p**2], 1), y, kind="probabilities", weights=heavy)
    samples = [Sample.of(columns(one), one) for one in (rows, other)]
    assert "of the weight" in str(paired.difference(*samples, METRICS.choose("brier"), 0.95))


@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("kind", ["equal", "exponential", "lognormal", "a twentieth", "counts", "groups"])
def test_honest_weights_are_judged(kind: str, n: int) -> None:
    rng = np.random.default_rng(1)
    weights: dict[str, np.ndarray] = {
        "equal": np.full(n, 3.0),
        "exponential": rng.exponential(size=n),
        "lognormal": np.exp(rng.normal(size=n)),
        "a twentieth": np.where(rng.random(n) < 0.05, 20.0, 1.0),
        "counts": np.round(rng.random(n) ** (-1 / 1.2)),
        "groups": np.where(np.arange(n) % 50 == 7, 2.0, 1.0) * rng.exponential(size=n),
    }
    group = np.arange(n) % 50 if kind == "groups" else None
    assert not few_carry(weights[kind], kind == "counts", group)
    p = rng.random(n)
    y = (rng.random(n) < p).astype(np.int64)
    how = {"weight_kind": "count"} if kind == "counts" else {} if group is None else {"group": group}
    judged = calibcli.check(p, y, max={"nll": 3.0, "ece": 0.9}, weights=weights[kind], **how)
    assert {one.outcome for one in judged.checks} == {"pass"}


@pytest.mark.regression
def test_weights_without_variance_pass_falsely_no_more_than_others() -> None:
    """A share of errors that rises with the weight, Pareto weights of index 1.2: 15 % without the rule."""
    rng = np.random.default_rng(4)
    weights = rng.random(400_000) ** (-1 / 1.2)
    rank = weights.argsort().argsort() / len(weights)
    wrong = rng.random(len(weights)) < np.where(rank > 0.999, 0.9, 0.05)
    truth, passed, judged = float(np.average(wrong, weights=weights)), 0, 0
    for _ in range(200):
        rows = rng.integers(0, len(weights), 5000)
        mean = WeightedMean(wrong[rows].astype(float), weights[rows], False, None)
        if mean.bounds(0.05, 0.0, 1.0)[1] < truth:
            passed += 1
            judged += not few_carry(weights[rows], False, None)
    assert passed > 20
    assert judged <= 10
