"""The shelves of losses and penalties, and what one of each looks like."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from calibcli.derivatives.normalisation import upcast
from calibcli.errors import UsageError
from calibcli.losses.logspace import margin
from calibcli.shelves import Shelf
from calibcli.spec import Range

LOSSES = Shelf("loss", package="calibcli.losses", first=("ce", "label_smoothing", "focal", "brier"))
PENALTIES = Shelf("penalty", package="calibcli.losses")

Gamma = Annotated[float, Range(0, 1000)]
Weights = Annotated[tuple[float, ...], Range(0, 1e9)]


class Loss(nn.Module):
    """A loss per sample: `(logits (N, K), labels (N,) int64) -> (N,)`, in float32 or wider; the caller reduces.

    Half-precision logits are widened and autocast is off inside. Labels must lie in [0, K); this is not checked at
    every step.

    Attributes:
        alpha: class weights (K,), or None.
        gamma_text: what the log says of the current γ, or "".
        spec: canonical spec, where it was made from one.
        needs_validation: whether `start_epoch` takes the validation logits.
    """

    alpha: Tensor | None
    gamma_text = ""
    spec = ""
    needs_validation = False

    def __init__(self, *, alpha: Weights = ()) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64) if alpha else None, persistent=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.spec}')" if self.spec else super().__repr__()

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if logits.ndim != 2:  # dense inputs (N, K, d1, ...): K last, then flat
            logits, labels = logits.movedim(1, -1).flatten(0, -2), labels.flatten()
        z = upcast(logits)
        if torch.is_autocast_enabled(z.device.type):
            with torch.autocast(z.device.type, enabled=False):
                return self._weighted(z, labels)
        return self._weighted(z, labels)

    def _weighted(self, z: Tensor, labels: Tensor) -> Tensor:
        losses = self.values(z, labels)
        return losses if self.alpha is None else losses * self.weights(z, labels)

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        """The loss per sample, before class weights."""
        raise NotImplementedError

    def weights(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The class weight `(N,)` of each sample; ones without `alpha`."""
        if self.alpha is None:
            return torch.ones(len(labels), dtype=upcast(logits).dtype, device=logits.device)
        if len(self.alpha) != logits.shape[1]:
            raise UsageError(
                f"alpha has {len(self.alpha)} weights and the logits have {logits.shape[1]} classes",
                "pass one weight per class, in class order",
            )
        return self.alpha.to(upcast(logits))[labels]

    def gammas(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """The focusing parameter γ `(N,)` that applies to each sample now, or None where the loss has none."""
        return None

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor] | None:
        """`-F'` and `F''`, each `(N,)`, of a loss `F(log p_y)` at margins m of the labels; None for any other loss."""
        return None

    def pair_weights(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Signed weights l `(N, K)` with `Hess_z = Σ_c l_c (e_c - p)(e_c - p)'`, or None where no closed form is known.

        For a loss `F(log p_y)`: `l_c = -F' p_c + 1[c=y] F''`, so `l_c = p_c` for cross-entropy.
        """
        z = upcast(logits)
        terms = self.pair_terms(margin(z, labels))
        if terms is None:
            return None
        first, second = terms
        weights = first.unsqueeze(1) * z.softmax(1)
        weights = weights.scatter_add(1, labels.unsqueeze(1), second.unsqueeze(1))
        return weights * self.weights(z, labels).unsqueeze(1)

    @property
    def link_gamma(self) -> float | None:
        """The γ of the focal map from the network's softmax to probabilities; None where no one γ applies."""
        return None

    def get_extra_state(self) -> dict[str, Any]:
        """What `start_epoch` set apart from buffers, so that a saved loss goes on within an epoch."""
        return {"gamma": getattr(self, "gamma", None), "gamma_text": self.gamma_text}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if type(state["gamma"]) not in (float, int, type(None)) or type(state["gamma_text"]) is not str:
            raise TypeError("the state of the loss is of another kind")
        self.gamma, self.gamma_text = state["gamma"], state["gamma_text"]

    def start_epoch(self, epoch: int, epochs: int, validation: tuple[Tensor, Tensor] | None = None) -> None:
        """Set what depends on the epoch (0-based) or on the validation logits and labels after the previous one."""

    def finish(self) -> None:
        """Go to how it is in the last epochs of a run."""


@dataclass
class Batch:
    """What a penalty sees of a training step.

    Attributes:
        model: the model, in train mode; its trainable parameters are what a curvature penalty differentiates.
        logits, labels: of this batch; the logits' graph is kept.
        step: global step, 0-based.
        generator: source of random probes, on the logits' device.
    """

    model: nn.Module
    logits: Tensor
    labels: Tensor
    step: int
    generator: torch.Generator


class Penalty(nn.Module):
    """A scalar of the model and a batch, added to the mean loss with its weight.

    Attributes:
        weight: its factor λ; 0 leaves the loss exactly as it is.
        every: apply it at every n-th step, n times as strong.
        realised: its last value, without the weight (detached).
        order: derivatives of the model's output that training on it takes (1: as every loss).
        pairs_rows: whether it compares rows of a batch, and so depends on how many there are.
    """

    order = 1
    pairs_rows = False

    def __init__(self, weight: float, every: int = 1) -> None:
        super().__init__()
        self.weight, self.every = weight, every
        self.realised: Tensor | None = None

    def due(self, step: int) -> bool:
        """Whether it applies at this step."""
        return self.weight > 0 and step % self.every == 0

    def forward(self, batch: Batch) -> Tensor:
        """`every · weight · value`, a scalar; call it only when `due`."""
        value = self.value(batch)
        self.realised = value.detach()
        return self.every * self.weight * value

    def around(self, model: nn.Module, generator: torch.Generator) -> contextlib.AbstractContextManager[object]:
        """What the model's forward pass runs in at a step where the penalty is due; see `Objective.around`."""
        return contextlib.nullcontext()

    def value(self, batch: Batch) -> Tensor:
        raise NotImplementedError
