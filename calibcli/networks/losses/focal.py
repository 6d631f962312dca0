"""Focal losses: fixed, scheduled and per-sample γ, dual and inverse forms, proper focal loss, and AdaFocal."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calibcli.core.errors import UsageError
from calibcli.core.options import BINS, Count, Range, Share
from calibcli.core.statistics import bisect
from calibcli.networks.derivatives.normalisation import upcast
from calibcli.networks.losses.registry import (
    LOSSES,
    THRESHOLD,
    Gamma,
    Loss,
    Weights,
    log_both,
    log_not_p,
    log_p,
    margin,
    surprise_ratio,
)

# The gradient of focal loss relative to that of cross-entropy, and the γ that suits a probability.
#
# `grad FL = g(p, γ) grad CE` per sample, with `g = (1-p)^γ - γ p (1-p)^(γ-1) log p` (Mukhoti et al. 2020).

EXACT = 1100  # halvings after which the ends of any bracket are neighbours in float64


def focal_factor(p: float, gamma: float) -> float:
    """Compute `g(p, γ)`, the ratio of the focal gradient to that of cross-entropy, for 0 < p < 1."""
    return math.exp(gamma * math.log1p(-p)) * (1 - gamma * p * math.log(p) / (1 - p))


def gamma_star(p0: float) -> float:
    """Compute the smallest γ for which g(p, γ) <= 1 at every p >= p0; 0 for p0 >= 1/2.

    The root of `f(γ) = (γ-1) ln a + ln(a - γ b)`, a = 1-p0, b = p0 ln p0, to the right of its maximum: concave. Equal
    to the closed form with Lambert's W_{-1}, but keeps its digits near 1/2.

    Raises:
        UsageError: p0 <= 0 (γ* is infinite) or p0 > 1.
    """
    if not 0 < p0 <= 1:
        raise UsageError(f"p0={p0} has no γ*", "pass a probability above 0 (γ* grows without bound towards 0)")
    if p0 >= 0.5:
        return 0.0
    a, b, log_a = 1 - p0, p0 * math.log(p0), math.log1p(-p0)

    def f(gamma: float) -> float:
        return (gamma - 1) * log_a + math.log(a - gamma * b)

    top = max(a / b - 1 / log_a, 0.0)
    high = top + 1e-3
    while f(high) > 0:
        high = top + 2 * (high - top)
    return bisect(f, top, high, EXACT)[0]


def peak_p(gamma: float) -> float:
    """Find the probability at which g(p, γ) is largest: the root of `2 (1-p)/log p + 1 - γ p`, for γ > 0."""
    return bisect(lambda p: 2 * (1 - p) / math.log(p) + 1 - gamma * p, 1e-300, 0.5, EXACT)[0]


def critical_p(gamma: float) -> float:
    """Find the probability p0(γ) above which g(p, γ) < 1: gradients shrink there and grow below, for γ > 0."""
    return bisect(lambda p: math.log(focal_factor(p, gamma)), peak_p(gamma), 0.5, EXACT)[0]


# Focal losses: one γ, a γ per epoch, a γ per sample, and the dual and inverse forms.


Gammas = Annotated[tuple[float, ...], Range(0, 1000)]


def focal(m: Tensor, gamma: float | Tensor) -> Tensor:
    """Compute `-(1-p)^γ log p` of a class with margin m; γ = 0 is cross-entropy to the last bit."""
    ce = F.softplus(-m, threshold=THRESHOLD)
    if isinstance(gamma, float) and gamma == 0:
        return ce
    return torch.exp(gamma * log_not_p(m)) * ce


def inverse_focal(m: Tensor, gamma: float | Tensor) -> Tensor:
    """Compute `-(1+p)^γ log p` of a class with margin m, γ >= 0."""
    return torch.exp(gamma * torch.log1p(torch.sigmoid(m))) * F.softplus(-m, threshold=THRESHOLD)


def focal_terms(m: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """Compute `g(p, γ)` and `-p dg/dp` of a class with margin m.

    `dg/dp = γ (1-p)^(γ-2) [-2(1-p) - (1-p) log p + (γ-1) p log p]`, here with `log p = -(1-p) u`.
    """
    p, x, u, log_x = torch.sigmoid(m), torch.sigmoid(-m), surprise_ratio(m), log_not_p(m)
    g = torch.exp(gamma * log_x) * (1 + gamma * p * u)
    # for γ < 1 this grows as p -> 1, where |e_y - p|² takes it to 0: bounded, so that the product is not inf · 0
    power = torch.exp((gamma - 1) * log_x.clamp(min=-60.0))
    return g, -gamma * power * p * (-2 + x * u - (gamma - 1) * p * u)


def inverse_terms(m: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """Compute `-F'` and `F''` in `L = log p` of `F = -(1+p)^γ L`."""
    p, L = torch.sigmoid(m), log_p(m)
    power = torch.exp((gamma - 1) * torch.log1p(p))
    first = power * (1 + p + gamma * p * L)
    second = -gamma * p * power * (2 + L + (gamma - 1) * p * L / (1 + p))
    return first, second


def smoothed_focal(z: Tensor, labels: Tensor, gamma: float, epsilon: float, alpha: Tensor | None) -> Tensor:
    """Compute `-Σ_k t_k α_k (1-p_k)^γ log p_k`, `t = (1-ε) onehot + ε/K`: each class weighted by its probability."""
    log_probability, log_rest = log_both(z)
    terms = -torch.exp(gamma * log_rest) * log_probability
    if alpha is not None:
        terms = terms * alpha.to(z)
    return (1 - epsilon) * terms.gather(1, labels.unsqueeze(1)).squeeze(1) + epsilon * terms.mean(1)


class WithGamma(Loss):
    """A loss with the same γ for every row."""

    gamma: float

    def __init__(self, *, gamma: Gamma, alpha: Weights = ()) -> None:
        super().__init__(alpha=alpha)
        self.gamma = gamma


class OneGamma(WithGamma):
    """Focal loss of one γ."""

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        return focal(margin(z, labels), self.gamma)

    def gammas(self, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.full(labels.shape, self.gamma, device=logits.device)

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor] | None:
        return focal_terms(m, self.gamma)

    @property
    def link_gamma(self) -> float:
        return self.gamma


@LOSSES.add("focal")
class Focal(OneGamma):
    """Focal loss, `-(1-p_y)^γ log p_y` (Lin et al. 2017); any γ >= 0, γ = 0 is cross-entropy.

    >>> import torch
    >>> calibcli.loss("focal:gamma=2")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.0227])

    Args:
        gamma: the focusing parameter.
        alpha: class weights, one per class.
        smoothing: label smoothing ε; each class is then weighted by its own probability,
            `-Σ_k t_k (1-p_k)^γ log p_k`, unless `smoothed=py`: `(1-p_y)^γ` times smoothed cross-entropy.
    """

    def __init__(
        self,
        *,
        gamma: Gamma,
        alpha: Weights = (),
        smoothing: Share = 0.0,
        smoothed: Literal["class", "py"] = "class",
    ) -> None:
        super().__init__(gamma=gamma, alpha=alpha)
        self.smoothing, self.smoothed = smoothing, smoothed
        self.gamma_text = f"{gamma:g}"

    def _weighted(self, z: Tensor, labels: Tensor) -> Tensor:
        if self.smoothing and self.smoothed == "class":  # the weights belong to the classes, not to the sample
            if self.alpha is not None:
                self.weights(z, labels)
            return smoothed_focal(z, labels, self.gamma, self.smoothing, self.alpha)
        return super()._weighted(z, labels)

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        losses = super().values(z, labels)
        if self.smoothing:
            spread = torch.exp(self.gamma * log_not_p(margin(z, labels))) * (z.logsumexp(1) - z.mean(1))
            losses = (1 - self.smoothing) * losses + self.smoothing * spread
        return losses

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor] | None:
        return None if self.smoothing else super().pair_terms(m)


@LOSSES.add("focal_scheduled")
class FocalScheduled(OneGamma):
    """Focal loss whose γ changes at fractions of the run (FLS-531, FLS-532 of Mukhoti et al. 2020).

    Epoch e (0-based) of E uses γ_j while `round(f_{j-1} E) <= e < round(f_j E)`.

    >>> import torch
    >>> calibcli.loss("focal_scheduled")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.0004])

    Args:
        gammas: the values in turn.
        bounds: fractions of the epochs where γ switches, one fewer than the values.

    Raises:
        UsageError: the bounds are not one fewer than `gammas`, do not rise, or leave a value without an epoch.
    """

    def __init__(
        self, *, gammas: Gammas = (5.0, 3.0, 1.0), bounds: Annotated[tuple[float, ...], Range(0, 1)] = (2 / 7, 5 / 7)
    ) -> None:
        super().__init__(gamma=gammas[0])
        self.values_in_turn = list(gammas)
        self.bounds = check_increasing("bounds", bounds, len(gammas) - 1)

    def start_epoch(self, epoch: int, epochs: int, validation: tuple[Tensor, Tensor] | None = None) -> None:
        """Pick the γ of this epoch.

        Raises:
            UsageError: two bounds round to the same epoch.
        """
        switches = [round(f * epochs) for f in self.bounds]
        if any(b <= a for a, b in zip([0, *switches], [*switches, epochs])):
            problem = f"γ would switch at epochs {', '.join(map(str, switches))} of {epochs}: one value gets no epoch"
            raise UsageError(problem, "train for more epochs, or spread the bounds")
        self.gamma = self.values_in_turn[sum(epoch >= s for s in switches)]
        self.gamma_text = f"{self.gamma:g}"

    def finish(self) -> None:
        self.gamma = self.values_in_turn[-1]


@LOSSES.add("focal_sample")
class FocalSample(Loss):
    """Focal loss with a γ per sample, by its current p_y (FLA-53, FLA-532 of Mukhoti et al. 2020; FLSD).

    p_y is detached, so γ is constant under differentiation; the loss jumps where p_y crosses a threshold, and its
    derivatives hold almost everywhere.

    >>> import torch
    >>> calibcli.loss("focal_sample")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.0061])

    Args:
        thresholds: increasing probabilities that part the γ values.
        gammas: one more value than thresholds, for the lowest p_y first; `auto` takes γ*(θ) of each interval's upper
            threshold and γ*(p_last) for the last interval.
        closed: `left`: an interval holds its lower threshold (p < θ); `right`: its upper one (p <= θ).
        p_last: the probability whose γ* the last interval takes with `auto`.
        step: with `auto`, round γ* up to a multiple of this; 0 leaves it.

    Raises:
        UsageError: the thresholds are not one fewer than `gammas`, or do not rise.
    """

    def __init__(
        self,
        *,
        gammas: Gammas | Literal["auto"] = (5.0, 3.0),
        thresholds: Annotated[tuple[float, ...], Range(0, 1, open_low=True)] = (0.2,),
        closed: Literal["left", "right"] = "left",
        p_last: Annotated[float, Range(1e-3, 1)] = 0.25,
        step: Annotated[float, Range(0, 100)] = 0.0,
    ) -> None:
        super().__init__()
        if gammas == "auto":
            stars = [gamma_star(p) for p in (*thresholds, p_last)]
            gammas = tuple(math.ceil(g / step - 1e-9) * step if step else g for g in stars)
        self.closed = closed
        edges = check_increasing("thresholds", thresholds, len(gammas) - 1)
        self.register_buffer("edges", torch.tensor(edges, dtype=torch.float64), persistent=False)
        self.register_buffer("steps", torch.tensor(gammas, dtype=torch.float64), persistent=False)
        self.gamma_text = "/".join(f"{g:g}" for g in gammas)

    edges: Tensor
    steps: Tensor

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        m = margin(z, labels)
        return focal(m, self._gammas(m))

    def gammas(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._gammas(margin(logits, labels))

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor]:
        return focal_terms(m, self._gammas(m))

    def _gammas(self, m: Tensor) -> Tensor:
        p = torch.sigmoid(m.detach())
        index = torch.bucketize(p, self.edges.to(p), right=self.closed == "left")
        return self.steps.to(m)[index]


@LOSSES.add("inverse_focal")
class InverseFocal(WithGamma):
    """Inverse focal loss, `-(1+p_y)^γ log p_y` (Wang et al. 2021); it presses on easy samples. γ >= 0.

    >>> import torch
    >>> calibcli.loss("inverse_focal:gamma=2")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.9387])
    """

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        return inverse_focal(margin(z, labels), self.gamma)

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor]:
        return inverse_terms(m, self.gamma)


@LOSSES.add("dual_focal")
class DualFocal(WithGamma):
    """Dual focal loss, `-(1 - p_y + p_j)^γ log p_y`, p_j the largest probability strictly below p_y (Tao et al. 2023).

    p_j is 0 where there is none. The loss jumps where the true class ties with another; derivatives hold almost
    everywhere, and go through p_j.

    >>> import torch
    >>> calibcli.loss("dual_focal:gamma=2")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.0906])
    """

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        index = labels.unsqueeze(1)
        m = margin(z, labels)
        below = z.detach().masked_fill(z.detach() >= z.detach().gather(1, index), -torch.inf)
        highest, j = below.max(1)
        exists = highest > -torch.inf
        log_not = log_not_p(m)
        other = z.log_softmax(1).gather(1, j.unsqueeze(1)).squeeze(1)
        # log(1 - p_y + p_j), with p_j <= 1 - p_y
        base = log_not + torch.where(exists, F.softplus(torch.where(exists, other, log_not) - log_not), 0.0)
        return -torch.exp(self.gamma * base) * log_p(m)


def check_increasing(name: str, values: tuple[float, ...], count: int) -> list[float]:
    """Return `values` if they are `count` strictly increasing numbers in (0, 1).

    Raises:
        UsageError: they are not.
    """
    if len(values) != count:
        raise UsageError(f"{len(values)} {name} for {count + 1} gammas", f"pass {count} {name}, one fewer than gammas")
    if any(not a < b for a, b in zip((0.0, *values), (*values, 1.0))):
        problem = f"{name}={'/'.join(f'{v:g}' for v in values)} do not increase within (0, 1)"
        raise UsageError(problem, "pass them in rising order")
    return list(values)


# Proper focal loss: focal loss composed with the inverse of its calibration map, and so strictly proper.


def log_h(a: Tensor, gamma: float) -> Tensor:
    """Compute `ln h` of the probability with log-odds a, `h(q) = -1/ℓ'(q) = q / g(q, γ)` for focal ℓ; increasing."""
    return log_p(a) - gamma * log_not_p(a) - torch.log1p(gamma * torch.sigmoid(a) * surprise_ratio(a))


def slope(a: Tensor, gamma: float) -> Tensor:
    """Compute `d ln h / da` at log-odds a: 1 towards q = 0, γ towards q = 1; positive for γ > 0."""
    q, x, u = torch.sigmoid(a), torch.sigmoid(-a), surprise_ratio(a)
    return x + gamma * q - gamma * q * (u - 1) / (1 + gamma * q * u)


class InverseMap(torch.autograd.Function):
    """Compute log-odds a of `q = φ_γ^{-1}(softmax z)`, `(N, K) -> (N, K)`; any number of derivatives, in closed form.

    Differentiating `ln h(q_k) = t + z_k` and `Σ q_k = 1`:
    `da_k = (dz_k - Σ_j w_j dz_j) / slope_k`, `w ∝ q (1-q) / slope`. The backward is written in a itself, so autograd
    differentiates it again through this same rule.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, gamma: float) -> Tensor:
        a = solve(z, gamma)
        ctx.save_for_backward(a)
        ctx.gamma = gamma
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        scaled = grads[0] / slope(a, ctx.gamma)
        w = (log_p(a) + log_not_p(a) - slope(a, ctx.gamma).log()).softmax(1)
        return scaled - w * scaled.sum(1, keepdim=True), None


def solve(z: Tensor, gamma: float) -> Tensor:
    """Solve for log-odds a `(N, K)` of `q = φ_γ^{-1}(softmax z)`.

    Newton on `ln h(a_k) = t + log p_k` and, so that saturated rows keep their digits, on the constraint in log space
    `logsumexp_{k != top} log q_k = log(1 - q_top)`. Both are close to linear in a, so that 4 to 7 steps suffice.
    """
    log_probability = z.log_softmax(1)
    top = z.argmax(1, keepdim=True)
    is_top = torch.zeros_like(z, dtype=torch.bool).scatter(1, top, True)
    a = torch.where(is_top, margin(z, top.squeeze(1)).unsqueeze(1) / (1 + gamma), log_probability)
    for _ in range(50):
        s = slope(a, gamma)
        missing = log_probability - log_h(a, gamma)
        others = log_p(a).masked_fill(is_top, -torch.inf)
        total = others.logsumexp(1, keepdim=True)
        c = torch.where(is_top, torch.sigmoid(a), (others - total).exp() * torch.sigmoid(-a)) / s
        excess = total - log_not_p(a.gather(1, top))
        step = (missing - (excess + (c * missing).sum(1, keepdim=True)) / c.sum(1, keepdim=True)) / s
        a = a + step
        if not bool((step.abs() > 4 * torch.finfo(a.dtype).eps * (1 + a.abs())).any()):
            break
    return a


@LOSSES.add("proper_focal")
class ProperFocal(Loss):
    """Focal loss of `φ_γ^{-1}(softmax z)`: strictly proper, with focal loss's weighting of samples.

    Not cross-entropy of φ_γ(softmax z), which is a different loss. Training plain focal loss and reporting
    φ_γ(softmax z) trains the same network with the map as a fixed last layer.

    Source: Komisarenko and Kull (2024), who take focal loss apart into φ_γ and a proper loss.

    >>> import torch
    >>> calibcli.loss("proper_focal:gamma=2")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.0870])
    """

    def __init__(self, *, gamma: Gamma) -> None:
        super().__init__()
        self.gamma = gamma

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        if self.gamma == 0:  # the map is the identity
            return focal(margin(z, labels), 0.0)
        a: Tensor = InverseMap.apply(z, self.gamma)  # type: ignore[no-untyped-call]
        return focal(a.gather(1, labels.unsqueeze(1)).squeeze(1), self.gamma)


# AdaFocal: γ per confidence bin, steered by the validation calibration error after every epoch.


def adafocal_update(
    gamma: float, error: float, *, rate: float = 1.0, switch: float = 0.2, low: float = -2.0, high: float = 20.0
) -> float:
    """Compute the next γ of a bin whose `error` is mean confidence minus accuracy (Ghosh et al. 2022).

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
        bins: Count = BINS,
        rate: Annotated[float, Range(0, 100)] = 1.0,
        switch: Annotated[float, Range(0, 100)] = 0.2,
        low: Annotated[float, Range(-1000, 0)] = -2.0,
        high: Annotated[float, Range(0, 1000)] = 20.0,
    ) -> None:
        super().__init__()
        self.steering = {"rate": rate, "switch": switch, "low": low, "high": high}
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
                self.bin_gammas[b] = adafocal_update(float(self.bin_gammas[b]), error, **self.steering)
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
