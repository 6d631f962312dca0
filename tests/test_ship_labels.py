"""The calibrators of labels: in one program of scores (n, L), or each by itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators.per_label import load_labels
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError

SUFFIX = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt", "json": ".json", "sklearn": ".pkl"}


def folder(tmp_path: Path, method: str = "platt", labels: int = 4) -> tuple[Path, Path, Any]:
    """A folder of calibrators, of logits or probabilities, a file of scores, and what `apply` gives for it."""
    rng = np.random.default_rng(0)
    z = (rng.standard_normal((300, labels)) * 3).astype(np.float32)
    y = (rng.uniform(size=z.shape) < 1 / (1 + np.exp(-z / 2 - 0.5))).astype(int)
    y[:, -1] = 0
    y[::60, -1] = 1  # too few for a map of its own
    scores = 1 / (1 + np.exp(-z)) if method == "isotonic" else z
    name = "probabilities" if method == "isotonic" else "logits"
    np.savez(tmp_path / "rows.npz", **{name: scores}, labels=y, classes=np.array([f"l{i}" for i in range(labels)]))
    rows, made = str(tmp_path / "rows.npz"), tmp_path / "maps"
    assert main(["scale", rows, "--multilabel", "--method", method, "--save", str(made), "-q"]) == 0
    argv = ["apply", str(made), rows, "--multilabel", "--save", str(tmp_path / "a.npz"), "--dtype", "float64", "-q"]
    assert main(argv) == 0
    return made, tmp_path / "rows.npz", np.load(tmp_path / "a.npz")["probabilities"]


@pytest.mark.parametrize("method", ["platt", "isotonic", "temperature", "beta"])
@pytest.mark.parametrize(
    "target", ["torchscript", *(pytest.param(t, marks=pytest.mark.extra) for t in ("onnx", "pt2"))]
)
@pytest.mark.one_in(3)
def test_all_labels_in_one_program(target: str, method: str, tmp_path: Path) -> None:
    if target == "onnx" and not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime")):
        pytest.skip("onnx is not installed")
    maps, rows, expected = folder(tmp_path, method)
    made = tmp_path / f"made{SUFFIX[target]}"
    argv = ["export", str(maps), "--to", target, "--data", str(rows), "-o", str(made), "-q"]
    assert main(argv) == 0
    x = np.load(rows)["probabilities" if method == "isotonic" else "logits"].astype(np.float32)
    if target == "onnx":
        import onnxruntime

        found = onnxruntime.InferenceSession(str(made)).run(["probabilities"], {"scores": x})[0]
    else:
        import torch

        program = torch.export.load(made).module() if target == "pt2" else torch.jit.load(made)
        found = program(torch.from_numpy(x)).numpy()
    assert found.shape == (300, 4)
    assert np.abs(found - expected).max() <= 1e-6
    argv = ["verify", str(made), "--with", str(maps), "--data", str(rows), "--trust", "-q"]
    assert main(argv) == 0
    np.savez(
        tmp_path / "turned.npz", logits=x, labels=np.load(rows)["labels"], classes=np.array(["l1", "l0", "l2", "l3"])
    )
    with pytest.raises(InputError, match="the labels are l1, l0, l2, l3"):
        calibcli.verify(made, maps, tmp_path / "turned.npz", trust=True)


@pytest.mark.slow
def test_other_targets_take_one_label(tmp_path: Path) -> None:
    maps, rows, expected = folder(tmp_path)
    given: dict[str, Any] = {"data": rows, "model": None}
    for target, suffix in (("json", ".json"), ("sklearn", ".pkl"), ("card", ".md"), ("vllm", ".json")):
        with pytest.raises(UsageError, match=r"of one label, such as .*000-l0\.safetensors") as refused:
            calibcli.export(maps, target, save=tmp_path / f"o{suffix}", **given)
        assert "to='onnx'" in refused.value.fix
    with pytest.raises(UsageError, match="model= takes the calibrator of one label"):
        calibcli.export(maps, "torchscript", save=tmp_path / "o.pt", data=rows, model=tmp_path / "net.pt")
    with pytest.raises(UsageError, match="without limits"):
        calibcli.verify(tmp_path / "o.pt", maps, rows, max={"ece": 0.1})
    z = np.load(rows)["logits"]
    for i, one in enumerate(load_labels(maps).values()):
        for target in ("json", "sklearn", "torchscript", "vllm"):
            path = tmp_path / f"one{SUFFIX.get(target, '.json')}"
            assert calibcli.export(one, target, save=path, data=z[:, i])["max_dp"].value <= 1e-6
        assert np.abs(one.predict_proba(z[:, i])[:, 1] - expected[:, i]).max() < 1e-12
