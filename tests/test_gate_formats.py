"""JUnit, GitHub and OpenMetrics, each read back by a parser that follows the format's own rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from calibcli import headlines, render
from calibcli.core.errors import GateFailed
from calibcli.core.result import EXITS, VERDICTS, Check, Estimate, Outcome, Result
from calibcli.render.formats import github, junit, markdown, openmetrics

HOSTILE = "a<b>&\"'|,:%\n::error::x\x1b[31m\x00`λ"


def estimate(**fields: Any) -> Estimate:
    given = {"name": "ece", "value": 0.04, "low": 0.031, "high": 0.05, "level": 0.9, "sided": "each", "n": 1000}
    return Estimate(**{**given, "null": 0.02, "null_high": 0.03, **fields})


def result(checks: list[Check]) -> Result:
    estimates = [c.estimate for c in checks if c.estimate is not None]
    return Result(
        command="check",
        checks=checks,
        estimates=estimates,
        notes=["a note"],
        provenance={"version": "1", "started": "2026-01-02T03:04:05Z", "seconds": 0.25, "inputs": [{"path": "t.npz"}]},
    )


def mixed() -> Result:
    return result(
        [
            Check(rule="ece <= 0.06", outcome="pass", estimate=estimate(), limit=0.06),
            Check(rule="ece <= 0.03", outcome="fail", estimate=estimate(), limit=0.03, file="c.toml", line=7),
            Check(rule="ece <= 0.04", outcome="inconclusive", estimate=estimate(), limit=0.04, n_needed=4000),
            Check(rule="nll <= 1", outcome="inconclusive", estimate=estimate(name="nll"), limit=1.0, fatal=False),
            Check(rule="confidence_gap <= 1", outcome="not_run", message="no column 'site'", scope="site=A"),
            Check(rule=HOSTILE, outcome="fail", message=HOSTILE, scope=HOSTILE, file=HOSTILE, line=3),
        ]
    )


def forty() -> Result:
    return result(
        [
            Check(
                rule="ece <= 0.03",
                outcome="fail",
                scope=f"site={i}",
                estimate=estimate(scope=f"site={i}"),
                limit=0.03,
                message="surely above the limit",
                file="calib.toml",
                line=12,
            )
            for i in range(40)
        ]
    )


# --- JUnit: Ant's schema (windyroad JUnit.xsd) and the looser one of Jenkins -------------------------------------

DECIMAL, INT = r"\d+(\.\d+)?", r"\d+"
TOKEN = r"\S(.*\S)?"  # at least one character, no space at either end
SUITE = {
    "name": TOKEN,
    "package": TOKEN,
    "id": INT,
    "timestamp": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}",
    "hostname": TOKEN,
    "tests": INT,
    "failures": INT,
    "errors": INT,
    "time": DECIMAL,
}


def attributes(element: ET.Element, required: dict[str, str], optional: dict[str, str] | None = None) -> None:
    rules = {**required, **(optional or {})}
    assert set(required) <= set(element.attrib) <= set(rules), element.tag
    for name, value in element.attrib.items():
        assert re.fullmatch(rules[name], value, re.DOTALL), (element.tag, name, value)


def validated(text: str) -> ET.Element:
    """The root, once the document has been held against the schema's rules."""
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    attributes(root, {}, {"name": TOKEN, "time": DECIMAL, "tests": INT, "failures": INT, "errors": INT})
    for suite in root:
        assert suite.tag == "testsuite"
        attributes(suite, SUITE, {"skipped": INT})
        tags = [child.tag for child in suite]
        cases = suite.findall("testcase")
        assert tags == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        for entry in suite[0]:
            assert entry.tag == "property"
            attributes(entry, {"name": TOKEN, "value": ".*"})
        for case in cases:
            attributes(case, {"name": TOKEN, "classname": TOKEN, "time": DECIMAL})
            assert len(case) <= 1
            for child in case:
                assert child.tag in ("skipped", "error", "failure")
                assert not len(child)
                attributes(child, {} if child.tag == "skipped" else {"type": ".+"}, {"message": ".*"})
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{tag}"))
        assert int(suite.attrib["tests"]) == len(cases)
    return root


def test_junit_follows_the_schema() -> None:
    root = validated(junit.render(mixed()))
    kinds = [case[0].tag if len(case) else "" for case in root.iter("testcase")]
    assert kinds == ["", "failure", "failure", "skipped", "error", "failure"]
    failure = root.findall(".//failure")[0]
    assert failure.attrib["type"] == "FAIL"
    assert "ece 0.040" in failure.attrib["message"]
    assert "c.toml:7" in str(failure.text)
    assert validated(junit.render(result([]))).find("testsuite").attrib["tests"] == "0"  # type: ignore[union-attr]
    assert len(validated(junit.render(forty())).findall(".//testcase")) == 40


# --- GitHub workflow commands: the grammar of the runner's ActionCommand parser -----------------------------------


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    found = []
    for line in text.split("\n"):
        if not line.startswith("::"):
            assert "::error" not in line
            assert "::warning" not in line
            continue
        head, separator, message = line[2:].partition("::")
        assert separator
        command, _, rest = head.partition(" ")
        properties = dict(part.split("=", 1) for part in rest.split(",") if part)
        assert command in ("error", "warning", "notice")
        assert set(properties) <= {"file", "line", "endLine", "col", "endColumn", "title"}
        found.append((command, {k: unescaped(v, True) for k, v in properties.items()}, unescaped(message, False)))
    return found


def unescaped(text: str, is_property: bool) -> str:
    codes = {"%0D": "\r", "%0A": "\n", **({"%3A": ":", "%2C": ","} if is_property else {}), "%25": "%"}
    for code, character in codes.items():
        text = text.replace(code, character)
    return text


@pytest.fixture(autouse=True)
def no_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_github_annotations() -> None:
    found = commands(github.render(mixed()))
    assert [c for c, _, _ in found] == ["error", "error", "error", "error", "warning"]
    assert found[0][1]["file"] == "c.toml"
    assert found[0][1]["line"] == "7"
    assert "ece 0.040" in found[0][2]
    assert all(properties["title"] for _, properties, _ in found)


def test_github_paths_start_at_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert commands(github.render(mixed()))[0][1]["file"] == "models/c.toml"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "elsewhere"))
    assert commands(github.render(mixed()))[0][1]["file"] == "c.toml"


def test_github_says_how_many_more() -> None:
    found = commands(github.render(forty()))
    assert len(found) == 10
    assert found[-1][2].startswith("31 more")
    assert {p.get("line") for _, p, _ in found[:9]} == {"12"}


def test_step_summary_and_comment_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    summary = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    render.show(forty(), "github")
    assert commands(capsys.readouterr().out)
    assert summary.read_text() == markdown.render(forty())
    many = result([c for _ in range(40) for c in forty().checks])
    assert len(markdown.render(many).encode()) <= 60_000
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing" / "summary"))
    render.show(forty(), "github")
    assert "no step summary" in capsys.readouterr().err


# --- OpenMetrics 1.0: its ABNF ------------------------------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*)?\}})? ({NUMBER})")
SUFFIX = {"gauge": ("",), "stateset": ("",), "info": ("_info",)}


def samples(text: str) -> dict[tuple[str, str], float]:
    """Samples by (name, labels), once the exposition has been held against the ABNF and the rules of its types."""
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    found: dict[tuple[str, str], float] = {}
    families: dict[str, str] = {}
    current = ""
    for line in lines[:-2]:
        if header := re.fullmatch(rf"# TYPE ({NAME}) (gauge|stateset|info)", line):
            current = header[1]
            assert current not in families
            families[current] = header[2]
            continue
        if helped := re.fullmatch(rf"# HELP ({NAME}) .*", line):
            assert helped[1] == current
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        kind = families[current]
        assert sample[1] in [current + suffix for suffix in SUFFIX[kind]]
        assert (sample[1], sample[2]) not in found
        found[sample[1], sample[2]] = float(sample[3])
        if kind == "stateset":
            assert float(sample[3]) in (0, 1)
            assert f'{current}="' in sample[2]
        if kind == "info":
            assert float(sample[3]) == 1
    return found


def test_openmetrics_follows_its_grammar() -> None:
    found = samples(openmetrics.render(mixed()))
    assert found["calib_estimate", 'metric="ece",scope=""'] == 0.04
    assert found["calib_gate", 'gate="2",rule="ece <= 0.03",scope="",calib_gate="fail"'] == 1
    assert found["calib_gate", 'gate="2",rule="ece <= 0.03",scope="",calib_gate="pass"'] == 0
    assert found["calib_gate_limit", 'gate="2",rule="ece <= 0.03",scope=""'] == 0.03
    samples(openmetrics.render(forty()))
    samples(openmetrics.render(Result(command="metrics")))


@pytest.mark.parametrize("limit", [0.03, 3e-7, 0.0])
@pytest.mark.parametrize("step", [1e-3, 1e-9, 1e-12])
def test_no_number_contradicts_its_verdict(limit: float, step: float) -> None:
    """An upper bound just above the limit is never printed at or below it, nor one just below above it."""
    for high in (limit + step, limit - step):
        e = estimate(value=limit - 2 * step, low=limit - 3 * step, high=high, null=None, null_high=None)
        outcome = "pass" if high <= limit else "inconclusive"
        both = result([Check(rule="ece <= x", outcome=outcome, estimate=e, limit=limit)])  # type: ignore[arg-type]
        shown = samples(openmetrics.render(both))["calib_upper_bound", 'metric="ece",scope=""']
        assert (shown > limit) == (high > limit)
        for text in (junit.render(both), github.render(both), markdown.render(both), render.text(both, "table")):
            bounds = re.search(r"\[(-?[\d.e-]+), (-?[\d.e-]+)\]", text)
            if bounds:
                assert (float(bounds[2]) > limit) == (high > limit), text


def test_folder_of_reports(tmp_path: Path) -> None:
    render.write(mixed(), tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"result.json", "summary.md", "junit.xml", "metrics.txt"} <= names
    samples((tmp_path / "out" / "metrics.txt").read_text())
    validated((tmp_path / "out" / "junit.xml").read_text())
    render.write(mixed(), tmp_path / "metrics.txt")
    assert (tmp_path / "metrics.txt").read_text() == openmetrics.render(mixed())
    render.write(Result(command="metrics"), tmp_path / "plain")
    assert not (tmp_path / "plain" / "junit.xml").exists()


WORDS = re.compile(r"\b(NOT[ _]RUN|INCONCLUSIVE|FAIL|PASS)\b", re.IGNORECASE)
STATING = {
    **{name: lambda text: text for name in ("table", "github", "markdown", "latex")},
    "badge": lambda text: json.loads(text)["message"],
    "html": lambda text: text[text.index("<title>") :],
    "json": lambda text: json.loads(text)["facts"]["headline"],
    "junit": lambda text: text[text.index("<properties>") :],
}
"""Formats that state the verdict of a run -> the part of their text in which it comes first."""
BY_RULE = {"csv", "openmetrics", "pdf", "png", "svg", "toml"}
"""Formats of numbers and pictures, in which each rule has its own verdict, or none."""


def test_every_format_states_the_verdict_of_a_run_or_none() -> None:
    assert {*STATING} | BY_RULE == {*render.NAMES}
    assert not {*STATING} & BY_RULE


@pytest.mark.regression
@pytest.mark.parametrize("excused", EXITS)
@pytest.mark.parametrize("fatal", EXITS)
def test_the_verdict_that_decides_the_exit_code_comes_first(fatal: Outcome, excused: Outcome) -> None:
    """What only warns is said after it, however bad it is, and in whatever order the rules are written."""
    checks = [
        Check(rule="ece <= 0.06", outcome=excused, message="no baseline", fatal=False),
        Check(rule="nll <= 1", outcome=fatal, message="the reason", limit=1.0),
    ]
    for order in (checks, checks[::-1]):
        made = headlines.headed(result(order))
        assert made.exit_code == EXITS[fatal]
        assert made.verdict == fatal
        for name, stated in STATING.items():
            first = WORDS.search(stated(render.text(made, name)))
            assert first is not None, name
            assert first[0].upper().replace("_", " ") == VERDICTS[fatal], name
        badge = json.loads(render.text(made, "badge"))
        red, warned = fatal in ("fail", "not_run"), "inconclusive" in (fatal, excused) or excused != "pass"
        assert badge["color"] == ("red" if red else "yellow" if fatal != "pass" or warned else "brightgreen")
        assert (VERDICTS[excused] in made.facts["headline"]) or excused == "pass"  # it is said, if not first


def test_the_error_of_a_failed_run_begins_with_what_decides_it() -> None:
    made = result([Check(rule="nll <= 1", outcome="inconclusive"), Check(rule="ece <= 0.1", outcome="fail")])
    with pytest.raises(GateFailed, match=r"^FAIL ece"):
        made.raise_if_failed()
