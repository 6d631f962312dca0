"""A calibrator as a torch module: for `torch.export`, TorchScript, or a model's own code."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibcli.architectures.classify import logits
from calibcli.scalers import Scaler
from calibcli.scalers.program import Operations
from calibcli.ship.maps import classes, log_probabilities


class TorchOps(Operations):
    """The operations on tensors. Constants are buffers of the module, in the order of their use."""

    def __init__(self, module: nn.Module, classes: int, dtype: torch.dtype, eps: float) -> None:
        self.module, self.classes, self.dtype, self.eps = module, classes, dtype, eps
        self.used = 0

    exp, log, log1p, abs = (staticmethod(f) for f in (torch.exp, torch.log, torch.log1p, torch.abs))
    same = staticmethod(torch.eq)
    max, min, sum = (staticmethod(partial(f, dim=-1, keepdim=True)) for f in (torch.amax, torch.amin, torch.sum))
    argmax = staticmethod(partial(torch.argmax, dim=-1, keepdim=True))
    deep, flat = (staticmethod(partial(f, dim=-1)) for f in (torch.unsqueeze, torch.squeeze))
    index, take = staticmethod(Tensor.long), staticmethod(operator.getitem)

    def least(self, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.minimum(self.lifted(x), self.lifted(y))

    def most(self, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.maximum(self.lifted(x), self.lifted(y))

    def where(self, condition: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.where(condition, self.lifted(x), self.lifted(y))

    def lifted(self, x: Tensor | float) -> Tensor:
        return x if isinstance(x, Tensor) else self.const(x)

    def const(self, array: Any, whole: bool = False) -> Tensor:
        name = f"c{self.used}"
        self.used += 1
        if name not in self.module._buffers:
            self.module.register_buffer(name, torch.tensor(np.asarray(array), dtype=None if whole else self.dtype))
        found: Tensor = getattr(self.module, name)
        return found

    def number(self, condition: Tensor) -> Tensor:
        return condition.to(self.dtype)

    def column(self, x: Tensor, k: int) -> Tensor:
        return x[:, k : k + 1]

    def join(self, *columns: Tensor) -> Tensor:
        return torch.cat(columns, -1)


class Calibrator(nn.Module):
    """Scores (n, columns) to probabilities (n, K), or to log-probabilities, in the dtype of the scores.

    Args:
        wide: work in float64 whatever the scores are.
        like: the dtype of the scores.
    """

    def __init__(self, scaler: Scaler, wide: bool, like: torch.dtype = torch.float32, logs: bool = False) -> None:
        super().__init__()
        self.__dict__["scaler"], self.logs = scaler, logs
        self.dtype = torch.float64 if wide else like
        self.eps = float(torch.finfo(like).eps)
        with torch.no_grad():
            self(torch.full((2, scaler.columns), 0.5, dtype=like))

    def forward(self, scores: Tensor) -> Tensor:
        scaler = self.__dict__["scaler"]
        o = TorchOps(self, classes(scaler), self.dtype, self.eps)
        found: Tensor = log_probabilities(o, scaler, scores.to(self.dtype))
        return (found if self.logs else found.exp()).to(scores.dtype)


class Calibrated(nn.Module):
    """A model of logits with its calibrator behind it: log-probabilities."""

    def __init__(self, model: nn.Module, calibrator: Calibrator) -> None:
        super().__init__()
        self.model, self.calibrator = model, calibrator

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.calibrator(logits(self.model, inputs))
        return found
