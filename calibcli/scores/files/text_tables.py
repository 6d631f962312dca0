"""Tables in text and lines of JSON: a fast reader for plain numbers, and a slow one that names the row of a mistake."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import IO, Any

import numpy as np

from calibcli.core.errors import CalibError, InputError, NoRows, refusing
from calibcli.core.options import real
from calibcli.scores.files.arrays import FileContents, Memory, RowsOf, column_of
from calibcli.scores.files.roles import PREFIXED, PREFIXES
from calibcli.scores.files.source import Source, by_suffix, refuse_large
from calibcli.scores.predictions import Array, Named

# Fast readers of regular text tables and JSON lines. They return None for irregular files, and the slow readers below
# and in `formats/jsonl.py` then report what is wrong, with its row.

BLOCK = 1 << 16  # bytes parsed at once; the objects that they become stay in the cache
OF_NUMBERS = b"0123456789+-.eE, \t\r"


def fast_table(text: IO[bytes], delimiter: str, width: int, groups: Sequence[Sequence[int]]) -> dict[int, Array] | None:
    """Parse all rows after the header at once. Returns None for odd rows, and cells that are missing or not numbers.

    Args:
        text: the table, in UTF-8, with no byte of ODD but carriage returns.  width: number of columns.
        groups: those that are numbers, side by side; the others are text.

    Returns:
        By first column: each group, (N, columns) float64, and each column of text, (N,) objects.
    """
    numbers = {columns[0]: len(columns) for columns in groups}
    if any(list(columns) != list(range(columns[0], columns[0] + len(columns))) for columns in groups):
        return None
    inside = set(chain.from_iterable(groups)) - set(numbers)
    fields = [(str(i), "f8", (numbers[i],)) if i in numbers else (str(i), "O") for i in range(width) if i not in inside]
    stream = io.TextIOWrapper(text, encoding="utf-8-sig", newline="")
    texts = set(range(width)) - inside - set(numbers)
    same: Any = dict.fromkeys(texts, sys.intern)  # one object for equal texts
    try:
        with warnings.catch_warnings(action="ignore"):  # of a table without rows
            table = np.loadtxt(stream, np.dtype(fields), None, delimiter, same, skiprows=1, ndmin=1)
    except CalibError:
        raise
    except (ValueError, OSError):
        return None
    return {int(name): np.ascontiguousarray(table[name]) for name, *_ in fields}


def lines(source: Source, first: Mapping[str, Any]) -> dict[str, Array] | None:
    """Parse lists as (N, K) float64 and whole numbers as (N,) texts; None unless every line is an object like the first
    row.

    Each has the same keys in the same order, with as many numbers, or one whole number, behind them. Without what
    numbers are made of, all lines are then the same: no text, no `true` and no second member of one name fits in.
    """
    lists = {key: len(value) for key, value in first.items() if isinstance(value, list) and value}
    columns: dict[str, list[Any]] = {key: [] for key in first}
    texts: dict[int, str] = {}
    skeleton = None
    try:
        for block in _blocks(source):
            bones = block.translate(None, OF_NUMBERS)
            skeleton = skeleton or bones[: bones.index(b"\n") + 1]
            rows = json.loads("[" + block[:-1].replace(b"\n", b",").decode() + "]")
            if bones != skeleton * len(rows) or {*map(tuple, rows)} != {tuple(first)}:
                return None
            for key, values in columns.items():
                cells = [*map(itemgetter(key), rows)]
                if key in lists and set(map(len, cells)) == {lists[key]}:
                    flat = np.fromiter(chain.from_iterable(cells), np.float64, len(cells) * lists[key])
                    values.append(flat.reshape(len(cells), lists[key]))
                elif set(map(type, cells)) == {int}:
                    texts |= {cell: str(cell) for cell in set(cells) - texts.keys()}
                    values += [texts[cell] for cell in cells]
                else:
                    return None
    except CalibError:
        raise
    except (ValueError, OverflowError, TypeError, AttributeError):  # not JSON, or other values
        return None
    return {key: np.concatenate(values) if key in lists else column_of(values) for key, values in columns.items()}


def _blocks(source: Source) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines, each ending in a newline."""
    unfinished = b""
    with source.reader() as file:
        while block := file.read(BLOCK):
            whole, end, unfinished = (unfinished + block).rpartition(b"\n")
            if end:
                yield whole + end
    if unfinished:
        yield unfinished + b"\n"


# The slow reader of tables: a header row, score columns `logit_0 ..`, `prob_0 ..` or `prob_cat ..`, and a label column.


ROWS, CELLS = 1024, 1 << 16  # parsed at once
SMALL = 1 << 16  # bytes of a file that is read at once
TOGETHER = 1 << 22  # bytes of files that are parsed at once
EXPANSION = 6  # bytes of memory for each byte of text, roughly, in the worst case
NUMBERED = re.compile(r"^([a-z_]+?)[_.\-\[]?(\d{1,7})\]?$")
ODD = b'\0\r\x1c\x1d\x1e\x1f"'  # what may end rows, or is read in two ways
MISSING = {"", "na", "null", "none", "n/a", "?"}
NO_VALUE = frozenset({*MISSING, "nan", "<na>", "nat"})  # also what libraries write for a missing number or time


def delimiter(head: bytes) -> str:
    """Return comma or tab, judged by the first line of a text table; "" for other files."""
    if b"\0" in head or b"\n" not in head or head.lstrip()[:1] in (b"{", b"["):
        return ""
    first = head.split(b"\n")[0]
    return "\t" if first.count(b"\t") > first.count(b",") else ","


def table(source: Source, delimiter: str, grouped: bool = True) -> FileContents:
    """Read columns by name; if `grouped`, a group of score columns becomes one (N, K) array.

    Raises:
        InputError: larger than memory, no header or rows, ragged rows, or score cells that are not numbers.
    """
    refuse_large(source.size * EXPANSION, f"{source.name} takes {source.size * EXPANSION / 1e9:.3g} GB when decoded")
    form, first = "tsv" if delimiter == "\t" else "csv", _first_line(source).partition(b"\r")[0]
    if delimiter.encode() not in first:
        blank = " " if _in_words(source) else delimiter
        delimiter = next((d for d in ("\t", ";", ",", "|") if d.encode() in first), blank)
    rows = _rows(source, delimiter)
    header = [cell.strip() for cell in next(rows)]
    bare = source.options.no_header or all(is_number(cell) for cell in header)
    if bare and (grouped or len(header) == 1 or source.options.no_header):
        rows = _rows(source, delimiter)  # one column of labels may do without a name
        header = [source.stem] if len(header) == 1 else [str(i) for i in range(len(header))]
    elif bare:
        raise NoHeader(source, None)
    commas = delimiter != "," and _decimal_commas(_rows(source, delimiter))
    rows = map(_with_points, rows) if commas else rows
    groups, others, fields = score_groups(header, source.name, grouped)
    numbers: dict[str, list[Array]] = {name: [] for name in groups}
    texts: dict[int, list[str]] = {i: [] for i in others}
    seen: dict[str, str] = {}
    decimals = dict.fromkeys(groups, 0)
    done, quick = 0, None
    for chunk in _chunks(rows, len(header), source.name):
        for name, columns in groups.items():
            cells = [[row[i] for i in columns] for row in chunk]
            numbers[name].append(_floats(cells, [header[i] for i in columns], done, source.name))
            if done == 0:
                decimals[name] = max(map(decimals_of, chain.from_iterable(cells[:1000])))
        for i in others:
            texts[i].extend(seen.setdefault(row[i], row[i]) for row in chunk)
        done += len(chunk)
        if (
            done == len(chunk)
            and done == _height(len(header))
            and groups
            and first.strip()
            and not (commas or bare or _odd(source))
        ):
            quick = fast_table(source.reader(), delimiter, len(header), [*groups.values()])
            if quick is not None:
                break
    if done == 0:
        fix = "is the file truncated? calib list formats shows what can be read"
        raise NoRows(f"{source.name} has a header but no rows", fix)
    arrays: dict[str, Named] = {}
    for name, columns in groups.items():
        arrays[name] = Memory(np.concatenate(numbers[name]) if quick is None else quick[columns[0]])
    for i in others:
        arrays[header[i]] = Memory(column_of(texts[i]) if quick is None else quick[i])
    named = {columns[0]: name for name, columns in groups.items()} | {i: header[i] for i in others}
    plain = len(header) > 1 and bool(first.strip()) and b'"' not in first and not (bare or commas)
    read_alike = partial(_alike, first, delimiter, len(header), [*groups.values()], named, {"format": form, **fields})
    notes = ["decimal commas are read as points"] if commas else []
    contents = FileContents(
        form, arrays, decimals=decimals, read_alike=read_alike if plain else None, notes=notes, **fields
    )
    contents = _without_names(contents) if bare and len(header) > 1 else contents
    if bare and len(header) > 1 and not source.options.no_header:
        raise NoHeader(source, contents)
    return contents


class NoHeader(InputError):
    """A table whose first row holds numbers alone, with what it would be without a header."""

    def __init__(self, source: Source, contents: FileContents | None) -> None:
        problem = f"{source.name} has no header row: its first row holds numbers alone"
        super().__init__(problem, "pass --no-header, or name the columns in the first row: logit_0,logit_1,...,label")
        self.contents = contents


DECIMAL_COMMA = re.compile(r"^\s*-?\d*,\d+(?:[eE]-?\d+)?\s*%?\s*$")
THOUSANDS = re.compile(r"^\s*[1-9]\d{0,2}(?:,\d{3})+\s*$")


def _decimal_commas(rows: Iterator[list[str]]) -> bool:
    """Return whether numbers in the first rows have decimal commas, which in one place cannot be the marks of
    thousands.
    """
    cells = [cell for row in itertools.islice(rows, 1, 1000) for cell in row if DECIMAL_COMMA.match(cell)]
    return not all(map(THOUSANDS.match, cells))


def _with_points(row: list[str]) -> list[str]:
    return [cell.replace(",", ".") if DECIMAL_COMMA.match(cell) else cell for cell in row]


def grouped_columns(contents: FileContents, source: Source, grouped: bool = True) -> FileContents:
    """Return a table whose columns are texts with each group of score columns as one (N, K) array, if `grouped`.

    Raises:
        InputError: as `score_groups`, or a score that is not a number.
    """
    header = [*contents.arrays]
    groups, others, fields = score_groups(header, source.name, grouped)
    arrays: dict[str, Named] = {}
    decimals = {**contents.decimals}
    for name, columns in groups.items():
        members = [header[i] for i in columns]
        texts = np.column_stack([contents.arrays[one].read(0, contents.arrays[one].shape[0]) for one in members])
        if texts.ndim != 2 or texts.dtype.kind != "O":
            return contents
        arrays[name] = Memory(_floats(texts.tolist(), members, 0, source.name))
        decimals[name] = max(map(decimals_of, chain.from_iterable(texts[:1000].tolist())))
    arrays |= {header[i]: contents.arrays[header[i]] for i in others}
    return replace(
        contents,
        arrays=arrays,
        decimals=decimals,
        kinds=fields["kinds"],
        classes={**contents.classes, **fields["classes"]},
        members={**contents.members, **fields["members"]},
    )


# Many small tables with one header, as the parts of a data set are: their rows are parsed as one text.


def _alike(
    first: bytes,
    delimiter: str,
    width: int,
    groups: Sequence[Sequence[int]],
    named: Mapping[int, str],
    fields: Mapping[str, Any],
    sources: Sequence[Source],
) -> list[FileContents]:
    """Read the leading files of `sources` that are small plain tables with the line `first` as their header; [] where a
    cell of theirs needs the slow reader. None has the suffix of another format.

    Args:
        width: number of columns.  groups: those that are numbers, as for `fast_table`.
        named: by first column, the names of the arrays.  fields: of `FileContents`, the same for all.
    """
    bodies: list[bytes] = []
    size, ending = 0, ""
    for source in sources:
        size += source.size
        last = source.path.rpartition(".")[2]
        if last != ending or source.digest_packed:  # else it has the suffix of the file before it
            ending = last
            if by_suffix(source.plain.suffix.lower()) not in ("", fields["format"]):
                break
        if source.size > SMALL or size > TOGETHER or (body := _plain_rows(source, first)) is None:
            break
        bodies.append(body)
    heights = [body.count(b"\n") for body in bodies]
    whole = fast_table(io.BytesIO(b"\n".join([first, b"".join(bodies)])), delimiter, width, groups) if bodies else None
    if whole is None or any(len(array) != sum(heights) for array in whole.values()):
        return []
    ends = [0, *itertools.accumulate(heights)]
    return [
        FileContents(arrays={name: RowsOf(whole[i], start, stop) for i, name in named.items()}, **fields)
        for start, stop in itertools.pairwise(ends)
    ]


def _plain_rows(source: Source, first: bytes) -> bytes | None:
    """Return the bytes after the header line `first`, each row ending in a newline; None if there is another header, or
    anything that is not one row a line without quotes.
    """
    with contextlib.suppress(InputError, OSError):
        head, _, rows = source.pread(source.size, 0).partition(b"\n")
        rows = rows.replace(b"\r\n", b"\n")
        rows += b"\n"[: not rows.endswith(b"\n")]
        odd = rows.startswith(b"\n") or b"\n\n" in rows or len(rows.translate(None, ODD)) < len(rows)
        return None if odd or head.removesuffix(b"\r") != first else rows
    return None


def _odd(source: Source) -> bool:
    """Return whether a file holds a byte of ODD that is no carriage return, so that it needs the slow reader."""
    pieces = (source.pread(min(BLOCK, source.size - start), start) for start in range(0, source.size, BLOCK))
    return any(byte in piece for piece in pieces for byte in ODD.replace(b"\r", b""))


def _in_words(source: Source) -> bool:
    """Return whether blanks part the cells of a table: the lines have one number of words, and most hold a number."""
    head = source.pread(min(source.size, SMALL), 0).decode("utf-8", "replace").split("\n")[:100]
    words = [line.split() for line in (head if source.size <= SMALL else head[:-1]) if line.strip()]
    numbers = sum(any(map(is_number, line)) for line in words)
    return len({*map(len, words)}) == 1 and len(words[0]) > 1 and 2 * numbers > len(words)


def _first_line(source: Source) -> bytes:
    head = source.pread(min(source.size, SMALL), 0).partition(b"\n")
    return head[0] if head[1] else source.reader().readline()


def _without_names(contents: FileContents) -> FileContents:
    """Return a table without a header with its label, if only one of the first and the last column holds whole numbers
    or names and all others hold fractions; these are then the scores.
    """
    names = [*contents.arrays]
    cells = [texts.read(0, 1000).tolist() for texts in contents.arrays.values()]
    fractions = [any("." in cell and is_number(cell) for cell in column) for column in cells]
    ends = [i for i in {0, len(names) - 1} if not fractions[i]]
    if len(ends) != 1 or fractions.count(False) > 1:
        return contents
    label, score_names = names[ends[0]], [name for i, name in enumerate(names) if i != ends[0]]
    if len(score_names) == 1:
        return replace(contents, scores=score_names[0], labels=label)
    table = np.column_stack(
        [
            floats_of_text(contents.arrays[name].read(0, contents.arrays[name].shape[0]), name, "")
            for name in score_names
        ]
    )
    arrays = {"scores": Memory(table), label: contents.arrays[label]}
    decimals = {"scores": max(decimals_of(cell) for column in cells for cell in column)}
    return replace(
        contents, arrays=arrays, members={"scores": score_names}, decimals=decimals, scores="scores", labels=label
    )


def score_groups(
    header: Sequence[str], where: str, grouped: bool
) -> tuple[dict[str, list[int]], list[int], dict[str, Any]]:
    """Group the score columns by prefix, in class order, if `grouped`. Returns the groups, the other columns, and the
    fields of `FileContents` that describe them.

    Raises:
        InputError: columns of a group are missing, or two columns have one name.
    """
    try:
        groups, others, fields = _score_groups(tuple(header), grouped)
        return groups, others, {**fields, "classes": dict(fields["classes"])}  # to which callers add
    except InputError as error:
        raise InputError(f"{where} {error.problem}", error.fix) from None


@lru_cache(maxsize=8)  # many files of one pattern have the same header
def _score_groups(header: tuple[str, ...], grouped: bool) -> tuple[dict[str, list[int]], list[int], dict[str, Any]]:
    numbered_groups: dict[str, dict[int, int]] = {}
    named: dict[str, list[tuple[str, int]]] = {}
    for i, name in enumerate(header if grouped else ()):
        numbered = NUMBERED.match(name.lower())
        prefixed = PREFIXED.match(name)
        if numbered and numbered[1].rstrip("_") in PREFIXES:
            numbered_groups.setdefault(numbered[1].rstrip("_"), {})[int(numbered[2])] = i
        elif prefixed:
            named.setdefault(prefixed[1], []).append((prefixed[2], i))
    groups: dict[str, list[int]] = {}
    for prefix, columns in numbered_groups.items():
        first = min(columns)
        wanted = range(first, first + len(columns))
        missing = [k for k in wanted if k not in columns]
        if missing or first > 1:
            absent = missing[0] if missing else 0
            problem = f"has score columns {prefix}_{first} .. {prefix}_{max(columns)} but not {prefix}_{absent}"
            raise InputError(problem, "write one column per class, numbered from 0")
        if len(columns) > 1:
            groups[prefix] = [columns[k] for k in wanted]
    classes = {}
    for prefix, pairs in named.items():
        if len(pairs) > 1 and prefix not in groups:
            groups[prefix] = [i for _, i in pairs]
            classes[prefix] = [name for name, _ in pairs]
    twice = [name for name, count in Counter(header).items() if count > 1 and name]
    if twice:
        raise InputError(f"has two columns '{twice[0][:40]}'", "give every column its own name")
    used = {i for columns in groups.values() for i in columns}
    kinds = {name: PREFIXES.get(name, "") for name in groups}
    others = [i for i in range(len(header)) if i not in used]
    members = {name: [header[i] for i in columns] for name, columns in groups.items()}
    return groups, others, {"kinds": kinds, "classes": classes, "members": members, "table": True}


def floats_of_text(column: Array, name: str, where: str) -> Array:
    """Convert an (N,) column of text to float64; empty cells become NaN.

    Raises:
        InputError: a cell is not a number; its row is named.
    """
    return _floats([[str(cell)] for cell in column], [name], 0, where)[:, 0]


def _rows(source: Source, delimiter: str) -> Iterator[list[str]]:
    """Yield rows of cells, the header first; blank lines are skipped."""
    count = 0
    errors = (UnicodeDecodeError, csv.Error, OSError)
    with refusing(errors, lambda e: f"{source.name} is not a text table ({str(e)[:80]})", "save it as UTF-8 CSV"):
        if source.size > SMALL:
            text: Iterable[str] = io.TextIOWrapper(source.reader(), encoding="utf-8-sig", newline="")
        else:
            text = io.StringIO(source.pread(source.size, 0).decode("utf-8-sig"), newline="")
        for row in csv.reader(text, delimiter=delimiter, strict=True, skipinitialspace=delimiter == " "):
            if row:
                count += 1
                yield row
    if count == 0:
        raise InputError(f"{source.name} has no rows", "is the file truncated?")


def _chunks(rows: Iterator[list[str]], width: int, where: str) -> Iterator[list[list[str]]]:
    """Yield the rows in pieces.

    Raises:
        InputError: a row has another number of cells than the header, before anything that is wrong further down.
    """

    def even() -> Iterator[list[str]]:
        for i, row in enumerate(rows):
            if len(row) != width:
                problem = f"row {i} of {where} has {len(row)} cells, the header {width}"
                raise InputError(problem, "is the file truncated, or a cell with the delimiter not quoted?")
            yield row

    checked = even()
    while chunk := list(itertools.islice(checked, _height(width))):
        yield chunk


def _height(width: int) -> int:
    """Return how many rows are parsed at once."""
    return min(ROWS, -(-CELLS // width))


def _floats(cells: list[list[str]], names: Sequence[str], first: int, where: str) -> Array:
    if not any("_" in "".join(row) for row in cells):  # NumPy reads 1_0 as 10
        with contextlib.suppress(ValueError):
            return np.array(cells, dtype=np.float64).reshape(len(cells), len(names))  # also without rows
    out = np.empty((len(cells), len(names)))
    for r, row in enumerate(cells):
        for c, cell in enumerate(row):
            try:
                out[r, c] = np.nan if cell.strip().lower() in MISSING else _share(cell)
            except ValueError:
                problem = f"row {first + r} of column '{names[c]}' in {where} is {cell[:40]!r}, not a number"
                comma = " with a decimal point and no other separator" * ("," in cell)
                raise InputError(problem, f"write it as a number{comma}, or leave the column out") from None
    return out


def _share(cell: str) -> float:
    """Parse a number; `63.4%` becomes 0.634."""
    percent = cell.strip().endswith("%")
    cell = cell.replace(",", "") if THOUSANDS.match(cell) else cell
    return real(cell.strip()[:-1]) / 100 if percent else real(cell)


def json_of(data: bytes, where: str) -> Any:
    """Parse JSON, and refuse two members of one name, of which `json.loads` would keep the last.

    Raises:
        InputError: an object has two members of one name.  ValueError, RecursionError: it is not JSON.
    """

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise InputError(f"{where} has two '{twice[:40]}'", "write every key once")
        return members

    return json.loads(data, object_pairs_hook=once)


def parsed(text: str | bytes) -> Any:
    """Parse JSON; None if it is not JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def decimals_of(cell: str) -> int:
    """Count the digits after the point: 3 for 0.125, 7 for 1.25e-5."""
    plain = cell.partition(".")[2]
    if plain.isdigit():
        return len(plain)
    mantissa, _, exponent = cell.strip().lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    try:
        return max(0, digits - int(exponent)) if exponent else digits
    except ValueError:
        return digits


def is_number(cell: str) -> bool:
    """Return whether a text is a number."""
    try:
        real(cell)
    except ValueError:
        return False
    return True
