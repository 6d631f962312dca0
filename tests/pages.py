"""A page read as a browser reads it: elements with their attributes and texts, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}
ENDS = {  # what an element ends that HTML lets stand open
    "tr": {"th", "td", "tr"},
    "th": {"th", "td"},
    "td": {"th", "td"},
    "tbody": {"th", "td", "tr", "thead"},
    "dt": {"dd", "dt"},
    "dd": {"dd", "dt"},
    "li": {"li"},
}
OPEN = {"th", "td", "tr", "tbody", "thead", "dt", "dd", "li"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    pieces: list[str | Node] = field(default_factory=list)

    def all(self, *tags: str) -> list[Node]:
        found = [self] if self.tag in tags or not tags else []
        return found + [node for child in self.children for node in child.all(*tags)]

    @property
    def text(self) -> str:
        return "".join(p if isinstance(p, str) else p.text for p in self.pieces)


class Page(HTMLParser):
    """The tree of a page; raises where an end has no beginning, or something but what HTML allows is left open."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.root = self.here = Node("", {})
        self.feed(source)
        self.close()
        assert self.here is self.root, f"<{self.here.tag}> is open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [key for key, _ in attrs]
        assert len(set(names)) == len(names), (tag, names)
        while self.here.tag in ENDS.get(tag, ()):
            self._leave()
        node = Node(tag, {key: value or "" for key, value in attrs}, self.here)
        self.here.children.append(node)
        self.here.pieces.append(node)
        if tag not in VOID:
            self.here = node

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.here.tag in OPEN and self.here.tag != tag:
            self._leave()
        assert self.here.tag == tag, f"</{tag}> ends <{self.here.tag}>"
        self._leave()

    def handle_data(self, data: str) -> None:
        self.here.pieces.append(data)

    def _leave(self) -> None:
        assert self.here.parent is not None
        self.here = self.here.parent

    def all(self, *tags: str) -> list[Node]:
        return self.root.all(*tags)

    @property
    def text(self) -> str:
        return " ".join(self.root.text.split())
