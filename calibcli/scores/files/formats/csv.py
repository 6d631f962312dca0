"""Text tables, cells parted by commas unless the header shows other delimiters (RFC 4180, Shafranovich 2005).

>>> _ = (folder / "scores.csv").write_text("label,logit_cat,logit_dog\\n1,-0.5,2\\n0,1,0\\n")
>>> found = calibcli.read(folder / "scores.csv")
>>> found.logits.shape, found.labels.tolist()
((2, 2), [1, 0])
"""

from __future__ import annotations

from calibcli.scores.files import text_tables
from calibcli.scores.files.arrays import FileContents
from calibcli.scores.files.source import Source

SUFFIXES = (".csv",)


def guess(head: bytes) -> bool:
    """Return whether this is text whose first line has no more tabs than commas."""
    return text_tables.delimiter(head) == ","


def read(source: Source, grouped: bool = True) -> FileContents:
    """Read columns by name; if `grouped`, a group of score columns becomes one (N, K) array."""
    return text_tables.table(source, ",", grouped)
