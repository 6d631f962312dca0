"""The public Python API: lazy, checked like files, and its docstrings are true."""

from __future__ import annotations

import doctest
import subprocess
import sys

import numpy as np
import pytest

import calibcli
import calibcli.api


def sample(n: int = 400, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, k)) * 3
    return z, np.where(rng.random(n) < 0.6, z.argmax(axis=1), rng.integers(0, k, n))


def test_docstrings_are_true() -> None:
    found = doctest.testmod(calibcli.api)
    assert found.attempted >= 6
    assert found.failed == 0


def test_importing_costs_nothing() -> None:
    code = "import sys, calibcli; dir(calibcli); print(sorted({'numpy', 'torch', 'scipy', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_every_public_name_exists() -> None:
    for name in calibcli.__all__:
        assert getattr(calibcli, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        calibcli.mesure  # noqa: B018


def test_measure_recognises_probabilities_and_takes_columns() -> None:
    z, y = sample()
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    for scores in (z, p, np.log(p)):
        found = calibcli.measure(scores, y, "nll", "accuracy")
        assert found["accuracy"].value == (z.argmax(axis=1) == y).mean()
        assert found["nll"].value == pytest.approx(-np.log(p[np.arange(400), y]).mean(), rel=1e-12)
    weights = np.random.default_rng(1).random(400)
    weighted = calibcli.measure(z, y, "accuracy", weights=weights)["accuracy"].value
    assert weighted == pytest.approx(np.average(z.argmax(axis=1) == y, weights=weights))
    rows = calibcli.from_arrays(z, y, by={"site": np.array(["a", "b"] * 200)}, ids=np.arange(400))
    assert rows.slices["site"].tolist()[:2] == ["a", "b"]
    assert rows.kind == "logits"
    assert calibcli.measure(rows, None, "ece")["ece"].value == calibcli.measure(z, y)["ece"].value


def test_torch_tensors_are_arrays() -> None:
    torch = pytest.importorskip("torch")
    z, y = sample()
    assert calibcli.measure(torch.tensor(z), torch.tensor(y), "nll") == calibcli.measure(z, y, "nll")


def test_wrong_arrays_are_refused_with_a_fix() -> None:
    z, y = sample()
    with pytest.raises(calibcli.CalibError, match="399"):
        calibcli.measure(z, y[1:])
    with pytest.raises(calibcli.CalibError, match="ece"):
        calibcli.measure(z, y, "eec")
    with pytest.raises(TypeError, match="labels"):
        calibcli.measure(z)


def test_scaler_round_trip(tmp_path: object) -> None:
    z, y = sample()
    fit = calibcli.fit_scaler(z, y, "focal_temperature")
    calibcli.save_scaler(f"{tmp_path}/cal.safetensors", fit.scaler)
    again = calibcli.load_scaler(f"{tmp_path}/cal.safetensors")
    np.testing.assert_array_equal(again(z), fit.scaler(z))
    assert {e.name for e in fit.estimates} >= {"temperature", "gamma"}


def test_check_judges() -> None:
    z, y = sample()
    result = calibcli.check(z, y, max={"ece": 0.01}, min={"accuracy": 0.2})
    assert [c.outcome for c in result.checks] == ["fail", "pass"]
