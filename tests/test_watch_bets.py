"""E-processes of the watch against plain loops; and that they are what they claim to be."""

from __future__ import annotations

import itertools
import math
import sys
from types import ModuleType

import numpy as np
import pytest
from benchmark_scripts import script

from calibcli.watch import _bets as bets
from calibcli.watch._bets import L, Stream, WatchedRule, joined, tables, thresholds

RNG = np.random.default_rng(0)
BINS = 4
ERROR = WatchedRule(rule="ece <= 0.1", metric="ece", side="max", limit=0.1, low=-1.0, high=1.0, bins=BINS)
MEAN = WatchedRule(rule="accuracy >= 0.8", metric="accuracy", side="min", limit=0.8, low=0.0, high=1.0)
ZERO = WatchedRule(rule="|gap| <= 0.1", metric="confidence_gap", side="zero", limit=0.1, low=-0.9, high=1.0)


def rows(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, BINS, n), RNG.uniform(-1, 1, n)


def table_of(watched: WatchedRule, cell: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return tables(watched, cell, value, None, watched.size)


def product(gains: np.ndarray, room: float, width: float) -> list[float]:
    """Wealth per stake, row by row."""
    return [math.prod(1 + stake * g for g in gains) for stake in bets.stakes(room, width)]


def test_a_mean_is_bet_on_row_by_row() -> None:
    value = (RNG.random(50) < 0.7).astype(float)
    stream = Stream.begin(MEAN)
    fail, passed = table_of(MEAN, np.zeros(50, np.int64), value)
    stream.add(fail, passed, np.array([[50.0, value.sum()]]))
    found = stream.log_evidence()
    assert math.exp(found["fail"]) == pytest.approx(np.mean(product(0.8 - value, 0.2, 1)), rel=1e-9)
    assert math.exp(found["pass"]) == pytest.approx(np.mean(product(value - 0.8, 0.8, 1)), rel=1e-9)
    assert stream.value() == pytest.approx(value.mean())


def test_a_distance_from_zero_needs_both_sides_to_pass_and_one_to_fail() -> None:
    value = np.clip(0.3 + 0.2 * RNG.standard_normal(80), -0.9, 1)
    fail, passed = table_of(ZERO, np.zeros(80, np.int64), value)
    stream = Stream.begin(ZERO)
    stream.add(fail, passed, np.array([[80.0, value.sum()]]))
    found = stream.log_evidence()
    above, below = product(value - 0.1, 1.0, 1.9), product(-0.1 - value, 0.9 + 0.2 - 0.0, 1.9)
    assert math.exp(found["fail"]) == pytest.approx(np.mean(above) / 2, rel=1e-3)
    assert np.mean(below) < 1e-3 * np.mean(above)
    inside = [np.mean(product(0.1 - value, 0.9, 1.9)), np.mean(product(value + 0.1, 0.8, 1.9))]
    assert math.exp(found["pass"]) == pytest.approx(min(inside), rel=1e-9)


def test_pass_of_a_calibration_error_is_the_least_wealth_over_all_signs() -> None:
    cell, value = rows()
    _, passed = table_of(ERROR, cell, value)
    least = []
    for stake in bets.stakes(0.9, 2.0):
        every = [
            math.prod(1 + stake * (0.1 - signs[b] * v) for b, v in zip(cell, value, strict=True))
            for signs in itertools.product((1, -1), repeat=BINS)
        ]
        least.append(min(every))
    assert math.exp(bets.evidence_below(passed)) == pytest.approx(np.mean(least), rel=1e-9)


def test_fail_of_a_calibration_error_mixes_signs_that_were_chosen_before() -> None:
    cell, value = rows()
    fail, _ = table_of(ERROR, cell, value)
    gaps = np.array([1.0, -2.0, 0.5, -0.1])

    def wealth(signs: tuple[int, ...]) -> list[float]:
        gains = np.array([signs[b] * v - 0.1 for b, v in zip(cell, value, strict=True)])
        return product(gains, 1.1, 2.0)

    one = np.mean([wealth((s,) * BINS) for s in (1, -1)])
    turning = np.mean([wealth((s,) * t + (-s,) * (BINS - t)) for s in (1, -1) for t in range(1, BINS)])
    seen = np.mean(wealth((1, -1, 1, -1)))
    expected = np.dot(bets.SHARES, [one, turning, seen])
    assert math.exp(bets.evidence_above(fail, bets.wealth_on_seen_signs(fail, gaps))) == pytest.approx(
        expected, rel=1e-9
    )
    tonight = bets.strategy_wealth(fail, gaps)
    assert math.exp(bets.log_mean(tonight, bets.strategy_shares(BINS, L))) == pytest.approx(expected, rel=1e-9)


def test_drift_sums_over_the_nights_that_it_may_have_begun_at() -> None:
    nights = RNG.standard_normal((6, 3))
    level = np.full(3, -np.inf)
    for number, night in enumerate(nights, start=364):  # over the end of a year
        level = bets.add_start(level, number, night)
    shares = [1 / 730, 1 / 730, *[1 / (365 * 6)] * 4]
    by_hand = [sum(shares[start] * math.exp(nights[start:, s].sum()) for start in range(6)) for s in range(3)]
    assert np.exp(level) == pytest.approx(by_hand)


def test_what_is_bet_on_drift_in_all_nights_is_the_first_wealth() -> None:
    shares = np.exp([bets.log_share_starting(night) for night in range(1, 365 * 200 + 1)])
    assert shares[:365].sum() == pytest.approx(0.5)
    assert 0.99 < shares.sum() < 1
    for night in (1, 364, 365, 366, 730, 10_000):
        assert math.exp(bets.log_share_unstarted(night)) == pytest.approx(1 - shares[:night].sum())


def test_a_night_counts_on_after_it_was_written_and_in_what_was_joined() -> None:
    stream = Stream.begin(MEAN)
    fail, passed = table_of(MEAN, np.zeros(3, np.int64), np.ones(3))
    for _ in range(4):
        stream.add(fail, passed, np.array([[3.0, 3.0]]))
        stream.close()
    assert stream.night == 5
    assert joined(Stream.begin(MEAN), stream).night == 5


def test_every_gain_leaves_something_whatever_the_row() -> None:
    """At both ends of what a row may be, and where the limit is at an end."""
    for watched in (MEAN, ZERO, ERROR, WatchedRule(**{**vars(MEAN), "limit": 1e-9, "side": "max"})):
        ends = np.array([watched.low, watched.high])
        for table in table_of(watched, np.zeros(2, np.int64), ends):
            assert np.isfinite(table).all()


@pytest.mark.parametrize("watched", [ERROR, MEAN, ZERO], ids=lambda w: w.metric)
def test_wealth_does_not_grow_in_the_mean_where_the_claim_is_true(watched: WatchedRule) -> None:
    """Exactly: over the two outcomes of a row at the limit, for each stake and side."""
    m = watched.limit
    for claims in watched.claims:
        for sign, at in claims:
            room = at - watched.low if sign > 0 else watched.high - at
            p = (at - watched.low) / (watched.high - watched.low)  # of the upper end, so that the mean is the limit
            for stake in bets.stakes(room, watched.high - watched.low):
                gains = [1 + stake * sign * (end - at) for end in (watched.high, watched.low)]
                assert p * gains[0] + (1 - p) * gains[1] == pytest.approx(1)
    assert m > 0


def test_parts_of_a_night_in_any_order_are_one_stream() -> None:
    for watched in (ERROR, MEAN, ZERO):
        parts = []
        for _ in range(3):
            cell, value = rows(40)
            cell = cell % watched.size
            value = np.clip(value, watched.low, watched.high)
            sums = np.stack([np.bincount(cell, w, watched.size) for w in (None, value)], axis=-1).astype(float)
            parts.append((*table_of(watched, cell, value), sums))
        whole = Stream.begin(watched)
        for part in parts:
            whole.add(*part)
        for order in itertools.permutations(range(3)):
            merged = Stream.begin(watched)
            for i in order:
                one = Stream.begin(watched)
                one.add(*parts[i])
                merged = joined(merged, one)
            for name, array in merged.arrays().items():
                assert np.allclose(array, whole.arrays()[name], rtol=1e-12, equal_nan=True), name


def test_thresholds_share_alpha_among_slices_where_something_is_called_wrong() -> None:
    sliced = WatchedRule(**{**vars(MEAN), "by": "site", "values": ["a", "b", "c", "d"]})
    found = thresholds(sliced, 0.05, 0.05)
    assert {k: round(math.exp(v)) for k, v in found.items()} == {"fail": 80, "pass": 20, "drift": 80}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("watch")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["saturated, 2 % errors", "alternating gaps", "groups"])
def test_looking_every_night_is_wrong_as_rarely_as_it_claims(bench: ModuleType, name: str) -> None:
    populations = sys.modules["_populations"]
    p = populations.made(name, 3) if name != "groups" else populations.grouped(3, 20, "shift", np.random.default_rng(0))
    for metric in ("ece", "accuracy"):
        pool = bench.pool(p, metric)
        first = bench.nights(pool.watched, bench.drawn(pool, 100, np.random.default_rng(1)), 100, 40)
        assert bench.worst({name: (100, *bench._counts(first))}) == []


def test_the_benchmark_sees_a_threshold_that_is_too_low(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """E of 2 in place of 20 is reached far more often than in 5 % of runs."""
    monkeypatch.setattr(bench, "thresholds", lambda *_: {"fail": math.log(2), "pass": math.log(2), "drift": 99.0})
    pool = bench.pool(sys.modules["_populations"].made("calibrated", 3), "accuracy")
    first = bench.nights(pool.watched, bench.drawn(pool, 100, np.random.default_rng(1)), 100, 40)
    assert bench.worst({"too low": (100, *bench._counts(first))})


def test_it_is_right_about_as_soon_as_it_says(bench: ModuleType) -> None:
    """PASS of a calibrated model, limit .05, by about 1,100 rows; a drift to an ECE of .066 in a few nights."""
    rule = WatchedRule(**{**vars(ERROR), "limit": 0.05, "bins": 15})
    c, hit = bench.told(0, False)(np.random.default_rng(0), 40, 2000)
    first = bench.nights(rule, bench.recorded(rule, c, hit, 100), 40, 20)
    assert 7 <= np.median(first["pass"]) <= 15
    rng = np.random.default_rng(1)
    at = rng.integers(0, len(bench.C), (20, 30 * 500))
    hit = rng.random(at.shape) < bench.C[at]
    sharp = bench.softmax(2 * bench.Z).max(axis=1)
    c = np.where(np.arange(at.shape[1]) >= 15 * 500, sharp[at], bench.C[at])
    rule = WatchedRule(**{**vars(ERROR), "limit": 0.03, "bins": 15})
    first = bench.nights(rule, bench.recorded(rule, c, hit, 500), 20, 30)
    assert np.median(first["drift"]) - 15 <= 6
