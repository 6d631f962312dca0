"""The calib.toml of `calib init`: the reading of a file, pinned, and rules at the bounds of today's numbers."""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibcli.core.errors import UsageError
from calibcli.core.number_format import number
from calibcli.core.result import Estimate
from calibcli.core.validation import toml
from calibcli.gate import pins

HEAD = """\
# Rules of the release gate: `calib check` in this folder reads them. Paths are relative to this file.
# [data] pins how the file was read: where another export is read otherwise, no rule is judged (NOT RUN).
schema = 1
"""
DIGITS = 1000  # a limit is rounded to this part of one, to the side on which today's rows pass
MISCALIBRATED = "surely miscalibrated"
WIDTH = 110  # of a comment
HEADER = re.compile(r"^\s*\[")
KEY = re.compile(r"^\s*([\w-]+)\s*=")
WORKFLOW = """\
# The release gate: it judges the rules of calib.toml on {eval}, which a step before must write or fetch.
name: calibration

on:
  pull_request:
  push:
    branches: [main]

permissions:
  contents: read

jobs:
  calibration:
    runs-on: ubuntu-latest
    timeout-minutes: 15
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      # Here {eval} is written or fetched.
      - uses: {address}@v0
"""


def rules(
    estimates: Sequence[Estimate], baseline: Sequence[Estimate] | None = None
) -> list[tuple[str, str, float, str]]:
    """Propose one rule per estimate with a bound: metric, `max` or `min`, limit, and today's number in words.

    Args:
        baseline: the same metrics of an earlier model, at whose bounds the limits lie instead.
    """
    out, words = [], {e.name: f"today {_words(e)}" for e in estimates if e.value is not None}
    for e in estimates if baseline is None else baseline:
        bound, side = (e.high, "max") if e.better == "lower" else (e.low, "min")
        if bound is None or e.value is None or e.better not in ("lower", "higher"):
            continue
        round_outward = math.ceil if side == "max" else math.floor
        limit = round_outward(bound * DIGITS + (1e-9 if side == "max" else -1e-9)) / DIGITS
        numbers = [words[e.name]] if e.name in words else []
        numbers += [f"baseline {_words(e)}"] if baseline is not None else []
        out.append((e.name, side, limit, ", ".join(numbers)))
    return out


def _words(e: Estimate) -> str:
    return f"{number(e.value or 0.0, 3)} [{number(e.low or 0.0, 3)}, {number(e.high or 1.0, 3)}]"


def doubts(estimates: Sequence[Estimate], whose: str) -> list[str]:
    """Say of each calibration error that is surely more than chance what a limit at its bound accepts."""
    return [
        f"{whose} is {MISCALIBRATED}: {e.name} {_words(e)}, where chance gives a calibrated model at most "
        f"{number(e.null_high, 3)}; a limit at this bound accepts that: mend it (calib scale), or choose a lower limit"
        for e in estimates
        if e.null_high is not None and e.low is not None and e.low > e.null_high
    ]


def text(
    read: Mapping[str, Any], path: str, proposed: Sequence[tuple[str, str, float, str]], comments: Sequence[str] = ()
) -> str:
    """Write calib.toml: `[data]` with the reading, and a gate for each proposed rule below the comments."""
    gates = ["".join(f"# {line}\n" for one in comments for line in textwrap.wrap(one, WIDTH))] if comments else []
    gates += [
        f'[[gate]]                       # {today}\nmetric = "{metric}"\n{side} = {limit:g}\n'
        for metric, side, limit, today in proposed
    ]
    return "\n".join([HEAD, "\n".join(pins.section(read, path)) + "\n", *gates])


def updated(old: str, read: Mapping[str, Any], path: str, where: str) -> str:
    """Return calib.toml with the reading in its `[data]`, and everything else as it was.

    Keys of `[data]` that are no part of a reading (`fitted_on`, `slices`, `missing`) are kept.

    Raises:
        UsageError: `[data]` is written in a way that cannot be replaced line by line.
    """
    lines, section = old.splitlines(), pins.section(read, path)
    starts = [i for i, line in enumerate(lines) if re.match(r"^\s*\[\s*data\s*\]", line)]
    if not starts:
        first = next((i for i, line in enumerate(lines) if HEADER.match(line)), len(lines))
        new = [*lines[:first], *section, "", *lines[first:]]
    else:
        start = starts[0]
        end = next((i for i in range(start + 1, len(lines)) if HEADER.match(lines[i])), len(lines))
        ours = {line.partition(" =")[0] for line in section} | {*pins.PINNED, "eval", "left_out"}
        kept = [line for line in lines[start + 1 : end] if not ((key := KEY.match(line)) and key[1] in ours)]
        while kept and not kept[-1].strip():
            kept.pop()
        new = [*lines[:start], *section, *kept, "", *lines[end:]]
    text = "\n".join(new).rstrip("\n") + "\n"
    try:
        now, before = toml(text, where), toml(old, where)
    except UsageError:
        raise UsageError(
            f"[data] of {where} spans lines that cannot be replaced", "write each key on one line"
        ) from None
    if {key: now[key] for key in now if key != "data"} != {key: before[key] for key in before if key != "data"}:
        raise UsageError(f"[data] of {where} cannot be replaced alone", "write it as a table of its own: [data]")
    return text


def workflow(eval_path: str) -> str:
    """Write a workflow of GitHub that runs the gate."""
    try:
        urls = importlib.metadata.metadata("calibcli").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        urls = []
    matches = (re.search(r"github\.com/([\w.-]+/[\w.-]+)$", url) for url in urls)
    address = next((match[1] for match in matches if match), "OWNER/calib")
    return WORKFLOW.format(eval=eval_path, address=address)


def relative(path: str, folder: Path) -> str:
    """Return `path` as a file in `folder` names it, where both have a folder in common below the root."""
    target = os.path.relpath(path, folder or ".")
    return os.path.abspath(path) if target.startswith(os.path.join("..", "..", "..")) else Path(target).as_posix()
