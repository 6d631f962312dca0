"""Paths with the digits that can be seen: tenths of a point, as steps, without points on a straight line."""

from __future__ import annotations

import re

TOKEN = re.compile(r"[A-Za-z](?![a-z])|-?\d*\.?\d+(?:e[-+]?\d+)?")
POINTS = {"M": 2, "L": 2, "Q": 4, "C": 6}  # numbers of a command that Matplotlib writes
TOLERANCE = 1.5  # tenths of a point that a curve may be off
Point = tuple[int, int]


def outline(d: str) -> str:
    """A path in tenths of a point, each point as its step from the one before.

    >>> outline("M 10.04 20 L 30.26 20 L 30.26 15.5 z")
    'M10 20h20.3v-4.5z'
    """
    written: list[str] = []
    tokens = TOKEN.findall(d)
    here = start = (0, 0)
    run: list[Point] = []
    i, command = 0, ""
    while i < len(tokens):
        if tokens[i].isalpha():
            command, i = tokens[i], i + 1
        if command != "L" and run:
            written += _lines(here, run)
            here, run = run[-1], []
        if command in "zZ":
            here = start
            written.append("z")
            continue
        numbers = [round(10 * float(t)) for t in tokens[i : i + POINTS[command]]]
        i += POINTS[command]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        if command == "L":
            run += points
            continue
        if command == "M":
            start, said, steps = points[0], "M", [*points[0]]
        else:
            said, steps = command.lower(), [step for x, y in points for step in (x - here[0], y - here[1])]
        written.append(said + _numbers(steps))
        here = points[-1]
    return "".join(written + (_lines(here, run) if run else []))


def _lines(start: Point, points: list[Point]) -> list[str]:
    """The steps of straight lines."""
    here, last, said = start, "", []
    for x, y in _seen([start, *points])[1:]:
        steps, here = (x - here[0], y - here[1]), (x, y)
        if steps == (0, 0) and len(points) > 1:
            continue
        command, numbers = ("h", steps[:1]) if steps[1] == 0 else ("v", steps[1:]) if steps[0] == 0 else ("l", steps)
        text = _numbers(list(numbers))
        said.append((text if text.startswith("-") else f" {text}") if command == last else command + text)
        last = command
    return said


def _seen(points: list[Point]) -> list[Point]:
    """The points of a line without those that lie within the tolerance of the others (Douglas and Peucker 1973)."""
    if len(points) < 8:
        return points
    kept = {0, len(points) - 1}
    open_ends = [(0, len(points) - 1)]
    while open_ends:
        a, b = open_ends.pop()
        (x0, y0), (x1, y1) = points[a], points[b]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        worst, at = TOLERANCE, 0
        for i in range(a + 1, b):
            x, y = points[i]
            off = (
                abs((x1 - x0) * (y0 - y) - (x0 - x) * (y1 - y0)) / length
                if length
                else ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            )
            if off > worst:
                worst, at = off, i
        if at:
            kept.add(at)
            open_ends += [(a, at), (at, b)]
    return [points[i] for i in sorted(kept)]


def _numbers(steps: list[int]) -> str:
    return "".join(t if t.startswith("-") else f" {t}" for t in map(_tenths, steps)).lstrip()


def _tenths(number: int) -> str:
    whole, rest = divmod(abs(number), 10)
    return "-" * (number < 0) + (f"{whole or ''}.{rest}" if rest else str(whole))
