"""Tensors of a file into a model: every mismatch named."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from calibcli.errors import InputError, nearest
from calibcli.inputs.checkpoint import prefixes
from calibcli.inputs.checkpoint.prefixes import COUNTERS, Tensors


def matched(tensors: Tensors, expected: Mapping[str, Tensor], source: str, architecture: str) -> Tensors:
    """The tensors in the model's order, after checking that names and shapes agree.

    Raises:
        InputError: a sparse tensor, missing or unexpected names (each with the nearest), or shapes that differ.
    """
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            raise InputError(f"{source}: tensor '{name}' is sparse", "save it dense: tensor.to_dense()")
    tensors = {k: v for k, v in tensors.items() if k in expected or not k.endswith(COUNTERS)}
    missing = prefixes.missing(tensors, expected)
    held = {prefixes.place(expected[k]): v for k, v in tensors.items() if k in expected}
    tied = {k: held[place] for k, v in expected.items() if k not in tensors and (place := prefixes.place(v)) in held}
    tensors |= tied  # safetensors holds weights that layers share under one name
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
