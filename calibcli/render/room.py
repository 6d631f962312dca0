"""The room of a first screen: pictures get fewer bins, then none is drawn, then tables lose rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from calibcli.render import stream
from calibcli.render.sheet import Sheet

LINES, LEAST_ROWS = 40, 3  # of a first screen; of a table of it
FEWER_BINS = (8, 5)
ROWS = 60  # of a table beside the estimates on a terminal
Clipped = tuple[Sheet, int]


def fitted(
    tables: Sequence[Sheet],
    pictures: Callable[[int], list[list[str]]],
    bins: int,
    taken: int | None,
    width: int,
    encoding: str,
) -> tuple[list[Clipped], list[list[str]]]:
    """The tables, each with the number of rows that are left out, and the pictures.

    Args:
        pictures: the lines of each with at most so many bins.  bins: where there is room.
        taken: lines of the screen that other things take; None where it may be as long as it gets.
    """
    made = [_clipped(s) for s in tables]
    if taken is None:
        return made, pictures(bins)
    left = LINES - taken
    lengths = [_length(*one, encoding, width) for one in made]
    for most in (bins, *(m for m in FEWER_BINS if m < bins)):
        blocks = pictures(most)
        if sum(lengths) + sum(1 + len(block) for block in blocks) <= left:
            return made, blocks
    blocks = [["(the picture with -v or -o FILE.png)"]] * bool(blocks)
    left -= sum(1 + len(block) for block in blocks)
    while sum(lengths) > left and max((len(s.rows) for s, _ in made), default=0) > LEAST_ROWS:
        i = max(range(len(made)), key=lambda i: len(made[i][0].rows))
        made[i] = _without_one(*made[i])
        lengths[i] = _length(*made[i], encoding, width)
    return made, blocks


def _clipped(s: Sheet) -> Clipped:
    more = 0 if s.tones or any(c.code for c in s.columns) else max(0, len(s.rows) - ROWS)
    return dataclasses.replace(s, rows=s.rows[: len(s.rows) - more]), more


def _length(s: Sheet, more: int, encoding: str, width: int) -> int:
    """Lines, with the empty one before."""
    return 1 + len(stream.lines(s, encoding, width)) + bool(more)


def _without_one(s: Sheet, more: int) -> Clipped:
    """Without the row that says least: the last that passes, else that did not run, else that is undecided."""
    tones = s.tones or [""] * len(s.rows)
    order = {"good": 0, "": 1, "warn": 3, "bad": 4}
    at = min(reversed(range(len(s.rows))), key=lambda i: 2 if s.rows[i][0].startswith("NOT RUN") else order[tones[i]])
    kept = [i for i in range(len(s.rows)) if i != at]

    def moved(marks: frozenset[int]) -> frozenset[int]:
        return frozenset(new for new, old in enumerate(kept) if old in marks)

    rows, left = [s.rows[i] for i in kept], [s.tones[i] for i in kept] if s.tones else ()
    return dataclasses.replace(s, rows=rows, tones=left, breaks=moved(s.breaks), musts=moved(s.musts)), more + 1
