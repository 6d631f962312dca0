"""A calibrator as an estimator of scikit-learn: written, read back, in a Pipeline, and refused as code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import Scaler
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

FORMS = [".pkl", pytest.param(".skops", marks=pytest.mark.extra)]
BASES: dict[str, Any] = {
    "logistic": LogisticRegression(max_iter=200),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
    "svc": LinearSVC(max_iter=300),
    "forest": RandomForestClassifier(20, random_state=0),
}


def classifier(base: str, binary: bool, folder: Path) -> tuple[Any, Any, Any, Path]:
    """A fitted one in a pickle, rows to fit a calibrator, and the file of rows that an export is compared on."""
    x, y = load_digits(return_X_y=True)
    y = (y == 3).astype(int) if binary else y
    model = clone(BASES[base]).fit(x[:800], y[:800])
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    np.savez(folder / "rows.npz", x=x[1300:], labels=y[1300:])
    return model, x[800:1300], y[800:1300], folder / "rows.npz"


@pytest.mark.parametrize("suffix", FORMS)
@pytest.mark.parametrize("spec", ["temperature", "isotonic", "platt", "sms", "top_label"])
def test_there_and_back(spec: str, suffix: str, tmp_path: Path) -> None:
    if suffix == ".skops":
        pytest.importorskip("skops")
    rng = np.random.default_rng(0)
    z = rng.standard_normal((500, 4)) * 4
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    rows = calibcli.from_arrays(z, y, classes=["d", "a", "c", "b"])
    fit = calibcli.fit_scaler(rows, spec=spec)
    found = calibcli.export(fit, "sklearn", save=tmp_path / f"c{suffix}", data=rows)
    assert (found["max_dp"].value, found.facts["limit"], found.facts["n"]) == (0, 1e-9, 500)
    assert calibcli.verify(tmp_path / f"c{suffix}", fit, rows, trust=suffix == ".pkl").verdict == "pass"
    if suffix == ".pkl":
        again = pickle.loads((tmp_path / "c.pkl").read_bytes())
        assert type(again) is calibcli.Calibrator
        assert again.classes_.tolist() == ["d", "a", "c", "b"]  # in the order of the columns
        ends = make_pipeline(FunctionTransformer(lambda logits: logits * 2 / 2), again)
        assert np.array_equal(ends.predict_proba(z), fit.predict_proba(z))
        assert ends.predict(z[:5]).tolist() == again.classes_[fit.predict_proba(z[:5]).argmax(1)].tolist()
        refitted = clone(again).fit(z, y)
        np.testing.assert_allclose(refitted.predict_proba(z), fit.predict_proba(z), atol=1e-12)


@pytest.mark.parametrize("spec", ["platt", "isotonic", "temperature"])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.one_in(5)
def test_around_a_classifier(base: str, binary: bool, spec: str, tmp_path: Path) -> None:
    """The whole thing in one file, whatever scores the classifier gives; zeros of a forest stay zeros."""
    model, x, y, rows = classifier(base, binary, tmp_path)
    way = "decision_function" if base == "svc" else "predict_proba"
    kind = {"svc": "logits", "pipeline": "log_probabilities"}.get(base, "probabilities")

    def scores(x: Any) -> Any:
        found = getattr(model, way)(x)
        return np.log(found) if kind == "log_probabilities" else found

    fit = calibcli.fit_scaler(scores(x), y, spec, kind=kind)
    given: dict[str, Any] = {"model": tmp_path / "model.pkl", "data": rows, "save": tmp_path / "made.pkl"}
    with pytest.raises(InputError, match="is a pickle, which is code; nothing was executed"):
        calibcli.export(fit, "sklearn", **given)
    found = calibcli.export(fit, "sklearn", trust=True, **given)
    assert found["max_dp"].value <= found.facts["limit"] == 1e-9
    assert (found.facts["scores"], found.facts["takes"]) == (way, "inputs")
    made, new = pickle.loads((tmp_path / "made.pkl").read_bytes()), np.load(rows)["x"]
    np.testing.assert_allclose(made.predict_proba(new), fit.predict_proba(scores(new)), atol=1e-12)
    assert made.n_features_in_ == 64
    assert np.array_equal(made.classes_, model.classes_)
    whole = make_pipeline(FunctionTransformer(np.asarray), made)
    assert np.array_equal(whole.predict_proba(new), made.predict_proba(new))
    checked = calibcli.verify(tmp_path / "made.pkl", fit, rows, before=tmp_path / "model.pkl", trust=True)
    assert checked.verdict == "pass"
    if spec != "temperature" or not binary:
        bare = calibcli.verify(tmp_path / "model.pkl", fit, rows, before=tmp_path / "model.pkl", trust=True)
        assert bare.verdict == "fail"


def test_a_classifier_that_works_in_float32(tmp_path: Path) -> None:
    """One row of it differs from the same among many by rounding."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1200, 300)).astype(np.float32)
    y = (x[:, :4] + rng.gumbel(size=(1200, 4))).argmax(axis=1)
    model = LogisticRegression(max_iter=50).fit(x[:600], y[:600])
    fit = calibcli.fit_scaler(model.decision_function(x[600:]), y[600:], "vector", kind="logits")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    np.savez(tmp_path / "rows.npz", x=x[600:], labels=y[600:])
    given: dict[str, Any] = {"data": tmp_path / "rows.npz", "trust": True}
    found = calibcli.export(fit, "sklearn", model=tmp_path / "model.pkl", save=tmp_path / "made.pkl", **given)
    assert found["max_dp"].value <= found.facts["limit"] == 1e-6


@pytest.mark.extra
def test_skops_without_trust(tmp_path: Path) -> None:
    """Estimators of scikit-learn and our own hold no code; others are named."""
    skops = pytest.importorskip("skops.io")
    model, x, y, rows = classifier("pipeline", False, tmp_path)
    fit = calibcli.fit_scaler(model.predict_proba(x), y, "platt")
    skops.dump(model, tmp_path / "model.skops")
    made = tmp_path / "made.skops"
    calibcli.export(fit, "sklearn", model=tmp_path / "model.skops", data=rows, save=made)
    assert calibcli.verify(made, fit, rows, before=tmp_path / "model.skops").verdict == "pass"
    again = skops.load(made, trusted=skops.get_untrusted_types(file=made))
    np.testing.assert_allclose(again.predict_proba(x), fit.predict_proba(model.predict_proba(x)), atol=1e-12)
    skops.dump(calibcli.from_arrays(np.eye(3), [0, 1, 2]), tmp_path / "other.skops")
    with pytest.raises(InputError, match=r"holds calibcli\.scores\.predictions\.\w+.*nothing was executed"):
        calibcli.export(fit, "sklearn", model=tmp_path / "other.skops", data=rows, save=tmp_path / "b.skops")


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y, rows = classifier("logistic", False, tmp_path)
    p = model.predict_proba(x)
    fit = calibcli.fit_scaler(p, y, "platt")
    given: dict[str, Any] = {"model": tmp_path / "model.pkl", "data": rows, "save": tmp_path / "o.pkl", "trust": True}
    two = calibcli.fit_scaler(p[:, :2] / p[:, :2].sum(1, keepdims=True), (p[:, 1] > p[:, 0]).astype(int), "platt")
    with pytest.raises(InputError, match="10 classes, the calibrator was fitted on 2"):
        calibcli.export(two, "sklearn", **given)
    turned = calibcli.from_arrays(p[:, ::-1], y, classes=[str(9 - i) for i in range(10)])
    with pytest.raises(InputError, match="class 0 is '0' in the classifier and '9' in the calibrator"):
        calibcli.export(calibcli.fit_scaler(turned, spec="platt"), "sklearn", **given)
    of_logits = calibcli.fit_scaler(np.log(p), y, "platt", kind="logits").scaler
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(RandomForestClassifier(2).fit(x, y)))
    with pytest.raises(UsageError, match="RandomForestClassifier has no decision_function"):
        calibcli.export(of_logits, "sklearn", **given)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(LogisticRegression()))
    with pytest.raises(InputError, match="not a fitted classifier"):
        calibcli.export(fit, "sklearn", **given)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model)[:-40])
    with pytest.raises(InputError, match="cannot be read"):
        calibcli.export(fit, "sklearn", **given)
    with pytest.raises(UsageError, match="cannot write the target sklearn"):
        calibcli.export(fit, "sklearn", data=p, save=tmp_path / "o.onnx")
    honest = Scaler.__call__
    monkeypatch.setattr(Scaler, "__call__", lambda self, scores: honest(self, np.asarray(scores)) - 1e-6)
    with pytest.raises(InputError, match=r"max\|dp\| = \d") as refused:
        calibcli.export(fit, "sklearn", save=tmp_path / "o.pkl", data=p)
    assert refused.value.code == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pkl", "rows.npz"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x, y, rows = classifier("pipeline", False, tmp_path)
    cal, made, before = (str(tmp_path / n) for n in ("c.safetensors", "made.pkl", "model.pkl"))
    calibcli.save_scaler(calibcli.fit_scaler(model.predict_proba(x), y).scaler, cal)
    argv = ["export", cal, "--to", "sklearn", "--model", before, "--data", str(rows), "-o", made]
    assert main([*argv, "-q"]) == 4
    assert main([*argv, "--trust", "-q"]) == 0
    argv = ["verify", made, "--with", cal, "--before", before, "--data", str(rows), "--max", "ece=0.2"]
    assert main([*argv, "-q"]) == 4
    assert main([*argv, "--trust"]) == 0
    assert "made.pkl gives what temperature gives: max|dp|" in capsys.readouterr().out
    assert pickle.loads(Path(made).read_bytes()).fit_["temperature"].value > 0


@pytest.mark.extra
@pytest.mark.regression
@pytest.mark.parametrize("method", ["temperature", "vector", "matrix", "dirichlet", "isotonic", "focal_temperature"])
def test_what_a_fitted_calibrator_holds_is_known_without_trust(method: str, tmp_path: Path) -> None:
    """Saved by the user's own skops.dump, with the estimates, tables and figures of its fit."""
    import skops.io

    from calibcli.networks.deploy._estimator import OURS, read

    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(200, 3)), rng.integers(0, 3, 200)
    fitted = calibcli.Calibrator(method=method).fit(z, y)
    skops.io.dump(fitted, tmp_path / "c.skops")
    assert {*skops.io.get_untrusted_types(file=tmp_path / "c.skops")} <= OURS
    np.testing.assert_array_equal(read(tmp_path / "c.skops", False).predict_proba(z), fitted.predict_proba(z))
