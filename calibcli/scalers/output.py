"""Calibrated scores written block by block, so that memory does not grow with the file."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import UsageError
from calibcli.files import atomic, known_suffix
from calibcli.predictions import Predictions
from calibcli.scalers.fitting import check_classes
from calibcli.scalers.scaler import Progress, Scaler, keep_first

SUFFIXES = (".npz", ".npy", ".csv")


@dataclass(frozen=True)
class Written:
    """What happened to rows on the way to a file.

    Attributes:
        changed: rows whose predicted class differs from that of the raw scores.
        raised: rows with a probability below the smallest number of the file's type, which stands in for it: 0 would
            make the NLL infinite.
    """

    changed: int
    raised: int


Write = Callable[[NDArray[Any], slice], None]


def stream(
    scaler: Scaler,
    predictions: Predictions,
    path: Path,
    *,
    probabilities: bool = True,
    dtype: str = "float32",
    progress: Progress | None = None,
) -> Written:
    """Write calibrated scores of every row and, in .npz and .csv, its label and what else belongs to it.

    Where the method keeps predicted classes, so does the file: should rounding to `dtype` make two classes equal, the
    argmax of the raw scores is raised by one unit in the last place.

    Args:
        probabilities: write probabilities; else log-probabilities, under the name `logits`.
        dtype: float32 or float64.

    Raises:
        InputError: the classes do not match.
        UsageError: the path cannot be written.
    """
    check_classes(scaler, predictions)
    if predictions.top_only and not probabilities:
        raise UsageError("--as logits is for the scores of classes, this is a confidence alone", "leave it out")
    changed, raised, name = 0, 0, "probabilities" if probabilities else "logits"
    least = float(np.finfo(dtype).tiny)
    with _writing(known_suffix(path, SUFFIXES, "scores"), name, predictions, np.dtype(dtype)) as write:
        for start, block in predictions.blocks():
            scores = scaler.map(block)
            if probabilities:
                low = (scores < math.log(least)) & (scores > -np.inf)
                raised += int(low.any(axis=1).sum())
                scores = np.where(low, least, np.exp(scores))
            out = scores.astype(dtype)
            if predictions.top_only:  # both classes are of the one that was predicted
                write(out[:, 1:], slice(start, start + len(block)))
                continue
            raw = block.argmax(axis=1)
            changed += (
                len(keep_first(out, raw)) if scaler.preserves_accuracy else int((out.argmax(axis=1) != raw).sum())
            )
            write(out, slice(start, start + len(block)))
            if progress:
                progress((start + len(block)) / max(predictions.n, 1), "writing")
    return Written(changed, raised)


def _columns(predictions: Predictions) -> dict[str, NDArray[Any]]:
    """What belongs to the rows, by name."""
    arrays: dict[str, NDArray[Any] | None] = {
        "correct" if predictions.top_only else "labels": predictions.labels
        if predictions.facts.get("labelled", True)
        else None,
        "ids": predictions.ids,
        "weights": predictions.weights,
        "group": predictions.groups,
        **predictions.slices,
    }
    return {name: np.asarray(value) for name, value in arrays.items() if value is not None}


@contextlib.contextmanager
def _writing(path: Path, name: str, predictions: Predictions, dtype: np.dtype[Any]) -> Iterator[Write]:
    shape: tuple[int, ...] = (predictions.n, predictions.k)
    if predictions.top_only:
        shape, name = (predictions.n,), "confidence"
    columns = _columns(predictions)
    file: IO[Any]
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(atomic(path))
        if path.suffix == ".csv":
            values = predictions.facts.get("label_values")
            if values is not None and "labels" in columns:  # as they stood in the file
                columns["labels"] = np.asarray(values)[columns["labels"]]
            file = stack.enter_context(temporary.open("w", encoding="utf-8", newline=""))
            prefix = "prob_" if name == "probabilities" else "logit_"
            heads = [name] if predictions.top_only else [prefix + suffix for suffix in _suffixes(predictions)]
            yield _csv(file, heads, columns)
            return
        if predictions.classes is not None and not predictions.top_only:
            columns["classes"] = np.asarray(predictions.classes, dtype=str)
        file = stack.enter_context(array_file(temporary, path.suffix, name, shape, dtype, columns))
        yield lambda block, rows: put(file, block, dtype)


@contextlib.contextmanager
def array_file(
    path: Path, suffix: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], beside: Mapping[str, NDArray[Any]]
) -> Iterator[IO[bytes]]:
    """An `.npz` (with the arrays `beside`) or `.npy` file, open where rows of the array `name` are to be written."""
    file: IO[bytes]
    with contextlib.ExitStack() as stack:
        if suffix == ".npz":
            archive = stack.enter_context(zipfile.ZipFile(path, "w", allowZip64=True))
            for key, array in beside.items():
                array = array.astype(str) if array.dtype.kind == "O" else array
                with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            file = stack.enter_context(archive.open(f"{name}.npy", "w", force_zip64=True))
        else:
            file = stack.enter_context(path.open("wb"))
        header: Mapping[str, Any] = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(file, dict(header))
        yield file


def put(file: IO[bytes], block: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Further rows of an array in a binary file, least byte first."""
    file.write(np.ascontiguousarray(block, dtype.newbyteorder("<")).tobytes())


def _suffixes(predictions: Predictions) -> list[str]:
    """What the score columns are called after: their classes, or their numbers where names are missing or numbers."""
    names = [str(name) for name in predictions.classes or ()]
    return names if names and not any(name.isdigit() for name in names) else [str(i) for i in range(predictions.k)]


def _csv(file: IO[str], heads: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> Write:
    import csv

    rows = csv.writer(file)
    rows.writerow([*heads, *("label" if c == "labels" else c for c in columns)])

    def write(block: NDArray[Any], where: slice) -> None:
        text = [[np.format_float_positional(v, trim="-") for v in row] for row in block]
        others = [array[where].tolist() for array in columns.values()]
        rows.writerows([*scores, *rest] for scores, *rest in zip(text, *others, strict=True))

    return write
