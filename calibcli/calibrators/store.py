"""Calibrators on disk: parameters as safetensors with everything else as JSON metadata, or all of it as JSON.

No code is ever loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from calibcli.calibrators.calibrator import SCALERS, Fit, Form, Scaler
from calibcli.core import validation
from calibcli.core.errors import InputError, UsageError, check_path, refusing
from calibcli.core.files import atomic, reading
from calibcli.core.number_format import first_few
from calibcli.core.options import Range
from calibcli.core.result import Cell, Estimate, Table
from calibcli.scores.predictions import Kind

# The form of each method's parameters: it is checked when a calibrator is read.

SHOWN = 20  # most numbers of a parameter that are shown one by one
INF = float("inf")


FLAG = Form(low=0, high=1, optional=True)
"""An option of the map: it is set where the parameter is present."""


def temperature(gamma: bool = False) -> dict[str, Form]:
    """Return the forms of β = 1/T (0: uniform probabilities), and of γ and the order of the two maps."""
    further = {"gamma": Form(low=-1, high=1e3), "phi_first": FLAG} if gamma else {}
    return {"beta": Form(low=0, high=1e12), **further}


def affine(weight: str, log_probabilities: bool = False) -> dict[str, Form]:
    """Return the forms of W, of a given shape, and b."""
    further = {"log_probabilities": FLAG} if log_probabilities else {}
    return {"weight": Form(weight), "bias": Form("k"), **further}


PREPARED = {"cut": Form(low=1e-300, high=0.5, optional=True), "mask": Form(low=1, high=1e300, optional=True)}
"""What every map may have beside its own parameters, and does to scores first; see `program.run`."""
FLAGS = ("top", "phi_first", "log_probabilities", "linear", "log_odds", "of_p")

CURVES = {
    "x": Form("n", -701, 701),
    "y": Form("n", 0, 1),
    "knots": Form("n", 1, 1e9, whole=True),
    "top": FLAG,
    "log_odds": FLAG,
}
"""Knots (x, y) of one curve per class, or of one for the top label, joined end to end; over p or its log-odds."""

CURVES_BY_CLASS = {**CURVES, "knots": Form("k", 1, 1e9, whole=True), "linear": FLAG}
"""Knots of one curve of the confidence for each predicted class, `linear` between knots or steps."""
SHARE = Form(low=0, high=1)


def problem(forms: Mapping[str, Form], parameters: Mapping[str, NDArray[Any]], k: int) -> str:
    """Return what is wrong with the parameters of a method for k classes, or ""."""
    for name in parameters:
        if name not in forms:
            return f"parameter '{name[:40]}' is not one of {', '.join(forms)}"
    for name, form in forms.items():
        if name not in parameters and not form.optional:
            return f"parameter '{name}' is missing"
        if name in parameters and (fault := form.problem(parameters[name], k)):
            return f"parameter '{name}' {fault}"
    return _curves(forms["knots"], parameters, k) if "knots" in forms else ""


def _curves(knots_form: Form, parameters: Mapping[str, NDArray[Any]], k: int) -> str:
    x, y, knots = (parameters[name] for name in ("x", "y", "knots"))
    curves = k if knots_form.shape == "k" else 1 if "top" in parameters or k == 2 else k
    if len(knots) != curves:
        return f"{len(knots)} curves for {k} classes"
    if not len(x) == len(y) == knots.sum():
        return f"{len(x)} and {len(y)} knots where {knots.sum():g} are due"
    falls = np.diff(x) <= 0
    falls[np.cumsum(knots.astype(np.int64))[:-1] - 1] = False
    if falls.any():
        return "knots are not in order"
    return "" if y.min() > 0 and y.max() < 1 else "a probability is 0 or 1"


def shown(
    parameters: Mapping[str, NDArray[Any]], classes: Sequence[str] | None, k: int
) -> tuple[dict[str, Cell], list[Table]]:
    """Describe parameters for people: single numbers as facts, numbers per class as a table.

    Of K x K weights the table has the diagonal; the largest other weight and their norm are facts.
    """
    facts: dict[str, Cell] = {}
    columns: dict[str, NDArray[Any]] = {}
    for name, value in parameters.items():
        if name in ("x", "y", *FLAGS):
            continue
        if name == "knots":
            facts["knots"] = first_few((f"{n:g}" for n in value), SHOWN)
        elif value.ndim == 0 or value.size == 1:
            number = float(value.reshape(()))
            facts[name] = number
            if name == "beta":
                facts["T"] = 1 / number if number > 0 else None
        elif value.shape == (k,):
            columns[name] = value
        elif value.shape == (k, k):
            columns[f"{name} of itself"] = np.diag(value)
            off = value - np.diag(np.diag(value))
            row, column = np.unravel_index(int(np.abs(off).argmax()), off.shape)
            facts["largest other weight"] = f"{off[row, column]:.4g} of class {column} for class {row}"
            facts["norm of other weights"] = float(np.linalg.norm(off))
    if "knots" in parameters and len(parameters["x"]) <= SHOWN:
        pairs = [[float(x), float(y)] for x, y in zip(parameters["x"], parameters["y"], strict=True)]
        table = Table(name="curve", columns=["probability", "becomes"], rows=pairs, title="Knots of the map")
        return facts, [table]
    if not columns:
        return facts, []
    names = classes or tuple(map(str, range(k)))
    rows: list[list[Cell]] = [[names[c], *(float(v[c]) for v in columns.values())] for c in range(min(k, SHOWN))]
    title = "Parameters by class" + (f", the first {SHOWN} of {k}" if k > SHOWN else "")
    return facts, [Table(name="parameters", columns=["class", *columns], rows=rows, title=title)]


# Reading and writing.

SCHEMA = 1
KIND = "calibrator"
LIMIT = 1 << 30  # bytes; matrix scaling of 10,000 classes, the largest calibrator there may be, is smaller


@dataclass(frozen=True, kw_only=True)
class CalibratorHeader:
    """Metadata of a calibrator's file."""

    schema: int
    what: str
    spec: str
    k: Annotated[int, Range(2, 1_000_000)]
    classes: Sequence[str] | None = None
    preserves_accuracy: bool
    fit: Mapping[str, Any] = field(default_factory=dict)

    def problem(self) -> str:
        """Return why this is no calibrator that can be read, or ""."""
        if self.what != KIND:
            return f"holds a {self.what}, not a calibrator"
        if self.schema > SCHEMA:
            return f"has schema {self.schema}, this calib reads up to {SCHEMA}"
        named = self.classes is None or len(set(self.classes)) == self.k
        return "" if named else "classes are not k names, all different"


@dataclass(frozen=True, kw_only=True)
class FittedOn:
    """The part of the metadata about the fit that is checked."""

    kind: Kind = "logits"
    columns: int = 0
    estimates: Sequence[Estimate] = ()


def save(scaler: Scaler | Fit, path: str | Path) -> None:
    """Write `scaler` as safetensors (Hugging Face 2022).

    The metadata hold schema, spec, classes, the fingerprint of the data and the version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     calibcli.save_scaler(calibcli.fit_scaler(logits, labels).scaler, f"{folder}/scaler.safetensors")
    ...     calibcli.load_scaler(f"{folder}/scaler.safetensors").spec
    'temperature'

    Args:
        scaler: a fit of `fit_scaler`, or its `scaler`.
        path: file to write.

    Raises:
        UsageError: the folder does not exist or cannot be written.
    """
    from safetensors.numpy import save_file

    scaler = scaler.scaler if isinstance(scaler, Fit) else scaler
    header = CalibratorHeader(
        schema=SCHEMA,
        what=KIND,
        spec=scaler.spec,
        k=scaler.k,
        classes=scaler.classes,
        preserves_accuracy=scaler.preserves_accuracy,
        fit=dict(scaler.metadata),
    )
    tensors = {name: np.asarray(value, order="C") for name, value in scaler.parameters.items()}
    with atomic(path) as temporary:
        save_file(tensors, temporary, metadata={"calib": json.dumps(vars(header), allow_nan=False)})


def load(path: str | Path) -> Scaler:
    """Read a calibrator from safetensors (Hugging Face 2022), which hold no code.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     calibcli.save_scaler(calibcli.fit_scaler(logits, labels).scaler, f"{folder}/scaler.safetensors")
    ...     calibcli.load_scaler(f"{folder}/scaler.safetensors").spec
    'temperature'

    Args:
        path: file that `save_scaler` or `calib scale --save` wrote.

    Raises:
        InputError: the file is missing, is not safetensors, or does not hold a calibrator that this version knows.
    """
    tensors, header = _read(Path(path))
    fix = "pass a file written by calib scale --save"
    if "calib" not in header:
        raise InputError(f"{path} is not a calibrator", fix)
    with refusing(UNFIT, lambda error: f"{path} is not a calibrator that this calib can read ({error})", fix):
        return checked(json.loads(header["calib"]), tensors, str(path), fix)


UNFIT = (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, OverflowError, UsageError)
"""Errors that reading raises where a file is no calibrator, or a damaged one."""


def checked(header: Any, parameters: Mapping[str, Any], source: str, fix: str) -> Scaler:
    """Check metadata and arrays of a file, and make the calibrator.

    Args:
        header: fields of `CalibratorHeader`, as JSON has them.
        parameters: arrays by name.
        source: name of the file, for errors.
        fix: what to do if it is something else.

    Raises:
        InputError: a field has another type, or does not fit the arrays.
        Exception: one of UNFIT; it cannot be a calibrator.
    """
    header = validation.read(header, CalibratorHeader, source, fix)
    validation.read(header.fit, FittedOn, source, fix, "fit")
    scaler = Scaler(
        spec=SCALERS.choose(header.spec).spec,
        k=header.k,
        parameters=dict(parameters),
        classes=None if header.classes is None else tuple(header.classes),
        metadata=dict(header.fit),
    )
    fault = problem({**scaler.choice.traits.form, **PREPARED}, scaler.parameters, scaler.k)
    if scaler.columns not in ((1, 2) if scaler.k == 2 else (scaler.k,)):
        fault = f"it was fitted on {scaler.columns} columns for {scaler.k} classes"
    if fault:
        raise InputError(f"{source} is a damaged calibrator: {fault}", "fit it again")
    return scaler


NO_CALIBRATOR = "pass a calibrator, which calib scale --save writes; calib apply takes it before the scores"


def as_json(scaler: Scaler) -> dict[str, Any]:
    """Return a calibrator as a JSON object: the contents of its file, with the parameters as numbers."""
    fit = {
        key: scaler.metadata[key] for key in ("n", "source", "sha256", "version", "exchanged") if key in scaler.metadata
    }
    return {
        "what": KIND,
        "schema": SCHEMA,
        "spec": scaler.spec,
        "k": scaler.k,
        "kind": scaler.kind,
        "columns": scaler.columns,
        "classes": None if scaler.classes is None else list(scaler.classes),
        "parameters": {name: np.asarray(value).tolist() for name, value in scaler.parameters.items()},
        "fit": fit,
    }


def from_json(text: str | bytes, source: str) -> Scaler:
    """Read a calibrator from the text that `calib export --to json` wrote.

    Raises:
        InputError: the text is something else.
    """
    fix = "pass a file of calib export --to json"
    with refusing(UNFIT, lambda e: f"{source} is not a calibrator ({type(e).__name__})", fix):
        read = json.loads(text)
        parameters = {name: np.asarray(value) for name, value in read["parameters"].items()}
        header = {key: read.get(key) for key in ("schema", "what", "spec", "k", "classes")}
        fit = {**read["fit"], "kind": read["kind"], "columns": read["columns"]}
        return checked({**header, "preserves_accuracy": False, "fit": fit}, parameters, source, fix)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    errors = (SafetensorError, ValueError, TypeError, KeyError)
    reading(path)
    with (
        refusing(OSError, lambda error: f"cannot read {path} ({error.strerror or error})", check_path(path)),
        refusing(errors, lambda error: f"{path} is not a safetensors file ({error})", NO_CALIBRATOR),
    ):
        if path.is_dir():
            problem = f"{path} is a folder, a calibrator is a file"
            raise InputError(problem, "pass one of its files; the labels of calib scale --multilabel have one each")
        if path.stat().st_size > LIMIT:
            raise InputError(f"{path} is too large for a calibrator", "pass a file written by calib scale --save")
        with safe_open(str(path), framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, dict(file.metadata() or {})
