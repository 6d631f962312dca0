"""Small random data sets in published layouts, to try a study without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibcli.core.files import atomic

SHARED, OWN, LENGTHS = 400, 3, (30, 120)  # words of every group, of one group, and of a post
FEELING, PLAIN = 30, 60  # numbers of good words (and of bad ones), and of neutral words


def newsgroups(folder: str | Path, *, groups: int = 4, posts: int = 150, overlap: float = 0.1, seed: int = 0) -> Path:
    """Write a folder laid out as `20_newsgroups`: posts named by numbers in a folder for each group. Ours.

    A post has words that every group uses, by Zipf's law, and some of its group. In a fraction `overlap` of posts these
    are of a random group, so that no network can be right about all posts.

    >>> root = newsgroups(folder / "posts", groups=2, posts=3)
    >>> sorted(path.relative_to(root).as_posix() for path in root.rglob("*/*"))[:2]
    ['group.0/10000', 'group.0/10001']
    """
    rng, root, number = np.random.default_rng(seed), Path(folder), 10_000
    frequent = 1 / np.arange(1, SHARED + 1)
    for group in range(groups):
        (root / f"group.{group}").mkdir(parents=True, exist_ok=True)
        for _ in range(posts):
            length = int(rng.integers(*LENGTHS))
            topic = group if rng.random() >= overlap else int(rng.integers(groups))
            words = [f"w{i}" for i in rng.choice(SHARED, length, p=frequent / frequent.sum())]
            for place in rng.choice(length, max(1, length // 8), replace=False):
                words[place] = f"g{topic}w{rng.integers(OWN)}"
            with atomic(root / f"group.{group}" / str(number)) as temporary:
                temporary.write_text(f"Subject: {number}\n\n{' '.join(words)}.\n", encoding="latin-1")
            number += 1
    return root


def sentiment(
    folder: str | Path, *, train: int = 400, dev: int = 200, test: int = 600, noise: float = 0.1, seed: int = 0
) -> Path:
    """Write a folder laid out as `trees` of the Stanford Sentiment Treebank: `train.txt`, `dev.txt`, `test.txt`. Ours.

    The score of a phrase is the sum of those of its two parts; after `not` it is the negative of that of the second. A
    fraction `noise` of sentences has a random label, so that no network can be right about all sentences.

    >>> root = sentiment(folder / "trees", train=2, dev=1, test=1)
    >>> sum((root / "train.txt").read_text().count(bracket) for bracket in "()") % 2
    0
    """
    rng, root = np.random.default_rng(seed), Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("dev", dev), ("test", test)):
        lines = []
        for _ in range(count):
            text, score = _phrase(rng, int(rng.integers(3, 12)))
            lines.append(f"({rng.choice([0, 4]) if rng.random() < noise else _label(score)} {text})\n")
        with atomic(root / f"{name}.txt") as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    return root


def _phrase(rng: np.random.Generator, words: int) -> tuple[str, int]:
    """Draw a phrase of this many words: its text between the brackets, after the label, and its score."""
    if words == 1:
        score = int(rng.choice([-1, 0, 1], p=[0.25, 0.5, 0.25]))
        return f"{('bad', 'word', 'good')[score + 1]}{rng.integers(FEELING if score else PLAIN)}", score
    first = 1 if rng.random() < 0.3 else int(rng.integers(1, words))
    left, a = ("not", 0) if first == 1 and rng.random() < 0.4 else _phrase(rng, first)
    right, b = _phrase(rng, words - first)
    score = -b if left == "not" else a + b
    return f"({_label(a)} {left}) ({_label(b)} {right})", score


def _label(score: int) -> int:
    return min(max(2 + score, 0), 4)
