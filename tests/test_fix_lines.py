"""Every line that an error proposes, copied and run, gives a right number, a nearer refusal, or says that it cannot."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fix_lines import Calib, Done, lines_of, mended
from layouts import LAYOUTS, Layout, Numbers
from varied_files import case, judged

from calibcli.core.errors import Exit

CASES = 300
STEPS = 4  # lines that may follow each other
CLOSE = 5e-4
Right = Callable[[Sequence[str]], list[Numbers]]


@pytest.fixture
def calib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Calib:
    monkeypatch.chdir(tmp_path)
    return Calib(capsys)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(CASES))
def test_lines_of_varied_files(seed: int, calib: Calib, tmp_path: Path) -> None:
    made = case(seed)
    wrong = followed(calib, [made.write(tmp_path)], made.right)
    assert not wrong, "\n".join([made.name, f"columns {[(c.name, c.role) for c in made.columns]}", *wrong])


@pytest.mark.parametrize("seed", range(24))
def test_lines_of_files_with_a_judge(seed: int, calib: Calib, tmp_path: Path) -> None:
    made = judged(seed)
    (tmp_path / "rows.csv").write_text(made.text)
    proposed = lines_of(calib.metrics("rows.csv").error)
    assert proposed
    if not made.answers and not made.some.all():
        assert proposed == [["--confidence", "sure", "--correct", made.people, "--judge", made.judge]]
    wrong = followed(calib, ["rows.csv"], made.right)
    if not made.answers:
        wrong += followed(calib, ["rows.csv", "--confidence", "sure", "--correct", made.people], made.right)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_lines_of_layouts(layout: Layout, calib: Calib, tmp_path: Path) -> None:
    wrong = followed(calib, [layout.write(tmp_path).name], layout.right)
    assert not wrong, "\n".join(wrong)


def followed(calib: Calib, words: list[str], right: Right) -> list[str]:
    """Run `calib metrics`, and each line of its error in turn; return what is wrong, with the steps that lead to it."""
    seen: set[tuple[str, ...]] = set()
    found: list[str] = []

    def step(words: list[str], before: list[Done]) -> None:
        if tuple(words) in seen:
            return
        seen.add(tuple(words))
        done = calib.metrics(*words)
        path = [*before, done]
        if done.code == Exit.OK:
            expected = right(words[1:])
            if not any(close(done.numbers, one) for one in expected):
                found.append(said(path, f"the numbers {done.numbers} are not among {expected}"))
            return
        if done.code != Exit.REFUSED:
            found.append(said(path, f"exit {done.code}"))
            return
        if before and problem(before[-1]) == problem(done):
            found.append(said(path, "the same refusal twice in a row"))
            return
        proposed = lines_of(done.error)
        if proposed and len(path) > STEPS:
            found.append(said(path, f"no end after {STEPS} lines"))
            return
        for line in proposed:
            step(mended(words, line), path)

    step(words, [])
    return found


def close(got: Numbers, right: Numbers) -> bool:
    return all(b is None or (a is not None and abs(a - b) < CLOSE) for a, b in zip(got, right, strict=True))


def problem(done: Done) -> str:
    return done.error[done.error.rfind("error: ") :]


def said(path: Sequence[Done], wrong: str) -> str:
    """The steps of a chain, as somebody sees them."""
    steps = [f"$ calib {shlex.join(done.argv)}\n{done.error.strip()}" for done in path]
    return "\n".join([f"--- {wrong}", *steps])


# How lines are found in a text.


@pytest.mark.parametrize(
    ("fix", "lines"),
    [
        ("choose one: --scores p0,p1 or --scores q0,q1", ["--scores p0,p1", "--scores q0,q1"]),
        ("choose them: --scores 'my p' --labels y; or name them probs", ["--scores 'my p' --labels y"]),
        ("--scores 'P(a),P(b)'; or --labels y, if it is y", ["--scores 'P(a),P(b)'", "--labels y"]),
        ("pass --no-header, or name the columns: a,b,label", ["--no-header"]),
        ("calib metrics a.csv --clip\n  or: calib metrics a.csv --missing drop", ["--clip", "--missing drop"]),
        ("choose them with --labels KEY, or --labels FILE for a file of their own", []),
        ("(--clip 0.0005) raises them; --clip raises less", ["--clip 0.0005", "--clip"]),
        ("--classes a,b,c if that is the order", ["--classes a,b,c"]),
        ("leave these rows out; check --label-base", []),
    ],
)  # fmt: skip
def test_lines_are_found_in_a_text(fix: str, lines: list[str]) -> None:
    assert lines_of(f"note: --by x\nerror: --scores q: none\n  fix: {fix}") == [shlex.split(line) for line in lines]


def test_a_line_replaces_what_it_says_anew() -> None:
    words = ["a.csv", "--scores", "p", "--no-header", "--event", "yes", "--labels", "y"]
    rest = ["a.csv", "--no-header", "--event", "yes", "--labels", "y"]
    assert mended(words, ["--scores", "q"]) == [*rest, "--scores", "q"]
    assert mended(words, ["--confidence", "q"]) == ["a.csv", "--no-header", "--labels", "y", "--confidence", "q"]
