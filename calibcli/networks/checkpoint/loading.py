"""A checkpoint from a file: contents, architecture, weights, checks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibcli.core.errors import InputError, UsageError, refusing
from calibcli.core.files import reading, sha256, unchanged
from calibcli.core.options import exclusive
from calibcli.networks import dataset
from calibcli.networks.checkpoint import adapters, factory, huggingface, processor, usable, weights
from calibcli.networks.checkpoint.containers import CheckpointContents, Graph, read
from calibcli.networks.checkpoint.factory import build, canonical, is_built_in, sized
from calibcli.networks.checkpoint.weights import likely
from calibcli.networks.dataset import Dataset
from calibcli.networks.dataset.library_preparation import Preparation
from calibcli.networks.dataset.loading import MEMORY
from calibcli.scores.files.arrays import split_part


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model and what is known about it.

    Attributes:
        model: in eval mode, on the CPU, in float32.
        architecture: its spec (`--arch` or the file's own), or the name of the container if the file holds the network.
        metadata: the file's calib metadata (see `factory.Fields`), or {}.
        source: the path as given.  sha256: of the file.  container: `safetensors`, `pt state dict`, ...
        notes: what was recognised, renamed or left out, one sentence each.
        classes: class names, or None.
        data: data paths by role (`train`, `validation`, `test`), resolved against the checkpoint's folder.
        preparation: how the model's own library prepares images and texts.
    """

    model: nn.Module
    architecture: str
    metadata: dict[str, Any]
    source: str
    sha256: str
    container: str
    prefix: str = ""
    notes: list[str] = field(default_factory=list)
    classes: list[str] | None = None
    data: dict[str, str] = field(default_factory=dict)
    preparation: Preparation = field(default_factory=Preparation)

    def open_data(self, given: Any, *roles: str, **options: Any) -> Dataset:
        """Load the data set that the user named, else that of the first of `roles` that the checkpoint names.

        The checkpoint's preprocessing applies where no option is set, and classes are put in its order.

        Args:
            options: of `dataset.load`.

        Raises:
            UsageError: neither the user nor the checkpoint names one.
            InputError: as in `dataset.load`, or a class that the checkpoint does not know.
        """
        source = next((self.data[role] for role in roles if role in self.data), None) if given is None else given
        if source is None:
            raise UsageError(f"{self.source} does not name its data", "pass --data FILE")
        if given is None and not Path(source.rpartition("#")[0] or source).exists():
            raise InputError(f"{source}, where {self.source} expects its data, does not exist", "pass --data FILE")
        rows = dataset.load(source, **{**self.preparing, **options})
        if given is None:
            rows.notes.insert(0, f"data: {source}, as the checkpoint says")
        if self.classes is None and rows.classes and self.preparation.texts is not None:
            order = ", ".join(rows.classes[:8])
            rows.notes.append(f"the model does not name its classes: those of the data set are numbered as {order}")
        return dataset.in_order(rows, self.classes)

    def with_gradients(
        self,
        derivatives: usable.Derivatives = 1,
        device: torch.device | None = None,
        fully_sharded: bool = False,
    ) -> Checkpoint:
        """Return the checkpoint itself, if its model has so many derivatives on the device.

        Raises:
            InputError: the model is an ONNX graph, which has none, or is refused by `usable`.
        """
        if isinstance(self.model, Graph):
            problem = f"{self.source} is an ONNX graph, which has no gradients"
            raise InputError(problem, "pass the PyTorch checkpoint that it was exported from; calib logits takes it")
        usable.refuse(self.model, derivatives, device, fully_sharded)
        return self

    @property
    def preparing(self) -> dict[str, Any]:
        """The options of `dataset.load` that this checkpoint sets."""
        stem = next((m for m in self.model.modules() if isinstance(m, nn.Conv2d)), None)
        channels = stem.in_channels if stem is not None else 0
        return {
            "preprocess": self.metadata.get("preprocess"),
            "preparation": self.preparation,
            "channels": channels,
            "embeds": embeds(self.model),
        }

    def facts(self, rows: Dataset) -> dict[str, Any]:
        """Return the facts of a result about this checkpoint and its data."""
        facts = {"model": self.source, "architecture": self.architecture, "container": self.container}
        facts |= {"prefix": self.prefix} if self.prefix else {}
        return {**facts, "data": rows.source, "preprocess": dict(rows.prepared) or rows.preprocess.as_dict()}

    def inputs(self, rows: Dataset) -> list[dict[str, str]]:
        """Return path and sha256 of the files that were read, for the provenance of a result."""
        return [{"path": one.source, "sha256": one.sha256} for one in (self, rows) if one.sha256]


def embeds(model: nn.Module) -> bool:
    """Whether a model's first layer is an embedding, so that its inputs stay integers."""
    first = next((m for m in model.modules() if m._parameters and not m._modules), None)
    return isinstance(first, nn.Embedding | nn.EmbeddingBag)


def load(path: str | Path, *, arch: str | None = None, arch_file: str | None = None, trust: bool = False) -> Checkpoint:
    """Read a checkpoint. The global random state is left as it was.

    Args:
        path: file or folder; `model.pt#ema` takes the entry `ema` of a nested dict, or the names with that prefix.
        arch, arch_file: the architecture (see `build`); needed unless the file names a built-in one. For an adapter
            `arch` may be the folder of the model that it changes.
        trust: allow containers that hold code (pickled modules, TorchScript, `torch.export`).

    Raises:
        InputError: unreadable, holding code while not trusted, weights that do not fit or are not finite, or several
            networks that fit.
        UsageError: an architecture spec that is wrong.
    """
    exclusive(arch=arch is not None, arch_file=arch_file is not None)
    source = str(path)
    file, key = split_part(source)
    reading(file)
    with unchanged(*members(file)):  # torch, safetensors and transformers open files by name
        return _load(source, file, key, arch, arch_file, trust)


def _load(source: str, file: Path, key: str, arch: str | None, arch_file: str | None, trust: bool) -> Checkpoint:
    home = folder_of(file)
    from_library = _preprocess_of(home) if home else {}
    timm = processor.timm_config(home) if home else {}
    given = arch is not None or arch_file is not None
    adapter = adapters.folder_of(home or file)
    if adapter and given and not (arch and huggingface.is_model(Path(arch))):
        adapter = None  # its tensors are those of a network of the user's
    whole = home if home and not given and not timm and huggingface.is_model(home) else None
    if adapter:
        whole = adapters.base(adapter, arch)
    if whole and key:
        raise UsageError(f"{whole} is a folder of one network", f"leave out #{key}")
    contents = CheckpointContents("Hugging Face folder") if whole else read(file, trust=trust)
    preparation, classes, prefix = Preparation(), contents.metadata.get("classes"), ""
    if whole:
        with unchanged(*members(whole)):
            hf = huggingface.model(whole, adapter)
            model, architecture, notes = hf.model, hf.architecture, hf.notes
            if adapter:
                notes = [f"the adapter changes {whole} (sha256 {fingerprint(whole)[:16]})", *notes]
        preparation, classes = hf.preparation, hf.classes
        config = getattr(getattr(model, "config", None), factory.KEY, None)  # which fine-tuning hands on
        if isinstance(config, Mapping) and isinstance(config.get("folded"), Mapping):
            from_library["folded"] = dict(config["folded"])
    elif contents.modules and not given:
        model, prefix, notes = weights.module(contents.modules, str(file), key)
        usable.refuse(model)
        architecture, notes = contents.container, notes + usable.conversions(model)
        if usable.conversions(model):
            model.float()
        if isinstance(model, Graph):
            preparation, classes, from_library = beside(file, model.taken, model)
    elif home and timm and not given:
        library = factory.of_folder(timm)
        preparation, classes = library.preparation, classes or library.classes
        model, architecture, prefix, notes = _filled(contents, library.architecture, None, file, key, library.make)
    else:
        named = arch or arch_file or contents.metadata.get("architecture")
        if named is None:
            raise contents.refusal or _unknown(file, contents, key)
        model, architecture, prefix, notes = _filled(contents, named, arch_file, file, key)
        if not from_library and arch_file is None and (entry := factory.published(architecture, model, str(file))):
            from_library, preparation, notes = {"preprocess": entry.preprocess}, entry.preparation, notes + entry.notes
    weights.finite(model.eval(), source)
    metadata = {**from_library, **contents.metadata}
    if sentence := factory.folded(metadata):
        notes = [*notes, f"{sentence}: training removes it, and another calibrator is fitted on top of it"]
    return Checkpoint(
        model=model,
        architecture=architecture,
        metadata=metadata,
        source=source,
        sha256=fingerprint(file),
        container=contents.container,
        prefix=prefix,
        notes=contents.notes + notes,
        classes=None if classes is None else [str(c) for c in classes],
        data=factory.resolve(contents.metadata, file.parent),
        preparation=Preparation() if "preprocess" in contents.metadata else preparation,
    )


def beside(
    file: Path, taken: Collection[str], model: nn.Module | None = None
) -> tuple[Preparation, list[str] | None, dict[str, Any]]:
    """Read the folder of an ONNX graph, as exporters write it: how rows are prepared, class names, and `preprocess`.

    Args:
        taken: names of the inputs of the graph.
    """
    if not huggingface.is_model(file.parent):
        return Preparation(), None, {}
    preparation, classes = huggingface.beside(file.parent, nn.Module() if model is None else model, taken)
    return preparation, classes, _preprocess_of(file.parent)


def _preprocess_of(folder: Path) -> dict[str, Any]:
    """Return the `preprocess` of a folder under this name, {} if it says nothing about images."""
    preprocess = processor.of_folder(folder)
    return {"preprocess": preprocess} if preprocess else {}


STANDARD = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def folder_of(file: Path) -> Path | None:
    """Return the folder of a model: `file` itself, or its parent if it has a standard name of weights."""
    if os.path.isdir(file):
        return file
    return file.parent if file.name in STANDARD and huggingface.is_model(file.parent) else None


def members(path: Path) -> list[Path]:
    """List the files of a checkpoint: the file itself, or all weights and descriptions of a folder or index of shards.

    Raises:
        InputError: the folder cannot be read.
    """
    folder = folder_of(path) or (path.parent if path.name.endswith(".index.json") else None)
    if folder is None:
        outside = [path.with_name(path.name + end) for end in (".data", "_data")]  # weights of an ONNX graph
        return [path, *(file for file in outside if path.suffix == ".onnx" and file.is_file())]
    with refusing(OSError, lambda e: f"cannot read {folder} ({e.strerror})", "check the path"):
        return sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".json", ".txt", ".model"))


def fingerprint(path: Path) -> str:
    """Return the sha256 of a file; for several files, that of the list of their names and hashes."""
    files = members(path)
    if files == [path]:
        return sha256(path)
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


def _filled(
    contents: CheckpointContents,
    architecture: str,
    arch_file: str | None,
    file: Path,
    key: str,
    make: Callable[[], nn.Module] | None = None,
) -> tuple[nn.Module, str, str, list[str]]:
    """Build the model and load the file's weights: model, full spec, prefix of the weights, and notes.

    Numbers of classes and channels that the spec leaves open are read from the tensors.
    """
    source, notes = str(file), list[str]()
    tables = weights.tables(contents.tensors, source, key)
    light = make is None and arch_file is None and is_built_in(architecture)
    errors, fix = (RuntimeError, MemoryError, OverflowError), "check its options"

    def made(**sizes: int) -> nn.Module:
        # nothing is allocated or drawn until the shapes are known to agree
        apart: Any = torch.device("meta") if light else torch.random.fork_rng(devices=[])
        with refusing(errors, lambda e: f"'{architecture}' cannot be built ({str(e) or type(e).__name__})", fix), apart:
            model = make() if make else build(None if arch_file else architecture, arch_file, **sizes)
        return weights.fillable(model, architecture, light)

    model = made()
    network = weights.network(tables, model.state_dict(), source, key)
    if make is None and (sizes := weights.sizes(network.tensors, model.state_dict())):
        again = made(**sizes)
        if not weights.sizes(network.tensors, again.state_dict()):
            model = again
            notes += [f"{n} {dimension}, as in the weights" for dimension, n in sizes.items()]
            architecture = sized(architecture, sizes)
    architecture = canonical(architecture)
    expected = model.state_dict()
    try:
        tensors, read_as = weights.matched(network.tensors, expected, source, architecture)
    except InputError:
        taken = None if light else weights.through_hooks(model, network.tensors)
        if taken is None:
            raise
        tensors, read_as = taken, ["weights were read by the load_state_dict of the model, whose hooks rename some"]
    renamed = [*network.notes, *read_as]
    changed = {(v.dtype, expected[k].dtype) for k, v in tensors.items() if expected[k].is_floating_point()}
    for stored, wanted in sorted(changed, key=str):
        if stored != wanted:
            renamed.append(f"weights stored as {_name(stored)} were converted to {_name(wanted)}")
    if light:  # the file's tensors become the parameters: a large model is in memory once
        state = {
            k: _owned(tensors[k], v) if k in tensors else torch.zeros_like(v, device="cpu") for k, v in expected.items()
        }
        model.load_state_dict(state, assign=True)
    else:
        with torch.no_grad():
            for name, target in expected.items():
                if name in tensors:
                    target.copy_(tensors[name])
    return model, architecture, network.prefix, notes + renamed


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _owned(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return `tensor` in the dtype of `like`, with its own memory."""
    tensor = tensor.detach().to(like.dtype).contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _unknown(file: Path, contents: CheckpointContents, key: str) -> InputError:
    spec, others = likely(weights.tables(contents.tensors, str(file), key), str(file), key)
    fix = "pass --arch NAME:key=value, --arch module:factory or --arch-file net.py:factory"
    if spec and "activation=" in spec:
        fix = f"its linear layers fit --arch {spec}: pass that with the activation it has (relu, gelu, silu or tanh)"
    elif spec:
        fix = f"its tensors fit --arch {spec}: pass that if it is right" + (f", with {others}" if others else "")
    return UnknownArchitecture(f"{file} ({contents.container}) does not say which architecture it is", fix)


class UnknownArchitecture(InputError):
    """A file of weights that does not say which network they are of."""


IN_MEMORY = "(module)"  # stands for the path


def of(
    model: Any,
    arch: str | None = None,
    arch_file: str | None = None,
    trust: bool = False,
    data: Any = MEMORY,
    fully_sharded: bool = False,
) -> Checkpoint:
    """Load the checkpoint at a path, or wrap a module as a checkpoint.

    Args:
        data: None if no data set was named either, which is then said with a missing architecture.
        fully_sharded: see `usable.refuse`.

    Raises:
        InputError: the file is refused, or the module (`usable`).
        UsageError: an architecture was passed with a module.
        TypeError: `model` is neither a module nor a path.
    """
    if not isinstance(model, nn.Module):
        if not isinstance(model, str | Path):
            raise TypeError(f"a model is a torch module or a path, not {type(model).__name__}")
        try:
            return load(model, arch=arch, arch_file=arch_file, trust=trust)
        except UnknownArchitecture as error:
            if data is not None:
                raise
            raise UnknownArchitecture(f"{error.problem}, nor its data", f"{error.fix}; and pass --data FILE") from None
    if arch or arch_file:
        raise UsageError("a module has its architecture", "leave arch and arch_file out")
    usable.refuse(model, fully_sharded=fully_sharded)
    return Checkpoint(model, type(model).__name__, {}, IN_MEMORY, "", "module", notes=usable.conversions(model))
