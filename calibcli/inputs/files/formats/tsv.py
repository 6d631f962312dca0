"""Text tables, cells parted by tabs unless the header shows other delimiters (text/tab-separated-values, Lindner 1993).

>>> _ = (folder / "scores.tsv").write_text("label\\tprob_0\\tprob_1\\n1\\t0.25\\t0.75\\n0\\t0.5\\t0.5\\n")
>>> calibcli.read(folder / "scores.tsv").kind
'probabilities'
"""

from __future__ import annotations

from calibcli.inputs.files import text
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.source import Source

SUFFIXES = (".tsv",)


def guess(head: bytes) -> bool:
    """Text whose first line has more tabs than commas."""
    return text.delimiter(head) == "\t"


def read(source: Source, grouped: bool = True) -> Contents:
    """Columns by name; where `grouped`, those of a score group as one (N, K) array."""
    return text.table(source, "\t", grouped)
