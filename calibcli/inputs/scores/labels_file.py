"""Labels in a file of their own, whose rows belong to those of the scores by their ids where both have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, Memory, texts_of, whole
from calibcli.inputs.files.roles import IDS
from calibcli.inputs.files.source import Source, load_any
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import keys
from calibcli.predictions import Named


def labels_of(source: Source, contents: Sequence[Contents], reading: Reading, about: list[str]) -> Named:
    """The labels of the rows of the scores; where they were put in the order of these, `about` says so.

    They are the file's only array, or the one with a label's name.

    Raises:
        InputError: there are none; or a row of the scores has an id that none of theirs has, or several have.
    """
    held = load_any(source)
    names = list(held.arrays)
    name = names[0] if len(names) == 1 else keys.pick_labels(held, None, "", source.name)
    if name is None:
        raise InputError(f"no labels in {source.name}: it holds {keys.describe(held)}", "name the array 'labels'")
    labels = held.arrays[name]
    for column, array in held.arrays.items():
        own = None if column == name or array.shape != labels.shape[:1] else _ids(contents, column, reading)
        if own is None or (theirs := texts_of(whole(array)).tolist()) == own:
            continue
        at = {id: row for row, id in enumerate(theirs)}
        lost = next((row for row, id in enumerate(own) if id not in at), None)
        if lost is None and len(at) == len(theirs):
            rows = np.array([at[id] for id in own], np.int64)
            about.append(f"labels of {source.name} belong to the rows by their '{column}'")
            return Memory(whole(labels)[rows])
        if column in IDS or column in (reading.ids, contents[0].ids):
            has = (
                f"'{column}' names rows twice" if lost is None else f"no '{column}' is {own[lost][:40]!r} (row {lost})"
            )
            raise InputError(f"in {source.name} {has}", "give every row of the scores its label, once")
    return labels


def _ids(contents: Sequence[Contents], column: str, reading: Reading) -> list[str] | None:
    """What names the rows of the scores, as a column of the labels' file does: of its name, or both known for ids."""
    first, asked = contents[0].arrays, reading.ids or contents[0].ids
    known = asked or next((n for n in first if n in IDS), "")
    here = column if column in first else known if column in IDS else ""
    parts = [c.arrays.get(here) for c in contents]
    found = [part for part in parts if part is not None and len(part.shape) == 1 and part.dtype.kind in IDS.dtypes]
    return [id for part in found for id in texts_of(whole(part)).tolist()] if len(found) == len(parts) else None
