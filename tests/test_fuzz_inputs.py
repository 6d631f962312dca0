"""700 damaged and hostile files, nightly 50 times as many: no traceback, no unbounded memory or time, nothing run."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edits import SEEDS
from fuzz_inputs import _npy, inspect

from calibcli.scores.files import source

FIRED = Path("fired")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
PROGRAM = Path(__file__).with_name("fuzz_inputs.py")


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(FIRED),)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source, "memory_limit", lambda: 1 << 22)
    monkeypatch.setattr(source, "_granted", 0)
    return tmp_path


def alone(kind: str, examples: int) -> dict[str, Any]:
    """Read damaged files in a process of its own: the largest memory of this one is that of all tests before."""
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), kind, str(examples)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stderr == ""
    found: dict[str, Any] = json.loads(ran.stdout)
    assert not FIRED.exists()
    return found


def program(code: str) -> int:
    """The number that a program prints, with the package on its path."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return int(ran.stdout)


@pytest.mark.slow
@pytest.mark.regression("5 ru_maxrss")
@pytest.mark.regression("4 Python warnings on stderr")
@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        *(("files", 500), ("evals", 300), ("arrays", 200), ("results", 100), ("torch", 80)),
        *(("folders", 40), ("downloads", 50)),
    ],
)
def test_damaged_files(kind: str, examples: int, here: Path) -> None:
    if kind in ("torch", "downloads"):
        pytest.importorskip("torch")
    found = alone(kind, examples * len(SEEDS) // 200)
    assert found["said"] == []
    assert 0.01 < found["read"] < 0.9  # the damage is neither fatal nor harmless throughout
    assert found["grown"] < 60_000
    assert found["slowest"] < 5


@pytest.mark.extra
@pytest.mark.slow
def test_damaged_files_of_other_packages(here: Path) -> None:
    """Arrow, parquet and Zstandard, whose readers are not ours."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("zstandard")
    found = alone("packages", 400)
    assert found["said"] == []
    assert 0.01 < found["read"] < 0.9
    assert found["grown"] < 60_000
    assert found["slowest"] < 5


@pytest.mark.slow
@pytest.mark.regression("5 ru_maxrss")
def test_memory_is_seen(here: Path) -> None:
    """The measurement itself: a file that takes 300 MB shows."""
    code = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import fuzz_inputs, numpy as np;"
        "fuzz_inputs.inspecting.inspect_outputs = lambda *a: np.ones(300 << 20, np.uint8);"
        "print(fuzz_inputs.run('arrays', 2).grown)"
    )
    assert program(code) > 250_000


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


@pytest.mark.slow
@pytest.mark.parametrize("declared", [None, 1000, 128 + (64 << 18), 2**32 - 2])
def test_zip_bombs(here: Path, declared: int | None) -> None:
    Path("a.npz").write_bytes(bomb(declared))
    code = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import fuzz_inputs;"
        "fuzz_inputs.memory.MOST_DECODED = 1 << 23;"
        "before = fuzz_inputs.peak(); assert not fuzz_inputs.inspect('a.npz');"
        "print(fuzz_inputs.peak() - before)"
    )
    assert program(code) < 30_000


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
            assert not inspect(name)
            assert not FIRED.exists()
