"""The problem that estimators read: a copy of the model that can be differentiated twice, the rows, and the plan for
memory.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from types import MethodType
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from calibcli.core.errors import InputError, UsageError, nearest
from calibcli.networks import device as devices
from calibcli.networks.architectures.shelf import logits
from calibcli.networks.device import free_bytes

# The data set as the engine sees it: rows by index, cut into groups that carry the sampling error and micro-batches.
#
# Everything random or grouped is a function of the row's index alone, so that results do not depend on the
# micro-batch
# size, the number of ranks or the device.

BLOCK = 256  # rows that a group, and on a CPU a micro-batch, stays within
MOST = {"cpu": BLOCK}  # rows of a micro-batch, by sort of device
MANY = 4096  # on the others, which wait for the next launch where there are few
Inputs = Any  # a Tensor, or a dict of Tensors by argument name


class IndexedData(Protocol):
    """An indexed data set."""

    @property
    def labels(self) -> Any:
        """(N,) integers: a Tensor or an array."""
        ...

    def __len__(self) -> int: ...

    def batch(self, rows: Any, *, device: torch.device, dtype: torch.dtype) -> tuple[Inputs, torch.Tensor]: ...


class Tensors:
    """`IndexedData` over tensors in memory.

    Args:
        inputs: (N, ...) tensor, or a dict of them by argument name. Floating inputs are cast to the model's dtype.
        labels: (N,) integers, a tensor or an array.

    Raises:
        InputError: the rows of inputs and labels differ, or there are none.
    """

    def __init__(self, inputs: Inputs, labels: Any) -> None:
        parts = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        if not len(labels) or any(len(part) != len(labels) for part in parts):
            found = " and ".join(str(len(part)) for part in parts)
            raise InputError(f"{found} rows of inputs, {len(labels)} labels", "pass one label per row, at least one")
        self.inputs = inputs
        self.labels = torch.as_tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Any, *, device: torch.device, dtype: torch.dtype) -> tuple[Inputs, torch.Tensor]:
        def take(part: torch.Tensor) -> torch.Tensor:
            part = part[torch.as_tensor(rows)]
            return part.to(device, dtype if part.is_floating_point() else part.dtype)

        inputs = {k: take(v) for k, v in self.inputs.items()} if isinstance(self.inputs, dict) else take(self.inputs)
        return inputs, self.labels[torch.as_tensor(rows)].to(device)


@dataclass(frozen=True)
class Layout:
    """How N rows are cut: groups inside blocks of 256 rows, micro-batches that hold whole ones or lie in one.

    Attributes:
        n: rows of the whole data set.
        micro: rows per micro-batch, a power of two.
        group: rows per group, the power of two that makes at least 16 groups (one row each below 32 rows).
        rank, world: this process's share is a contiguous run of groups.
    """

    n: int
    micro: int
    rank: int
    world: int

    @classmethod
    def of(cls, n: int, micro: int = BLOCK, device: str = "cpu") -> Layout:
        return cls(n, power_of_two(micro, MOST.get(device, MANY)), devices.rank(), devices.world())

    @property
    def group(self) -> int:
        return power_of_two(self.n // 16)

    @property
    def groups(self) -> int:
        return -(-self.n // self.group)

    @property
    def weights(self) -> torch.Tensor:
        """(groups,) share of each group in the mean over rows."""
        counts = torch.full((self.groups,), float(self.group), dtype=torch.float64)
        counts[-1] = self.n - self.group * (self.groups - 1)
        return counts / self.n

    @property
    def local(self) -> range:
        """Rows of this rank."""
        first, last = (self.group * (self.groups * r // self.world) for r in (self.rank, self.rank + 1))
        return range(min(first, self.n), min(last, self.n))

    def batches(self, rows: int = 0) -> Iterator[range]:
        """Runs of at most `rows` (default: micro) of this rank's rows; none straddles a block or splits unevenly."""
        size = rows or self.micro
        block = max(size, BLOCK)
        start, end = self.local.start, self.local.stop
        while start < end:
            stop = min(start + size, end, (start // block + 1) * block)
            yield range(start, stop)
            start = stop


def power_of_two(rows: int, most: int = BLOCK) -> int:
    """The largest power of two up to `rows`, between 1 and `most`."""
    return 1 << (max(1, min(rows, most)).bit_length() - 1)


def signs(size: int, seed: int, row: int, numbers: range) -> torch.Tensor:
    """(m, size) int8 Rademacher probes, functions of (seed, first row that they are for, number) (Philox counter)."""
    keys = (np.array([seed, (row << 32) | i], np.uint64) for i in numbers)
    bits = np.stack([np.random.Philox(key=key).random_raw(-(-size // 64)) for key in keys])
    ones = np.unpackbits(bits.astype("<u8").view(np.uint8), axis=1, count=size).view(np.int8)
    return torch.from_numpy(ones).mul_(2).sub_(1)


def normal(size: int, seed: int, number: int) -> torch.Tensor:
    """(size,) standard normal vector in float64, a function of (seed, number) alone."""
    stream = np.random.Generator(np.random.Philox(key=np.array([seed, (1 << 63) | number], np.uint64)))
    return torch.from_numpy(stream.standard_normal(size))


# A copy of the user's model that can be differentiated twice; what cannot is refused by name.


def readied(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode on the device, its floats in `dtype`; complex buffers stay complex.

    Raises:
        InputError: a model that cannot be copied, complex parameters, or batch norm over the rows of a batch.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile's products have no second derivative
    try:
        made = copied(model).to(device)
        made._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
        raise InputError(
            f"the model cannot be copied ({str(error).splitlines()[0]})",
            "pass a module that copy.deepcopy accepts, without tensors that hold a graph",
        ) from None
    for name, parameter in made.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise InputError(f"parameter '{name}' of a lazy module has no shape yet", "run the model on a batch first")
        if parameter.is_complex():
            raise InputError(
                f"parameter '{name}' is complex; curvature is that of real parameters",
                "hold torch.view_as_real of it, and take torch.view_as_complex in the forward pass",
            )
    for name, module in made.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False  # sparse gradients have no second derivative
        if isinstance(module, _BatchNorm) and (module.running_mean is None or module.running_var is None):
            raise InputError(
                f"'{name}' is a batch norm without running statistics: a row's output depends on the rows beside it",
                "train it with track_running_stats=True, or use a norm of each row, such as GroupNorm",
            )
    nn.Module.train(made, False)  # unbound: exported modules override eval() to refuse
    affine_norm(made)
    return made


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, its parameters leaves: those of a TorchScript module remember what they were copied from, and that
    gradients have its dtype."""
    made = copy.deepcopy(model, memo)
    for parameter in made.parameters():
        if not parameter.is_leaf:
            parameter.detach_().requires_grad_()
    return made


def affine_norm(model: nn.Module) -> None:
    """Let the batch norms of a model in eval mode write out the affine map that they are, in place.

    The function and its derivatives in weight and bias are the same; torch's own second derivative of batch norm
    takes a dozen passes over the activations, a fifth of a Hessian product of a residual network.
    """
    known = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    for module in model.modules():
        if not isinstance(module, _BatchNorm) or type(module).forward not in known:
            continue
        if module.running_mean is not None and module.running_var is not None:
            scale = torch.rsqrt(module.running_var + module.eps)
            module.register_buffer("calib_scale", scale, persistent=False)
            module.register_buffer("calib_shift", -module.running_mean * scale, persistent=False)
            module.forward = MethodType(_affine, module)  # type: ignore[method-assign]


def _affine(self: _BatchNorm, x: Tensor) -> Tensor:
    self._check_input_dim(x)  # type: ignore[no-untyped-call]
    scale, shift = cast(Tensor, self.calib_scale), cast(Tensor, self.calib_shift)
    if self.affine:
        scale, shift = scale * self.weight, self.bias + shift * self.weight
    shape = (1, -1, *[1] * (x.ndim - 2))
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """PyTorch's has a derivative, but no second one."""
    return F.relu6(x + 3) / 6


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """PyTorch's has a second derivative that is not symmetric."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


WRITTEN_OUT: dict[Any, Callable[..., Tensor]] = {
    F.hardsigmoid: hardsigmoid,
    torch.ops.aten.hardsigmoid.default: hardsigmoid,
    torch._weight_norm: weight_norm,
}


class WrittenOut(TorchFunctionMode):
    """While it is on, functions whose second derivative PyTorch lacks or has wrong are made of others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return WRITTEN_OUT.get(func, func)(*args, **(kwargs or {}))


# The problem: a copy of the model in eval mode, the parameters that count, the data, and a plan for memory.


Forward = Callable[[Any, Inputs], torch.Tensor]
Memory = Literal["auto", "low", "high"]
Scalar = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (logits, labels) -> sum over the rows
T = TypeVar("T")

GRAPH = {"auto": 160 << 20, "high": 160 << 20, "low": 40 << 20}  # bytes of one micro-batch's graph to aim for
FREE = {"auto": 4, "high": 4, "low": 256}  # part of what is free on a device to aim for, where that is more
PAIRS = 4  # arrays of rows times classes that a trace holds: logits, weights of pairs, their masses and chances
ROWS_OVER_WEIGHTS = 8  # bytes of a micro-batch's graph over those of the weights, from which the latter cost little
SHARE = 4  # of the free memory, one part of which a float64 copy may take
BUSY = 16 << 20  # of a graph beyond which a CPU gains little from larger ones: a group's own then tells more


class CurvatureProblem:
    """What every estimator reads: `size`, `logits(rows)`, `gradients(...)`, and the layout of the rows.

    The user's model is copied, so its mode, gradients, flags and buffers cannot change.

    Args:
        model: any `nn.Module`, TorchScript and exported modules included.
        source: the data.
        params: names of the parameters that count, as globs separated by commas.
        forward: `(model, inputs) -> logits (n, K)`.
        device, dtype: where and in which precision to run; the copy is converted.
        batch_size: rows per micro-batch (rounded down to a power of two, at most 256 on a CPU), or 0 to choose.
        memory: `high` keeps the first-order graph of every micro-batch, `low` of none and takes small ones, `auto`
            keeps them when they fit in 40 % of what is free.
        tf32: products of the Krylov run in TF32.

    Raises:
        InputError: no trainable parameters, or a model that is refused (`readied`).
        UsageError: `params` matches none.
    """

    def __init__(
        self,
        model: nn.Module,
        source: IndexedData,
        *,
        params: str = "*",
        forward: Forward = logits,
        device: torch.device,
        dtype: torch.dtype,
        batch_size: int = 0,
        memory: Memory = "auto",
        tf32: bool = False,
    ) -> None:
        self.model = readied(model, device, dtype)
        self.source, self.device, self.dtype = source, device, dtype
        self._forward = forward
        self.memory: Memory = memory
        self.tf32 = tf32
        chosen = select(self.model, params)
        self.names, self.tensors = list(chosen), list(chosen.values())
        self.sizes = [t.numel() for t in self.tensors]
        self.size = sum(self.sizes)
        self.layout = Layout.of(len(source), batch_size or 2 * len(source) - 1, device.type)
        self.rows = self.layout.micro  # whose graphs memory takes at once; a micro-batch has no more than there are
        self.fixed = bool(batch_size)
        self.keep = memory == "high"
        self.graph_bytes = 0
        self.classes = 0
        self.maps: bool | None = None  # whether `vmap` runs the model, once that is known

    def forward(self, model: Any, inputs: Inputs) -> torch.Tensor:
        """Logits (n, K) that can be differentiated twice."""
        with WrittenOut():
            return self._forward(model, inputs)

    def batch(self, rows: range | torch.Tensor) -> tuple[Inputs, torch.Tensor]:
        index = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows.numpy()
        inputs, labels = self.source.batch(index, device=self.device, dtype=self.dtype)
        return inputs, labels.long()

    def logits(self, rows: range | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (n, K), never below float32, and labels (n,) of these rows."""
        inputs, labels = self.batch(rows)
        return self.outputs(inputs), labels

    def outputs(self, inputs: Inputs, model: Any = None) -> torch.Tensor:
        """Logits (n, K), never below float32, of another `model` where one is given."""
        logits = self.forward(self.model if model is None else model, inputs)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def gradients(self, rows: range, scalar: Scalar, graph: bool = True) -> list[torch.Tensor]:
        """Gradient of `scalar` (a sum over these rows) in every selected tensor, itself differentiable.

        Raises:
            InputError: it depends on none of them.
        """
        total = scalar(*self.logits(rows))
        if not total.requires_grad:
            problem = f"the model's outputs have no gradient in '{self.names[0]}' or any other parameter that counts"
            raise InputError(problem, "leave no_grad() and detach() out of its forward pass, or pass other --params")
        return list(torch.autograd.grad(total, self.tensors, create_graph=graph, materialize_grads=True))

    @cached_property
    def places(self) -> dict[str, str]:
        """Name of the parameter at each place of the model that holds one: of tied layers all, of a layer that is
        registered twice one, as `functional_call` would not put its weights back."""
        known = {id(t): name for name, t in zip(self.names, self.tensors)}
        return {
            f"{prefix}.{key}".removeprefix("."): known[id(p)]
            for prefix, module in self.model.named_modules()
            for key, p in module._parameters.items()
            if id(p) in known
        }

    def placed(self, at: dict[str, torch.Tensor]) -> Callable[..., Any]:
        """The model as a function, with others in place of the parameters of these names."""

        def model(*args: Any, **kwargs: Any) -> Any:
            swapped = {place: at[name] for place, name in self.places.items() if name in at}
            return functional_call(self.model, swapped, args, kwargs, tie_weights=False)

        return model

    def product(self, gradients: list[torch.Tensor], pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Second derivative times a vector: one more backward pass through the graph of `gradients`, which stays."""
        return second(gradients, self.tensors, pieces)

    def zero(self) -> torch.Tensor:
        """(size,) float64 zeros on the device."""
        return torch.zeros(self.size, dtype=torch.float64, device=self.device)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """(size,) to one piece per tensor, in the model's dtype."""
        return self.pieces(vector.to(self.device, self.dtype))

    def pieces(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """(..., size) to views (..., *shape), one per tensor."""
        parts = torch.split(vector, self.sizes, -1)
        return [v.view(vector.shape[:-1] + t.shape) for v, t in zip(parts, self.tensors)]

    def guard(self, work: Callable[[], T]) -> T:
        """Run `work`, with a smaller plan each time memory runs out.

        Raises:
            InputError: it runs out with one row at a time.
        """
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not devices.is_out_of_memory(error):
                    raise
            self.back_off()

    def back_off(self) -> None:
        if self.rows == 1 and not self.keep:
            raise self.too_large("with one row at a time ")
        if not self.keep:
            self.rows //= 2
            self.layout = dataclasses.replace(self.layout, micro=max(1, self.layout.micro // 2))
        self.keep = False
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def too_large(self, when: str = "") -> InputError:
        """What is said where memory does not suffice."""
        return InputError(
            f"out of memory on {self.device} {when}({self.size:,} parameters)",
            "use --dtype float32, fewer parameters (--params), or a device with more memory",
        )

    @contextlib.contextmanager
    def counted(self, rows: range) -> Iterator[None]:
        """Within it, count the bytes that the graph of these rows' gradients holds of each."""
        held: dict[int, int] = {}
        own = {t.untyped_storage().data_ptr() for t in self.model.parameters()}

        def count(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
            if tensor.layout == torch.strided:  # a sparse matrix is the model's own, and has no storage to ask
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    held[storage.data_ptr()] = storage.nbytes()
            return tensor.detach(), tensor._version  # itself, it would make a cycle of a saved output and its node

        def same(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
            if saved[0]._version != saved[1]:  # which is looked at nowhere else: hooks switch it off
                raise RuntimeError("an inplace operation has modified a tensor that its gradient needs")
            return saved[0]

        with torch.autograd.graph.saved_tensors_hooks(count, same):
            yield
        self.graph_bytes = sum(held.values()) // len(rows)

    def plan(self, by_group: bool = True) -> None:
        """Choose the micro-batch and whether graphs are kept, from the bytes that a row's graph holds (`counted`).

        `by_group` says that products will be wanted group by group.
        """
        weights = self.size * torch.empty((), dtype=self.dtype).element_size()
        if not self.fixed:
            self.rows = power_of_two(self._aim(weights) // max(1, self.graph_bytes), MOST.get(self.device.type, MANY))
            fits = min(self.rows, self.layout.micro)
            busy = self.device.type == "cpu" and self.graph_bytes * self.layout.group >= max(BUSY, 8 * weights)
            if by_group and busy:
                fits = min(fits, self.layout.group)
            self.layout = dataclasses.replace(self.layout, micro=power_of_two(fits, self.layout.micro))
        if self.memory == "auto":
            count_of = len(list(self.layout.batches()))
            total = self.graph_bytes * len(self.layout.local) + 2 * weights * count_of
            self.keep = total <= 0.4 * free_bytes(self.device)

    def _aim(self, weights: int) -> int:
        """Bytes of one micro-batch's graph to aim for.

        A gradient is held anyway. What a micro-batch costs whatever its rows, to read the weights and to write and sum
        gradients, is to be little beside its rows: where memory is not short, their graph is larger than the weights.
        """
        aim = max(GRAPH[self.memory], weights)
        if self.device.type != "cpu":  # it would wait for the launches of small ones
            return max(aim, free_bytes(self.device) // FREE[self.memory])
        if self.memory == "low":
            return aim
        return max(aim, min(ROWS_OVER_WEIGHTS * weights, free_bytes(self.device) // 8))

    @property
    def plan_text(self) -> str:
        kept = "graphs of all of them kept" if self.keep else "graph of one kept at a time"
        size = self.graph_bytes * self.layout.micro / 2**20
        plan = f"micro-batches of {self.layout.micro} rows ({size:.0f} MiB of graph each), {kept}"
        outputs = self.outputs_bytes / 2**30
        return plan if outputs < 1 / 16 else f"{plan}, {outputs:.2g} GiB of outputs (for traces {PAIRS} times that)"

    @property
    def outputs_bytes(self) -> int:
        """Of the logits of all rows."""
        return len(self.source) * self.classes * max(4, self.dtype.itemsize)

    def room(self, times: int) -> None:
        """
        Raises:
            InputError: so many arrays like the logits of all rows do not fit in 80 % of what is free.
        """
        need, free = times * self.outputs_bytes, free_bytes(torch.device("cpu"))
        if need > 0.8 * free:
            rows = int(0.8 * free / need * len(self.source))
            raise InputError(
                f"{len(self.source):,} rows of {self.classes:,} classes take {need / 2**30:.1f} GiB, of"
                f" {free / 2**30:.1f} that are free",
                f"measure at most {rows:,} rows (--subset), or on a machine with more memory",
            )


def second(
    gradients: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Derivatives in `tensors` of the inner product of their gradients with `pieces`; the graph stays."""
    live = [(g, v) for g, v in zip(gradients, pieces) if g.requires_grad]
    if not live:
        return [torch.zeros_like(t) for t in tensors]
    ones = [g for g, _ in live]
    along = [v.clone() if v.storage_offset() % 2 else v for _, v in live]  # a complex view starts at an even place
    return list(torch.autograd.grad(ones, tensors, along, retain_graph=True, materialize_grads=True))


def has_twin(problem: CurvatureProblem) -> bool:
    """Whether a float64 copy takes no more than its share of the free memory."""
    return 8 * sum(p.numel() for p in problem.model.parameters()) <= free_bytes(problem.device) // SHARE


def twin(problem: CurvatureProblem, moved: list[int]) -> CurvatureProblem:
    """The problem in float64, in the tensors that are moved."""
    found = copy.copy(problem)
    # wide copies at once: one launch, where narrow ones that are converted would take two for each tensor
    held = (*problem.model.parameters(), *problem.model.buffers())
    floats = [t for t in held if t.is_floating_point() and t.layout == torch.strided]
    sizes = [-(-t.numel() // 8) * 8 for t in floats]  # each starts where a kernel, or a complex view, likes it
    flat = torch.empty(sum(sizes), dtype=torch.float64, device=problem.device)
    wide = [piece[: t.numel()].view(t.shape) for piece, t in zip(torch.split(flat, sizes), floats)]
    torch._foreach_copy_(wide, [t.detach() for t in floats])
    memo: dict[int, Any] = {id(t): nn.Parameter(w) if isinstance(t, nn.Parameter) else w for t, w in zip(floats, wide)}
    found.model, found.dtype = copied(problem.model, memo).double(), torch.float64
    chosen = dict(found.model.named_parameters())
    found.tensors = [chosen[problem.names[i]] for i in moved]
    for still in chosen.values():
        still.requires_grad_(False)
    for tensor in found.tensors:
        tensor.requires_grad_()
    return found


def select(model: nn.Module, params: str) -> dict[str, torch.Tensor]:
    """The trainable tensors whose names match; all others are frozen (in this copy of the model)."""
    named: dict[str, torch.Tensor] = dict(model.named_parameters())
    trainable = {n: p for n, p in named.items() if p.requires_grad and p.is_floating_point()}
    if not trainable:
        raise InputError("the model has no trainable parameters", "set requires_grad on those that count")
    globs = [g.strip() for g in params.split(",") if g.strip()]
    chosen = {n: p for n, p in trainable.items() if any(fnmatchcase(n, g) for g in globs)}
    if not chosen:
        near = nearest(params, trainable)
        raise UsageError(
            f"--params '{params}' matches no parameter", f"names look like '{near or next(iter(trainable))}'"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return chosen
