"""Data sets in the layouts that they are published in, small: files by their path."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

RNG = np.random.default_rng(0)


def pictures(n: int) -> Any:
    return RNG.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8)


def old(value: Any) -> bytes:
    """A pickle as Python 2 wrote it: texts are bytes."""

    def text(data: Any) -> bytes:
        return data if isinstance(data, bytes) else str(data).encode()

    def write(v: Any) -> bytes:
        if isinstance(v, dict):
            return b"}(" + b"".join(write(text(k)) + write(x) for k, x in v.items()) + b"u"
        if isinstance(v, list):
            return b"](" + b"".join(map(write, v)) + b"e"
        if isinstance(v, int):
            return b"J" + struct.pack("<i", v)
        if isinstance(v, np.ndarray):
            made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
            kind = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            shape = b"(" + b"".join(write(int(s)) for s in v.shape) + b"t"
            return made + b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<I", v.nbytes) + v.tobytes() + b"tb"
        return b"T" + struct.pack("<I", len(text(v))) + text(v)

    return b"\x80\x02" + write(value) + b"."


def tar(path: str | IO[bytes], files: dict[str, bytes], mode: Any = "w:gz") -> None:
    how: dict[str, Any] = {"name": path} if isinstance(path, str) else {"fileobj": path}
    with tarfile.open(mode=mode, **how) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def lay(root: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def cifar10(x: Any, y: Any, dump: Callable[[Any], bytes] = old, train: int = 12) -> dict[str, bytes]:
    files = {"batches.meta": dump({"label_names": [f"class{i}" for i in range(10)], "num_vis": 3072})}
    parts = {f"data_batch_{i + 1}": rows for i, rows in enumerate(np.array_split(np.arange(train), 5))}
    for name, rows in {**parts, "test_batch": np.arange(train, len(x))}.items():
        batch = {"data": x[rows].reshape(len(rows), -1), "labels": y[rows].tolist(), "filenames": ["a.png"] * len(rows)}
        files[name] = dump(batch)
    return {f"cifar-10-batches-py/{name}": data for name, data in files.items()}


def cifar100(x: Any, y: Any, train: int = 12) -> dict[str, bytes]:
    names = {
        "fine_label_names": [f"fine{i}" for i in range(100)],
        "coarse_label_names": [f"coarse{i}" for i in range(20)],
    }
    files = {"meta": old(names)}
    for name, rows in (("train", np.arange(train)), ("test", np.arange(train, len(x)))):
        labels = {"fine_labels": y[rows].tolist(), "coarse_labels": (y[rows] // 5).tolist()}
        files[name] = old({"data": x[rows].reshape(len(rows), -1), **labels})
    return {f"cifar-100-python/{name}": data for name, data in files.items()}


def binary(x: Any, y: Any, hundred: bool) -> dict[str, bytes]:
    def records(rows: Any) -> bytes:
        heads = np.column_stack([y[rows] // 5, y[rows]] if hundred else [y[rows]]).astype(np.uint8)
        return np.hstack([heads, x[rows].reshape(len(rows), -1)]).tobytes()

    if hundred:
        names = "\n".join(f"fine{i}" for i in range(100)).encode(), "\n".join(f"coarse{i}" for i in range(20)).encode()
        files = {"fine_label_names.txt": names[0], "coarse_label_names.txt": names[1]}
        files |= {"train.bin": records(np.arange(12)), "test.bin": records(np.arange(12, 19))}
        return {f"cifar-100-binary/{name}": data for name, data in files.items()}
    files = {"batches.meta.txt": "\n".join(f"class{i}" for i in range(10)).encode() + b"\n\n"}
    parts = np.array_split(np.arange(12), 5)
    files |= {f"data_batch_{i + 1}.bin": records(rows) for i, rows in enumerate(parts)}
    files["test_batch.bin"] = records(np.arange(12, 19))
    return {f"cifar-10-batches-bin/{name}": data for name, data in files.items()}


def idx(array: Any) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", s) for s in array.shape) + array.tobytes()


def mnist(packed: bool) -> dict[str, bytes]:
    """Twelve pictures to train on and seven to test."""
    files = {}
    for prefix, rows in (("train", 12), ("t10k", 7)):
        x, y = RNG.integers(0, 256, (rows, 28, 28)).astype(np.uint8), np.arange(rows, dtype=np.uint8) % 10
        for part, array in (("images", x), ("labels", y)):
            name = f"{prefix}-{part}-idx{array.ndim}-ubyte"
            files[f"MNIST/{name}.gz" if packed else f"MNIST/{name}"] = (
                gzip.compress(idx(array)) if packed else idx(array)
            )
    return files


def svhn(packed: bool) -> dict[str, bytes]:
    """Two splits of MATLAB 5."""
    from scipy.io import savemat

    files = {}
    for name, rows in (("train", 12), ("test", 7)):
        x, file = RNG.integers(0, 256, (32, 32, 3, rows)).astype(np.uint8), io.BytesIO()
        savemat(file, {"X": x, "y": (np.arange(rows)[:, None] % 10 + 1).astype(np.uint8)}, do_compression=packed)
        files[f"SVHN/{name}_32x32.mat"] = file.getvalue()
    return files


def tiny_imagenet(each: int = 1) -> dict[str, bytes]:
    """Three classes of two pictures, and of validation `each` of a class."""
    from PIL import Image

    wnids = ["n03", "n01", "n02"]
    files = {"wnids.txt": "\n".join(wnids).encode(), "words.txt": b"n01\tone\nn02\ttwo\nn03\tthree"}
    for number, name in enumerate(
        [f"train/{w}/images/{w}_{i}.JPEG" for w in wnids for i in range(2)]
        + [f"val/images/val_{i}.JPEG" for i in range(3 * each)]
    ):
        out = io.BytesIO()
        Image.new("RGB" if number % 2 else "L", (64, 64), 9 * number).save(out, "JPEG")
        files[name] = out.getvalue()
    files["val/val_annotations.txt"] = "\n".join(
        f"val_{i}.JPEG\t{w}\t0\t0\t62\t62" for i, w in enumerate(each * wnids)
    ).encode()
    return {f"tiny-imagenet-200/{name}": data for name, data in files.items()}
