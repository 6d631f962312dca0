"""A training recipe: plain data, and the optimiser and learning rate it stands for."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn

from calibcli import losses
from calibcli.errors import UsageError
from calibcli.shelves import Choice, Shelf
from calibcli.spec import Range, Seed, check_options
from calibcli.training import augment
from calibcli.training.setup import Training

OPTIMIZERS = Shelf("optimizer")
SCHEDULES = Shelf("schedule")

Momentum = Annotated[float, Range(0, 1, open_high=True)]
Decay = Annotated[float, Range(0, 1e6)]
Factor = Annotated[float, Range(0, 1000)]


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """Everything that decides what a run computes, given the model and the data. Specs are canonical.

    Attributes:
        loss: objective spec, `focal:gamma=3+trace:weight=0.01`.
        seed: of batches, augmentation, dropout and probes.
    """

    loss: str = "ce"
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_options(self)
        try:
            self.make_optimizer([nn.Parameter(torch.zeros(1))])
        except ValueError as error:
            raise UsageError(f"--optimizer {self.optimizer}: {str(error).lower()}", "correct its options") from None
        canonical = {
            "loss": losses.objective(self.loss).spec,
            "optimizer": OPTIMIZERS.choose(self.optimizer).spec,
            "schedule": SCHEDULES.choose(self.schedule).spec,
            "augment": "+".join(choice.spec for choice in augment.choices(self.augment)),
        }
        for name, spec in canonical.items():
            object.__setattr__(self, name, spec)

    def as_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    def learning_rate(self, step: int, total: int, epochs: int) -> float:
        """The learning rate of a step (0-based) among `total`."""
        warm = round(self.warmup * total)
        if step < warm:
            return self.lr * (step + 1) / warm
        return float(self.lr * _schedule(self.schedule)(step, total, epochs))

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = OPTIMIZERS.choose(self.optimizer)(list(parameters), self.lr)
        return made


@functools.cache
def _schedule(spec: str) -> Choice:
    return SCHEDULES.choose(spec)


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
    eps: Annotated[float, Range(0, 1)] = 1e-8,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    >>> run = calibcli.train(model, None, optimizer="adamw", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adamw'
    """
    return torch.optim.AdamW(parameters, lr, (beta1, beta2), eps, weight_decay)


@SCHEDULES.add()
def step(
    number: int,
    total: int,
    epochs: int,
    *,
    at: Annotated[tuple[float, ...], Range(0, 1)] = (3 / 7, 5 / 7),
    factor: Factor = 0.1,
) -> float:
    """Times `factor` at each fraction of the epochs (rounded to whole epochs); 3/7 and 5/7 are 150 and 250 of 350.

    The schedule of He et al. (2016), at the epochs of Mukhoti et al. (2020).

    >>> run = calibcli.train(model, None, schedule="step:at=0", epochs=1, device="cpu")
    >>> round(run.facts["runs"][0]["last_epoch"]["lr"], 4)
    0.01
    """
    epoch = number * epochs // total
    return factor ** sum(epoch >= round(f * epochs) for f in at)


@SCHEDULES.add()
def cosine(number: int, total: int, epochs: int, *, final: Factor = 0.0) -> float:
    """Half a cosine from 1 to `final`, step by step.

    Source: Loshchilov and Hutter (2017), without restarts.

    >>> run = calibcli.train(model, None, schedule="cosine", epochs=1, device="cpu")
    >>> round(run.facts["runs"][0]["last_epoch"]["lr"], 4)
    0.05
    """
    return final + (1 - final) * (1 + math.cos(math.pi * number / total)) / 2


@SCHEDULES.add()
def constant(number: int, total: int, epochs: int) -> float:
    """1 throughout.

    Ours: the learning rate as it is given.

    >>> run = calibcli.train(model, None, schedule="constant", epochs=1, device="cpu")
    >>> round(run.facts["runs"][0]["last_epoch"]["lr"], 4)
    0.1
    """
    return 1.0
