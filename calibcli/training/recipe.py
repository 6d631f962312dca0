"""A training recipe: plain data, and the learning rate it stands for."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn

from calibcli import losses
from calibcli.errors import CalibError, UsageError, refusing
from calibcli.inputs.code import FAILURES, NAMES_CODE, from_module
from calibcli.shelves import Choice, Shelf
from calibcli.spec import Range, Seed, check_options
from calibcli.training import augment, optimizers
from calibcli.training.setup import Training

SCHEDULES = Shelf("schedule")

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
            optimizers.build(self.optimizer, [nn.Parameter(torch.zeros(1))], self.lr)
        except CalibError:
            raise
        except ValueError as error:
            raise UsageError(f"--optimizer {self.optimizer}: {str(error).lower()}", "correct its options") from None
        canonical = {
            "loss": losses.objective(self.loss).spec,
            "optimizer": "+".join(choice.spec for choice in optimizers.choices(self.optimizer)),
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


def own_loss(asked: str | Callable[..., Any]) -> str:
    """The spec of a loss that the user asked for. One of the user's own, `module:name` or passed in Python, is loaded.

    Raises:
        UsageError, InputError: no such module, or what it makes is no loss.  TypeError: neither text nor callable.
    """
    if not isinstance(asked, str):
        spec = losses.own.spec_of(asked)
        if not (isinstance(asked, losses.Loss) and asked.spec):
            _added(spec, asked)
        return spec
    head = asked.partition("+")[0].strip()
    if NAMES_CODE.fullmatch(head) and head not in losses.own.OWN:
        module, _, name = head.partition(":")
        _added(head, from_module(module, name))
    return asked


def _added(spec: str, given: Callable[..., Any]) -> None:
    fix = (
        "let it take logits (N, K) and labels (N,), or be a class or function without arguments that makes such a loss"
    )
    with refusing(FAILURES, lambda e: f"loss {spec} fails ({type(e).__name__}: {e})", fix):
        losses.own.add(spec, given)


@functools.cache
def _schedule(spec: str) -> Choice:
    return SCHEDULES.choose(spec)


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
