"""What scikit-learn, joblib and torch send to workers: every public object is copied, pickled and sent."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.core.errors import GateFailed

SAMPLE = Path(__file__).parent.parent / "sample_data" / "test.npz"
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}


def caught(ask: Callable[[], Any]) -> Exception:
    with pytest.raises((calibcli.CalibError, GateFailed)) as found:
        ask()
    return found.value


@cache
def objects() -> dict[str, Any]:
    """Return one of everything public that holds something, by name."""
    torch = pytest.importorskip("torch")
    from sklearn.linear_model import LogisticRegression

    file = np.load(SAMPLE)
    z, y = file["logits"], file["labels"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scores that are not proper
        scorers = {f"scorer {name}": calibcli.scorer(name) for name in ("nll", "brier", "ece", "auc", "confidence_gap")}
    watch = calibcli.Watch(max={"ece": 0.9})
    watch.update(z, y)
    result, fit = calibcli.measure(z, y, diagram=True), calibcli.fit_scaler(z, y)
    from calibcli.networks.losses import objective

    losses = ("ce", "focal:gamma=2", "brier", "label_smoothing:epsilon=0.1")
    return scorers | {
        "Result": result,
        "Estimate": result["ece"],
        "Fit": fit,
        "Scaler": fit.scaler,
        "Predictions": calibcli.from_arrays(z, y, by={"digit": y}),
        "of a file": calibcli.read(SAMPLE, by=["ink"]),
        "Accumulator": calibcli.Accumulator("nll").update(z, y),
        "Watch": watch,
        "Calibrator": calibcli.Calibrator(method="vector"),
        "fitted": calibcli.Calibrator(method="platt").fit(z[:, :1], y == 0),
        "around": calibcli.Calibrator(LogisticRegression(), "temperature").fit(z[:200], y[:200]),
        "curvature": calibcli.curvature(torch.nn.Linear(10, 10), (z[:50], y[:50]), "trace:exact=true", device="cpu"),
        "hessian": calibcli.hessian(torch.nn.Linear(10, 10), (z[:50], y[:50]), device="cpu"),
        "error": caught(lambda: calibcli.measure(z, y, "eec")),
        "refusal": caught(lambda: calibcli.measure(y, z)),
        "gate": caught(lambda: calibcli.check(z, y, max={"ece": 0.001}).raise_if_failed()),
        "objective": objective("ce+mmce"),
        **{f"loss {spec}": calibcli.loss(spec) for spec in losses},
        **{name: getattr(calibcli, name) for name in calibcli.__all__},
    }


def state(one: Any) -> str:
    """Return what two copies of an object have in common."""
    if isinstance(one, BaseException):
        return f"{type(one).__name__}: {one}"
    if isinstance(one, calibcli.Accumulator):
        return str(one.result()["nll"])
    if isinstance(one, calibcli.Predictions):
        return str((one.n, one.logits.sum(), {name: len(column) for name, column in one.slices.items()}))
    if isinstance(one, calibcli.Watch):
        return one.result().to_json()
    if isinstance(one, calibcli.Result):
        return one.to_json()
    return repr(one) if " at 0x" not in repr(one) else type(one).__name__


@pytest.mark.regression
@pytest.mark.parametrize("way", WAYS)
def test_every_public_object_is_copied_and_pickled(way: str) -> None:
    for name, one in objects().items():
        assert state(WAYS[way](one)) == state(one), name


@pytest.mark.slow
@pytest.mark.regression
def test_a_search_sends_its_scorer_and_calibrator_to_workers() -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    from sklearn.linear_model import LogisticRegression

    x = np.random.default_rng(0).normal(size=(120, 3))
    y = (x[:, 0] + np.random.default_rng(1).normal(size=120) > 0).astype(int)
    model = calibcli.Calibrator(LogisticRegression(), "platt", cv=2)
    grid, scoring = (
        {"method": ["platt", "temperature"]},
        {"nll": calibcli.scorer("nll"), "brier": calibcli.scorer("brier")},
    )
    found = [
        selection.GridSearchCV(model, grid, scoring=scoring, refit="nll", cv=2, n_jobs=jobs, error_score="raise").fit(
            x, y
        )
        for jobs in (1, 2)
    ]
    for name in ("mean_test_nll", "mean_test_brier"):
        assert np.array_equal(found[0].cv_results_[name], found[1].cv_results_[name])
        assert (found[0].cv_results_[name] < 0).all()
    assert found[1].best_params_ == found[0].best_params_


@pytest.mark.slow
@pytest.mark.parametrize("way", ["loky", "spawn"])
def test_every_public_object_comes_back_from_a_worker(way: str) -> None:
    joblib, sent = pytest.importorskip("joblib"), [*objects().values()]
    if way == "loky":
        back = joblib.Parallel(n_jobs=2)(joblib.delayed(copy.copy)(one) for one in sent)
    else:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            back = pool.map(copy.copy, sent)
    assert [*map(state, back)] == [*map(state, sent)]
