"""Check arrays as files are checked; split multi-label targets into L binary data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from calibcli.core.array_likes import array
from calibcli.core.errors import InputError, UsageError, check_keywords, refusing
from calibcli.core.options import exclusive, normal
from calibcli.scores import array_names
from calibcli.scores.files.arrays import Converted, FileContents, Memory, blocks, read_all, texts_of
from calibcli.scores.files.roles import CLASSES, LABELS
from calibcli.scores.files.source import Source
from calibcli.scores.files.text_tables import is_number
from calibcli.scores.predictions import Named, Predictions, Progress
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
        one = FileContents(
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
        absent = np.zeros(1, bool) if not unknown else read_all(one.arrays[label_name]) == UNKNOWN
        if absent.all():
            raise InputError(f"no row says whether it has the label '{name}'", "leave that label out")
        if absent.any():  # of this label, not of the whole row
            alone = dataclasses.replace(alone, ignore_label=UNKNOWN, multilabel=True)
        out[name] = predictions([one], sources, alone, progress)
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
    label_base: int | None
    ignore_label: int | None
    drop_nonfinite: bool
    clip: bool
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
    missing: Literal["drop"] | None
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
            (N,) or (N, 1) probabilities or log-odds of class 1. Any array-like, torch tensors on any device included.
        labels: (N,) integers in [0, K), or (N, K) one-hot; None where there are none.
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


def checked(scores: npt.ArrayLike, labels: npt.ArrayLike | None, how: How) -> Predictions:
    """Check arrays as `of_arrays` does, for a call during which the arrays do not change."""
    return predictions(*_as_file(scores, labels, how))


def of_labels(scores: npt.ArrayLike, /, labels: npt.ArrayLike, **how: Unpack[How]) -> dict[str, Predictions]:
    """Check (N, L) scores with (N, L) targets of 0 and 1 as `of_arrays` does, and return one data set per label, by
    name.

    Raises:
        InputError: also columns of two data frames in different orders.
    """

    one, two = ([str(name) for name in getattr(frame, "columns", ())] for frame in (scores, labels))
    if one != two and set(one) == set(two):
        raise InputError("scores and targets have their columns in different orders", "pass targets[scores.columns]")
    return split(*_as_file(scores, labels, how))


def _as_file(
    scores: npt.ArrayLike, labels: npt.ArrayLike | None, how: Mapping[str, Any]
) -> tuple[list[FileContents], list[Source], Reading]:
    """Return scores and labels in the form in which a file would hold them, and the options."""
    check_keywords(how, [key for key in How.__annotations__ if key not in OF_FILES], "from_arrays")
    arrays: dict[str, Any] = {"scores": on_device(scores) or as_array(scores, "scores")}
    if labels is not None:
        arrays["labels"] = as_array(labels, "labels")
        if hasattr(scores, "columns") and arrays["labels"].ndim == 1:
            how = {**_frame_classes(scores, arrays), **how}
    return _contents(arrays, {**how, "need_labels": labels is not None}, scores="scores", labels=list(arrays)[1:])


def _frame_classes(frame: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a data frame as the classes in order, if the labels are among their names.

    Raises:
        InputError: one of the columns holds the labels.
    """
    names, labels = [str(name) for name in frame.columns], arrays["labels"]
    for i, name in enumerate(names):
        column = arrays["scores"][:, i]
        if normal(name) in LABELS.all and np.array_equal(column, labels):
            raise InputError(f"column '{name}' of the scores holds the labels", f"pass scores.drop(columns={name!r})")
    if labels.dtype.kind not in "USO" or any(map(is_number, names)):
        return {}
    return {"classes": names} if {*texts_of(labels).tolist()} <= {*names} else {}


def of_confidence(
    confidence: npt.ArrayLike,
    /,
    correct: npt.ArrayLike,
    *,
    scale: Literal["1", "10", "100", "percent"] | None = None,
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
        weights, weight_kind, ids, group, by: as in `from_arrays`.

    Raises:
        InputError: what is wrong with the arrays, and what to pass.
    """
    arrays = {"confidence": as_array(confidence, "confidence"), "correct": as_array(correct, "correct")}
    named = {"confidence": "confidence", "correct": "correct", "confidence_scale": scale}
    rows = {"weights": weights, "weight_kind": weight_kind, "ids": ids, "group": group, "by": by}
    return predictions(*_contents(arrays, {**named, **rows}))


def _contents(
    arrays: dict[str, Any], options: dict[str, Any], scores: str = "", labels: Sequence[str] = ()
) -> tuple[list[FileContents], list[Source], Reading]:
    """Return arrays, also those among the options, in the form in which a file would hold them."""
    extra = {key: as_array(options[key], key) for key in ("weights", "ids", "group") if options.get(key) is not None}
    by = options.pop("by", None)
    by = {} if by is None else dict(by) if hasattr(by, "columns") and hasattr(by, "keys") else by  # a data frame
    if not isinstance(by, Mapping):
        raise TypeError(f"by is {type(by).__name__}: of arrays it is a mapping of them, by={{'site': sites}}")
    slices = {str(name): as_array(column, f"by['{name}']") for name, column in by.items()}
    options.update({name: name for name in extra})
    given = {**slices, **arrays, **extra}
    named = {name: one if isinstance(one, DeviceScores) else Memory(one) for name, one in given.items()}
    contents = FileContents("arrays", named, scores=scores, labels="".join(labels))
    return [contents], [cast(Source, _Arrays())], Reading(**options, by=tuple(slices))


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
