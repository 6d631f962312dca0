"""Every line of what was once wrong has a test."""

from __future__ import annotations

from pathlib import Path

import regressions_table


def test_every_line_has_a_test() -> None:
    assert [line for line, tests in regressions_table.table().items() if not tests] == []


def test_every_marker_belongs_to_a_line() -> None:
    assert regressions_table.unknown() == []


def test_markers_are_read(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "import pytest\n"
        "@pytest.mark.regression('1.4')\n"
        "@pytest.mark.regression('4 SIGHUP saves')\n"
        "def test_one(): pass\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.regression('1.5'))])\n"
        "def test_two(x): pass\n"
    )
    (tmp_path / "test_b.py").write_text("import pytest\npytestmark = pytest.mark.regression('nowhere')\n")
    found = regressions_table.table(tmp_path)
    assert found["1.4"] == found["4 sighup"] == ["test_a.py::test_one"]
    assert found["1.5"] == ["test_a.py::test_two"]
    assert found["1.6"] == []
    assert regressions_table.unknown(tmp_path) == ["nowhere"]
