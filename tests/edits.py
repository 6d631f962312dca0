"""Files that calib wrote, edited at random: how many a test draws, and the places of what they hold.

CALIB_EDITS is the number of draws of each test: `make nightly` asks for more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

SEEDS = range(int(os.environ.get("CALIB_EDITS", "100")))


def places(data: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and index of JSON data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*where, key)
        yield from places(value, (*where, key))
