"""JUnit XML: one case per check, in the form that Ant's schema, Jenkins, GitLab and GitHub reporters all accept.

The schema is that of Ant's JUnit reports (Windy Road 2011).

>>> judged = calibcli.check(logits, labels, max={"ece": 0.01})
>>> ["<testcase" in line for line in render(judged).splitlines()].count(True)
1
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from calibcli.core.result import Check, Result
from calibcli.render import terminal
from calibcli.render.table_contents import heading, headline

NUMBERS = True
SUFFIXES = (".xml",)
REPORT = "junit.xml"
OF_CHECKS = True


def render(result: Result) -> str:
    """Render the checks: FAIL and fatal INCONCLUSIVE as failures, NOT RUN as an error, warnings as skipped cases."""
    checks = result.checks
    kinds = [_kind(c) for c in checks]
    seconds = f"{float(result.provenance.get('seconds') or 0):.3f}"
    stamp = str(result.provenance.get("started") or "1970-01-01T00:00:00Z").rstrip("Z")[:19]
    failures, errors, skipped = (str(kinds.count(kind)) for kind in ("failure", "error", "skipped"))
    counts = {"tests": str(len(checks)), "failures": failures, "errors": errors}
    suites = ET.Element("testsuites", {"name": "calib", "time": seconds, **counts})
    attributes = {"name": f"calib {result.command}", "package": "calib", "id": "0", "timestamp": stamp}
    attributes |= {"hostname": "localhost", "time": seconds, "skipped": skipped}
    suite = ET.SubElement(suites, "testsuite", {**attributes, **counts})
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", name="input", value=terminal.clean(heading(result)))
    if text := headline(result):
        ET.SubElement(properties, "property", name="headline", value=terminal.clean(text))
    for check, kind in zip(checks, kinds, strict=True):
        name = terminal.clean(check.rule) + (f" ({terminal.clean(check.scope)})" if check.scope else "")
        case = ET.SubElement(suite, "testcase", name=name, classname="calib.gate", time="0.000")
        if kind:
            sentence = terminal.sentence(check)
            inside = ET.SubElement(case, kind, message=sentence)
            if kind != "skipped":
                inside.set("type", result.words[check.outcome])
            where = f"{check.file}:{check.line}: " if check.line else f"{check.file}: " if check.file else ""
            inside.text = terminal.clean(f"{where}{terminal.title(check, result.words)}: {sentence}")
    ET.SubElement(suite, "system-out").text = "".join(
        f"{terminal.title(c, result.words)}: {terminal.sentence(c)}\n" for c in checks if c.outcome == "pass"
    )
    ET.SubElement(suite, "system-err").text = "".join(f"note: {terminal.clean(note)}\n" for note in result.notes)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _kind(check: Check) -> str:
    if check.outcome == "pass":
        return ""
    if not check.fatal:
        return "skipped"
    return "error" if check.outcome == "not_run" else "failure"
