"""The numbers of an epoch's log, from the validation logits."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from calibcli.columns import columns
from calibcli.inputs import inference
from calibcli.links import fit_beta
from calibcli.metrics import METRICS, Sample
from calibcli.plots import finite
from calibcli.predictions import Predictions
from calibcli.training.batches import Loader

LOGGED = ("nll", "nll_correct", "nll_wrong", "entropy", "entropy_wrong", "accuracy", "ece", "adaece")


def numbers(
    logits: NDArray[np.floating], labels: NDArray[np.int64], *, temperature: bool = True
) -> dict[str, float | None]:
    """Point values for the log, without the intervals that the final table has; None where not defined.

    Returns:
        nll, nll_correct, nll_wrong, entropy, entropy_wrong, accuracy, ece, adaece as the metrics of those names; error
        = 1 - accuracy; p_true, the mean probability of the label; temperature, that of the smallest NLL, if asked for.
    """
    predictions = Predictions.of(logits, labels)
    table = columns(predictions, class_bins=())
    sample = Sample.of(table, predictions)
    found = {name: finite(float(METRICS.choose(name)(sample))) for name in LOGGED}
    found["error"] = float(1 - table.correct.mean())
    found["p_true"] = float(table.p_true.mean())
    if temperature:
        fit = fit_beta(logits, labels)
        found["temperature"] = fit.temperature if fit.status == "ok" else None
    return found


def curvature(model: nn.Module, rows: Loader, seed: int, most: int = 256) -> dict[str, float | None]:
    """λmax and trace of the Hessian of mean cross-entropy in the trainable parameters, on evenly spread rows."""
    from calibcli import hessian

    chosen = torch.linspace(0, len(rows) - 1, min(most, len(rows))).long()
    found = hessian.measure(model, rows(chosen), "lambda_max", "trace", forward=inference.logits, seed=seed)
    return {name: found[name].value for name in ("lambda_max", "trace")}
