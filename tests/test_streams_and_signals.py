"""Streams that are gone, signals, imports cut short, warnings: the right code, the right words, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import ended, forked

import calibcli
from calibcli.cli import COMMANDS
from calibcli.cli.app import main
from calibcli.cli.run import CommandRun
from calibcli.core import extensions
from calibcli.core.errors import UsageError
from calibcli.slices import candidates

ROOT = Path(__file__).parent.parent
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
SAMPLE = ROOT / "sample_data"
TEST, MODEL = (str(SAMPLE / name) for name in ("test.npz", "model.pt"))


CASES = {
    0: ["check", TEST, "--max", "ece=0.5"],
    1: ["check", TEST, "--min", "accuracy=0.9999"],
    2: ["check", TEST, "--max", "eec=0.5"],
    4: ["metrics", "no-such-file.npz"],
    5: ["check", TEST],
}


@needs_full
@pytest.mark.regression("4 stderr gone")
@pytest.mark.parametrize("gone", ["stderr", "stdout", "both"])
@pytest.mark.parametrize("code", CASES)
def test_streams_that_take_nothing(code: int, gone: str, monkeypatch: Any, capsys: Any) -> None:
    """The code is the outcome's; but a result that stdout cannot take is a wrong request, as no one has it."""
    for name in ("stdout", "stderr"):
        if gone in (name, "both"):
            monkeypatch.setattr(sys, name, open(FULL, "w", buffering=1))  # noqa: SIM115 (as a process has it)
    undelivered = gone != "stderr" and code not in (2, 4)
    assert main(CASES[code]) == (2 if undelivered else code)
    if gone == "stdout" and undelivered:
        assert "error: cannot write to stdout (no space left on device)" in capsys.readouterr().err


@needs_full
@pytest.mark.regression("4 stderr gone")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("metrics none.npz 2>/dev/full", 4),
        ("metrics none.npz 2>&-", 4),
        ("metrics none.npz >/dev/full 2>/dev/full", 4),
        (f"check {TEST} --min accuracy=0.9999 2>/dev/full", 1),
        (f"check {TEST} --min accuracy=0.9999 >&- 2>&-", 1),
        ("--help >/dev/full", 2),
        ("--version >/dev/full", 2),
    ],
)
@pytest.mark.one_in(3)
def test_streams_that_are_gone_in_a_shell(words: str, code: int) -> None:
    command = ["bash", "-c", f"{sys.executable} -m calibcli {words}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
    if code == 2:
        assert "error: cannot write to stdout (no space left on device)" in done.stderr


@pytest.fixture
def hung_up() -> Iterator[None]:
    """SIGHUP as a terminal sends it, also where the tests run under nohup, which a command obeys."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.regression("4 SIGHUP")
@pytest.mark.usefixtures("hung_up")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGHUP, 129, "the terminal is gone"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_signals_save_what_a_run_has(number: int, code: int, said: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    argv = ["fit", "mlp:hidden=4", "--data", str(tmp_path / "rows.npz"), "--epochs", "100000"]
    argv += ["--batch-size", "32", "--save", str(tmp_path / "run")]
    said_there = tmp_path / "stderr"

    def fit() -> None:
        with said_there.open("w") as sys.stderr:
            code = main(argv)
        os._exit(code)

    running = forked(fit)
    steps = tmp_path / "run" / "steps.jsonl"
    limit = time.monotonic() + 100
    while not (steps.exists() and len(steps.read_text().splitlines()) > 5):
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.kill(running, number)
    found, err = ended(running), said_there.read_text()
    assert found == code, err
    assert f"error: {said}" in err
    assert "the same command with --resume goes on from there" in err
    assert (tmp_path / "run" / "state.pt").exists()


@pytest.mark.regression("4 SIGHUP")
@pytest.mark.usefixtures("hung_up")
def test_ctrl_c_ends_a_long_search_at_once(tmp_path: Path) -> None:
    """Within a second on an idle machine; shared ones get more."""
    rng = np.random.default_rng(0)
    about = {f"x{i}": rng.normal(size=4000).astype(np.float32) for i in range(120)}
    p = rng.uniform(0.5, 1, 4000)
    np.savez(tmp_path / "rows.npz", probs=np.stack([1 - p, p], 1), labels=rng.random(4000) < p, **about)  # type: ignore[arg-type]
    said_there, begun = tmp_path / "stderr", tmp_path / "begun"

    def search() -> None:
        products = candidates._products

        def telling(*given: Any) -> Any:
            begun.touch()
            return products(*given)

        candidates._products = telling
        with said_there.open("w") as sys.stderr:
            code = main(["slices", str(tmp_path / "rows.npz")])
        os._exit(code)

    running = forked(search)
    limit = time.monotonic() + 100
    while not begun.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    os.kill(running, signal.SIGINT)
    start = time.monotonic()
    assert ended(running) == 130
    assert time.monotonic() - start < 3
    assert said_there.read_text() == "error: interrupted\n"


QUICK = {"completion", "demo", "list"}
"""Commands that never take two seconds for the user's data; those that the demo runs have bars of their own."""


def test_every_command_that_may_take_long_has_a_progress_bar() -> None:
    """A command that registers its bar moves it by every loop over `steps`, in whichever room."""
    files = {name: (ROOT / "calibcli" / "cli" / f"{name}.py").read_text(encoding="utf-8") for name in COMMANDS}
    assert {name for name, text in files.items() if "run.progress(" not in text} == QUICK


LONG = {
    "apply": "map.safetensors {test} --save out.npz",
    "check": "{test} --max ece=0.2 --min accuracy=0.5 --by ink",
    "compare": "{test} copy.npz -o out.json",
    "export": "map.safetensors --to card --data {test} -o out.md",
    "inspect": "{test}",
    "merge": "one.npz two.npz --save out.npz",
    "metrics": "{test} --by ink -o out.json",
    "metrics --partial": "{test} --partial out.npz",
    "metrics --shards": "part-*.csv -m accuracy",
    "ood": "{test} copy.npz",
    "plan": "--from {test} --max brier=0.9 --min accuracy=0.5",
    "report": "one.json one.json -o all.json",
    "scale --method isotonic": "{test} --method isotonic --save out.safetensors",
    "scale --method vector": "{test} --method vector --folds 2 -m accuracy",
    "slices": "{test} --min-n 100",
    "threshold": "{test} --max-risk 0.05 --save out.json",
    "watch": "state.json {test} --max ece=0.2 --min accuracy=0.2",
}
"""Command lines whose loops tell how far they are, and which write what is written at the end."""


@pytest.fixture(scope="module")
def long_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    rows = calibcli.read(TEST)
    calibcli.measure(rows, "ece").write(folder / "one.json")
    shutil.copy(TEST, folder / "copy.npz")
    calibcli.save_scaler(calibcli.fit_scaler(rows), folder / "map.safetensors")
    for name, part in (("one", slice(0, 500)), ("two", slice(500, None))):
        calibcli.Accumulator().update(rows.logits[part], rows.labels[part]).save(folder / f"{name}.npz")
        lines = [",".join(map(str, (*z, y))) for z, y in zip(rows.logits[part][:9].tolist(), rows.labels[part])]
        header = ",".join([*(f"logit_{i}" for i in range(10)), "label"])
        (folder / f"part-{name}.csv").write_text("\n".join([header, *lines]))
    return folder


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LONG)
def test_long_commands_tell_how_far_they_are_and_end_at_ctrl_c_with_nothing_half_written(
    name: str, long_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    seen: list[float] = []
    stop = -1

    def report(fraction: float, text: str) -> None:
        seen.append(fraction)
        if len(seen) == stop:
            raise KeyboardInterrupt

    def progress(run: CommandRun, title: str) -> Any:
        extensions.register_progress(report)
        return extensions.tell

    monkeypatch.setattr(CommandRun, "progress", progress)
    monkeypatch.chdir(shutil.copytree(long_inputs, tmp_path / "here"))
    before = {*os.listdir()}
    words = [name.split()[0], *LONG[name].format(test=TEST).split(), "-q"]
    assert main(words) == 0, capsys.readouterr().err
    assert all(0 <= fraction <= 1 for fraction in seen)
    assert any(0 < fraction < 1 for fraction in seen)  # from which the time left follows
    assert name == "plan" or 1.0 in seen
    for left in {*os.listdir()} - before:
        os.unlink(left)
    stop = len(seen) // 2 + 1
    seen.clear()
    capsys.readouterr()
    assert main(words) == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")
    assert {*os.listdir()} == before
    seen.clear()
    list(extensions.with_progress([1, 2]))
    assert not seen  # the command has ended


def test_steps_within_steps_move_the_bar_within_their_step() -> None:
    seen: list[tuple[float, str]] = []
    for outer in extensions.with_progress("ab", report=lambda *both: seen.append(both)):
        for inner in extensions.with_progress([1, 2], lambda item, outer=outer: f"{outer}{item}"):  # type: ignore[misc]
            if inner == 2 and outer == "b":
                break
    expected = [(0, "a"), (0, "a1"), (0.25, "a2"), (0.5, ""), (0.5, "b"), (0.5, "b1"), (0.75, "b2"), (1, "")]
    assert seen == expected


def test_what_is_told_inside_a_step_moves_the_bar_within_it_and_never_back() -> None:
    seen: list[float] = []
    with extensions.reporting(lambda fraction, text: seen.append(fraction)):
        for _ in extensions.with_progress("ab"):
            for fraction in (0.0, 1.0, 0.5):
                extensions.tell(fraction)
        for _ in extensions.with_progress("a"):  # a single item is no step
            extensions.tell(0.25)
        with extensions.reporting(lambda fraction, text: extensions.tell(fraction / 2)):
            extensions.tell(0.5)
    extensions.tell(0.75)
    assert seen == [0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1, 1, 0.25, 0.25]


@pytest.mark.usefixtures("hung_up")
def test_curvature_tells_what_it_knows_when_hung_up(monkeypatch: Any, capsys: Any) -> None:
    from calibcli.networks.curvature.spectrum import Lanczos

    extend, calls = Lanczos.extend, [0]

    def step(self: Lanczos) -> None:
        calls[0] += 1
        if calls[0] == 4:
            signal.raise_signal(signal.SIGHUP)
        extend(self)

    monkeypatch.setattr(Lanczos, "extend", step)
    assert main(["curvature", MODEL, "-w", "lambda_max", "--subset", "32", "-q", "--json"]) == 129
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["interrupted"] == "HungUp"
    assert found["estimates"][0]["value"] > 0


IMPORTING = """
import os, signal, sys, threading
sys.argv = ["calib", "curvature", "model.pt"]
sys.path.insert(0, {root!r})
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{signal})
            for _ in range(1000): pass
sys.meta_path.insert(0, Slow())
signal.signal(signal.SIGINT, signal.default_int_handler)
from calibcli.__main__ import main
sys.exit(main())
"""


@pytest.mark.regression("4 Ctrl-C during imports")
@pytest.mark.parametrize(
    ("module", "name", "code"),
    [("calibcli.cli.run", "SIGINT", 130), ("torch", "SIGTERM", 143), ("torch.fx", "SIGINT", 130)],
)
def test_signals_during_imports(module: str, name: str, code: int) -> None:
    script = IMPORTING.format(root=str(ROOT), module=module, signal=name)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr in ("error: interrupted\n", "error: terminated\n")
    assert done.stdout == ""


@pytest.mark.regression("4 Python warnings")
@pytest.mark.parametrize("asked", [[], ["default"]])
def test_warnings_of_libraries_are_no_words_of_ours(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from calibcli.gate import check

    def warned(*_: Any, **__: Any) -> Any:
        warnings.warn("odd", FutureWarning, stacklevel=1)
        raise UsageError("stop")

    monkeypatch.setattr(check, "run", warned)
    monkeypatch.setattr(sys, "warnoptions", asked)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert main(CASES[0]) == 2
    assert [str(w.message) for w in seen] == ["odd"] * len(asked)
