"""Pages in a browser: axe-core in light and dark, a policy that allows nothing, no request, and on paper."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import render_cases as cases

import calibcli
from calibcli import render
from calibcli.core.figure_data import Plot
from calibcli.core.result import Estimate, Result, Table

pytestmark = pytest.mark.extra
HOSTILE = "<img src=x onerror=document.title='run'>"
BROWSER = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
POLICY = re.compile(r"<meta http-equiv=Content-Security-Policy[^>]*>")
ASK = """<script>%s</script><script>axe.run().then(found => {
const p = document.createElement("pre"); p.id = "found"; p.textContent = JSON.stringify({
 dark: matchMedia("(prefers-color-scheme: dark)").matches, passes: found.passes.length,
 requests: performance.getEntriesByType("resource").length, title: document.title,
 violations: found.violations.map(v => [v.id, v.nodes[0].html])}); document.body.append(p)})</script></body>"""


def chromium(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if BROWSER is None:
        assert not os.environ.get("CI"), "no browser"
        pytest.skip("no browser")
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", *options, page.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    hostile = Result(
        command="metrics",
        estimates=[Estimate(name=HOSTILE, scope=f"class={HOSTILE}", value=1.0)],
        tables=[Table(name=HOSTILE, columns=[HOSTILE], rows=[[HOSTILE]])],
        plots=[Plot(name=HOSTILE, title=HOSTILE, labels=[HOSTILE], curves=cases.layers().curves)],
    )
    made = {
        "everything": cases.everything(),
        "gate": cases.gate(),
        "hostile": hostile,
        "several": calibcli.report(cases.metrics(), cases.gate(), cases.scale(), cases.metrics()),
    }
    for name, result in made.items():
        render.write(result, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["everything", "gate", "hostile", "several"])
def test_axe_finds_nothing(name: str, dark: bool, pages: dict[str, Path]) -> None:
    """With all that can be unfolded unfolded; scripts run in this copy alone."""
    axe = pytest.importorskip("axe_core_python")
    script = resources.files(axe).joinpath("axe.min.js").read_text(encoding="utf-8")
    source = POLICY.sub("", pages[name].read_text(encoding="utf-8")).replace("<details", "<details open")
    copy = pages[name].with_name(f"{name}-{dark}.html")
    copy.write_text(source.replace("</body>", ASK % script), encoding="utf-8")
    colours = ["--blink-settings=preferredColorScheme=0"] if dark else []
    dom = chromium(copy, "--dump-dom", "--virtual-time-budget=60000", *colours).stdout
    found: dict[str, Any] = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)[1]))  # type: ignore[index]
    assert found["violations"] == []
    assert found["passes"] > 20
    assert found["dark"] == dark
    assert found["requests"] == 0
    assert found["title"] != "run"


def measured_in(page: Path, script: str, *options: str) -> Any:
    """The value of a JavaScript expression in a page, which loses its policy."""
    code = f"""<script>const p = document.createElement("pre"); p.id = "found";
    p.textContent = JSON.stringify({script}); document.body.append(p)</script></body>"""
    copy = page.with_name("measured.html")
    copy.write_text(POLICY.sub("", page.read_text(encoding="utf-8")).replace("</body>", code), encoding="utf-8")
    dom = chromium(copy, "--dump-dom", *options).stdout
    return json.loads(re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)[1])  # type: ignore[index]


@pytest.mark.regression
@pytest.mark.parametrize("by", [False, True])
def test_the_reasons_of_a_gate_are_seen_whole_on_a_laptop(by: bool, tmp_path: Path) -> None:
    """At 1,280 pixels the table of verdicts is no wider than the page: `why`, its last column, is not cut."""
    rules: dict[str, Any] = {"max": {"ece:bins=30": 0.06, "nll": 0.2, "brier": 0.14, "ece_l2:bins=50": 0.1}}
    rules["min"] = {"high_confidence_accuracy:tau=0.9": 0.98}
    data = np.load(Path(__file__).parent.parent / "sample_data" / "test.npz")
    page = tmp_path / "gate.html"
    sites = np.array(["St. Mary's Hospital, Boston", "Charité, Berlin"])[np.arange(len(data["labels"])) % 2]
    calibcli.check(data["logits"], data["labels"], **rules, **({"by": {"site": sites}} if by else {})).write(page)
    table = 'document.querySelector("table")'
    wide, room, window = measured_in(
        page, f"[{table}.scrollWidth, {table}.parentElement.clientWidth, innerWidth]", "--window-size=1280,900"
    )
    assert window <= 1280
    assert wide <= room


@pytest.mark.regression
def test_a_diagram_fits_a_telephone(tmp_path: Path) -> None:
    """A reliability diagram is as wide as the screen at most; a wide figure keeps a size that can be read."""
    data = np.load(Path(__file__).parent.parent / "sample_data" / "test.npz")
    page = tmp_path / "gate.html"
    calibcli.check(data["logits"], data["labels"], max={"ece": 0.06, "nll": 0.2}, diagram=True).write(page)
    sizes = "[...document.querySelectorAll('svg')].map(s => [s.clientWidth, s.parentElement.clientWidth])"
    (diagram, room), (rules, _) = measured_in(page, sizes, "--window-size=400,900")
    assert room <= 470
    assert diagram <= room
    assert rules >= 480


@pytest.mark.parametrize("name", ["everything", "several"])
def test_the_policy_is_never_broken(name: str, pages: dict[str, Path]) -> None:
    said = chromium(pages[name], "--dump-dom", "--enable-logging=stderr").stderr
    assert "Content Security Policy" not in said
    assert "Refused" not in said


def test_it_prints(pages: dict[str, Path], tmp_path: Path) -> None:
    chromium(pages["several"], f"--print-to-pdf={tmp_path / 'a.pdf'}", "--no-pdf-header-footer")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "a.pdf").stat().st_size > 20_000
