"""Formats: each is one file of `formats/`, found by its name, which is its suffix. A file of `formats/` has

    SUFFIXES = (".npz",)                          of its files
    read(source) -> Contents                      its arrays by name, none of them read before it must be

and may have

    signature(head, size) -> bool                 whether a file of `size` bytes with these first ones is one of its own
    guess(head) -> bool                           the same where any text may be meant: asked last
    BY_SUFFIX = True                              where its files have its suffix, whatever their bytes

and imports what is heavy inside `read`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import cast

from calibcli.errors import InputError, printable
from calibcli.inputs.files import formats
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.source import Source, is_pickle

NAME = 100  # longest name of an array that is shown whole
NAMES = sorted(m.name for m in pkgutil.iter_modules(formats.__path__))
OTHERS = {
    b"\x1f\x8b": ("compressed with gzip", "unpack it first, or pipe it: gunzip -c FILE | calib metrics -"),
    b"\x89HDF": ("an HDF5 file", "save the arrays with np.savez"),
}
PICKLE = ("a pickle, which is code; it was not opened", "save arrays: np.savez(path, logits=..., labels=...)")


@cache
def module(name: str) -> ModuleType:
    """The file of the format `name`."""
    return importlib.import_module(f"calibcli.inputs.files.formats.{name}")


def suffixes(name: str) -> tuple[str, ...]:
    """Of the files of the format `name`."""
    return cast(tuple[str, ...], module(name).SUFFIXES)


def by_suffix(suffix: str) -> str:
    """The format whose files end in `suffix`, or ""; the one of that name is asked first."""
    likely = [name for name in NAMES if f".{name}" == suffix]
    return next((name for name in (*likely, *NAMES) if suffix in suffixes(name)), "")


def format_of(source: Source) -> str:
    """The format of a file: by the first bytes where they tell, else by suffix.

    Raises:
        InputError: none that is known.
    """
    head = source.pread(min(source.size, 512), 0)
    own = by_suffix(Path(source.path).suffix.lower())
    if own and _is(own, head, source.size):
        return own
    found = next((name for name in NAMES if not _only_by_suffix(name) and _is(name, head, source.size)), "")
    if found or (own and _only_by_suffix(own)):
        return found or own
    other = next((about for magic, about in OTHERS.items() if head.startswith(magic)), None)
    if other or is_pickle(head):
        what, fix = other or PICKLE
        raise InputError(f"{source.name} is {what}", fix)
    found = own or next((name for name in NAMES if hasattr(module(name), "guess") and module(name).guess(head)), "")
    if not found:
        *most, last = (suffixes(name)[0] for name in NAMES)
        raise InputError(f"cannot tell what {source.name} is", f"pass {', '.join(most)} or {last}")
    return found


def load_any(source: Source) -> Contents:
    """The arrays of a file by the reader of its format."""
    read = module(format_of(source)).read
    with warnings.catch_warnings(action="ignore"):  # what NumPy and torch say about odd headers is no result
        contents: Contents = read(source)
    if all(name.isprintable() and len(name) <= NAME for name in contents.arrays):
        return contents
    arrays = {printable(name.replace("\n", "?"), NAME): array for name, array in contents.arrays.items()}
    if len(arrays) < len(contents.arrays):
        raise InputError(f"{source.name} holds arrays whose names begin alike", f"give them names below {NAME} letters")
    return dataclasses.replace(contents, arrays=arrays)


def _is(name: str, head: bytes, size: int) -> bool:
    return hasattr(module(name), "signature") and module(name).signature(head, size)


def _only_by_suffix(name: str) -> bool:
    return getattr(module(name), "BY_SUFFIX", False)
