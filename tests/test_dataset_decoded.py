"""Pictures are decoded once however often their rows are read, and are the same bit for bit."""

from __future__ import annotations

import copy
import errno
import itertools
import os
import pickle
import shutil
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from torch import nn  # noqa: E402

import calibcli  # noqa: E402
from calibcli.core.errors import InputError  # noqa: E402
from calibcli.lab.training import batches  # noqa: E402
from calibcli.networks import curvature, dataset, inference  # noqa: E402
from calibcli.networks import device as devices  # noqa: E402
from calibcli.networks.dataset import _folder, decoded  # noqa: E402
from calibcli.networks.dataset.library_preparation import PicturePreparation, Preparation  # noqa: E402
from calibcli.networks.dataset.rows import Dataset  # noqa: E402
from calibcli.scores.predictions import gather  # noqa: E402

N = 64
LOOKED_AT_AGAIN = 16 + 1  # rows that are read twice on purpose, and the first picture for its size
SIZE = "8x10"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    for i in range(N):
        (root / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 14, 3)).astype(np.uint8)).save(root / "ab"[i % 2] / f"{i}.png")
    return root


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that tells how many pictures were opened since it was last called."""
    count, plain = itertools.count(), _folder.opened
    monkeypatch.setattr(_folder, "opened", lambda path: (next(count), plain(path))[1])
    last = [0]

    def since() -> int:
        now = next(count)
        before, last[0] = last[0], now + 1
        return now - before

    return since


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2)
    ).double()


def measured(folder: Path, *quantities: str) -> Any:
    options: dict[str, Any] = {"memory": "low", "batch_size": 32, "device": "cpu", "dtype": "float64"}
    return calibcli.curvature(network(), folder, *quantities, size=SIZE, **options)


def loaded(folder: Path, **options: Any) -> Dataset:
    return dataset.load(folder, size=SIZE, **options)


def small_memory(monkeypatch: pytest.MonkeyPatch, free: int = 1000) -> None:
    monkeypatch.setattr(decoded.devices, "free_bytes", lambda device=None: free)


@pytest.mark.parametrize("quantity", ["lambda_max", "density:steps=12", "trace"])
def test_each_picture_is_decoded_once_and_no_value_changes(
    folder: Path, decodes: Any, monkeypatch: pytest.MonkeyPatch, quantity: str
) -> None:
    once = measured(folder, quantity)
    assert N <= decodes() <= N + LOOKED_AT_AGAIN
    monkeypatch.setattr(curvature, "decoded_once", lambda data: data)
    each = measured(folder, quantity)
    assert decodes() > 2 * N
    assert [(e.value, e.low, e.high) for e in once.estimates] == [(e.value, e.low, e.high) for e in each.estimates]


@pytest.mark.parametrize("place", ["memory", "file", "nowhere"])
def test_rows_in_any_order_are_those_of_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, decodes: Any, place: str
) -> None:
    monkeypatch.setattr(decoded.tempfile, "tempdir", str(tmp_path))
    if place != "memory":
        small_memory(monkeypatch)
    if place == "nowhere":
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    plain = loaded(folder).select(np.r_[50:59, 3:40])
    data = dataset.decoded_once(plain)
    for rows in (np.arange(16), np.array([40, 3, 3, 0]), np.arange(44, 46), np.arange(46)[::-1], np.array([], int)):
        assert torch.equal(data.batch(rows)[0], plain.batch(rows)[0])
    array: Any = data.inputs[""]
    decodes()
    assert np.array_equal(gather(array, plain.rows), gather(plain.inputs[""], plain.rows))
    assert decodes() == (2 if place == "nowhere" else 1) * 46
    assert list(tmp_path.iterdir()) == []  # the file has no name
    said = {"memory": "", "file": f"GiB of {tmp_path} until the end", "nowhere": "they are decoded for every pass"}
    assert said[place] in " ".join(data.notes)
    assert (len(data.notes) > len(plain.notes)) == bool(said[place])


def test_a_disk_that_becomes_full_is_said_and_the_rows_stay_right(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_memory(monkeypatch)
    plain, write, count = loaded(folder), os.pwrite, itertools.count()

    def full(*args: Any) -> int:
        if next(count) >= 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args)

    monkeypatch.setattr(os, "pwrite", full)
    data = dataset.decoded_once(plain)
    for _ in range(2):
        assert torch.equal(data.batch(slice(0, N))[0], plain.batch(slice(0, N))[0])
    assert sum("they are decoded for every pass" in note for note in data.notes) == 1


def test_rows_after_those_of_a_batch_are_decoded_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, done = dataset.decoded_once(loaded(folder), keep=False), threading.Event()
    array: Any = data.inputs[""]
    decode = array._decode
    monkeypatch.setattr(array, "_decode", lambda place: (done.set() if place == 11 else None, decode(place))[1])
    data.batch(slice(0, 6))
    assert done.wait(60)
    assert sorted(array.waiting) == list(range(6, 12))
    monkeypatch.setattr(array, "ahead", 4)  # as many at most wait that nobody asks for
    data.batch(np.array([60, 50]))
    assert len(array.waiting) == 4


def test_a_damaged_picture_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "d")
    (tmp_path / "d/a/40.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"40\.png cannot be read as a picture"):
        measured(tmp_path / "d", "lambda_max")


def test_a_copy_decodes_for_itself(folder: Path) -> None:
    data = dataset.decoded_once(loaded(folder))
    first = data.batch(slice(0, 5))[0]
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert torch.equal(other.batch(slice(0, 5))[0], first)
    array: Any = data.inputs[""]
    with warnings.catch_warnings(action="ignore"):  # Python's, of threads
        child = os.fork()
    if child == 0:  # which has none of the threads
        os._exit(int(not np.array_equal(array.rows(np.arange(40)), array.source.read(0, 40))))
    assert os.waitpid(child, 0)[1] == 0


def test_rows_that_a_library_draws_at_random_are_refused_as_before(folder: Path) -> None:
    rng = np.random.default_rng(0)
    library = PicturePreparation("library", lambda picture: rng.random((3, 8, 10)).astype(np.float32))
    data = dataset.decoded_once(dataset.load(folder, preparation=Preparation(pictures=lambda: library)))
    with pytest.raises(InputError, match="draws its rows at random"):
        inference.check(data, network())


def test_warnings_of_pillow_are_not_shown_and_others_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dataset.decoded_once(loaded(folder)).batch(slice(0, N))
        warnings.warn("shown", stacklevel=1)
    told = [one for one in seen if not issubclass(one.category, ResourceWarning)]
    assert [str(one.message) for one in told] == ["shown"]


@pytest.mark.parametrize("resident", [True, False])
def test_training_decodes_each_picture_once(
    folder: Path, decodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, resident: bool
) -> None:
    if not resident:
        monkeypatch.setattr(batches, "RESIDENT", 1 << 60)

    def losses(name: str) -> list[float]:
        options: dict[str, Any] = {"epochs": 3, "batch_size": 16, "size": SIZE, "device": "cpu"}
        found = calibcli.train(network().float(), folder, save=tmp_path / name, **options)
        return [e.value for e in found.estimates]

    once = losses("once")
    assert N <= decodes() <= N + 3 * LOOKED_AT_AGAIN
    monkeypatch.setattr(dataset, "decoded_once", lambda data: data)
    assert losses("each") == once
    assert decodes() > N + 3 * LOOKED_AT_AGAIN


def test_a_share_of_what_is_free_decides_what_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset.load((torch.zeros(10, 8), torch.arange(10) % 2))
    for free, kept in ((8 * 320, True), (8 * 320 - 1, False)):
        monkeypatch.setattr(batches.device, "free_bytes", lambda device, free=free: free)
        loader = batches.Loader(data, torch.device("cpu"), torch.float32)
        assert (loader.kept is not None) == kept
    monkeypatch.setattr(batches.device, "free_bytes", lambda device: 8 * 320)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert devices.local_world() == 2
    assert batches.Loader(data, torch.device("cpu"), torch.float32).kept is None


def test_logits_keep_no_pictures(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    plain = decoded.Decoded.__init__
    monkeypatch.setattr(decoded.Decoded, "__init__", lambda self, *args: (plain(self, *args), made.append(self))[0])
    calibcli.logits(network().float(), folder, save=tmp_path / "z.npz", size=SIZE, device="cpu")
    with torch.no_grad():
        z = network().float().eval()(loaded(folder).batch(slice(0, N))[0])
    assert np.array_equal(np.load(tmp_path / "z.npz")["logits"], z.numpy())
    assert [one.kept for one in made] == [None]
