"""Check arrays as files are checked; split multi-label targets into L binary data sets."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from calibcli.core.array_likes import array
from calibcli.core.errors import InputError, UsageError, check_keywords, refusing
from calibcli.core.options import exclusive, normal
from calibcli.scores import array_names, data_frames
from calibcli.scores.array_names import class_names_of
from calibcli.scores.files.arrays import Converted, FileContents, Memory, blocks, class_names, read_all
from calibcli.scores.files.roles import CLASSES, LABELS
from calibcli.scores.files.source import Source
from calibcli.scores.predictions import Array, Named, Predictions, Progress
from calibcli.scores.reading_options import Reading
from calibcli.scores.recorded_outputs import Paths, classes_of, label_array, load_all, open_all, predictions, reading_of
from calibcli.scores.softmax import DeviceScores, on_device

# Multi-label targets.


UNKNOWN = -1  # a target that nobody knows: the row counts for the other labels
MOST_VALUES = 10  # different targets that are looked at


def read(path: Paths, *, progress: Progress | None = None, **how: Any) -> dict[str, Predictions]:
    """Read (N, L) scores with (N, L) targets of 0 and 1: one binary data set per label, by its name.

    Arguments and errors are those of `recorded_outputs.read`.
    """
    reading = reading_of(how)
    sources = open_all(path, reading)
    return split(load_all(sources, reading, progress), sources, reading, progress)


def split(
    contents: Sequence[FileContents], sources: Sequence[Source], reading: Reading, progress: Progress | None = None
) -> dict[str, Predictions]:
    """Return one binary data set per label, by its name.

    Raises:
        InputError: scores and targets differ in shape, or targets are not 0 and 1.
    """
    where = sources[0].name
    if len(contents) > 1:
        raise UsageError("--multilabel reads one file", "join the shards first")
    if reading.ignore_label is not None or reading.label_base is not None:
        raise UsageError("--ignore-label and --label-base are for class numbers", "targets of --multilabel are 0 and 1")
    exclusive("every label is measured, or one of two classes", multilabel=True, event=reading.event is not None)
    file = array_names.grouped(contents, reading.scores, [where], reading.labels)[0]
    score_name = array_names.pick_scores(file, reading.scores, where)
    scores = file.arrays[score_name]
    label_name, targets, _ = label_array([file], sources, reading, score_name, [])
    if targets is None and reading.need_labels:
        problem = f"no targets in {where}: it holds {array_names.describe(file)}"
        raise InputError(problem, "choose them with --labels KEY")
    if len(scores.shape) != 2 or (targets is not None and scores.shape != targets.shape):
        shape = tuple(() if targets is None else targets.shape)
        problem = f"--multilabel: scores '{score_name}' are {tuple(scores.shape)}, targets '{label_name}' {shape}"
        raise InputError(problem, "both must be (N, L), one column per label")
    count = scores.shape[1]
    names = classes_of(file, reading, score_name, count)[0] or [str(i) for i in range(count)]
    targets, unknown = (None, 0) if targets is None else _known_targets(targets, label_name)
    arrays = {name: array for name, array in file.arrays.items() if name not in CLASSES}  # of labels, not of yes and no
    out, together = {}, max(1, array_names.HOLD // max(1, 8 * scores.shape[0]))
    for i, name in enumerate(names):
        if i % together == 0:  # a file that is read for each label alone is read as often as it has labels
            stop = min(i + together, count)
            near = {
                key: array_names.in_memory(_columns(array, slice(i, stop), (stop - i,)))
                for key, array in ((score_name, scores), (label_name, targets))
                if array is not None
            }
        label_contents = FileContents(
            file.format,
            arrays | {key: _columns(array, i % together, ()) for key, array in near.items()},
            kinds={score_name: array_names.declared_kind(file, score_name)},
            decimals=file.decimals,
            ids=file.ids,
            notes=file.notes,
            scores=score_name,
            labels=label_name,
        )
        alone = dataclasses.replace(reading, classes=None, labels=label_name or None, scores=score_name)
        absent = np.zeros(1, bool) if not unknown else read_all(label_contents.arrays[label_name]) == UNKNOWN
        if absent.all():
            raise InputError(f"no row says whether it has the label '{name}'", "leave that label out")
        if absent.any():  # of this label, not of the whole row
            known_targets = np.where(absent, np.nan, read_all(label_contents.arrays[label_name]))
            label_contents = dataclasses.replace(
                label_contents, arrays={**label_contents.arrays, label_name: Memory(known_targets)}
            )
            alone = dataclasses.replace(alone, multilabel=True)
        out[name] = predictions([label_contents], sources, alone, progress)
    return out


def _known_targets(targets: Named, name: str) -> tuple[Named, int]:
    """Return targets (N, L) with UNKNOWN for NaN, and how many cells are unknown: NaN, or -1 beside 0 and 1.

    Raises:
        InputError: targets of -1 and 1 without 0, which may be two classes as well.
    """
    if targets.dtype.kind not in "iuf":
        return targets, 0
    seen, unknown, total = set[float](), 0, 0
    for _, block in blocks(targets):
        absent = np.isnan(block) if block.dtype.kind == "f" else np.zeros(block.shape, bool)
        seen |= set(np.unique(block[~absent])[:MOST_VALUES].tolist())
        unknown, total = unknown + int((absent | (block == UNKNOWN)).sum()), total + block.size
    if UNKNOWN in seen and 0 not in seen:
        problem = f"targets '{name}' are -1 and 1 without 0: are these no and yes, or unknown and yes?"
        raise InputError(problem, "write 0 for no, 1 for yes, and NaN or -1 for what is not known")
    if not unknown:
        return targets, 0
    filled = Converted(targets, lambda block: np.nan_to_num(block, nan=UNKNOWN), targets.shape[1:], targets.dtype)
    return filled, unknown


def _columns(array: Named, which: int | slice, tail: tuple[int, ...]) -> Named:
    if isinstance(array, Memory):
        return Memory(array.array[:, which])
    return Converted(array, lambda block: np.ascontiguousarray(block[:, which]), tail, array.dtype)


# Arrays instead of a file.


EXTRA = ("weights", "ids", "group")
OF_FILES = (
    "scores", "no_header", "shards", "tasks", "lm_norm", "choices", "unlisted", "multilabel",
    "confidence", "correct", "predicted", "confidence_scale", "answer_token",
)  # fmt: skip


class _Arrays:
    """Stands in for a file. It has no digest, which would take longer than the measurement."""

    name = stem = path = "arrays"


class How(TypedDict, total=False):
    """Options of reading as keywords: the fields of `Reading`.

    Of a file, `weights`, `ids` and `group` are names in it and `by` is a list of names; of arrays they are arrays (N,),
    and `by` is a mapping of them: `by={"site": sites}`.
    """

    kind: str | None
    classes: Sequence[str] | str | None
    event: str | None
    out_of: str | None
    label_base: int | None
    ignore_label: int | None
    class_axis: Literal["1", "last"] | None
    shift: int | None
    drop_nonfinite: bool
    clip: float | bool | None
    weights: npt.ArrayLike | None
    weight_kind: str
    ids: npt.ArrayLike | None
    group: npt.ArrayLike | None
    by: Mapping[str, npt.ArrayLike] | Sequence[str] | None
    scores: str | None
    no_header: bool
    shards: bool
    tasks: bool
    lm_norm: str | None
    choices: Sequence[str] | str | None
    unlisted: Literal["bound", "drop"] | None
    answer_token: Literal["first", "last"] | None
    missing: str | None
    multilabel: bool
    confidence: str | None
    correct: str | None
    predicted: str | None
    confidence_scale: Literal["1", "10", "100", "percent"] | None


def of_arrays(scores: npt.ArrayLike, /, labels: npt.ArrayLike | None, **how: Unpack[How]) -> Predictions:
    """Check arrays as `read` checks files. Ours: how their kind is recognised.

    >>> rows = calibcli.from_arrays([[2.0, 0.0], [0.0, 1.0]], [0, 1], ids=["a", "b"])
    >>> rows.n, rows.k, rows.kind
    (2, 2, 'logits')

    Args:
        scores: (N, K) logits, probabilities or log-probabilities (recognised; `kind=` overrides), or for two classes
            (N,) or (N, 1) probabilities or log-odds of class 1; of positions (N, T, K) or (N, K, H, W). Any array-like,
            torch tensors on any device included.
        labels: (N,) integers in [0, K), or (N, K) one-hot; of positions (N, T) or (N, H, W); None where there are none.
        how: as `How` says, of arrays.

    Raises:
        InputError: what is wrong with the arrays, and what to pass.
        TypeError: a keyword that is not one of these.
    """
    rows = checked(scores, labels, how)
    if getattr(rows.scores, "ends", None) is None:
        return rows
    shared: Any = rows.scores  # the owner of this memory may change it before it is measured
    return dataclasses.replace(rows, scores=dataclasses.replace(shared, ends=None))


def checked(scores: npt.ArrayLike, labels: npt.ArrayLike | None, how: How, judged: bool = False) -> Predictions:
    """Check arrays as `of_arrays` does, for a call during which the arrays do not change; `judged` as in `Reading`."""
    contents, sources, reading = _as_file(scores, labels, how)
    return predictions(contents, sources, dataclasses.replace(reading, judged=judged))


def of_labels(scores: npt.ArrayLike, /, labels: npt.ArrayLike, **how: Unpack[How]) -> dict[str, Predictions]:
    """Check (N, L) scores with (N, L) targets of 0 and 1 as `of_arrays` does, and return one data set per label, by
    name.

    Raises:
        InputError: also columns of two data frames in different orders.
    """

    score_names, label_names = (class_names_of(data_frames.names_of(frame)) for frame in (scores, labels))
    if score_names != label_names and set(score_names) == set(label_names):
        raise InputError("scores and targets have their columns in different orders", "pass targets[scores.columns]")
    return split(*_as_file(scores, labels, how, classes=score_names))


def _as_file(
    scores: npt.ArrayLike, labels: npt.ArrayLike | None, how: Mapping[str, Any], classes: list[str] | None = None
) -> tuple[list[FileContents], list[Source], Reading]:
    """Return scores and labels in the form in which a file would hold them, and the options.

    Args:
        classes: names of labels that are independent; None: the columns of a data frame are read as those of classes.
    """
    check_keywords(how, [key for key in How.__annotations__ if key not in OF_FILES], "from_arrays")
    data_frames.refuse_other_order({"scores": scores, "labels": labels, **_per_row(how)})
    observed = None if labels is None else as_array(labels, "labels")
    if observed is not None:
        refuse_swapped(scores, observed)
    values: Any = on_device(scores) or as_array(scores, "scores")
    names, notes, kind = data_frames.names_of(scores), list[str](), ""
    if len(names) < 2 or values.ndim != 2:
        names, classes = [], None
    elif classes is None:
        if observed is not None:
            _refuse_labels_among(names, values, observed)
        columns = data_frames.class_columns(names, values, None if observed is None or observed.ndim > 1 else observed)
        values, classes, kind = values[:, list(columns.order)], columns.names, columns.kind
        names, notes = [names[i] for i in columns.order], [*columns.notes]
        _refuse_other_classes(how.get("classes"), classes)
        if classes and observed is not None and observed.dtype.kind == "b" and {*classes} == {"False", "True"}:
            observed = observed.astype(str)
    if observed is not None and observed.ndim == 2:  # one column per class
        observed = data_frames.in_order(observed, data_frames.names_of(labels), names)
    name, label_name = (data_frames.name_of(one) or role for one, role in ((scores, "scores"), (labels, "labels")))
    if name == label_name or {name, label_name} & {*EXTRA, *_slices(how.get("by"))}:
        name, label_name = "scores", "labels"
    arrays = {name: values, **({} if observed is None else {label_name: observed})}
    more = {"kinds": {name: kind} if kind else {}, "classes": {name: classes} if classes else {}, "notes": notes}
    options = {**how, "need_labels": labels is not None}
    return _contents(arrays, options, name, label_name * (labels is not None), more)


def _refuse_labels_among(names: Sequence[str], values: Array, labels: Array) -> None:
    """Refuse a data frame one of whose columns holds the labels.

    Raises:
        InputError: there is one.
    """
    for i, name in enumerate(names):
        if normal(name) in LABELS.all and np.array_equal(values[:, i], labels):
            raise InputError(f"column '{name}' of the scores holds the labels", f"pass scores.drop(columns={name!r})")


def _refuse_other_classes(given: Any, classes: Sequence[str] | None) -> None:
    """Refuse names of classes in another order than the columns of a data frame that have these names.

    Raises:
        InputError: the two orders differ.
    """
    names = [] if given is None or classes is None else class_names(given)
    if classes is not None and names != list(classes) and sorted(names) == sorted(classes):
        problem = f"--classes {','.join(names)[:60]} is another order than that of the columns {','.join(classes)[:60]}"
        raise InputError(problem, "leave --classes out; if the names of the columns are wrong: scores.to_numpy()")


def refuse_swapped(scores: Any, labels: Array, call: str = "scores first, then labels") -> None:
    """Refuse labels that can only be scores, with scores that can be labels: the order of arguments in scikit-learn.

    Labels with a fraction, or with several numbers per row other than 0 and 1, are refused anyway; so no sound call is.

    Args:
        scores: as they were passed.  labels: likewise, as an array.  call: the right order.

    Raises:
        InputError: they are swapped.
    """
    if 1 < labels.ndim == getattr(scores, "ndim", 0) - 1:  # of positions
        return
    if _can_be_labels(labels, -math.inf) or not _can_be_labels(as_array(scores, "the scores"), -1):
        return
    problem = "the first argument holds labels and the second one scores, as scikit-learn has them (y_true, y_prob)"
    raise InputError(problem, f"exchange them: {call}")


def _can_be_labels(values: Array, least: float) -> bool:
    """Return whether these may be one label per row, texts or whole numbers from `least` on, or columns of 0 and 1."""
    if values.dtype.kind == "O" and values.size and isinstance(values.reshape(-1)[0], float):
        with contextlib.suppress(ValueError, TypeError):
            values = values.astype(np.float64)
    if values.dtype.kind not in "fiu":
        return values.dtype.kind in "USOb"
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if values.ndim > 1 and min(values.shape) > 1:
        return bool(((finite == 0) | (finite == 1)).all())
    return bool((finite >= least).all() and (finite.dtype.kind != "f" or (finite == np.floor(finite)).all()))


def of_confidence(
    confidence: npt.ArrayLike,
    /,
    correct: npt.ArrayLike,
    *,
    scale: Literal["1", "10", "100", "percent"] | None = None,
    missing: str | None = None,
    weights: npt.ArrayLike | None = None,
    weight_kind: str = "sampling",
    ids: npt.ArrayLike | None = None,
    group: npt.ArrayLike | None = None,
    by: Mapping[str, npt.ArrayLike] | None = None,
) -> Predictions:
    """Check confidences and verdicts, where these two numbers per row are all that is known of the predictions.

    What is defined on (confidence, correct) can be measured: accuracy, ECE and its relatives, gates, slices, paired
    comparisons, and the scalers platt, beta, isotonic and histogram. What needs the scores of every class is refused.
    Ours: which those are.

    >>> rows = calibcli.from_confidence([0.9, 0.6, 0.8], [True, False, True])
    >>> round(calibcli.measure(rows, "confidence_gap")["confidence_gap"].value, 4)
    0.1

    Args:
        confidence: (N,) float, probability of the prediction, NaN where it is not known (left out, and said).
        correct: (N,) 1 or 0, true or false, yes or no.
        scale: what a confidence is out of.
        missing: what becomes of rows without one, or without a verdict: `drop`, `wrong`, `refuse`, or by cause.
        weights, weight_kind, ids, group, by: as in `from_arrays`.

    Raises:
        InputError: what is wrong with the arrays, and what to pass.
    """
    rows = {"weights": weights, "weight_kind": weight_kind, "ids": ids, "group": group, "by": by}
    data_frames.refuse_other_order({"confidence": confidence, "correct": correct, **_per_row(rows)})
    arrays = {"correct": as_array(correct, "correct")}
    refuse_swapped(confidence, arrays["correct"], "from_confidence(confidence, correct)")
    arrays = {"confidence": as_array(confidence, "confidence"), **arrays}
    named = {"confidence": "confidence", "correct": "correct", "confidence_scale": scale, "missing": missing}
    return predictions(*_contents(arrays, {**named, **rows}))


def _slices(by: Any) -> dict[str, Any]:
    """Return the columns to slice by as they were passed, by name.

    Raises:
        TypeError: this is no mapping and no data frame.
        InputError: two columns of a data frame have the same name.
    """
    if names := data_frames.names_of(by):
        if len(set(names)) < len(names):
            raise InputError("two columns of by have the same name", "name every column differently")
        return {name: by[column] for name, column in zip(names, getattr(by, "column_names", by.columns))}
    if not isinstance(by, Mapping | None):
        raise TypeError(f"by is {type(by).__name__}: of arrays it is a mapping of them, by={{'site': sites}}")
    return {str(name): column for name, column in (by or {}).items()}


def _per_row(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays (N,) among the options as they were passed, by what errors call them."""
    slices = {f"by['{name}']": column for name, column in _slices(options.get("by")).items()}
    return {**{name: options.get(name) for name in EXTRA}, **slices}


def _contents(
    arrays: dict[str, Any], options: dict[str, Any], scores: str = "", labels: str = "", more: Mapping[str, Any] = {}
) -> tuple[list[FileContents], list[Source], Reading]:
    """Return arrays, also those among the options, in the form in which a file would hold them."""
    extra = {key: as_array(options[key], key) for key in EXTRA if options.get(key) is not None}
    slices = {name: as_array(column, f"by['{name}']") for name, column in _slices(options.get("by")).items()}
    given = {**slices, **arrays, **extra}
    named = {name: one if isinstance(one, DeviceScores) else Memory(one) for name, one in given.items()}
    contents = FileContents("arrays", named, scores=scores, labels=labels, **more)
    reading = {**options, **{name: name for name in extra}, "by": tuple(slices)}
    return [contents], [cast(Source, _Arrays())], Reading(**reading)


def as_array(values: Any, name: str) -> npt.NDArray[Any]:
    """Convert values to a NumPy array.

    Raises:
        InputError: a path, masked or complex values, rows of different lengths, or scores that are not numbers.
    """
    if isinstance(values, str | Path):
        raise InputError(f"{name} are a text, '{str(values)[:60]}', not an array", "of a file: calibcli.read(path)")
    if isinstance(values, np.ma.MaskedArray) and bool(np.ma.getmaskarray(values).any()):
        masked = int(np.ma.getmaskarray(values).sum())
        raise InputError(f"{masked} of the {name} are masked", "leave those rows out, or fill them in")
    errors, fix = (ValueError, TypeError, RuntimeError), "pass rows of numbers, each of one length, in a dense array"
    with refusing(errors, lambda error: f"{name} are not an array ({str(error)[:100]})", fix):
        result: npt.NDArray[Any] = array(values)
        if result.dtype.kind == "O" and name == "scores" and _absent_numbers(values):
            result = values.to_numpy(np.float64, na_value=np.nan)
    if result.ndim == 0:
        raise InputError(f"{name} are one number, not an array", "pass one for each row")
    if result.dtype.kind == "c":
        raise InputError(f"{name} are complex numbers", "pass their real part")
    if name == "scores" and result.dtype.kind not in "fiub":
        first = str(result.reshape(-1)[0])[:20] if result.size else ""
        comma = ", with a decimal point" if "," in first else ""
        fix = f"pass logits or probabilities as float32 or float64{comma}"
        raise InputError(f"scores are {result.dtype}, not numbers{f' ({first!r})' * bool(comma)}", fix)
    return result


def _absent_numbers(values: Any) -> bool:
    """Return whether these are numbers of a pandas type that allows missing values."""
    types = getattr(values, "dtypes", None)
    kinds = [getattr(one, "kind", "O") for one in ([] if types is None else types if values.ndim > 1 else [types])]
    return bool(kinds) and set(kinds) <= set("fiub")
