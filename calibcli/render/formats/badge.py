"""Badge: the verdict as the JSON from which shields.io draws one.

The format is that of its endpoint badge, schema 1 (Shields 2019).

Ours: one word for the worst verdict, and its colour.

>>> print(render(calibcli.check(logits, labels, max={"ece": 0.01})), end="")
{"schemaVersion": 1, "label": "calibration", "message": "fail", "color": "red"}
"""

from __future__ import annotations

import json

from calibcli.core import number_format
from calibcli.core.result import Result
from calibcli.render import table_contents, terminal

NUMBERS = True
REPORT = "badge.json"
OF_CHECKS = True
COLORS = {"good": "brightgreen", "warn": "yellow", "bad": "red", "": "blue"}


def render(result: Result) -> str:
    """Render the verdict, or without one the first number."""
    verdict, tone = table_contents.verdict(result)
    message = verdict.partition(":")[0].lower()
    if not verdict:
        e = next((e for e in result.estimates if e.value is not None), None)
        message = "done" if e is None else f"{e.name} {number_format.shown(e)[0]}"
    badge = {
        "schemaVersion": 1,
        "label": result.screen.badge or ("calibration" if result.checks else result.command),
        "message": terminal.clean(message),
        "color": COLORS[tone],
    }
    return json.dumps(badge) + "\n"
