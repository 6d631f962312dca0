"""Losses that calibrate, penalties, and the objective of a run from its spec: `focal:gamma=3+trace:weight=0.01`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibcli.core.errors import UsageError
from calibcli.core.options import normal
from calibcli.networks.losses import registry
from calibcli.networks.losses.focal import critical_p, gamma_star
from calibcli.networks.losses.proper import CrossEntropy
from calibcli.networks.losses.registry import LOSSES, PENALTIES, Batch, Loss, Penalty

__all__ = [
    "LOSSES",
    "PENALTIES",
    "Batch",
    "CrossEntropy",
    "Loss",
    "Penalty",
    "critical_p",
    "final",
    "gamma_star",
    "objective",
    "of_rows",
    "pressing",
]

PAPER_NAMES = {
    "fls_531": "focal_scheduled",
    "fls_532": "focal_scheduled:gammas=5/3/2",
    "fla_53": "focal_sample",
    "flsd_53": "focal_sample",
    "fla_532": "focal_sample:gammas=5/3/2,thresholds=0.2/0.5",
    "fla_53_iclr": "focal_sample:thresholds=0.19",
    "fla_532_iclr": "focal_sample:gammas=5/3/2,thresholds=0.19/0.5",
    "cross_entropy": "ce",
    "ls": "label_smoothing",
    "logitnorm": "logit_norm",
    "mmce": "ce+mmce",
}
"""Names that papers use, and the specs that they stand for."""


@dataclass
class Objective:
    """The function that a run minimises: a loss per sample and penalties on the batch.

    Attributes:
        spec: canonical spec, its identity in logs and tables.
    """

    loss: Loss
    penalties: list[Penalty]
    spec: str

    def reduce(
        self, losses: Tensor, logits: Tensor, labels: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """Sum losses, or average them: divided by the sum of the class weights of the rows, as PyTorch does."""
        if reduction == "sum":
            return losses.sum()
        if self.loss.alpha is None:
            return losses.mean()
        return losses.sum() / self.loss.weights(logits, labels).sum()

    def __call__(self, batch: Batch, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Compute the scalar to minimise on a batch.

        With `sum`, penalties count once per row, so that λ means the same.
        """
        value = self.reduce(self.loss(batch.logits, batch.labels), batch.logits, batch.labels, reduction)
        scale = len(batch.labels) if reduction == "sum" else 1
        for penalty in self.penalties:
            if penalty.due(batch.step):
                value = value + scale * penalty(batch)
        return value

    def around(self, model: nn.Module, step: int, generator: torch.Generator) -> contextlib.ExitStack:
        """Return the context for the model's forward pass, in which penalties are cheap to differentiate.

        It changes values by rounding only, and nothing at a step where no penalty asks for it. The generator is that of
        the batch.
        """
        stack = contextlib.ExitStack()
        due = [p for p in self.penalties if p.due(step)]
        most = max((p.order for p in due), default=1)
        for penalty in due:
            if penalty.order == most:  # a context that makes few derivatives cheap may not give more of them
                stack.enter_context(penalty.around(model, generator))
        return stack

    def to(self, device: torch.device) -> Objective:
        """Move losses and penalties to a device."""
        nn.ModuleList([self.loss, *self.penalties]).to(device)
        return self


def objective(spec: str, penalties: list[str] | tuple[str, ...] = ()) -> Objective:
    """Make the objective of `LOSS[+PENALTY...]` and further penalty specs.

    Paper names (`FLA-53`, `FLS-531`, `mmce`, ...) stand for the specs in `PAPER_NAMES`.

    Raises:
        UsageError: unknown name or option.
    """
    head, *penalty_parts = (part.strip() for part in spec.split("+"))
    head, *more = PAPER_NAMES.get(normal(head), head).split("+")
    if not more and normal(head.partition(":")[0]) in PENALTIES:
        raise UsageError(f"'{head}' is a penalty, not a loss", f"write ce+{head}")
    added = (*more, *penalty_parts, *penalties)
    if second := next((p for p in added if (name := p.partition(":")[0]) in LOSSES and name not in PENALTIES), None):
        fix = f"to compare both, pass them as two losses, '{head}' and '{second}'"
        raise UsageError(f"'{second}' is a loss, not a penalty that is added to one", fix)
    extra = [PENALTIES.choose(p) for p in added]
    if head in registry.OWN:
        loss = registry.build(head)
    else:
        choice = LOSSES.choose(head)
        loss = choice()
        loss.spec = choice.spec
    terms = Objective(loss, [p() for p in extra], "+".join([loss.spec, *(p.spec for p in extra)]))
    for penalty, choice in zip(terms.penalties, extra):
        penalty.spec = choice.spec
    return terms


def of_rows(spec: str) -> Loss:
    """Make the loss of a spec for a caller that has rows alone: logits and labels, without a model or a training step.

    Raises:
        UsageError: unknown name or option, or a penalty, which needs a batch of a model and would be left out.
    """
    terms = objective(spec)
    if dropped := pressing(terms):
        problem = f"{dropped} is a penalty on a batch of a model, and this takes a loss of single rows"
        fix = f"pass {terms.loss.spec} for the loss without it; {terms.spec} acts in calibcli.train (calib fit --loss)"
        in_own_loop = f"in a loop of your own as calibcli.networks.losses.objective('{terms.spec}')"
        raise UsageError(problem, f"{fix}, or {in_own_loop}")
    return terms.loss


def pressing(terms: Objective) -> str:
    """Name the penalties of an objective that are not weighted 0, joined by `+`; "" for none."""
    return "+".join(p.spec for p in terms.penalties if p.weight > 0)


def final(asked: str | Callable[..., Any] = "ce") -> Any:
    """Make the loss of a spec as in the last epochs of a run; a loss of the user's own as it is.

    Raises:
        UsageError: as `of_rows`, or the objective of a run or a penalty itself, which are functions of a batch.
        TypeError: neither text nor callable.
    """
    if not isinstance(asked, str):
        if isinstance(asked, Objective | Penalty):
            problem = f"{type(asked).__name__} is of a batch of a model, and this takes a loss of single rows"
            raise UsageError(problem, "pass a spec to calibcli.train: loss='ce', penalty=('mmce',)")
        return registry.one(asked)
    last = of_rows(asked)
    last.finish()
    return last
