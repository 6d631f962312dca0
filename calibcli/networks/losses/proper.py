"""Cross-entropy, label smoothing, the Brier score, and cross-entropy of normalised logits."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from calibcli.core.options import Range, Share
from calibcli.networks.losses.registry import LOSSES, THRESHOLD, Loss, log_not_p, margin


@LOSSES.add("ce")
class CrossEntropy(Loss):
    """Cross-entropy, `-log p_y`.

    Equivalent to `F.cross_entropy(logits, labels, reduction="none")`, with full relative accuracy at saturation.

    The logarithmic score of Good (1952), in nats.

    >>> import torch
    >>> calibcli.loss("ce")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.3133])
    """

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        return F.softplus(-margin(z, labels), threshold=THRESHOLD)

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(m), torch.zeros_like(m)


@LOSSES.add("label_smoothing")
class LabelSmoothing(CrossEntropy):
    """Cross-entropy against `(1-ε) onehot + ε/K` (Szegedy et al. 2016).

    Equivalent to `F.cross_entropy(logits, labels, label_smoothing=ε, reduction="none")`.

    >>> import torch
    >>> calibcli.loss("label_smoothing:epsilon=0.1")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.3633])
    """

    # the curvature is that of cross-entropy: what smoothing adds to it is linear in z

    def __init__(self, *, epsilon: Share = 0.05) -> None:
        super().__init__()
        self.epsilon = epsilon

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        uniform = z.logsumexp(1) - z.mean(1)
        return (1 - self.epsilon) * F.softplus(-margin(z, labels), threshold=THRESHOLD) + self.epsilon * uniform


@LOSSES.add("brier")
class Brier(Loss):
    """Brier score, `Σ_k (p_k - 1[k=y])²`: summed over classes, in [0, 2] (Brier 1950).

    >>> import torch
    >>> calibcli.loss("brier")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.1447])
    """

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        wrong = z.softmax(1).scatter(1, labels.unsqueeze(1), 0.0)
        return torch.exp(2 * log_not_p(margin(z, labels))) + wrong.square().sum(1)


LEAST = 1e-7  # added to the length of logits, so that logits of zero have a derivative


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
