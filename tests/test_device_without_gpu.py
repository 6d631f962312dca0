"""Tensors and processes on devices, as far as a machine without one can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import calibcli
from calibcli.core.errors import UsageError
from calibcli.networks import device

RNG = np.random.default_rng(0)
Z = (RNG.normal(size=(300, 3)) * 3).astype(np.float32)
Y = np.asarray(Z.argmax(1) * (RNG.random(300) < 0.7), np.int64)


class Away:
    """What calib may ask of a tensor on a device: NumPy sees none of it before it was detached and copied."""

    def __init__(self, tensor: Tensor, detached: bool = False) -> None:
        self.tensor, self.detached = tensor, detached

    def detach(self) -> Away:
        return Away(self.tensor, True)

    def cpu(self) -> Tensor:
        assert self.detached
        return self.tensor

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


KINDS = {
    "cuda": (Away(torch.from_numpy(Z)), Away(torch.from_numpy(Y))),
    "grad": (torch.from_numpy(Z).requires_grad_(), torch.from_numpy(Y)),
    "bfloat16": (torch.from_numpy(Z).bfloat16(), torch.from_numpy(Y).to(torch.int32)),
    "rows": ([*torch.from_numpy(Z).requires_grad_()], [*torch.from_numpy(Y)]),
    "negative": (torch._neg_view(torch.from_numpy(-Z)), torch.from_numpy(Y)),
    "parameter": (torch.nn.Parameter(torch.from_numpy(Z)), torch.from_numpy(Y).to(torch.uint8)),
}


@pytest.mark.regression("device 7")
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_as_an_evaluation_loop_has_them(kind: str) -> None:
    z, y = KINDS[kind]
    plain = torch.from_numpy(Z).bfloat16().float().numpy() if kind == "bfloat16" else Z
    assert calibcli.measure(z, y, "nll")["nll"].value == calibcli.measure(plain, Y, "nll")["nll"].value
    assert calibcli.from_arrays(z, y, group=y).n == 300
    sliced = calibcli.from_arrays(z, y, by={"site": y}).slices["site"]
    assert np.array_equal(sliced, calibcli.from_arrays(plain, Y, by={"site": Y}).slices["site"])
    assert calibcli.check(z, y, max={"ece": 0.9}).checks[0].outcome == "pass"
    scaler = calibcli.fit_scaler(z, y).scaler
    for form in (scaler, scaler.predict_proba):
        found, wanted = form(z), form(plain)
        if isinstance(z, Tensor):  # a tensor for a tensor: that of the same numbers, in float32, without a graph
            assert isinstance(found, Tensor)
            assert (found.dtype, found.requires_grad) == (torch.float32, False)
            found, wanted = found.numpy(), wanted.astype(np.float32)
        assert wanted.shape == (300, 3)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["one number", "meta", "sparse"])
def test_tensors_without_rows_of_numbers_are_refused(kind: str) -> None:
    odd = {"one number": torch.tensor(0.5), "meta": torch.eye(3, device="meta"), "sparse": torch.eye(3).to_sparse()}[
        kind
    ]
    for given, what in (((odd, [0, 1, 2]), "scores"), ((np.eye(3), odd), "labels")):
        with pytest.raises(calibcli.CalibError, match=what):
            calibcli.measure(*given, "ece")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Two devices, two processes, this is the second."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    return monkeypatch


@pytest.mark.regression("device 5")
def test_processes_take_a_device_each(machine: pytest.MonkeyPatch) -> None:
    assert str(device.pick("auto")) == str(device.pick("cuda")) == "cuda:1"
    assert str(device.pick("cpu")) == "cpu"
    with pytest.raises(UsageError, match=r"--device cuda:0 is one device for 2 processes") as error:
        device.pick("cuda:0")
    assert error.value.fix == "pass --device cuda"
    machine.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match=r"2 processes share 1 CUDA device"):
        device.pick()
    machine.setenv("LOCAL_WORLD_SIZE", "1")  # one process on each of two machines
    machine.setenv("LOCAL_RANK", "0")
    assert str(device.pick("cuda:0")) == "cuda:0"


@pytest.mark.regression("device 5")
def test_a_process_works_on_its_device(machine: pytest.MonkeyPatch) -> None:
    """nccl's collectives of objects take the current device: that of rank 0 in every process, unless it is set."""
    done: list[Any] = []
    machine.setattr(torch.cuda, "set_device", lambda where: done.append(where))
    machine.setattr(dist, "is_initialized", lambda: False)
    machine.setattr(dist, "init_process_group", lambda kind, **options: done.append((kind, options)))
    machine.setattr(dist, "destroy_process_group", lambda: done.append("left"))
    where = torch.device("cuda", 1)
    with device.process_group(where):
        kind, options = done[1]
        assert (done[0], kind, options["device_id"], len(done)) == (where, "nccl", where, 2)
        assert options["timeout"].total_seconds() <= 1800  # no rank waits longer for one that is gone
    assert done[2:] == ["left"]
