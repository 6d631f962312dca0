"""NLL and ECE of every method on rows that it was not fitted on, and of probmetrics' SMS and SVS where it is installed.

    python benchmarks/scale_structured.py FILE ...    recorded scores with labels (.npz, .csv, ...)
    python benchmarks/scale_structured.py             overfit logits, 5,000 x 10
    python benchmarks/scale_structured.py --rows 500  fit on so many rows

Rows are shuffled with seed 0; each method is fitted on the first half and measured on the second, and the other way
round. Of the peers, the objective that both minimise is compared too: how far above ours theirs stops.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from scale import realistic

import calibcli
from calibcli.calibrators.fitting import applicable
from calibcli.calibrators.program import NumPy
from calibcli.calibrators.structured import smoothed
from calibcli.core.errors import CalibError
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import Predictions

SLOW = 20  # classes beyond which matrix and dirichlet are left out: the search for their penalties takes minutes


def halves(rows: Predictions, most: int) -> Iterator[tuple[Predictions, Predictions]]:
    order = np.random.default_rng(0).permutation(rows.n)
    first, second = order[: rows.n // 2], order[rows.n // 2 :]
    for a, b in ((first, second), (second, first)):
        yield rows.take(np.sort(a[: most or None])), rows.take(np.sort(b))


def peer(name: str, fit: Predictions, other: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of the other rows; W and b."""
    from probmetrics.calibrators import SMSCalibrator, SVSCalibrator

    found = {"sms": SMSCalibrator, "svs": SVSCalibrator}[name]()
    found.fit(np.exp(log_softmax(fit.logits)), fit.labels)
    weight = found.W_[:, :-1] if name == "sms" else np.diag(found.v_)
    bias = found.W_[:, -1] if name == "sms" else found.b_
    return found.predict_proba(np.exp(log_softmax(other.logits))), weight, bias


def objective(x: np.ndarray, labels: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> float:
    """What SMS and SVS minimise: mean NLL and penalties."""
    n, k = x.shape
    own, off = np.diag(weight) - 1, weight - np.diag(np.diag(weight))
    nll = -log_softmax(x @ weight.T + bias)[np.arange(n), labels].mean()
    return float(nll + k / n * (bias @ bias + own @ own) + k * (k - 1) / n * (off**2).sum())


def against(name: str, scaler: Any, fit: Predictions, weight: np.ndarray, bias: np.ndarray) -> float:
    given = scaler.parameters
    ours = given["weight"] if name == "sms" else np.diag(given["weight"])
    x = smoothed(NumPy(fit.k), given, np.asarray(fit.logits, np.float64))
    return objective(x, fit.labels, weight, bias) - objective(x, fit.labels, ours, given["bias"])


def measured(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rows = calibcli.from_arrays(np.maximum(p, 1e-38), labels, kind="probabilities")
    found = calibcli.measure(rows, "nll", "ece", "accuracy")
    return np.array([found[name].value for name in ("nll", "ece", "accuracy")])


def table(name: str, rows: Predictions, most: int) -> None:
    print(f"\n{name}: {rows.n:,} rows of {rows.k} classes, fitted on {min(most or rows.n, rows.n // 2):,}\n")
    print(f"{'method':28}{'NLL':>9}{'ECE':>8}{'accuracy':>10}{'CPU s':>8}{'above our minimum':>19}")
    found: dict[str, list[np.ndarray]] = {}
    gaps: dict[str, float] = {}

    def keep(spec: str, p: np.ndarray, start: float) -> None:
        seconds = time.process_time() - start
        found.setdefault(spec, []).append(np.append(measured(p, other.labels), seconds))

    for fit, other in halves(rows, most):
        for spec in ("none", *applicable()):
            if rows.k > SLOW and spec in ("matrix", "dirichlet"):
                continue
            start = time.process_time()
            try:
                scaler = None if spec == "none" else calibcli.fit_scaler(fit, spec=spec).scaler
            except CalibError as error:
                print(f"{spec:28}{error.problem}")
                continue
            keep(spec, np.exp(log_softmax(other.logits) if scaler is None else scaler.map(other.logits)), start)
            if spec in ("sms", "svs") and _harness.installed("probmetrics"):
                start, theirs = time.process_time(), f"probmetrics: {spec}"
                p, weight, bias = peer(spec, fit, other)
                keep(theirs, p, start)
                gaps[theirs] = max(gaps.get(theirs, -1.0), against(spec, scaler, fit, weight, bias))
    for spec, numbers in sorted(found.items(), key=lambda item: np.mean(item[1], axis=0)[0]):
        nll, ece, accuracy, seconds = np.mean(numbers, axis=0)
        gap = f"{gaps[spec]:19.1e}" if spec in gaps else ""
        print(f"{spec:28}{nll:9.4f}{ece:8.4f}{accuracy:10.4f}{seconds:8.2f}{gap}", flush=True)


if __name__ == "__main__":
    given = _harness.arguments(__doc__, "files", rows=0)
    warnings.simplefilter("ignore")
    for file in given.files:
        table(Path(file).name, calibcli.read(file), given.rows)
    if not given.files:
        table("overfit logits", calibcli.from_arrays(*realistic(10)), given.rows)
