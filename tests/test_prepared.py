"""Rows as a model's own library prepares them: what calib does around that, with libraries that are stood in for."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calibcli.core.errors import InputError, UsageError
from calibcli.networks import checkpoint, dataset, inference
from calibcli.networks.dataset import _folder as folder
from calibcli.networks.dataset import loading, tight
from calibcli.networks.dataset.library_preparation import PicturePreparation, Preparation, TextPreparation, tokens
from calibcli.networks.dataset.rows import RESAMPLE, Resize, sized, sizing
from calibcli.scores.reading_options import DatasetOptions

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words(longest: int | None = None, left: bool = False, mask: bool = True) -> TextPreparation:
    """A token for a word, its length, between 1 and 2; a second text after another 2."""

    def encode(texts: Sequence[str], second: Sequence[str] | None, cut: bool) -> Mapping[str, list[list[int]]]:
        rows = []
        for i, text in enumerate(texts):
            row = [1, *(10 + len(word) for word in text.split()), 2]
            row += [] if second is None else [*(20 + len(word) for word in second[i].split()), 2]
            rows.append(row[: longest if cut else None])
        ones = {"attention_mask": [[1] * len(row) for row in rows]} if mask else {}
        return {"input_ids": rows, **ones}

    return TextPreparation("words", encode, longest, {}, lambda used, last: 9, left)


def test_texts_become_tokens_filled_up_and_cut_off() -> None:
    found, notes = tokens(words(4), ["a bb", "", "a a a a"], None, "it")
    assert {name: array.read(0, 9).tolist() for name, array in found.items()} == {
        "input_ids": [[1, 11, 12, 2], [1, 2, 9, 9], [1, 11, 11, 11]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]],
    }
    assert notes == [
        "texts as tokens of words, 2 to 4 in a row",
        "1 of 3 texts have more than the 4 tokens of the model: cut off",
    ]
    found, notes = tokens(words(left=True), ["a bb", ""], ["c", "d e"], "it")
    assert found["input_ids"].read(0, 2).tolist() == [[1, 11, 12, 2, 21, 2], [9, 1, 2, 21, 21, 2]]
    assert found["input_ids"].read(1, 2).tolist() == [[9, 1, 2, 21, 21, 2]]
    assert len(notes) == 1
    with pytest.raises(InputError, match="takes no attention mask"):
        tokens(words(mask=False), ["a", "a a"], None, "it")
    assert tokens(words(mask=False), ["a", "b"], None, "it")[0]["input_ids"].shape == (2, 3)
    many, _ = tokens(words(), [" ".join("a" * (i % 7)) for i in range(2500)], None, "it")
    assert many["attention_mask"].read(0, 2500).sum(1).tolist() == [2 + i % 7 for i in range(2500)]


def test_tight_leaves_what_a_mask_lets_through() -> None:
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 0]])
    ids = torch.arange(8).view(2, 4)
    found = tight({"input_ids": ids, "attention_mask": mask, "other": torch.ones(2, 3)})
    assert isinstance(found, dict)
    assert (found["input_ids"].tolist(), found["other"].shape) == ([[1, 2], [5, 6]], (2, 3))
    assert tight({"input_ids": ids})["input_ids"].shape == (2, 4)  # type: ignore[index]
    empty = {"input_ids": ids, "attention_mask": torch.zeros_like(mask)}
    assert tight(empty) is empty
    assert tight(ids) is ids


class Sums(nn.Module):
    """Logits: the sum of the tokens that the mask lets through, and its negative."""

    widths: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.widths = []

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        self.widths.append(input_ids.shape[1])
        z = (input_ids * attention_mask).sum(1).float()
        return torch.stack([z, -z], 1)


def test_batches_are_as_wide_as_their_longest_text() -> None:
    """The first that is narrower runs as wide as all too: the logits must be the same."""
    Path("d.csv").write_text("label,text\n0,a\n1,a b c\n0,a\n1,b\n0,a\n1,b\n")
    model = Sums().eval()
    data = dataset.load("d.csv", preparation=Preparation(texts=words))
    found = torch.cat(list(inference.predict(model, data, batch_size=2)))
    assert found[:, 0].tolist() == [14, 36, 14, 14, 14, 14]
    assert model.widths == [5, 3, 5, 3]
    assert data.shape == (5,)
    assert data.prepared["by"] == "words"


TABLES = {
    "label,text\nb,x\na,y\n": ["text"],
    "label,id,title,sentence\nb,1,t,x\na,2,t,y\n": ["sentence"],
    "label,hypothesis,premise,text\nb,h,x,t\na,h,y,t\n": ["premise", "hypothesis"],
    "label,whatever,number\nb,x,1\na,y,2\n": ["whatever", "number"],
    "class,say\nb,x\na,y\n": ["say"],
}


@pytest.mark.parametrize("text", TABLES)
def test_columns_of_texts(text: str) -> None:
    Path("d.csv").write_text(text)
    data = dataset.load("d.csv", preparation=Preparation(texts=words))
    assert data.prepared["columns"] == TABLES[text]
    assert (data.classes, data.labels.tolist()) == (["a", "b"], [1, 0])


def test_columns_of_texts_that_are_chosen_or_not_clear() -> None:
    Path("d.csv").write_text("label,one,two,three\nb,x,y,z\na,x,y,z\n")
    with pytest.raises(InputError, match="one, two, three are texts") as caught:
        dataset.load("d.csv", preparation=Preparation(texts=words))
    assert "--inputs one,two" in caught.value.fix
    data = dataset.load("d.csv", inputs="two,one", preparation=Preparation(texts=words))
    assert data.prepared["columns"] == ["two", "one"]
    with pytest.raises(InputError, match=r"'for' of d\.csv is no text"):
        dataset.load("d.csv", inputs="for", preparation=Preparation(texts=words))
    np.savez("d.npz", input_ids=[[1, 2], [3, 4]], attention_mask=[[1, 1], [1, 0]], labels=[0, 1])
    assert list(dataset.load("d.npz", preparation=Preparation(texts=words)).inputs) == ["input_ids", "attention_mask"]
    Path("n.csv").write_text("label,a,b\n0,1,2\n1,3,4\n")
    with pytest.raises(InputError, match="not a number"):
        dataset.load("d.csv")
    data = dataset.load("n.csv", inputs="b")
    assert data.batch(slice(None))[0].tolist() == [[2], [4]]


def test_labels_are_matched_by_name_in_any_case_or_by_number() -> None:
    Path("d.csv").write_text("label,a\nPos,1\nneg,2\n")
    data = dataset.load("d.csv")
    assert dataset.in_order(data, ["neg", "neutral", "pos"]).labels.tolist() == [2, 0]
    assert dataset.in_order(data, ["POS", "neg", "Pos"]).labels.tolist() == [2, 1]  # as it is written comes first
    with pytest.raises(InputError, match="class 'Pos', which the model does not know"):
        dataset.in_order(data, ["POS", "pos", "neg"])  # two that are the same but for case
    with pytest.raises(InputError) as caught:
        dataset.in_order(data, ["up", "down"])
    assert "up, down" in caught.value.fix
    for text in ("LABEL_10,1\nLABEL_2,2", "10,1\n2,2"):
        Path("d.csv").write_text(f"label,a\n{text}\n")
        data = dataset.in_order(dataset.load("d.csv"), [f"class {i}" for i in range(11)])
        assert data.labels.tolist() == [10, 2]
        assert data.classes is not None
    Path("d.csv").write_text("label,a\nLABEL_10,1\nLABEL_2,2\n")
    data = dataset.in_order(dataset.load("d.csv"), None)
    assert (data.labels.tolist(), data.classes) == ([10, 2], None)


def picture(root: str, name: str, size: tuple[int, int], mode: str = "RGB", **how: Any) -> Any:
    Path(root).mkdir(parents=True, exist_ok=True)
    made = Image.fromarray(RNG.integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)).convert(mode)
    made.save(Path(root, name), **how)
    return made


def test_folders_named_by_numbers() -> None:
    """In the order of the alphabet, as torchvision has it, but by number where the model names its classes."""
    for name in ("10", "9"):
        picture(f"d/{name}", "0.png", (4, 4))
    data = dataset.load("d")
    assert dataset.in_order(data, None).labels.tolist() == [0, 1]
    assert dataset.in_order(data, list("abcdefghijk")).labels.tolist() == [10, 9]
    assert dataset.in_order(data, ["9", "10"]).labels.tolist() == [1, 0]


def means(**how: Any) -> Preparation:
    """Pictures as one number for each channel, of any size."""

    def make(picture: Any) -> Any:
        row = np.asarray(picture, np.float32)
        return (row if row.ndim == 3 else row[:, :, None]).mean((0, 1))[:, None, None]

    return Preparation(pictures=lambda: PicturePreparation("means", make, **how))


def test_pictures_of_any_mode_and_size_and_turned() -> None:
    modes = ["RGB", "L", "P", "1", "LA", "RGBA"]
    made = [picture("d/a", f"{i}.png", (5 + i, 7), mode) for i, mode in enumerate(modes)]
    picture("d/b", "0.png", (4, 4))
    for mode in ("RGB", "L"):
        data = dataset.load("d", preparation=means(mode=mode))
        found, _ = data.batch(range(len(modes)))
        wanted = [np.asarray(one.convert(mode), float).mean((0, 1)) for one in made]
        np.testing.assert_allclose(found.flatten(1).squeeze().numpy(), wanted, atol=1e-4)  # type: ignore[union-attr]
        assert data.prepared["by"] == "means"
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = picture("t/a", "0.png", (5, 3), exif=exif)
    picture("t/b", "0.png", (5, 3))
    corner = Preparation(pictures=lambda: PicturePreparation("corner", lambda p: np.asarray(p)[:1, :1].T, upright=True))
    found, _ = dataset.load("t", preparation=corner).batch([0])
    assert found.flatten().tolist() == np.asarray(turned)[-1, 0].tolist()  # type: ignore[union-attr]


def test_pictures_that_a_library_does_not_make() -> None:
    picture("d/a", "0.png", (4, 4))
    picture("d/b", "0.png", (5, 4))
    asis = Preparation(pictures=lambda: PicturePreparation("as it is", lambda p: np.moveaxis(np.asarray(p), -1, 0)))
    with pytest.raises(InputError, match=r"d/b/0\.png becomes 3x4x5, the first picture 3x4x4") as caught:
        dataset.load("d", preparation=asis).batch([0, 1])
    assert "--resize" in caught.value.fix
    broken = Preparation(pictures=lambda: PicturePreparation("broken", lambda p: {}["x"]))
    with pytest.raises(InputError, match="broken fails"):
        dataset.load("d", preparation=broken)
    with pytest.raises(InputError, match="not of images"):
        dataset.load("d", preparation=Preparation(pictures=lambda: PicturePreparation("flat", lambda p: np.zeros(3))))
    Image.fromarray(RNG.integers(0, 60000, (4, 4)).astype(np.uint16)).save("d/a/0.png")
    with pytest.raises(InputError, match="more than 8 bits"):
        dataset.load("d")


def test_options_come_before_the_library() -> None:
    picture("d/a", "0.png", (8, 6))
    picture("d/b", "0.png", (8, 6))
    given = {
        "mean": [0.1],
        "std": [0.2],
        "scale": 1 / 255,
        "size": [6],
        "crop": [4, 4],
        "only": "bytes",
        "source": "it",
    }
    assert dataset.load("d", preparation=means(), preprocess=given).shape == (3, 1, 1)
    data = dataset.load("d", preparation=means(), preprocess=given, crop="5")
    assert (data.shape, data.preprocess.mean, data.prepared) == ((3, 5, 5), (0.1,), {})
    data = dataset.load("d", preparation=means(), preprocess=given, mean="0.5")
    assert (data.shape, data.preprocess.mean, data.preprocess.std) == ((3, 4, 4), (0.5,), (0.2,))
    published = Preparation(means().pictures, of_weights=True)
    data = dataset.load("d", preparation=published, preprocess=given, mean="0.5")
    assert (data.shape, data.preprocess.mean, data.preprocess.std) == ((3, 6, 8), (0.5,), ())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"resize": "20"}, Resize((20,), (7, 8), "bicubic")),
        ({"resize": "20x30", "crop": "9"}, Resize((20, 30), (9, 9), "bicubic")),
        ({"resize": "none", "crop": "9x4"}, Resize((), (9, 4), "bicubic")),
        ({"crop": "none", "interpolation": "nearest"}, Resize((5,), (), "nearest")),
        ({"size": "20/10"}, Resize((20,), (10, 10), "bicubic")),
        ({"size": "none", "interpolation": "box"}, Resize((), (), "box")),
        ({}, Resize((5,), (7, 8), "bicubic")),
    ],
)
def test_sizes_that_are_asked_for(given: dict[str, str], wanted: Resize) -> None:
    assert sized(DatasetOptions(**given), Resize((5,), (7, 8), "bicubic")) == wanted
    assert sizing(DatasetOptions(**given)) == [
        name for name in ("size", "resize", "crop", "interpolation") if name in given
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"resize": "0"}, "--resize 0 is no size"),
        ({"crop": "5/4"}, "--crop 5/4 is no size"),
        ({"crop": "x"}, "--crop x is no size"),
        ({"interpolation": "cubic"}, "--interpolation cubic is not a choice"),
        ({"size": "5", "crop": "5"}, "--size together with"),
    ],
)
def test_sizes_that_are_none(given: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        sized(DatasetOptions(**given), Resize())
    assert set(RESAMPLE) > {"bilinear", "bicubic"}


def test_grey_and_colour_as_the_model_takes_them() -> None:
    picture("d/a", "0.png", (8, 8), "L")
    picture("d/b", "0.png", (8, 8), "RGB")
    for channels in (1, 3):
        made = checkpoint.build(f"cnn:widths=4,channels={channels},classes=2")
        checkpoint.save("m.safetensors", made, {"architecture": f"cnn:widths=4,channels={channels},classes=2"})
        data = checkpoint.load("m.safetensors").open_data("d")
        assert data.shape == (channels, 8, 8)
        inference.check(data, made)


@pytest.mark.parametrize("spec", ["cnn:widths=4", "resnet18:width=0.0625", "mlp:inputs=6,hidden=5"])
def test_classes_and_channels_are_those_of_the_weights(spec: str) -> None:
    sizes = "classes=7" if spec.startswith("mlp") else "classes=7,channels=1"
    made = checkpoint.build(f"{spec},{sizes}")
    torch.save(made.state_dict(), "m.pt")
    loaded = checkpoint.load("m.pt", arch=spec)
    assert loaded.architecture == checkpoint.load("m.pt", arch=f"{spec},{sizes}").architecture
    assert any(note.startswith("7 classes, as in the weights") for note in loaded.notes)
    with pytest.raises(InputError, match="differ in shape"):
        checkpoint.load("m.pt", arch=f"{spec},classes=6")
    Path("net.py").write_text("import calibcli\ndef make(num_classes=10, in_channels=3):\n"
        "    from calibcli.networks import checkpoint\n"
        f"    return checkpoint.build('{spec},classes=%d' % num_classes"
        + ("" if spec.startswith("mlp") else " + ',channels=%d' % in_channels") + ")\n")  # fmt: skip
    assert checkpoint.load("m.pt", arch_file="net.py:make").model.state_dict().keys() == made.state_dict().keys()


def test_splits_of_folders_of_tables() -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        Path(f"d/data/{name}.parquet").parent.mkdir(parents=True, exist_ok=True)
        Path(f"d/data/{name}.parquet").touch()
    assert [p.name[:13] for p in loading.of(Path("d"), "train")] == ["train-00000-o", "train-00001-o"]
    assert len(loading.of(Path("d"), "val")) == 1
    assert dataset.splits("d") == ["train", "validation"]
    for split in ("", "test"):
        with pytest.raises(InputError, match="split"):
            loading.of(Path("d"), split)
    for name in ("0", "1"):
        Path(f"p/{name}.parquet").parent.mkdir(exist_ok=True)
        Path(f"p/{name}.parquet").touch()
    assert len(loading.of(Path("p"), "")) == 2  # parts of one


def test_pictures_in_bytes_of_their_own() -> None:
    made = picture("d", "0.png", (6, 5))
    stream = io.BytesIO()
    made.save(stream, "PNG")
    held = folder.Pictures(
        [folder.EncodedPicture("row 0", stream.getvalue()), folder.EncodedPicture("row 1", b"junk")], (2, 5, 6, 3)
    )
    np.testing.assert_array_equal(held.read(0, 1)[0], np.asarray(made))
    with pytest.raises(InputError, match="row 1 cannot be read as a picture"):
        held.read(0, 2)
