"""Configuration of a gate: sources and their precedence, lines, and every mistake with its suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibcli.core.errors import InputError, UsageError
from calibcli.gate.check import asked
from calibcli.gate.config import Config, Gate, gate_lines, limit_rule, load
from calibcli.gate.options import Request

FULL = """\
schema = 1
[data]
eval = "out/test.npz"
fitted_on = "out/val.npz"
slices = ["sex", "site"]
group = "patient_id"
[stats]
alpha = 0.1
bins = 10

[[gate]]
metric = "ece"
limit = 0.03
on_inconclusive = "warn"
[[gate]] # by site
metric = "ece:bins=30"
by = "site"
limit = 0.06
min_n = 500
values = ["A", 2]
  [[ gate ]]
metric = "temperature-gain"
baseline = "base/result.json"
margin = 0.005
"""


def written(folder: Path, text: str, name: str = "calib.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_everything_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, FULL)
    config = load(path)
    assert (config.alpha, config.bins, config.group) == (0.1, 10, "patient_id")
    assert config.eval == str(tmp_path / "out/test.npz")
    assert config.slices == ("sex", "site")
    file = str(path)
    assert config.gates == (
        Gate(metric="ece", limit=0.03, on_inconclusive="warn", file=file, line=11),
        Gate(metric="ece:bins=30", by="site", limit=0.06, min_n=500, values=("A", "2"), file=file, line=15),
        Gate(metric="temperature_gain", baseline=str(tmp_path / "base/result.json"), margin=0.005, file=file, line=21),
    )


def test_calib_toml_beats_pyproject_key_by_key(tmp_path: Path) -> None:
    written(
        tmp_path,
        "[tool.other]\nx = 1\n[tool.calib.stats]\nalpha = 0.2\nbins = 7\n"
        '[[tool.calib.gate]]\nmetric = "nll"\nlimit = 1\n',
        "pyproject.toml",
    )
    only = load(folder=tmp_path)
    assert (only.alpha, only.bins, only.gates[0].metric, only.gates[0].line) == (0.2, 7, "nll", 6)
    written(tmp_path, "[stats]\nalpha = 0.01\n")
    both = load(folder=tmp_path)
    assert (both.alpha, both.bins, both.gates[0].metric) == (0.01, 7, "nll")
    assert both.over(alpha=0.3, bins=None).alpha == 0.3
    assert both.over(alpha=0.3, bins=None).bins == 7


def test_choices_and_earlier_results(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            "[data]\nweight_kind = 'count'\nclasses = ['a', 'b']\n[stats]\nbounds = 'score'\nedges = 'left'\n[[gate]]\n"
            "metric = 'nll'\nmargin = 0\nbaseline = { file = 'b.json', missing = 'warn' }\non_not_run = 'warn'\n",
        )
    )
    assert (found.weight_kind, found.classes, found.bounds, found.edges) == ("count", ("a", "b"), "score", "left")
    (gate,) = found.gates
    assert (gate.baseline, gate.missing, gate.on_not_run) == (str(tmp_path / "b.json"), "warn", "warn")


def test_nothing_there(tmp_path: Path) -> None:
    assert load(folder=tmp_path) == Config()
    written(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    assert load(folder=tmp_path) == Config()


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("[dat]\n", "unknown key 'dat'", "did you mean 'data'"),
        ("[data]\nevel = 'x'\n", "unknown key 'evel'", "did you mean 'eval'"),
        ("[stats]\nalpa = 1\n", "unknown key 'alpa'", "did you mean 'alpha'"),
        (
            "\n[[gate]]\nmetric = 'ece'\nlimt = 1\n",
            "calib.toml:2, [[gate]]: unknown key 'limt'",
            "did you mean 'limit'",
        ),
        ("schema = 2\n", "schema 2", "schema = 1"),
        ("[gate]\nmetric = 'ece'\n", "is one table", "[[gate]]"),
        ("[[gate]]\nlimit = 1\n", "without a metric", 'metric = "ece"'),
        ("[[gate]]\nmetric = 'ece'\n", "has no limit", "limit, max, min"),
        ("[[gate]]\nmetric = 'ece'\nmax = 1\nmin = 0\n", "has max and min", "one of"),
        ("[[gate]]\nmetric = 'ece'\nlimit = 1\nmargin = 0\n", "margin without a baseline", "baseline"),
        ("[[gate]]\nmetric = 'nll'\nlimit = 1\nbaseline = 'b.json'\n", "takes no limit", "margin"),
        ("[[gate]]\nmetric = 'nll'\nby = 'x'\nbaseline = 'b.json'\n", "takes no by", "margin"),
        ("[[gate]]\nmetric = 'ece'\nlimit = '0.1'\n", "limit is '0.1', not a number", "without quotes"),
        ("[[gate]]\nmetric = 'ece'\nlimit = true\n", "not a number", "plain number"),
        ("[[gate]]\nmetric = 'ece'\nlimit = nan\n", "limit = nan is out of range", "a number from"),
        ("[[gate]]\nmetric = 'ece'\nlimit = 1\nmin_n = 0\n", "min_n = 0 is out of range", "from 1"),
        ("[[gate]]\nmetric = 'ece'\nlimit = 1\nmin_n = 1.5\n", "min_n is 1.5", "plain number"),
        ("[[gate]]\nmetric = 'ece'\nlimit = 1\non_inconclusive = 'wrn'\n", "'wrn'", "did you mean 'warn'"),
        ("[[gate]]\nmetric = 3\nlimit = 1\n", "metric is 3, not a text", "quotes"),
        ("[stats]\nalpha = 0.7\n", "alpha = 0.7 is out of range", "to 0.25"),
        ("[stats]\nedges = 'rigth'\n", "'rigth'", "did you mean 'right'"),
        ("[data]\nslices = 3\n", "not a list of texts", "["),
        ("[data]\nweight_kind = 'cuont'\n", "weight_kind is 'cuont'", "did you mean 'count'"),
        ("[[gate]]\nmetric = 'nll'\nbaseline = { fiel = 'b.json' }\n", "unknown key 'fiel'", "did you mean 'file'"),
        ("data = 3\n", "is not a table", "KEY = VALUE"),
        ("[data\n", "is not TOML", "line"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, problem: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(written(tmp_path, text))
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_missing_file_is_a_mistake_only_when_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "none.toml")


def test_lines_are_told_only_when_sure() -> None:
    assert gate_lines("a=1\n[[gate]]\n\n [[ 'gate' ]] # x\n", 2) == [2, 4]
    assert gate_lines('x = """\n[[gate]]\n"""\n[[gate]]\n', 1) == [None]
    assert gate_lines("gate = [{metric='ece'}]\n", 1) == [None]
    assert gate_lines("[[tool.calib.gate]]\n[[tool . calib . gate]]\n[[gate]]\n", 2, "tool.calib.") == [1, 2]


def test_command_line_rules() -> None:
    assert limit_rule("ece=0.03", "max", min_n=5) == Gate(metric="ece", max=0.03, min_n=5)
    assert limit_rule("ece:bins=30=0.03", "max") == Gate(metric="ece:bins=30", max=0.03)
    assert limit_rule("Brier-Top=1e-3", "min") == Gate(metric="brier_top", min=1e-3)
    assert limit_rule("nll=0", "margin", baseline="b") == Gate(metric="nll", margin=0.0, baseline="b")
    for text in ("ece", "=0.03", "ece="):
        with pytest.raises(UsageError, match="METRIC=NUMBER") as caught:
            limit_rule(text, "max")
        assert "--max ece=0.03" in caught.value.fix
    for text in ("ece=x", "ece=nan", "ece:bins=30=inf"):
        with pytest.raises(UsageError, match=f"--max {text} is") as caught:
            limit_rule(text, "max")
        assert "pass a number from" in caught.value.fix


@pytest.mark.regression
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool]\ncalib = 5\n", "is not a table"),
        ("[[tool.calib]]\nx = 1\n", "is not a table"),
        ("tool = 5 # calib\n", ""),
    ],
)
def test_a_section_that_is_no_table_is_an_error_with_its_place(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(text)
    if not said:  # nothing of it is meant for calib
        assert not load().gates
        return
    with pytest.raises(UsageError, match=said):
        load()


@pytest.mark.slow
@pytest.mark.regression
def test_ten_thousand_rules_are_refused_before_any_is_judged(tmp_path: Path) -> None:
    rules = tmp_path / "calib.toml"
    rules.write_text('[data]\neval = "t.npz"\n' + '[[gate]]\nmetric = "ece"\nlimit = 0.1\n' * 10_000)
    with pytest.raises(UsageError, match="10,000 rules"):
        asked(Request(config=rules))
