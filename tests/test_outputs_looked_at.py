"""One look at what a network gives: the same verdict in `logits`, `fit`, `curvature`, `export` and `verify`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calibcli
from calibcli.core.errors import CalibError, InputError
from calibcli.networks import dataset, inference

torch.set_num_threads(1)
FINE, UNIT, BESIDE, RANDOM = "taken", "[0, 1]", "beside", "random"


class Ends(nn.Module):
    """A small network with something behind its last linear layer."""

    def __init__(self, end: Callable[[Tensor], Tensor] | nn.Module, k: int = 3, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), norm or nn.Identity(), nn.Tanh(), nn.Linear(8, k))
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.net(x))


class Constant(nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(values))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias + 0 * x.sum(1, keepdim=True)


def softmax(z: Tensor) -> Tensor:
    return z.softmax(1)


def log_softmax(z: Tensor) -> Tensor:
    return z.log_softmax(1)


def plain(z: Tensor) -> Tensor:
    return z * 1.5


def by_chance(z: Tensor) -> Tensor:
    return 0.5 + 0.01 * z


def noisy(z: Tensor) -> Tensor:
    return F.dropout(z, 0.5, training=True)


def centred(z: Tensor) -> Tensor:
    return z - z.mean(0)


def longest(z: Tensor) -> Tensor:
    return z / z.abs().max()


def clamped(z: Tensor) -> Tensor:
    return z.clamp(0, 1)


def of_the_batch() -> nn.Module:
    return nn.BatchNorm1d(8, track_running_stats=False)


# (name, the network, whether it is saved in training mode, the verdict)
NETWORKS: list[tuple[str, Callable[[], nn.Module], bool, str]] = [
    *((f"sigmoid-{k}", lambda k=k: Ends(torch.sigmoid, k), False, UNIT) for k in (1, 2, 3, 7)),
    *((f"module-sigmoid-{k}", lambda k=k: Ends(nn.Sigmoid(), k), False, UNIT) for k in (1, 3)),
    *((f"hard-sigmoid-{k}", lambda k=k: Ends(nn.Hardsigmoid(), k), False, UNIT) for k in (1, 3)),
    *((f"softmax-{k}", lambda k=k: Ends(softmax, k), False, UNIT) for k in (2, 3, 7)),
    ("module-softmax", lambda: Ends(nn.Softmax(1)), False, UNIT),
    ("clamped", lambda: Ends(clamped), False, UNIT),
    *((f"log-softmax-{k}", lambda k=k: Ends(log_softmax, k), False, FINE) for k in (2, 3, 7)),
    *((f"chance-{k}", lambda k=k: Ends(by_chance, k), False, UNIT) for k in (1, 2, 3)),
    ("constant-in-[0,1]", lambda: Constant([0.2, 0.7, 0.4]), False, UNIT),
    ("constant-one-column", lambda: Constant([0.3]), False, UNIT),
    ("constant-beyond", lambda: Constant([0.2, -0.7, 1.4]), False, FINE),
    ("constant-zero", lambda: Constant([0.0, 0.0]), False, FINE),
    *((f"logits-{k}", lambda k=k: Ends(plain, k), False, FINE) for k in (1, 2, 3, 7)),
    *((f"linear-{k}", lambda k=k: Ends(nn.Identity(), k), False, FINE) for k in (1, 2, 3)),
    ("batch-norm-of-the-batch", lambda: Ends(plain, norm=of_the_batch()), False, BESIDE),
    ("batch-norm", lambda: Ends(plain, norm=nn.BatchNorm1d(8)), False, FINE),
    ("batch-norm-training", lambda: Ends(plain, norm=nn.BatchNorm1d(8)), True, FINE),
    ("layer-norm", lambda: Ends(plain, norm=nn.LayerNorm(8)), False, FINE),
    ("dropout", lambda: Ends(plain, norm=nn.Dropout(0.5)), False, FINE),
    ("dropout-training", lambda: Ends(plain, norm=nn.Dropout(0.5)), True, FINE),
    ("dropout-always", lambda: Ends(noisy), False, RANDOM),
    ("centred", lambda: Ends(centred), False, BESIDE),
    ("centred-one-column", lambda: Ends(centred, 1), False, BESIDE),
    ("longest", lambda: Ends(longest), False, BESIDE),
]
BAKED = {"batch-norm-training": BESIDE, "dropout-training": RANDOM}  # programs keep the mode that they were traced in
EITHER = ("longest",)  # lies in [0, 1] or not


def rows(n: int = 80) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 2


def made(make: Callable[[], nn.Module], training: bool) -> nn.Module:
    torch.manual_seed(0)
    return make().train(training)


def verdict(call: Callable[[], Any]) -> str:
    try:
        call()
    except InputError as error:
        words = {"[0, 1]": UNIT, "are probabilities": UNIT, "beside it": BESIDE, "call to call": RANDOM,
                 "batch norm without running": BESIDE}  # fmt: skip
        return next((v for word, v in words.items() if word in error.problem), str(error))
    except CalibError as error:
        return str(error)
    return FINE


def verdicts(model: Any, k: int, folder: Path, *left_out: str, **options: Any) -> dict[str, str]:
    """What each command says about the same network."""
    data = rows()
    np.savez(folder / "rows.npz", x=data[0].numpy(), y=data[1].numpy())
    generator = np.random.default_rng(0)
    scaler = calibcli.fit_scaler(generator.standard_normal((200, max(k, 2))), np.arange(200) % 2, "temperature")
    file, here, cpu = str(folder / "rows.npz"), {"device": "cpu"}, {"trust": True, **options}
    short: dict[str, Any] = {"epochs": 1, "batch_size": 40, "lr": 1e-9, "validation": file, **here, **cpu}
    calls: dict[str, Callable[[], Any]] = {
        "logits": lambda: calibcli.logits(model, file, save=folder / "z.npz", **here, **cpu),
        "curvature": lambda: calibcli.curvature(model, file, "grad_norm", **here, **cpu),
        "fit": lambda: calibcli.train(model, file, **short),
        "export": lambda: calibcli.export(scaler, "pt2", model=model, data=file, save=folder / "out.pt2", **cpu),
        "verify": lambda: calibcli.verify(model, scaler, file, before=model, **cpu),
    }
    return {name: verdict(call) for name, call in calls.items() if name not in left_out}


def columns(make: Callable[[], nn.Module]) -> int:
    return int(made(make, False)(rows(5)[0]).shape[1])


each = pytest.mark.parametrize(
    ("make", "training", "expected"), [n[1:] for n in NETWORKS], ids=[n[0] for n in NETWORKS]
)


@pytest.mark.regression
@pytest.mark.one_in(18)
@each
def test_every_command_says_the_same(
    make: Callable[[], nn.Module], training: bool, expected: str, tmp_path: Path
) -> None:
    torch.save(made(make, training), tmp_path / "model.pt")
    found = verdicts(tmp_path / "model.pt", columns(make), tmp_path)
    assert found == dict.fromkeys(found, expected)
    if expected == UNIT:
        said = verdicts(tmp_path / "model.pt", columns(make), tmp_path, kind="logits")
        assert set(said.values()) <= {FINE}


@pytest.mark.regression
@each
def test_the_look_itself(make: Callable[[], nn.Module], training: bool, expected: str) -> None:
    model, data = made(make, training), dataset.load(rows())
    before = [(m.training, [b.clone() for b in m.buffers()]) for m in model.modules()]
    assert verdict(lambda: inference.check(data, model)) == expected
    for (mode, buffers), module in zip(before, model.modules()):
        assert module.training == mode
        assert all(torch.equal(a, b) for a, b in zip(buffers, module.buffers()))


PROGRAMS = ("batch-norm-training", "dropout-training", "sigmoid-1", "logits-3", "centred")


@pytest.mark.regression
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("container", ["torchscript", "pt2"])
def test_programs_keep_the_mode_that_they_were_saved_in(name: str, container: str, tmp_path: Path) -> None:
    [(make, training, expected)] = [n[1:] for n in NETWORKS if n[0] == name]
    model, path = made(make, training), tmp_path / ("model.pt2" if container == "pt2" else "model.pt")
    with warnings.catch_warnings(action="ignore"):
        if container == "pt2":
            sizes = ({0: torch.export.Dim("rows", min=2)},)
            torch.export.save(torch.export.export(model, (rows()[0],), dynamic_shapes=sizes), str(path))
        else:
            torch.jit.save(torch.jit.trace(model, (rows()[0],), check_trace=False), str(path))
        found = verdicts(path, columns(make), tmp_path, "fit", "export", *(["curvature"] if container == "pt2" else []))
    assert found == dict.fromkeys(found, BAKED.get(name, expected))


@pytest.mark.extra
@pytest.mark.regression
@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_keep_the_mode_that_they_were_exported_in(name: str, tmp_path: Path) -> None:
    [(make, training, expected)] = [n[1:] for n in NETWORKS if n[0] == name]
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    axes = {"x": {0: "rows"}, "z": {0: "rows"}}
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(made(make, training), (rows()[0],), str(tmp_path / "model.onnx"), input_names=["x"],
                          output_names=["z"], dynamic_axes=axes, training=mode, dynamo=False,
                          do_constant_folding=False)  # fmt: skip
    model, data = tmp_path / "model.onnx", str(tmp_path / "rows.npz")
    found = verdicts(model, columns(make), tmp_path, "fit", "export", "curvature", "verify")
    scaler = calibcli.fit_scaler(np.random.default_rng(0).standard_normal((200, max(columns(make), 2))),
                                 np.arange(200) % 2, "temperature")  # fmt: skip
    if name != "sigmoid-1":  # whose graph says that it gives probabilities, which export then calibrates
        found["export"] = verdict(
            lambda: calibcli.export(scaler, "onnx", model=model, data=data, save=tmp_path / "out.onnx")
        )
    # ONNX Runtime leaves a dropout out, also one that was exported in training mode
    assert found == dict.fromkeys(found, FINE if name == "dropout-training" else BAKED.get(name, expected))


class Drawn(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows with noise, as augmentation makes them."""

    def __init__(self) -> None:
        self.x, self.targets = rows(200)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i] + 0.1 * torch.randn(4), int(self.targets[i])


@pytest.mark.regression
def test_rows_that_are_drawn_at_random_are_blamed_on_the_data_and_may_train(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    for call in (
        lambda: calibcli.logits(model, Drawn(), save=tmp_path / "z.npz", device="cpu"),
        lambda: calibcli.curvature(model, Drawn(), "trace", device="cpu"),
        lambda: calibcli.train(model, rows(), validation=Drawn(), epochs=1, device="cpu"),
    ):
        with pytest.raises(InputError, match="draws its rows at random"):
            call()
    found = calibcli.train(model, Drawn(), validation=rows(), epochs=1, device="cpu")
    assert found.command == "fit"


@pytest.mark.regression
def test_few_rows_and_models_that_squeeze_are_no_alarm() -> None:
    class Squeezes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x[:, :, None, None].squeeze())

    assert inference.check(dataset.load(rows()), Squeezes()) == 3
    assert inference.check(dataset.load(rows(2)), Ends(by_chance, 2)) == 2  # four numbers lie there by chance
    assert inference.check(dataset.load(rows(1)), Ends(plain, 2)) == 2


@pytest.mark.regression
def test_a_label_that_is_no_class_is_named() -> None:
    data = dataset.load(rows(4))
    data.labels[2] = -100
    with pytest.raises(InputError, match="label -100 in row 2"):
        inference.check(data, nn.Linear(4, 3))


@pytest.mark.regression
def test_logits_of_a_linear_layer_raise_no_alarm() -> None:
    """The share of small networks with logits in [0, 1] by chance, from fresh weights on 80 rows."""
    data = dataset.load(rows())
    for seed in range(60):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1 + seed % 3))
        if seed % 2:
            nn.init.constant_(model[2].weight, 0.01)
            nn.init.constant_(model[2].bias, 0.5)
        assert inference.check(data, model) == max(2, 1 + seed % 3)
