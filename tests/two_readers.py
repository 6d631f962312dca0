"""Two readers of one file: the quick one, and the one that explains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibcli.core.errors import InputError
from calibcli.scores.files import text_tables
from calibcli.scores.files.arrays import FileContents


def told(read: Callable[[], FileContents]) -> Any:
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
    about = found.ragged, list(found.notes), found.kinds, found.classes, found.table
    return cells, found.format, found.decimals, about


def same(quick: str, plain: bool, read: Callable[[Path], Any], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader `quick` of `at_once` reads what is plain and leaves all else; the other says the same of either."""
    answers: list[bool] = []
    reader = getattr(text_tables, quick)

    def noted(*given: Any) -> Any:
        found = reader(*given)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(text_tables, quick, noted)
    first = read(path)
    assert any(answers) == plain
    monkeypatch.setattr(text_tables, quick, lambda *_: None)
    assert first == read(path)
