"""What the values of a table's columns say where names do not: families of scores, predictions, and one-hot truth.

A family is columns whose names differ in one word and whose numbers have one total in every row. The column that
equals the class of the largest score is the prediction. As many columns of 0 and 1 as there are classes, with one 1 in
a row, are the truth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from calibcli.scores.files.text_tables import MISSING, is_number
from calibcli.scores.predictions import Array, Floats, Named

ROWS = 1000  # rows that are looked at
FEWEST = 20  # rows from which they tell
SAME = 0.999  # share of rows in which a prediction is the class of the largest score
CERTAIN = 0.995  # share of rows of 0 and 1 from which columns are no probabilities
SUM = 0.02  # error of a sum of rounded probabilities
LEAST_WHOLE = 0.95  # share of rows that sum to one where the column of each class is there
BEYOND_CHANCE = 3.1  # standard errors of a correlation, which chance exceeds once in a thousand
SURE = 5.0  # those that it never exceeds, to refuse by
WIDEST = 2000  # columns of one table among which names are compared


def sample(array: Named) -> Array:
    """Return the first and the last rows of an array, as rows may be sorted by class."""
    n = array.shape[0]
    if n <= ROWS:
        return array.read(0, n)
    return np.concatenate([array.read(0, ROWS // 2), array.read(n - ROWS // 2, n)])


def head(array: Named) -> list[str]:
    """Return the rows of `sample` of a column as texts, whole numbers without a decimal point."""
    values = sample(array).reshape(-1)
    return [str(cell).strip().removesuffix(".0") for cell in values.tolist()]


def numbers(arrays: Mapping[str, Named], columns: Iterable[str]) -> Floats | None:
    """Return the rows of `sample` of columns as (rows, columns) float64; None where a cell is not a number."""
    out = []
    for name in columns:
        values = sample(arrays[name])
        if values.ndim != 1:
            return None
        if values.dtype.kind in "USO":
            cells = [str(cell).strip() for cell in values.tolist()]
            if not all(map(is_number, cells)):
                return None
            values = np.array([float(cell) for cell in cells])
        out.append(values.astype(np.float64))
    return np.column_stack(out) if out else None


def are_probabilities(table: Floats | None) -> bool:
    """Return whether all rows (rows, K) lie in [0, 1] and sum to one, and do not nearly all hold 0 and 1 alone."""
    if table is None or not len(table):
        return False
    unit = bool(((table >= 0) & (table <= 1)).all()) and bool((np.abs(table.sum(axis=1) - 1) <= SUM).all())
    return unit and float(((table == 0) | (table == 1)).all(axis=1).mean()) < CERTAIN


def lack_a_class(table: Floats) -> bool:
    """Return whether rows (rows, K) are shares of which some have visibly less than the whole, and none more: the
    column of a class is not among them.
    """
    sums = table.sum(axis=1)
    unit = bool((table >= 0).all()) and bool((sums <= 1 + SUM).all())
    return table.shape[1] > 1 and unit and float((sums < 1 - SUM).mean()) > 1 - LEAST_WHOLE


def named_in_order(columns: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the words in the order of the columns, where names of columns hold them and at most one column holds none;
    [] where they do not tell.
    """
    parts = [set(re.split(r"[^\w]|_", column.casefold())) for column in columns]
    found = [[word for word in words if word.casefold() in part] for part in parts]
    one_each = [names[0] if len(names) == 1 else "" for names in found]
    left = [word for word in words if word not in one_each]
    if len(words) != len(columns) or any(len(names) > 1 for names in found) or len(left) > 1:
        return []
    return [name or left[0] for name in one_each]


def are_one_hot(table: Floats | None) -> bool:
    """Return whether each of the rows (rows, K) has one 1 and zeros, and several columns have a 1 in some row."""
    if table is None or not len(table):
        return False
    ones = bool(((table == 0) | (table == 1)).all()) and bool((table.sum(axis=1) == 1).all())
    return ones and int((table.sum(axis=0) > 0).sum()) > 1


def families(names: Sequence[str], words: Sequence[str]) -> list[list[str]]:
    """Return the groups of columns that are named after the words, each with the same text around the word."""
    all_names, groups = set(names), list[list[str]]()
    if len(words) < 2 or len(names) > WIDEST:
        return []
    for name in names:
        start = name.find(words[0])
        while start >= 0:
            before, after = name[:start], name[start + len(words[0]) :]
            columns = [f"{before}{word}{after}" for word in words]
            if before + after and set(columns) <= all_names and columns not in groups:
                groups.append(columns)
            start = name.find(words[0], start + 1)
    return groups


def is_prediction(cells: Sequence[str], table: Floats, classes: Sequence[str]) -> bool:
    """Return whether a column is the prediction that follows from the scores (rows, K): the class of the largest one,
    or of two classes whichever a threshold gives.
    """
    if len(cells) < FEWEST or len(cells) != len(table):
        return False
    top = table.argmax(axis=1)
    predicted = [classes[i] for i in top]
    if sum(a == b for a, b in zip(predicted, cells, strict=True)) >= SAME * len(cells):
        return len(set(cells)) > 1
    if len(classes) != 2 or not set(cells) <= set(classes):
        return False
    return by_threshold(table[:, 1], np.array([cell == classes[1] for cell in cells]))


def order_of(cells: Sequence[str], table: Floats) -> list[str]:
    """Return the classes in the order of the scores (rows, K) that predictions prove: in 99.9 % of the rows the largest
    score is in the column of the predicted class. [] where they prove none.
    """
    k = table.shape[1]
    if len(cells) < FEWEST or len(cells) != len(table) or len(set(cells)) != k:
        return []
    top = table.argmax(axis=1).tolist()
    pairs = Counter(zip(top, cells, strict=True))
    best = {column: cell for (column, cell), _ in reversed(pairs.most_common())}
    if len(best) < k or len({*best.values()}) < k:
        return []
    agree = sum(count for (column, cell), count in pairs.items() if best[column] == cell)
    return [best[i] for i in range(k)] if agree >= SAME * len(cells) else []


def by_threshold(score: Floats, event: Array) -> bool:
    """Return whether a threshold of the score tells the event from the rest in 99.9 % of the rows, with enough of both
    that a score of something else would hardly do it.
    """
    n, ones = len(event), int(event.sum())
    if n < FEWEST or min(ones, n - ones) < 3:
        return False
    order = np.argsort(score, kind="stable")
    above = np.append(0, np.cumsum(event[order]))  # events among the lowest i rows
    wrong = above + (n - ones) - (np.arange(n + 1) - above)  # of a threshold after the lowest i rows
    return bool(wrong.min() <= (1 - SAME) * n)


def event_of(score: Floats, predicted: Sequence[str]) -> str:
    """Return the predicted class of two that a score (rows,) is the probability of, "" if of none: it is high where
    that class is predicted and low where the other one is.
    """
    classes = sorted(set(predicted))
    if len(classes) != 2:
        return ""
    last = np.array([cell == classes[1] for cell in predicted])
    high = bool(score[last].mean() > score[~last].mean())
    return classes[int(high)] if by_threshold(score, last == high) else ""


def rises(score: Floats, event: Array, beyond: float = BEYOND_CHANCE) -> bool:
    """Return whether an event (rows,) is more frequent where the score is higher, beyond chance: r √rows of the
    correlation r is above `beyond`.
    """
    if len(score) < FEWEST or not np.std(score) or not np.std(event):
        return False
    return bool(np.corrcoef(score, event)[0, 1] * len(score) ** 0.5 > beyond)


def classes_in(cells: Sequence[str]) -> list[str]:
    """Return the distinct values of a column in sorted order, without those that stand for none."""
    return sorted({cell for cell in cells if cell.lower() not in MISSING})


def ranked(table: Floats | None) -> bool:
    """Return whether the scores of every row (rows, K) fall from the first column to the last, though not always by the
    same numbers: they are the largest K of each row, not the scores of K classes.
    """
    if table is None or len(table) < FEWEST or table.shape[1] < 3 or bool((table == table[0]).all()):
        return False
    return all(bool((np.diff(rows, axis=1) <= 0).all()) for rows in (table[:FEWEST], table))  # most fail at once
