"""Answers of a server with log-probabilities: chats, completions and batches, as OpenAI's API and vLLM's write them.

Each line is a response, with `choices[0].logprobs`, or holds one: `response.body` of a batch, beside `custom_id`. The
label is a further key of the line (`target`), or in a file of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, column_of
from calibcli.inputs.files.evals.answers import Columns, no_scores, scored
from calibcli.inputs.files.evals.letters import Letters, tokens_of
from calibcli.inputs.files.roles import LABELS
from calibcli.inputs.files.source import Source

EXPANSION = 3  # bytes in memory for a byte of text, at worst about
FORMAT = "jsonl, chat log-probabilities"
HOLDERS = ("response", "body", "completion", "output", "result")
FAILED = 400  # HTTP statuses from here on


def matches(row: Mapping[str, Any]) -> bool:
    """Whether a row is a response of a server, or holds one."""
    return bool(_response(row)) or ("custom_id" in row and "response" in row)


def read(source: Source, first: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> Contents:
    """Log-probabilities of `--choices` where the model named one, as logits.

    Raises:
        InputError: without --choices; too many rows lack a choice; several answers in a row.
    """
    choices, letters = source.asked.choices, Letters(source.asked.unlisted)
    columns, every = Columns(), Columns()
    scores: list[list[float]] = []
    ids: list[str] = []
    label = next((k for k in first if k in LABELS and isinstance(first[k], str | int)), "")
    labels: list[str] = []
    failed, seen = 0, False
    for number, row in enumerate(itertools.chain([first], rows)):
        here = f"row {number} of {source.name}"
        answer = _response(row)
        if not answer:
            if not _failed(row):
                raise InputError(f"{here} holds no response with choices", "write one response per line")
            failed += 1
            continue
        if len(answer["choices"]) != 1:
            raise InputError(f"{here} holds {len(answer['choices'])} answers", "ask for one (n=1)")
        tokens = tokens_of(answer["choices"][0].get("logprobs"), here)
        seen |= bool(tokens)
        if not choices and tokens:
            problem = f"{source.name} holds log-probabilities of tokens, and does not say which of them are the choices"
            raise InputError(problem, "pass --choices A,B,C,D: what the model answered with")
        further = {k: v for k, v in row.items() if k not in (*HOLDERS, "choices", "usage", label)}
        if not seen:
            every.add(further)
        found = letters.add(tokens, choices)
        if found is None:
            continue
        columns.add(further)
        scores.append(found[0])
        ids.append(str(row.get("custom_id", row.get("id", number)))[:1000])
        if label:
            if label not in row:
                raise InputError(f"{here} has no '{label}'", "write the same keys in every row")
            labels.append(str(row[label]).strip())
    if not seen:
        why = f"the responses in {source.name} hold no log-probabilities"
        return no_scores(FORMAT, every, why, "ask for them: logprobs=true, top_logprobs=20")
    about = [f"{failed:,} requests failed: left out"] if failed else []
    about += letters.remarks(source.name)
    said = {
        "classes": {"logprobs": choices},
        "about": about,
        "facts": letters.facts,
        "used": frozenset({"choices", "unlisted"}),
    }
    return scored(
        FORMAT, source, columns, ("logprobs", np.array(scores)), (label, column_of(labels)), ("ids", ids), **said
    )


def _response(row: Any, depth: int = 3) -> Mapping[str, Any]:
    """What has `choices` that hold a message or a text; {} where nothing has."""
    if not isinstance(row, Mapping) or depth == 0:
        return {}
    found = row.get("choices")
    if isinstance(found, list) and found and isinstance(found[0], Mapping) and {"message", "text"} & set(found[0]):
        return row
    return next((inner for key in HOLDERS if (inner := _response(row.get(key), depth - 1))), {})


def _failed(row: Mapping[str, Any]) -> bool:
    """Whether a request of a batch got no answer."""
    response = row.get("response")
    status = response.get("status_code") if isinstance(response, Mapping) else None
    return (
        bool(row.get("error"))
        or (isinstance(status, int) and status >= FAILED)
        or ("custom_id" in row and not response)
    )
