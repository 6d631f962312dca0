"""Data sets: every container gives the same rows, preprocessing equals its formula, mistakes are named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save_file
from torch import nn

import calibcli
from calibcli.core.errors import CalibError, InputError
from calibcli.networks import dataset, inference
from calibcli.networks.architectures import build
from calibcli.scores.files.roles import LABELS as LABELS_ROLE

torch.set_num_threads(1)
N = 12
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(N) % 4
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def expected() -> NDArray[np.float64]:
    scaled = (IMAGES.astype(np.float64) / 255 - np.array(MEAN)) / np.array(STD)
    return scaled.transpose(0, 3, 1, 2)


def write(folder: Path, name: str, images: NDArray[Any] = IMAGES) -> Path:
    path = folder / name
    if name == "packed.npz":
        np.savez_compressed(path, images=images, labels=LABELS)
    elif name == "fortran.npz":
        np.savez(path, images=np.asfortranarray(images), labels=LABELS)
    elif name.endswith(".npz"):
        np.savez(path, images=images, labels=LABELS)
    elif name.endswith(".npy"):
        np.save(path, images)
        np.save(path.with_suffix(".labels.npy"), LABELS)
    elif name.endswith(".safetensors"):
        save_file({"images": images, "labels": LABELS}, path)
    elif name == "pair.pt":
        torch.save((torch.from_numpy(images), torch.from_numpy(LABELS)), path)
    else:
        torch.save({"images": torch.from_numpy(images), "labels": torch.from_numpy(LABELS)}, path)
    return path


NAMES = ["d.npz", "packed.npz", "fortran.npz", "d.npy", "d.safetensors", "d.pt", "pair.pt"]


@pytest.mark.parametrize("name", NAMES)
def test_containers_agree(tmp_path: Path, name: str) -> None:
    data = dataset.load(write(tmp_path, name), mean=MEAN, std="0.2,0.25,0.3")
    assert (len(data), data.shape, data.labels.tolist()) == (N, (3, 6, 5), LABELS.tolist())
    assert data.labels.dtype == np.int64
    assert len(data.sha256) == 64
    for rows in (range(N), [3], [7, 2, 3, 4, 4, 11, 0], slice(2, 9, 3), []):
        index = np.arange(N)[rows] if isinstance(rows, slice) else np.array(list(rows), int)
        x, y = data.batch(rows, dtype=torch.float64)
        torch.testing.assert_close(x, torch.from_numpy(expected()[index]), rtol=1e-12, atol=1e-12)
        assert y.dtype == torch.int64
        assert y.tolist() == LABELS[index].tolist()
    assert data.batch([0])[0].dtype == torch.float32


def test_channels_first_grey_and_flat(tmp_path: Path) -> None:
    first = write(tmp_path, "d.npz", np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)))
    torch.testing.assert_close(
        dataset.load(first, mean=MEAN, std=STD).batch(slice(None), dtype=torch.float64)[0], torch.tensor(expected())
    )
    grey = write(tmp_path, "g.npz", IMAGES[..., 0])
    x, _ = dataset.load(grey, mean="0.5", std="0.2").batch(slice(None), dtype=torch.float64)
    torch.testing.assert_close(x[:, 0], torch.from_numpy((IMAGES[..., 0] / 255 - 0.5) / 0.2))
    flat, _ = dataset.load(grey, preprocess={"layout": "flat", "scale": 0.0625, "mean": [1], "std": [2]}).batch([1, 0])
    np.testing.assert_allclose(flat, (IMAGES[[1, 0], :, :, 0].reshape(2, -1) * 0.0625 - 1) / 2, rtol=1e-6)


def test_options_come_before_the_checkpoints_preprocessing(tmp_path: Path) -> None:
    path = write(tmp_path, "d.npz")
    given = {"layout": "NHWC", "scale": 1 / 255, "mean": [0.1], "std": [1]}
    x, _ = dataset.load(path, preprocess=given, mean=MEAN, std=STD).batch(slice(None), dtype=torch.float64)
    torch.testing.assert_close(x, torch.from_numpy(expected()))
    again = dataset.load(path, preprocess=given)
    assert again.preprocess.as_dict() == {**given, "mean": [0.1], "std": [1.0]}
    assert dataset.load(path, preprocess=again.preprocess.as_dict()).preprocess == again.preprocess


def test_float_arrays_are_as_they_are_and_half_is_widened(tmp_path: Path) -> None:
    x = RNG.standard_normal((N, 7))
    np.savez(tmp_path / "d.npz", x=x.astype(np.float16), y=LABELS.astype(np.float64)[:, None])
    data = dataset.load(tmp_path / "d.npz")
    assert torch.equal(data.batch(slice(None))[0], torch.from_numpy(x.astype(np.float16)).float())
    bf16 = torch.from_numpy(x).bfloat16()
    from safetensors.torch import save_file as save_torch

    save_torch({"inputs": bf16, "targets": torch.from_numpy(LABELS)}, tmp_path / "d.safetensors")
    assert torch.equal(dataset.load(tmp_path / "d.safetensors").batch([5, 1])[0], bf16[[5, 1]].float())
    np.savez(tmp_path / "i.npz", x=np.arange(24).reshape(N, 2), y=LABELS)
    assert dataset.load(tmp_path / "i.npz").batch([3])[0].tolist() == [[6.0, 7.0]]


def test_tokens_and_masks_are_named_inputs(tmp_path: Path) -> None:
    ids = RNG.integers(0, 50, (N, 6)).astype(np.int32)
    mask = RNG.random((N, 6)) < 0.7
    np.savez(tmp_path / "d.npz", input_ids=ids, attention_mask=mask, labels=LABELS)
    x, _ = dataset.load(tmp_path / "d.npz").batch([4, 2])
    assert isinstance(x, dict)
    assert list(x) == ["input_ids", "attention_mask"]
    assert (x["input_ids"].dtype, x["attention_mask"].dtype) == (torch.int64, torch.bool)
    assert x["input_ids"].tolist() == ids[[4, 2]].tolist()
    np.savez(tmp_path / "t.npz", tokens=ids, labels=LABELS)
    assert torch.equal(dataset.load(tmp_path / "t.npz").batch([1])[0], torch.from_numpy(ids[[1]]).long())
    np.savez(tmp_path / "two.npz", a=ids, b=np.ones((N, 2)), labels=LABELS)
    x, _ = dataset.load(tmp_path / "two.npz", inputs="a,b").batch([1])
    assert isinstance(x, dict)
    assert (x["a"].dtype, x["b"].dtype) == (torch.int64, torch.float32)


def test_splits(tmp_path: Path) -> None:
    arrays = {
        "x_train": np.zeros((3, 2)),
        "y_train": np.zeros(3, int),
        "test_images": np.ones((4, 2)),
        "test_labels": np.ones(4, int),
        "classes": np.array(["a", "b"]),
    }
    np.savez(tmp_path / "d.npz", **arrays)
    for split, rows in (("train", 3), ("test", 4)):
        data = dataset.load(f"{tmp_path}/d.npz#{split}")
        assert (len(data), data.classes, set(data.labels)) == (rows, ["a", "b"], {int(split == "test")})
    with pytest.raises(InputError, match="holds the splits train, test"):
        dataset.load(tmp_path / "d.npz")
    with pytest.raises(InputError, match="no inputs of the split 'val'"):
        dataset.load(f"{tmp_path}/d.npz#val")


def test_subset_and_select(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(N)[:, None] * 1.0, y=LABELS, ids=np.arange(100, 100 + N))
    whole = dataset.load(tmp_path / "d.npz")
    part = dataset.load(tmp_path / "d.npz", subset=5, split_seed=3)
    rows = part.batch(slice(None))[0][:, 0].long().numpy()
    assert len(set(rows)) == 5
    assert (np.diff(rows) > 0).all()
    assert part.labels.tolist() == LABELS[rows].tolist()
    assert part.ids is not None
    assert part.ids.tolist() == (rows + 100).tolist()
    assert dataset.load(tmp_path / "d.npz", subset=5, split_seed=4).rows.tolist() != rows.tolist()
    again = whole.select([5, 1, 5]).select([2, 1])
    assert again.batch(slice(None))[0][:, 0].tolist() == [5.0, 1.0]
    assert "all 12 rows are used" in dataset.load(tmp_path / "d.npz", subset=50).notes[-1]


def test_reading_rows_stays_small_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    np.savez(tmp_path / "big.npz", x=np.zeros((4000, 1000), np.float32), y=np.zeros(4000, int))
    tracemalloc.start()
    data = dataset.load(tmp_path / "big.npz")
    for start in range(0, 4000, 100):
        data.batch(slice(start, start + 100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6  # the array holds 16 MB


def test_image_folder(tmp_path: Path) -> None:
    for i, image in enumerate(IMAGES):
        folder = tmp_path / "pictures" / f"class{LABELS[i]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:02}.png")
    data = dataset.load(tmp_path / "pictures", mean=MEAN, std=STD)
    assert data.classes == [f"class{k}" for k in range(4)]
    assert data.ids is not None
    order = [int(Path(name).stem) for name in data.ids]
    assert data.labels.tolist() == LABELS[order].tolist()
    x, _ = data.batch([5, 0], dtype=torch.float64)
    torch.testing.assert_close(x, torch.from_numpy(expected()[[order[5], order[0]]]))
    # labels follow the class names of a checkpoint, whatever their order
    turned = dataset.in_order(data, ["class3", "class2", "class1", "class0"])
    assert turned.labels.tolist() == (3 - data.labels).tolist()
    with pytest.raises(InputError, match="class 'class3', which the model does not know"):
        dataset.in_order(data, ["class0", "class1", "class2"])
    with pytest.raises(InputError, match="no folders of pictures") as caught:
        dataset.load(tmp_path)
    assert caught.value.fix == f"choose a split: {tmp_path}#pictures"
    assert len(dataset.load(f"{tmp_path}#pictures")) == N
    Image.fromarray(IMAGES[0, :3]).save(tmp_path / "pictures" / "class0" / "zz.png")
    with pytest.raises(InputError, match=r"is 5x3, 00\.png is 5x6"):
        dataset.load(tmp_path / "pictures").batch(slice(None))
    (tmp_path / "pictures" / "class0" / "zz.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="cannot be read as a picture"):
        dataset.load(tmp_path / "pictures").batch(slice(None))


def test_pictures_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match="Pillow is not installed") as caught:
        dataset.load(tmp_path)
    assert caught.value.fix == "pip install pillow"


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("id,age,income,label\nr1,30,1e3,yes\nr2,41.5,-2,no\nr3,7,0,yes\n")
    data = dataset.load(path)
    assert (data.classes, data.labels.tolist()) == (["no", "yes"], [1, 0, 1])
    assert data.ids is not None
    assert data.ids.tolist() == ["r1", "r2", "r3"]
    assert data.batch(slice(None), dtype=torch.float64)[0].tolist() == [[30, 1000], [41.5, -2], [7, 0]]
    (tmp_path / "d.tsv").write_text("a\tb\n1\t0\n2\t3\n")
    assert dataset.load(tmp_path / "d.tsv", labels="b").labels.tolist() == [0, 3]
    (tmp_path / "semi.csv").write_text("a;class\n1;0\n2;1\n")
    assert dataset.load(tmp_path / "semi.csv").batch([1])[0].tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "has no labels"),
        ("a,y,label\n1,0,0\n", "label and y could both be the labels"),
        ("a,label\nred,0\n", "row 0 of column 'a' .* is 'red', not a number"),
        ("a,label\n1,0\nnan,0\n", "row 1 of column 'a' .* is not finite"),
        ("a,label\n1,0,3\n", "row 0 .* has 3 cells"),
        ("a,label\n1,0.5\n", "label 0.5 in row 0"),
        ("a,label\n", "but no rows"),
    ],
)
def test_csv_mistakes(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(InputError, match=problem):
        dataset.load(tmp_path / "d.csv")


OWN = """
import numpy as np, torch
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 5
    def __getitem__(self, i): return torch.full((3,), float(i)), i % 2
def rows(): return Rows()
def loader(): return torch.utils.data.DataLoader(Rows(), batch_size=2, shuffle=True)
def pair(): return np.arange(15.0).reshape(5, 3), np.arange(5) % 2
def named(): return {"input_ids": np.arange(10).reshape(5, 2), "labels": [0, 1, 0, 1, 0]}
class Tokens(Rows):
    def __getitem__(self, i): return {"ids": torch.tensor([i, i]), "mask": torch.ones(2, dtype=torch.bool)}, i % 2
def tokens(): return Tokens()
def stream(): return iter([])
def number(): return 3
"""


def test_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    Path("own_rows.py").write_text(OWN)
    for name in ("rows", "loader"):
        data = dataset.load(f"own_rows:{name}")
        assert data.labels.tolist() == [0, 1, 0, 1, 0]
        assert data.batch([4, 1])[0].tolist() == [[4.0] * 3, [1.0] * 3]
    assert dataset.load("own_rows:pair", subset=2).shape == (3,)
    x, _ = dataset.load("own_rows:named").batch([1])
    assert {k: v.tolist() for k, v in dict(x).items()} == {"input_ids": [[2, 3]]}
    x, _ = dataset.load("own_rows:tokens").batch([3, 1])
    assert isinstance(x, dict)
    assert (x["ids"].tolist(), x["mask"].dtype) == ([[3, 3], [1, 1]], torch.bool)
    for name, problem in [("stream", "returned"), ("number", "returned int"), ("nothing", "has no 'nothing'")]:
        with pytest.raises(CalibError, match=problem):
            dataset.load(f"own_rows:{name}")


@pytest.mark.parametrize(
    ("arrays", "options", "problem"),
    [
        ({"x": np.ones((3, 2)), "y": np.arange(4)}, {}, "3 rows of inputs, 4 labels"),
        ({"x": np.ones((3, 2)), "y": np.array([0, -1, 2])}, {}, "label -1 in row 1"),
        ({"x": np.ones((3, 2)), "y": np.array([0, 0.5, np.nan])}, {}, r"label 0.5 in row 1 .*\(2 such rows\)"),
        ({"x": np.ones((3, 2)), "y": np.array(["a", "", "c"])}, {}, "row 1 has no label"),
        ({"x": np.ones((3, 2)), "y": np.ones((3, 2))}, {}, r"labels have shape \(3, 2\)"),
        ({"x": np.ones((3, 2))}, {}, "has no labels"),
        ({"y": np.arange(3)}, {}, "has no inputs"),
        ({"x": np.ones((3, 2)), "images": np.ones((3, 2)), "y": np.arange(3)}, {}, "images and x could both be"),
        ({"x": np.ones(3), "y": np.arange(3)}, {}, r"inputs have shape \(3,\)"),
        ({"x": np.ones((3, 2)), "y": np.arange(3)}, {"inputs": "z"}, "no array 'z'"),
        ({"x": np.ones((3, 2)), "y": np.arange(3)}, {"layout": "NHCW"}, "unknown layout 'NHCW'"),
        ({"x": np.ones((3, 2)), "y": np.arange(3)}, {"layout": "NHWC"}, "not NHWC images"),
        ({"x": np.ones((3, 2)), "y": np.arange(3)}, {"mean": "1,2,3"}, "2 channels, --mean has 3 numbers"),
        ({"x": np.ones((3, 2)), "y": np.arange(3)}, {"mean": "a"}, "not a list of numbers"),
        ({"x": np.ones((3, 2)), "y": np.arange(3)}, {"std": "0"}, "not positive"),
        ({"x": np.ones((3, 6, 5, 3), np.uint8), "y": np.arange(3)}, {"mean": "123.7,116,103"}, "is outside"),
        ({"x": np.ones((3, 3, 4, 3), np.uint8), "y": np.arange(3)}, {}, "could be NHWC or NCHW"),
        ({"x": np.ones((0, 2)), "y": np.ones(0, int)}, {}, "has no rows"),
    ],
)
def test_mistakes(tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], problem: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(CalibError, match=problem):
        dataset.load(tmp_path / "d.npz", **options)


@pytest.mark.parametrize("name", [*NAMES, "d.csv", "d.xyz"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name not in ("d.csv", "d.xyz"):
        write(tmp_path, name)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    else:
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CalibError):
        dataset.load(path)
    with pytest.raises(InputError, match="no data set"):
        dataset.load(tmp_path / "nowhere.npz")


def test_check_before_work_starts(tmp_path: Path) -> None:
    data = dataset.load(write(tmp_path, "d.npz"))
    assert inference.check(data, build("cnn:widths=4,classes=7").double()) == 7
    with pytest.raises(InputError, match=r"label 3 in row 3, but the model has 3 outputs \(0 to 2\)"):
        inference.check(data, build("cnn:widths=4,classes=3"))
    with pytest.raises(InputError, match="has 3 channels, the model takes 1"):
        inference.check(data, build("cnn:widths=4,channels=1"))
    with pytest.raises(InputError, match="does not take rows of shape"):
        inference.check(data, build("mlp:inputs=5"))
    with pytest.raises(InputError, match="return logits"):
        inference.check(data, nn.Conv2d(3, 4, 3))


def test_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d.bmp2").write_bytes(b"x")
    with pytest.raises(InputError, match="is not recognised"):
        dataset.load(tmp_path / "d.bmp2")


@pytest.mark.parametrize("name", LABELS_ROLE.names)
def test_labels_have_the_names_that_recorded_outputs_know(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "d.npz", X=np.ones((N, 2)), **{name.upper(): LABELS})
    assert dataset.load(tmp_path / "d.npz").labels.tolist() == LABELS.tolist()
    rows = "".join(f"{label},1\n" for label in LABELS)
    (tmp_path / "d.csv").write_text(f"{name},feature\n{rows}")
    assert dataset.load(tmp_path / "d.csv").labels.tolist() == LABELS.tolist()


@pytest.mark.regression
@pytest.mark.parametrize("dtype", ["U3", "S3", object])
def test_names_of_classes_may_be_texts_of_any_kind(tmp_path: Path, dtype: Any) -> None:
    """Arrays of objects were taken, and those of fixed length refused as no numbers."""
    names = np.array(["dog", "cat"])[LABELS % 2].astype(dtype)
    for labels in (names, names[:, None]):
        np.savez(tmp_path / "d.npz", X=np.ones((N, 2)), y=labels.astype("U3") if dtype is object else labels)
        data = dataset.load((np.ones((N, 2)), labels)) if dtype is object else dataset.load(tmp_path / "d.npz")
        assert (data.classes, data.labels.tolist()) == (["cat", "dog"], (1 - LABELS % 2).tolist())
    np.savez(tmp_path / "d.npz", X=np.ones((N, 2)), y=np.stack([names.astype("U3"), names.astype("U3")], 1))
    with pytest.raises(InputError, match=r"labels have shape \(12, 2\)"):
        dataset.load(tmp_path / "d.npz")


@pytest.mark.regression
def test_rows_without_a_class_are_no_class(tmp_path: Path) -> None:
    """An empty cell was a class of its own."""
    (tmp_path / "d.csv").write_text("age,label\n1,cat\n2,\n3,dog\n")
    with pytest.raises(InputError, match=r"row 1 has no label \(1 such row\)"):
        dataset.load(tmp_path / "d.csv")


def test_columns_of_a_table_are_features_in_their_order(tmp_path: Path) -> None:
    # names that are those of scores elsewhere, in an order of their own, and without a first class
    (tmp_path / "d.csv").write_text("p_3,p_2,age,label\n3,2,1,0\n6,5,4,1\n")
    data = dataset.load(tmp_path / "d.csv")
    assert data.batch(slice(None))[0].tolist() == [[3, 2, 1], [6, 5, 4]]
    (tmp_path / "d.jsonl").write_text('{"features": [1, 2], "label": 1}\n{"features": [3, 4], "label": 0}\n')
    data = dataset.load(tmp_path / "d.jsonl")
    assert (data.labels.tolist(), data.batch(slice(None))[0].tolist()) == ([1, 0], [[1, 2], [3, 4]])


@pytest.mark.extra
def test_a_parquet_table_is_read_like_a_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"p_1": [1.0, 2.0], "p_0": [3, 4], "id": ["a", "b"], "label": ["no", "yes"]}
    parquet.write_table(pa.table(columns), tmp_path / "d.parquet")
    data = dataset.load(tmp_path / "d.parquet")
    assert (data.classes, data.labels.tolist(), [] if data.ids is None else data.ids.tolist()) == (
        ["no", "yes"],
        [0, 1],
        ["a", "b"],
    )
    assert data.batch(slice(None))[0].tolist() == [[1, 3], [2, 4]]


def test_a_list_of_batches_is_its_rows() -> None:
    """As curvlinops takes them; a list of single rows, also with labels in arrays of one, stays one."""
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(3, 2), torch.randn(41, 3), torch.arange(41) % 2
    wanted = calibcli.curvature(model, (x, y), "trace", device="cpu")["trace"].value
    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 41, 10)]
    for data in (batches, tuple(batches), [(a.numpy(), b.numpy()) for a, b in batches], batches[:1] + batches[1:]):
        assert calibcli.curvature(model, data, "trace", device="cpu")["trace"].value == pytest.approx(wanted, rel=1e-6)
    rows = [(x[i], int(y[i])) for i in range(41)]
    assert calibcli.curvature(model, rows, "trace", device="cpu")["trace"].value == pytest.approx(wanted, rel=1e-6)
    two = [(x[:20], y[:20]), (x[20:], y[20:])]
    assert calibcli.curvature(model, two, "trace", device="cpu")["trace"].value == pytest.approx(wanted, rel=1e-6)
