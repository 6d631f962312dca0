"""The scripts of benchmarks/ as modules, of which tests run a short form."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent / "benchmarks"


def script(name: str) -> ModuleType:
    """Import a script, with the modules of its folder that it imports."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
