"""Figures inside a page of HTML: Matplotlib's SVG made compact, with the colours of the page and unique ids."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from calibcli.render.figure import style

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
NUMBER = re.compile(r"-?\d*\.\d+(?:e-?\d+)?")
REFERENCE = re.compile(r"(?<=#)[\w.-]+")
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
SPACE = re.compile(r"\s*([A-Za-z])\s*")  # around the letters of a path, where none is needed
POINT = re.compile(r"([ML]) ?(-?[\d.]+) (-?[\d.]+)")
PLACES = 1  # decimals of a length in points: finer than a screen shows
WIDE = 480  # points beyond which a figure is scrolled on a small screen, since its text would be too small
DROPPED = ("metadata", "style")
GROUND = "fill: #ffffff"  # style of the background, which the page has already


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

    def of(self, look: str) -> str:
        """Return the class that replaces a style attribute; the page has a font of its own."""
        parts = sorted(part.strip() for part in _with_variables(look).split(";") if "font-family" not in part)
        return self.classes.setdefault(";".join(filter(None, parts)), f"k{len(self.classes)}")

    def sheet(self) -> str:
        """Write the CSS rules of the classes."""
        return "\n".join(f".{name}{{{rule}}}" for rule, name in self.classes.items())


def small(svg: bytes, prefix: str, title: str, described_by: str, styles: Styles) -> str:
    """Convert a file of Matplotlib to an `<svg>` of a page, with ids that begin with `prefix` and a title."""
    root = ElementTree.fromstring(svg)
    elements = list(root.iter())
    for element in elements:
        element.tag = element.tag.rpartition("}")[2]  # HTML knows no namespaces
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        element.text = element.text if element.tag in ("text", "tspan") and not len(element) else None
        element.tail = None
    values = [value for element in elements for key, value in element.items() if key == "href" or "url(" in value]
    referenced = {name for value in values for name in REFERENCE.findall(value)} & {e.get("id") for e in elements}
    names = {name: f"{prefix}-{i}" for i, name in enumerate(sorted(referenced))}
    for element in reversed(elements):  # children before the group that they are in
        kept = [child for child in element if child.tag not in DROPPED and child.get("style") != GROUND]
        element[:] = [one for child in kept for one in (child if child.tag == "g" and not child.attrib else [child])]
        new_id, look = names.get(element.attrib.pop("id", "")), element.attrib.pop("style", "")
        if fill := element.attrib.pop("fill", ""):
            look = f"fill: {fill}; {look}"
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        for key, value in element.items():
            value = NUMBER.sub(lambda number: _rounded(number[0]), value)
            value = SPACE.sub(r"\1", _steps(value)) if key == "d" else value
            element.set(key, REFERENCE.sub(lambda m: names.get(m[0], m[0]), value))
        if new_id:
            element.set("id", new_id)
        if "url(" in look:  # of this figure alone
            element.set("style", REFERENCE.sub(lambda m: names.get(m[0], m[0]), _with_variables(look)))
        elif look:
            element.set("class", styles.of(look))
    box = root.attrib["viewBox"]
    attributes = {"role": "img", "aria-labelledby": f"{prefix}-t", "aria-describedby": described_by}
    width = box.split()[2]
    root.attrib = {"viewBox": box, "width": width, **attributes}
    if float(width) > WIDE:
        root.set("class", "wide")
    called = ElementTree.Element("title", {"id": f"{prefix}-t"})
    called.text = title
    root.insert(0, called)
    return ElementTree.tostring(root, "unicode")


def _steps(path: str) -> str:
    """Write the lines of a path as steps from point to point, which have fewer digits; leave curves as they are."""
    if re.search("[CQA]", path):
        return path
    x = y = 0.0

    def step(match: re.Match[str]) -> str:
        nonlocal x, y
        before, x, y = (x, y), float(match[2]), float(match[3])
        if match[1] == "M":
            return match[0]
        across, down = (_rounded(f"{end - start:.6f}") for start, end in zip(before, (x, y)))
        return f"l{across} {down}"

    return POINT.sub(step, path)


def _with_variables(look: str) -> str:
    return COLOUR.sub(lambda m: f"var({variable(m[0])})" if m[0] in map(str.lower, DARK) else m[0], look)


def _rounded(number: str) -> str:
    return f"{float(number):.{PLACES}f}".removesuffix(".0")
