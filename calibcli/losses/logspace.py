"""Probabilities of a softmax in log space, exact at saturation and twice differentiable there.

With the margin `m_k = z_k - logsumexp_{j != k} z_j` of a class, `log p_k = -softplus(-m_k)` and
`log(1 - p_k) = -softplus(m_k)`. Nothing here forms `1 - p` by subtraction. `softplus` keeps its accuracy under double
backward where `logsigmoid` loses all of it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

THRESHOLD = 40.0  # above it softplus(x) = x to the last bit in float64, and exp(x) is still finite in float32


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-odds `(N,)` of the labelled class: `z_y - logsumexp_{j != y} z_j`."""
    index = labels.unsqueeze(1)
    others = logits.scatter(1, index, -torch.inf).logsumexp(1)
    return logits.gather(1, index).squeeze(1) - others


def log_p(m: Tensor) -> Tensor:
    """`log p` of a class with margin m."""
    return -F.softplus(-m, threshold=THRESHOLD)


def log_not_p(m: Tensor) -> Tensor:
    """`log(1 - p)` of a class with margin m."""
    return -F.softplus(m, threshold=THRESHOLD)


def log_both(logits: Tensor) -> tuple[Tensor, Tensor]:
    """`log p` and `log(1 - p)` of every class, each `(N, K)`.

    Only the top class can have p > 1/2; it goes through its margin, for the others `log1p(-p)` is safe.
    """
    top = logits.argmax(1)
    is_top = torch.zeros_like(logits, dtype=torch.bool).scatter(1, top.unsqueeze(1), True)
    m = margin(logits, top).unsqueeze(1)
    log_probability = logits.log_softmax(1)
    others = log_probability.masked_fill(is_top, -torch.inf).exp()
    return torch.where(is_top, log_p(m), log_probability), torch.where(is_top, log_not_p(m), torch.log1p(-others))


def surprise_ratio(m: Tensor) -> Tensor:
    """`u = -log p / (1 - p)` of a class with margin m: 1 at p = 1, growing like -log p at p = 0."""
    x = torch.sigmoid(-m)
    small = x < 1e-3
    series = 1 + x * (1 / 2 + x * (1 / 3 + x * (1 / 4 + x / 5)))
    return torch.where(small, series, -log_p(m) / torch.where(small, 1.0, x))
