"""Make a release, all but the upload: `make release VERSION=0.2.0`. It stops where something is not as it should be.

python release/steps.py 0.2.0            every step
python release/steps.py 0.2.0 --check    the steps that change nothing and take seconds
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from release.address import address  # noqa: E402

UPLOAD = """
All is ready in dist/. What is left, by hand:
    git push origin main v{version}
    python -m twine upload dist/*.whl dist/*.tar.gz
"""


class NotReady(Exception):
    """Something is not as it should be; the message says what, and what to do."""


def run(*command: str, folder: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReady(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def version_is_new(version: str) -> None:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReady(f"'{version}' is no version: write it as 0.2.0")
    tags = [tag[1:] for tag in run("git", "tag", "--list", "v*").split() if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    if tags and numbers(version) <= max(map(numbers, tags)):
        raise NotReady(f"{version} is not above the newest release, {max(tags, key=numbers)}")


def tree_is_clean(version: str) -> None:
    if changed := run("git", "status", "--porcelain"):
        raise NotReady(f"not committed:\n{changed}")
    if (branch := run("git", "branch", "--show-current").strip()) != "main":
        raise NotReady(f"the branch is '{branch}': releases are made from main")


def address_is_set(version: str) -> None:
    if address().startswith("OWNER/"):
        raise NotReady("the repository has no address yet: python release/address.py OWNER/NAME")


def changelog_says_what_is_new(version: str) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## {re.escape(version)} \((.+)\)$", text, re.M)
    if heading is None:
        raise NotReady(f"CHANGELOG.md has no heading '## {version} (unreleased)' over what is new")
    if heading[1] not in ("unreleased", today()):
        raise NotReady(f"CHANGELOG.md says that {version} is of {heading[1]}")


def today() -> str:
    return time.strftime("%Y-%m-%d")


def every_job_passes(version: str) -> None:
    run(".ci/run")


def write_version(version: str) -> None:
    """Write the version and the date where they stand, and commit."""
    for name, pattern, becomes in (
        ("calibcli/__init__.py", r'^__version__ = ".+"$', f'__version__ = "{version}"'),
        ("CITATION.cff", r"^version: .+$", f"version: {version}"),
        ("CHANGELOG.md", rf"^## {re.escape(version)} \(unreleased\)$", f"## {version} ({today()})"),
    ):
        path = ROOT / name
        path.write_text(re.sub(pattern, becomes, path.read_text(encoding="utf-8"), flags=re.M), encoding="utf-8")
    if run("git", "status", "--porcelain"):
        run("git", "commit", "-q", "-a", "-m", f"Release {version}")


def build(version: str) -> None:
    run(sys.executable, "release/distributions.py")


def install_and_try(version: str) -> None:
    """Install what was built into an empty environment, and take the tour."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", f"{folder}/venv")
        wheels = [str(path) for path in (ROOT / "dist").glob("*.whl")]
        run(f"{folder}/venv/bin/pip", "install", "-q", *wheels)
        run(f"{folder}/venv/bin/pip", "check")
        if run(f"{folder}/venv/bin/calib", "--version").strip() != f"calib {version}":
            raise NotReady("what was built has another version")
        run(f"{folder}/venv/bin/calib", "demo", folder=Path(folder))


def tag(version: str) -> None:
    run("git", "tag", "-a", f"v{version}", "-m", f"calib {version}")


CHECKS: tuple[Callable[[str], None], ...] = (version_is_new, tree_is_clean, address_is_set, changelog_says_what_is_new)
STEPS: tuple[Callable[[str], None], ...] = (*CHECKS, every_job_passes, write_version, build, install_and_try, tag)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--check", action="store_true", help="only the steps that change nothing and take seconds")
    given = parser.parse_args()
    for step in CHECKS if given.check else STEPS:
        print(step.__name__.replace("_", " "), flush=True)
        try:
            step(given.version)
        except NotReady as error:
            sys.exit(f"error: {error}")
    if not given.check:
        print(UPLOAD.format(version=given.version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
