"""JSON lines: one object per row with a list of scores and a label, and the samples files of lm-eval.

lm-eval writes, per question, `filtered_resps` [[log-likelihood, is_greedy], ...] (numbers or text) and `target`. Rows
differ in length; missing choices are padded with -inf, which is probability 0.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.arrays import Contents, Memory, Named
from calibcli.inputs.keys import LABELS, SCORES
from calibcli.inputs.source import Source, memory_limit
from calibcli.inputs.text import decimals_of
from calibcli.predictions import Array
from calibcli.spec import normal

LINE = 64 << 20  # longest line
EXPANSION = 16  # bytes in memory for a byte of text, at worst about
CHOICES = 100_000


def read_jsonl(source: Source) -> Contents:
    """Lists of numbers become (N, K) arrays, other values columns of text.

    Raises:
        InputError: not JSON lines, rows that differ in their keys, or samples without scores of each choice.
    """
    limit = memory_limit()
    if source.size * EXPANSION > limit:
        raise InputError(
            f"{source.name} is {source.size / 1e9:.3g} GB of text, more than can be held",
            "save the scores as .npy or uncompressed .npz: these are read piece by piece",
        )
    rows = _rows(source)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{source.name} has no rows", "was it written to the end?")
    if "filtered_resps" in first or "resps" in first:
        return _samples(source, first, rows)
    lists: dict[str, list[list[Any]]] = {}
    texts: dict[str, list[str]] = {}
    for key, value in first.items():
        (lists if isinstance(value, list) and value else texts)[key] = []
    for count, row in enumerate(_chain(first, rows)):
        for key in (*lists, *texts):
            if key not in row:
                raise InputError(f"row {count} of {source.name} has no '{key}'", "write the same keys in every row")
        for key, values in lists.items():
            value = row[key]
            if not isinstance(value, list):
                raise InputError(
                    f"'{key}' in row {count} of {source.name} is {str(value)[:30]}, not a list", "write a list"
                )
            values.append(value)
        for key, cells in texts.items():
            cells.append(_cell(row[key]))
    arrays: dict[str, Named] = {}
    ragged = set()
    for key, values in lists.items():
        try:
            table, uneven = _padded(values)
        except (ValueError, TypeError, OverflowError):
            if normal(key) in SCORES or normal(key) in LABELS:
                raise InputError(
                    f"'{key}' in {source.name} holds lists that are not numbers", "write numbers"
                ) from None
            continue
        arrays[key] = Memory(table)
        if uneven:
            ragged.add(key)
    for key, cells in texts.items():
        arrays[key] = Memory(_column(cells))
    decimals = {
        key: max(decimals_of(repr(v)) for row in lists[key][:1000] for v in row) for key in lists if key in arrays
    }
    return Contents("jsonl", arrays, decimals=decimals, ragged=frozenset(ragged))


def _samples(source: Source, first: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> Contents:
    """A samples file of lm-eval, multiple choice."""
    scores: list[list[float]] = []
    labels: list[str] = []
    ids: list[str] = []
    filters: dict[str, int] = {}
    for row in _chain(first, rows):
        name = str(row.get("filter", "none"))
        filters[name] = filters.get(name, 0) + 1
        if name != next(iter(filters)):
            continue
        here = f"row {len(scores)} of {source.name}"
        scores.append(_likelihoods(row, here))
        labels.append(_target(row, len(scores[-1]), here))
        ids.append(_cell(row.get("doc_id", len(ids))))
    about = [f"samples of lm-eval: {len(scores):,} questions, log-likelihoods of the choices as logits"]
    if len(filters) > 1:
        kept, *others = filters
        about.append(f"rows of filter '{kept}' read, those of {', '.join(others)} left out")
    table, uneven = _padded(scores)
    if uneven:
        lengths = [len(row) for row in scores]
        about.append(f"{min(lengths)} to {max(lengths)} choices per question: the others have probability 0")
    arrays: dict[str, Named] = {
        "filtered_resps": Memory(table),
        "target": Memory(_column(labels)),
        "doc_id": Memory(_column(ids)),
    }
    return Contents(
        "jsonl, lm-eval samples",
        arrays,
        kinds={"filtered_resps": "logits"},
        ragged=frozenset({"filtered_resps"}),
        scores="filtered_resps",
        labels="target",
        ids="doc_id",
        about=about,
    )


def _likelihoods(row: Mapping[str, Any], here: str) -> list[float]:
    found = row.get("filtered_resps", row.get("resps"))
    try:
        if not isinstance(found, list) or not 2 <= len(found) <= CHOICES:
            raise TypeError
        values = []
        for choice in found:
            while isinstance(choice, list) and len(choice) == 1:  # resps nest one level more
                choice = choice[0]
            if not isinstance(choice, list):
                raise TypeError
            values.append(float(choice[0]))
    except (TypeError, ValueError, IndexError, OverflowError):
        raise InputError(
            f"{here}: filtered_resps holds no [log-likelihood, is_greedy] per choice: a generation task?",
            "only multiple-choice tasks score every choice",
        ) from None
    return values


def _target(row: Mapping[str, Any], choices: int, here: str) -> str:
    """The index of the right choice: a number, a letter, or the text of a choice."""
    target = row.get("target")
    text = _cell(target).strip()
    if isinstance(target, bool):
        return str(int(target))
    try:
        return str(int(text))
    except ValueError:
        pass
    texts = _continuations(row.get("arguments"))
    if text in texts and len(texts) == choices:
        return str(texts.index(text))
    if len(text) == 1 and 0 <= ord(text.upper()) - ord("A") < choices:
        return str(ord(text.upper()) - ord("A"))
    raise InputError(f"{here}: target {text[:30]!r} is not one of {choices} choices", "pass a multiple-choice task")


def _continuations(arguments: Any) -> list[str]:
    """Texts of the choices from `arguments`: [[context, choice], ...] or {"gen_args_0": {"arg_0":, "arg_1":}, ...}."""
    if isinstance(arguments, Mapping):
        pairs = [a.get("arg_1") for a in arguments.values() if isinstance(a, Mapping)]
    elif isinstance(arguments, list):
        pairs = [a[1] if isinstance(a, list) and len(a) > 1 else None for a in arguments]
    else:
        pairs = []
    return [str(p).strip() for p in pairs]


def _rows(source: Source) -> Iterator[dict[str, Any]]:
    with io.BufferedReader(source.reader()) as file:
        number = 0
        while line := file.readline(LINE):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                fix = "write one JSON object per line"
                if number == 0 and line.lstrip()[:1] == b"[":
                    fix += " (a list in one file is not JSON lines)"
                raise InputError(f"row {number} of {source.name} is not JSON", fix) from None
            if not isinstance(row, dict):
                raise InputError(
                    f"row {number} of {source.name} is a JSON {type(row).__name__}", "write one JSON object per line"
                )
            yield row
            number += 1


def _chain(first: Any, rows: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rows


def _padded(rows: list[list[Any]]) -> tuple[Array, bool]:
    """(N, K) float64 from lists of numbers, and whether they were padded: with 0 if all lie in [0, 1], else with -inf.

    Raises:
        ValueError, TypeError, OverflowError: not numbers, or a few long rows among many short ones.
    """
    width = max(len(row) for row in rows)
    if len(rows) * width > 64 * sum(len(row) for row in rows) + 1_000_000:
        raise ValueError("rows too uneven to pad")
    unit = all(0 <= v <= 1 for row in rows for v in row) if any(len(row) < width for row in rows) else False
    out = np.full((len(rows), width), 0.0 if unit else -np.inf)
    for i, row in enumerate(rows):
        if len(row) and not isinstance(row[0], int | float):
            raise TypeError("not a number")
        out[i, : len(row)] = row
    return out, any(len(row) < width for row in rows)


def _column(cells: list[str]) -> Array:
    out = np.empty(len(cells), dtype=object)
    out[:] = cells
    return out


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)[:10_000]
