"""Hugging Face folders, one file or sharded: folded, loaded by transformers, fine-tuned on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import Scaler
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.networks import checkpoint
from calibcli.networks.deploy import verify
from calibcli.scores.likelihood import log_softmax
from calibcli.ship.target import ExportRequest

pytestmark = pytest.mark.extra
K = 6


def folder(tmp_path: Path, shards: bool = False, dtype: str = "float32") -> tuple[Path, Path]:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=K)).eval()
    with torch.no_grad():
        model.classifier.weight.mul_(80)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3, 32, 32)).astype(np.float32)
    with torch.no_grad():
        z = model(torch.from_numpy(x)).logits.numpy()
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    np.savez(tmp_path / "rows.npz", pixel_values=x, labels=y)
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path / "vit", **({"max_shard_size": "20KB"} if shards else {}))
    return tmp_path / "vit", tmp_path / "rows.npz"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("spec", ["temperature", "vector"])
def test_folded_is_what_apply_gives(spec: str, shards: bool, dtype: str, tmp_path: Path) -> None:
    """scale -> export -> logits -> check gives the verdict and, to 1e-6, the ECE of apply."""
    model, rows = folder(tmp_path, shards, dtype)
    assert (len(list(model.glob("*.safetensors"))) > 1) == shards
    raw, cal, made, out, applied = (str(tmp_path / n) for n in ("raw.npz", "c.safetensors", "made", "out.npz", "a.npz"))
    assert main(["logits", str(model), "--data", str(rows), "--save", raw, "-q"]) == 0
    assert main(["scale", raw, "--method", spec, "--save", cal, "-q"]) == 0
    argv = ["export", cal, "--to", "checkpoint", "--model", str(model), "--data", str(rows), "-o", made, "-q"]
    assert main(argv) == 0
    assert main(["logits", made, "--data", str(rows), "--save", out, "-q"]) == 0
    assert main(["apply", cal, raw, "--save", applied, "-q"]) == 0
    ours, theirs = (calibcli.measure(calibcli.read(path), "ece", "nll") for path in (out, applied))
    near = 1e-6 if dtype == "float32" else 3e-2
    assert ours["nll"].value == pytest.approx(theirs["nll"].value, abs=2 * near)
    assert ours["ece"].value == pytest.approx(theirs["ece"].value, abs=near)
    checks = [calibcli.check(path, max={"nll": 1.5}).verdict for path in (out, applied)]
    assert checks[0] == checks[1]
    assert sorted(p.name for p in Path(made).iterdir()) == sorted(p.name for p in model.iterdir())


def test_fine_tuning_hands_the_warning_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import AutoModelForImageClassification

    model, rows = folder(tmp_path)
    one = Scaler("temperature", K, {"beta": np.array(0.5)}, metadata={"n": 200})
    calibcli.export(one, "checkpoint", model=model, data=rows, save=tmp_path / "made")
    tuned: Any = AutoModelForImageClassification.from_pretrained(tmp_path / "made")
    tuned(torch.zeros(2, 3, 32, 32), labels=torch.tensor([0, 1])).loss.backward()
    torch.optim.SGD(tuned.parameters(), 0.1).step()
    tuned.save_pretrained(tmp_path / "tuned")
    found = checkpoint.load(tmp_path / "tuned")
    assert any("T = 2" in note and "training removes it" in note for note in found.notes)
    with pytest.raises(InputError, match="folded into it already"):
        calibcli.export(one, "checkpoint", model=tmp_path / "tuned", data=rows, save=tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_folder_that_is_there_and_one_beyond_its_limit(tmp_path: Path) -> None:
    model, rows = folder(tmp_path)
    one = Scaler("temperature", K, {"beta": np.array(0.41)})
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        calibcli.export(one, "checkpoint", model=model, data=rows, save=tmp_path / "there")
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"max\|dp\|"):
        calibcli.export(one, "checkpoint", model=model, data=rows, save=tmp_path / "made", tolerance=1e-15)
    assert set(tmp_path.iterdir()) == before


def test_the_card_is_one_that_the_hub_reads(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    rng = np.random.default_rng(0)
    z = rng.standard_normal((400, 3)) * 3
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    fit = calibcli.fit_scaler(z, y)
    data = calibcli.from_arrays(z, y)
    calibcli.export(
        fit, "card:name=my model,task=text-classification,dataset=mine", save=tmp_path / "card.md", data=data
    )
    text = (tmp_path / "card.md").read_text()
    read = hub.ModelCard(text).data
    by = {r.metric_type: r for r in read.eval_results}
    after = calibcli.measure(fit.predict_proba(z), y, "ece", "nll")
    assert read.model_name == "my model"
    for name in ("ece", "nll"):
        assert by[name].metric_value == pytest.approx(after[name].value)
        args = by[name].metric_args
        assert args["n"] == 400
        assert args["temperature"] == pytest.approx(fit["temperature"].value)
        assert args["ci95"] == pytest.approx([after[name].low, after[name].high])
    assert by["ece"].metric_args["null95"] == pytest.approx(after["ece"].null_high)
    assert "## Calibration" in text
    assert json.dumps("my model") in text


def test_verify_prepares_pictures_as_logits_does(tmp_path: Path) -> None:
    """By the folder's image processor: the gate judges the same logits before and after."""
    from PIL import Image
    from transformers import ViTImageProcessor

    model, _ = folder(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(model)
    rng = np.random.default_rng(0)
    for i in range(24):
        (tmp_path / "pictures" / f"c{i % K}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"c{i % K}" / f"{i}.png")
    pictures, raw, cal, made = (str(tmp_path / n) for n in ("pictures", "raw.npz", "c.safetensors", "made"))
    assert main(["logits", str(model), "--data", pictures, "--save", raw, "-q"]) == 0
    assert main(["scale", raw, "--save", cal, "-q"]) == 0
    argv = ["export", cal, "--to", "checkpoint", "--model", str(model), "--data", pictures, "-o", made, "-q"]
    assert main(argv) == 0
    fit = calibcli.load_scaler(cal)
    rows, deployed, _ = verify._networks(ExportRequest(scaler=fit, path=Path(made), data=pictures), model)
    recorded = calibcli.read(raw)
    assert rows.labels.tolist() == recorded.labels.tolist()
    np.testing.assert_allclose(rows.logits, log_softmax(recorded.logits.astype(float)), atol=1e-4)
    np.testing.assert_allclose(deployed, fit.predict_proba(recorded.logits), atol=1e-5)


def test_an_onnx_graph_beside_an_image_processor(tmp_path: Path) -> None:
    """As exporters leave it: rows are prepared as its folder says, and labels numbered as its classes."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from PIL import Image
    from transformers import ViTConfig, ViTImageProcessor

    home = tmp_path / "exported"
    names = {0: "cat", 1: "ant", 2: "bee"}
    config = ViTConfig(id2label=names, label2id={v: k for k, v in names.items()})
    config.architectures = ["ViTForImageClassification"]
    config.save_pretrained(home)
    processor = ViTImageProcessor(size={"height": 4, "width": 4})
    processor.save_pretrained(home)
    rng, make, value = np.random.default_rng(0), onnx.helper, onnx.helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(rng.standard_normal((48, 3)).astype(np.float32), "w")
    nodes = [make.make_node("Flatten", ["pixel_values"], ["flat"]), make.make_node("MatMul", ["flat", "w"], ["logits"])]
    inputs, outputs = [value("pixel_values", 1, ["n", 3, 4, 4])], [value("logits", 1, ["n", 3])]
    model = make.make_model(make.make_graph(nodes, "g", inputs, outputs, [weight]), ir_version=8)
    model.opset_import[0].version = 17
    onnx.save(model, home / "model.onnx")
    shown = []
    for name in ("ant", "bee", "cat"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(4):
            shown.append(Image.fromarray(rng.integers(0, 256, (9, 8, 3)).astype(np.uint8)))
            shown[-1].save(tmp_path / "pictures" / name / f"{i}.png")
    one, made = Scaler("temperature", 3, {"beta": np.array(0.5)}), tmp_path / "made.onnx"
    given: dict[str, Any] = {"model": home / "model.onnx", "data": tmp_path / "pictures"}
    calibcli.export(one, "onnx", save=made, **given)
    x = np.asarray(processor(images=shown, return_tensors="pt")["pixel_values"])
    before, after = (runtime.InferenceSession(str(p)).run(None, {"pixel_values": x})[0] for p in (given["model"], made))
    np.testing.assert_allclose(after, before / 2, rtol=1e-6)
    job = ExportRequest(scaler=one, path=made, data=given["data"])
    rows, deployed, _ = verify._networks(job, given["model"])
    np.testing.assert_allclose(rows.logits, log_softmax(before.astype(float)), atol=1e-4)
    np.testing.assert_allclose(np.log(deployed), log_softmax(before.astype(float) / 2), atol=1e-4)
    assert rows.labels.tolist() == [1] * 4 + [2] * 4 + [0] * 4
    turned = Scaler("vector", 3, {"weight": np.ones(3), "bias": np.arange(3.0)}, classes=("ant", "bee", "cat"))
    with pytest.raises(InputError, match=r"class 0 is 'cat' in .*model\.onnx and 'ant' in the calibrator"):
        calibcli.export(turned, "onnx", save=tmp_path / "b.onnx", **given)
