"""Penalties on the logits of a batch: label smoothing with a margin, class-wise means, pairs of classes."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calibcli.derivatives.normalisation import upcast
from calibcli.losses.shelf import PENALTIES, Batch, Penalty
from calibcli.spec import NotNegative, Range


@PENALTIES.add("mbls")
class MbLS(Penalty):
    """Margin-based label smoothing: how far logits lie more than `margin` below the largest (Liu et al. 2022).

    Mean over rows of `Σ_k max(0, max_j z_j - z_k - margin)`, divided by K with `over=mean`, as in their code, for which
    their weight of .1 is.

    >>> run = calibcli.train(model, None, loss="ce+mbls:margin=2", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["loss"]
    'ce+mbls:margin=2'

    Args:
        weight: λ.  margin: logits within it of the largest are free.  over: `mean` or `sum` over the classes.
    """

    def __init__(
        self,
        *,
        weight: NotNegative = 0.1,
        margin: Annotated[float, Range(0, 1e6)] = 10.0,
        over: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(weight)
        self.margin, self.over = margin, over

    def value(self, batch: Batch) -> Tensor:
        z = upcast(batch.logits)
        beyond = F.relu(z.amax(1, keepdim=True) - z - self.margin)
        return (beyond.mean(1) if self.over == "mean" else beyond.sum(1)).mean()


@PENALTIES.add("mdca")
class MDCA(Penalty):
    """Multi-class difference of confidence and accuracy (Hebbalaguppe et al. 2022), of the means of the batch.

    `K^-1 Σ_k |N^-1 Σ_i p_ik - N^-1 Σ_i 1[y_i = k]|`; the paper adds it to focal loss. It depends on the batch size.
    Under several processes it is that of each process's own rows.

    >>> run = calibcli.train(model, None, loss="focal:gamma=1+mdca", epochs=1, device="cpu")
    >>> 0 < run.facts["runs"][0]["last_epoch"]["penalty_mdca"] < 1
    True

    Args:
        weight: β.
    """

    pairs_rows = True

    def __init__(self, *, weight: NotNegative = 1.0) -> None:
        super().__init__(weight)

    def value(self, batch: Batch) -> Tensor:
        p = upcast(batch.logits).softmax(1)
        share = torch.bincount(batch.labels, minlength=p.shape[1]).to(p.dtype) / len(p)
        return (p.mean(0) - share).abs().mean()


@PENALTIES.add("cpc")
class CPC(Penalty):
    """Calibration by pairwise constraints (Cheng and Vasconcelos 2022): the label and each other class, and these.

    Mean over rows of `(K-1)^-1 Σ_{k≠y} -log σ(z_y - z_k)`, which tells the label from each other class by itself, and
    `exclusion` times the mean over ordered pairs j, k ≠ y of `-log σ(z_j - z_k)`, which is least where the others are
    alike. Two classes have no such pair.

    >>> run = calibcli.train(model, None, loss="ce+cpc:weight=0.1", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["last_epoch"]["penalty_cpc"] > 0
    True

    Args:
        weight: λ of both.  exclusion: of the second, in units of the first.
    """

    def __init__(self, *, weight: NotNegative = 1.0, exclusion: NotNegative = 1.0) -> None:
        super().__init__(weight)
        self.exclusion = exclusion

    def value(self, batch: Batch) -> Tensor:
        z, y = upcast(batch.logits), batch.labels.unsqueeze(1)
        n, k = z.shape
        others = z.masked_select(torch.ones_like(z, dtype=torch.bool).scatter(1, y, False)).view(n, k - 1)
        value = F.softplus(others - z.gather(1, y)).mean()
        if k > 2 and self.exclusion:
            apart = others.unsqueeze(2) - others.unsqueeze(1)
            pairs = F.softplus(apart).sum((1, 2)) - (k - 1) * F.softplus(z.new_zeros(()))  # without j = k
            value = value + self.exclusion * pairs.mean() / ((k - 1) * (k - 2))
        return value
