"""Links against fixed high-precision values, direct formulas, and independent minimisers."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from focal_inverse import log_phi_inverse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import calibcli
import calibcli.metrics.temperature_gain as gain_module
import calibcli.scores.likelihood.fit_temperature as beta_module
from calibcli.core.errors import InputError, UsageError
from calibcli.scores.likelihood import cross_fit_beta, fit_beta, log_phi, log_softmax, nll_rows
from calibcli.scores.likelihood.moments import cumulants

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def data(n: int, k: int, temperature: float = 1.0, seed: int = 0, spread: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose labels follow softmax(z / temperature)."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k)) * spread
    return z * temperature, (z + rng.gumbel(size=z.shape)).argmax(1)


def slope_function(z: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> Any:
    """F'(β) by its direct formula, in extended precision where the platform has it."""
    z = z.astype(np.longdouble)
    z = z - z.max(axis=1, keepdims=True)
    own = z[np.arange(len(z)), y]

    def slope(beta: float) -> float:
        e = np.exp(beta * z)
        return float(np.average((e * z).sum(1) / e.sum(1) - own, weights=w))

    return slope


def exact_beta(z: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> float:
    return float(brentq(slope_function(z, y, w), 1e-4, 1e3, xtol=1e-300, rtol=1e-15))


def optimal(z: np.ndarray, y: np.ndarray, beta: float) -> bool:
    """Whether the exact optimum lies within 1e-8 of beta: F' is increasing."""
    slope = slope_function(z, y)
    return bool(slope(beta * (1 - 1e-8)) < 0 < slope(beta * (1 + 1e-8)))


# --- φ


@pytest.mark.parametrize("entry", VECTORS["phi"], ids=lambda e: f"{e['gamma']}-{e['q'][0]}")
def test_phi_vectors(entry: dict[str, Any]) -> None:
    with np.errstate(divide="ignore"):
        got = np.exp(log_phi(np.log(entry["q"]), entry["gamma"]))
    np.testing.assert_allclose(got, entry["phi"], rtol=1e-12)


@pytest.mark.parametrize("entry", VECTORS["logphi_extreme"])
def test_log_phi_at_extreme_margins(entry: dict[str, Any]) -> None:
    np.testing.assert_allclose(log_phi(entry["logits"], entry["gamma"]), entry["logphi"], rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("entry", VECTORS["phi_inverse"])
def test_phi_inverse_vectors(entry: dict[str, Any]) -> None:
    np.testing.assert_allclose(np.exp(log_phi_inverse(np.log(entry["p"]), entry["gamma"])), entry["q"], rtol=1e-12)


@pytest.mark.parametrize("entry", VECTORS["phi_binary_beta"])
def test_slope_of_binary_phi(entry: dict[str, Any]) -> None:
    def logit(m: float) -> float:
        a, b = log_phi([m, 0.0], entry["gamma"])
        return float(a - b)

    assert (logit(1e-4) - logit(-1e-4)) / 2e-4 == pytest.approx(entry["slope_at_uniform"], rel=1e-7)
    assert logit(400.0) - logit(399.0) == pytest.approx(entry["slope_at_vertex"], rel=1e-7)


def test_phi_of_zero_gamma_is_log_softmax() -> None:
    z, _ = data(200, 5)
    np.testing.assert_array_equal(log_phi(z, 0.0), log_softmax(z))


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [-1.0, -0.5, 0.1, 5.0])
def test_phi_keeps_order_on_a_million_rows(gamma: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        z = (rng.standard_normal((50_000, 4)) * rng.choice([0.3, 2, 20], size=(50_000, 1))).astype(np.float32)
        assert np.array_equal(log_phi(z, gamma).argmax(1), z.argmax(1))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-60, 60), min_size=2, max_size=6),
    st.floats(0.05, 6),
    st.floats(-1e3, 1e3),
    st.randoms(use_true_random=False),
)
def test_phi_round_trip_shift_and_permutation(z: list[float], gamma: float, shift: float, random: Any) -> None:
    log_q = log_softmax(z)
    back = log_phi_inverse(log_phi(z, gamma), gamma)
    np.testing.assert_allclose(back, log_q, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(log_phi(np.array(z) + shift, gamma), log_phi(z, gamma), rtol=1e-9, atol=1e-11)
    order = list(range(len(z)))
    random.shuffle(order)
    np.testing.assert_allclose(
        log_phi(np.array(z)[order], gamma), np.array(log_phi(z, gamma))[order], rtol=1e-12, atol=1e-13
    )


def test_phi_is_continuous_across_zero_gamma() -> None:
    z, _ = data(300, 4, spread=5)
    assert np.abs(log_phi(z, 1e-9) - log_phi(z, -1e-9)).max() < 1e-6


def test_minus_infinity_is_probability_zero() -> None:
    z = np.array([[1.0, 0.5, -np.inf], [-np.inf, 3.0, -np.inf]])
    for gamma in (-0.5, 0.0, 2.0):
        got = log_phi(z, gamma)
        np.testing.assert_allclose(got[0, :2], log_phi(z[0, :2], gamma))
        assert got[0, 2] == -np.inf
        np.testing.assert_array_equal(got[1], [-np.inf, 0, -np.inf])


def test_refusals() -> None:
    with pytest.raises(UsageError, match="below -1"):
        log_phi([0.0, 1.0], -1.5)
    with pytest.raises(InputError, match="probability zero"):
        fit_beta([[0.0, -np.inf], [1.0, 0.0], [0.0, 1.0]], [1, 1, 1])


# --- β


def test_temperature_vector() -> None:
    v = VECTORS["temperature"]
    z, y = np.array(v["logits"]), np.array(v["labels"])
    fit = fit_beta(z, y)
    assert fit.beta == pytest.approx(v["beta"], rel=1e-12)
    assert fit.temperature == pytest.approx(v["T"], rel=1e-12)
    assert nll_rows(z, y).mean() == pytest.approx(v["nll_before"], rel=1e-12)
    assert nll_rows(z, y, fit.beta).mean() == pytest.approx(v["nll_after"], rel=1e-12)
    _, psi, curvature, *_ = cumulants(z, y, 1.0, np.float64)
    assert psi.mean() == pytest.approx(v["dL_dbeta_at_1"], rel=1e-12)
    assert curvature.mean() == pytest.approx(v["d2L_dbeta2_at_1"], rel=1e-12)


@pytest.mark.parametrize("k", [3, 60])
def test_cumulants_are_derivatives(k: int) -> None:
    """Each cumulant is the derivative of the one before it (central differences)."""
    z, y = data(40, k)
    step = 1e-4
    here = cumulants(z, y, 0.8, np.float64)
    above, below = cumulants(z, y, 0.8 + step, np.float64), cumulants(z, y, 0.8 - step, np.float64)
    for order in range(1, 4):
        numeric = (above[order] - below[order]) / (2 * step)
        np.testing.assert_allclose(here[order + 1], numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "k"), [(60, 2), (800, 10), (20_000, 10), (700, 100), (9000, 120)])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 20.0])
@pytest.mark.parametrize(
    ("shift", "dtype"), [(0.0, np.float32), (1e4, np.float32), (0.0, np.float16), (0.0, np.float64)]
)
@pytest.mark.one_in(5)
def test_beta_is_exact_in_few_passes(n: int, k: int, temperature: float, shift: float, dtype: type) -> None:
    z, y = data(n, k, temperature)
    z = (z + shift).astype(dtype)
    fit = fit_beta(z, y)
    assert fit.status == "ok"
    assert fit.passes <= 10
    assert optimal(z, y, fit.beta)
    assert not optimal(z, y, fit.beta * (1 + 1e-7))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [5.0, 30.0, 300.0])
def test_few_errors_take_few_passes(spread: float) -> None:
    z, y = data(60_000, 10, 1.3, spread=spread)
    fit = fit_beta(z.astype(np.float32), y)
    assert fit.passes <= (10 if (z.argmax(1) == y).mean() <= 0.99 else 30)
    assert optimal(z.astype(np.float32), y, fit.beta)


def test_weights_repeat_rows() -> None:
    z, y = data(400, 5, 1.7)
    w = np.random.default_rng(0).integers(0, 4, 400)
    assert fit_beta(z, y, w).beta == pytest.approx(fit_beta(z.repeat(w, 0), y.repeat(w)).beta, rel=1e-12)
    assert fit_beta(z, y, w).beta == pytest.approx(exact_beta(z, y, w), rel=1e-12)
    assert fit_beta(z, y, w).beta != pytest.approx(fit_beta(z, y).beta, rel=1e-3)


@pytest.mark.parametrize("k", [10, 120])
def test_blocks_equal_arrays(k: int) -> None:
    z, y = data(40_000 if k == 10 else 12_000, k, 1.4)
    cuts = [0, 7, 5000, len(z)]
    fit = fit_beta(lambda: ((z[a:b], y[a:b], None) for a, b in itertools.pairwise(cuts)))
    assert fit.n == len(z)
    assert optimal(z, y, fit.beta)


def test_sorted_rows_do_not_matter() -> None:
    z, y = data(70_000, 10, 2.0)
    order = np.lexsort((z.max(1), y))
    assert optimal(z, y, fit_beta(z[order], y[order]).beta)


def test_masked_classes() -> None:
    z, y = data(3000, 5, 1.5)
    wide = np.concatenate([z, np.full((3000, 2), -np.inf)], axis=1)
    assert fit_beta(wide, y).beta == pytest.approx(fit_beta(z, y).beta, rel=1e-12)
    np.testing.assert_allclose(nll_rows(wide, y, 0.5), nll_rows(z, y, 0.5))


def test_degenerate_cases_are_named() -> None:
    z, y = data(300, 4)
    wrong = np.where(z.argmin(1) == y, (y + 1) % 4, z.argmin(1))
    assert fit_beta(z, z.argmax(1)).status == "separable"
    assert fit_beta(z, wrong).status == "anti_informative"
    assert fit_beta(z, wrong).temperature == math.inf
    constant = fit_beta(np.ones((9, 3)), np.zeros(9, int))
    assert (constant.status, constant.beta) == ("constant", 1.0)
    close = np.array([[10.0, 0.0], [10.0, 0.0], [10.0, 0.0], [1e-4, 0.0], [1e-6, 0.0]])
    assert fit_beta(close, [0, 0, 0, 0, 1]).status == "bound"
    assert fit_beta([[2.0, 1.0]], [0]).status == "separable"
    for fit in (fit_beta(z, z.argmax(1)), constant):
        assert fit.se is None
        assert fit.usable == 1.0


def test_sandwich_standard_error_matches_the_bootstrap() -> None:
    z, y = data(1500, 5, 1.5)
    z[::2] *= 1.6  # misspecified: the plain inverse Hessian would be wrong
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(300):
        rows = rng.integers(0, len(z), len(z))
        draws.append(fit_beta(z[rows], y[rows]).beta)
    se = fit_beta(z, y).se
    assert se is not None
    assert se == pytest.approx(np.std(draws), rel=0.12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(-50, 50))
def test_beta_is_invariant(seed: int, shift: float) -> None:
    z, y = data(150, 4, 1.3, seed)
    order = np.random.default_rng(seed).permutation(4)
    beta = fit_beta(z, y).beta
    assert fit_beta(z + shift, y).beta == pytest.approx(beta, rel=1e-10)
    assert fit_beta(z[:, order], np.argsort(order)[y]).beta == pytest.approx(beta, rel=1e-10)
    assert fit_beta(z * 4, y).beta == pytest.approx(beta / 4, rel=1e-10)


def test_cross_fit_uses_no_row_of_its_own_fold() -> None:
    z, y = data(900, 4, 1.8)
    folds = np.random.default_rng(0).integers(0, 5, 900)
    gains, fits, _ = cross_fit_beta(z, y, folds)
    for fold in range(5):
        out = folds == fold
        beta = exact_beta(z[~out], y[~out])
        assert fits[fold].beta == pytest.approx(beta, rel=1e-8)
        expected = nll_rows(z[out], y[out]) + log_softmax(beta * z[out])[np.arange(out.sum()), y[out]]
        np.testing.assert_allclose(gains[out], expected, rtol=1e-7, atol=1e-9)
    assert gains.mean() > 0


def few_rows_of_many_classes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (60, 20_000)).astype(np.float32)
    labels = rng.integers(0, 20_000, 60)
    logits[np.arange(60), labels] += rng.normal(9, 3, 60).astype(np.float32)
    return logits, labels


def test_few_rows_of_many_classes_take_few_float64_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 passes find the neighbourhood of β: the scores decide, not the rows; its digits stay those of float64."""
    logits, labels = few_rows_of_many_classes()
    folds = np.arange(60) % 5
    exact = fit_beta(logits.astype(np.float64), labels)
    gains, fits, _ = cross_fit_beta(logits.astype(np.float64), labels, folds)
    double: list[bool] = []

    def counted(block: Any, beta: float, dtype: Any) -> Any:
        double.append(dtype is np.float64)
        return each_row(block, beta, dtype)

    each_row = beta_module.moments.each_row
    monkeypatch.setattr(beta_module.moments, "each_row", counted)
    assert fit_beta(logits, labels).beta == pytest.approx(exact.beta, rel=1e-8)
    assert sum(double) == 1
    double.clear()
    quick_gains, quick, _ = cross_fit_beta(logits, labels, folds)
    assert sum(double) == 0
    assert len(double) <= 15  # the folds have their first pass in common
    double.clear()
    cross_fit_beta(logits.astype(np.float64), labels, folds)
    assert sum(double) <= 7
    assert [fit.beta for fit in quick] == pytest.approx([fit.beta for fit in fits], rel=1e-6)
    assert quick_gains == pytest.approx(gains, abs=1e-5)


def test_rows_that_the_cache_does_not_hold_have_the_cumulants_of_direct_sums() -> None:
    z, y = data(3, 50_001)
    z[0, 7::100] = -np.inf
    e = np.exp(0.7 * (z - z.max(axis=1, keepdims=True)))
    p, finite = e / e.sum(axis=1, keepdims=True), np.where(np.isfinite(z), z, 0.0)
    mean = (p * finite).sum(axis=1)
    central = [(p * (finite - mean[:, None]) ** power).sum(axis=1) for power in (2, 3, 4)]
    _, psi, *kappa = cumulants(z, y, 0.7, np.float64)
    np.testing.assert_allclose(psi, mean - z[np.arange(3), y], rtol=1e-11)
    np.testing.assert_allclose(kappa, [*central[:2], central[2] - 3 * central[0] ** 2], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [2.0, 20.0])
def test_folds_of_float64_scores_in_float32_passes_are_exact(spread: float) -> None:
    z, y = data(80, 8_000, temperature=1.7, spread=spread)
    z += 1e4  # an offset that float32 alone would pay for with its digits
    folds = np.arange(80) % 4
    _, fits, whole = cross_fit_beta(z, y, folds)
    assert whole.beta == pytest.approx(fit_beta(z, y).beta, rel=1e-5)
    for fold, fit in enumerate(fits):
        assert fit.beta == pytest.approx(fit_beta(z[folds != fold], y[folds != fold]).beta, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_that_mislead_are_known_by_their_slope_at_zero(dtype: type) -> None:
    """F is convex: where it does not fall at β = 0, no small β has to be tried."""
    z, y = data(60, 9_000)
    fit = fit_beta(-z.astype(dtype), y)
    assert (fit.status, fit.beta, fit.temperature) == ("anti_informative", 0.0, math.inf)
    assert fit.passes <= 8


def test_separable_rows_of_many_classes_are_separable_in_every_fold() -> None:
    logits, labels = few_rows_of_many_classes()
    logits[np.arange(60), labels] += 30
    _, fits, _ = cross_fit_beta(logits, labels, np.arange(60) % 5)
    assert {fit.status for fit in fits} == {"separable"}


def test_the_interval_of_the_temperature_gain_takes_few_passes_over_many_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Derivatives at one temperature serve its neighbours, wherever an end of the interval is looked for."""
    logits, labels = few_rows_of_many_classes()
    monkeypatch.setattr(gain_module, "WIDENED", 1 << 30)
    exact = calibcli.measure(logits, labels, "temperature_gain")["temperature_gain"]
    monkeypatch.undo()
    calls: list[Any] = []

    def counted(function: Any) -> Any:
        def call(z: Any, y: Any, beta: float) -> Any:
            calls.append(z.dtype)
            return function(z, y, beta)

        return call

    for name in ("expectation", "series"):
        monkeypatch.setattr(gain_module, name, counted(getattr(gain_module, name)))
    quick = calibcli.measure(logits, labels, "temperature_gain")["temperature_gain"]
    assert len(calls) <= 18
    assert quick.value == pytest.approx(exact.value, abs=1e-5)
    assert (quick.low, quick.high) == pytest.approx((exact.low, exact.high), rel=1e-3)
