"""The registries of losses and penalties, the interface of a loss, a user's own losses, and a stable log-softmax."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.core.options import Range
from calibcli.core.registries import Registry, Traits
from calibcli.networks.derivatives.normalisation import upcast

# Probabilities of a softmax in log space, exact at saturation and twice differentiable there.
#
# With the margin `m_k = z_k - logsumexp_{j != k} z_j` of a class, `log p_k = -softplus(-m_k)` and
# `log(1 - p_k) = -softplus(m_k)`. Nothing here forms `1 - p` by subtraction. `softplus` keeps its accuracy under double
# backward, where `logsigmoid` loses all of it.

THRESHOLD = 40.0  # above it softplus(x) = x to the last bit in float64, and exp(x) is still finite in float32


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the log-odds `(N,)` of the labelled class: `z_y - logsumexp_{j != y} z_j`."""
    index = labels.unsqueeze(1)
    others = logits.scatter(1, index, -torch.inf).logsumexp(1)
    return logits.gather(1, index).squeeze(1) - others


def log_p(m: Tensor) -> Tensor:
    """Compute `log p` of a class with margin m."""
    return -F.softplus(-m, threshold=THRESHOLD)


def log_not_p(m: Tensor) -> Tensor:
    """Compute `log(1 - p)` of a class with margin m."""
    return -F.softplus(m, threshold=THRESHOLD)


def log_both(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `log p` and `log(1 - p)` of every class, each `(N, K)`.

    Only the top class can have p > 1/2; it goes through its margin, for the others `log1p(-p)` is safe.
    """
    top = logits.argmax(1)
    is_top = torch.zeros_like(logits, dtype=torch.bool).scatter(1, top.unsqueeze(1), True)
    m = margin(logits, top).unsqueeze(1)
    log_probability = logits.log_softmax(1)
    others = log_probability.masked_fill(is_top, -torch.inf).exp()
    return torch.where(is_top, log_p(m), log_probability), torch.where(is_top, log_not_p(m), torch.log1p(-others))


def surprise_ratio(m: Tensor) -> Tensor:
    """Compute `u = -log p / (1 - p)` of a class with margin m: 1 at p = 1, growing like -log p at p = 0."""
    x = torch.sigmoid(-m)
    small = x < 1e-3  # where the next term of the series, x⁵/6, is at most 2e-16
    series = 1 + x * (1 / 2 + x * (1 / 3 + x * (1 / 4 + x / 5)))
    return torch.where(small, series, -log_p(m) / torch.where(small, 1.0, x))


# The registries of losses and penalties, and the interface of one of each.

LOSSES = Registry("loss", Traits, package="calibcli.networks.losses", first=("ce", "label_smoothing", "focal", "brier"))
PENALTIES = Registry("penalty", Traits, package="calibcli.networks.losses")

Gamma = Annotated[float, Range(0, 1000)]
Weights = Annotated[tuple[float, ...], Range(0, 1e9)]


class Loss(nn.Module):
    """A loss per sample: `(logits (N, K), labels (N,) int64) -> (N,)`, in float32 or wider; the caller reduces.

    Half-precision logits are widened and autocast is off inside. Labels must lie in [0, K); this is not checked at
    every step.

    Attributes:
        alpha: class weights (K,), or None.
        gamma_text: the current γ as the log shows it, or "".
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

    if TYPE_CHECKING:  # a module returns Any

        def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if logits.ndim != 2:  # dense inputs (N, K, d1, ...): K last, then flat
            # (n, K, ...) and (n, ...): each place is a row, (m, K) and (m,)
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
        """Compute the loss per sample, before class weights."""
        raise NotImplementedError

    def weights(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the class weight `(N,)` of each sample; ones without `alpha`."""
        if self.alpha is None:
            return torch.ones(len(labels), dtype=upcast(logits).dtype, device=logits.device)
        if len(self.alpha) != logits.shape[1]:
            problem = f"alpha has {len(self.alpha)} weights and the logits have {logits.shape[1]} classes"
            raise UsageError(problem, "pass one weight per class, in class order")
        return self.alpha.to(upcast(logits))[labels]

    def gammas(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Return the focusing parameter γ `(N,)` that applies to each sample now, or None where the loss has none."""
        return None

    def pair_terms(self, m: Tensor) -> tuple[Tensor, Tensor] | None:
        """Compute `-F'` and `F''` `(N,)` of a loss `F(log p_y)` at margins m of the labels; None for any other loss."""
        return None

    def pair_weights(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Compute signed weights l `(N, K)` with `Hess_z = Σ_c l_c (e_c - p)(e_c - p)'`; None without a closed form.

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
        """Return the state that `start_epoch` sets outside buffers, so that a saved loss goes on within an epoch."""
        return {"gamma": getattr(self, "gamma", None), "gamma_text": self.gamma_text}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if type(state["gamma"]) not in (float, int, type(None)) or type(state["gamma_text"]) is not str:
            raise TypeError("the state of the loss is of another kind")
        self.gamma, self.gamma_text = state["gamma"], state["gamma_text"]

    def start_epoch(self, epoch: int, epochs: int, validation: tuple[Tensor, Tensor] | None = None) -> None:
        """Set what depends on the epoch (0-based) or on the validation logits and labels after the previous one."""

    def finish(self) -> None:
        """Set the state of the last epochs of a run."""


@dataclass
class Batch:
    """The data of a training step that a penalty reads.

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
        spec: canonical spec, where it was made from one.
    """

    spec = ""
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
        """Compute `every · weight · value`, a scalar; call it only when `due`."""
        value = self.value(batch)
        self.realised = value.detach()
        return self.every * self.weight * value

    def around(self, model: nn.Module, generator: torch.Generator) -> contextlib.AbstractContextManager[object]:
        """Return the context of the model's forward pass at a step where the penalty is due; see `Objective.around`."""
        return contextlib.nullcontext()

    def value(self, batch: Batch) -> Tensor:
        raise NotImplementedError


# Losses of the user's own: a module, a class, a function of logits and labels, or a factory of one of these. On the
# command line they are named `module:name`, in Python they are passed as they are; a file alone loads no code.

CLASSES = (3, 2, *range(4, 21), 100, 200, 1000)  # some losses take only their own number, as with a weight for each
OWN: dict[str, Callable[[], Any]] = {}  # factories by spec


class Own(Loss):
    """A callable `(logits (N, K), labels (N,)) -> (N,)` as a loss; a module keeps its state and its parameters."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.made = function  # a saved state names the buffers of a module `made.…`

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        return self.made(z, labels)


def spec_of(loss: Callable[..., Any]) -> str:
    """Return the spec of a loss of Python: `module:name`, or the spec that it was made from.

    Raises:
        TypeError: it is not callable.
    """
    if not callable(loss):
        raise TypeError(f"a loss is a text, a module, a class or a function, not {type(loss).__name__}")
    if isinstance(loss, Loss) and loss.spec:
        return loss.spec
    named = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{named.__module__}:{named.__qualname__.rpartition('.')[2]}"


def factory_of(loss: Callable[..., Any]) -> Callable[[], Any]:
    """Return a function without arguments that makes the loss that was given.

    A module gives copies of itself, a class an instance; a function that can be called without arguments makes the
    loss, any other is the loss.
    """
    if isinstance(loss, nn.Module):
        return functools.partial(copy.deepcopy, loss)
    if isinstance(loss, type):
        return loss
    try:
        inspect.signature(loss).bind()
    except (TypeError, ValueError):  # it takes logits and labels; or is built in
        return lambda: loss
    return loss


def one(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loss itself, for a loss or a factory that was passed in Python.

    Raises:
        TypeError: it is not callable.
    """
    spec_of(loss)
    return loss if isinstance(loss, nn.Module) else factory_of(loss)()


def build(spec: str) -> Loss:
    """Make a loss of the user's own that was added."""
    instance = OWN[spec]()
    loss = instance if isinstance(instance, Loss) else Own(instance)
    loss.spec = spec
    return loss


def add(spec: str, given: Callable[..., Any]) -> None:
    """Add a loss of the user's own under `spec`, after a trial on three rows, of as many classes as it takes.

    Args:
        given: as `factory_of` takes it.

    Raises:
        InputError: it is no loss per row.  Whatever it raises on rows of three classes, if it does so on all others.
    """
    OWN[spec] = factory_of(given)
    losses, first_error = None, None
    for k in CLASSES:
        logits = torch.zeros(3, k).scatter(1, torch.tensor([[1], [0], [0]]), 2.0).requires_grad_()
        try:
            losses = build(spec)(logits, torch.arange(3) % k)
            break
        except CalibError:
            raise
        except (RuntimeError, IndexError, ValueError, AssertionError) as error:
            first_error = first_error or error
    else:
        del OWN[spec]
        assert first_error is not None
        raise first_error
    if not isinstance(losses, Tensor) or losses.shape != (3,) or not losses.requires_grad:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        del OWN[spec]
        fix = "let it return a number for each row, as torch's losses do with reduction='none'"
        raise InputError(f"loss {spec} gives {shape} for 3 rows", fix)
