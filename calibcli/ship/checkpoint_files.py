"""`--to checkpoint`: one layer of a checkpoint replaced, everything else as it was; read back and compared."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calibcli.errors import InputError, UsageError, refusing
from calibcli.files import atomic, no_room, written
from calibcli.inputs import checkpoint
from calibcli.inputs.checkpoint import containers, metadata, prefixes
from calibcli.inputs.dataset import Dataset
from calibcli.scalers import Scaler
from calibcli.ship import fold
from calibcli.ship.comparison import Compared, compare, softmax
from calibcli.ship.stamp import about
from calibcli.ship.target import Job, Shipped
from calibcli.ship.torch_files import logits_of, opened

NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64"}
CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Change:
    """Tensors of a file that are replaced, by their names there, and what is said about it."""

    tensors: dict[str, Tensor]
    stamp: dict[str, Any]


def ship(job: Job) -> Shipped:
    """Fold, write, read back, compare.

    Raises:
        UsageError: a map that is not linear, or no model.
        InputError: a model without a head that can be folded into, or what was written differs.
    """
    a, c = fold.linear(job.scaler)
    assert job.model is not None
    if not job.model.exists():
        raise UsageError(f"'{job.model}' is no file or folder", "pass the checkpoint itself, with one state dict in it")
    loaded, rows, scaler = opened(job)
    name, head = fold.head(loaded.model, rows, str(job.model))
    raw, features = _run(loaded.model, head, rows)
    expected = scaler.map(raw)
    stored = _stored(job.model, head.weight, name)
    weight, bias = fold.folded(head, a, c)
    if bias is not None and head.bias is None:
        problem = f"{job.model}: the head '{name}' has no bias, and {scaler.choice.name} needs one"
        raise InputError(problem, "use --method temperature, or --to onnx")
    tensors = {stored.weight: weight.to(stored.dtype)}
    if bias is not None:
        tensors[stored.bias] = bias.to(stored.dtype)
    for key, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise InputError(
                f"'{key}' does not fit {stored.dtype} after the fold", "save the checkpoint in float32 first"
            )
    keeps = raw if scaler.preserves_accuracy else None
    change = Change(tensors, about(job))

    def compared(path: Path) -> Compared:
        after = logits_of(checkpoint.load(path, **job.network).model, rows)
        dtype = NAMES.get(stored.dtype, "float32") if stored.dtype in fold.HALF else "float32"
        found = compare(
            expected,
            softmax(after),
            dtype,
            job.tolerance,
            keeps,
            lambda: fold.rounding(features, head, stored.dtype, scaler, raw),
        )
        found.require(job.path.name, "use --to onnx or --to pt2, or pass --tolerance")
        return found

    found, more = _folder(job, change, compared) if job.model.is_dir() else _file(job, change, compared)
    facts = {"head": name, "stored as": str(stored.dtype).removeprefix("torch."), "takes": "inputs"}
    return Shipped(
        files=[job.path],
        compared=found,
        facts=facts,
        notes=[*loaded.notes, *rows.notes, *more],
        inputs=[e for e in loaded.inputs(rows) if e["path"] != str(job.model) or job.model.is_dir()],
    )


def rounding(before: checkpoint.Checkpoint, path: Path, rows: Dataset, scaler: Scaler, **network: Any) -> float | None:
    """`fold.rounding` of a network's head in the type that `path` stores it in; None where nothing can be folded in."""
    with contextlib.suppress(InputError, AttributeError):
        name, head = fold.head(before.model, rows, before.source)
        raw, features = _run(before.model, head, rows)
        after = checkpoint.load(path, **network).model.get_submodule(name)
        stored = _stored(path, after.get_parameter("weight"), name).dtype
        return fold.rounding(features, head, stored, scaler, raw)
    return None


def _run(model: Any, head: torch.nn.Linear, rows: Dataset) -> tuple[Any, Tensor]:
    """Logits of the rows, and what the head was given for them."""
    features = list[Tensor]()
    hook = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    raw = logits_of(model, rows)
    hook.remove()
    return raw, torch.cat(features)


@dataclasses.dataclass(frozen=True)
class Stored:
    """Names of a head's tensors in the file, and their type there."""

    weight: str
    bias: str
    dtype: torch.dtype


def _stored(path: Path, weight: Tensor, name: str) -> Stored:
    """The one tensor of the file with the values of the head.

    Raises:
        InputError: none or several have them.
    """
    contents = containers.read(path, trust=False)
    if contents.refusal is not None or contents.modules:
        raise InputError(f"{path} holds more than tensors", "save its state dict, or use --to pt2")
    tables = prefixes.tables(contents.tensors, str(path))
    tensors = {prefixes.joined(table, name): value for table, held in tables.items() for name, value in held.items()}
    same = [
        key
        for key, t in tensors.items()
        if t.shape == weight.shape and t.is_floating_point() and torch.equal(t.to(weight.dtype), weight.detach())
    ]
    if len(same) > 1:
        problem = f"{path}: the weights of the head '{name}' are there {len(same)} times ({', '.join(same[:4])})"
        raise InputError(problem, "tied or copied weights cannot be folded: untie them, or use --to onnx or --to pt2")
    if not same:
        near = [f"{key} {tuple(t.shape)}" for key, t in tensors.items() if t.shape == weight.shape]
        problem = f"{path}: no tensor has the weights of the head '{name}'; candidates: {', '.join(near[:6]) or 'none'}"
        raise InputError(problem, "quantised or derived weights cannot be folded: use --to onnx or --to pt2")
    stem = same[0].removesuffix("weight")
    return Stored(same[0], f"{stem}bias", tensors[same[0]].dtype)


def _file(job: Job, change: Change, compared: Any) -> tuple[Compared, list[str]]:
    """One file, or an index whose shards lie beside it."""
    assert job.model is not None
    if job.model.name.endswith(".index.json"):
        raise UsageError(f"{job.model} is the index of a folder", f"pass the folder: --model {job.model.parent}")
    if job.path.suffix != job.model.suffix:
        raise UsageError(f"'{job.path.name}' is not of the type of {job.model.name}", f"name a {job.model.suffix} file")
    with atomic(job.path) as temporary:
        notes = []
        if job.model.suffix == ".safetensors":
            _safetensors(job.model, temporary, change)
        else:
            notes = _pickle(job.model, temporary, change)
        found: Compared = compared(temporary)
    return found, notes


def _safetensors(source: Path, to: Path, change: Change) -> None:
    with safe_open(source, framework="pt") as file:
        info = dict(file.metadata() or {})
        tensors = {key: change.tensors.get(key, file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
    info[metadata.KEY] = json.dumps(_said(json.loads(info.get(metadata.KEY, "{}")), source, to, change))
    save_file({k: v.contiguous() for k, v in tensors.items()}, to, info)


def _pickle(source: Path, to: Path, change: Change) -> list[str]:
    tree = torch.load(source, map_location="cpu", weights_only=True)
    plain = any(isinstance(value, Tensor) for value in tree.values())
    said = {metadata.KEY: _said(tree.get(metadata.KEY) or {}, source, to, change)}
    with to.open("wb") as file:  # a plain state dict stays one: another key would not load
        torch.save({**_changed(tree, change.tensors), **({} if plain else said)}, file)
    return ["a plain state dict has no place to say what is folded into it; .safetensors has"] if plain else []


def _changed(tree: Mapping[Any, Any], tensors: Mapping[str, Tensor], at: str = "") -> dict[Any, Any]:
    """The tree with other tensors under these full names."""
    made = dict[Any, Any]()
    for key, value in tree.items():
        name = prefixes.joined(at, str(key))
        if isinstance(value, Tensor):
            made[key] = tensors.get(name, value)
        elif isinstance(value, Mapping) and any(full.startswith(f"{name}.") for full in tensors):
            made[key] = _changed(value, tensors, name)
        else:
            made[key] = value
    return made


def _said(before: Mapping[str, Any], source: Path, to: Path, change: Change) -> dict[str, Any]:
    """What the checkpoint says of itself, with the fold; paths of data from where it is now."""
    data = {
        role: os.path.relpath(source.parent.resolve() / path, to.parent.resolve())
        for role, path in before.get("data", {}).items()
    }
    return {"schema": metadata.SCHEMA, **before, **({"data": data} if data else {}), "folded": change.stamp}


def _folder(job: Job, change: Change, compared: Any) -> tuple[Compared, list[str]]:
    """A Hugging Face folder, sharded or not, into a new one: only the shard with the head is written anew.

    Raises:
        UsageError: there is something at the path.
    """
    assert job.model is not None
    if job.path.exists():
        raise UsageError(f"'{job.path}' is there already", "name a folder that is not")
    if not job.path.resolve().parent.is_dir():
        raise UsageError(
            f"no folder '{job.path.parent}' to write '{job.path.name}' into", f"mkdir -p {job.path.parent}"
        )
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{job.path.name}.", dir=job.path.parent))
        made = Path(name) / "made"
        made.mkdir()
        written(made, job.path)
        full = (OSError, RuntimeError) if job.path.parent.is_dir() else OSError
        with refusing(full, lambda e: f"cannot write {job.path} ({no_room(e, made / 'x') or e})", "free some space"):
            for file in sorted(p for p in job.model.iterdir() if p.is_file()):
                _member(file, made, change)
        found: Compared = compared(made)
        made.chmod(0o755)
        made.rename(job.path)
    return found, []


def _member(file: Path, made: Path, change: Change) -> None:
    to = made / file.name
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as held:
            ours = set(held.keys()) & change.tensors.keys()
        if ours:
            _safetensors(file, to, change)
            return
    if file.name == CONFIG:
        config = json.loads(file.read_text(encoding="utf-8"))
        to.write_text(json.dumps({**config, "calib": {"folded": change.stamp}}, indent=2) + "\n", encoding="utf-8")
        return
    shutil.copyfile(file, to)
