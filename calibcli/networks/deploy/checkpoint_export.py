"""`--to checkpoint`: fold a calibrator into the last linear layer of a checkpoint, W' = A W and b' = A b + c."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from calibcli.calibrators import Scaler
from calibcli.calibrators.program import NumPy, Operations
from calibcli.core.errors import InputError, UsageError, refusing
from calibcli.core.files import atomic, no_room, written
from calibcli.networks import checkpoint, inference
from calibcli.networks.checkpoint import adapters, containers, factory, weights
from calibcli.networks.dataset import Dataset
from calibcli.networks.deploy._torch_program import logits_of, opened
from calibcli.scores.likelihood import log_softmax
from calibcli.ship.target import DRAWS, LIMITS, Compared, ExportRequest, Shipped, about, compare, softmax

# Fold: find the matrix of the map and the layer that gives the logits, and multiply.

Array = NDArray[Any]
PROBES, SPREAD = 200, 3.0  # rows that test whether a map is linear, and their spread: both sure and unsure predictions
INSTEAD = "use --to onnx, --to pt2 or --to torchscript"
FEW = 1000  # weights of a head, up to which DRAWS draws may miss the worst rounding; then FEW // DRAWS are made
HALF = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class HeadScores(NumPy):
    """NumPy's operations without normalisation, which softmax(A z + c) does anyway.

    `of_two` of `NumPy` normalises in one step, whatever `normalised` is; that of `Operations` calls `normalised`, and
    so gives the scores (-m / 2, m / 2) of a log-odds m.
    """

    def log_softmax(self, z: Any) -> Any:
        return z

    normalised, of_two = log_softmax, Operations.of_two


def linear(scaler: Scaler) -> tuple[Array, Array]:
    """Return A (K, K) and c (K,) of softmax(A z + c), float64, from the map at 0 and at each unit vector.

    Random rows test that the map is linear. `vector`, `matrix` and `bcts` first centre a row, which is linear too:
    A = V (I - 11'/K).

    Raises:
        UsageError: the map is not linear in the logits.
    """
    k, name = scaler.k, scaler.choice.name
    with np.errstate(all="ignore"):
        out = scaler.choice.traits.map(HeadScores(k), scaler.parameters, np.eye(k + 1, k, -1))
    a, c = (out[1:] - out[0]).T, out[0]
    rows = np.random.default_rng(0).standard_normal((PROBES, k)) * SPREAD
    limit = LIMITS["float64"]
    if not np.allclose(log_softmax(rows @ a.T + c), scaler.map(rows), rtol=limit, atol=limit):
        raise UsageError(f"'{name}' is not linear in the logits and cannot be folded into a layer", INSTEAD)
    return a, c


def last_linear(
    model: nn.Module, run: Callable[[], Tensor], source: str, instead: str = INSTEAD
) -> tuple[str, nn.Linear]:
    """Find the linear layer whose output is the model's logits; return its name and module.

    Args:
        model: any network.
        run: a forward pass of two rows, to logits (2, K).
        source: what messages call the network.
        instead: what a message says works without such a layer.

    Raises:
        InputError: there is none or several, or it is quantised, used twice, or shares its weights.
    """
    linear = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)}
    outputs: dict[int, list[Tensor]] = {}

    def note(module: nn.Module, _: Any, out: Tensor) -> None:
        outputs.setdefault(id(module), []).append(out.detach())

    hooks = [m.register_forward_hook(note) for m in {id(m): m for m in linear.values()}.values()]
    try:
        with torch.no_grad():
            out = run()
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, m in linear.items() if any(_same(o, out) for o in outputs.get(id(m), ()))]
    if not names:
        raise _no_head(model, linear, out.shape[1], source, instead)
    if len(names) > 1:
        raise InputError(f"{source}: the logits come from several heads: {', '.join(names[:6])}", instead)
    head = linear[names[0]]
    if len(outputs[id(head)]) > 1:
        raise InputError(f"{source}: the head '{names[0]}' is used {len(outputs[id(head)])} times in one pass", instead)
    shared = head.weight.untyped_storage().data_ptr()
    for name, other in model.named_parameters(remove_duplicate=False):
        if name != f"{names[0]}.weight" and other.untyped_storage().data_ptr() == shared:
            problem = f"{source}: the head '{names[0]}' shares its weights with '{name}', which a fold would change too"
            raise InputError(problem, f"untie them, or {instead}")
    if "parametrizations" in dict(head.named_children()) or "weight" not in head._parameters:
        raise InputError(f"{source}: the weights of the head '{names[0]}' are worked out by code", instead)
    return names[0], head


def _head(model: nn.Module, rows: Dataset, source: str) -> tuple[str, nn.Linear]:
    """Find the last linear layer by running two rows."""
    return last_linear(model, lambda: inference.logits(model, rows.batch(slice(0, min(2, len(rows))))[0]), source)


def _same(output: Any, logits: Tensor) -> bool:
    if not isinstance(output, Tensor) or output.ndim != 2:
        return False
    return torch.equal(_columns(output), logits)


def _columns(z: Tensor) -> Tensor:
    """Return logits of K >= 2 classes; one column z becomes (0, z), as in `architectures.registry.logits`."""
    return torch.cat([torch.zeros_like(z), z], 1) if z.shape[1] == 1 else z


def _no_head(model: nn.Module, linear: dict[str, nn.Linear], k: int, source: str, instead: str) -> InputError:
    """Return the error that says why no linear layer gives the logits."""
    packed = [f"{n} ({type(m).__name__})" for n, m in model.named_modules() if "quant" in type(m).__module__]
    packed += [f"{n} ({type(m).__name__})" for n, m in model.named_modules() if "bnb" in type(m).__module__.split(".")]
    if packed:
        return InputError(f"{source} has quantised layers ({', '.join(packed[:3])}); a head cannot be folded", instead)
    near = [f"{name} ({m.in_features} to {m.out_features})" for name, m in linear.items() if m.out_features == k]
    if near:
        last = near[-1].partition(" ")[0]
        problem = f"{source}: the logits are not what a linear layer gives; candidates: {', '.join(near[:6])}"
        return InputError(problem, f"something comes after '{last}' (a norm, a scale, several heads): {instead}")
    shown = ", ".join(f"{n} ({m.in_features} to {m.out_features})" for n, m in list(linear.items())[-6:]) or "none"
    problem = f"{source}: no linear layer gives {k} logits; linear layers: {shown}"
    return InputError(problem, instead)


def folded(head: nn.Linear, a: Array, c: Array) -> tuple[Tensor, Tensor | None]:
    """Return the new weight and bias in float64; no bias if there was none and none is needed.

    For a head of one logit, that of class 1, softmax(A (0, z) + c) is the sigmoid of (A11 - A01) z + c1 - c0.
    """
    if head.out_features == 1:
        a, c = a[1:, 1:] - a[:1, 1:], c[1:] - c[:1]
    weight = torch.from_numpy(a) @ head.weight.detach().double()
    bias = torch.from_numpy(c.copy())
    if head.bias is not None:
        bias = bias + torch.from_numpy(a) @ head.bias.detach().double()
    elif not c.any():
        return weight, None
    return weight, bias


def rounding(features: Tensor, head: nn.Linear, stored: torch.dtype, scaler: Scaler, raw: Array) -> float:
    """Estimate the rounding error of the head before folding, as the largest change of a probability.

    Weights and bias are multiplied by a random factor and cast to their stored type; the logits, computed in float32,
    are divided by it. The factor shifts every weight within the grid of stored numbers, so that each draw rounds all of
    them anew, as the unknown factors of a fold do.
    """
    generator, expected, worst = np.random.default_rng(0), np.exp(scaler.map(raw)), 0.0

    def cast(tensor: Tensor | None, factor: float) -> Tensor | float:
        return 0.0 if tensor is None else (tensor.detach().double() * factor).to(stored).to(features.dtype)

    for factor in generator.uniform(0.5, 1, DRAWS if head.weight.numel() > FEW else FEW // DRAWS).tolist():
        weight = cast(head.weight, factor)
        assert isinstance(weight, Tensor)
        z = _columns(features @ weight.T + cast(head.bias, factor)).double().numpy() / factor
        worst = max(worst, float(np.abs(np.exp(scaler.map(z)) - expected).max()))
    return worst


# Write the checkpoint with its head replaced and everything else unchanged, read it back, and compare.

CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Change:
    """The tensors of a file to replace, by name, and the metadata about the fold."""

    tensors: dict[str, Tensor]
    stamp: dict[str, Any]


def write(job: ExportRequest) -> Shipped:
    """Fold the calibrator, write the checkpoint, read it back, and compare.

    Raises:
        UsageError: the map is not linear, or the model does not exist.
        InputError: the model has no head to fold into, or the file that was written differs.
    """
    a, c = linear(job.scaler)
    assert job.model is not None
    if not job.model.exists():
        raise UsageError(f"'{job.model}' is no file or folder", "pass the checkpoint itself, with one state dict in it")
    if adapters.folder_of(job.model):
        raise InputError(f"{job.model} is an adapter, and the head is folded where a whole model is", adapters.MERGE)
    _only_tensors(job.model)
    loaded, rows, scaler = opened(job)
    name, head = _head(loaded.model, rows, str(job.model))
    raw, features = _run(loaded.model, head, rows)
    expected = scaler.map(raw)  # log-probabilities (n, K), which `compare` turns to probabilities
    stored = _stored(job.model, head.weight, name)
    weight, bias = folded(head, a, c)
    if bias is not None and head.bias is None:
        problem = f"{job.model}: the head '{name}' has no bias, and {scaler.choice.name} needs one"
        raise InputError(problem, "use --method temperature, or --to onnx")
    tensors = {stored.weight: weight.to(stored.dtype)}
    if bias is not None:
        tensors[stored.bias] = bias.to(stored.dtype)
    for key, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            problem = f"'{key}' does not fit {stored.dtype} after the fold"
            raise InputError(problem, "save the checkpoint in float32 first")
    keeps = raw if scaler.preserves_accuracy else None
    change = Change(tensors, about(job))

    def compared(path: Path) -> Compared:
        after = softmax(logits_of(checkpoint.load(path, **job.network).model, rows))  # probabilities (n, K)
        cost = functools.partial(rounding, features, head, stored.dtype, scaler, raw)
        dtype = HALF.get(stored.dtype, "float32")
        difference = compare(expected, after, dtype, job.tolerance, raw=keeps, rounding=cost)
        difference.require(job.path.name, "use --to onnx or --to pt2, or pass --tolerance")
        return difference

    difference, more = _folder(job, change, compared) if job.model.is_dir() else _file(job, change, compared)
    facts = {"head": name, "stored as": str(stored.dtype).removeprefix("torch."), "takes": "inputs"}
    inputs = [e for e in loaded.inputs(rows) if e["path"] != str(job.model) or job.model.is_dir()]
    notes = [*loaded.notes, *rows.notes, *more]
    return Shipped(files=[job.path], compared=difference, facts=facts, notes=notes, inputs=inputs)


def stored_rounding(
    before: checkpoint.Checkpoint, path: Path, rows: Dataset, scaler: Scaler, **network: Any
) -> float | None:
    """Estimate the `rounding` of a head in the type that `path` stores it in; None if it has no suitable head."""
    with contextlib.suppress(InputError, AttributeError):
        name, head = _head(before.model, rows, before.source)
        raw, features = _run(before.model, head, rows)
        after = checkpoint.load(path, **network).model.get_submodule(name)
        stored = _stored(path, after.get_parameter("weight"), name).dtype
        return rounding(features, head, stored, scaler, raw)
    return None


def _run(model: Any, head: torch.nn.Linear, rows: Dataset) -> tuple[Any, Tensor]:
    """Return the logits of the rows, and the inputs of the head for them."""
    features = list[Tensor]()
    hook = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    raw = logits_of(model, rows)
    hook.remove()
    return raw, torch.cat(features)


@dataclasses.dataclass(frozen=True)
class StoredHead:
    """The names of a head's tensors in the file, and their stored type."""

    weight: str
    bias: str
    dtype: torch.dtype


def _stored(path: Path, weight: Tensor, name: str) -> StoredHead:
    """Find the one tensor of the file with the values of the head.

    Raises:
        InputError: no tensor has them, or several do.
    """
    contents = _only_tensors(path)
    tables = weights.tables(contents.tensors, str(path))
    tensors = {weights.joined(table, key): t for table, inside in tables.items() for key, t in inside.items()}
    alike = {key: t for key, t in tensors.items() if t.shape == weight.shape}
    floats = {key: t.to(weight.dtype) for key, t in alike.items() if t.is_floating_point()}
    same = [key for key, t in floats.items() if torch.equal(t, weight.detach())]
    if len(same) > 1:
        problem = f"{path}: the weights of the head '{name}' are there {len(same)} times ({', '.join(same[:4])})"
        raise InputError(problem, "tied or copied weights cannot be folded: untie them, or use --to onnx or --to pt2")
    if not same:
        near = [f"{key} {tuple(t.shape)}" for key, t in alike.items()]
        problem = f"{path}: no tensor has the weights of the head '{name}'; candidates: {', '.join(near[:6]) or 'none'}"
        raise InputError(problem, "quantised or derived weights cannot be folded: use --to onnx or --to pt2")
    stem = same[0].removesuffix("weight")
    return StoredHead(same[0], f"{stem}bias", tensors[same[0]].dtype)


def _only_tensors(path: Path) -> containers.CheckpointContents:
    """Read a checkpoint that can be written again, which one with other objects cannot be without running them."""
    contents = containers.read(path, trust=False)
    if contents.refusal is not None or contents.modules:
        note = contents.notes[-1].partition(": ")[2] if contents.notes else ""
        problem = f"{path} holds more than tensors" + (f" ({note})" if note else "")
        raise InputError(problem, "save its state dict, or use --to pt2")
    return contents


def _file(job: ExportRequest, change: Change, compared: Any) -> tuple[Compared, list[str]]:
    """Write a single file.

    Raises:
        UsageError: the model is an index of shards, or the suffixes differ.
    """
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
        difference: Compared = compared(temporary)
    return difference, notes


def _safetensors(source: Path, to: Path, change: Change) -> None:
    with safe_open(source, framework="pt") as file:
        info = dict(file.metadata() or {})
        tensors = {key: change.tensors.get(key, file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
    info[factory.KEY] = json.dumps(_metadata(json.loads(info.get(factory.KEY, "{}")), source, to, change))
    save_file({k: v.contiguous() for k, v in tensors.items()}, to, info)


def _pickle(source: Path, to: Path, change: Change) -> list[str]:
    tree = torch.load(source, map_location="cpu", weights_only=True)
    plain = any(isinstance(value, Tensor) for value in tree.values())
    metadata = {factory.KEY: _metadata(tree.get(factory.KEY) or {}, source, to, change)}
    with to.open("wb") as file:  # a plain state dict stays one: another key would not load
        torch.save({**_changed(tree, change.tensors), **({} if plain else metadata)}, file)
    return ["a plain state dict cannot record what was folded into it; .safetensors can"] if plain else []


def _changed(tree: Mapping[Any, Any], tensors: Mapping[str, Tensor], prefix: str = "") -> dict[Any, Any]:
    """Return the tree with these tensors, by full name, replaced."""
    changed = dict[Any, Any]()
    for key, value in tree.items():
        name = weights.joined(prefix, str(key))
        if isinstance(value, Tensor):
            changed[key] = tensors.get(name, value)
        elif isinstance(value, Mapping) and any(full.startswith(f"{name}.") for full in tensors):
            changed[key] = _changed(value, tensors, name)
        else:
            changed[key] = value
    return changed


def _metadata(before: Mapping[str, Any], source: Path, to: Path, change: Change) -> dict[str, Any]:
    """Return the metadata with the fold added and the data paths relative to the new file."""
    data = {
        role: os.path.relpath(source.parent.resolve() / path, to.parent.resolve())
        for role, path in before.get("data", {}).items()
    }
    return {"schema": factory.SCHEMA, **before, **({"data": data} if data else {}), "folded": change.stamp}


def _folder(job: ExportRequest, change: Change, compared: Any) -> tuple[Compared, list[str]]:
    """Copy a Hugging Face folder, sharded or not, and rewrite only the shard with the head.

    Raises:
        UsageError: the path exists, or its parent does not.
    """
    assert job.model is not None
    if job.path.exists():
        raise UsageError(f"'{job.path}' is there already", "name a folder that is not")
    if not job.path.resolve().parent.is_dir():
        problem = f"no folder '{job.path.parent}' to write '{job.path.name}' into"
        raise UsageError(problem, f"mkdir -p {job.path.parent}")
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{job.path.name}.", dir=job.path.parent))
        target = Path(name) / "made"
        target.mkdir()
        written(target, job.path)
        # safetensors and torch raise a RuntimeError where the disk is full, which `no_room` tells by writing a file `x`
        full = (OSError, RuntimeError) if job.path.parent.is_dir() else OSError
        with refusing(full, lambda e: f"cannot write {job.path} ({no_room(e, target / 'x') or e})", "free some space"):
            for file in sorted(p for p in job.model.iterdir() if p.is_file()):
                _member(file, target, change)
        difference: Compared = compared(target)
        target.chmod(0o755)
        target.rename(job.path)
    return difference, []


def _member(file: Path, folder: Path, change: Change) -> None:
    to = folder / file.name
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as tensors:
            ours = set(tensors.keys()) & change.tensors.keys()
        if ours:
            _safetensors(file, to, change)
            return
    if file.name == CONFIG:
        config = json.loads(file.read_text(encoding="utf-8"))
        to.write_text(json.dumps({**config, "calib": {"folded": change.stamp}}, indent=2) + "\n", encoding="utf-8")
        return
    shutil.copyfile(file, to)
