"""Rules of three conditions, and columns by the hundred: the pruned search of sliceline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.errors import UsageError
from calibcli.slices.literals import Column
from calibcli.slices.tried import Evidence, Rule

KEPT = 50  # rules that it returns, in each direction
SIZE = 0.99  # of its score; at .9 a rule of one row in 27 has none unless its error is four times that of all


def deeper(columns: Sequence[Column], evidence: Evidence, rows: npt.NDArray[np.int64], least: int) -> list[Rule]:
    """Its best rules of up to three conditions, in each direction (Sagadeeva & Boehm 2021), of cells alone.

    Raises:
        UsageError: sliceline is not installed.
    """
    try:
        from sliceline.slicefinder import Slicefinder
    except ImportError:
        problem = "rules of three conditions are searched by sliceline, which is not installed"
        raise UsageError(problem, "pip install 'calibcli[slices]', or leave --depth out") from None
    codes = np.column_stack([column.codes[rows] for column in columns])
    found: dict[Rule, None] = {}
    for sign in (1.0, -1.0) if evidence.signed else (1.0,):
        errors = np.maximum(sign * evidence.value[rows], 0.0)
        finder = Slicefinder(alpha=SIZE, k=KEPT, max_l=3, min_sup=least, verbose=False)
        finder.fit(codes, errors)
        for one in finder.top_slices_:
            rule = _rule(columns, one)
            if rule is not None:
                held = rule.holds(columns, rows)
                found[Rule(rule.parts, evidence.z(rows[held]))] = None
    return list(found)


def _rule(columns: Sequence[Column], cells: Any) -> Rule | None:
    """Of its cell per column (None: any); none where a cell is no condition of ours."""
    parts = []
    for i, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if cell is None:
            continue
        alone = np.zeros(column.cells.shape[1])
        alone[int(cell)] = 1
        literal = np.flatnonzero((column.cells == alone).all(axis=1))
        if not len(literal):
            return None
        parts.append((i, int(literal[0])))
    return Rule(tuple(parts)) if parts else None
