"""What rows that were not drawn may cost: every bound is at least as long as the dearest rows of the file say."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from calibcli.gate import baseline
from calibcli.metrics import METRICS, Sample, choose, columns_of
from calibcli.metrics._histogram_error import PlacedRows
from calibcli.metrics.binned_bounds import EVENTS, _known_deviation, table_bounds
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.smooth_ece import BEND, BEND_SLOPE
from calibcli.scores.predictions import Predictions

AT_ONCE = -math.log(0.05)
TWO_SIDED = ("nll", "nll_wrong", "temperature_gain", "cox_slope", "aurc")
Floats = np.ndarray[Any, np.dtype[np.float64]]


def rare_sure_rows(n: int = 300, rare: int = 3, margin: float = 100.0) -> tuple[Floats, Floats]:
    """Two classes: confidence .85, of which .15 are wrong, and a few rows of a large margin, all right."""
    z = np.zeros((n, 2))
    z[:, 0] = math.log(0.85 / 0.15)
    z[:rare, 0] = margin
    y = np.zeros(n, np.int64)
    y[rare : rare + round(0.15 * (n - rare))] = 1
    return z, y


def interval(z: Floats, y: Floats, spec: str, **fields: Any) -> tuple[float, float, float]:
    """Value and bounds, each at 95 %."""
    predictions = Predictions.of(z, y, **fields)
    [choice] = choose([spec], z.shape[1])
    statistic = choice(Sample.of(columns_of(predictions, [choice]), predictions))
    found = statistic.interval(0.9 if spec in TWO_SIDED else 0.95)
    assert found.high is not None, found.reason
    return statistic.value, found.low if found.low is not None else -math.inf, found.high


def test_nll_counts_the_dearest_label_of_the_file() -> None:
    z, y = rare_sure_rows()
    value, _, high = interval(z, y, "nll")
    assert high - value >= AT_ONCE * (100 - value) / 300
    wrong = int((y == 1).sum())
    value, _, high = interval(z, y, "nll_wrong")  # also rows that are right here may be among the wrong ones
    assert high - value >= AT_ONCE * (100 - value) / wrong


def test_a_gain_counts_the_dearest_label_of_the_file() -> None:
    value, _, high = interval(*rare_sure_rows(), "temperature_gain")
    assert high - value > 0.5  # three rows of 100 nats in 300 rows would save most of 1


def test_a_recalibrated_log_score_counts_the_dearest_label_of_the_file() -> None:
    value, _, high = interval(*rare_sure_rows(), "corp_mcb:score=log")
    assert high - value > 0.8


def test_a_coefficient_counts_the_row_that_draws_it_most() -> None:
    rng = np.random.default_rng(0)
    margin = np.where(np.arange(2_000) < 20, 12.0, rng.normal(1.5, 1.0, 2_000))
    y = (rng.random(2_000) < 1 / (1 + np.exp(-margin))).astype(np.int64)
    y[:20] = 1
    z = np.stack([np.zeros(2_000), margin], axis=1)
    value, low, _ = interval(z, y, "cox_slope")
    calm = interval(z[20:], y[20:], "cox_slope")
    assert value - low > 1.2 * (calm[0] - calm[1])


def test_a_slope_that_rows_of_nearly_one_confidence_decide_is_bounded_by_its_likelihood() -> None:
    """All errors are among the surest rows, which no steeper slope fits worse; the intercept is as uncertain."""
    rng, n = np.random.default_rng(0), 3_000
    margin = np.clip(rng.normal(2.2, 1.0, n), 0.05, 6.0)
    margin[:40] = 12 + 0.01 * np.linspace(0, 1, 40)
    y = ((np.arange(n) < 40) & (np.arange(n) % 5 < 3)).astype(np.int64)
    z = np.stack([margin, np.zeros(n)], axis=1)
    value, low, high = interval(z, y, "cox_slope:of=top")
    assert low < value - 10
    assert value < high < 0
    value, low, high = interval(z, y, "cox_intercept:of=top")
    assert high - value > 100


def test_differences_of_nll_count_the_dearest_label_of_the_file() -> None:
    z, y = rare_sure_rows()
    calm = np.array(z)
    calm[:3, 0] = z[-1, 0]
    old, new = (Predictions.of(scores, y) for scores in (calm, z))
    kept = [baseline.rows(p, columns_of(p, choose(["nll"], 2)), "00") for p in (new, old)]
    every = np.arange(300)
    pairing = cast(Any, SimpleNamespace(new=every, base=every))
    nll = baseline.difference(kept[0], kept[1], pairing, "nll", None, False, None)
    assert not isinstance(nll, str)
    assert nll.bounds(0.05)[1] - nll.mean.value > 0.99 * AT_ONCE * 99 / 300
    gain = baseline.difference(kept[0], kept[1], pairing, "temperature_gain", None, False, None)
    assert not isinstance(gain, str)
    assert gain.lost[1] > 0.5 > gain.lost[0]  # a row of 100 nats would move the new temperature


@pytest.mark.parametrize("k", [2, 3])
def test_a_gain_at_the_edge_has_the_error_of_a_mean(k: int) -> None:
    """Where every temperature short of infinity is worse, it is the mean of nll(z) - ln K."""
    rng = np.random.default_rng(k)
    z, y = 2 * rng.standard_normal((400, k)), rng.integers(0, k, 400)
    z[np.arange(200), y[:200]] -= 1.0  # worse than chance
    nll = np.log(np.exp(z).sum(axis=1)) - z[np.arange(400), y]
    _, _, high = interval(z, y, "temperature_gain")
    assert high >= nll.mean() - math.log(k) + 1.64 * nll.std() / 20 - 1e-3


def test_errors_may_be_among_the_surest_rows() -> None:
    rng = np.random.default_rng(0)
    margin = rng.uniform(0.5, 6, 1_000)
    z = np.stack([np.zeros(1_000), margin], axis=1)
    y = (rng.random(1_000) > 0.02).astype(np.int64)
    value, _, high = interval(z, y, "aurc")
    h = AT_ONCE / 1_000
    assert high - value >= 0.98 * h * (1 - math.log(h))
    tied = np.array(z)
    tied[margin > 3, 1] = 6.0  # more than half of the rows are as sure: an error there costs little
    assert interval(tied, y, "aurc")[2] - interval(tied, y, "aurc")[0] < 0.8 * (high - value)


def test_hits_may_be_among_the_surest_rows() -> None:
    """Where nearly every row is wrong, unseen right rows matter most: 8 % of gates failed falsely there."""
    rng = np.random.default_rng(0)
    margin = rng.uniform(0.5, 6, 300)
    z = np.stack([np.zeros(300), margin], axis=1)
    y = (rng.random(300) < 0.02).astype(np.int64)
    value, low, _ = interval(z, y, "aurc")
    surer = round(AT_ONCE)  # rows that are right, and surer than all others
    more = np.concatenate([z, np.tile([0.0, 9.0], (surer, 1))]), np.concatenate([y, np.ones(surer, np.int64)])
    assert low < interval(*more, "aurc")[0] < value - 3 * surer / 300


@pytest.mark.parametrize("spec", ["ece", "oce", "smece", "adaece", "ece_l2", "mmce", "classwise_ece"])
def test_a_row_of_the_largest_weight_may_not_have_been_drawn(spec: str) -> None:
    rng = np.random.default_rng(0)
    weights = 1 + rng.pareto(1.5, 500)
    z = np.stack([np.zeros(500), rng.normal(3, 1, 500)], axis=1)
    y = (rng.random(500) < 1 / (1 + np.exp(-z[:, 1]))).astype(np.int64)
    value, _, high = interval(z, y, spec, weights=weights)
    power = 2 if spec == "ece_l2" else 1
    assert high**power - value**power >= AT_ONCE * weights.max() / weights.sum() * (1 - 1e-9)


def test_the_dearest_of_rows_groups_and_some_rows() -> None:
    x, w, g = np.arange(4.0), np.array([1.0, 2.0, 3.0, 2.0]), np.array([0, 0, 1, 1])
    cost = np.array([5.0, 4.0, 1.0, 2.0])
    assert WeightedMean(x, None, False, None).largest_contribution(cost) == 5 / 4
    assert WeightedMean(x, w, False, None).largest_contribution(cost) == 2 * 4 / 8
    assert WeightedMean(x, w, True, None).largest_contribution(cost) == 5 / 8  # weights are numbers of rows
    assert WeightedMean(x, w, False, g).largest_contribution(cost) == (5 + 8) / 8
    assert WeightedMean(x, w, False, None).largest_contribution(2.0) == 2 * 3 / 8
    assert WeightedMean(x, w, False, g).largest_contribution(2.0) == 2 * 5 / 8
    every = WeightedMean(x, w, False, None)
    assert every.at(np.array([False, True, True, False])).largest_contribution(cost, every) == 2 * 4 / 5
    skewed = WeightedMean(np.array([0.0, 0.0, 0.0, 4.0]), None, False, None)
    assert skewed.skew == pytest.approx((27 - 3) / (9 + 3) / 4)


def test_grouped_lower_bounds_share_alpha_among_a_family() -> None:
    rng = np.random.default_rng(1)
    c = rng.uniform(0.5, 1, 900)
    view = BinaryOutcomes(c, 1 - c, rng.random(900) < c - 0.2, None, False, np.arange(900) // 15)
    table = view.width_bins(15, "right")
    family, single = table_bounds(view, table, alpha=0.04, family=4), table_bounds(view, table, alpha=0.01)
    assert family.lower == pytest.approx(single.lower, rel=1e-12)
    assert family.upper == table_bounds(view, table, alpha=0.04).upper < single.upper
    assert family.lower < table_bounds(view, table, alpha=0.04).lower


def test_a_bin_is_known_from_ten_effective_rows() -> None:
    assert EVENTS == 10
    for rows in (9.9, 10.1):  # of equal |r| = .1 and mean 0: spread² / fourth is their number
        spread, fourth = np.array([rows * 1e-8]), np.array([rows * 1e-16])
        least = _known_deviation(np.zeros(1), spread, fourth, 1e-3)
        assert least == pytest.approx(0 if rows < 10 else math.sqrt(rows * 1e-8 - math.sqrt(rows * 1e-16)))


def test_what_condensing_may_do_to_ece_and_smece() -> None:
    ece, smece = (METRICS.entries[name].traits.condensed for name in ("ece", "smece"))
    cut = SimpleNamespace(cut_by_width=lambda bins: (np.array([0.01, 0.02]), np.array([0.1, 0.1])))
    assert ece(cast(PlacedRows, cut), {"bins": 3}, 0.1) == pytest.approx(2 * 0.03)
    spread = SimpleNamespace(variance=1e-6, sample=SimpleNamespace(n=100), view=SimpleNamespace(n=100))
    found = smece(cast(PlacedRows, spread), {"variant": "exact", "sigma": 0.1}, 0.3)
    assert found == pytest.approx(1e-6 * (2 * BEND_SLOPE / 0.1 + BEND / 0.01))
