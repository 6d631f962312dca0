"""λmax of G and of H by differences, of logits and of gradients: true and printed error, and the cost of a product.

    python benchmarks/without_second_derivative.py [--rounds 5]

1. The small trained networks of `tests/test_curvature_differences.py`, most of them without a second derivative: the
   error of `lambda_max_ggn` and the bound that is printed, both over the value of the dense G in float64.
2. λmax of H from gradients alone in float32, of those of `tests/test_curvature_gradients.py`: its error against double
   backward in float64 (of a network that lacks it, in other operations), the bound, and gradients for each product.
3. CPU seconds of a product over one by double backward, neither with graphs that are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from _harness import arguments, by_turns, head, machine, ratio, row
from torch import Tensor

from calibcli.networks import checkpoint
from calibcli.networks.curvature import Tensors, measure
from calibcli.networks.curvature.differences import GradientDifferences, gauss_newton
from calibcli.networks.curvature.operator import SecondDerivative, hessian_scalar
from calibcli.networks.curvature.problem import CurvatureProblem, second_order
from calibcli.networks.losses import CrossEntropy

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import test_curvature_differences as networks
import test_curvature_gradients as hessians

CE, SPEC = CrossEntropy(), "lambda_max_ggn:tol=1e-6,by=differences"
COSTS = {"mlp 784-256-256, 256 rows": ("mlp:inputs=784,hidden=256/256", (784,), 256)}
COSTS |= {"ResNet-20, 32 rows": ("resnet:depth=20", (3, 32, 32), 32)}


def errors(name: str) -> str:
    model, x, y = networks.trained((networks.ONCE | networks.TWICE)[name])
    true = float(torch.linalg.eigvalsh(networks.dense(model, x, y))[-1])
    cells = []
    for dtype in (torch.float64, torch.float32):
        (e,) = measure(model, (x, y), SPEC, dtype=dtype, loss=CE).estimates
        cells += [f"{abs(float(e.value or 0) - true) / true:.1e}", f"{float(e.detail['residual'] or 0) / true:.1e}"]
    return row(name, *cells)


def from_gradients(name: str) -> str:
    """A row of the second table."""
    made, plain = 0, GradientDifferences._gradient

    def counted(self: GradientDifferences, *given: Any) -> list[Tensor]:
        nonlocal made
        made += len(self.problem.source) == len(given[0][2])  # passes over all rows, but for those by group
        return plain(self, *given)

    GradientDifferences._gradient = counted  # type: ignore[method-assign]
    true, e = hessians.both(name)
    GradientDifferences._gradient = plain  # type: ignore[method-assign]
    off, bound = abs(e.value - true) / true, float(e.detail["residual"]) / true
    return row(
        name, f"{off:.1e}", f"{bound:.1e}", "yes" if off <= bound else "no", f"{made / e.detail['products']:.1f}"
    )


def cost(name: str, rounds: int) -> str:
    arch, shape, rows = COSTS[name]
    torch.manual_seed(0)
    data = Tensors(torch.randn(rows, *shape), torch.randint(0, 10, (rows,)))
    where = torch.device("cpu")
    problem = CurvatureProblem(checkpoint.build(arch), data, device=where, dtype=torch.float32, memory="low")
    problem.classes, v = 10, torch.randn(problem.size)
    products: dict[str, Tensor] = {}
    both = {key: gauss_newton(problem, CE, True, key == "differences") for key in ("double", "differences")}
    both |= {"H": SecondDerivative(problem, hessian_scalar(CE)), "gradients": GradientDifferences(problem, CE, True)}
    with second_order(where, problem.model):
        both["gradients"].matvec(v)  # which finds the step
        works = {key: lambda key=key: products.__setitem__(key, both[key].matvec(v)) for key in both}
        times = by_turns(works, rounds)
    off = (products["differences"] - products["double"]).norm() / products["double"].norm()
    ratios = ratio(times["differences"], times["double"], 2), ratio(times["gradients"], times["H"], 2)
    return row(name, ratios[0], f"{float(off):.0e}", ratios[1])


if __name__ == "__main__":
    given = arguments(__doc__, rounds=5)
    torch.set_num_threads(1)
    print(machine("torch"))
    print(head("network", "error, float64", "bound", "error, float32", "bound"))
    for network in networks.ONCE | networks.TWICE:
        print(errors(network), flush=True)
    print(head("network", "error of λmax of H", "bound", "covered", "gradients a product"))
    for network in hessians.TRAINED:
        print(from_gradients(network), flush=True)
    print(head("network", "G: seconds over double backward", "difference, float32", "H: the same"))
    for network in COSTS:
        print(cost(network, given.rounds), flush=True)
