"""JSON lines: one object per row with a list of scores and a label; samples of lm-eval; chats with log-probabilities.

JSON is defined in RFC 8259 (Bray 2017). Each layout of an evaluation has a file in `evals/`: samples of lm-eval (Gao
et al. 2021), and answers of servers. Logs of Inspect are one document or an archive: `formats/json`, `formats/eval`.

>>> lines = '{"logits": [2, -0.5], "label": 0}', '{"logits": [0, 1], "label": 1}'
>>> _ = (folder / "scores.jsonl").write_text("\\n".join(lines))
>>> calibcli.read(folder / "scores.jsonl").labels.tolist()
[0, 1]
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from calibcli.core.errors import InputError, refusing
from calibcli.scores.files import text_tables
from calibcli.scores.files.arrays import FileContents, Memory, column_of
from calibcli.scores.files.evals import chats, lm_eval
from calibcli.scores.files.evals.answers import filled, width_of
from calibcli.scores.files.roles import LABELS, SCORES
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.files.text_tables import decimals_of, json_of
from calibcli.scores.predictions import Array, Named

SUFFIXES = (".jsonl",)
LAYOUTS = (lm_eval, chats)  # of evaluations, recognised by their first row
LINE = 64 << 20  # longest line
EXPANSION = 16  # bytes of memory for each byte of text, roughly, in the worst case
HEAD = 1000  # rows whose digits after the point are counted


def guess(head: bytes) -> bool:
    """Return whether the file begins with an object or a list."""
    return head.lstrip()[:1] in (b"{", b"[")


def read(source: Source) -> FileContents:
    """Read lists of numbers as (N, K) arrays, and other values as columns of text.

    Raises:
        InputError: not JSON lines, rows that differ in their keys, or samples without scores of each choice.
    """
    rows = _rows(source)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{source.name} has no rows", "is the file truncated?")
    layout = next((layout for layout in LAYOUTS if layout.matches(first)), None)
    size = source.size * (layout.EXPANSION if layout else EXPANSION)
    refuse_large(size, f"{source.name} takes {size / 1e9:.3g} GB when decoded")
    if layout:
        contents: FileContents = layout.read(source, first, rows)
        return contents
    rows = itertools.chain([first], rows)
    head = list(itertools.islice(rows, HEAD))
    # plain lines, all like the first, are parsed many at a time, which pays for long files; None for others
    quick = text_tables.lines(source, first) if len(head) == HEAD else None
    if quick is not None:
        # digits after the point: how exactly rows of probabilities can sum to one
        decimals = {key: _digits(row[key] for row in head) for key, array in quick.items() if array.ndim == 2}
        return FileContents("jsonl", {key: Memory(array) for key, array in quick.items()}, decimals=decimals)
    classes = {key: list(scores) for key, value in first.items() if (scores := _of_classes(value))}
    lists: dict[str, list[list[Any]]]
    lists = {key: [] for key, value in first.items() if key in classes or (isinstance(value, list) and value)}
    texts: dict[str, list[str]] = {key: [] for key in first if key not in lists}
    for count, row in enumerate(itertools.chain(head, rows)):
        for key in (*lists, *texts):
            if key not in row:
                raise InputError(f"row {count} of {source.name} has no '{key}'", "write the same keys in every row")
        for key, values in lists.items():
            value = row[key]
            if key in classes:
                value = _in_order(_of_classes(value), classes[key], f"'{key}' in row {count} of {source.name}")
            if not isinstance(value, list):
                problem = f"'{key}' in row {count} of {source.name} is {str(value)[:30]}, not a list"
                raise InputError(problem, "write a list")
            values.append(value)
        for key, cells in texts.items():
            cells.append(row[key] if isinstance(row[key], str) else json.dumps(row[key])[:10_000])
    arrays: dict[str, Named] = {}
    ragged, notes = set(), []
    for key, values in lists.items():
        try:
            table, uneven = _padded(values)
        except (ValueError, TypeError, OverflowError):
            if key in SCORES or key in LABELS:
                problem = f"'{key}' in {source.name} holds lists that are not numbers"
                raise InputError(problem, "write one object per row, with its K scores as a list of numbers") from None
            continue
        arrays[key] = Memory(table)
        if uneven:
            ragged.add(key)
            notes.append(_choices(key, [len(row) for row in values], source))
    for key, cells in texts.items():
        arrays[key] = Memory(column_of(cells))
    decimals = {key: _digits(values[:HEAD]) for key, values in lists.items() if key in arrays}
    names = {key: of for key, of in classes.items() if key in arrays}
    return FileContents("jsonl", arrays, decimals=decimals, ragged=frozenset(ragged), notes=notes, classes=names)


def _digits(rows: Iterable[list[Any]]) -> int:
    """Return the largest number of digits after the point."""
    return max(decimals_of(repr(v)) for row in rows for v in row)


def _of_classes(value: Any) -> dict[str, Any]:
    """Return scores by class, from an object of numbers or from the list of labels and scores that pipelines return;
    else {}.
    """
    if isinstance(value, list) and value and all(isinstance(v, dict) and v.keys() == {"label", "score"} for v in value):
        value = {str(v["label"]): v["score"] for v in value}
    numbers = isinstance(value, dict) and len(value) > 1 and all(type(v) in (int, float) for v in value.values())
    return dict(value) if numbers else {}


def _in_order(scores: dict[str, Any], classes: list[str], where: str) -> list[Any]:
    if scores.keys() != set(classes):
        odd = next(iter(scores.keys() ^ set(classes)), "")
        problem = f"{where} does not name the classes of row 0" + (f" ('{odd[:40]}')" if odd else "")
        raise InputError(problem, "write a score for every class in every row")
    return [scores[name] for name in classes]


def _choices(key: str, lengths: list[int], source: Source) -> str:
    """Return a note on rows of different lengths.

    Raises:
        InputError: most rows have one length, so that another length is a mistake: it would mask a class in all rows.
    """
    usual, count = Counter(lengths).most_common(1)[0]
    if 2 * count > len(lengths):
        odd = next(i for i, length in enumerate(lengths) if length != usual)
        raise InputError(
            f"row {odd} of {source.name} has {lengths[odd]} numbers in '{key}', {count:,} of {len(lengths):,} rows "
            f"have {usual}",
            "write as many in every row: 0 (probabilities) or -Infinity (logits) for a choice that is not there",
        )
    return f"{min(lengths)} to {max(lengths)} numbers per row in '{key}': the others have probability 0"


def _rows(source: Source) -> Iterator[dict[str, Any]]:
    number, fix = 0, "write one JSON object per line"
    in_list = source.pread(min(source.size, 512), 0).lstrip().startswith(b"[")
    remark = " (a list in one file is not JSON lines)" if in_list else ""
    whole = source.pread(1, source.size - 1) in (b"\n", b"}")
    cut = "" if whole or in_list else "; is the file truncated, or still being written?"
    unreadable = refusing(
        (ValueError, RecursionError), lambda _: f"row {number} of {source.name} is not JSON", fix + remark + cut
    )
    with unreadable, source.reader() as file:
        while line := file.readline(LINE):
            if not line.strip():
                continue
            row = json_of(line, f"row {number} of {source.name}")
            if not isinstance(row, dict):
                raise InputError(f"row {number} of {source.name} is a JSON {type(row).__name__}", fix)
            yield row
            number += 1


def _padded(rows: list[list[Any]]) -> tuple[Array, bool]:
    """Return (N, K) float64 from lists of numbers, and whether they were padded: with 0 if all lie in [0, 1], else
    -inf.

    Raises:
        ValueError, TypeError, OverflowError: not numbers, or a few long rows among many short ones.
    """
    width = width_of(rows)
    if width is None:
        raise ValueError("rows too uneven to pad")
    if not set(map(type, (v for row in rows for v in row))) <= {int, float}:  # text, true, null
        raise TypeError("not a number")
    uneven = any(len(row) < width for row in rows)
    unit = uneven and all(0 <= v <= 1 for row in rows for v in row)
    return filled(rows, width, 0.0 if unit else -math.inf), uneven
