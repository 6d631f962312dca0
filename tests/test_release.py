"""What is published: metadata of both distributions, the address in one place, a release that stops where it must."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import calibcli
from calibcli.cli.app import main
from release import address, distributions, steps

ROOT = Path(__file__).parent.parent
METADATA = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(METADATA)["project"]
needs_the_full_metadata = pytest.mark.skipif(
    PROJECT["name"] != "calibcli", reason="this is the source distribution of calibcli-core"
)


@needs_the_full_metadata
def test_the_core_requires_all_but_torch() -> None:
    core = tomllib.loads(distributions.core_metadata(METADATA))["project"]
    assert core["name"] == "calibcli-core"
    assert {one for one in PROJECT["dependencies"] if one not in core["dependencies"]} == {"torch>=2.6"}
    assert "torch>=2.6" in core["optional-dependencies"]["test"]
    assert core["scripts"] == PROJECT["scripts"]


@needs_the_full_metadata
def test_the_full_distribution_is_the_core_of_the_same_version_and_torch() -> None:
    full = tomllib.loads(distributions.full_metadata(METADATA, "9.8.7"))
    assert full["project"]["name"] == "calibcli"
    assert full["project"]["dependencies"] == ["calibcli-core==9.8.7", "torch>=2.6"]
    assert full["project"]["version"] == "9.8.7"
    assert set(full["project"]["optional-dependencies"]) == set(PROJECT["optional-dependencies"])
    assert full["tool"]["setuptools"]["packages"] == []
    assert "scripts" not in full["project"]
    assert full["project"]["urls"] == PROJECT["urls"]


@needs_the_full_metadata
def test_the_scripts_run_as_make_starts_them(tmp_path: Path) -> None:
    """With their own folder first on the path of imports."""
    stage = f"import distributions, pathlib; distributions.stage_full(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", stage], cwd=ROOT / "release", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"pyproject.toml", "README.md", "LICENSE"}
    for script in ("distributions.py", "steps.py", "address.py"):
        text = (ROOT / "Makefile").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
        assert f"release/{script}" in text
        help_ = [sys.executable, f"release/{script}", *(["--help"] if script != "address.py" else [])]
        assert subprocess.run(help_, cwd=ROOT, capture_output=True, check=False).returncode == 0


@needs_the_full_metadata
def test_metadata_that_lost_a_line_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        distributions.core_metadata(METADATA.replace("test = [\n", "tests = [\n"))


def test_the_source_of_the_core_is_the_repository_without_what_it_ignores(tmp_path: Path) -> None:
    distributions.stage_core(tmp_path)
    staged = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {
        "Makefile",
        ".ci/run",
        "tests/test_release.py",
        "docs/index.md",
        "benchmarks/RESULTS.md",
        "README.md",
    } <= staged
    assert not [
        name for name in staged if name.startswith((".venv", ".git/", "out/", "dist/")) or "__pycache__" in name
    ]


def test_links_of_the_page_of_a_package_index_are_absolute() -> None:
    text = address.readme()
    links = re.findall(r"\]\(([^)\s]+)", text)
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    assert (
        f"![Reliability diagram of the sample model](https://raw.githubusercontent.com/{address.address()}/main/"
        in text
    )


def test_the_address_is_the_same_everywhere() -> None:
    """`python release/address.py` writes it."""
    owner = address.address().partition("/")[0]
    for path in address.places():
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"github\.com/([\w.-]+)/calib\b|uses: ([\w.-]+)/calib@", text))
        assert {one or other for one, other in named} <= {owner}, path
        if owner != "OWNER":
            assert "OWNER/calib" not in text, path


def test_versions_agree() -> None:
    assert distributions.version() == calibcli.__version__
    assert f"\nversion: {calibcli.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(calibcli.__version__)} \(", (ROOT / "CHANGELOG.md").read_text(), re.M)


@pytest.mark.parametrize(
    ("change", "version", "said"),
    [
        ("", "0.1", "is no version"),
        ("", "0.0.9", "is not above the newest release"),
        ("dirty", "0.1.0", "not committed"),
        ("branch", "0.1.0", "releases are made from main"),
        ("", "0.1.0", "the repository has no address yet"),
        ("address", "0.2.0", "CHANGELOG.md has no heading"),
    ],
)
def test_a_release_stops_at_the_first_thing_that_is_not_ready(
    change: str, version: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_text((ROOT / name).read_text().replace(address.address(), "OWNER/calib"))
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["commit", "-q", "-m", "x"],
        ["tag", "-a", "v0.0.10", "-m", "x"],
    ):
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    if change == "dirty":
        (tmp_path / "more").write_text("x")
    if change == "branch":
        subprocess.run(["git", "checkout", "-q", "-b", "mine"], cwd=tmp_path, check=True)
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    monkeypatch.setattr(steps, "address", lambda: "me/calib" if change == "address" else address.address(tmp_path))
    monkeypatch.setattr(steps, "run", lambda *command, folder=tmp_path: _run(command, folder))
    monkeypatch.setattr(sys, "argv", ["steps.py", version, "--check"])
    with pytest.raises(SystemExit, match=said):
        steps.main()


def _run(command: tuple[str, ...], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_messages_install_what_exists() -> None:
    """A fix line that is copied works: extras of a package that may not be published are named by what they bring."""
    for path in (ROOT / "calibcli").rglob("*.py"):
        assert not re.search(r"pip install '?calibcli", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({"calibcli": ["torch>=2.6"]}, False),
        ({"calibcli-core": []}, False),
        ({"calibcli-core": [], "calibcli": ["calibcli-core==0.1.0", "torch>=2.6"]}, False),
        ({"calibcli-core": [], "calibcli": ["torch>=2.6"]}, True),
    ],
)
def test_two_ways_of_installing_that_hold_the_same_files_are_told(
    installed: dict[str, list[str]], said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.metadata
    from types import SimpleNamespace

    def distribution(name: str) -> SimpleNamespace:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return SimpleNamespace(requires=installed[name])

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    for flag in ("--version", "-V"):
        assert main([flag]) == 0
        out, err = capsys.readouterr()
        assert out == f"calib {calibcli.__version__}\n"
        assert ("pip uninstall calibcli calibcli-core" in err) == said
