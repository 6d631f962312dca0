"""20 Newsgroups (Lang 1995): posts named by numbers, in a folder for each group, as numbers of their words.

`20_newsgroups.tar.gz` (19,997 posts) has the splits of Mukhoti et al. (2020): all posts in the order of NumPy's shuffle
with seed 1, the last fifth for testing and the 900 before it for validation. `20news-bydate.tar.gz` (18,846) has its
own, `train` and `test`. Bodies alone are read, from the first empty line on; the vocabulary is that of all posts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError, refusing
from calibcli.inputs.dataset.downloads.members import DAMAGED, Members, contents
from calibcli.inputs.dataset.keys import Found
from calibcli.inputs.dataset.vocabulary import numbers, vocabulary, words_of
from calibcli.inputs.files.arrays import Memory
from calibcli.inputs.files.source import Source
from calibcli.predictions import Ints

POST = re.compile(r"(?:(?P<part>.*)/)?(?P<group>[^/]+)/\d+")
BY_DATE = re.compile(r"(?:.*/)?[^/]*-(train|test)")
VALIDATION = 900 / 19_997


def splits(there: Members) -> list[str]:
    """Of a folder or archive of groups of posts; none of any other."""
    names = _some(there.path) if there.kind == "folder" else there.every
    found = [match for name in names if (match := POST.fullmatch(name))]
    if there.kind not in ("folder", "tar") or len({m["group"] for m in found}) < 2 or len(found) < 0.9 * len(names):
        return []
    parts = {_part(match) for match in found}
    return [name for name in ("train", "test") if name in parts] or ["train", "validation", "test"]


def read(there: Members, split: str) -> Found:
    """The posts of a split, (N, 1000) numbers of words.

    Raises:
        InputError: no such split, or files that cannot be read.
    """
    name, stat = there.split(split, splits(there)), there.path.stat()
    posts, tokens, names, parts = _all(there.path, there.kind, stat.st_mtime_ns, stat.st_size)
    rows = np.flatnonzero(np.array(parts) == name) if any(parts) else shuffled(len(parts))[name]
    words = f"the {len(posts.words) - 1:,} most frequent words"
    notes = [f"20 Newsgroups, {name}: {len(rows):,} posts of {len(posts.classes or ())} groups; {words}"]
    ids = np.array([names[i] for i in rows])
    return replace(posts, inputs={"": Memory(tokens[rows])}, labels=posts.labels[rows], ids=ids, notes=notes)


def shuffled(n: int) -> dict[str, Ints]:
    """Rows of each split, as the code of Mukhoti et al. (2020) makes them: 15,098, 900 and 3,999 of 19,997."""
    order = np.arange(n)
    np.random.RandomState(1).shuffle(order)
    test, validation = int(0.2 * n), round(VALIDATION * n)
    first, second = n - test - validation, n - test
    return {"train": order[:first], "validation": order[first:second], "test": order[second:]}


def _some(root: Path) -> list[str]:
    """The first entry of each folder, and of each folder in it: enough to know a layout by."""
    found = []
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        first = next(os.scandir(folder), None)
        if first is not None and first.is_dir():
            found += [f"{folder.name}/{one}" for one in _some(folder)]
        elif first is not None:
            found.append(f"{folder.name}/{first.name}")
    return found


def _part(match: re.Match[str]) -> str:
    """`train` of `20news-bydate-train/sci.med/1`."""
    by_date = BY_DATE.fullmatch(match["part"] or "")
    return by_date[1] if by_date else ""


@functools.lru_cache(maxsize=1)  # its splits are read one after the other
def _all(path: Path, kind: str, modified: int, size: int) -> tuple[Found, NDArray[np.int32], list[str], list[str]]:
    """All posts, their words as numbers (N, 1000), names, and the split of each ("" where they have none)."""
    held = contents(path) if kind == "tar" else _folder(path)
    found = {name: match for name in sorted(held) if (match := POST.fullmatch(name))}
    classes = sorted({match["group"] for match in found.values()})
    number = {group: i for i, group in enumerate(classes)}
    order = sorted(found, key=lambda name: (number[found[name]["group"]], name))
    bodies = [words_of(_body(held[name].decode("latin-1"))) for name in order]
    words = vocabulary(bodies)
    digest = hashlib.sha256()
    for name in order if kind == "folder" else ():
        digest.update(f"{name}\0{len(held[name])}\0".encode() + held[name])
    labels = np.array([number[found[name]["group"]] for name in order], np.int64)
    sha256 = Source(path).sha256() if kind == "tar" else digest.hexdigest()
    posts = Found({}, labels, sha256, classes=classes, integral=True, words=words)
    names = ["/".join(name.split("/")[-2:]) for name in order]
    return posts, numbers(bodies, words), names, [_part(found[name]) for name in order]


def _body(text: str) -> str:
    start = text.find("\n\n")
    return text[start:] if start > 0 else text


def _folder(root: Path) -> dict[str, bytes]:
    with refusing(DAMAGED, lambda error: f"{root} cannot be read ({str(error)[:80]})", "check its files"):
        files = sorted(p for p in root.rglob("*") if p.name.isdigit() and p.is_file())
        if sum(p.stat().st_size for p in files) > 1 << 30:
            raise InputError(f"the posts of {root} take more than 1 GB", "pass a folder of 20 Newsgroups")
        return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}
