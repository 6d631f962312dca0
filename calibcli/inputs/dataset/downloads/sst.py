"""The Stanford Sentiment Treebank (Socher et al. 2013): a labelled binary tree per line, `(3 (2 It) (4 works))`.

`trainDevTestTrees_PTB.zip`, or its folder `trees`, with the classes and rows of Mukhoti et al. (2020): 0 and 1 are
negative, 2 neutral, 3 and 4 positive; sentences that are neutral as a whole are left out (6,920, 872 and 1,821 remain).
Their network is told the class of every phrase, so that the training rows are the phrases; the others are sentences.
"""

from __future__ import annotations

import contextlib
import re

import numpy as np

from calibcli.errors import CalibError, InputError
from calibcli.inputs.dataset.downloads.members import DAMAGED, Members
from calibcli.inputs.dataset.keys import Found
from calibcli.inputs.dataset.vocabulary import vocabulary
from calibcli.inputs.files.arrays import Memory

FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
CLASSES = ["negative", "neutral", "positive"]
NEUTRAL, JOIN = 2, ""  # a label; in place of a word, that the two trees before it are one
TOKEN = re.compile(r"\(([0-4]) |([^\s()]+)|(\))")
Tree = tuple[list[str], list[tuple[int, int, int]]]


def splits(there: Members) -> list[str]:
    """Those whose trees lie there; none of any other folder or archive."""
    found = [name for name, file in FILES.items() if file in there.paths]
    return found if "train" in found and re.match(rb"\([0-4] [^\n]*\)", _head(there, FILES["train"])) else []


def read(there: Members, split: str) -> Found:
    """Trees in postfix order, (N, longest): the numbers of words, -1 for a join, then zeros.

    Raises:
        InputError: no such split, or a line that is no binary tree.
    """
    held = splits(there)
    name, files = there.split(split, held), [FILES[one] for one in held]
    data = there.read(files)
    trees = {one: _trees(data[FILES[one]], f"{FILES[one]} of {there.path}") for one in held}
    known = vocabulary([[w for w in words if w] for one in held for words, _ in trees[one]], most=1 << 31)
    number = {word: i for i, word in enumerate(known)} | {JOIN: -1}
    told = [(i, tree) for i, tree in enumerate(trees[name]) if tree[1][-1][0] != NEUTRAL]
    rows = [(i, words, node) for i, (words, nodes) in told for node in (nodes if name == "train" else nodes[-1:])]
    out = np.zeros((len(rows), max((len(words) for _, (words, _) in told), default=1)), np.int32)
    for row, (_, words, (_, start, stop)) in zip(out, rows, strict=True):
        row[: stop - start] = [number[word] for word in words[start:stop]]
    labels = np.array([1 + (node[0] > NEUTRAL) - (node[0] < NEUTRAL) for *_, node in rows], np.int64)
    phrases = f"{len(rows):,} phrases of " if name == "train" else ""
    return Found(
        inputs={"": Memory(out)},
        labels=labels,
        sha256=there.sha256(files, data),
        ids=np.array([f"{name} {i + 1}:{start}-{stop}" for i, _, (_, start, stop) in rows]),
        classes=CLASSES,
        notes=[f"trees of words, {name}: {phrases}{len(told):,} sentences, without those that are neutral as a whole"],
        integral=True,
        words=known,
    )


def parsed(line: str) -> Tree:
    """Its words in postfix order, and the label, first and last place of every phrase; that of the sentence is last.

    >>> parsed("(3 (2 It) (4 works))")
    (['It', 'works', ''], [(2, 0, 1), (4, 1, 2), (3, 0, 3)])

    Raises:
        ValueError: no binary tree.
    """
    words: list[str] = []
    nodes: list[tuple[int, int, int]] = []
    above: list[tuple[int, int, list[str]]] = [(0, 0, [])]  # label, first place, of what it is made
    for label, word, closing in TOKEN.findall(line):
        if label:
            above.append((int(label), len(words), []))
        elif word:
            words.append(word)
            above[-1][2].append("word")
        elif closing and len(above) > 1:
            own, start, parts = above.pop()
            if parts == ["tree", "tree"]:
                words.append(JOIN)
            elif parts != ["word"]:
                raise ValueError(f"a node has {len(parts)} parts")
            nodes.append((own, start, len(words)))
            above[-1][2].append("tree")
        else:
            raise ValueError("a bracket too many")
    if len(above) > 1 or above[0][2] != ["tree"] or TOKEN.sub("", line).strip():
        raise ValueError("brackets do not match")
    return words, nodes


def _trees(data: bytes, where: str) -> list[Tree]:
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            if line.strip():
                found.append(parsed(line.decode()))
        except CalibError:
            raise
        except ValueError as error:
            problem = f"{where}: line {number} is no binary tree ({str(error)[:80]})"
            raise InputError(problem, "write it as (3 (2 It) (4 works)), or download it again") from None
    return found


def _head(there: Members, name: str) -> bytes:
    """Its first bytes; none of what cannot be read."""
    if there.kind in ("zip", "folder"):
        with contextlib.suppress(*DAMAGED), there.open(name) as file:
            return file.read(4096)
    return b""
