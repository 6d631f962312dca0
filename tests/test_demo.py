"""`calib demo` from a wheel: built from a copy of the clone, installed into an empty folder, run away from both."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from calibcli.cli import demo
from calibcli.cli.app import main
from calibcli.cli.demo import SAMPLES

ROOT = Path(__file__).parent.parent
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def run(*command: str, cwd: Path, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env={**clean, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path_factory.mktemp("source")
    for name in ("calibcli", "release", "sample_data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    run(
        *("-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"),
        *("-w", "dist"),
        cwd=source,
    )
    (made,) = (source / "dist").glob("calibcli-*.whl")
    return made


@pytest.mark.slow
def test_the_sample_data_travel_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {
            name.removeprefix("calibcli/sample_data/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("calibcli/sample_data/")
        }
        about = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert b"calib = calibcli.api.pytest_plugin" in archive.read(about)
        assert not any(name.split("/")[0] in ("sample_data", "tests") for name in archive.namelist())
    assert set(held) == {*SAMPLES, "README.md", "square.npz"}  # that of studies
    for name, data in held.items():
        assert data == (ROOT / "sample_data" / name).read_bytes()
    assert sum(map(len, held.values())) < 1_000_000
    assert not (ROOT / "calibcli" / "sample_data").exists()  # one source


@pytest.mark.docs
def test_the_tour_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    site, away = tmp_path / "site", tmp_path / "a folder away"
    away.mkdir()
    install = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(*install, "--target", str(site), str(wheel), cwd=away)
    env = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(tmp_path)}
    place = run("-c", "import calibcli; print(calibcli.__file__)", cwd=away, **env).strip()
    assert place == str(site / "calibcli" / "__init__.py")
    said = run("-m", "calibcli", "demo", "--save", "my tour", cwd=away, **env)
    shown = [line.split()[2] for line in said.splitlines() if line.startswith("$ calib ")]
    torch = importlib.util.find_spec("torch") is not None
    assert shown == ["metrics", "scale", "scale", "apply", "check", *(["curvature", "fit"] if torch else [])]
    assert str(ROOT) not in said
    made = {path.name for path in (away / "my tour").iterdir()}
    assert {"metrics.json", "reliability.png", "temperature.safetensors", "calibrated.npz", "sample_data"} <= made
    assert [path.name for path in away.iterdir()] == ["my tour"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert main(["demo", "--save", str(tmp_path)]) == 2
    assert "exists and is not the folder of a demo" in capsys.readouterr().err
    assert main(["demo", "--save", str(tmp_path / "mine")]) == 2
    assert main(["demo", "--save", str(tmp_path / "mine" / "below")]) == 2
    assert "cannot fill" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "x"


@pytest.mark.regression
def test_the_demo_writes_over_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_step", lambda arguments: 0)
    mine, place, folder = tmp_path / "mine.npz", tmp_path / "x", tmp_path / "x" / "sample_data"

    def refused(path: Path, why: str = "was not written by a demo") -> None:
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        assert main(["demo", "--save", str(place)]) == 2
        said = capsys.readouterr().err
        assert str(path) in said
        assert why in said
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before

    mine.write_bytes(b"mine")
    folder.mkdir(parents=True)
    (folder / "test.npz").write_bytes(b"mine")
    refused(folder / "test.npz")
    (folder / "test.npz").unlink()
    for link in (folder / "test.npz", folder / "model.pt"):
        link.symlink_to(mine)  # also to nowhere
        refused(link)
        link.unlink()
        link.symlink_to(tmp_path / "nowhere")
        refused(link)
        link.unlink()
    (place / "fit").mkdir()
    refused(place, "is not the folder of a demo")
    (place / "fit").rmdir()
    folder.rmdir()
    (tmp_path / "other").mkdir()
    for link in (folder, place / "fit", place / "ridge.png"):
        link.symlink_to(tmp_path / "other")
        refused(link)
        link.unlink()
    os.mkfifo(place / "sample_data")
    assert main(["demo", "--save", str(place)]) == 2
    (place / "sample_data").unlink()


def test_the_demo_can_be_run_again_and_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_step", lambda arguments: 0)
    assert main(["demo", "--save", str(tmp_path / "x")]) == 0
    (tmp_path / "x" / "focal.safetensors").write_bytes(b"of an earlier demo")
    (tmp_path / "x" / "sample_data" / "more.csv").write_bytes(b"mine")
    assert main(["demo", "--save", str(tmp_path / "x")]) == 0
    (tmp_path / "y" / "sample_data").mkdir(parents=True)
    shutil.copy(ROOT / "sample_data" / "test.npz", tmp_path / "y" / "sample_data")  # it was stopped there
    assert main(["demo", "--save", str(tmp_path / "y")]) == 0
    assert {path.name for path in (tmp_path / "y" / "sample_data").iterdir()} == {*SAMPLES}
