"""Architectures that are not built in: the user's own factories, torchvision, timm and Hugging Face folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.networks import checkpoint, inference

torch.set_num_threads(1)
FACTORY = """
from torch import nn
def make(classes=5, width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.Flatten(), nn.LazyLinear(classes)) if width < 0 else \\
        nn.Sequential(nn.Conv2d(3, width, 3), nn.Flatten(), nn.Linear(36 * width, classes))
class Net(nn.Sequential):
    def __init__(self, num_classes=5):
        super().__init__(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, num_classes))
def wrong():
    return 3
def broken():
    raise ValueError("no")
def missing():
    return {}["missing"]
"""


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    Path("factory_net.py").write_text(FACTORY)
    assert len(list(checkpoint.build("factory_net:make,classes=3,width=2").parameters())) == 4
    assert checkpoint.build("factory_net:Net", classes=7)[2].out_features == 7
    assert checkpoint.build(None, "factory_net.py:make,classes=3", classes=9)[2].out_features == 3
    model = checkpoint.build(None, "factory_net.py:Net").eval()
    torch.save(model.state_dict(), "m.pt")
    x = torch.linspace(-1, 1, 384).view(2, 3, 8, 8)
    for options in ({"arch": "factory_net:Net"}, {"arch_file": "factory_net.py:Net"}):
        torch.testing.assert_close(checkpoint.load("m.pt", **options).model(x), model(x))
    for spec, problem in [
        ("factory_net:wrong", "returned int"),
        ("factory_net:broken", "ValueError: no"),
        ("factory_net:missing", "KeyError: 'missing'"),
        ("factory_net:mak", "has no 'mak'"),
        ("no_such_module:make", "no module 'no_such_module'"),
        ("resnt", "unknown architecture 'resnt'"),
        ("torchvision.resnet18", "torchvision"),
    ]:
        if spec.startswith("torchvision") and "torchvision" in sys.modules:
            continue
        with pytest.raises(CalibError, match=problem):
            checkpoint.build(spec)
    with pytest.raises(UsageError, match="--arch and --arch-file exclude each other"):
        checkpoint.build("resnet", "factory_net.py:make")
    with pytest.raises(UsageError, match="no function is named"):
        checkpoint.build(None, "factory_net.py")


def test_hugging_face_folder_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertForSequenceClassification"]}')
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="transformers is not installed") as caught:
        checkpoint.load(tmp_path)
    assert "pip install transformers pillow" in caught.value.fix


@pytest.mark.extra
def test_hugging_face_folder(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
        id2label={0: "no", 1: "maybe", 2: "yes"},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    found = checkpoint.load(tmp_path)
    assert (found.container, found.classes) == ("Hugging Face folder", ["no", "maybe", "yes"])
    batch = {"input_ids": torch.arange(12).view(2, 6), "attention_mask": torch.ones(2, 6, dtype=torch.int64)}
    torch.testing.assert_close(inference.logits(found.model, batch), model(**batch).logits)
    config.architectures = ["BertModel"]
    config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="not a classifier"):
        checkpoint.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path)
    torch.testing.assert_close(inference.logits(checkpoint.load(tmp_path).model, batch), model(**batch).logits)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match="holds no checkpoint"):
        checkpoint.load(tmp_path)


@pytest.mark.extra
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_zoos(library: str) -> None:
    option = "num_classes=7"
    assert checkpoint.build(f"{library}.resnet34:{option}").get_submodule("fc").out_features == 7
    assert checkpoint.build(f"{library}.resnet34", classes=5).get_submodule("fc").out_features == 5
    with pytest.raises(UsageError, match=f"{library} has no model 'resnet35'"):
        checkpoint.build(f"{library}.resnet35")
