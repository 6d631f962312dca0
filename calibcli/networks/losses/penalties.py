"""Penalties that are added to a loss: MMCE, the trace of the curvature, and penalties on the logits of a batch."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.core.errors import UsageError
from calibcli.core.options import NotNegative, Range
from calibcli.networks.derivatives.double_backward import Twice
from calibcli.networks.derivatives.jets import Jets
from calibcli.networks.derivatives.normalisation import upcast, wrong_thrice
from calibcli.networks.losses.registry import PENALTIES, Batch, Penalty, log_p, margin


@PENALTIES.add("mmce")
class MMCE(Penalty):
    """Maximum mean calibration error of the batch, weighted form (Kumar et al. 2018); weight 2 for images, 8 for text.

    With r the top confidence, a its correctness and `k = exp(-|r - r'| / width)`:
    `MMCE_w² = n1^-2 Σ_cc (1-r)(1-r')k + n0^-2 Σ_ww r r' k - 2 (n1 n0)^-1 Σ_cw (1-r) r' k`; 0 where all rows are right
    or all are wrong. It depends on the batch size and costs its square. Under several processes it is that of each
    process's own rows.

    >>> run = calibcli.train(model, None, loss="ce+mmce", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["loss"]
    'ce+mmce'

    Args:
        weight: λ.
        form: `weighted`, or `plain`: `N^-2 Σ (a-r)(a'-r')k`.
        normalisation: `paper`, or `code`: each term of the weighted form divided twice by its count, as public code
            does (then a given weight presses far less).
        width: of the kernel.
    """

    pairs_rows = True

    def __init__(
        self,
        *,
        weight: NotNegative = 2.0,
        form: Literal["weighted", "plain"] = "weighted",
        normalisation: Literal["paper", "code"] = "paper",
        width: Annotated[float, Range(1e-6, 1e6)] = 0.4,
    ) -> None:
        super().__init__(weight)
        self.form, self.normalisation, self.width = form, normalisation, width

    def value(self, batch: Batch) -> Tensor:
        z = upcast(batch.logits)
        top = z.argmax(1)
        r = log_p(margin(z, top)).exp()
        return self.of_confidence(r, (top == batch.labels).to(r.dtype))

    def of_confidence(self, r: Tensor, correct: Tensor) -> Tensor:
        """Compute the MMCE of confidences and 0/1 correctness, each `(N,)`."""
        k = torch.exp(-(r.unsqueeze(1) - r.unsqueeze(0)).abs() / self.width)
        residual = correct - r
        right = correct.sum()
        wrong = len(r) - right
        count = torch.where(correct > 0, right, wrong) if self.form == "weighted" else torch.full_like(r, len(r))
        if self.form == "weighted" and not (bool(right > 0) and bool(wrong > 0)):
            return r.sum() * 0
        share = 1 / count
        pairs = k * (share * residual).unsqueeze(1) * (share * residual).unsqueeze(0)
        if self.form == "weighted" and self.normalisation == "code":
            pairs = pairs / (count.unsqueeze(1) * count.unsqueeze(0) + 1e-5)
        return (pairs.sum().clamp(min=0) + 1e-10).sqrt()


@PENALTIES.add("trace")
class Trace(Penalty):
    """Trace of the curvature of the batch's mean cross-entropy in the trainable parameters, by Hutchinson's estimator.

    `m^-1 Σ v'Hv` with fresh Rademacher probes at every step (Kimura and Naganuma 2024). The estimate is unbiased, also
    for its gradient, which takes third-order derivatives. It is of all rows of the batch, with the batch's statistics
    in batch norm. The Hessian's trace has no lower bound, and too large a weight drives it far below 0.

    Run the model within `Objective.around`: then v'Hv is carried forward with the values (`Jets`), and the Gauss-Newton
    form has second derivatives of few passes (`Twice`). Without it both take PyTorch's derivatives, which is slower. It
    is refused for the Hessian of a network with batch, layer or group norm, whose third derivatives PyTorch gets wrong.

    >>> run = calibcli.train(model, None, loss="ce+trace:weight=1", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["last_epoch"]["penalty_trace"] > 0
    True

    Args:
        weight: λ.
        kind: `hessian`; `ggn`: the generalised Gauss-Newton matrix, never negative and far cheaper, with the probe
            drawn in logit space, `|J' A^{1/2} w|²`; `relu`: the Hessian's estimate where positive, else 0.
        every: apply it at every n-th step, n times as strong.
        probes: m.

    Raises:
        UsageError: the Hessian's trace of a network with such norms, without `around`.
    """

    def __init__(
        self,
        *,
        weight: NotNegative,
        kind: Literal["hessian", "ggn", "relu"] = "hessian",
        every: Annotated[int, Range(1, 10**9)] = 1,
        probes: Annotated[int, Range(1, 10_000)] = 1,
    ) -> None:
        super().__init__(weight, every)
        self.kind, self.probes = kind, probes
        self.order = 2 if kind == "ggn" else 3
        self._jets: Jets | None = None

    def around(self, model: nn.Module, generator: torch.Generator) -> contextlib.AbstractContextManager[object]:
        if self.kind == "ggn":
            return Twice()
        parameters = moving(model)
        self._jets = Jets(parameters, signs(parameters, self.probes, generator))
        return self._jets

    def value(self, batch: Batch) -> Tensor:
        parameters, z = moving(batch.model), upcast(batch.logits)
        if self.kind == "ggn":
            return ggn_trace(z, batch.labels, parameters, self.probes, batch.generator)
        carried, self._jets = self._jets, None
        jets = None if carried is None else carried.of(batch.logits)
        if jets is not None:
            trace = torch.stack([second_derivative(z, batch.labels, *jet) for jet in jets]).mean()
        else:
            node = wrong_thrice(z)
            if node:
                problem = f"the Hessian's trace through {node} has a wrong gradient in PyTorch"
                raise UsageError(problem, "run the model within Objective.around, or pass kind=ggn")
            drawn = signs(parameters, self.probes, batch.generator) if carried is None else carried.directions
            trace = hessian_trace(z, batch.labels, parameters, drawn)
        return trace.relu() if self.kind == "relu" else trace


def moving(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters, whose curvature is penalised."""
    return [p for p in model.parameters() if p.requires_grad]


def signs(parameters: list[nn.Parameter], probes: int, generator: torch.Generator) -> list[list[Tensor]]:
    """Draw Rademacher probes, each a tensor per parameter."""
    return [[rademacher(p, generator) for p in parameters] for _ in range(probes)]


def second_derivative(logits: Tensor, labels: Tensor, first: Tensor | None, second: Tensor | None) -> Tensor:
    """Differentiate mean cross-entropy twice along a curve on which the logits have this jet.

    It is the mean over rows of `z'ᵀA z' + (p - onehot)ᵀz''`, with A = diag p - p pᵀ.
    """
    p = logits.softmax(1)
    total = torch.zeros_like(logits[:, 0])
    if first is not None:
        first = upcast(first)
        mean = (p * first).sum(1, keepdim=True)
        total = total + (p * (first - mean).square()).sum(1)
    if second is not None:
        second = upcast(second)
        at_label = second.gather(1, labels.unsqueeze(1)).squeeze(1)
        total = total + (p * second).sum(1) - at_label
    return total.mean()


def hessian_trace(logits: Tensor, labels: Tensor, parameters: list[nn.Parameter], probes: list[list[Tensor]]) -> Tensor:
    """Estimate the trace of the Hessian of mean cross-entropy by three reverse passes; unbiased, differentiable."""
    mean = -log_p(margin(logits, labels)).mean()
    gradients = torch.autograd.grad(mean, parameters, create_graph=True, materialize_grads=True)
    forms = []
    for v in probes:
        products = torch.autograd.grad(gradients, parameters, v, create_graph=True, materialize_grads=True)
        forms += [(a * b).sum() for a, b in zip(v, products)]
    return torch.stack(forms).sum() / len(probes)


def ggn_trace(
    logits: Tensor, labels: Tensor, parameters: list[nn.Parameter], probes: int, generator: torch.Generator
) -> Tensor:
    """Estimate the trace of the generalised Gauss-Newton matrix of mean cross-entropy; unbiased, differentiable.

    `A = diag p - p p' = S S'` with `S = diag √p - p √p'`, so `Tr(J'AJ) = E |J' S w|²` over independent signs w in each
    logit: one product with J', and per-sample cross terms average out.
    """
    log_probability = logits.log_softmax(1)
    p, root = log_probability.exp(), (log_probability / 2).exp()
    squares = []
    for _ in range(probes):
        signs = root * rademacher(logits, generator)
        cotangent = (signs - p * signs.sum(1, keepdim=True)) / len(logits) ** 0.5
        gradients = torch.autograd.grad(logits, parameters, cotangent, create_graph=True, materialize_grads=True)
        squares += [g.square().sum() for g in gradients]
    return torch.stack(squares).sum() / probes


def rademacher(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw independent signs of the shape, dtype and device of `like`."""
    return torch.empty_like(like, requires_grad=False).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)


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


@PENALTIES.add("entropy")
class Entropy(Penalty):
    """Confidence penalty: minus the mean entropy of the predicted distributions (Pereyra et al. 2017).

    `N^-1 Σ_i Σ_k p_ik log p_ik`, at least -log K and at most 0.

    >>> run = calibcli.train(model, None, loss="ce+entropy:weight=0.1", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["last_epoch"]["penalty_entropy"] < 0
    True

    Args:
        weight: β, the bonus for each nat of entropy.
    """

    def __init__(self, *, weight: NotNegative = 0.1) -> None:
        super().__init__(weight)

    def value(self, batch: Batch) -> Tensor:
        log_probability = upcast(batch.logits).log_softmax(1)
        return (log_probability.exp() * log_probability).sum(1).mean()


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
            apart = others.unsqueeze(2) - others.unsqueeze(1)  # (n, K - 1, K - 1) z_j - z_k
            pairs = F.softplus(apart).sum((1, 2)) - (k - 1) * F.softplus(z.new_zeros(()))  # without j = k
            value = value + self.exclusion * pairs.mean() / ((k - 1) * (k - 2))
        return value
