"""Models as functions: rows in, logits (n, K) out; and a data set streamed through one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibcli import device as devices
from calibcli.errors import InputError
from calibcli.inputs.checkpoint.sink import known_suffix, writing
from calibcli.inputs.dataset import Dataset, check

Inputs = Tensor | Mapping[str, Tensor]
Progress = Callable[[float, str], None]


def logits(model: nn.Module, inputs: Inputs) -> Tensor:
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
    rows = len(next(iter(inputs.values()))) if isinstance(inputs, Mapping) else len(inputs)
    if not isinstance(made, Tensor):
        if isinstance(made, Mapping) and "logits" in made:
            made = made["logits"]
        elif hasattr(made, "logits"):
            made = made.logits
        elif isinstance(made, tuple | list) and made:
            made = made[0]
    if not isinstance(made, Tensor):
        raise InputError(f"the model returned {type(made).__name__}, not logits", "return a tensor (rows, classes)")
    if made.ndim != 2 or len(made) != rows:
        shape = tuple(made.shape)
        raise InputError(f"the model's output has shape {shape} for {rows} rows", "return logits (rows, classes)")
    if made.shape[1] == 1:
        return torch.cat([torch.zeros_like(made), made], 1)
    return made


def predict(
    model: nn.Module,
    data: Dataset,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """Logits of all rows in order, batch by batch, as float32 or float64 tensors (n_b, K) on the CPU.

    Eval mode, no gradients, full float32 (no TF32). The caller's model and the random state are not changed: a copy
    runs where mode, device or dtype differ. When memory runs out the batch is halved.

    Raises:
        InputError: out of memory with a single row, or logits that are NaN.
    """
    device = torch.device(device)
    model = _ready(model, device, dtype)
    done = 0
    while done < len(data):
        rows = slice(done, min(done + batch_size, len(data)))
        try:
            with torch.no_grad(), devices.full_float32(), devices.unchanged_rng(device):
                inputs, _ = data.batch(rows, device=device, dtype=dtype)
                out = logits(model, inputs).to(torch.float64 if dtype == torch.float64 else torch.float32).cpu()
        except (MemoryError, RuntimeError) as error:
            if not devices.is_out_of_memory(error):
                raise
            if batch_size == 1:
                raise InputError("out of memory with one row at a time", "pass --device cpu, or free memory") from None
            batch_size = max(1, batch_size // 2)
            if device.type == "cuda":
                torch.cuda.empty_cache()
            continue
        except IndexError as error:  # an embedding: "index out of range in self"
            problem = f"rows {rows.start} to {rows.stop - 1} do not fit the model ({error})"
            raise InputError(problem, "check that no token is beyond the model's vocabulary") from None
        bad = torch.isnan(out).any(1).nonzero()
        if len(bad):
            row = done + int(bad[0])
            raise InputError(f"the model's output for row {row} is NaN", "check that row, or pass --dtype float32")
        yield out
        done = rows.stop
        if progress is not None:
            progress(done / len(data), f"{done} of {len(data)} rows")


def _ready(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    as_is = all(t.device == device and t.dtype == dtype for t in tensors)
    if as_is and not any(module.training for module in model.modules()):
        return model
    return copy.deepcopy(model).to(device=device, dtype=dtype).eval()


@dataclass(frozen=True)
class Written:
    """What `write_logits` wrote: rows, classes and right answers, and the files."""

    rows: int
    classes: int
    correct: int
    paths: list[Path]


def write_logits(
    model: nn.Module,
    data: Dataset,
    path: str | Path,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Written:
    """Stream a data set through a model into a file of `logits` (N, K) float32 and `labels` (N,) int64.

    `.npz` (uncompressed) and `.safetensors` hold both, and `ids` and `classes` where there are any; `.npy` holds the
    logits, with the labels beside it in `NAME.labels.npy`. Written whole or not at all.

    Raises:
        UsageError: another suffix.
        InputError: as in `predict` and `dataset.check`.
    """
    path = known_suffix(Path(path))
    classes = check(data, model)
    extra = {"ids": data.ids, "classes": None if data.classes is None else np.array(data.classes)}
    arrays = {k: v for k, v in extra.items() if v is not None}
    correct = done = 0
    with writing(path, (len(data), classes), {"labels": data.labels, **arrays}) as (write, paths):
        for out in predict(model, data, batch_size=batch_size, device=device, dtype=dtype, progress=progress):
            block = out.float().numpy()
            write(block)
            correct += int((block.argmax(1) == data.labels[done : done + len(block)]).sum())
            done += len(block)
    return Written(len(data), classes, correct, paths)
