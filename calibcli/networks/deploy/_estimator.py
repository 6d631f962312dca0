"""`--to sklearn`: write an estimator, read it back and compare. Pickles are only read if the user trusts them."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, UsageError, check_path, refusing
from calibcli.core.files import atomic
from calibcli.networks.user_code import FAILURES
from calibcli.scores.files.formats.numpy import DAMAGED
from calibcli.scores.predictions import two_columns
from calibcli.ship.target import Compared, ExportRequest, Shipped, compare, of_scores, softmax

Array = NDArray[Any]
PICKLES = (".pkl", ".pickle", ".joblib")
SUFFIXES = (*PICKLES, ".skops")
ONE_ROW = 1e-5  # largest difference of a probability in float32 if a row is computed alone or among others
# Our own types in a .skops file are safe: a fit, its calibrator, estimates, tables and figures hold numbers and texts.
OURS = {"calibcli.api.estimator.Calibrator", "calibcli.calibrators.calibrator.Fit",
        "calibcli.calibrators.calibrator.Scaler", "calibcli.core.figure_data.Curve", "calibcli.core.figure_data.Plot",
        "calibcli.core.result.Estimate", "calibcli.core.result.Table", "calibcli.core.scope.Scope"}  # fmt: skip


def write(job: ExportRequest) -> Shipped:
    """Write the calibrator as an estimator, alone or around the classifier of a file.

    Raises:
        UsageError: skops is not installed.
        InputError: a file is refused, or the file that was written differs.
    """
    assert job.estimator is not None
    notes = [] if job.path.suffix == ".skops" else ["a pickle is code: it is read with the versions that wrote it"]
    if job.model is None:
        fed = job.fed("float64")
        compared = _written(job, job.estimator(job.scaler, None), fed, job.scaler(fed), "")
        return Shipped(files=[job.path], compared=compared, facts={"takes": "scores"}, notes=notes)
    if job.data is None:
        raise UsageError("a classifier is compared on rows of inputs, and none were named", "pass --data ROWS.npz")
    classifier = read(job.model, bool(job.network.get("trust")))
    if not hasattr(classifier, "classes_"):
        problem = f"{job.model} holds a {type(classifier).__name__}, which is not a fitted classifier"
        raise InputError(problem, "dump the fitted classifier or Pipeline")
    wrapped, (x, source) = job.estimator(job.scaler, classifier), inputs(job)
    method = "decision_function" if wrapped.fit_.scaler.kind == "logits" else "predict_proba"
    scores = _called(classifier, method, x, job.model)
    expected = np.asarray(wrapped.fit_.scaler(scores.astype(np.float64)))
    compared = _written(job, wrapped, x, expected, "float64" if scores.dtype == np.float64 else "float32")
    facts = {"takes": "inputs", "classifier": type(classifier).__name__, "scores": method}
    return Shipped(files=[job.path], compared=compared, facts=facts, notes=notes, inputs=[source] if source else [])


def _written(job: ExportRequest, fitted: Any, x: Array, expected: Array, dtype: str) -> Compared:
    """Write the file, read it back, and compare it on all rows and on one row.

    Args:
        dtype: of the scores that the classifier gives for the rows x; "" if x are scores.
    """
    with atomic(job.path) as temporary:
        fix = "use a .pkl file" if job.path.suffix == ".skops" else "use a .skops file"
        with refusing((*FAILURES, pickle.PicklingError), lambda e: f"it cannot be dumped ({str(e)[:200]})", fix):
            data = _skops().dumps(fitted) if job.path.suffix == ".skops" else pickle.dumps(fitted)
        temporary.write_bytes(data)
        again = read(temporary, trust=True)
        probs, alone = (_called(again, "predict_proba", rows, job.path) for rows in (x, x[:1]))
        if not dtype:
            compared = of_scores(job.scaler, x, probs, "float64", job.tolerance)
        else:
            compared = compare(expected, probs, dtype, job.tolerance)
        compared.require(job.path.name)
        if not np.allclose(alone, probs[:1], rtol=0, atol=compared.limit if dtype != "float32" else ONE_ROW):
            problem = f"{job.path.name} gives a different result for one row alone"
            raise InputError(problem, "report it with the classifier")
    return compared


def _called(model: Any, method: str, x: Array, path: Path) -> Array:
    fix = "check --data: rows as the classifier was fitted on"
    with refusing(FAILURES, lambda e: f"{path} does not take these rows ({str(e)[:200]})", fix):
        return np.asarray(getattr(model, method)(x))


def inputs(job: ExportRequest) -> tuple[Array, dict[str, str]]:
    """Read the rows of --data; also return their path and sha256.

    Raises:
        InputError: they cannot be read, or have several inputs.
    """
    from calibcli.networks import dataset

    rows = dataset.load(job.data, **job.reading)
    x, _ = rows.batch(slice(0, len(rows)))
    if isinstance(x, dict):
        raise InputError(f"{rows.source} has several inputs ({', '.join(x)})", "name one: --inputs NAME")
    return np.asarray(x), {"path": rows.source, "sha256": rows.sha256} if rows.sha256 else {}


def _skops() -> ModuleType:
    try:
        import skops.io
    except ModuleNotFoundError:
        problem = "a .skops file needs skops, which is not installed"
        raise UsageError(problem, "pip install skops, or use .pkl") from None
    return skops.io  # type: ignore[no-any-return]


def read(path: Path, trust: bool) -> Any:
    """Read a `.pkl`, `.joblib` or `.skops` file.

    Raises:
        InputError: it holds code and is not trusted, or cannot be read.
        UsageError: skops is not installed.
    """
    fix, failures = "write it again, with the versions that read it", (*FAILURES, *DAMAGED, pickle.UnpicklingError)
    with (
        refusing(OSError, lambda e: f"cannot read {path} ({e.strerror or e})", check_path(path)),
        refusing(failures, lambda e: f"{path} cannot be read ({type(e).__name__}: {str(e)[:200]})", fix),
    ):
        if path.suffix != ".skops":
            if not trust:
                problem = f"{path} is a pickle, which is code; nothing was executed"
                raise InputError(problem, "pass --trust if you trust it, or write it as .skops")
            import joblib

            return joblib.load(path)
        skops = _skops()
        unknown = skops.get_untrusted_types(file=path)
        if not trust and (foreign := sorted({*unknown} - OURS)):
            problem = f"{path} holds {', '.join(foreign[:4])}, which skops does not know; nothing was executed"
            raise InputError(problem, "pass --trust if you trust it")
        return skops.load(path, trusted=unknown)


def probabilities(path: Path, rows: Array, kind: str, trust: bool) -> Array:
    """Compute the probabilities (n, K) of an estimator or classifier (if `kind` is logits, by `decision_function`).

    Raises:
        InputError: as `read`, or the estimator does not take the rows.
    """
    model = read(path, trust)
    if kind == "logits" and hasattr(model, "decision_function"):
        z = _called(model, "decision_function", rows, path)
        return softmax(z if z.ndim > 1 else two_columns(z, "logits"))
    return _called(model, "predict_proba", rows, path).astype(np.float64)
