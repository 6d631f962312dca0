"""Containers of recorded outputs: what a file is, whether it is whole, and how much work it asks for."""

from __future__ import annotations

import gc
import io
import json
import pickle
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.networks import checkpoint, dataset
from calibcli.scores import from_arrays, recorded_outputs
from calibcli.scores.files import pickles
from calibcli.scores.files import source as source_module
from calibcli.scores.files.pickles import is_pickle
from calibcli.scores.files.source import Source

RNG = np.random.default_rng(3)
Z = RNG.normal(size=(300, 4)).astype(np.float32)
Y = RNG.integers(0, 4, 300)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: Any, *arguments: str) -> str:
    assert main([*arguments, "-q"]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return str(err)


def tensors(header: dict[str, Any], length: int = 0, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    text = text.ljust(length or len(text))
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.regression("1.3")
@pytest.mark.parametrize("name", ["a.safetensors", "a.bin", "a"])
@pytest.mark.parametrize("length", [0x180, 0x280, 0x380, 0x480, 0x580, 0x8080, 0x28080])
def test_safetensors_whose_header_length_looks_like_a_pickle(name: str, length: int) -> None:
    about = {
        "logits": {"dtype": "F32", "shape": [300, 4], "data_offsets": [0, Z.nbytes]},
        "labels": {"dtype": "I64", "shape": [300], "data_offsets": [Z.nbytes, Z.nbytes + Y.nbytes]},
    }
    Path(name).write_bytes(tensors(about, length, Z.tobytes() + Y.tobytes()))
    found = recorded_outputs.read(name)
    np.testing.assert_array_equal(found.logits, Z)
    assert found.record.format == "safetensors"


@pytest.mark.regression("1.3")
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_still_told(protocol: int) -> None:
    for value in ({"logits": Z.tolist()}, [1], "x" * 600):
        data = pickle.dumps(value, protocol)
        assert is_pickle(data[:512])
        for name in ("a.safetensors", "a.npz", "a.bin", "a.csv"):
            Path(name).write_bytes(data)
            with pytest.raises(InputError, match="pickle"):
                recorded_outputs.read(name)
    assert not is_pickle(b"\x80\x01\x00\x00")
    assert not is_pickle(b"\x80\x02\xff\x00")


@pytest.mark.regression("4 tensor with 200 dimensions")
@pytest.mark.parametrize("shape", [[1] * 200, [1] * 33, [2**60, 0], [0, 2**70]])
def test_shapes_that_no_array_has(shape: list[int], capsys: Any) -> None:
    size = 4 * int(np.prod([float(s) for s in shape]))
    about = {"logits": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
    Path("a.safetensors").write_bytes(tensors(about, 0, bytes(size)))
    body = io.BytesIO()
    np.lib.format.write_array_header_2_0(body, {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)})
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("logits.npy", body.getvalue() + bytes(size))
    for name in ("a.safetensors", "a.npz"):
        assert "dimension" in refused(capsys, "inspect", name)


@pytest.mark.regression("4 tensor with 200 dimensions")
def test_torch_tensors_with_200_dimensions(capsys: Any) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"logits": torch.zeros([1] * 200)}, "a.pt")
    assert "200 dimensions" in refused(capsys, "inspect", "a.pt")


def flipped(data: bytes, inside: bytes, at: int = 104) -> bytes:
    start = data.index(inside[:64]) + at
    return data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :]


@pytest.mark.regression("4 flipped byte")
@pytest.mark.parametrize("where", ["logits", "labels", "unused"])
def test_a_flipped_byte_in_a_stored_member_is_found(where: str, capsys: Any) -> None:
    arrays = {"logits": Z, "labels": Y, "unused": np.arange(1000.0) + 3}
    np.savez("a.npz", **arrays)
    Path("b.npz").write_bytes(flipped(Path("a.npz").read_bytes(), arrays[where].tobytes()))
    assert main(["metrics", "a.npz", "-m", "accuracy", "-q"]) == 0
    capsys.readouterr()
    for command in (["metrics", "b.npz"], ["inspect", "b.npz"], ["check", "b.npz", "--max", "ece=0.9"]):
        error = refused(capsys, *command)
        assert f"'{where}' in b.npz" in error
        assert "damaged" in error or "CRC" in error
    with pytest.raises(InputError, match=r"damaged|CRC"):
        dataset.load("b.npz", inputs="logits")


@pytest.mark.regression("4 flipped byte")
@pytest.mark.parametrize("size", [10, 300_000])
def test_checksums_are_compared_in_pieces_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez("a.npz", **{f"x{i}": np.arange(i * size % 50_000, dtype=np.float32) for i in range(9)})
    whole = Source("a.npz")
    from calibcli.scores.files.formats.numpy import read

    read(whole)
    assert len(whole.stored) == 9
    for copy in (1 << 20, 1000, 77):
        monkeypatch.setattr("calibcli.scores.files.source.COPY", copy)
        source = Source("a.npz")
        read(source)
        assert source.sha256() == whole.sha256()


def test_checksums_of_many_labels_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    p = np.random.default_rng(0).uniform(size=(300, 12))
    np.savez("a.npz", probs=p, labels=(p > 0.5).astype(int))
    sizes: list[int] = []
    monkeypatch.setattr(
        source_module, "zlib", SimpleNamespace(crc32=lambda b, c: sizes.append(len(b)) or zlib.crc32(b, c))
    )
    assert len(from_arrays.read("a.npz", hashed=False)) == 12
    assert 0 < sum(sizes) < 2 * Path("a.npz").stat().st_size


@pytest.mark.regression("4 flipped byte")
def test_a_flipped_byte_in_a_compressed_member_is_found(capsys: Any) -> None:
    np.savez_compressed("a.npz", logits=Z, labels=Y)
    with zipfile.ZipFile("a.npz") as archive:
        crc = struct.pack("<I", archive.getinfo("logits.npy").CRC)
    data = Path("a.npz").read_bytes()
    Path("a.npz").write_bytes(data.replace(crc, struct.pack("<I", 12345)))
    assert "'logits' in a.npz cannot be" in refused(capsys, "metrics", "a.npz")


@pytest.mark.regression("4 flipped byte")
def test_a_flipped_byte_in_a_torch_file_is_found(capsys: Any) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"logits": torch.from_numpy(Z), "labels": torch.from_numpy(Y)}, "a.pt")
    Path("a.pt").write_bytes(flipped(Path("a.pt").read_bytes(), Z.tobytes()))
    assert "is damaged" in refused(capsys, "metrics", "a.pt")
    weight = torch.arange(400.0).reshape(4, 100)
    torch.save({"linear.weight": weight, "linear.bias": torch.zeros(4)}, "m.pt")
    Path("m.pt").write_bytes(flipped(Path("m.pt").read_bytes(), weight.numpy().tobytes()))
    with pytest.raises(InputError, match="is damaged"):
        checkpoint.load("m.pt", arch="mlp:inputs=100,hidden=,classes=4")


@pytest.mark.regression("4 two members of one name")
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name(capsys: Any) -> None:
    first, second = (io.BytesIO() for _ in range(2))
    np.save(first, Z)
    np.save(second, -Z)
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("logits.npy", first.getvalue())
        archive.writestr("logits.npy", second.getvalue())
    assert "2 members named 'logits'" in refused(capsys, "inspect", "a.npz")
    tensor = '"logits":{"dtype":"F32","shape":[1,2],"data_offsets":[%d,%d]}'
    text = ("{" + tensor % (0, 8) + "," + tensor % (8, 16) + "}").encode()
    Path("a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    assert "has two 'logits'" in refused(capsys, "inspect", "a.safetensors")
    Path("a.jsonl").write_text('{"logits": [1, 2], "label": 0, "label": 1}\n')
    assert "two 'label'" in refused(capsys, "inspect", "a.jsonl")
    long = "x" * 200
    np.savez("long.npz", **{f"{long}1": Z, f"{long}2": Z, "logits": Z, "labels": Y})
    assert "begin alike" in refused(capsys, "metrics", "long.npz")


def nested(depth: int, kind: type) -> Any:
    found: Any = kind(["a", "a"])
    for _ in range(depth):
        found = kind([found, found])
    return found


def torch_zip(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


def wide() -> bytes:
    """117 kB that stand for 10^9 entries: a dictionary in a dictionary, each many times."""
    inner = {str(i): 0 for i in range(1000)}
    for _ in range(2):
        inner = {str(i): inner for i in range(1000)}  # type: ignore[misc]
    return pickle.dumps(inner, 2)


BOMBS = {
    "tuples": pickle.dumps([nested(60, tuple)], 2),
    "lists": pickle.dumps({"a": nested(60, list)}, 2),
    "dictionaries": wide(),
    "opcodes": b"\x80\x02" + b"N0" * 200_000 + b"N.",
    "keys": b"\x80\x02}K\x01K\x02\x86"
    + b"q\x00h\x00\x86" * 60
    + b"Ns.",  # hashed as they are read: {((a,a),(a,a)): None}
}


@pytest.mark.regression("4 pickle bomb")
@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.one_in(7)
def test_pickle_bombs_take_no_time(kind: str, legacy: bool, capsys: Any) -> None:
    pytest.importorskip("torch")
    data = BOMBS[kind] if legacy else torch_zip(BOMBS[kind])
    np.savez("d.npz", x=Z, y=Y)
    for name in ("a.pt", "a.ckpt"):
        Path(name).write_bytes(data)
    before = time.process_time()
    refused(capsys, "inspect", "a.pt")
    refused(capsys, "logits", "a.ckpt", "--arch", "mlp:inputs=4", "--data", "d.npz", "--save", "o.npz")
    with pytest.raises(InputError):
        dataset.load("a.pt")
    assert time.process_time() - before < 20


@pytest.mark.slow
@pytest.mark.regression("4 pickle bomb")
def test_what_a_pickle_would_hold_is_added_up() -> None:
    def names(value: Any, protocol: int = 2) -> set[str]:
        return pickles.names(io.BytesIO(pickle.dumps(value, protocol)), "it")

    shared = ["x"] * 3
    assert names([shared, shared, (shared, {"a": shared}), {1, 2}, b"x" * 300, 2**70, 1.5, None, True]) <= {
        "_codecs.encode", "__builtin__.set"
    }  # fmt: skip
    endless: list[Any] = []
    endless += [endless, endless]
    for protocol in (2, 3, 4, 5):
        names(endless, protocol)
        names(nested(20, tuple), protocol)
        names([str(i) for i in range(50_000)], protocol)
        with pytest.raises(InputError, match="too many objects"):
            names(nested(30, tuple), protocol)
        with pytest.raises(InputError, match="too many objects"):
            names({"a": nested(30, list)}, protocol)
    names(nested(21, list))  # 8,388,607 values
    with pytest.raises(InputError, match="too many objects"):
        names(nested(22, list))  # 16,777,215: more than ten million
    assert names(Path, 2) == {"pathlib.Path"}
    assert not pickles.only_tensors({"torch.FloatStorage", "posix.system"})


@pytest.fixture
def no_finalizers() -> Iterator[None]:
    """A finalizer of an earlier test, run at the bottom of a parser's recursion, would fail the test that reads."""
    gc.disable()
    yield
    gc.enable()


NESTED = pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, '{"logits": ' + "[" * 5000])


@pytest.mark.regression("4 nested brackets")
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.npz", "a.safetensors", "a.toml", "a.pt", "a"])
@NESTED
@pytest.mark.usefixtures("no_finalizers")
def test_nested_brackets(name: str, text: str, capsys: Any) -> None:
    Path(name).write_text(text)
    refused(capsys, "metrics", name)
    np.savez("d.npz", x=Z, y=Y)
    refused(capsys, "logits", name, "--arch", "mlp:inputs=4", "--data", "d.npz", "--save", "o.npz")


@pytest.mark.regression("4 nested brackets")
@NESTED
@pytest.mark.usefixtures("no_finalizers")
def test_nested_brackets_in_options(text: str, capsys: Any) -> None:
    np.savez("s.npz", logits=Z, labels=Y)
    Path("calib.toml").write_text("a = " + text)
    assert main(["check", "s.npz"]) == Exit.USAGE
    Path("names").write_text(text)
    assert main(["metrics", "s.npz", "--classes", "names"]) == Exit.REFUSED
    capsys.readouterr()


@pytest.mark.regression("4 nested brackets")
def test_nested_brackets_in_a_header(capsys: Any) -> None:
    Path("a.safetensors").write_bytes(struct.pack("<Q", 10_001) + b"{" + b"[" * 10_000)
    assert "not JSON" in refused(capsys, "inspect", "a.safetensors")
    model = Path("model")
    model.mkdir()
    (model / "model.safetensors.index.json").write_text('{"weight_map": ' + "[" * 100_000)
    with pytest.raises(InputError, match="not an index"):
        checkpoint.load(model)
    from calibcli.networks.checkpoint.factory import _option

    assert _option("a=" + "[" * 5000, "x:y")[0] == "a"
