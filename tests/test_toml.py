"""Recipes and configurations as people write them: whatever stands there, the answer is a sentence with its fix.

`CALIB_EDITS=2000 pytest tests/test_toml.py` changes as many of each; `make nightly` does.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibcli.cli.app import main
from calibcli.core.errors import UsageError
from calibcli.core.validation import DEEPEST, toml

RECIPE = """schema = 1
[study]
name = "s"
question = "which?"
[data]
train = "d.npz#train"
validation = "d.npz#validation"
test = "d.npz#test"
split = "stratified"
[axes]
arch = ["mlp:hidden=4"]
seeds = 2
[train]
epochs = 1
lr = 0.1
optimizer = "sgd+sam"
schedule = "step:at=0.5"
augment = "flip"
freeze = ["layer1.*"]
patience = 3
head_only = false
device = "cpu"
threads = 1
[measure]
metrics = ["ece", "nll"]
scalers = ["temperature"]
log = ["nll"]
moments = [50, 100]
[size.small]
train = { epochs = 1 }
[[arm]]
name = "CE"
loss = "ce"
[[arm]]
name = "FL-{gamma}"
loss = "focal:gamma={gamma}"
gamma = [1, 2, 3]
warmup = 0.1
at = { depth = 2 }
[[printed]]
arm = "CE"
network = "mlp:hidden=4"
data = "d.npz"
rows = 12
numbers = { ece = 0.04 }
[[claim]]
id = "c"
text = "t"
premise = "overfit"
less = { metric = "ece", a = "FL-1", b = "CE" }
[[claim]]
id = "d"
text = "u"
decreasing = { metric = "nll", along = "gamma" }
"""
CONFIG = """schema = 1
[data]
eval = "t.npz"
slices = ["site"]
ids = "ids"
kind = "logits"
classes = ["a", "b", "c"]
[stats]
alpha = 0.05
bins = 15
bounds = "sharp"
seed = 0
[[gate]]
metric = "ece:bins=10"
limit = 0.5
by = "site"
values = ["0", "1"]
min_n = 20
on_inconclusive = "warn"
[[gate]]
metric = "accuracy"
min = 0.1
[[gate]]
metric = "nll"
baseline = { file = "base.json", missing = "warn" }
margin = 0.01
"""
SPLITS = ("train", "validation", "test")
NAUGHTY = [
    *('"1"', "1", "-1", "0", "1.0", "1e9", "1000000000", "inf", "-inf", "nan", "true", '""', "[]", "{}", "[[0.1]]"),
    *("{a=1}", "{a={b=[1]}}", "[1]", '["a", 1]', "2026-01-01", "2026-01-01T10:00:00Z", "10:00:00", "[2026-01-01]"),
    *("9" * 5_000, "0x" + "f" * 5_000, "-" + "9" * 30, "1e999", "[" * 300 + "]" * 300, "[" * 5_000, "{a=" * 60 + "1"),
    *('"\\u0000"', '"' + "a" * 300 + '"', '"../secret"', '"a:b=1"', '"{x}"', '"é\\n[31m"', "'''", "nan # x", "1_0"),
]
KEYS = ["epochs", "seeds", "alpha", "metric", "gamma", "arm", "gate", "data", "study", "a b", "''", "schema", "x.y"]
HOSTILE = st.sampled_from(NAUGHTY)


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """The text with one to four changes of values, keys, lines or characters."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        key, equals, value = lines[at].partition(" = ")
        change = draw(st.integers(0, 7))
        if change <= 3:
            lines[at] = f"{key} = {draw(HOSTILE)}"
        elif change == 4:
            lines.insert(at, f"{draw(st.sampled_from(KEYS))} = {draw(HOSTILE)}")
        elif change == 5:
            lines[at] = draw(
                st.sampled_from(["", f"[{key}]", f"[[{key}]]", f"{draw(st.sampled_from(KEYS))}{equals}{value}"])
            )
        elif change == 6:
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            place = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:place] + draw(st.text(max_size=3)) + lines[at][place + draw(st.integers(0, 2)) :]
    return "\n".join(lines) + "\n"


many = settings(
    max_examples=int(os.environ.get("CALIB_EDITS", "60")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder, with the files that the recipe and the configuration name."""
    path = tmp_path_factory.mktemp("toml")
    rng = np.random.default_rng(0)
    z, site = 2 * rng.normal(size=(90, 3)), np.arange(90) % 2
    np.savez(path / "t.npz", logits=z, labels=z.argmax(1), site=site, ids=np.arange(90))
    parts = {part: (rng.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3) for part in SPLITS}
    np.savez(
        path / "d.npz",
        **{f"{part}_inputs": x for part, (x, _) in parts.items()},
        **{f"{part}_labels": y for part, (_, y) in parts.items()},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


def code(argv: list[str], capfd: pytest.CaptureFixture[str]) -> int:
    """The exit code of a line, which says what is wrong and what to do where it is not 0."""
    found = main(argv)
    printed = capfd.readouterr()
    assert found in (0, 1, 2, 3, 4, 5), printed.err
    assert found not in (2, 4) or "fix: " in printed.err
    return found


@many
@given(text=mutated(RECIPE))
def test_a_recipe_with_anything_in_it(text: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "x.toml").write_text(text, "utf-8", "surrogatepass")
    code(["study", str(folder / "x.toml"), "--dry-run", "-q"], capfd)


@many
@given(text=mutated(CONFIG))
def test_a_configuration_with_anything_in_it(text: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "calib.toml").write_text(text, "utf-8", "surrogatepass")
    code(["check", "--config", str(folder / "calib.toml"), "-q"], capfd)


def test_both_are_right_as_they_are(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "x.toml").write_text(RECIPE)
    (folder / "calib.toml").write_text(CONFIG)
    assert code(["study", str(folder / "x.toml"), "--dry-run", "-q"], capfd) == 0
    assert code(["check", "--config", str(folder / "calib.toml"), "-q"], capfd) in (0, 1, 3, 5)


@pytest.mark.parametrize("value", ['"1"', "2026-01-01", "{a=1}", "[[0.1]]", "true", "1.5", "[1]", '""', "[]"])
@pytest.mark.parametrize("where", ["train", "arm", "axis"])
def test_an_option_of_training_that_is_no_number(
    where: str, value: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = {
        "train": RECIPE.replace("epochs = 1\n", f"epochs = {value}\n", 1).replace("[size.small", "[size.other"),
        "arm": RECIPE.replace("warmup = 0.1", f"epochs = {value}"),
        "axis": RECIPE.replace("gamma = [1, 2, 3]", f"gamma = [1, 2, 3]\nepochs = [{value}]").replace(
            "FL-{gamma}", "FL-{gamma}-{epochs}"
        ),
    }[where]
    (folder / "x.toml").write_text(text)
    assert main(["study", str(folder / "x.toml"), "--dry-run"]) == 2
    error = capfd.readouterr().err
    assert "epochs" in error
    assert "x.toml:" in error


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("9" * 5_001, "a whole number of more than 64 bits"),
        ("0x" + "f" * 5_001, "a whole number of more than 64 bits"),
        (str(2**63), "a whole number of more than 64 bits"),
        ("[" * 5_000, "nested too deeply"),
        ("[" * 5_000 + "]" * 5_000, "nested too deeply"),
        ("[" * DEEPEST + "]" * DEEPEST, "nested too deeply"),
        ('"a\\u0000b"', "a text with a NUL character"),
        ("1 2", "is not TOML"),
    ],
)
def test_what_no_option_can_be(value: str, problem: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "x.toml").write_text(RECIPE.replace("seeds = 2", f"seeds = {value}"))
    (folder / "calib.toml").write_text(CONFIG.replace("limit = 0.5", f"limit = {value}"))
    for argv in (["study", str(folder / "x.toml"), "--dry-run"], ["check", "--config", str(folder / "calib.toml")]):
        assert main(argv) == 2
        assert problem in capfd.readouterr().err


def test_the_largest_that_is_read() -> None:
    nested = "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1)
    text = f"a = {2**63 - 1}\nb = {nested}\nc = {-(2**63)}\n"
    assert toml(text, "x") == tomllib.loads(text)
    with pytest.raises(UsageError, match="nested"):
        toml(f"b = [{nested}]", "x")


@pytest.mark.parametrize("line", ["seeds = 1000000000", "seeds = 10001"])
def test_seeds_are_bounded(line: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "x.toml").write_text(RECIPE.replace("seeds = 2", line))
    assert main(["study", str(folder / "x.toml"), "--dry-run"]) == 2
    (folder / "x.toml").write_text(RECIPE)
    assert main(["study", str(folder / "x.toml"), "--dry-run", "--seeds", line.split()[-1]]) == 2
    assert "10000" in capfd.readouterr().err


def test_arms_are_bounded(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    axes = "".join(f"{name} = {list(range(1, 101))}\n" for name in "xyz")
    text = RECIPE.replace("FL-{gamma}", "FL-{gamma}-{x}-{y}-{z}").replace("warmup = 0.1\n", axes)
    (folder / "x.toml").write_text(text)
    assert main(["study", str(folder / "x.toml"), "--dry-run"]) == 2
    assert "stands for 3000000 arms" in capfd.readouterr().err
