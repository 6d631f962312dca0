"""A spec given to whatever takes one acts there, or is refused with what takes it: every entry of every registry."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import calibcli
import calibcli.api.catalogue
import calibcli.lab.study
import calibcli.lab.training.recipes
from calibcli.api import catalogue
from calibcli.core import registries
from calibcli.core.errors import InputError, UsageError
from calibcli.networks import architectures, losses
from calibcli.networks.curvature import QUANTITIES  # noqa: F401  # the registry is filled

torch.set_num_threads(1)


def filled(entry: registries.Entry) -> str:
    """The spec of an entry, with 2 for the options that it needs."""
    needed = ",".join(f"{key}=2" for key, p in entry.options.items() if p.default is p.empty)
    return f"{entry.name}:{needed}" if needed else entry.name


LOSSES = [filled(entry) for entry in losses.LOSSES]
PENALTIES = [filled(entry) for entry in losses.PENALTIES]
RATE = 0.01
RANDOM = ("trace",)  # penalties that draw probes: equal in the mean only
AS_CE = ("ce", "adafocal")  # losses whose first epoch is that of cross-entropy


def problem() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    nn.init.normal_(model[2].weight, std=8.0)  # logits that differ by more than the margin of mbls
    return model, 3 * torch.randn(60, 4, dtype=torch.float64), torch.arange(60) % 3


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def looped(spec: str, epochs: int = 1) -> Tensor:
    """The weights after a loop of one's own with the objective of a spec: a step on all rows per epoch."""
    model, x, y = problem()
    run, generator = losses.objective(spec), torch.Generator().manual_seed(0)
    for step in range(epochs):
        run.loss.start_epoch(step, epochs)
        with run.around(model, step, generator):
            logits = model(x)
        model.zero_grad()
        run(losses.Batch(model, logits, y, step, generator)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
    return weights(model)


def trained(epochs: int = 1, **options: Any) -> Tensor:
    """The weights after such steps of `train`."""
    model, x, y = problem()
    rest = {"epochs": epochs, "batch_size": 60, "lr": RATE, "optimizer": "sgd:momentum=0,weight_decay=0"}
    calibcli.train(
        model, (x, y), validation=(x, y), dtype="float64", schedule="constant", device="cpu", **rest, **options
    )
    return weights(model)


def differ(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) > 1e-4 * RATE


@pytest.mark.one_in(5)
@pytest.mark.regression
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", ["ce", "focal:gamma=2"])
def test_a_penalty_acts_in_training_and_is_refused_where_rows_stand_alone(loss: str, penalty: str) -> None:
    spec = f"{loss}+{penalty}"
    plain, whole = looped(loss), looped(spec)
    assert differ(whole, plain)
    for options in ({"loss": spec}, {"loss": loss, "penalty": (penalty,)}, {"loss": losses.objective(spec)}):
        followed = trained(**options)
        assert differ(followed, plain)
        assert penalty.startswith(RANDOM) or torch.allclose(followed, whole, rtol=1e-9, atol=1e-9)
    model, x, y = problem()
    for taker in (
        lambda: calibcli.loss(spec),
        lambda: calibcli.curvature(model, (x, y), "trace", loss=spec, device="cpu"),
        lambda: calibcli.curvature(model, (x, y), "trace", train_loss=spec, device="cpu"),
    ):
        with pytest.raises(UsageError, match=penalty.partition(":")[0]) as refusal:
            taker()
        assert "train" in refusal.value.fix
        assert "objective" in refusal.value.fix
    unweighted = f"{loss}+{penalty.partition(':')[0]}:weight=0"  # adds nothing, so nothing is dropped
    assert calibcli.loss(unweighted).spec == losses.objective(loss).spec


@pytest.mark.regression
def test_what_is_of_a_batch_is_no_loss_of_rows_in_python_either() -> None:
    model, x, y = problem()
    for given in (losses.objective("ce+mmce"), losses.PENALTIES.choose("mmce")()):
        with pytest.raises(UsageError, match="batch"):
            calibcli.curvature(model, (x, y), "trace", loss=given, device="cpu")
    with pytest.raises(UsageError, match="is a penalty, not a loss"):
        calibcli.train(model, (x, y), loss=losses.PENALTIES.choose("mmce")(), device="cpu")
    with pytest.raises(UsageError, match="'focal' is a loss, not a penalty"):
        calibcli.train(model, (x, y), loss="ce+focal", device="cpu")
    with pytest.raises(UsageError, match="is a penalty on a batch"):
        calibcli.loss("mmce")  # papers mean ce+mmce by it


@pytest.mark.regression
def test_a_checkpoint_that_was_trained_with_a_penalty_is_measured_without_it_and_says_so(tmp_path: Path) -> None:
    _, x, y = problem()
    data = (x.float(), y)
    options = {"validation": data, "epochs": 1, "device": "cpu"}
    calibcli.train("mlp:hidden=4", data, loss="focal:gamma=2+mmce", save=tmp_path / "a", **options)
    found = calibcli.curvature(tmp_path / "a" / "model.safetensors", data, "trace", device="cpu")
    assert found.facts["losses"] == ["ce", "focal:gamma=2"]
    assert any("trained with focal:gamma=2+mmce" in note and "mmce" in note for note in found.notes)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_the_same_wherever_it_is_asked_for(loss: str) -> None:
    model, x, y = problem()
    logits = model(x).detach()
    own = calibcli.loss(loss)
    run = losses.objective(loss)
    assert torch.equal(own(logits, y), run.loss(logits, y))
    epochs = 1 if own.needs_validation else 4  # which train alone hands to it
    mine = looped(loss, epochs)
    assert torch.allclose(mine, trained(epochs, loss=loss), rtol=1e-9, atol=1e-9)
    assert loss in AS_CE or differ(mine, looped("ce", epochs))
    model, x, y = problem()
    found = calibcli.curvature(model, (x, y), "trace:exact=true", loss=loss, dtype="float64", device="cpu")
    assert found.facts["losses"] == [run.loss.spec]
    beside = calibcli.curvature(model, (x, y), "trace:exact=true", train_loss=loss, dtype="float64", device="cpu")
    of_loss = [e for e in beside.estimates if e.scope] or list(beside.estimates)
    assert of_loss[0].value == pytest.approx(found["trace:exact=true"].value, rel=1e-9)


RNG = np.random.default_rng(0)
SCORES, TRUTH = RNG.standard_normal((200, 3)), RNG.integers(0, 3, 200)


def network() -> dict[str, Any]:
    model, x, y = problem()
    return {"model": copy.deepcopy(model), "data": (x.float(), y), "epochs": 1, "device": "cpu"}


TAKERS: dict[str, Callable[[str], Any]] = {
    "metric": lambda spec: calibcli.measure(SCORES, TRUTH, spec),
    "scaler": lambda spec: calibcli.fit_scaler(SCORES, TRUTH, spec),
    "loss": lambda spec: calibcli.loss(spec),
    "penalty": lambda spec: calibcli.train(**network(), penalty=(spec,)),
    "architecture": lambda spec: architectures.build(spec),
    "target": lambda spec: calibcli.export(calibcli.fit_scaler(SCORES, TRUTH), spec, save="never", data=SCORES),
    "curvature quantity": lambda spec: calibcli.curvature(problem()[0].float(), network()["data"], spec, device="cpu"),
    "augmentation": lambda spec: calibcli.train(**network(), augment=spec),
    "optimizer": lambda spec: calibcli.train(**network(), optimizer=spec),
    "schedule": lambda spec: calibcli.train(**network(), schedule=spec),
}
ELSEWHERE = ("change of a network", "kind of claim")  # in recipes of studies only


def test_every_registry_has_a_function_that_takes_its_specs() -> None:
    kinds = {one.registry.kind for one in catalogue.REGISTRIES.values()}
    assert kinds <= TAKERS.keys() | set(ELSEWHERE)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", TAKERS)
def test_what_lies_on_another_registry_is_refused(kind: str) -> None:
    [own] = [registry for registry in registries._REGISTRIES if registry.kind == kind]
    for other in registries._REGISTRIES:
        for entry in other:
            if entry.name in own or (kind == "loss" and entry.name in losses.PENALTIES):
                continue
            with pytest.raises((UsageError, InputError)) as refusal:
                TAKERS[kind](entry.name)
            assert entry.name in str(refusal.value), kind
            assert refusal.value.fix
