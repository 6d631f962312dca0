"""The pipelines of examples/ci from end to end: a first night, the next, a pull request, in a runner of our own."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from action_runner import Runner, stocked

from release.address import address

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "ci"
yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.docs


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A repository with the rules of the example, scores of a good model, and stand-ins for pip, calib and gh."""
    folder, tools = tmp_path / "repository", tmp_path / "bin"
    for path in (folder / "out", folder / "baseline"):
        path.mkdir(parents=True)
    shutil.copy(EXAMPLES / "calib.toml", folder)
    scores(folder, 0)
    found = stocked(folder, tools)
    found.commit("calib.toml")
    return found


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

    runner.commit("baseline/result.json")
    runner.event = {"number": 12, "base_ref": "main"}  # a pull request with a model that is not sure enough
    scores(runner.folder, 0, 0.1)
    code, said = runner.action(given)
    assert code == 1, said
    assert "::error file=calib.toml,line=" in said.replace(f"{runner.folder}/", "")
    (text,) = (one["body"] for one in runner.state["comments"].values())
    assert text.startswith("<!-- calib check -->\n")
    assert "FAIL" in text
    assert "eliability of the top label" in text  # the picture in words, and as one
    assert "![reliability](https://github.com/me/models/raw/calib-report/pull-12.png?run=5)" in text
    assert "brier - baseline" in text
    scores(runner.folder, 0)  # mended: the same comment says so
    code, said = runner.action(given)
    assert code == 0, said
    (text,) = (one["body"] for one in runner.state["comments"].values())
    assert "FAIL:" not in text
    assert set(runner.state["branches"]["calib-report"]) == {"badge.json", "reliability.png", "pull-12.png"}


def test_a_fork_may_not_write(runner: Runner) -> None:
    """Its verdict stands; that nothing could be written is a warning."""
    state = runner.state | {"writable": []}
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
    if not (ROOT / ".git").exists():
        pytest.skip("the job clones the repository, which this is not")
    # the repository stands where the job expects the published one, and the job's /tmp is a folder of the test
    here = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf"}
    here["GIT_CONFIG_VALUE_0"] = "https://github.com/" + address(ROOT)
    lines = "\n".join([*job["before_script"], *job["script"]]).replace("/tmp/", f"{runner.bin}/job/")
    done = runner.shell(lines, here)
    assert done.returncode == 0, done.stderr
    for place in job["artifacts"]["reports"].values():
        assert (runner.folder / place).is_file()
    scores(runner.folder, 0, 0.1)
    done = runner.shell("\n".join(job["script"]), {})
    assert done.returncode == 1
    assert done.returncode not in job["allow_failure"]["exit_codes"]
