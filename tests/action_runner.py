"""A runner of our own for the steps of action.yml, with stand-ins for pip, calib and GitHub's command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

GH = '''#!{python}
"""A stand-in for GitHub's command line: what a repository holds is in a JSON file."""
import json, re, sys
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
rest = path.removeprefix("repos/me/models/")
kind = "pull-requests" if rest.startswith("issues/") else "contents"
if path == "graphql":
    print("github-actions[bot]")
    sys.exit()
if method != "GET" and kind not in state["writable"]:
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
    state["comments"][rest.split("/")[-1]]["body"] = fields["body"]
elif method == "GET":
    login, mark = re.findall('"(.*?)"', query)
    found = [key for key, one in state["comments"].items() if one["login"] == login and one["body"].startswith(mark)]
    answer = "\\n".join(found)
else:
    new = {{"login": "github-actions[bot]", "body": fields["body"]}}
    state["comments"][str(len(state["comments"]) + 7)] = new
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
    outputs: dict[str, str] = field(default_factory=dict)
    printed: str = ""
    pictures: bool = True  # False: as where matplotlib is not installed

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.bin / "state.json").read_text())
        return found

    def shell(self, script: str, env: dict[str, str], folder: str = ".") -> subprocess.CompletedProcess[str]:
        fixed = {
            "PATH": os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "PYTHONPATH": os.pathsep.join([str(ROOT)] if self.pictures else [str(self.bin / "light"), str(ROOT)]),
            "GITHUB_OUTPUT": str(self.bin / "outputs"),
            "GITHUB_STEP_SUMMARY": str(self.bin / "summary"),
            "GITHUB_REPOSITORY": "me/models",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_RUN_ID": "5",
            "MPLCONFIGDIR": str(self.bin),
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        place = self.folder / folder
        return subprocess.run(command, cwd=place, env={**fixed, **env}, capture_output=True, text=True, check=False)

    def git(self, *words: str) -> str:
        """A command of git in the repository, whose origin is made by the first commit."""
        who = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main"]
        done = subprocess.run(["git", *who, *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout

    def commit(self, *names: str) -> None:
        """Commit files, and push them to origin, a folder beside the repository."""
        if not (self.folder / ".git").exists():
            self.git("init", "-q")
            self.git("init", "-q", "--bare", str(self.bin / "origin.git"))
            self.git("remote", "add", "origin", str(self.bin / "origin.git"))
        self.git("add", "--", *names)
        self.git("commit", "-q", "-m", "files")
        self.git("push", "-q", "origin", "HEAD")

    def action(self, given: dict[str, str]) -> tuple[int, str]:
        """The action with `with:`; its exit code and what its steps print."""
        yaml = pytest.importorskip("yaml")
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        inputs = {name: str(about.get("default", "")) for name, about in action["inputs"].items()}
        assert set(given) <= set(inputs)
        outputs = self.outputs = {}
        code, said = 0, ""
        (self.bin / "outputs").unlink(missing_ok=True)

        def value(expression: str) -> str:
            places = {f"inputs.{k}": v for k, v in inputs.items()} | outputs
            places |= {"github.base_ref": str(self.event.get("base_ref", ""))}
            places |= {"github.event.pull_request.number": str(self.event.get("number", "")), "github.token": "t"}
            places |= {"github.action_path": str(ROOT)}
            return places.get(expression.strip(), "")

        def filled(text: str) -> str:
            return re.sub(r"\$\{\{(.*?)\}\}", lambda m: value(m[1]), text)

        inputs |= {name: filled(text) for name, text in given.items()}
        for step in action["runs"]["steps"]:
            asked = str(step.get("if", "${{ success() }}")).strip("${} ")
            parts = [part.strip() for part in asked.split("&&")]
            holds = [
                code == 0 if part == "success()" else part == "always()" or _compare(part, value) for part in parts
            ]
            if not all(holds):
                continue
            env = {k: filled(str(v)) for k, v in step["env"].items()}
            done = self.shell(step["run"], env, filled(step.get("working-directory", ".")))
            said += done.stdout + done.stderr
            code = code or done.returncode
            if (self.bin / "outputs").exists():
                lines = (self.bin / "outputs").read_text().splitlines()
                (self.bin / "outputs").unlink()
                outputs |= {f"steps.{step['id']}.outputs.{k}": v for k, _, v in (line.partition("=") for line in lines)}
        self.printed = said
        return code, said


def _compare(part: str, value: Any) -> bool:
    left, operator, right = re.fullmatch(r"(\S+) (==|!=) '(.*)'", part).groups()  # type: ignore[union-attr]
    return bool((value(left) == right) == (operator == "=="))


LIGHT = """
import importlib.util as u
found = u.find_spec
u.find_spec = lambda name, *a: None if name == "matplotlib" else found(name, *a)
"""


def stocked(repository: Path, tools: Path) -> Runner:
    """A runner at a repository; its tools and what GitHub holds lie in a folder of their own."""
    for path in (repository, tools / "light"):
        path.mkdir(parents=True, exist_ok=True)
    (tools / "light" / "sitecustomize.py").write_text(LIGHT)
    held = {"branches": {}, "comments": {}, "calls": [], "writable": ["contents", "pull-requests"]}
    (tools / "state.json").write_text(json.dumps(held))
    pip = f"printf '%s\\n' \"$@\" >> {tools}/pip.log"
    programs = {
        "gh": GH.format(python=sys.executable, state=str(tools / "state.json")),
        "calib": f'#!/bin/sh\nexec {sys.executable} -m calibcli "$@"\n',
        "pip": f"#!/bin/sh\n{pip}\n",
        "python": f'#!/bin/sh\ncase " $* " in *" -m pip "*) {pip};; *) exec {sys.executable} "$@";; esac\n',
    }
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return Runner(repository, tools)
