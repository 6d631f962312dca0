"""Folders of models that others wrote, with mistakes: damaged configurations, huge numbers, no vocabulary."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from calibcli.cli.app import main
from calibcli.core.errors import Exit

MUTANTS = int(os.environ.get("CALIB_MUTANTS", "40"))
KINDS = ["bert", "vit", "timm"]
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {
        "architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40,
        "max_position_embeddings": 12, "id2label": {"0": "cat", "1": "ant"}, "label2id": {"cat": 0, "ant": 1},
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "pad_token_id": 0, "type_vocab_size": 2, "dtype": "float32",
    },
    "vit": {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 16, "image_size": 16,
        "patch_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "num_channels": 3, "id2label": {"0": "cat", "1": "ant"}, "layer_norm_eps": 1e-12, "qkv_bias": True,
    },
    "timm": {
        "architecture": "resnet18", "num_classes": 2, "label_names": ["cat", "ant"], "num_features": 512,
        "pretrained_cfg": {"input_size": [3, 8, 8], "mean": [0.5, 0.5, 0.5], "std": [1, 1, 1], "crop_pct": 0.9,
                           "interpolation": "bicubic", "crop_mode": "center", "num_classes": 2},
    },
}  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.sampled_from([-1, 0, 1, 2, 7, 10**3, 10**9, 10**30, 0.5, -0.0, 1e300, float("nan")]),
    st.sampled_from(["", "x", "8", "gelu", "0", "BertModel", "../x", "a/b", "\0", "float16", "auto", "ü" * 40]),
    st.sampled_from([[], {}, [1], ["x"], {"x": 5}, {"0": None}, {"0": "a", "5": "b"}, [[]], {"x": {}}, [10**9]]),
)  # fmt: skip
MUTATION = st.tuples(st.integers(0, 10**6), ODD, st.sampled_from(["set", "drop", "inside"]))


def mutated(config: dict[str, Any], mutations: list[tuple[int, Any, str]]) -> dict[str, Any]:
    """The configuration with a few values replaced or dropped."""
    made = json.loads(json.dumps(config))
    more = (
        "num_labels",
        "problem_type",
        "auto_map",
        "quantization_config",
        "torch_dtype",
        "text_config",
        "layer_types",
    )
    for place, value, how in mutations:
        keys = [*made, *more]
        key = keys[place % len(keys)]
        if how == "drop":
            made.pop(key, None)
        elif how == "inside" and isinstance(made.get(key), dict) and made[key]:
            made[key][sorted(made[key])[place % len(made[key])]] = copy.deepcopy(value)
        else:
            made[key] = copy.deepcopy(value)
    return made


def folder(path: Path, kind: str) -> Path:
    path.mkdir()
    save_file({"a.weight": torch.zeros(2, 3)}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIGS[kind]))
    return path


@settings(max_examples=MUTANTS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(KINDS), mutations=st.lists(MUTATION, min_size=1, max_size=3))
def test_inspect_reads_or_refuses_any_configuration(
    kind: str, mutations: list[tuple[int, Any, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"inspected-{kind}"
    if not path.exists():
        folder(path, kind)
    (path / "config.json").write_text(json.dumps(mutated(CONFIGS[kind], mutations)))
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        assert main(["inspect", str(path), "-q", "--json"]) in (Exit.OK, Exit.REFUSED, Exit.USAGE)


@pytest.mark.parametrize(
    "change",
    [
        {"id2label": {"x": 5}}, {"id2label": ["a", "b"]}, {"architectures": 5}, {"architectures": [None]},
        {"num_labels": "x"}, {"problem_type": []}, {"model_type": 3},
    ],
)  # fmt: skip
def test_inspect_of_odd_values(tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "m", "bert")
    (path / "config.json").write_text(json.dumps({**CONFIGS["bert"], **change}))
    assert main(["inspect", str(path)]) in (Exit.OK, Exit.REFUSED)
    if change == {"id2label": {"x": 5}}:
        assert f"{path}/config.json is not understood" in capsys.readouterr().err


TEXT = "text,label\nthe cat,cat\na dog,ant\nfilm,cat\n"


def bert(path: Path, **more: Any) -> Path:
    import transformers as t
    from test_models import FRAME, tokenizer

    torch.manual_seed(0)
    config = t.BertConfig(**{**CONFIGS["bert"], **more})
    t.BertForSequenceClassification(config).save_pretrained(path)
    tokenizer(12, **FRAME).save_pretrained(path)
    return path


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text(TEXT)
    return bert(tmp_path / "m")


def logits(path: Path) -> int:
    return main(["logits", str(path), "--data", "d.csv", "--save", "o.npz", "--device", "cpu"])


def edit(path: Path, **change: Any) -> None:
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, **change}))


def lfs(path: Path) -> None:
    path.with_name("vocab.txt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:07ec\nsize 231508\n")


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["BertTokenizer", "GPT2Tokenizer", "LlamaTokenizer"])
@pytest.mark.parametrize("left", [None, lfs])
def test_a_tokenizer_without_its_vocabulary(
    texts: Path, kind: str, left: Callable[[Path], None] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library makes one of its special tokens alone: every text would become the same."""
    (texts / "tokenizer.json").unlink()
    edit(texts / "tokenizer_config.json", tokenizer_class=kind)
    if left:
        left(texts / "tokenizer.json")
    assert logits(texts) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "vocabulary" in said
    assert "git lfs pull" in said


@pytest.mark.extra
def test_texts_of_unknown_words_alone(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("d.csv").write_text("text,label\nzzz,cat\nqqq www,ant\n")
    assert logits(texts) == Exit.REFUSED
    assert "knows no word of the 2 texts of d.csv" in capsys.readouterr().err


@pytest.mark.extra
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id2label": {"x": 5}}, "invalid literal for int"),
        ({"hidden_size": "8"}, "cannot be loaded by transformers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, and its weights have"),
        ({"num_labels": 10**9, "id2label": None}, "num_labels is 1000000000, and its weights have"),
        ({"vocab_size": 9_000_000}, "asks for 144,0"),
    ],
)
def test_a_damaged_configuration(
    texts: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(texts / "config.json", **change)
    assert logits(texts) == Exit.REFUSED
    assert said in capsys.readouterr().err


@pytest.mark.extra
def test_a_pickle_under_the_name_of_safetensors(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (texts / "model.safetensors").write_bytes(pickle.dumps({"a": 1}))
    assert logits(texts) == Exit.REFUSED
    assert "cannot be loaded by transformers" in capsys.readouterr().err


@pytest.mark.extra
def test_logits_of_any_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text(TEXT)
    bert(tmp_path / "whole")
    config = json.loads(Path("whole/config.json").read_text())

    @settings(max_examples=MUTANTS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(mutations=st.lists(MUTATION, min_size=1, max_size=3))
    def run(mutations: list[tuple[int, Any, str]]) -> None:
        shutil.rmtree("m", ignore_errors=True)
        shutil.copytree("whole", "m")
        Path("m/config.json").write_text(json.dumps(mutated(config, mutations)))
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            assert logits(Path("m")) in (Exit.OK, Exit.REFUSED, Exit.USAGE), mutations

    run()
