"""Whether the weights of a network can be read and differentiated, however it came: from Python or from a file."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from calibcli.core.errors import InputError

Derivatives = Literal[0, 1, 2]
SHARDED = {"FullyShardedDataParallel", "FSDPModule", "DTensor"}  # by name: their modules take long to import
OTHERS = ("bitsandbytes.nn.modules.Linear4bit", "bitsandbytes.")  # that cannot be trained around; have no second one
UNQUANTISED = "pass the network as it was before quantisation"
GATHER = (
    "gather them into a network that is not sharded: from torch.distributed.checkpoint.state_dict import"
    " get_model_state_dict, StateDictOptions; plain.load_state_dict(get_model_state_dict(model,"
    " options=StateDictOptions(full_state_dict=True)))"
)


def refuse(
    model: nn.Module,
    derivatives: Derivatives = 0,
    device: torch.device | None = None,
    fully_sharded: bool = False,
) -> None:
    """Refuse a network whose weights are not at hand, or that has not so many derivatives.

    Args:
        derivatives: how many are wanted: none for logits, one to train, two for curvature.
        device: where it will be trained.
        fully_sharded: whether weights may be sharded by `fully_shard`.

    Raises:
        InputError: weights that are sharded, offloaded, or on the device meta; with derivatives quantised layers, and
            attention whose kernels have none, or not two.
    """
    tensors = [*model.parameters(), *model.buffers()]
    kinds = {kind.__name__ for part in (*model.modules(), *tensors) for kind in type(part).__mro__} & SHARDED
    # of weights that are gathered for a forward pass the modules tell alone
    if kinds and not (fully_sharded and "FSDPModule" in kinds <= {"FSDPModule", "DTensor"}):
        fix = f"call curvature(..., products='gradients'), or {GATHER}" if "FSDPModule" in kinds else GATHER
        raise InputError("the weights of the network are sharded over processes (FSDP, DTensor)", fix)
    # accelerate puts a hook on each module whose weights it brings when they are needed
    if any(tensor.is_meta for tensor in tensors):
        if any(hasattr(module, "_hf_hook") for module in model.modules()):
            fix = "load it whole, without offloading: from_pretrained(folder), without device_map"
            raise InputError("the weights of the network are offloaded to memory or disk", fix)
        fix = "make the network on the CPU, or model.to_empty(device='cpu') and then model.load_state_dict(weights)"
        raise InputError("the weights of the network are on the device meta, which holds no numbers", fix)
    if derivatives and (name := quantised(model, *OTHERS[:derivatives])) is not None:
        problem = f"the layers of the network are quantised, first '{name}': they have too few derivatives"
        raise InputError(problem, UNQUANTISED)
    none = derivatives == 1 and device is not None and device.type == "cpu"  # where such kernels have no backward pass
    if (derivatives == 2 or none) and (asked := _fused_attention(model)):
        fix = "load it with attn_implementation='sdpa', or call model.set_attn_implementation('sdpa')"
        problem = f"attention runs in {asked}, which has no second derivative, and on a CPU no first one"
        raise InputError(problem, fix)


def quantised(model: nn.Module, *others: str) -> str | None:
    """Return the name of the first layer whose weights are packed integers of torch, or of other libraries, or None."""
    layers = ((name, f"{type(m).__module__}.{type(m).__name__}") for name, m in model.named_modules())
    return next((name for name, kind in layers if any(part in kind for part in (".quantized.", *others))), None)


def fused(attention: str | None) -> bool:
    """Whether attention of this name in transformers runs in kernels of its own, without a second derivative."""
    return attention is not None and ("flash" in attention or attention == "flex_attention")


def _fused_attention(model: nn.Module) -> str:
    configurations = (getattr(module, "config", None) for module in model.modules())
    names = [str(getattr(config, "_attn_implementation", None)) for config in configurations]
    return next(filter(fused, names), "")


def conversions(model: nn.Module) -> list[str]:
    """Return a note for each half precision that the weights are in, from which they are converted to float32."""
    narrow = {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}
    names = (str(dtype).removeprefix("torch.") for dtype in sorted(narrow, key=str))
    return [f"weights stored as {name} were converted to float32" for name in names]
