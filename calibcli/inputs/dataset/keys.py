"""Which of a file's arrays are the inputs, the labels, the ids and the class names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError, did_you_mean
from calibcli.inputs.dataset.arrays import Rows

INPUTS = ("images", "x", "inputs", "data", "features", "pixel_values", "tokens")
LABELS = ("labels", "y", "label", "targets", "target", "y_true")
IDS = ("ids", "id", "index")
CLASSES = ("classes", "class_names", "label_names")
TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
SPLITS = {
    "train": ("train", "training", "tr"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test", "te", "eval"),
}


@dataclass
class Found:
    """What a reader found: inputs by name ("" by position), raw labels, and what else the source says.

    `integral`: the inputs are numbers of things (tokens), which stay integers.
    """

    inputs: Mapping[str, Rows]
    labels: NDArray[Any]
    sha256: str
    ids: NDArray[Any] | None = None
    classes: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    integral: bool = False


def pick(
    arrays: Mapping[str, Rows], source: str, split: str, inputs_key: str | None, labels_key: str | None, sha256: str
) -> Found:
    """Inputs by name, labels, ids and class names among a file's arrays.

    Raises:
        InputError: none, or several candidates.
    """
    inputs, integral = _inputs(arrays, source, split, inputs_key)
    labels = labels_key or _one(arrays, LABELS, split, source, "labels", "--labels-key")
    ids = _candidates(arrays, IDS, split)
    classes = _candidates(arrays, CLASSES, split) or _candidates(arrays, CLASSES, "")
    names = _all(arrays[classes[0]]) if classes else None
    return Found(
        inputs=inputs,
        labels=_all(_named(arrays, labels, source)),
        sha256=sha256,
        ids=_all(arrays[ids[0]]) if ids else None,
        classes=[str(n) for n in names] if names is not None and names.ndim == 1 else None,
        integral=integral,
    )


def _inputs(arrays: Mapping[str, Rows], source: str, split: str, key: str | None) -> tuple[dict[str, Rows], bool]:
    if key and "," in key:
        return {k: _named(arrays, k, source) for k in key.split(",")}, True
    if key:
        return {"": _named(arrays, key, source)}, "token" in key or key in TOKENS
    tokens = {name: found[0] for name in TOKENS if (found := _candidates(arrays, (name,), split))}
    if "input_ids" in tokens:
        return {name: arrays[k] for name, k in tokens.items()}, True
    name = _one(arrays, INPUTS, split, source, "inputs", "--inputs-key")
    return {"": arrays[name]}, "tokens" in name


def _all(rows: Rows) -> NDArray[Any]:
    return rows.read(np.arange(rows.shape[0])) if rows.shape else np.asarray([])


def _named(arrays: Mapping[str, Rows], key: str, source: str) -> Rows:
    if key not in arrays:
        raise InputError(f"{source} has no array '{key}'", did_you_mean(key, arrays))
    return arrays[key]


def splits_of(arrays: Mapping[str, Rows]) -> list[str]:
    """Which of train, validation and test have inputs and labels of their own."""
    return [name for name in SPLITS if _candidates(arrays, LABELS, name) and _candidates(arrays, INPUTS, name)]


def _candidates(arrays: Mapping[str, Rows], names: Sequence[str], split: str) -> list[str]:
    if not split:
        return [n for n in names if n in arrays]
    words = next((w for w in SPLITS.values() if split in w), (split,))
    wanted = [form for n in names for w in words for form in (f"{w}_{n}", f"{n}_{w}")]
    return [n for n in dict.fromkeys(wanted) if n in arrays]


def _one(arrays: Mapping[str, Rows], names: Sequence[str], split: str, source: str, what: str, option: str) -> str:
    found = _candidates(arrays, names, split)
    if len(found) == 1:
        return found[0]
    fix = f"it holds: {', '.join(arrays)}; name one with {option}"
    if found:
        raise InputError(f"{source}: {' and '.join(found)} could both be the {what}", fix)
    splits = [s for s in SPLITS if _candidates(arrays, names, s)]
    if splits and not split:
        raise InputError(f"{source} holds the splits {', '.join(splits)}", f"choose one: {source}#{splits[-1]}")
    raise InputError(f"{source} has no {what}" + (f" of the split '{split}'" if split else ""), fix)
