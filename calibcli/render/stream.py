"""Text for whatever stands behind stdout: any encoding, any width."""

from __future__ import annotations

import io
import math
import re
import sys
import unicodedata
from collections.abc import Sequence

PLAIN = str.maketrans(
    {
        "—": "-", "–": "-", "−": "-", "…": "~", "≥": ">=", "≤": "<=", "×": "x", "·": "|", "±": "+-", "→": "->",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "=", "▍": "=", "▎": "-", "▏": "-", "░": ":", "▒": "%", "▓": "&",
        "▁": ".", "▂": ".", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#", "◆": "|", "┃": "|", "│": "|", "─": "-",
        "┊": ":", "╎": "!",
        "├": "+", "┤": "+", "└": "+", "┬": "+", "┼": "+", "●": "*", "○": "o", "▲": "^", "■": "#", "⋅": ".", "★": "*",
        "λ": "lambda", "γ": "gamma", "²": "2", "α": "alpha", "Δ": "d", "’": "'", "“": '"', "”": '"',
    }
)  # fmt: skip
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def fits(text: str, encoding: str) -> bool:
    """Whether `encoding` can say `text`."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def fold(text: str, encoding: str = "ascii") -> str:
    """`text` in the characters of `encoding`: symbols by look-alikes, what is left by `?`."""
    if fits(text, encoding):
        return text
    folded = "".join(c if fits(c, encoding) else c.translate(PLAIN) for c in text)
    return folded.encode(encoding, "replace").decode(encoding)


def clean(text: str) -> str:
    """`text` on one line without control characters or lone surrogates: no name can draw on a terminal."""
    return " ".join(CONTROL.sub("\ufffd", text).split())


def file_name(text: str, otherwise: str) -> str:
    """`text` as a name of a file that stays in its folder."""
    return re.sub(r"[^\w.-]+", "_", text).strip("._")[:100] or otherwise


def width(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def eighth(share: float) -> str:
    """A bar of one character."""
    return "▁▂▃▄▅▆▇█"[min(7, max(0, math.ceil(share * 8) - 1))]


def wrapped(items: Sequence[str], room: int) -> list[str]:
    """A legend's items in as few lines as fit."""
    lines: list[str] = []
    for item in items:
        if lines and width(lines[-1]) + 3 + width(item) <= room:
            lines[-1] += "   " + item
        else:
            lines.append(item)
    return lines


def encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def put(text: str, json: bool = False) -> None:
    """Write `text` to stdout, with what its encoding lacks escaped (`json`) or folded."""
    if not fits(text, encoding()):
        text = escape(text) if json else fold(text, encoding())
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", getattr(sys.stdout, "buffer", None))
    if not isinstance(raw, io.FileIO):  # a test's or a notebook's stdout
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    rest = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    while rest:  # unbuffered (`python -u`), a write that a signal cut short would lose the rest
        rest = rest[raw.write(rest) or 0 :]


def escape(text: str) -> str:
    """JSON text in ASCII: everything else only occurs inside strings, where \\u escapes say the same."""
    from json import dumps

    return re.sub(r"[^\x00-\x7f]+", lambda m: dumps(m.group())[1:-1], text)
