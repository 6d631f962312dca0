"""Two readers of one file: the quick one, and the one that explains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents


def told(read: Callable[[], Contents]) -> Any:
    """Everything that a reader says of a file, with types; or its refusal."""
    try:
        found = read()
    except InputError as error:
        return str(error)
    arrays = {name: array.read(0, array.shape[0]) for name, array in found.arrays.items()}
    cells = {
        name: (array.dtype, array.shape, array.tobytes() if array.dtype != object else array.tolist())
        for name, array in arrays.items()
    }
    about = found.ragged, list(found.about), found.kinds, found.classes, found.table
    return cells, found.format, found.decimals, about


def same(
    quick: ModuleType, plain: bool, read: Callable[[Path], Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick reader reads what is plain and leaves all else; the other one says the same of either."""
    answers: list[bool] = []
    at_once = quick.read

    def noted(*given: Any) -> Any:
        found = at_once(*given)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(quick, "read", noted)
    first = read(path)
    assert any(answers) == plain
    monkeypatch.setattr(quick, "read", lambda *_: None)
    assert first == read(path)
