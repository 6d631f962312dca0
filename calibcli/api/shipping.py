"""Export a calibrator to where the model runs, and verify it there, from Python."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Unpack

import numpy.typing as npt

from calibcli.api.fixing import opened
from calibcli.api.gating import Limits, rules
from calibcli.api.measuring import Scores, given, is_path, spread
from calibcli.calibrators import Fit, LabelCalibrators, Scaler
from calibcli.core.errors import UsageError
from calibcli.core.files import claim, guarding, unchanged
from calibcli.core.result import Result
from calibcli.gate.config import load
from calibcli.gate.options import Request
from calibcli.networks.deploy.verify import verify as prove
from calibcli.scores import recorded_outputs
from calibcli.scores.from_arrays import How
from calibcli.scores.predictions import Predictions, Progress
from calibcli.ship import ExportRequest
from calibcli.ship import export as ship

__all__ = ["export", "verify"]


@spread
@guarding()
def export(
    calibrator: str | Path | Scaler | Fit,
    /,
    to: str,
    labels: npt.ArrayLike | None = None,
    *,
    save: str | Path,
    model: str | Path | None = None,
    data: Scores | None = None,
    tolerance: float | None = None,
    arch: str | None = None,
    arch_file: str | None = None,
    trust: bool = False,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Write a calibrator in the form that the model needs, after a comparison with the original on real rows.

    >>> import numpy as np, tempfile
    >>> fit = calibcli.fit_scaler(logits, labels)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = export(fit, "json", save=f"{folder}/calibrator.json", data=logits)
    ...     namespace = {}
    ...     exec(open(f"{folder}/calibrator.py").read(), namespace)
    >>> bool(np.allclose(namespace["calibrate"](logits[0].tolist()), fit.predict_proba(logits[:1])[0], atol=1e-12))
    True

    Args:
        calibrator: of `fit_scaler` or `load_scaler`, or a file of `save_scaler`.
        to: a target with its options, such as `onnx` or `checkpoint` (`calib list targets`).
        save: file or folder to write.
        model: a network to put the calibrator into: a checkpoint, or an ONNX file.
        data: rows to compare on: scores as for `measure` or, for a model, its inputs (`digits.npz#test`).
        labels: (N,), of arrays, for a card.
        tolerance: largest allowed difference of a probability; default: 1e-6 (float32), 1e-9 (float64), or twice the
            error of rounding alone if that is more.
        arch, arch_file, trust: of `model`, as for `curvature`.  progress: called with (fraction, text).
        how: how scores are read, see `read`.

    Raises:
        InputError: inputs are refused, or the difference is beyond its limit: then nothing is written.
        UsageError: the target is unknown or cannot hold the map, or the path is invalid.
        TypeError: an unknown keyword.
    """
    claim(save, folder=True)
    with unchanged(*_files(calibrator, model, data)):
        scaler, files = opened(calibrator, labels=True)
        path, network = "".join(file["path"] for file in files), {"arch": arch, "arch_file": arch_file, "trust": trust}
        reading: dict[str, Any] = {**how, **({} if labels is None else {"labels": labels})}
        gives = None if model is None else _kind_of_network(reading)
        if model is not None:
            reading["trust"] = trust
        elif isinstance(scaler, LabelCalibrators):
            _path_of_labels(data)
        elif data is not None and not is_path(data):
            data, reading = given(export, data, labels, how, progress, need_labels=False), {}
        into = None if model is None else Path(model)
        request = ExportRequest(scaler, Path(save), path, into, data, network, reading, tolerance, as_estimator, gives)
        return ship(to, request)


def _files(*given: Any) -> list[str | Path]:
    """Return those arguments that are names of files, which are opened several times, for rows and for digests."""
    return [one for one in given if isinstance(one, str | Path) and os.path.isfile(one)]


def _kind_of_network(reading: dict[str, Any]) -> str | None:
    """Take the option `kind`, which is about the outputs of a network, from those about reading its inputs."""
    kind = reading.pop("kind", None)
    if kind not in (None, "logits"):
        problem = f"--kind {kind} is of recorded scores, and the rows are inputs of a network"
        raise UsageError(problem, "leave it out, or pass --kind logits if the network gives logits in [0, 1]")
    return None if kind is None else "logits"


def _path_of_labels(data: Any) -> None:
    if not is_path(data):
        raise UsageError("calibrators of labels are compared on a file of scores (N, L)", "pass --data FILE")


def as_estimator(scaler: Scaler, classifier: Any) -> Any:
    """Return a calibrator as an estimator of scikit-learn, around a fitted classifier if there is one."""
    from calibcli.api.estimator import Calibrator

    return Calibrator.from_scaler(scaler, classifier)


@spread
def verify(
    deployed: str | Path,
    calibrator: str | Path | Scaler | Fit,
    /,
    data: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    before: str | Path | None = None,
    max: Limits | None = None,
    min: Limits | None = None,
    config: str | Path | None = None,
    tolerance: float | None = None,
    arch: str | None = None,
    arch_file: str | None = None,
    trust: bool = False,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Compare a deployed file with the calibrator that it should contain: max|dp|, changed predictions, the gate.

    Ours: what is compared, and how far it may differ.

    >>> import tempfile
    >>> fit = calibcli.fit_scaler(logits, labels)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = export(fit, "json", save=f"{folder}/calibrator.json", data=logits)
    ...     verify(f"{folder}/calibrator.json", fit, logits, labels, max={"ece": 0.06}).facts["verdict after"]
    'pass'

    Args:
        deployed: what `export` wrote: a calibrator, or a model with it; or a file of the outputs of a server.
        calibrator: of `fit_scaler` or `load_scaler`, or a file of `save_scaler`.
        data: scores before calibration, as for `measure`; with `before`, the inputs of both models.
        labels: (N,), for the gate.
        before: the model without the calibrator.
        max, min, config: of the gate, as for `check`.
        tolerance: largest difference of a probability; default: 1e-6.
        arch, arch_file, trust: of checkpoints, as for `curvature`.  progress: called with (fraction, text).
        how: how scores are read, see `read`.

    Raises:
        InputError: files that are refused, or that hold other rows.  UsageError: a rule without a meaning.
        TypeError: an unknown keyword.
    """
    request = Request(max=rules(max), min=rules(min), config=None if config is None else Path(config))
    load(request.config)  # what it names is no place for an output, also where it is not read here
    with unchanged(*_files(deployed, calibrator, before, data)):
        scaler, files = opened(calibrator, labels=True)
        path, network = "".join(file["path"] for file in files), {"arch": arch, "arch_file": arch_file, "trust": trust}
        reading: dict[str, Any] = {**how, **({} if labels is None else {"labels": labels}), "trust": trust}
        gives = None if before is None else _kind_of_network(reading)
        if isinstance(scaler, LabelCalibrators):
            _path_of_labels(data)
            reading.pop("trust")
        elif before is None:
            data, reading = given(verify, data, labels, how, progress, need_labels=False), {}
        job = ExportRequest(scaler, Path(deployed), path, None, data, network, reading, tolerance, kind=gives)
        result = prove(job, None if before is None else Path(before), request)
    inputs = list(result.provenance["inputs"])
    if isinstance(data, Predictions):
        inputs += [file for file in recorded_outputs.provenance(data) if file not in inputs]
    return dataclasses.replace(result, provenance={**result.provenance, "inputs": inputs})
