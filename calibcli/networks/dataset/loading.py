"""Load a data set from where it lies: a file, a folder, a download, a hub's tables or the user's own code."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from calibcli.core.array_likes import array
from calibcli.core.errors import InputError, UsageError, refusing
from calibcli.core.files import reading
from calibcli.networks.dataset import downloads, folder
from calibcli.networks.dataset.array_names import (
    ArrayRequest,
    ArraysOfDataset,
    pick,
    pick_columns,
    pick_texts,
    splits_of,
    to_labels,
)
from calibcli.networks.dataset.library_preparation import (
    ForPictures,
    ForTexts,
    Opened,
    PicturesOfArray,
    Preparation,
    Prepared,
    one,
    tokens,
)
from calibcli.networks.dataset.rows import Dataset, Preprocess, for_array, guess_layout, needs_pillow, resized, sizing
from calibcli.networks.user_code import FAILURES, NAMES_CODE, from_module
from calibcli.scores.files import locations
from calibcli.scores.files.arrays import EncodedPictures, InFile, Memory, read_all, split_part
from calibcli.scores.files.locations import PARTS, STATE
from calibcli.scores.files.roles import SPLITS
from calibcli.scores.files.source import Source, fingerprint, load_any
from calibcli.scores.predictions import Named
from calibcli.scores.reading_options import DatasetOptions

# Folders of tables: what Hugging Face's `save_to_disk` writes, and the parquet files of a data set of its hub.

PART = re.compile(r"(?P<split>[A-Za-z_]+)(-\d+-of-\d+|-\d+)?(-[0-9a-f]{16})?\.parquet")  # train-00000-of-00002.parquet


def names(folder: Path) -> list[str]:
    """Of the splits that lie there; [] of a folder of another kind."""
    if (folder / PARTS).is_file():
        return sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
    return sorted(_files(folder))


def saved_splits(folder: Path) -> list[str]:
    """Which of train, validation and test lie there."""
    roles = {_role(name) for name in names(folder)}
    return [role for role in SPLITS if role in roles]


def of(folder: Path, split: str) -> list[Path]:
    """The tables of a split, in their order; [] of a folder of another kind.

    Raises:
        InputError: no such split, several and none chosen, or a description that is damaged.
    """
    if (folder / PARTS).is_file():
        return of(folder / _chosen(folder, names(folder), split), "")
    if (folder / STATE).is_file():
        return locations.parts_of_saved(folder)
    files = _files(folder)
    if not files:
        return []
    if set(map(len, files.values())) == {1} and not {_role(name) for name in files} & set(SPLITS):
        return [path for paths in files.values() for path in paths]  # parts that are numbered in their own way
    return files[_chosen(folder, list(files), split)]


def _files(folder: Path) -> dict[str, list[Path]]:
    """Parquet files by their split, in the folder or in `data` there."""
    files: dict[str, list[Path]] = {}
    place = folder if any(folder.glob("*.parquet")) else folder / "data"
    for path in sorted(place.glob("*.parquet")):
        found = PART.fullmatch(path.name)
        files.setdefault(found["split"] if found else path.stem, []).append(path)
    return files


def _role(name: str) -> str:
    return next((role for role, words in SPLITS.items() if name.lower() in words), name)


def _chosen(folder: Path, there: list[str], split: str) -> str:
    wanted = [name for name in sorted(there) if split and (name == split or _role(name) == _role(split))]
    if wanted or (len(there) == 1 and not split):
        return (wanted or there)[0]
    listed = ", ".join(sorted(there))
    problem = f"{folder} has no split '{split}'" if split else f"{folder} holds the splits {listed}"
    raise InputError(problem, f"choose one: {folder}#{(sorted(there) or ['test'])[0]}")


# Data sets from the user's own code: what `module:function` returns.


@dataclass(frozen=True)
class Items:
    """One input of a map-style data set, by its name where inputs have names."""

    data: Any
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.stack([array(_field(self.name, self.data[row])) for row in range(start, stop)])


def read(made: Any, source: str, said: DatasetOptions) -> ArraysOfDataset:
    """Rows of a map-style `torch.utils.data.Dataset` of (inputs, label) pairs, of (inputs, labels) arrays, or of a
    dict of arrays. Inputs that are a dict go to the model by name.

    Raises:
        InputError: anything else.
    """
    if isinstance(made, DataLoader):
        made = made.dataset
    pair = isinstance(made, tuple | list) and len(made) == 2 and not isinstance(made[0], tuple | list)
    if pair and isinstance(made[0], Mapping):
        inputs: dict[str, Named] = {str(k): Memory(array(v)) for k, v in made[0].items()}
        found = ArraysOfDataset(inputs, array(made[1]), "", integral=True)
    elif pair or isinstance(made, Mapping):
        made = {"inputs": made[0], "labels": made[1]} if pair else made
        arrays: dict[str, Named] = {str(k): Memory(array(v)) for k, v in made.items()}
        found = pick(arrays, ArrayRequest(source, inputs=said.inputs, labels=said.labels))
    elif isinstance(made, IterableDataset) or not (hasattr(made, "__getitem__") and hasattr(made, "__len__")):
        fix = "return a Dataset with __len__ and __getitem__, or (inputs, labels) arrays"
        raise InputError(f"{source} returned {type(made).__name__}", fix)
    elif not len(made):
        raise InputError(f"{source} returned no rows", "return at least one")
    else:
        found = _items(made, source)
    found.sha256 = hashlib.sha256(np.ascontiguousarray(found.labels).tobytes()).hexdigest()
    found.notes.append("the fingerprint is that of the labels")
    return found


def _items(made: Any, source: str) -> ArraysOfDataset:
    first = made[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise InputError(f"{source}: rows are {type(first).__name__}, not pairs", "return (inputs, label) for each row")
    known = next((v for n in ("targets", "labels") if (v := getattr(made, n, None)) is not None), None)
    if known is None or len(known) != len(made):
        fix = "pass (inputs, labels) as two arrays, or one pair for each row"
        with refusing(FAILURES, lambda e: f"{source}: the label of a row is no whole number ({str(e)[:80]})", fix):
            known = [int(made[i][1]) for i in range(len(made))]
    inputs: dict[str, Named] = {}
    for name in first[0] if isinstance(first[0], Mapping) else [""]:
        example = array(_field(name, first))
        inputs[name] = Items(made, name, (len(made), *example.shape), example.dtype)
    return ArraysOfDataset(inputs, array(known), "", integral=True)


def _field(name: str, row: Any) -> Any:
    return row[0][name] if name else row[0]


# A data set from where it lies: which arrays are inputs, which are labels, and how bytes become numbers.


MEMORY = "(memory)"


def load(
    source: Any,
    *,
    preprocess: Mapping[str, Any] | None = None,
    own: Preparation | None = None,
    channels: int = 0,
    embeds: bool = False,
    trust: bool = False,
    **how: Any,
) -> Dataset:
    """A data set.

    Args:
        source: `.npz .npy .safetensors .pt` arrays (`file.npz#test` takes the arrays of one split), an image folder,
            a table (`.csv`, `.tsv`, `.parquet`, `.arrow`, `.jsonl`), a folder of such tables, or `module:function`
            that returns a data set; or what such a function returns.
        preprocess: a checkpoint's `preprocess`; the options below come before it.
        own: how the model's own library prepares pictures and texts; of pictures, where the options are silent.
        channels: of the pictures that the model takes, 0 where that is not known.
        embeds: whether the model looks numbers up, which stay whole.
        trust: allow `.pt` files that hold pickled objects.
        how: the options, fields of `Rows`.  mean, std: per channel, numbers in a list too.
        layout: `NHWC`, `NCHW` or `flat`.  size, resize, crop, interpolation: of pictures, see `resize.sized`.
        inputs: name of the array with the inputs; several, by comma, go to the model by name. Of a model with a
            tokenizer, a column of texts, or a first and a second one.
        labels: name of the array or column with the labels; of a `.npy`, the file that holds them.
        subset: that many rows drawn without replacement with `split_seed`, in their order.

    Raises:
        InputError: unreadable, ambiguous, rows that do not agree, labels that are not classes.
    """
    name = str(source) if isinstance(source, str | Path) else MEMORY
    own, said = own or Preparation(), DatasetOptions(**how)
    if name is MEMORY:
        found = source if isinstance(source, Dataset) else read(source, name, said)
    else:
        found = _read(name, said, trust, own.texts is not None)
    if isinstance(found, Dataset):
        return _subset(found, said)
    y, classes, notes = to_labels(found, name)
    if own.texts is not None and all(type(a) is Memory and a.dtype.kind == "O" for a in found.inputs.values()):
        found, about = _tokens(found, own.texts(), name)
    else:
        found, about = _encoded(found, name, channels), {}
    _check(found, y, name)
    held, applied, made, remarks = _applied(found.inputs, preprocess, own, said, name)
    data = Dataset(
        inputs=held,
        labels=y,
        preprocess=applied,
        source=name,
        sha256=found.sha256,
        rows=np.arange(len(y)),
        ids=found.ids if found.ids is not None and len(found.ids) == len(y) else None,
        classes=classes,
        notes=[*found.notes, *notes, *remarks],
        integral=found.integral or embeds,
        words=found.words,
        prepared=about or made,
    )
    return _subset(data, said)


def _applied(
    inputs: Mapping[str, Named],
    preprocess: Mapping[str, Any] | None,
    own: Preparation,
    said: DatasetOptions,
    source: str,
) -> tuple[Mapping[str, Named], Preprocess, dict[str, Any], list[str]]:
    """The inputs as they are read, what is then done to them, by whose library, and remarks."""
    name, first = next(iter(inputs.items()))
    plain = said.mean is None and said.std is None
    if own.of_weights and not plain:
        own, preprocess = Preparation(), None
    if own.pictures is not None and plain and not sizing(said) and said.layout != "flat" and _bytes(first):
        how = own.pictures()
        prepared = _prepared(first, how, said.layout, source)
        remarks = [f"pictures as {how.name} makes them: {how.steps}"]
        return {**inputs, name: prepared}, Preprocess(), {"by": how.name, "steps": how.steps}, remarks
    if isinstance(first, folder.Pictures) and len(first.shape) == 4:
        said = replace(said, layout=said.layout or "NHWC")
    applied, remarks = for_array(first.shape, first.dtype, preprocess, said, source)
    return _resized(inputs, applied, source), applied, {}, remarks


def _bytes(first: Named) -> bool:
    """Whether rows are pictures of bytes."""
    return isinstance(first, folder.Pictures) or (first.dtype == np.uint8 and len(first.shape) in (3, 4))


def _check(found: ArraysOfDataset, labels: NDArray[np.int64], name: str) -> None:
    """Raises:
    InputError: inputs that are not rows of numbers, one for each label.
    """
    for key, values in found.inputs.items():
        if values.shape[:1] != labels.shape:
            rows = values.shape[0] if values.shape else 0
            raise InputError(
                f"{name}: {rows} rows of {key or 'inputs'}, {len(labels)} labels", "give every row one label"
            )
        if len(values.shape) < 2 and not key:  # by name there are lengths and places too
            raise InputError(f"{name}: inputs have shape {values.shape}", "pass rows of features or images")
        if values.dtype.kind not in "fuib":
            raise InputError(f"{name}: {key or 'inputs'} are {values.dtype}, not numbers", "pass an values of numbers")


def _tokens(found: ArraysOfDataset, how: ForTexts, name: str) -> tuple[ArraysOfDataset, dict[str, Any]]:
    """Texts as the tokens that the model takes, and what made them."""
    texts = [[str(text) for text in read_all(array)] for array in found.inputs.values()]
    inputs, remarks = tokens(how, texts[0], texts[1] if len(texts) > 1 else None, name)
    about = {"by": how.name, "longest": how.longest, "columns": list(found.inputs)}
    return replace(found, inputs=inputs, integral=True, notes=[*found.notes, *remarks]), about


def _encoded(found: ArraysOfDataset, name: str, channels: int) -> ArraysOfDataset:
    """Pictures of a table as pictures; all of them grey or in colour as the model takes them."""
    key, first = next(iter(found.inputs.items()))
    if isinstance(first, EncodedPictures):
        places = [folder.EncodedPicture(f"row {i} of {name}", data) for i, data in enumerate(first.array)]
        if not places:
            raise InputError(f"{name} has no rows", "pass at least one row")
        first = folder.Pictures(places, (len(places), *folder.decode(places[0]).shape))
    return replace(found, inputs={key: first.in_channels(channels)}) if isinstance(first, folder.Pictures) else found


def _prepared(first: Named, how: ForPictures, layout: str | None, name: str) -> Prepared:
    needs_pillow(f"pictures of {name}")
    if isinstance(first, folder.Pictures):
        held: Opened = first
    else:
        chosen = (layout or "").upper() or guess_layout(first.shape, name)
        held = PicturesOfArray(first, chosen == "NCHW" and len(first.shape) == 4, name)
    return Prepared(held, how, (first.shape[0], *one(held, 0, how).shape))


def _resized(inputs: Mapping[str, Named], applied: Preprocess, source: str) -> Mapping[str, Named]:
    """The first input in the size that the model takes; an array that has it already is left alone."""
    name, first = next(iter(inputs.items()))
    if not applied.resize:
        return inputs
    if isinstance(first, folder.Pictures):
        return {**inputs, name: first.resized(applied.resize)}
    made = resized(first, applied.resize, applied.layout == "NCHW" and len(first.shape) == 4)
    if made.shape == first.shape:
        return inputs
    needs_pillow(f"pictures of {source}")
    return {**inputs, name: made}


def _read(name: str, said: DatasetOptions, trust: bool, texts: bool) -> ArraysOfDataset | Dataset:
    path, split = split_part(name)
    if os.path.lexists(path):
        reading(path)
    published = downloads.read(path, split)
    if published is not None:
        if said.labels or said.inputs:
            raise UsageError(f"{name} is a published data set: its inputs and labels are known", "name neither")
        return published
    if os.path.isdir(path):
        tables = of(path, split)
        if tables:
            parts = [
                _of_file(file, ArrayRequest(str(file), "", said.inputs, said.labels), trust, texts) for file in tables
            ]
            return _of_tables(parts, tables)
        if said.labels:
            raise UsageError(f"--labels names an array or a column, {name} is a folder", "leave it out")
        return pictures(path, split)
    if not os.path.lexists(path):
        if not NAMES_CODE.fullmatch(name):
            raise InputError(f"no data set {path}", "pass a file, an image folder, or module:function")
        with refusing(
            FAILURES, lambda error: f"{name} failed ({type(error).__name__}: {error})", "correct the function"
        ):
            made = from_module(*name.split(":"))()
        return made if isinstance(made, Dataset) else read(made, name, said)
    return _of_file(path, ArrayRequest(name, split, said.inputs, said.labels), trust, texts)


def pictures(path: Path, split: str) -> ArraysOfDataset:
    """The pictures in a folder for each class.

    Raises:
        InputError: as `folder.read`; of a folder above that of a published data set, with the name of that.
    """
    try:
        return folder.read(path, split)
    except InputError:
        below = (p for depth in ("*", "*/*") for p in sorted(path.glob(depth)) if p.is_dir())
        if inner := next(filter(downloads.of, below), None):
            raise InputError(f"{path} holds a published data set in a folder of its own", f"name {inner}") from None
        raise


def _of_file(path: Path, asked: ArrayRequest, trust: bool, texts: bool) -> ArraysOfDataset:
    source = Source(path, trust)
    contents = load_any(source, columns=True)
    asked = replace(asked, sha256=source.sha256())
    found = pick_texts(contents, asked) if texts else None
    if found is not None:
        return found
    if contents.table:
        return pick_columns(contents, asked)
    arrays = _by_rows(contents.arrays)
    if contents.format == "npy":  # labels lie in a file of their own
        labels = Path(asked.labels or path.with_suffix(".labels.npy"))
        if not labels.exists():
            raise InputError(f"{path} has no labels", f"pass --labels LABELS.npy, or put them into {labels}")
        arrays = dict(zip(("inputs", "labels"), (*arrays.values(), *load_any(Source(labels)).arrays.values())))
        asked = replace(asked, labels=None)
    return pick(arrays, asked)


def _of_tables(parts: Sequence[ArraysOfDataset], files: Sequence[Path]) -> ArraysOfDataset:
    """The rows of several tables, one after the other.

    Raises:
        InputError: they differ in their columns or classes.
    """
    first = parts[0]
    for file, part in zip(files, parts):
        kinds = {key: (type(array), array.shape[1:]) for key, array in part.inputs.items()}
        if kinds != {key: (type(array), array.shape[1:]) for key, array in first.inputs.items()}:
            raise InputError(f"{file} has other inputs than {files[0]}", "pass parts of one data set")
        if part.classes != first.classes:
            raise InputError(f"{file} names other classes than {files[0]}", "pass parts of one data set")
    inputs: dict[str, Named] = {}
    for key, values in first.inputs.items():
        held = np.concatenate([read_all(part.inputs[key]) for part in parts])
        inputs[key] = EncodedPictures(held) if isinstance(values, EncodedPictures) else Memory(held)
    ids = None if any(part.ids is None for part in parts) else np.concatenate([part.ids for part in parts])

    notes = [f"{len(files)} files of one data set, from {files[0].name} on"] * (len(files) > 1)
    return ArraysOfDataset(
        inputs=inputs,
        labels=np.concatenate([part.labels for part in parts]),
        sha256=fingerprint([{"sha256": part.sha256} for part in parts]),
        ids=ids,
        classes=first.classes,
        notes=[*first.notes, *notes],
    )


def _by_rows(arrays: Mapping[str, Named]) -> Mapping[str, Named]:
    """The arrays of a file as rows are read: those stored column after column would take a read for each column."""
    if list(arrays) == ["item0", "item1"]:  # torch.save((inputs, labels))
        arrays = dict(zip(("inputs", "labels"), arrays.values()))
    by_columns = {n: a for n, a in arrays.items() if isinstance(a, InFile) and a.fortran and len(a.shape) > 1}
    return {**arrays, **{name: Memory(read_all(array)) for name, array in by_columns.items()}}


def splits(source: str | Path, *, trust: bool = False) -> list[str]:
    """Which of train, validation and test an arrays file holds side by side (`x_train`, `y_test`, ...)."""
    published = downloads.of(Path(source))
    if published is not None:
        return published[2]
    if os.path.isdir(source):
        return saved_splits(Path(source))
    return splits_of(load_any(Source(source, trust), columns=True).arrays) if os.path.isfile(source) else []


def _subset(data: Dataset, said: DatasetOptions) -> Dataset:
    subset, seed = said.subset, said.split_seed or 0
    if subset is None or subset == len(data):
        return data
    if subset > len(data):
        note = f"all {len(data)} rows are used: the subset asked for is {subset}"
        return replace(data, notes=[*data.notes, note])
    rows = np.sort(np.random.default_rng(seed).choice(len(data), subset, replace=False))
    note = f"{subset} of {len(data)} rows, drawn with split seed {seed}"
    return replace(data.select(rows), notes=[*data.notes, note])
