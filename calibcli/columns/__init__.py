"""One pass over the scores: everything that a metric needs to know about a row, and about a class."""

from __future__ import annotations

from calibcli.columns.table import ClassBins, ClassTable, Columns, Edges, bin_index
from calibcli.columns.work import MANY, SMALL, columns

__all__ = ["MANY", "SMALL", "ClassBins", "ClassTable", "Columns", "Edges", "bin_index", "columns"]
