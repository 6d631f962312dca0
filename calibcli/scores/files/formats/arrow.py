"""Arrow: tables as in parquet, of Feather files and of folders that Hugging Face's data sets save. Needs pyarrow.

The format is that of Apache Arrow (2016) for interprocess communication, as a file or as a stream. pyarrow is the extra
`parquet`.

>>> import pyarrow.feather
>>> table = pyarrow.table({"label": [1, 0], "prob_0": [0.25, 0.5], "prob_1": [0.75, 0.5]})
>>> pyarrow.feather.write_feather(table, folder / "scores.feather")
>>> calibcli.read(folder / "scores.feather").labels.tolist()
[1, 0]
"""

from __future__ import annotations

from calibcli.core.errors import InputError, refusing
from calibcli.scores.files.arrays import FileContents
from calibcli.scores.files.formats.parquet import damaged, of_table
from calibcli.scores.files.source import Source, refuse_large

SUFFIXES = (".arrow", ".feather")
FILE, FIRST_FEATHER = b"ARROW1", b"FEA1"


def signature(head: bytes, size: int) -> bool:
    """Return whether the file begins with a magic number. Streams have none: they are known by their suffix."""
    return head.startswith((FILE, FIRST_FEATHER))


def read(source: Source, grouped: bool = True) -> FileContents:
    """Read columns by name; a group of score columns, or a column of lists, becomes one (N, K) array.

    Raises:
        InputError: pyarrow is not installed, the file is damaged, or larger than memory when decoded.
    """
    fix = "pip install pyarrow, or save it as .npz"
    with refusing(ImportError, f"{source.name} is an Arrow table, which needs pyarrow", fix):
        import pyarrow as pa
    head = source.pread(min(source.size, 8), 0)
    if head.startswith(FIRST_FEATHER):
        raise InputError(f"{source.name} is a Feather file of the first version", "write it again, as version 2")
    with damaged(f"{source.name} is not a readable Arrow table"):
        batches, total = [], 0
        if head.startswith(FILE):
            file = pa.ipc.open_file(source.reader())
            schema, stream = file.schema, (file.get_batch(i) for i in range(file.num_record_batches))
        else:
            stream = pa.ipc.open_stream(source.reader())
            schema = stream.schema
        for batch in stream:
            batch.validate(full=True)  # of offsets beyond their data
            total += batch.nbytes
            refuse_large(total, f"{source.name} takes more than {total / 1e9:.3g} GB when decoded")
            batches.append(batch)
        table = pa.Table.from_batches(batches, schema)
    return of_table(table, "arrow", source, grouped)
