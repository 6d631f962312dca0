"""A loss as curvature code needs it: per-sample values, and the loss Hessian in the logits as a sum over pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from calibcli.derivatives.norms import upcast
from calibcli.losses.adafocal import AdaFocal
from calibcli.losses.focal import Focal, FocalSample, FocalScheduled, InverseFocal
from calibcli.losses.logspace import log_not_p, log_p, margin, surprise_ratio
from calibcli.losses.proper import CrossEntropy, LabelSmoothing
from calibcli.losses.shelf import Loss


class CurvatureForm:
    """A loss `(logits (N, K), labels (N,)) -> (N,)` whose logit Hessian is known in pairs.

    `Hess_z = Σ_c l_c (e_c - p)(e_c - p)'` with signed `l = pair_weights(logits, labels)`: `l_c = p_c` for
    cross-entropy; for a loss `F(log p_y)` of the true class, `l_c = -F' p_c + 1[c=y] F''`.

    Attributes:
        name: the loss's canonical spec.
        has_pairs: whether `pair_weights` is known in closed form.
    """

    def __init__(self, loss: Loss, name: str) -> None:
        self.loss, self.name = loss, name
        plain = not getattr(loss, "smoothing", 0)
        known = (CrossEntropy, LabelSmoothing, FocalScheduled, FocalSample, InverseFocal, AdaFocal)
        self.has_pairs = isinstance(loss, known) or (isinstance(loss, Focal) and plain)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses: Tensor = self.loss(logits, labels)
        return losses

    def pair_weights(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Signed weights l `(N, K)` of the pairs, or None where the Hessian has no such closed form."""
        if not self.has_pairs:
            return None
        z = upcast(logits)
        p, m = z.softmax(1), margin(z, labels)
        gamma = self.loss.gammas(z, labels)
        if isinstance(self.loss, InverseFocal):
            first, second = inverse_terms(m, torch.full_like(m, self.loss.gamma))
        elif isinstance(self.loss, AdaFocal):
            assert gamma is not None
            pairs = zip(focal_terms(m, gamma.clamp(min=0)), inverse_terms(m, (-gamma).clamp(min=0)))
            first, second = (torch.where(gamma >= 0, a, b) for a, b in pairs)
        elif gamma is None:
            first, second = torch.ones_like(m), torch.zeros_like(m)
        else:
            first, second = focal_terms(m, gamma.to(m.dtype))
        weights = first.unsqueeze(1) * p
        weights = weights.scatter_add(1, labels.unsqueeze(1), second.unsqueeze(1))
        return weights * self.loss.weights(z, labels).unsqueeze(1)


def focal_terms(m: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """`g(p, γ)` and `-p dg/dp` of a class with margin m.

    `dg/dp = γ (1-p)^(γ-2) [-2(1-p) - (1-p) log p + (γ-1) p log p]`, here with `log p = -(1-p) u`.
    """
    p, x, u, rest = torch.sigmoid(m), torch.sigmoid(-m), surprise_ratio(m), log_not_p(m)
    g = torch.exp(gamma * rest) * (1 + gamma * p * u)
    # for γ < 1 this grows as p -> 1, where |e_y - p|² takes it to 0: bounded, so that the product is not inf · 0
    power = torch.exp((gamma - 1) * rest.clamp(min=-60.0))
    return g, -gamma * power * p * (-2 + x * u - (gamma - 1) * p * u)


def inverse_terms(m: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """`-F'` and `F''` in `L = log p` of `F = -(1+p)^γ L`."""
    p, L = torch.sigmoid(m), log_p(m)
    power = torch.exp((gamma - 1) * torch.log1p(p))
    first = power * (1 + p + gamma * p * L)
    second = -gamma * p * power * (2 + L + (gamma - 1) * p * L / (1 + p))
    return first, second
