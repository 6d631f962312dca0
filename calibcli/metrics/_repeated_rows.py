"""Rows that occur more than once in what is merged, from a sample of the distinct rows.

A state keeps the distinct rows of smallest hash, with the number of rows that look like each (the bottom-k sketch of
Cohen and Kaplan 2007). The sample does not depend on how the rows are split, nor on the order of merging, and the
counts in it are those of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from calibcli.core.statistics import scrambled
from calibcli.scores.files.arrays import texts_of
from calibcli.scores.histogram import NAMES
from calibcli.scores.input_mistakes import MOST_COPIES, TOGETHER, Hashes, hash_rows, one_outcome
from calibcli.scores.predictions import Array, Floats, Ints

UNLABELLED = NAMES[1::2]  # columns that do not depend on the label, 1 - confidence first
KEPT = 4096  # distinct rows that a state keeps
DIGITS = 13, 20  # bits that are kept of several numbers that identify a row, and of one that does so alone
SURE = 4.0  # standard errors
MIXED = 4.0  # contents of one outcome for one of both, among different samples
REPEATED = 0.05  # share of repeated rows from which a gate gives no verdict: at it, α of 5 % becomes 5.8 %
REPEATED_IDS = 0.01  # the same of ids, which leave no doubt; padding of a sampler is less


@dataclass(frozen=True, eq=False)
class RowMarks:
    """Distinct rows with the smallest hashes.

    Attributes:
        hashes: (n,) uint64, rising.  rows: (n,) int64 rows of this hash.
        wrong: (n,) int64 wrong predictions among them.  rest: (n,) float32 1 - confidence of one of them.
    """

    hashes: Hashes
    rows: Ints
    wrong: Ints
    rest: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def of(cls, hashes: Hashes, wrong: Array | None = None, rest: Array | None = None) -> RowMarks:
        """Return the marks of single rows; ids have neither outcome nor confidence."""
        n = len(hashes)
        none = np.zeros(n, np.int64)
        outcome = none if wrong is None else wrong.astype(np.int64)
        return cls(hashes, none + 1, outcome, np.zeros(n, np.float32) if rest is None else rest).reduced()

    @classmethod
    def none(cls) -> RowMarks:
        """Return the marks of no rows."""
        return cls.of(np.empty(0, np.uint64))

    def reduced(self) -> RowMarks:
        """Return the distinct rows of smallest hash among rows in any order."""
        order = np.argsort(self.hashes, kind="stable")
        hashes = self.hashes[order]
        begins = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(order) else order
        if not len(begins):
            return self
        rows, wrong = (np.add.reduceat(column[order], begins)[:KEPT] for column in (self.rows, self.wrong))
        begins = begins[:KEPT]
        return RowMarks(hashes[begins], rows, wrong, self.rest[order[begins]])

    def with_rows(self, other: RowMarks) -> RowMarks:
        """Return the marks of the rows of both."""
        if not len(self) or not len(other):
            return self if len(self) else other
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return RowMarks(*map(np.concatenate, pairs)).reduced()

    def repeated_ids(self) -> float:
        """Return the share of rows whose id another row has."""
        return float((self.rows - 1).sum()) / float(self.rows.sum()) if len(self) else 0.0

    def copies(self) -> float:
        """Return the share of rows that are surely copies of others, or 0 where rows may look alike by chance.

        Different samples look alike where a model has few distinct scores, and these coincide at random: the number of
        rows of a content is then a Poisson variable with some mean λ, whatever the split into parts. Of such contents a
        share E[exp(-λ) λ^j / j!] has j rows, so that j! times it are moments of one distribution, and by the inequality
        of Cauchy and Schwarz f_j is at most √(f_(j-1) f_(j+1) (j + 1) / j). Copies break that: rows that four ranks
        evaluate occur 4 times, and hardly any 3 or 5 times; of parts that overlap, some occur twice and none 3 times.
        What f_j has beyond this bound, if it is `SURE` standard errors, are copies.

        Scores that are percentiles have equal numbers of rows, too, but their rows are not right or wrong together, as
        copies are. So f_j counts contents of one outcome, less `MIXED` times those of both outcomes: as many as
        different samples would have of one outcome if a fifth of such contents had both.
        """
        times, same = np.minimum(self.rows, KEPT), (self.wrong == 0) | (self.wrong == self.rows)
        counts, alone = (np.bincount(one, minlength=KEPT + 2).astype(float) for one in (times, times[same]))
        j = np.arange(2, KEPT + 1)
        mixed = counts[j] - alone[j]
        # one more each: a count of 0 may be chance
        below, above, share = counts[j - 1] + 1, counts[j + 1] + 1, (j + 1) / j
        beyond = alone[j] - np.sqrt(below * above * share) - MIXED * mixed
        error = np.sqrt(alone[j] + share * (below + above) / 4 + MIXED**2 * mixed)
        copies = float(((j - 1) * beyond)[beyond > SURE * error].sum())
        return copies / max(float(self.rows.sum()), 1.0)

    def together(self) -> float:
        """Return the share of rows that look like others and are right or wrong together with them, or 0.

        Copies are, and so are different samples of which few features tell the label: this is no proof. It is told by
        the rule for one array (`one_outcome`).
        """
        alike = self.rows > 1
        if (self.rows[alike] - 1).sum() <= MOST_COPIES * self.rows.sum() or self.rows.max() > TOGETHER:
            return 0.0
        by_confidence = np.argsort(self.rest[alike], kind="stable")
        wrong, rows = self.wrong[alike][by_confidence].astype(np.float64), self.rows[alike][by_confidence]
        if not one_outcome(wrong, rows):
            return 0.0
        return float((rows[(wrong == 0) | (wrong == rows)] - 1).sum()) / float(self.rows.sum())


@dataclass(eq=False)
class Marking:
    """Marks rows block by block, by what a model says of them: not by their label, in which copies agree anyway.

    Rows of which a model is certain, or of which it says nothing, are not marked: they look alike.
    """

    k: int
    top_only: bool = False
    marks: RowMarks = field(default_factory=RowMarks.none)

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> Hashes:
        """Add the columns of a block; return what marks each row."""
        alone = self.k == 2 or self.top_only
        complement = out["rest"].astype(np.float32)
        columns = [complement, *(out[name].astype(np.float32) for name in UNLABELLED[1:] if not alone)]
        shown = _rounded(np.stack(columns), DIGITS[alone])
        hashes = scrambled(hash_rows(np.concatenate([shown, predicted[None].astype(np.float32)])))
        kept = (complement > 0) & (out["rest"] < (1.0 if self.top_only else (1 - 1 / self.k) * (1 - 1e-6)))
        if len(self.marks) == KEPT:
            kept &= hashes <= self.marks.hashes[-1]
        some = RowMarks.of(hashes[kept], (predicted != labels)[kept], complement[kept])
        self.marks = self.marks.with_rows(some)
        return hashes


def of_ids(ids: Array) -> Hashes:
    """Return a hash (n,) of each id; it does not depend on the width of the dtype."""
    if ids.dtype.kind in "iu":
        return scrambled(ids.astype(np.int64).view(np.uint64))
    texts = np.ascontiguousarray(texts_of(ids))
    letters = texts.view(np.uint32).reshape(len(texts), -1)  # (n, longest), 0 behind the end of a text
    factors = np.random.Generator(np.random.PCG64(0)).integers(0, 2**63, letters.shape[1], np.uint64)
    hashes = np.zeros(len(texts), np.uint64)
    for column, factor in enumerate(factors * np.uint64(2) + np.uint64(1)):
        hashes += letters[:, column] * factor
    return scrambled(hashes)


def _rounded(columns: npt.NDArray[np.float32], digits: int) -> npt.NDArray[np.float32]:
    """Round numbers to as many bits after the leading one, so that copies that were computed apart look alike."""
    half = np.uint32(1 << (22 - digits))
    bits = (columns.view(np.uint32) + half) & ~np.uint32(2 * half - 1)
    return bits.view(np.float32)


def said(marks: RowMarks, ids: RowMarks) -> tuple[str, bool]:
    """Say which rows occur more than once, or ""; and whether they are so many that no gate can judge the rest."""
    share, copies = ids.repeated_ids(), marks.copies()
    if share > REPEATED_IDS or (share and copies <= REPEATED):
        about = "" if len(ids) < KEPT else "about "
        count = f"{about}{100 * share:.2g} % of the rows with ids have the id of another row"
        return f"{count}: they were added more than once, and count more than once", share > REPEATED_IDS
    if copies >= REPEATED / 10:
        text = f"about {100 * copies:.0f} % of the rows are copies of others (the same scores), and count again"
        return text, copies > REPEATED
    if share := marks.together():
        text = f"about {100 * share:.0f} % of the rows look like others, and are right or wrong together with them"
        return f"{text}: if they are copies, the intervals are too narrow", False
    return "", False
