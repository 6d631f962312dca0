"""The logits of any classifier, whatever its forward pass takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibcli.errors import InputError

Inputs = Tensor | Mapping[str, Tensor]


def logits(model: Any, inputs: Inputs) -> Tensor:
    """The model's logits on a batch.

    Args:
        inputs: a tensor with rows first, or named tensors (tokens, masks) passed as keyword arguments.

    Returns:
        (n, K) with K >= 2; of an output object or dict, its `logits`. One column is the log-odds of class 1 and
        becomes (0, z), which has the same probabilities.

    Raises:
        InputError: the output is not (n, K).
    """
    made: Any = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    rows = first.shape[0]  # len() would write the number of rows into an exported program
    if not isinstance(made, Tensor):
        if isinstance(made, Mapping) and "logits" in made:
            made = made["logits"]
        elif hasattr(made, "logits"):
            made = made.logits
        elif isinstance(made, tuple | list) and made:
            made = made[0]
    if not isinstance(made, Tensor):
        raise InputError(f"the model returned {type(made).__name__}, not logits", "return a tensor (rows, classes)")
    if made.ndim != 2 or made.shape[0] != rows:
        shape = tuple(made.shape)
        sequence = "of a sequence, those of one position: logits[:, -1]"
        other = "of one logit a row: z[:, None]" if made.ndim == 1 else sequence
        fix = f"return logits (rows, classes); {other}"
        raise InputError(f"the model's output has shape {shape} for {rows} rows", fix)
    if made.shape[1] == 1:
        return torch.cat([torch.zeros_like(made), made], 1)
    return made
