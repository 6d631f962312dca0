"""Published data sets in the layouts they are downloaded in: read from the archive, or refused."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from downloads_written import RNG, binary, cifar10, cifar100, idx, lay, old, pictures, tar

from calibcli.core.errors import InputError, UsageError
from calibcli.networks.dataset.loading import load, splits
from calibcli.scores.files.arrays import read_all

SIZES = {"train": 12, "test": 7}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def held(source: str) -> tuple[Any, Any, Any]:
    data = load(source)
    return read_all(data.inputs[""]), data.labels, data.classes


CIFAR = {
    "cifar-10-python.tar.gz": (10, lambda x, y: cifar10(x, y)),
    "cifar-10-new.tar.gz": (10, lambda x, y: cifar10(x, y, lambda v: pickle.dumps(v, 4))),
    "cifar-100-python.tar.gz": (100, cifar100),
    "cifar-10-binary.tar.gz": (10, lambda x, y: binary(x, y, False)),
    "cifar-100-binary.tar.gz": (100, lambda x, y: binary(x, y, True)),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", CIFAR)
def test_cifar(name: str, packed: bool) -> None:
    k, made = CIFAR[name]
    x, y = pictures(19), RNG.integers(0, k, 19)
    files = made(x, y)
    place = name
    if packed:
        tar(name, files)
    else:
        lay(".", files)
        place = next(iter(files)).split("/")[0]
    for split, rows in (("train", slice(0, 12)), ("test", slice(12, 19))):
        pixels, labels, classes = held(f"{place}#{split}")
        assert np.array_equal(pixels, x[rows])
        assert labels.tolist() == y[rows].tolist()
        assert classes == [f"{'class' if k == 10 else 'fine'}{i}" for i in range(k)]
        assert load(f"{place}#{split}").published == f"CIFAR-{k}"
    assert splits(place) == ["train", "test"]
    with pytest.raises(InputError, match="holds the splits train, test") as refusal:
        load(place)
    assert f"{place}#test" in refusal.value.fix
    if k == 100:
        assert held(f"{place}#test:coarse")[1].tolist() == (y[12:] // 5).tolist()
        assert held(f"{place}#test:coarse")[2] == [f"coarse{i}" for i in range(20)]
        assert load(f"{place}#test:coarse").published == ""  # its numbers are of other classes
    with pytest.raises(InputError, match=r"no labels 'odd'"):
        load(f"{place}#test:odd")
    with pytest.raises(InputError, match=r"no split 'dev'"):
        load(f"{place}#dev")
    with pytest.raises(UsageError, match="published data set"):
        load(f"{place}#test", labels="labels")


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch run",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("where", ["test_batch", "batches.meta"])
def test_a_pickle_that_would_run_code_is_refused(where: str, protocol: int) -> None:
    files = cifar10(pictures(19), RNG.integers(0, 10, 19))
    files[f"cifar-10-batches-py/{where}"] = pickle.dumps({b"data": Hostile()}, protocol)
    tar("cifar-10-python.tar.gz", files)
    with pytest.raises(InputError, match=r"it names (posix|nt).system"):
        load("cifar-10-python.tar.gz#test")
    assert not Path("run").exists()


def test_a_bomb_in_a_pickle_is_refused() -> None:
    bomb: Any = ()
    for _ in range(60):
        bomb = (bomb, bomb)
    files = cifar10(pictures(19), RNG.integers(0, 10, 19))
    key = pickle.dumps(bomb, 2)[2:-1]  # hashing it takes 2^60 steps
    files["cifar-10-batches-py/test_batch"] = b"\x80\x02}" + key + b"K\x01s."
    tar("cifar-10-python.tar.gz", files)
    with pytest.raises(InputError, match="too many objects"):
        load("cifar-10-python.tar.gz#test")


@pytest.mark.parametrize(
    "harm",
    [
        lambda b: b[: len(b) // 2],
        lambda b: old({"data": pictures(3).reshape(3, -1), "labels": [1, 2]}),
        lambda b: old({"data": pictures(3), "labels": [1, 2, 3]}),
        lambda b: old({"labels": [1, 2, 3]}),
        lambda b: old({"data": pictures(2).reshape(2, -1), "labels": ["1", "2"]}),
        lambda b: pickle.dumps([1, 2], 2),
        lambda b: b"",
    ],
)
def test_damaged_batches_are_refused(harm: Callable[[bytes], bytes]) -> None:
    files = cifar10(pictures(19), RNG.integers(0, 10, 19))
    files["cifar-10-batches-py/test_batch"] = harm(files["cifar-10-batches-py/test_batch"])
    tar("a.tar.gz", files)
    with pytest.raises(InputError):
        load("a.tar.gz#test")
    assert len(load("a.tar.gz#train")) == 12


def test_archives_that_are_cut_off_or_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tar("a.tar.gz", cifar10(pictures(19), RNG.integers(0, 10, 19)))
    whole_file = Path("a.tar.gz").read_bytes()
    Path("b.tar.gz").write_bytes(whole_file[: len(whole_file) // 2])
    with pytest.raises(InputError, match="damaged"):
        load("b.tar.gz#test")
    monkeypatch.setattr("calibcli.networks.dataset.downloads._members.MOST", 10_000)
    with pytest.raises(InputError, match="unpacks to more"):
        load("a.tar.gz#test")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dots", [True, False])
def test_mnist(packed: bool, dots: bool) -> None:
    mark, end = ("." if dots else "-"), (".gz" if packed else "")
    sets = {}
    for name, prefix in (("train", "train"), ("test", "t10k")):
        x, y = RNG.integers(0, 256, (SIZES[name], 28, 28)).astype(np.uint8), RNG.integers(0, 10, SIZES[name])
        sets[name] = x, y
        for part, array in (("images", x), ("labels", y.astype(np.uint8))):
            data = idx(array)
            file = f"{prefix}-{part}{mark}idx{array.ndim}-ubyte{end}"
            lay("MNIST", {file: gzip.compress(data) if packed else data})
    for name, (x, y) in sets.items():
        pixels, labels, _ = held(f"MNIST#{name}")
        assert np.array_equal(pixels, x)
        assert labels.tolist() == y.tolist()
    alone = f"MNIST/t10k-images{mark}idx3-ubyte{end}"
    assert np.array_equal(held(alone)[0], sets["test"][0])
    Path(alone).write_bytes(gzip.compress(idx(sets["test"][0])[:-5]) if packed else idx(sets["test"][0])[:-5])
    with pytest.raises(InputError, match="declares 7 x 28 x 28 bytes"):
        load(alone)


@pytest.mark.parametrize("packed", [True, False])
def test_svhn(packed: bool) -> None:
    from scipy.io import savemat

    x, y = RNG.integers(0, 256, (32, 32, 3, 20)).astype(np.uint8), np.arange(20) % 10 + 1
    savemat("test_32x32.mat", {"X": x, "y": y[:, None].astype(np.uint8)}, do_compression=packed)
    for source in ("test_32x32.mat", ".#test"):
        pixels, labels, classes = held(source)
        assert np.array_equal(pixels[3], x[..., 3])
        assert labels.tolist() == [*range(1, 10), 0, *range(1, 10), 0]
        assert classes == list("0123456789")
    data = Path("test_32x32.mat").read_bytes()
    for harmed in (data[:2000], b"MATLAB", data[:200] + b"\xff" * 400):
        Path("test_32x32.mat").write_bytes(harmed)
        with pytest.raises(InputError):
            load("test_32x32.mat")
    savemat("test_32x32.mat", {"X": x[..., :3], "y": y[:, None]})
    with pytest.raises(InputError, match="does not hold X"):
        load("test_32x32.mat")


@pytest.mark.parametrize("packed", [True, False])
def test_a_picture_of_tiny_imagenet_that_is_not_there_is_told(packed: bool) -> None:
    files = {"tiny/wnids.txt": b"n01\nn02", "tiny/val/val_annotations.txt": b"val_0.png\tn01\t0\t0\t62\t62\n"}
    lay(".", files)
    if packed:
        with zipfile.ZipFile("tiny.zip", "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    with pytest.raises(InputError, match="is damaged"):
        load("tiny.zip#val" if packed else "tiny#val")


@pytest.mark.parametrize("packed", [True, False])
def test_tiny_imagenet(packed: bool) -> None:
    image = pytest.importorskip("PIL.Image")
    wnids = ["n03", "n01", "n02"]
    files: dict[str, bytes] = {"wnids.txt": "\n".join(wnids).encode()}
    shades: dict[str, int] = {}

    def picture(name: str, grey: bool) -> bytes:
        shades[name] = shade = int(RNG.integers(0, 256))
        out = io.BytesIO()
        image.new("L" if grey else "RGB", (64, 64), shade if grey else (shade, shade, shade)).save(out, "PNG")
        return out.getvalue()

    for wnid in wnids:
        for i in range(2):
            name = f"{wnid}_{i}.png"
            files[f"train/{wnid}/images/{name}"] = picture(name, i == 1)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"x"
    rows = []
    for i, wnid in enumerate(["n02", "n03", "n01", "n02"]):
        files[f"val/images/val_{i}.png"] = picture(f"val_{i}.png", False)
        rows.append(f"val_{i}.png\t{wnid}\t0\t0\t62\t62")
    files["val/val_annotations.txt"] = "\n".join(rows).encode()
    files = {f"tiny-imagenet-200/{name}": data for name, data in files.items()}
    place = "tiny-imagenet-200"
    if packed:
        place = "tiny-imagenet-200.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        lay(".", files)
    found = load(f"{place}#val")
    assert found.classes == ["n01", "n02", "n03"]
    assert found.labels.tolist() == [1, 2, 0, 1]
    train = load(f"{place}#train")
    assert (
        train.labels.tolist() == [0, 0, 1, 1, 2, 2] if packed else sorted(train.labels.tolist()) == [0, 0, 1, 1, 2, 2]
    )
    for data in (found, train):
        pixels = read_all(data.inputs[""])
        assert pixels.shape == (len(data), 64, 64, 3)
        assert [int(p[0, 0, 0]) for p in pixels] == [shades[str(name)] for name in data.ids]
    assert splits(place) == ["train", "val"]
    halves = [load(f"{place}#val:{half}") for half in ("first", "second")]
    assert sorted(str(name) for half in halves for name in half.ids) == sorted(map(str, found.ids))
    assert all((half.labels == 1).sum() == 1 for half in halves)  # of the two pictures of n02
    assert all(list(half.ids) == [name for name in found.ids if name in half.ids] for half in halves)
    for wrong in ("val:third", "train:first"):
        with pytest.raises(InputError, match=f"has no half '{wrong}'"):
            load(f"{place}#{wrong}")
    if not packed:
        assert load("tiny-imagenet-200/val").labels.tolist() == [1, 2, 0, 1]
