"""Of `calib inspect`: what a file is, and which commands take it."""

from __future__ import annotations

from calibcli.headline import counted, name, told, upper, value
from calibcli.result import Result


def say(result: Result) -> str:
    facts = result.facts
    what, commands = str(facts.get("what", "")), str(facts.get("used_by", ""))
    if not what:
        return ""
    if what == "recorded outputs":
        return told(_outputs(result), upper(f"for {commands}") if commands else "")
    said = what
    spec = facts.get("spec") or facts.get("architecture")
    said += f" ({spec})" if spec else ""
    numbers = ", ".join(
        f"{name(e.name)} = {value(e)}" for e in result.estimates[:3] if e.value is not None and not e.unit
    )
    taken = f"No command takes it{commands[4:]}" if commands.startswith("none") else f"For {commands}"
    return told(upper(said) + (f": {numbers}" if numbers else ""), taken if commands else "")


def _outputs(result: Result) -> str:
    facts = result.facts
    rows, kind, classes = facts.get("rows"), facts.get("kind"), facts.get("classes")
    said = counted(rows, "row") if isinstance(rows, int) else "rows"
    said += f" of {kind}" if kind else ""
    if isinstance(classes, int):
        said += f" over {counted(classes, 'class').replace('classs', 'classes')}"
    labelled = any(table.name == "labels" for table in result.tables)
    return f"{said}, {'with labels' if labelled else 'without labels'}"
