"""Scores of positions: tokens of sequences, pixels of pictures. Each position is measured like a row, and the positions
of one row belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, UsageError
from calibcli.scores.array_names import shape_text
from calibcli.scores.files.arrays import FileContents, InFile, Joined, Memory, read_all, texts_of
from calibcli.scores.predictions import Array, Named
from calibcli.scores.reading_options import IGNORED, ROW_OF_POSITION, Reading

LOOKED_AT = 1 << 26  # bytes of scores that are compared with the labels of the next positions
FEWEST = 50  # positions from which this comparison says anything
SURE = 5.0  # standard errors by which the next label must fit better


@dataclass(frozen=True, eq=False)
class Flat:
    """The positions of all rows of an array, one after the other: (N * P, *tail).

    Attributes:
        inner: (N, ...).  positions: P of each row.  part: turns a block (n, ...) into (n * P, *tail).
        last: the rows that were read last, as several pieces often lie in one row.
    """

    inner: Named
    positions: int
    part: Callable[[Array], Array]
    tail: tuple[int, ...]
    dtype: np.dtype[Any]
    last: list[tuple[int, int, Array]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.inner.shape[0] * self.positions, *self.tail)

    def read(self, start: int, stop: int) -> Array:
        stop = min(stop, self.shape[0])
        first, end = start // self.positions, -(-stop // self.positions)
        known = next((block for a, b, block in self.last if (a, b) == (first, end)), None)
        if known is None:
            known = self.part(self.inner.read(first, end))  # (rows * P, *tail)
            self.last[:] = [(first, end, known)]
        return known[start - first * self.positions : stop - first * self.positions]


def _scores(array: Named, axis: int) -> Named:
    """Return scores of positions as (N * P, C), where C is the length of `axis`; no copy where the classes are last."""
    n, classes = array.shape[0], array.shape[axis]
    positions = math.prod(array.shape[1:]) // max(classes, 1)
    if axis == len(array.shape) - 1:
        if isinstance(array, Memory):
            return Memory(array.array.reshape(n * positions, classes))
        if isinstance(array, InFile) and not array.fortran:
            return replace(array, shape=(n * positions, classes))
        if isinstance(array, Joined):
            return Joined([_scores(part, axis) for part in array.parts])

    def part(block: Array) -> Array:
        return np.moveaxis(block, axis, -1).reshape(len(block) * positions, classes)  # (n, ..., C) -> (n * P, C)

    return Flat(array, positions, part, (classes,), array.dtype)


def shifted(labels: Array, shift: int) -> Array:
    """Return labels (n, T) so that each position has the one `shift` further on; the last ones have IGNORED.

    >>> shifted(np.array([[7, 8, 9]]), 1)
    array([[   8,    9, -100]])
    """
    if not shift:
        return labels
    moved = np.full(labels.shape, IGNORED, np.float64 if labels.dtype.kind == "f" else np.int64)
    moved[:, : labels.shape[1] - shift] = labels[:, shift:]
    return moved


def _labels(labels: Named, positions: int, shift: int) -> Named:
    """Return labels (N, P..) as (N * P,), each the one `shift` positions on; the last ones of a row then have none."""

    def part(block: Array) -> Array:
        return shifted(block, shift).reshape(len(block) * positions)

    moved_dtype = np.dtype(np.float64 if labels.dtype.kind == "f" else np.int64)
    return Flat(labels, positions, part, (), moved_dtype if shift else labels.dtype)


def _axis(shape: Sequence[int], labels: Sequence[int] | None, reading: Reading, name: str) -> int:
    """Return the axis of the classes of scores (N, T, C), or (N, C, H, W): labels have the shape of the other axes.

    Raises:
        InputError: both the second and the last axis fit, or neither.
    """
    last = len(shape) - 1
    shapes = {axis: (*shape[:axis], *shape[axis + 1 :]) for axis in (1, last)}
    fitting = [axis for axis, rest in shapes.items() if labels is None or tuple(labels) == rest]
    stated = {"1": 1, "last": last}.get(reading.class_axis or "")
    if stated in fitting:
        return int(stated or 0)
    beside = "" if labels is None else f", labels {tuple(labels)}"
    if len(fitting) == 1 and stated is None:
        return fitting[0]
    if len(fitting) == 2:
        problem = f"scores '{name}' {tuple(shape)}{beside}: are the classes on axis 1, or on the last one?"
        raise InputError(problem, "--class-axis 1 if they are (N, C, ...); --class-axis last if they are (N, ..., C)")
    fix = f"save labels of every position: {shapes[last]} if the classes are on the last axis, {shapes[1]} if on axis 1"
    fix += "; for one position of each row, save its scores alone: logits[:, -1]"
    raise InputError(f"scores '{name}' {tuple(shape)}{beside}", fix)


def _refuse_next(scores: Named, labels: Named, name: str) -> None:
    """Refuse labels (N * P,) that fit the scores (N * P, C) of the position before much better than their own.

    Raises:
        InputError: they are those of a model that predicts the next token.
    """
    n = min(scores.shape[0], max(1, LOOKED_AT // (4 * scores.shape[1])))
    top, label = np.asarray(scores.read(0, n)).argmax(axis=1), np.asarray(labels.read(0, n))
    counted = (label[1:] != IGNORED) & (label[:-1] != IGNORED)
    if counted.sum() < FEWEST or scores.shape[1] < 2:
        return
    own, following = float((top == label)[:-1][counted].mean()), float((top[:-1] == label[1:])[counted].mean())
    spread = math.sqrt(max(own * (1 - own) + following * (1 - following), 1e-9) / int(counted.sum()))
    if following > 2 * own and following - own > SURE * spread:
        problem = f"the largest score of a position ('{name}') is the label of the next one in {following:.0%}, "
        problem += f"its own in {own:.0%}: does the model predict the next token?"
        raise InputError(problem, "--shift 1 compares each position with the label of the next one")


def _by_position(
    contents: FileContents, rows: range, inside: tuple[int, ...], name: str, axis: int, reading: Reading
) -> FileContents:
    """Return a file with its scores by position, and with what else was asked for; the group of a position is its row.

    Args:
        rows: numbers of its rows.  inside: shape of the positions of one.  name: of the scores.  axis: of the classes.
    """
    n, positions, arrays = len(rows), math.prod(inside), dict(contents.arrays)
    asked = {reading.weights, reading.group, contents.groups, reading.ids, *reading.by}
    for key, array in contents.arrays.items():
        if key not in asked or key == name:
            continue
        if key == reading.ids and array.shape == (n,):  # a position is named after its row
            texts = np.repeat(texts_of(read_all(array)), positions)
            arrays[key] = Memory(np.char.add(np.char.add(texts, "/"), np.tile(np.arange(positions).astype(str), n)))
        elif array.shape in ((n,), (n, 1)):
            arrays[key] = Flat(array, positions, lambda block: np.repeat(block, positions), (), array.dtype)
        elif array.shape == (n, *inside):
            arrays[key] = Flat(array, positions, lambda block: block.reshape(len(block) * positions), (), array.dtype)
    groups = reading.group or contents.groups or ROW_OF_POSITION
    if groups == ROW_OF_POSITION:
        arrays[groups] = Memory(np.repeat(np.asarray(rows), positions))
    if name in arrays:
        arrays[name] = _scores(arrays[name], axis)
    return replace(contents, arrays=arrays, groups=groups, ids="")


def flattened(
    contents: Sequence[FileContents],
    scores: Named,
    labels: Named | None,
    name: str,
    reading: Reading,
    notes: list[str],
) -> tuple[Sequence[FileContents], Named, Named | None, Reading]:
    """Return files, scores (N * P, C), labels (N * P,) and how they are read, of scores (N, T, C) or (N, C, H, W) with
    labels (N, T) or (N, H, W); other scores as they are.

    Positions with the label -100, or that of `--ignore-label`, are not counted. What has one value for each row (group,
    weights, slices) is that of all its positions. Their group is the row, unless another was asked for.

    Args:
        scores, labels: of all files together.  name: of the scores.  notes: gets what was done.

    Raises:
        InputError: the axis of the classes is open, or labels have another shape.  UsageError: options for positions,
            of other scores.
    """
    shape = tuple(scores.shape)
    given = None if labels is None else tuple(labels.shape)
    if len(shape) < 3 or (len(shape) == 3 and shape[1] == 1 and given in (None, shape[:1], (*shape[:1], 1))):
        if reading.class_axis or reading.shift:
            option = "--class-axis" if reading.class_axis else "--shift"
            problem = (
                f"{option} is for scores of positions, (N, T, C) or (N, C, H, W); '{name}' is {shape_text(scores)}"
            )
            raise UsageError(problem, "leave it out")
        known = [c.arrays.get(ROW_OF_POSITION) for c in contents]
        if len(shape) == 2 and all(one is not None and len(one.shape) == 1 for one in known):
            contents = [replace(c, groups=c.groups or ROW_OF_POSITION) for c in contents]
        return contents, scores, labels, reading
    if labels is not None and given is not None and len(given) == len(shape) and 1 in (given[1], given[-1]):
        thin = 1 if given[1] == 1 else len(given) - 1  # (N, 1, H, W) or (N, T, 1)
        given = (*given[:thin], *given[thin + 1 :])
    axis, shift = _axis(shape, given, reading, name), reading.shift or 0
    inside = (*shape[1:axis], *shape[axis + 1 :])
    positions = math.prod(inside)
    if not positions or not shape[0]:
        raise InputError(f"scores '{name}' are empty: {shape_text(scores)}", "is the file truncated?")
    if shift and (len(inside) != 1 or shift >= inside[0] or (labels is not None and labels.dtype.kind not in "iuf")):
        problem = (
            f"--shift {shift} is for sequences of more positions with labels that are numbers, '{name}' is {shape}"
        )
        raise UsageError(problem, "leave it out")
    flat, observed = _scores(scores, axis), None if labels is None else _labels(labels, positions, shift)
    numbers = observed is not None and observed.dtype.kind in "iuf"
    if reading.shift is None and len(inside) == 1 and observed is not None and numbers and inside[0] > 1:
        _refuse_next(flat, observed, name)
    how = reading
    if reading.ignore_label is None and numbers:
        how = replace(reading, ignore_label=IGNORED)
    wide, start = list[FileContents](), 0
    for c in contents:
        rows = c.arrays[name].shape[0] if name in c.arrays else shape[0]
        wide.append(_by_position(c, range(start, start + rows), inside, name, axis, reading))
        start += rows
    where = f", each with the label {shift} further on" if shift else ""
    notes.append(
        f"scores {shape}: each of the {positions:,} positions of a row is measured{where}; the positions of one row "
        "belong together in every interval"
    )
    return wide, flat, observed, how
