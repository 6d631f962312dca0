"""The registry of export targets: requests, the comparison with the calibrator, and the result of an export."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibcli import __version__
from calibcli.calibrators import LabelCalibrators, Scaler, check_classes
from calibcli.calibrators.per_label import check_labels
from calibcli.calibrators.program import Operations, run
from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import known_suffix, sha256
from calibcli.core.registries import Registry, Traits
from calibcli.core.result import Cell, Estimate, Result
from calibcli.core.statistics import parts
from calibcli.scores import from_arrays, recorded_outputs
from calibcli.scores.predictions import Predictions, kind_words

# Every output is compared with the calibrator in float64, on real rows, and kept only within its limit.

Array = NDArray[Any]
LIMITS = {"float64": 1e-9, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
DRAWS = 8  # of stochastic rounding of a half-precision head


class Inexact(InputError):
    """The output differs from the calibrator by more than its limit."""


@dataclass(frozen=True)
class Compared:
    """Result of one comparison.

    Attributes:
        n: number of rows.  most: largest difference of a probability.  row: where it is.  limit: largest allowed.
        changed: number of rows whose predicted class is not the calibrator's.
        rounding: difference that arithmetic and storage cause without a calibrator, or None.
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
        """Refuse an output beyond the limit; `what` names it.

        Raises:
            Inexact: the largest difference is beyond the limit.
        """
        if not self.within:
            problem = (
                f"{what} is off by max|dp| = {self.most:.3g} (row {self.row} of {self.n:,}), "
                f"its limit is {self.limit:.3g}; {self.changed} predicted classes changed; nothing was written"
            )
            raise Inexact(problem, fix or "check that model, rows and calibrator belong together, or pass --tolerance")


def compare(
    expected: Array,
    deployed: Array,
    dtype: str = "float32",
    tolerance: float | None = None,
    raw: Array | None = None,
    rounding: Callable[[], float | None] = lambda: None,
) -> Compared:
    """Compare the probabilities of an output with those of the calibrator.

    Args:
        expected: (n, K) log-probabilities of the calibrator, float64.
        deployed: (n, K) probabilities of the output.
        dtype: the type that it computes in.
        tolerance: the limit, where the user gave one.
        raw: (n, K) scores before, where the calibrator keeps their predicted classes.
        rounding: returns the difference that arithmetic and storage cause without a calibrator, or None; called only
            where `deployed` is beyond its limit, which is then at least twice as much.

    Raises:
        InputError: the shapes differ.
    """
    p = np.asarray(deployed, np.float64)
    if p.shape != expected.shape:
        shapes = f"{tuple(p.shape)} for {tuple(expected.shape)}"
        raise InputError(f"the export gives outputs of shape {shapes}; nothing was written", "check --model")
    largest = (np.abs(np.exp(expected[rows]) - p[rows]).max(axis=1, initial=0.0) for rows in parts(max(len(p), 1)))
    worst = np.nan_to_num(np.concatenate([*largest]), nan=np.inf)
    classes = (expected if raw is None else raw).argmax(axis=1)
    limit, cost = LIMITS[dtype] if tolerance is None else tolerance, None
    if tolerance is None and worst.max(initial=0.0) > limit and (cost := rounding()) is not None:
        limit = max(limit, rounded_up(2 * cost))
    row = int(worst.argmax())
    return Compared(len(p), float(worst[row]), row, limit, int((p.argmax(axis=1) != classes).sum()), cost)


def rounded_up(limit: float) -> float:
    """Return a limit with three digits, and no smaller.

    >>> rounded_up(0.00033750249030295443)
    0.000338
    """
    near = float(f"{limit:.2e}")
    return near if near >= limit else float(f"{limit * 1.005:.2e}")


def of_scores(scaler: Scaler, fed: Array, deployed: Array, dtype: str, tolerance: float | None = None) -> Compared:
    """Compare an output that takes scores (n, columns), given the scores `fed`, with its calibrator."""
    expected = np.asarray(scaler(fed))
    if isinstance(scaler, LabelCalibrators):  # each label of each row is a binary problem
        p, q = np.exp(expected).ravel(), np.asarray(deployed, np.float64).ravel()
        with np.errstate(divide="ignore"):
            return compare(np.log(np.stack([1 - p, p], axis=1)), np.stack([1 - q, q], axis=1), dtype, tolerance)
    raw = fed if scaler.preserves_accuracy and scaler.columns > 1 else None
    return compare(expected, deployed, dtype, tolerance, raw)


def softmax(scores: Array) -> Array:
    """Compute probabilities (n, K) of logits or log-probabilities."""
    from calibcli.scores.likelihood import log_softmax

    return np.exp(log_softmax(np.asarray(scores, np.float64)))


# The registry, and what a target receives and returns.


@dataclass(frozen=True, kw_only=True)
class TargetTraits(Traits):
    """What a target says of itself."""

    suffixes: tuple[str, ...]
    """Of the file that it writes; `export` refuses others, but takes any for (), where they depend on the model."""
    data: Literal["scores", "inputs", "either"]
    """The rows that it is compared on; `export` asks for --model (inputs), refuses it (scores), or takes both."""


TARGETS = Registry(
    "target", TargetTraits, joint="-", package="calibcli.ship.targets", first=("checkpoint", "onnx", "json")
)
"""An entry is a function `(request, *, options) -> Shipped`, which compares before it writes."""
ROWS = 10_000  # most rows that are compared, evenly spaced over the file


@dataclass(frozen=True)
class ExportRequest:
    """The file to write, and the rows to compare it on.

    Attributes:
        scaler: the calibrator.  calibrator: its file, "" for one in memory.  path: file to write.
        model: the network that it goes into, or None.  network: options of `checkpoint.load`.
        data: recorded outputs, or a data set of inputs.  reading: options of `recorded_outputs.read` or `dataset.load`.
        tolerance: largest difference of a probability; None is the default of the target.
        estimator: makes a scikit-learn estimator of a scaler and a fitted classifier, or None.
        kind: `logits` if the outputs of the network are said to be logits, though all lie in [0, 1].
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
    kind: str | None = None

    @cached_property
    def scores(self) -> Predictions:
        """Recorded outputs to compare on: those of --data, else those that the calibrator was fitted on.

        Raises:
            UsageError: no rows are given, and the file of the fit is missing or has changed.
            InputError: the rows cannot be read, or have other classes than the calibrator.
        """
        rows = self.data
        if not isinstance(rows, Predictions):
            options = {"labels": None, **self.reading, "need_labels": False}
            of_fit = {} if self.reading else self.scaler.reading
            columns = {name: option for name, option in of_fit.items() if name not in ("labels", "event")}
            try:
                rows = recorded_outputs.read(self._source(), **{**options, **columns})
            except InputError:
                if not columns or self.data is None:
                    raise
                rows = recorded_outputs.read(self._source(), **options)
        check_classes(self.scaler, rows)
        if rows.n > ROWS:
            rows = rows.take(np.linspace(0, rows.n - 1, ROWS).astype(np.int64))
        return rows

    @cached_property
    def labelled(self) -> Predictions:
        """All rows of --data, with labels.

        Raises:
            UsageError: no rows are given, or they have no labels.
            InputError: the rows cannot be read, or have other classes than the calibrator.
        """
        rows = self.data
        if rows is None:
            raise UsageError("labelled rows are needed, and none were named", "pass --data ROWS")
        if not isinstance(rows, Predictions):
            rows = recorded_outputs.read(rows, **self.reading)
        if not rows.record.labelled:
            raise UsageError(f"{rows.source} has no labels", "pass labelled rows")
        check_classes(self.scaler, rows)
        return rows

    def _source(self) -> Any:
        if self.data is not None:
            return self.data
        metadata = self.scaler.metadata
        source = str(metadata.get("source", ""))
        if not (source and os.path.isfile(source) and metadata.get("sha256") == sha256(source)):
            raise UsageError("an export is compared on real rows, and none were named", "pass --data ROWS")
        return source

    def fed(self, dtype: str) -> Array:
        """Return the rows that the calibrator is called with, rounded to `dtype`: (n, columns).

        Raises:
            InputError: they are of another kind than those of the fit, or of other labels.
        """
        if isinstance(self.scaler, LabelCalibrators):
            parts = from_arrays.read(self._source(), **{**self.reading, "need_labels": False})
            check_labels([*parts], [*(self.scaler.classes or ())])
            pairs = zip(self.scaler.parts, parts.values(), strict=True)
            scores = np.concatenate([fed(one, rows, dtype) for one, rows in pairs], axis=1)
            return scores[np.linspace(0, len(scores) - 1, min(len(scores), ROWS)).astype(np.int64)]
        return fed(self.scaler, self.scores, dtype)

    @property
    def read(self) -> list[str]:
        """Files that --data names."""
        return [str(self.data)] if isinstance(self.data, str | Path) else []

    def provenance(self) -> list[dict[str, Any]]:
        """Return path and sha256 of the files of calibrator and model."""
        files = [self.calibrator] if self.calibrator else []
        if isinstance(self.scaler, LabelCalibrators):
            files = sorted(map(str, Path(self.calibrator).glob("*.safetensors")))
        if self.model is not None and self.model.is_file():
            files.append(str(self.model))
        return [{"path": path, "sha256": sha256(path)} for path in files]


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """The files that were written, and their comparison with the calibrator."""

    files: Sequence[Path]
    compared: Compared | None
    notes: Sequence[str] = ()
    facts: Mapping[str, Cell] = field(default_factory=dict)
    inputs: Sequence[Mapping[str, Any]] = ()


def fed(scaler: Scaler, rows: Predictions, dtype: str) -> Array:
    """Return rows as the scores that a calibrator is called with, rounded to `dtype`: (n, columns).

    Raises:
        InputError: they are of another kind than those of the fit.
    """
    z = np.array(rows.logits, np.float64)  # a copy, as the program that is given it may write to it
    if (scaler.kind == "logits") != (rows.kind == "logits"):
        problem = f"{rows.source} holds {kind_words(rows.kind)}, the calibrator was fitted on {kind_words(scaler.kind)}"
        raise InputError(problem, "pass rows of the kind of the fit")
    if clip := rows.record.clip:
        z = before_clip(z, clip)
    if scaler.columns == 1:
        z = z[:, 1:] - z[:, :1] if scaler.kind == "logits" else z[:, 1:]
    z = np.exp(z) if scaler.kind == "probabilities" else z
    return z.astype(dtype, copy=False)


def before_clip(z: Array, clip: float) -> Array:
    """Return logarithms of probabilities (n, K) that sum to one and become `z` where smaller ones are raised to `clip`.

    What the others leave of one is shared by those that were raised.
    """
    p = np.exp(z)
    raised = p <= clip * (1 + 1e-6)
    left = 1 - np.where(raised, 0, p).sum(axis=1)
    share = np.clip(left / np.maximum(raised.sum(axis=1), 1), 0, clip)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(raised, np.log(share)[:, None], z))


# Metadata of the calibrator, which exported files contain.


def about(request: ExportRequest) -> dict[str, Any]:
    """Return the calibrator's spec, T, date, rows of the fit, hashes of data and file, and version."""
    scaler = request.scaler
    beta = float(scaler.parameters.get("beta", 0))
    return {
        "calibrator": scaler.spec,
        **({"temperature": 1 / beta} if beta > 0 else {}),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": int(scaler.metadata.get("n", 0)),
        "data_sha256": str(scaler.metadata.get("sha256", "")),
        "sha256": sha256(request.calibrator) if Path(request.calibrator).is_file() else "",
        "version": __version__,
    }


def stamp(request: ExportRequest) -> dict[str, str]:
    """Return `about` as texts by name, for ONNX."""
    return {
        f"calib.{key}": f"{value:.17g}" if isinstance(value, float) else str(value)
        for key, value in about(request).items()
    }


# A calibrator in the operations of a runtime, from its scores to log-probabilities.

T = TypeVar("T")


def exact_enough(scaler: Scaler, write: Callable[[bool], T]) -> T:
    """Call `write(wide)` for float32, and for float64 where float32 is known, or turns out, to be too inexact.

    Raises:
        Inexact: float64 is beyond the limit as well.
    """
    if not scaler.choice.traits.steep:
        with contextlib.suppress(Inexact):
            return write(False)
    return write(True)


def log_probabilities(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """Map scores (n, columns) to (n, K). The calibrators of labels map each column (n, L) by itself."""
    if isinstance(scaler, LabelCalibrators):
        return o.join(*(o.column(mapped(o, one, o.column(scores, i)), 1) for i, one in enumerate(scaler.parts)))
    return mapped(o, scaler, scores)


def classes(scaler: Scaler) -> int:
    """Return the number of classes of each map: 2 for labels, which a row has or has not."""
    return 2 if isinstance(scaler, LabelCalibrators) else scaler.k


def mapped(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """Map scores (n, columns) to log-probabilities (n, K)."""
    return run(o, scaler.choice.traits.map, scaler.parameters, as_logits(o, scaler, scores))


def as_logits(o: Operations, scaler: Scaler, scores: Any) -> Any:
    """Turn the scores that a calibrator takes into logits or log-probabilities (n, K)."""
    if scaler.columns == 1:
        if scaler.kind == "logits":
            return o.join(scores * 0.0, scores)
        p = o.exp(scores) if scaler.kind == "log_probabilities" else scores
        return o.join(o.log1p(0.0 - p), o.log(p))
    return o.log(o.most(scores, 0.0)) if scaler.kind == "probabilities" else scores


OF_LABELS = ("onnx", "pt2", "torchscript")  # targets that can hold the calibrators of all labels in one file


def export(spec: str, request: ExportRequest) -> Result:
    """Write the target that `spec` names, and report how far it is from the calibrator.

    Raises:
        UsageError: the target is unknown, cannot hold the map, or cannot be written to the path.
        InputError: the model or rows are refused, or the output is beyond its limit; nothing is written.
    """
    choice = TARGETS.choose(spec)
    needs, suffixes = choice.traits.data, choice.traits.suffixes
    if needs == "inputs" and request.model is None:
        raise UsageError(f"--to {choice.name} writes a model", "pass --model FILE")
    if needs == "scores" and request.model is not None:
        raise UsageError(f"--to {choice.name} writes the calibrator alone", "leave --model out")
    if isinstance(request.scaler, LabelCalibrators) and (choice.name not in OF_LABELS or request.model is not None):
        option = f"--to {choice.name}" + (" --model" if choice.name in OF_LABELS else "")
        example = sorted(Path(request.calibrator).glob("*.safetensors"))[0]
        fix = "use --to onnx, --to pt2 or --to torchscript, without --model"
        raise UsageError(f"{option} takes the calibrator of one label, such as {example}", fix)
    if suffixes:
        known_suffix(request.path, suffixes, f"the target {choice.name}")
    shipped = choice(request)
    compared = shipped.compared
    facts: dict[str, Cell] = {
        "target": choice.spec,
        "calibrator": request.scaler.spec,
        "kind": kind_words(request.scaler.kind),
        "classes": request.scaler.k,
        **shipped.facts,
    }
    if compared is not None:
        facts |= facts_of(compared)
    written = f"Wrote {request.scaler.choice.name.replace('_', ' ')} as {choice.name} to {request.path.name}"
    facts["headline"] = f"{written}." if compared is None else f"{written}: {compared.text}."
    alone = needs != "inputs" and request.model is None
    rows = [{"path": name, "sha256": sha256(name)} for name in request.read if alone and Path(name).is_file()]
    return Result(
        command="export",
        estimates=[] if compared is None else [estimate(compared)],
        notes=shipped.notes,
        facts=facts,
        artefacts={path.suffix.lstrip(".") or choice.name: str(path) for path in shipped.files},
        provenance={"inputs": list({e["path"]: e for e in [*request.provenance(), *shipped.inputs, *rows]}.values())},
    )


def facts_of(compared: Compared) -> dict[str, Cell]:
    """Return the comparison as facts."""
    facts: dict[str, Cell] = {"limit": compared.limit, "n": compared.n, "predicted classes changed": compared.changed}
    return facts if compared.rounding is None else {**facts, "rounding alone costs": compared.rounding}


def estimate(compared: Compared) -> Estimate:
    """Return the largest difference of a probability as an estimate."""
    return Estimate(
        name="max_dp",
        value=compared.most,
        n=compared.n,
        unit="probability",
        better="lower",
        how="largest |p - p of the calibrator in float64| over rows and classes",
        reason="the largest of these rows, measured: it has no sampling error",
    )
