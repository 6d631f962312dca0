"""How recorded outputs are to be read: which arrays are scores and labels, by known names, and scores as (N, K)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from calibcli.columns import SMALL
from calibcli.columns.on_device import DeviceScores
from calibcli.errors import InputError, NoRows, UsageError, did_you_mean, printable
from calibcli.inputs.files.arrays import Contents, Converted, Lazy, Memory, blocks, column_of, whole
from calibcli.inputs.files.roles import (
    CLASS_CALLS,
    CONFIDENCE,
    CORRECT,
    FOLDED,
    LABELS,
    NO_CLASS,
    OF_CLASS,
    ONE_SCORE,
    SCORE_KINDS,
    SCORES,
)
from calibcli.inputs.files.text import MISSING, floats_of_text, is_number
from calibcli.predictions import Array, ArrayScores, Ints, Kind, Named, Scores, rows_of, two_columns
from calibcli.spec import normal

NO_PROBABILITY = (
    "there is no probability to be measured: save the logits or probabilities of every class (predict_proba, softmax), "
    "not the class that was predicted"
)
EVERY_CLASS = "save the scores of every class as an array (N, K): logits or probabilities"
WITH_VERDICT = f"{EVERY_CLASS}; or name the column that says which predictions were right: --correct KEY"
CLIP = 1e-15
FEWEST = 20  # rows that tell predicted classes from probabilities that happen to be 0 and 1
HOLD = 128 << 20  # bytes of scores that are read at once and kept; larger ones stay in the file
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "log_probabilities")


def kind_option(kind: str | None) -> Kind | None:
    """The kind that `--kind` names; None: recognise it.

    Raises:
        UsageError: no such kind.
    """
    if kind is None or normal(kind) == "auto":
        return None
    for known in KINDS:
        if normal(kind) in (known, {"probabilities": "probs", "log_probabilities": "log_probs"}.get(known)):
            return known
    raise UsageError(f"--kind {kind} is not a kind of scores", did_you_mean(normal(kind), KINDS))


def pick_scores(contents: Contents, wanted: str | None, where: str) -> str:
    """Name of the array with the scores.

    Raises:
        InputError: none, more than one, or no array of the wanted name.
    """
    if wanted:
        return named(contents, wanted, "--scores", where)
    if contents.scores:
        return contents.scores
    found = candidates(contents)
    if len(found) > 1:
        raise InputError(f"{_list(found)} in {where} could each be the scores", f"choose one, e.g. --scores {found[0]}")
    if found:
        return found[0]
    if contents.lacking:
        raise InputError(*contents.lacking)
    top = [name for name in contents.arrays if name in CONFIDENCE]
    if top:
        raise InputError(f"{where} holds only the score of the top class ('{top[0]}')", WITH_VERDICT)
    from calibcli.inputs.scores import hints

    raise InputError(f"no scores in {where}: it holds {describe(contents)}", hints.way(contents, NO_PROBABILITY))


def refuse_verdicts(scores: str, labels: str, where: str, width: int) -> None:
    """Refuse one score per row whose name says that it is the top class's, or labels that say whether that was right.

    Read as P(class 1) and its label they would give other numbers: where the top class is wrong, accuracy and
    confidence are those of the other event.

    Raises:
        InputError: the names say so.
    """
    name = Path(labels).stem if labels else ""
    if width > 1:
        return
    if scores in CONFIDENCE:
        problem = f"'{scores}' in {where} is the confidence in the predicted class, not the probability of class 1"
    elif name in CORRECT:
        problem = f"labels '{labels}' say whether a prediction was right, not which class was observed"
    else:
        return
    fix = f"{WITH_VERDICT}, with --confidence {scores}"
    raise InputError(problem, f"{fix}; if it is P(class 1) with labels 0 and 1: call them prob and label")


def candidates(contents: Contents) -> list[str]:
    """Names of the arrays that could be the scores; if there are none, columns named after a class: `p_malignant`."""
    if contents.scores or contents.lacking:
        return [contents.scores] if contents.scores else []
    arrays = contents.arrays
    return (
        [name for name, array in arrays.items() if name in contents.kinds or _may_score(name, array)]
        or [name for name, a in arrays.items() if normal(name) in SCORES.weak and (len(a.shape) == 2 or _scalars(a))]
        or [name for name, a in arrays.items() if carried(name) and a.shape[1:] == () and _scalars(a)]
    )


def carried(name: str) -> str:
    """The class that the name of a column of scores carries: `malignant` of `p_malignant`, `1` of `prob_1`; else ""."""
    found = OF_CLASS.match(name)
    return "" if found is None or normal(found[2]) in NO_CLASS else found[2]


def pick_labels(contents: Contents, wanted: str | None, scores: str, where: str) -> str | None:
    """Name of the array with the labels, or None when there is none.

    Raises:
        InputError: more than one, or no array of the wanted name.
    """
    if wanted:
        return named(contents, wanted, "--labels", where)
    if contents.labels:
        return contents.labels
    event = normal(carried(scores))  # `malignant` beside `p_malignant`
    there = [name for name, array in contents.arrays.items() if array.shape and name != scores]
    found = labelling(there, (event,) if event and not event.isdecimal() else ())
    if len(found) > 1:
        raise InputError(f"{_list(found)} in {where} could each be the labels", f"choose one, e.g. --labels {found[0]}")
    return found[0] if found else None


def named(contents: Contents, name: str, option: str, where: str) -> str:
    """`name` as it is spelled in the file.

    Raises:
        InputError: the file has no such array.
    """
    if name in contents.arrays:
        return name
    for known in contents.arrays:
        if normal(known) == normal(name):
            return known
    known_names = list(contents.arrays)
    problem = f"{option} {name}: no such array in {where}, it holds {describe(contents)}"
    raise InputError(problem, did_you_mean(name, known_names[:20]))


def column(contents: Contents, name: str, option: str, where: str) -> Named:
    """The array of that name; of `meta.subject`, the value `subject` of the JSON objects that a column `meta` holds.

    Raises:
        InputError: there is none.
    """
    head, _, path = name.partition(".")
    objects = contents.arrays.get(head)
    if name in contents.arrays or not path or objects is None or objects.dtype.kind != "O":
        return contents.arrays[named(contents, name, option, where)]
    return Memory(column_of([_inner(text, path, i, name, where) for i, text in enumerate(whole(objects).tolist())]))


def _inner(text: Any, path: str, row: int, name: str, where: str) -> str:
    try:
        found = json.loads(text)
        for key in path.split("."):
            found = found[key]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"row {row} of {where} has no '{name}'", "name a value that every row has") from None
    return found if isinstance(found, str) else json.dumps(found)[:200]


def declared_kind(contents: Contents, name: str) -> str:
    """The kind of scores that the name itself claims, or ''."""
    if name in contents.kinds:
        return contents.kinds[name]
    key = normal(name)
    if key not in SCORES and key not in ONE_SCORE and carried(name):
        key = str(OF_CLASS.match(name)[1]).lower()  # type: ignore[index]
    return SCORE_KINDS.get(key, "")


def describe(contents: Contents, limit: int = 8) -> str:
    """`logits (1000, 10) float32, labels (1000,) int64`: names and shapes, as a value may be a secret.

    A text table without a number may have none of the names either: its first line is then no header.
    """
    from calibcli.inputs.scores import hints

    if contents.table and not any(map(hints.is_numeric, contents.arrays.values())):
        rows = max((array.shape[0] for array in contents.arrays.values()), default=0)
        count = len(contents.arrays)
        return f"{count} column{'s' * (count != 1)} of text, {rows} row{'s' * (rows != 1)} and a header"
    shown = [f"{name} {shape_text(array)}" for name, array in contents.arrays.items()]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more if shown else "nothing"


def shape_text(array: Named) -> str:
    kind = {"O": "text", "U": "text", "S": "text"}.get(array.dtype.kind, str(array.dtype))
    return f"{tuple(array.shape)} {kind}"


def _may_score(name: str, array: Named) -> bool:
    key = normal(name)
    dims = len(array.shape)
    if dims == 0 or (key not in SCORES and not (key in ONE_SCORE and dims == 1)):
        return False
    if dims == 1 and key in CLASS_CALLS:
        return False
    return _scalars(array) if dims == 1 else array.dtype.kind in SCORES.dtypes


def _scalars(array: Named) -> bool:
    """Whether a column may be scores: fractions, or text that is to be read as such."""
    return bool(array.shape) and array.dtype.kind in ONE_SCORE.dtypes


def _list(names: list[str]) -> str:
    quoted = [f"'{n}'" for n in names[:4]]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]


def labelling(names: Iterable[str], last: Sequence[str] = ()) -> list[str]:
    """Those that say that they hold the labels: of the words for them the likeliest that there are, or else `last`."""
    spelled = {name: normal(name) for name in names}
    found = ([name for name, key in spelled.items() if key in known] for known in (LABELS.names, LABELS.weak, last))
    return next(filter(None, found), [])


def two_dimensional(raw: Named, name: str, where: str, labels: int | None, told: bool) -> Named:
    """`raw` as (N, K) real numbers; (N,) becomes (N, 1).

    Args:
        labels: how many labels there are, to recognise transposed scores.
        told: the user said what kind of scores they are.

    Raises:
        InputError: transposed, of another shape, text, or class numbers instead of scores.
    """
    if raw.dtype.kind in "USO":
        if len(raw.shape) != 1:
            raise InputError(f"'{name}' in {where} is text", "save the scores as float32")
        raw = Memory(_numbers_of(whole(raw), name, where))
    dims = len(raw.shape)
    if dims == 3 and raw.shape[1] == 1:
        middle = raw
        raw = Converted(middle, lambda block: block[:, 0], (middle.shape[2],), middle.dtype)
        dims = 2
    if dims not in (1, 2):
        problem = f"scores '{name}' in {where} have shape {shape_text(raw)}"
        raise InputError(problem, "pass one row per sample: shape (N, K); tokens or pixels: reshape to (N * T, K)")
    if raw.shape[0] == 0 or (dims == 2 and raw.shape[1] == 0):
        kind = InputError if raw.shape[0] else NoRows
        raise kind(f"scores '{name}' in {where} are empty: {shape_text(raw)}", "was the file written to the end?")
    if dims == 2 and labels is not None and raw.shape[0] != labels and raw.shape[1] == labels:
        raise InputError(f"scores '{name}' are {tuple(raw.shape)} with {labels:,} labels: transposed", f"save {name}.T")
    if dims == 2 and labels is not None and raw.shape[0] != labels:
        problem = f"{raw.shape[0]:,} rows of scores ('{name}') but {labels:,} labels"
        raise InputError(problem, "pass the labels of exactly these rows, in the same order")
    if raw.dtype.kind == "b":
        raise InputError(f"scores '{name}' in {where} are true or false", "save the logits or probabilities")
    if raw.dtype.kind in "iu" and _hard(raw):
        problem = f"scores '{name}' in {where} are predicted classes, not scores ({shape_text(raw)})"
        raise InputError(problem, NO_PROBABILITY)
    if not told and (dims == 1 or raw.shape[1] == 1) and raw.dtype.kind == "f" and _zeros_and_ones(raw):
        problem = f"scores '{name}' in {where} are 0 and 1 alone: predicted classes, not probabilities?"
        raise InputError(problem, f"{NO_PROBABILITY}; if they are probabilities: --kind probabilities")
    if raw.dtype.kind in "iu" or raw.dtype.itemsize > 8:
        raw = Converted(raw, lambda block: block.astype(np.float64), raw.shape[1:], np.dtype(np.float64))
    if dims == 1:
        one = raw
        return Converted(one, lambda block: block[:, None], (1,), one.dtype)
    return raw


def as_scores(scores: Named, kind: Kind, clip: bool = False, ends: tuple[Ints, Array] | None = None) -> Scores:
    """Logits or log-probabilities, read in blocks: (N, K) with K >= 2; `ends`: as in `ArrayScores`."""
    n, k = scores.shape
    wide = scores.dtype.itemsize > 4 or (n * k <= SMALL and (k == 1 or kind != "logits"))
    dtype = np.dtype(np.float64 if wide else np.float32)
    if isinstance(scores, DeviceScores):
        return scores.measured(kind, dtype, CLIP if clip else 0.0)
    if kind != "logits":  # of which some that differ have equal logarithms
        ends = None
    elif isinstance(scores, Memory | Lazy) and k > 1:
        return ArrayScores(np.ascontiguousarray(whole(scores), dtype=dtype), ends)
    streamed = Converted(scores, lambda block: _measured(block, kind, dtype, clip), (max(k, 2),), dtype, ends)
    if n * max(k, 2) * dtype.itemsize <= HOLD:
        return ArrayScores(streamed.read(0, n), ends)
    return cast(Scores, streamed)


def held(array: Named) -> Named:
    """`array` in memory when it is small."""
    small = math.prod(array.shape) * array.dtype.itemsize <= HOLD
    return Memory(whole(array)) if small and not isinstance(array, Memory | DeviceScores) else array


def _measured(block: Array, kind: Kind, dtype: np.dtype[Any], clip: bool) -> Array:
    """Scores of a file as they are measured. Probabilities become logarithms, one column becomes two."""
    block = np.ascontiguousarray(block, dtype=dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        if block.shape[1] == 1:
            pair = two_columns(block[:, 0].astype(np.float64), kind)
            return np.maximum(pair, np.log(CLIP) if clip and kind != "logits" else -np.inf)
        if kind == "probabilities":
            return np.log(np.maximum(block, CLIP if clip else 0))
        return np.maximum(block, np.asarray(np.log(CLIP), dtype)) if clip and kind != "logits" else block


def _numbers_of(column: Array, name: str, where: str) -> Array:
    """Return a column of text as (N,) float64.

    Raises:
        InputError: it holds names of classes, or a cell that is not a number.
    """
    texts = [str(cell).strip() for cell in column[:1000].tolist()]
    if texts and all(
        any(map(str.isalpha, text)) and not is_number(text) for text in texts if text.lower() not in MISSING
    ):
        problem = f"scores '{name}' in {where} are names, not numbers"
        raise InputError(problem, NO_PROBABILITY)
    return floats_of_text(column, name, where)


def _zeros_and_ones(column: Named) -> bool:
    """Whether a column holds zeros and ones, both of them and nothing else, in enough rows to tell."""
    seen = [np.unique(block) for _, block in blocks(column) if ((block == 0) | (block == 1)).all()]
    rows = column.shape[0]
    return rows >= FEWEST and len(seen) == -(-rows // rows_of(column)) and len(np.unique(np.concatenate(seen))) == 2


def _hard(raw: Named) -> bool:
    """Whether integers are class numbers or one-hot rather than scores."""
    head = raw.read(0, min(raw.shape[0], 1000))
    if len(raw.shape) == 1 or raw.shape[1] == 1:
        return True
    return bool(((head == 0) | (head == 1)).all() and (head.sum(axis=1) == 1).all())


def folded(contents: Contents) -> str:
    """What `calib logits` wrote of a calibrator that is in the model already."""
    array, said = contents.arrays.get(FOLDED), contents.metadata.get(FOLDED, "").strip('[]"')
    if array is not None and array.shape == (1,) and array.dtype.kind == "U":
        said = str(array.read(0, 1)[0])
    return said and printable(said, 200)
