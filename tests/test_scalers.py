"""Temperature and focal temperature scaling, cross-fitting, saving: against direct searches and fixed values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from focal_inverse import log_phi_inverse
from scipy import stats
from scipy.optimize import brentq, minimize, minimize_scalar

import calibcli
from calibcli import calibrators, metrics
from calibcli.calibrators import focal
from calibcli.calibrators import temperature as search
from calibcli.calibrators._focal_likelihood import GRID, Surface, acceptable
from calibcli.calibrators.calibrator import keeps_classes
from calibcli.calibrators.fitting import fold_of_rows
from calibcli.calibrators.temperature import GRIDS
from calibcli.core.errors import InputError, UsageError
from calibcli.core.statistics import effective_groups
from calibcli.scores.likelihood import log_phi, log_softmax, nll_rows
from calibcli.scores.likelihood.focal_map import Shifted, focal_rows
from calibcli.scores.predictions import Predictions

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def predictions(n: int = 600, k: int = 5, temperature: float = 1.6, seed: int = 0, **fields: Any) -> Predictions:
    """Logits whose labels follow softmax(z / temperature)."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    return Predictions.of(z * temperature, y, **fields)


def focal_trained(n: int = 4000, k: int = 4, gamma: float = 2.0, temperature: float = 0.7) -> Predictions:
    """Logits for which φ_γ(softmax(z / T)) is the truth."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal((n, k)) * 1.2
    y = (log_phi(z / temperature, gamma) + rng.gumbel(size=z.shape)).argmax(1)
    return Predictions.of(z, y)


def value(fit: calibrators.Fit, name: str) -> float:
    found = next(e for e in fit.estimates if e.name == name).value
    assert found is not None
    return found


# --- the kernel


@pytest.mark.parametrize("k", [2, 3, 10, 60])
@pytest.mark.parametrize("gamma", [-0.95, -0.5, 0.0, 0.3, 2.0, 5.0])
def test_focal_rows_against_log_phi_and_differences(k: int, gamma: float) -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((300, k)) * rng.choice([0.3, 2, 20, 300], size=(300, 1))
    y = rng.integers(0, k, 300)
    data = Shifted.of(z, y)
    got = focal_rows(data, 0.8, [gamma])[0]
    log_p = log_phi(0.8 * z, gamma)
    np.testing.assert_allclose(got.nll, -log_p[np.arange(300), y], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.confidence, np.exp(log_p.max(1)), rtol=1e-12)

    def nll(beta: float, g: float) -> np.ndarray:
        return focal_rows(data, beta, [g], gradient=False)[0].nll

    h = 1e-6
    d_beta = (nll(0.8 + h, gamma) - nll(0.8 - h, gamma)) / (2 * h)
    d_gamma = (nll(0.8, gamma + h) - nll(0.8, gamma - h)) / (2 * h)
    np.testing.assert_allclose(got.d_beta, d_beta, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got.d_gamma, d_gamma, rtol=1e-6, atol=1e-6)


@pytest.mark.regression
@pytest.mark.parametrize("objective", ["nll", "brier", "ece", "adaece"])
def test_counts_give_the_best_temperature_and_the_plateau_of_repeated_rows(objective: str) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3)) * 2
    y, counts = (z + 1.3 * rng.gumbel(size=z.shape)).argmax(1), rng.integers(1, 6, 300)
    counted = calibcli.from_arrays(z, y, weights=counts, weight_kind="count")
    repeated = calibcli.from_arrays(np.repeat(z, counts, axis=0), np.repeat(y, counts))
    found, expected = (search.best_temperature(p, GRIDS["mukhoti"], objective) for p in (counted, repeated))
    assert (found.temperature, found.plateau) == (expected.temperature, expected.plateau)


@pytest.mark.parametrize("entry", VECTORS["fts_nll_opt_fixed_gamma"], ids=lambda e: str(e["gamma"]))
def test_best_temperature_for_a_fixed_gamma(entry: dict[str, float]) -> None:
    data = VECTORS["temperature"]
    point = Surface(np.array(data["logits"]), np.array(data["labels"])).best(entry["gamma"], 0.0)
    assert point.temperature == pytest.approx(entry["T"], abs=entry["tol_T"])
    assert point.nll == pytest.approx(entry["nll"], rel=1e-12)


# --- temperature


def test_temperature_is_the_exact_fit_with_its_interval() -> None:
    p = predictions()
    fit = calibrators.fit("temperature", p)
    best = minimize_scalar(lambda u: nll_rows(p.logits, p.labels, math.exp(-u)).mean(), tol=1e-12).x
    assert value(fit, "temperature") == pytest.approx(math.exp(best), rel=1e-6)
    estimate = fit.estimates[0]
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < 1.6 < estimate.high
    assert estimate.low * estimate.high == pytest.approx(value(fit, "temperature") ** 2)  # symmetric in ln T
    np.testing.assert_allclose(fit.scaler(p.logits), log_softmax(p.logits / value(fit, "temperature")))


def test_interval_of_the_temperature_covers() -> None:
    inside = 0
    for seed in range(200):
        e = calibrators.fit("temperature", predictions(200, 3, 1.6, seed), report=False).estimates[0]
        assert e.low is not None
        assert e.high is not None
        inside += e.low < 1.6 < e.high
    assert 180 <= inside <= 199


def test_an_interval_of_many_orders_of_magnitude_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, nearly all certain, once gave a spread of ln T whose exponential is no number."""
    monkeypatch.setattr("calibcli.calibrators.temperature.jackknife", lambda *a, **k: (1e4, 5.0))
    rows = Predictions.of(np.eye(3)[[0, 1, 2, 0, 1]] * 2, [0, 1, 2, 1, 1])
    [estimate] = [e for e in calibrators.fit("temperature", rows).estimates if e.name == "temperature"]
    assert estimate.low is None
    assert estimate.reason is not None
    assert "hardly determine T" in estimate.reason


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["ece", "adaece"])
@pytest.mark.parametrize("grid", ["mukhoti", "komisarenko"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pruned_grid_equals_the_whole_grid(objective: str, grid: str, weighted: bool) -> None:
    for seed in range(4):
        p = predictions(400, 4, 1.5 + 0.4 * seed, seed)
        if weighted:
            p = Predictions.of(p.logits, p.labels, weights=np.random.default_rng(seed).uniform(0.5, 2, p.n))
        error = search.BinnedObjective(p, objective, 15)
        whole = [error(np.exp(log_softmax(p.logits / t)).max(1)) for t in GRIDS[grid]]
        found = search.best_temperature(p, GRIDS[grid], objective)
        assert found.temperature == GRIDS[grid][int(np.argmin(np.round(whole, 13)))]
        assert found.value == pytest.approx(min(whole), rel=1e-12)
        near = [t for t, v in zip(GRIDS[grid], whole, strict=True) if v <= min(whole) + (found_slack(p, found))]
        assert found.plateau == (min(near), max(near))
        assert found.evaluated < 60


def found_slack(p: Predictions, found: search.GridMinimum) -> float:
    confidence = np.exp(log_softmax(p.logits / found.temperature)).max(1)
    return search.null_deviation(confidence, p.weights)


@pytest.mark.parametrize(("name", "spec"), [("ece", "ece"), ("adaece", "adaece")])
def test_objectives_are_the_metrics(name: str, spec: str) -> None:
    p = predictions(407, 4)
    p = Predictions.of(np.round(p.logits, 1), p.labels)  # ties
    confidence = np.exp(log_softmax(p.logits)).max(1)
    got = search.BinnedObjective(p, name, 15)(confidence)
    assert got == pytest.approx(metrics.measure(p, [spec])[0].value, rel=1e-12)


@pytest.mark.parametrize("objective", ["nll", "brier"])
def test_other_objectives(objective: str) -> None:
    p = predictions(500, 4)

    def loss(t: float) -> float:
        if objective == "nll":
            return float(nll_rows(p.logits, p.labels, 1 / t).mean())
        q = np.exp(log_softmax(p.logits / t))
        return float(((q - np.eye(4)[p.labels]) ** 2).sum(1).mean())

    best = minimize_scalar(lambda u: loss(math.exp(u)), bounds=(-1, 2), method="bounded", options={"xatol": 1e-9})
    assert value(calibrators.fit(f"temperature:objective={objective}", p), "temperature") == pytest.approx(
        math.exp(best.x), rel=1e-6
    )
    whole = [loss(t) for t in GRIDS["mukhoti"]]
    on_grid = calibrators.fit(f"temperature:objective={objective},grid=mukhoti", p)
    assert value(on_grid, "temperature") == GRIDS["mukhoti"][int(np.argmin(whole))]


def test_bins_have_an_effect() -> None:
    p = predictions(300, 3)
    few, many = (calibrators.fit(f"temperature:objective=ece,bins={b}", p).estimates[0].detail for b in (3, 60))
    assert few["objective"] != many["objective"]


@pytest.mark.parametrize("spec", ["temperature", "focal_temperature"])
def test_degenerate_cases_are_named_not_returned(spec: str) -> None:
    p = predictions()
    perfect = Predictions.of(p.logits, p.logits.argmax(1))
    backwards = Predictions.of(p.logits, p.logits.argmin(1))
    constant = Predictions.of(np.ones((50, 3)), np.arange(50) % 3)
    for data, name in ((perfect, "separable"), (backwards, "anti_informative"), (constant, "constant")):
        fit = calibrators.fit(spec, data)
        assert all(e.value is None and e.reason.startswith(name) for e in fit.estimates)
        assert fit.notes
        assert np.isfinite(fit.scaler(data.logits)).all()
    np.testing.assert_allclose(calibrators.fit(spec, perfect).scaler(p.logits), log_softmax(p.logits))
    np.testing.assert_allclose(calibrators.fit(spec, backwards).scaler(p.logits), -math.log(5))


# --- focal temperature


def test_focal_temperature_finds_the_optimum() -> None:
    p = focal_trained(1500)
    fit = calibrators.fit("focal-temperature", p)

    def loss(x: np.ndarray) -> float:
        return float(-log_phi(p.logits * math.exp(x[0]), x[1])[np.arange(p.n), p.labels].mean())

    best = minimize(loss, [0.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-13, "maxiter": 400})
    assert value(fit, "gamma") == pytest.approx(best.x[1], rel=1e-4)
    assert value(fit, "temperature") == pytest.approx(math.exp(-best.x[0]), rel=1e-4)
    gamma = next(e for e in fit.estimates if e.name == "gamma")
    assert gamma.low is not None
    assert gamma.high is not None
    assert gamma.low < 2.0 < gamma.high
    quick = calibrators.fit("focal-temperature", p, report=False)
    assert float(quick.scaler.parameters["gamma"]) == pytest.approx(value(fit, "gamma"), rel=1e-6)


def test_ridge_profile_and_acceptable_set() -> None:
    p = predictions(500, 4)
    fit = calibrators.fit("focal_temperature", p)
    profile = next(plot for plot in fit.plots if plot.name == "gamma_profile")
    curve, limit, best = profile.curves
    for gamma, nll in zip(curve.x, curve.y, strict=True):
        found = minimize_scalar(
            lambda u, g=gamma: -log_phi(p.logits * math.exp(u), g)[np.arange(p.n), p.labels].mean(), bracket=(-1, 0.5)
        )
        assert nll == pytest.approx(found.fun, rel=1e-8)
    rise = limit.y[0] - min(v for v in (*curve.y, best.y[0]) if v is not None)
    assert 1.9207294 <= rise * p.n < 2  # a chi-square's, a little more by Student's t and the variance over rows
    assert {plot.kind for plot in fit.plots} == {"xy", "heat"}
    assert any("plain temperature is recommended" in note for note in fit.notes)
    assert fit.facts["recommended"] == "temperature"


def test_a_temperature_that_the_range_of_gamma_alone_confines_has_no_interval_over_groups() -> None:
    rng = np.random.default_rng(1)
    z = 2 * rng.standard_normal((200, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    for groups, none in ((None, False), (np.arange(200) // 5, True)):
        t, gamma = calibrators.fit("focal_temperature", Predictions.of(1.6 * z, y, groups=groups)).estimates[:2]
        assert (t.low is None and "gamma's range" in t.reason) == none
        assert (gamma.low, gamma.high) == (-0.5, 5.0)


@pytest.mark.slow
def test_held_out_gain_is_that_of_cross_fitting() -> None:
    p = focal_trained(1500)
    fit = calibrators.fit("focal_temperature", p)
    gain = next(e for e in fit.estimates if e.name == "focal_gain")
    plain, focal = (calibrators.cross_fit(s, p, 5, 0) for s in ("temperature", "focal_temperature"))
    rows = np.arange(p.n)
    difference = (focal.logits - plain.logits)[rows, p.labels]
    assert gain.value == pytest.approx(difference.mean(), rel=1e-4)
    assert gain.se == pytest.approx(difference.std() / math.sqrt(p.n), rel=1e-3)


@pytest.mark.slow
def test_a_real_gain_is_recommended() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((3000, 3)) * 3
    y = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    told = log_phi_inverse(truth, 3.0)  # what a focal-trained model says of it
    fit = calibrators.fit("focal_temperature", Predictions.of(told, y))
    assert fit.facts["recommended"] == "focal_temperature"
    assert not any("recommended" in note for note in fit.notes)
    assert value(fit, "gamma") == pytest.approx(3, abs=1.2)


def test_acceptable_ends_where_the_profile_crosses_the_limit() -> None:
    surface = Surface(np.array(VECTORS["temperature"]["logits"]), np.array(VECTORS["temperature"]["labels"]))
    points = surface.profile(GRID, 0.0)
    limit = min(p.nll for p in points) + 0.002
    gammas = np.linspace(-0.5, 5, 221)
    inside = [g for g in gammas if surface.best(float(g), 0.0, 1e-8).nll <= limit]
    pieces = acceptable(surface, points, limit)
    assert len(pieces) == 2  # the profile of these twelve rows has two valleys
    for g in gammas:
        assert any(a <= g <= b for a, b in pieces) == (g in inside)


def rows_of(n: int, k: int, kind: str) -> Predictions:
    """Rows of a model trained with focal loss: independent, weighted, in groups, or nearly all of them certain."""
    rng = np.random.default_rng(k)
    z = rng.standard_normal((n, k)) * (9 if kind == "saturated" else 3)
    own = np.exp(0.3 * rng.standard_normal(60))[np.arange(n) % 60][:, None] if kind == "groups" else 1.0
    y = (log_phi(z / own, 1.2) + rng.gumbel(size=z.shape)).argmax(axis=1)
    fields = {"weights": rng.uniform(0.2, 3, n)} if kind == "weights" else {}
    return Predictions.of(1.4 * z, y, **(fields | ({"groups": np.arange(n) % 60} if kind == "groups" else {})))


class Slow:
    """Focal temperature by scipy, on the rows that it is given and no others."""

    def __init__(self, p: Predictions) -> None:
        self.p, self.w = p, np.ones(p.n) if p.weights is None else p.weights

    def rows(self, u: float, gamma: float) -> np.ndarray:
        return -log_phi(self.p.logits * math.exp(u), gamma)[np.arange(self.p.n), self.p.labels]

    def nll(self, u: float, gamma: float) -> float:
        return float(self.rows(u, gamma) @ self.w / self.w.sum())

    def optimum(self) -> np.ndarray:
        """(u, γ)."""
        options = {"ftol": 1e-15, "gtol": 1e-9}
        bounds = [(-4, 4), (-0.5, 5)]
        found = [minimize(lambda x: self.nll(*x), (-0.4, g), bounds=bounds, options=options) for g in (0.3, 2.0)]
        return min(found, key=lambda f: f.fun).x  # type: ignore[no-any-return]

    def plain(self) -> float:
        return float(minimize_scalar(lambda u: self.nll(u, 0.0), bounds=(-3, 2), options={"xatol": 1e-8}).x)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Of rows, or of each group."""
        return self.w * values if self.p.groups is None else np.bincount(self.p.groups, self.w * values)

    def ends(self, which: int, best: np.ndarray) -> list[float]:
        """The confidence set of u (0) or γ (1): where the profile exceeds its limit by Student's t and the sandwich."""
        h, e = 1e-3, np.eye(2) * 1e-3
        f = lambda x: self.nll(*x)  # noqa: E731
        second = np.array(
            [[f(best + a + b) - f(best + a - b) - f(best - a + b) + f(best - a - b) for a in e] for b in e]
        )
        inverse = np.linalg.inv(second / (4 * h * h))
        psi = np.stack([self.sums(self.rows(*(best + a)) - self.rows(*(best - a))) for a in e], axis=1) / (2 * h)
        psi = (psi - psi.mean(axis=0)) / self.w.sum()
        covariance = inverse @ (psi.T @ psi * len(psi) / (len(psi) - 2)) @ inverse
        q = np.exp(log_softmax(self.p.logits * math.exp(best[0])))
        z = self.p.logits
        m = self.sums((q * z**2).sum(1) - (q * z).sum(1) ** 2)
        units = effective_groups(m) if self.p.groups is not None else m.sum() ** 2 / (m**2).sum()
        size = self.w.sum() ** 2 / (self.w**2).sum()
        t = stats.t.ppf(0.975, units - 1)
        limit = f(best) + t * t / 2 * max(1 / size, covariance[which, which] / inverse[which, which])

        def above(x: float) -> float:
            other = lambda v: f((x, v) if which == 0 else (v, x))  # noqa: E731
            bounds = (-0.5, 5) if which == 0 else (best[0] - 2, best[0] + 2)
            return float(minimize_scalar(other, bounds=bounds, options={"xatol": 1e-5}).fun) - limit

        width = math.sqrt(2 * (limit - f(best)) * inverse[which, which])
        far = [best[which] + sign * 3 * width for sign in (-1, 1)]
        far = np.clip(far, -0.5, 5) if which else far
        return [brentq(above, best[which], x, xtol=1e-4 * width) for x in far]


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.parametrize("case", [34, 37, 74, 79])
def test_few_rows_that_lack_a_valley_do_not_hide_it(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit without a report, as each fold has, ends in the optimum of all rows, wherever few rows begin."""
    monkeypatch.setattr(focal, "FEW", 0)
    monkeypatch.setattr(focal, "FEW_ROWS", 40)
    rng = np.random.default_rng(case)
    k = int(rng.choice([5, 10, 20]))
    z = rng.standard_normal((300, k)) * rng.uniform(0.5, 3)
    chances = np.exp(log_phi(z, rng.uniform(0, 4)))
    p = Predictions.of(z, np.array([rng.choice(k, p=row / row.sum()) for row in chances]))
    slow = Slow(p)
    least = slow.nll(*slow.optimum())
    for seed in range(4):
        fit = calibrators.fit("focal_temperature", p, seed=seed, report=False).scaler.parameters
        assert slow.nll(math.log(fit["beta"]), float(fit["gamma"])) <= least + 1e-10


@pytest.mark.regression
@pytest.mark.parametrize(
    ("n", "k", "kind"),
    [(1500, 2, "rows"), (700, 10, "weights"), (900, 10, "groups"), (900, 10, "saturated"), (300, 100, "rows")],
)
@pytest.mark.one_in(5)
def test_all_numbers_of_focal_temperature_are_those_of_all_rows(
    n: int, k: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The few rows that a search begins with, a fifth here, leave no trace in the numbers."""
    monkeypatch.setattr(focal, "FEW", 0)
    monkeypatch.setattr(focal, "FEW_ROWS", n // 5)
    p = rows_of(n, k, kind)
    fit, slow = calibrators.fit("focal_temperature", p), Slow(p)
    t, gamma, gain = fit.estimates
    best = slow.optimum()
    assert (math.log(t.value), gamma.value) == pytest.approx((-best[0], best[1]), abs=2e-4)
    assert {e.n for e in fit.estimates} == {n}
    assert all("random" not in e.how for e in fit.estimates)
    assert [f"n = {n:,}" in plot.title for plot in fit.plots] == [True, False]
    assert f"n = {n // 5:,} random rows of {n:,}" in fit.plots[1].title
    for which, e in ((1, gamma), (0, t)):
        if None not in (e.low, e.high) and gamma.low > -0.5 and gamma.high < 5:
            ends = [e.low, e.high] if which else [-math.log(e.high), -math.log(e.low)]
            assert ends == pytest.approx(slow.ends(which, best), abs=2e-3 * (ends[1] - ends[0]))
    folds, gains = fold_of_rows(p, 5, 0), np.empty(n)
    for fold in range(5):
        inside, outside = Slow(p.take(folds != fold)), Slow(p.take(folds == fold))
        gains[folds == fold] = outside.rows(inside.plain(), 0.0) - outside.rows(*inside.optimum())
    mean = gains @ slow.w / slow.w.sum()
    assert gain.value == pytest.approx(mean, abs=2e-3 * gain.se)
    if p.groups is None:
        size = slow.w.sum() ** 2 / (slow.w**2).sum()
        assert gain.se == pytest.approx(
            math.sqrt(((slow.w * (gains - mean)) ** 2).sum() / slow.w.sum() ** 2 * size / (size - 1)), rel=1e-3
        )
    assert fit.facts["recommended"] == ("focal_temperature" if gain.low > 0 else "temperature")


@pytest.mark.slow
@pytest.mark.parametrize("more", ["rows", "weights"])
@pytest.mark.one_in(2)
def test_komisarenko_grid_equals_brute_force(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(focal, "FEW", 0)
    monkeypatch.setattr(focal, "FEW_ROWS", 30)
    p = predictions(150, 3)
    p = replace(p, weights=np.random.default_rng(2).uniform(0.2, 3, 150)) if more == "weights" else p
    temperatures, gammas = GRIDS["komisarenko"], (-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 3, 5)
    rows, table = np.arange(p.n), np.empty((4, 100, 11))
    errors = [search.BinnedObjective(p, objective, 15) for objective in ("ece", "adaece")]
    for i, t in enumerate(temperatures):
        for j, g in enumerate(gammas):
            log_p = log_phi(p.logits / t, g)
            q = np.exp(log_p)
            nll, brier = -log_p[rows, p.labels], ((q - np.eye(3)[p.labels]) ** 2).sum(1)
            means = [np.average(values, weights=p.weights) for values in (nll, brier)]
            table[:, i, j] = [*means, *(error(q.max(1)) for error in errors)]
    for objective, values in zip(("nll", "brier", "ece", "adaece"), table, strict=True):
        i, j = divmod(int(values.argmin()), 11)
        fit = calibrators.fit(f"focal_temperature:objective={objective},grid=komisarenko", p)
        assert (value(fit, "temperature"), value(fit, "gamma")) == (temperatures[i], gammas[j])
        assert np.array(fit.plots[0].z) == pytest.approx(values, abs=1e-9)
        assert fit.plots[0].title.endswith("n = 150")


def test_phi_before_temperature_is_another_family() -> None:
    p = focal_trained(800)
    fit = calibrators.fit("focal_temperature:order=phi-T", p)
    t, gamma = value(fit, "temperature"), value(fit, "gamma")
    np.testing.assert_allclose(fit.scaler(p.logits), log_softmax(log_phi(p.logits, gamma) / t), rtol=1e-12)
    with pytest.raises(UsageError, match="NLL only"):
        calibrators.fit("focal_temperature:order=phi-T,objective=ece", p)


@pytest.mark.parametrize("gamma", [-1, -0.5, 0.5, 3.0, 5.0])
def test_the_temperature_of_a_given_gamma(gamma: float) -> None:
    p = focal_trained(900)
    fit = calibrators.fit(f"focal_temperature:gamma={gamma:g}", p)
    rows = np.arange(p.n)
    found = minimize_scalar(
        lambda u: -log_phi(p.logits * np.exp(u), gamma)[rows, p.labels].mean(), bounds=(-4, 4), options={"xatol": 1e-10}
    )
    t = next(e for e in fit.estimates if e.name == "temperature")
    assert t.value == pytest.approx(np.exp(-found.x), rel=1e-6)
    assert t.low is not None
    assert t.high is not None
    assert t.low < t.value < t.high
    assert value(fit, "gamma") == gamma
    np.testing.assert_allclose(fit.scaler(p.logits), log_phi(p.logits / t.value, gamma), rtol=1e-10, atol=1e-12)
    assert np.array_equal(fit.scaler(p.logits).argmax(1), p.logits.argmax(1))
    phi = calibrators.fit(f"focal_temperature:gamma={gamma:g},order=phi-T", p)
    plain = calibrators.fit("temperature", Predictions.of(log_phi(p.logits, gamma), p.labels))
    assert value(phi, "temperature") == pytest.approx(value(plain, "temperature"), rel=1e-6)


@pytest.mark.parametrize("more", ["nothing", "weights", "groups"])
def test_of_gamma_zero_it_is_temperature_scaling(more: str) -> None:
    p = focal_trained(800)
    fields = {"weights": np.random.default_rng(1).uniform(0.2, 2, 800), "groups": np.arange(800) // 4}
    p = replace(p, **({more: fields[more]} if more in fields else {}))
    given, plain = (calibrators.fit(spec, p).estimates[0] for spec in ("focal_temperature:gamma=0", "temperature"))
    assert given.value == pytest.approx(plain.value, rel=1e-6)
    for name in ("low", "high", "se"):
        assert getattr(given, name) == pytest.approx(getattr(plain, name), rel=0.02), name


def test_the_grid_of_a_given_gamma() -> None:
    p = predictions(150, 3)
    fit = calibrators.fit("focal_temperature:gamma=0.5,grid=komisarenko", p)
    rows, grid = np.arange(p.n), GRIDS["komisarenko"]
    nll = [-log_phi(p.logits / t, 0.5)[rows, p.labels].mean() for t in grid]
    assert (value(fit, "temperature"), value(fit, "gamma")) == (grid[int(np.argmin(nll))], 0.5)
    with pytest.raises(UsageError, match="gamma"):
        calibrators.fit("focal_temperature:gamma=-2", p)


@pytest.mark.parametrize("entry", VECTORS["fts"])
def test_focal_temperature_vectors(entry: dict[str, Any]) -> None:
    z = np.array([entry["logits"]])
    parameters = {"beta": np.array(1 / entry["T"]), "gamma": np.array(entry["gamma"])}
    first = calibrators.Scaler("focal_temperature", z.shape[1], parameters)
    np.testing.assert_allclose(np.exp(first(z)[0]), entry["T_then_phi"], rtol=1e-12)
    second = calibrators.Scaler("focal_temperature", z.shape[1], {**parameters, "phi_first": np.array(1.0)})
    np.testing.assert_allclose(np.exp(second(z)[0]), entry["phi_then_T"], rtol=1e-12)


def test_gamma_zero_is_temperature_scaling() -> None:
    p = predictions()
    focal = calibrators.Scaler("focal_temperature", 5, {"beta": np.array(0.7), "gamma": np.array(0.0)})
    plain = calibrators.Scaler("temperature", 5, {"beta": np.array(0.7)})
    np.testing.assert_array_equal(focal(p.logits), plain(p.logits))


def test_focal_alone_is_one_dimensional() -> None:
    p = focal_trained(3000, 4, 1.5, 1.0)
    fit = calibrators.fit("focal", p)
    best = minimize_scalar(
        lambda g: -log_phi(p.logits, g)[np.arange(p.n), p.labels].mean(),
        bounds=(-0.5, 5),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert value(fit, "gamma") == pytest.approx(best.x, rel=1e-5)
    bound = calibrators.fit("focal", Predictions.of(p.logits * 30, p.labels))
    assert bound.estimates[0].reason.startswith("bound")


# --- all of them


@pytest.mark.parametrize("weights", [np.array([1.0, 2, 0, 3, 1])], ids=["repeat"])
@pytest.mark.parametrize("spec", ["temperature", "focal_temperature", "focal", "temperature:objective=brier"])
def test_weights_repeat_rows(spec: str, weights: np.ndarray) -> None:
    p = predictions(400, 4)
    w = np.resize(weights, 400)
    weighted = Predictions.of(p.logits, p.labels, weights=w)
    repeated = Predictions.of(p.logits.repeat(w.astype(int), 0), p.labels.repeat(w.astype(int)))
    a, b = (calibrators.fit(spec, q, report=False).scaler for q in (weighted, repeated))
    for name, parameter in a.parameters.items():
        np.testing.assert_allclose(parameter, b.parameters[name], rtol=1e-6, atol=1e-6)


def test_cross_fit_never_sees_its_own_rows() -> None:
    p = predictions(500, 3, ids=np.arange(500).astype(str))
    out = calibrators.cross_fit("temperature", p, folds=5, seed=1)
    folds = calibrators.fold_of_rows(p, 5, 1)
    assert np.array_equal(np.bincount(folds), [100] * 5)
    for fold in range(5):
        rows = folds == fold
        scaler = calibrators.fit("temperature", p.take(~rows)).scaler
        np.testing.assert_allclose(out.logits[rows], scaler(p.logits[rows]), rtol=1e-12)
    assert np.array_equal(out.predicted, p.logits.argmax(1))
    grouped = predictions(300, 3, groups=np.arange(300) // 10)
    folds = calibrators.fold_of_rows(grouped, 5, 0)
    assert all(len(set(folds[i * 10 : i * 10 + 10])) == 1 for i in range(30))
    with pytest.raises(UsageError, match="1 fold"):
        calibrators.cross_fit("temperature", p, folds=1)
    with pytest.raises(InputError, match="cannot be split"):
        calibrators.cross_fit("temperature", predictions(3, 3), folds=5)


class Streamed:
    """Scores that refuse to be read whole."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.longest = array, array.shape, array.dtype, 0

    def read(self, start: int, stop: int) -> np.ndarray:
        self.longest = max(self.longest, stop - start)
        return self.array[start:stop]


def test_streams_are_never_read_whole() -> None:
    p = predictions(60_000, 40)
    streamed = Streamed(p.logits.astype(np.float32))
    stream = Predictions(scores=streamed, labels=p.labels)
    fit = calibrators.fit("temperature", stream)
    out = calibrators.cross_fit("temperature", stream)
    mapped = calibrators.apply(fit.scaler, stream)
    assert metrics.measure(out, ["nll"])[0].value == pytest.approx(metrics.measure(mapped, ["nll"])[0].value, rel=1e-3)
    assert streamed.longest < 60_000
    assert value(fit, "temperature") == pytest.approx(
        value(calibrators.fit("temperature", Predictions.of(p.logits.astype(np.float32), p.labels)), "temperature"),
        rel=2e-8,
    )


SPECS = [entry.name for entry in calibrators.SCALERS]


@pytest.mark.parametrize("spec", SPECS)
def test_saved_and_loaded_scaler_is_the_same(spec: str, tmp_path: Path) -> None:
    p = predictions(300, 3, classes=None)
    scaler = calibrators.fit(spec, p, report=False).scaler
    calibrators.save(scaler, tmp_path / "cal.safetensors")
    loaded = calibrators.load(tmp_path / "cal.safetensors")
    np.testing.assert_array_equal(loaded(p.logits), scaler(p.logits))
    assert (loaded.spec, loaded.k, loaded.metadata["n"]) == (scaler.spec, scaler.k, 300)


@pytest.mark.parametrize("spec", SPECS)
def test_output_is_a_distribution_and_keeps_classes_if_it_says_so(spec: str) -> None:
    p = predictions(300, 3, classes=None)
    scaler = calibrators.fit(spec, p, report=False).scaler
    extreme = np.concatenate([p.logits, p.logits * 1e3, np.zeros((1, p.k))])
    log_p = scaler(extreme)
    assert log_p.dtype == np.float64
    np.testing.assert_allclose(np.exp(log_p).sum(1), 1, rtol=1e-9)
    if scaler.preserves_accuracy:
        applied = calibrators.apply(scaler, p)
        assert np.array_equal(applied.predicted, p.logits.argmax(1))


def keeping() -> Iterator[str]:
    """Specs of the registry that keep the predicted classes: the name alone, else with each option that makes it so."""
    for entry in calibrators.SCALERS:
        with_options = [
            f"{entry.name}:{option}={word}"
            for option, parameter in entry.options.items()
            for word in (get_args(parameter.annotation) if get_origin(parameter.annotation) is Literal else ())
        ]
        if keeps_classes(calibrators.SCALERS.choose(entry.name)):
            yield entry.name
        else:
            yield from (spec for spec in with_options if keeps_classes(calibrators.SCALERS.choose(spec)))


KEEP = tuple(keeping())


def test_the_page_names_the_methods_that_keep_the_predicted_classes() -> None:
    text = (Path(__file__).parent.parent / "docs" / "scale.md").read_text(encoding="utf-8")
    [sentence] = re.findall(r"^(`.*?) keep\sthe predicted classes; the others may change them", text, re.M | re.S)
    assert sorted(re.findall(r"`(.+?)`", sentence.rpartition("\n\n")[2])) == sorted(
        spec.replace("_", "-") for spec in KEEP
    )
    assert {"temperature", "histogram:of=top"} <= {*KEEP}
    assert "platt" not in KEEP


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("spec", KEEP)
def test_the_predicted_class_is_kept_where_rounding_makes_two_equal(spec: str, dtype: str) -> None:
    """Of arrays, and of tensors, which come back in float32; the map is that of a model that is far too sure."""
    import torch

    rng = np.random.default_rng(0)
    z = rng.standard_normal((4000, 12)) * 3
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    scaler = calibrators.fit(spec, Predictions.of(4 * z, labels), report=False).scaler
    z[:2000, 7] = z[:2000].max(axis=1) + rng.choice([1e-7, 1e-3, 1.0], 2000)
    given: Any = z if dtype == "float64" else torch.from_numpy(z.astype(np.float32))
    raw = np.asarray(given).argmax(axis=1)
    for found in (scaler(given), scaler.predict_proba(given)):
        assert str(found.dtype).removeprefix("torch.") == dtype
        assert np.array_equal(np.asarray(found).argmax(axis=1), raw)


@pytest.mark.parametrize("spec", SPECS)
def test_shift_of_logits_changes_nothing(spec: str) -> None:
    p = predictions(300, 3, classes=None)
    shifted = Predictions.of(p.logits + np.arange(p.n)[:, None] % 7, p.labels)
    a, b = (calibrators.fit(spec, q, report=False).scaler for q in (p, shifted))
    np.testing.assert_allclose(a(p.logits), b(shifted.logits), rtol=1e-4, atol=1e-6)


def test_refusals(tmp_path: Path) -> None:
    p = predictions(100, 3, classes=["cat", "dog", "eel"])
    scaler = calibrators.fit("temperature", p).scaler
    with pytest.raises(UsageError, match="unknown scaler"):
        calibrators.fit("temprature", p)
    with pytest.raises(InputError, match="no rows"):
        calibrators.fit("temperature", p.take(np.zeros(100, bool)))
    with pytest.raises(InputError, match="fitted on 3"):
        calibrators.apply(scaler, predictions(10, 4))
    with pytest.raises(InputError, match="another order"):
        calibrators.apply(scaler, predictions(10, 3, classes=["dog", "cat", "eel"]))
    with pytest.raises(InputError, match="'fox' is only in the data"):
        calibrators.apply(scaler, predictions(10, 3, classes=["cat", "dog", "fox"]))
    with pytest.raises(InputError, match="calibrator of 3 classes"):
        scaler(np.zeros((2, 4)))
    for content in (b"", b"hello", b"\x08\0\0\0\0\0\0\0{}      ", bytes(100)):
        (tmp_path / "bad.safetensors").write_bytes(content)
        with pytest.raises(InputError):
            calibrators.load(tmp_path / "bad.safetensors")
    with pytest.raises(InputError, match="cannot read"):
        calibrators.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "odds"}, "fit.kind is 'odds'"),
        ({"columns": 7}, "fitted on 7 columns for 3 classes"),
        ({"columns": "3"}, "fit.columns is '3', not a whole number"),
        ({"estimates": {}}, "fit.estimates is {}, not a list"),
        ({"estimates": [{"name": 3, "value": 1.0}]}, "fit.estimates"),
        ({"estimates": [{"name": "temperature", "value": "1"}]}, "fit.estimates"),
    ],
)
def test_what_a_calibrator_says_of_its_fit_is_checked(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    scaler = calibrators.fit("temperature", predictions(100, 3)).scaler
    calibrators.save(replace(scaler, metadata={**scaler.metadata, **changed}), tmp_path / "cal.safetensors")
    with pytest.raises(InputError, match=re.escape(words)):
        calibrators.load(tmp_path / "cal.safetensors")


@pytest.mark.parametrize("spec", ["vector", "bcts", "matrix:lam=0.01,mu=0.01", "dirichlet:lam=0.01,mu=0.01", "platt"])
def test_classes_of_probability_zero_are_mapped(spec: str) -> None:
    """Choices that a row does not have: log-probability -inf in, finite numbers or -inf out, never nan."""
    p = predictions(200, 4)
    z = p.logits.copy()
    absent = (np.arange(200) % 3 == 0) & (p.labels != 3)
    z[absent, 3] = -np.inf
    masked = Predictions.of(z, p.labels)
    out = calibrators.fit(spec, masked, report=False).scaler(z)
    np.testing.assert_allclose(np.exp(out).sum(axis=1), 1, rtol=1e-12)


def test_folds_of_groups_are_refused_by_their_number() -> None:
    p = predictions(100, 3)
    grouped = Predictions.of(p.logits, p.labels, groups=np.arange(100) % 2)
    with pytest.raises(InputError, match="100 rows in 2 groups cannot be split into 5 folds"):
        calibrators.cross_fit("temperature", grouped)


@pytest.mark.parametrize("method", ["matrix", "dirichlet:lam=1,mu=1"])
def test_fewer_rows_than_classes_fit_no_full_matrix(method: str) -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(50, 60)), rng.integers(0, 60, 50)
    with pytest.raises(calibcli.CalibError, match="50 rows for a weight from each to each of 60 classes"):
        calibcli.fit_scaler(z, y, method)
    calibcli.fit_scaler(z, y, "vector:mu=1")
