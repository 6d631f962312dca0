"""Tensors as an evaluation loop on a device has them, in the functions that take arrays; mixed devices fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from both import CUDA

import calibcli
from calibcli.core.statistics import SINGLE
from calibcli.networks import device_scores
from calibcli.scores.columns import columns


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    return z, torch.arange(300) % 3


def test_the_device_refuses_what_cuda_refuses() -> None:
    z, y = rows()
    with pytest.raises(RuntimeError, match="same device"):
        z.to(CUDA) + z
    with pytest.raises(TypeError):
        z.to(CUDA).numpy()
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device=CUDA, generator=torch.Generator())
    assert z.to(CUDA)[y.to(CUDA) == 1].device == CUDA


def test_the_functions_take_tensors_of_the_device() -> None:
    z, y = rows()
    there = z.to(CUDA), y.to(CUDA)
    assert calibcli.measure(*there)["ece"].value == pytest.approx(calibcli.measure(z, y)["ece"].value, rel=1e-12)
    assert calibcli.from_arrays(*there).n == 300
    assert calibcli.check(*there, max={"ece": 0.9}).checks[0].outcome == "pass"
    assert torch.equal(calibcli.fit_scaler(*there).scaler(there[0]).cpu(), calibcli.fit_scaler(z, y).scaler(z))


def numbers(found: calibcli.Result) -> dict[str, list[float | None]]:
    return {e.name: [e.value, e.low, e.high, e.null] for e in found.estimates}


def same(there: calibcli.Result, here: calibcli.Result, tolerance: float) -> None:
    one, other = numbers(there), numbers(here)
    assert one.keys() == other.keys()
    for name, wanted in other.items():
        for a, b in zip(one[name], wanted, strict=True):
            assert (a is None) == (b is None), name
            assert a is None or a == pytest.approx(b, rel=tolerance, abs=tolerance), name
    assert there.notes == here.notes
    assert {k: v for k, v in there.facts.items() if k != "why"} == {k: v for k, v in here.facts.items() if k != "why"}


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of what came from a device."""
    shapes = []
    real = device_scores.host

    def seen(tensor: torch.Tensor) -> Any:
        shapes.append(tensor.shape)
        return real(tensor)

    monkeypatch.setattr(device_scores, "host", seen)
    return shapes


@pytest.mark.parametrize("k", [2, 10, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["logits", "probabilities", "log_probabilities"])
def test_rows_on_the_device_have_the_numbers_that_numpy_has(k: int, dtype: torch.dtype, kind: str) -> None:
    generator = torch.Generator().manual_seed(k)
    z = 3 * torch.randn(700, k, generator=generator)
    y = torch.multinomial((z / 1.5).softmax(1), 1, generator=generator)[:, 0]
    z = {"logits": z, "probabilities": z.softmax(1), "log_probabilities": z.log_softmax(1)}[kind].to(dtype)
    specs = ["all"] if kind == "logits" and dtype == torch.float32 else ["default", "entropy"]
    here, there = (calibcli.measure(a, b, *specs, kind=kind) for a, b in ((z, y), (z.to(CUDA), y.to(CUDA))))
    same(there, here, 1e-9)


def test_only_numbers_per_row_leave_the_device(copied: list[torch.Size]) -> None:
    z, y = 3 * torch.randn(5000, 50, generator=torch.Generator().manual_seed(1)), torch.arange(5000) % 50
    calibcli.measure(z.to(CUDA), y.to(CUDA), "nll", "ece", "classwise_ece")
    beyond = [shape for shape in copied if len(shape) == 2 and 50 in shape]
    assert beyond  # of the first rows: in how few digits scores are stored, and whether labels belong to them
    assert all(shape[0] <= 1000 for shape in beyond)
    assert len(copied) < 30  # whatever the number of rows


def test_pieces_of_a_device_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = 3 * torch.randn(900, 12, generator=torch.Generator().manual_seed(2)), torch.arange(900) % 12
    weights, wanted = torch.arange(900) % 3 + 1.0, ("default", "entropy_wrong")
    here = calibcli.measure(z, y, *wanted, weights=weights)
    for size in (12, 12 * 7, 12 * 899):
        monkeypatch.setattr(device_scores, "AT_ONCE", size)
        same(calibcli.measure(z.to(CUDA), y.to(CUDA), *wanted, weights=weights), here, 1e-9)


def test_float32_rows_of_the_device_are_right_to_what_a_pass_says(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = 8 * torch.randn(3000, 10, generator=torch.Generator().manual_seed(3)), torch.arange(3000) % 10
    exact = columns(calibcli.from_arrays(z.double(), y))
    monkeypatch.setattr("calibcli.scores.columns.SMALL", 0)
    found = columns(calibcli.from_arrays(z.to(CUDA), y.to(CUDA)))
    assert found.precision == SINGLE
    for name in ("confidence", "rest", "nll", "most", "brier", "entropy"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=10 * SINGLE, atol=1e-15)
    for name in ("count", "sum_p", "sum_y"):
        (a,), (b,) = found.classes.values(), exact.classes.values()
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=10 * SINGLE, atol=1e-6)


def test_odd_tensors_of_the_device() -> None:
    z, y = rows()
    wanted = calibcli.measure(z, y, "nll", "ece")
    wide = torch.randn(300, 6).to(CUDA)
    wide[:, ::2] = z.to(CUDA)
    for tensor in (wide[:, ::2], z.to(CUDA).requires_grad_(), z.T.contiguous().to(CUDA).T, z.to(CUDA) + 0):
        same(calibcli.measure(tensor, y.to(CUDA).int(), "nll", "ece"), wanted, 1e-9)
    masked = z.clone()
    masked[5, (y[5] + 1) % 3] = -torch.inf
    there = calibcli.measure(masked.to(CUDA), y.to(CUDA), kind="logits")
    same(there, calibcli.measure(masked, y, kind="logits"), 1e-9)
    bad = z.clone()
    bad[7, 0], bad[9, 1] = torch.nan, torch.inf
    for broken in (bad, z[:0], masked):
        said = []
        for device in (torch.device("cpu"), CUDA):
            with pytest.raises(calibcli.CalibError) as error:
                calibcli.measure(broken.to(device), y[: len(broken)].to(device))
            said.append(str(error.value))
        assert said[0] == said[1]
    dropped = [calibcli.measure(bad.to(d), y.to(d), "nll", drop_nonfinite=True) for d in (torch.device("cpu"), CUDA)]
    same(dropped[1], dropped[0], 1e-9)
    tied = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]] * 50)
    tied_rows = (tied.to(d) for d in (CUDA, torch.device("cpu")))
    measured = (calibcli.measure(z, torch.arange(100).to(z.device) % 3, kind="logits") for z in tied_rows)
    same(*measured, 1e-9)


def test_what_else_takes_scores_takes_tensors_of_the_device() -> None:
    z, y = rows()
    z[torch.arange(300), y] += 1.5
    there, labels = z.to(CUDA), y.to(CUDA)
    for how in ({"max": {"ece": 0.9}}, {"max": {"ece": 0.9, "nll": 9}, "by": {"site": y.numpy() % 2}}):
        one, other = (calibcli.check(a, b, **how).checks for a, b in ((there, labels), (z, y)))
        assert [c.outcome for c in one] == [c.outcome for c in other]
        values = [[c.estimate.value for c in checks if c.estimate] for checks in (one, other)]
        assert values[0] == pytest.approx(values[1], rel=1e-9)
    fits = [calibcli.fit_scaler(a, b) for a, b in ((there, labels), (z, y))]
    assert fits[0]["temperature"].value == pytest.approx(fits[1]["temperature"].value, rel=1e-9)
    for given in (there, there.bfloat16(), there.double(), there.requires_grad_()):
        p = fits[0].predict_proba(given)
        assert isinstance(p, torch.Tensor)
        assert p.device == CUDA
        assert p.dtype == (torch.float64 if given.dtype == torch.float64 else torch.float32)
        assert not p.requires_grad
    binary = [
        calibcli.measure(a[:, :2], (b > 0).long(), "ece", event="0") for a, b in ((there.detach(), labels), (z, y))
    ]
    same(*binary, 1e-9)


def test_parts_are_added_where_they_lie(copied: list[torch.Size]) -> None:
    """Of more rows than are kept, the scores of those that are not stay on the device."""
    z = torch.randn(7000, 200, generator=torch.Generator().manual_seed(1))
    y = torch.arange(7000) % 200
    found = calibcli.Accumulator()
    for part in (slice(0, 6500), slice(6500, 7000)):
        found.update(z[part].to(CUDA), y[part].to(CUDA))
    assert max(shape[0] for shape in copied if len(shape) == 2 and shape[1] == 200) == 5000  # kept for a temperature
    wanted = calibcli.Accumulator().update(z[:6500], y[:6500]).update(z[6500:], y[6500:])
    for e in wanted.result().estimates:
        if e.name != "temperature_gain":  # of other rows: those of a device are known by other digits
            assert found.result()[e.name].value == pytest.approx(e.value, rel=1e-9, abs=1e-12), e.name
    with pytest.raises(calibcli.CalibError, match="there already"):
        found.update(z[:6500].to(CUDA), y[:6500].to(CUDA))
