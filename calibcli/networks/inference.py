"""Run a model over a data set: check that they fit, compute logits batch by batch, and write them to a file."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibcli.calibrators.fitting import array_file, put
from calibcli.core.errors import CalibError, InputError
from calibcli.core.files import atomic, known_suffix
from calibcli.networks import device as devices
from calibcli.networks.architectures.shelf import logits as logits
from calibcli.networks.dataset import Dataset, tight
from calibcli.networks.user_code import FAILURES
from calibcli.scores.files.roles import FOLDED
from calibcli.scores.predictions import Progress, same_rows

SUFFIXES = (".npz", ".safetensors", ".npy")
NAMES = {"<f4": "F32", "<i8": "I64", "<i4": "I32"}


def check(data: Dataset, model: nn.Module) -> int:
    """Run two rows through the model, twice, and leave the model and the random state as they were.

    Returns:
        K, the number of classes.

    Raises:
        InputError: the model does not take the inputs, its output is not logits, or a label is not a class.
    """
    modes = [(module, module.training) for module in model.modules()]
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    where, dtype = (tensors[0].device, tensors[0].dtype) if tensors else (torch.device("cpu"), torch.float32)
    inputs, _ = data.batch(np.arange(min(2, len(data))), device=where, dtype=dtype)
    try:
        model.eval()
        with torch.no_grad(), devices.unchanged_rng(where), devices.full_float32():
            out, again = logits(model, inputs), logits(model, inputs)
    except CalibError:
        raise
    except FAILURES as error:
        if devices.is_out_of_memory(error):
            raise InputError("out of memory with two rows", "pass --device cpu, or free memory") from None
        if "'indices'" in str(error):  # of torch.embedding
            problem = "the model expects whole numbers (tokens), and its inputs are real numbers"
            raise InputError(problem, "call their array tokens or input_ids (in Python: a dict by name)") from None
        raise InputError(_misfit(data, model, error), "pass --layout, or a data set made for this model") from None
    finally:
        for module, mode in modes:
            module.training = mode
    ones = torch.ones(len(out), dtype=torch.float64, device=where)
    if bool((out >= 0).all()) and torch.allclose(out.sum(1).double(), ones, atol=1e-4):
        problem = "the model's outputs are probabilities, not logits"
        raise InputError(problem, "leave the softmax out of its forward pass")
    if not torch.allclose(out, again, rtol=1e-2, atol=1e-3 * float(out.abs().nan_to_num().max()), equal_nan=True):
        data.notes.append("the model's outputs change from call to call, as with dropout left on: each is one draw")
    classes = out.shape[1]
    top = int(data.labels.max())
    if top >= classes:
        row = int(data.labels.argmax())
        problem = f"{data.source}: label {top} in row {row}, but the model has {classes} outputs (0 to {classes - 1})"
        raise InputError(problem, "pass the data set the model was made for, or a model with more classes")
    return classes


def _misfit(data: Dataset, model: nn.Module, error: BaseException) -> str:
    message = str(error).strip().partition("\n")[0][:200]
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Conv2d) and len(data.shape) == 3 and data.shape[0] != first.in_channels:
        return f"{data.source} has {data.shape[0]} channels, the model takes {first.in_channels}"
    if isinstance(first, nn.Conv2d) and len(data.shape) == 2:
        return f"{data.source} has rows of shape {data.shape}, the model takes images (channels, height, width)"
    return f"the model does not take rows of shape {data.shape} from {data.source}: {message}"


def predict(
    model: nn.Module,
    data: Dataset,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """Yield the logits of all rows in order, batch by batch, as float32 or float64 tensors (n_b, K) on the CPU.

    The model runs in eval mode, without gradients, in full float32 (no TF32). The caller's model and the random state
    are not changed: if mode, device or dtype differ, a copy runs. If memory runs out, the batch is halved.

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
                inputs = tight(data.batch(rows, device=device, dtype=dtype)[0])
                out = logits(model, inputs).to(torch.float64 if dtype == torch.float64 else torch.float32).cpu()
        except (MemoryError, RuntimeError) as error:
            if not devices.is_out_of_memory(error):
                raise devices.of_dtype(error, dtype) or error from None
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
    ready = copy.deepcopy(model).to(device).eval()  # not to(dtype), which would make complex numbers real
    return ready._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)  # type: ignore[no-untyped-call,no-any-return]


@dataclass(frozen=True)
class WrittenLogits:
    """The outcome of `write_logits`: numbers of rows, classes and correct predictions, the files, and notes."""

    rows: int
    classes: int
    correct: int
    paths: list[Path]
    notes: list[str]


def write_logits(
    model: nn.Module, data: Dataset, path: str | Path, *, folded: str = "", **options: Any
) -> WrittenLogits:
    """Stream a data set through a model into a file of `logits` (N, K) float32 and `labels` (N,) int64.

    `.npz` (uncompressed) and `.safetensors` hold both, and `ids` and `classes` if there are any; `.npy` holds the
    logits, and `NAME.labels.npy` beside it the labels. The file is written whole or not at all.

    Args:
        folded: the sentence about a calibrator that is folded into the last layer; stored in the file.
        options: batch size, device, dtype and progress of `predict`.

    Raises:
        UsageError: another suffix.
        InputError: as in `predict` and `check`.
    """
    path = known_suffix(Path(path), SUFFIXES, "logits")
    classes = check(data, model)
    extra = {"ids": data.ids, "classes": None if data.classes is None else np.array(data.classes)}
    extra[FOLDED] = np.array([folded]) if folded else None
    arrays = {k: v for k, v in extra.items() if v is not None}
    correct = done = 0
    first, same = np.empty(0, np.float32), True
    with writing(path, (len(data), classes), {"labels": data.labels, **arrays}) as write:
        for out in predict(model, data, **options):
            block = out.float().numpy()
            write(block)
            correct += int((block.argmax(1) == data.labels[done : done + len(block)]).sum())
            done += len(block)
            first = block[0] if done == len(block) else first
            same = same and bool((block == first).all())
    notes = [same_rows(done, "logits")] if same and done > 1 else []
    return WrittenLogits(len(data), classes, correct, files_of(path), notes)


def files_of(path: Path) -> list[Path]:
    """List the files that logits are written to; with .npy, the labels are in a second file."""
    return [path, path.with_suffix(".labels.npy")] if path.suffix == ".npy" else [path]


@contextlib.contextmanager
def writing(
    path: Path, shape: tuple[int, int], arrays: Mapping[str, NDArray[Any]]
) -> Iterator[Callable[[NDArray[np.float32]], None]]:
    """Open a file of logits; yield a function that writes the next block of them.

    Args:
        shape: (N, K) of the logits.  arrays: `labels`, and other arrays by row.
    """
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(atomic(path))
        if path.suffix == ".npy":
            with atomic(files_of(path)[1]) as labels:
                np.save(labels, arrays["labels"])
        if path.suffix in (".npz", ".npy"):
            opened = array_file(temporary, path.suffix, "logits", shape, np.dtype(np.float32), arrays)
            file: IO[bytes] = stack.enter_context(opened)
        else:
            file = stack.enter_context(temporary.open("wb"))
            _safetensors_header(file, shape, arrays)
        yield lambda block: put(file, block, np.dtype(np.float32))


def _safetensors_header(file: IO[bytes], shape: tuple[int, int], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the header and the arrays of numbers, up to where the logits follow; texts go into the metadata."""
    header: dict[str, Any] = {}
    texts = {k: json.dumps(v.tolist()) for k, v in arrays.items() if v.dtype.str not in NAMES}
    if texts:
        header["__metadata__"] = texts
    body = b""
    for name, array in arrays.items():
        if name not in texts:
            data = array.tobytes()
            offsets = [len(body), len(body) + len(data)]
            header[name] = {"dtype": NAMES[array.dtype.str], "shape": list(array.shape), "data_offsets": offsets}
            body += data
    end = len(body) + 4 * shape[0] * shape[1]
    header["logits"] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text + body)
