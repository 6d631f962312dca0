"""Losses of the user's own in Python: module, class, function, and what makes one; one value where several may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calibcli
from calibcli.core.errors import InputError
from calibcli.lab.training.options import Setup

X = torch.linspace(-1, 1, 600).view(200, 3)[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
Y = (X[:, 0] > 0).long()


def plain(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def factory() -> nn.Module:
    return nn.CrossEntropyLoss(reduction="none")


class Mine(nn.Module):
    """Cross-entropy."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return plain(logits, labels)


def trained(loss: Any, **more: Any) -> tuple[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    run = calibcli.train(model, (X, Y), loss=loss, epochs=1, device="cpu", **more).facts["runs"][0]
    return run["loss"], model.weight.detach().clone()


def measured(loss: Any) -> float:
    torch.manual_seed(0)
    found = calibcli.curvature(nn.Linear(3, 2), (X, Y), "grad_norm", loss=loss, device="cpu")["grad_norm"].value
    assert found is not None
    return found


@pytest.mark.parametrize("loss", [plain, factory, Mine, Mine(), lambda z, y: plain(z, y)])
def test_a_loss_of_python(loss: Callable[..., Any]) -> None:
    name, weight = trained(loss)
    assert name.startswith(f"{__name__}:")
    assert torch.allclose(weight, trained("ce")[1])
    assert measured(loss) == pytest.approx(measured("ce"), rel=1e-6)


def test_a_loss_of_ours_keeps_its_spec() -> None:
    assert trained(calibcli.loss("focal:gamma=2"))[0] == "focal:gamma=2"


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_a_mean_is_no_loss_per_row(loss: Callable[..., Any]) -> None:
    for use in (trained, measured):
        with pytest.raises(InputError, match="gives") as caught:
            use(loss)
        assert "none" in caught.value.fix


def test_neither_text_nor_callable() -> None:
    for use in (trained, measured):
        with pytest.raises(TypeError, match="a loss is a text, a module, a class or a function, not int"):
            use(3)


def test_one_value_where_several_may_be() -> None:
    """A text would be read letter by letter."""
    assert trained("ce", penalty="trace:weight=0.01")[0] == "ce+trace:weight=0.01"
    setup = Setup("mlp", penalty="mmce", freeze="a.*", snapshot=3, log_rows=["train"])  # type: ignore[arg-type]
    assert (setup.penalty, setup.freeze, setup.snapshot, setup.log_rows) == (("mmce",), ("a.*",), (3,), ("train",))


def test_rows_as_a_list_of_pairs() -> None:
    torch.manual_seed(0)
    pairs = [(x, int(y)) for x, y in zip(X, Y)]
    found = calibcli.curvature(nn.Linear(3, 2), pairs, "grad_norm", device="cpu")["grad_norm"].value
    assert found == pytest.approx(measured("ce"), rel=1e-6)
    with pytest.raises(InputError, match="the label of a row is no whole number"):
        calibcli.curvature(nn.Linear(3, 2), [(X[0], "a")] * 3, "grad_norm", device="cpu")


def test_what_objects_say_of_themselves() -> None:
    rows = calibcli.from_arrays(X, Y)
    assert repr(calibcli.loss("focal:gamma=2")) == "Focal('focal:gamma=2')"
    assert repr(rows) == "Predictions(200 rows of 3 classes, logits, from arrays)"
    assert repr(calibcli.Accumulator("ece").update(X, Y)) == "Accumulator('ece'): 200 rows"
    assert repr(calibcli.Watch(max={"ece": 0.2})) == "Watch(in memory)"
