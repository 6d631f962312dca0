"""Text tables, cells parted by tabs unless the header shows other delimiters (text/tab-separated-values, Lindner 1993).

>>> _ = (folder / "scores.tsv").write_text("label\\tprob_0\\tprob_1\\n1\\t0.25\\t0.75\\n0\\t0.5\\t0.5\\n")
>>> calibcli.read(folder / "scores.tsv").kind
'probabilities'
"""

from __future__ import annotations

from calibcli.scores.files import text_tables
from calibcli.scores.files.arrays import FileContents
from calibcli.scores.files.source import Source

SUFFIXES = (".tsv",)


def guess(head: bytes) -> bool:
    """Return whether this is text whose first line has more tabs than commas."""
    return text_tables.delimiter(head) == "\t"


def read(source: Source, grouped: bool = True) -> FileContents:
    """Read columns by name; if `grouped`, a group of score columns becomes one (N, K) array."""
    return text_tables.table(source, "\t", grouped)
