"""One pass over the scores: everything that a metric needs to know about a row, and about a class."""

from __future__ import annotations

from calibcli.columns.blocked_pass import MANY, SMALL, columns
from calibcli.columns.row_statistics import ClassBins, ClassTable, Columns, Edges, bin_index

__all__ = ["MANY", "SMALL", "ClassBins", "ClassTable", "Columns", "Edges", "bin_index", "columns"]
