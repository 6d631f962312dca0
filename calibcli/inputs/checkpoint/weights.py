"""Tensors of a file into a model: found in nested dicts, prefixes taken off, every mismatch named."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calibcli.errors import InputError, nearest

NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "module")
AVERAGED = ("ema", "model_ema", "ema_state_dict", "state_dict_ema", "ema_model")
RENAMED = (("fc.", "linear."), ("downsample.", "shortcut."))  # torchvision's names for parts of a ResNet
WRAPPERS = re.compile(r"(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")  # of layers, within names
COUNTERS = ("total_ops", "total_params", "num_batches_tracked")  # profilers' leavings; absent from old files
Tensors = dict[str, Tensor]


def find(tree: Any, source: str, key: str = "") -> tuple[Tensors, list[str]]:
    """The state dict inside what a file held, and notes about what was chosen.

    Args:
        key: which entry to take, where the user named one (`model.pt#ema`).

    Raises:
        InputError: no tensors by name.
    """
    notes: list[str] = []
    if key:
        if not isinstance(tree, Mapping) or key not in tree:
            names = ", ".join(map(str, tree)) if isinstance(tree, Mapping) else "nothing by name"
            raise InputError(f"{source} has no entry '{key}'", f"it holds: {names[:300]}")
        tree = tree[key]
    for _ in range(4):
        if not isinstance(tree, Mapping):
            break
        if any(isinstance(value, Tensor) for value in tree.values()) and not _nested(tree, NESTED):
            break
        inner = _nested(tree, NESTED) or _nested(tree, AVERAGED)
        if inner is None:
            break
        averaged = _nested(tree, AVERAGED)
        if averaged and averaged != inner:
            notes.append(f"'{inner}' was loaded; averaged weights are in '{averaged}' (pass {source}#{averaged})")
        tree = tree[inner]
    if isinstance(tree, nn.Module):
        tree = tree.state_dict()
    tensors = {str(k): v for k, v in tree.items() if isinstance(v, Tensor)} if isinstance(tree, Mapping) else {}
    if not tensors:
        held = ", ".join(map(str, list(tree)[:8])) if isinstance(tree, Mapping) else type(tree).__name__
        raise InputError(f"{source} holds no state dict (found: {held})", "save model.state_dict()")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            raise InputError(f"{source}: tensor '{name}' is sparse", "save it dense: tensor.to_dense()")
    return tensors, notes


def _nested(tree: Mapping[Any, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = tree.get(name)
        if isinstance(value, nn.Module) or (isinstance(value, Mapping) and value):
            return name
    return None


def fit_names(tensors: Tensors, expected: Mapping[str, Tensor]) -> tuple[Tensors, list[str]]:
    """Rename a file's tensors to the model's names: what wrappers left taken out, torchvision's names for ours."""
    notes: list[str] = []
    wanted = set(expected)
    if not wanted or wanted <= set(tensors):
        return tensors, notes
    best = tensors
    names = list(expected)
    some = names[0], names[len(names) // 2], names[-1]
    probes = {n for name in some for n in (name, *(name.replace(new, old) for old, new in RENAMED))}
    prefixes = {key.removesuffix(probe) for key in tensors for probe in probes if key.endswith(f".{probe}")}
    hits = len(wanted & set(tensors))
    for prefix in sorted(prefixes, key=len):
        inner = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        found = max(len(wanted & inner.keys()), len(wanted & _renamed(inner).keys()))
        if found > hits:
            hits, best = found, inner
            notes = [f"prefix '{prefix}' taken off the names"]
            if len(inner) < len(tensors):
                notes.append(f"{len(tensors) - len(inner)} tensors outside '{prefix}' were left out")
    bare = {WRAPPERS.sub("", key): value for key, value in best.items()}
    if len(bare) == len(best) and len(wanted & bare.keys()) > len(wanted & best.keys()):
        best = bare
        notes.append("what wrappers of layers leave in names (_orig_mod. and the like) was taken out")
    renamed = _renamed(best)
    if len(wanted & renamed.keys()) > len(wanted & best.keys()):
        best = renamed
        notes.append("fc and downsample were read as linear and shortcut")
    return best, notes


def _renamed(tensors: Tensors) -> Tensors:
    for old, new in RENAMED:
        tensors = {key.replace(old, new): value for key, value in tensors.items()}
    return tensors


def matched(tensors: Tensors, expected: Mapping[str, Tensor], source: str, architecture: str) -> Tensors:
    """The tensors in the model's order, after checking that names and shapes agree.

    Raises:
        InputError: missing or unexpected names (each with the nearest), or shapes that differ.
    """
    tensors = {k: v for k, v in tensors.items() if k in expected or not k.endswith(COUNTERS)}
    held = {_place(expected[k]): v for k, v in tensors.items() if k in expected}
    tied = {k: held[_place(v)] for k, v in expected.items() if k not in tensors and _place(v) in held}
    tensors |= tied  # safetensors holds weights that layers share under one name
    missing = [k for k in expected if k not in tensors and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in tensors if k not in expected]
    fix = "pass the --arch that this checkpoint was trained with"
    if missing or unexpected:
        odd = filter(None, (_listed("missing", missing, unexpected), _listed("unexpected", unexpected, missing)))
        raise InputError(f"{source} does not fit {architecture}: {'; '.join(odd)}", fix)
    wrong = [k for k in expected if k in tensors and tensors[k].shape != expected[k].shape]
    if wrong:
        first = wrong[0]
        got, want = tuple(tensors[first].shape), tuple(expected[first].shape)
        raise InputError(
            f"{source} does not fit {architecture}: {len(wrong)} of {len(expected)} tensors differ in shape, "
            f"first '{first}': {got} in the file, {want} in the model",
            fix,
        )
    return tensors


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """What two names of the same numbers have in common, on the device `meta` too."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


def fillable(model: nn.Module, architecture: str, light: bool) -> nn.Module:
    """The model, whose state is tensors that numbers can be copied into (or `light`: that are replaced).

    Raises:
        InputError: packed integers, or tensors without memory.
    """
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or value.is_quantized:
            problem = f"'{name}' of {architecture} is packed: its layers are quantised"
            raise InputError(problem, "pass the network and the weights before quantisation")
        if value.is_meta and not light:
            raise InputError(f"'{name}' of {architecture} is on the device meta", "make the network on the CPU")
    return model


def sizes(tensors: Tensors, expected: Mapping[str, Tensor]) -> dict[str, int]:
    """Classes and channels of a file's tensors where these differ from the model's: the heads are those that differ in
    their first dimension alone, the stem differs in its second."""
    heads, stems = set(), set()
    for name, want in expected.items():
        have = tensors[name].shape if name in tensors else want.shape
        if have == want.shape or len(have) != len(want.shape) or not len(have):
            continue
        if have[1:] == want.shape[1:]:
            heads.add((int(want.shape[0]), int(have[0])))
        elif len(have) == 4 and have[0] == want.shape[0] and have[2:] == want.shape[2:]:
            stems.add(int(have[1]))
    made = {"classes": heads.pop()[1]} if len(heads) == 1 else {}
    return {**made, "channels": stems.pop()} if len(stems) == 1 else made


def _listed(what: str, names: list[str], others: list[str], most: int = 4) -> str:
    if not names:
        return ""
    shown = []
    for name in names[:most]:
        near = nearest(name, others[:2000])
        shown.append(f"{name} (nearest: {near})" if near else name)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{what} {', '.join(shown)}{more}"


def finite(model: nn.Module, source: str) -> None:
    """Refuse NaN and infinite weights. Buffers may be infinite, as masks and best values so far are.

    Raises:
        InputError: a parameter or running statistic is not finite, or a buffer NaN.
    """
    tensors = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor) and not v.is_quantized}
    numbers = {k: v.detach() for k, v in tensors.items() if v.is_floating_point() and v.numel()}
    free = {k for k, _ in model.named_buffers() if not k.endswith(("running_mean", "running_var"))}
    # smallest and largest: NaN shows in both, and nothing of the tensor's size is made
    ends = {k: [float(end) for end in torch.aminmax(v)] for k, v in numbers.items()}
    bad = [
        k for k, both in ends.items() if not all(map(math.isfinite, both)) and (k not in free or math.isnan(both[0]))
    ]
    if bad:
        problem = f"{source}: {len(bad)} of {len(tensors)} tensors hold NaN or infinity, first '{bad[0]}'"
        raise InputError(problem, "use an earlier checkpoint: the training diverged or the file is damaged")
