"""`calib curvature` on inputs that are hostile, wrong or too large: exit code, message, way out, never a traceback."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from test_checkpoint_hostile import Bomb, blob, marker  # noqa: F401 (marker is a fixture)
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpoint_once

from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.networks import checkpoint, device
from calibcli.networks.curvature import measure

ARCH = "mlp:inputs=4,hidden=5,classes=3"
NETS = """
import torch
from torch import nn
from torch.autograd import Function


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


class Net(nn.Linear):
    def __init__(self, kind):
        super().__init__(4, 3)
        self.kind = kind
        self.requires_grad_(kind != "frozen")

    def forward(self, x):
        z = super().forward(x)
        if self.kind == "once":
            return Once.apply(z)
        if self.kind == "huge":
            torch.empty(1 << 50)
        if self.kind == "large" and torch.is_grad_enabled():
            torch.empty(1 << 50)  # the second derivative alone does not fit
        if self.kind == "wide" and len(x) > 4:
            raise RuntimeError("could not create a primitive")  # oneDNN, out of memory
        return z[:, None] if self.kind == "places" else z


def once(): return Net("once")
def frozen(): return Net("frozen")
def huge(): return Net("huge")
def large(): return Net("large")
def wide(): return Net("wide")
def places(): return Net("places")
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = checkpoint.build(ARCH)
    torch.save(model.state_dict(), "plain.pt")
    torch.save(model, "module.pt")
    torch.save(nn.Linear(4, 3).state_dict(), "linear.pt")
    state = model.state_dict()
    next(iter(state.values()))[0, 0] = float("nan")
    torch.save(state, "nan.pt")
    Path("nets.py").write_text(NETS)
    x = torch.randn(20, 4).numpy()
    np.savez("data.npz", x=x, y=np.arange(20) % 3)
    np.savez("beyond.npz", x=x, y=np.where(np.arange(20) == 7, 3, 0))
    np.savez("negative.npz", x=x, y=np.where(np.arange(20) == 7, -1, 0))
    np.savez("narrow.npz", x=x[:, :3], y=np.arange(20) % 3)
    np.savez("nan.npz", x=x * np.nan, y=np.arange(20) % 3)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["curvature", *args, "-w", "lambda_max", "-q", "--threads", "1"])
    out, err = capsys.readouterr()
    return code, out, err


def net(name: str) -> list[str]:
    return ["linear.pt", "--arch-file", f"nets.py:{name}", "--data", "data.npz"]


@pytest.mark.parametrize(
    ("args", "code", "problem", "fix"),
    [
        (["plain.pt", "--data", "data.npz"], 4, "does not say which architecture", f"--arch {ARCH}"),
        (["plain.pt", "--arch", "mpl:inputs=4", "--data", "data.npz"], 2, "'mpl'", "mlp"),
        (
            ["plain.pt", "--arch", "mlp:inputs=4,hidden=6,classes=3", "--data", "data.npz"],
            4,
            "3 of 4 tensors differ in shape",
            "--arch",
        ),
        (["plain.pt", "--arch", "resnet:depth=20", "--data", "data.npz"], 4, "missing conv1.weight", "--arch"),
        (
            ["plain.pt", "--arch", ARCH, "--data", "beyond.npz"],
            4,
            "label 3 in row 7, but the model has 3 outputs",
            "data",
        ),
        (["plain.pt", "--arch", ARCH, "--data", "negative.npz"], 4, "label -1 in row 7", "0 to K-1"),
        (["plain.pt", "--arch", ARCH, "--data", "narrow.npz"], 4, "does not take rows of shape (3,)", "made for"),
        (
            ["plain.pt", "--arch", ARCH, "--data", "nan.npz"],
            4,
            "outputs are not finite (its weights are finite)",
            "inputs",
        ),
        (["nan.pt", "--arch", ARCH, "--data", "data.npz"], 4, "1 of 4 tensors hold NaN", "checkpoint"),
        (net("once"), 4, "second derivative", "differentiable"),
        (net("frozen"), 4, "no trainable parameters", "requires_grad"),
        (net("huge"), 4, "out of memory", "memory"),
        (net("large"), 4, "out of memory on cpu with one row at a time", "--params"),
        (net("places"), 4, "(20, 1, 3) for 20 rows", "(rows, classes)"),
    ],
)
def test_refused(
    files: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, problem: str, fix: str
) -> None:
    found, out, err = run(capsys, *args)
    assert found == code, err
    assert out == ""
    assert problem in err.partition("fix:")[0]
    assert fix in err.partition("fix:")[2]
    assert "Traceback" not in err
    assert "bug" not in err


@pytest.mark.parametrize("where", ["pickle", "weight_0|state_dict", "sample_inputs/model.pt|example_inputs"])
def test_hostile_files_are_not_executed(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    marker: Path,  # noqa: F811
    where: str,
) -> None:
    if where == "pickle":
        name = "evil.pt"
        torch.save({"state_dict": Bomb(marker)}, name)
    else:
        name = "evil.pt2"
        torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.zeros(3, 4),)), "good.pt2")
        with zipfile.ZipFile("good.pt2") as source, zipfile.ZipFile(name, "w") as target:
            assert any(re.search(where, member) for member in source.namelist())
            for member in source.namelist():
                target.writestr(member, blob(marker) if re.search(where, member) else source.read(member))
    code, out, err = run(capsys, name, "--data", "data.npz")
    assert (code, out) == (4, "")
    assert "nothing was executed" in err
    assert "--trust" in err.partition("fix:")[2]
    assert not marker.exists()


def test_smaller_batches_where_memory_runs_out(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device.is_out_of_memory(RuntimeError("could not create a primitive"))
    for text in (
        *("CUDA error: out of memory", "CUDA out of memory. Tried to allocate 2 GiB", "Cuda failure 2 'out of memory'"),
        *("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        *("GET was unable to find an engine to execute this computation", "Unable to find a valid cuDNN algorithm"),
    ):
        assert device.is_out_of_memory(RuntimeError(text))
    for kind in {torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError)}:
        assert issubclass(kind, RuntimeError)
        assert device.is_out_of_memory(kind("CUDA error: out of memory"))
    assert not device.is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not device.is_out_of_memory(ValueError("could not create a primitive"))
    code, out, err = run(capsys, *net("wide"), "-v")
    assert code == 0, err
    assert "micro-batches of 4 rows" in out


class Unseen(nn.Module):
    """Its first layer counts in the outputs and has no gradient."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.spare, self.head = how, nn.Linear(4, 8), nn.Linear(2, 2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                h = self.first(x).tanh()
        elif self.how == "float32":
            h = self.first(x.float()).tanh()
        else:
            h = checkpoint_once(lambda x: self.first(x).tanh(), x, use_reentrant=True)
        return self.head(h)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("how", ["no_grad", "reentrant"])
def test_parameters_without_a_gradient_are_named(how: str) -> None:
    """One that the outputs do not depend on is none of them."""
    rows = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(InputError, match=r"'first\.weight', but have no gradient in it") as caught:
        measure(Unseen(how), rows, "grad_norm")
    assert "use_reentrant=False" in caught.value.fix
    assert measure(Unseen(how), rows, "grad_norm", params="head.*,spare.*").estimates[0].value is not None


def test_a_model_that_does_not_run_in_float64() -> None:
    rows = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(InputError, match="does not run in float64") as caught:
        measure(Unseen("float32"), rows, "grad_norm", dtype=torch.float64)
    assert "--dtype float32" in caught.value.fix


@pytest.mark.parametrize("make", ["script", "trace"])
def test_torchscript_in_float64(make: str) -> None:
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), (torch.randn(20, 4), torch.arange(20) % 3)
    one = torch.jit.script(model) if make == "script" else torch.jit.trace(model, rows[0][:2])  # type: ignore[no-untyped-call]
    what = ("lambda_max", "trace:probes=4", "grad_norm")
    found, plain = (measure(m, rows, *what, dtype=torch.float64) for m in (one, model))
    for a, b in zip(found.estimates, plain.estimates):
        assert a.value == pytest.approx(b.value, rel=1e-9)
    assert found.facts["self_test"]["difference"] < 1e-5
