"""Figures inside a page of HTML: Matplotlib's SVG made compact, with the colours of the page and unique ids."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from xml.etree import ElementTree

from calibcli.render.figure import style

# Paths in tenths of a point, with relative steps and without points on straight lines.

TOKEN = re.compile(r"[A-Za-z](?![a-z])|-?\d*\.?\d+(?:e[-+]?\d+)?")
POINTS = {"M": 2, "L": 2, "Q": 4, "C": 6}  # numbers after each path command that Matplotlib writes
TOLERANCE = 3  # tenths of a point that a simplified line may be off
Point = tuple[int, int]


def outline(d: str) -> str:
    """Round a path to tenths of a point, and write each point as its step from the one before.

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
            start, letter, steps = points[0], "M", [*points[0]]
        else:
            letter, steps = command.lower(), [step for x, y in points for step in (x - here[0], y - here[1])]
        written.append(letter + _numbers(steps))
        here = points[-1]
    return "".join(written + (_lines(here, run) if run else []))


def _lines(start: Point, points: list[Point]) -> list[str]:
    """Write the steps of straight lines."""
    here, last = start, ""
    written: list[str] = []
    for x, y in _simplified([start, *points])[1:]:
        steps, here = (x - here[0], y - here[1]), (x, y)
        if steps == (0, 0) and len(points) > 1:
            continue
        command, numbers = ("h", steps[:1]) if steps[1] == 0 else ("v", steps[1:]) if steps[0] == 0 else ("l", steps)
        text = _numbers(list(numbers))
        written.append(_separated(written[-1], text) if command == last else command + text)
        last = command
    return written


def _simplified(points: list[Point]) -> list[Point]:
    """Drop points within the tolerance of the line through the others (Douglas and Peucker 1973)."""
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


def relative_moves(d: str) -> str:
    """Let the parts of a path of `outline` begin with a step from the part before, if that is shorter.

    >>> relative_moves("M10.4 20.5h-2M10.4 23.5h-2")
    'M10.4 20.5h-2m2 3h-2'
    """
    parts = re.findall(r"M[^M]*", d)
    written, here = parts[:1], (0, 0)
    for before, part in itertools.pairwise(parts):
        here, (x, y) = _end(before), _end(start := re.findall(r"M[^a-z]*", part)[0])
        step = "m" + _numbers([x - here[0], y - here[1]])
        written.append((step if len(step) < len(start) else start) + part[len(start) :])
    return "".join(written)


def _end(part: str) -> Point:
    """Return the point where a part of a path ends."""
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
    written = ""
    for text in map(_tenths, steps):
        written += _separated(written, text) if written else text
    return written


def _separated(before: str, text: str) -> str:
    """Put a space before a number only if it is needed to separate it from the one before."""
    apart = text[0].isdigit() or (text[0] == "." and "." not in re.split(r"[ a-zA-Z-]", before)[-1])
    return f" {text}" if apart else text


def _tenths(number: int) -> str:
    whole, tenths = divmod(abs(number), 10)
    return "-" * (number < 0) + (f"{whole or ''}.{tenths}" if tenths else str(whole))


# Elements: styles become classes that the figures of a page share, colours become variables of its style sheet.

Element = ElementTree.Element
DARK = {
    "#ffffff": "#14181d",
    style.INK: "#e6eaee",
    style.FAINT: "#39424c",
    style.FAINT_GAP: "#2b211b",
    style.PALE_GAP: "#4a3022",
    style.MID_GAP: "#a8663a",
    "#0072b2": "#4aa5e0",
    "#007a5a": "#35b88f",
    "#111111": "#f4f6f8",
    "#5b5b5b": "#a9b0b8",
}
"""Colours that change on a dark background; the others are visible on both."""
NUMBER = re.compile(r"-?\d*\.\d+(?:e-?\d+)?|-?\d+(?:e-?\d+)?")
REFERENCE = re.compile(r"#([\w.-]+)")
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
SIMPLE = re.compile(r"(?:M[^a-z]*(?:[hvlz][^a-z]*){1,5})+")  # lines and rectangles
BARE = re.compile(r"[\w.#,()-]+")  # an attribute value that needs no quotation marks
DROPPED = {"metadata", "style"}
GROUND = "fill: #ffffff"  # style of the background, which the page has already
SHADES = 8  # steps of a colour channel that a heat map shows as one colour


def variable(colour: str) -> str:
    """Return the CSS variable of a colour that changes on a dark background."""
    return f"--c{colour[1:].lower()}"


def palette() -> str:
    """Write the CSS rules for the colours of figures on light and dark backgrounds."""
    light, dark = ("".join(f"{variable(k)}:{v};" for k, v in pairs) for pairs in (((k, k) for k in DARK), DARK.items()))
    return f".calib{{{light}}}\n@media screen and (prefers-color-scheme:dark){{.calib{{{dark}}}}}\n"


@dataclass
class Styles:
    """CSS classes that replace equal style attributes, shared by the figures of a page."""

    classes: dict[str, str] = field(default_factory=dict)

    def of(self, text: str) -> str:
        """Return the class that replaces a style attribute."""
        parts = [part.strip() for part in text.split(";") if part.strip()]
        kept = sorted(_declaration(part) for part in parts if "font-family" not in part)
        return self.classes.setdefault(";".join(kept), f"k{len(self.classes)}") if kept else ""

    def sheet(self) -> str:
        """Write the CSS rules of the classes."""
        return "\n".join(f".{name}{{{rule}}}" for rule, name in self.classes.items())


def small(svg: bytes, prefix: str, title: str, described_by: str, styles: Styles) -> str:
    """Convert a file of Matplotlib to an `<svg>` of a page, with ids that begin with `prefix` and a title."""
    root = ElementTree.fromstring(svg)
    used: dict[str, Element] = {}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.text = element.text if element.tag in ("text", "tspan") else None
        element.tail = None
        for key in [key for key in element.attrib if key.startswith("{")]:
            element.set(key.rpartition("}")[2], element.attrib.pop(key))
        used[element.get("id", "")] = element
    for group in [g for g in root.iter("g") if g.get("id", "").startswith("matplotlib.axis")]:
        _axis(group, used)
    names: dict[str, str] = {}
    for element in root.iter():
        for key, value in element.attrib.items():
            if key != "id" and ("url(#" in value or key == "href"):
                names.update({old: "" for old in REFERENCE.findall(value) if f"url(#{old})" in value or key == "href"})
    names = {old: f"{prefix}-{i}" for i, old in enumerate(names)}
    _tidy(root, names, styles)
    for element in list(root.iter()):
        _group_alike(element)
        if element.tag == "path":
            element.set("d", relative_moves(element.get("d", "")))
    box = NUMBER.sub(lambda m: _rounded(float(m[0]), 1), root.attrib["viewBox"])
    attributes = {"role": "img", "aria-labelledby": f"{prefix}-t", "aria-describedby": described_by}
    root.attrib = {"viewBox": box, "width": box.split()[2], **attributes}
    called = Element("title", {"id": f"{prefix}-t"})
    called.text = title
    root.insert(0, called)
    return "".join(_to_html(root))


def _axis(group: Element, used: dict[str, Element]) -> None:
    """Replace references to tick marks by lines, and put lines before texts, so that equal lines become one path."""
    lines: list[Element] = []
    texts: list[Element] = []

    def sort(parent: Element) -> bool:
        for element in parent:
            if element.tag == "use":
                x, y, mark = element.get("x", ""), element.get("y", ""), used.get(element.get("href", "")[1:])
                steps = [] if mark is None else mark.get("d", "").split()
                if len(steps) != 6 or steps[:3] != ["M", "0", "0"]:
                    return False
                end = f"{float(x) + float(steps[4])} {float(y) + float(steps[5])}"
                lines.append(Element("path", {"d": f"M {x} {y} L {end}", "style": element.get("style", "")}))
            elif element.tag == "path":
                lines.append(element)
            elif element.tag == "text" or element.get("transform"):
                texts.append(element)
            elif element.tag == "g" and not sort(element):
                return False
        return True

    if sort(group):
        group[:] = [*sorted(lines, key=lambda line: (line.get("clip-path", ""), line.get("style", ""))), *texts]


def _tidy(parent: Element, names: dict[str, str], styles: Styles) -> None:
    """Remove what changes nothing: groups without attributes, unused ids, invisible digits."""
    if parent.get("id", "").startswith("QuadMesh"):
        _merge_cells(parent)
    children: list[Element] = []
    for child in list(parent):
        _tidy(child, names, styles)
        if child.tag in DROPPED or child.get("style") == GROUND or child.get("d") == "":
            continue
        own = child.attrib.pop("id", "")
        if own in names:
            child.set("id", names[own])
        _attributes(child, names, styles)
        if child.tag == "text" and len(child):
            child.text = None
            _spans(child)
        if child.tag in ("g", "defs") and not len(child):
            continue
        for one in list(child) if child.tag == "g" and not child.attrib else [child]:
            if not _join_previous(children, one):
                children.append(one)
    parent[:] = children


def _group_alike(parent: Element) -> None:
    """Group neighbouring texts and marks of the same look, so that the class is written once."""
    children: list[Element] = []
    for (tag, look), run in groupby(list(parent), key=lambda one: (one.tag, one.get("class", ""))):
        same = list(run)
        if tag in ("text", "use") and look and len(same) > 2:
            group = Element("g", {"class": look})
            for one in same:
                del one.attrib["class"]
            group[:] = same
            same = [group]
        children += same
    parent[:] = children


def _spans(text: Element) -> None:
    """Merge neighbouring spans of the same look into one with a list of positions."""
    kept: list[Element] = []
    for span in text:
        last = kept[-1].attrib if kept else {}
        if last and {**last, "x": ""} == {**span.attrib, "x": ""}:
            last["x"] += f" {span.get('x', '')}"
            kept[-1].text = f"{kept[-1].text}{span.text}"
        else:
            kept.append(span)
    text[:] = kept


def _attributes(element: Element, names: dict[str, str], styles: Styles) -> None:
    look = element.attrib.pop("style", "")
    if "fill" in element.attrib and COLOUR.fullmatch(element.attrib["fill"]):
        look = f"fill: {element.attrib.pop('fill')}; {look}"
    for key, value in list(element.attrib.items()):
        if key == "d":
            element.set(key, outline(value))
        elif key in ("href", "clip-path"):
            element.set(key, REFERENCE.sub(lambda m: f"#{names.get(m[1], m[1])}", value))
        elif key != "id":
            element.set(key, NUMBER.sub(lambda m: _rounded(float(m[0]), 1), value))
    if "url(" in look:
        parts = [_declaration(part) for part in look.split(";") if part.strip()]
        element.set("style", REFERENCE.sub(lambda m: f"#{names.get(m[1], m[1])}", ";".join(parts)))
    elif name := styles.of(look):
        element.set("class", name)
    if element.get("transform", "").startswith("rotate(0 "):
        del element.attrib["transform"]


def _join_previous(before: list[Element], one: Element) -> bool:
    """Join a line or rectangle to the one before it if they look the same; returns whether it did."""
    last = before[-1] if before else one
    d = one.get("d", "")
    same = {**last.attrib, "d": ""} == {**one.attrib, "d": ""} and last is not one
    if not same or one.tag != "path" or "id" in one.attrib or not SIMPLE.fullmatch(d):
        return False
    if not SIMPLE.fullmatch(last.get("d", "")):
        return False
    last.set("d", last.get("d", "") + d)
    return True


def _declaration(text: str) -> str:
    """Rewrite a style declaration with the CSS variable of its colour."""
    key, _, value = text.partition(":")
    value = value.strip()
    if "#" not in value and "'" not in value:
        value = re.sub(r"\d+\.\d{3,}", lambda m: _rounded(float(m[0]), 2), value)
    changes = {colour.lower() for colour in DARK}
    value = COLOUR.sub(lambda m: f"var({variable(m[0])})" if m[0] in changes else m[0], value)
    return f"{key.strip()}:{value}"


def _rounded(number: float, places: int) -> str:
    text = f"{number:.{places}f}"
    text = re.sub(r"^(-?)0\.", r"\1.", text.rstrip("0").rstrip(".") if "." in text else text)
    return "0" if text in ("-0", "") else text


def _merge_cells(mesh: Element) -> None:
    """Merge the cells of a heat map that have nearly the same colour into one path."""
    shades: dict[str, list[str]] = {}
    for path in [p for p in mesh.iter("path") if "fill" in p.get("style", "")]:
        colour = COLOUR.search(path.get("style", ""))
        if colour is None:
            return
        channels = (int(colour[0][i : i + 2], 16) // SHADES * SHADES + SHADES // 2 for i in (1, 3, 5))
        shades.setdefault("#" + "".join(f"{c:02x}" for c in channels), []).append(path.get("d", ""))
    if shades:
        clip = next((p.get("clip-path") for p in mesh.iter("path") if p.get("clip-path")), None)
        attributes = {"shape-rendering": "crispEdges", **({"clip-path": clip} if clip else {})}
        mesh[:] = [
            Element("path", {"d": " ".join(ds), "style": f"fill: {fill}", **attributes}) for fill, ds in shades.items()
        ]


def _to_html(element: Element) -> Iterator[str]:
    """Write the element as HTML, with quotation marks only where they are needed."""
    yield f"<{element.tag}"
    quoted = False
    for key, value in sorted(element.attrib.items(), key=lambda item: not BARE.fullmatch(item[1])):
        quoted = not BARE.fullmatch(value)
        yield f' {key}="{html.escape(value)}"' if quoted else f" {key}={value}"
    if not len(element) and not element.text:
        yield "/>" if quoted or not element.attrib else " />"
        return
    yield ">" + html.escape(element.text or "", quote=False)
    for child in element:
        yield from _to_html(child)
    yield f"</{element.tag}>"
