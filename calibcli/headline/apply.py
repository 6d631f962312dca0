"""Of `calib apply`: what was written by which map, and whether predicted classes changed."""

from __future__ import annotations

from calibcli.headline import count, counted, told
from calibcli.result import Result


def say(result: Result) -> str:
    n, changed = count(result, "n"), result.facts.get("predicted classes changed")
    where = result.artefacts.get("scores", "")
    said = f"{result.facts.get('written', counted(n, 'row'))}, by {result.facts.get('method', 'the calibrator')}"
    said += f", in {where}" if where else ""
    if not isinstance(changed, int):
        return told(said)
    kept = "no predicted class changed" if changed == 0 else f"{changed:,} of {n:,} predicted classes changed"
    return told(f"{said}: {kept}")
