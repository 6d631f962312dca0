"""Models as functions of a batch; the caller's model and torch's global state are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calibcli.core.errors import InputError
from calibcli.networks import dataset, inference

torch.set_num_threads(1)


class Keyed(nn.Module):
    """Takes named inputs and answers like a Hugging Face model."""

    def __init__(self, shape: tuple[int, ...] = (3,)) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 3)
        self.shape = shape

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        mean = (self.embed(input_ids) * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return type("Output", (), {"logits": mean.view(len(mean), *self.shape)})()


def test_logits_of_models_with_named_inputs_and_outputs() -> None:
    batch = {"input_ids": torch.tensor([[1, 2, 0], [3, 4, 5]]), "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}
    model = Keyed()
    out = inference.logits(model, batch)
    torch.testing.assert_close(out[0], model.embed.weight[[1, 2]].mean(0))
    with pytest.raises(InputError, match=r"shape \(2, 3, 1\) for 2 rows"):
        inference.logits(Keyed((3, 1)), batch)
    one = nn.Linear(4, 1)
    x = torch.randn(6, 4)
    torch.testing.assert_close(inference.logits(one, x).softmax(1)[:, 1], one(x).sigmoid()[:, 0])
    with pytest.raises(InputError, match="returned NoneType"):
        inference.logits(type("N", (nn.Module,), {"forward": lambda self, x: None})(), x)


class Fragile(nn.Module):
    """Fails on the second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        if not self.training and len(x) == 3:
            raise RuntimeError("boom")
        return self.body(x)  # type: ignore[no-any-return]


def snapshot(model: nn.Module) -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        [m.training for m in model.modules()],
        [(id(p), p.requires_grad, p.grad, p.tolist()) for p in model.parameters()],
        [(id(b), b.tolist()) for b in model.buffers()],
    ]


def test_tokens_beyond_the_vocabulary(tmp_path: Path) -> None:
    ids = np.array([[1, 2], [3, 4], [5, 10]])
    np.savez(tmp_path / "d.npz", input_ids=ids, attention_mask=np.ones_like(ids), labels=np.zeros(3, int))
    data = dataset.load(tmp_path / "d.npz")
    with pytest.raises(InputError, match="rows 0 to 2 do not fit the model"):
        inference.check(data, Keyed())
    with pytest.raises(InputError, match="rows 2 to 2 do not fit the model"):
        list(inference.predict(Keyed(), data, batch_size=2))


@pytest.mark.parametrize("rows", [8, 7])
def test_the_callers_model_and_state_are_unchanged(tmp_path: Path, rows: int) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((rows, 4), np.float32), y=np.arange(rows) % 3)
    data = dataset.load(tmp_path / "d.npz")
    model = Fragile()
    model.train()
    model.body[1].eval()
    model.body[0].weight.requires_grad_(False)
    before = snapshot(model)
    inference.check(data, model)
    assert snapshot(model) == before
    if rows % 4 == 3:
        with pytest.raises(RuntimeError, match="boom"):
            list(inference.predict(model, data, batch_size=4))
    else:
        assert torch.cat(list(inference.predict(model, data, batch_size=4))).shape == (8, 3)
    list(inference.predict(model, data, batch_size=4, dtype=torch.float64)) if rows == 8 else None
    assert snapshot(model) == before
