"""A factor for each class, so that mean probabilities follow the labels."""

from typing import Any

import numpy as np

from calibcli.extending import (
    SCALERS,
    FitContext,
    FittedParameters,
    Form,
    Operations,
    Parameters,
    Predictions,
    log_softmax,
)


def shifted(o: Operations, parameters: Parameters, z: Any) -> Any:
    return o.normalised(o.log_softmax(z) + o.const(parameters["bias"]))


@SCALERS.add(map=shifted, form={"bias": Form("k")})
def shares(predictions: Predictions, context: FitContext) -> FittedParameters:
    """Class shares: one step towards those of the labels, each counted once more (Saerens et al. 2002)."""
    counts = 1 + np.bincount(predictions.labels, predictions.weights, minlength=predictions.k)
    mean = np.average(np.exp(log_softmax(predictions.logits)), axis=0, weights=predictions.weights)
    return FittedParameters({"bias": np.log(counts / counts.sum() / mean)})
