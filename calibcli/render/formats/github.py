"""GitHub Actions: the headline, annotations at the line of the rule, and the summary of the step.

A step shows at most 10 annotations of a kind: 9 checks, then the number of the others. Passed checks are in the log.
Ours: the choice of the checks; the lines are the workflow commands of GitHub Actions.

>>> print(render(calibcli.check(logits, labels, max={"ece": 0.01})).splitlines()[-1])
FAIL: 1 fail
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from calibcli.core import number_format
from calibcli.core.result import Check, Outcome, Result
from calibcli.render import table_contents, terminal
from calibcli.render.formats import markdown

NUMBERS = True
MOST = 9  # checks with an annotation


def render(result: Result) -> str:
    """Render workflow commands `::error file=...,line=...,title=...::message`, then the verdict."""
    checks = terminal.not_passed(result.checks)
    headline = terminal.clean(table_contents.headline(result))
    lines = [f"calib {terminal.clean(result.command)}: {headline}"] if headline else []
    lines += [_command(check, result.words) for check in checks[:MOST]]
    if left := checks[MOST:]:
        level = "error" if any(c.fatal for c in left) else "warning"
        lines.append(f"::{level} title=calib {_property(result.command)}::{len(left)} more: see this step's summary")
    passed = [_passed(check) for check in result.checks if check.outcome == "pass"]
    if passed:
        more = f"; {len(passed) - MOST} more" if len(passed) > MOST else ""
        lines.append("passed: " + "; ".join(passed[:MOST]) + more)
    if result.checks or not headline:
        lines.append(table_contents.verdict(result)[0] or f"calib {result.command}: done")
    return "\n".join(lines) + "\n"


def show(result: Result, detail: str = "") -> None:
    """Print annotations to stdout, and append the Markdown report to the file of the step's summary."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(markdown.render(result))
        except OSError as error:
            print(f"note: no step summary ({error.strerror})", file=sys.stderr)
    terminal.put(render(result))


def _command(check: Check, words: Mapping[Outcome, str]) -> str:
    level = "error" if check.fatal else "warning"
    line = str(check.line) if check.file and check.line else ""
    where = {"file": check.file and _in_repository(check.file), "line": line, "title": terminal.title(check, words)}
    properties = ",".join(f"{key}={_property(value)}" for key, value in where.items() if value)
    return f"::{level} {properties}::{_data(terminal.sentence(check))}"


def _passed(check: Check) -> str:
    """Write a passed check: `ece <= 0.05 (site=A): 0.031 [0.020, 0.041]`, which is no workflow command."""
    e, scope = check.estimate, f" ({check.scope})" if check.scope else ""
    value, interval, _ = ("", "", "") if e is None else number_format.shown(e, check.limit)
    return terminal.clean(f"{check.rule_shown}{scope}: {value} {interval}").strip(" :")


def _in_repository(path: str) -> str:
    """Make `path` relative to the top of the repository, as GitHub expects, whatever the working folder."""
    if top := os.environ.get("GITHUB_WORKSPACE"):
        inside = os.path.relpath(os.path.abspath(path), os.path.abspath(top))
        if not inside.startswith(os.pardir):
            return inside.replace(os.sep, "/")
    return path


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
