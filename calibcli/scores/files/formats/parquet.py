"""Parquet: score columns as in text tables, or one column of lists; details of LightEval. Needs pyarrow.

The format is that of Apache Parquet (2013), after the column store of Melnik et al. (2010). pyarrow is the extra
`parquet`.

>>> import pyarrow.parquet
>>> table = pyarrow.table({"label": [1, 0], "prob_0": [0.25, 0.5], "prob_1": [0.75, 0.5]})
>>> pyarrow.parquet.write_table(table, folder / "scores.parquet")
>>> calibcli.read(folder / "scores.parquet").labels.tolist()
[1, 0]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, refusing
from calibcli.scores.files.arrays import EncodedPictures, FileContents, Lazy, Memory, column_of
from calibcli.scores.files.evals import lighteval
from calibcli.scores.files.roles import LABELS
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.files.text_tables import score_groups
from calibcli.scores.predictions import Array, Named

SUFFIXES = (".parquet",)


def signature(head: bytes, size: int) -> bool:
    """Return whether the file begins with the magic number."""
    return head.startswith(b"PAR1")


def read(source: Source, grouped: bool = True) -> FileContents:
    """Read columns by name; a group of score columns, or a column of lists, becomes one (N, K) array.

    Raises:
        InputError: pyarrow is not installed, the file is damaged, or larger than memory when decoded.
    """
    fix = "pip install pyarrow, or save it as .npz"
    with refusing(ImportError, f"{source.name} is parquet, which needs pyarrow", fix):
        from pyarrow import parquet
    with damaged(f"{source.name} is not readable parquet"):
        file = parquet.ParquetFile(source.reader())
        names = [str(name) for name in file.schema_arrow.names]
        if set(names) >= lighteval.COLUMNS and grouped:
            batches = _read(file, sorted(lighteval.COLUMNS), source).to_batches(1000)
            return lighteval.contents((row for batch in batches for row in batch.to_pylist()), source)
        later = _texts(file.schema_arrow, names, source) if grouped else []
        table = _read(file, [name for name in names if name not in later] if later else None, source)
    contents = of_table(table, "parquet", source, grouped)
    texts = {
        name: Lazy((file.metadata.num_rows,), np.dtype(object), partial(_text, file, name, source)) for name in later
    }
    order = [*(name for name in contents.arrays if name not in names), *names]
    arrays = {**contents.arrays, **texts}
    return replace(contents, arrays={name: arrays[name] for name in order if name in arrays})


def damaged(problem: str) -> AbstractContextManager[None]:
    """Turn what pyarrow raises in the block into an `InputError`; texts may be no UTF-8, dates of no calendar."""
    import pyarrow as pa

    errors = (pa.ArrowException, OSError, ValueError, OverflowError)
    return refusing(errors, lambda error: f"{problem} ({str(error)[:80]})", "write it again")


def _texts(schema: Any, names: Sequence[str], source: Source) -> list[str]:
    """List the columns of text that hold no scores; they are read only when they are needed."""
    import pyarrow as pa

    if len(set(names)) < len(names):
        return []
    _, others, _ = score_groups(names, source.name, True)
    kinds = [schema.field(i).type for i in others]
    return [
        names[i]
        for i, kind in zip(others, kinds, strict=True)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ]


def _text(file: Any, name: str, source: Source) -> Array:
    """Read a column of text (N,).

    Raises:
        InputError: it is damaged, or larger than memory.
    """
    with damaged(f"'{name}' in {source.name} is not readable"):
        return _column(_read(file, [name], source).column(0), name, source)


def _read(file: Any, names: Sequence[str] | None, source: Source) -> Any:
    """Read these columns of a file (None: all) as a table.

    Raises:
        InputError: they are larger than memory when decoded.
    """
    groups = range(file.metadata.num_row_groups)
    size = sum(max(0, file.metadata.row_group(i).total_byte_size) for i in groups)
    try:
        _refuse_large(size, source)
    except InputError:
        if names is None:
            raise
        paths = [file.schema.column(j).path for j in range(len(file.schema))]
        leaves = [j for j, path in enumerate(paths) if any(f"{path}.".startswith(f"{name}.") for name in names)]
        for i in groups:  # a damaged description of a column is an error here, and ends the process below
            next(file.iter_batches(1, [i], names), None)
        described = (file.metadata.row_group(i).column(j) for i in groups for j in leaves)
        _refuse_large(sum(leaf.total_uncompressed_size for leaf in described), source)
    return file.read(columns=names)


def _refuse_large(size: int, source: Source) -> None:
    refuse_large(size, f"{source.name} takes {size / 1e9:.3g} GB when decoded")


def of_table(table: Any, form: str, source: Source, grouped: bool = True) -> FileContents:
    """Return the columns of an Arrow table, with the class names that Hugging Face's data sets keep beside them.

    Raises:
        InputError: two columns of one name, lists that differ in length.
    """
    with damaged(f"{source.name} is not readable {form}"):
        names = [str(name) for name in table.column_names]
        groups, others, fields = score_groups(names, source.name, grouped)
        arrays: dict[str, Named] = {}
        for name, columns in groups.items():
            parts = [_column(table.column(i), names[i], source) for i in columns]
            arrays[name] = Memory(np.column_stack(parts).astype(np.result_type(np.float32, *parts)))
        for i in others:
            pictures = _pictures(table.column(i), names[i], source)
            arrays[names[i]] = pictures or Memory(_column(table.column(i), names[i], source))
    class_names, classes = label_names(table.schema.metadata), fields["classes"]
    classes |= {
        n: class_names
        for n, a in arrays.items()
        if class_names and n not in classes and a.shape[1:] == (len(class_names),)
    }
    if not grouped:
        classes |= {n: class_list for n, class_list in _class_labels(table.schema.metadata).items() if n in arrays}
    return FileContents(form, arrays, **fields)


def label_names(metadata: Mapping[bytes, bytes] | None) -> list[str]:
    """Return the class names of the only column of labels, as Hugging Face's data sets write them into a schema; else
    [].
    """
    candidates = [names for name, names in _class_labels(metadata).items() if name in LABELS]
    return candidates[0] if len(candidates) == 1 else []


def _class_labels(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return class names by column, as Hugging Face's data sets write them into a schema."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names_of = {
            n: f["names"] for n, f in features.items() if isinstance(f, dict) and f.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: list(map(str, names)) for name, names in names_of.items() if isinstance(names, list)}


def _pictures(column: Any, name: str, source: Source) -> EncodedPictures | None:
    """Return a column of encoded pictures: bytes, or Hugging Face's objects of bytes and a path; None for other
    columns.

    Raises:
        InputError: pictures that lie elsewhere.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        place = kind.get_field_index("path")
        column = pa.chunked_array([chunk.field(kind.get_field_index("bytes")) for chunk in column.chunks])
        kind = column.type
        if place >= 0 and column.null_count:
            row = next(i for i, value in enumerate(column) if not value.is_valid)
            problem = f"row {row} of '{name}' in {source.name} names a picture outside the file"
            raise InputError(problem, "save the data set with the pictures in it")
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return None
    return EncodedPictures(column_of([value or b"" for value in column.to_pylist()]))


def _column(column: Any, name: str, source: Source) -> Array:
    """Return a column of numbers, of lists of numbers (N, K), of texts, or of lists and objects as they are."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
            return column_of(column.to_pylist())
        flat = column.combine_chunks()
        lengths = np.diff(flat.offsets.to_numpy()) if hasattr(flat, "offsets") else np.array([kind.list_size])
        if len(np.unique(lengths)) > 1 or flat.null_count:
            raise InputError(f"lists in column '{name}' of {source.name} differ in length", "write one score per class")
        values: Array = flat.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), -1)
    if pa.types.is_struct(kind):
        return column_of(column.to_pylist())
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        numbers: Array = column.to_numpy()
        return numbers if numbers.dtype != object else numbers.astype(np.float64)
    return column_of(["" if v is None else str(v) for v in column.to_pylist()])
