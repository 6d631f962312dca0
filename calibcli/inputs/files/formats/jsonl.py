"""JSON lines: one object per row with a list of scores and a label, and the samples files of lm-eval.

JSON is RFC 8259 (Bray 2017), the samples files are those of Gao et al. (2021).

>>> lines = '{"logits": [2, -0.5], "label": 0}', '{"logits": [0, 1], "label": 1}'
>>> _ = (folder / "scores.jsonl").write_text("\\n".join(lines))
>>> calibcli.read(folder / "scores.jsonl").labels.tolist()
[0, 1]

lm-eval writes, per question, `filtered_resps` [[log-likelihood, is_greedy], ...] (numbers or text) and `target`. Rows
differ in length; missing choices are padded with -inf, which is probability 0.
"""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files import objects_at_once
from calibcli.inputs.files.arrays import Contents, Memory, column_of
from calibcli.inputs.files.names import LABELS, SCORES
from calibcli.inputs.files.source import Source, refuse_large
from calibcli.inputs.files.text import Twice, decimals_of, once
from calibcli.predictions import Array, Named
from calibcli.spec import normal, real, whole

SUFFIXES = (".jsonl",)
LINE = 64 << 20  # longest line
EXPANSION = 16  # bytes in memory for a byte of text, at worst about
CHOICES = 100_000
HEAD = 1000  # rows whose digits are counted


def guess(head: bytes) -> bool:
    """It begins with an object or a list."""
    return head.lstrip()[:1] in (b"{", b"[")


def read(source: Source) -> Contents:
    """Lists of numbers become (N, K) arrays, other values columns of text.

    Raises:
        InputError: not JSON lines, rows that differ in their keys, or samples without scores of each choice.
    """
    refuse_large(source.size * EXPANSION, f"{source.name} takes {source.size * EXPANSION / 1e9:.3g} GB when decoded")
    rows = _rows(source)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{source.name} has no rows", "was it written to the end?")
    if "filtered_resps" in first or "resps" in first:
        return _samples(source, first, rows)
    rows = itertools.chain([first], rows)
    head = list(itertools.islice(rows, HEAD))
    at_once = objects_at_once.read(source, first) if len(head) == HEAD else None
    if at_once is not None:
        decimals = {
            key: max(decimals_of(repr(v)) for row in head for v in row[key])
            for key, array in at_once.items()
            if array.ndim == 2
        }
        return Contents("jsonl", {key: Memory(array) for key, array in at_once.items()}, decimals=decimals)
    lists: dict[str, list[list[Any]]] = {}
    texts: dict[str, list[str]] = {}
    for key, value in first.items():
        (lists if isinstance(value, list) and value else texts)[key] = []
    for count, row in enumerate(itertools.chain(head, rows)):
        for key in (*lists, *texts):
            if key not in row:
                raise InputError(f"row {count} of {source.name} has no '{key}'", "write the same keys in every row")
        for key, values in lists.items():
            value = row[key]
            if not isinstance(value, list):
                problem = f"'{key}' in row {count} of {source.name} is {str(value)[:30]}, not a list"
                raise InputError(problem, "write a list")
            values.append(value)
        for key, cells in texts.items():
            cells.append(_cell(row[key]))
    arrays: dict[str, Named] = {}
    ragged = set()
    about = []
    for key, values in lists.items():
        try:
            table, uneven = _padded(values)
        except (ValueError, TypeError, OverflowError):
            if normal(key) in SCORES or normal(key) in LABELS:
                problem = f"'{key}' in {source.name} holds lists that are not numbers"
                raise InputError(problem, "write numbers") from None
            continue
        arrays[key] = Memory(table)
        if uneven:
            ragged.add(key)
            about.append(_choices(key, [len(row) for row in values], source))
    for key, cells in texts.items():
        arrays[key] = Memory(column_of(cells))
    decimals = {
        key: max(decimals_of(repr(v)) for row in lists[key][:HEAD] for v in row) for key in lists if key in arrays
    }
    return Contents("jsonl", arrays, decimals=decimals, ragged=frozenset(ragged), about=about)


def _choices(key: str, lengths: list[int], source: Source) -> str:
    """A note on rows of different lengths.

    Raises:
        InputError: most rows have one length: another one is a mistake, which would mask a class in all the others.
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


def _samples(source: Source, first: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> Contents:
    """A samples file of lm-eval, multiple choice."""
    scores: list[list[float]] = []
    labels: list[str] = []
    ids: list[str] = []
    verdicts: list[Any] = []
    filters = Counter[str]()
    for row in itertools.chain([first], rows):
        name = str(row.get("filter", "none"))
        filters[name] += 1
        if name != next(iter(filters)):
            continue
        here = f"row {len(scores)} of {source.name}"
        found = _likelihoods(row, here)
        _unconditional(row, len(found), here)
        scores.append(found)
        labels.append(_target(row, len(found), here))
        verdicts.append(row.get("acc"))
        ids.append(_cell(row.get("doc_id", len(ids))))
    _agree(scores, labels, verdicts, source)
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
        "target": Memory(column_of(labels)),
        "doc_id": Memory(column_of(ids)),
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
            values.append(real(choice[0]) if isinstance(choice[0], str) else float(choice[0]))
    except (TypeError, ValueError, IndexError, OverflowError):
        problem = f"{here}: filtered_resps holds no [log-likelihood, is_greedy] per choice: a generation task?"
        raise InputError(problem, "only multiple-choice tasks score every choice") from None
    return values


def _unconditional(row: Mapping[str, Any], choices: int, here: str) -> None:
    """Refuse rows that hold every choice twice, with the question and without it."""
    texts = _continuations(row.get("arguments"))
    half = choices // 2
    twice = len(texts) == choices == 2 * half > 2 and texts[:half] == texts[half:]
    metrics = row.get("metrics")
    if "acc_mutual_info" in row or (isinstance(metrics, list) and "acc_mutual_info" in metrics) or twice:
        raise InputError(
            f"{here} holds {choices} log-likelihoods, of {half} choices with the question and without it "
            "(acc_mutual_info)",
            "run the task without acc_mutual_info, or save the first half of each row as logits",
        )


def _agree(scores: list[list[float]], labels: list[str], verdicts: list[Any], source: Source) -> None:
    """Hold the labels against the harness's own verdict (`acc`: whether the largest likelihood is the target's).

    Raises:
        InputError: they differ, so that the targets are not what they seem.
    """
    if not all(isinstance(v, int | float) and v in (0, 1) for v in verdicts):
        return  # none, or an accuracy of another kind
    wrong = []
    for i, (row, label, verdict) in enumerate(zip(scores, labels, verdicts)):
        best = max(row)
        top = [k for k, value in enumerate(row) if value == best]
        if len(top) == 1 and best == best and (str(top[0]) == label) != bool(verdict):  # ties aside; NaN is found later
            wrong.append(i)
    if wrong:
        first = wrong[0]
        raise InputError(
            f"row {first} of {source.name} has acc {verdicts[first]:g}, but its target reads as choice {labels[first]} "
            f"({len(wrong):,} of {len(scores):,} rows disagree)",
            "save the log-likelihoods as logits and the index of the right choice as label",
        )


def _target(row: Mapping[str, Any], choices: int, here: str) -> str:
    """The index of the right choice: a number, a letter, or the text of a choice."""
    target = row.get("target")
    text = _cell(target).strip()
    if isinstance(target, bool):
        return str(int(target))
    texts = _continuations(row.get("arguments"))
    if len(texts) == choices and texts.count(text) > 1:
        raise InputError(
            f"{here}: every choice continues with the target {text[:30]!r} and the context differs (winogrande and its "
            "like), so that target does not tell the right choice",
            "save the log-likelihoods as logits and the index of the right choice as label",
        )
    try:
        index = whole(text)
    except ValueError:
        index = None
    if index is not None and index < choices:  # negative: for --ignore-label
        return str(index)
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
                row = json.loads(line, object_pairs_hook=once)
            except Twice as error:
                raise InputError(f"row {number} of {source.name} has two '{error}'", "write every key once") from None
            except (ValueError, RecursionError):
                fix = "write one JSON object per line"
                if number == 0 and line.lstrip()[:1] == b"[":
                    fix += " (a list in one file is not JSON lines)"
                raise InputError(f"row {number} of {source.name} is not JSON", fix) from None
            if not isinstance(row, dict):
                problem = f"row {number} of {source.name} is a JSON {type(row).__name__}"
                raise InputError(problem, "write one JSON object per line")
            yield row
            number += 1


def _padded(rows: list[list[Any]]) -> tuple[Array, bool]:
    """(N, K) float64 from lists of numbers, and whether they were padded: with 0 if all lie in [0, 1], else with -inf.

    Raises:
        ValueError, TypeError, OverflowError: not numbers, or a few long rows among many short ones.
    """
    width = max(len(row) for row in rows)
    if len(rows) * width > 64 * sum(len(row) for row in rows) + 1_000_000:
        raise ValueError("rows too uneven to pad")
    if not set(map(type, (v for row in rows for v in row))) <= {int, float}:  # text, true, null
        raise TypeError("not a number")
    unit = all(0 <= v <= 1 for row in rows for v in row) if any(len(row) < width for row in rows) else False
    out = np.full((len(rows), width), 0.0 if unit else -np.inf)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out, any(len(row) < width for row in rows)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)[:10_000]
