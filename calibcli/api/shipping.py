"""Put a calibrator where the model runs, and prove that it is there, from Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Unpack

import numpy.typing as npt

from calibcli.api.measuring import Scores, given, is_path, spread
from calibcli.files import unchanged
from calibcli.inputs.scores.from_arrays import How
from calibcli.predictions import Progress
from calibcli.result import Result
from calibcli.scalers import Fit, Scaler
from calibcli.scalers import load as load_scaler
from calibcli.ship import Job
from calibcli.ship import export as ship

__all__ = ["export"]


@spread
def export(
    calibrator: str | Path | Scaler | Fit,
    to: str,
    /,
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
    """Write a calibrator in the form that the model runs in, compared with the calibrator on real rows before.

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
        to: a target with its options, such as `onnx` or `checkpoint` (calib list targets).
        save: what to write.
        model: a network that the calibrator goes into: a checkpoint, or an ONNX file.
        data: rows to compare on: scores as for `measure`, or of a model its inputs (`digits.npz#test`).
        labels: (N,), of arrays, for a card.
        tolerance: largest difference of a probability; default: 1e-6 (float32), 1e-9 (float64), of half precision
            twice what rounding alone costs.
        arch, arch_file, trust: of `model`, as for `curvature`.  progress: called with (fraction, text).
        how: how scores are read, see `read`.

    Raises:
        InputError: inputs that are refused, or what was made is beyond its limit: then nothing is written.
        UsageError: an unknown target, a map that it cannot hold, or a path that cannot be.
        TypeError: an unknown keyword.
    """
    path, scaler = "", calibrator.scaler if isinstance(calibrator, Fit) else calibrator
    if isinstance(scaler, str | Path):
        path = os.fspath(scaler)
        with unchanged(scaler):
            scaler = load_scaler(scaler)
    network: dict[str, Any] = {"arch": arch, "arch_file": arch_file, "trust": trust}
    reading: dict[str, Any] = dict(how)
    if data is not None and model is None and not is_path(data):
        data, reading = given(export, data, labels, how, progress, need_labels=False), {}
    job = Job(
        scaler,
        Path(save),
        calibrator=path,
        model=None if model is None else Path(model),
        data=data,
        network={} if model is not None and Path(model).suffix == ".onnx" else network,
        reading=reading,
        tolerance=tolerance,
    )
    return ship(to, job)
