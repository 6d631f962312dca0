"""Of `calib logits`: what was written, and how accurate it is."""

from __future__ import annotations

from calibcli.headline import count, first, named, told
from calibcli.result import Result


def say(result: Result) -> str:
    rows, classes = count(result, "rows"), count(result, "classes")
    accuracy = first(result, "accuracy")
    where = result.artefacts.get("logits", "")
    written = f"Wrote {rows:,} × {classes} logits" + (f" to {where}" if where else "")
    return told(f"{written}: {named(accuracy)}" if accuracy else written)
