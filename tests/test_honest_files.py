"""Honest files in every format, order of columns and delimiter: none is refused, and all give the same numbers.

`benchmarks/honest_files.py` is the long form.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_scripts import script
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

EXAMPLES = 20


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("honest_files")


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],  # an example is small as it is
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_honest_files_are_read_alike_in_every_form(
    data: st.DataObject, bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = bench.honest(lambda values: data.draw(st.sampled_from(values)), data.draw(st.integers(0, 10_000)))
    forms = data.draw(st.lists(st.sampled_from(bench.FORMATS), min_size=3, max_size=3, unique=True))
    found = bench.wrong(made, forms, random.Random(data.draw(st.integers(0, 999))), tmp_path)
    assert not found, "\n".join(found)


def test_the_numbers_of_an_honest_file_by_hand(bench: ModuleType) -> None:
    """Two rows of three: one bin is 0.2 too sure, the other 0.9 too little."""
    scores = bench.np.array([[0.2, 0.8, 0.0], [0.1, 0.1, 0.8], [0.1, 0.7, 0.2]])
    labels, weights = bench.np.array([1, 2, 0]), bench.np.array([1.0, 1.0, 2.0])
    assert bench.numbers(scores, False, labels, weights) == pytest.approx((0.5, (0.4 + 1.4) / 4))
    one = bench.np.array([[0.7], [0.3]])
    assert bench.numbers(one, False, bench.np.array([1, 1]), weights[:2]) == pytest.approx((0.5, (0.3 + 0.7) / 2))
