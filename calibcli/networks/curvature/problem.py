"""The problem that estimators read: the rows, and a copy of the model that can be differentiated twice."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from calibcli.core.errors import InputError, UsageError, nearest
from calibcli.networks import device as devices
from calibcli.networks.architectures.registry import logits
from calibcli.networks.checkpoint import usable
from calibcli.networks.curvature import sharded
from calibcli.networks.curvature.memory_plan import VECTORS, Layout, Memory, MemoryPlan
from calibcli.networks.device import free_bytes

# The rows. Whatever is random is a function of a row's index alone, so that results do not depend on the micro-batch
# size, the number of ranks or the device.

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
            counts = " and ".join(str(len(part)) for part in parts)
            raise InputError(f"{counts} rows of inputs, {len(labels)} labels", "pass one label per row, at least one")
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


# The second word of a Philox key tells the streams of random numbers apart: (row << 32) | number for signs, 1 << 62
# for the draws of pairs (`ggn`), (1 << 63) | number for normal vectors. Below 2^30 rows none coincide.
RESERVED = 1 << 31  # from this number on, the signs of row 0 are no probes: they are for sketches and self-tests


def signs(size: int, seed: int, row: int, numbers: range) -> torch.Tensor:
    """Draw Rademacher probes (m, size) int8, functions of (seed, first row that they are for, number) (Philox)."""
    keys = (np.array([seed, (row << 32) | i], np.uint64) for i in numbers)
    bits = np.stack([np.random.Philox(key=key).random_raw(-(-size // 64)) for key in keys])
    ones = np.unpackbits(bits.astype("<u8").view(np.uint8), axis=1, count=size).view(np.int8)
    return torch.from_numpy(ones).mul_(2).sub_(1)


def normal(size: int, seed: int, number: int) -> torch.Tensor:
    """Draw a standard normal vector (size,) in float64, a function of (seed, number) alone."""
    stream = np.random.Generator(np.random.Philox(key=np.array([seed, (1 << 63) | number], np.uint64)))
    return torch.from_numpy(stream.standard_normal(size))


# A copy of the user's model that can be differentiated twice; what cannot is refused by name.


def prepare_model(model: nn.Module, device: torch.device, dtype: torch.dtype, gradients: bool = False) -> nn.Module:
    """Copy a model to the device in eval mode, its floats in `dtype`; complex buffers stay complex.

    With `gradients` alone it need not have second derivatives. One that is sharded is not copied, see `sharded`.

    Raises:
        InputError: a model that `usable` refuses or that cannot be copied, complex parameters, or batch norm over the
            rows of a batch.
    """
    usable.refuse(model, 1 if gradients else 2, device, fully_sharded=gradients)
    model = getattr(model, "_orig_mod", model)  # torch.compile's products have no second derivative
    if sharded.units(model):
        sharded.check(model, device, dtype)
        return model
    try:
        prepared = copied(model).to(device)
        prepared._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
        fix = "pass a module that copy.deepcopy accepts, without tensors that hold a graph"
        raise InputError(f"the model cannot be copied ({str(error).splitlines()[0]})", fix) from None
    for name, parameter in prepared.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise InputError(f"parameter '{name}' of a lazy module has no shape yet", "run the model on a batch first")
        if parameter.is_complex():
            fix = "hold torch.view_as_real of it, and take torch.view_as_complex in the forward pass"
            raise InputError(f"parameter '{name}' is complex; curvature is that of real parameters", fix)
    for name, module in prepared.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False  # sparse gradients have no second derivative
        if isinstance(module, _BatchNorm):
            if module.running_mean is None or module.running_var is None:
                problem = f"'{name}' is a batch norm without running statistics"
                fix = "train it with track_running_stats=True, or use a norm of each row, such as GroupNorm"
                raise InputError(f"{problem}: a row's output depends on the rows beside it", fix)
            if type(module).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
                # in eval mode it is an affine map with the same derivatives in weight and bias; torch's own second
                # derivative of batch norm takes a dozen passes over the activations, a fifth of a Hessian product of a
                # residual network
                scale = torch.rsqrt(module.running_var + module.eps)
                module.register_buffer("calib_scale", scale, persistent=False)
                module.register_buffer("calib_shift", -module.running_mean * scale, persistent=False)
                module.forward = partial(_affine, module)  # type: ignore[method-assign]  # which can be pickled
    nn.Module.train(prepared, False)  # unbound: exported modules override eval() to refuse
    return prepared


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Copy a model deeply, with parameters that are leaves.

    Those of a TorchScript module remember what they were copied from, and that gradients have its dtype.
    """
    duplicate = copy.deepcopy(model, memo)
    for parameter in duplicate.parameters():
        if not parameter.is_leaf:
            parameter.detach_().requires_grad_()
    return duplicate


def _affine(self: _BatchNorm, x: Tensor) -> Tensor:
    self._check_input_dim(x)  # type: ignore[no-untyped-call]
    scale, shift = cast(Tensor, self.calib_scale), cast(Tensor, self.calib_shift)
    if self.affine:
        scale, shift = scale * self.weight, self.bias + shift * self.weight
    shape = (1, -1, *[1] * (x.ndim - 2))
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """Compute `F.hardsigmoid`, of which PyTorch has no second derivative."""
    return F.relu6(x + 3) / 6


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Compute `torch._weight_norm`, whose second derivative in PyTorch is not symmetric."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Compute `torch.logcumsumexp` from sums of 1, 2, 4, ... elements.

    Its second derivative in PyTorch is NaN where the gradient of some of the sums is 0, as where the last one is read.
    """
    x, step = x.movedim(dim, -1), 1
    while step < x.shape[-1]:
        x = torch.cat([x[..., :step], torch.logaddexp(x[..., step:], x[..., :-step])], -1)
        step *= 2
    return x.movedim(-1, dim)


WRITTEN_OUT: dict[Any, Callable[..., Tensor]] = {
    F.hardsigmoid: hardsigmoid,
    torch.ops.aten.hardsigmoid.default: hardsigmoid,
    torch._weight_norm: weight_norm,
    **dict.fromkeys((torch.logcumsumexp, Tensor.logcumsumexp, torch.ops.aten.logcumsumexp.default), logcumsumexp),
}


class WrittenOut(TorchFunctionMode):
    """Compose functions whose second derivative PyTorch lacks or has wrong from others, while it is on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return WRITTEN_OUT.get(func, func)(*args, **(kwargs or {}))


# The state of torch while the engine runs; it is given back afterwards, also after an exception.


@contextlib.contextmanager
def second_order(device: torch.device, model: nn.Module | None = None, gradients: bool = False) -> Iterator[None]:
    """Switch gradients on, and fused attention, autocast, TF32 and compiled parts off; restore all afterwards.

    The random state is restored too.

    Scaled-dot-product attention has a second derivative in its math backend only, `nn.MultiheadAttention` none in its
    fused inference path, and what `torch.compile` made none: it runs as it was written. cuDNN's kernels for recurrent
    layers have none either: it is off where the model holds such layers. With `gradients` alone fused attention stays,
    and a model that is sharded comes in eval mode, with all processes at the same rows.
    """
    recurrent = model is not None and any(isinstance(m, nn.RNNBase) for m in model.modules())
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            devices.full_float32(),
            devices.unchanged_rng(device),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            contextlib.nullcontext() if gradients else sdpa_kernel(SDPBackend.MATH),
            sharded.as_it_was(model),
            torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext(),
            devices.cudnn(enabled=False) if recurrent else contextlib.nullcontext(),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


# The problem: the copy of the model, the parameters that count, the rows, and a plan for memory.


Forward = Callable[[Any, Inputs], torch.Tensor]
Scalar = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (logits, labels) -> sum over the rows
T = TypeVar("T")

Products = Literal["double", "gradients"]

PAIRS = 4  # arrays of rows times classes that a trace holds: logits, weights of pairs, their masses and chances
TWIN_SHARE = 4  # a float64 copy may take one part in so many of the free memory


class CurvatureProblem:
    """Model, rows and memory plan as every estimator reads them: `size`, `logits(rows)`, `gradients(...)`, `layout`.

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
        products: `double` backward, or differences of `gradients`.

    Raises:
        InputError: no trainable parameters, or a model that is refused (`prepare_model`).
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
        products: Products = "double",
    ) -> None:
        self.from_gradients = products == "gradients"
        self.model = prepare_model(model, device, dtype, self.from_gradients)
        self.units = sharded.units(self.model)  # found once, as every pass asks for them
        self.sharded = bool(self.units)
        self.source, self.device, self.dtype = source, device, dtype
        self._forward = forward
        self.tf32 = tf32
        chosen = select(self.model, params)
        self.names, self.tensors = list(chosen), list(chosen.values())
        self.sizes = [t.numel() for t in self.tensors]
        self.size = sum(self.sizes)
        self.plan = MemoryPlan.first(len(source), device, memory, batch_size)
        if self.sharded:  # rows are shared pass by pass
            self.plan = replace(self.plan, layout=replace(self.plan.layout, rank=0, world=1))
        self.graph_bytes = 0  # of one row, once it is measured
        self.classes = 0
        # whether `vmap` runs the model, once that is known
        self.maps: bool | None = False if self.from_gradients else None
        self.beta, self.scales = 1.0, list[torch.Tensor]()  # see `view`

    def view(self, beta: float, scales: Sequence[torch.Tensor]) -> CurvatureProblem:
        """Return the same problem with all logits times `beta`, in other coordinates: a step of 1 moves θ by `scales`.

        Args:
            beta: 1/T of a temperature.
            scales: one for each tensor, of its shape or a number; none for θ as it is. With θ itself, a coordinate is
                the relative change of a parameter, and a second derivative M becomes diag(θ) M diag(θ).
        """
        other = copy.copy(self)
        other.beta, other.scales = beta, list(scales)
        return other

    def scaled(self, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Multiply a piece (..., *shape) for each tensor by the scale of its coordinates."""
        return [piece * scale for piece, scale in zip(pieces, self.scales)] if self.scales else list(pieces)

    def forward(self, model: Any, inputs: Inputs) -> torch.Tensor:
        """Compute logits (n, K) that can be differentiated twice."""
        with WrittenOut():
            outputs = self._forward(model, inputs)
            return outputs if self.beta == 1 else outputs * self.beta

    def batch(self, rows: range | torch.Tensor) -> tuple[Inputs, torch.Tensor]:
        index = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows.numpy()
        inputs, labels = self.source.batch(index, device=self.device, dtype=self.dtype)
        return inputs, labels.long()

    def logits(self, rows: range | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the logits (n, K) of these rows, never below float32; return them with the labels (n,)."""
        inputs, labels = self.batch(rows)
        return self.outputs(inputs), labels

    def outputs(self, inputs: Inputs, model: Any = None) -> torch.Tensor:
        """Compute logits (n, K), never below float32, by another `model` where one is given."""
        logits = self.forward(self.model if model is None else model, inputs)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def gradients(self, rows: range | torch.Tensor, scalar: Scalar, graph: bool = True) -> list[torch.Tensor]:
        """Compute the gradient of `scalar` (a sum over these rows) in every selected tensor, itself differentiable.

        Raises:
            InputError: it depends on none of them.
        """
        own, share = self.own(rows)
        total = scalar(*self.logits(own))
        if not total.requires_grad:
            problem = f"the model's outputs have no gradient in '{self.names[0]}' or any other parameter that counts"
            raise InputError(problem, "leave no_grad() and detach() out of its forward pass, or pass other --params")
        return self.gradient_of(share * total if self.sharded else total, graph)

    def own(self, rows: range | torch.Tensor) -> tuple[Any, float]:
        """Return the part of a pass over rows that is this process's, and what its sum counts (see `sharded.own`)."""
        return sharded.own(rows) if self.sharded else (rows, 1.0)

    def gradient_of(self, total: torch.Tensor, graph: bool = False) -> list[torch.Tensor]:
        """Differentiate a sum over rows in every selected tensor; of sharded weights the whole, over all processes."""
        if self.sharded:
            return sharded.gradients(total, self.tensors, self.model)
        return list(torch.autograd.grad(total, self.tensors, create_graph=graph, materialize_grads=True))

    @cached_property
    def places(self) -> dict[str, str]:
        """Name of the parameter at each place of the model that holds one.

        Of tied layers all places count, of a layer that is registered twice one, as `functional_call` would not put its
        weights back.
        """
        names_by_id = {id(t): name for name, t in zip(self.names, self.tensors)}
        return {
            f"{prefix}.{key}".removeprefix("."): names_by_id[id(p)]
            for prefix, module in self.model.named_modules()
            for key, p in module._parameters.items()
            if id(p) in names_by_id
        }

    def placed(self, tensors: dict[str, torch.Tensor]) -> Callable[..., Any]:
        """Return the model as a function, with other tensors in place of the parameters of these names."""

        def model(*args: Any, **kwargs: Any) -> Any:
            swapped = {place: tensors[name] for place, name in self.places.items() if name in tensors}
            return functional_call(self.model, swapped, args, kwargs, tie_weights=False)

        return model

    def product(self, gradients: list[torch.Tensor], pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Multiply the second derivative by a vector: one more backward pass through the graph of `gradients`."""
        return self.scaled(second(gradients, self.tensors, self.scaled(pieces)))

    def zero(self) -> torch.Tensor:
        """Return float64 zeros (size,) on the device."""
        return torch.zeros(self.size, dtype=torch.float64, device=self.device)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Split a vector (size,) into one piece per tensor, in the model's dtype."""
        return self.pieces(vector.to(self.device, self.dtype))

    def pieces(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """View a (..., size) array as pieces (..., *shape), one per tensor."""
        parts = torch.split(vector, self.sizes, -1)
        return [v.view(vector.shape[:-1] + t.shape) for v, t in zip(parts, self.tensors)]

    @property
    def layout(self) -> Layout:
        """How the rows are cut into micro-batches and groups."""
        return self.plan.layout

    def choose_plan(self, by_group: bool = True) -> None:
        """Fit the memory plan to the bytes that a row's graph holds.

        `by_group`: products will be wanted summed by group (`Layout`), which makes smaller micro-batches on a CPU.
        """
        weights = self.size * torch.empty((), dtype=self.dtype).element_size()
        self.plan = self.plan.for_model(self.graph_bytes, weights, by_group)

    def check_room(self, graphs: int) -> None:
        """Refuse what takes more memory than is free, before it is allocated: the system may end the process instead.

        Args:
            graphs: bytes of the graphs of a product, beside vectors as long as the parameters.

        Raises:
            InputError: so much is not free.
        """
        need = graphs + VECTORS * self.size * self.dtype.itemsize
        (free,) = devices.all_least(self.device, free_bytes(self.device))
        if need > free:
            needed, left = f"{need / 2**30:.2g} GiB", f"{free / 2**30:.2g} that are free on {self.device}"
            raise InputError(
                f"a product in {self.size:,} parameters takes at least {needed}, of {left}",
                "measure fewer parameters (--params 'last_block.*'), or on a machine with more memory",
            )

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
            smaller = self.plan.smaller()
            if smaller is None:
                raise self.too_large("with one row at a time ")
            self.plan = smaller
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    @contextlib.contextmanager
    def memory_errors(self) -> Iterator[None]:
        """Raise an `InputError` where memory runs out within it, since no smaller plan would help there."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not devices.is_out_of_memory(error):
                raise
            raise self.too_large() from None

    def too_large(self, when: str = "") -> InputError:
        """The error to raise where memory does not suffice."""
        problem = f"out of memory on {self.device} {when}({self.size:,} parameters)"
        return InputError(problem, "use --dtype float32, fewer parameters (--params), or a device with more memory")

    @property
    def plan_text(self) -> str:
        """The memory plan in words, with the memory for the outputs of all rows where it counts."""
        plan, outputs = self.plan.text(self.graph_bytes), self.outputs_bytes / 2**30
        return plan if outputs < 1 / 16 else f"{plan}, {outputs:.2g} GiB of outputs (for traces {PAIRS} times that)"

    @property
    def outputs_bytes(self) -> int:
        """Bytes of the logits of all rows."""
        return len(self.source) * self.classes * max(4, self.dtype.itemsize)

    def check_outputs_fit(self, times: int) -> None:
        """Refuse data whose outputs take too much memory.

        Raises:
            InputError: so many arrays like the logits of all rows do not fit in 80 % of what is free.
        """
        need, free = times * self.outputs_bytes, free_bytes(torch.device("cpu"))
        if need > 0.8 * free:
            rows = int(0.8 * free / need * len(self.source))
            raise InputError(
                f"{len(self.source):,} rows of {self.classes:,} classes take {need / 2**30:.2g} GiB, of"
                f" {free / 2**30:.2g} that are free",
                f"measure at most {rows:,} rows (--subset), or on a machine with more memory",
            )


def second(
    gradients: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Differentiate the inner product of `gradients` with `pieces` in `tensors`; the graph stays."""
    live = [(g, v) for g, v in zip(gradients, pieces) if g.requires_grad]
    if not live:
        return [torch.zeros_like(t) for t in tensors]
    ones = [g for g, _ in live]
    along = [v.clone() if v.storage_offset() % 2 else v for _, v in live]  # a complex view starts at an even place
    return list(torch.autograd.grad(ones, tensors, along, retain_graph=True, materialize_grads=True))


def padding_rows(problem: CurvatureProblem) -> list[tuple[int, int]]:
    """List embeddings' rows for padding, which have no gradient by definition: number of the tensor, and row."""
    embeddings = [m for m in problem.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    padding = {id(m.weight): m.padding_idx for m in embeddings if m.padding_idx is not None}
    return [(i, padding[id(t)]) for i, t in enumerate(problem.tensors) if id(t) in padding]


def has_twin(problem: CurvatureProblem) -> bool:
    """Whether a float64 copy takes no more than its share of the free memory."""
    return 8 * sum(p.numel() for p in problem.model.parameters()) <= free_bytes(problem.device) // TWIN_SHARE


def twin(problem: CurvatureProblem, moved: list[int]) -> CurvatureProblem:
    """Copy the problem to float64, with derivatives in the tensors that are moved alone."""
    wide_problem = copy.copy(problem)
    # wide copies at once: one launch, where narrow ones that are converted would take two for each tensor
    tensors = (*problem.model.parameters(), *problem.model.buffers())
    floats = [t for t in tensors if t.is_floating_point() and t.layout == torch.strided]
    sizes = [-(-t.numel() // 8) * 8 for t in floats]  # each starts where a kernel, or a complex view, likes it
    flat = torch.empty(sum(sizes), dtype=torch.float64, device=problem.device)
    wide = [piece[: t.numel()].view(t.shape) for piece, t in zip(torch.split(flat, sizes), floats)]
    torch._foreach_copy_(wide, [t.detach() for t in floats])
    memo: dict[int, Any] = {id(t): nn.Parameter(w) if isinstance(t, nn.Parameter) else w for t, w in zip(floats, wide)}
    wide_problem.model, wide_problem.dtype = copied(problem.model, memo).double(), torch.float64
    chosen = dict(wide_problem.model.named_parameters())
    wide_problem.names = [problem.names[i] for i in moved]
    wide_problem.tensors = [chosen[name] for name in wide_problem.names]
    wide_problem.sizes = [problem.sizes[i] for i in moved]
    wide_problem.size = sum(wide_problem.sizes)
    vars(wide_problem).pop("places", None)  # those of the parameters that count there
    wide_problem.scales = [problem.scales[i] for i in moved] if problem.scales else []
    for still in chosen.values():
        still.requires_grad_(False)
    for tensor in wide_problem.tensors:
        tensor.requires_grad_()
    return wide_problem


def select(model: nn.Module, params: str) -> dict[str, torch.Tensor]:
    """Select the trainable tensors whose names match, and freeze all others (in this copy of the model)."""
    named: dict[str, torch.Tensor] = dict(model.named_parameters())
    trainable = {n: p for n, p in named.items() if p.requires_grad and p.is_floating_point()}
    if not trainable:
        raise InputError("the model has no trainable parameters", "set requires_grad on those that count")
    globs = [g.strip() for g in params.split(",") if g.strip()]
    chosen = {n: p for n, p in trainable.items() if any(fnmatchcase(n, g) for g in globs)}
    if not chosen:
        near = nearest(params, trainable)
        problem = f"--params '{params}' matches no parameter"
        raise UsageError(problem, f"names look like '{near or next(iter(trainable))}'")
    for name, parameter in model.named_parameters():
        if not sharded.units(model):  # which is the user's own
            parameter.requires_grad_(name in chosen)
    return chosen
