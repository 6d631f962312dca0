"""Parquet: score columns as in text tables, or one column of lists. Needs pyarrow (the `parquet` extra).

The format is that of Apache Parquet (2013), after the column store of Melnik et al. (2010).

>>> import pyarrow.parquet
>>> table = pyarrow.table({"label": [1, 0], "prob_0": [0.25, 0.5], "prob_1": [0.75, 0.5]})
>>> pyarrow.parquet.write_table(table, folder / "scores.parquet")
>>> calibcli.read(folder / "scores.parquet").labels.tolist()
[1, 0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibcli.errors import InputError, refusing
from calibcli.inputs.files.arrays import Contents, Memory, column_of
from calibcli.inputs.files.source import Source, refuse_large
from calibcli.inputs.files.text import PREFIXES, refuse_twice, score_groups
from calibcli.predictions import Array, Named

SUFFIXES = (".parquet",)


def signature(head: bytes, size: int) -> bool:
    """The magic number."""
    return head.startswith(b"PAR1")


def read(source: Source, grouped: bool = True) -> Contents:
    """Columns by name; those of a score group as one (N, K) array, a column of lists likewise.

    Raises:
        InputError: pyarrow is not installed, the file is damaged, or larger than memory when decoded.
    """
    fix = "pip install 'calibcli[parquet]', or save it as .npz"
    with refusing(ImportError, f"{source.name} is parquet, which needs pyarrow", fix):
        import pyarrow as pa
        from pyarrow import parquet
    errors = (pa.ArrowException, OSError, ValueError)
    with refusing(errors, lambda e: f"{source.name} is not readable parquet ({str(e)[:80]})", "write it again"):
        file = parquet.ParquetFile(source.reader())
        about = file.metadata
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        refuse_large(size, f"{source.name} takes {size / 1e9:.3g} GB when decoded")
        table = file.read()
    names = [str(name) for name in table.column_names]
    groups, classes = score_groups(names if grouped else [], source.name)
    refuse_twice(names, source.name)
    used = {i for columns in groups.values() for i in columns}
    arrays: dict[str, Named] = {}
    for name, columns in groups.items():
        parts = [_column(table.column(i), names[i], source) for i in columns]
        arrays[name] = Memory(np.column_stack(parts).astype(np.result_type(np.float32, *parts)))
    for i, name in enumerate(names):
        if i not in used:
            arrays[name] = Memory(_column(table.column(i), name, source))
    kinds = {name: PREFIXES.get(name, "") for name in groups}
    return Contents("parquet", arrays, kinds=kinds, classes=classes, table=True)


def columns(source: Source) -> Contents:
    """Every column by itself."""
    return read(source, grouped=False)


def _column(column: Any, name: str, source: Source) -> Array:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        flat = column.combine_chunks()
        lengths = np.diff(flat.offsets.to_numpy()) if hasattr(flat, "offsets") else np.array([kind.list_size])
        if len(np.unique(lengths)) > 1 or flat.null_count:
            raise InputError(f"lists in column '{name}' of {source.name} differ in length", "write one score per class")
        values: Array = flat.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), -1)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        numbers: Array = column.to_numpy()
        return numbers if numbers.dtype != object else numbers.astype(np.float64)
    return column_of(["" if v is None else str(v) for v in column.to_pylist()])
