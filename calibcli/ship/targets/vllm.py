"""A temperature for vLLM's classification pooler."""

from __future__ import annotations

import json

import numpy as np

from calibcli.errors import UsageError
from calibcli.files import atomic
from calibcli.predictions import words
from calibcli.scalers import Scaler
from calibcli.ship.comparison import of_scores, softmax
from calibcli.ship.target import TARGETS, Job, Shipped

WORDS = (
    "a generation temperature is no calibrator: vLLM reports log-probabilities from before it (logprobs_mode "
    "raw_logprobs), so it changes what is sampled, not what is reported; of answers chosen among few texts, divide the "
    "log-probabilities of the choices by T where they are read, and normalise again"
)


@TARGETS.add(suffixes=(".json",), data="scores")
def vllm(job: Job) -> Shipped:
    """The pooler's options as JSON, for `vllm serve MODEL --pooler-config "$(cat FILE)"`: logit_sigma, logit_mean.

    vLLM's pooler gives softmax((z - mean) / sigma), of one column sigmoid: `temperature`, and of one column `platt`
    (Kwon et al. 2023). It is compared by that formula in float32, as vLLM itself is not run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "vllm", save=f"{folder}/pooler.json", data=logits)
    >>> found.facts["logit_sigma"].__round__(2)
    2.81

    Raises:
        UsageError: another map, or one of probabilities.
    """
    scaler = job.scaler
    name, given = scaler.choice.name, scaler.parameters
    if scaler.kind != "logits":
        problem = f"vLLM's pooler works on logits, the calibrator was fitted on {words(scaler.kind)}"
        raise UsageError(problem, _instead(scaler))
    if name == "temperature" and float(given["beta"]) > 0:
        sigma, mean = 1 / float(given["beta"]), 0.0
    elif name == "platt" and scaler.columns == 1 and given["slope"][0] > 0:
        sigma = 1 / float(given["slope"][0])
        mean = -float(given["bias"][0]) * sigma
    else:
        raise UsageError(
            f"vLLM's pooler has no '{name}' of {scaler.columns} columns (temperature is one)", _instead(scaler)
        )
    options = {"logit_sigma": sigma, **({"logit_mean": mean} if mean else {})}
    fed = job.fed("float32")
    z = (fed - np.float32(mean)) / np.float32(sigma)
    if scaler.columns == 1:
        z = np.concatenate([np.zeros_like(z), z], axis=1)
    compared = of_scores(scaler, fed, softmax(z), "float32", job.tolerance)
    compared.require(job.path.name)
    with atomic(job.path) as temporary:
        temporary.write_text(json.dumps(options) + "\n", encoding="utf-8")
    return Shipped(files=[job.path], compared=compared, facts=options, notes=[WORDS])


def _instead(scaler: Scaler) -> str:
    """A target that takes this map."""
    from calibcli.ship import fold

    try:
        fold.linear(scaler)
    except UsageError as error:
        return error.fix
    return "use --to checkpoint, and serve the folded model"
