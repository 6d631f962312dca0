"""A program that uses every public function, as a type checker sees it: no error, and no `Any` comes out.

`tests/test_types.py` checks it with mypy --strict, and with pyright where it is installed; it is not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import calibcli
from calibcli import CalibError, Calibrator, Estimate, Predictions, Result

Floats = NDArray[np.float64]
rng = np.random.default_rng(0)
logits: Floats = rng.normal(size=(1000, 10))
labels: NDArray[np.int64] = rng.integers(10, size=1000)
tensor = torch.from_numpy(logits)
folder = Path("out")


def measuring() -> None:
    result = calibcli.measure(logits, labels, "ece:bins=30", "nll", level=0.9, per_class=True)
    assert_type(result, Result)
    estimate = result["ece"]
    assert_type(estimate, Estimate)
    assert_type(estimate.value, float | None)
    assert_type(estimate.low, float | None)
    assert_type(result.exit_code, int)
    assert_type(result.notes[0], str)
    rows = calibcli.read("test.npz", kind="logits")
    assert_type(rows, Predictions)
    assert_type(rows.n, int)
    assert_type(calibcli.from_arrays(logits, labels, ids=np.arange(1000)), Predictions)
    assert_type(calibcli.from_confidence(logits[:, 0], labels == 0), Predictions)
    counted = calibcli.Accumulator("ece").update(logits, labels).update(tensor, labels)
    assert_type(counted, calibcli.Accumulator)
    assert_type(counted.result(), Result)
    assert_type(counted.rows, int)
    assert_type(calibcli.inspect("test.npz"), Result)


def fixing() -> None:
    fit = calibcli.fit_scaler(logits, labels, "temperature", weights=np.ones(1000))
    assert_type(fit.predict_proba(logits), Floats)
    assert_type(fit.predict_proba(tensor), torch.Tensor)
    assert_type(fit.scaler(tensor), torch.Tensor)
    assert_type(fit.scaler([[0.5, 1.0, 2.0]]), Floats)
    assert_type(fit["temperature"].value, float | None)
    calibcli.save_scaler(fit, folder / "map.safetensors")
    scaler = calibcli.load_scaler(folder / "map.safetensors")
    assert_type(scaler.predict_proba(logits), Floats)
    assert_type(scaler.k, int)
    compared = calibcli.scale("validation.npz", None, "temperature", test="test.npz")
    assert_type(compared, Result)
    assert_type(calibcli.apply(scaler, logits, save=folder / "out.npz"), Result)
    model = Calibrator(method="vector").fit(logits, labels, sample_weight=np.ones(1000))
    assert_type(model, Calibrator)
    assert_type(model.predict_proba(logits), Floats)
    assert_type(Calibrator.from_scaler(scaler), Calibrator)
    score = calibcli.scorer("nll")
    assert_type(score(model, logits, labels), float)


def gating() -> None:
    verdict = calibcli.check(logits, labels, max={"ece": 0.05}, min={"accuracy": 0.9})
    assert_type(verdict, Result)
    for judged in verdict.checks:
        assert_type(judged.rule, str)
        assert_type(judged.fatal, bool)
    assert_type(calibcli.compare("a.npz", "b.npz"), Result)
    assert_type(calibcli.init("a.npz", save="calib.toml"), Result)
    assert_type(calibcli.plan(max={"ece": 0.05}, accuracy=0.9), Result)
    assert_type(calibcli.report(verdict, "other.json"), Result)
    watch = calibcli.Watch(folder / "state.json", max={"ece": 0.05})
    assert_type(watch.update(logits, labels), Result)
    assert_type(calibcli.find_slices(logits, labels, by={"site": labels}), Result)
    assert_type(calibcli.ood(logits, logits + 1), Result)
    assert_type(calibcli.threshold(logits, labels, max_risk=0.1), Result)


def networks() -> None:
    model = torch.nn.Linear(3, 2)
    data = torch.eye(40, 3), torch.arange(40) % 2
    loss = calibcli.loss("focal:gamma=2")
    assert_type(loss(torch.zeros(2, 3), torch.tensor([0, 1])), torch.Tensor)
    assert_type(calibcli.curvature(model, data, "trace", device="cpu"), Result)
    h = calibcli.hessian(model, data, matrix="ggn", device="cpu")
    assert_type(h @ torch.zeros(8), torch.Tensor)
    assert_type(h @ np.zeros(8, np.float32), NDArray[np.float32])
    assert_type(h @ {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, dict[str, torch.Tensor])
    assert_type(h @ [torch.zeros(2, 3), torch.zeros(2)], list[torch.Tensor])
    assert_type(h.shape, tuple[int, int])
    assert_type(h.dtype, torch.dtype)
    assert_type(h.device, torch.device)
    assert_type(h.slices["weight"], slice)
    assert_type(h.trace(), Estimate)
    assert_type(h.top(2), list[Estimate])
    assert_type(calibcli.logits(model, data, save=folder / "test.npz"), Result)
    assert_type(calibcli.train(model, data, loss="ce", epochs=1), Result)
    assert_type(calibcli.study("overfit", save=folder / "study"), Result)


def shipping() -> None:
    scaler = calibcli.load_scaler("map.safetensors")
    assert_type(calibcli.export(scaler, "json", save=folder / "map.json"), Result)
    assert_type(calibcli.verify("map.json", scaler, logits, labels), Result)


def errors() -> str:
    try:
        calibcli.measure(logits, labels, "eec")
    except CalibError as error:
        assert_type(error.problem, str)
        assert_type(error.fix, str)
        return f"{error.problem}: {error.fix} ({int(error.code)})"
    return ""
