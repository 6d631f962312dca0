"""Affine and monotone scalers against scikit-learn and direct minimisation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from scipy.special import softmax
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

import calibcli
from calibcli import calibrators
from calibcli.calibrators.monotone import isotonic_curve
from calibcli.calibrators.program import NumPy
from calibcli.core.errors import UsageError
from calibcli.metrics.corp import pool
from calibcli.scores.likelihood import log_phi, log_softmax
from calibcli.scores.predictions import Predictions


def predictions(n: int = 500, k: int = 3, seed: int = 0, **fields: Any) -> Predictions:
    """Overconfident logits with a class-dependent bias."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k)) * 1.5
    y = (z + np.linspace(-0.7, 0.7, k) + rng.gumbel(size=z.shape)).argmax(1)
    return Predictions.of(2 * z, y, **fields)


def probabilities(p: Predictions) -> np.ndarray:
    return np.exp(log_softmax(p.logits))


def loss(p: Predictions, log_p: np.ndarray) -> float:
    return float(np.average(-log_p[np.arange(p.n), p.labels], weights=p.weights))


def lowest(function: Any, start: np.ndarray) -> float:
    """Smallest value that a derivative-free minimiser finds."""
    found = minimize(function, start, method="Powell", options={"xtol": 1e-10, "ftol": 1e-14, "maxiter": 100_000})
    return float(found.fun)


def odir(w: np.ndarray, b: np.ndarray, lam: float, mu: float) -> float:
    k = len(b)
    off = w - np.diag(np.diag(w))
    return lam / (k * (k - 1)) * float((off**2).sum()) + mu / k * float((b**2).sum())


@pytest.mark.parametrize("name", ["matrix", "dirichlet"])
@pytest.mark.parametrize(("lam", "mu"), [(0.0, 0.0), (0.1, 0.02), (10.0, 3.0)])
@pytest.mark.one_in(6)
def test_matrix_and_dirichlet_minimise_the_penalised_nll(name: str, lam: float, mu: float) -> None:
    p = predictions(200)
    x = p.logits - p.logits.mean(1, keepdims=True) if name == "matrix" else log_softmax(p.logits)

    def objective(theta: np.ndarray) -> float:
        w, b = theta[:9].reshape(3, 3), theta[9:]
        return loss(p, log_softmax(x @ w.T + b)) + odir(w, b, lam, mu)

    scaler = calibrators.fit(f"{name}:lam={lam},mu={mu}", p).scaler
    w, b = scaler.parameters["weight"], scaler.parameters["bias"]
    got = objective(np.append(w.ravel(), b))
    assert got == pytest.approx(lowest(objective, np.append(np.eye(3).ravel(), np.zeros(3))), abs=2e-7)
    assert got < objective(np.append(w.ravel() * 1.01, b))
    np.testing.assert_allclose(scaler(p.logits), log_softmax(x @ w.T + b), rtol=1e-10)


def test_unpenalised_matrix_is_multinomial_logistic_regression() -> None:
    p = predictions(2000)
    x = p.logits - p.logits.mean(1, keepdims=True)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(x, p.labels)
    scaler = calibrators.fit("matrix:lam=0,mu=0", p).scaler
    np.testing.assert_allclose(np.exp(scaler(p.logits)), model.predict_proba(x), atol=1e-5)
    dirichlet = calibrators.fit("dirichlet:lam=0,mu=0", p).scaler
    log_p = log_softmax(p.logits)
    other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(log_p, p.labels)
    np.testing.assert_allclose(np.exp(dirichlet(p.logits)), other.predict_proba(log_p), atol=1e-5)
    assert np.abs(other.predict_proba(log_p) - model.predict_proba(x)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("name", ["vector", "bcts"])
def test_vector_and_bcts_minimise_the_penalised_nll(name: str, mu: float) -> None:
    p = predictions(300, 4, weights=np.random.default_rng(1).uniform(0.2, 2, 300))
    x = p.logits - p.logits.mean(1, keepdims=True)
    size = 4 if name == "vector" else 1

    def objective(theta: np.ndarray) -> float:
        b = theta[size:]
        return loss(p, log_softmax(x * theta[:size] + b)) + mu / 4 * float((b**2).sum())

    scaler = calibrators.fit(f"{name}:mu={mu}", p).scaler
    v, b = np.atleast_1d(scaler.parameters["weight"]), scaler.parameters["bias"]
    assert objective(np.append(v, b)) == pytest.approx(
        lowest(objective, np.append(np.ones(size), np.zeros(4))), abs=2e-7
    )
    assert objective(np.append(v * 1.01, b)) > objective(np.append(v, b)) + 1e-6
    np.testing.assert_allclose(scaler(p.logits), log_softmax(x * v + b), rtol=1e-10)


def test_bcts_without_bias_needed_is_temperature() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((20_000, 3)) * 2
    p = Predictions.of(z * 1.7, (z + rng.gumbel(size=z.shape)).argmax(1))
    estimate = calibrators.fit("bcts", p).estimates[0]
    assert estimate.value == pytest.approx(1.7, rel=0.03)
    assert estimate.value == pytest.approx(calibrators.fit("temperature", p).estimates[0].value, rel=2e-3)


def test_penalties_are_chosen_by_cross_validation() -> None:
    strong = calibrators.fit("matrix", predictions(120, 5))
    assert strong.facts["lambda"] is not None
    rng = np.random.default_rng(0)
    z = rng.standard_normal((4000, 3))
    mixed = z @ np.array([[1, 0.8, 0], [0, 1, 0.8], [0.8, 0, 1]])
    weak = calibrators.fit("matrix", Predictions.of(mixed, (2 * z + rng.gumbel(size=z.shape)).argmax(1)))
    assert float(weak.facts["lambda"] or 0) < float(strong.facts["lambda"] or 0)
    only = calibrators.fit("matrix:lam=0.3", predictions(120, 3))
    assert only.facts["lambda"] == 0.3
    assert calibrators.fit("dirichlet:mu=0.3", predictions(120, 3)).facts["mu"] == 0.3
    assert "parameters from" in calibrators.fit("matrix:lam=1,mu=1", predictions(20, 6)).notes[0]
    with pytest.raises(UsageError, match="out of range"):
        calibrators.fit("matrix:lam=-1,mu=0", predictions(50))


def test_platt_is_that_of_scikit_learn() -> None:
    p = predictions(400, 2)
    m = p.logits[:, 1] - p.logits[:, 0]
    theirs = _SigmoidCalibration().fit(m, p.labels)
    ours = calibrators.fit("platt", p).scaler
    assert float(ours.parameters["slope"][0]) == pytest.approx(-theirs.a_, rel=1e-4)
    assert float(ours.parameters["bias"][0]) == pytest.approx(-theirs.b_, rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(np.exp(ours(p.logits))[:, 1], theirs.predict(m), rtol=1e-4)
    plain = LogisticRegression(C=np.inf, tol=1e-12).fit(m[:, None], p.labels)
    exact = calibrators.fit("platt:smooth=false", p).scaler
    assert float(exact.parameters["slope"][0]) == pytest.approx(plain.coef_[0, 0], rel=1e-5)
    assert float(exact.parameters["slope"][0]) != pytest.approx(float(ours.parameters["slope"][0]), rel=1e-4)


def test_platt_and_beta_of_many_classes_are_one_against_the_rest() -> None:
    p = predictions(600, 4)
    m, q = NumPy(p.k).log_odds(p.logits), probabilities(p)
    columns = []
    for c in range(4):
        model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(m[:, [c]], p.labels == c)
        columns.append(model.predict_proba(m[:, [c]])[:, 1])
    expected = np.stack(columns, 1) / np.sum(columns, axis=0)[:, None]
    got = np.exp(calibrators.fit("platt:smooth=false", p).scaler(p.logits))
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    scaler = calibrators.fit("beta", p).scaler
    columns = []
    for c in range(4):
        x = np.stack([np.log(q[:, c]), -np.log1p(-q[:, c])], 1)
        bounds = [(0, None), (0, None), (None, None)]

        def nll(t: np.ndarray, x: np.ndarray = x, c: int = c) -> float:
            s = x @ t[:2] + t[2]
            return float(np.mean(np.logaddexp(0, s) - (p.labels == c) * s))

        found = minimize(nll, [1, 1, 0], bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
        mine = np.array([scaler.parameters[name][c] for name in "abc"])
        assert nll(mine) <= found.fun + 1e-8
        assert nll(mine * 1.01) > nll(mine) + 1e-7
        columns.append(1 / (1 + np.exp(-(x @ mine[:2] + mine[2]))))
    np.testing.assert_allclose(
        np.exp(scaler(p.logits)), np.stack(columns, 1) / np.sum(columns, axis=0)[:, None], rtol=1e-6
    )


def test_beta_never_has_a_negative_slope() -> None:
    p = predictions(300, 2)
    backwards = Predictions.of(-p.logits, p.labels)
    for data in (p, backwards):
        scaler = calibrators.fit("beta", data).scaler
        assert (scaler.parameters["a"] >= 0).all()
        assert (scaler.parameters["b"] >= 0).all()
    np.testing.assert_allclose(np.exp(scaler(p.logits))[:, 1], p.labels.mean(), rtol=1e-6)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 3)), min_size=1, max_size=60))
def test_pooling_is_that_of_scikit_learn(pairs: list[tuple[float, float]]) -> None:
    values, weights = map(np.array, zip(*pairs, strict=True))
    fitted = pool(weights, values * weights).spread(len(values))
    theirs = IsotonicRegression().fit(np.arange(len(values)), values, weights).predict(np.arange(len(values)))
    np.testing.assert_allclose(fitted, theirs, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("digits", [2, 15])
def test_isotonic_curve_is_that_of_scikit_learn(digits: int, weighted: bool) -> None:
    p = predictions(700, 2)
    w = np.random.default_rng(0).uniform(0.1, 2, 700) if weighted else None
    score, hit = np.round(probabilities(p)[:, 1], digits), p.labels.astype(float)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(score, hit, w)
    grid = np.linspace(0, 1, 997)
    np.testing.assert_allclose(np.interp(grid, *isotonic_curve(score, hit, w)), theirs.predict(grid), atol=1e-12)


@pytest.mark.parametrize("spec", ["isotonic", "isotonic_top", "histogram", "top_label", "top_label:by=isotonic"])
def test_more_rows_than_a_part_are_fitted_and_mapped_as_others_are(spec: str) -> None:
    """Rows of weight 1 are sorted with their places, others without; both are mapped a part at a time."""
    rows = predictions(40_000, 3)
    rows = Predictions.of(rows.logits.round(2), rows.labels)
    counted = Predictions.of(rows.logits, rows.labels, weights=np.ones(40_000), weight_kind="count")
    fitted, others = (calibrators.fit(spec, p, report=False).scaler for p in (rows, counted))
    assert fitted.parameters.keys() == others.parameters.keys()
    for name, values in fitted.parameters.items():
        np.testing.assert_allclose(values, others.parameters[name], atol=1e-12)
    here = slice(32_000, 34_000)
    np.testing.assert_array_equal(fitted.map(rows.logits)[here], fitted.map(rows.logits[here]))


def test_isotonic_of_classes_and_of_the_top_label() -> None:
    p = predictions(600, 4)
    q, least = probabilities(p), 1 / 602
    columns = []
    for c in range(4):
        model = IsotonicRegression(out_of_bounds="clip").fit(q[:, c], p.labels == c)
        columns.append(np.clip(model.predict(q[:, c]), least, 1 - least))
    expected = np.stack(columns, 1) / np.sum(columns, axis=0)[:, None]
    np.testing.assert_allclose(np.exp(calibrators.fit("isotonic", p).scaler(p.logits)), expected, rtol=1e-10)
    top = IsotonicRegression(out_of_bounds="clip").fit(q.max(1), q.argmax(1) == p.labels)
    scaler = calibrators.fit("isotonic-top", p).scaler
    got = np.exp(scaler(p.logits))
    rows = np.arange(p.n)
    expected = np.maximum(np.clip(top.predict(q.max(1)), least, 1 - least), stays_on_top(q))
    np.testing.assert_allclose(got[rows, q.argmax(1)], expected, rtol=1e-10)
    others = np.where(np.eye(4, dtype=bool)[q.argmax(1)], 0, q)
    ratio = np.where(np.eye(4, dtype=bool)[q.argmax(1)], 0, got) / np.maximum(others, 1e-300)
    np.testing.assert_allclose(ratio.max(1), np.where(others > 0, ratio, np.inf).min(1), rtol=1e-9)
    assert scaler.preserves_accuracy


def stays_on_top(q: np.ndarray) -> np.ndarray:
    """The smallest top probability at which no other passes it, all others in proportion."""
    ordered = np.sort(q, axis=1)
    r = ordered[:, -2] / ordered[:, :-1].sum(axis=1)
    return np.asarray(r / (1 + r))


@pytest.mark.parametrize("of", ["classes", "top"])
@pytest.mark.parametrize("bins", [4, 15])
def test_histogram_counts(of: str, bins: int) -> None:
    p = predictions(640, 3)
    scaler = calibrators.fit(f"histogram:bins={bins},of={of}", p).scaler
    q, got = probabilities(p), np.exp(scaler(p.logits))
    rows = np.arange(p.n)

    def binned(score: np.ndarray, hit: np.ndarray) -> np.ndarray:
        order = np.argsort(score)
        out = np.empty(len(score))
        edges = [int(np.ceil(len(score) * b / bins)) for b in range(bins + 1)]
        for first, last in itertools.pairwise(edges):
            part = order[first:last]
            out[part] = (hit[part].sum() + 1) / (len(part) + 2)
        return out

    if of == "top":
        hit = q.argmax(1) == p.labels
        expected = np.maximum(binned(q.max(1), hit), stays_on_top(q))
        np.testing.assert_allclose(got[rows, q.argmax(1)], expected, rtol=1e-10)
        assert scaler.preserves_accuracy
    else:
        columns = np.stack([binned(q[:, c], p.labels == c) for c in range(3)], 1)
        np.testing.assert_allclose(got, columns / columns.sum(1, keepdims=True), rtol=1e-10)
        assert not scaler.preserves_accuracy


def by_structured(p: Predictions, full: bool, n: float | None = None) -> np.ndarray:
    """Structured scaling by L-BFGS on deviations from the identity."""
    k, n = p.k, n or p.n
    x = np.log((n * by_temperature(p) + 1 / k) / (n + 1))
    w = np.full(p.n, 1 / p.n) if p.weights is None else p.weights / p.weights.sum()
    size = np.full((k, k + 1), k * (k - 1) / n)
    size[:, k] = size[np.arange(k), np.arange(k)] = k / n
    used = np.ones((k, k + 1)) if full else np.eye(k, k + 1) + (np.arange(k + 1) == k)
    design = np.column_stack([x, np.ones(p.n)])

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        d = theta.reshape(k, k + 1) * used
        log_q = log_softmax(design @ (np.eye(k, k + 1) + d).T)
        residual = (np.exp(log_q) - np.eye(k)[p.labels]) * w[:, None]
        value = -float(w @ log_q[np.arange(p.n), p.labels]) + float((size * d * d).sum())
        return value, ((residual.T @ design + 2 * size * d) * used).ravel()

    options = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 10_000}
    found = minimize(objective, np.zeros(k * (k + 1)), jac=True, method="L-BFGS-B", options=options)
    return softmax(design @ (np.eye(k, k + 1) + found.x.reshape(k, k + 1) * used).T, axis=1)


def noisy(n: int = 1500, k: int = 4) -> Predictions:
    """Too sure by two kinds of rows: calibrated ones, and a tenth whose label is anything."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, k)) * 3
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    lost = rng.uniform(size=n) < 0.15
    return Predictions.of(z * np.where(rng.uniform(size=(n, 1)) < 0.5, 2, 1), np.where(lost, rng.integers(0, k, n), y))


def test_ensemble_temperature_is_the_best_mixture() -> None:
    p = noisy()
    parts = np.stack([by_temperature(p), probabilities(p), np.full((p.n, 4), 0.25)])
    own = parts[:, np.arange(p.n), p.labels]
    rule = {"type": "eq", "fun": lambda s: s.sum() - 1}
    options = {"ftol": 1e-14, "maxiter": 1000}
    found = minimize(
        lambda s: -np.log(s @ own).mean(), [0.4, 0.3, 0.3], bounds=[(0, 1)] * 3, constraints=rule, options=options
    )
    given = calibrators.fit("ensemble_temperature", p).scaler.parameters
    shares = np.array([given[name] for name in ("tempered", "plain", "uniform")])
    assert shares.sum() == pytest.approx(1, abs=1e-14)
    assert (shares[1:] > 0.02).all(), "a case in which T alone is best shows nothing"
    assert shares == pytest.approx(found.x, abs=2e-4)
    assert -np.log(shares @ own).mean() <= found.fun + 1e-12
    got = np.exp(calibrators.fit("ensemble_temperature", p).scaler(p.logits))
    np.testing.assert_allclose(got, np.tensordot(shares, parts, 1), rtol=1e-6)


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("by", ["histogram", "isotonic"])
def test_top_label_has_a_map_for_each_predicted_class(by: str, k: int) -> None:
    p = predictions(700, k)
    skewed = Predictions.of(p.logits + np.append({2: -7.5, 5: -4.0}[k], np.zeros(k - 1)), p.labels)
    q = probabilities(skewed)
    top = q.argmax(1)
    assert 0 < (top == 0).sum() < 50 <= np.bincount(top)[1:].min()
    done = calibrators.fit(f"top_label:by={by}", skewed)
    expected = np.empty(p.n)
    for c in range(k):
        rows = np.flatnonzero(top == c)
        on = np.arange(p.n) if c == 0 else rows  # too few of class 0: all rows
        score, hit = q[on].max(1), top[on] == p.labels[on]
        if by == "isotonic":
            model = IsotonicRegression(out_of_bounds="clip").fit(score, hit)
            expected[rows] = np.clip(model.predict(q[rows].max(1)), 1 / (len(on) + 2), 1 - 1 / (len(on) + 2))
            continue
        bins, order = len(on) // 50, np.argsort(score)
        edges = [int(np.ceil(len(on) * b / bins)) for b in range(bins + 1)]
        for first, last in itertools.pairwise(edges):
            inside = (q[rows].max(1) >= score[order[first]]) & (q[rows].max(1) <= score[order[last - 1]])
            expected[rows[inside]] = (hit[order[first:last]].sum() + 1) / (last - first + 2)
    got = np.exp(done.scaler(skewed.logits))
    np.testing.assert_allclose(got[np.arange(p.n), top], np.maximum(expected, stays_on_top(q)), rtol=1e-10)
    np.testing.assert_allclose(got.sum(1), 1)
    assert done.scaler.preserves_accuracy
    assert done.notes == [f"1 of {k} classes are predicted in fewer than 50 rows and share one map: 0"]


@pytest.mark.parametrize("spec", ["sms", "svs", "ensemble_temperature", "top_label", "top_label:by=isotonic"])
def test_counts_are_repeated_rows(spec: str) -> None:
    p = noisy(400)
    w = np.resize([1, 2, 0, 3], 400)
    counted = Predictions.of(p.logits, p.labels, weights=w.astype(float), weight_kind="count")
    repeated = Predictions.of(p.logits.repeat(w, 0), p.labels.repeat(w))
    a, b = (calibrators.fit(spec, q).scaler for q in (counted, repeated))
    rows = p.logits[w > 0]
    np.testing.assert_allclose(np.exp(a(rows)), np.exp(b(rows)), rtol=1e-5)


def test_binary_maps_are_of_the_positive_class() -> None:
    p = predictions(500, 2)
    q = probabilities(p)[:, 1]
    model = IsotonicRegression(out_of_bounds="clip").fit(q, p.labels)
    got = np.exp(calibrators.fit("isotonic", p).scaler(p.logits))
    np.testing.assert_allclose(got[:, 1], np.clip(model.predict(q), 1 / 502, 1 - 1 / 502), rtol=1e-12)
    np.testing.assert_allclose(got.sum(1), 1)


@pytest.mark.parametrize(
    "spec", ["vector", "bcts", "matrix:lam=0.1,mu=0.1", "platt:smooth=false", "beta", "isotonic", "isotonic_top"]
)
def test_weights_repeat_rows(spec: str) -> None:
    p = predictions(300, 3)
    w = np.resize([1, 2, 0, 3], 300)
    weighted = Predictions.of(p.logits, p.labels, weights=w.astype(float))
    repeated = Predictions.of(p.logits.repeat(w, 0), p.labels.repeat(w))
    a, b = (calibrators.fit(spec, q).scaler for q in (weighted, repeated))
    keep = np.exp(b(p.logits)).min(1) > 0.01  # isotonic floors depend on the number of rows
    np.testing.assert_allclose(np.exp(a(p.logits))[keep], np.exp(b(p.logits))[keep], rtol=2e-3)


def test_every_method_is_ranked() -> None:
    from calibcli.calibrators.fitting import applicable
    from calibcli.calibrators.report import RankingOptions, rank

    p = predictions(250, 2)
    ranking = rank(applicable(), p, RankingOptions(folds=3))
    assert {row[1] for row in ranking.table.rows} == {"none", *applicable()}
    assert set(applicable()) == {e.name for e in calibrators.SCALERS}


def test_penalties_of_a_fold_do_not_look_at_its_own_losses() -> None:
    p = predictions(240, 4, weights=np.random.default_rng(2).uniform(0.1, 3, 240))
    memory: dict[str, Any] = {}
    whole = calibrators.fit("matrix", p, memory=memory)
    tried = memory["tried"]
    assert len(tried) > 3
    assert whole.facts["lambda"] in {t.pair[0] for t in tried}
    rows = np.arange(0, 240, 2)
    for t in tried:
        t.nll[1::2] = np.random.default_rng(0).uniform(0, 100, 120)  # of the rows left out
    best = min(tried, key=lambda t: float(p.weights[rows] @ t.nll[rows]))  # type: ignore[index]
    part = calibrators.fit("matrix", p.take(rows), memory=memory, rows=rows)
    assert (part.facts["lambda"], part.facts["mu"]) == best.pair
    alone = calibrators.fit(f"matrix:lam={best.pair[0]},mu={best.pair[1]}", p.take(rows)).scaler
    np.testing.assert_allclose(part.scaler.map(p.logits), alone.map(p.logits), rtol=1e-4, atol=1e-6)


def by_temperature(p: Predictions) -> np.ndarray:
    found = minimize_scalar(lambda b: loss(p, log_softmax(b * p.logits)), bounds=(0.01, 10), options={"xatol": 1e-12})
    return softmax(found.x * p.logits, axis=1)


def by_focal_map(p: Predictions) -> np.ndarray:
    """At the γ of the smallest NLL."""
    found = minimize_scalar(lambda g: loss(p, log_phi(p.logits, g)), bounds=(-0.9, 50), options={"xatol": 1e-12})
    return np.exp(log_phi(p.logits, found.x))


def by_both(p: Predictions) -> np.ndarray:
    options = {"xatol": 1e-10, "fatol": 1e-15, "maxiter": 10_000}
    start = np.array([1.0, 0.0])
    found = minimize(lambda v: loss(p, log_phi(v[0] * p.logits, v[1])), start, method="Nelder-Mead", options=options)
    return np.exp(log_phi(found.x[0] * p.logits, found.x[1]))


# (N, K) probabilities of 500 rows of three classes, by slow code
PROBABILITIES: dict[str, Callable[[Predictions], np.ndarray]] = {
    "temperature": by_temperature,
    "focal": by_focal_map,
    "focal_temperature": by_both,
    "sms": lambda p: by_structured(p, True),
    "svs": lambda p: by_structured(p, False),
}
ABOVE = {
    "vector": test_vector_and_bcts_minimise_the_penalised_nll,
    "bcts": test_vector_and_bcts_minimise_the_penalised_nll,
    "matrix": test_matrix_and_dirichlet_minimise_the_penalised_nll,
    "dirichlet": test_matrix_and_dirichlet_minimise_the_penalised_nll,
    "platt": test_platt_is_that_of_scikit_learn,
    "beta": test_platt_and_beta_of_many_classes_are_one_against_the_rest,
    "isotonic": test_isotonic_of_classes_and_of_the_top_label,
    "isotonic_top": test_isotonic_of_classes_and_of_the_top_label,
    "histogram": test_histogram_counts,
    "ensemble_temperature": test_ensemble_temperature_is_the_best_mixture,
    "top_label": test_top_label_has_a_map_for_each_predicted_class,
}


@pytest.mark.parametrize("spec", PROBABILITIES)
def test_a_map_moves_the_scores_of_its_oracle(spec: str) -> None:
    """Else the oracle below would compare two identities."""
    p = predictions()
    logits = 0.3 * p.logits
    mapped = np.exp(calibrators.fit(spec, Predictions.of(logits, p.labels)).scaler(logits))
    assert np.abs(mapped - softmax(logits, axis=1)).max() > 1e-3


@pytest.mark.parametrize("spec", PROBABILITIES)
def test_method_equals_its_oracle(spec: str) -> None:
    p = predictions()
    p = Predictions.of(0.3 * p.logits, p.labels)  # less confident than right, so that γ > 0 is best
    wanted, got = PROBABILITIES[spec](p), np.exp(calibrators.fit(spec, p).scaler(p.logits))
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
    assert not np.allclose(1.01 * got, wanted, rtol=1e-4), "a 1 % error would pass"


def test_every_method_has_an_oracle() -> None:
    assert {spec.partition(":")[0] for spec in PROBABILITIES} | set(ABOVE) == {e.name for e in calibrators.SCALERS}, (
        "write its oracle in PROBABILITIES: CONTRIBUTING, A scaler"
    )


@pytest.mark.parametrize("right", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("least", [1e-6, 1e-15, 1e-200])
def test_platt_of_rows_that_are_all_sure(right: float, least: float) -> None:
    """Of two values of the score the map takes each to the mean target of its rows, however sure they were."""
    mixed, n = np.random.default_rng(0).permutation(400), 200  # sorted rows would look like those of another order
    sure = np.repeat([0, 1], 200)[mixed]
    labels = np.where(mixed % n < right * n, sure, 1 - sure)
    p = np.where(np.eye(2)[sure] == 1, 1 - least, least)
    found = calibcli.fit_scaler(p, labels, "platt", kind="probabilities").predict_proba(p)[:, 1]
    ones = labels.sum()
    target = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (400 - ones + 2))
    expected = np.array([target[sure == side].mean() for side in (0, 1)])[sure]
    assert found == pytest.approx(expected, abs=1e-7)


@pytest.mark.regression
def test_a_fit_that_settled_is_not_said_to_have_no_minimum() -> None:
    """A gradient of 0 ends a fit at once, where no step says what is left."""
    y = np.array([0, 0, 1, 1] * 10)
    for method in ("vector", "matrix:lam=1e-3,mu=1e-3", "bcts"):
        notes = calibrators.fit(method, Predictions.of(np.eye(2)[y] * 50.0, y)).notes
        assert not [note for note in notes if "no minimum" in note]
