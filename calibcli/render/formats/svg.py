"""SVG: the main figure of a result, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Ferraiolo (2001).

>>> b"<svg" in render(result)
True
"""

from __future__ import annotations

from calibcli.render.formats import drawer

SUFFIXES = (".svg",)
TO_STDOUT = False
NEEDS = ("matplotlib",)
render, figures = drawer("svg")
