"""`calib logits` writes the logits of every token and pixel that has a label, and the rows that they lie in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calibcli
from calibcli.core.errors import InputError, UsageError
from calibcli.networks import inference

torch.set_num_threads(1)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(1, 40, (24, 10))
MASK = (np.arange(10) < RNG.integers(4, 11, (24, 1))).astype(np.int64)
PICTURES = RNG.normal(size=(12, 3, 8, 6)).astype(np.float32)


class Tagger(nn.Module):
    """Tokens (n, T) to logits (n, T, C); with `first`, (n, C, T)."""

    def __init__(self, classes: int = 5, first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.memory = nn.Embedding(40, 12), nn.LSTM(12, 12, batch_first=True)
        self.head, self.first = nn.Linear(12, classes), first

    def forward(self, tokens: Any) -> Any:
        z = self.head(self.memory(self.words(tokens))[0])
        return z.movedim(-1, 1) if self.first else z


class Named(Tagger):
    """The same, of tokens and a mask by name."""

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return {"logits": super().forward(input_ids * attention_mask)}


class Segmenter(nn.Module):
    """Pictures (n, 3, H, W) to logits (n, C, H / scale, W / scale), as torchvision's models name them."""

    def __init__(self, classes: int = 4, scale: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Conv2d(3, 8, 3, padding=1, stride=scale), nn.Conv2d(8, classes, 1)

    def forward(self, x: Any) -> Any:
        return {"out": self.head(self.body(x).relu()), "aux": x}


def tags(model: Tagger) -> tuple[Any, Any, np.ndarray]:
    labels = np.where(MASK == 1, RNG.integers(0, 5, TOKENS.shape), -100)
    z = model.eval()(torch.tensor(TOKENS)).detach()
    return {"tokens": TOKENS, "labels": labels}, labels, (z.movedim(1, -1) if model.first else z).numpy()


def pixels(model: Segmenter) -> tuple[Any, Any, np.ndarray]:
    labels = RNG.integers(0, 4, (12, 8, 6)).astype(np.uint8)
    labels[:, 0] = 255
    z = nn.functional.interpolate(model(torch.tensor(PICTURES))["out"], (8, 6), mode="bilinear")
    return (PICTURES, labels), np.where(labels == 255, -100, labels.astype(int)), z.detach().movedim(1, -1).numpy()


def by_name(model: Named) -> tuple[Any, Any, np.ndarray]:
    labels = np.where(MASK == 1, RNG.integers(0, 5, TOKENS.shape), -100)
    inputs = {"input_ids": TOKENS, "attention_mask": MASK}
    z = model.eval()(*map(torch.tensor, inputs.values()))["logits"].detach().numpy()
    return (inputs, labels), labels, z


ZOO: dict[str, tuple[Callable[[], Any], Any]] = {
    "classes last": (Tagger, tags),
    "classes on axis 1": (lambda: Tagger(first=True), tags),
    "tokens and mask by name": (Named, by_name),
    "a dict with out": (Segmenter, pixels),
    "a quarter of the pixels": (lambda: Segmenter(scale=2), pixels),
}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("name", ZOO)
def test_logits_of_positions_are_those_of_the_model(name: str, suffix: str, tmp_path: Path) -> None:
    make, prepared = ZOO[name]
    model = make()
    data, labels, z = prepared(model)
    found = calibcli.logits(model, data, save=tmp_path / f"o{suffix}", device="cpu", batch_size=7, ignore_label=255)
    rows = calibcli.read(tmp_path / f"o{suffix}")
    np.testing.assert_allclose(rows.logits, z[labels >= 0], atol=1e-5)
    np.testing.assert_array_equal(rows.labels, labels[labels >= 0])
    assert rows.group_names is not None
    np.testing.assert_array_equal(rows.group_names[rows.groups], np.nonzero(labels >= 0)[0])
    assert (found.facts["rows"], found.facts["positions"]) == (len(labels), rows.n)
    accuracy = calibcli.measure(rows, "accuracy")["accuracy"]
    assert (found["accuracy"].value, found["accuracy"].low) == (accuracy.value, accuracy.low)


def test_a_shift_and_an_axis_are_the_users_choice(tmp_path: Path) -> None:
    model, tokens = Tagger(10), TOKENS[:, :10]  # as many positions as classes
    labels = RNG.integers(0, 10, tokens.shape)
    data = {"tokens": tokens, "labels": labels}
    with pytest.raises(InputError, match="if the classes are on axis 1"):
        calibcli.logits(model, data, save=tmp_path / "o.npz", device="cpu")
    calibcli.logits(model, data, save=tmp_path / "o.npz", device="cpu", class_axis="last", shift=1)
    z = model.eval()(torch.tensor(tokens)).detach().numpy()
    rows = calibcli.read(tmp_path / "o.npz")
    np.testing.assert_allclose(rows.logits, z[:, :-1].reshape(-1, 10), atol=1e-6)
    np.testing.assert_array_equal(rows.labels, labels[:, 1:].ravel())


def test_a_share_of_the_positions_is_drawn_with_the_seed(tmp_path: Path) -> None:
    data, labels, z = pixels(model := Segmenter())
    kept = np.random.default_rng(3).random(labels.shape, np.float32) < 0.3
    how: dict[str, Any] = {"device": "cpu", "ignore_label": 255, "position_share": 0.3, "split_seed": 3}
    calibcli.logits(model, data, save=tmp_path / "o.npz", **how)
    np.testing.assert_allclose(calibcli.read(tmp_path / "o.npz").logits, z[kept & (labels >= 0)], atol=1e-5)


def test_few_rows_run_together_where_their_logits_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, labels, z = tags(model := Tagger())
    monkeypatch.setattr(inference, "AT_ONCE", 3 * 4 * 5 * 10)  # the logits of three rows
    seen = list[int]()
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    calibcli.logits(model, data, save=tmp_path / "o.npz", device="cpu")
    assert max(seen) == 3
    np.testing.assert_allclose(calibcli.read(tmp_path / "o.npz").logits, z[labels >= 0], atol=1e-5)


CLASS = np.zeros(12, int)
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "void": (Segmenter, (PICTURES, np.full((12, 8, 6), 255)), {}, "ignore_label=255"),
    "none": (Segmenter, (PICTURES, np.full((12, 8, 6), -100)), {}, "no position has a label"),
    "negative": (Segmenter, (PICTURES, np.full((12, 8, 6), -1)), {}, "ignore_label=-1"),
    "smaller labels": (Segmenter, (PICTURES, np.zeros((12, 4, 3), int)), {}, "label maps of the size"),
    "npy": (Segmenter, (PICTURES, np.zeros((12, 8, 6), int)), {"save": "o.npy"}, "no place for the rows"),
    "shift of pictures": (Segmenter, (PICTURES, np.zeros((12, 8, 6), int)), {"shift": 1}, "is for sequences"),
    "one label a row": (Segmenter, (PICTURES, CLASS), {}, "calib logits with labels of each"),
    "a shift of rows": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), (PICTURES, CLASS), {"shift": 1},
                        "each row has one label"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_logits_of_positions_is_refused_in_words(name: str, tmp_path: Path) -> None:
    make, data, how, words = REFUSED[name]
    with pytest.raises((InputError, UsageError)) as error:
        calibcli.logits(make(), data, device="cpu", **{**how, "save": tmp_path / how.get("save", "o.npz")})
    assert words in str(error.value)
    assert not [*tmp_path.iterdir()]


def test_curvature_and_training_say_that_they_take_one_label_a_row() -> None:
    data, _, _ = pixels(model := Segmenter())
    for call in (
        lambda: calibcli.curvature(model, data, "trace", device="cpu"),
        lambda: calibcli.train(model, data, validation=data, test=data, epochs=1, batch_size=4, device="cpu"),
    ):
        with pytest.raises(InputError, match="one for each position of a row") as error:
            call()
        assert "calib logits writes the logits of positions" in error.value.fix


@pytest.mark.parametrize("kind", ["sequence", "picture", "uneven"])
def test_intervals_over_rows_cover_where_intervals_over_positions_do_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of `benchmarks/positions.py --part coverage`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    benchmark = importlib.import_module("positions")
    monkeypatch.setattr(benchmark, "POPULATION", 2_000)
    held, given, alone = np.array([*benchmark.covered(kind, 60, 12).values()]).T
    assert held.sum() >= 0.92 * given.sum()
    assert given.sum() > 0
    assert alone.sum() < held.sum()


def test_no_promise_about_rows_that_were_not_drawn_is_kept_by_a_shorter_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short form of `benchmarks/positions.py --part allowance`: lengths, and who misses where two rows are rare."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    benchmark = importlib.import_module("positions")
    monkeypatch.setattr(benchmark, "POPULATION", 2_000)
    found = benchmark.missed("sequence", 40, 20, True)
    for name in benchmark.MEANS:
        lengths = [found[how][name][:, 2] for how in ("as it is", "least", "score form")]
        assert (lengths[0] >= lengths[1]).all()
        assert (lengths[1] >= lengths[2] * (1 - 1e-9)).all()
    off = {how: sum(int(one[:, :2].sum()) for one in of.values()) for how, of in found.items()}
    assert off["as it is"] <= off["least"] < off["Student"]


# Folders of transformers.


def folders() -> dict[str, Callable[[], Any]]:
    t = importlib.import_module("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    text = {**size, "vocab_size": 40, "max_position_embeddings": 32}
    stages = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}
    gpt2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return {
        "tagger": lambda: t.BertForTokenClassification(t.BertConfig(**text, num_labels=5)),
        "distil tagger": lambda: t.DistilBertForTokenClassification(
            t.DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=32, vocab_size=40, num_labels=5)
        ),
        "masked": lambda: t.BertForMaskedLM(t.BertConfig(**text)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**text, pad_token_id=0)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**gpt2, bos_token_id=0, eos_token_id=0)),
        "segformer": lambda: t.SegformerForSemanticSegmentation(
            t.SegformerConfig(**stages, decoder_hidden_size=16, num_labels=4)
        ),
    }


NAMES = ("tagger", "distil tagger", "masked", "llama", "gpt2", "segformer")


@pytest.mark.extra
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_folders_of_transformers_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = folders()[name]().eval()
    model.save_pretrained(tmp_path / "folder")
    arrays: dict[str, Any] = {"input_ids": TOKENS, "attention_mask": MASK}
    labels = np.where(MASK == 1, RNG.integers(0, 5, TOKENS.shape), -100)
    if name == "segformer":
        pictures = RNG.normal(size=(6, 3, 32, 32)).astype(np.float32)
        labels = RNG.integers(0, 4, (6, 32, 32))
        np.savez(tmp_path / "data.npz", images=pictures, labels=labels)
        small = model(torch.tensor(pictures)).logits
        z = nn.functional.interpolate(small, (32, 32), mode="bilinear").movedim(1, -1)
    else:
        z = model(**{key: torch.tensor(values) for key, values in arrays.items()}).logits
        if name in ("llama", "gpt2"):  # whose labels are the next tokens
            labels = np.where(MASK == 1, TOKENS, -100)
            z, labels = z[:, :-1], labels[:, 1:]
        else:
            arrays["labels"] = labels
        np.savez(tmp_path / "data.npz", **arrays)
    found = calibcli.logits(tmp_path / "folder", tmp_path / "data.npz", save=tmp_path / "o.npz", device="cpu")
    file = np.load(tmp_path / "o.npz")
    np.testing.assert_allclose(file["logits"], z.detach().numpy()[labels >= 0], atol=1e-5)
    np.testing.assert_array_equal(file["labels"], labels[labels >= 0])
    np.testing.assert_array_equal(file["row_of_position"], np.nonzero(labels >= 0)[0])
    assert any("--shift 1" in note for note in found.notes) == (name in ("llama", "gpt2"))


@pytest.mark.extra
def test_texts_of_a_causal_model_are_their_own_labels(tmp_path: Path) -> None:
    t = pytest.importorskip("transformers")
    tokenizers = importlib.import_module("tokenizers")
    words = ["[UNK]", "[PAD]", *["the", "a", "cat", "dog", "sees", "hears", "old", "young"]]
    core = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    t.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        tmp_path / "folder"
    )
    model = folders()["llama"]().eval()
    model.save_pretrained(tmp_path / "folder")
    (tmp_path / "texts.csv").write_text("text\nthe old cat sees a dog\na dog hears\nthe cat sees the young cat\n")
    calibcli.logits(tmp_path / "folder", tmp_path / "texts.csv", save=tmp_path / "o.npz", device="cpu")
    rows = calibcli.read(tmp_path / "o.npz")
    assert (rows.n, rows.group_count) == (5 + 2 + 5, 3)
    assert [words[i] for i in rows.labels[:5]] == ["old", "cat", "sees", "a", "dog"]
    z = model(torch.tensor([[words.index(word) for word in ["a", "dog", "hears"]]])).logits.detach().numpy()
    np.testing.assert_allclose(rows.logits[5:7], z[0, :-1], atol=1e-5)
