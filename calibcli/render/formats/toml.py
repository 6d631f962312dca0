"""TOML: `[[gate]]` rules for calib.toml, with the numbers of a result as limits (for `calib slices`, confirmed rules).

Of `calib inspect`, `[data]`: how the file was read.

The format is that of Preston-Werner et al. (2021). Judge the rules on new rows, not on those that gave the numbers.

>>> print(render(result).splitlines()[-2])
metric = "accuracy"
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from calibcli.core.result import Result
from calibcli.gate import pins

NUMBERS = True
LISTS_OF = ("inspect",)
SUFFIXES = (".toml",)
HEAD = "# From calib {}: limits at the numbers found. Choose your own, and judge them on new rows.\nschema = 1\n"
DATA = "# From calib inspect: how the file was read. Paths are relative to the file that this stands in.\nschema = 1\n"
KEPT = 0.5  # share of the gap found in a slice that the rule allows


def render(result: Result) -> str:
    """Render one gate per confirmed rule, or per estimate with a better direction."""
    if result.command == "inspect" and (inputs := result.inputs_read):
        return "\n".join([DATA, *pins.section(inputs[0]["read"], str(inputs[0].get("path", ""))), ""])
    gates = [*(_confirmed(result) if "rules" in result.facts else _estimates(result))]
    return "\n".join([HEAD.format(result.command), *gates])


def _confirmed(result: Result) -> Iterator[str]:
    for rule in result.facts["rules"]:
        comment = f"{rule['metric']} was {rule['value']:.4f} in {rule['n']} rows; half of it is allowed here"
        if rule["metric"] == "error":
            comment = f"accuracy was {1 - rule['value']:.4f} in {rule['n']} rows; half of the errors are allowed here"
            yield _gate("accuracy", "min", 1 - KEPT * rule["value"], by=rule["by"], comment=comment)
        else:
            yield _gate(rule["metric"], "limit", KEPT * abs(rule["value"]), by=rule["by"], comment=comment)


def _estimates(result: Result) -> Iterator[str]:
    for e in result.estimates:
        if e.value is not None and e.better in ("lower", "higher", "zero"):
            value = abs(e.value) if e.better == "zero" else e.value
            yield _gate(e.name, "limit", value, scope=e.scope)


def _gate(metric: str, side: str, limit: float, by: str = "", scope: str = "", comment: str = "") -> str:
    lines = [f"# {comment}"] if comment else []
    lines += ["[[gate]]", f"metric = {json.dumps(metric)}", f"{side} = {limit:.6g}"]
    lines += [f"{key} = {json.dumps(text)}" for key, text in (("by", by), ("scope", scope)) if text]
    return "\n".join(lines) + "\n"
