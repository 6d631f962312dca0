"""Load a data set from a file, a folder, a download, tables of the Hugging Face hub, or the user's own code."""

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
from calibcli.core.files import reading, unchanged
from calibcli.networks.dataset import _folder as folder
from calibcli.networks.dataset import downloads
from calibcli.networks.dataset import library_preparation as library_rows
from calibcli.networks.dataset._arrays import (
    ArrayRequest,
    DatasetArrays,
    of_positions,
    pick,
    pick_columns,
    pick_texts,
    splits_of,
    to_labels,
)
from calibcli.networks.dataset.library_preparation import PicturePreparation, Preparation, TextPreparation
from calibcli.networks.dataset.rows import Dataset, Preprocess, for_array, guess_layout, needs_pillow, resized, sizing
from calibcli.networks.user_code import FAILURES, NAMES_CODE, from_module
from calibcli.scores.data_frames import refuse_other_order
from calibcli.scores.files import locations
from calibcli.scores.files.arrays import EncodedPictures, InFile, Memory, load_any, read_all, split_part
from calibcli.scores.files.locations import PARTS, STATE
from calibcli.scores.files.roles import SPLITS
from calibcli.scores.files.source import Source, fingerprint
from calibcli.scores.predictions import Named
from calibcli.scores.reading_options import IGNORED, DatasetOptions

# Folders of tables: those that Hugging Face's `save_to_disk` writes, and parquet files of a data set of its hub.

PART = re.compile(r"(?P<split>[A-Za-z_]+)(-\d+-of-\d+|-\d+)?(-[0-9a-f]{16})?\.parquet")  # train-00000-of-00002.parquet


def names(folder: Path) -> list[str]:
    """List the names of the splits in a folder of tables; [] for another folder."""
    if (folder / PARTS).is_file():
        return sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
    return sorted(_files(folder))


def of(folder: Path, split: str) -> list[Path]:
    """List the tables of a split, in their order; [] for another folder.

    Raises:
        InputError: no such split, several splits and none chosen, or a damaged description.
    """
    if (folder / PARTS).is_file():
        return of(folder / _chosen(folder, names(folder), split), "")
    if (folder / STATE).is_file():
        return locations.parts_of_saved(folder)
    files = _files(folder)
    if not files:
        return []
    if set(map(len, files.values())) == {1} and not {_role(name) for name in files} & set(SPLITS):
        return [path for paths in files.values() for path in paths]  # parts of one data set, numbered in another way
    return files[_chosen(folder, list(files), split)]


def _files(folder: Path) -> dict[str, list[Path]]:
    """Group parquet files by their split, in the folder or its subfolder `data`."""
    files: dict[str, list[Path]] = {}
    place = folder if any(folder.glob("*.parquet")) else folder / "data"
    for path in sorted(place.glob("*.parquet")):
        match = PART.fullmatch(path.name)
        files.setdefault(match["split"] if match else path.stem, []).append(path)
    return files


def _role(name: str) -> str:
    return next((role for role, words in SPLITS.items() if name.lower() in words), name)


def _chosen(folder: Path, present: list[str], split: str) -> str:
    wanted = [name for name in sorted(present) if split and (name == split or _role(name) == _role(split))]
    if wanted or (len(present) == 1 and not split):
        return (wanted or present)[0]
    listed = ", ".join(sorted(present))
    problem = f"{folder} has no split '{split}'" if split else f"{folder} holds the splits {listed}"
    raise InputError(problem, f"choose one: {folder}#{(sorted(present) or ['test'])[0]}")


# Data sets from the user's own code: the values that `module:function` returns.


@dataclass(frozen=True)
class Items:
    """One input of a map-style data set, as an array; selected by name if the inputs are a dict."""

    data: Any
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.stack([array(_field(self.name, self.data[row])) for row in range(start, stop)])


def read(value: Any, source: str, options: DatasetOptions) -> DatasetArrays:
    """Read a map-style `torch.utils.data.Dataset` of (inputs, label) pairs, (inputs, labels) arrays, a list of batches
    of these, or a dict of arrays. Inputs that are a dict are passed to the model by name.

    Raises:
        InputError: the value is anything else; or inputs and labels have the same index in different orders.
    """
    if isinstance(value, DataLoader):
        value = value.dataset
    value = _joined(value)
    pair = isinstance(value, tuple | list) and len(value) == 2 and not isinstance(value[0], tuple | list)
    if pair or isinstance(value, Mapping):
        named = {"inputs": value[0], "labels": value[1]} if pair else value
        first = named.get("inputs")
        refuse_other_order({**(first if isinstance(first, Mapping) else {}), **named})
    if pair and isinstance(value[0], Mapping):
        inputs: dict[str, Named] = {str(k): Memory(array(v)) for k, v in value[0].items()}
        stored = DatasetArrays(inputs, array(value[1]), "", integral=True)
    elif pair or isinstance(value, Mapping):
        arrays: dict[str, Named] = {str(k): Memory(array(v)) for k, v in named.items()}
        stored = pick(arrays, ArrayRequest(source, inputs=options.inputs, labels=options.labels))
    elif isinstance(value, IterableDataset) or not (hasattr(value, "__getitem__") and hasattr(value, "__len__")):
        fix = "return a Dataset with __len__ and __getitem__, or (inputs, labels) arrays"
        raise InputError(f"{source} returned {type(value).__name__}", fix)
    elif not len(value):
        raise InputError(f"{source} returned no rows", "return at least one")
    else:
        stored = _items(value, source)
    stored.sha256 = hashlib.sha256(np.ascontiguousarray(stored.labels).tobytes()).hexdigest()
    stored.notes.append("the fingerprint is that of the labels")
    return stored


def _joined(value: Any) -> Any:
    """Return a list of batches, `[(inputs (b, ...), labels (b,)), ...]`, as one pair; anything else as it is.

    A row may be a pair of arrays too, with one label: batches are told by having more.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(one, list | tuple) and len(one) == 2 for one in value):
        return value
    shapes: list[tuple[Sequence[int], Sequence[int]]]
    shapes = [(getattr(x, "shape", ()), getattr(y, "shape", ())) for x, y in value]
    if not all(len(x) > 1 and len(y) == 1 and x[0] == y[0] for x, y in shapes) or max(y[0] for _, y in shapes) < 2:
        return value
    return np.concatenate([array(x) for x, _ in value]), np.concatenate([array(y) for _, y in value])


def _items(pairs: Any, source: str) -> DatasetArrays:
    first = pairs[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise InputError(f"{source}: rows are {type(first).__name__}, not pairs", "return (inputs, label) for each row")
    labels = next((v for n in ("targets", "labels") if (v := getattr(pairs, n, None)) is not None), None)
    if labels is None or len(labels) != len(pairs):
        fix = "pass (inputs, labels) as two arrays, or one pair for each row"
        with refusing(FAILURES, lambda e: f"{source}: the label of a row is no whole number ({str(e)[:80]})", fix):
            labels = [int(pairs[i][1]) for i in range(len(pairs))]
    inputs: dict[str, Named] = {}
    for name in first[0] if isinstance(first[0], Mapping) else [""]:
        example = array(_field(name, first))
        inputs[name] = Items(pairs, name, (len(pairs), *example.shape), example.dtype)
    return DatasetArrays(inputs, array(labels), "", integral=True)


def _field(name: str, row: Any) -> Any:
    return row[0][name] if name else row[0]


# Load a data set of any kind.

MEMORY = "(memory)"


def load(
    source: Any,
    *,
    preprocess: Mapping[str, Any] | None = None,
    preparation: Preparation | None = None,
    channels: int = 0,
    embeds: bool = False,
    trust: bool = False,
    positions: bool = False,
    ignore_label: int | None = None,
    **options: Any,
) -> Dataset:
    """Load a data set.

    Args:
        source: `.npz .npy .safetensors .pt` arrays (`file.npz#test` takes the arrays of one split), an image folder,
            a table (`.csv`, `.tsv`, `.parquet`, `.arrow`, `.jsonl`), a folder of such tables, or `module:function`
            that returns a data set; or the value that such a function returns.
        preprocess: a checkpoint's `preprocess`; the options below override it.
        preparation: how the model's own library prepares images and texts; options of images override it.
        channels: of the images that the model takes, 0 if unknown.
        embeds: whether the model embeds its inputs, which then stay integers.
        trust: allow `.pt` files that hold pickled objects.
        positions: whether labels of every position, (N, T) or (N, H, W), are taken.  ignore_label: of those that are
            not counted, beside -100.
        options: fields of `DatasetOptions`.  mean, std: per channel; a list of numbers is allowed too.
        layout: `NHWC`, `NCHW` or `flat`.  size, resize, crop, interpolation: of images, see `rows.sized`.
        inputs: name of the array with the inputs; several, separated by commas, are passed to the model by name. For a
            model with a tokenizer, one or two columns of texts.
        labels: name of the array or column with the labels; for a `.npy`, the file that holds them.
        subset: use this many rows, drawn without replacement with `split_seed`, in their order.

    Raises:
        InputError: the source is unreadable or ambiguous, inputs and labels differ in number, or labels are not
            classes.
    """
    name = str(source) if isinstance(source, str | Path) else MEMORY
    preparation, chosen = preparation or Preparation(), DatasetOptions(**options)
    if name is MEMORY:
        stored = source if isinstance(source, Dataset) else read(source, name, chosen)
    else:
        stored = _read(name, chosen, trust, preparation.texts is not None, positions and preparation.next_token)
    if isinstance(stored, Dataset):
        return _subset(stored, chosen)
    own = positions and preparation.next_token and stored.labels.ndim == 1  # the tokens are the labels
    of_each = of_positions(stored, name, ignore_label) if positions and not own else None
    notes: list[str] = []
    if own or of_each is not None:
        y, classes = np.zeros(len(stored.labels), np.int64) if of_each is None else of_each, stored.classes
    elif stored.labels.ndim > 1 and of_positions(stored, name, ignore_label) is not None:
        problem = f"{name}: labels have shape {stored.labels.shape}, one for each position of a row"
        raise InputError(problem, "calib logits writes the logits of positions; here a row has one class")
    else:
        y, classes, notes = to_labels(stored, name)
    if preparation.texts is not None and all(type(a) is Memory and a.dtype.kind == "O" for a in stored.inputs.values()):
        stored, by_tokenizer = _tokens(stored, preparation.texts(), name)
    else:
        stored, by_tokenizer = _encoded(stored, name, channels), {}
    if own:
        y = _next_tokens(stored.inputs, name)
        classes, notes = None, ["labels are the tokens themselves"]
    _check(stored, y, name)
    prepared, applied, by_library, remarks = _applied(stored.inputs, preprocess, preparation, chosen, name)
    data = Dataset(
        prepared,
        y,
        applied,
        source=name,
        sha256=stored.sha256,
        rows=np.arange(len(y)),
        ids=stored.ids if stored.ids is not None and len(stored.ids) == len(y) else None,
        classes=classes,
        notes=[*stored.notes, *notes, *remarks],
        integral=stored.integral or embeds,
        words=stored.words,
        published=stored.published,
        prepared=by_tokenizer or by_library,
    )
    return _subset(data, chosen)


def _applied(
    inputs: Mapping[str, Named],
    preprocess: Mapping[str, Any] | None,
    preparation: Preparation,
    options: DatasetOptions,
    source: str,
) -> tuple[Mapping[str, Named], Preprocess, dict[str, Any], list[str]]:
    """Choose the preprocessing: the inputs as they are read, the steps after it, those of the library, and notes."""
    name, first = next(iter(inputs.items()))
    plain = options.mean is None and options.std is None
    if preparation.of_weights and not plain:
        preparation, preprocess = Preparation(), None
    of_bytes = isinstance(first, folder.Pictures) or (first.dtype == np.uint8 and len(first.shape) in (3, 4))
    if preparation.pictures is not None and plain and not sizing(options) and options.layout != "flat" and of_bytes:
        library = preparation.pictures()
        prepared = _prepared(first, library, options.layout, source)
        remarks = [f"pictures as {library.name} makes them: {library.steps}"]
        return {**inputs, name: prepared}, Preprocess(), {"by": library.name, "steps": library.steps}, remarks
    if isinstance(first, folder.Pictures) and len(first.shape) == 4:
        options = replace(options, layout=options.layout or "NHWC")
    applied, remarks = for_array(first.shape, first.dtype, preprocess, options, source)
    return _resized(inputs, applied, source), applied, {}, remarks


def _check(stored: DatasetArrays, labels: NDArray[np.int64], name: str) -> None:
    """Check that the inputs are rows of numbers, one for each label.

    Raises:
        InputError: they are not.
    """
    for key, values in stored.inputs.items():
        if values.shape[:1] != labels.shape[:1]:
            rows = values.shape[0] if values.shape else 0
            problem = f"{name}: {rows} rows of {key or 'inputs'}, {len(labels)} labels"
            raise InputError(problem, "give every row one label")
        if len(values.shape) < 2 and not key:  # by name there are lengths and places too
            raise InputError(f"{name}: inputs have shape {values.shape}", "pass rows of features or images")
        if values.dtype.kind not in "fuib":
            raise InputError(f"{name}: {key or 'inputs'} are {values.dtype}, not numbers", "pass an array of numbers")


def _next_tokens(inputs: Mapping[str, Named], name: str) -> NDArray[np.int64]:
    """Return the tokens (N, T) as labels, IGNORED where the attention mask hides them.

    Raises:
        InputError: there are none.
    """
    tokens = inputs.get("input_ids", inputs.get(""))
    if tokens is None or len(tokens.shape) != 2 or tokens.dtype.kind not in "iu":
        raise InputError(f"{name} has no tokens (N, T) and no texts", "call the array of tokens input_ids")
    labels, mask = read_all(tokens).astype(np.int64), inputs.get("attention_mask")
    return labels if mask is None else np.where(read_all(mask) != 0, labels, IGNORED)


def _tokens(stored: DatasetArrays, tokenizer: TextPreparation, name: str) -> tuple[DatasetArrays, dict[str, Any]]:
    """Tokenize texts; also return the facts about the tokenizer."""
    texts = [[str(text) for text in read_all(array)] for array in stored.inputs.values()]
    inputs, remarks = library_rows.tokens(tokenizer, texts[0], texts[1] if len(texts) > 1 else None, name)
    facts = {"by": tokenizer.name, "longest": tokenizer.longest, "columns": list(stored.inputs)}
    return replace(stored, inputs=inputs, integral=True, notes=[*stored.notes, *remarks]), facts


def _encoded(stored: DatasetArrays, name: str, channels: int) -> DatasetArrays:
    """Wrap the pictures of a table; set all pictures to grey or colour as the model takes them."""
    key, first = next(iter(stored.inputs.items()))
    if isinstance(first, EncodedPictures):
        places = [folder.EncodedPicture(f"row {i} of {name}", data) for i, data in enumerate(first.array)]
        if not places:
            raise InputError(f"{name} has no rows", "pass at least one row")
        first = folder.Pictures(places, (len(places), *folder.decode(places[0]).shape))
    return replace(stored, inputs={key: first.in_channels(channels)}) if isinstance(first, folder.Pictures) else stored


def _prepared(first: Named, library: PicturePreparation, layout: str | None, name: str) -> library_rows.Prepared:
    needs_pillow(f"pictures of {name}")
    if isinstance(first, folder.Pictures):
        pictures: library_rows.Opened = first
    else:
        chosen = (layout or "").upper() or guess_layout(first.shape, name)
        pictures = library_rows.ArrayPictures(first, chosen == "NCHW" and len(first.shape) == 4, name)
    return library_rows.Prepared(pictures, library, (first.shape[0], *library_rows.one(pictures, 0, library).shape))


def _resized(inputs: Mapping[str, Named], applied: Preprocess, source: str) -> Mapping[str, Named]:
    """Resize the first input to the size that the model takes; an array of that size is unchanged."""
    name, first = next(iter(inputs.items()))
    if not applied.resize:
        return inputs
    if isinstance(first, folder.Pictures):
        return {**inputs, name: first.resized(applied.resize)}
    smaller = resized(first, applied.resize, applied.layout == "NCHW" and len(first.shape) == 4)
    if smaller.shape == first.shape:
        return inputs
    needs_pillow(f"pictures of {source}")
    return {**inputs, name: smaller}


def _read(name: str, options: DatasetOptions, trust: bool, texts: bool, next_token: bool) -> DatasetArrays | Dataset:
    path, split = split_part(name)
    if os.path.lexists(path):
        reading(path, pipes=True)
    with unchanged(*[path] * os.path.isfile(path)):  # an archive is opened by name, and more than once
        published = downloads.read(path, split)
    if published is not None:
        if options.labels or options.inputs:
            raise UsageError(f"{name} is a published data set, whose inputs and labels are known", "name neither")
        return published
    if os.path.isdir(path):
        tables = of(path, split)
        if tables:
            asked = ArrayRequest("", "", options.inputs, options.labels, next_token=next_token)
            parts = [_of_file(file, replace(asked, source=str(file)), trust, texts) for file in tables]
            return _of_tables(parts, tables)
        if options.labels:
            raise UsageError(f"--labels names an array or a column, {name} is a folder", "leave it out")
        return pictures(path, split)
    if not os.path.lexists(path):
        if not NAMES_CODE.fullmatch(name):
            raise InputError(f"no data set {path}", "pass a file, an image folder, or module:function")
        with refusing(FAILURES, lambda e: f"{name} failed ({type(e).__name__}: {e})", "correct the function"):
            value = from_module(*name.split(":"))()
        return value if isinstance(value, Dataset) else read(value, name, options)
    request = ArrayRequest(name, split, options.inputs, options.labels, next_token=next_token)
    return _of_file(path, request, trust, texts)


def pictures(path: Path, split: str) -> DatasetArrays:
    """Read a folder of pictures with a folder for each class.

    Raises:
        InputError: as `folder.read`; if a subfolder is a published data set, the error names it.
    """
    try:
        return folder.read(path, split)
    except InputError:
        below = (p for depth in ("*", "*/*") for p in sorted(path.glob(depth)) if p.is_dir())
        if inner := next(filter(downloads.of, below), None):
            raise InputError(f"{path} holds a published data set in a folder of its own", f"name {inner}") from None
        raise


def _of_file(path: Path, request: ArrayRequest, trust: bool, texts: bool) -> DatasetArrays:
    source = Source(path, trust)
    contents = load_any(source, columns=True)
    request = replace(request, sha256=source.sha256())
    stored = pick_texts(contents, request) if texts else None
    if stored is not None:
        return stored
    if contents.table:
        return pick_columns(contents, request)
    arrays = _by_rows(contents.arrays)
    if contents.format == "npy":  # labels are in a separate file
        labels = Path(request.labels or path.with_suffix(".labels.npy"))
        if not labels.exists():
            raise InputError(f"{path} has no labels", f"pass --labels LABELS.npy, or put them into {labels}")
        arrays = dict(zip(("inputs", "labels"), (*arrays.values(), *load_any(Source(labels)).arrays.values())))
        request = replace(request, labels=None)
    return pick(arrays, request)


def _of_tables(parts: Sequence[DatasetArrays], files: Sequence[Path]) -> DatasetArrays:
    """Concatenate the rows of several tables.

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
        rows = np.concatenate([read_all(part.inputs[key]) for part in parts])
        inputs[key] = EncodedPictures(rows) if isinstance(values, EncodedPictures) else Memory(rows)
    ids = None if any(part.ids is None for part in parts) else np.concatenate([part.ids for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    sha256 = fingerprint([{"sha256": part.sha256} for part in parts])
    notes = [f"{len(files)} files of one data set, from {files[0].name} on"] * (len(files) > 1)
    return DatasetArrays(inputs, labels, sha256, ids, first.classes, [*first.notes, *notes])


def _by_rows(arrays: Mapping[str, Named]) -> Mapping[str, Named]:
    """Load arrays in column-major order to memory, because reading a row of the file would take a read per column."""
    if list(arrays) == ["item0", "item1"]:  # torch.save((inputs, labels))
        arrays = dict(zip(("inputs", "labels"), arrays.values()))
    by_columns = {n: a for n, a in arrays.items() if isinstance(a, InFile) and a.fortran and len(a.shape) > 1}
    return {**arrays, **{name: Memory(read_all(array)) for name, array in by_columns.items()}}


def splits(source: str | Path, *, trust: bool = False) -> list[str]:
    """List which of train, validation and test a source holds (in a file of arrays: `x_train`, `y_test`, ...)."""
    published = downloads.of(Path(source))
    if published is not None:
        return published[2]
    if os.path.isdir(source):
        roles = {_role(name) for name in names(Path(source))}
        return [role for role in SPLITS if role in roles]
    return splits_of(load_any(Source(source, trust), columns=True).arrays) if os.path.isfile(source) else []


def _subset(data: Dataset, options: DatasetOptions) -> Dataset:
    subset, seed = options.subset, options.split_seed or 0
    if subset is None or subset == len(data):
        return data
    if subset > len(data):
        note = f"all {len(data)} rows are used: the subset asked for is {subset}"
        return replace(data, notes=[*data.notes, note])
    rows = np.sort(np.random.default_rng(seed).choice(len(data), subset, replace=False))
    note = f"{subset} of {len(data)} rows, drawn with split seed {seed}"
    return replace(data.select(rows), notes=[*data.notes, note])
