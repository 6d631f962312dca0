"""2,000 damaged and hostile files: refused or read, but no traceback, no unbounded memory, nothing executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibcli.cli.app import main
from calibcli.errors import CalibError, Exit
from calibcli.inputs import npz, recognise

RNG = np.random.default_rng(5)
Z = RNG.normal(size=(40, 5)).astype(np.float32)
Y = RNG.integers(0, 5, 40)
FIRED = Path("fired")
SETTINGS: dict[str, Any] = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(FIRED),)


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _packed() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, probs=np.eye(5)[Y], labels=Y)
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, Z)
    return file.getvalue()


def _safetensors() -> bytes:
    from safetensors.numpy import save

    return save({"logits": Z, "labels": Y}, metadata={"classes": json.dumps(list("abcde"))})


def _csv() -> bytes:
    head = ",".join([f"logit_{i}" for i in range(5)] + ["label", "site"])
    rows = [",".join([*map(str, z), str(y), "a"]) for z, y in zip(Z.tolist(), Y)]
    return "\n".join([head, *rows]).encode()


def _jsonl() -> bytes:
    return "\n".join(json.dumps({"logits": z, "label": int(y)}) for z, y in zip(Z.tolist(), Y)).encode()


def _samples() -> bytes:
    rows = [
        {"doc_id": i, "filtered_resps": [[v, False] for v in z[: 3 + i % 3]], "target": i % 3, "arguments": []}
        for i, z in enumerate(Z.tolist())
    ]
    return "\n".join(map(json.dumps, rows)).encode()


SEEDS: dict[str, Callable[[], bytes]] = {
    "npz": lambda: _npz(logits=Z, labels=Y),
    "packed.npz": _packed,
    "npy": _npy,
    "safetensors": _safetensors,
    "csv": _csv,
    "jsonl": _jsonl,
    "samples.jsonl": _samples,
}
FILES = {name: make() for name, make in SEEDS.items()}
SWAPS = [
    (b"'<f4'", b"'|O' "), (b"'<f4'", b"'<f8'"), (b"'<f4'", b"'<U9'"), (b"'<f4'", b"'|V4'"), (b"'<f4'", b"'<c8'"),
    (b"'<f4'", b"[('a','<f4')]"), (b"'<i8'", b"'<M8'"), (b"'<i8'", b"'<f8'"), (b"'<i8'", b"'|b1'"),
    (b"(40, 5)", b"(5, 40)"), (b"(40, 5)", b"(-1, 5)"), (b"(40, 5)", b"(40,) "), (b"(40, 5)", b"(9**9,)"),
    (b"(40, 5)", b"(2, 100)"), (b"(40, 5)", b"(0, 5) "), (b"(40, 5)", b"(99999999999, 5)"), (b"(40,)", b"()   "),
    (b"False", b"True "), (b"logits", b"labels"), (b"labels", b"logits"), (b"logits", b"images"),
    (b"F32", b"F64"), (b"F32", b"BF16"), (b"[40,5]", b"[5,40]"), (b"[40,5]", b"[-4,5]"), (b"[40,5]", b'["40"]'),
    (b"logit_3", b"logit_9"), (b",", b";"), (b"\n", b"\r"), (b"0.", b"nan"), (b"1", b"1e999"), (b"-", b"--"),
    (b"label", b"logit_0"), (b"[", b"{"), (b"]", b""), (b"null", b"NaN"), (b"false", b"Infinity"), (b"0", b"\x00"),
    (b"\"", b"'"), (b"PK\x01\x02", b"PK\x03\x04"), (b"1", b"[" * 5000), (b"1", b"9" * 5000),
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, data: bytes = b"") -> tuple[str, bytes]:
    """A valid file with some of its bytes lost, changed, repeated or replaced by what means something else."""
    name = draw(st.sampled_from(sorted(FILES)))
    data = data or FILES[name]
    for _ in range(draw(st.integers(1, 3))):
        if not data:
            break
        how = draw(st.sampled_from(["cut", "flip", "drop", "repeat", "noise", "swap", "swap", "number"]))
        at = draw(st.integers(0, len(data) - 1))
        if how == "cut":
            data = data[:at]
        elif how == "flip":
            data = data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        elif how == "drop":
            data = data[:at] + data[at + draw(st.integers(1, 64)) :]
        elif how == "repeat":
            data = data[:at] + data[max(0, at - draw(st.integers(1, 300))) :]
        elif how == "noise":
            data = data[:at] + draw(st.binary(min_size=1, max_size=16)) + data[at:]
        elif how == "swap":
            data = data.replace(*draw(st.sampled_from(SWAPS)), draw(st.sampled_from([1, -1])))
        else:  # a length, an offset or a count that is far too large
            size = draw(st.sampled_from(["<H", "<I", "<Q"]))
            value = draw(st.sampled_from([0, 1, 2**15, 2**16 - 1]))
            data = data[:at] + struct.pack(size, value << (8 * (struct.calcsize(size) - 2))) + data[at + 2 :]
    return name, data


SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (6,), (6, 1), (1, 6), (6, 3), (3, 6), (6, 0), (6, 3, 2), (6, 11)]
DTYPES = ["f2", "f4", "f8", ">f4", "i1", "i8", "u1", "u8", "?", "U3", "S3", "c8", "M8[s]", "f4,i4", "g"]
VALUES = st.sampled_from([0.0, 1.0, -1.0, 0.5, np.nan, np.inf, -np.inf, 1e-300, 1e300, 65504.0, -100.0, 2.0**53])


@st.composite
def odd_arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Arrays of any shape, dtype and name."""
    arrays = {}
    names = ["logits", "probs", "labels", "y", "predictions", "log_probs", "ids", "classes", "weights", "x.weight"]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        shape = draw(
            st.sampled_from([(), (0,), (1,), (6,), (6, 1), (1, 6), (6, 3), (3, 6), (6, 0), (6, 3, 2), (6, 11)])
        )
        dtype = draw(st.sampled_from(DTYPES))
        values = draw(st.lists(VALUES, min_size=1, max_size=18))
        with np.errstate(all="ignore"):
            flat = np.resize(np.array(values), shape)
            try:
                arrays[name] = flat.astype(dtype)
            except (TypeError, ValueError):
                arrays[name] = flat
    return arrays


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(npz, "memory_limit", lambda: 1 << 22)
    return tmp_path


def read(path: str) -> bool:
    """Whether the file was read; anything but a refusal is an error of the test."""
    refusal = None
    try:
        with np.errstate(all="ignore"):
            recognise.inspect([path], {})
    except CalibError as error:
        refusal = error
    assert not FIRED.exists()
    assert refusal is None or (refusal.problem and refusal.fix and len(str(refusal)) < 1000)
    return refusal is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_damaged_files(here: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = []

    @settings(max_examples=1400, **SETTINGS)
    @given(damaged())
    def run(case: tuple[str, bytes]) -> None:
        name, data = case
        path = f"a.{name}"
        Path(path).write_bytes(data)
        outcomes.append(read(path))

    run()
    assert 0.02 < np.mean(outcomes) < 0.9  # the damage is neither fatal nor harmless throughout
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_odd_arrays(here: Path) -> None:
    @settings(max_examples=500, **SETTINGS)
    @given(odd_arrays())
    def run(arrays: dict[str, Any]) -> None:
        Path("a.npz").write_bytes(_npz(**arrays))
        read("a.npz")

    run()


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_through_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @settings(max_examples=100, **SETTINGS)
    @given(damaged())
    def run(case: tuple[str, bytes]) -> None:
        name, data = case
        Path(f"a.{name}").write_bytes(data)
        code = main(["inspect", f"a.{name}", "--json"])
        out, err = capsys.readouterr()
        assert code in (Exit.OK, Exit.REFUSED), err
        assert (out == "") == (code == Exit.REFUSED)

    run()


def bomb(declared: int | None) -> bytes:
    """A few kB that decompress to 64 MB; the directory may declare another size."""
    file = io.BytesIO()
    body = io.BytesIO()
    np.lib.format.write_array_header_1_0(body, {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 16)})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", body.getvalue() + bytes(64 << 20))
        archive.writestr("labels.npy", _npy())
    data = file.getvalue()
    if declared is not None:
        true = struct.pack("<I", len(body.getvalue()) + (64 << 20))
        data = data.replace(true, struct.pack("<I", declared))
    return data


@pytest.mark.parametrize("declared", [None, 1000, 128 + (64 << 18), 2**32 - 2])
def test_zip_bombs(here: Path, declared: int | None) -> None:
    Path("a.npz").write_bytes(bomb(declared))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not read("a.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000


def test_pickles_of_every_kind(here: Path) -> None:
    payload = pickle.dumps(Bomb())
    body = io.BytesIO()
    np.lib.format.write_array_header_1_0(body, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("logits.npy", body.getvalue() + payload)
        archive.writestr("archive/data.pkl", payload)
    for name in ("a.npz", "a.npy", "a.csv", "a.jsonl", "a.safetensors", "a.bin"):
        for data in (payload, body.getvalue() + payload, file.getvalue()):
            Path(name).write_bytes(data)
            assert not read(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_pytorch_files(here: Path, legacy: bool) -> None:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    tree = {"logits": torch.from_numpy(Z), "labels": torch.from_numpy(Y)}
    torch.save(tree, file, _use_new_zipfile_serialization=not legacy)
    whole = file.getvalue()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @settings(max_examples=150, **SETTINGS)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        _, damage = data.draw(damaged(whole))
        Path("a.pt").write_bytes(damage)
        read("a.pt")

    run()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
