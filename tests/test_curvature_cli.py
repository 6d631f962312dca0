"""`calib curvature` from checkpoint files, in every container; options, refusals and Ctrl-C."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curvature_models import Focal, dense

from calibcli.cli.app import main
from calibcli.core.result import Result
from calibcli.networks import checkpoint
from calibcli.networks.architectures import ARCHITECTURES
from calibcli.networks.losses import CrossEntropy, final

ARCH = "mlp:inputs=4,hidden=5,classes=3"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    model = checkpoint.build(ARCH)
    x, y = torch.randn(40, 4).numpy(), torch.randint(0, 3, (40,)).numpy()
    np.savez(folder / "data.npz", x=x, y=y)
    metadata: dict[str, Any] = {"architecture": ARCH, "data": {"test": "data.npz"}}
    checkpoint.save(folder / "model.safetensors", model, metadata)
    checkpoint.save(folder / "focal.pt", model, {**metadata, "training": {"loss": "focal:gamma=2"}})
    torch.save(model.state_dict(), folder / "plain.pt")
    torch.jit.trace(model, torch.zeros(2, 4)).save(str(folder / "script.pt"))
    batch = torch.export.Dim("batch", min=1, max=4096)
    torch.export.save(
        torch.export.export(model.eval(), (torch.zeros(3, 4),), dynamic_shapes=({0: batch},)), folder / "net.pt2"
    )
    return folder


@pytest.fixture
def files(written: Path, tmp_path: Path) -> Path:
    """A model that names its data, beside them; copies, which a test may change."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *args: str | Path, code: int = 0) -> Result:
    found = main(["curvature", *map(str, args), "--json", "-q", "--threads", "1"])
    out, err = capsys.readouterr()
    assert found == code, err
    return Result.from_json(out)


def oracle(folder: Path, loss: Any) -> torch.Tensor:
    model = checkpoint.load(folder / "model.safetensors").model.double()
    data = np.load(folder / "data.npz")
    return dense(model, torch.from_numpy(data["x"]).double(), torch.from_numpy(data["y"]), loss)[0]


def test_a_checkpoint_that_names_its_data_is_enough(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, files / "model.safetensors", "--dtype", "float64")
    h = oracle(files, CrossEntropy())
    assert found.get("trace").value == pytest.approx(float(h.trace()), rel=1e-5)  # ReLU: nothing but pairs
    assert found.get("lambda_max").value == pytest.approx(float(torch.linalg.eigvalsh(h)[-1]), rel=1e-6)
    names = {e.name for e in found.estimates}
    assert names == {"lambda_max", "lambda_min", "top", "trace", "trace_ggn", "negative_fraction", "grad_norm"}
    assert found.facts["architecture"].startswith("mlp")
    assert [len(i["sha256"]) for i in found.provenance["inputs"]] == [64, 64]


@pytest.mark.slow
def test_every_container_gives_the_same(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = ("--data", files / "data.npz", "-w", "lambda_max", "-w", "trace", "-w", "top:k=2")
    first = call(capsys, files / "model.safetensors", *what)
    others = [
        call(capsys, files / "plain.pt", *what, "--arch", ARCH),
        call(capsys, files / "script.pt", *what, "--trust"),
        call(capsys, files / "net.pt2", *what, "--trust"),
    ]
    for other in others:
        for a, b in zip(first.estimates, other.estimates, strict=True):
            assert a.value == pytest.approx(b.value, rel=1e-5)


@pytest.mark.slow
def test_losses_side_by_side(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = ("-w", "trace:exact=true", "--dtype", "float64")
    both = call(capsys, files / "model.safetensors", *exact, "--train-loss", "focal:gamma=3")
    for of, loss in (("", CrossEntropy()), ("loss=focal:gamma=3", Focal(3.0))):
        assert both["trace:exact=true", of].value == pytest.approx(float(oracle(files, loss).trace()), rel=1e-9)
    trained = call(capsys, files / "focal.pt", *exact)
    assert trained.facts["losses"] == ["ce", "focal:gamma=2"]
    assert call(capsys, files / "focal.pt", *exact, "--train-loss", "none").facts["losses"] == ["ce"]
    assert call(capsys, files / "focal.pt", *exact, "--loss", "focal:gamma=2").facts["losses"] == ["focal:gamma=2"]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["focal:gamma=0.5", "focal:gamma=3", "label_smoothing:epsilon=0.1", "brier"])
def test_the_losses_we_train_with(files: Path, capsys: pytest.CaptureFixture[str], spec: str) -> None:
    found = call(capsys, files / "model.safetensors", "-w", "trace:exact=true", "--loss", spec, "--dtype", "float64")
    assert found.estimates[0].value == pytest.approx(float(oracle(files, final(spec)).trace()), rel=1e-9)


def test_options_reach_the_engine(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ("-w", "trace")
    model = files / "model.safetensors"
    plain = call(capsys, model, *base)
    assert call(capsys, model, *base, "--params", "*bias").facts["parameters"] == 8
    assert call(capsys, model, *base, "--subset", "10").facts["rows"] == 10
    assert "one kept at a time" in call(capsys, model, *base, "--memory", "low").facts["memory_plan"]
    assert "of 4 rows" in call(capsys, model, *base, "--batch-size", "4").facts["memory_plan"]
    assert call(capsys, model, *base, "--seed", "5").provenance["seed"] == 5
    double = call(capsys, model, *base, "--dtype", "float64")
    assert double.estimates[0].value != plain.estimates[0].value
    assert double.estimates[0].value == pytest.approx(plain.estimates[0].value, rel=1e-5)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["model.safetensors", "-w", "lambda_mx"], 2, "did you mean 'lambda_max'"),
        (["model.safetensors", "-w", "top:kk=3"], 2, "has no option 'kk'"),
        (["model.safetensors", "--memory", "big"], 2, "choose from: auto, low, high"),
        (["model.safetensors", "--params", "nothing*"], 2, "matches no parameter"),
        (["model.safetensors", "--loss", "focl:gamma=2"], 2, "unknown loss"),
        (["plain.pt", "--data", "data.npz"], 4, "--arch"),
        (["plain.pt", "--arch", "mlp:inputs=4,hidden=5,classes=2", "--data", "data.npz"], 4, "fix:"),
        (["script.pt", "--data", "data.npz"], 4, "--trust"),
        (["net.pt2", "--data", "data.npz"], 4, "--trust"),
        (["model.safetensors", "--data", "many.npz"], 4, "label 7"),
        (["nan.pt", "--arch", ARCH, "--data", "data.npz"], 4, "fix:"),
    ],
)
def test_refusals(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    code: int,
    text: str,
) -> None:
    monkeypatch.chdir(files)
    np.savez("many.npz", x=np.zeros((3, 4), np.float32), y=np.array([0, 7, 1]))
    state = torch.load("plain.pt")
    next(iter(state.values()))[0, 0] = float("nan")
    torch.save(state, "nan.pt")
    found = main(["curvature", *args, "-q"])
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert "Traceback" not in err
    assert found == code, err


def test_ctrl_c_prints_what_is_known(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibcli.networks.curvature.spectrum import Lanczos

    plain = Lanczos.extend

    def extend(self: Lanczos) -> None:
        if self.products == 3:
            raise KeyboardInterrupt
        plain(self)

    monkeypatch.setattr(Lanczos, "extend", extend)
    found = call(capsys, files / "model.safetensors", "-w", "lambda_max:tol=1e-9", "-w", "trace", code=130)
    assert found.get("trace").value is not None
    assert "not converged" in found.get("lambda_max:tol=1e-09").reason


def test_figures_are_written(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, files / "model.safetensors", "-o", files / "curvature.png", "-o", files / "curvature.md")
    assert (files / "curvature.png").read_bytes()[:4] == b"\x89PNG"
    assert "lambda_max" in (files / "curvature.md").read_text()


def test_the_picture_is_the_density_rather_than_how_the_solver_converged(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = call(capsys, files / "model.safetensors", "-w", "lambda_max", "-w", "density")
    assert [plot.name.split()[0] for plot in found.plots] == ["density", "layers", "convergence"]


def test_the_help_names_every_quantity() -> None:
    from calibcli.networks.curvature import QUANTITIES

    assert "mlp" in ARCHITECTURES
    assert all(e.summary for e in QUANTITIES)
