"""Maps of probabilities that are exactly 0 and 1: where these are cut is chosen, kept, and used wherever a map runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import script
from scipy.optimize import minimize
from scipy.special import expit, logit

import calibcli
from calibcli import headlines
from calibcli.calibrators.fitting import FOLDS, fold_of_rows
from calibcli.core.errors import UsageError

N = 400


def votes(trees: int, power: float = 1.0, seed: int = 0) -> tuple[Any, Any]:
    """Shares of votes for class 1, many exactly 0 or 1; with a `power` below 1 the truth is milder than they say."""
    rng = np.random.default_rng(seed)
    q = expit(rng.normal(0, 3, N))
    p = rng.binomial(trees, q) / trees
    return p, (rng.random(N) < expit(power * logit(q))).astype(int)


def log_loss(x: Any, y: Any, x_new: Any, y_new: Any) -> Any:
    """Log loss of new rows, of a logistic regression with Platt's targets, by SciPy."""
    target = np.where(y == 1, (y.sum() + 1) / (y.sum() + 2), 1 / ((1 - y).sum() + 2))

    def loss(t: Any) -> Any:
        return np.sum(np.logaddexp(0, t[0] * x + t[1]) - target * (t[0] * x + t[1]))

    a, b = minimize(loss, [1.0, 0.0], tol=1e-12).x
    s = a * x_new + b
    return np.logaddexp(0, np.where(y_new == 1, -s, s))


@pytest.mark.parametrize(("trees", "power"), [(10, 1.0), (10, 0.3), (300, 1.0), (300, 0.5)])
def test_platt_takes_what_has_the_lowest_loss_in_five_folds(trees: int, power: float) -> None:
    p, y = votes(trees, power)
    with np.errstate(divide="ignore"):
        odds = logit(p)
    tried = {"p": p, "half a row": np.clip(odds, np.log(1 / (2 * N)), -np.log(1 / (2 * N)))}
    tried["tiny"] = np.clip(odds, np.log(1e-15), -np.log(1e-15))
    folds = fold_of_rows(calibcli.from_arrays(p, y, kind="probabilities"), FOLDS, 0)
    loss = {
        name: np.mean(
            np.concatenate([log_loss(x[folds != f], y[folds != f], x[folds == f], y[folds == f]) for f in range(FOLDS)])
        )
        for name, x in tried.items()
    }
    fit = calibcli.fit_scaler(p, y, "platt", kind="probabilities")
    best = min(loss, key=lambda name: loss[name])
    parameters = fit.scaler.parameters
    assert ("of_p" in parameters) == (best == "p")
    assert float(parameters.get("cut", 0)) == {"p": 0, "half a row": 1 / (2 * N), "tiny": 1e-15}[best]
    (note,) = [note for note in fit.notes if note.startswith("platt is a map of")]
    assert all(f"{value:.4g}" in note for value in loss.values())
    x = tried[best]
    expected = -log_loss(x, y, x, np.ones(N))
    np.testing.assert_allclose(np.log(fit.predict_proba(p)[:, 1]), expected, atol=1e-4)


def test_the_cut_is_half_a_row_or_tiny_in_temperature_and_beta() -> None:
    p, y = votes(10)
    for method in ("temperature", "beta", "platt:on=log_odds"):
        fit = calibcli.fit_scaler(p, y, method, kind="probabilities")
        assert float(fit.scaler.parameters["cut"]) in (1 / (2 * N), 1e-15)
        assert np.isfinite(np.log(fit.predict_proba(np.array([0.0, 1.0])))).all()
        assert sum("in 5 folds" in note for note in fit.notes) == 1
    of_ten = np.random.default_rng(0).multinomial(5, np.full(10, 0.1), N) / 5
    labels = of_ten.argmax(axis=1)
    labels[:20] = 9 - labels[:20]  # some of probability 0
    assert "cut" in calibcli.fit_scaler(of_ten, labels, "temperature", kind="probabilities").scaler.parameters


def test_scores_without_zeros_and_logits_are_as_before() -> None:
    p, y = votes(10)
    inside = (p * 10 + 1) / 12
    assert "cut" not in calibcli.fit_scaler(inside, y, "temperature", kind="probabilities").scaler.parameters
    odds = calibcli.fit_scaler(logit(inside), y, "platt", kind="logits")
    assert not any("in 5 folds" in note for note in odds.notes)
    same = calibcli.fit_scaler(inside, y, "platt:on=log_odds", kind="probabilities")
    np.testing.assert_allclose(odds.predict_proba(logit(inside)), same.predict_proba(inside), rtol=1e-9)


def test_equal_weights_and_groups_of_one_row_choose_the_same() -> None:
    p, y = votes(30, 0.5)
    plain = calibcli.fit_scaler(p, y, "platt", kind="probabilities")
    weighted = calibcli.fit_scaler(p, y, "platt", kind="probabilities", weights=np.ones(N))
    assert plain.notes[-1] == weighted.notes[-1]
    few = np.append(p[:8], 0.0), np.append(y[:8], 0)  # too few for folds
    assert calibcli.fit_scaler(*few, "platt", kind="probabilities").scaler.parameters["cut"] == 1 / 18
    rows = replace(calibcli.from_arrays(p, y, kind="probabilities"), weights=np.full(N, 2.0), weight_kind="count")
    twice = calibcli.fit_scaler(rows, None, "platt:on=log_odds")
    assert float(twice.scaler.parameters["cut"]) in (1 / (4 * N), 1e-15)


def test_a_map_that_is_surely_worse_says_so_first() -> None:
    rng = np.random.default_rng(0)
    fit_p, fit_y = votes(100, 0.2)
    p = expit(rng.normal(0, 2, 2000))
    test = calibcli.from_arrays(p, rng.random(2000) < p, kind="probabilities")
    rows = calibcli.from_arrays(fit_p, fit_y, kind="probabilities")
    found = calibcli.scale(rows, None, "platt", test=test, metrics=["brier"])
    assert headlines.of(found).startswith("platt, worse than no map: NLL")
    better = calibcli.scale(rows, None, "platt", metrics=["brier"])
    assert "worse than no map" not in headlines.of(better)


def test_scorer_cuts_where_it_is_told() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = (x[:, 0] + rng.normal(size=200) > 0).astype(int)
    model = KNeighborsClassifier(1).fit(x[:100], y[:100])
    wrong = (model.predict(x[100:]) != y[100:]).mean()
    for clip in (0.01, 1e-3):
        expected = wrong * np.log(clip) + (1 - wrong) * 0
        got = calibcli.scorer("nll", clip=clip)(model, x[100:], y[100:])
        np.testing.assert_allclose(got, expected - np.log1p(clip), rtol=1e-9)
    assert calibcli.scorer("nll", clip=0.01).__name__ == "scorer('nll', clip=0.01)"
    with pytest.raises(UsageError, match="clip="):
        calibcli.scorer("nll", clip=2.0)


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return script("exact_probabilities")


@pytest.mark.parametrize("model", ["5 neighbours", "naive Bayes", "tree"])
def test_of_models_of_scikit_learn_it_is_no_worse_than_raw(benchmark: Any, model: str) -> None:
    cell = benchmark.losses(benchmark.models()[model], "cancer", 0, ("platt",))
    assert cell["exact"] > 0.3
    assert cell["platt"].mean() < cell["raw"].mean()
    assert not cell["worse"]
    assert cell["platt"].mean() < cell["sigmoid"].mean() + 0.01
