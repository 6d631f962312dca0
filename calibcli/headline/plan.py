"""Of `calib plan`: the rows that every gate together needs, and which of them asks for most."""

from __future__ import annotations

from calibcli.headline import count, counted, listed, told, upper
from calibcli.numbers import number
from calibcli.result import Estimate, Result


def say(result: Result) -> str:
    found = [e for e in result.estimates if e.name == "n"]
    unknown = [e for e in found if e.value is None]
    known = [e for e in found if e.value is not None]
    if unknown:
        rest = upper("; ".join(f"for {_why(e)}: {counted(int(e.value or 0), 'row')} in all" for e in known[:2]))
        return told(f"No number of rows up to 10⁹ is enough for {listed(map(_why, unknown))}", rest)
    if not known:
        return ""
    most = max(known, key=lambda e: e.value or 0.0)
    needed = max(int(most.value or 0), count(result, "min_n"))
    others = f", the one of {len(known)} gates that asks for most" if len(known) > 1 else ""
    return told(f"Plan {counted(needed, 'row')} in all: {_why(most)}{others}")


def _why(e: Estimate) -> str:
    """`ece <= 0.02 (PASS with a chance of 80 % if its truth is 0)`."""
    truth = e.detail.get("truth")
    assumed = f" if {e.scope.partition(' ')[0]} truly is {number(truth)}" if isinstance(truth, float) else ""
    return f"{e.scope} ({e.how.partition(';')[0]}{assumed})"
