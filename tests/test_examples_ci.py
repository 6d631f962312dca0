"""The pipelines of examples/ci from end to end: a first night, the next, a pull request, in a runner of our own."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "ci"
yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.docs

GH = '''#!{python}
"""A stand-in for GitHub's command line: what a repository holds is in a JSON file."""
import base64, json, sys
from pathlib import Path

state_file = Path({state!r})
state = json.loads(state_file.read_text())
args = sys.argv[2:]
path, method, fields, query, body = "", "", {{}}, "", ""
while args:
    word = args.pop(0)
    if word in ("-X", "--jq", "-f", "-F", "--input"):
        value = args.pop(0)
        if word == "-X":
            method = value
        elif word == "--jq":
            query = value
        elif word == "--input":
            fields = json.loads(Path(value).read_text())
        else:
            key, _, text = value.partition("=")
            fields[key] = Path(text[1:]).read_text() if word == "-F" and text.startswith("@") else text
    elif not word.startswith("--"):
        path = word
method = method or ("POST" if fields else "GET")
state["calls"].append(f"{{method}} {{path}}")
answer = None
head = "repos/me/models/"
rest = path.removeprefix(head)
if method != "GET" and not state["writable"]:
    sys.exit("HTTP 403")
if rest.startswith("git/ref/heads/"):
    answer = rest.split("/")[-1] in state["branches"] or sys.exit("HTTP 404")
elif rest in ("git/trees", "git/commits"):
    answer = "abc"
elif rest == "git/refs":
    state["branches"][fields["ref"].split("/")[-1]] = {{}}
elif rest.startswith("contents/") and method == "GET":
    name, _, branch = rest.removeprefix("contents/").partition("?ref=")
    answer = "sha-" + name if name in state["branches"][branch] else sys.exit("HTTP 404")
elif rest.startswith("contents/"):
    name, held = rest.removeprefix("contents/"), state["branches"][fields["branch"]]
    if (name in held) != ("sha" in fields):
        sys.exit("HTTP 409")
    held[name] = fields["content"]
elif rest.startswith("issues/comments/"):
    state["comments"][rest.split("/")[-1]] = fields["body"]
elif method == "GET":
    mark = query.split('"')[1]
    answer = "\\n".join(key for key, text in state["comments"].items() if text.startswith(mark))
else:
    state["comments"][str(len(state["comments"]) + 7)] = fields["body"]
if answer and query:
    print(answer)
state_file.write_text(json.dumps(state))
'''


@dataclass
class Runner:
    """Runs the steps of a composite action, or the lines of a GitLab job, in a folder with the tools of a runner."""

    folder: Path
    bin: Path
    event: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.bin / "state.json").read_text())
        return found

    def shell(self, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        fixed = {
            "PATH": os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "PYTHONPATH": str(ROOT),
            "GITHUB_OUTPUT": str(self.bin / "outputs"),
            "GITHUB_STEP_SUMMARY": str(self.bin / "summary"),
            "GITHUB_REPOSITORY": "me/models",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_RUN_ID": "5",
            "MPLCONFIGDIR": str(self.bin),
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        return subprocess.run(
            command, cwd=self.folder, env={**fixed, **env}, capture_output=True, text=True, check=False
        )

    def action(self, given: dict[str, str]) -> tuple[int, str]:
        """The action with `with:`; its exit code and what its steps print."""
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        inputs = {name: str(about.get("default", "")) for name, about in action["inputs"].items()}
        assert set(given) <= set(inputs)
        inputs |= given
        outputs: dict[str, str] = {}
        code, said = 0, ""

        def value(expression: str) -> str:
            places = {f"inputs.{k}": v for k, v in inputs.items()} | {
                f"steps.check.outputs.{k}": v for k, v in outputs.items()
            }
            places |= {"github.event.pull_request.number": str(self.event.get("number", "")), "github.token": "t"}
            places |= {"github.action_path": str(ROOT)}
            return places.get(expression.strip(), "")

        for step in action["runs"]["steps"]:
            asked = str(step.get("if", "${{ success() }}")).strip("${} ")
            parts = [part.strip() for part in asked.split("&&")]
            holds = [
                code == 0 if part == "success()" else part == "always()" or _compare(part, value) for part in parts
            ]
            if not all(holds):
                continue
            env = {k: re.sub(r"\$\{\{(.*?)\}\}", lambda m: value(m[1]), str(v)) for k, v in step["env"].items()}
            done = self.shell(step["run"], env)
            said += done.stdout + done.stderr
            code = code or done.returncode
            if (self.bin / "outputs").exists():
                outputs |= dict(line.split("=", 1) for line in (self.bin / "outputs").read_text().splitlines())
        return code, said


def _compare(part: str, value: Any) -> bool:
    left, operator, right = re.fullmatch(r"(\S+) (==|!=) '(.*)'", part).groups()  # type: ignore[union-attr]
    return bool((value(left) == right) == (operator == "=="))


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A repository with the rules of the example, scores of a good model, and stand-ins for pip, calib and gh."""
    folder, tools = tmp_path / "repository", tmp_path / "bin"
    for path in (folder / "out", folder / "baseline", tools):
        path.mkdir(parents=True)
    shutil.copy(EXAMPLES / "calib.toml", folder)
    scores(folder, 0)
    (tools / "state.json").write_text(json.dumps({"branches": {}, "comments": {}, "calls": [], "writable": True}))
    programs = {
        "gh": GH.format(python=sys.executable, state=str(tools / "state.json")),
        "calib": f'#!/bin/sh\nexec {sys.executable} -m calibcli "$@"\n',
        "pip": '#!/bin/sh\necho pip "$@"\n',
        "python": f'#!/bin/sh\nif [ "$2" = pip ]; then echo pip; else exec {sys.executable} "$@"; fi\n',
    }
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return Runner(folder, tools)


def scores(folder: Path, seed: int, off: float = 1.0) -> None:
    rng = np.random.default_rng(seed)
    z = 9 * rng.normal(size=(4000, 3))
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    right = (p.cumsum(1) < rng.random((4000, 1))).sum(1)
    site = np.array(["north", "south"])[np.arange(4000) % 2]
    np.savez(folder / "out" / "test.npz", logits=off * z, labels=right, site=site, ids=np.arange(4000))


def test_the_github_example(runner: Runner) -> None:
    workflow = yaml.safe_load((EXAMPLES / "github.yml").read_text())
    steps = {step.get("name", ""): step for step in workflow["jobs"]["calibration"]["steps"]}
    given, upload = steps["Gate"]["with"], steps["Reports"]["with"]
    assert workflow["permissions"] == {"contents": "write", "pull-requests": "write"}
    code, said = runner.action(given)  # the first night, on the main branch
    assert code == 0, said
    assert "no baseline at baseline/result.json" in said
    assert re.search(r"(?m)^passed: ece <= 0.05", said)
    report = runner.folder / upload["path"]
    assert {"result.json", "summary.md", "junit.xml", "metrics.txt", "badge.json", "reliability.png"} <= {
        p.name for p in report.iterdir()
    }
    held = runner.state["branches"][given["branch"]]
    badge = json.loads(base64.b64decode(held["badge.json"]))
    assert badge["schemaVersion"] == 1
    assert base64.b64decode(held["reliability.png"]).startswith(b"\x89PNG")
    assert not runner.state["comments"]

    line = re.search(r"#   (calib check .* --save-baseline .*)", (EXAMPLES / "github.yml").read_text())
    assert line is not None
    done = runner.shell(line[1], {})
    assert done.returncode == 0, done.stderr
    assert (runner.folder / "baseline" / "result.json").exists()

    runner.event = {"number": 12}  # a pull request with a model that is not sure enough
    scores(runner.folder, 0, 0.1)
    code, said = runner.action(given)
    assert code == 1, said
    assert "::error file=calib.toml,line=" in said.replace(f"{runner.folder}/", "")
    (text,) = runner.state["comments"].values()
    assert text.startswith("<!-- calib check -->\n")
    assert "FAIL" in text
    assert "eliability of the top label" in text  # the picture in words, and as one
    assert "![reliability](https://github.com/me/models/raw/calib-report/pull-12.png?run=5)" in text
    assert "temperature_gain - baseline" in text
    scores(runner.folder, 0)  # mended: the same comment says so
    code, said = runner.action(given)
    assert code in (0, 3), said
    (text,) = runner.state["comments"].values()
    assert "FAIL:" not in text
    assert set(runner.state["branches"]["calib-report"]) == {"badge.json", "reliability.png", "pull-12.png"}


def test_a_fork_may_not_write(runner: Runner) -> None:
    """Its verdict stands; that nothing could be written is a warning."""
    state = runner.state | {"writable": False}
    (runner.bin / "state.json").write_text(json.dumps(state))
    runner.event = {"number": 3}
    code, said = runner.action({"comment": "true", "branch": "b"})
    assert code == 0, said
    assert "::warning title=calib::no branch: contents is not writable" in said
    assert "::warning title=calib::pull-requests is not writable" in said
    scores(runner.folder, 0, 0.1)
    assert runner.action({"comment": "true", "branch": "b"})[0] == 1
    calls = len(runner.state["calls"])
    assert runner.action({})[0] == 1  # neither was asked for
    assert len(runner.state["calls"]) == calls


def test_the_gitlab_example(runner: Runner) -> None:
    job = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())["calibration"]
    done = runner.shell("\n".join([*job["before_script"], *job["script"]]), {})
    assert done.returncode == 0, done.stderr
    for place in job["artifacts"]["reports"].values():
        assert (runner.folder / place).is_file()
    scores(runner.folder, 0, 0.1)
    done = runner.shell("\n".join([*job["before_script"], *job["script"]]), {})
    assert done.returncode == 1
    assert done.returncode not in job["allow_failure"]["exit_codes"]
