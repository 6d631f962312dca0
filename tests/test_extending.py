"""Installed packages add entries by entry points: found by name, listed, and refused where two have one name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calibcli.extending

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "extension"
TEST = str(ROOT / "sample_data" / "test.npz")
METRIC = """
from calibcli.extending import METRICS, UNIT, MeanOf, Sample

@METRICS.add("{name}", values=UNIT, unit="")
def sharpness(sample: Sample) -> MeanOf:
    "Mean squared confidence."
    return MeanOf(sample, sample.columns.confidence**2, ends=(0.0, 1.0))
"""


def installed(folder: Path, package: str, group: str, entries: dict[str, str], code: str) -> None:
    """Lay a package down as pip does, with one module and its entry points."""
    information = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {place}\n" for name, place in entries.items())
    (information / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    module = next(iter(entries.values())).partition(":")[0]
    (folder / f"{module}.py").write_text(code)


def calib(site: Path, *lines: str, folder: Path = ROOT) -> list[tuple[int, str, str]]:
    """Run command lines one after the other, with the packages of a folder installed: exit code, stdout, stderr."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "PYTHONIOENCODING": "utf-8"}
    outcomes = []
    for line in lines:
        command = [sys.executable, "-m", "calibcli", *line.split()]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
        outcomes.append((done.returncode, done.stdout, done.stderr))
    return outcomes


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of examples/extension, as pip installs it."""
    site = tmp_path_factory.mktemp("site")
    (site / "calib_example").symlink_to(EXAMPLE / "calib_example")
    information = site / "calib_example-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: calib-example\nVersion: 1.0\n")
    groups = re.findall(
        r'^\[project.entry-points."([^"]+)"\]\n(.*?)(?:\n\n|\Z)', (EXAMPLE / "pyproject.toml").read_text(), re.M | re.S
    )
    (information / "entry_points.txt").write_text(
        "".join(f"[{name}]\n{lines}\n".replace('"', "") for name, lines in groups)
    )
    return site


def test_a_metric_of_a_package_is_one_of_every_command(example: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    value = np.mean(np.exp(logits() - np.log(np.exp(logits()).sum(1, keepdims=True))).max(1) ** 2)
    outcomes = calib(
        example,
        f"metrics {TEST} -m sharpness --json",
        f"check {TEST} --min sharpness=0.5",
        f"metrics {TEST} --partial {state}",
        f"merge {state} -m sharpness --json",
        "list metrics",
        "list sharpness",
        f"metrics {TEST} -m sharpnes",
    )
    assert [code for code, _, _ in outcomes] == [0, 0, 0, 0, 0, 0, 2]
    for i in (0, 3):
        assert float(re.search(r'"value": ([\d.]+)', outcomes[i][1])[1]) == pytest.approx(value, rel=1e-6)  # type: ignore[index]
    assert (
        "Mean squared confidence, the sharpness of the top label (Murphy 1973) (added by calib-example)"
        in outcomes[4][1]
    )
    assert "Murphy 1973" in outcomes[5][1]
    assert "did you mean 'sharpness'?" in outcomes[6][2]


def logits() -> np.ndarray:
    with np.load(TEST) as file:
        return np.asarray(file["logits"], dtype=float)


def test_a_map_and_a_format_of_a_package(example: Path, tmp_path: Path) -> None:
    with np.load(TEST) as file:
        table = np.column_stack([file["logits"], file["labels"]]).astype(float)
    (tmp_path / "test.f64").write_bytes(b"F64 " + table.shape[1].to_bytes(4, "little") + table.tobytes())
    outcomes = calib(
        example,
        f"scale {ROOT}/sample_data/validation.npz --method shares --save {tmp_path}/shares.safetensors",
        f"apply {tmp_path}/shares.safetensors {tmp_path}/test.f64 --save {tmp_path}/out.npz",
        f"export {tmp_path}/shares.safetensors --to json -o {tmp_path}/shares.json",
        "list formats",
        "list methods",
    )
    assert [code for code, _, _ in outcomes] == [0] * 5, outcomes
    assert "(added by calib-example)" in outcomes[3][1]
    assert "(added by calib-example)" in outcomes[4][1]


@pytest.mark.slow
def test_a_mistyped_trait_of_a_package_is_refused_with_its_name(tmp_path: Path) -> None:
    code = METRIC.format(name="sharpness").replace('unit=""', 'beter="lower"')
    installed(tmp_path, "calib-mistyped", "calibcli.metrics", {"sharpness": "mistyped"}, code)
    [(status, _, said)] = calib(tmp_path, f"metrics {TEST} -m sharpness")
    assert status == 2
    assert "calib-mistyped does not add its metric 'sharpness': TypeError: MetricTraits.__init__() got" in said
    assert "'beter'" in said


@pytest.mark.slow
def test_entries_of_calib_win_and_a_broken_package_touches_no_other_name(tmp_path: Path) -> None:
    installed(
        tmp_path,
        "calib-broken",
        "calibcli.metrics",
        {"ece": "broken", "sharpness": "broken"},
        "import no_such_module\n",
    )
    outcomes = calib(tmp_path, f"metrics {TEST} -m ece --json", f"metrics {TEST} -m sharpness", "list metrics", "list")
    assert outcomes[0][0] == 0
    assert outcomes[1][0] == 2
    assert "calib-broken does not add its metric 'sharpness': ModuleNotFoundError" in outcomes[1][2]
    assert "pip uninstall calib-broken" in outcomes[1][2]
    for code, shown, notes in outcomes[2:]:
        assert code == 0
        assert "classwise_ece" in shown or "metrics" in shown
        assert "note: calib-broken does not add its metric 'sharpness'" in notes.replace("\n", " ")


def test_two_packages_with_one_name_are_refused_with_both(tmp_path: Path) -> None:
    for package in ("calib-a", "calib-b"):
        place = package.replace("-", "_")
        installed(tmp_path, package, "calibcli.metrics", {"sharpness": place}, METRIC.format(name="sharpness"))
    (code, _, said), *_ = calib(tmp_path, f"metrics {TEST} -m sharpness")
    assert code == 2
    assert "calib-b does not add its metric 'sharpness': calib-a has one of that name" in said
    assert "fix: pip uninstall calib-b" in said


@pytest.mark.regression
def test_an_entry_point_of_another_name_than_its_entry_is_told(tmp_path: Path) -> None:
    installed(tmp_path, "calib-a", "calibcli.metrics", {"sharpnes": "calib_a"}, METRIC.format(name="sharpness"))
    (code, _, said), *_ = calib(tmp_path, f"metrics {TEST} -m sharpnes")
    assert code == 2
    assert "calib-a does not add its metric 'sharpnes': the module of that entry point has none of that name" in said
    assert "fix: name the entry point as the entry" in said


@pytest.mark.regression
def test_a_group_that_calib_does_not_have_is_told(tmp_path: Path) -> None:
    """It was passed over without a word, and the entry was missing."""
    installed(tmp_path, "calib-a", "calibcli.metric", {"sharpness": "calib_a"}, METRIC.format(name="sharpness"))
    installed(tmp_path, "calib-b", "calibcli_other.metrics", {"sharpness": "calib_b"}, "")
    overview, metrics = calib(tmp_path, "list", "list metrics")
    for code, _, notes in (overview, metrics):
        assert code == 0
        said = " ".join(notes.split())
        assert "calib-a adds nothing by its entry points 'calibcli.metric': the groups are calibcli.metrics, " in said
        assert "calib-b" not in said


def test_a_module_that_adds_a_name_of_calib_is_refused(tmp_path: Path) -> None:
    installed(tmp_path, "calib-a", "calibcli.metrics", {"sharpness": "calib_a"}, METRIC.format(name="ece"))
    (code, _, said), *_ = calib(tmp_path, f"metrics {TEST} -m sharpness")
    assert code == 2
    assert "calib-a does not add its metric 'ece': calib has one of that name" in said


def test_packages_are_not_looked_up_for_names_of_calib() -> None:
    """Looking them up imports importlib.metadata, which costs a third of `import numpy`."""
    script = (
        f"import sys; from calibcli.cli.app import main; main(['metrics', {TEST!r}]);"
        "assert 'importlib.metadata' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_module_has_what_entries_need() -> None:
    """The recipes for contributors import from where the code stands; a package imports the same from one place."""
    for name in calibcli.extending.__all__:
        assert getattr(calibcli.extending, name) is not None
    recipes = re.findall(
        r"`calibcli/(?!cli/)\S+\.py`:\n\n```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S
    )
    assert len(recipes) >= 5
    for code in recipes:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("calibcli"):
                for alias in node.names:
                    assert hasattr(calibcli.extending, alias.name), alias.name


def test_a_metric_needs_no_torch() -> None:
    script = (
        "import sys; import calibcli.extending as e; e.METRICS; e.MeanOf; e.SCALERS; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
