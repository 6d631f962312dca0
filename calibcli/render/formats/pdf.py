"""PDF: the main figure of a result, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Adobe (1993).

>>> render(result)[:4]
b'%PDF'
"""

from __future__ import annotations

from calibcli.render.formats import drawer

SUFFIXES = (".pdf",)
TO_STDOUT = False
NEEDS = ("matplotlib",)
render, figures = drawer("pdf")
