"""The list of lines that `make mutants` breaks is in order, and its script says so where it is not."""

from __future__ import annotations

import mutants
import pytest


def test_every_text_stands_once_and_what_it_becomes_compiles() -> None:
    found = mutants.listed()
    assert mutants.misplaced(found) == []
    assert len(found) >= 60
    assert len({(one.file, one.text, one.becomes) for one in found}) == len(found)


@pytest.mark.parametrize("times", [0, 2])
def test_a_text_that_is_not_there_once_is_refused(times: int) -> None:
    one = mutants.Mutant("numerics.py", "a + b", "a - b", "tests/test_numerics.py")
    assert one.broken("x = a + b\n") == "x = a - b\n"
    with pytest.raises(ValueError, match=f"there {times} times"):
        one.broken("x = a + b\n" * times)
