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
from calibcli.networks.dataset._arrays import DatasetArrays
from calibcli.networks.dataset._folder import Pictures, decode, fingerprint
from calibcli.networks.dataset.downloads._members import MOST, MembersByName
from calibcli.scores.files import pickles
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.other_files import UNREADABLE

# CIFAR-10 and CIFAR-100 (Krizhevsky 2009), the python and the binary version.

PIXELS = 3 * 32 * 32  # planes of red, green and blue, row by row
BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
PYTHON = {  # by the file with the class names, which tells the version: the files of each split
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
"""The names that a pickled batch may use; all others are refused."""


def cifar_splits(members: MembersByName) -> list[str]:
    """List the splits whose batches are all present; [] for another data set."""
    meta = _version(members)
    return [] if not meta else [name for name, files in VERSIONS[meta].items() if set(files) <= {*members.paths}]


def read_cifar(members: MembersByName, split: str) -> DatasetArrays:
    """Read the pictures of a split, (N, 3, 32, 32) bytes. `test:coarse` has the 20 superclasses of CIFAR-100.

    Raises:
        InputError: there is no such split, files are damaged, or a pickle holds other things than arrays, texts and
            numbers.
    """
    meta = _version(members)
    split_name, _, level = split.partition(":")
    name = members.split(split_name, cifar_splits(members))
    hundred = meta in ("meta", "fine_label_names.txt")
    if level not in ("", "fine", "coarse") or (level and not hundred):
        fix = f"choose {members.path}#{name}:coarse or #{name}" if hundred else f"choose {members.path}#{name}"
        raise InputError(f"{members.path} has no labels '{level}'", fix)
    names = VERSIONS[meta][name]
    extra = [meta] if level != "coarse" or meta == "meta" else ["coarse_label_names.txt"]
    extra = [one for one in extra if one in members.paths]
    data = members.read([*names, *extra])
    key = f"{level or 'fine'}_labels" if hundred else "labels"
    if meta in PYTHON:
        parts = [_batch(data[batch], key, f"{batch} of {members.path}") for batch in names]
        description = _unpickled(data[meta], f"{meta} of {members.path}")
        class_names = description.get(f"{key[:-1]}_names".encode())
        classes = [_text(one) for one in class_names] if isinstance(class_names, list) else []
    else:
        width = 2 if hundred else 1
        label_column = 0 if level == "coarse" or not hundred else 1
        parts = [_records(data[batch], width, label_column, f"{batch} of {members.path}") for batch in names]
        classes = [line.strip() for one in extra for line in _text(data[one]).splitlines() if line.strip()]
    pixels = np.concatenate([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
    labels = np.concatenate([part[1] for part in parts])
    title = "CIFAR-100" if hundred else "CIFAR-10"
    note = f"{title}, {name}: {len(pixels):,} pictures"
    # rows of 3072 bytes to (N, channels, height, width)
    arrays = members.of_pictures(name, data, names, pixels.reshape(-1, 3, 32, 32), labels, note)
    return replace(arrays, classes=classes or None, published="" if level == "coarse" else title)


def _version(members: MembersByName) -> str:
    versions = (meta for meta, files in VERSIONS.items() if meta in members.paths)
    return next((m for m in versions if any(set(f) <= {*members.paths} for f in VERSIONS[m].values())), "")


class _Plain(pickle.Unpickler):
    """An unpickler of arrays, texts, numbers and their containers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _unpickled(data: bytes, where: str) -> dict[Any, Any]:
    named = pickles.names(io.BytesIO(data), where, most=MOST)
    allowed = {f"{module}.{name}" for module, name in ALLOWED}
    # `find_class` judges names that are computed
    odd = sorted(name for name in named - allowed if not name.startswith(pickles.STACKED))
    if odd:
        raise InputError(f"{where} would run code: it names {odd[0]}", "download the archive again, from its authors")
    errors = (*UNREADABLE, ImportError)
    with refusing(errors, lambda e: f"{where} is no batch of CIFAR ({str(e)[:80]})", "download it again"):
        content = _Plain(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(content, dict):
            raise TypeError("no dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


def _batch(data: bytes, key: str, where: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    batch = _unpickled(data, where)
    pixels, labels = batch.get(b"data"), batch.get(key.encode())
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise InputError(f"{where} does not hold data (N, {PIXELS})", "download it again")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise InputError(f"{where} does not hold a list {key}", "download it again")
    if len(labels) != len(pixels):
        raise InputError(f"{where} holds {len(pixels)} pictures and {len(labels)} labels", "download it again")
    return pixels, np.array(labels, np.int64)


def _records(data: bytes, width: int, label_column: int, where: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    if not data or len(data) % (width + PIXELS):
        problem = f"{where} is {len(data):,} bytes long, no multiple of {width + PIXELS:,}"
        raise InputError(problem, "download it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, width + PIXELS)
    return rows[:, width:], rows[:, label_column].astype(np.int64)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# MNIST and data sets with the same files (Fashion-MNIST, KMNIST): idx files, compressed or not (LeCun et al. 1998).

PREFIXES = {"train": "train", "test": "t10k"}
NAMES = [("-images-idx3-ubyte", "-labels-idx1-ubyte"), ("-images.idx3-ubyte", "-labels.idx1-ubyte")]


def mnist_splits(members: MembersByName) -> list[str]:
    """List the splits whose pictures and labels are present; for a single file, its own split."""
    return [name for name in PREFIXES if _pair(members, name)]


def read_mnist(members: MembersByName, split: str) -> DatasetArrays:
    """Read the pictures of a split, (N, rows, columns) bytes.

    Raises:
        InputError: there is no such split, or files are not idx arrays of bytes.
    """
    name = members.split(split, mnist_splits(members))
    pair = _pair(members, name)
    data = members.read(pair)
    pictures, labels = (_array(data[one], f"{one} of {members.path}") for one in pair)
    if pictures.ndim != 3 or labels.ndim != 1 or len(pictures) != len(labels):
        problem = f"{members.path}: pictures {pictures.shape} and labels {labels.shape} do not belong together"
        raise InputError(problem, "download both again")
    note = f"idx files, {name}: {len(labels):,} pictures of {pictures.shape[1]}x{pictures.shape[2]}"
    return members.of_pictures(name, data, pair, pictures, labels.astype(np.int64), note)


def _pair(members: MembersByName, split: str) -> list[str]:
    """Return the names of the files of pictures and labels of a split; [] if they are not present."""
    if members.kind == "file" and not members.path.name.startswith(f"{PREFIXES[split]}-"):
        return []
    for images, labels in NAMES:
        for end in ("", ".gz"):
            pair = [f"{PREFIXES[split]}{part}{end}" for part in (images, labels)]
            if set(pair) <= members.paths.keys():
                return pair
    return []


def _array(data: bytes, where: str) -> NDArray[np.uint8]:
    """Read an idx file: two zeros, the type (8: bytes), the number of dimensions, each in four bytes, the numbers."""
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 3 or len(data) < 4 + 4 * data[3]:
        raise InputError(f"{where} is no idx file of bytes", "download it again")
    shape = tuple(int(size) for size in np.frombuffer(data[4 : 4 + 4 * data[3]], ">u4"))
    start = 4 + 4 * data[3]
    if len(data) - start != math.prod(shape):
        problem = f"{where} declares {' x '.join(map(str, shape))} bytes and holds {max(len(data) - start, 0):,}"
        raise InputError(problem, "download it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


# Street View House Numbers, cropped digits (Netzer et al. 2011): `train_32x32.mat` and the like.

ENDING = "_32x32.mat"
SPLITS = ("train", "extra", "test")


def svhn_splits(members: MembersByName) -> list[str]:
    """List the splits whose file is present; for a single file, its own split."""
    if members.kind == "file":
        return [name for name in SPLITS if members.path.name == name + ENDING]
    return [name for name in SPLITS if name + ENDING in members.paths]


def read_svhn(members: MembersByName, split: str) -> DatasetArrays:
    """Read the digits of a split, (N, 32, 32, 3) bytes. The digit 0 is class 10 in the file, and class 0 here.

    Raises:
        InputError: there is no such split, or the file has no X and y of the published shapes.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    name = members.split(split, svhn_splits(members))
    file = name + ENDING
    data = members.read([file])
    where = f"{file} of {members.path}" if members.kind != "file" else str(members.path)
    refuse_large(3 * len(data[file]), f"{where} takes {3 * len(data[file]) / 1e9:.3g} GB when decoded")
    errors = (*UNREADABLE, zlib.error, MatReadError)
    with refusing(errors, lambda error: f"{where} is no MATLAB file ({str(error)[:80]})", "download it again"):
        variables = loadmat(io.BytesIO(data[file]), variable_names=("X", "y"))
    x, y = variables.get("X"), variables.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.size != x.shape[3]:
        raise InputError(f"{where} does not hold X (32, 32, 3, N) and y (N, 1)", "download it again")
    labels = y.reshape(-1).astype(np.int64)
    note = f"SVHN, {name}: {len(labels):,} digits; class 10 of the file is the digit 0"
    # (height, width, channels, N) to (N, height, width, channels)
    arrays = members.of_pictures(name, data, [file], x.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels), note)
    return replace(arrays, classes=[str(digit) for digit in range(10)], published="SVHN")


# Tiny ImageNet (Le and Yang 2015): `tiny-imagenet-200.zip` or its folder, with classes in the same order.

CLASSES, ANNOTATIONS = "wnids.txt", "val_annotations.txt"
HALVES, HALF_SEED = ("", "first", "second"), 1
Place = Path | zipfile.Path


def tiny_imagenet_splits(members: MembersByName) -> list[str]:
    """List `train` and `val` if the list of classes is present; `val` for the folder of the annotations itself."""
    if members.kind == "folder" and ANNOTATIONS in members.paths and (members.path.parent / CLASSES).is_file():
        return ["val"]
    whole = members.kind in ("folder", "zip") and CLASSES in members.paths
    return ["train", "val"] if whole else []


def read_tiny_imagenet(members: MembersByName, split: str) -> DatasetArrays:
    """Read the pictures of a split, with classes in the order of their names, as in an image folder.

    Those that are labelled but not trained on are in `val` alone. `val:first` and `val:second` are its halves, of which
    one can choose what the other judges: half of the pictures of each class, drawn by NumPy with seed 1.

    Raises:
        InputError: there is no such split, or a picture has no class.
    """
    split_name, _, half = split.partition(":")
    name = members.split(split_name, tiny_imagenet_splits(members))
    if half not in HALVES or (half and name != "val"):
        raise InputError(f"{members.path} has no half '{split}'", f"choose {members.path}#val:first or #val:second")
    inside = CLASSES in members.paths
    listed = members.read([CLASSES])[CLASSES] if inside else (members.path.parent / CLASSES).read_bytes()
    classes = sorted(listed.decode(errors="replace").split())
    errors = (OSError, ValueError, KeyError, UnicodeDecodeError)
    with refusing(errors, f"{members.path} is damaged", "download it again"):
        pairs = _train(members, classes) if name == "train" else _val(members)
    number = {label: i for i, label in enumerate(classes)}
    odd = next((place.name for place, label in pairs if label not in number), None)
    if odd is not None or not pairs:
        problem = f"{odd} has no class of {CLASSES}" if odd else f"{name} is empty"
        raise InputError(f"{members.path}: {problem}", "download it again")
    if half:
        pairs = _half(pairs, HALVES.index(half) - 1)
    paths = [place for place, _ in pairs]
    pictures = Pictures(paths, (len(paths), *decode(paths[0], grey=False).shape))
    labels, ids = np.array([number[label] for _, label in pairs]), np.array([place.name for place in paths])
    sha256 = Source(members.path).sha256() if members.kind == "zip" else fingerprint(paths, members.path)
    note = f"Tiny ImageNet, {split or name}: {len(paths):,} pictures of {len(classes)} classes"
    return DatasetArrays({"": pictures}, labels, sha256, ids, classes, [note], published="Tiny ImageNet")


def _half(pairs: list[tuple[Place, str]], which: int) -> list[tuple[Place, str]]:
    """Draw one of the two halves of the pictures of each class, in the order of the pictures."""
    order = np.random.default_rng(HALF_SEED).permutation(len(pairs)).tolist()
    seen: dict[str, int] = {}
    chosen = []
    for i in order:  # pictures of a class go to the halves in turn
        seen[pairs[i][1]] = seen.get(pairs[i][1], -1) + 1
        if seen[pairs[i][1]] % 2 == which:
            chosen.append(i)
    return [pairs[i] for i in sorted(chosen)]


def _val(members: MembersByName) -> list[tuple[Place, str]]:
    """List (picture, class) from `val_annotations.txt`: name of a picture, its class and a box, separated by tabs."""
    if members.kind == "zip":
        root: Place = cast("zipfile.Path", zipfile.Path(members.path, members.paths[ANNOTATIONS]).parent)
        text = members.read([ANNOTATIONS])[ANNOTATIONS]
    else:
        root = members.path if ANNOTATIONS in members.paths else members.path / "val"
        text = (root / ANNOTATIONS).read_bytes()
    rows = [line.split("\t")[:2] for line in text.decode().splitlines() if line.strip()]
    pairs = [(root / "images" / PurePosixPath(name).name, label) for name, label in rows]
    if missing := [place.name for place, _ in pairs if not place.exists()]:
        raise KeyError(missing[0])
    return pairs


def _train(members: MembersByName, labels: list[str]) -> list[tuple[Place, str]]:
    """List (picture, class) from the folders `train/CLASS/images/NAME`."""
    if members.kind == "zip":
        archive = zipfile.ZipFile(members.path)
        root = PurePosixPath(members.paths[CLASSES]).parent
        pairs: list[tuple[Place, str]] = []
        for name in sorted(archive.namelist()):
            parts = PurePosixPath(name).parts
            if parts[-2:-1] == ("images",) and parts[-4:-3] == ("train",) and PurePosixPath(*parts[:-4]) == root:
                pairs.append((zipfile.Path(archive, name), parts[-3]))
        return pairs
    return [(path, label) for label in labels for path in sorted((members.path / "train" / label / "images").iterdir())]
