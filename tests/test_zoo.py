"""Classifiers of other libraries against double backwards written by hand: a handful of benchmarks/zoo.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent.parent / "benchmarks"
QUICK = {
    "recent": ["modulated", "least-gru", "stacked-by-hand"],
    "torchvision": ["convnext", "mobilenet_v3", "vit"],
    "transformers": ["bert", "llama", "wav2vec2"],
    "timm": ["test_resnet", "test_efficientnet"],
}


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(HERE))
    try:
        names = ("_zoo_models", "_zoo_truth", "_zoo_recent")
        yield tuple(importlib.import_module(name) for name in names)
    finally:
        sys.path.remove(str(HERE))


@pytest.mark.extra
@pytest.mark.parametrize(("library", "name"), [(library, name) for library, names in QUICK.items() for name in names])
def test_the_zoo(bench: tuple[ModuleType, ...], library: str, name: str) -> None:
    models, truth, *recent = bench
    zoo = recent[0] if library == "recent" else pytest.importorskip(library)
    torch.manual_seed(0)
    if library == "timm":
        model, inputs = zoo.create_model(name, num_classes=3), models.images(32, 2)
    else:
        model, inputs = getattr(zoo if library == "recent" else models, library)()[name]()
    verdict = truth.judge(model, inputs, budget=1.0, most=100, quick=True)
    assert verdict.how == "equal", verdict.text
    assert verdict.product["float64"] < 1e-8
