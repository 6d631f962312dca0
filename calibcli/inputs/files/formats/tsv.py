"""Text tables, cells parted by tabs unless the header shows other delimiters."""

from __future__ import annotations

from calibcli.inputs.files import text
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.source import Source

SUFFIXES = (".tsv",)


def guess(head: bytes) -> bool:
    """Text whose first line has more tabs than commas."""
    return text.delimiter(head) == "\t"


def read(source: Source) -> Contents:
    """Columns by name; those of a score group as one (N, K) array."""
    return text.table(source, "\t")


def columns(source: Source) -> Contents:
    """Every column by itself."""
    return text.table(source, "\t", grouped=False)
