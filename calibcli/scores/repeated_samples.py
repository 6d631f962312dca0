"""Recognise rows that are several looks at one sample, by a column that names the rows: together they are one unit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from calibcli.scores.files import roles
from calibcli.scores.files.arrays import FileContents, Lazy, read_all, texts_of
from calibcli.scores.files.text_tables import MISSING
from calibcli.scores.likelihood import nll_rows
from calibcli.scores.predictions import Array, Ints, Predictions
from calibcli.scores.reading_options import Reading
from calibcli.scores.reading_record import Repeats

MOST = 4_000_000  # rows up to which columns are looked at that only their name makes ids
PAIRS = 4_000  # pairs of rows of one name that are compared
FEWEST = 15  # pairs with other labels that chance must explain before a column that is called otherwise counts as ids
APART = 0.5  # share of these pairs from which the rows of one name are rows of their own
ALIKE, SURELY_ALIKE = 0.75, 0.7  # distance of their scores, of that of any two rows with the same label
ERRORS = 4.0  # standard errors by which it must be smaller
SPREAD = 0.75  # standard deviation of that distance, about, in units of its mean


def columns(
    contents: Sequence[FileContents], reading: Reading, n: int, keep: Ints | None, but: Sequence[str]
) -> dict[str, Array]:
    """Return the columns (N,) that name rows, by what was asked for or by their own name, for the rows that are kept.

    Args:
        n: rows of all files.  keep: indices of the rows that are kept; None for all.  but: names of other columns.
    """
    asked, id_columns = (reading.ids, contents[0].ids), dict[str, Array]()
    for name in contents[0].arrays:
        if name in but or not (name in asked or (n <= MOST and roles.names_rows(name))):
            continue
        parts = [c.arrays.get(name) for c in contents]
        flat = [p for p in parts if p is not None and len(p.shape) == 1 and p.dtype.kind in roles.IDS.dtypes]
        if name not in asked and any(isinstance(p, Lazy) and p.dtype.kind == "O" for p in flat):
            continue  # texts of any length, such as prompts, which are read only where they are asked for
        if len(flat) < len(parts) or sum(p.shape[0] for p in flat) != n:
            continue
        values = np.concatenate([texts_of(read_all(p)) if len(flat) > 1 else read_all(p) for p in flat])
        id_columns[name] = values if keep is None else values[keep]
    return id_columns


def seen(rows: Predictions, named: Mapping[str, Array], asked: str | None, fixed: str) -> Predictions:
    """Look for repeated samples; `repeats` and `unique` of the record get what was found, the notes what it means.

    Args:
        named: columns that may be ids (N,).
        asked: the one that the user says is.  fixed: the one that is by the format of the file.
    """
    unique, repeats = [], None
    if asked and rows.ids is not None:  # also where it is a value inside the objects of a column
        named = {**named, asked: rows.ids}
    for name in sorted(named, key=lambda name: (name != asked, name != fixed, name not in roles.IDS)):
        codes = _codes(named[name])
        repeated = len(codes) - int(codes.max(initial=-1)) - 1
        is_id = name == fixed or name in roles.IDS
        if not repeated:
            unique.append(name)
        elif repeats is None and rows.weight_kind != "count" and (name == asked or _one_sample(rows, codes, is_id)):
            split = rows.groups is not None and _split(codes, rows.groups)
            python = rows.record.format == "arrays"
            repeats = Repeats(name, repeated, split, python) if rows.groups is None or split else None
    notes = [*rows.notes]
    if repeats is not None:
        notes.append(f"{repeats.said(rows.n)}, so that intervals are too narrow; {repeats.fix}")
    return dataclasses.replace(
        rows, notes=notes, record=dataclasses.replace(rows.record, repeats=repeats, unique=unique)
    )


def _codes(values: Array) -> Ints:
    """Return a number (N,) for each name, from 0; a row without a name gets one of its own."""
    distinct, codes = np.unique(texts_of(values) if values.dtype.kind == "O" else values, return_inverse=True)
    missing = np.zeros(len(distinct), bool)
    if distinct.dtype.kind in "US":
        missing = np.array([text.strip().lower() in MISSING for text in texts_of(distinct).tolist()], bool)
    if not missing.any():
        return codes.astype(np.int64)
    nameless = missing[codes]
    out = np.cumsum(~missing)[codes] - 1
    out[nameless] = int((~missing).sum()) + np.arange(int(nameless.sum()))
    return out.astype(np.int64)


def _split(codes: Ints, groups: Ints) -> bool:
    return len(np.unique(codes * (int(groups.max(initial=0)) + 1) + groups)) > int(codes.max(initial=-1)) + 1


def _one_sample(rows: Predictions, codes: Ints, is_id: bool) -> bool:
    """Return whether rows of the same name are looks at one sample, and not merely the rows of a fold or a site.

    The labels of one sample agree, and its scores are closer to each other than those of any two rows with this
    label. Where the column is known to be ids, its repeated rows count as such unless neither is so.
    """
    order = np.argsort(codes, kind="stable")
    pairs = np.flatnonzero(codes[order][1:] == codes[order][:-1])
    pairs = pairs[:: max(1, len(pairs) // PAIRS)]
    first, second = order[pairs], order[pairs + 1]
    labels = np.asarray(rows.labels[:])
    shares = np.bincount(labels) / max(1, len(labels))
    expected = len(pairs) * (1 - float(shares @ shares))
    differ = int((labels[first] != labels[second]).sum())
    agree = differ < APART * expected or (is_id and expected == 0)
    if is_id and agree:
        return True
    if not is_id and not (agree and expected >= FEWEST):
        return False
    same = labels[first] == labels[second]
    first, second = first[same], second[same]
    if not len(first):
        return False
    ratio = _distance(rows, first, second)
    error = ERRORS * SPREAD / np.sqrt(len(first))
    return bool(ratio < (ALIKE if is_id else SURELY_ALIKE) and ratio + error < 1)


def _distance(rows: Predictions, first: Ints, second: Ints) -> float:
    """Return the mean distance of the scores of pairs, divided by that of other pairs of rows with the same label.

    Scores are compared by the rank of the label's NLL among the rows of that label, so that no outlier counts for much.
    """
    picked = rows.take(np.concatenate([first, second]))
    nll = nll_rows(picked.logits, picked.labels, 1.0)
    rank = np.empty(len(nll))
    labels = picked.labels[: len(first)]
    other = np.empty(len(first), np.int64)
    shuffle = np.random.default_rng(0)
    for label in np.unique(labels):
        same_label = np.flatnonzero(picked.labels == label)
        _, place, count = np.unique(nll[same_label], return_inverse=True, return_counts=True)
        rank[same_label] = (np.cumsum(count) - (count - 1) / 2)[place] / len(same_label)
        pairs = np.flatnonzero(labels == label)
        other[pairs] = shuffle.permutation(pairs)
    within, beside = rank[: len(first)], rank[len(first) :]
    expected = float(np.abs(within - beside[other]).mean())
    return float(np.abs(within - beside).mean()) / expected if expected > 0 else 1.0
