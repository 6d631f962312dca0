"""The predicted class beside the scores of an ONNX classifier follows the calibrator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.core.errors import InputError

pytestmark = [pytest.mark.extra, pytest.mark.regression]
NAMES = {"whole": [3, 5, 9], "text": ["ant", "bee", "cat"]}


def classifier(folder: Path, k: int, labels: str, kind: str) -> tuple[Path, np.ndarray, np.ndarray]:
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.standard_normal((800, 4)).astype(np.float32)
    y = np.where(rng.random(800) < 0.3, rng.integers(0, k, 800), (x[:, 0] > 0) * 1 + (x[:, 1] > 0.5) * (k - 2))
    model = LogisticRegression() if kind == "logistic" else RandomForestClassifier(10, random_state=0)
    model.fit(x, np.array(NAMES[labels])[y])
    path = folder / "model.onnx"
    path.write_bytes(skl2onnx.to_onnx(model, x[:1], options={"zipmap": False}).SerializeToString())
    np.savez(folder / "rows.npz", x=x, labels=y)
    return path, x, y


def outputs(path: Path, x: np.ndarray) -> dict[str, Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, {session.get_inputs()[0].name: x})))


@pytest.mark.parametrize("kind", ["logistic", "forest"])
@pytest.mark.parametrize("labels", NAMES)
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("method", ["temperature", "isotonic", "dirichlet"])
def test_the_label_is_the_largest_calibrated_score(method: str, k: int, labels: str, kind: str, tmp_path: Path) -> None:
    path, x, y = classifier(tmp_path, k, labels, kind)
    before = outputs(path, x)
    fit = calibcli.fit_scaler(before["probabilities"], y, method, kind="probabilities", clip=True)
    made = tmp_path / "made.onnx"
    found = calibcli.export(fit, "onnx", model=path, data=tmp_path / "rows.npz", save=made)
    after = outputs(made, x)
    ends = np.sort(after["probabilities"], axis=1)
    apart = ends[:, -1] - ends[:, -2] > 1e-5
    expected = np.array(NAMES[labels])[after["probabilities"].argmax(axis=1)]
    assert (after["label"] == expected)[apart].all()
    assert after["label"].dtype == before["label"].dtype
    assert after["label"].shape == before["label"].shape
    assert any("'label' was made" in note for note in found.notes) == (method != "temperature")
    assert calibcli.verify(made, fit, tmp_path / "rows.npz", before=path).passed


def test_verify_compares_the_label_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x, y = classifier(tmp_path, 3, "text", "logistic")
    fit = calibcli.fit_scaler(outputs(path, x)["probabilities"], y, "dirichlet", kind="probabilities")
    made = tmp_path / "made.onnx"
    with monkeypatch.context() as patch:
        patch.setattr("calibcli.networks.deploy._onnx_export._follow", lambda *_: "")
        calibcli.export(fit, "onnx", model=path, data=tmp_path / "rows.npz", save=made)
    with pytest.raises(InputError, match="'label' is not the class of its largest score"):
        calibcli.verify(made, fit, tmp_path / "rows.npz", before=path)
