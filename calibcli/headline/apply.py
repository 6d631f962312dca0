"""Of `calib apply`: what was written by which map, and whether predicted classes changed."""

from __future__ import annotations

from calibcli.headline import count, counted, told, upper
from calibcli.result import Result


def say(result: Result) -> str:
    n, changed = count(result, "n"), result.facts.get("predicted classes changed")
    where = result.artefacts.get("scores", "")
    said = f"wrote {result.facts.get('written', counted(n, 'row'))}" + (f", to {where}" if where else "")
    said += f", by the method {result.facts['method']}" if "method" in result.facts else ""
    if not isinstance(changed, int):
        return told(upper(said))
    kept = "no predicted class changed" if changed == 0 else f"{changed:,} of {n:,} predicted classes changed"
    return told(upper(f"{said}: {kept}"))
