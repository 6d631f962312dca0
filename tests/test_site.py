"""The site: it builds without a warning, has a page for every command, and fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import calibcli
from calibcli.cli import COMMANDS

pytestmark = pytest.mark.extra
ROOT = Path(__file__).parent.parent


def test_the_site_builds(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "NO_MKDOCS_2_WARNING": "1",
    }
    lines = ([sys.executable, "docs/pages.py"], [sys.executable, "-m", "mkdocs", "build", "-d", str(tmp_path)])
    for argv in lines:
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr
    commands = (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'id="calib-{name}"' not in commands] == []
    functions = (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in calibcli.__all__ if f'id="{name.lower()}"' not in functions] == []
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r'<(?:link|script|img)[^>]*(?:href|src)="(https?:[^"]*)"', page.read_text(encoding="utf-8")
        )
        assert not fetched, page
