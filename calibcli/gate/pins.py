"""The reading of an input that `[data]` of calib.toml pins, and in what a later input is read otherwise.

`calib init` writes it. A rule that was chosen for one reading says nothing about another: where an export has other
columns, classes or rows than the one that was pinned, no rule is judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calibcli.scores.reading_record import class_list

ALPHA = 1e-3  # chance that as many rows are left out by accident
AGAIN = ("kind", "classes", "event")
"""Pins that are options as well, but options which hide what a file says: they are passed only where the file does not
say the same by itself."""
PINNED = (*AGAIN, "scores", "labels", "confidence", "correct", "predicted", "ids", "group", "weights")


def of_reading(read: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pins of what was read (`Predictions.described`): keys of `[data]`, with options that were given."""
    if read.get("kind") == "confidences":
        verdict = "labels" if read.get("predicted") else "correct"
        pins = {"confidence": read["scores"], "predicted": read.get("predicted", ""), verdict: read.get("labels", "")}
    else:
        pins = {name: read.get(name, "") for name in ("scores", "kind", "labels", "classes", "event")}
    pins |= {"group": read["group"]} if read.get("group") else {"ids": read.get("ids", "")}
    pins["weights"] = read.get("weights", "")
    total = int(read.get("rows", 0)) + sum(map(int, read.get("left_out", {}).values()))
    shares = {cause: round(count / total, 6) for cause, count in read.get("left_out", {}).items()}
    stated = {name: value for name, value in read.get("stated", {}).items() if name not in pins or name == "labels"}
    return {name: value for name, value in (pins | stated | {"left_out": shares}).items() if value}


def differences(pinned: Mapping[str, Any], read: Mapping[str, Any]) -> list[str]:
    """Say in what an input is read otherwise than was pinned; columns that nothing was read from do not count.

    Args:
        pinned: the keys of `[data]` that are set, some of PINNED and `left_out`.  read: as for `of_reading`.
    """
    now = of_reading(read)
    if not read.get("labels"):  # they come later, or there are none, and then no rule is judged anyway
        pinned = {name: value for name, value in pinned.items() if name not in ("labels", "correct")}
    out = [
        text for name in PINNED if name in pinned for text in _difference(name, pinned[name], now.get(name, ""), now)
    ]
    return [*out, *_left_out(pinned.get("left_out"), read)]


def _difference(name: str, then: Any, now: Any, every: Mapping[str, Any]) -> Iterator[str]:
    """Yield how one pin differs."""
    if name == "kind":
        if str(then).replace("-", "_") != now:
            read = "confidences alone" if not now and every.get("confidence") else _words(now)
            yield f"kind: {_words(then)} were pinned, {read} are read"
        return
    if name == "classes":
        before, after = ([*then], [*now]) if class_list([*then]) != [*now] else ([], [])
    else:
        before, after = (str(value).replace(", ", ",").split(",") for value in (then, now))
    if before != after:
        gone, new = [c for c in before if c not in after], [c for c in after if c and c not in before]
        yield f"{name}: {_changes(gone, new) or 'in another order'}"


def _words(kind: Any) -> str:
    return str(kind).replace("_", "-")


def _changes(gone: Sequence[str], new: Sequence[str]) -> str:
    parts = [(gone, "is gone", "are gone"), (new, "is new", "are new")]
    return ", ".join(f"{', '.join(names)} {one if len(names) == 1 else many}" for names, one, many in parts if names)


def _left_out(shares: Mapping[str, float] | None, read: Mapping[str, Any]) -> Iterator[str]:
    """Yield the causes by which more rows are left out than were pinned (exact binomial test)."""
    if shares is None:
        return
    left_out = {cause: int(count) for cause, count in read.get("left_out", {}).items()}
    total = int(read.get("rows", 0)) + sum(left_out.values())
    for cause, count in left_out.items():
        share = shares.get(cause, 0.0)
        if count and _tail(count, total, share) < ALPHA:
            yield f"left out: {count:,} of {total:,} rows ({cause}), of which {share:.2%} were pinned"


def _tail(count: int, total: int, share: float) -> float:
    """Return the chance that at least `count` of `total` rows are left out, each with the chance `share`."""
    from scipy.stats import binom  # here, as few gates have rows that are left out

    return float(binom.sf(count - 1, total, share))


def section(read: Mapping[str, Any], path: str) -> list[str]:
    """Write `[data]` of calib.toml, line by line."""
    pins = of_reading(read)
    lines = ["[data]", f"eval = {json.dumps(path)}"]
    for name, value in pins.items():
        if isinstance(value, Mapping):
            text = "{ " + ", ".join(f"{key} = {number:g}" for key, number in value.items()) + " }"
        elif isinstance(value, list | tuple):
            text = json.dumps([*map(str, value)], ensure_ascii=False)
        else:
            text = json.dumps(value, ensure_ascii=False)
        lines.append(f"{name} = {text}")
    return lines
