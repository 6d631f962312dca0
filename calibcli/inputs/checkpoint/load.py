"""A checkpoint from a file: contents, architecture, weights, checks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibcli.errors import InputError, UsageError, refusing
from calibcli.files import sha256, unchanged
from calibcli.inputs import dataset
from calibcli.inputs.checkpoint import huggingface, processor, weights
from calibcli.inputs.checkpoint import metadata as meta
from calibcli.inputs.checkpoint.containers import Contents, read
from calibcli.inputs.checkpoint.factory import build, canonical, is_built_in
from calibcli.inputs.checkpoint.guess import likely
from calibcli.inputs.dataset import Dataset
from calibcli.inputs.files.names import parted


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model and what is known about it.

    Attributes:
        model: in eval mode, on the CPU, in float32.
        architecture: its spec (`--arch` or the file's own), or the container's name where the file holds the network.
        metadata: the file's calib metadata (see `checkpoint.metadata`), or {}.
        source: the path as given.  sha256: of the file.  container: `safetensors`, `pt state dict`, ...
        notes: what was recognised, renamed or left out, one sentence each.
        classes: class names, or None.
        data: data paths by role (`train`, `validation`, `test`), resolved against the checkpoint's folder.
    """

    model: nn.Module
    architecture: str
    metadata: dict[str, Any]
    source: str
    sha256: str
    container: str
    notes: list[str] = field(default_factory=list)
    classes: list[str] | None = None
    data: dict[str, str] = field(default_factory=dict)

    def open_data(self, given: Any, *roles: str, **options: Any) -> Dataset:
        """The data set the user named or has, else the one of the first of `roles` that the checkpoint names.

        The checkpoint's preprocessing applies where the options are silent, and class names are put in its order.

        Args:
            options: of `dataset.load`.

        Raises:
            UsageError: none named anywhere.
            InputError: as in `dataset.load`, or class names that the checkpoint does not know.
        """
        source = next((self.data[role] for role in roles if role in self.data), None) if given is None else given
        if source is None:
            raise UsageError(f"{self.source} does not say where its data lies", "pass --data FILE")
        if given is None and not Path(source.rpartition("#")[0] or source).exists():
            raise InputError(f"{source}, where {self.source} says its data lies, is not there", "pass --data FILE")
        options.setdefault("preprocess", self.metadata.get("preprocess"))
        found = dataset.load(source, **options)
        if given is None:
            found.notes.insert(0, f"data: {source}, as the checkpoint says")
        return dataset.in_order(found, self.classes)

    def facts(self, found: Dataset) -> dict[str, Any]:
        """What a result says of this checkpoint and its data."""
        return {
            "model": self.source,
            "architecture": self.architecture,
            "container": self.container,
            "data": found.source,
            "preprocess": found.preprocess.as_dict(),
        }

    def inputs(self, found: Dataset) -> list[dict[str, str]]:
        """Path and sha256 of what was read, for the provenance of a result."""
        return [{"path": one.source, "sha256": one.sha256} for one in (self, found) if one.sha256]


def load(path: str | Path, *, arch: str | None = None, arch_file: str | None = None, trust: bool = False) -> Checkpoint:
    """Read a checkpoint. The global random state is left as it was.

    Args:
        path: file or folder; `model.pt#ema` takes the entry `ema` of a nested dict.
        arch, arch_file: the architecture (see `build`); needed where the file does not carry a built-in one.
        trust: allow containers that hold code (pickled modules, TorchScript, `torch.export`).

    Raises:
        InputError: unreadable, holding code while not trusted, weights that do not fit or are not finite.
        UsageError: an architecture spec that is wrong.
    """
    if arch is not None and arch_file is not None:
        raise UsageError("both --arch and --arch-file were given", "pass one of them")
    source = str(path)
    file, key = parted(source)
    with unchanged(*members(file)):  # torch, safetensors and transformers open files by name
        return _load(source, file, key, arch, arch_file, trust)


def _load(source: str, file: Path, key: str, arch: str | None, arch_file: str | None, trust: bool) -> Checkpoint:
    about: dict[str, Any] = (
        {"preprocess": found} if os.path.isdir(file) and (found := processor.of_folder(file)) else {}
    )
    timm = processor.timm_config(file) if os.path.isdir(file) else {}
    if arch is None and arch_file is None and timm:
        arch = f"timm.{timm['architecture']}" + (f":num_classes={n}" if (n := timm.get("num_classes")) else "")
    if arch is None and arch_file is None and huggingface.is_model(file):
        model, architecture, names = huggingface.model(file)
        weights.finite(model.eval(), source)
        config = getattr(getattr(model, "config", None), meta.KEY, None)  # which fine-tuning hands on
        if isinstance(config, Mapping) and isinstance(config.get("folded"), Mapping):
            about["folded"] = dict(config["folded"])
        kind, said = "Hugging Face folder", _folded(about)
        return Checkpoint(model, architecture, about, source, fingerprint(file), kind, said, classes=names)
    contents = read(file, trust=trust)
    named = arch or arch_file or contents.metadata.get("architecture")
    if contents.module is not None and arch is None and arch_file is None:
        notes: list[str] = []
        model, architecture = contents.module, contents.container
        narrow = {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}
        if narrow:
            model = model.float()
            notes = [f"weights stored as {_name(dtype)} were converted to float32" for dtype in narrow]
    else:
        if named is None:
            raise contents.refusal or _unknown(source, contents, key)
        architecture = canonical(named)
        model, notes = _filled(contents, architecture, arch_file, source, key)
        notes += [] if about else _as_published(model)
    model.eval()
    weights.finite(model, source)
    classes = contents.metadata.get("classes")
    return Checkpoint(
        model=model,
        architecture=architecture,
        metadata={**about, **contents.metadata},
        source=source,
        sha256=fingerprint(file),
        container=contents.container,
        notes=contents.notes + notes + _folded(contents.metadata),
        classes=None if classes is None else [str(c) for c in classes],
        data=meta.resolve(contents.metadata, file.parent),
    )


def _folded(metadata: Mapping[str, Any]) -> list[str]:
    found = meta.folded(metadata)
    return [f"{found}: training takes it away, and another calibrator is fitted on top of it"] if found else []


def members(path: Path) -> list[Path]:
    """The files of a checkpoint: itself; of a folder or an index of shards, the weights and descriptions there.

    Raises:
        InputError: the folder cannot be read.
    """
    folder = path if os.path.isdir(path) else path.parent if path.name.endswith(".index.json") else None
    if folder is None:
        return [path]
    with refusing(OSError, lambda e: f"cannot read {folder} ({e.strerror})", "check the path"):
        return sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".json"))


def fingerprint(path: Path) -> str:
    """sha256 of a file; of several, that of their hashes by name."""
    files = members(path)
    if files == [path]:
        return sha256(path)
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


def _filled(
    contents: Contents, architecture: str, arch_file: str | None, source: str, key: str
) -> tuple[nn.Module, list[str]]:
    tree = contents.module.state_dict() if contents.module is not None else contents.tensors
    tensors, notes = weights.find(tree, source, key)
    light = arch_file is None and is_built_in(architecture)
    errors, fix = (RuntimeError, MemoryError, OverflowError), "check its options"
    # nothing is allocated or drawn until the shapes are known to agree
    apart: Any = torch.device("meta") if light else torch.random.fork_rng(devices=[])
    with refusing(errors, lambda e: f"'{architecture}' cannot be built ({str(e) or type(e).__name__})", fix), apart:
        model = build(None if arch_file else architecture, arch_file)
    expected = model.state_dict()
    tensors, renamed = weights.fit_names(tensors, expected)
    tensors = weights.matched(tensors, expected, source, architecture)
    changed = {(v.dtype, expected[k].dtype) for k, v in tensors.items() if expected[k].is_floating_point()}
    renamed += [f"weights stored as {_name(a)} were converted to {_name(b)}" for a, b in changed if a != b]
    if light:  # the file's tensors become the parameters: a large model is in memory once
        own = {
            k: _owned(tensors[k], v) if k in tensors else torch.zeros_like(v, device="cpu") for k, v in expected.items()
        }
        model.load_state_dict(own, assign=True)
    else:
        with torch.no_grad():
            for name, target in expected.items():
                if name in tensors:
                    target.copy_(tensors[name])
    return model, notes + renamed


def _as_published(model: nn.Module) -> list[str]:
    """A note on what timm's weights of this architecture take; these may be others."""
    config = getattr(model, "pretrained_cfg", None)
    if not isinstance(config, Mapping) or "mean" not in config:
        return []
    mean, std = (",".join(f"{v:g}" for v in config[key]) for key in ("mean", "std"))
    size = "x".join(map(str, config.get("input_size", ())[1:]))
    return [f"timm's own weights of this architecture take --mean {mean} --std {std} and pictures of {size}"]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _owned(found: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`found` in the dtype of `like`, with memory of its own."""
    found = found.detach().to(like.dtype).contiguous()
    return found if found.untyped_storage().nbytes() == found.nbytes else found.clone()


def _unknown(source: str, contents: Contents, key: str) -> InputError:
    tensors, _ = weights.find(contents.tensors, source, key)
    spec = likely(tensors)
    fix = "pass --arch NAME:key=value, --arch module:factory or --arch-file net.py:factory"
    return InputError(
        f"{source} ({contents.container}) does not say which architecture it is",
        f"its tensors fit --arch {spec}: pass that if it is right" if spec else fix,
    )
