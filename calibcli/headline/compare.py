"""Of `calib compare`: who is better in what, by how much, and what is undecided."""

from __future__ import annotations

from calibcli.headline import base, count, listed, name, named, side, told, traits
from calibcli.result import Estimate, Result

SHOWN = 2  # differences with their numbers
OTHERS = ("lambda_max", "trace")  # named before the metrics that say nothing of their place
LAST = 100


def say(result: Result) -> str:
    """The differences that hold after Holm's correction and whose own interval leaves out zero."""
    verdicts = _verdicts(result)
    scopes = list(dict.fromkeys(e.scope for e in result.estimates))
    said = [_one(result, scope, verdicts) for scope in scopes]
    if len(said) > 3:
        real = [s for s in scopes if any(_holds(e, verdicts) for e in result.estimates if e.scope == s)]
        rest = f"Differences are shown in {len(real)} of {len(scopes)} comparisons"
        return told(*said[:2], rest)
    return told(*said)


def _verdicts(result: Result) -> dict[tuple[str, str], str]:
    tables = [t for t in result.tables if t.name == "differences"]
    return {(str(row[0]), str(row[1])): str(row[-1]) for t in tables for row in t.rows if len(row) > 2}


def _holds(e: Estimate, verdicts: dict[tuple[str, str], str]) -> bool:
    return verdicts.get((e.name, e.scope), "") not in ("", "not shown", "unknown") and side(e) != "open"


def _one(result: Result, scope: str, verdicts: dict[tuple[str, str], str]) -> str:
    own = [e for e in result.estimates if e.scope == scope]
    own = [e for e in own if not traits(e.name).get("refitted")] or own  # another loss to be saved is not a better one
    own.sort(key=_place)
    real = [e for e in own if _holds(e, verdicts)]
    better = [e for e in real if (side(e) == "below") == (e.better == "lower") and e.better in ("lower", "higher")]
    worse = [e for e in real if e not in better and e.better in ("lower", "higher")]
    alone = [e for e in own if e not in real and side(e) != "open"]
    many = (
        f"only taken alone, not as one of {count(result, 'comparisons')} comparisons: {_with_numbers(alone)}"
        if alone
        else ""
    )
    if not real:
        near = f" ({listed(map(named, own[:SHOWN]))})" if own and side(own[0]) == "open" else ""
        return "; ".join(filter(None, [f"{_subject(scope)}: no difference shown{near}", many]))
    parts = [f"{word} in {_with_numbers(some)}" for word, some in (("better", better), ("worse", worse)) if some]
    if not parts:
        parts = [f"another {_with_numbers(real)}"]
    undecided = [e for e in own if e not in [*real, *alone] and e.low is not None]
    open_ = [e for e in undecided if e.better in ("lower", "higher")]
    parts += [many] if many else []
    parts += [f"no difference shown in {listed((name(e.name) for e in open_), 2)}"] if open_ else []
    return f"{_subject(scope)}: {'; '.join(parts)}"


def _place(e: Estimate) -> int:
    """Where a difference is named: the metrics' own order, then the curvature, then others as they come."""
    name = base(e.name)
    place: int = LAST + OTHERS.index(name) if name in OTHERS else traits(name).get("named", LAST + len(OTHERS))
    return place


def _with_numbers(some: list[Estimate]) -> str:
    """`NLL -0.494 [-0.585, -0.419] nats, ECE ... and 3 more`."""
    return listed([*map(named, some[:SHOWN]), *(name(e.name) for e in some[SHOWN:])], SHOWN)


def _subject(scope: str) -> str:
    """`b against a`, of `b - a`."""
    first, minus, second = scope.partition(" - ")
    return f"{first} against {second}" if minus and " - " not in second else scope
