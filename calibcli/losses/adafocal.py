"""AdaFocal: γ per confidence bin, steered by the validation calibration error after every epoch."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from calibcli.derivatives.normalisation import upcast
from calibcli.errors import UsageError
from calibcli.losses.focal import focal, focal_terms, inverse_focal, inverse_terms
from calibcli.losses.logspace import margin
from calibcli.losses.shelf import LOSSES, Loss
from calibcli.spec import Count, Range


def adafocal_update(
    gamma: float, error: float, *, rate: float = 1.0, switch: float = 0.2, low: float = -2.0, high: float = 20.0
) -> float:
    """The next γ of a bin whose `error` is mean confidence minus accuracy (Ghosh et al. 2022).

    `γ e^{λE}` for γ > 0, `γ e^{-λE}` else; below `switch` in size the sign flips; then clipped to [low, high].
    """
    gamma *= math.exp(rate * error if gamma > 0 else -rate * error)
    if abs(gamma) < switch:
        gamma = -switch if gamma > 0 else switch
    return min(max(gamma, low), high)


@LOSSES.add("adafocal")
class AdaFocal(Loss):
    """AdaFocal (Ghosh et al. 2022): focal where γ > 0, inverse focal where γ < 0, γ by the bin of p_y.

    Bins hold equal numbers of validation samples by top confidence; they start equal in width with γ = 1. The
    validation rows steer training, so a temperature should be fitted on others.

    >>> import torch
    >>> calibcli.loss("adafocal")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.0842])

    Args:
        bins: number of bins.
        rate: λ of the update.
        switch: the |γ| below which the sign flips.
        low, high: range of γ.

    Raises:
        UsageError: there is no validation set.
    """

    edges: Tensor
    bin_gammas: Tensor
    needs_validation = True

    def __init__(
        self,
        *,
        bins: Count = 15,
        rate: Annotated[float, Range(0, 100)] = 1.0,
        switch: Annotated[float, Range(0, 100)] = 0.2,
        low: Annotated[float, Range(-1000, 0)] = -2.0,
        high: Annotated[float, Range(0, 1000)] = 20.0,
    ) -> None:
        super().__init__()
        self.rate, self.switch, self.low, self.high = rate, switch, low, high
        self.register_buffer("edges", torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].clone())
        self.register_buffer("bin_gammas", torch.ones(bins, dtype=torch.float64))
        self.gamma_text = "1"

    def start_epoch(self, epoch: int, epochs: int, validation: tuple[Tensor, Tensor] | None = None) -> None:
        """Move the bins and γ by the validation logits and labels after the previous epoch; nothing at epoch 0.

        Raises:
            UsageError: no validation data after the first epoch.
        """
        if epoch > 0:
            if validation is None:
                raise UsageError("adafocal needs validation data", "pass --validation or --val-fraction")
            logits, labels = validation
            p, top = logits.double().softmax(1).max(1)
            order = p.argsort(stable=True)
            groups = [g for g in order.tensor_split(len(self.bin_gammas)) if len(g)]
            correct = (top == labels).double()
            for b, rows in enumerate(groups):
                error = float(p[rows].mean() - correct[rows].mean())
                self.bin_gammas[b] = adafocal_update(
                    float(self.bin_gammas[b]), error, rate=self.rate, switch=self.switch, low=self.low, high=self.high
                )
            starts = torch.stack([p[g[0]] for g in groups[1:]]) if len(groups) > 1 else p.new_empty(0)
            self.edges.fill_(1.0)
            self.edges[: len(starts)] = starts
        self.gamma_text = f"{float(self.bin_gammas.min()):.3g}..{float(self.bin_gammas.max()):.3g}"

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        m = margin(z, labels)
        gamma = self._gammas(m)
        return torch.where(gamma >= 0, focal(m, gamma.clamp(min=0)), inverse_focal(m, (-gamma).clamp(min=0)))

    def gammas(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._gammas(margin(upcast(logits), labels))

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor]:
        gamma = self._gammas(m)
        outward, inward = focal_terms(m, gamma.clamp(min=0)), inverse_terms(m, (-gamma).clamp(min=0))
        return torch.where(gamma >= 0, outward[0], inward[0]), torch.where(gamma >= 0, outward[1], inward[1])

    def _gammas(self, m: Tensor) -> Tensor:
        p = torch.sigmoid(m.detach())
        return self.bin_gammas.to(m)[torch.bucketize(p, self.edges.to(p), right=True)]
