"""PNG: the main figure of a result, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Boutell (1997).

>>> render(result)[:4]
b'\x89PNG'
"""

from __future__ import annotations

from calibcli.render.formats import drawer

SUFFIXES = (".png",)
TO_STDOUT = False
NEEDS = ("matplotlib",)
FIGURES = True
render, figures = drawer("png")
