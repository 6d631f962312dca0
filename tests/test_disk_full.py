"""A machine without room: the right code, the right words, nothing lost and nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.core import files
from calibcli.core.errors import UsageError, WriteError

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data"
TEST, VALIDATION, MODEL = (str(SAMPLE / name) for name in ("test.npz", "validation.npz", "model.pt"))


def calib(*argv: str, most: int | None = None, cwd: Path = ROOT, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own; `most` is the size in bytes that a file may have (`ulimit -f`)."""

    def limit() -> None:
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if most is not None:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode that is cut off would stay
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, "-m", "calibcli", *argv]
    return subprocess.run(command, env=environment, cwd=cwd, text=True, preexec_fn=limit, check=False, **options)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a calibrator, rows to train on, and a run of two epochs."""
    folder = tmp_path_factory.mktemp("work")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 64)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    assert main(["scale", VALIDATION, "--save", str(folder / "t.safetensors"), "-q"]) == 0
    return folder


def fit(work: Path, folder: Path, epochs: int = 2, *more: str) -> list[str]:
    return ["fit", "mlp:hidden=256", "--data", str(work / "rows.npz"), "--epochs", str(epochs), "--batch-size", "32",
            "--save", str(folder), "--save-every", "20", *more]  # fmt: skip


WRITERS: dict[str, Callable[[Path, Path], list[str]]] = {
    "metrics -o json": lambda work, out: ["metrics", TEST, "-o", str(out / "r.json")],
    "metrics -o csv": lambda work, out: ["metrics", TEST, "-o", str(out / "r.csv")],
    "metrics -o png": lambda work, out: ["metrics", TEST, "-o", str(out / "r.png")],
    "metrics -o folder": lambda work, out: ["metrics", TEST, "-o", f"{out}/r/"],
    "check -o": lambda work, out: ["check", TEST, "--max", "ece=0.5", "-o", str(out / "r.json")],
    "scale --save": lambda work, out: ["scale", VALIDATION, "--save", str(out / "r.safetensors")],
    "apply --save npz": lambda work, out: ["apply", str(work / "t.safetensors"), TEST, "--save", str(out / "r.npz")],
    "apply --save csv": lambda work, out: ["apply", str(work / "t.safetensors"), TEST, "--save", str(out / "r.csv")],
    "apply --save npy": lambda work, out: ["apply", str(work / "t.safetensors"), TEST, "--save", str(out / "r.npy")],
    "logits --save npz": lambda work, out: ["logits", MODEL, "--save", str(out / "r.npz")],
    "logits --save npy": lambda work, out: ["logits", MODEL, "--save", str(out / "r.npy")],
    "logits --save safetensors": lambda work, out: ["logits", MODEL, "--save", str(out / "r.safetensors")],
    "fit --save": lambda work, out: fit(work, out / "run"),
}


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def written(argv: list[str], most: int | None = None) -> int:
    """The exit code of a command in this process, whose files may have `most` bytes (`ulimit -f`)."""
    before, bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # what is cut off would stay
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if most is None else most, before[1]))
    try:
        return main([*argv, "-q"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = bytecode


@pytest.mark.slow
@pytest.mark.regression("4 ulimit -f")
@pytest.mark.parametrize("name", WRITERS)
def test_files_may_not_grow(name: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = written(WRITERS[name](work, tmp_path), 100)
    err = capsys.readouterr().err
    assert code == 2, err
    assert f"cannot write {tmp_path}" in err
    assert "(file too large)" in err
    left = everything(tmp_path)
    assert not [name for name in left if Path(name).name.startswith(".")]
    assert all(name.endswith(".jsonl") for name in left)  # the logs of a run: whole lines
    assert all(json.loads(line) for text in left.values() for line in text.decode().splitlines())


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of some KiB."""
    mounted: list[Path] = []

    def mount(kib: int) -> Path:
        folder = tmp_path / f"small{kib}"
        folder.mkdir()
        if os.getuid() or not shutil.which("mount"):
            pytest.skip("mounting needs root")
        command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting is not possible here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.regression("4 disk full")
@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_is_full(name: str, work: Path, small: Callable[[int], Path], capsys: Any) -> None:
    out = small(16)
    (out / "filled").write_bytes(bytes(16 << 10))
    code = written(WRITERS[name](work, out))
    err = capsys.readouterr().err
    assert code == 2, err
    assert f"cannot write {out}" in err
    assert "(no space left on device)" in err
    assert [p for p, size in ((p, len(b)) for p, b in everything(out).items()) if size] == ["filled"]


@pytest.mark.regression("4 disk full")
def test_a_disk_that_fills_during_a_run_keeps_the_state(work: Path, small: Callable[[int], Path], capsys: Any) -> None:
    """The state fits once, not twice: what was saved stays whole, is named, and is gone on from."""
    out = small(300)
    assert main(fit(work, out / "run", 3)) == 2
    err = capsys.readouterr().err
    assert "state.pt (no space left on device); what was there before is kept" in err
    assert f"the state is kept in {out / 'run'}: the same command with --resume goes on from there" in err
    moved = work / "moved"
    shutil.copytree(out / "run", moved)
    assert written(fit(work, moved, 3, "--resume")) == written(fit(work, work / "whole", 3)) == 0
    assert (moved / "model.safetensors").read_bytes() == (work / "whole" / "model.safetensors").read_bytes()


@pytest.mark.regression("4 disk full")
def test_a_file_that_finds_no_room_does_not_hide_the_result(tmp_path: Path) -> None:
    paths = [tmp_path / "r.json", tmp_path / "r.csv"]
    argv = ["metrics", TEST, "-m", "accuracy", "--json", *(a for p in paths for a in ("-o", str(p)))]
    done = calib(*argv, most=600)
    assert done.returncode == 2
    assert json.loads(done.stdout)["estimates"][0]["name"] == "accuracy"
    assert not paths[0].exists()
    assert paths[1].read_text().startswith("name,scope,value")


@pytest.mark.regression("4 disk full")
@pytest.mark.parametrize("number", sorted(files.NO_ROOM))
def test_what_stood_there_stays(number: int, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("old")

    def write() -> None:
        with files.atomic(path) as half:
            half.write_text("half")
            raise OSError(number, os.strerror(number))

    with pytest.raises(WriteError, match=r"f\.json \(.*\); what was there before is kept"):
        write()
    assert everything(tmp_path) == {"f.json": b"old"}
    with pytest.raises(OSError, match="unrelated"), files.atomic(path):
        raise OSError(errno.ECONNRESET, "unrelated")


@pytest.mark.regression("4 disk full")
def test_lines_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b')  # a process was killed while it wrote
    with files.Lines(path) as log:
        log.write("second")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
        try:
            with pytest.raises(WriteError, match=r"log\.jsonl \(file too large\)"):
                log.write("a third line")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.write("fourth")
    assert path.read_bytes() == b'{"a": 1}\nsecond\nfourth\n'


@pytest.mark.regression("4 --save onto a folder")
@pytest.mark.parametrize("name", [n for n in WRITERS if "--save" in n and "fit" not in n])
def test_a_folder_in_the_place_of_a_file(name: str, work: Path, tmp_path: Path, capsys: Any) -> None:
    argv = WRITERS[name](work, tmp_path)
    Path(argv[argv.index("--save") + 1]).mkdir()
    assert written(argv) == 2
    out, err = capsys.readouterr()
    assert "(it is a folder)" in err
    assert out == ""  # before any work


def test_folders_are_refused_whoever_writes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"), files.atomic(tmp_path):
        pass
