"""How users name classes, parts of files, and archives of published data sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from calibcli.errors import refusing
from calibcli.files import reading

TARS = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")
DOWNLOADED = (*TARS, ".zip", ".mat", "-ubyte", "-ubyte.gz")
"""How files end that may be a published data set: archives, and files that are one, or half of one, alone."""


def class_names(given: str | Sequence[str]) -> list[str]:
    """Class names from a list, from `a,b,c`, or from a file with one per line (or a JSON list).

    Raises:
        InputError: the file cannot be read.
    """
    if not isinstance(given, str):
        return [str(name) for name in given]
    if "," in given or not os.path.isfile(given):
        return [name.strip() for name in given.split(",")]
    reading(given)
    errors = (OSError, ValueError, RecursionError)
    with refusing(errors, lambda e: f"cannot read class names from {given} ({str(e)[:80]})", "write one name per line"):
        text = Path(given).read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            import json

            return [str(name) for name in json.loads(text)]
    return [line.strip() for line in text.splitlines() if line.strip()]


def parted(name: str) -> tuple[Path, str]:
    """A file and what stands after `#`, "" where that belongs to the file's own name."""
    file, _, part = name.rpartition("#")
    return (Path(file), part) if file and not os.path.exists(name) else (Path(name), "")
