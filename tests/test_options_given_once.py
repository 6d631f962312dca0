"""What was asked for: an option once, a run that goes on as it began, a message that shows what differs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.core import TyperOption

from calibcli.cli import COMMANDS
from calibcli.cli.app import main
from calibcli.cli.typed import build_command
from calibcli.lab.training._state import differences

ROOT = Path(__file__).parent.parent
TEST = str(ROOT / "sample_data" / "test.npz")


def options(name: str) -> list[Any]:
    return [p for p in build_command(name).params if isinstance(p, TyperOption)]


@pytest.mark.regression("1.21")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.one_in(5)
def test_an_option_of_one_value_is_given_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in options(name):
        if option.is_flag or option.multiple:
            continue
        for first, second in {(option.opts[0], option.opts[0]), (option.opts[0], option.opts[-1])}:
            assert main([name, first, "1", f"{second}=1" if second.startswith("--") else f"{second}1"]) == 2
            assert f"error: {option.opts[0]} was given more than once\n" in capsys.readouterr().err


@pytest.mark.regression("1.21")
def test_lists_and_flags_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", TEST, "-m", "accuracy", "-m", "nll", "--json", "--json"]) == 0
    assert main(["metrics", "--level", "0.9", "--", TEST]) == 0
    capsys.readouterr()
    assert main(["metrics", TEST, "--seed", "5", "--help"]) == 0
    assert main(["metrics", TEST, "--seed", "5", "--no-such"]) == 2
    assert "no such option" in capsys.readouterr().err


@pytest.mark.regression("1.21")
def test_differences_are_shown_where_they_are() -> None:
    long = "a" * 100
    stored = {"recipe": {"lr": 0.1, "loss": f"{long}b", "at": [1, 2]}, "data": {"train": {"rows": 5}}, "same": 1}
    given = {"recipe": {"lr": 0.2, "loss": f"{long}c", "at": [1, 3]}, "data": {}, "same": 1}
    found = differences(stored, given)
    assert found == [
        "recipe lr: 0.1, not 0.2",
        f"recipe loss: ...{'a' * 12}b, not ...{'a' * 12}c",
        "recipe at: [1, 2], not [1, 3]",
        "data train: {'rows': 5}, not nothing",
    ]
    assert differences(stored, stored) == []
    assert all(len(text) < 200 for text in differences({"x": "p" + "q" * 999}, {"x": "r" * 999}))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with bytes of 8 x 8, two arrays of labels, and the options of a finished run on them."""
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (200, 8, 8), dtype=np.uint8), np.arange(200) % 2
    np.savez(folder / "d.npz", images=x, labels=y, other=1 - y)
    argv = ["fit", "mlp:hidden=4", "--data", str(folder / "d.npz"), "--labels", "labels", "--epochs", "1", "-q"]
    argv += ["--save", str(folder / "run")]
    assert main([*argv, "--mean", "0.5", "--std", "0.2"]) == 0
    return folder, argv


@pytest.mark.slow
@pytest.mark.regression("4 --resume with another --mean")
@pytest.mark.regression("1.21")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--mean", "0.4", "--std", "0.2"], "data train preprocess mean: [0.5], not [0.4]"),
        (["--mean", "0.5", "--std", "0.3"], "data train preprocess std: [0.2], not [0.3]"),
        (["--mean", "0.5", "--std", "0.2", "--lr", "0.02"], "recipe lr: 0.1, not 0.02"),
        (["--mean", "0.5", "--std", "0.2", "--batch-size", "16"], "recipe batch_size: 128, not 16"),
        (["--mean", "0.5", "--std", "0.2", "--labels", "other"], "data train labels: "),
        (["--mean", "0.5", "--std", "0.2", "--seed", "1"], "recipe seed: 0, not 1"),
    ],
)
def test_another_run_is_not_gone_on_with(
    run: tuple[Path, list[str]], change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*run[1]]
    for name in {c for c in change if c.startswith("--")} & set(argv):  # replaced
        at = argv.index(name)
        del argv[at : at + 2]
    assert main([*argv, "--resume", *change]) == 2
    err = capsys.readouterr().err
    assert f"belongs to another run ({said}" in err or f"; {said}" in err
    assert main([*run[1], "--resume", "--mean", "0.5", "--std", "0.2"]) == 0


def test_the_entry_point_is_the_module() -> None:
    import calibcli.__main__ as entry

    assert 'calib = "calibcli.__main__:main"' in (ROOT / "pyproject.toml").read_text()
    assert all(p.default is not p.empty for p in inspect.signature(entry.main).parameters.values())
