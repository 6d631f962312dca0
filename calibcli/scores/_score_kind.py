"""What a pass over all rows keeps of them, and whether they are logits, probabilities or log-probabilities."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from calibcli.core.errors import InputError
from calibcli.scores._masks import Masks
from calibcli.scores.predictions import (
    SHARE_OFF,
    UNIT_HIGH,
    UNIT_LOW,
    Array,
    Ints,
    Kind,
    Named,
    PickedScores,
    kind_words,
)
from calibcli.scores.softmax import Piece

OFF, OFF_A_CLASS, MOST_OFF = 0.02, 0.005, 0.2  # error of a sum of K numbers rounded to two decimals: 0.005 K, bounded
FEWEST = 10  # rows from which a constant sum other than one is trusted
PERCENT = 20.0  # log-odds of a model that is wrong once in 1e8 end at 18.4; more, and never negative, are percentages
C = TypeVar("C", bound="Mistake")


@dataclass
class RowCount:
    """Counts rows of one kind, and keeps the index of the first, or -1."""

    count: int = 0
    first: int = -1

    def add(self, rows: Ints, row: Callable[[int], int]) -> None:
        """Add further rows by their position in a block; `row` maps that to the index in the file."""
        if len(rows) and self.first < 0:
            self.first = row(int(rows[0]))
        self.count += len(rows)


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Rows that are checked together; those with NaN or infinite scores are left out.

    Attributes:
        rows: their scores.  low, high: range of the finite ones.
        row: from the place of a row in the block to its index in the file.
        n: rows of the whole file.
        labels, at_label: (n,) labels, and the scores of these; None where there are no labels.
        sampled: whether the block is one of those that are enough for what needs no more than a sample.
    """

    rows: Piece
    low: float
    high: float
    row: Callable[[int], int]
    n: int
    labels: Array | None = None
    at_label: Array | None = None
    sampled: bool = True


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the verdicts depend on, once all rows have been seen.

    Attributes:
        scan: of all rows.  kind: what the scores are.  classes: their names, if known.
        weighted: whether rows have weights.  clip: what smaller probabilities are raised to, or 0.
        confirmed: the user said in which order the classes are.
    """

    scan: Scan
    kind: Kind
    classes: Sequence[str] | None = None
    weighted: bool = False
    clip: float = 0.0
    confirmed: bool = False


class Mistake:
    """A check for one mistake: it sees all rows block by block, and gives its verdict at the end."""

    def begin(self, head: Array, n: int) -> None:
        """Prepare for `n` rows; `head` has the first of them as they are in the file."""

    def see(self, block: ScoreBlock) -> None:
        """Check a block of rows."""

    def verdict(self, outcome: Outcome) -> list[str]:
        """Return notes for the user.

        Raises:
            InputError: the rows cannot be measured.
        """
        raise NotImplementedError


@dataclass
class Nonfinite:
    """Counts rows with NaN, with +inf (or nothing but -inf), and with -inf beside finite scores (`masked`).

    Attributes:
        n: of all rows.  collect: whether to keep the indices of those with NaN or infinite scores, in `bad`.
        choices: rows with -inf beside finite scores, by the number of these.
    """

    n: int
    collect: bool = False
    nan: RowCount = field(default_factory=RowCount)
    infinite: RowCount = field(default_factory=RowCount)
    masked: RowCount = field(default_factory=RowCount)
    bad: list[Ints] = field(default_factory=list)
    choices: Counter[int] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of rows that cannot be used."""
        return self.nan.count + self.infinite.count

    def usable(self, block: Array, start: int) -> Array:
        """Return a mask of the rows that can be used, and count the others."""
        nan = np.isnan(block).any(axis=1)
        below = block == -np.inf
        endless = ~nan & ((block == np.inf).any(axis=1) | below.all(axis=1))
        masked = ~nan & ~endless & below.any(axis=1)
        for spot, rows in ((self.nan, nan), (self.infinite, endless), (self.masked, masked)):
            spot.add(np.flatnonzero(rows), lambda i: start + i)
        self.choices.update((~below[masked]).sum(axis=1).tolist())
        if self.collect:
            self.bad.append(np.flatnonzero(nan | endless) + start)
        return np.asarray(~(nan | endless))

    def guess(self, k: int) -> tuple[float, float]:
        """Return NLL and accuracy of guessing on the usable rows, where classes at -inf are not among the k choices.

        The NLL is the mean of ln K_i in nats, the accuracy that of 1 / K_i, for K_i finite scores in row i.
        """
        usable = self.n - self.count
        rows = Counter({k: usable - self.choices.total()}) + self.choices
        nll = sum(count * math.log(offered) for offered, count in rows.items()) / usable
        return nll, sum(count / offered for offered, count in rows.items()) / usable

    def refuse(self, masks: bool, half: bool) -> None:
        """Refuse rows that cannot be used. If `masks`, -inf is probability 0; if `half`, the scores are in half
        precision.

        Raises:
            InputError: there are rows that cannot be used.
        """
        if self.nan.count:
            problem = f"{self.nan.count:,} of {self.n:,} rows hold NaN, first row {self.nan.first}"
            raise InputError(problem, "--drop-nonfinite drops and counts them; better find out where they come from")
        spots = [spot for spot in (self.infinite, self.masked)[: 1 if masks else 2] if spot.count]
        if spots:
            first = min(spot.first for spot in (self.infinite, self.masked) if spot.count)
            why = "float16 overflows at 65504: save float32" if half else "did float16 overflow at 65504? save float32"
            problem = f"{sum(s.count for s in spots):,} of {self.n:,} rows hold infinite scores, first row {first}"
            fix = f"{why}; --drop-nonfinite drops the rows"
            raise InputError(problem, fix if masks else f"{fix}; classes masked by -inf: --kind logits")


@dataclass(frozen=True)
class KeptRows:
    """Scores and codes of the rows that are kept, and their indices in the file (None: all)."""

    scores: Named
    codes: Any
    keep: Ints | None = None

    def without(self, bad: Ints) -> KeptRows:
        left = np.ones(self.scores.shape[0], bool)
        left[bad] = False
        index = np.flatnonzero(left)
        codes = None if self.codes is None else self.codes[index]
        return KeptRows(PickedScores(self.scores, index), codes, index if self.keep is None else self.keep[index])


@dataclass
class UnitSums:
    """Checks the rows as probabilities.

    Attributes:
        tolerance: of their sums.  outside: rows with a value outside [0, 1].
        off: rows in [0, 1] whose sum is not one, `off_sum` that of the first, `largest` of all.
        empty: rows of zeros.
        worst: largest |sum - 1| seen in a row within [0, 1].
    """

    k: int
    tolerance: float
    outside: int = 0
    off: RowCount = field(default_factory=RowCount)
    off_sum: float = math.nan
    largest: float = 0.0
    empty: RowCount = field(default_factory=RowCount)
    worst: float = 0.0

    @property
    def others(self) -> int:
        return self.outside + self.off.count

    def add(self, block: ScoreBlock) -> None:
        rows, row = block.rows, block.row
        inside = np.ones(len(rows), bool)
        if block.low < UNIT_LOW or block.high > UNIT_HIGH:
            inside = (rows.least >= UNIT_LOW) & (rows.top <= UNIT_HIGH)
            self.outside += len(rows) - int(np.count_nonzero(inside))
            if self.outside > SHARE_OFF * block.n:  # the rows are of another kind, whatever the sums are
                return
        sums = rows.sums
        gap = np.abs(sums - 1)
        off = np.flatnonzero(inside & (gap > self.tolerance))
        if len(off) and not self.off.count:
            self.off_sum = float(sums[off[0]])
        self.largest = max(self.largest, float(sums[off].max(initial=0.0)))
        self.off.add(off, row)
        self.empty.add(np.flatnonzero(inside & (sums <= 0)), row)
        if inside.any():
            self.worst = max(self.worst, float(gap[inside].max()))


@dataclass
class ConstantSum:
    """Checks for rows that sum to a constant other than one and are not negative, such as percentages and votes.

    Attributes:
        rounding: of a sum.  low, high: smallest and largest sum.  lost: whether there is no such whole.
        varied: whether there are scores between the smallest and the largest, unlike those of two fixed logits.
        counts: whether all are whole numbers, as votes are.
    """

    rounding: float
    low: float = math.inf
    high: float = -math.inf

    lost: bool = False
    total: float = 0.0
    rows: int = 0
    varied: bool = False
    counts: bool = True

    def add(self, rows: Piece) -> None:
        """Add rows, none of which is negative."""
        sums, z = rows.sums, rows.z
        self.varied = self.varied or bool(((z > z.min()) & (z < z.max())).any())
        self.counts = self.counts and bool((z == np.floor(z)).all())
        self.total, self.rows = self.total + float(sums.sum()), self.rows + len(sums)
        self.low, self.high = min(self.low, float(sums.min())), max(self.high, float(sums.max()))
        self.lost = not self.high - self.low <= 2 * max(min(self.rounding, 0.05 * self.high), 0.005 * self.high)

    @property
    def value(self) -> float:
        """The sum of the rows, or 0 if they do not have one sum."""
        mean = self.total / self.rows if self.high > 1.5 and self.varied and not self.lost else 0.0
        return float(round(mean)) if abs(mean - round(mean)) <= 0.005 * mean else mean


@dataclass
class Scan:
    """What one pass over the rows found. Rows that are not finite are counted, and left out of all other numbers.

    Attributes:
        n, k: shape.  low, high: range of the finite scores.
        unit: as probabilities.
        tolerance, logs: of |logsumexp|, and whether all rows may be log-probabilities by it, none above 0.
        forced: what `--kind` says they are.
        log_low, log_high: smallest and largest logsumexp seen, of all rows where `forced` says log-probabilities.
        ends: (n,) class of the largest score, and (n,) smallest score, of many classes, where all rows can be used.
        nonfinite: rows that cannot be used.
        mistakes: what else may be wrong, by class: `scan[Repeated]`.
        masks: scores that are masks, which are read as -inf, or would be but for the labels.
    """

    n: int
    k: int
    unit: UnitSums
    tolerance: float
    nonfinite: Nonfinite
    whole: ConstantSum
    mistakes: Mapping[type[Mistake], Mistake]
    forced: Kind | None = None
    logs: bool = True
    log_low: float = 0.0
    log_high: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    ends: tuple[Ints, Array] | None = None
    masks: Masks | None = None

    def __getitem__(self, kind: type[C]) -> C:
        return cast(C, self.mistakes[kind])

    @property
    def finite(self) -> int:
        return self.n - self.nonfinite.count

    @property
    def in_unit(self) -> bool:
        """Whether every score lies in [0, 1]."""
        return self.low >= UNIT_LOW and self.high <= UNIT_HIGH and not self.nonfinite.masked.count

    @property
    def kind(self) -> Kind | None:
        """Kind of the rows; None if they lie in [0, 1] without summing to one."""
        if self.k > 1 and self.unit.others <= SHARE_OFF * self.finite:
            return "probabilities"
        if self.k == 1:
            return "probabilities" if self.in_unit else "logits"
        if self.logs:
            return "log_probabilities"
        return None if self.in_unit else "logits"

    @property
    def most_off(self) -> float:
        """The most that the sum of a row may differ from one if the user says that these are probabilities.

        Numbers rounded to two decimals miss it by up to K / 200; those of independent labels miss it by more.
        """
        return max(OFF, min(OFF_A_CLASS * self.k, MOST_OFF), self.unit.tolerance)

    def off(self, kind: Kind) -> float:
        """Return the most that the sum of a row differs from one, as rows of this kind; 0 for kinds without such a
        sum.
        """
        if self.k == 1 or kind == "logits":
            return 0.0
        if kind == "probabilities":
            return self.unit.worst
        return max(math.expm1(min(self.log_high, 700.0)), -math.expm1(self.log_low))

    def add(self, rows: Piece, labels: Array | None, start: int, sampled: bool) -> None:
        """Check the rows from `start` on."""
        places = np.empty(0, np.int64)
        low, high = rows.range
        if not (math.isfinite(low) and math.isfinite(high)):
            scores = rows.z
            keep = self.nonfinite.usable(scores, start)
            scores = scores[keep]
            labels = None if labels is None else labels[keep]
            rows, places = Piece(scores), np.flatnonzero(keep) + start
            if len(scores) == 0:
                return
            finite = scores[np.isfinite(scores)]
            low, high = float(finite.min()), float(finite.max())

        def row(i: int) -> int:
            return int(places[i]) if len(places) else start + i

        at_label = None if labels is None else rows.at(labels)
        block = ScoreBlock(rows, low, high, row, self.n, labels, at_label, sampled)
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.k > 1:
            self._kinds(block)
        for mistake in self.mistakes.values():
            mistake.see(block)

    def _kinds(self, block: ScoreBlock) -> None:
        """Check which kinds the rows may be of; a kind that was ruled out is not checked again."""
        if self.unit.others <= SHARE_OFF * self.n or self.in_unit:
            self.unit.add(block)
        self.logs &= block.high <= 0
        if self.logs or self.forced == "log_probabilities":
            sums = block.rows.log_sums
            self.log_low = min(self.log_low, float(sums.min()))
            self.log_high = max(self.log_high, float(sums.max()))
            self.logs &= max(-self.log_low, self.log_high) <= self.tolerance
        negative = block.low < 0
        self.whole.lost |= negative
        self.whole.counts &= not negative
        if block.high > UNIT_HIGH and (self.whole.counts or not self.whole.lost):
            self.whole.add(block.rows)

    def verdicts(self, outcome: Outcome) -> list[str]:
        """Return the notes of all mistakes.

        Raises:
            InputError: the rows cannot be measured.
        """
        return [note for mistake in self.mistakes.values() for note in mistake.verdict(outcome)]


def decide_kind(scanned: Scan, declared: str, name: str, members: Sequence[str] = ()) -> Kind:
    """Return the kind of scores, judged by all rows. A name that says otherwise is an error; `--kind` is followed if
    the rows can be of that kind.

    Args:
        members: the names of the columns, where there are several.

    Raises:
        InputError: the rows fit no kind, or not the one that the name or `--kind` claims.
    """
    if scanned.forced:
        _refuse_forced(scanned, scanned.forced, name)
        return scanned.forced
    kind = scanned.kind
    if scanned.k == 1 and declared == "logits":
        return "logits"
    if kind is None:
        off = scanned.unit.off
        near = "rounded probabilities: --kind probabilities; " if scanned.unit.worst <= scanned.most_off else ""
        raise InputError(
            f"'{name}' lies in [0, 1] but rows do not sum to 1: row {off.first} sums to "
            f"{scanned.unit.off_sum:.4g} ({off.count:,} of {scanned.finite:,} rows)",
            f"{near}probabilities of independent labels: --multilabel; {_parts(scanned, members)}"
            "; logits that happen to lie there: --kind logits",
        )
    if kind == "logits" and declared != "logits":
        _refuse_shares(scanned, name, "" if declared else "; if these are logits: --kind logits")
    if declared and declared != kind and (declared, kind) != ("logits", "log_probabilities"):
        problem = f"the name '{name}' says {kind_words(declared)} but the rows are {kind_words(kind)}"
        problem += f" ({evidence(scanned, kind)})"
        raise InputError(problem, f"pass --kind {kind} if that is what they are, or save what the name says")
    return kind


def _parts(scanned: Scan, members: Sequence[str]) -> str:
    """Return the lines that read shares of which no row has more than one, or one model of several."""
    if scanned.unit.largest <= 1 or not members:
        return "of some of the answers: --out-of sum"
    return "of several models: " + " or ".join(f"--scores {shlex.quote(name)}" for name in members[:6])


def _refuse_shares(scanned: Scan, name: str, otherwise: str) -> None:
    """Refuse rows that look like shares of another total than one.

    Args:
        otherwise: what to do if they are logits, where the name does not call them probabilities.

    Raises:
        InputError: of rows that differ, none is negative, their sums are one number, and some score is below half of
            an equal share, as those of logits with a large offset are not; of one column, the largest is more than any
            log-odds would be where none is negative.
    """
    k, low, high = scanned.k, scanned.low, scanned.high
    total = scanned.whole.value if k > 1 else 100.0 * (PERCENT < high <= 100 and low >= 0)
    if (
        not total
        and k > 1
        and scanned.whole.rows
        and scanned.whole.counts
        and scanned.finite >= FEWEST
        and scanned.whole.varied
    ):
        problem = (
            f"'{name}' holds whole numbers up to {high:.6g}, none of them negative: votes or counts of each class?"
        )
        raise InputError(problem, f"--out-of sum divides each row by its sum{otherwise}")
    if not total or scanned.finite < FEWEST or low == high or (k > 1 and low >= total / (2 * k)):
        return
    rows = f"its rows sum to {total:.3g}" if k > 1 else f"goes up to {high:.4g}"
    problem = f"'{name}' is never negative and {rows}: are these shares of {total:.3g} instead of logits?"
    raise InputError(problem, f"divide by {total:.3g}: --out-of {total:.3g}{otherwise}")


def _refuse_forced(scanned: Scan, forced: Kind, name: str) -> None:
    """Refuse a `--kind` that contradicts the rows.

    Raises:
        InputError: scores beyond the range of that kind; or rows whose sum is further from one than `scanned.most_off`.
    """
    if forced == "logits":
        return
    logs = forced == "log_probabilities"
    high, low = (1e-3, -math.inf) if logs else (UNIT_HIGH, UNIT_LOW)
    if scanned.high > high or scanned.low < low:
        problem = f"--kind {forced}, but scores of '{name}' run from {scanned.low:.4g} to {scanned.high:.4g}"
        raise InputError(problem, "leave --kind out, or pass --kind logits")
    worst, most = scanned.off(forced), scanned.most_off
    if worst <= most:
        return
    fix = "probabilities of independent labels: --multilabel; shares of another total: --out-of sum"
    first = "" if logs else f": row {scanned.unit.off.first} sums to {scanned.unit.off_sum:.4g}"
    raise InputError(
        f"--kind {forced}, but {'exponentials of ' * logs}rows of '{name}' do not sum to 1{first} (the sum furthest "
        f"off misses it by {worst:.2g}, rounding by no more than {most:.2g})",
        "--kind logits divides each row by its sum" if logs else fix,
    )


def evidence(scanned: Scan, kind: Kind) -> str:
    """Return the numbers that support the decision, as text."""
    if scanned.k == 1:
        return f"one column in [{scanned.low:.4g}, {scanned.high:.4g}]"
    if kind == "probabilities":
        others = scanned.unit.others
        rows = "all rows" if others == 0 else f"all but {others:,} of {scanned.finite:,} rows"
        deviation = f"(largest deviation {scanned.unit.worst:.2g})"
        return f"{rows} lie in [0, 1] and sum to 1 within {scanned.unit.tolerance:.2g} {deviation}"
    if kind == "log_probabilities":
        return f"no score above 0 and |logsumexp| <= {scanned.tolerance:.0e} in every row"
    inside = scanned.low >= UNIT_LOW and scanned.high <= UNIT_HIGH
    return f"scores run from {scanned.low:.4g} to {scanned.high:.4g}" + ("" if inside else ", beyond [0, 1]")
