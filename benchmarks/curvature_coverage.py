"""Do the intervals of `calib curvature` cover what they claim to? By simulation, against dense Hessians.

    python benchmarks/curvature_coverage.py [--seeds 500] [--samples 300] [--part PART] [--only NAME]

1. Estimator: over seeds, the trace's 95 % interval against the exact trace of five networks, and its bias; and that of
   the share of negative eigenvalues from 40 Lanczos steps, which may be wider than what it claims.
2. Bounds: on every one of them and for every seed, an eigenvalue lies within the printed residual, at loose and tight
   tolerances; and how often it is the largest, to the tolerance.
3. Sample: over data sets drawn (with replacement) from a population of 8,000 rows, the 95 % intervals of trace and λmax
   against the population's. The networks are fitted to other rows than those drawn, as the intervals assume.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from calibcli.hessian import QUANTITIES, LogitLoss, Tensors, measure
from calibcli.hessian.engine import Engine, Shared
from calibcli.hessian.problem import Problem
from calibcli.hessian.settings import second_order
from calibcli.losses import CrossEntropy, final

torch.set_num_threads(1)
TOLERANCES = (0.3, 0.03, 1e-3)
ONE_ROW = "one row dominates"


class Block(nn.Module):
    """LayerNorm and attention over four tokens of four features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.head = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x.view(-1, 4, 4))).chunk(3, 2)
        return self.head((x.view(-1, 4, 4) + nn.functional.scaled_dot_product_attention(q, k, v)).mean(1))


def smooth() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5), nn.SiLU(), nn.Linear(5, 5), nn.SiLU(), nn.Linear(5, 3)
    ).double()


def networks() -> dict[str, tuple[nn.Module, int, int]]:
    """Model, width of its inputs and classes by name."""
    torch.manual_seed(1)
    return {
        "MLP, tanh": (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double(), 4, 3),
        "MLP, SiLU and LayerNorm": (smooth(), 4, 3),
        "attention": (Block().double(), 16, 3),
        "two classes": (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double(), 4, 2),
        ONE_ROW: (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).double(), 4, 3),
    }


def one_row(model: nn.Module, inputs: Tensor) -> Tensor:
    """Make every row sure but row 14, which is put between two classes, in place; the labels are the predictions."""
    with torch.no_grad():
        model[2].weight.mul_(40)  # type: ignore[index,operator,union-attr]
        classes = model(inputs).argmax(1)
        low, high = inputs[0], inputs[int((classes != classes[0]).nonzero()[0])]
        for _ in range(60):
            inputs[14] = (low + high) / 2
            same = model(inputs[14:15]).argmax() == classes[0]
            low, high = (inputs[14].clone(), high) if same else (low, inputs[14].clone())
        return model(inputs).argmax(1)


def data(n: int, width: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes around random centres; small spread of the centres makes it hard."""
    stream = torch.Generator().manual_seed(seed)
    centres = spread * torch.randn(3, width, generator=stream)
    labels = torch.randint(0, 3, (n,), generator=stream)
    return (centres[labels] + torch.randn(n, width, generator=stream)).double(), labels


def train(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int = 200) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def hessian(model: nn.Module, inputs: Tensor, labels: Tensor, criterion: LogitLoss) -> Tensor:
    """(P, P) Hessian of the mean loss; reverse over reverse, since forward mode is wrong through LayerNorm."""
    sizes = [p.numel() for p in model.parameters()]
    shapes = {n: p.shape for n, p in model.named_parameters()}
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def loss(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parameters = {n: v.view(s) for (n, s), v in zip(shapes.items(), t.split(sizes))}
        return criterion(functional_call(model, parameters, (x[None],)), y[None])[0]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        each = vmap(jacrev(grad(loss)), (None, 0, 0))
        sums = [each(theta, x, y).sum(0) for x, y in zip(inputs.split(500), labels.split(500))]
    return torch.stack(sums).sum(0) / len(labels)


def share(hits: list[bool]) -> str:
    p = sum(hits) / len(hits)
    return f"{100 * p:5.1f} % (± {196 * math.sqrt(max(p * (1 - p), 1e-9) / len(hits)):.1f})"


def estimator(seeds: int, only: str) -> None:
    print(f"1. the trace's 95 % estimator interval; 2. λmax's residual; {seeds} seeds")
    for name, (model, width, classes) in networks().items():
        if only not in name:
            continue
        x, y = data(128, width, 1.0)
        y = y % classes
        train(model, x, y)
        y = one_row(model, x) if name == ONE_ROW else y
        h = hessian(model, x, y, CrossEntropy())
        exact, spectrum = float(h.trace()), torch.linalg.eigvalsh(h)
        top = float(spectrum[-1])
        problem = Problem(model, Tensors(x, y), device=torch.device("cpu"), dtype=torch.float64, batch_size=256)
        problem.classes = classes
        shared = Shared(problem, 0, 0.95, None)  # set up once: only the seed changes
        hits, errors, shares, width_of = [], [], [], 0.0
        inside: dict[float, list[bool]] = {tol: [] for tol in TOLERANCES}
        largest: dict[float, list[bool]] = {tol: [] for tol in TOLERANCES}
        for seed in range(seeds):
            shared.seed = seed
            engine = Engine(shared, CrossEntropy())
            (e,) = QUANTITIES.choose("trace:precision=0.05")(engine).estimates
            hits.append(e.detail["estimator_low"] <= exact <= e.detail["estimator_high"])
            errors.append((e.value - exact) / max(e.detail["estimator_se"], 1e-9 * exact))
            for tol in TOLERANCES:  # loose first: the run goes on, its certificate is new each time
                engine._certificates.clear()
                (e,) = QUANTITIES.choose(f"lambda_max:tol={tol}")(engine).estimates
                inside[tol].append(float((spectrum - e.value).abs().min()) <= e.detail["residual"] + 1e-12)
                largest[tol].append(abs(e.value - top) <= tol * top)
            (e,) = QUANTITIES.choose("density:steps=40")(engine).estimates
            negative = float((spectrum < -e.detail["sigma"]).double().mean())
            shares.append(e.detail["estimator_low"] <= negative <= e.detail["estimator_high"])
            width_of += (e.detail["estimator_high"] - e.detail["estimator_low"]) / seeds
        bias = sum(errors) / len(errors)
        print(f"   {name:24} covers {share(hits)}, mean error {bias:+.2f} ± {1 / math.sqrt(seeds):.2f} standard errors")
        print(f"   {'':24} share of negative eigenvalues {share(shares)}, intervals {width_of:.2f} wide on average")
        for tol in TOLERANCES:
            print(f"   {'':24} tol={tol:g}: an eigenvalue within the residual {share(inside[tol])}, ", end="")
            print(f"λmax within the tolerance {share(largest[tol])}", flush=True)


def sample(samples: int, only: str) -> None:
    print(f"3. 95 % intervals over {samples} samples against the population of 8,000")
    ce, focal = CrossEntropy(), final("focal:gamma=2")
    for label, spread, criterion, rows in (
        ("hard", 0.8, ce, 256),
        ("easy, heavy tails", 2.0, ce, 256),
        ("hard, focal", 0.8, focal, 200),  # indefinite in the logits, ragged groups
        ("hard, few rows", 0.8, ce, 64),
    ):
        torch.manual_seed(1)
        models = {
            "ReLU": nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double(),
            "tanh": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
            "SiLU and LayerNorm": smooth(),
        }
        x, y = data(10_000, 4, spread)
        for kind, model in models.items():
            if only not in f"{label} {kind}":
                continue
            train(model, x[8000:], y[8000:], 300)
            h = hessian(model, x[:8000], y[:8000], criterion)
            true = {"trace": float(h.trace()), "lambda_max": float(torch.linalg.eigvalsh(h)[-1])}
            low, high = (dict.fromkeys(true, 0) for _ in range(2))
            for i in range(samples):
                index = torch.randint(0, 8000, (rows,), generator=torch.Generator().manual_seed(i))
                found = measure(model, (x[index], y[index]), "trace", "lambda_max", loss=criterion, seed=i)
                for k in true:
                    low[k] += found[k].low > true[k]
                    high[k] += found[k].high < true[k]
            print(f"   {label:18} {kind:18} n = {rows:3}:", end="")
            for k in true:
                hits = [True] * (samples - low[k] - high[k]) + [False] * (low[k] + high[k])
                print(f" {k} {share(hits)}, too high {low[k]}, too low {high[k]};", end="")
            print(flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--only", default="", help="part of a network's or a population's name")
    parser.add_argument("--part", choices=("estimator", "sample"), help="1 and 2, or 3; both when left out")
    options = parser.parse_args()
    if options.part != "sample":
        with second_order(torch.device("cpu")):
            estimator(options.seeds, options.only)
    if options.part != "estimator":
        sample(options.samples, options.only)
