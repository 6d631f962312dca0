"""Build what is published, in dist/: `make dist`.

    calibcli-core   the code, without PyTorch: a wheel, and a source distribution that is the whole repository
    calibcli        no code: it requires calibcli-core of the same version, and PyTorch

Both can be installed together, in either order, as no file belongs to both. The repository itself builds a `calibcli`
that holds the code and requires PyTorch (`pip install .`); that one is a third way, never beside these two, and
`calib --version` says so where it finds them together.

    python release/distributions.py                   both, into dist/, checked
    python release/distributions.py --stage FOLDER    the source of calibcli-core alone, which pip installs from there

The first needs the packages of `release/requirements.txt`, the second Python alone.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EPOCH = 315_532_800  # 1980-01-01, the first time that a zip file can hold: every build of a commit has the same bytes
LEFT_OUT = (
    ".git",
    "*.pyc",
    "PKG-INFO",
    "setup.cfg",
)  # besides what .gitignore names; the last two are of an unpacked sdist


def repository(root: Path = ROOT) -> Iterator[Path]:
    """Yield the files of the repository, relative to its root: all but those that .gitignore names."""
    ignored = [line.strip().strip("/") for line in (root / ".gitignore").read_text().splitlines() if line.strip()]
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        kept = [name for name in folders if not _matches(name, [*LEFT_OUT, *ignored])]
        folders[:] = sorted(name for name in kept if not (Path(folder) / name).is_symlink())
        yield from (here / name for name in sorted(files) if not _matches(name, [*LEFT_OUT, *ignored]))


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def core_metadata(text: str) -> str:
    """Return pyproject.toml of calibcli-core: another name, and PyTorch required by its tests alone.

    Raises:
        ValueError: pyproject.toml does not have the lines that this changes.
    """
    torch = next(one for one in tomllib.loads(text)["project"]["dependencies"] if one.startswith("torch"))
    for line, becomes in (
        ('name = "calibcli"\n', 'name = "calibcli-core"\n'),
        (f'    "{torch}",\n', ""),
        ("test = [\n", f'test = [\n    "{torch}",\n'),
    ):
        if text.count(line) != 1:
            raise ValueError(f"pyproject.toml has {line!r} {text.count(line)} times, not once")
        text = text.replace(line, becomes)
    return text


def full_metadata(text: str, version: str) -> str:
    """Return pyproject.toml of calibcli: everything that describes it, no code, and what it requires."""
    project = tomllib.loads(text)["project"]
    torch = next(one for one in project["dependencies"] if one.startswith("torch"))
    head = text.partition("dependencies = [")[0].replace(
        'dynamic = ["version", "readme"]', f'version = "{version}"\nreadme = "README.md"'
    )
    extras = "".join(f'{name} = ["calibcli-core[{name}]=={version}"]\n' for name in project["optional-dependencies"])
    described = re.search(r"^classifiers = \[.*?^\]\n", text, re.M | re.S)
    addresses = re.search(r"^\[project\.urls\]\n.*?\n\n", text, re.M | re.S)
    assert described is not None
    assert addresses is not None
    return (
        f'{head}dependencies = ["calibcli-core=={version}", "{torch}"]\n{described[0]}\n{addresses[0]}'
        f"[project.optional-dependencies]\n{extras}\n[tool.setuptools]\npackages = []\npy-modules = []\n"
    )


def version(root: Path = ROOT) -> str:
    found = re.search(r'^__version__ = "(.+)"$', (root / "calibcli" / "__init__.py").read_text(), re.M)
    assert found is not None
    return found[1]


def stage_core(folder: Path, root: Path = ROOT) -> None:
    """Write the source of calibcli-core into an empty folder."""
    for name in repository(root):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, folder / name)
    metadata = folder / "pyproject.toml"
    if 'name = "calibcli-core"' not in metadata.read_text():  # as it is in a source distribution
        metadata.write_text(core_metadata(metadata.read_text()))


def stage_full(folder: Path, root: Path = ROOT) -> None:
    """Write the source of calibcli, which has no code, into an empty folder."""
    (folder / "pyproject.toml").write_text(full_metadata((root / "pyproject.toml").read_text(), version(root)))
    sys.path.insert(0, str(root))
    from release.address import readme

    (folder / "README.md").write_text(readme(root))
    shutil.copy2(root / "LICENSE", folder / "LICENSE")


def build(source: Path, into: Path) -> list[Path]:
    """Build the wheel and the source distribution of a staged folder; equal sources give equal bytes."""
    before = set(into.iterdir())
    settings = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "build", "-o", str(into), str(source)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    built = sorted(set(into.iterdir()) - before)
    for path in built:
        if path.name.endswith(".tar.gz"):
            _without_times(path)
    return built


def _without_times(path: Path) -> None:
    """Write a source distribution again without times, owners, and the order in which a disk lists files."""
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname, member.pax_headers = (
                EPOCH,
                0,
                0,
                "",
                "",
                {},
            )
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def check(sources: list[Path], built: list[Path]) -> None:
    """Check what was built with the tools that package indexes recommend."""
    wheels = [str(path) for path in built if path.suffix == ".whl"]
    tool = [sys.executable, "-m"]
    subprocess.run([*tool, "validate_pyproject", *(str(source / "pyproject.toml") for source in sources)], check=True)
    subprocess.run([*tool, "twine", "check", "--strict", *map(str, built)], check=True)
    # W007, W008: the wheel of calibcli is empty on purpose
    subprocess.run([*tool, "check_wheel_contents", "--ignore", "W007,W008", *wheels], check=True)


def parts_list(built: Path) -> None:
    """Write the software bill of materials (CycloneDX) of what calibcli was tested with, beside what was built."""
    listed = built / "calibcli.cdx.json"
    tested = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "requirements",
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        str(listed),
    ]
    subprocess.run([*tested, str(ROOT / "constraints.txt")], check=True, stderr=subprocess.DEVNULL)


def test_unpacked(source: Path, work: Path) -> None:
    """Run the tests of an unpacked source distribution, in an environment of its own."""
    with tarfile.open(source) as archive:
        archive.extractall(work, filter="data")
    subprocess.run(["make", "test"], cwd=work / source.name.removesuffix(".tar.gz"), check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--stage", type=Path, help="write the source of calibcli-core into this folder, and build nothing"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="folder for what is built; it is emptied")
    parser.add_argument(
        "--untested", action="store_true", help="leave out `make test` of the unpacked source distribution"
    )
    given = parser.parse_args()
    if given.stage is not None:
        given.stage.mkdir(parents=True, exist_ok=True)
        stage_core(given.stage)
        return 0
    shutil.rmtree(given.into, ignore_errors=True)
    given.into.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sources = [work / "core", work / "full"]
        for source, stage in zip(sources, (stage_core, stage_full)):
            source.mkdir()
            stage(source)
        built = [path for source in sources for path in build(source, given.into)]
        check(sources, built)
        again = work / "again"
        again.mkdir()
        for first, second in zip(built, [path for source in sources for path in build(source, again)]):
            if first.read_bytes() != second.read_bytes():
                sys.exit(f"error: two builds of {first.name} differ")
        parts_list(given.into)
        for path in built:
            print(f"{path.stat().st_size:>12,} bytes  {path.name}")
        if not given.untested:
            test_unpacked(next(path for path in built if "core" in path.name and path.name.endswith(".tar.gz")), work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
