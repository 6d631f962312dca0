"""Text tables by NumPy's parser are what they are by the reader that explains: the same arrays, or the same words."""

from __future__ import annotations

import gzip
import io
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_readers import same, told

from calibcli.core.errors import CalibError
from calibcli.scores import recorded_outputs
from calibcli.scores.files import text_tables
from calibcli.scores.files.arrays import FileContents
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
    "long name": joined(lines("n" * 24, 0)),
    "other letters": joined(lines("日本", 0)),
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
    "separator of ASCII": joined(lines("1\x1e")),
    "separator in a label": joined(lines("\x1c1", 4)),
    "complex": joined(lines("1j")),
    "comment": joined(lines("1#")),
    "quoted number": joined(lines('"1.5"')),
    "quoted label": joined(lines('"a,b"', 4)),
    "quote within": joined(lines('a"b', 4)),
    "line within quotes": joined(lines('"a\nb"', 4)),
    "quoted header": joined(lines()).replace(b"label", b'"label"', 1),
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


@pytest.mark.one_in(2)
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
    path.write_bytes(small(0) + b"r,1,2\n" + b'r,"1,2,3,1\n')
    assert f"row 4 of {path} has 3 cells, the header 5" in read(path)


@pytest.mark.regression
def test_many_short_texts_take_few_bytes_each() -> None:
    """Equal texts are one object from the start: a word of two letters took 64 bytes until the whole table was read."""
    table = b"logit_0,logit_1" + b",text" * 9 + b"\n" + (b"1,2" + b",ab" * 9 + b"\n") * 500
    tracemalloc.start()
    text_tables.fast_table(io.BytesIO(table), ",", 11, [[0, 1]])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * len(table)


# Many small files: those with one header are parsed as one text, and say what each says alone.

TEN = ",".join(f"logit_{i}" for i in range(10))
HOW: dict[str, dict[str, Any]] = {  # by the header of all files
    "id,logit_0,logit_1,logit_2,label": {"ids": "id", "by": "label"},
    f"label,{TEN},site,site2": {"by": ("site", "site2")},
    "prob_cat,prob_dog,site,label,weight": {"by": "site", "weights": "weight"},
    "prob,label,patient": {"group": "patient"},
    "cat,dog,label": {"by": "label"},
}
HEAD = next(iter(HOW))
CELLS = {
    **{"id": "r{0}", "label": "{1}", "site": "north {1}", "site2": "", "weight": "{2}"},
    **{"patient": "Jérôme {0} 日本, of the second ward".replace(",", ""), "prob": "{4:.5f}"},
    **{"prob_cat": "{4:.3f}", "prob_dog": "{5:.3f}", "cat": "{4:.3f}", "dog": "{5:.3f}"},
}


def small(number: int, head: str = HEAD, rows: int = 4) -> bytes:
    """A file of a few rows; each has other numbers."""
    rng = np.random.default_rng(number)
    words = ("cat", "dog") if "cat" in head else (0, 1)
    found = [head]
    for i in range(rows):
        x, p = rng.normal(), round(rng.uniform(), 3)
        cells = (CELLS.get(name, "{3:.6g}") for name in head.split(","))
        row = f"{number}.{i}", words[i % 2], rng.integers(1, 4), x, p, 1 - p
        found.append(",".join(cell.format(*row) if "{3" not in cell else f"{rng.normal():.6g}" for cell in cells))
    return joined(found)


def score(content: bytes, cell: bytes) -> bytes:
    """The file with another first score in row 1."""
    return re.sub(rb"(?<=r5\.1,)[^,]*", cell, content)


CHANGED: dict[
    str, tuple[Callable[[bytes], bytes], bool]
] = {  # one file of many, whether it can be read with the others
    "another header": (lambda b: b.replace(b"id", b"index", 1), False),
    "columns in another order": (lambda b: b.replace(b"logit_0,logit_1", b"logit_1,logit_0"), False),
    "a quote": (lambda b: b.replace(b"r5.1", b'"r5.1"'), False),
    "a line within quotes": (lambda b: b.replace(b"r5.1", b'"r5\n1"'), False),
    "a quote that never ends": (lambda b: b.replace(b"r5.1", b'"r5.1'), False),
    "carriage returns": (lambda b: b.replace(b"\n", b"\r\n"), True),
    "old carriage returns": (lambda b: b.replace(b"\n", b"\r"), False),
    "one carriage return": (lambda b: b.replace(b"r5.1", b"r5\r1"), False),
    "no end of the last line": (lambda b: b[:-1], True),
    "spaces": (lambda b: score(b, b" 1.5 ").replace(b",1\n", b", 1 \n"), True),
    "a label in words": (lambda b: b[:-2] + b"dog\n", True),
    "a missing score": (lambda b: score(b, b""), False),
    "a score that is no number": (lambda b: score(b, b"high"), False),
    "an underscore": (lambda b: score(b, b"1_0"), False),
    "a separator of ASCII": (lambda b: score(b, b"\x1c1"), False),
    "a separator before a label": (lambda b: b[:-2] + b"\x1c1\n", False),
    "a missing label": (lambda b: b[:-2] + b"\n", True),
    "a short row": (lambda b: b + b"r,1,2,3\n", False),
    "a blank line": (lambda b: b.replace(b"r5.1", b"\nr5.1"), False),
    "a blank line at the end": (lambda b: b + b"\n", False),
    "spaces alone": (lambda b: b + b"  \n", False),
    "a comment": (lambda b: b"# of today\n" + b, False),
    "a byte order mark": (lambda b: b"\xef\xbb\xbf" + b, False),
    "not UTF-8": (lambda b: b.replace(b"r5.1", b"r\xff"), False),
    "a NUL": (lambda b: b.replace(b"r5.1", b"r\0"), False),
    "no rows": (lambda b: b.partition(b"\n")[0] + b"\n", False),
    "nothing": (lambda _: b"", False),
    "compressed": (gzip.compress, True),
    "many rows": (lambda _: small(5, rows=2000), False),
    "tabs": (lambda b: b.replace(b",", b"\t"), False),
}


def parts(folder: Path, contents: list[bytes]) -> str:
    for i, content in enumerate(contents):
        (folder / f"{i:02}.csv").write_bytes(content)
    return str(folder / "*.csv")


def read_pattern(pattern: str, **how: Any) -> tuple[Any, int]:
    """Everything that is read of a pattern, or the words in which it is refused; and how many files were read with
    others."""
    with_others = []
    alike = text_tables._alike

    def counted(*given: Any) -> list[FileContents]:
        found = alike(*given)
        with_others.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_tables, "_alike", counted)
        try:
            read = recorded_outputs.read(pattern, **how)
        except CalibError as error:
            return (str(error), error.fix, error.code), sum(with_others)
    found = {name: getattr(read, name) for name in ("labels", "weights", "groups", "group_names", "ids")}
    arrays = {"logits": read.logits, **found, **read.slices}
    cells = {name: (a.dtype, a.tolist()) for name, a in arrays.items() if a is not None}
    return (repr(cells), read.kind, read.classes, read.notes, read.sha256, repr(read.record)), sum(with_others)


def each_alone(pattern: str, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(text_tables, "_alike", lambda *_: [])
        found, with_others = read_pattern(pattern, **how)
    assert with_others == 0
    return found


@pytest.mark.parametrize("name", CHANGED)
def test_one_odd_file_of_many_is_read_as_it_is_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, plain = CHANGED[name]
    contents = [small(i) for i in range(12)]
    before, contents[5] = contents[5], change(contents[5])
    assert contents[5] != before
    pattern = parts(tmp_path, contents)
    found, with_others = read_pattern(pattern, by="id")
    assert found == each_alone(pattern, monkeypatch, by="id")
    assert with_others == 11 if plain else len(found) == 3 or 4 <= with_others <= 10
    if name == "a separator before a label":
        assert len(found) == 6
    if name == "a score that is no number":
        assert f"row 1 of column 'logit_0' in {tmp_path / '05.csv'} is 'high'" in found[0]


def test_a_file_with_the_suffix_of_another_format_is_not_read_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(6):
        (tmp_path / f"{i}.{'json' if i == 3 else 'csv'}").write_bytes(small(i))
    found, with_others = read_pattern(str(tmp_path / "*"))
    assert "3.json is not JSON" in found[0]
    assert found == each_alone(str(tmp_path / "*"), monkeypatch)
    assert with_others == 2


@pytest.mark.parametrize(("head", "how"), HOW.items())
def test_all_columns_of_files_read_together(
    head: str, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = parts(tmp_path, [small(i, head, 2 + i % 3) for i in range(20)])
    found, with_others = read_pattern(pattern, **how)
    assert len(found) == 6
    assert found == each_alone(pattern, monkeypatch, **how)
    assert with_others == 19
