"""The Hessian of a mean loss, or its Gauss-Newton part, as a symmetric matrix that multiplies and is never formed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibcli.core.errors import InputError, UsageError, did_you_mean
from calibcli.core.options import named, spelled
from calibcli.core.python_errors import in_python
from calibcli.core.result import Estimate, Result
from calibcli.networks import device as devices
from calibcli.networks import inference
from calibcli.networks.curvature import check_arguments, measured, opened, posed, sharded
from calibcli.networks.curvature.differences import GradientDifferences, gauss_newton
from calibcli.networks.curvature.loss import LogitLoss, independent, name
from calibcli.networks.curvature.memory_plan import Memory
from calibcli.networks.curvature.operator import SecondDerivative, hessian_scalar
from calibcli.networks.curvature.problem import CurvatureProblem, Products, second_order
from calibcli.networks.curvature.quantities import QUANTITIES, Bound
from calibcli.networks.curvature.selftest import check
from calibcli.networks.losses import final
from calibcli.scores import reading_options
from calibcli.scores.predictions import Progress

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Matrix = Literal["hessian", "ggn"]
Real = TypeVar("Real", np.float32, np.float64)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class HessianRequest(
    reading_options.DatasetOptions,
    reading_options.OutputOptions,
    reading_options.NetworkOptions,
    devices.Device,
    devices.Seeded,
):
    """The arguments of `hessian`: those of `curvature`, but for what is asked of the matrix."""

    model: nn.Module | str | Path
    data: Any = None
    _: KW_ONLY
    loss: str | Callable[..., Any] = "ce"
    matrix: Matrix = "hessian"
    params: str = "*"
    memory: Memory = "auto"
    products: Products = "double"
    batch_size: int = 0
    tf32: bool = False
    level: float = 0.95
    progress: Progress | None = None


def _of_the_request(method: F) -> F:
    """Let the errors of a method name the keywords that its matrix was made with."""
    return in_python(method, made_by=HessianRequest)


class CurvatureOperator:
    """A symmetric P × P matrix of second derivatives that is known by its products; `calibcli.hessian` makes it.

    It holds a copy of the model: what happens to the model afterwards (training, other weights) does not change it. The
    graphs that it keeps between products (see `memory`) go with it, or by `drop`.

    >>> h = calibcli.hessian(model, device="cpu")
    >>> h
    CurvatureOperator(hessian of ce, 8970 x 8970, 997 rows, float32, cpu)
    >>> v = torch.ones(h.shape[1])
    >>> product = h @ v
    >>> product.shape, list(h.slices)[:2], product[h.slices["hidden.0.0.bias"]].shape
    (torch.Size([8970]), ['hidden.0.0.weight', 'hidden.0.0.bias'], torch.Size([64]))

    Attributes:
        matrix: `hessian` or `ggn`.  rows: N, over which the loss is averaged.
        notes: what `calibcli.curvature` would note about model and data.
    """

    __array_ufunc__ = None  # `array @ matrix` comes to __rmatmul__, not to NumPy's loop over the entries of the array

    def __init__(
        self,
        problem: CurvatureProblem,
        loss: LogitLoss,
        matrix: Matrix = "hessian",
        *,
        seed: int = 0,
        level: float = 0.95,
        progress: Progress | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.matrix: Matrix = matrix
        self.notes = list(notes)
        self._problem, self._loss = problem, loss
        self._run: dict[str, Any] = {"seed": seed, "level": level, "progress": progress}
        self._unplanned = problem.plan
        device, as_wanted = problem.device, self._as_wanted
        with devices.process_group(device), as_wanted(), problem.memory_errors():
            test = check(problem, loss, by_group=False, first_order=matrix == "ggn")
            self.notes += test.notes
            self._double = test.double
            independent(problem)

    def _as_wanted(self) -> AbstractContextManager[None]:
        """The state of torch for products."""
        return second_order(self._problem.device, self._problem.model, self._problem.from_gradients)

    def __repr__(self) -> str:
        matrix, where = f"{self.matrix} of {name(self._loss)}", f"{str(self.dtype)[6:]}, {self.device}"
        return f"CurvatureOperator({matrix}, {self.shape[0]} x {self.shape[1]}, {self.rows} rows, {where})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the graphs out, which cannot be copied; a copy makes its own."""
        return {key: value for key, value in vars(self).items() if key != "_derivative"}

    @property
    def shape(self) -> tuple[int, int]:
        """(P, P), P the number of parameters that count."""
        return self._problem.size, self._problem.size

    @property
    def dtype(self) -> torch.dtype:
        """torch.float32 or torch.float64: of the copy of the model, of the vectors and of the products."""
        return self._problem.dtype

    @property
    def device(self) -> torch.device:
        """Where the copy of the model is, and where tensors have to be; arrays are moved there and back."""
        return self._problem.device

    @property
    def rows(self) -> int:
        """N, the number of rows that the loss is averaged over."""
        return len(self._problem.source)

    @property
    def names(self) -> list[str]:
        """Names of the parameter tensors that count, in the order of `model.named_parameters()`."""
        return list(self._problem.names)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of each tensor by name."""
        return {key: tensor.shape for key, tensor in zip(self._problem.names, self._problem.tensors)}

    @property
    def slices(self) -> dict[str, slice]:
        """The entries of a vector (P,) that belong to each tensor, which lies there row by row."""
        ends = accumulate(self._problem.sizes)
        return {key: slice(end - n, end) for key, end, n in zip(self._problem.names, ends, self._problem.sizes)}

    @overload
    def __matmul__(self, v: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, v: NDArray[Real]) -> NDArray[Real]: ...
    @overload
    def __matmul__(self, v: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    @overload
    def __matmul__(self, v: Sequence[Tensor]) -> list[Tensor]: ...
    @_of_the_request
    def __matmul__(
        self, v: Tensor | NDArray[Any] | Mapping[str, Tensor] | Sequence[Tensor]
    ) -> Tensor | NDArray[Any] | dict[str, Tensor] | list[Tensor]:
        """Multiply by a vector, or by each column of a block in one pass over the data.

        Args:
            v: (P,) or (P, k), a tensor or an array of the matrix's dtype; or a tensor for each of `names`, of the
                parameter's shape, in a dict or in this order. It has no graph: derivatives of a product in v are
                products again.

        Returns:
            What was given: shape, dtype, tensor or array, dict or list. A new one, without a graph.

        Raises:
            InputError: v has another shape, dtype or device, requires grad, or is not finite; or the product is not.
            TypeError: v is something else.
        """
        if isinstance(v, Tensor):
            return self._times(v)
        if isinstance(v, np.ndarray):
            return self._times_array(v)
        if isinstance(v, Mapping):
            return dict(zip(self._problem.names, self._times_pieces([v[key] for key in self._known(v)])))
        if isinstance(v, list | tuple) and all(isinstance(piece, Tensor) for piece in v):
            return self._times_pieces(v)
        what = f"a {type(v).__name__}" + (" of other things than tensors" if isinstance(v, list | tuple) else "")
        raise TypeError(f"v is {what}: pass a tensor or an array (P,) or (P, k), or a tensor for each of h.names")

    @overload
    def __rmatmul__(self, v: Tensor) -> Tensor: ...
    @overload
    def __rmatmul__(self, v: NDArray[Real]) -> NDArray[Real]: ...
    def __rmatmul__(self, v: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
        """Multiply (P,) or (k, P) from the left: the matrix is symmetric."""
        if not isinstance(v, Tensor | np.ndarray):
            return NotImplemented
        product: Tensor | NDArray[Any] = self @ (v if v.ndim < 2 else v.T)
        return product if v.ndim < 2 else product.T

    def _times(self, v: Tensor) -> Tensor:
        """Multiply by a tensor (P,) or (P, k)."""
        size = self.shape[0]
        if v.ndim not in (1, 2) or v.shape[0] != size:
            order = "one number for each parameter that counts, in the order of h.slices"
            raise InputError(
                f"v has shape {tuple(v.shape)}, for {size:,} parameters", f"pass ({size},) or ({size}, k): {order}"
            )
        if v.dtype != self.dtype:
            raise self._of_dtype(str(v.dtype)[6:], "v.to(h.dtype)")
        if v.device != self.device:
            raise InputError(f"v is on {v.device}, and the matrix on {self.device}", "pass v.to(h.device)")
        if v.requires_grad:
            fix = "pass v.detach(); the derivative of h @ v in v, times w, is h @ w"
            raise InputError("v requires grad, and a product has no graph", fix)
        if not bool(v.isfinite().all()):
            raise InputError("v holds numbers that are not finite", "look for NaN and inf where v is computed")
        # a vector with strides goes another way through BLAS, which may round differently
        columns = [column.contiguous() for column in ([v] if v.ndim == 1 else v.unbind(1))]
        with devices.process_group(self.device), self._as_wanted(), self._problem.memory_errors():
            products = [product.to(self.dtype) for product in self._derivative.products(columns)]
        if v.ndim == 1:
            return products[0]
        return torch.stack(products, 1) if products else torch.zeros_like(v)  # (P, k)

    def _times_array(self, v: NDArray[Any]) -> NDArray[Any]:
        """Multiply by an array (P,) or (P, k)."""
        if v.dtype != str(self.dtype)[6:]:
            raise self._of_dtype(str(v.dtype), f"v.astype({str(self.dtype)[6:]!r})")
        tensor = torch.from_numpy(np.array(v, order="C"))  # a copy: of one with negative strides, or that is read-only
        product: NDArray[Any] = self._times(tensor.to(self.device)).cpu().numpy()
        return product

    def _of_dtype(self, given: str, conversion: str) -> InputError:
        """The error to raise for a vector of another dtype: nothing is rounded unasked."""
        fix = "multiply by its real and imaginary part apart" if "complex" in given else f"pass {conversion}"
        fix += f", or dtype='{given}' to calibcli.hessian" if given in devices.DTYPES else ""
        return InputError(f"v is {given}, and the matrix {str(self.dtype)[6:]}", fix)

    def _times_pieces(self, v: Sequence[Tensor]) -> list[Tensor]:
        """Multiply by a tensor for each parameter, of its shape."""
        shapes = self.shapes
        if len(v) != len(shapes):
            raise InputError(f"v has {len(v)} tensors, for {len(shapes)} parameters", "pass one for each of h.names")
        for piece, (key, shape) in zip(v, shapes.items()):
            if piece.shape != shape:
                problem = f"v has shape {tuple(piece.shape)} for '{key}', which has {tuple(shape)}"
                raise InputError(problem, "pass a tensor like each parameter, in the order of h.names")
        return self._problem.pieces(self._times(torch.cat([piece.reshape(-1) for piece in v])))

    def _known(self, v: Mapping[str, Tensor]) -> list[str]:
        """Return the names in order, if `v` has these and no others."""
        for key in v:
            if key not in self.shapes:
                raise InputError(f"v has '{key}', no parameter that counts", did_you_mean(str(key), self.names))
        missing = [key for key in self.names if key not in v]
        if missing:
            problem = f"v has no '{missing[0]}'"
            raise InputError(problem, "pass a tensor for each of h.names, zeros for those that do not move")
        return self.names

    @cached_property
    def _derivative(self) -> SecondDerivative:
        if self.matrix == "ggn":
            return gauss_newton(self._problem, self._loss, self._double, differences=False)
        if self._problem.from_gradients:
            return GradientDifferences(self._problem, self._loss, self._double)
        return SecondDerivative(self._problem, hessian_scalar(self._loss))

    def drop(self) -> None:
        """Free the graphs that are kept between products; the next product makes them again.

        >>> h = calibcli.hessian(model, device="cpu")
        >>> v = h @ torch.ones(h.shape[1])
        >>> h.drop()
        >>> bool(torch.equal(h @ torch.ones(h.shape[1]), v))
        True
        """
        self._derivative.drop()

    def to_scipy(self) -> LinearOperator:
        """Return the matrix as a `scipy.sparse.linalg.LinearOperator`, for `eigsh`, `cg`, `minres` and their like.

        Its dtype is that of the matrix. Arrays (P,) and (P, k) of other real dtypes are converted to it, as solvers
        choose their own. To solve with more digits than those of float32, pass dtype="float64" to `calibcli.hessian`.

        >>> from scipy.sparse.linalg import eigsh
        >>> h = calibcli.hessian(model, device="cpu")
        >>> values = eigsh(h.to_scipy(), k=2, which="LA", tol=1e-4, v0=np.ones(8970), return_eigenvectors=False)
        >>> [round(float(value), 1) for value in values]
        [13.1, 15.7]
        """
        from scipy.sparse.linalg import LinearOperator

        dtype = np.dtype(str(self.dtype)[6:])

        def product(v: NDArray[Any]) -> NDArray[Any]:
            converted: NDArray[Any] = v if np.iscomplexobj(v) else v.astype(dtype)  # `@` refuses complex ones by name
            return self @ converted

        same = {"matvec": product, "rmatvec": product, "matmat": product, "rmatmat": product}
        return LinearOperator(self.shape, dtype=dtype, **same)

    def trace(
        self, *, precision: float | None = None, probes: int | None = None, exact: bool = False, most: int | None = None
    ) -> Estimate:
        """Estimate the trace, with the errors of the estimator and of the sample: `curvature(..., "trace")["trace"]`.

        Of `matrix="ggn"` it is `trace_ggn`. The number is the same to the last bit, in units of the loss per squared
        unit of weight; `calib list trace` describes the options and has the sources.

        >>> round(calibcli.hessian(model, device="cpu").trace(exact=True).value, 1)
        73.1

        Args:
            precision: relative standard error to reach; None: 0.3 of the sampling error.
            probes, most: number of probes of a row, and the most of them on average; not of `ggn`.
            exact: take every pair and every diagonal element.

        Raises:
            UsageError: an option out of range, or one that this trace does not have.
            InputError: memory does not suffice, or a product is not finite.
        """
        spec = "trace" if self.matrix == "hessian" else "trace_ggn"
        result = self._measured(spec, precision=precision, probes=probes, exact=exact or None, most=most)
        return result.estimates[0]

    def top(self, k: int = 1, *, tol: float = 1e-3, bound: Bound = "residual") -> list[Estimate]:
        """Estimate the k largest eigenvalues, largest first, with their errors: `curvature(..., "top:k=1")`.

        The numbers are the same to the last bit, in units of the loss per squared unit of weight; `calib list top`
        describes the options and has the sources. Of `matrix="ggn"` it is `top_ggn`.

        >>> [round(one.value, 1) for one in calibcli.hessian(model, device="cpu").top(2)]
        [15.7, 13.1]

        Args:
            k: how many; fewer where the matrix has fewer rows.
            tol: relative error to reach.
            bound: `residual`, or `estimate`, which is sooner and has no error over rows.

        Raises:
            UsageError: an option out of range.
            InputError: memory does not suffice, or a product is not finite.
        """
        spec = "top" if self.matrix == "hessian" else "top_ggn"
        return list(self._measured(spec, k=k, tol=tol, bound=bound).estimates)

    @_of_the_request
    def _measured(self, quantity: str, **options: float | str | None) -> Result:
        """Measure a quantity in a run of its own, as `curvature` does; its notes are those not in `notes`."""
        given = ",".join(f"{key}={spelled(value)}" for key, value in options.items() if value is not None)
        choice = QUANTITIES.choose(f"{quantity}:{given}")
        self.drop()  # memory: the run keeps graphs of its own
        problem = copy.copy(self._problem)
        problem.plan = self._unplanned  # the run chooses its own, which sums are rounded by
        with devices.process_group(self.device):
            result = measured(problem, [self._loss], [choice], **self._run, interrupts=())
        return dataclasses.replace(result, notes=[note for note in result.notes if note not in self.notes])


@named(HessianRequest)
def hessian(request: HessianRequest) -> CurvatureOperator:
    """Return the Hessian of the mean loss around a network's weights as a matrix that multiplies: `h @ v`.

    H = (1/N) Σ_n ∂²ℓ(z_n, y_n)/∂θ² over all N rows, in the P parameters θ that count, with the model in eval mode and
    without weight decay. Nothing of size P × P is formed: a product differentiates the inner product of the gradient
    with v (Pearlmutter 1994), and is exact whatever the size of the batches. Entries are in units of the loss (nats for
    `ce`) per squared unit of weight.

    >>> import torch
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(model.weight).shape
    torch.Size([2, 1])
    >>> h = hessian(model, (torch.ones(40, 1), torch.arange(40) % 2), device="cpu")
    >>> h @ torch.tensor([1.0, 0.0])  # p (1 - p) and -p (1 - p)
    tensor([ 0.2500, -0.2500])
    >>> h.names, h.slices["weight"], round(h.trace(exact=True).value, 6)
    (['weight'], slice(0, 2, None), 0.5)

    Args:
        model: a module, of which a copy is made; or a checkpoint.
        data: inputs (N, ...) and labels (N,) integers, or where they are, as `curvature` takes them. Leave them as they
            are: they are read again where graphs are not kept.
        loss: spec of the loss, or a module, class or function of your own, `(logits (N, K), labels (N,)) -> (N,)`.
        matrix: `hessian`; or `ggn`, the Gauss-Newton matrix G = (1/N) Σ_n J_nᵀ A_n J_n with the Jacobian J_n of a row's
            logits and the Hessian A_n of its loss in them (Schraudolph 2002), for cross-entropy the Fisher matrix.
        params: parameters that count, as globs separated by commas; frozen ones never do.
        memory, batch_size: time and memory, not results.  tf32: TF32 for products, on a CUDA device.
        products: `double` backward; or differences of `gradients`, as for `curvature`.
        kind, arch, arch_file, trust, and mean to split_seed: as for `curvature`.
        device: auto, cpu, cuda or cuda:N; under torchrun the processes share the rows, once they are joined by
            `torch.distributed.init_process_group`.  dtype: float32 or float64, of the vectors too.
        seed, level, progress: of `trace` and `top`, as for `curvature`.

    Returns:
        The matrix, with `h @ v`, `shape`, `dtype`, `device`, `names`, `slices`, `to_scipy()`, `trace()` and `top(k)`.

    Raises:
        InputError: a model or data that is refused.  UsageError: a wrong option.  TypeError: an unknown keyword.
    """
    check_arguments((), request.memory, request.level, request.batch_size, request.seed, request.kind, request.products)
    if request.matrix not in get_args(Matrix):
        raise UsageError(f"unknown matrix '{request.matrix}'", f"choose from: {', '.join(get_args(Matrix))}")
    if devices.world() > 1 and not torch.distributed.is_initialized():  # one for each product hangs
        fix = "call torch.distributed.init_process_group() first; every process then makes the matrix and each product"
        raise UsageError(f"{devices.world()} processes of a launch share the rows, and are not joined", fix)
    where, precision = devices.pick(request.device), devices.dtype(request.dtype)
    loss = final(request.loss)
    rows = {field.name: getattr(request, field.name) for field in dataclasses.fields(reading_options.DatasetOptions)}
    network: dict[str, Any] = {"arch": request.arch, "arch_file": request.arch_file, "trust": request.trust}
    once: dict[str, Any] = {"products": request.products, "device": where}
    loaded, dataset = opened(request.model, request.data, kind=request.kind, **once, **network, **rows)
    if sharded.units(loaded.model):
        fix = "pass products='gradients' to calibcli.curvature"
        raise InputError("a matrix holds a copy of its model, and of weights that are sharded there is none", fix)
    plan: dict[str, Any] = {"params": request.params, "batch_size": request.batch_size, "memory": request.memory}
    plan |= {"device": where, "dtype": precision, "tf32": request.tf32, "products": request.products}
    problem, [placed] = posed(loaded.model, dataset, [loss], forward=inference.logits, **plan)
    run: dict[str, Any] = {"seed": request.seed, "level": request.level, "progress": request.progress}
    return CurvatureOperator(problem, placed, request.matrix, **run, notes=[*loaded.notes, *dataset.notes])
