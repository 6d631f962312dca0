"""A machine without room, without streams, with signals: the right code, the right words, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli import files
from calibcli.errors import UsageError, WriteError

ROOT = Path(__file__).parent.parent
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
SAMPLE = ROOT / "sample_data"
TEST, VALIDATION, MODEL = (str(SAMPLE / name) for name in ("test.npz", "validation.npz", "model.pt"))


def calib(*argv: str, most: int | None = None, cwd: Path = ROOT, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own; `most` is the size in bytes that a file may have (`ulimit -f`)."""

    def limit() -> None:
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
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
    assert calib("scale", VALIDATION, "--save", str(folder / "t.safetensors"), "-q").returncode == 0
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


@pytest.mark.finding("4 ulimit -f")
@pytest.mark.parametrize("name", WRITERS)
def test_files_may_not_grow(name: str, work: Path, tmp_path: Path) -> None:
    done = calib(*WRITERS[name](work, tmp_path), most=100)
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stderr
    assert "(file too large)" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr
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


@pytest.mark.finding("4 disk full")
@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_is_full(name: str, work: Path, small: Callable[[int], Path]) -> None:
    out = small(16)
    (out / "filled").write_bytes(bytes(16 << 10))
    done = calib(*WRITERS[name](work, out))
    assert done.returncode == 2, done.stderr
    assert "(no space left on device)" in done.stderr
    assert "bug" not in done.stderr
    assert [p for p, size in ((p, len(b)) for p, b in everything(out).items()) if size] == ["filled"]


@pytest.mark.finding("4 disk full")
def test_a_disk_that_fills_during_a_run_keeps_the_state(work: Path, small: Callable[[int], Path]) -> None:
    """The state fits once, not twice: what was saved stays whole, is named, and is gone on from."""
    out = small(300)
    done = calib(*fit(work, out / "run", 3))
    assert done.returncode == 2, done.stderr
    assert "state.pt (no space left on device); what was there before is kept" in done.stderr
    assert f"the state is kept in {out / 'run'}: the same command with --resume goes on from there" in done.stderr
    moved = work / "moved"
    shutil.copytree(out / "run", moved)
    for argv in (fit(work, moved, 3, "--resume"), fit(work, work / "whole", 3)):
        assert calib(*argv).returncode == 0
    assert (moved / "model.safetensors").read_bytes() == (work / "whole" / "model.safetensors").read_bytes()


@pytest.mark.finding("4 disk full")
def test_a_file_that_finds_no_room_does_not_hide_the_result(tmp_path: Path) -> None:
    paths = [tmp_path / "r.json", tmp_path / "r.csv"]
    argv = ["metrics", TEST, "-w", "accuracy", "--json", *(a for p in paths for a in ("-o", str(p)))]
    done = calib(*argv, most=600)
    assert done.returncode == 2
    assert json.loads(done.stdout)["estimates"][0]["name"] == "accuracy"
    assert not paths[0].exists()
    assert paths[1].read_text().startswith("name,of,value")


@pytest.mark.finding("4 disk full")
@pytest.mark.parametrize("number", sorted(files.NO_ROOM))
def test_what_stood_there_stays(number: int, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("old")
    with pytest.raises(WriteError, match=r"cannot write .*f\.json \(.*\); what was there before is kept"):
        with files.atomic(path) as temporary:
            temporary.write_text("half")
            raise OSError(number, os.strerror(number))
    assert everything(tmp_path) == {"f.json": b"old"}
    with pytest.raises(OSError, match="unrelated"), files.atomic(path):
        raise OSError(errno.ECONNRESET, "unrelated")


@pytest.mark.finding("4 disk full")
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


@pytest.mark.finding("4 --save onto a folder")
@pytest.mark.parametrize("name", [n for n in WRITERS if "folder" not in n and "fit" not in n and "-o" not in n])
def test_a_folder_in_the_place_of_a_file(name: str, work: Path, tmp_path: Path) -> None:
    argv = WRITERS[name](work, tmp_path)
    Path(argv[argv.index("--save") + 1]).mkdir()
    done = calib(*argv)
    assert done.returncode == 2, done.stderr
    assert "(it is a folder)" in done.stderr
    assert done.stdout == ""  # before any work


def test_folders_are_refused_whoever_writes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"), files.atomic(tmp_path):
        pass


CASES = {
    0: ["check", TEST, "--max", "ece=0.5"],
    1: ["check", TEST, "--min", "accuracy=0.9999"],
    2: ["check", TEST, "--max", "eec=0.5"],
    4: ["metrics", "no-such-file.npz"],
    5: ["check", TEST],
}


@needs_full
@pytest.mark.finding("4 stderr gone")
@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full", ">&- 2>&-", ">/dev/full"])
@pytest.mark.parametrize("code", CASES)
def test_streams_that_are_gone(code: int, stream: str) -> None:
    """The code is the outcome's; but a result that stdout cannot take is a wrong request, as no one has it."""
    words = " ".join([sys.executable, "-m", "calibcli", *CASES[code]])
    done = subprocess.run(["bash", "-c", f"{words} {stream}"], cwd=ROOT, capture_output=True, text=True, check=False)
    undelivered = stream.startswith(">/dev/full") and code in (0, 1, 3, 5)
    assert done.returncode == (2 if undelivered else code), done.stderr
    assert "Traceback" not in done.stderr
    if undelivered and "2>" not in stream:
        assert "cannot write to stdout (no space left on device)" in done.stderr


@needs_full
@pytest.mark.finding("4 stderr gone")
@pytest.mark.parametrize("argv", ["--help", "--version", "metrics --help", ""])
def test_help_that_finds_no_room(argv: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m calibcli {argv} >/dev/full"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "cannot write to stdout (no space left on device)" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.finding("4 SIGHUP")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGHUP, 129, "the terminal is gone"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_signals_save_what_a_run_has(number: int, code: int, said: str, work: Path, tmp_path: Path) -> None:
    argv = fit(work, tmp_path / "run", 100_000)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [sys.executable, "-m", "calibcli", *argv],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # tests in the background
    )
    steps = tmp_path / "run" / "steps.jsonl"
    limit = time.monotonic() + 100
    while not (steps.exists() and len(steps.read_text().splitlines()) > 5):
        assert time.monotonic() < limit
        time.sleep(0.05)
    running.send_signal(number)
    _, err = running.communicate(timeout=100)
    assert running.returncode == code, err
    assert f"error: {said}" in err
    assert "the same command with --resume goes on from there" in err
    assert (tmp_path / "run" / "state.pt").exists()


@pytest.mark.finding("4 SIGHUP")
def test_curvature_tells_what_it_knows_when_hung_up(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from calibcli import curvature
    from calibcli.cli.app import main

    def hang_up(engine: Any, *_: Any) -> Any:
        signal.raise_signal(signal.SIGHUP)

    run = curvature._run
    monkeypatch.setattr(curvature, "_run", lambda engine, *rest: run(Interrupted(engine), *rest))

    class Interrupted:
        """An engine whose gradient norm comes with a signal, once."""

        def __init__(self, engine: Any) -> None:
            self.__dict__["engine"], self.__dict__["done"] = engine, False

        def __getattr__(self, name: str) -> Any:
            if not self.done:
                self.__dict__["done"] = True
                hang_up(self)
            return getattr(self.engine, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.engine, name, value)

    assert main(["curvature", MODEL, "-w", "grad_norm", "--subset", "16", "-q", "--json"]) == 129
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["interrupted"] == "HungUp"
    assert "interrupted: what was known by then is reported" in found["notes"]


IMPORTING = """
import os, signal, sys, threading
sys.argv = ["calib", "curvature", "model.pt"]
sys.path.insert(0, {root!r})
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{signal})
            for _ in range(1000): pass
sys.meta_path.insert(0, Slow())
signal.signal(signal.SIGINT, signal.default_int_handler)
from calibcli.__main__ import main
sys.exit(main())
"""


@pytest.mark.finding("4 Ctrl-C during imports")
@pytest.mark.parametrize("module", ["calibcli.cli.app", "typer", "rich.console", "torch", "torch.fx", "numpy"])
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signals_during_imports(module: str, name: str, code: int) -> None:
    script = IMPORTING.format(root=str(ROOT), module=module, signal=name)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 4:
        pytest.skip(f"{module} is not imported")
    assert done.returncode == code, done.stderr
    assert done.stderr in ("error: interrupted\n", "error: terminated\n")
    assert done.stdout == ""


@pytest.mark.finding("4 Python warnings")
def test_warnings_of_libraries_are_no_words_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "warned.py").write_text(
        "import warnings\n"
        "def model():\n"
        "    import torch\n"
        "    warnings.warn('old', FutureWarning)\n"
        "    warnings.warn('odd')\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    argv = ["fit", "warned:model", "--data", f"{SAMPLE}/digits.npz", "--epochs", "1", "--trust", "-q"]
    argv = [a for a in argv if a != "--trust"] + ["--arch-file", f"{tmp_path}/warned.py:model"]
    argv[1] = "custom"
    done = calib(*argv)
    assert "Warning" not in done.stderr, done.stderr
