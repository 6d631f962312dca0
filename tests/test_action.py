"""The steps of action.yml, run by bash: every rule is judged, and no file of the checkout is run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from action_runner import ROOT, Runner, stocked

from calibcli.cli.app import main

pytestmark = pytest.mark.docs  # a pipeline, like those of the examples
yaml = pytest.importorskip("yaml")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
SCRIPTS = {step["name"]: step["run"] for step in ACTION["runs"]["steps"]}


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A repository with the scores of a calibrated model of accuracy near .6, and a slice column."""
    found = stocked(tmp_path / "repository", tmp_path / "bin")
    found.pictures = False  # which take a second each
    scores(found.folder / "t.npz")
    return found


def scores(path: Path, off: float = 1.0) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1000, 3))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((1000, 1))).sum(1)
    site = np.array(["New York", "Oslo"])[np.arange(1000) % 2]
    np.savez(path, logits=off * z, labels=labels, site=site, ids=np.arange(1000))


def rules(runner: Runner) -> list[str]:
    checks = json.loads((runner.folder / "calib-report" / "result.json").read_text())["checks"]
    return [check["rule"] for check in checks]


@pytest.mark.parametrize(("limit", "code"), [("0.5", 0), ("0.001", 3)])
def test_the_action_checks_reports_and_exits(limit: str, code: int, runner: Runner) -> None:
    given = {"input": "t.npz", "args": f"--max ece={limit}", "output": "report"}
    assert runner.action(given)[0] == code
    assert runner.outputs["steps.check.outputs.exit-code"] == str(code)
    assert runner.outputs["steps.check.outputs.report"] == str(runner.folder / "report")
    written = {p.name for p in (runner.folder / "report").iterdir()}
    assert {"result.json", "summary.md", "junit.xml", "metrics.txt", "badge.json"} <= written
    assert "reliability.png" not in written
    assert (runner.bin / "summary").read_text() == (runner.folder / "report" / "summary.md").read_text()
    assert ("::error" in runner.printed) == (code != 0)


def test_rules_on_several_lines_are_all_judged(runner: Runner) -> None:
    args = '--max ece=0.5\n--min\taccuracy=0.99\n\n  --by "site=New York & ids>=10"\n'
    code, printed = runner.action({"input": "t.npz", "args": args})
    assert code == 1, printed
    assert rules(runner)[:2] == ["ece <= 0.5", "accuracy >= 0.99"]
    assert len(rules(runner)) == 4


def test_an_open_quote_is_refused(runner: Runner) -> None:
    code, printed = runner.action({"input": "t.npz", "args": "--max ece=0.5 --by 'site=Oslo"})
    assert code == 2
    assert "::error title=calib::args: a quote is opened and not closed" in printed
    assert runner.outputs["steps.check.outputs.exit-code"] == "2"


@pytest.mark.parametrize(("install", "torch"), [("full", True), ("light", False)])
def test_options_of_pip_on_several_lines(install: str, torch: bool, runner: Runner) -> None:
    """All of them reach pip, which looks up its own modules outside the checkout. `light` requires no PyTorch."""
    line = "--extra-index-url https://example.org/a\n--find-links 'wheels of mine' C:\\wheels\n"
    env = {"CALIB_INSTALL": install, "CALIB_PIP_ARGS": line, "CALIB_SOURCE": str(ROOT)}
    assert runner.shell(SCRIPTS["Install calib"], env).returncode == 0
    words = (runner.bin / "pip.log").read_text().splitlines()
    first = words.index("--extra-index-url")
    assert words[first:][:5] == [*line.split()[:3], "wheels of mine", "C:\\wheels"]
    assert words[0] == "-P"
    project = tomllib.loads((Path(words[-1]) / "pyproject.toml").read_text())["project"]
    assert project["name"] == ("calibcli" if torch else "calibcli-core")
    assert any(one.startswith("torch") for one in project["dependencies"]) == torch
    assert (Path(words[-1]) / "calibcli" / "__init__.py").exists()


def test_no_file_of_the_checkout_is_run(runner: Runner) -> None:
    """A pull request that brings modules under the names of a library, of Python or of calib changes nothing."""
    seen = runner.bin / "seen"
    hostile = f"import os\nopen({str(seen)!r}, 'a').write(__name__ + '\\n')\nos._exit(0)\n"
    names = ["json.py", "numpy.py", "tomllib.py", "base64.py", "shlex.py", "os.py", "typer.py", "pip.py"]
    names += ["sitecustomize.py", "usercustomize.py", "calibcli/__init__.py", "calibcli/__main__.py", "pip/__main__.py"]
    for name in names:
        path = runner.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(hostile)
    (runner.folder / "calib.toml").write_text('schema = 1\n[[gate]]\nmetric = "accuracy"\nmin = 0.99\n')
    runner.commit("calib.toml")
    runner.event = {"number": 5, "base_ref": "main"}
    given = {"input": "t.npz", "comment": "true", "branch": "b", "config-ref": "main", "install": "light"}
    runner.pictures = True
    code, printed = runner.action(given)
    assert not seen.exists(), seen.read_text()
    assert code == 1, printed
    assert "FAIL" in next(iter(runner.state["comments"].values()))["body"]


def allow(runner: Runner, *kinds: str, **more: Any) -> None:
    (runner.bin / "state.json").write_text(json.dumps(runner.state | {"writable": list(kinds)} | more))


def test_a_comment_shows_a_picture_where_there_is_one(runner: Runner) -> None:
    runner.event = {"number": 5}
    given = {"input": "t.npz", "args": "--max ece=0.5", "comment": "true", "branch": "b"}
    allow(runner, "pull-requests")  # the picture cannot be put anywhere
    assert runner.action(given)[0] == 0
    (one,) = runner.state["comments"].values()
    assert one["body"].startswith("<!-- calib check t.npz -->\n**t.npz**\n")
    assert "![" not in one["body"]
    allow(runner, "pull-requests", "contents")
    assert runner.action(given)[0] == 0  # there is none without matplotlib
    (one,) = runner.state["comments"].values()
    assert "![" not in one["body"]
    runner.pictures = True
    assert runner.action(given)[0] == 0
    (one,) = runner.state["comments"].values()
    assert "![reliability](https://github.com/me/models/raw/b/pull-5-t.npz.png?run=5)" in one["body"]


@pytest.mark.regression
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([{"input": "t.npz"}, {"input": "./models/u.npz"}], ["t.npz", "models__u.npz"]),
        ([{"working-directory": "models", "input": "u.npz"}, {"input": "t.npz"}], ["models__u.npz", "t.npz"]),
        (
            [{"name": "vision & 'text'", "input": "t.npz"}, {"name": "a/b", "input": "t.npz"}],
            ["vision----text-", "a__b"],
        ),
        ([{"args": "--config c.toml"}, {"args": "--config c.toml", "name": "b"}], ["", "b"]),
    ],
)
def test_two_models_have_comments_badges_and_pictures_of_their_own(
    given: list[dict[str, str]], names: list[str], runner: Runner
) -> None:
    """The first one fails, and the second passes after it: both say so."""
    (runner.folder / "models").mkdir()
    scores(runner.folder / "models" / "u.npz")
    (runner.folder / "c.toml").write_text('schema = 1\n[data]\neval = "t.npz"\n[[gate]]\nmetric = "ece"\nmax = 0.5\n')
    limits = ("--min accuracy=0.99", "--min accuracy=0.3")
    for number in ("5", "5", ""):
        runner.event = {"number": number} if number else {}
        runner.pictures = number == ""
        for one, limit in zip(given, limits, strict=True):
            args = f"{one.get('args', '')} {limit}".strip()
            code, printed = runner.action({**one, "args": args, "comment": "true", "branch": "b"})
            assert code == (limit == limits[0]), printed
    texts = [one["body"] for one in runner.state["comments"].values()]
    assert len(texts) == 2
    for name, word in zip(names, ("FAIL", "PASS"), strict=True):
        (text,) = (text for text in texts if text.startswith(f"<!-- calib check{f' {name}' if name else ''} -->\n"))
        assert word in text
    files = [f"{file}{f'-{name}' if name else ''}" for name in names for file in ("badge", "reliability")]
    assert {Path(file).stem for file in runner.state["branches"]["b"]} == set(files)
    assert runner.outputs["steps.check.outputs.name"] == names[1]


def test_reports_that_the_checkout_brings_are_not_shown(runner: Runner) -> None:
    """Where the input is refused there is no report, and no picture of an earlier one."""
    runner.event = {"number": 5}
    shutil.copytree(ROOT / "sample_data", runner.folder / "calib-report")
    for name in ("summary.md", "reliability.png", "badge.json"):
        (runner.folder / "calib-report" / name).write_text("PASS")
    code, _ = runner.action({"input": "none.npz", "args": "--max ece=0.5", "comment": "true", "branch": "b"})
    assert code == 4
    assert runner.state["branches"] == {"b": {}}
    assert not runner.state["comments"]


def test_the_comment_of_another_author_is_left_alone(runner: Runner) -> None:
    runner.event = {"number": 5}
    other = {"login": "someone", "body": "<!-- calib check t.npz -->\nPASS, says someone"}
    allow(runner, "pull-requests", comments={"3": other})
    given = {"input": "t.npz", "args": "--min accuracy=0.99", "comment": "true"}
    assert runner.action(given)[0] == 1
    assert runner.action(given)[0] == 1
    assert runner.state["comments"]["3"] == other
    (own,) = (one for key, one in runner.state["comments"].items() if key != "3")
    assert own["login"] == "github-actions[bot]"


RULES = """schema = 1
[[gate]]
metric = "nll"
baseline = "baseline/result.json"
margin = 0.0
[[gate]]
metric = "accuracy"
min = {least}
"""


@pytest.fixture
def pull(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A pull request whose rules and baseline let every model pass, at a target whose own do not."""
    folder = runner.folder
    (folder / "baseline").mkdir()
    (folder / "calib.toml").write_text(RULES.format(least=0.99))
    monkeypatch.chdir(folder)
    keep = ["--save-baseline", "baseline/result.json", "-q"]
    assert main(["check", "t.npz", *keep]) == 0
    runner.commit("calib.toml", "baseline/result.json", "t.npz")
    runner.git("checkout", "-q", "-b", "pull")
    (folder / "calib.toml").write_text(RULES.format(least=0.01))
    (folder / "pyproject.toml").write_text("[tool.calib.stats]\nalpha = 0.25\n")
    scores(folder / "bad.npz", off=9.0)
    assert main(["check", "bad.npz", *keep]) == 0
    scores(folder / "t.npz", off=4.0)
    runner.commit("calib.toml", "baseline/result.json", "pyproject.toml", "t.npz", "bad.npz")
    return runner


def outcomes(runner: Runner) -> dict[str, str]:
    checks = json.loads((runner.folder / "calib-report" / "result.json").read_text())["checks"]
    return {check["rule"].split()[0]: check["outcome"] for check in checks}


def test_rules_and_baseline_of_the_target_branch(pull: Runner) -> None:
    assert pull.action({"input": "t.npz"})[0] == 0
    assert outcomes(pull) == {"nll": "pass", "accuracy": "pass"}
    code, printed = pull.action({"input": "t.npz", "config-ref": "main"})
    assert code == 1, printed
    assert outcomes(pull) == {"nll": "fail", "accuracy": "fail"}
    assert not (pull.folder / "pyproject.toml").exists()
    assert "calib.toml,line=6" in printed
    pull.git("reset", "-q", "--hard")
    args = "--baseline=bad.npz --margin nll=0"  # of options too; bad.npz is none of the target's files
    code, printed = pull.action({"input": "t.npz", "args": args, "config-ref": "main"})
    assert code == 5, printed
    assert "no baseline at bad.npz" in printed


def test_rules_of_the_target_branch_are_not_evaded_by_links(pull: Runner) -> None:
    kept = (pull.folder / "baseline" / "result.json").read_bytes()
    shutil.rmtree(pull.folder / "baseline")
    (pull.folder / "evil").mkdir()
    (pull.folder / "evil" / "result.json").write_bytes(kept)
    os.symlink("evil", pull.folder / "baseline")
    (pull.folder / "calib.toml").unlink()
    os.symlink("evil/calib.toml", pull.folder / "calib.toml")
    (pull.folder / "evil" / "calib.toml").write_text(RULES.format(least=0.01))
    pull.git("add", "-A", ".", ":!calib-report")
    pull.git("commit", "-q", "-m", "links")
    code, printed = pull.action({"input": "t.npz", "config-ref": "main"})
    assert code == 1, printed
    assert outcomes(pull) == {"nll": "fail", "accuracy": "fail"}


@pytest.mark.regression
@pytest.mark.parametrize("args", ["", "--config=calib.toml"])
def test_the_first_rules_are_judged_as_they_are_brought(
    args: str, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has no rules yet, though it has a pyproject.toml; rules in `args` stay the only ones."""
    (runner.folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    runner.commit("pyproject.toml")
    runner.git("push", "-q", "origin", "HEAD:main")
    runner.git("checkout", "-q", "-b", "first")
    (runner.folder / "calib.toml").write_text('schema = 1\n[[gate]]\nmetric = "accuracy"\nmin = 0.01\n')
    runner.commit("calib.toml")
    code, printed = runner.action({"input": "t.npz", "args": args, "config-ref": "main"})
    assert code == 0, printed
    assert "main has no rules; this commit brings the first" in printed
    if not args:
        code, printed = runner.action({"input": "t.npz", "args": "--min accuracy=0.99", "config-ref": "main"})
        assert code == 1, printed
        assert rules(runner) == ["accuracy >= 0.99"]


def test_a_commit_that_cannot_be_fetched_is_refused(pull: Runner) -> None:
    code, printed = pull.action({"input": "t.npz", "config-ref": "no-such-branch"})
    assert code == 2
    assert "::error title=calib::config-ref: no-such-branch cannot be fetched" in printed
    assert not (pull.folder / "calib-report" / "result.json").exists()


def test_shell_of_the_steps() -> None:
    """ShellCheck finds nothing in any step."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which("shellcheck", path=places) or pytest.skip("shellcheck is not installed")
    for name, script in SCRIPTS.items():
        done = subprocess.run([program, "-s", "bash", "-"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout}"


def test_expressions_of_the_steps_and_the_example(tmp_path: Path) -> None:
    """actionlint finds nothing, of the steps as a workflow's and of a workflow that uses the action."""
    program = shutil.which("actionlint") or pytest.skip("no actionlint, which pip does not bring")
    inputs = {name: {"type": "string", "default": ""} for name in ACTION["inputs"]}
    steps = yaml.safe_dump(ACTION["runs"]["steps"]).replace("inputs.token", "github.token")
    job = {"runs-on": "ubuntu-latest", "steps": yaml.safe_load(steps)}
    place = tmp_path / ".github" / "workflows"
    place.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    shutil.copy(ROOT / "action.yml", tmp_path)
    (place / "steps.yml").write_text(yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"a": job}}))
    example = (ROOT / "examples" / "ci" / "github.yml").read_text()
    (place / "example.yml").write_text(example.replace("uses: OWNER/calib@v0", "uses: ./"))
    done = subprocess.run([program, "-no-color"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
