"""Run a model over a data set: check that they fit, compute logits batch by batch, and write them to a file."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibcli.calibrators.fitting import array_file, put
from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.core.files import atomic, known_suffix
from calibcli.networks import device as devices
from calibcli.networks.architectures.registry import logits as logits
from calibcli.networks.architectures.registry import of_positions, outputs
from calibcli.networks.checkpoint import usable
from calibcli.networks.dataset import Dataset, tight, undecoded
from calibcli.networks.dataset.rows import used_columns
from calibcli.networks.user_code import FAILURES
from calibcli.scores.files.roles import FOLDED
from calibcli.scores.positions import shifted
from calibcli.scores.predictions import Progress, same_rows
from calibcli.scores.reading_options import ROW_OF_POSITION

SUFFIXES = (".npz", ".safetensors", ".npy")
NAMES = {"<f4": "F32", "<i8": "I64", "<i4": "I32"}


FIRST = 64  # rows that are looked at
AT_ONCE = 1 << 28  # bytes of logits of positions that are in memory together, but for those of a single row
SEEN = 4096  # rows, or positions, of which it is asked whether they are probabilities
FEWEST = 8  # numbers that lie in [0, 1] by chance too often
SAME = 1e-3  # relative difference up to which two rows of outputs are the same
QUANTISED = 0.05  # up to which a network without gradients may differ: dynamic quantisation has one scale for a batch
Run = Callable[[Sequence[int]], Tensor]  # rows -> their outputs (n, columns)
RANDOM = "the model's outputs change from call to call"
STILL = "switch off dropout and noise in eval mode, as F.dropout(x, training=self.training) does"
BESIDE = "the model's output for a row depends on the rows beside it"
ROWS = "take nothing from the other rows of a batch in eval mode, as a batch norm without running statistics does"


def check(
    data: Dataset,
    model: nn.Module,
    kind: str | None = None,
    drawn: bool = False,
    class_axis: str | None = None,
) -> int:
    """Look at what the model gives for the first rows, before anything is computed from it.

    The rows run together, and their ends run again, and alone. The model and the random state are left as they were.

    Args:
        kind: `logits` if the user says that the outputs are logits, though all lie in [0, 1].
        drawn: whether the data set may draw its rows at random, as with augmentation in training.
        class_axis: of outputs for every position, as in `registry.of_positions`.

    Returns:
        K, the number of classes.

    Raises:
        InputError: the data set draws its rows at random; the model does not take them; its outputs are random, depend
            on the other rows, or are not logits; or a label is not a class.
    """
    modes = [(module, module.training) for module in model.modules()]
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    where, dtype = (tensors[0].device, tensors[0].dtype) if tensors else (torch.device("cpu"), torch.float32)
    state = [(buffer, buffer.clone()) for buffer in model.buffers()]  # which a program in training mode moves

    first, _ = data.batch(np.arange(min(FIRST, len(data))), device=where, dtype=dtype)

    def outputs_of(network: nn.Module, precision: torch.dtype) -> Run:
        def take(part: Tensor, rows: Sequence[int]) -> Tensor:
            part = part[list(rows)]
            return part.to(precision) if part.is_floating_point() else part

        def run(rows: Sequence[int]) -> Tensor:
            named = first if isinstance(first, Mapping) else {"": first}
            parts = {name: take(t, rows) for name, t in named.items()}
            part = parts.get("", parts)
            return of_positions(network, part, data.inside, class_axis) if data.inside else outputs(network, part)

        return run

    try:
        model.eval()
        with torch.no_grad(), devices.unchanged_rng(where), devices.full_float32():
            if not drawn:
                _same_twice(data)
            run = outputs_of(model, dtype)
            together = min(FIRST, len(data))
            if data.inside:  # as many rows as fit
                together = min(together, max(2, AT_ONCE // (2 * run([0]).nbytes)))
            out = _together(run, together)
            off, why = unsteady(run, out)
            packed = usable.quantised(model) is not None  # whose layers have no form in float64
            if why == BESIDE and tensors and dtype != torch.float64 and off <= 100 * SAME and not packed:
                wide = copy.deepcopy(model).double()  # a difference that vanishes is rounding
                off = unsteady(outputs_of(wide, torch.float64), _together(outputs_of(wide, torch.float64), len(out)))[0]
                why = why if off > SAME / 10 else ""
            graded = any(p.requires_grad for p in model.parameters()) and not packed
            if why == BESIDE and off <= QUANTISED and not graded:
                data.notes.append(f"{BESIDE}, by {off:.1g} of its size, as with weights that are quantised as they run")
            elif why:
                raise InputError(why, STILL if why == RANDOM else usable.UNQUANTISED if packed else ROWS)
            if kind is None and (problem := unit_interval(out)) and not _linear(model, run, out):
                raise InputError(problem, NO_LOGITS)
    except CalibError:
        raise
    except FAILURES as error:
        if devices.is_out_of_memory(error):
            raise InputError("out of memory with two rows", "pass --device cpu, or free memory") from None
        if "'indices'" in str(error):  # of torch.embedding
            problem = "the model expects whole numbers (tokens), and its inputs are real numbers"
            raise InputError(problem, "call their array tokens or input_ids (in Python: a dict by name)") from None
        if isinstance(error, IndexError):
            raise _beyond(range(min(FIRST, len(data))), error) from None
        fix = "pass --layout, or a data set made for this model"
        if "unexpected keyword argument" in str(error):
            fix = "choose the arrays that its forward pass takes by --inputs (in Python: leave others out of the dict)"
        raise InputError(_misfit(data, model, error), fix) from None
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffer, before in state:
                buffer.copy_(before)
    classes = max(2, out.shape[-1])
    _labels(data, classes)
    return classes


NO_LOGITS = "leave the sigmoid or softmax out of its forward pass, or pass --kind logits if these are logits"


def unit_interval(out: Tensor | NDArray[Any]) -> str:
    """Say that outputs (n, columns) lie in [0, 1] as probabilities do, before one column becomes two; "" if not so.

    A table of zeros is what a head gives that starts at 0.
    """
    z = torch.as_tensor(out)
    z = z.reshape(-1, z.shape[-1])[:SEEN].double()  # of positions (n, ..., C) the first ones
    if z.numel() == 0 or not bool(((z >= 0) & (z <= 1 + 1e-6)).all()) or not bool(z.any()):
        return ""
    if z.shape[1] > 1 and torch.allclose(z.sum(1), torch.ones(len(z), dtype=z.dtype, device=z.device), atol=1e-4):
        return "the model's outputs are probabilities, not logits"
    if z.numel() < FEWEST:
        return ""
    return f"all outputs for the first {len(z)} rows lie in [0, 1], as those of a sigmoid do, and logits are read"


def unsteady(run: Run, out: Tensor) -> tuple[float, str]:
    """Compare the first and last row of `out` with what they are again, as a pair and alone.

    Args:
        run: gives outputs for rows.  out: (n, columns), of the rows 0 to n - 1 together.

    Returns:
        The largest difference, relative to the size of a row, and `RANDOM`, `BESIDE` or "" for what it says.
    """
    ends, out = [0, len(out) - 1][: len(out)], out.flatten(1)
    limit = max(SAME, 8 * torch.finfo(out.dtype).eps) if out.is_floating_point() else SAME
    usual = out.abs().nan_to_num().amax(1).double().mean()

    def off(rows: Tensor, other: Tensor) -> float:
        rows, other = rows.flatten(1), other.flatten(1)
        sizes = other.abs().double().amax(1, keepdim=True).clamp(min=float(usual) / 10 or 1e-300)
        return float(((rows.double() - other.double()).abs() / sizes).nan_to_num().max())

    pair = run(ends)
    if (moved := off(run(ends), pair)) > limit / 10:
        return moved, RANDOM
    deviation = off(pair, out[ends])
    with contextlib.suppress(*FAILURES, CalibError):  # a model that takes no row alone, such as one that squeezes
        deviation = max(deviation, off(torch.cat([run([i]) for i in ends]), out[ends]))
    return deviation, BESIDE if deviation > limit else ""


def _together(run: Run, n: int) -> Tensor:
    """Run the first n rows together, fewer if memory does not suffice."""
    while True:
        try:
            return run(range(n))
        except FAILURES as error:
            if n <= 2 or not devices.is_out_of_memory(error):
                raise
            n //= 2


def _same_twice(data: Dataset) -> None:
    """Refuse a data set that gives other inputs when a row is read again."""
    rows, anew = np.arange(min(16, len(data))), replace(data, inputs=undecoded(data.inputs))
    read = (one.batch(rows)[0] for one in (data, anew))
    first, again = (list(i.values()) if isinstance(i, Mapping) else [i] for i in read)
    if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, again)):
        problem = f"{data.source} draws its rows at random: they differ when they are read again"
        raise InputError(problem, "leave the random augmentation out of a data set that is measured")


def _linear(model: nn.Module, run: Run, out: Tensor) -> bool:
    """Whether a linear layer gives the outputs as they are: then they are no probabilities, wherever they lie."""
    seen = list[Tensor]()
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and not isinstance(m, torch.jit.ScriptModule)]
    hooks = [m.register_forward_hook(lambda _, inputs, given: seen.append(given)) for m in linear]
    try:
        given = run(range(min(2, len(out))))
    finally:
        for hook in hooks:
            hook.remove()
    return any(one.shape == given.shape and torch.equal(one, given) for one in seen)


def _labels(data: Dataset, classes: int) -> None:
    top, least = int(data.labels.max()), int(data.labels.min())
    if data.inside:  # negative labels are those of positions that are not counted
        if top >= classes:
            row = int(np.argwhere(data.labels == top)[0, 0])
            problem = f"{data.source}: label {top} in row {row}, but the model has {classes} outputs"
            mark = f"if it marks positions without a class: --ignore-label {top}"
            raise InputError(problem, f"{mark}; else pass the data set the model was made for")
        return
    if least < 0:
        problem = f"{data.source}: label {least} in row {int(data.labels.argmin())} is no class"
        raise InputError(problem, "leave the rows without a class out of the data set; classes are 0, 1, ...")
    if top >= classes:
        row = int(data.labels.argmax())
        problem = f"{data.source}: label {top} in row {row}, but the model has {classes} outputs (0 to {classes - 1})"
        raise InputError(problem, "pass the data set the model was made for, or a model with more classes")


def _beyond(rows: range | slice, error: IndexError) -> InputError:
    problem = f"rows {rows.start} to {rows.stop - 1} do not fit the model ({error})"
    return InputError(problem, "check that no token is beyond the model's vocabulary")


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
    counted: NDArray[np.bool_] | None = None,
    class_axis: str | None = None,
) -> Iterator[Tensor]:
    """Yield the logits of all rows in order, batch by batch, as float32 or float64 tensors (n_b, K) on the CPU.

    The model runs in eval mode, without gradients, in full float32 (no TF32). The caller's model and the random state
    are not changed: if mode, device or dtype differ, a copy runs. If memory runs out, the batch is halved.

    Args:
        counted: (N, T) or (N, H, W), the positions whose logits are yielded, one after the other; None: each row has
            its own.  class_axis: as in `registry.of_positions`.

    Raises:
        InputError: out of memory with a single row, or logits that are NaN.
    """
    device = torch.device(device)
    model = _ready(model, device, dtype)
    done = 0
    trims: bool | None = None  # whether logits are the same without the columns that are masked, once that is known
    while done < len(data):
        rows = slice(done, min(done + batch_size, len(data)))
        try:
            with torch.no_grad(), devices.full_float32(), devices.unchanged_rng(device):
                inputs = data.batch(rows, device=device, dtype=dtype)[0]
                if counted is None:
                    fewer = inputs if trims is False else tight(inputs)
                    out = logits(model, fewer)
                    masked = inputs.get("attention_mask") if isinstance(inputs, dict) and trims is None else None
                    if masked is not None and fewer is not inputs and not bool(masked.any(0).all()):
                        whole = logits(model, inputs)
                        trims = bool((out - whole).abs().max() <= SAME * whole.abs().max())
                        out = whole
                else:
                    out = _at_positions(model, inputs, counted[rows], class_axis)
                # detached, as some networks switch gradients on within
                out = out.detach().to(torch.float64 if dtype == torch.float64 else torch.float32).cpu()
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
            raise _beyond(rows, error) from None
        bad = torch.isnan(out).any(1).nonzero()
        if len(bad):
            row = done + int(bad[0] if counted is None else np.nonzero(counted[rows])[0][int(bad[0])])
            raise InputError(f"the model's output for row {row} is NaN", "check that row, or pass --dtype float32")
        yield out
        done = rows.stop
        if progress is not None:
            progress(done / len(data), f"{done} of {len(data)} rows")


def _at_positions(model: nn.Module, inputs: Any, counted: NDArray[np.bool_], class_axis: str | None) -> Tensor:
    """Return the logits (m, K) of the m positions of a batch that are `counted`, (n, T) or (n, H, W)."""
    columns = used_columns(inputs)
    if columns is not None and counted.ndim == 2 and counted.shape == inputs["attention_mask"].shape:
        outside = counted.copy()
        outside[:, columns] = False
        if not outside.any():
            inputs, counted = tight(inputs), counted[:, columns]
    if not counted.any():
        return torch.empty(0, 2)
    out = of_positions(model, inputs, counted.shape[1:], class_axis)  # (n, ..., C)
    picked = out[torch.from_numpy(counted).to(out.device)]  # (m, C)
    return torch.cat([torch.zeros_like(picked), picked], 1) if picked.shape[1] == 1 else picked


def _ready(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    as_is = all(t.device == device and t.dtype == dtype for t in tensors)
    if as_is and not any(module.training for module in model.modules()):
        return model
    ready = copy.deepcopy(model).to(device).eval()  # not to(dtype), which would make complex numbers real
    return ready._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)  # type: ignore[no-untyped-call,no-any-return]


@dataclass(frozen=True)
class WrittenLogits:
    """The outcome of `write_logits`: numbers of rows and classes, the files, and notes.

    `correct`: (M,) whether the largest logit is the label.  `row`: (M,) that of each position; None where rows have one
    label each.
    """

    rows: int
    classes: int
    correct: NDArray[np.bool_]
    paths: list[Path]
    notes: list[str]
    row: NDArray[np.int64] | None = None


def write_logits(
    model: nn.Module,
    data: Dataset,
    path: str | Path,
    *,
    folded: str = "",
    kind: str | None = None,
    shift: int = 0,
    class_axis: str | None = None,
    share: float = 1.0,
    seed: int = 0,
    batch_size: int = 256,
    **options: Any,
) -> WrittenLogits:
    """Stream a data set through a model into a file of `logits` (N, K) float32 and `labels` (N,) int64.

    `.npz` (uncompressed) and `.safetensors` hold both, and `ids` and `classes` if there are any; `.npy` holds the
    logits, and `NAME.labels.npy` beside it the labels. The file is written whole or not at all.

    Args:
        folded: the sentence about a calibrator that is folded into the last layer; stored in the file.
        kind, class_axis: as in `check`.
        shift: of labels of positions: each has the label so many further on.  share: of these positions that is
            written, drawn with `seed`. The file then has M rows, and `row_of_position` (M,).
        batch_size: rows of a forward pass; of positions fewer where their logits would be larger than AT_ONCE.
        options: device, dtype and progress of `predict`.

    Raises:
        UsageError: another suffix.
        InputError: as in `predict` and `check`.
    """
    path = known_suffix(Path(path), SUFFIXES, "logits")
    classes = check(data, model, kind, class_axis=class_axis)
    labels, row, counted = data.labels, None, None
    if data.inside:
        counted = _counted(data, shift, share, seed)
        labels, row = shifted(labels, shift)[counted], np.nonzero(counted)[0]
        batch_size = max(1, min(batch_size, AT_ONCE // (4 * classes * math.prod(data.inside))))
        options |= {"counted": counted, "class_axis": class_axis}
        if path.suffix == ".npy":
            raise UsageError("a .npy has no place for the rows of positions", "write .npz or .safetensors")
    elif shift or class_axis or share < 1:
        problem = "--shift, --class-axis and --position-share are for labels of positions, and each row has one label"
        raise UsageError(problem, "leave them out, or pass labels (N, T) or (N, H, W)")
    extra = {
        "ids": data.ids,
        "classes": None if data.classes is None else np.array(data.classes),
    }
    extra[FOLDED] = np.array([folded]) if folded else None
    if row is not None:
        extra |= {ROW_OF_POSITION: row, "ids": None}
    arrays = {k: v for k, v in extra.items() if v is not None}
    correct, done = np.empty(len(labels), bool), 0
    first, same = np.empty(0, np.float32), True
    with writing(path, (len(labels), classes), {"labels": labels, **arrays}) as write:
        for out in predict(model, data, batch_size=batch_size, **options):
            block = out.float().numpy()
            if not len(block):
                continue
            write(block)
            correct[done : done + len(block)] = block.argmax(1) == labels[done : done + len(block)]
            done += len(block)
            first = block[0] if done == len(block) else first
            same = same and bool((block == first).all())
    notes = [same_rows(done, "logits")] if same and done > 1 else []
    return WrittenLogits(len(data), classes, correct, files_of(path), notes, row)


def _counted(data: Dataset, shift: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Return the positions (N, ...) that have a label, each kept with the chance `share`.

    Raises:
        UsageError: a shift of pictures, or of all positions of a row.  InputError: none has a label.
    """
    if shift and (len(data.inside) > 1 or shift >= data.inside[0]):
        raise UsageError(f"--shift {shift} is for sequences of more positions than {data.inside}", "leave it out")
    counted = shifted(data.labels, shift) >= 0
    if share < 1:
        counted &= np.random.default_rng(seed).random(counted.shape, np.float32) < share
    if not counted.any():
        raise InputError(f"{data.source}: no position has a label", "pass labels of which some are no -100")
    return counted


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
