"""Cross-entropy of logits of a length of their own."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from calibcli.losses.logspace import THRESHOLD, margin
from calibcli.losses.shelf import LOSSES, Loss
from calibcli.spec import Range

LEAST = 1e-7  # of the length, so that logits of zero have a derivative


@LOSSES.add("logit_norm")
class LogitNorm(Loss):
    """Cross-entropy of `z / (τ |z|)`, logits of length 1/τ (Wei et al. 2022): a network cannot gain by longer ones.

    Not a function of the probabilities: a constant added to a row's logits changes it. The paper takes τ = .04 for
    10 classes and .01 for 100.

    >>> import torch
    >>> calibcli.loss("logit_norm:tau=1")(torch.tensor([[3.0, 4.0]]), torch.tensor([1]))
    tensor([0.5981])
    """

    def __init__(self, *, tau: Annotated[float, Range(1e-4, 1e4)] = 0.04) -> None:
        super().__init__()
        self.tau = tau

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        length = (z.square().sum(1, keepdim=True) + LEAST**2).sqrt()
        return F.softplus(-margin(z / (self.tau * length), labels), threshold=THRESHOLD)
