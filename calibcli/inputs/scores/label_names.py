"""Tables whose score columns are named as the labels are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibcli.inputs.files.arrays import Contents, Memory, texts_of, whole
from calibcli.inputs.files.names import IDS, LABELS
from calibcli.inputs.files.text import decimals_of, floats_of_text
from calibcli.inputs.scores.keys import candidates, first_of
from calibcli.spec import normal


def by_label_names(contents: Contents, where: str) -> Contents:
    """A table without scores whose other columns are named exactly as the labels: those columns as one array."""
    arrays = contents.arrays
    label = first_of(contents, LABELS, lambda a: len(a.shape) == 1 and a.dtype.kind in "USO")
    own = [name for name in arrays if name != label and normal(name) not in IDS]
    if not contents.table or label is None or len(own) < 2 or candidates(contents):
        return contents
    if set(own) != {str(text).strip() for text in texts_of(whole(arrays[label]))}:
        return contents
    cells = [whole(arrays[name]) for name in own]
    block = np.column_stack([floats_of_text(c, n, where) if c.dtype.kind == "O" else c for n, c in zip(own, cells)])
    name = ", ".join(own)
    return replace(
        contents,
        arrays={name: Memory(block), **{n: a for n, a in arrays.items() if n not in own}},
        decimals={name: max(decimals_of(str(cell)) for column in cells for cell in column[:1000])},
        classes={name: own},
        scores=name,
    )
