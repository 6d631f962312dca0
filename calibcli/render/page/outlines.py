"""Paths with the digits that can be seen: tenths of a point, as steps, without points on a straight line."""

from __future__ import annotations

import itertools
import re

TOKEN = re.compile(r"[A-Za-z](?![a-z])|-?\d*\.?\d+(?:e[-+]?\d+)?")
POINTS = {"M": 2, "L": 2, "Q": 4, "C": 6}  # numbers of a command that Matplotlib writes
TOLERANCE = 3  # tenths of a point that a curve may be off
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
    here, last = start, ""
    said: list[str] = []
    for x, y in _seen([start, *points])[1:]:
        steps, here = (x - here[0], y - here[1]), (x, y)
        if steps == (0, 0) and len(points) > 1:
            continue
        command, numbers = ("h", steps[:1]) if steps[1] == 0 else ("v", steps[1:]) if steps[0] == 0 else ("l", steps)
        text = _numbers(list(numbers))
        said.append(_after(said[-1], text) if command == last else command + text)
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


def closer(d: str) -> str:
    """A path of `outline` whose parts begin with a step from the part before, where that is shorter.

    >>> closer("M10.4 20.5h-2M10.4 23.5h-2")
    'M10.4 20.5h-2m2 3h-2'
    """
    parts = re.findall(r"M[^M]*", d)
    said, here = parts[:1], (0, 0)
    for before, part in itertools.pairwise(parts):
        here, (x, y) = _end(before), _end(start := re.findall(r"M[^a-z]*", part)[0])
        step = "m" + _numbers([x - here[0], y - here[1]])
        said.append((step if len(step) < len(start) else start) + part[len(start) :])
    return "".join(said)


def _end(part: str) -> Point:
    """Where a part of a path ends."""
    here = start = (0, 0)
    for command, text in re.findall(r"([Mhvlqcz])([^a-z]*)", part):
        numbers = [round(10 * float(t)) for t in TOKEN.findall(text)]
        if command == "M":
            here = start = (numbers[0], numbers[1])
        elif command == "h":
            here = (here[0] + sum(numbers), here[1])
        elif command == "v":
            here = (here[0], here[1] + sum(numbers))
        elif command == "z":
            here = start
        else:
            size = {"l": 2, "q": 4, "c": 6}[command]
            across, down = numbers[size - 2 :: size], numbers[size - 1 :: size]
            here = (here[0] + sum(across), here[1] + sum(down))
    return here


def _numbers(steps: list[int]) -> str:
    said = ""
    for text in map(_tenths, steps):
        said += _after(said, text) if said else text
    return said


def _after(before: str, text: str) -> str:
    """A number after another, apart from it only where it has to be."""
    apart = text[0].isdigit() or (text[0] == "." and "." not in re.split(r"[ a-zA-Z-]", before)[-1])
    return f" {text}" if apart else text


def _tenths(number: int) -> str:
    whole, rest = divmod(abs(number), 10)
    return "-" * (number < 0) + (f"{whole or ''}.{rest}" if rest else str(whole))
