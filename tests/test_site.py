"""The site: it builds without a warning, has a page for every command, and fetches nothing from elsewhere."""

from __future__ import annotations

import fcntl
import html
import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from test_page_browser import ASK, chromium

import calibcli
from calibcli.cli import COMMANDS

pytestmark = pytest.mark.extra
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "NO_MKDOCS_2_WARNING": "1",
    }
    lines = ([sys.executable, "docs/pages.py"], [sys.executable, "-m", "mkdocs", "build", "-d", str(folder)])
    with (tmp_path_factory.getbasetemp().parent / "site.lock").open("w") as one:  # both workers write to build/docs
        fcntl.flock(one, fcntl.LOCK_EX)
        for argv in lines:
            done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert "WARNING" not in done.stderr
    return folder


def test_the_site_has_every_command_and_function_and_fetches_nothing(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'id="calib-{name}"' not in commands] == []
    functions = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in calibcli.__all__ if f'id="{name.lower()}"' not in functions] == []
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:link|script|img)[^>]*(?:href|src)="(https?:[^"]*)"', page.read_text(encoding="utf-8")
        )
        assert not fetched, page


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["index", "figures"])
def test_axe_finds_nothing_on_the_site(name: str, dark: bool, site: Path) -> None:
    """In a copy of a page, in which axe runs when the scripts of the theme have run."""
    axe = resources.files(pytest.importorskip("axe_core_python")).joinpath("axe.min.js").read_text(encoding="utf-8")
    copy = site / f"{name}-{dark}.html"
    later = ASK.replace("axe.run()", "new Promise(run => addEventListener('load', run)).then(() => axe.run())")
    page = (site / f"{name}.html").read_text(encoding="utf-8")
    copy.write_text(page.replace("</body>", later % axe), encoding="utf-8")
    colours = ["--blink-settings=preferredColorScheme=0"] if dark else []
    dom = chromium(copy, "--dump-dom", "--virtual-time-budget=15000", *colours).stdout
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)[1]))  # type: ignore[index]
    assert found["violations"] == []
    assert found["passes"] > 20
    assert found["dark"] == dark
