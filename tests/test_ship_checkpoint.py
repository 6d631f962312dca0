"""A calibrator folded into the last linear layer: read back it gives the calibrator's probabilities, or is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import calibcli
from calibcli.calibrators import Scaler, save
from calibcli.cli.app import main
from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.networks import checkpoint
from calibcli.ship.target import TARGETS, rounded_up

INPUTS = 12


def centred(k: int) -> np.ndarray:
    return np.eye(k) - 1 / k


def scaler(spec: str, k: int) -> Scaler:
    rng = np.random.default_rng(3)
    bias = rng.standard_normal(k) / 3
    parameters: dict[str, Any] = {
        "temperature": {"beta": np.array(0.41)},
        "vector": {"weight": rng.uniform(0.3, 1.2, k), "bias": bias},
        "bcts": {"weight": np.array(0.6), "bias": bias},
        "matrix": {"weight": np.eye(k) / 2 + rng.standard_normal((k, k)) / 20, "bias": bias},
        "platt": {"slope": np.array([0.7]), "bias": np.array([0.2])},
        "beta": {"a": np.array([0.7]), "b": np.array([0.7]), "c": np.array([0.2])},
    }[spec]
    return Scaler(spec, k, parameters)


def network(
    folder: Path, k: int, dtype: torch.dtype = torch.float32, suffix: str = ".safetensors"
) -> tuple[Path, Path]:
    """An MLP of calib's own, and rows for it."""
    torch.manual_seed(0)
    spec = f"mlp:inputs={INPUTS},hidden=16,classes={k}"
    model = checkpoint.build(spec)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    path = folder / f"model{suffix}"
    checkpoint.save(path, model.to(dtype), {"architecture": spec})
    rng = np.random.default_rng(1)
    np.savez(
        folder / "rows.npz", x=rng.standard_normal((300, INPUTS)).astype(np.float32), labels=rng.integers(0, k, 300)
    )
    return path, folder / "rows.npz"


def probabilities(path: Path, rows: Path) -> np.ndarray:
    model = checkpoint.load(path).model
    with torch.no_grad():
        z = model.double()(torch.from_numpy(np.load(rows)["x"]).double()).numpy()
    return np.exp(z - z.max(1, keepdims=True)) / np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("k", [2, 10, 100])
@pytest.mark.parametrize("spec", ["temperature", "vector", "bcts", "matrix", "platt", "beta"])
def test_folded_is_the_calibrator(spec: str, k: int, suffix: str, tmp_path: Path) -> None:
    if spec in ("platt", "beta") and k > 2:
        pytest.skip("refused below")
    model, rows = network(tmp_path, k, suffix=suffix)
    made = tmp_path / f"made{suffix}"
    one = scaler(spec, k)
    found = calibcli.export(one, "checkpoint", model=model, data=rows, save=made)
    assert found["max_dp"].value <= found.facts["limit"] == 1e-6
    before = checkpoint.load(model).model.double()(torch.from_numpy(np.load(rows)["x"]).double()).detach().numpy()
    assert np.abs(probabilities(made, rows) - np.exp(one.map(before))).max() < 2e-6
    # everything else is as it was
    a, b = (checkpoint.load(p).model.state_dict() for p in (model, made))
    assert [key for key in a if not torch.equal(a[key], b[key])] in (["4.weight", "4.bias"], [*a][-2:])


def test_the_oracle_of_the_algebra(tmp_path: Path) -> None:
    """W' = A W with A = V (I - 11'/K): by hand, from the file's own tensors."""
    model, rows = network(tmp_path, 10)
    one = scaler("matrix", 10)
    calibcli.export(one, "checkpoint", model=model, data=rows, save=tmp_path / "m.safetensors")
    before, after = load_file(model), load_file(tmp_path / "m.safetensors")
    weight = [key for key in before if not torch.equal(before[key], after[key]) and key.endswith("weight")]
    a = one.parameters["weight"] @ centred(10)
    np.testing.assert_allclose(after[weight[0]].double(), a @ before[weight[0]].double().numpy(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", ["temperature", "vector", "matrix"])
def test_half_precision_costs_at_most_twice_its_rounding(spec: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, rows = network(tmp_path, 10, dtype)
    found = calibcli.export(scaler(spec, 10), "checkpoint", model=model, data=rows, save=tmp_path / "m.safetensors")
    cost = found.facts["rounding alone costs"]
    assert 1e-6 < found["max_dp"].value <= found.facts["limit"] == rounded_up(2 * cost)
    assert isinstance(found.facts["predicted classes changed"], int)
    assert found.facts["stored as"] == str(dtype).removeprefix("torch.")
    stored = load_file(tmp_path / "m.safetensors")
    assert {t.dtype for t in stored.values()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logits_of_many_digits_have_the_limit_of_their_own_rounding(dtype: torch.dtype, tmp_path: Path) -> None:
    """Of logits near 100 float32 keeps five decimals, with or without a calibrator; `verify` knows it too."""
    model, rows = network(tmp_path, 100)
    loaded = checkpoint.load(model)
    with torch.no_grad():
        [*loaded.model.parameters()][-2].mul_(20)
    checkpoint.save(model, loaded.model.to(dtype), {"architecture": f"mlp:inputs={INPUTS},hidden=16,classes=100"})
    one, made = scaler("temperature", 100), tmp_path / "m.safetensors"
    found = calibcli.export(one, "checkpoint", model=model, data=rows, save=made)
    assert 1e-6 < found["max_dp"].value <= found.facts["limit"] == rounded_up(2 * found.facts["rounding alone costs"])
    assert found.facts["limit"] < (1e-4 if dtype == torch.float32 else 0.5)
    checked = calibcli.verify(made, one, rows, before=model)
    assert checked.verdict == "pass"
    assert checked.facts["limit"] == pytest.approx(found.facts["limit"], rel=1e-3)
    assert calibcli.verify(model, one, rows, before=model).verdict == "fail"


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    ["dirichlet:lam=1,mu=1", "focal", "focal_temperature", "isotonic", "isotonic_top", "histogram", "platt", "beta"],
)
def test_other_maps_are_refused_with_what_works(spec: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200, 3)) * 2
    one = calibcli.fit_scaler(z, (z + rng.gumbel(size=z.shape)).argmax(1), spec).scaler
    model, rows = network(tmp_path, 3)
    with pytest.raises(UsageError) as refused:
        calibcli.export(one, "checkpoint", model=model, data=rows, save=tmp_path / "m.safetensors")
    named = re.findall(r"to='(\w+)'", refused.value.fix)
    assert {"onnx", "torchscript"} <= set(named) <= {e.name for e in TARGETS}
    assert not (tmp_path / "m.safetensors").exists()
    calibcli.export(one, to="torchscript", model=model, data=rows, save=tmp_path / "m.pt")


def test_beta_of_two_slopes_is_refused(tmp_path: Path) -> None:
    one = Scaler("beta", 2, {"a": np.array([0.7]), "b": np.array([0.8]), "c": np.array([0.2])})
    model, rows = network(tmp_path, 2)
    with pytest.raises(UsageError, match="'beta' is not linear in the logits"):
        calibcli.export(one, "checkpoint", model=model, data=rows, save=tmp_path / "m.safetensors")


BODY = "torch.relu(self.body(x))"
MODELS = {
    "tied": (
        "self.head = nn.Linear(12, 12, bias=False); self.other = nn.Linear(12, 12, bias=False); "
        "self.other.weight = self.head.weight",
        "self.head(torch.relu(self.other(x)))",
        12,
        r"'head' shares its weights with 'other\.weight'",
    ),
    "norm behind": (
        "self.body = nn.Linear(12, 16); self.head = nn.Linear(16, 5); self.norm = nn.BatchNorm1d(5)",
        f"self.norm(self.head({BODY}))",
        5,
        r"candidates: head \(16 to 5\)",
    ),
    "scale behind": (
        "self.body = nn.Linear(12, 16); self.head = nn.Linear(16, 5); "
        "self.logit_scale = nn.Parameter(torch.tensor(3.0))",
        f"self.logit_scale * self.head({BODY})",
        5,
        r"candidates: head",
    ),
    "two heads": (
        "self.body = nn.Linear(12, 16); self.a = nn.Linear(16, 5); self.b = nn.Linear(16, 5)",
        f"(self.a({BODY}) + self.b({BODY})) / 2",
        5,
        r"candidates: a \(16 to 5\), b \(16 to 5\)",
    ),
    "copied": (
        "self.body = nn.Linear(12, 16); self.head = nn.Linear(16, 5); self.ema = nn.Linear(16, 5); "
        "self.ema.load_state_dict(self.head.state_dict())",
        f"self.head({BODY})",
        5,
        r"(are there 2 times|several heads)",
    ),
    "twice": (
        "self.head = nn.Linear(12, 12)",
        "self.head(self.head(x))",
        12,
        "used 2 times",
    ),
    "no linear": ("self.conv = nn.Conv1d(12, 5, 1)", "self.conv(x[:, :, None])[:, :, 0]", 5, "no linear layer gives 5"),
}


def custom(tmp_path: Path, name: str) -> tuple[Path, Path, str, int]:
    init, forward, k, _ = MODELS[name]
    code = tmp_path / "net.py"
    head = "import torch\nfrom torch import nn\nclass Net(nn.Module):\n"
    head += "    def __init__(self):\n        super().__init__()\n"
    make = "def make():\n    torch.manual_seed(0)\n    return Net()\n"
    code.write_text(f"{head}        {init}\n    def forward(self, x):\n        return {forward}\n{make}")
    space: dict[str, Any] = {}
    exec(code.read_text(), space)
    torch.save(space["make"]().state_dict(), tmp_path / "net.pt")
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "rows.npz", x=rng.standard_normal((50, 12)).astype(np.float32), labels=rng.integers(0, k, 50))
    return tmp_path / "net.pt", tmp_path / "rows.npz", f"{code}:make", k


@pytest.mark.parametrize("name", MODELS)
def test_heads_that_cannot_be_folded_into_are_refused_by_name(name: str, tmp_path: Path) -> None:
    model, rows, arch, k = custom(tmp_path, name)
    with pytest.raises(InputError, match=MODELS[name][3]):
        calibcli.export(
            scaler("temperature", k), "checkpoint", model=model, data=rows, arch_file=arch, save=tmp_path / "o.pt"
        )
    assert not (tmp_path / "o.pt").exists()


@pytest.mark.parametrize("target", ["checkpoint", "torchscript", "pt2"])
@pytest.mark.parametrize("spec", ["temperature", "platt", "vector", "beta"])
@pytest.mark.one_in(5)
def test_a_head_of_one_logit(spec: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log-odds of class 1, whatever columns the calibrator was fitted on; `verify` says the same."""
    init = "self.body = nn.Linear(12, 16); self.head = nn.Linear(16, 1)"
    monkeypatch.setitem(MODELS, "one", (init, f"self.head({BODY})", 2, ""))
    model, rows, arch, _ = custom(tmp_path, "one")
    one, made = scaler(spec, 2), tmp_path / {"pt2": "o.pt2"}.get(target, "o.pt")
    given: dict[str, Any] = {"model": model, "data": rows, "arch_file": arch}
    found = calibcli.export(one, target, **given, save=made)
    assert found["max_dp"].value <= found.facts["limit"] == 1e-6
    weights = torch.load(model, weights_only=True)
    x = torch.from_numpy(np.load(rows)["x"])
    z = (
        torch.relu(x @ weights["body.weight"].T + weights["body.bias"]) @ weights["head.weight"].T
        + weights["head.bias"]
    )
    expected = np.exp(one.map(np.concatenate([0 * z, z], 1)))[:, 1]
    if target == "checkpoint":
        after = torch.load(made, weights_only=True)
        assert after["head.weight"].shape == (1, 16)
        odds = torch.relu(x @ after["body.weight"].T + after["body.bias"]) @ after["head.weight"].T + after["head.bias"]
        assert np.abs(torch.sigmoid(odds)[:, 0].numpy() - expected).max() < 1e-6
    del given["data"], given["model"]
    assert calibcli.verify(made, one, rows, before=model, trust=True, **given).verdict == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torchscript", "pt2"])
@pytest.mark.parametrize("spec", ["temperature", "isotonic"])
def test_behind_a_model(spec: str, target: str, tmp_path: Path) -> None:
    """A program of inputs, of any number of rows."""
    model, rows = network(tmp_path, 5)
    z = np.random.default_rng(0).standard_normal((200, 5)) * 4
    one = calibcli.fit_scaler(z, (z / 2 + np.random.default_rng(1).gumbel(size=z.shape)).argmax(1), spec).scaler
    made = tmp_path / {"pt2": "o.pt2", "torchscript": "o.pt"}[target]
    assert calibcli.export(one, target, model=model, data=rows, save=made)["max_dp"].value <= 1e-6
    program = torch.export.load(made).module() if target == "pt2" else torch.jit.load(made)
    x = torch.from_numpy(np.load(rows)["x"])
    with torch.no_grad():
        raw = checkpoint.load(model).model(x).double().numpy()
        for n in (1, 7, 300):
            assert np.abs(program(x[:n]).exp().double().numpy() - np.exp(one.map(raw[:n]))).max() <= 2e-6
    assert calibcli.verify(made, one, rows, before=model, trust=True).verdict == "pass"


def test_a_head_without_bias(tmp_path: Path) -> None:
    MODELS["bare"] = ("self.head = nn.Linear(12, 5, bias=False)", "self.head(x)", 5, "")
    try:
        model, rows, arch, k = custom(tmp_path, "bare")
    finally:
        del MODELS["bare"]
    given: dict[str, Any] = {"model": model, "data": rows, "arch_file": arch, "save": tmp_path / "o.pt"}
    found = calibcli.export(scaler("temperature", k), "checkpoint", **given)
    assert found["max_dp"].value < 1e-6
    assert any("cannot record what was folded" in note for note in found.notes)
    assert set(torch.load(tmp_path / "o.pt", weights_only=True)) == {"head.weight"}  # plain, as it came
    with pytest.raises(InputError, match="has no bias"):
        calibcli.export(scaler("vector", k), "checkpoint", **given)


def test_what_the_file_says_and_who_is_warned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, rows = network(tmp_path, 3)
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200, 3)) * 2
    np.savez(tmp_path / "fit.npz", logits=z, labels=(z / 2 + rng.gumbel(size=z.shape)).argmax(1))
    made, cal = tmp_path / "made.safetensors", tmp_path / "t.safetensors"
    assert main(["scale", str(tmp_path / "fit.npz"), "--save", str(cal), "-q"]) == 0
    argv = ["export", str(cal), "--to", "checkpoint", "--model", str(model), "--data", str(rows), "-o", str(made)]
    assert main([*argv, "-q"]) == 0
    with safe_open(made, framework="pt") as file:
        said = json.loads(file.metadata()["calib"])["folded"]
    t = calibcli.fit_scaler(tmp_path / "fit.npz")["temperature"].value
    assert said["calibrator"] == "temperature"
    assert said["temperature"] == pytest.approx(t)
    assert said["rows"] == 200
    assert len(said["sha256"]) == len(said["data_sha256"]) == 64
    capsys.readouterr()
    for suffix in (".npz", ".safetensors"):
        logits = tmp_path / f"logits{suffix}"
        assert main(["logits", str(made), "--data", str(rows), "--save", str(logits)]) == 0
        assert "is folded into the last layer already" in capsys.readouterr().err
        assert main(["scale", str(logits), "--folds", "2"]) == 0
        assert "fitted on 200 rows) is folded into the last layer already: this one" in capsys.readouterr().err
        assert main(["metrics", str(logits)]) == 0
        assert "folded" not in capsys.readouterr().err
    for target, again in (("checkpoint", "again.safetensors"), ("pt2", "again.pt2")):  # T would count twice
        with pytest.raises(InputError, match="folded into it already"):
            calibcli.export(cal, target, model=made, data=rows, save=tmp_path / again)
    argv = [
        "fit",
        str(made),
        "--data",
        str(rows),
        "--validation",
        str(rows),
        "--epochs",
        "1",
        "--save",
        str(tmp_path / "f"),
    ]
    main(argv)
    assert "is folded into the last layer already: training removes it" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["checkpoint", "torchscript"])
def test_classes_in_another_order_are_refused(target: str, tmp_path: Path) -> None:
    model, rows = network(tmp_path, 3)
    about = {"architecture": f"mlp:inputs={INPUTS},hidden=16,classes=3", "classes": ["ant", "bee", "cat"]}
    checkpoint.save(model, checkpoint.load(model).model, about)
    one = dataclasses.replace(scaler("vector", 3), classes=("bee", "ant", "cat"))
    path = tmp_path / ("o.pt" if target == "torchscript" else "o.safetensors")
    with pytest.raises(InputError, match=r"class 0 is 'ant' in .* and 'bee' in the calibrator"):
        calibcli.export(one, target, model=model, data=rows, save=path)
    calibcli.export(dataclasses.replace(one, classes=("x", "y", "z")), target, model=model, data=rows, save=path)


@pytest.mark.parametrize("names", [None, ["no", "yes"]])
def test_classes_that_event_exchanged_are_not_taken_for_those_of_a_network(names: Any, tmp_path: Path) -> None:
    """The map would be right and its classes the other way round, which no comparison with itself shows."""
    model, rows = network(tmp_path, 2)
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((400, 2)), rng.integers(0, 2, 400)
    named = {} if names is None else {"classes": np.array(names)}
    np.savez(tmp_path / "scores.npz", logits=z, labels=y, **named)
    for event in (names or ["0", "1"])[::-1]:
        save(calibcli.fit_scaler(tmp_path / "scores.npz", spec="platt", event=event).scaler, tmp_path / "c.safetensors")
        given = {"model": model, "data": rows, "save": tmp_path / f"{event}.safetensors"}
        first = event == (names or ["0"])[0]
        if not first:  # the second class is the event anyhow
            calibcli.export(tmp_path / "c.safetensors", "checkpoint", **given)
            continue
        with pytest.raises(InputError, match="second of the two classes") as refused:
            calibcli.export(tmp_path / "c.safetensors", "checkpoint", **given)
        assert "fit it without event=" in refused.value.fix
        with pytest.raises(InputError, match=r"second of the two classes|in another order"):
            calibcli.export(tmp_path / "c.safetensors", "json", data=tmp_path / "scores.npz", save=tmp_path / "c.json")
        line = ["apply", str(tmp_path / "c.safetensors"), str(tmp_path / "scores.npz"), "-q"]
        assert main([*line, "--save", str(tmp_path / "o.npz")]) == 4
        assert main([*line, "--save", str(tmp_path / "o.npz"), "--event", event]) == 0


def test_a_foreign_checkpoint_keeps_what_it_held(tmp_path: Path) -> None:
    """Other metadata and other tensors of the file stay; the suffix decides nothing."""
    model, rows = network(tmp_path, 4)
    tensors: dict[str, Tensor] = load_file(model)
    save_file({f"module.{k}": v for k, v in tensors.items()}, tmp_path / "ddp.safetensors", {"format": "pt"})
    arch = f"mlp:inputs={INPUTS},hidden=16,classes=4"
    made = tmp_path / "made.safetensors"
    calibcli.export(
        scaler("temperature", 4), "checkpoint", model=tmp_path / "ddp.safetensors", arch=arch, data=rows, save=made
    )
    with safe_open(made, framework="pt") as file:
        assert set(file.keys()) == {f"module.{k}" for k in tensors}
        assert file.metadata()["format"] == "pt"


def test_copies_of_the_weights_stay_and_are_named(tmp_path: Path) -> None:
    model, rows = network(tmp_path, 4)
    held = load_file(model)
    average = {name: tensor * 0.9 for name, tensor in held.items()}
    torch.save({"model": held, "ema": {"module": average}, "optimizer": {"state": {}}}, tmp_path / "net.pt")
    given = {"arch": f"mlp:inputs={INPUTS},hidden=16,classes=4", "data": rows, "save": tmp_path / "made.pt"}
    found = calibcli.export(scaler("vector", 4), "checkpoint", model=tmp_path / "net.pt", **given)
    head = next(name for name in reversed(held) if held[name].ndim == 2 and len(held[name]) == 4)
    assert any("averaged weights are in 'ema'" in note for note in found.notes)
    again = torch.load(tmp_path / "made.pt")
    assert torch.equal(again["ema"]["module"][head], average[head])
    assert not torch.equal(again["model"][head], held[head])


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = network(tmp_path, 3)

    def full(*args: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("calibcli.networks.deploy.checkpoint_export.save_file", full)
    before = set(tmp_path.iterdir())
    with pytest.raises(CalibError, match="no space left on device"):
        calibcli.export(scaler("temperature", 3), "checkpoint", model=model, data=rows, save=tmp_path / "m.safetensors")
    assert set(tmp_path.iterdir()) == before


def test_the_sample_model_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """scale -> export -> logits -> metrics is scale -> apply -> metrics, to 1e-6."""
    samples = Path(__file__).parent.parent / "sample_data"
    cal = tmp_path / "t.safetensors"
    assert main(["scale", str(samples / "validation.npz"), "--save", str(cal), "-q"]) == 0
    made, logits, applied = (str(tmp_path / n) for n in ("made.safetensors", "l.npz", "a.npz"))
    argv = ["export", str(cal), "--to", "checkpoint", "--model", str(samples / "model.safetensors"), "-o", made, "-q"]
    assert main(argv) == 0
    assert main(["logits", made, "--save", logits, "-q"]) == 0
    assert main(["logits", str(samples / "model.safetensors"), "--save", str(tmp_path / "raw.npz"), "-q"]) == 0
    assert main(["apply", str(cal), str(tmp_path / "raw.npz"), "--save", applied, "-q"]) == 0
    ours, theirs = (calibcli.measure(calibcli.read(path), "ece", "nll") for path in (logits, applied))
    assert ours["ece"].value == pytest.approx(theirs["ece"].value, abs=1e-6)
    verdicts = [calibcli.check(path, max={"ece": 0.05}).verdict for path in (logits, applied)]
    assert verdicts[0] == verdicts[1] == "pass"
    capsys.readouterr()


def test_a_resnet(tmp_path: Path) -> None:
    spec = "resnet:depth=20,classes=10"
    torch.manual_seed(0)
    model = checkpoint.build(spec)
    path = tmp_path / "resnet.safetensors"
    checkpoint.save(path, model, {"architecture": spec})
    rng = np.random.default_rng(1)
    np.savez(
        tmp_path / "rows.npz", images=rng.standard_normal((32, 3, 32, 32)).astype(np.float32), labels=np.arange(32) % 10
    )
    found = calibcli.export(
        scaler("vector", 10), "checkpoint", model=path, data=tmp_path / "rows.npz", save=tmp_path / "m.safetensors"
    )
    assert found["max_dp"].value <= 1e-6
    assert isinstance(dict(model.named_modules())[str(found.facts["head"])], nn.Linear)
    data, raw, out, applied = (str(tmp_path / f"{name}.npz") for name in ("rows", "raw", "out", "applied"))
    for before, after in ((path, raw), (tmp_path / "m.safetensors", out)):
        assert main(["logits", str(before), "--data", data, "--save", after, "-q"]) == 0
    calibcli.apply(scaler("vector", 10), raw, save=applied)
    both = [calibcli.check(calibcli.read(file), max={"ece": 0.5}) for file in (out, applied)]
    assert both[0].verdict == both[1].verdict
    ours, theirs = (calibcli.measure(calibcli.read(file), "ece")["ece"].value for file in (out, applied))
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_a_calibrator_written_by_scale_is_what_is_folded(tmp_path: Path) -> None:
    model, rows = network(tmp_path, 3)
    save(scaler("bcts", 3), tmp_path / "c.safetensors")
    found = calibcli.export(
        tmp_path / "c.safetensors", "checkpoint", model=model, data=rows, save=tmp_path / "m.safetensors"
    )
    assert [e["path"] for e in found.provenance["inputs"]] == [str(tmp_path / "c.safetensors"), str(model), str(rows)]
