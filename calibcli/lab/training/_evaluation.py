"""Evaluate a network while it trains: the numbers of the log, and further rows and snapshots."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibcli.core.errors import WriteError
from calibcli.core.figure_data import finite
from calibcli.lab.training.batches import Loader, fed, last_linear
from calibcli.metrics import METRICS, Sample
from calibcli.networks import inference
from calibcli.networks.losses import Loss
from calibcli.scores.columns import columns
from calibcli.scores.likelihood import fit_beta
from calibcli.scores.predictions import Predictions

# The numbers of an epoch's log.

LOGGED = ("nll", "nll_correct", "nll_wrong", "entropy", "entropy_wrong", "accuracy", "ece", "adaece", "margin_tail")


def epoch_numbers(
    logits: NDArray[np.floating], labels: NDArray[np.int64], *, temperature: bool = True
) -> dict[str, float | None]:
    """Compute point values for the log, without the intervals that the final table has; None where not defined.

    Returns:
        nll, nll_correct, nll_wrong, entropy, entropy_wrong, accuracy, ece, adaece, margin_tail as the metrics of those
        names; error = 1 - accuracy; p_true, the mean probability of the label; temperature, that of the smallest NLL,
        if asked for.
    """
    predictions = Predictions.of(logits, labels)
    table = columns(predictions, class_bins=())
    sample = Sample.of(table, predictions)
    numbers = {name: finite(float(METRICS.choose(name)(sample))) for name in LOGGED}
    numbers["error"] = float(1 - table.correct.mean())
    numbers["p_true"] = float(table.p_true.mean())
    if temperature:
        fit = fit_beta(logits, labels)
        numbers["temperature"] = fit.temperature if fit.status == "ok" else None
    return numbers


def curvature(model: nn.Module, rows: Loader, seed: int, most: int) -> dict[str, float | None]:
    """Measure λmax and trace of the Hessian of mean cross-entropy on evenly spread rows, at most so many (0: all)."""
    from calibcli.networks import curvature as hessian

    chosen = torch.linspace(0, len(rows) - 1, min(most or len(rows), len(rows))).long()
    inputs_and_labels = rows(chosen)
    result = hessian.measure(model, inputs_and_labels, "lambda_max", "trace", forward=inference.logits, seed=seed)
    return {name: result[name].value for name in ("lambda_max", "trace")}


# Evaluation beside the validation rows: training and test rows, and snapshots.

CONFIDENCES = 20  # equal bins of the confidence
NORMS = (-8.0, 4.0, 48)  # log10 of gradient norms: ends and bins; what lies outside is in the last
MOST = 10_000  # rows of the gradient norms
Evaluated = Callable[[Loader], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The schedule of evaluations, and the rows to evaluate.

    Attributes:
        every: epochs between two evaluations; the last epoch is always evaluated.
        rows: further rows by role, `train` and `test`, in eval mode and without augmentation.
        snapshots: epochs after which `keep` is called, and histograms are noted.
        train: rows of the gradient norms.
    """

    every: int = 1
    rows: Mapping[str, Loader] = field(default_factory=dict)
    snapshots: tuple[int, ...] = ()
    train: Loader | None = None
    keep: Callable[[int], None] = lambda epoch: None

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether rows are evaluated after this epoch, counted from 1."""
        return epoch % self.every == 0 or epoch == epochs

    def record(
        self, epoch: int, epochs: int, evaluated: Evaluated, validation: Loader | None, model: nn.Module, loss: Loss
    ) -> dict[str, Any]:
        """Make the log's entries of an epoch: `train_nll`, ..., and at a snapshot `snapshot`, its histograms."""
        entries: dict[str, Any] = {}
        shown, due = epoch in self.snapshots, self.due(epoch, epochs)
        wrong = {}
        rows = dict(self.rows) if validation is None else {"validation": validation, **self.rows}
        for role, loader in rows.items():
            logged = due and role != "validation"  # of which the epoch has numbers already
            if not (logged or shown):
                continue
            logits, labels = (part.numpy() for part in evaluated(loader))
            if logged:
                numbers = epoch_numbers(logits, labels, temperature=False)
                entries.update({f"{role}_{name}": value for name, value in numbers.items()})
            if shown:
                wrong[role] = confidences_of_wrong(logits, labels)
        if shown:
            norms = None if self.train is None else gradient_norms(model, loss, self.train)
            counts = None if norms is None else counted(norms)
            entries["snapshot"] = {"wrong_confidence": wrong, "gradient_norms": counts}
        return entries


def confidences_of_wrong(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> list[int]:
    """Count wrong rows in each of 20 equal bins of the confidence."""
    table = columns(Predictions.of(logits, labels), class_bins=())
    counts: list[int] = np.histogram(table.confidence[~table.correct], CONFIDENCES, (0, 1))[0].tolist()
    return counts


def counted(norms: NDArray[np.float64]) -> list[int]:
    """Count rows in each bin of log10 of their norms."""
    low, high, bins = NORMS
    with np.errstate(divide="ignore"):
        logs = np.clip(np.log10(norms), low, high)
    counts: list[int] = np.histogram(logs, bins, (low, high))[0].tolist()
    return counts


def gradient_norms(model: nn.Module, loss: Loss, rows: Loader) -> NDArray[np.float64] | None:
    """Compute the norm (n,) of each row's gradient of the loss in the weights and biases of the last linear layer.

    That is ‖dℓ/dz‖ (‖f‖² + 1)^½, with f the input of the layer (without the 1 where it has no bias); on up to 10,000
    evenly spread rows. None where that layer does not make the logits.
    """
    layer = last_linear(model)
    if layer is None:
        return None
    norms = []
    chosen = torch.linspace(0, len(rows) - 1, min(MOST, len(rows))).long()
    for f, logits, labels, makes_logits in fed(model, layer, rows, chosen):
        if not makes_logits:
            return None
        z = logits.detach().double().requires_grad_()
        (slope,) = torch.autograd.grad(loss(z, labels).sum(), z)
        square = f.double().square().sum(1) + (layer.bias is not None)
        norms.append((slope.square().sum(1) * square).sqrt().cpu())
    return torch.cat(norms).numpy()


def snapshot_name(epoch: int | str) -> str:
    """Return the file name of a snapshot."""
    return f"epoch-{epoch}.safetensors"


def room(model: nn.Module, folder: Path, count: int) -> None:
    """Refuse snapshots for which the disk has no room.

    Raises:
        WriteError: the disk has less free space than they take.
    """
    needed = count * sum(t.numel() * t.element_size() for t in model.state_dict().values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        problem = f"{count} snapshots take {needed / 1e9:.3g} GB, and {folder} has room for {free / 1e9:.3g}"
        raise WriteError(problem, "keep fewer (--snapshot), or name another --save folder")
