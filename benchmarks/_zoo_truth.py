"""Compare `calib curvature` of a network with double backwards in float64, written by hand."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from calibcli import CalibError, curvature, hessian, logits
from calibcli.core.result import Result
from calibcli.networks import inference
from calibcli.networks.curvature.operator import SecondDerivative, hessian_scalar
from calibcli.networks.curvature.problem import CurvatureProblem, Tensors, second_order
from calibcli.networks.losses import CrossEntropy

NEAR = {"float64": 1e-6, "float32": 5e-3}  # of the largest eigenvalue, beside a value's own interval


@dataclass
class Verdict:
    """What was found of one network: `how` is equal, refused, differs or crash."""

    how: str
    text: str = ""
    parameters: int = 0
    block: int = 0
    logits: dict[str, float] = field(default_factory=dict)  # relative errors, here and below
    product: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    rounded: bool = False  # a note says that products in float32 are


class Written(TorchFunctionMode):
    """Functions without a second derivative, or with a wrong one, in others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.hardsigmoid:
            return (args[0] / 6 + 0.5).clamp(0, 1)
        if func in (torch.logcumsumexp, Tensor.logcumsumexp):
            x, steps = args[0].movedim(args[1], -1), torch.arange(args[0].shape[args[1]])
            later = steps > steps[:, None]  # of each sum (..., steps, 1), the elements that are not in it
            return x[..., None, :].masked_fill(later, -torch.inf).logsumexp(-1).movedim(-1, args[1])
        if func is torch._weight_norm:
            v, g, dim = args
            return g * v / v.square().sum([d for d in range(v.ndim) if d != dim], keepdim=True).sqrt()
        return func(*args, **(kwargs or {}))


class Truth:
    """A float64 copy in eval mode, and derivatives of its mean loss over some rows, by default of cross-entropy.

    Args:
        model: the network.  inputs: a tensor or a dict of them.  labels: (N,).  names: parameters that count, or all.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, labels: Tensor, names: list[str] | None = None, loss: Any = F.cross_entropy
    ) -> None:
        with torch.no_grad():  # scripted parameters stay leaves
            self.model = copy.deepcopy(model).double().eval()
        self.inputs = _map(lambda x: x.double() if x.is_floating_point() else x, inputs)
        self.labels, self.loss = labels, loss
        for module in self.model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False
        known = dict(self.model.named_parameters())
        self.tensors = [p for n, p in known.items() if names is None or n in names]
        for name, p in known.items():
            p.requires_grad_(names is None or name in names)
        self.size = sum(t.numel() for t in self.tensors)
        self.slope: list[Tensor] = []

    def logits(self, rows: slice = slice(None)) -> Tensor:
        inputs = _map(lambda x: x[rows], self.inputs)
        with torch.enable_grad(), Written():
            out: Any = self.model(**inputs) if isinstance(inputs, dict) else self.model(inputs)
        out = out["logits"] if isinstance(out, dict) else getattr(out, "logits", out)
        z: Tensor = out[0] if isinstance(out, tuple | list) else out
        return torch.cat([torch.zeros_like(z), z], 1) if z.shape[1] == 1 else z

    def gradient(self) -> Tensor:
        """(P,), with its graph."""
        if not self.slope:
            loss = self.loss(self.logits(), self.labels).mean()
            self.slope = list(torch.autograd.grad(loss, self.tensors, create_graph=True, materialize_grads=True))
        return _flat(self.slope)

    def product(self, v: Tensor) -> Tensor:
        self.gradient()
        if not (live := [i for i, slope in enumerate(self.slope) if slope.requires_grad]):
            return torch.zeros_like(v)
        # copies: a complex view starts at an even place
        pieces = [p.clone().view_as(t) for p, t in zip(v.split([t.numel() for t in self.slope]), self.slope)]
        pair = [self.slope[i] for i in live], self.tensors, [pieces[i] for i in live]
        return _flat(torch.autograd.grad(*pair, retain_graph=True, materialize_grads=True))

    def hessian(self) -> Tensor:
        h = torch.stack([self.product(e) for e in torch.eye(self.size, dtype=torch.float64)])
        return (h + h.T) / 2

    def ggn_trace(self) -> float:
        """Row by row, each alone: Σ_c p_c ‖Jᵀ(e_c - p)‖²."""
        total = 0.0
        for n in range(len(self.labels)):
            z = self.logits(slice(n, n + 1))[0]
            columns = (torch.autograd.grad(one, self.tensors, retain_graph=True, materialize_grads=True) for one in z)
            jacobian = torch.stack([_flat(c) for c in columns])
            p = z.detach().softmax(0)
            total += float((p[:, None] * (jacobian - p @ jacobian).square()).sum())
        return total / len(self.labels)

    def largest(self, tol: float) -> float:
        """λmax by ARPACK."""
        size = (self.size, self.size)
        operator = LinearOperator(size, lambda v: self.product(torch.from_numpy(v.ravel())).numpy(), dtype=np.float64)
        start = np.random.default_rng(1).standard_normal(self.size)
        few = min(self.size, 16)
        return float(eigsh(operator, 1, which="LA", tol=tol, v0=start, ncv=few, return_eigenvectors=False)[0])


def _flat(tensors: Any) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _map(function: Any, inputs: Any) -> Any:
    return {k: function(v) for k, v in inputs.items()} if isinstance(inputs, dict) else function(inputs)


def judge(model: nn.Module, inputs: Any, budget: float = 10.0, most: int = 1500, quick: bool = False) -> Verdict:
    """Default run on a block of parameters against its dense Hessian; logits, a product and λmax of all of them.

    Args:
        budget: seconds for the dense Hessian, and again for λmax of all.  most: parameters of the block.
        quick: the default run in float32 alone, λmax of all in float64 alone.
    """
    torch.set_num_threads(1)
    model.eval()
    start = time.process_time()
    done = Verdict("equal", parameters=sum(p.numel() for p in model.parameters()))
    labels = torch.arange(len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)) % 2
    try:
        found = curvature(model, (inputs, labels), "grad_norm", device="cpu")  # refuses what cannot be measured
        matrix = hessian(model, (inputs, labels), device="cpu")
        matrix @ torch.ones(matrix.shape[1])  # refuses what has no second derivative
        if any("products in float32 are rounded" in note for note in found.notes):
            done.rounded = True
        model = getattr(model, "_orig_mod", model)  # of torch.compile: the truth cannot be had of it
        done.text = "; ".join(_wrong(model, inputs, labels, budget, most, quick, done))
        done.how = "differs" if done.text else "equal"
    except CalibError as error:
        named = error.code == 4 and error.fix and "\n" not in error.problem
        done.how, done.text = "refused" if named else "crash", str(error)
    done.seconds = time.process_time() - start
    return done


def _wrong(
    model: nn.Module, inputs: Any, labels: Tensor, budget: float, most: int, quick: bool, done: Verdict
) -> list[str]:
    """What does not agree."""
    pair, wrong = (inputs, labels), []
    with by_hand():
        names = [n for n, p in model.named_parameters() if p.requires_grad and p.is_floating_point()]
        truth = Truth(model, inputs, labels, names)
        v = torch.randn(truth.size, generator=torch.Generator().manual_seed(0)).double()
        own = truth.logits().detach()
        gradient = float(truth.gradient().detach().norm())
        start = time.process_time()
        true = truth.product(v)
        each = max(time.process_time() - start, 1e-6)  # the clock may stand still
        tol = 1e-3 if each * 40 < budget else 2e-2
        top = truth.largest(tol / 10)
        block = kinds(model, names, int(min(most, max(60, budget / each))))
        few = Truth(model, inputs, labels, block)
        h, done.block = few.hessian(), few.size
        known = {"trace_ggn": few.ggn_trace(), "grad_norm": float(few.gradient().detach().norm())}
    for dtype in ("float64", "float32"):
        done.logits[dtype] = float((_written(model, pair, dtype) - own).abs().max() / own.abs().max())
        wrong += [f"{dtype}: logits"] if done.logits[dtype] > NEAR[dtype] else []
        with second_order(torch.device("cpu")):
            product = _product(model, pair, v, getattr(torch, dtype))
        done.product[dtype] = float((product - true).norm() / true.norm().clamp(min=1e-300))
        near = 1e-8 if dtype == "float64" else 0.1 if done.rounded else 1e-2
        wrong += [f"{dtype}: product"] if done.product[dtype] > near else []
        if dtype == "float64" or not quick:
            found = curvature(model, pair, f"lambda_max:tol={tol}", "grad_norm", dtype=dtype, device="cpu")
            value, slope = (float(found[name].value) for name in ("lambda_max", "grad_norm"))
            done.largest[dtype] = abs(value - top) / abs(top)
            wrong += [f"{dtype}: λmax of all {value:.6g}, true {top:.6g}"] if done.largest[dtype] > 2 * tol else []
            wrong += [f"{dtype}: gradient norm"] if abs(slope - gradient) > NEAR[dtype] * gradient else []
        if dtype == "float32" or not quick:
            found = curvature(model, pair, params=",".join(block), dtype=dtype, device="cpu")
            wrong += [
                f"{dtype}: {one}"
                for one in differences(found, h, known, max(near, NEAR[dtype]) if done.rounded else NEAR[dtype])
            ]
    return wrong


def differences(found: Result, h: Tensor, known: dict[str, float], near: float) -> list[str]:
    """Estimates of a default run that the dense Hessian contradicts."""
    values = torch.linalg.eigvalsh(h)
    scale = float(values.abs().max())
    true = {"lambda_max": [float(values[-1])], "lambda_min": [float(values[0])], "trace": [float(h.trace())]}
    true |= {name: [value] for name, value in known.items()} | {"top": values.flip(0).tolist()[:5]}
    wrong = []
    for name, expected in true.items():
        got = [e for e in found.estimates if e.name == name]
        wrong += [] if got else [f"no {name}"]
        for e, t in zip(got, expected):
            low, high = e.detail.get("estimator_low", e.value), e.detail.get("estimator_high", e.value)
            wide = 3 if "trace" in name else 1  # these intervals hold in 95 of 100 cases, the others in all
            margin = near * max(scale, abs(t)) * (1 if name in known else 2 * len(h) ** 0.5)
            if not e.value - wide * (e.value - low) - margin <= t <= e.value + wide * (high - e.value) + margin:
                wrong.append(f"{name} {e.value:.6g} [{low:.6g}, {high:.6g}], true {t:.6g}")
    return wrong


def kinds(model: nn.Module, names: list[str], most: int) -> list[str]:
    """Tensors of at most so many numbers together: the smallest of each kind of layer, then other small ones."""
    known = {n: p for n, p in model.named_parameters(remove_duplicate=True) if n in names}
    modules = dict(model.named_modules())
    first: dict[tuple[type, str], str] = {}
    for n in sorted(known, key=lambda n: known[n].numel()):
        owner, _, local = n.rpartition(".")
        first.setdefault((type(modules.get(owner, model)), local), n)
    chosen: list[str] = []
    for n in [*first.values(), *sorted(known, key=lambda n: known[n].numel())]:
        if n not in chosen and sum(known[c].numel() for c in chosen) + known[n].numel() <= most:
            chosen.append(n)
    return [n for n in names if n in chosen]


def _written(model: nn.Module, pair: tuple[Any, Tensor], dtype: str) -> Tensor:
    """(N, K) of the file that `calib logits` writes, three rows at a time."""
    with TemporaryDirectory() as folder:
        logits(model, pair, save=(path := Path(folder) / "logits.npz"), batch_size=3, dtype=dtype, device="cpu")
        return torch.from_numpy(np.load(path)["logits"]).double()


def _product(model: nn.Module, pair: tuple[Any, Tensor], v: Tensor, dtype: torch.dtype) -> Tensor:
    problem = CurvatureProblem(model, Tensors(*pair), forward=inference.logits, device=torch.device("cpu"), dtype=dtype)
    return SecondDerivative(problem, hessian_scalar(CrossEntropy())).matvec(v)


@contextlib.contextmanager
def by_hand() -> Iterator[None]:
    """Attention without its fused forms and functions as written, not compiled: those have no second derivative."""
    torch.backends.mha.set_fastpath_enabled(False)
    with sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager"):
        yield
    torch.backends.mha.set_fastpath_enabled(True)
