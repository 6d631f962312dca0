"""Text tables by NumPy's parser are what they are by the reader that explains: the same arrays, or the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_readers import same, told

from calibcli.scores.files import text_tables
from calibcli.scores.files.source import Source

N = 3 * text_tables.ROWS
LATE = 2 * text_tables.ROWS + 7  # a row that is read at once, where it is
RNG = np.random.default_rng(0)
SCORES = [[f"{x:.6g}" for x in row] for row in RNG.standard_normal((N, 3))]
LABELS = [str(y) for y in RNG.integers(0, 3, N)]


def lines(cell: str | None = None, column: int = 1) -> list[str]:
    """A table of ids, three scores and a label, with another cell in a late row."""
    rows = [[f"r{i}", *SCORES[i], LABELS[i]] for i in range(N)]
    if cell is not None:
        rows[LATE][column] = cell
    return [",".join(row) for row in [["id", "logit_0", "logit_1", "logit_2", "label"], *rows]]


def joined(found: list[str], end: str = "\n") -> bytes:
    return (end.join(found) + end).encode()


def more(line: str, at: int = LATE) -> list[str]:
    found = lines()
    found.insert(at, line)
    return found


PLAIN = {
    "plain": joined(lines()),
    "no end of the last line": joined(lines())[:-1],
    "carriage returns": joined(lines(), "\r\n"),
    "old carriage returns": joined(lines(), "\r"),
    "byte order mark": b"\xef\xbb\xbf" + joined(lines()),
    "semicolons": joined(lines()).replace(b",", b";"),
    "tabs": joined(lines()).replace(b",", b"\t"),
    "blank lines": joined(more("")),
    "infinities": joined(lines("-inf")),
    "not a number": joined(lines("NaN")),
    "spaces": joined(lines(" 1.5 ")),
    "long numbers": joined(lines("0." + "1234567890" * 30)),
    "beyond float64": joined(lines("-1e999")),
    "names of labels": joined([line + "x" for line in lines()]),
    "spaces in labels": joined(lines(" 2 ", 4)),
    "empty label": joined(lines("", 4)),
    "accents": joined(lines("ré", 0)),
    "label first": joined([",".join(np.array(line.split(","))[[4, 1, 2, 3, 0]]) for line in lines()]),
    "trailing commas": joined([line + "," for line in lines()]),
    "probabilities": joined([line.replace("logit", "prob").replace("-", "") for line in lines()]),
    "two groups": joined([line + "," + ",".join(line.split(",")[1:3]).replace("logit", "prob") for line in lines()]),
}
ODD = {
    "underscore": joined(lines("1_0")),
    "hexadecimal": joined(lines("0x1p3")),
    "missing": joined(lines("")),
    "na": joined(lines("NA")),
    "word": joined(lines("high")),
    "other digits": joined(lines("١")),
    "complex": joined(lines("1j")),
    "comment": joined(lines("1#")),
    "quoted number": joined(lines('"1.5"')),
    "quoted label": joined(lines('"a,b"', 4)),
    "quote within": joined(lines('a"b', 4)),
    "line within quotes": joined(lines('"a\nb"', 4)),
    "quoted header": joined(lines()).replace(b"label", b'"label"', 1),
    "long name": joined(lines("n" * 24, 0)),
    "other letters": joined(lines("日本", 0)),
    "short row": joined(more("r,1,2,3")),
    "long row": joined(more("r,1,2,3,4,5")),
    "trailing comma": joined(more("r,1,2,3,4,")),
    "spaces alone": joined(more("   ")),
    "not UTF-8": joined(lines()).replace(f"r{LATE},".encode(), b"r\xff,"),
    "columns apart": joined([",".join(np.array(line.split(","))[[0, 1, 4, 2, 3]]) for line in lines()]),
    "columns in another order": joined([",".join(np.array(line.split(","))[[0, 2, 1, 3, 4]]) for line in lines()]),
    "blank line first": b"\n" + joined(lines()),
}


def read(path: Path) -> Any:
    return told(lambda: text_tables.table(Source(path), text_tables.delimiter(path.read_bytes()[:4096]) or ","))


@pytest.mark.parametrize("name", [*PLAIN, *ODD])
def test_the_same_by_both_readers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes({**PLAIN, **ODD}[name])
    same("fast_table", name in PLAIN, read, path, monkeypatch)


def test_an_error_names_the_row_and_the_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(ODD["word"])
    assert f"row {LATE} of column 'logit_0' in {path} is 'high', not a number" in read(path)
    path.write_bytes(ODD["short row"])
    assert f"row {LATE - 1} of {path} has 4 cells, the header 5" in read(path)
