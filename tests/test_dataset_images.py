"""Pictures: the preprocessing that a model's folder asks for, and folders of classes."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from torch import nn  # noqa: E402

from calibcli.cli.app import main  # noqa: E402
from calibcli.core.errors import Exit, InputError, UsageError  # noqa: E402
from calibcli.networks import checkpoint, dataset  # noqa: E402
from calibcli.networks.checkpoint import huggingface, processor  # noqa: E402
from calibcli.networks.dataset.rows import size_option  # noqa: E402

RNG = np.random.default_rng(6)
PIL = [Image.NEAREST, Image.LANCZOS, Image.BILINEAR, Image.BICUBIC, Image.BOX, Image.HAMMING]
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pictures(
    root: str = "d", classes: str = "ab", inner: str = "", sizes: Any = ((50, 40), (40, 61), (37, 37))
) -> list[Any]:
    made = []
    for name in classes:
        folder = Path(root, name, inner)
        folder.mkdir(parents=True)
        for i, size in enumerate(sizes):
            small = Image.fromarray(RNG.integers(0, 256, (7, 7, 3)).astype(np.uint8))
            picture = small.resize(size, Image.BICUBIC)
            picture.save(folder / f"{i}.png")
            made.append(picture)
    return made


def by_hand(picture: Any, size: Any, crop: Any, resample: int, scale: float, mean: Any, std: Any) -> Any:
    """Written out again with Pillow and NumPy alone."""
    w, h = picture.size
    if size == 0:
        pass
    elif isinstance(size, int):
        w, h = (size, int(size * h / w)) if w <= h else (int(size * w / h), size)
        picture = picture.resize((w, h), PIL[resample])
    else:
        h, w = size
        picture = picture.resize((w, h), PIL[resample])
    x = np.asarray(picture).astype(np.float64)
    if crop:
        top, left = (h - crop) // 2, (w - crop) // 2
        x = x[top : top + crop, left : left + crop]
    x = x * scale
    return np.moveaxis((x - np.array(mean)) / np.array(std), -1, 0)


def folder_of(about: dict[str, Any], name: str = "preprocessor_config.json") -> Path:
    Path("m").mkdir(exist_ok=True)
    Path("m", name).write_text(json.dumps(about))
    return Path("m")


NORMAL = {"do_normalize": True, "image_mean": MEAN, "image_std": STD}
KIND = "image_processor_type"
OLD = "feature_extractor_type"
EDGE, SQUARE = {"shortest_edge": 40}, {"height": 32, "width": 32}
CROP = {"crop_size": SQUARE, "do_center_crop": True}
HF: list[tuple[dict[str, Any], Any, Any, int, float]] = [
    ({KIND: "ViTImageProcessor", "size": {"height": 32, "width": 24}, "resample": 2}, (32, 24), 0, 2, 1 / 255),
    ({OLD: "ViTFeatureExtractor", "size": 32, "do_resize": True}, (32, 32), 0, 2, 1 / 255),
    ({KIND: "CLIPImageProcessor", "size": EDGE, **CROP, "resample": 3}, 40, 32, 3, 1 / 255),
    ({OLD: "CLIPFeatureExtractor", "size": 40, "crop_size": 32, "do_center_crop": True}, 40, 32, 3, 1 / 255),
    ({KIND: "ConvNextImageProcessor", "size": {"shortest_edge": 28}, "crop_pct": 0.875}, 32, 28, 2, 1 / 255),
    ({OLD: "ConvNextFeatureExtractor", "size": {"shortest_edge": 400}}, (400, 400), 0, 2, 1 / 255),
    ({KIND: "DeiTImageProcessor", "size": 40, **CROP, "rescale_factor": 1 / 127.5}, (40, 40), 32, 3, 1 / 127.5),
    ({KIND: "ViTImageProcessorFast", "size": SQUARE, "do_rescale": False, "resample": 0}, (32, 32), 0, 0, 1.0),
]


@pytest.mark.regression("1.8")
@pytest.mark.parametrize(("about", "size", "crop", "resample", "scale"), HF)
@pytest.mark.parametrize("nested", [False, True])
def test_image_processors(about: Any, size: Any, crop: Any, resample: int, scale: float, nested: bool) -> None:
    made = pictures()
    about = {**about, **NORMAL}
    if nested:
        folder_of({"image_processor": about, "processor_class": "X"}, "processor_config.json")
    else:
        folder_of(about)
    data = dataset.load("d", preprocess=processor.of_folder(Path("m")))
    found, _ = data.batch(slice(None))
    wanted = np.stack([by_hand(p, size, crop, resample, scale, MEAN, STD) for p in made])
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4)
    source = "processor_config.json" if nested else "preprocessor_config.json"
    [note] = [n for n in data.notes if source in n]
    assert "mean 0.5, 0.4, 0.3; std 0.2, 0.25, 0.3" in note
    assert "resized to" in note


@pytest.mark.regression("1.8")
def test_no_normalisation_and_no_resizing_where_it_says_so() -> None:
    made = pictures(sizes=[(20, 20)])
    folder_of({"do_resize": False, "size": 224, "do_normalize": False, "image_mean": MEAN, "image_std": STD})
    found, _ = dataset.load("d", preprocess=processor.of_folder(Path("m"))).batch(slice(None))
    np.testing.assert_allclose(found[0].numpy(), by_hand(made[0], 0, 0, 2, 1 / 255, 0, 1), atol=1e-6)


class Means(nn.Module):
    """Logits: the means of the channels, so that the preprocessing shows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Any) -> Any:
        return x.mean((2, 3)) + self.weight


@pytest.mark.regression("1.8")
def test_a_hugging_face_folder_is_run_as_it_says(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    made = pictures()
    folder_of({**HF[2][0], **NORMAL})
    Path("m/config.json").write_text("{}")
    monkeypatch.setattr(huggingface, "model", lambda path, base: processor.LibraryModel("Means", model=Means()))

    def run(*options: str) -> Any:
        assert main(["logits", "m", "--data", "d", "--save", "o.npz", "--kind", "logits", *options, "--json"]) == 0
        out, err = capsys.readouterr()
        with np.load("o.npz") as file:
            return file["logits"], json.loads(out), err

    def wanted(*how: Any) -> Any:
        return np.stack([by_hand(p, *how).mean((1, 2)) for p in made])

    z, result, err = run()
    np.testing.assert_allclose(z, wanted(40, 32, 3, 1 / 255, MEAN, STD), atol=1e-5)
    assert result["facts"]["preprocess"]["size"] == [40]
    assert result["facts"]["preprocess"]["crop"] == [32, 32]
    assert "preprocessor_config.json" in err
    z, _, err = run("--mean", "0.1,0.2,0.3", "--std", "1")
    np.testing.assert_allclose(z, wanted(40, 32, 3, 1 / 255, [0.1, 0.2, 0.3], 1), atol=1e-5)
    z, *_ = run("--size", "36")
    np.testing.assert_allclose(z, wanted(36, 36, 3, 1 / 255, MEAN, STD), atol=1e-5)
    z, *_ = run("--size", "36/20")
    np.testing.assert_allclose(z, wanted(36, 20, 3, 1 / 255, MEAN, STD), atol=1e-5)
    z, *_ = run("--size", "30x20")
    np.testing.assert_allclose(z, wanted((30, 20), 0, 3, 1 / 255, MEAN, STD), atol=1e-5)
    assert main(["logits", "m", "--data", "d", "--save", "o.npz", "--size", "none"]) == Exit.REFUSED
    assert "--size 224" in capsys.readouterr().err


@pytest.mark.regression("1.8")
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "grey"])
def test_arrays_of_bytes_are_prepared_too(layout: str) -> None:
    images = RNG.integers(0, 256, (4, 20, 24, 3)).astype(np.uint8)
    stored = {"NHWC": images, "NCHW": np.moveaxis(images, -1, 1), "grey": images[..., 0]}[layout]
    np.savez("a.npz", x=stored, y=[0, 1, 0, 1])
    about = {"scale": 1 / 255, "size": [16, 16], "resample": "bicubic", "only": "bytes", "source": "it"}
    found, _ = dataset.load("a.npz", preprocess=about).batch([3, 1])
    for row, x in zip((3, 1), found.numpy()):
        picture = Image.fromarray(images[row, ..., 0] if layout == "grey" else images[row]).resize(
            (16, 16), Image.BICUBIC
        )
        wanted = np.asarray(picture) / 255
        np.testing.assert_allclose(x, wanted[None] if layout == "grey" else np.moveaxis(wanted, -1, 0), atol=1e-6)
    np.savez("f.npz", x=np.moveaxis(images, -1, 1).astype(np.float32) / 255, y=[0, 1, 0, 1])
    data = dataset.load("f.npz", preprocess=about)
    assert data.shape == (3, 20, 24)
    assert any("floating-point pictures are assumed to be prepared" in note for note in data.notes)
    with pytest.raises(UsageError, match="--size is for pictures of bytes"):
        dataset.load("f.npz", size="16")


@pytest.mark.regression("1.8")
@pytest.mark.parametrize("key", ["do_flip_channel_order", "include_top", "rescale_offset"])
def test_what_is_not_done_is_refused(key: str) -> None:
    pictures()
    folder_of({**HF[0][0], **NORMAL, key: True})
    with pytest.raises(InputError, match=f"asks for {key}, which calib does not do"):
        dataset.load("d", preprocess=processor.of_folder(Path("m")))


@pytest.mark.regression("1.8")
@pytest.mark.parametrize(
    "change",
    [{"size": "large"}, {"size": {"longest_edge": 3}}, {"image_mean": "x"}, {"size": -1}, {"size": 1e9},
     {"resample": 99}, {"image_std": None}, {"rescale_factor": "NaN"}, {"size": [1, 2, 3, 4]},
     {"crop_size": None, "do_center_crop": True}],
)  # fmt: skip
def test_hostile_processors(change: dict[str, Any]) -> None:
    pictures()
    folder_of({**HF[0][0], **NORMAL, **change})
    with pytest.raises(InputError):
        dataset.load("d", preprocess=processor.of_folder(Path("m")))
    for text in ("[" * 5000, "\xff", "null"):
        Path("m/preprocessor_config.json").write_text(text, encoding="latin-1")
        if text == "null":
            assert processor.of_folder(Path("m")) == {}
        else:
            with pytest.raises(InputError):
                processor.of_folder(Path("m"))
    folder_of({"sampling_rate": 16000, "do_normalize": True})  # of sound
    assert processor.of_folder(Path("m")) == {}


TIMM = {"input_size": [3, 32, 32], "mean": MEAN, "std": STD, "crop_pct": 0.8, "interpolation": "bicubic"}


@pytest.mark.regression("1.8")
@pytest.mark.parametrize(("mode", "size"), [("center", 40), ("squash", (40, 40)), (None, 40)])
@pytest.mark.parametrize("old", [False, True])
def test_timm_folders(mode: Any, size: Any, old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    made = pictures()
    config = {**TIMM, "crop_mode": mode}
    about = {"architecture": "means", "num_classes": 3} | (config if old else {"pretrained_cfg": config})
    folder_of(about, "config.json")
    save_file(Means().state_dict(), "m/model.safetensors")
    asked: list[Any] = []

    def create_model(name: str, **options: Any) -> Means:
        asked.append((name, options))
        return Means()

    fake: Any = types.ModuleType("timm")
    fake.list_models, fake.create_model = lambda: ["means"], create_model
    monkeypatch.setitem(__import__("sys").modules, "timm", fake)
    loaded = checkpoint.load("m")
    assert asked == [("means", {"num_classes": 3, "pretrained_cfg": about if old else config})]
    data = dataset.load("d", preprocess=loaded.metadata["preprocess"])  # what stands in for timm's own transform
    found, _ = data.batch(slice(None))
    for picture, x in zip(made, found.numpy()):
        w, h = picture.size
        if mode == "squash":
            big = picture.resize((40, 40), Image.BICUBIC)
        else:
            size_now = (40, int(40 * h / w)) if w <= h else (int(40 * w / h), 40)
            big = picture.resize(size_now, Image.BICUBIC)
        top, left = round((big.size[1] - 32) / 2), round((big.size[0] - 32) / 2)
        wanted = (np.asarray(big)[top : top + 32, left : left + 32] / 255 - np.array(MEAN)) / np.array(STD)
        np.testing.assert_allclose(np.moveaxis(x, 0, -1), wanted, atol=1e-5)
    assert any("config.json" in note and "resized to 40" in note for note in data.notes)


@pytest.mark.regression("1.8")
def test_timm_crop_modes_that_are_not_done() -> None:
    pictures()
    folder_of({"architecture": "x", "pretrained_cfg": {**TIMM, "crop_mode": "border"}}, "config.json")
    with pytest.raises(InputError, match="crop_mode=border"):
        dataset.load("d", preprocess=processor.of_folder(Path("m")))


@pytest.mark.regression("1.8")
@pytest.mark.parametrize("text", ["0", "-3", "224,224", "1_0", "3/0", "x", "", "99999", "2 24", "٣"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--size"):
        size_option(text)


@pytest.mark.regression("1.8")
def test_sizes_come_back_from_metadata() -> None:
    pictures()
    data = dataset.load("d", size="24/20", mean="0.5", std="0.5")
    again = dataset.load("d", preprocess=data.preprocess.as_dict())
    assert again.preprocess == data.preprocess
    from calibcli.networks.checkpoint import factory

    text = json.dumps({"schema": 1, "preprocess": data.preprocess.as_dict()})
    assert factory.parse(text, "it")["preprocess"]["crop"] == [20, 20]


@pytest.mark.regression("1.11")
def test_images_in_class_images_are_looked_through() -> None:
    pictures("train", "ab", "images", [(8, 8), (8, 8)])
    for name in "ab":
        Path("train", name, f"{name}_boxes.txt").write_text("0.png 1 1 2 2\n")
    data = dataset.load("train")
    assert data.classes == ["a", "b"]
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert data.ids is not None
    assert data.ids[0] == "a/images/0.png"


@pytest.mark.regression("1.11")
def test_tiny_imagenet() -> None:
    pictures("t/train", "ab", "images", [(8, 8)])
    pictures("t", ["val", "test"], "images", [(8, 8)])
    Path("t/val/val_annotations.txt").write_text("0.png\ta\t0\t0\t3\t3\n")
    assert len(dataset.load("t#train")) == 2
    for name in ("t#val", "t/val"):
        with pytest.raises(InputError, match=r"classes of its pictures in val_annotations.txt") as caught:
            dataset.load(name)
        assert "folder named after its class" in caught.value.fix
    with pytest.raises(InputError, match="one folder only, 'images'"):
        dataset.load("t#test")
    with pytest.raises(InputError) as caught:
        dataset.load("t")
    assert caught.value.fix == "choose a split: t#train"


@pytest.mark.regression("1.11")
def test_a_single_class_is_refused(capsys: Any) -> None:
    pictures("d", "a", "", [(8, 8), (8, 8)])
    Path("d/b").mkdir()
    for name in ("d",):
        with pytest.raises(InputError, match="pictures in one folder only, 'a'"):
            dataset.load(name)
    pictures("s", ["val", "test"], "", [(8, 8)])
    with pytest.raises(InputError, match="choose a split"):
        dataset.load("s")
