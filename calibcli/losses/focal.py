"""Focal losses: one γ, a γ per epoch, a γ per sample, and the dual and inverse forms."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calibcli.errors import UsageError
from calibcli.losses.gamma import gamma_star
from calibcli.losses.logspace import THRESHOLD, log_both, log_not_p, log_p, margin, surprise_ratio
from calibcli.losses.shelf import LOSSES, Gamma, Loss, Weights
from calibcli.spec import Range, Share

Gammas = Annotated[tuple[float, ...], Range(0, 1000)]


def focal(m: Tensor, gamma: float | Tensor) -> Tensor:
    """`-(1-p)^γ log p` of a class with margin m; γ = 0 is cross-entropy to the last bit."""
    ce = F.softplus(-m, threshold=THRESHOLD)
    if isinstance(gamma, float) and gamma == 0:
        return ce
    return torch.exp(gamma * log_not_p(m)) * ce


def inverse_focal(m: Tensor, gamma: float | Tensor) -> Tensor:
    """`-(1+p)^γ log p` of a class with margin m, γ >= 0."""
    return torch.exp(gamma * torch.log1p(torch.sigmoid(m))) * F.softplus(-m, threshold=THRESHOLD)


def focal_terms(m: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """`g(p, γ)` and `-p dg/dp` of a class with margin m.

    `dg/dp = γ (1-p)^(γ-2) [-2(1-p) - (1-p) log p + (γ-1) p log p]`, here with `log p = -(1-p) u`.
    """
    p, x, u, rest = torch.sigmoid(m), torch.sigmoid(-m), surprise_ratio(m), log_not_p(m)
    g = torch.exp(gamma * rest) * (1 + gamma * p * u)
    # for γ < 1 this grows as p -> 1, where |e_y - p|² takes it to 0: bounded, so that the product is not inf · 0
    power = torch.exp((gamma - 1) * rest.clamp(min=-60.0))
    return g, -gamma * power * p * (-2 + x * u - (gamma - 1) * p * u)


def inverse_terms(m: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """`-F'` and `F''` in `L = log p` of `F = -(1+p)^γ L`."""
    p, L = torch.sigmoid(m), log_p(m)
    power = torch.exp((gamma - 1) * torch.log1p(p))
    first = power * (1 + p + gamma * p * L)
    second = -gamma * p * power * (2 + L + (gamma - 1) * p * L / (1 + p))
    return first, second


def smoothed_focal(z: Tensor, labels: Tensor, gamma: float, epsilon: float, alpha: Tensor | None) -> Tensor:
    """`-Σ_k t_k α_k (1-p_k)^γ log p_k` with `t = (1-ε) onehot + ε/K`: every class weighted by its own probability."""
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
            raise UsageError(
                f"γ would switch at epochs {', '.join(map(str, switches))} of {epochs}: one value gets no epoch",
                "train for more epochs, or spread the bounds",
            )
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
        rest = log_not_p(m)
        other = z.log_softmax(1).gather(1, j.unsqueeze(1)).squeeze(1)
        # log(1 - p_y + p_j), with p_j <= 1 - p_y
        base = rest + torch.where(exists, F.softplus(torch.where(exists, other, rest) - rest), 0.0)
        return -torch.exp(self.gamma * base) * log_p(m)


def check_increasing(name: str, values: tuple[float, ...], count: int) -> list[float]:
    """`values` if they are `count` strictly increasing numbers in (0, 1).

    Raises:
        UsageError: they are not.
    """
    if len(values) != count:
        raise UsageError(f"{len(values)} {name} for {count + 1} gammas", f"pass {count} {name}, one fewer than gammas")
    if any(not a < b for a, b in zip((0.0, *values), (*values, 1.0))):
        raise UsageError(
            f"{name}={'/'.join(f'{v:g}' for v in values)} do not increase within (0, 1)", "pass them in rising order"
        )
    return list(values)
