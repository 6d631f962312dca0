"""The public Python API: lazy, checked like files, and its docstrings are true."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import calibcli
from calibcli.core.errors import GateFailed, UsageError
from calibcli.gate.options import Request
from calibcli.scores.from_arrays import How
from calibcli.scores.reading_options import Reading


def sample(n: int = 400, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, k)) * 3
    return z, np.where(rng.random(n) < 0.6, z.argmax(axis=1), rng.integers(0, k, n))


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
    calibcli.save_scaler(fit.scaler, f"{tmp_path}/cal.safetensors")
    again = calibcli.load_scaler(f"{tmp_path}/cal.safetensors")
    np.testing.assert_array_equal(again(z), fit.scaler(z))
    assert {e.name for e in fit.estimates} >= {"temperature", "gamma"}


def test_check_judges() -> None:
    z, y = sample()
    result = calibcli.check(z, y, max={"ece": 0.01}, min={"accuracy": 0.2})
    assert [c.outcome for c in result.checks] == ["fail", "pass"]


def test_every_public_function_after_every_submodule(tmp_path: Path) -> None:
    """A submodule that is imported replaces a function of its name: `calibcli.train` is no folder."""
    torch = pytest.importorskip("torch")
    for module in pkgutil.walk_packages(calibcli.__path__, "calibcli."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in ("onnx", "onnxruntime", "sliceline", "pyarrow"):  # of extras
                    raise
    z, y = sample()
    path, calibrator = tmp_path / "z.npz", tmp_path / "t.safetensors"
    np.savez(path, logits=z, labels=y)
    model, data = torch.nn.Linear(4, 4), (torch.tensor(z, dtype=torch.float32), torch.tensor(y))
    fit = calibcli.fit_scaler(z, y)
    calibcli.save_scaler(fit.scaler, calibrator)
    called = {
        "measure": calibcli.measure(path, None, "ece")["ece"] == calibcli.measure(z, y, "ece")["ece"],
        "check": calibcli.check(path, max={"ece": 0.9}).passed,
        "init": calibcli.init(path, save=tmp_path / "calib.toml").command == "init",
        "plan": calibcli.plan(min={"accuracy": 0.85}).estimates[0].value > 1000,
        "compare": calibcli.compare(path, calibcli.read(path), metrics=["nll"], names=["a", "b"])["nll", "b - a"].value
        == 0,
        "find_slices": calibcli.find_slices(z, y, by={"half": np.arange(400) % 2}, min_n=50).facts["columns"] == 1,
        "threshold": calibcli.threshold(z, y, max_risk=0.5).command == "threshold",
        "ood": calibcli.ood(z, z)["auroc", "score=energy"].value == 0.5,
        "fit_scaler": fit["temperature"].value == fit.estimates[0].value,
        "scale": calibcli.scale(z[:200], y[:200], "vector", test=calibcli.from_arrays(z[200:], y[200:])).facts["method"]
        == "vector",
        "apply": calibcli.apply(calibrator, path, save=tmp_path / "new.npz").facts["n"] == 400,
        "load_scaler": calibcli.load_scaler(calibrator).spec == "temperature",
        "save_scaler": calibrator.exists(),
        "inspect": calibcli.inspect(path).facts["rows"] == 400,
        "read": calibcli.read(path).n == 400,
        "from_arrays": calibcli.from_arrays(z, y).k == 4,
        "from_confidence": calibcli.from_confidence([0.9, 0.4], [1, 0]).top_only,
        "export": calibcli.export(calibrator, "vllm", save=tmp_path / "v.json", data=path).command == "export",
        "verify": calibcli.verify(path, calibrator, path).command == "verify",
        "report": calibcli.report(calibcli.measure(z, y, "ece")).command == "report",
        "scorer": calibcli.scorer("nll")(calibcli.Calibrator().fit(z, y), z, y) < 0,
        "loss": calibcli.loss("ce")(*data).shape == (400,),
        "logits": calibcli.logits(model, data, save=tmp_path / "l.npz", device="cpu").facts["rows"] == 400,
        "study": calibcli.study("step-size", dry_run=True).facts["study"] == "step-size",
        "train": calibcli.train(model, data, epochs=1, device="cpu")["error", "after"].value is not None,
        "curvature": calibcli.curvature(model, data, "trace:exact=true", device="cpu")["trace"].value > 0,
        "hessian": (calibcli.hessian(model, data, device="cpu") @ torch.zeros(20)).shape == (20,),
    }
    assert {name for name, right in called.items() if not right} == set()
    assert set(called) == {name for name in calibcli.__all__ if name.islower()}


def test_keywords_are_named() -> None:
    """No function hides what it takes behind `**how`, and what may be said of arrays is what may be said of files."""
    for name in ("measure", "check", "compare", "fit_scaler", "apply", "curvature", "train"):
        kinds = {p.kind for p in inspect.signature(getattr(calibcli, name)).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, name
    fields = {field.name for field in dataclasses.fields(Reading)}
    assert set(How.__annotations__) == fields - {"labels", "numbers", "need_labels", "hashed", "judged", "skipped"}
    asked = (
        set(inspect.signature(calibcli.check).parameters)
        - set(How.__annotations__)
        - {"scores", "labels", "progress", "judge", "diagram"}
    )
    assert asked == {field.name for field in dataclasses.fields(Request)} - {"input", "reading"}
    z, y = sample()
    for function, wrong, near in ((calibcli.measure, "bin", "bins"), (calibcli.train, "epoch", "epochs")):
        with pytest.raises(TypeError, match=f"{function.__name__}.*'{wrong}': did you mean '{near}'"):
            function(z, y, **{wrong: 3})


class Series:
    """What a column of a table looks like: an array behind an index that is no position."""

    index = range(100, 500)

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: int) -> float:
        raise KeyError(key)


def test_columns_of_a_table_are_arrays() -> None:
    z, y = sample()
    table = calibcli.measure(z, Series(y), "nll", weights=Series(np.arange(1.0, 401)))
    assert table["nll"] == calibcli.measure(z, y, "nll", weights=np.arange(1.0, 401))["nll"]


Z, Y = sample()


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: calibcli.measure(Z, Y, ["ece"]), TypeError, "'ece', 'nll'"),
        (lambda: calibcli.fit_scaler(Z, Y, None), TypeError, "'temperature'"),
        (lambda: calibcli.check(Z, Y, max=["ece=0.1"]), TypeError, "max={'ece': 0.05}"),
        (lambda: calibcli.curvature(3, (Z, Y)), TypeError, "a torch module or a path"),
        (lambda: calibcli.curvature("no.pt", None, level=1.5), UsageError, "level=1.5 is out of range"),
        (lambda: calibcli.curvature("no.pt", None, batch_size=-3), UsageError, "batch_size=-3 is out of range"),
        (lambda: calibcli.curvature("no.pt", None, seed=-1), UsageError, "seed=-1 is out of range"),
        (lambda: calibcli.measure(np.ma.masked_greater(Z, 8), Y), calibcli.CalibError, "masked"),
        (lambda: calibcli.measure(Z + 1j, Y), calibcli.CalibError, "real part"),
        (lambda: calibcli.measure([["a", "b"]] * 4, [0, 1, 0, 1]), calibcli.CalibError, "not numbers"),
        (lambda: calibcli.measure([[1, 2], [1]], [0, 1]), calibcli.CalibError, "one length"),
        (lambda: calibcli.from_arrays("test.npz", Y), calibcli.CalibError, "calibcli.read"),
        (lambda: calibcli.measure(Z, "labels.npz"), calibcli.CalibError, "not an array"),
        (lambda: calibcli.train("mlp", None, loss="ce", keep="worst"), calibcli.CalibError, "last, best"),
        (lambda: calibcli.fit_scaler(Z, Y, by={"site": Y}), UsageError, "by= splits them"),
        (lambda: calibcli.fit_scaler("z.npz", multilabel=True), UsageError, "one label per row"),
        (lambda: calibcli.compare(*[calibcli.from_arrays(Z, Y)] * 2, kind="logits"), TypeError, "read already"),
        (lambda: calibcli.compare(*[calibcli.measure(Z, Y)] * 2, metrics=["nll"]), UsageError, "as they are"),
        (lambda: calibcli.compare(*[calibcli.measure(Z, Y)] * 2, clip=True), UsageError, "as they are"),
    ],
    ids=range(19),
)
def test_wrong_types_are_refused_with_what_works(call: Callable[[], object], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert said in str(caught.value)


def test_refusals_are_value_errors() -> None:
    """So that code around a call, as in a pipeline of scikit-learn, can treat them as those of any library."""
    with pytest.raises(ValueError, match="unknown metric"):
        calibcli.measure([[1.0, 0.0], [0.0, 1.0]], [0, 1], "eec")
    with pytest.raises(ValueError, match="labels"):
        calibcli.measure([[1.0, 0.0], [0.0, 1.0]], [0, 5])
    assert not issubclass(GateFailed, ValueError)


def test_the_logger_gets_notes_and_progress(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is shown unless a program listens, and nothing twice where one public function calls another."""
    import logging

    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 3))
    with caplog.at_level(logging.INFO, logger="calibcli"):
        result = calibcli.measure(z, rng.integers(3, size=60), "ece")
    assert result.notes
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("calibcli").handlers)
    assert [record.getMessage() for record in caplog.records] == list(result.notes)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="calibcli"):
        calibcli.measure(Path(__file__).parent.parent / "sample_data" / "test.npz")
    assert any("%" in record.getMessage() and record.levelno == logging.DEBUG for record in caplog.records)
