"""Install what `make dist` built in every way that users can, in empty environments, and try it.

    make dist && python benchmarks/install.py [--pythons python3.11 python3.12 python3.13] [--dist dist]

Each row: the Python, what is installed and in which order, the seconds that pip took, the size of the environment
beyond that of an empty one, `pip check`, `calib --version`, `calib metrics` of the sample, the tour. Where pip finds
no CPU build of PyTorch for a Python (all but those of --real-torch), an empty wheel of that name and version stands in
for it, the row says so, and no tour is taken. The seconds are those of this machine and its index.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import _harness  # noqa: E402

from release import distributions  # noqa: E402

TORCH = "2.13.0"
Step = tuple[str, ...]


def stand_in(folder: Path) -> Path:
    """An empty wheel called torch, for a Python that has no CPU build of it here."""
    path = folder / f"torch-{TORCH}-py3-none-any.whl"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(f"torch-{TORCH}.dist-info/{name}", text)
    return path


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def newer(folder: Path) -> dict[str, Path]:
    """Wheels of both distributions of a later version, for an upgrade."""
    sources = folder / "core", folder / "full"
    copy = folder / "repository"
    copy.mkdir()
    distributions.stage_core(copy)
    text = (copy / "calibcli" / "__init__.py").read_text()
    (copy / "calibcli" / "__init__.py").write_text(text.replace(f'"{distributions.version()}"', '"99.0.0"'))
    shutil.copy(ROOT / "pyproject.toml", copy / "pyproject.toml")
    built = []
    for source, stage in zip(sources, (distributions.stage_core, distributions.stage_full)):
        source.mkdir()
        stage(source, copy)
        built += distributions.build(source, folder)
    return {"core" if "core" in path.name else "full": path for path in built if path.suffix == ".whl"}


def main() -> int:
    given = _harness.arguments(
        __doc__,
        pythons=["python3.11", "python3.12", "python3.13"],
        real_torch=["python3.11"],
        dist=str(ROOT / "dist"),
    )
    dist = Path(given.dist)
    wheels = {"core" if "core" in path.name else "full": path for path in dist.glob("*.whl")}
    sdist = next(dist.glob("calibcli_core-*.tar.gz"))
    failed = 0
    print(
        "| Python | installed | pip, s | size, MB | pip check | version | metrics | demo |",
        "|---|---|---|---|---|---|---|---|",
        sep="\n",
    )
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        upgraded = newer(work)
        empty_torch = str(stand_in(work))
        core, full, later_core, later_full = map(
            str, (wheels["core"], wheels["full"], upgraded["core"], upgraded["full"])
        )
        ways: dict[str, list[Step]] = {
            "core": [("install", core)],
            "core from its sdist": [("install", str(sdist))],
            "core, then full": [("install", core), ("install", full)],
            "full and core at once": [("install", full, core)],
            "both, upgraded": [("install", full, core), ("install", later_core, later_full)],
            "both, full uninstalled": [("install", full, core), ("uninstall", "-y", "calibcli")],
            "both, then both uninstalled": [("install", full, core), ("uninstall", "-y", "calibcli", "calibcli-core")],
            "a clone": [("install", str(ROOT))],
        }
        for python in given.pythons:
            for name, steps in ways.items():
                place = work / "venv"
                shutil.rmtree(place, ignore_errors=True)
                subprocess.run([python, "-m", "venv", str(place)], check=True)
                pip, before = [str(place / "bin" / "pip"), "-q", "--disable-pip-version-check"], size(place)
                needs_torch = "core" not in name or "full" in name or "both" in name
                torch = f"torch=={TORCH}" if python in given.real_torch else empty_torch
                start = time.time()
                for step in [("install", torch)] * needs_torch + steps:
                    subprocess.run([*pip, *step], check=True, capture_output=True)
                seconds = time.time() - start
                gone = name.endswith("both uninstalled")
                version = "99.0.0" if "upgraded" in name else distributions.version()
                tried = [
                    tried_line([str(place / "bin" / "pip"), "check"], place, "No broken requirements"),
                    tried_line([str(place / "bin" / "calib"), "--version"], place, f"calib {version}", gone),
                    tried_line(
                        [str(place / "bin" / "calib"), "metrics", str(ROOT / "sample_data" / "test.npz")],
                        place,
                        "ECE 0.0646",
                        gone,
                    ),
                ]
                real = not needs_torch or python in given.real_torch
                tried.append(
                    tried_line(
                        [str(place / "bin" / "calib"), "demo", "--save", "tour"], place, "files and pictures", gone
                    )
                    if real
                    else "-"
                )
                failed += tried.count("NO")
                more = " (an empty torch)" if needs_torch and not real else ""
                megabytes = (size(place) - before) / 1e6
                print(
                    f"| {python} | {name}{more} | {seconds:.0f} | {megabytes:.0f} | {' | '.join(tried)} |", flush=True
                )
    return int(failed > 0)


def tried_line(command: list[str], folder: Path, wanted: str, gone: bool = False) -> str:
    """Whether a command prints what it should; or is not there any more."""
    if gone:
        left = [path for path in folder.rglob("calibcli*") if "site-packages" in str(path)]
        return "NO" if Path(command[0]).exists() or left else "gone"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "yes" if done.returncode == 0 and wanted in done.stdout else "NO"


if __name__ == "__main__":
    sys.exit(main())
