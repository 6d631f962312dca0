"""Every method to every target: exported and within its limit on real rows, or refused with a target that works."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import SCALERS, Scaler
from calibcli.core.errors import InputError, UsageError
from calibcli.scores.predictions import Predictions
from calibcli.ship.target import TARGETS

OPTIONS = {"matrix": ":lam=0.1,mu=0.1", "dirichlet": ":lam=0.1,mu=0.1"}
SPECS = [e.name + OPTIONS.get(e.name, "") for e in SCALERS]
SPECS += ["histogram:of=top", "focal_temperature:order=phi-T", "top_label:by=isotonic"]
EXTRA = {"onnx": pytest.mark.extra}
SUFFIX = {"onnx": ".onnx", "json": ".json", "pt2": ".pt2", "torchscript": ".pt"}
QUICK_PT2 = ("isotonic_top",)  # torch.export is slow, and of one module with TorchScript
TARGET = [pytest.param(name, marks=EXTRA.get(name, ())) for name in SUFFIX]
LIMIT = {"onnx": 1e-6, "json": 1e-9, "pt2": 1e-6, "torchscript": 1e-6}
ONNX = importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime")
ROWS = 1000


def rows(k: int, kind: str = "logits") -> tuple[Any, Any]:
    """Float32 rows as models give them: some saturated, some with masked classes or one class alone."""
    rng = np.random.default_rng(k)
    z = (rng.standard_normal((ROWS, k)) * 4).astype(np.float32)
    y = (z / 2.5 + rng.gumbel(size=z.shape)).argmax(1)
    z[:20] *= 3
    if kind == "logits":
        z[np.arange(20, 80), (y[20:80] + 1) % k] = -np.inf
        if k > 2:
            z[80:84] = -np.inf
            z[np.arange(80, 84), y[80:84]] = 1.0
    return z, y


_fits: dict[tuple[str, int], Scaler] = {}


def fitted(spec: str, k: int) -> Scaler:
    if (spec, k) not in _fits:
        z, y = rows(k)
        quick = spec if k < 100 else spec.replace("=0.1", "=100")  # a weak penalty takes a minute
        _fits[spec, k] = calibcli.fit_scaler(z, y, quick, kind="logits").scaler
    return _fits[spec, k]


def alone() -> list[Any]:
    """Every cell; `extra` where another target or K runs the same code."""
    cells = []
    for target, spec, k in itertools.product(SUFFIX, SPECS, (2, 10)):
        quick = {"torchscript", "json", *(("pt2",) if spec in QUICK_PT2 else ())}
        cells.append(pytest.param(target, spec, k, marks=() if k == 10 and target in quick else pytest.mark.extra))
    return cells


@pytest.mark.parametrize(("target", "spec", "k"), alone())
@pytest.mark.one_in(14)
def test_the_calibrator_alone(target: str, spec: str, k: int, tmp_path: Path) -> None:
    one_cell(target, spec, k, tmp_path)


@pytest.mark.extra
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("target", TARGET)
def test_the_calibrator_alone_of_100_classes(target: str, spec: str, tmp_path: Path) -> None:
    one_cell(target, spec, 100, tmp_path)


def one_cell(target: str, spec: str, k: int, tmp_path: Path) -> None:
    if target == "onnx" and not ONNX:
        pytest.skip("onnx is not installed")
    scaler, path = fitted(spec, k), tmp_path / f"c{SUFFIX[target]}"
    data = Predictions.of(*rows(k))
    found = calibcli.export(scaler, target, save=path, data=data)
    assert found["max_dp"].value <= found.facts["limit"] == LIMIT[target]
    assert found["max_dp"].n == found.facts["n"] == ROWS
    assert path.is_file()
    if target == "json" and k == 10:
        short_and_plain(tmp_path)
    if scaler.preserves_accuracy:
        assert found.facts["predicted classes changed"] == 0


def short_and_plain(folder: Path) -> None:
    """Each generated function has at most 15 lines, and those of Python need the standard library alone."""
    lines = {p.suffix: p.read_text().strip().splitlines() for p in folder.iterdir()}
    assert {".py", ".json"} | ({".js"} if shutil.which("node") else set()) | (
        {".c"} if shutil.which("cc") else set()
    ) == set(lines)
    for suffix, start in ((".py", "def "), (".js", "function "), (".c", ("void ", "static void ", "static double "))):
        body = [line for line in lines.get(suffix, []) if "module.exports" not in line]
        starts = [i for i, line in enumerate(body) if line.startswith(start)]
        assert starts or not body
        for first, after in itertools.pairwise([*starts, len(body)]):
            assert after - first <= 15, "\n".join(body[first:after])
    needed = [line for line in lines[".py"] if "import" in line]
    assert all(line.startswith(("from math", "from bisect")) for line in needed)


def test_the_targets_are_known() -> None:
    known = {e.name for e in TARGETS}
    assert known >= {*SUFFIX, "checkpoint", "card", "vllm"}


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 10, 100])
@pytest.mark.parametrize("spec", SPECS)
def test_programs_in_float64_are_the_maps(spec: str, k: int) -> None:
    """The limit of float64 runtimes, and ten times less: nothing is lost at the vertices."""
    import torch

    from calibcli.networks.deploy._torch_program import CalibratorModule

    z = rows(k)[0].astype(np.float64)
    scaler = fitted(spec, k)
    with torch.no_grad():
        found = CalibratorModule(scaler, True, torch.float64)(torch.from_numpy(z)).numpy()
        one = CalibratorModule(scaler, True, torch.float64)(torch.from_numpy(z[:1])).numpy()
        assert np.abs(one - found[:1]).max() < 1e-13
    assert np.abs(found - np.exp(scaler.map(z))).max() <= 1e-10


@pytest.mark.parametrize("times", [8, 16])
@pytest.mark.parametrize("spec", [s for s in SPECS if SCALERS.choose(s).traits.steep])
@pytest.mark.one_in(5)
def test_maps_of_saturated_rows_do_not_hang_on_rounding(spec: str, times: int, tmp_path: Path) -> None:
    """Probabilities one unit in the last place apart are told apart by no curve, so every runtime gives the same."""
    import torch

    from calibcli.networks.deploy._torch_program import CalibratorModule

    z, y = rows(10)
    z = (z[:300] * times).astype(np.float32)
    scaler = calibcli.fit_scaler(z, y[:300], spec, kind="logits").scaler
    wide = z.astype(np.float64)
    with torch.no_grad():
        found = CalibratorModule(scaler, True, torch.float64)(torch.from_numpy(wide)).numpy()
    assert np.abs(found - np.exp(scaler.map(wide))).max() <= 1e-10
    moved = np.exp(scaler.map(wide * (1 + 2e-16)))
    assert np.abs(moved - np.exp(scaler.map(wide))).max() <= 1e-9
    if spec == "isotonic":
        calibcli.export(scaler, "json", save=tmp_path / "c.json", data=Predictions.of(z, y[:300]))


def inputs() -> list[Any]:
    """Every cell; without `extra` each kind and width in TorchScript of two methods, as JSON of one."""
    specs, kinds = (
        ("temperature", "platt", "beta", "isotonic", "vector"),
        ("logits", "probabilities", "log_probabilities"),
    )
    cells = []
    for target, (s, spec), (i, (columns, kind)) in itertools.product(
        SUFFIX, enumerate(specs), enumerate(itertools.product((1, 2, 3), kinds))
    ):
        quick = {"torchscript": (s - i) % 5 in (0, 2), "json": s == i % 5, "pt2": s == i == 1}
        cells.append(pytest.param(target, spec, columns, kind, marks=() if quick.get(target) else pytest.mark.extra))
    return cells


@pytest.mark.parametrize(("target", "spec", "columns", "kind"), inputs())
@pytest.mark.one_in(7)
def test_scores_of_every_kind_and_one_column(target: str, spec: str, columns: int, kind: str, tmp_path: Path) -> None:
    if target == "onnx" and not ONNX:
        pytest.skip("onnx is not installed")
    rng = np.random.default_rng(columns)
    z = rng.standard_normal((400, max(columns, 2))) * 3
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    logp = z - np.log(np.exp(z).sum(1, keepdims=True))
    scores = {"logits": z[:, 1] - z[:, 0], "probabilities": np.exp(logp[:, 1]), "log_probabilities": logp[:, 1]}
    wide = {"logits": z, "probabilities": np.exp(logp), "log_probabilities": logp}
    given = scores[kind] if columns == 1 else wide[kind]
    data = calibcli.from_arrays(given, y, kind=kind)
    scaler = calibcli.fit_scaler(data, spec=spec).scaler
    assert (scaler.kind, scaler.columns) == (kind, columns)
    found = calibcli.export(scaler, target, save=tmp_path / f"c{SUFFIX[target]}", data=data)
    assert found["max_dp"].value <= LIMIT[target]
    assert found["max_dp"].n == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["json", "torchscript", *(pytest.param(t, marks=pytest.mark.extra) for t in ("onnx", "pt2"))]
)
def test_nothing_is_written_beyond_the_limit(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scaler that the file is held against is not the one that it is made of: exit 4, the figure, no file."""
    if target == "onnx" and not ONNX:
        pytest.skip("onnx is not installed")
    scaler, data = fitted("platt", 10), Predictions.of(*rows(10))
    honest = Scaler.__call__
    monkeypatch.setattr(Scaler, "__call__", lambda self, scores: honest(self, np.asarray(scores) * 1.001))
    with pytest.raises(InputError, match=r"max\|dp\| = \d") as refused:
        calibcli.export(scaler, target, save=tmp_path / f"c{SUFFIX[target]}", data=data)
    assert refused.value.code == 4
    assert not list(tmp_path.iterdir())
    found = calibcli.export(scaler, target, save=tmp_path / f"c{SUFFIX[target]}", data=data, tolerance=0.1)
    assert found["max_dp"].value > 1e-5
    assert found.facts["limit"] == 0.1


def test_what_cannot_be_run_here_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = calibcli.export(fitted("platt", 10), "json", save=tmp_path / "c.json", data=Predictions.of(*rows(10)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json", "c.py"]
    assert [note.partition(" ")[0] for note in found.notes] == ["c.js", "c.c"]


@pytest.mark.slow
def test_a_short_export_imports_no_torch(tmp_path: Path) -> None:
    calibcli.save_scaler(fitted("platt", 10), tmp_path / "p.safetensors")
    z, y = rows(10)
    np.savez(tmp_path / "r.npz", logits=np.maximum(z, -50), labels=y)
    code = """
import sys
from calibcli.cli.app import main
assert main(["export", "p.safetensors", "--to", "json", "--data", "r.npz", "-o", "c.json", "-q"]) == 0
heavy = {"torch", "onnx", "onnxruntime", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize("spec", SPECS)
def test_a_fold_is_the_map_or_is_refused(spec: str, k: int) -> None:
    """Of beta the map that is linear has a = b, as Platt's is."""
    from calibcli.networks.deploy import checkpoint_export

    scaler = fitted(spec, k)
    if spec not in ("temperature", "vector", "bcts", "matrix:lam=0.1,mu=0.1") and (spec, k) != ("platt", 2):
        with pytest.raises(UsageError, match="is not linear in the logits"):
            checkpoint_export.linear(scaler)
        if (spec, k) != ("beta", 2):
            return
        given = {**scaler.parameters, "b": scaler.parameters["a"]}
        scaler = Scaler(spec, k, given)
    a, c = checkpoint_export.linear(scaler)
    z = rows(k)[0][100:].astype(np.float64)
    y = z @ a.T + c
    wanted = y - np.log(np.exp(y).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(scaler.map(z), wanted, rtol=0, atol=1e-11)


def test_vllm_has_temperature_and_platt_of_one_column(tmp_path: Path) -> None:
    data = Predictions.of(*rows(10))
    calibcli.export(fitted("temperature", 10), "vllm", save=tmp_path / "p.json", data=data)
    t = 1 / float(fitted("temperature", 10).parameters["beta"])
    assert json.loads((tmp_path / "p.json").read_text()) == {"logit_sigma": pytest.approx(t)}
    for spec, works in (("vector", "to='checkpoint'"), ("isotonic", "to='onnx'"), ("sms", "to='onnx'")):
        with pytest.raises(UsageError, match=f"has no '{spec}'") as refused:
            calibcli.export(fitted(spec, 10), "vllm", save=tmp_path / "q.json", data=data)
        assert works in refused.value.fix
    rng = np.random.default_rng(0)
    s = rng.standard_normal(400) * 4
    one = calibcli.fit_scaler(
        s, (rng.uniform(size=400) < 1 / (1 + np.exp(-s / 2 - 1))).astype(int), "platt", kind="logits"
    )
    calibcli.export(one, "vllm", save=tmp_path / "one.json", data=s, kind="logits")
    found = json.loads((tmp_path / "one.json").read_text())
    p = 1 / (1 + np.exp(-(s - found["logit_mean"]) / found["logit_sigma"]))
    np.testing.assert_allclose(p, one.predict_proba(s)[:, 1], atol=1e-12)


@pytest.mark.parametrize("spec", ["platt", "beta", "isotonic", "histogram"])
@pytest.mark.one_in(3)
def test_a_calibrator_of_confidences(spec: str, tmp_path: Path) -> None:
    """How sure and whether it was right is all that is known: one column in, right or wrong out."""
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.3, 1, 500)
    data = calibcli.from_confidence(sure, rng.uniform(size=500) < sure**2)
    one = calibcli.fit_scaler(data, spec=spec)
    for target in ("json", "torchscript"):
        path = tmp_path / f"c{SUFFIX[target]}"
        found = calibcli.export(one, target, save=path, data=data)
        assert found["max_dp"].value <= LIMIT[target]
        assert calibcli.verify(path, one, data, trust=True).verdict == "pass"
    space: dict[str, Any] = {}
    exec((tmp_path / "c.py").read_text(), space)
    assert space["calibrate"]([sure[3]]) == pytest.approx(one.predict_proba(sure[3:4])[0], abs=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
@pytest.mark.parametrize(
    "target", ["torchscript", *(pytest.param(t, marks=pytest.mark.extra) for t in ("pt2", "onnx"))]
)
def test_no_room_leaves_nothing(target: str, tmp_path: Path) -> None:
    """Not half a file, and no process that torch ends: exit 2 and the reason."""
    if target == "onnx" and not ONNX:
        pytest.skip("onnx is not installed")
    z, y = rows(10)
    np.savez(tmp_path / "r.npz", logits=np.maximum(z, -50), labels=y)
    calibcli.save_scaler(fitted("isotonic", 10), tmp_path / "c.safetensors")
    code = f"""
import resource, sys
import torch
from calibcli.cli.app import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
sys.exit(main(["export", "c.safetensors", "--to", "{target}", "--data", "r.npz", "-o", "o{SUFFIX[target]}", "-q"]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path[1:]])}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode cut off at the limit would stay
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr[-500:]
    assert "file too large" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.safetensors", "r.npz"]
