"""The page "Ship your temperature": every block of it runs, in order, where its packages are installed."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "ship.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE))
NEEDS = {"Hugging Face": ("transformers",), "ONNX Runtime": ("onnx", "onnxruntime")}
STACKS = ["PyTorch", "Hugging Face", "ONNX Runtime", "scikit-learn", "vLLM"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("validation.npz", "test.npz", "digits.npz", "model.safetensors"):
        shutil.copy(ROOT / "sample_data" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["scale", "validation.npz", "--save", "temperature.safetensors", "-q"]) == 0
    return tmp_path


def vit(folder: Path) -> None:
    """A ViT of random weights and pictures for it."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=6,
    )
    model = ViTForImageClassification(config).eval()
    with torch.no_grad():
        model.classifier.weight.mul_(60)
    model.save_pretrained(folder / "vit")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 3, 32, 32)).astype(np.float32)
    with torch.no_grad():
        z = model(torch.from_numpy(x)).logits.numpy()
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    np.savez(folder / "pictures.npz", pixel_values=x, labels=y)


def net(folder: Path) -> None:
    """The sample model as ONNX, made of its tensors."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    names = [key.removesuffix(".weight") for key in tensors if key.endswith("weight")]
    nodes, constants, last = [], [], "x"
    nodes.append(helper.make_node("Flatten", ["x"], ["flat"]))
    last = "flat"
    for i, name in enumerate(names):
        for part in ("weight", "bias"):
            constants.append(numpy_helper.from_array(tensors[f"{name}.{part}"], f"{name}.{part}"))
        nodes.append(helper.make_node("Gemm", [last, f"{name}.weight", f"{name}.bias"], [f"h{i}"], transB=1))
        last = f"h{i}"
        if i < len(names) - 1:
            nodes.append(helper.make_node("Relu", [last], [f"r{i}"]))
            last = f"r{i}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.FLOAT, ["n", "c", "h", "w"])],
        [value(last, TensorProto.FLOAT, ["n", 10])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(folder / "net.onnx"))


@pytest.mark.parametrize(
    "stack", [pytest.param(name, marks=pytest.mark.extra if name in NEEDS else pytest.mark.docs) for name in STACKS]
)
def test_a_stack(stack: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in NEEDS.get(stack, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if stack == "Hugging Face":
        vit(folder)
    if stack == "ONNX Runtime":
        net(folder)
    with np.load("test.npz") as data:
        names: dict[str, Any] = {"logits": data["logits"], "labels": data["labels"]}
    ran = 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", SECTIONS[stack], re.S):
        if language == "python":
            exec(compile(block, stack, "exec"), names)
            ran += 1
            continue
        for line in block.strip().splitlines():
            assert main([*shlex.split(line)[1:], "-q"]) == 0, (line, capsys.readouterr().err)
            ran += 1
    assert ran >= (1 if stack == "scikit-learn" else 2)


@pytest.mark.extra
@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM brings gigabytes; where it is there it is asked"
)
def test_vllm_knows_the_options(folder: Path) -> None:
    vllm = pytest.importorskip("vllm.config")
    assert main(["export", "temperature.safetensors", "--to", "vllm", "--data", "test.npz", "-o", "p.json", "-q"]) == 0
    options = json.loads((folder / "p.json").read_text())
    assert vllm.PoolerConfig(**options).logit_sigma == options["logit_sigma"]


def test_the_five_stacks_are_there() -> None:
    assert [name for name in SECTIONS if name in STACKS] == STACKS
