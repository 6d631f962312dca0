"""Several results as one, from Python."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibcli import wellformed
from calibcli.errors import InputError, UsageError
from calibcli.gate import compare as comparing
from calibcli.gate.input_files import read_result
from calibcli.headline import FACT, headed, listed
from calibcli.result import CHANGE, WORST_FIRST, Cell, Result, Table

__all__ = ["report"]

COMPARED = ("metrics", "scale", "curvature", "fit")
"""Commands whose results are set side by side."""


def report(*results: Result | str | Path, names: Sequence[str] | None = None) -> Result:
    """Results of any commands as one: `report(a, b).write("report.html")` is a page of all of them.

    Those of the same command are compared too, as independent, each number in its unit. Ours: what is compared.

    >>> found = [calibcli.measure(logits, labels, "ece"), calibcli.check(logits, labels, max={"ece": 0.1})]
    >>> [row[:3] for row in report(*found, names=["test", "gate"]).tables[0].rows]
    [['test', 'metrics', ''], ['gate', 'check', 'pass']]

    Args:
        results: results, or .json files of them; of a report, those that it holds.
        names: one for each; by default that of the file.

    Returns:
        A table of the results, with each of them whole in `facts["results"]`.

    Raises:
        InputError: a file that is not a result.  UsageError: none, or another number of names.
    """
    if not results:
        raise UsageError("no result to report", "name one or more .json files that calib wrote")
    read = [(one, {}) if isinstance(one, Result) else read_result(one) for one in results]
    named = list(names or _names(results))
    if len(named) != len(results):
        raise UsageError(f"{len(results)} results, {len(named)} names", "name each result")
    found = [
        pair
        for name, (one, _) in zip(named, read, strict=True)
        for pair in held(one, name)  # but for what a report found by comparing
        if pair[1] is one or not by_report(pair[1])
    ]
    compared, notes = _compared(found)
    verdicts = [one.verdict for _, one in found if one.verdict]
    rows: list[list[Cell]] = [
        [name, one.command, one.verdict or "", str(one.facts.get(FACT) or "")] for name, one in found
    ]
    return Result(
        command="report",
        tables=[
            Table(name="results", title="Results", columns=["result", "command", "verdict", "in short"], rows=rows)
        ],
        notes=notes,
        facts={
            FACT: _headline(found),
            **({"verdict": next(o for o in WORST_FIRST if o in verdicts)} if verdicts else {}),
            "results": [{"name": name, "result": json.loads(one.to_json())} for name, one in [*found, *compared]],
        },
        provenance={"inputs": [entry for _, entry in read if entry]},
    )


def by_report(result: Result) -> bool:
    """Whether a report made this result itself, by comparing those that it was given."""
    return result.command == "compare" and not result.provenance


def _headline(held: Sequence[tuple[str, Result]]) -> str:
    judged = [(name, one.verdict) for name, one in held if one.verdict]
    count = f"{len(held)} result{'s' * (len(held) != 1)}"
    if not judged:
        names = listed((f"{one.command} of {name}" for name, one in held), 5)
        return f"{count}: {names}. No gate is among them, so there is no verdict."
    failed = [f"{name} ({str(verdict).replace('_', ' ')})" for name, verdict in judged if verdict != "pass"]
    some = ", ".join(failed[:5]) + (f" and {len(failed) - 5} more" if len(failed) > 5 else "")
    passed = "every one passes" if len(judged) > 1 else "it passes"
    return f"{count}, {len(judged)} with a verdict: {f'not passed: {some}' if failed else passed}."


def _names(results: Sequence[Any]) -> list[str]:
    """File names without what they share; the command and a number of what has none."""
    texts = [str(r) if not isinstance(r, Result) else f"{r.command} {i}" for i, r in enumerate(results, 1)]
    stems = [text.rsplit("/", 1)[-1].removesuffix(".json") for text in texts]
    if len(set(stems)) == len(stems):
        return stems
    shared = os.path.commonpath(list(map(os.path.dirname, texts))) if len({t[:1] == "/" for t in texts}) == 1 else ""
    return [text.removeprefix(f"{shared}/").removesuffix(".json") for text in texts]


def held(result: Result, name: str = "") -> list[tuple[str, Result]]:
    """The results that a report holds, by name; any other result is its own, by the name given.

    Raises:
        InputError: one of them is no result of this version.
    """
    inside = result.facts.get("results") if result.command == "report" else None
    if not isinstance(inside, list):
        return [(name, result)]
    fix = "write it again: this is not what calib writes"
    return [
        (str(one.get("name", "")), wellformed.read(one.get("result"), Result, "report", fix, f"facts.results[{i}]"))
        for i, one in enumerate(inside)
        if isinstance(one, Mapping)
    ]


def _compared(held: Sequence[tuple[str, Result]]) -> tuple[list[tuple[str, Result]], list[str]]:
    """The differences between the results of each command, and why some have none."""
    found, notes = [], []
    for command in COMPARED:
        same = [(name, _fixed(one)) for name, one in held if one.command == command]
        if len(same) < 2:
            continue
        try:
            made = comparing.results([one for _, one in same], [name for name, _ in same])
        except InputError as error:
            notes.append(f"results of {command} are not compared: {error.problem}")
            continue
        found.append((f"Comparison of {command}", headed(made)))
    return found, notes


def _fixed(result: Result) -> Result:
    """Of a fit what it fitted, and what came after: before is what `metrics` compares."""
    left = [e for e in result.estimates if e.scope not in ("before", CHANGE)]
    return dataclasses.replace(result, estimates=left) if result.command == "scale" else result
