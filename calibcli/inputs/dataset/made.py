"""Small data sets in published layouts, drawn from a seed: for trying a study out without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibcli.files import atomic

SHARED, OWN, LENGTHS = 400, 3, (30, 120)  # words of every group, of one group, and of a post


def newsgroups(folder: str | Path, *, groups: int = 4, posts: int = 150, overlap: float = 0.1, seed: int = 0) -> Path:
    """A folder laid out as `20_newsgroups`: posts named by numbers in a folder for each group. Ours.

    A post has words that every group uses, by Zipf's law, and some of its group; in a share `overlap` of posts those
    are of another group, so that no network can be right about them.

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
            about = group if rng.random() >= overlap else int(rng.integers(groups))
            words = [f"w{i}" for i in rng.choice(SHARED, length, p=frequent / frequent.sum())]
            for place in rng.choice(length, max(1, length // 8), replace=False):
                words[place] = f"g{about}w{rng.integers(OWN)}"
            with atomic(root / f"group.{group}" / str(number)) as temporary:
                temporary.write_text(f"Subject: {number}\n\n{' '.join(words)}.\n", encoding="latin-1")
            number += 1
    return root
