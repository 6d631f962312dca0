"""Does this data set fit this model? Asked on two rows, before any work starts."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from calibcli import device as devices
from calibcli.errors import InputError
from calibcli.inputs.code import FAILURES
from calibcli.inputs.dataset.rows import Dataset


def check(data: Dataset, model: nn.Module) -> int:
    """Run one row through the model, leaving the model and the random state as they were.

    Returns:
        K, the number of classes the model tells apart.

    Raises:
        InputError: inputs the model does not take, output that is not logits, a label beyond the classes.
    """
    from calibcli.inputs.checkpoint.forward import logits

    modes = [(module, module.training) for module in model.modules()]
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    where, dtype = (tensors[0].device, tensors[0].dtype) if tensors else (torch.device("cpu"), torch.float32)
    inputs, _ = data.batch(np.arange(min(2, len(data))), device=where, dtype=dtype)
    try:
        model.eval()
        with torch.no_grad(), devices.unchanged_rng(where), devices.full_float32():
            out = logits(model, inputs)
    except FAILURES as error:
        if devices.is_out_of_memory(error):
            raise InputError("out of memory with two rows", "pass --device cpu, or free memory") from None
        raise InputError(_misfit(data, model, error), "pass --layout, or a data set made for this model") from None
    finally:
        for module, mode in modes:
            module.training = mode
    if bool((out >= 0).all()) and torch.allclose(
        out.sum(1).double(), torch.ones(len(out)).double().to(where), atol=1e-4
    ):
        raise InputError(
            "the model's outputs are probabilities, not logits", "leave the softmax out of its forward pass"
        )
    classes = out.shape[1]
    top = int(data.labels.max())
    if top >= classes:
        row = int(data.labels.argmax())
        raise InputError(
            f"{data.source}: label {top} in row {row}, but the model has {classes} outputs (0 to {classes - 1})",
            "pass the data set the model was made for, or a model with more classes",
        )
    return classes


def _misfit(data: Dataset, model: nn.Module, error: BaseException) -> str:
    said = str(error).strip().partition("\n")[0][:200]
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Conv2d) and len(data.shape) == 3 and data.shape[0] != first.in_channels:
        return f"{data.source} has {data.shape[0]} channels, the model takes {first.in_channels}"
    if isinstance(first, nn.Conv2d) and len(data.shape) == 2:
        return f"{data.source} has rows of shape {data.shape}, the model takes images (channels, height, width)"
    return f"the model does not take rows of shape {data.shape} from {data.source}: {said}"
