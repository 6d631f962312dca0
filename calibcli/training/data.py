"""The rows of a run: trained on, validated on, tested on."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError, UsageError
from calibcli.inputs import dataset
from calibcli.inputs.dataset import Dataset

Index = NDArray[np.int64]
SEEDS = {"stratified": 0, "mukhoti": 1}  # where none is asked for; the paper's is the one of its code


@dataclass(frozen=True)
class Split:
    """How rows are held out; None: as of the checkpoint that is trained on, else by default.

    Attributes:
        how: `stratified`, the same share of every class; or `mukhoti`, the first share of all rows in the order of
            NumPy's legacy generator: with seed 1 the 45,000 and 5,000 of CIFAR of Mukhoti et al. (2020).
    """

    how: str | None = None
    seed: int | None = None
    share: float | None = None

    def after(self, start: Mapping[str, Any] | None) -> Split:
        """This split with nothing left open: as the start `said` its own was, where neither `how` nor `seed` is."""
        if start and self.how is None and self.seed is None:
            return Split(start["how"], start["seed"], start["share"] if self.share is None else self.share)
        how = self.how or "stratified"
        return Split(how, SEEDS[how] if self.seed is None else self.seed, 0.1 if self.share is None else self.share)

    def __call__(self, labels: Index) -> tuple[Index, Index]:
        """Rows (kept, held out), each sorted.

        Raises:
            UsageError: a share outside (0, 1), or of no row.
            InputError: a class with a single row, which cannot be in both.
        """
        whole = self.after(None)
        assert whole.how is not None
        assert whole.seed is not None
        assert whole.share is not None
        if not 0 < whole.share < 1:
            problem = f"--val-fraction {whole.share:g} is not a share"
            raise UsageError(problem, "pass a number between 0 and 1, such as 0.1")
        chosen = np.sort(HOW[whole.how](labels, whole.share, whole.seed))
        return np.setdiff1d(np.arange(len(labels)), chosen), chosen

    def said(self, data: Dataset, held: Index) -> dict[str, Any]:
        """What a result and a checkpoint say of it; the digest is of the held out rows' places in the file."""
        places = np.ascontiguousarray(data.rows[held], "<i8").tobytes()
        digest = hashlib.sha256(places).hexdigest()[:16]
        return {**vars(self), "held_out": len(held), "of": len(data), "rows_sha256": digest}


def _stratified(labels: Index, share: float, seed: int) -> Index:
    """The same share of every class, at least one row each."""
    rng = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            problem = f"class {label} has one row: it cannot be both trained on and held out"
            raise InputError(problem, "add rows of that class, or pass --validation")
        held.append(rng.permutation(rows)[: min(len(rows) - 1, max(1, round(share * len(rows))))])
    return np.concatenate(held)


def _mukhoti(labels: Index, share: float, seed: int) -> Index:
    count = int(share * len(labels))
    if not count:
        raise UsageError(f"--val-fraction {share:g} of {len(labels)} rows is none", "hold out a larger share")
    return np.random.RandomState(seed).permutation(len(labels))[:count]


DEFAULT = Split()
HOW: dict[str, Callable[[Index, float, int], Index]] = {"stratified": _stratified, "mukhoti": _mukhoti}


@dataclass(frozen=True)
class Parts:
    """Training rows, and validation and test rows where there are any.

    Attributes:
        classes: K.  split: of the seed that the user gave, for whatever else is split.
        held_out: how the validation rows were split off, `Split.said`; None where they were named.
        notes: remarks, one sentence each.
    """

    train: Dataset
    validation: Dataset | None
    test: Dataset | None
    classes: int
    notes: list[str] = field(default_factory=list)
    split: Split = DEFAULT
    held_out: dict[str, Any] | None = None

    def items(self) -> list[tuple[str, Dataset]]:
        """(role, data set) of the parts there are."""
        found = (("train", self.train), ("validation", self.validation), ("test", self.test))
        return [(role, data) for role, data in found if data is not None]


def open_parts(
    data: Any,
    validation: Any,
    test: Any,
    *,
    named: Mapping[str, str] | None = None,
    split: Split = DEFAULT,
    start: Mapping[str, Any] | None = None,
    subset: int | None = None,
    missing_classes: bool = False,
    trust: bool = False,
    classes: list[str] | None = None,
    **options: Any,
) -> Parts:
    """Open what was named.

    Args:
        data: training rows, named or in memory; of a file that holds splits, all of its splits.
        validation, test: further sources.
        named: sources by role (of a checkpoint), used where `data` is None.
        split: how rows are held out where there is no validation set; a share of 0 for none.
        start: metadata of the checkpoint that is trained on: rows of its training data are held out as they were then.
        missing_classes: allow classes without validation rows.
        options: of `dataset.load`.

    Raises:
        UsageError: no training rows were named.
        InputError: a class that has no training or validation rows, and as in `dataset.load`.
    """
    roles: dict[str, Any] = dict(named or {}) if data is None else {}
    if data is not None:
        held = dataset.splits(data, trust=trust) if isinstance(data, str | Path) else []
        roles = {role: f"{data}#{role}" for role in held} if "train" in held else {"train": data}
    roles |= {role: source for role, source in (("validation", validation), ("test", test)) if source is not None}
    if "train" not in roles:
        raise UsageError("no training rows were named", "pass --data FILE")
    opened = {
        role: dataset.in_order(
            dataset.load(
                source,
                trust=trust,
                subset=subset if role == "train" else None,
                split_seed=split.seed,
                **options,
            ),
            classes,
        )
        for role, source in roles.items()
    }
    train, held_out, notes = opened["train"], opened.get("validation"), []
    said: dict[str, Any] | None = None
    earlier = start.get("split") if start and start.get("data_sha256") == train.sha256 else None
    split = split.after(earlier)
    if held_out is None and split.share:
        kept, chosen = split(train.labels)
        said = split.said(train, chosen)
        train, held_out = train.select(kept), train.select(chosen)
        by = "by class" if split.how == "stratified" else f"as {split.how} does"
        notes.append(
            f"{len(chosen)} of {said['of']} rows are held out for validation, {by}, with split seed {split.seed}"
        )
        if earlier and said["rows_sha256"] != earlier.get("rows_sha256"):
            notes.append(
                "the checkpoint held out other rows: it may have been trained on some that are validated on now"
            )
    labelled = 1 + max(int(d.labels.max()) for d in (train, held_out, opened.get("test")) if d is not None)
    classes_ = max(labelled, len(train.classes or ()))
    parts = Parts(train, held_out, opened.get("test"), classes_, notes, split, said)
    _check_classes(parts, missing_classes)
    return parts


def _check_classes(parts: Parts, missing_allowed: bool) -> None:
    names = parts.train.classes or [str(k) for k in range(parts.classes)]
    for role, data in parts.items():
        empty = np.flatnonzero(np.bincount(data.labels, minlength=parts.classes) == 0)
        if not len(empty) or role == "test":
            continue
        what = f"class {names[empty[0]]} has no {'training' if role == 'train' else role} rows"
        if not missing_allowed:
            raise InputError(what, "add rows of that class, or pass --missing-classes to go on without")
        parts.notes.append(f"{what} ({len(empty)} such classes)")


def standardised(data: Dataset) -> Dataset:
    """The data set with the mean and spread of its own inputs taken out: per channel of images, per feature of rows.

    As it is where a mean was given, and for inputs that are not numbers. At most 10,000 rows are looked at.
    """
    if data.preprocess.mean or data.preprocess.std or set(data.inputs) != {""}:
        return data
    first = next(iter(data.inputs.values()))
    if first.dtype.kind != "f" and first.dtype != np.uint8:
        return data
    look = np.arange(len(data)) if len(data) <= 10_000 else np.linspace(0, len(data) - 1, 10_000).astype(np.int64)
    x, _ = data.batch(look)
    if isinstance(x, dict) or x.ndim not in (2, 4):
        return data
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    mean, std = x.double().mean(axes), x.double().std(axes, correction=0)
    std = std.where(std > 1e-6 * std.max().clamp(min=1e-30), std.new_tensor(1.0))
    notes = [n for n in data.notes if not n.startswith("bytes were scaled")]
    return dataclasses.replace(
        data,
        preprocess=dataclasses.replace(data.preprocess, mean=tuple(mean.tolist()), std=tuple(std.tolist())),
        notes=[*notes, "inputs are standardised with the mean and spread of the training rows"],
    )
