"""Fit calibration maps and apply them, from Python."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np
import numpy.typing as npt

from calibcli import calibrators, headlines
from calibcli.api.measuring import Scores, given, is_path, of_each_label, spread
from calibcli.calibrators import Fit, Scaler, check_classes, per_label, report
from calibcli.calibrators import load as load_scaler
from calibcli.calibrators import save as save_scaler
from calibcli.calibrators.fitting import FOLDS, SUFFIXES, array_file, put
from calibcli.calibrators.per_label import check_labels, load_labels
from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import atomic, claim, guarding, known_suffix, reading, sha256, unchanged
from calibcli.core.number_format import first_few
from calibcli.core.options import convert, exclusive
from calibcli.core.result import Result, Screen
from calibcli.scores import from_arrays, input_mistakes, recorded_outputs
from calibcli.scores.from_arrays import How
from calibcli.scores.predictions import Predictions, Progress

# `spread` shows the options of reading by name in the signature. Inside `guarding`, no file is written that was read.

__all__ = ["apply", "fit_scaler", "load_scaler", "save_scaler", "scale"]
APPLIED = Screen(hidden=("written", "n", "classes"))  # the headline has them


@spread
def fit_scaler(
    scores: Scores,
    /,
    labels: npt.ArrayLike | None = None,
    spec: str = "temperature",
    *,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Fit:
    """Fit a calibration map: `fit.predict_proba(scores)` are probabilities (N, K), `fit["temperature"]` an estimate.

    The scaler takes what the fit took: logits, probabilities or log-probabilities, one column or K.

    >>> fit = fit_scaler([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [0.0, 4.0]], [0, 1, 1, 1])
    >>> float(fit.scaler([[4.0, 0.0]]).round(4)[0, 0])  # three of four right: log 0.75
    -0.2877
    >>> fit_scaler([0.9, 0.9, 0.1, 0.8], [1, 0, 0, 1], "platt").predict_proba([0.9]).round(3).tolist()
    [[0.411, 0.589]]

    Args:
        scores, labels, how: as for `measure`.
        spec: e.g. `temperature`, `focal_temperature`, `vector`; each says its source (`calib list methods`).
        level: confidence level of the intervals.  seed: of what is random.  progress: called with (fraction, text).

    Raises:
        InputError: arrays that are refused, or that the method cannot be fitted to.
        UsageError: an unknown method; `by` or `multilabel`, as one map is fitted to all rows.
        TypeError: an unknown keyword, or a method that is not a text.
    """
    if not isinstance(spec, str):
        raise TypeError(f"a method is a text, not {type(spec).__name__}: fit_scaler(scores, labels, 'temperature')")
    rows = given(fit_scaler, scores, labels, how, progress, whole=True)
    fitted = calibrators.fit(spec, rows, level=level, seed=seed, progress=progress)
    return replace(fitted, notes=[*rows.notes, *fitted.notes])


@spread
@guarding()
def scale(
    scores: Scores,
    /,
    labels: npt.ArrayLike | None = None,
    *methods: str,
    test: Predictions | str | Path | Sequence[str | Path] | None = None,
    folds: int | None = None,
    split_seed: int | None = None,
    metrics: Sequence[str] | None = None,
    save: str | Path | None = None,
    level: float = 0.95,
    seed: int = 0,
    threads: int = 1,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Fit a calibration map, and measure before and after on rows that it was not fitted on.

    The map is that of its method (`calib list methods`); `fit_scaler` gives it alone.

    >>> found = scale(logits, labels, "temperature", metrics=["nll"])
    >>> round(found["temperature"].value, 2), round(found["nll", "after minus before"].value, 2)
    (2.81, -0.2)

    Args:
        scores, labels, how: (N, K) and (N,), as for `measure`, of the rows to fit on.
        methods: specs such as `vector`; several, or `all`, are ranked by NLL in nats, and the best is reported.
        test: predictions, or files, of the rows to measure on; without, each row is mapped by a fit without it.
        folds: of these fits [5].  split_seed: of the folds [0].
        metrics: specs of what is measured; the default set without.
        save: file for the map (.safetensors); with `multilabel` a folder, with one for each label.
        level: confidence level.  seed: of what is random.  threads: workers; 0 uses every core.
        progress: called with (fraction, text).

    Raises:
        InputError: rows that are refused, or that the method cannot be fitted to; `test` has rows of the fit.
        UsageError: an unknown method or metric, options that exclude each other, or a path that cannot be.
        TypeError: test rows that are an array.
    """
    files = cast("Sequence[Path]", scores) if is_path(scores) and not isinstance(scores, str | Path) else []
    if len(files) > 1 and test is None and not (how.get("shards") or how.get("tasks")):
        first, second = (shlex.quote(str(file)) for file in files[:2])
        problem = f"{len(files)} files: one to fit on and one to test on, or parts of one data set?"
        fix = f"to test on the second: calib scale {first} --test {second}; parts: --shards; tasks: --tasks"
        raise InputError(problem, fix)
    exclusive("other rows to measure on, or cross-fitting", test=test is not None, folds=folds is not None)
    folded = test is None or len(methods) > 1 or "all" in map(str.lower, methods)
    if split_seed is not None and not folded:
        raise UsageError("--split-seed is of folds, and --test makes none", "pass one of them")
    if not (test is None or isinstance(test, Predictions) or is_path(test)):
        raise TypeError("rows to test on are predictions or a file: calibcli.from_arrays(scores, labels)")
    target = None if save is None else Path(save)
    if target is not None:
        if not how.get("multilabel") and target.suffix != ".safetensors":
            raise UsageError(f"a calibrator is not written as '{target.name}'", "use the suffix .safetensors")
        claim(target, folder=not target.suffix)  # refused before any work: an input, or a place that cannot be written
    options = report.RankingOptions(
        methods=methods,
        specs=metrics or None,
        folds=FOLDS if folds is None else folds,
        split_seed=split_seed or 0,
        level=level,
        seed=seed,
        threads=threads or None,
    )
    named = labels if isinstance(labels, str | Path) else None  # of files: where the labels of both lie
    if how.get("multilabel") and not isinstance(scores, Predictions):
        return _scale_labels(scores, labels, test, named, how, options, target, progress)
    rows = given(scale, scores, labels, how, progress)
    held_out = None
    if test is not None:
        held_out = test if isinstance(test, Predictions) else given(scale, test, named, how, progress)
    result, scaler = report.report(rows, options, held_out, progress)
    remarks = [] if held_out is None else [input_mistakes.refuse_overlap(rows, held_out)]
    if target is not None:
        save_scaler(scaler, target)
    read = [file for p in (rows, held_out) if p is not None for file in recorded_outputs.provenance(p)]
    split = {"split": {"folds": options.folds, "seed": options.split_seed}} if folded else {}
    return headlines.headed(
        result,
        notes=[*result.notes, *filter(None, remarks), *report.on_top(rows)],
        artefacts={} if target is None else {"calibrator": str(target)},
        provenance={"inputs": read, "seed": seed, **split},
    )


def _scale_labels(
    scores: Scores,
    labels: Any,
    test: Any,
    named: Any,
    how: How,
    options: report.RankingOptions,
    save: Path | None,
    progress: Progress | None,
) -> Result:
    """Fit a map for each label of a multi-label problem."""
    if save is not None:
        per_label.may_save(save)
    parts = of_each_label(scores, labels, how, progress)
    if isinstance(test, Predictions):
        raise TypeError("rows of several labels to test on are a file, not predictions of one")
    held_out = None if test is None else of_each_label(test, named, how, progress)
    if held_out is not None and list(held_out) != list(parts):
        raise InputError("--test has other labels than the rows to fit on", "pass the same labels, in the same order")
    fits = per_label.fit_labels(parts, options, held_out, progress)
    n = next(iter(parts.values())).n
    where = f"rows of --test, fitted on {n:,}" if held_out else f"{n:,} rows, each mapped by a fit that did not see it"
    result = per_label.report(fits, options, where)
    if save is not None:
        per_label.save_labels(fits, save)
    files = [f for p in (parts, held_out) if p for f in recorded_outputs.provenance(next(iter(p.values())))]
    return headlines.headed(
        result,
        artefacts={} if save is None else {"calibrators": str(save)},
        provenance={"inputs": files, "seed": options.seed},
    )


@spread
@guarding()
def apply(
    calibrator: str | Path | Scaler | Fit,
    scores: Scores,
    /,
    labels: npt.ArrayLike | None = None,
    *,
    save: str | Path,
    kind_out: Literal["probabilities", "logits"] = "probabilities",
    dtype: Literal["float32", "float64"] = "float32",
    threshold: str | Path | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Write calibrated scores of any number of rows, block by block.

    For an array in memory, `fit.predict_proba(scores)` and `load_scaler(path).predict_proba(scores)` do the same.
    The map is that of its method (`calib list methods`).

    >>> import numpy as np, tempfile
    >>> fit = fit_scaler([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [0.0, 4.0]], [0, 1, 1, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = apply(fit, [[4.0, 0.0]], save=f"{folder}/new.npz")
    ...     np.load(f"{folder}/new.npz")["probabilities"].round(2).tolist(), result.facts["method"]
    ([[0.75, 0.25]], 'temperature')

    Args:
        calibrator: of `fit_scaler` or `load_scaler`, or a file of `save_scaler`.
        scores, labels, how: as for `measure`; labels, where there are any, are copied beside the scores.
        save: .npz, .npy or .csv.
        kind_out: write probabilities, or logits (log-probabilities).  dtype: of what is written.
        threshold: file of `calib threshold --save`: also write, as `accept`, which rows may be used without a person.

    Raises:
        InputError: inputs that are refused, or classes that are not the calibrator's.
        UsageError: a choice or a path that cannot be.
    """
    kind_out = convert(str(kind_out), Literal["probabilities", "logits"], "--as ")
    dtype = convert(str(dtype), Literal["float32", "float64"], "--dtype ")
    if threshold is not None and (how.get("multilabel") or Path(save).suffix == ".npy"):
        raise UsageError(
            "--threshold writes a column beside the scores of one label", "write a .csv or .npz of one label"
        )
    if how.get("multilabel"):
        return _apply_labels(calibrator, scores, save, kind_out, dtype, progress, {**how, "labels": labels})
    target = known_suffix(Path(save), SUFFIXES, "scores")
    claim(target)  # before any input is opened: one that is also the output is then refused
    scaler, files = opened(calibrator)
    rows, accepted = _rows(scaler, scores, labels, how, progress), dict[str, Any]()
    if threshold is not None:
        rows, accepted, files = _accepted(threshold, scaler, rows, files)
    # files of predictions that were read before this call are inputs, too: their scores are read while writing
    reading(*(file["path"] for file in rows.record.files), pipes=True)
    written = calibrators.stream(
        scaler, rows, target, probabilities=kind_out == "probabilities", dtype=dtype, progress=progress
    )
    facts = {
        "method": scaler.spec,
        "written": f"{rows.n:,} rows of {'a confidence' if rows.top_only else f'{rows.k} {kind_out}'}, {dtype}",
        "n": rows.n,
        **({} if rows.top_only else {"classes": rows.k}),
        "keeps predicted classes": scaler.preserves_accuracy,
        "predicted classes changed": written.changed,
        **accepted,
    }
    notes = list(rows.notes)
    if scaler.classes and rows.classes is None:
        problem = f"the calibrator has class names ({first_few(scaler.classes, 4)}), these rows have none"
        notes.append(f"{problem}; they are assumed to be in that order")
    if written.raised:
        small = f"{written.raised:,} rows hold probabilities too small for {dtype}"
        notes.append(f"{small}, which were raised to its smallest number; --as logits keeps them")
    result = Result(
        command="apply",
        notes=notes,
        facts=facts,
        artefacts={"scores": str(target)},
        provenance={"inputs": [*files, *recorded_outputs.provenance(rows)]},
        screen=APPLIED,
    )
    return headlines.headed(result)


def _accepted(
    path: str | Path, scaler: Scaler, rows: Predictions, files: list[dict[str, str]]
) -> tuple[Predictions, dict[str, Any], list[dict[str, str]]]:
    """Return the rows with a column `accept`, how many are accepted, and the files with that of the threshold.

    Raises:
        InputError: it is no threshold, or one of scores that went through another calibrator.
    """
    from calibcli.gate import decision as decisions  # here, as few rows are accepted by one

    decision, entry = decisions.load(path)
    if files and decision.calibrator != files[0]["sha256"]:
        through = "another calibrator than" if decision.calibrator else "no calibrator, and these go through"
        problem = f"{path} is of scores that went through {through} {files[0]['path']}"
        with_map = f"--with {shlex.quote(files[0]['path'])} --save {shlex.quote(str(path))}"
        raise InputError(problem, f"find it again: calib threshold FILE {decision.flags} {with_map}")
    accept = decision.accepts(calibrators.apply(scaler, rows))
    said = {"accepted": f"{int(accept.sum()):,} of {rows.n:,} rows ({accept.mean():.1%})" if rows.n else "no rows"}
    return replace(rows, slices={**rows.slices, decisions.ACCEPT: accept}), said, [*files, entry]


def _rows(scaler: Scaler, scores: Scores, labels: Any, how: How, progress: Progress | None) -> Predictions:
    """Read the rows to map, as those of the fit: with the options that named its columns, or columns with the names of
    the map's classes, if no scores are found.
    """
    if "cut" in scaler.parameters:
        how = {"clip": float(scaler.parameters["cut"]), **how}
    try:
        return given(apply, scores, labels, how, progress, need_labels=False)
    except InputError as error:
        if not error.problem.startswith("no scores in") or "scores" in how or "confidence" in how:
            raise
        columns = {name: option for name, option in scaler.reading.items() if name != "labels"}
        ways = [(labels, columns)] if columns else []
        if labels is None and "labels" in scaler.reading:
            ways.insert(0, (scaler.reading["labels"], columns))  # further rows may have no labels
        ways += [(labels, {"scores": ",".join(scaler.classes)})] if scaler.classes else []
        for truth, options in ways:
            with contextlib.suppress(InputError):
                return given(apply, scores, truth, cast(How, {**options, **how}), progress, need_labels=False)
        raise


def opened(calibrator: str | Path | Scaler | Fit, labels: bool = False) -> tuple[Scaler, list[dict[str, str]]]:
    """Load a calibrator; also return path and sha256 of its file. With `labels`, a folder holds one for each label."""
    if labels and isinstance(calibrator, str | Path) and os.path.isdir(calibrator):
        return calibrators.LabelCalibrators.of(load_labels(Path(calibrator))), [{"path": os.fspath(calibrator)}]
    if isinstance(calibrator, str | Path):
        with unchanged(calibrator):
            return load_scaler(calibrator), [{"path": os.fspath(calibrator), "sha256": sha256(calibrator)}]
    return calibrator.scaler if isinstance(calibrator, Fit) else calibrator, []


def _apply_labels(
    folder: Any, scores: Any, target: str | Path, kind_out: str, dtype: str, progress: Progress | None, how: Any
) -> Result:
    """Write (N, L) calibrated probabilities, or log-odds, of labels, each through its own map.

    Raises:
        InputError: other labels than those of the fit, or inputs that are refused.
        UsageError: a path that cannot be.
    """
    if not (isinstance(folder, str | Path) and is_path(scores)):
        raise UsageError("multilabel is for a folder of calibrators and a file of scores", "pass their paths")
    path = known_suffix(Path(target), (".npz", ".npy"), "scores of labels")
    claim(path)
    reading(folder)
    with unchanged(*(stored := sorted(Path(folder).glob("*.safetensors")))):
        maps = load_labels(Path(folder))
        files = [{"path": str(one), "sha256": sha256(one)} for one in stored]
    parts = from_arrays.read(scores, progress=progress, **{**how, "need_labels": False})
    check_labels([*parts], [*maps])
    rows = list(parts.values())
    first = rows[0]
    if any(p.n != first.n for p in rows):
        raise InputError("rows were dropped that some labels have", "leave --drop-nonfinite out")
    mapped = np.stack([_column(s, p, kind_out) for s, p in zip(maps.values(), rows, strict=True)], axis=1).astype(dtype)
    beside: dict[str, Any] = {"classes": np.array([*maps])}
    if first.record.labelled:
        beside["labels"] = np.stack([p.labels for p in rows], axis=1)
    beside |= {name: a for name, a in (("ids", first.ids), ("weights", first.weights)) if a is not None}
    with atomic(path) as new, array_file(new, path.suffix, kind_out, mapped.shape, mapped.dtype, beside) as file:
        put(file, mapped, mapped.dtype)
    spec = next(iter(maps.values())).spec
    written = f"{first.n:,} rows of {len(maps)} labels, {kind_out}, {dtype}"
    return headlines.headed(
        Result(
            command="apply",
            notes=first.notes,
            facts={
                "headline": f"Wrote {written}, by the method {spec} of each label.",
                "method": spec,
                "written": written,
                "n": first.n,
            },
            artefacts={"scores": str(path)},
            provenance={"inputs": [*files, *recorded_outputs.provenance(first)]},
            screen=APPLIED,
        )
    )


def _column(scaler: Scaler, rows: Predictions, kind_out: str) -> Any:
    """Compute the probabilities or log-odds (N,) of a label."""
    check_classes(scaler, rows)
    log_p = scaler.map(rows.logits)
    return np.exp(log_p[:, 1]) if kind_out == "probabilities" else log_p[:, 1] - log_p[:, 0]
