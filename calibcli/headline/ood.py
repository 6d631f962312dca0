"""Of `calib ood`: how well the first score tells the rows apart, what passes, and which differences are shown."""

from __future__ import annotations

from calibcli.headline import listed, side, told, upper, value
from calibcli.result import Estimate, Result

SCORE = "score="
KEPT = 0.95  # of the rows inside, where the share of those outside that pass is measured


def say(result: Result) -> str:
    own = [e for e in result.estimates if e.name == "auroc" and e.scope.startswith(SCORE) and e.value is not None]
    if not own:
        return ""
    first = own[0]  # not the best, whose interval would be that of a winner
    passed = result.get(("fpr95", first.scope))
    outside = result.facts.get("outside", "outside")
    rest = f"; {value(passed)} of {outside} pass where 95 % of the rows inside do" if passed is not None else ""
    if passed is not None and passed.low is not None and passed.high is not None and passed.low <= KEPT <= passed.high:
        rest += ", which is not shown to differ"
    word = {
        "above": "tells rows inside from rows outside",
        "below": "is larger outside than inside",
        "open": "is not shown to tell rows inside from rows outside",
    }[side(first, 0.5)]
    said = upper(f"{first.scope.removeprefix(SCORE)} {word}: AUROC {value(first)}{rest}")
    tested = all(", model=" not in e.scope for e in own)  # one model: each score against the first
    return told(said, _largest(first, own, tested), _differences(result))


def _largest(first: Estimate, own: list[Estimate], tested: bool) -> str:
    """The score with the largest AUROC, where its interval lies above that of the first and no difference is tested."""
    best = max(own, key=lambda e: e.value or 0.0)
    if tested or first.high is None or side(best, first.high) != "above":
        return ""
    scope = best.scope.removeprefix(SCORE).replace(", model=", " of ")
    return upper(f"{scope} has the largest AUROC of {len(own)}, {value(best)}: intervals that do not meet")


def _differences(result: Result) -> str:
    """Those of the AUROC that hold after Holm's correction and whose own interval leaves out zero."""
    verdicts = {(r[0], r[1]): r[-1] for t in result.tables if t.name == "differences" for r in t.rows}
    changes = [e for e in result.estimates if e.name == "auroc" and (e.name, e.scope) in verdicts]
    if not changes:
        return ""
    real = [e for e in changes if verdicts[e.name, e.scope] in ("better", "worse") and side(e) != "open"]
    if not real:
        return f"No difference shown in AUROC ({listed((f'{e.scope} {value(e)}' for e in changes), 2)})"
    real.sort(key=lambda e: -abs(e.value or 0.0))
    return f"Differences in AUROC: {listed((f'{e.scope} {value(e)}' for e in real), 2)}"
