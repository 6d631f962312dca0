"""Columns of a file that are about its rows: neither scores, labels, verdicts, names of rows, nor weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibcli.inputs.files.roles import IDS, OF_CLASS, RECORDED
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import recorded
from calibcli.inputs.scores.recorded import Paths
from calibcli.spec import normal

KNOWN = {*IDS.names, *(name for role in RECORDED for name in role.all)}


def others(path: Paths, reading: Reading) -> list[str]:
    """Their names, in the file's order; texts and numbers, one for each row.

    Raises:
        InputError: the file is refused.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else list(path)
    contents = recorded.load(recorded.open_all(paths, reading)[0])
    options = (reading.scores, reading.labels, reading.ids, reading.weights, reading.group, reading.confidence)
    fixed = (reading.correct, contents.scores, contents.labels, contents.ids, contents.groups)
    named = {*filter(None, (*options, *fixed)), *contents.kinds}
    rows = max((array.shape[0] for array in contents.arrays.values() if array.shape), default=0)
    return [
        name
        for name, array in contents.arrays.items()
        if name not in named
        and normal(name) not in KNOWN
        and not OF_CLASS.match(name)
        and array.shape == (rows,)
        and np.dtype(array.dtype).kind in "USOiufbT"
    ]
