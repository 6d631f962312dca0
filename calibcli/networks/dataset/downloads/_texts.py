"""Text data sets as they are downloaded: 20 Newsgroups and the Stanford Sentiment Treebank."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, refusing
from calibcli.networks.dataset._arrays import DatasetArrays
from calibcli.networks.dataset.downloads._members import DAMAGED, MembersByName, contents
from calibcli.networks.dataset.vocabulary import numbers, vocabulary, words_of
from calibcli.scores.files.arrays import Memory
from calibcli.scores.files.source import Source
from calibcli.scores.predictions import Ints

# 20 Newsgroups (Lang 1995): posts named by numbers, in a folder for each group; each row is the numbers of its words.
#
# `20_newsgroups.tar.gz` (19,997 posts) gets the splits of Mukhoti et al. (2020): all posts shuffled by NumPy with seed
# 1, the last fifth for testing and the 900 before it for validation. `20news-bydate.tar.gz` (18,846 posts) has its own
# `train` and `test`. Only the bodies are read, from the first empty line on; the vocabulary is that of all posts.

POST = re.compile(r"(?:(?P<part>.*)/)?(?P<group>[^/]+)/\d+")
BY_DATE = re.compile(r"(?:.*/)?[^/]*-(train|test)")
VALIDATION = 900 / 19_997


def newsgroups_splits(members: MembersByName) -> list[str]:
    """List the splits of a folder or archive of groups of posts; [] for another data set."""
    names = _some(members.path) if members.kind == "folder" else members.every
    matches = [match for name in names if (match := POST.fullmatch(name))]
    of_posts = len({m["group"] for m in matches}) > 1 and len(matches) >= 0.9 * len(names)
    if members.kind not in ("folder", "tar") or not of_posts:
        return []
    parts = {_part(match) for match in matches}
    return [name for name in ("train", "test") if name in parts] or ["train", "validation", "test"]


def read_newsgroups(members: MembersByName, split: str) -> DatasetArrays:
    """Read the posts of a split, (N, 1000) numbers of words.

    Raises:
        InputError: no such split, or files that cannot be read.
    """
    name, stat = members.split(split, newsgroups_splits(members)), members.path.stat()
    posts, tokens, names, parts = _all(members.path, members.kind, stat.st_mtime_ns, stat.st_size)
    rows = np.flatnonzero(np.array(parts) == name) if any(parts) else shuffled(len(parts))[name]
    words = f"the {len(posts.words) - 1:,} most frequent words"
    notes = [f"20 Newsgroups, {name}: {len(rows):,} posts of {len(posts.classes or ())} groups; {words}"]
    ids = np.array([names[i] for i in rows])
    # Those by date are split in another way, and are another data set.
    published = "" if any(parts) else "20 Newsgroups"
    inputs = {"": Memory(tokens[rows])}
    return replace(posts, inputs=inputs, labels=posts.labels[rows], ids=ids, notes=notes, published=published)


def shuffled(n: int) -> dict[str, Ints]:
    """Split rows as the code of Mukhoti et al. (2020) does: 15,098, 900 and 3,999 of 19,997."""
    order = np.arange(n)
    np.random.RandomState(1).shuffle(order)
    test, validation = int(0.2 * n), round(VALIDATION * n)
    first, second = n - test - validation, n - test
    return {"train": order[:first], "validation": order[first:second], "test": order[second:]}


def _some(root: Path) -> list[str]:
    """List the first entry of each folder, and of each folder in it: enough to recognise a layout."""
    entries = []
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        first = next(os.scandir(folder), None)
        if first is not None and first.is_dir():
            entries += [f"{folder.name}/{one}" for one in _some(folder)]
        elif first is not None:
            entries.append(f"{folder.name}/{first.name}")
    return entries


def _part(match: re.Match[str]) -> str:
    """Return `train` for `20news-bydate-train/sci.med/1`; "" if the path names no split."""
    by_date = BY_DATE.fullmatch(match["part"] or "")
    return by_date[1] if by_date else ""


@functools.lru_cache(maxsize=1)  # its splits are read one after the other
def _all(
    path: Path, kind: str, modified: int, size: int
) -> tuple[DatasetArrays, NDArray[np.int32], list[str], list[str]]:
    """Read all posts, their words as numbers (N, 1000), names, and the split of each ("" if they have none)."""
    files = contents(path) if kind == "tar" else _folder(path)
    matches = {name: match for name in sorted(files) if (match := POST.fullmatch(name))}
    classes = sorted({match["group"] for match in matches.values()})
    number = {group: i for i, group in enumerate(classes)}
    order = sorted(matches, key=lambda name: (number[matches[name]["group"]], name))
    texts = (files[name].decode("latin-1") for name in order)
    bodies = [words_of(text[max(text.find("\n\n"), 0) :]) for text in texts]
    words = vocabulary(bodies)
    digest = hashlib.sha256()
    for name in order if kind == "folder" else ():
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    labels = np.array([number[matches[name]["group"]] for name in order], np.int64)
    sha256 = Source(path).sha256() if kind == "tar" else digest.hexdigest()
    posts = DatasetArrays({}, labels, sha256, classes=classes, integral=True, words=words)
    names = ["/".join(name.split("/")[-2:]) for name in order]
    return posts, numbers(bodies, words), names, [_part(matches[name]) for name in order]


def _folder(root: Path) -> dict[str, bytes]:
    with refusing(DAMAGED, lambda error: f"{root} cannot be read ({str(error)[:80]})", "check its files"):
        files = sorted(p for p in root.rglob("*") if p.name.isdigit() and p.is_file())
        if sum(p.stat().st_size for p in files) > 1 << 30:
            raise InputError(f"the posts of {root} take more than 1 GB", "pass a folder of 20 Newsgroups")
        return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}


# The Stanford Sentiment Treebank (Socher et al. 2013): a labelled binary tree per line, `(3 (2 It) (4 works))`.
#
# `trainDevTestTrees_PTB.zip`, or its folder `trees`, with the classes and rows of Mukhoti et al. (2020): 0 and 1 are
# negative, 2 neutral, 3 and 4 positive; neutral sentences are left out (6,920, 872 and 1,821 remain). Their network is
# trained on every phrase, so the training rows are phrases; the rows of the other splits are sentences.

FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
CLASSES = ["negative", "neutral", "positive"]
NEUTRAL, JOIN = 2, ""  # the neutral label; the "word" that joins the two trees before it
TOKEN = re.compile(r"\(([0-4]) |([^\s()]+)|(\))", re.ASCII)  # a no-break space is part of a word, as in `8\xa01\/2`
Tree = tuple[list[str], list[tuple[int, int, int]]]


def sst_splits(members: MembersByName) -> list[str]:
    """List the splits whose trees are present; [] for another data set."""
    present = [name for name, file in FILES.items() if file in members.paths]
    return present if "train" in present and re.match(rb"\([0-4] [^\n]*\)", _head(members, FILES["train"])) else []


def read_sst(members: MembersByName, split: str) -> DatasetArrays:
    """Read trees in postfix order, (N, longest): the numbers of words, -1 for a join, then zeros.

    Raises:
        InputError: there is no such split, or a line is not a binary tree.
    """
    present = sst_splits(members)
    name, files = members.split(split, present), [FILES[one] for one in present]
    data = members.read(files)
    trees = {one: _trees(data[FILES[one]], f"{FILES[one]} of {members.path}") for one in present}
    word_list = vocabulary([[w for w in words if w] for one in present for words, _ in trees[one]], most=1 << 31)
    number = {word: i for i, word in enumerate(word_list)} | {JOIN: -1}
    sentences = [(i, tree) for i, tree in enumerate(trees[name]) if tree[1][-1][0] != NEUTRAL]
    rows = [(i, words, node) for i, (words, nodes) in sentences for node in (nodes if name == "train" else nodes[-1:])]
    out = np.zeros((len(rows), max((len(words) for _, (words, _) in sentences), default=1)), np.int32)
    for row, (_, words, (_, start, stop)) in zip(out, rows, strict=True):
        row[: stop - start] = [number[word] for word in words[start:stop]]
    labels = np.array([1 + (node[0] > NEUTRAL) - (node[0] < NEUTRAL) for *_, node in rows], np.int64)
    phrases = f"{len(rows):,} phrases of " if name == "train" else ""
    note = f"trees of words, {name}: {phrases}{len(sentences):,} sentences, without those that are neutral as a whole"
    ids = np.array([f"{name} {i + 1}:{start}-{stop}" for i, _, (_, start, stop) in rows])
    sha256 = members.sha256(files, data)
    arrays = DatasetArrays({"": Memory(out)}, labels, sha256, ids, CLASSES, [note], integral=True, words=word_list)
    return replace(arrays, published="Stanford Sentiment Treebank")


def parsed(line: str) -> Tree:
    """Parse a tree to its words in postfix order, and the label, start and stop of every phrase, the sentence last.

    >>> parsed("(3 (2 It) (4 works))")
    (['It', 'works', ''], [(2, 0, 1), (4, 1, 2), (3, 0, 3)])

    Raises:
        ValueError: the line is not a binary tree.
    """
    words: list[str] = []
    nodes: list[tuple[int, int, int]] = []
    above: list[tuple[int, int, list[str]]] = [(0, 0, [])]  # open nodes: label, start, kinds of parts
    for label, word, closing in TOKEN.findall(line):
        if label:
            above.append((int(label), len(words), []))
        elif word:
            words.append(word)
            above[-1][2].append("word")
        elif closing and len(above) > 1:
            phrase_label, start, parts = above.pop()
            if parts == ["tree", "tree"]:
                words.append(JOIN)
            elif parts != ["word"]:
                raise ValueError(f"a node has {len(parts)} parts")
            nodes.append((phrase_label, start, len(words)))
            above[-1][2].append("tree")
        else:
            raise ValueError("a bracket too many")
    if len(above) > 1 or above[0][2] != ["tree"] or TOKEN.sub("", line).strip():
        raise ValueError("brackets do not match")
    return words, nodes


def _trees(data: bytes, where: str) -> list[Tree]:
    trees, fix = [], "write it as (3 (2 It) (4 works)), or download it again"
    for number, line in enumerate(data.splitlines(), 1):
        try:
            if line.strip():
                trees.append(parsed(line.decode()))
        except ValueError as error:
            raise InputError(f"{where}: line {number} is no binary tree ({str(error)[:80]})", fix) from None
    return trees


def _head(members: MembersByName, name: str) -> bytes:
    """Read the first bytes of a member; b"" if it cannot be read."""
    if members.kind in ("zip", "folder"):
        with contextlib.suppress(*DAMAGED), members.open(name) as file:
            return file.read(4096)
    return b""
