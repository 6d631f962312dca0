"""Check all rows in one pass for mistakes that people make with scores and labels; find rows that occur twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from calibcli.core import extensions
from calibcli.core.errors import InputError
from calibcli.core.number_format import count_text, first_few
from calibcli.core.statistics import binomial_tail, counted
from calibcli.scores._score_kind import (
    FEWEST,
    ConstantSum,
    Mistake,
    Nonfinite,
    Outcome,
    RowCount,
    Scan,
    ScoreBlock,
    UnitSums,
)
from calibcli.scores.columns import MANY
from calibcli.scores.predictions import (
    UNIT_HIGH,
    UNIT_LOW,
    Array,
    Floats,
    Ints,
    Kind,
    Named,
    Predictions,
    Progress,
    reusing,
    rows_of,
    same_rows,
)
from calibcli.scores.softmax import CACHED, NARROW, DeviceScores, Piece

Hashes = npt.NDArray[np.uint64]
OF_ONE = 0.01  # of the tolerance of a row's sum, what one probability is given: as 100 classes would share it
MARKS = 4  # score columns that identify a row, beside its largest score and that of its label
ORDER_P = 1e-6  # p-value below which labels are taken to be in another order: an error on sound files is that rare
MOST_COPIES = 0.2  # share of copied rows above which a gate gives no verdict
TOGETHER = 10  # copies of one row, at most: scores that occur more often come from a model with few distinct scores
EVERY = 0.95  # share of the different rows from which counts that are all multiples of k tell of k copies of a file
HASHED = 4_000_000  # rows up to which duplicates are searched
PERFECT = 100  # rows from which a file without a single wrong prediction gets a note
UNLIKELY = 0.01  # chance of no wrong prediction, by the probabilities themselves, up to which it gets that note
LARGE = 6e4  # float16 ends at 65504
BACKWARDS_Z = 3.09  # standard errors below 1/2 that an AUC reaches by chance once in a thousand
PAIRS = 200_000  # rows in which predicted class and label are compared, about
WIDE = 1 << 21  # scores of many classes per piece
MANY_ABSENT, SHARE_ABSENT = 20, 0.05  # rows, and share of them, that predict a class which no label is
DIFFER = 20  # neighbours that differ, at least, for the agreement of rows of equal scores to mean anything


class OneColumn(Mistake):
    """One score per row: which class it belongs to is a convention, and a note says which was assumed."""

    def verdict(self, outcome: Outcome) -> list[str]:
        if outcome.scan.k > 1:
            return []
        quantity = {"logits": "log-odds", "log_probabilities": "log P"}.get(outcome.kind, "P")
        return [f"one score per row: read as {quantity} of {outcome.classes[1] if outcome.classes else 'class 1'}"]


class UnnormalisedRows(Mistake):
    """Rows of probabilities that do not sum to one; each is then divided by its sum."""

    def verdict(self, outcome: Outcome) -> list[str]:
        scan, probabilities = outcome.scan, outcome.kind == "probabilities"
        worst = scan.off(outcome.kind)  # the largest |sum - 1| of a row; 0 for logits
        # of sums of probabilities, by their dtype and decimals; else of log-probabilities, whose logsumexp is to be 0
        tolerance = scan.unit.tolerance if probabilities else scan.tolerance
        if worst <= tolerance:
            return []
        rows = f"{scan.unit.off.count:,} of {scan.finite:,} rows do" if probabilities else "rows do"
        return [f"{rows} not sum to 1 (largest deviation {worst:.2g}): each is divided by its sum"]


@dataclass
class SoftmaxTwice(Mistake):
    """Every probability lies where softmax would put it if it were applied to probabilities.

    Attributes:
        low, high: smallest and largest score.  spread: largest range of scores within a block.
    """

    low: float = math.inf
    high: float = -math.inf
    spread: float = 0.0

    def see(self, block: ScoreBlock) -> None:
        self.low, self.high = min(self.low, block.low), max(self.high, block.high)
        self.spread = max(self.spread, block.high - block.low)

    def verdict(self, outcome: Outcome) -> list[str]:
        """A note, or for 10 classes and more an error, unless the kind was given."""
        k, slack = outcome.scan.k, 1e-6 + outcome.scan.unit.tolerance * OF_ONE
        low, high = 1 / (math.e + k - 1), math.e / (math.e + k - 1)  # of e^a / sum e^b for a, b in [0, 1]
        outside = self.low < low - slack or self.high > high + slack
        if outcome.kind != "probabilities" or k < 2 or self.spread < 1e-6 or outside:
            return []
        text = f"every probability lies in [{low:.3g}, {high:.3g}], where softmax of probabilities puts it"
        if k < 10 or outcome.scan.forced:
            return [f"{text}: was softmax applied twice?"]
        problem = f"{text} (here {self.low:.3g} to {self.high:.3g}): softmax was applied twice"
        raise InputError(problem, "save the logits; if the model really is this unsure: --kind probabilities")


class HalfPrecision(Mistake):
    """Logits close to the largest number of float16."""

    def verdict(self, outcome: Outcome) -> list[str]:
        low, high = outcome.scan.low, outcome.scan.high
        if outcome.kind != "logits" or max(abs(low), abs(high)) < LARGE:
            return []
        return [f"scores reach {max(low, high, key=abs):.4g}, close to the end of float16 (65504)"]


class MaskedClasses(Mistake):
    """Classes that are excluded by -inf, or by a large negative number."""

    def verdict(self, outcome: Outcome) -> list[str]:
        if outcome.scan.masks is not None:
            return [outcome.scan.masks.note]
        count = outcome.scan.nonfinite.masked.count
        return [f"-inf in {count_text(count, 'row')}: probability 0 of those classes"] if count else []


@dataclass
class ZeroProbabilityLabels(RowCount, Mistake):
    """Rows whose label has probability 0; `head` has the first scores, which show the step that they are rounded to."""

    head: Array | None = field(default=None, compare=False)

    def begin(self, head: Array, n: int) -> None:
        self.head = head

    def see(self, block: ScoreBlock) -> None:
        if block.at_label is None or (block.low >= 0 and block.high > UNIT_HIGH):
            return
        none = (block.at_label == -np.inf) | ((block.at_label <= 0) & (block.low >= UNIT_LOW))
        self.add(np.flatnonzero(none), block.row)

    def verdict(self, outcome: Outcome) -> list[str]:
        if not self.count or not (outcome.scan.nonfinite.masked.count or outcome.kind == "probabilities"):
            return []
        rows = "1 row gives its" if self.count == 1 else f"{self.count:,} rows give their"
        return [f"{rows} label probability 0 (first row {self.first}): {self._cure(outcome)}"]

    def _cure(self, outcome: Outcome) -> str:
        """Say what makes the NLL finite: of rounded probabilities, half the step that they are rounded to."""
        if outcome.kind == "logits":
            return "their NLL is infinite, as the class was left out; --clip is for probabilities"
        rounded = outcome.kind == "probabilities" and self.head is not None
        step = rounding_step(np.asarray(self.head), outcome.scan.n) if rounded else 0.0
        half = f"{min(step / 2, 1 / (2 * max(outcome.scan.k, 2))):.4g}"
        why = f"half of {step:.4g}, the step of these scores"
        if outcome.clip:
            better = f"; --clip {half} is {why}" if step > 4 * outcome.clip else ""
            return f"clipped to {outcome.clip:.4g}{better}"
        return f"their NLL is infinite; --clip {f'{half} ({why}) ' * (step > 0)}makes it finite"


@dataclass
class ConstantScores(Mistake):
    """All rows have the same scores: `first` are those of the first row, as long as all have them."""

    first: Array | None = None

    def begin(self, head: Array, n: int) -> None:
        same = n > 1 and np.array_equal(head[1], head[0]) and bool((head == head[0]).all())
        self.first = head[0].copy() if same else None

    def see(self, block: ScoreBlock) -> None:
        if self.first is not None and not np.array_equal(z := block.rows.z, np.broadcast_to(self.first, z.shape)):
            self.first = None

    def verdict(self, outcome: Outcome) -> list[str]:
        return [] if self.first is None else [same_rows(outcome.scan.n, "scores")]


@dataclass
class TiedScores(Mistake):
    """Rows with several largest scores: their accuracy depends on the rule for ties, here the first class.

    Attributes:
        tied: such rows.  tied_right: those where the label's is among them.
        right: rows whose label alone has the largest score.
        seen: rows.  chances: log of the chance that all of these labels are right, if scores are probabilities and if
            they are logits, as long as all of them are.
    """

    tied: int = 0
    tied_right: int = 0
    right: int = 0
    seen: int = 0
    chances: tuple[float, float] = (0.0, 0.0)

    def see(self, block: ScoreBlock) -> None:
        if block.at_label is None or block.rows.k == 1:
            return
        right = block.at_label == block.rows.top
        largest = block.rows.largest  # (n,) how many scores equal the largest; None if it is one in every row
        self.seen += block.rows.n
        if largest is None:
            self.right += int(np.count_nonzero(right))
            if self.right == self.seen and isinstance(block.rows.z, np.ndarray):
                top, below = block.rows.top.astype(np.float64), block.rows.z - block.rows.top[:, None]
                ours = np.log(top).sum(), -np.log(np.exp(below, dtype=np.float64).sum(axis=1)).sum()
                self.chances = self.chances[0] + float(ours[0]), self.chances[1] + float(ours[1])
            return
        several = largest > 1
        self.tied += int(several.sum())
        self.tied_right += int((several & right).sum())
        self.right += int((right & ~several).sum())

    def verdict(self, outcome: Outcome) -> list[str]:
        """Return notes on ties, and on labels that all equal the predicted class."""
        ties, n = self._counted(outcome)
        notes = []
        if ties.tied:
            low, high = ties.right / n, (ties.right + ties.tied_right) / n
            notes.append(
                f"{ties.tied:,} of {n:,} rows have several largest scores: the first class counts as predicted, by "
                f"other rules accuracy is {low:.4g} to {high:.4g}" + (" (unweighted)" if outcome.weighted else "")
            )
        if self.all_right(outcome):
            fault = "every label is the class with the largest score"
            notes.append(f"{fault}, in all {n:,} rows: were the labels made from the predictions?")
        return notes

    def all_right(self, outcome: Outcome) -> bool:
        """Whether every label is the predicted class, in more rows than a model with such scores would have right."""
        ties, n = self._counted(outcome)
        return ties.right == n >= PERFECT and ties.chances[outcome.kind != "probabilities"] < math.log(UNLIKELY)

    def _counted(self, outcome: Outcome) -> tuple[TiedScores, int]:
        """Return the counts, of one column those of its margins, and the number of rows."""
        order = outcome.scan[ClassOrder]
        if outcome.scan.k == 1 and order.margins:
            return order.one_column(outcome.kind)
        return self, outcome.scan.finite


@lru_cache(maxsize=4)
def marker_classes(k: int) -> tuple[int, ...]:
    """Return the classes whose scores identify a row."""
    return tuple(sorted(set(np.linspace(0, k - 1, MARKS).astype(np.int64).tolist())))


@dataclass
class RepeatedRows(Mistake):
    """Rows that repeat an earlier one (scores and label); rows that are certain or constant are not counted.

    Attributes:
        scores: (c, n) float32 scores that identify a row, of each block: those of some classes, and the largest.
        own: (2, n) float32 score of the label, and the label.
        wrong: (n,) whether the label is another class than the predicted one.
        near: (n,) marks of the scores rounded to about 4 digits. Other marks are made where rows are alike by these.
    """

    scores: list[Array] = field(default_factory=list)
    own: list[Array] = field(default_factory=list)
    wrong: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    near: list[Hashes] = field(default_factory=list)

    def see(self, block: ScoreBlock) -> None:
        rows, at_label, labels = block.rows, block.at_label, block.labels
        if at_label is None or labels is None or block.n > HASHED:
            return
        scores = np.array([*rows.columns(marker_classes(rows.k)), rows.top])
        telling = (scores[1:-1] != scores[0]).any(axis=0) if rows.k > 1 else np.ones(len(rows), bool)
        telling &= at_label != 1
        wrong = (rows.best if rows.k > 1 else scores[0] > 0.5) != labels
        scores, label_data = scores.astype(np.float32, copy=False), np.array([at_label, labels], np.float32)
        if not telling.all():
            scores, label_data, wrong = scores[:, telling], label_data[:, telling], wrong[telling]
        scores += np.float32(0)  # -0 is 0, also when it is rounded
        self.scores.append(scores)
        self.own.append(label_data)
        self.wrong.append(wrong)
        self.near.append(hash_rows(round_to_digits(scores)))

    @cached_property
    def of_scores(self) -> list[Hashes]:
        """Marks of the scores, without rounding."""
        return [hash_rows(scores) for scores in self.scores]

    @cached_property
    def alike(self) -> int:
        """Rows whose scores repeat earlier ones to about 4 digits: no fewer than those that repeat them exactly."""
        return _repeats(self.near)

    @cached_property
    def of_rows(self) -> list[Hashes]:
        """Marks of scores and label together, without rounding."""
        return [*map(np.bitwise_xor, self.of_scores, map(hash_rows, self.own))]

    @cached_property
    def count(self) -> int:
        return _repeats(self.of_rows) if self.alike else 0

    def _groups(self, marks: list[Hashes]) -> tuple[Floats, Ints, Ints]:
        """Return, for each group of two or more rows of equal marks, its wrong rows, its rows, and one of them."""
        order = np.argsort(joined := np.concatenate(marks))
        begins = np.flatnonzero(np.append(True, np.diff(joined[order]) != 0))
        rows = np.diff(np.append(begins, len(joined)))
        wrong = np.add.reduceat(np.concatenate(self.wrong)[order].astype(np.float64), begins)
        return wrong[rows > 1], rows[rows > 1], order[begins[rows > 1]]

    @property
    def by_chance(self) -> bool:
        """Whether rows of equal scores have independent labels, as different samples do under a model with few distinct
        scores.

        Copies of a sample are right or wrong together. Two other samples of which a share e is wrong differ in that
        with a probability of about 2 e (1 - e): half of that is enough here.
        """
        wrong, rows, _ = self._groups(self.of_scores)
        share = wrong.sum() / rows.sum()
        differ = float((2 * wrong * (rows - wrong) / rows).sum()) / float((rows - 1).sum())
        return differ > 0 and differ >= share * (1 - share)

    def _times(self) -> int:
        """Return how many copies of the same rows (scores and label) the file is, or 0: nearly all rows then occur that
        often, or a multiple of it. Of different samples about half of the counts are even.
        """
        _, rows, _ = self._groups(self.of_rows)
        different = len(rows) + sum(map(len, self.of_rows)) - int(rows.sum())
        multiples = (times for times in range(2, TOGETHER + 1) if (rows % times == 0).sum() >= EVERY * different)
        return next(multiples, 0) if different >= DIFFER else 0

    def copies(self, n: int) -> int:
        """Count the rows that are copies of others, to about 4 digits, or 0 where at most a fifth of `n` are.

        A model of few values, or one that is certain of many rows, repeats some scores very often: where any scores
        occur more than `TOGETHER` times, nothing is counted. Else rows of the same scores are copies only if they are
        right or wrong together where rows of other scores, with a margin next to theirs, are not; where almost all
        rows are right, the labels show nothing. Chance explains pairs that differ half as often as those of
        neighbours; and the labels show nothing where fewer than `DIFFER` neighbours differ. No labels are needed where
        a file was appended to itself.
        """
        if self.alike <= MOST_COPIES * sum(map(len, self.near)):
            return 0
        if times := self._times():
            return n - n // times
        if self.alike <= MOST_COPIES * n:
            return 0
        wrong, rows, representative = self._groups(self.near)
        if rows.max() > TOGETHER:
            return 0
        by_margin = np.argsort(
            np.concatenate([_margins(scores) for scores in self.scores])[representative], kind="stable"
        )
        wrong, rows = wrong[by_margin], rows[by_margin]
        if not one_outcome(wrong, rows):
            return 0
        copies = int((rows[(wrong == 0) | (wrong == rows)] - 1).sum())
        return copies if copies > MOST_COPIES * n else 0

    def verdict(self, outcome: Outcome) -> list[str]:
        count, n = self.count, outcome.scan.n
        if outcome.scan[ConstantScores].first is not None or count <= 0.01 * n or self.by_chance:
            return []
        return [
            f"{count:,} of {n:,} rows repeat an earlier row (scores and label): if they are the same samples, the "
            "intervals are too narrow"
        ]


def one_outcome(wrong: Floats, rows: Ints) -> bool:
    """Return whether the rows of a group are right or wrong together where those of groups beside it are not.

    Args:
        wrong, rows: (n,) wrong predictions and rows of each group, in the order of their margins.
    """
    share = wrong / rows
    within = float((2 * share * (1 - share) * rows).sum())
    beside = share[:-1] * (1 - share[1:]) + share[1:] * (1 - share[:-1])
    expected = float((beside * (rows[1:] + rows[:-1] - 2) / 2).sum())
    return bool(beside.sum() >= DIFFER and within <= expected / 2)


def _margins(scores: Array) -> Array:
    """Return the largest score of each row; of two classes, the score of the second less that of the first."""
    return np.asarray(scores[1] - scores[0] if len(scores) == 3 else scores[-1])


def _repeats(marks: list[Hashes]) -> int:
    """Count the rows whose mark an earlier row has."""
    joined = np.concatenate([*marks, np.empty(0, np.uint64)])
    parts = joined.view(np.uint32)[1::2], joined  # half of a mark is sorted in half the time, and may show that none do
    repeats = (np.count_nonzero(np.diff(np.sort(part)) == 0) for part in parts)
    return int(next(repeats) and next(repeats))


@dataclass
class ClassOrder(Mistake):
    """Checks whether scores and labels have the classes in the same order, on a subset of the rows (all when there are
    few).

    Attributes:
        margins: of two classes, score of the second less that of the first (one column: that alone).
    """

    predicted: list[Ints] = field(default_factory=list)
    labels: list[Ints] = field(default_factory=list)
    margins: list[Floats] = field(default_factory=list)

    def see(self, block: ScoreBlock) -> None:
        rows, labels, k = block.rows, block.labels, block.rows.k
        if labels is None or not block.sampled:
            return
        top = rows.best if k > 1 else rows.columns([0])[0] > 0.5
        self.predicted.append(top.astype(np.int64))
        self.labels.append(labels.astype(np.int64))
        if k <= 2:
            first, last = rows.columns([0, k - 1])
            self.margins.append(np.asarray(last - (first if k == 2 else 0), np.float64))

    def one_column(self, kind: Kind) -> tuple[TiedScores, int]:
        """Return the ties of a single column, and the number of rows checked."""
        score, label = np.concatenate(self.margins), np.concatenate(self.labels)
        half = {"logits": 0.0, "log_probabilities": math.log(0.5)}.get(kind, 0.5)
        tied = int((score == half).sum())
        right = int(((score > half) == (label == 1)).sum()) - int((label[score == half] == 0).sum())
        p = np.exp(score) if kind == "log_probabilities" else score
        sure = 1 / (1 + np.exp(-np.abs(p))) if kind == "logits" else np.maximum(p, 1 - p)
        return TiedScores(tied, tied, right, len(score), (float(np.log(sure).sum()),) * 2), len(score)

    def verdict(self, outcome: Outcome) -> list[str]:
        """Return a note if `class_order` finds another order and `--classes` confirmed this one; without that, it is an
        error.
        """
        k, classes = max(outcome.scan.k, 2), outcome.classes
        if not self.predicted:
            return []
        if k == 2:
            return self.backwards(classes or ("y = 0", "y = 1"))
        labels = np.concatenate(self.labels)
        renaming = class_order(np.concatenate(self.predicted), labels, k)
        if renaming is None:
            return []
        moved, plain, renamed = renaming
        name = (lambda i: str(classes[i])) if classes else str
        shown = first_few((f"{name(r)} -> {name(c)}" for r, c in sorted(moved.items())), 4)
        text = (
            f"scores and labels seem to order the classes differently: score column -> label {shown} "
            f"would raise accuracy from {plain:.3f} to {renamed:.3f} "
            f"on rows that were not used to find it (p < 1e-6)"
        )
        if outcome.confirmed:
            return [text]
        if all(c == (r + 1) % k for r, c in moved.items()) and not (labels == 0).any():
            raise InputError(text, "no label is 0: --label-base 1, if the first class is called 1")
        fix = "give scores and labels the same order; if it is right with labels as numbers: --classes NAMES"
        raise InputError(text, fix)

    def backwards(self, names: Sequence[str]) -> list[str]:
        """Return a note if two classes make sense the other way round: AUC < 1/2 beyond chance."""
        labels = np.concatenate(self.labels)
        table = np.bincount(2 * labels + np.concatenate(self.predicted), minlength=4).reshape(2, 2)
        if 2 * table[0, 0] * table[1, 1] >= math.prod(table.sum(axis=1).tolist()):
            return []  # AUC is at least the product of the shares that one threshold gets right, and so at least 1/2
        auc, z = auc_and_z(np.concatenate(self.margins), labels)
        if not -z >= BACKWARDS_Z:
            return []
        return [
            f"scores of {names[1]} are lower where the label is {names[1]} (AUC {auc:.3f}, below 0.5 beyond chance): "
            f"the classes may be in the wrong order (--classes in the order of the scores, or --event); reversed: "
            f"{1 - auc:.3f}"
        ]


class AbsentClasses(Mistake):
    """Classes that are predicted often and observed never."""

    def verdict(self, outcome: Outcome) -> list[str]:
        """A note, which also says if labels are 0 and 1 alone, as verdicts are and columns of one class."""
        seen, k = outcome.scan[ClassOrder], outcome.scan.k
        if k < 3 or not seen.predicted:
            return []
        predicted, labels = (np.bincount(np.concatenate(one), minlength=k) for one in (seen.predicted, seen.labels))
        absent = np.flatnonzero((labels == 0) & (predicted >= max(MANY_ABSENT, SHARE_ABSENT * predicted.sum())))
        if not len(absent):
            return []
        classes, count = outcome.classes, int(predicted[absent].sum())
        named = first_few([str(classes[i]) if classes else str(i) for i in absent.tolist()], 4)
        text = f"no label is {named}, {'which' if len(absent) > 1 else 'a class that'} {count:,} of "
        text += f"{int(predicted.sum()):,} rows predict"
        if labels[0] and labels[1] and not labels[2:].any():
            text += ": do labels of 0 and 1 say whether it was right, or whether it was one class?"
        return [text]


MISTAKES: tuple[type[Mistake], ...] = (
    OneColumn,
    UnnormalisedRows,
    TiedScores,
    SoftmaxTwice,
    HalfPrecision,
    MaskedClasses,
    ZeroProbabilityLabels,
    ConstantScores,
    RepeatedRows,
    ClassOrder,
    AbsentClasses,
)
"""The checks, in the order of their notes."""


@np.errstate(all="ignore")  # numbers that are not finite are counted
def scan(
    scores: Named,
    labels: Array | None,
    *,
    decimals: int | None = None,
    collect: bool = False,
    forced: Kind | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Check every row of (N, K) scores, once.

    Args:
        scores: (N, K) real numbers.
        labels: (N,) int64 in [0, K), or None.
        decimals: digits after the point when the scores were text.
        collect: keep the indices of rows that are not finite, to drop them.
        forced: the kind that the user says they are.
        progress: called with (fraction, text).
    """
    n, k = scores.shape
    step = min(scores.height, PAIRS) if isinstance(scores, DeviceScores) else rows_of(scores)
    head = scores.read(0, min(n, 1000))
    coarse = _coarse(head, scores.dtype)
    tolerance = max(1e-4, coarse, _rounding_of_sum(k, decimals) if decimals else 0.0)
    # the first row says it of most files
    whole = all(np.array_equal(rows, np.floor(rows)) for rows in (head[:1], head))
    constant = ConstantSum(_rounding_of_sum(k, 0 if whole else decimals))
    of_logsumexp, nonfinite = 1e-2 if coarse else 1e-3, Nonfinite(n, collect)
    mistakes = {kind: kind() for kind in MISTAKES}
    result = Scan(n, k, UnitSums(k, tolerance), of_logsumexp, nonfinite, constant, mistakes, forced)
    for mistake in mistakes.values():
        mistake.begin(head, n)
    every, height = max(1, math.ceil(n / PAIRS)), min(step, max(1, (CACHED if k <= NARROW else WIDE) // k))
    which = marker_classes(k) if labels is not None and n <= HASHED else ()
    # (n,) class of the largest score, and (n,) smallest score, which the pass over columns needs too: where they cost
    # time, and are not too many to keep
    ends = None
    if k > NARROW and n <= MANY and not isinstance(scores, DeviceScores):
        ends = np.empty(n, np.int64), np.empty(n, np.float64 if scores.dtype.itemsize > 4 else np.float32)
    scores, tell = reusing(scores), progress or extensions.tell
    for start in range(0, n, step):
        for first_row, part in _pieces(scores, start, min(start + step, n), height, which, ends):
            block_labels = None if labels is None else np.asarray(labels[first_row : first_row + len(part)])
            result.add(part, block_labels, first_row, sampled=first_row // height % every == 0)
        tell(min(1.0, (start + step) / n), "checking scores")
    result.ends = None if result.nonfinite.count else ends
    return result


def _pieces(
    scores: Named, start: int, stop: int, height: int, which: Sequence[int], ends: tuple[Ints, Array] | None
) -> Iterator[tuple[int, Piece]]:
    """Yield (first row, piece) for rows that are read together. Scores on a device give one piece, which stays
    there.

    Args:
        which: classes whose scores will be asked for.
        ends: memory for the class of the largest score and for the smallest score of all rows, or None.
    """
    if isinstance(scores, DeviceScores):
        yield start, scores.piece(start, stop)
        return
    block = scores.read(start, stop)
    if block.dtype not in (np.float32, np.float64):
        block = block.astype(np.float32 if block.dtype.itemsize <= 2 else np.float64)
    for offset in range(0, len(block), height):
        here = slice(start + offset, start + min(offset + height, len(block)))
        yield here.start, Piece(block[offset : offset + height], which, ends and (ends[0][here], ends[1][here]))


def _rounding_of_sum(k: int, decimals: int | None) -> float:
    """Return how far the rounding of K numbers to so many decimals may move their sum; 0 where it is not known."""
    return 0.0 if decimals is None else k * 0.5 * 10.0 ** -min(decimals, 300)


def _coarse(block: Array, dtype: np.dtype[np.generic]) -> float:
    """Return the tolerance for sums of probabilities stored in half precision (also if widened since), else 0."""
    if dtype.itemsize <= 2 and dtype.kind == "f":
        return 5e-3
    if dtype != np.float32 or block.size == 0:
        return 0.0
    half = bfloat = False
    for rows in (block[:1], block):  # of most files the first row says it
        half = np.array_equal(rows.astype(np.float16).astype(np.float32), rows)
        bfloat = half or bool((np.ascontiguousarray(rows).view(np.uint32) & 0xFFFF == 0).all())
        if not bfloat:
            return 0.0
    return 5e-3 if half else 1e-2


def rounding_step(scores: Array, n: int) -> float:
    """Return the step that probabilities are rounded to, such as 0.001, or 0.1 for the votes of ten trees; else 0.

    It is the largest 1/m, m up to 1,000 or a power of ten, that all scores are multiples of, also where shares of m are
    written with a few decimals: 0.0333 and 0.0667 of thirty trees. Fewer than `FEWEST` scores show nothing.
    """
    values = np.unique(scores[(scores > 0) & (scores < 1)].astype(np.float64))
    if n < FEWEST or not len(values):
        return 0.0
    slack = 1e-12 if scores.dtype.itemsize > 4 else 2e-7  # of a score, by its own rounding
    written = next((10**d for d in range(2, 7) if _multiples(values, 10**d, slack * 10**d)), 0)
    for m in range(
        2, min(written // 20, 1001)
    ):  # multiples of 1/m that were rounded to these decimals, and hardly by chance
        near = m / (2 * written) + slack * m
        if near <= 0.1 and (2 * near) ** len(values) < 1e-6 and _multiples(values, m, near):
            return 1 / m
    for m in (*range(2, 1001), 10**4, 10**5, 10**6):
        if slack * m <= 0.01 and _multiples(values, m, slack * m):
            return float(1 / m)
    return 0.0


def _multiples(values: Floats, m: int, near: float) -> bool:
    """Return whether all values are so near to multiples of 1/m, as a share of it."""
    return bool((np.abs(values * m - np.round(values * m)) <= near).all())


def auc_and_z(score: Floats, label: Array) -> tuple[float, float]:
    """Return the AUC of two classes, and by how many standard errors it exceeds 1/2 (Mann & Whitney 1947); NaN for one
    class.
    """
    n, ones = len(label), int(label.sum())
    if ones in (0, n):
        return math.nan, math.nan
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    auc = (float(rank[place][label == 1].sum()) - ones * (ones + 1) / 2) / (ones * (n - ones))
    spread = n + 1 - float((count.astype(np.float64) ** 3 - count).sum()) / (n * (n - 1))
    return auc, (auc - 0.5) / math.sqrt(spread / (12 * ones * (n - ones))) if spread > 0 else math.nan


def class_order(predicted: Ints, labels: Ints, k: int) -> tuple[dict[int, int], float, float] | None:
    """Find, on the even rows, a renaming of the classes that raises accuracy on the odd rows at p < 1e-6.

    Args:
        predicted, labels: (N,) int64 in [0, k).

    Returns:
        (moved classes: predicted -> label, accuracy as it is, accuracy after) on the odd rows, or None. Only whole
        cycles count in which most classes are each other's most frequent partner, so that a model that merely
        prefers a class is not taken for a mislabelled one. The test is exact (sign test on the rows that differ).
    """
    if k < 3 or len(predicted) < 20:
        return None
    p, y = predicted[::2], labels[::2]
    pairs, counts = counted(p * k + y)
    rows, columns = np.divmod(pairs, k)
    best_row, best_column = np.zeros(k, np.int64), np.zeros(k, np.int64)
    np.maximum.at(best_row, rows, counts)
    np.maximum.at(best_column, columns, counts)
    most = (counts == best_row[rows]) & (counts == best_column[columns])
    if bool((rows[most] == columns[most]).all()):
        return None
    mutual = set(zip(rows[most].tolist(), columns[most].tolist(), strict=True))
    order = np.argsort(-counts, kind="stable")
    image = match_classes(rows[order].tolist(), columns[order].tolist(), k)
    moved = _sound_cycles(image, mutual)
    if not moved:
        return None
    table = np.arange(k)
    table[list(moved)] = list(moved.values())
    p, y = predicted[1::2], labels[1::2]
    plain, renamed = p == y, table[p] == y
    gained, lost = int((renamed & ~plain).sum()), int((plain & ~renamed).sum())
    if binomial_tail(gained, gained + lost, 0.5) >= ORDER_P:
        return None
    return moved, float(plain.mean()), float(renamed.mean())


def match_classes(rows: list[int], columns: list[int], k: int) -> list[int]:
    """Give every class a label of its own, k of them; earlier pairs (row, column) take precedence.

    A class that no pair gives a label keeps its own where that is free, and else takes the least label that is free.
    """
    image, taken = [-1] * k, [False] * k
    for r, c in zip(rows, columns, strict=True):
        if image[r] < 0 and not taken[c]:
            image[r], taken[c] = c, True
    least = 0  # no smaller label is free
    for r in [r for r in range(k) if image[r] < 0]:
        if taken[r]:
            while taken[least]:
                least += 1
            image[r] = least
        else:
            image[r] = r
        taken[image[r]] = True
    return image


def _sound_cycles(image: Sequence[int], mutual: set[tuple[int, int]]) -> dict[int, int]:
    """Return the cycles of renamed classes in which most of the moves are among the `mutual` pairs."""
    moved: dict[int, int] = {}
    seen: set[int] = set()
    for first in sorted(r for r, c in mutual if r != c):  # a cycle without such a pair does not count
        cycle: dict[int, int] = {}
        current = first
        while current not in seen:
            seen.add(current)
            cycle[current] = current = image[current]
        if sum(move in mutual for move in cycle.items()) > len(cycle) / 2:
            moved |= cycle
    return {r: c for r, c in moved.items() if r != c}


@lru_cache(maxsize=4)
def multipliers(k: int) -> Hashes:
    return np.random.Generator(np.random.PCG64(k)).integers(0, 2**63, k, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def round_to_digits(columns: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round numbers to about 4 digits: large ones relative to their size, those below 1 to steps of 1e-4.

    So noise of 1e-6 in a small probability is rounded away too. 13 bits after the leading one are kept of 1 + |x|.
    """
    bits = (np.abs(columns) + np.float32(1)).view(np.uint32)
    bits += np.uint32(1 << 9)
    bits &= np.uint32(0xFFFFFC00)
    bits |= columns.view(np.uint32) & np.uint32(1 << 31)  # the sign
    return bits.view(np.float32)


def hash_rows(columns: Array) -> Hashes:
    """Return one number (n,) for each row of columns (c, n), cast to float32; equal rows get equal numbers."""
    bits = (columns.astype(np.float32, copy=False) + np.float32(0)).view(np.uint32)  # -0 is 0
    mixed: Hashes = multipliers(len(columns)) @ bits
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return mixed


# Rows that are both in the fitted and in the evaluated file.


OVERLAP = 0.01  # excess share of shared rows that is an error


def row_hashes(predictions: Predictions, classes: Sequence[str] | None = None) -> Hashes:
    """Return (N,) fingerprints of the score rows, in one streaming pass: equal rows have equal fingerprints.

    A multilinear hash of the bits of the scores as float32 (modulo 2^64, odd multipliers), so that float64 and
    float32 copies of a row agree. Unequal rows collide with a probability of about 1e-19 a pair.

    Args:
        classes: the order in which the columns are taken, where they have these names.
    """
    out, names = np.empty(predictions.n, np.uint64), [*(predictions.classes or ())]
    order = [names.index(name) for name in classes] if classes and {*classes} == {*names} else [*range(predictions.k)]
    with np.errstate(all="ignore"):
        for start, block in predictions.blocks():
            out[start : start + len(block)] = hash_rows(np.ascontiguousarray(block.T[order]))
    return out


def _telling(predictions: Predictions) -> npt.NDArray[np.bool_]:
    """Return an (N,) mask of the rows that are neither certain (one class has all probability) nor constant over the
    classes.
    """
    out = np.empty(predictions.n, bool)
    for start, block in predictions.blocks():
        second = np.partition(block, block.shape[1] - 2, axis=1)[:, -2]
        out[start : start + len(block)] = (second > -np.inf) & (block.max(axis=1) > block.min(axis=1))
    return out


def refuse_overlap(fit: Predictions, test: Predictions, way_out: str = "leave --test out and use --folds 5") -> str:
    """Return a note if few rows of `test` are also in `fit`, or "" if there are no more than by chance; `way_out` is
    what else the error advises.

    By chance a row of `test` has a twin in `fit` as often as a row of `fit` has one among the others of `fit`: of
    samples from one population, the share of twins among n - 1 others estimates that among n. Twins come in pairs,
    which about doubles the variance q (1 - q) / n of either share. What a split puts on both sides it takes from within
    one, so that their errors may be opposite: the refusal, which stops a run, needs three times the sum of both
    standard errors. The note, which stops nothing, takes them as independent, each at the share that chance explains.
    Rows that give one class all probability tell nothing and are left out.

    Raises:
        InputError: more are than ties by chance explain, by over 1 % and three standard errors.
    """
    a, b = (row_hashes(data, fit.classes)[_telling(data)] for data in (fit, test))
    if not (len(a) and len(b)):
        return ""
    a.sort()
    nearest = np.minimum(np.searchsorted(a, b), len(a) - 1)
    rows = int((a[nearest] == b).sum())
    same = a[1:] == a[:-1]
    twins = np.append(same, False) | np.append(False, same)
    share, chance = rows / len(b), float(twins.mean())
    error = math.sqrt(2 * share * (1 - share) / len(b)) + math.sqrt(2 * chance * (1 - chance) / len(a))
    text = (
        f"{rows:,} of {len(b):,} {'rows' if len(b) == test.n else 'uncertain rows'} of {test.source} "
        f"({share:.1%}) are also in {fit.source}; {chance:.1%} are expected by chance, because rows tie"
    )
    if share > chance + OVERLAP + 3 * error:
        problem = f"{text}: results on rows that were used for fitting are too optimistic"
        raise InputError(problem, "pass rows that were not used for fitting" + (f", or {way_out}" if way_out else ""))
    spread = math.sqrt(2 * chance * (1 - chance) * (1 / len(a) + 1 / len(b)))
    return text if share > chance + 3 * spread else ""
