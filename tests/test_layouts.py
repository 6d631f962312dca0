"""Files as common tools write them: read by what they hold, or refused with the lines that settle it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from fix_lines import Calib, lines_of, of_a_file
from layouts import LAYOUTS, Layout, Numbers

from calibcli.core.errors import Exit

READ = [one for one in LAYOUTS if not (one.options or one.refuse)]
DECIDED = [one for one in LAYOUTS if one.options and not one.gates_only]
SETTLED = [(one, i) for one in LAYOUTS for i in range(len(one.options))]
REFUSED = [one for one in LAYOUTS if one.refuse]
GATES = [one for one in LAYOUTS if one.gates_only]
CLOSE = 5e-4


@pytest.fixture
def calib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Calib:
    monkeypatch.chdir(tmp_path)
    return Calib(capsys)


def name(one: object) -> str:
    return one.name if isinstance(one, Layout) else str(one)


def close(got: Numbers, right: Numbers) -> bool:
    """Whether numbers are those that are expected; None is held against none."""
    return all(b is None or (a is not None and abs(a - b) < CLOSE) for a, b in zip(got, right, strict=True))


def test_the_layouts_are_many_and_of_all_kinds() -> None:
    assert len({one.name for one in LAYOUTS}) == len(LAYOUTS) >= 45
    assert min(map(len, (READ, DECIDED, REFUSED, GATES))) >= 3
    for one in LAYOUTS:
        assert len(one.numbers) == (0 if one.refuse else max(len(one.options), 1)), one.name


@pytest.mark.parametrize("layout", READ, ids=name)
def test_what_needs_no_option_is_read(layout: Layout, calib: Calib, tmp_path: Path) -> None:
    done = calib.metrics(layout.write(tmp_path).name)
    assert done.code == Exit.OK, done.error
    assert close(done.numbers, layout.numbers[0]), (done.numbers, layout.numbers[0])


@pytest.mark.parametrize("layout", DECIDED, ids=name)
def test_a_decision_is_refused_with_every_line_that_settles_it(layout: Layout, calib: Calib, tmp_path: Path) -> None:
    done = calib.metrics(layout.write(tmp_path).name)
    assert done.code == Exit.REFUSED, done.numbers
    for line in layout.options:
        for word in shlex.split(line):
            if not of_a_file(word, tmp_path):
                assert names(done.error, word), f"'{word}' of {line} is not named: {done.error}"


@pytest.mark.parametrize(("layout", "i"), SETTLED, ids=name)
def test_a_line_that_settles_it_gives_its_numbers(layout: Layout, i: int, calib: Calib, tmp_path: Path) -> None:
    done = calib.metrics(layout.write(tmp_path).name, *shlex.split(layout.options[i]))
    assert done.code == Exit.OK, done.error
    assert close(done.numbers, layout.numbers[i]), (done.numbers, layout.numbers[i])


@pytest.mark.parametrize("layout", DECIDED, ids=name)
def test_a_printed_line_gives_the_numbers_of_the_decision(layout: Layout, calib: Calib, tmp_path: Path) -> None:
    """For each decision there is a line that, copied and run, gives its numbers at once; no line gives others."""
    path = layout.write(tmp_path)
    if any(of_a_file(word, tmp_path) for line in layout.options for word in shlex.split(line)):
        return  # calib cannot know the name of another file
    error = calib.metrics(path.name).error
    found = [calib.fixed([path.name], line) for line in lines_of(error)]
    for right in layout.numbers:
        assert any(done.code == Exit.OK and close(done.numbers, right) for done in found), error
    for done in found:
        if done.code == Exit.OK:
            assert any(close(done.numbers, right) for right in layout.numbers), (error, done.numbers)


@pytest.mark.parametrize("layout", REFUSED, ids=name)
def test_what_no_option_makes_right_is_refused(layout: Layout, calib: Calib, tmp_path: Path) -> None:
    """No line of the error, copied and run, gives a number."""
    path = layout.write(tmp_path)
    done = calib.metrics(path.name)
    assert done.code == Exit.REFUSED, done.numbers
    for line in lines_of(done.error):
        assert calib.fixed([path.name], line).code != Exit.OK, (done.error, line)


@pytest.mark.parametrize("layout", GATES, ids=name)
def test_a_number_with_a_note_is_not_enough_for_a_gate(layout: Layout, calib: Calib, tmp_path: Path) -> None:
    path = layout.write(tmp_path)
    done = calib.metrics(path.name)
    assert done.code == Exit.OK, done.error
    assert close(done.numbers, layout.numbers[0])
    assert layout.options[0].split()[0] in " ".join([*done.notes, done.error])
    judged = calib("check", path.name, *shlex.split(layout.gate), "--json")
    assert judged.code == Exit.NOT_RUN, judged.error
    reason = json.dumps(judged.result)
    assert all(re.search(rf"{option.split()[0]}\b", reason) for option in layout.options)
    settled = calib("check", path.name, *shlex.split(layout.gate), *shlex.split(layout.options[0]), "--json")
    assert settled.code != Exit.NOT_RUN, settled.error


def names(error: str, word: str) -> bool:
    """Whether a text names a word of a line, as the shell takes it, and not as a part of another one."""
    return bool(re.search(rf"(?<![\w,.-]){re.escape(shlex.quote(word))}(?![\w,-])(?!\.\w)", error.replace(", ", " , ")))
