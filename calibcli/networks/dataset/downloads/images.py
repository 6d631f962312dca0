"""Image data sets as they are downloaded: CIFAR-10 and -100, MNIST and its like, SVHN, Tiny ImageNet."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, refusing
from calibcli.networks.dataset.array_names import ArraysOfDataset
from calibcli.networks.dataset.downloads.members import MOST, MembersByName
from calibcli.networks.dataset.folder import Pictures, decode, fingerprint
from calibcli.scores.files import pickles
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.other_files import UNREADABLE

# CIFAR-10 and CIFAR-100 (Krizhevsky 2009), the python and the binary version.

PIXELS = 3 * 32 * 32  # planes of red, green and blue, row by row
BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
PYTHON = {  # what tells the version, its splits, and where class names are
    "batches.meta": {"train": BATCHES, "test": ["test_batch"]},
    "meta": {"train": ["train"], "test": ["test"]},
}
BINARY = {
    "batches.meta.txt": {"train": [f"{name}.bin" for name in BATCHES], "test": ["test_batch.bin"]},
    "fine_label_names.txt": {"train": ["train.bin"], "test": ["test.bin"]},
}
VERSIONS = {**PYTHON, **BINARY}
ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}
"""What a batch is made of; anything else is refused, and nothing is called but these."""


def cifar_splits(there: MembersByName) -> list[str]:
    """`train` and `test`, or the one of which all batches lie there; [] of another data set."""
    meta = _version(there)
    return [] if not meta else [name for name, files in VERSIONS[meta].items() if set(files) <= {*there.paths}]


def read_cifar(there: MembersByName, split: str) -> ArraysOfDataset:
    """The pictures of a split, (N, 3, 32, 32) bytes. `test:coarse` takes the 20 superclasses of CIFAR-100.

    Raises:
        InputError: no such split, damaged files, or a pickle of anything but arrays, texts and numbers.
    """
    meta = _version(there)
    asked, _, level = split.partition(":")
    name = there.split(asked, cifar_splits(there))
    hundred = meta in ("meta", "fine_label_names.txt")
    if level not in ("", "fine", "coarse") or (level and not hundred):
        fix = f"choose {there.path}#{name}:coarse or #{name}" if hundred else f"choose {there.path}#{name}"
        raise InputError(f"{there.path} has no labels '{level}'", fix)
    names = VERSIONS[meta][name]
    extra = [meta] if level != "coarse" or meta == "meta" else ["coarse_label_names.txt"]
    extra = [one for one in extra if one in there.paths]
    data = there.read([*names, *extra])
    key = f"{level or 'fine'}_labels" if hundred else "labels"
    if meta in PYTHON:
        parts = [_batch(data[batch], key, f"{batch} of {there.path}") for batch in names]
        about = _unpickled(data[meta], f"{meta} of {there.path}")
        told = about.get(f"{key[:-1]}_names".encode())
        classes = [_text(one) for one in told] if isinstance(told, list) else []
    else:
        width = 2 if hundred else 1
        at = 0 if level == "coarse" or not hundred else 1
        parts = [_records(data[batch], width, at, f"{batch} of {there.path}") for batch in names]
        classes = [line.strip() for one in extra for line in _text(data[one]).splitlines() if line.strip()]
    pixels = np.concatenate([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
    labels = np.concatenate([part[1] for part in parts])
    note = f"{'CIFAR-100' if hundred else 'CIFAR-10'}, {name}: {len(pixels):,} pictures"
    made = there.found(name, data, names, pixels.reshape(-1, 3, 32, 32), labels, note)
    return replace(made, classes=classes or None)


def _version(there: MembersByName) -> str:
    found = (meta for meta, files in VERSIONS.items() if meta in there.paths)
    return next((m for m in found if any(set(f) <= {*there.paths} for f in VERSIONS[m].values())), "")


class _Plain(pickle.Unpickler):
    """Arrays, texts, numbers and their containers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _unpickled(data: bytes, where: str) -> dict[Any, Any]:
    named = pickles.names(io.BytesIO(data), where, most=MOST)
    allowed = {f"{module}.{name}" for module, name in ALLOWED}
    odd = sorted(name for name in named - allowed if not name.startswith(pickles.STACKED))  # those: `find_class`
    if odd:
        raise InputError(f"{where} would run code: it names {odd[0]}", "download the archive again, from its authors")
    with refusing(
        (*UNREADABLE, ImportError),
        lambda error: f"{where} is no batch of CIFAR ({str(error)[:80]})",
        "download it again",
    ):
        found = _Plain(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(found, dict):
            raise TypeError("no dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in found.items()}


def _batch(data: bytes, key: str, where: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    found = _unpickled(data, where)
    pixels, labels = found.get(b"data"), found.get(key.encode())
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise InputError(f"{where} does not hold data (N, {PIXELS})", "download it again")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise InputError(f"{where} does not hold a list {key}", "download it again")
    if len(labels) != len(pixels):
        raise InputError(f"{where} holds {len(pixels)} pictures and {len(labels)} labels", "download it again")
    return pixels, np.array(labels, np.int64)


def _records(data: bytes, width: int, at: int, where: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    if not data or len(data) % (width + PIXELS):
        problem = f"{where} is {len(data):,} bytes long, no multiple of {width + PIXELS:,}"
        raise InputError(problem, "download it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, width + PIXELS)
    return rows[:, width:], rows[:, at].astype(np.int64)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# MNIST and what copies its files (Fashion-MNIST, KMNIST): idx files, compressed or not (LeCun et al. 1998).


PREFIXES = {"train": "train", "test": "t10k"}
NAMES = [("-images-idx3-ubyte", "-labels-idx1-ubyte"), ("-images.idx3-ubyte", "-labels.idx1-ubyte")]


def mnist_splits(there: MembersByName) -> list[str]:
    """Splits whose pictures and labels lie there; of a single file, its own."""
    return [name for name in PREFIXES if _pair(there, name)]


def read_mnist(there: MembersByName, split: str) -> ArraysOfDataset:
    """The pictures of a split, (N, rows, columns) bytes.

    Raises:
        InputError: no such split, or files that are no idx arrays of bytes.
    """
    name = there.split(split, mnist_splits(there))
    pair = _pair(there, name)
    data = there.read(pair)
    pictures, labels = (_array(data[one], f"{one} of {there.path}") for one in pair)
    if pictures.ndim != 3 or labels.ndim != 1 or len(pictures) != len(labels):
        problem = f"{there.path}: pictures {pictures.shape} and labels {labels.shape} do not belong together"
        raise InputError(problem, "download both again")
    note = f"idx files, {name}: {len(labels):,} pictures of {pictures.shape[1]}x{pictures.shape[2]}"
    return there.found(name, data, pair, pictures, labels.astype(np.int64), note)


def _pair(there: MembersByName, split: str) -> list[str]:
    """Names of the pictures and the labels of a split."""
    if there.kind == "file" and not there.path.name.startswith(f"{PREFIXES[split]}-"):
        return []
    for images, labels in NAMES:
        for end in ("", ".gz"):
            pair = [f"{PREFIXES[split]}{part}{end}" for part in (images, labels)]
            if set(pair) <= there.paths.keys():
                return pair
    return []


def _array(data: bytes, where: str) -> NDArray[np.uint8]:
    """An idx file: two zeros, the type (8: bytes), the number of dimensions, each as four bytes, the numbers."""
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 3 or len(data) < 4 + 4 * data[3]:
        raise InputError(f"{where} is no idx file of bytes", "download it again")
    shape = tuple(int(size) for size in np.frombuffer(data[4 : 4 + 4 * data[3]], ">u4"))
    start = 4 + 4 * data[3]
    if len(data) - start != math.prod(shape):
        problem = f"{where} declares {' x '.join(map(str, shape))} bytes and holds {max(len(data) - start, 0):,}"
        raise InputError(problem, "download it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


# Street View House Numbers, cropped digits (Netzer et al. 2011): `train_32x32.mat` and its like.


ENDING = "_32x32.mat"
SPLITS = ("train", "extra", "test")


def svhn_splits(there: MembersByName) -> list[str]:
    """Those whose file lies there; of a single file, its own."""
    if there.kind == "file":
        return [name for name in SPLITS if there.path.name == name + ENDING]
    return [name for name in SPLITS if name + ENDING in there.paths]


def read_svhn(there: MembersByName, split: str) -> ArraysOfDataset:
    """The digits of a split, (N, 32, 32, 3) bytes. The file calls the digit 0 class 10; here it is class 0.

    Raises:
        InputError: no such split, or a file without X and y of the published shapes.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    name = there.split(split, svhn_splits(there))
    file = name + ENDING
    data = there.read([file])
    where = f"{file} of {there.path}" if there.kind != "file" else str(there.path)
    refuse_large(3 * len(data[file]), f"{where} takes {3 * len(data[file]) / 1e9:.3g} GB when decoded")
    errors = (*UNREADABLE, zlib.error, MatReadError)
    with refusing(errors, lambda error: f"{where} is no MATLAB file ({str(error)[:80]})", "download it again"):
        found = loadmat(io.BytesIO(data[file]), variable_names=("X", "y"))
    x, y = found.get("X"), found.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.size != x.shape[3]:
        raise InputError(f"{where} does not hold X (32, 32, 3, N) and y (N, 1)", "download it again")
    labels = y.reshape(-1).astype(np.int64)
    note = f"SVHN, {name}: {len(labels):,} digits; class 10 of the file is the digit 0"
    made = there.found(name, data, [file], x.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels), note)
    return replace(made, classes=[str(digit) for digit in range(10)])


# Tiny ImageNet (Le and Yang 2015), `tiny-imagenet-200.zip` or its folder, classes in one order.


CLASSES, ANNOTATIONS = "wnids.txt", "val_annotations.txt"
Place = Path | zipfile.Path


def tiny_imagenet_splits(there: MembersByName) -> list[str]:
    """`train` and `val`, where the list of classes lies there; `val` of the folder with the annotations itself."""
    if there.kind == "folder" and ANNOTATIONS in there.paths and (there.path.parent / CLASSES).is_file():
        return ["val"]
    whole = there.kind in ("folder", "zip") and CLASSES in there.paths
    return ["train", "val"] if whole else []


def read_tiny_imagenet(there: MembersByName, split: str) -> ArraysOfDataset:
    """Pictures of a split; classes in the order of their names, as in a folder of folders.

    Raises:
        InputError: no such split, or pictures without a class.
    """
    name = there.split(split, tiny_imagenet_splits(there))
    inside = CLASSES in there.paths
    listed = there.read([CLASSES])[CLASSES] if inside else (there.path.parent / CLASSES).read_bytes()
    classes = sorted(listed.decode(errors="replace").split())
    with refusing((OSError, ValueError, KeyError, UnicodeDecodeError), f"{there.path} is damaged", "download it again"):
        pairs = _train(there, classes) if name == "train" else _val(there)
    number = {label: i for i, label in enumerate(classes)}
    odd = next((place.name for place, label in pairs if label not in number), None)
    if odd is not None or not pairs:
        problem = f"{there.path}: {odd or name} has no class of {CLASSES}" if odd else f"{there.path}: {name} is empty"
        raise InputError(problem, "download it again")
    paths = [place for place, _ in pairs]
    grey_or_not = decode(paths[0], grey=False)
    return ArraysOfDataset(
        inputs={"": Pictures(paths, (len(paths), *grey_or_not.shape))},
        labels=np.array([number[label] for _, label in pairs]),
        sha256=Source(there.path).sha256() if there.kind == "zip" else fingerprint(paths, there.path),
        ids=np.array([place.name for place in paths]),
        classes=classes,
        notes=[f"Tiny ImageNet, {name}: {len(paths):,} pictures of {len(classes)} classes"],
    )


def _val(there: MembersByName) -> list[tuple[Place, str]]:
    """(picture, class) by `val_annotations.txt`: the name of a picture, its class and a box, parted by tabs."""
    if there.kind == "zip":
        root: Place = cast("zipfile.Path", zipfile.Path(there.path, there.paths[ANNOTATIONS]).parent)
        text = there.read([ANNOTATIONS])[ANNOTATIONS]
    else:
        root = there.path if ANNOTATIONS in there.paths else there.path / "val"
        text = (root / ANNOTATIONS).read_bytes()
    rows = [line.split("\t")[:2] for line in text.decode().splitlines() if line.strip()]
    pairs = [(root / "images" / PurePosixPath(name).name, label) for name, label in rows]
    if missing := [place.name for place, _ in pairs if not place.exists()]:
        raise KeyError(missing[0])
    return pairs


def _train(there: MembersByName, known: list[str]) -> list[tuple[Place, str]]:
    """(picture, class) by folder: `train/CLASS/images/NAME`."""
    if there.kind == "zip":
        archive = zipfile.ZipFile(there.path)
        root = PurePosixPath(there.paths[CLASSES]).parent
        found: list[tuple[Place, str]] = []
        for name in sorted(archive.namelist()):
            parts = PurePosixPath(name).parts
            if parts[-2:-1] == ("images",) and parts[-4:-3] == ("train",) and PurePosixPath(*parts[:-4]) == root:
                found.append((zipfile.Path(archive, name), parts[-3]))
        return found
    return [(path, label) for label in known for path in sorted((there.path / "train" / label / "images").iterdir())]
