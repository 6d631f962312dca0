"""Optimizers, and what is put around a step of one: `sgd:momentum=0.9+sam:rho=0.05`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Annotated

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from calibcli.errors import UsageError
from calibcli.shelves import Choice, Shelf
from calibcli.spec import Range

OPTIMIZERS = Shelf("optimizer")

Momentum = Annotated[float, Range(0, 1, open_high=True)]
Decay = Annotated[float, Range(0, 1e6)]
Small = Annotated[float, Range(0, 1)]


@OPTIMIZERS.add()
def sgd(
    parameters: list[nn.Parameter],
    lr: float,
    *,
    momentum: Momentum = 0.9,
    weight_decay: Decay = 5e-4,
    nesterov: bool = False,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum; weight decay is added to the gradient.

    Momentum as PyTorch writes it (Sutskever et al. 2013).

    >>> run = calibcli.train(model, None, optimizer="sgd", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'sgd'
    """
    return torch.optim.SGD(parameters, lr, momentum, weight_decay=weight_decay, nesterov=nesterov)


@OPTIMIZERS.add()
def adamw(
    parameters: list[nn.Parameter],
    lr: float,
    *,
    beta1: Momentum = 0.9,
    beta2: Momentum = 0.999,
    weight_decay: Decay = 0.01,
    eps: Small = 1e-8,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    >>> run = calibcli.train(model, None, optimizer="adamw", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adamw'
    """
    return torch.optim.AdamW(parameters, lr, (beta1, beta2), eps, weight_decay)


@OPTIMIZERS.add()
def adam(
    parameters: list[nn.Parameter],
    lr: float,
    *,
    beta1: Momentum = 0.9,
    beta2: Momentum = 0.999,
    weight_decay: Decay = 0.0,
    eps: Small = 1e-8,
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient.

    >>> run = calibcli.train(model, None, optimizer="adam", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adam'
    """
    return torch.optim.Adam(parameters, lr, (beta1, beta2), eps, weight_decay)


@OPTIMIZERS.add()
def adagrad(
    parameters: list[nn.Parameter], lr: float, *, weight_decay: Decay = 0.0, eps: Small = 1e-10
) -> torch.optim.Optimizer:
    """Steps divided by the root of all squared gradients so far (Duchi et al. 2011); weight decay joins the gradient.

    >>> run = calibcli.train(model, None, optimizer="adagrad", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adagrad'
    """
    return torch.optim.Adagrad(parameters, lr, weight_decay=weight_decay, eps=eps)


class Ascent:
    """Weights moved uphill by ρ along the gradient, for a second gradient there."""

    def __init__(self, parameters: list[nn.Parameter], rho: float) -> None:
        self.parameters, self.rho = parameters, rho

    @contextlib.contextmanager
    def moved(self, model: nn.Module) -> Iterator[None]:
        """Within this the parameters are `w + ρ g/|g|`; they are w afterwards, and batch norm's statistics as before.

        Where the gradient is zero or not finite they stay.
        """
        held = [(p, p.detach().clone()) for p in self.parameters if p.grad is not None]
        norms = torch.stack([p.grad.norm() for p, _ in held if p.grad is not None])
        length = norms.norm()
        scale = torch.where(torch.isfinite(length) & (length > 0), self.rho / length, 0.0)
        with torch.no_grad():
            for p, _ in held:
                assert p.grad is not None
                p.add_(torch.nan_to_num(p.grad) * scale.to(p.dtype))
        statistics = [
            (buffer, buffer.clone())
            for module in model.modules()
            if isinstance(module, _BatchNorm)
            for buffer in module.buffers(recurse=False)
        ]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, before in [*held, *statistics]:
                    tensor.copy_(before)


@OPTIMIZERS.add()
def sam(parameters: list[nn.Parameter], lr: float, *, rho: Annotated[float, Range(0, 1e3)] = 0.05) -> Ascent:
    """Sharpness-aware minimisation (Foret et al. 2021), around another: the gradient is taken at `w + ρ g/|g|`.

    Two passes a step; batch norm's statistics are those of the first. `sam` alone is `sgd+sam`.

    >>> run = calibcli.train(model, None, optimizer="adam+sam:rho=0.1", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adam+sam:rho=0.1'
    """
    return Ascent(parameters, rho)


def choices(spec: str) -> tuple[Choice, ...]:
    """The optimizer of `sgd:momentum=0.9+sam:rho=0.05`, and what is around its steps.

    Raises:
        UsageError: unknown name or option, or two of a kind.
    """
    chosen = [OPTIMIZERS.choose(part) for part in spec.split("+")]
    if chosen[0].name == "sam":
        chosen.insert(0, OPTIMIZERS.choose("sgd"))
    if [choice.name for choice in chosen[1:]] not in ([], ["sam"]):
        raise UsageError(f"--optimizer {spec} names several optimizers", "pass one, or one and +sam")
    return tuple(chosen)


def build(spec: str, parameters: Iterable[nn.Parameter], lr: float) -> tuple[torch.optim.Optimizer, Ascent | None]:
    """The optimizer of a spec, and the ascent before its steps where there is one."""
    held = list(parameters)
    optimizer, *around = (choice(held, lr) for choice in choices(spec))
    return optimizer, around[0] if around else None
