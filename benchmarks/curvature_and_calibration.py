"""Curvature and calibration on the digits of sample_data/: four experiments, about two CPU minutes.

    python benchmarks/curvature_and_calibration.py [--seeds 10]

1. The same function in other weights: a ReLU layer times c, the next one by 1/c. No output changes, the curvature does.
2. Temperature: the sample model's last layer divided by T. No predicted class changes, calibration and curvature do.
3. What either leaves alone: measures of relative changes of the weights, and those after the network's temperature.
4. Networks trained with six losses from the same weights on the same batches: differences from the first, paired by
   seed. Their intervals cover the spread of training, not that of the rows, which all networks share.

Curvature is on the 600 validation rows, of cross-entropy where no other loss is named; ECE (15 bins) on the 997 test
rows.
"""

from __future__ import annotations

import copy
import statistics

import numpy as np
import torch
from _harness import ROOT, arguments, head, row
from numpy.typing import NDArray
from torch import nn

import calibcli
from calibcli.core.statistics import student_quantile
from calibcli.lab.training._one_model import fit
from calibcli.lab.training.fit import begin
from calibcli.lab.training.options import Setup
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import inference
from calibcli.networks.dataset import Dataset

MODEL = ROOT / "sample_data" / "model.safetensors"
LOSSES = ("ce", "focal:gamma=1", "focal:gamma=3", "focal:gamma=5", "brier", "ce+trace:weight=0.003")
FORM = {"error %": ".2f", "ECE %": ".2f", "T": ".2f", "λmax": ".2f", "trace": ".1f", "λmax of its own loss": ".2f"}
Numbers = dict[str, float]
Array = NDArray[np.generic]


def value(found: calibcli.Result, name: str, scope: str = "") -> float:
    number = found[name, scope].value
    assert number is not None
    return number


def ece(logits: Array, labels: Array) -> float:
    return 100 * value(calibcli.measure(logits, labels, "ece", kind="logits"), "ece")


def temperature(logits: Array, labels: Array) -> float:
    return value(calibcli.fit_scaler(logits, labels, "temperature", kind="logits"), "temperature")


def run(model: nn.Module, rows: Dataset) -> Array:
    """Logits (n, K)."""
    return torch.cat(list(inference.predict(model, rows))).numpy()


def changed(model: nn.Module, *factors: tuple[int, str, float]) -> nn.Module:
    """A copy with some tensors of its linear layers multiplied: layer, name, factor."""
    other = copy.deepcopy(model)
    layers = [module for module in other.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        for layer, name, factor in factors:
            getattr(layers[layer], name).mul_(factor)
    return other


def rescaled(model: nn.Module, factor: float) -> nn.Module:
    """The same function: the first ReLU's output is `factor` times as large, and the layer after it undoes that."""
    return changed(model, (0, "weight", factor), (0, "bias", factor), (1, "weight", 1 / factor))


def other_weights() -> None:
    """Experiments 1 and 2."""
    start, parts = begin(Setup(MODEL))
    model = start.model
    assert parts.test is not None
    assert parts.validation is not None
    labels, recorded = parts.test.labels, run(model, parts.test)
    t = temperature(run(model, parts.validation), parts.validation.labels)
    print(head("sample model", "largest change of a logit", "ECE %", "λmax", "trace"))
    variants = {"as it is": model, **{f"first layer × {c:g}": rescaled(model, c) for c in (0.25, 4.0)}}
    variants[f"logits / {t:.2f}"] = changed(model, (-1, "weight", 1 / t), (-1, "bias", 1 / t))
    for name, variant in variants.items():
        found = calibcli.curvature(variant, parts.validation, "lambda_max", "trace", device="cpu")
        logits = run(variant, parts.test)
        numbers = f"{abs(logits - recorded).max():.1g}", f"{ece(logits, labels):.2f}"
        print(row(name, *numbers, *(f"{value(found, what):.1f}" for what in ("lambda_max", "trace"))))


def left_alone() -> None:
    """Experiment 3."""
    start, parts = begin(Setup(MODEL))
    assert parts.test is not None
    assert parts.validation is not None
    plain = ("trace", "fisher_rao", "adaptive_trace", "adaptive_lambda")
    asked = [name for one in plain for name in (f"{one}:exact=true" if "trace" in one else one, f"{one} after")]
    asked = [f"{name}:exact=true" if name.endswith("trace after") else name for name in asked]
    print(head("sample model", "ECE %", *(name.partition(":")[0] for name in asked)))
    variants = {"as it is": start.model, "first layer × 4, second / 4": rescaled(start.model, 4.0)}
    variants["logits × 2"] = changed(start.model, (-1, "weight", 2.0), (-1, "bias", 2.0))
    for name, variant in variants.items():
        found = calibcli.curvature(variant, parts.validation, *asked, device="cpu")
        error = ece(run(variant, parts.test), parts.test.labels)
        print(row(name, f"{error:.2f}", *(f"{value(found, what):.4g}" for what in asked)))


def trained(loss: str, seed: int) -> Numbers:
    """A network of the sample's kind, trained on the 200 training rows, and its numbers."""
    start, parts = begin(Setup(MODEL, init="fresh", seed=seed))
    recipe = Recipe(loss=loss, epochs=100, batch_size=32, lr=0.05, optimizer="sgd:weight_decay=0.0001", seed=seed)
    fitted = fit(start, recipe, parts)
    assert fitted.validation is not None
    assert fitted.test is not None
    own = loss.partition("+")[0]
    found = calibcli.curvature(
        fitted.model, parts.validation, "lambda_max", "trace", train_loss=own if own != "ce" else "none", device="cpu"
    )
    logits, labels = fitted.test.logits, fitted.test.labels
    return {
        "error %": 100 * float((logits.argmax(1) != labels).mean()),
        "ECE %": ece(logits, labels),
        "T": temperature(fitted.validation.logits, fitted.validation.labels),
        "λmax": value(found, "lambda_max"),
        "trace": value(found, "trace"),
        "λmax of its own loss": value(found, "lambda_max", f"loss={own}" if own != "ce" else ""),
    }


def losses(seeds: int) -> None:
    """Experiment 3."""
    found = {loss: [trained(loss, seed) for seed in range(seeds)] for loss in LOSSES}
    print(f"\nmean of {seeds} seeds ± standard deviation\n\n{head('loss', *FORM)}")
    for loss, runs in found.items():
        columns = {c: [run[c] for run in runs] for c in FORM}
        cells = (f"{statistics.mean(v):{FORM[c]}} ± {statistics.stdev(v):{FORM[c]}}" for c, v in columns.items())
        print(row(f"`{loss}`", *cells))
    print(f"\nminus `{LOSSES[0]}`, paired by seed, 95 % t-interval\n\n{head('loss', *FORM)}")
    half = student_quantile(0.975, seeds - 1) / seeds**0.5
    for loss in LOSSES[1:]:
        cells = []
        for c, form in FORM.items():
            apart = [one[c] - first[c] for one, first in zip(found[loss], found[LOSSES[0]])]
            mean, width = statistics.mean(apart), half * statistics.stdev(apart)
            cells.append(f"{mean:+{form}} [{mean - width:{form}}, {mean + width:{form}}]")
        print(row(f"`{loss}`", *cells))


if __name__ == "__main__":
    given = arguments(__doc__, seeds=10)
    torch.set_num_threads(1)
    other_weights()
    left_alone()
    losses(given.seeds)
