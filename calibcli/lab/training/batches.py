"""The rows of a run: training, validation and test rows, batches, and training of the last layer alone."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from calibcli.core.errors import InputError, UsageError
from calibcli.networks import dataset, device, inference
from calibcli.networks.dataset import Dataset
from calibcli.networks.device import free_for_each

# Batches, and data kept on the device.

Inputs = Tensor | Mapping[str, Tensor]
Index = NDArray[np.int64]
RESIDENT = 8  # part of the device's free memory up to which data is preprocessed once and stays there


class Loader:
    """Batches of a data set on a device; small data sets are preprocessed once and kept there.

    Attributes:
        labels: (N,) int64, on the device.  shape: of one row, as the model gets it.
    """

    def __init__(self, data: Dataset, device: torch.device, dtype: torch.dtype) -> None:
        self.data, self.device, self.dtype = data, device, dtype
        self.labels = torch.from_numpy(data.labels).to(device)
        self.shape = data.shape
        self.kept: Inputs | None = None
        size = 8 if dtype == torch.float64 else 4
        if len(data) * int(np.prod(self.shape)) * size <= free_for_each(device) // RESIDENT:
            parts = [self._read(slice(i, i + 4096)) for i in range(0, len(data), 4096)]
            self.kept = tree_map(lambda *tensors: torch.cat(tensors), *parts)

    @classmethod
    def holding(cls, inputs: Tensor, labels: Tensor) -> Loader:
        """Make a loader of rows that are on their device already."""
        loader = cls.__new__(cls)
        loader.kept, loader.labels, loader.shape = inputs, labels, tuple(inputs.shape[1:])
        loader.device, loader.dtype = inputs.device, inputs.dtype
        return loader

    def __len__(self) -> int:
        return len(self.labels)

    def _read(self, rows: slice | Index) -> Inputs:
        inputs, _ = self.data.batch(rows, device=self.device, dtype=self.dtype)
        return inputs

    def __call__(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and labels of these rows (int64, on the CPU)."""
        index = rows.to(self.device)
        if self.kept is None:
            return self._read(rows.numpy()), self.labels[index]
        return tree_map(lambda tensor: tensor[index], self.kept), self.labels[index]


class Batches:
    """The rows of every step: a new permutation per epoch from (seed, epoch) alone, so any step can be rebuilt.

    A last batch of fewer than two rows per process is left out (batch statistics need two).
    """

    def __init__(self, rows: int, size: int, seed: int, ranks: int = 1) -> None:
        self.rows, self.size, self.seed = rows, min(size, rows), seed
        full, remaining = divmod(rows, self.size)
        self.steps = full + (remaining >= 2 * ranks)

    def epoch(self, number: int) -> Tensor:
        """Return all rows in this epoch's order, int64 `(rows,)`."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**63)
        return torch.randperm(self.rows, generator=generator)

    def batch(self, order: Tensor, step: int) -> Tensor:
        """Return the rows of a step, over all processes."""
        return order[step * self.size : (step + 1) * self.size]


# Training, validation and test rows.

SEEDS = {"stratified": 0, "mukhoti": 1}  # where none is asked for; the paper's is the one of its code


@dataclass(frozen=True)
class Split:
    """The way in which rows are held out; a field that is None is that of the checkpoint, else the default.

    Attributes:
        how: `stratified`, the same share of every class; or `mukhoti`, the first share of all rows in the order of
            NumPy's legacy generator: with seed 1 the 45,000 and 5,000 of CIFAR of Mukhoti et al. (2020).
    """

    how: str | None = None
    seed: int | None = None
    share: float | None = None

    def after(self, start: Mapping[str, Any] | None) -> Split:
        """Fill the open fields: from the split of the checkpoint `start` if neither `how` nor `seed` is given."""
        if start and self.how is None and self.seed is None:
            return Split(start["how"], start["seed"], start["share"] if self.share is None else self.share)
        how = self.how or "stratified"
        return Split(how, SEEDS[how] if self.seed is None else self.seed, 0.1 if self.share is None else self.share)

    def __call__(self, labels: Index) -> tuple[Index, Index]:
        """Split rows into (kept, held out), each sorted.

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

    def describe(self, data: Dataset, held_out: Index) -> dict[str, Any]:
        """Describe the split for results and checkpoints; the digest is of the held out rows' places in the file."""
        places = np.ascontiguousarray(data.rows[held_out], "<i8").tobytes()
        digest = hashlib.sha256(places).hexdigest()[:16]
        return {**vars(self), "held_out": len(held_out), "of": len(data), "rows_sha256": digest}


def _stratified(labels: Index, share: float, seed: int) -> Index:
    """Hold out the same share of every class, at least one row each."""
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            problem = f"class {label} has one row: it cannot be both trained on and held out"
            raise InputError(problem, "add rows of that class, or pass --validation")
        chosen.append(rng.permutation(rows)[: min(len(rows) - 1, max(1, round(share * len(rows))))])
    return np.concatenate(chosen)


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
        classes: K.  split: with the seed that the user gave, for other splits.
        held_out: how the validation rows were split off, `Split.describe`; None where they were named.
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
        """Return (role, data set) of the parts that exist."""
        roles = (("train", self.train), ("validation", self.validation), ("test", self.test))
        return [(role, data) for role, data in roles if data is not None]


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
    """Open the rows of a run, and hold out validation rows where none are named.

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
        splits = dataset.splits(data, trust=trust) if isinstance(data, str | Path) else []
        roles = {role: f"{data}#{role}" for role in splits} if "train" in splits else {"train": data}
    roles |= {role: source for role, source in (("validation", validation), ("test", test)) if source is not None}
    if "train" not in roles:
        raise UsageError("no training rows were named", "pass --data FILE")
    opened = {
        role: dataset.in_order(
            dataset.decoded_once(
                dataset.load(
                    source,
                    trust=trust,
                    subset=subset if role == "train" else None,
                    split_seed=split.seed,
                    **options,
                )
            ),
            classes,
        )
        for role, source in roles.items()
    }
    train, held_out, notes = opened["train"], opened.get("validation"), []
    described: dict[str, Any] | None = None
    earlier = start.get("split") if start and start.get("data_sha256") == train.sha256 else None
    split = split.after(earlier)
    if held_out is None and split.share:
        kept, chosen = split(train.labels)
        described = split.describe(train, chosen)
        train, held_out = train.select(kept), train.select(chosen)
        by = "by class" if split.how == "stratified" else f"as {split.how} does"
        notes.append(
            f"{len(chosen)} of {described['of']} rows are held out for validation, {by}, with split seed {split.seed}"
        )
        if earlier and described["rows_sha256"] != earlier.get("rows_sha256"):
            notes.append(
                "the checkpoint held out other rows: it may have been trained on some that are validated on now"
            )
    labelled = 1 + max(int(d.labels.max()) for d in (train, held_out, opened.get("test")) if d is not None)
    classes_ = max(labelled, len(train.classes or ()))
    parts = Parts(train, held_out, opened.get("test"), classes_, notes, split, described)
    names = train.classes or [str(k) for k in range(classes_)]
    for role, rows in parts.items()[: 2 if held_out is not None else 1]:
        empty = np.flatnonzero(np.bincount(rows.labels, minlength=classes_) == 0)
        if len(empty):
            problem = f"class {names[empty[0]]} has no {'training' if role == 'train' else role} rows"
            if not missing_classes:
                raise InputError(problem, "add rows of that class, or pass --missing-classes to go on without")
            notes.append(f"{problem} ({len(empty)} such classes)")
    return parts


STANDARDISED = "inputs are standardised with the mean and spread of the training rows"


def standardised(data: Dataset) -> Dataset:
    """Standardise a data set by the mean and spread of its own inputs, per channel of images, per feature of rows.

    It stays as it is where a mean was given, and for inputs that are not numbers. At most 10,000 rows are read.
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
        notes=[*notes, STANDARDISED],
    )


# The last linear layer, which may be trained alone on features computed once, and frozen parameters.


def layer(model: nn.Module) -> nn.Linear:
    """Return the last linear layer.

    Raises:
        InputError: the model has none.
    """
    last = last_linear(model)
    if last is None:
        raise InputError("the model has no linear layer", "leave --head-only out, or use --freeze")
    return last


def features(model: nn.Module, loader: Loader) -> Loader:
    """Compute the inputs of the last linear layer for every row, in eval mode: a loader to train that layer on.

    Raises:
        InputError: the model has no linear layer whose output is the logits.
    """
    parts = [*fed(model, layer(model), loader, torch.arange(len(loader)))]
    if not all(makes_logits for *_, makes_logits in parts):
        raise InputError("the last linear layer does not make the logits", "use --freeze instead")
    return Loader.holding(torch.cat([features for features, *_ in parts]), loader.labels)


def fed(
    model: nn.Module, head: nn.Linear, loader: Loader, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, bool]]:
    """Yield inputs of the layer, logits of the model, labels, and whether the layer makes the logits, in eval mode."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    model.eval()
    try:
        for chosen in torch.split(rows, 256):
            inputs, labels = loader(chosen)
            with torch.no_grad(), device.full_float32():
                logits = inference.logits(model, inputs)
                f = seen.pop()
                fits = f.ndim == 2 and len(f) == len(chosen)
                makes_logits = fits and torch.equal(nn.functional.linear(f, head.weight, head.bias), logits)
            yield f, logits, labels, makes_logits
    finally:
        hook.remove()


def freeze(model: nn.Module, globs: tuple[str, ...]) -> list[str]:
    """Freeze the parameters that match, and return their names.

    Raises:
        InputError: a glob that matches nothing.
    """
    from fnmatch import fnmatchcase

    names = dict(model.named_parameters())
    frozen: list[str] = []
    for glob in globs:
        matching = [n for n in names if fnmatchcase(n, glob) or fnmatchcase(n, f"{glob}.*")]
        if not matching:
            raise InputError(f"--freeze {glob} matches no parameter", f"names are like {', '.join(list(names)[:4])}")
        frozen += matching
    for name in frozen:
        names[name].requires_grad_(False)
    return sorted(set(frozen))


def last_linear(model: nn.Module) -> nn.Linear | None:
    """Return the linear layer defined last, which makes the logits in every usual network."""
    return next((m for m in reversed([*model.modules()]) if isinstance(m, nn.Linear)), None)


def train_mode(model: nn.Module) -> None:
    """Switch to train mode; modules whose parameters are all frozen stay in eval mode, to keep their statistics."""
    model.train()
    for module in model.modules():
        parameters = [*module.parameters()]
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()
