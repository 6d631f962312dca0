"""The shelf of export targets: what one is asked to write, how it is compared with the calibrator, and the result of
an export.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibcli import __version__
from calibcli.calibrators import LabelCalibrators, Scaler, check_classes
from calibcli.calibrators.per_label import check_labels
from calibcli.calibrators.program import Operations
from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import known_suffix, sha256
from calibcli.core.result import Cell, Estimate, Result
from calibcli.core.shelves import Shelf
from calibcli.scores import from_arrays, recorded_outputs
from calibcli.scores.predictions import Predictions, kind_words

# What was written against the calibrator in float64, on real rows. Nothing is kept that is further off.

Array = NDArray[Any]
LIMITS = {"float64": 1e-9, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
DRAWS = 8  # of rounding, where a half-precision head is rounded


class Inexact(InputError):
    """What was written is further from the calibrator than its limit."""


@dataclass(frozen=True)
class Compared:
    """One comparison.

    Attributes:
        n: rows.  most: the largest difference of a probability, in row `row`.  limit: what it may be.
        changed: rows whose predicted class is not the calibrator's.
        rounding: what arithmetic and storage cost by themselves.
    """

    n: int
    most: float
    row: int
    limit: float
    changed: int
    rounding: float | None = None

    @property
    def within(self) -> bool:
        return self.most <= self.limit

    @property
    def text(self) -> str:
        """`max|dp| 3.0e-08 on 997 rows (limit 1e-06), no predicted class changed`."""
        changed = f"{self.changed or 'no'} predicted class{'es' if self.changed > 1 else ''} changed"
        cost = "" if self.rounding is None else f", twice what rounding alone costs is {2 * self.rounding:.2g}"
        return f"max|dp| {self.most:.2g} on {self.n:,} rows (limit {self.limit:.2g}{cost}), {changed}"

    def require(self, what: str, fix: str = "") -> None:
        """Refuse what is further off than its limit.

        Raises:
            Inexact: it is.
        """
        if not self.within:
            problem = (
                f"{what} is off by max|dp| = {self.most:.3g} (row {self.row} of {self.n:,}), "
                f"its limit is {self.limit:.3g}; {self.changed} predicted classes changed; nothing was written"
            )
            raise Inexact(problem, fix or "check that model, rows and calibrator belong together, or pass --tolerance")


def compare(
    expected: Array,
    found: Array,
    dtype: str = "float32",
    tolerance: float | None = None,
    raw: Array | None = None,
    rounding: Callable[[], float | None] = lambda: None,
) -> Compared:
    """Compare probabilities.

    Args:
        expected: (n, K) log-probabilities of the calibrator, float64.
        found: (n, K) probabilities of what was written.
        dtype: that it works in.
        tolerance: the limit, where the user named one.
        raw: (n, K) scores before, where the calibrator keeps their predicted classes.
        rounding: what arithmetic and storage cost without a calibrator; asked where `found` is beyond its limit.
    """
    p = np.asarray(found, np.float64)
    if p.shape != expected.shape:
        shapes = f"{tuple(p.shape)} for {tuple(expected.shape)}"
        raise InputError(f"what was written gives outputs of shape {shapes}; nothing was written", "check --model")
    far = np.abs(np.exp(expected) - p)
    worst = np.nan_to_num(far.max(axis=1, initial=0.0), nan=np.inf)
    classes = (expected if raw is None else raw).argmax(axis=1)
    limit, cost = LIMITS[dtype] if tolerance is None else tolerance, None
    if tolerance is None and worst.max(initial=0.0) > limit and (cost := rounding()) is not None:
        limit = max(limit, 2 * cost)
    row = int(worst.argmax())
    return Compared(len(p), float(worst[row]), row, limit, int((p.argmax(axis=1) != classes).sum()), cost)


def of_scores(scaler: Scaler, fed: Array, found: Array, dtype: str, tolerance: float | None = None) -> Compared:
    """What a calibrator of its own gives for the scores `fed`, as it was given them."""
    wide = fed.astype(np.float64)
    expected = np.asarray(scaler(wide))
    if isinstance(scaler, LabelCalibrators):  # each label of each row is a problem of its own
        p, q = np.exp(expected).ravel(), np.asarray(found, np.float64).ravel()
        with np.errstate(divide="ignore"):
            return compare(np.log(np.stack([1 - p, p], axis=1)), np.stack([1 - q, q], axis=1), dtype, tolerance)
    raw = wide if scaler.preserves_accuracy and scaler.columns > 1 else None
    return compare(expected, found, dtype, tolerance, raw)


def softmax(scores: Array) -> Array:
    """Probabilities (n, K) of scores that are logits or log-probabilities."""
    from calibcli.scores.likelihood import log_softmax

    return np.exp(log_softmax(np.asarray(scores, np.float64)))


# The shelf of targets, what one is asked to write, and what it says about it.


TARGETS = Shelf("target", joint="-", package="calibcli.ship.targets", first=("checkpoint", "onnx", "json"))
"""An entry is a function `(job, *, options) -> Shipped` that writes after it compared, put here with the traits

suffixes: of the file that it writes; () where that depends on the model.
data: what rows are: `scores` (recorded outputs), `inputs` (a model's), `either` (--model decides).
"""
ROWS = 10_000  # that are compared, evenly spaced over the file


@dataclass(frozen=True)
class ExportRequest:
    """What to write, and what it is held against.

    Attributes:
        scaler: the calibrator.  calibrator: its file, "" of one in memory.  path: what to write.
        model: the network that it goes into, or None.  network: options of `checkpoint.load`.
        data: rows: recorded outputs, or a data set of inputs.  reading: options of `recorded.read` or `dataset.load`.
        tolerance: largest difference of a probability; None is the target's own.
        estimator: what makes a scikit-learn estimator of a scaler, and of a fitted classifier where there is one.
    """

    scaler: Scaler
    path: Path
    calibrator: str = ""
    model: Path | None = None
    data: Any = None
    network: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = None
    estimator: Callable[[Scaler, Any], Any] | None = None

    @cached_property
    def scores(self) -> Predictions:
        """Recorded outputs to compare on: those of --data, or those that the calibrator was fitted on.

        Raises:
            UsageError: none were named, and the file of the fit is not there, or is another one now.
            InputError: they cannot be read, or are not of this calibrator's classes.
        """
        rows = self.data
        if not isinstance(rows, Predictions):
            how = {"labels": None, **self.reading, "need_labels": False}
            rows = recorded_outputs.read(self._source(), **how)
        check_classes(self.scaler, rows)
        if rows.n > ROWS:
            rows = rows.take(np.linspace(0, rows.n - 1, ROWS).astype(np.int64))
        return rows

    @cached_property
    def labelled(self) -> Predictions:
        """All rows of --data, with labels.

        Raises:
            UsageError: none were named, or they have no labels.
            InputError: they cannot be read, or are not of this calibrator's classes.
        """
        rows = self.data
        if not isinstance(rows, Predictions):
            if rows is None:
                raise UsageError("labelled rows are needed, and none were named", "pass --data ROWS")
            rows = recorded_outputs.read(rows, **self.reading)
        if not rows.facts.get("labelled", True):
            raise UsageError(f"{rows.source} has no labels", "pass labelled rows")
        check_classes(self.scaler, rows)
        return rows

    def _source(self) -> Any:
        if self.data is not None:
            return self.data
        about = self.scaler.metadata
        source = str(about.get("source", ""))
        if not (source and os.path.isfile(source) and about.get("sha256") == sha256(source)):
            raise UsageError("an export is compared on real rows, and none were named", "pass --data ROWS")
        return source

    def fed(self, dtype: str) -> Array:
        """The rows as the calibrator is called with them, rounded to `dtype`: (n, columns).

        Raises:
            InputError: as `fed`.
        """
        if isinstance(self.scaler, LabelCalibrators):
            parts = from_arrays.read(self._source(), **{**self.reading, "need_labels": False})
            check_labels([*parts], [*(self.scaler.classes or ())])
            pairs = zip(self.scaler.parts, parts.values(), strict=True)
            found = np.concatenate([fed(one, rows, dtype) for one, rows in pairs], axis=1)
            return found[np.linspace(0, len(found) - 1, min(len(found), ROWS)).astype(np.int64)]
        return fed(self.scaler, self.scores, dtype)

    @property
    def read(self) -> list[str]:
        """Names of files that --data may be."""
        return [str(self.data)] if isinstance(self.data, str | Path) else []

    def provenance(self) -> list[dict[str, Any]]:
        """Path and sha256 of what was read."""
        files = [self.calibrator] if self.calibrator else []
        if isinstance(self.scaler, LabelCalibrators):
            files = sorted(map(str, Path(self.calibrator).glob("*.safetensors")))
        if self.model is not None and self.model.is_file():
            files.append(str(self.model))
        return [{"path": path, "sha256": sha256(path)} for path in files]


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What was written and how far it is from the calibrator."""

    files: Sequence[Path]
    compared: Compared | None
    notes: Sequence[str] = ()
    facts: Mapping[str, Cell] = field(default_factory=dict)
    inputs: Sequence[Mapping[str, Any]] = ()


def fed(scaler: Scaler, rows: Predictions, dtype: str) -> Array:
    """Rows as a calibrator is called with them, rounded to `dtype`: (n, columns).

    Raises:
        InputError: they are of another kind than those of the fit.
    """
    z = np.asarray(rows.logits, np.float64)
    if (scaler.kind == "logits") != (rows.kind == "logits"):
        problem = f"{rows.source} holds {kind_words(rows.kind)}, the calibrator was fitted on {kind_words(scaler.kind)}"
        raise InputError(problem, "pass rows of the kind of the fit")
    if scaler.columns == 1:
        z = z[:, 1:] - z[:, :1] if scaler.kind == "logits" else z[:, 1:]
    z = np.exp(z) if scaler.kind == "probabilities" else z
    return z.astype(dtype)


# What an exported thing says about the calibrator in it.


def about(job: ExportRequest) -> dict[str, Any]:
    """Calibrator, T, date, rows of the fit, sha256, version."""
    scaler, found = job.scaler, dict[str, Any]()
    found["calibrator"] = scaler.spec
    if "beta" in scaler.parameters and float(scaler.parameters["beta"]) > 0:
        found["temperature"] = 1 / float(scaler.parameters["beta"])
    found["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    found["rows"] = int(scaler.metadata.get("n", 0))
    found["data_sha256"] = str(scaler.metadata.get("sha256", ""))
    found["sha256"] = sha256(job.calibrator) if Path(job.calibrator).is_file() else ""
    found["version"] = __version__
    return found


def stamp(job: ExportRequest) -> dict[str, str]:
    """The same as texts by name, for ONNX."""
    return {
        f"calib.{key}": f"{value:.17g}" if isinstance(value, float) else str(value) for key, value in about(job).items()
    }


# From the scores that a calibrator is called with to log-probabilities, in the operations of any runtime.


T = TypeVar("T")


def exact_enough(scaler: Scaler, write: Callable[[bool], T]) -> T:
    """What `write(wide)` gives in float32, or in float64 where float32 is known or found to be too far off.

    Raises:
        Inexact: float64 is too far off as well.
    """
    if not scaler.choice.traits.get("steep"):
        with contextlib.suppress(Inexact):
            return write(False)
    return write(True)


def log_probabilities(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """(n, K) of scores (n, columns); of the calibrators of labels (n, L), each of its own column."""
    if isinstance(scaler, LabelCalibrators):
        return o.join(*(o.column(mapped(o, one, o.column(scores, i)), 1) for i, one in enumerate(scaler.parts)))
    return mapped(o, scaler, scores)


def classes(scaler: Scaler) -> int:
    """K of the maps in it: of labels 2, whether a row has one."""
    return 2 if isinstance(scaler, LabelCalibrators) else scaler.k


def mapped(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """(n, K) of scores (n, columns)."""
    return scaler.choice.traits["map"](o, scaler.parameters, as_logits(o, scaler, scores))


def as_logits(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """(n, K) logits or log-probabilities of what the calibrator takes."""
    if scaler.columns == 1:
        if scaler.kind == "logits":
            return o.join(scores * 0.0, scores)
        p = o.exp(scores) if scaler.kind == "log_probabilities" else scores
        return o.join(o.log1p(0.0 - p), o.log(p))
    return o.log(o.most(scores, 0.0)) if scaler.kind == "probabilities" else scores


OF_LABELS = ("onnx", "pt2", "torchscript")  # targets that hold the calibrators of labels in one


def export(spec: str, job: ExportRequest) -> Result:
    """Write what `spec` names, and say how far it is from the calibrator.

    Raises:
        UsageError: an unknown target, a map that it cannot hold, or a path that cannot be.
        InputError: a model or rows that are refused, or what was made is not within its limit: it is not written.
    """
    choice = TARGETS.choose(spec)
    needs, suffixes = choice.traits["data"], choice.traits["suffixes"]
    if needs == "inputs" and job.model is None:
        raise UsageError(f"--to {choice.name} writes a model", "pass --model FILE")
    if needs == "scores" and job.model is not None:
        raise UsageError(f"--to {choice.name} writes the calibrator alone", "leave --model out")
    if isinstance(job.scaler, LabelCalibrators) and (choice.name not in OF_LABELS or job.model is not None):
        what = f"--to {choice.name}" + (" --model" if choice.name in OF_LABELS else "")
        one = sorted(Path(job.calibrator).glob("*.safetensors"))[0]
        fix = "use --to onnx, --to pt2 or --to torchscript, without --model"
        raise UsageError(f"{what} takes the calibrator of one label, such as {one}", fix)
    if suffixes:
        known_suffix(job.path, suffixes, f"the target {choice.name}")
    shipped = choice(job)
    compared = shipped.compared
    facts: dict[str, Cell] = {
        "target": choice.spec,
        "calibrator": job.scaler.spec,
        "kind": kind_words(job.scaler.kind),
        "classes": job.scaler.k,
        **shipped.facts,
    }
    if compared is not None:
        facts |= facts_of(compared)
    facts["headline"] = _headline(choice.name, job, compared)
    named = needs != "inputs" and job.model is None and isinstance(job.data, str | Path) and Path(job.data).is_file()
    rows = [{"path": str(job.data), "sha256": sha256(job.data)}] if named else []
    return Result(
        command="export",
        estimates=[] if compared is None else [estimate(compared)],
        notes=shipped.notes,
        facts=facts,
        artefacts={path.suffix.lstrip(".") or choice.name: str(path) for path in shipped.files},
        provenance={"inputs": list({e["path"]: e for e in [*job.provenance(), *shipped.inputs, *rows]}.values())},
    )


def _headline(target: str, job: ExportRequest, compared: Compared | None) -> str:
    said = f"Wrote {job.scaler.choice.name.replace('_', ' ')} as {target} to {job.path.name}"
    return f"{said}." if compared is None else f"{said}: {compared.text}."


def facts_of(compared: Compared) -> dict[str, Cell]:
    """The comparison, as facts."""
    more: dict[str, Cell] = {} if compared.rounding is None else {"rounding alone costs": compared.rounding}
    return {"limit": compared.limit, "n": compared.n, "predicted classes changed": compared.changed, **more}


def estimate(compared: Compared) -> Estimate:
    """The largest difference of a probability."""
    return Estimate(
        name="max_dp",
        value=compared.most,
        n=compared.n,
        unit="probability",
        better="lower",
        how="largest |p - p of the calibrator in float64| over rows and classes",
        reason="the largest of these rows, measured: it has no sampling error",
    )
