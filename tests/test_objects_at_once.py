"""JSON lines read many at a time are what they are one by one: the same arrays, or the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_readers import same, told

from calibcli.scores.files.formats import jsonl
from calibcli.scores.files.source import Source

N = 3 * jsonl.HEAD
LATE = 2 * jsonl.HEAD + 7  # a line that is read with others, where it is
RNG = np.random.default_rng(0)
ROWS = [{"logits": z, "label": int(y)} for z, y in zip(RNG.standard_normal((N, 3)).tolist(), RNG.integers(0, 3, N))]


def lines(late: Any = None) -> list[str]:
    """Objects, one of them another text."""
    found = [json.dumps(row) for row in ROWS]
    if late is not None:
        found[LATE] = late
    return found


def joined(found: list[str], end: str = "\n") -> bytes:
    return (end.join(found) + end).encode()


def every(change: Any) -> bytes:
    return joined([json.dumps(change(row)) for row in ROWS])


PLAIN = {
    "plain": joined(lines()),
    "no end of the last line": joined(lines())[:-1],
    "carriage returns": joined(lines(), "\r\n"),
    "close": joined([line.replace(" ", "") for line in lines()]),
    "spaces": joined(lines('  {"logits" : [ 1,2 ,\t3e-5 ], "label" :2 } ')),
    "whole numbers": joined(lines('{"logits": [1, -2, 123456789012345678901234567890], "label": -100}')),
    "beyond float64": joined(lines('{"logits": [1e999, -1e999, 1e-999], "label": 0}')),
    "two lists": every(lambda row: {**row, "prob": row["logits"][:2], "group": row["label"]}),
    "numbered keys": every(lambda row: {"logits1": row["logits"], "label2": row["label"]}),
    "other letters": every(lambda row: {"logits": row["logits"], "é": row["label"]}),
}
ODD = {
    "blank line": joined([*lines()[:LATE], "", *lines()[LATE:]]),
    "another order": joined(lines('{"label": 1, "logits": [1, 2, 3]}')),
    "infinity": joined(lines('{"logits": [1, 2, -Infinity], "label": 1}')),
    "not a number": joined(lines('{"logits": [1, 2, NaN], "label": 1}')),
    "null": joined(lines('{"logits": [1, 2, null], "label": 1}')),
    "true": joined(lines('{"logits": [1, 2, true], "label": 1}')),
    "text among numbers": joined(lines('{"logits": [1, 2, "3"], "label": 1}')),
    "text as label": joined(lines('{"logits": [1, 2, 3], "label": "1"}')),
    "text as label everywhere": every(lambda row: {**row, "label": str(row["label"])}),
    "label of another kind": joined(lines('{"logits": [1, 2, 3], "label": 1.0}')),
    "no label": joined(lines('{"logits": [1, 2, 3]}')),
    "label twice": joined(lines('{"logits": [1, 2, 3], "label": 1, "label": 2}')),
    "another name": joined(lines('{"logits": [1, 2, 3], "lable": 2}')),
    "another number": joined(lines('{"logits1": [1, 2, 3], "label": 2}')),
    "a key more": joined(lines('{"logits": [1, 2, 3], "label": 2, "id": 3}')),
    "escaped name": joined(lines('{"logits": [1, 2, 3], "l\\u0061bel": 2}')),
    "short list": joined(lines('{"logits": [1, 2], "label": 1}')),
    "empty list": joined(lines('{"logits": [], "label": 1}')),
    "number for a list": joined(lines('{"logits": 3, "label": 1}')),
    "list for a number": joined(lines('{"logits": [1, 2, 3], "label": [1]}')),
    "lists within": every(lambda row: {**row, "logits": [row["logits"]]}),
    "two on a line": joined(lines('{"logits": [1, 2, 3], "label": 1}, {"logits": [1, 2, 3], "label": 1}')),
    "one on two lines": joined(lines('{"logits": [1, 2, 3],\n"label": 1}')),
    "both": joined([*lines('{"logits": [1,\n2, 3], "label": 1}'), '{"logits": [1,2], "label": 1}, 3']),
    "a comma after": joined([line + "," for line in lines()]),
    "not finished": joined(lines('{"logits": [1, 2, 3], "label": 1')),
    "leading zero": joined(lines('{"logits": [01, 2, 3], "label": 1}')),
    "no digit before the point": joined(lines('{"logits": [.1, 2, 3], "label": 1}')),
    "plus": joined(lines('{"logits": [+1, 2, 3], "label": 1}')),
    "not UTF-8": joined(lines()).replace(b"label", b"l\xffbel"),
    "a number": joined(lines("7")),
    "byte order mark": b"\xef\xbb\xbf" + joined(lines()),
}


def read(path: Path) -> Any:
    return told(lambda: jsonl.read(Source(path)))


@pytest.mark.parametrize("name", [*PLAIN, *ODD])
@pytest.mark.one_in(5)
def test_the_same_by_both_readers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes({**PLAIN, **ODD}[name])
    same("lines", name in PLAIN, read, path, monkeypatch)


def test_an_error_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(ODD["not finished"])
    assert f"row {LATE} of {path} is not JSON" in read(path)
