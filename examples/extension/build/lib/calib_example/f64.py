"""A table of float64: its number of columns, then rows of scores with the label last."""

import numpy as np

from calibcli.extending import FileContents, Memory, Source

SUFFIXES = (".f64",)


def signature(head: bytes, size: int) -> bool:
    """The magic number."""
    return head.startswith(b"F64 ")


def read(source: Source) -> FileContents:
    """Two arrays, `logits` and `labels`."""
    columns = int.from_bytes(source.pread(4, 4), "little")
    table = np.frombuffer(source.pread(source.size - 8, 8)).reshape(-1, columns)
    return FileContents("f64", {"logits": Memory(table[:, :-1]), "labels": Memory(table[:, -1].astype(int))})
