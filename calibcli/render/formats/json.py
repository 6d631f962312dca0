"""JSON: the Result itself, by its schema (RFC 8259, Bray 2017).

>>> import json
>>> [one["name"] for one in json.loads(render(result))["estimates"]]
['accuracy']
"""

from __future__ import annotations

from calibcli.core.result import Result

SUFFIXES = (".json",)
REPORT = "result.json"


def render(result: Result) -> str:
    """Render the JSON that `Result.from_json` reads."""
    return result.to_json()
