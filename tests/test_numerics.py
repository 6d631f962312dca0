"""Shared quantiles and bounds against scipy and first principles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats

from calibcli.core import statistics
from calibcli.core.statistics import (
    SMALLEST_P,
    Binomials,
    beta_quantile,
    binomial_tail,
    bisect,
    clopper_pearson,
    effective_groups,
    effective_rows,
    log_sigmoid,
    normal_quantile,
    normal_share,
    root,
    score_bound,
    student_quantile,
    two_sided,
    unseen_reach,
    weighted_mean,
)


@pytest.mark.parametrize("degrees", [0.3, 1, 1.7, 2.4, 3, 10.5, 500])
@pytest.mark.parametrize("level", [0.05, 0.95, 0.975, 0.9995])
def test_student(level: float, degrees: float) -> None:
    assert student_quantile(level, degrees) == pytest.approx(stats.t.ppf(level, degrees), rel=1e-8)


def test_student_without_degrees() -> None:
    assert math.isnan(student_quantile(0.95, 0.0))


@pytest.mark.parametrize(("hits", "n"), [(0, 20), (1, 20), (7, 200), (200, 200), (199, 200)])
def test_clopper_pearson(hits: int, n: int) -> None:
    wanted = stats.binomtest(hits, n).proportion_ci(0.9, "exact")
    assert clopper_pearson(hits, n, 0.05) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


@pytest.mark.parametrize("n", [1, 20, 997.5, 1e5, 1e8])
@pytest.mark.parametrize("share", [1e-6, 0.01, 0.5, 0.999, 1])
@pytest.mark.parametrize("alpha", [1e-9, 0.025, 0.3])
def test_clopper_pearson_of_any_size(n: float, share: float, alpha: float) -> None:
    hits = min(n, max(0.5, share * n))
    low = special.betaincinv(hits, n - hits + 1, alpha)
    high = special.betainccinv(hits + 1, n - hits, alpha) if hits < n else 1.0
    assert clopper_pearson(hits, n, alpha) == pytest.approx((low, high), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5, 60, 400, 9999])
def test_quantiles_of_beta_at_any_level(n: int) -> None:
    """Also where the last step is smaller than the last digit, which no rare level meets."""
    rng = np.random.default_rng(n)
    levels, counts = np.append(rng.random(500), [0.468124356764251, 0.4829896322568625]), rng.integers(1, n + 1, 500)
    for p, a in zip(levels.tolist(), [*counts.tolist(), min(n, 54), min(n, 379)], strict=True):
        wanted = special.betaincinv(a, n - a + 1, p), special.betainccinv(n - a + 1, a, p)
        assert beta_quantile(p, a, n - a + 1) == pytest.approx(wanted, rel=1e-11)


@pytest.mark.parametrize("degrees", [0.3, 1, 2.5, 996, 1e5])
@pytest.mark.parametrize("t", [1e-6, 0.5, 1.3, 10, 1e5])
def test_both_tails_of_student(t: float, degrees: float) -> None:
    assert two_sided(t, degrees) == pytest.approx(max(SMALLEST_P, 2 * stats.t.sf(t, degrees)), rel=1e-8)


def test_tails_at_the_ends() -> None:
    assert two_sided(1e200, 3.0) == two_sided(math.inf, 3.0) == SMALLEST_P
    assert two_sided(-2.0, 3.0) == two_sided(0.0) == 1.0
    assert student_quantile(0.95, math.inf) == normal_quantile(0.95)
    assert student_quantile(0.9, 1e-3) == math.inf
    assert student_quantile(0.5, 3.0) == 0


@pytest.mark.parametrize("level", [1e-300, 1e-17, 0.001, 0.3, 0.5, 0.7, 0.975, 1 - 1e-12])
def test_normal(level: float) -> None:
    z = normal_quantile(level)
    assert z == pytest.approx(stats.norm.ppf(level), rel=1e-12)
    assert normal_share(z) == pytest.approx(level, rel=1e-12)


@pytest.mark.parametrize(("hits", "n", "p"), [(0, 5, 0.3), (1, 5, 0.3), (5, 5, 0.3), (501, 997, 0.5), (600, 997, 0.5)])
def test_binomial_tail(hits: int, n: int, p: float) -> None:
    assert binomial_tail(hits, n, p) == pytest.approx(stats.binom.sf(hits - 1, n, p), rel=1e-11)


def test_weighted_mean() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert weighted_mean(x) == pytest.approx((7 / 3, x.std() / math.sqrt(3)))
    assert weighted_mean(x, np.array([1.0, 1.0, 2.0])) == pytest.approx((11 / 4, math.sqrt(49 + 9 + 100) / 16))


def test_effective_groups() -> None:
    assert effective_groups(np.full(30, 7)) == pytest.approx(30)
    assert effective_groups([1e200, 1, 1]) == pytest.approx(1)
    assert effective_groups([3, 3, 1]) == pytest.approx(19**2 / 163)
    assert effective_groups([0, 0]) == 0


@pytest.mark.regression("2.9")
@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01, 1e-4])
def test_score_bound_solves_its_equation_and_knows_what_no_row_showed(alpha: float) -> None:
    z, n = normal_quantile(1 - alpha), 400
    h = score_bound(0.1, z, 1 / n, 2e-4) - 0.1
    a = max(z * z, -math.log(alpha)) / n
    assert h * h == pytest.approx(z * z * 2e-4 + a * h)
    unseen = score_bound(0.0, z, 1 / n, 0.0)
    assert (1 - unseen) ** n <= alpha * (1 + 1e-9)


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01, 1e-4])
def test_reach_of_what_was_drawn_and_of_what_was_not(alpha: float) -> None:
    z, n = normal_quantile(1 - alpha), 400
    rows = max(z * z, -math.log(alpha))
    one_size = unseen_reach(z, 2e-4, 1 / n, 1 / n)
    assert one_size == score_bound(0.0, z, 1 / n, 2e-4)  # rows of one size: the score form
    assert unseen_reach(z, 0.0, 0.0, 7 / n) == pytest.approx(rows * 7 / n)  # nothing varied: that many of the dearest
    assert unseen_reach(z, 2e-4, 0.0, 0.0) == pytest.approx(z * math.sqrt(2e-4))
    far = unseen_reach(z, 2e-4, 1e-4, 7 / n)
    assert far == pytest.approx(math.cbrt((z * math.sqrt(2e-4)) ** 3 + (rows * 7 / n) ** 3))
    assert unseen_reach(z, 2e-4, 1e-4, math.inf) == math.inf


@pytest.mark.regression
def test_bounds_of_rare_rows() -> None:
    """The largest share of false PASS over normal noise and a Poisson number of rare rows of one size, at 5 %.

    The noise has the deviation 1, a rare row adds d and lam of them are expected. If m are drawn, the variance is
    1 + m d², which grows with the mean at the rate m d³ / (1 + m d²). The figures are those of `unseen_reach`.
    """
    z, rows = normal_quantile(0.95), -math.log(0.05)
    d = np.sort(np.append(np.geomspace(0.02, 30, 80), z / rows))[:, None, None]  # at z / rows the larger is smallest
    lam = np.concatenate([np.linspace(0.05, 6, 120), np.linspace(6.5, 40, 30), [rows]])[None, :, None]
    m = np.arange(90)
    chance = stats.poisson.pmf(m, lam)  # (1, L, M)
    spread = 1 + m * d**2
    drawn = rows * m * d**3 / spread
    score = (drawn + np.sqrt(drawn**2 + 4 * z * z * spread)) / 2
    noise = z * np.sqrt(spread)

    def wrong(undrawn: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        passed = chance * stats.norm.cdf((lam - m) * d - np.maximum(score, undrawn))
        return np.asarray(passed.sum(axis=2))

    undrawn = np.cbrt(noise**3 + (rows * d) ** 3)
    used = np.vectorize(unseen_reach)(z, spread, m * d**3 / spread, d)
    np.testing.assert_allclose(used, np.maximum(score, undrawn), rtol=1e-9)
    cubes = wrong(undrawn)
    assert cubes.max() == pytest.approx(0.0502, abs=5e-5)
    assert cubes[:, -1].max() == pytest.approx(0.05, abs=5e-5)  # 3 expected
    assert wrong(np.hypot(noise, rows * d)).max() == pytest.approx(0.0499, abs=5e-5)
    assert wrong(np.maximum(noise, rows * d)).max() == pytest.approx(0.059, abs=3e-4)
    # the least distance if no rare row was drawn: the largest of lam d + z(1 - 0.05 exp(lam)) over lam
    some = np.linspace(0, rows, 400)[:-1]
    beyond = stats.norm.isf(0.05 * np.exp(some))
    least = np.sqrt(spread) * (some * (d / np.sqrt(spread))[..., None] + beyond).max(axis=-1)
    assert wrong(least).max() == pytest.approx(0.0594, abs=3e-4)


def test_bisect_brackets_the_root_of_a_falling_function() -> None:
    low, high = bisect(lambda x: 2 - x * x, 0.0, 2.0, 1100)
    assert low * low <= 2 <= high * high
    assert high == np.nextafter(low, 2)  # neighbours
    low, high = bisect(lambda x: 2 - x * x, 0.0, 2.0, 60, 1e-3)
    assert 0 < high - low < 1e-3 * high
    assert bisect(lambda x: -1.0, 0.0, 1.0)[0] == 0.0
    assert bisect(lambda x: 1.0, 0.0, 1.0)[1] == 1.0


def test_root_of_a_rising_function() -> None:
    assert root(lambda x: math.exp(x) - 3, 0.0, 2.0) == pytest.approx(math.log(3), abs=1e-13)
    assert root(lambda x: x + 1, 0.0, 2.0) == 0.0
    assert root(lambda x: x - 3, 0.0, 2.0) == 2.0


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8, 1e-13])
def test_root_takes_few_steps_and_errs_by_no_more_than_the_last(tolerance: float) -> None:
    curves = (math.tanh, lambda x: x**3, lambda x: x**9 + x / 1e3, lambda x: -math.expm1(-9 * x), math.sinh)
    for curve in curves:
        asked: list[float] = []

        def shifted(x: float, curve: Callable[[float], float] = curve, asked: list[float] = asked) -> float:
            asked.append(x)
            return curve(x) - curve(0.7)

        assert root(shifted, -0.3, 2.0, tolerance) == pytest.approx(0.7, abs=tolerance)
        assert len(asked) <= 18  # by halving what stays (Illinois) up to 26


# Draws of binomials.

BINOMIALS = [(0, 0.3), (0, 1.0), (1, 0.5), (1, 1e-12), (5, 5e-324), (7, 0.0), (7, 1.0), (5, 1 - 1e-12), (50, 0.03),
             (50, 0.97), (3000, 0.5), (9000, 1e-3), (9000, 0.6)]  # fmt: skip


def test_binomials_have_the_distribution_functions_of_scipy() -> None:
    n, p = (np.array(column) for column in zip(*BINOMIALS, strict=True))
    drawn = Binomials(n, p)
    chances = drawn.chances.reshape(len(n), -1)
    for i in range(len(n)):
        outcomes = drawn.first[i] + i * drawn.width + np.arange(drawn.width)
        some = slice(i % 19, None, 19)
        assert chances[i, some] - i == pytest.approx(stats.binom.cdf(outcomes[some], n[i], p[i]), abs=3e-14)
        assert stats.binom.cdf(outcomes[0] - 1, n[i], p[i]) < 2**-53
        assert stats.binom.sf(outcomes[-1], n[i], p[i]) < 2**-53


@pytest.mark.parametrize("copies", [1, 10])  # 10: a coarser grid, so that more outcomes are searched for
def test_binomials_are_drawn_exactly(copies: int) -> None:
    """Each number drawn is the inverse of the distribution function at the uniform number of its place."""
    n, p = (np.tile(column, copies) for column in zip(*BINOMIALS, strict=True))
    hits = Binomials(n, p).draw(800 // copies, np.random.default_rng(3))
    uniform = np.random.default_rng(3).random(hits.shape)
    assert (stats.binom.cdf(hits - 1, n, p) < uniform + 1e-14).all()
    assert (stats.binom.cdf(hits, n, p) > uniform - 1e-14).all()


@pytest.mark.parametrize(("n", "p"), [(40, 0.2), (3_000, 0.7), (2_000_000, 0.4)])  # the last is left to NumPy
def test_frequencies_of_drawn_binomials(n: int, p: float) -> None:
    hits = Binomials(np.array([n, 9]), np.array([p, 0.5])).draw(20_000, np.random.default_rng(1))[:, 0]
    ends = stats.binom.ppf(np.linspace(0.04, 0.96, 24), n, p)
    counts = np.bincount(np.searchsorted(np.unique(ends), hits), minlength=len(np.unique(ends)) + 1)
    expected = np.diff(stats.binom.cdf(np.unique(ends), n, p), prepend=0, append=1) * len(hits)
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_no_binomials() -> None:
    assert Binomials(np.zeros(0, np.int64), np.zeros(0)).draw(3, np.random.default_rng(0)).shape == (3, 0)


def test_p_values() -> None:
    assert two_sided(1.3, 4.5) == pytest.approx(2 * stats.t.sf(1.3, 4.5), rel=1e-10)
    assert two_sided(1.3) == pytest.approx(2 * stats.norm.sf(1.3), rel=1e-10)
    assert two_sided(1e9) == SMALLEST_P


def test_effective_rows_and_log_sigmoid() -> None:
    assert effective_rows(np.array([2.0, 2.0, 0.0])) == 2.0
    m = np.array([-800.0, -1.0, 0.0, 40.0])
    assert log_sigmoid(m) == pytest.approx(-np.logaddexp(0, -m), rel=1e-12)


def test_counted_and_quantiles_are_those_of_numpy() -> None:
    rng = np.random.default_rng(3)
    for values in (rng.integers(-4, 5, 300), rng.random(40).round(1), np.array([2.0]), np.empty(0)):
        for ours, theirs in zip(statistics.counted(values), np.unique(values, return_counts=True), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for shape in ((1, 3), (2, 3), (401, 2, 3)):
        draws, chances = rng.standard_normal(shape), [0.0, 0.025, 0.5, 0.975, 1.0]
        np.testing.assert_allclose(
            statistics.quantiles(draws, chances), np.quantile(draws, chances, axis=0), atol=1e-14
        )
