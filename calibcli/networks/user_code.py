"""The user's own Python, named on the command line: `module:function` and `file.py:function`. Never named by a file."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from calibcli.core.errors import InputError, UsageError, did_you_mean, refusing
from calibcli.core.files import reading

# Exceptions that the user's code may raise; any other is a bug of calib.
FAILURES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError,
            SyntaxError, SystemExit, TypeError, ValueError)  # fmt: skip
NAMES_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def from_module(name: str, attribute: str) -> Callable[..., Any]:
    """Import `name.attribute`, with the working folder on the import path, as with `python -m`.

    Raises:
        UsageError: no such module or attribute.  InputError: the module fails to import.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and not f"{name}.".startswith(f"{error.name}."):
            raise InputError(f"module '{name}' needs '{error.name}', which is not installed", "install it") from None
        raise UsageError(f"no module '{name}' here or installed", "pass module:function, or a file") from None
    except FAILURES as error:
        problem = f"module '{name}' cannot be imported ({type(error).__name__}: {error})"
        raise InputError(problem, "correct the module") from None
    return _attribute(module, attribute, name)


def from_file(path: Path, attribute: str) -> Callable[..., Any]:
    """Import `attribute` of a Python file.

    Raises:
        UsageError: no such file or attribute.  InputError: the file fails to import.
    """
    reading(path)
    spec = importlib.util.spec_from_file_location(f"calib_file_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"no Python file {path}", "pass FILE.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look up their module
    with refusing(FAILURES, lambda e: f"{path} cannot be imported ({type(e).__name__}: {e})", "correct the file"):
        spec.loader.exec_module(module)
    return _attribute(module, attribute, str(path))


def _attribute(module: ModuleType, attribute: str, where: str) -> Callable[..., Any]:
    value = getattr(module, attribute, None) if attribute else None
    if not callable(value):
        names = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        problem = f"{where} has no '{attribute}' to call" if attribute else f"{where}: no function is named"
        raise UsageError(problem, did_you_mean(attribute, names) if names else "define a function of that name")
    return cast(Callable[..., Any], value)
