"""Variance of probes of H - G and of Hutchinson's probes of H, while a ViT is trained on CIFAR-10.

    python benchmarks/probes.py --data DIR [--epochs 4 8 16]     (cifar10_train_5000.npz in DIR)

On 128 rows, after so many epochs: the spread of one Hutchinson probe of H, and that of one pass over the data of probes
of H - G, fresh in every 8 rows, the same number for each or allocated by spread; and the CPU time of a pass, carried
forward, over that of a Hessian product.
"""

from __future__ import annotations

import sys
import time

import torch
from _harness import arguments
from curvature import TRAINED, images, train

from calibcli.networks.architectures import ARCHITECTURES
from calibcli.networks.curvature import Tensors
from calibcli.networks.curvature import trace as traces
from calibcli.networks.curvature.engine import Engine, Shared
from calibcli.networks.curvature.problem import CurvatureProblem, second_order, signs
from calibcli.networks.curvature.selftest import check
from calibcli.networks.losses import CrossEntropy

ROWS, PROBES = 128, 16


def report(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    problem = CurvatureProblem(model, Tensors(x, y), device=torch.device("cpu"), dtype=torch.float32)
    with second_order(problem.device):
        check(problem, CrossEntropy())
        engine = Engine(Shared(problem, 0, 0.95, None), CrossEntropy())
        pairs = engine.ggn(0.01)
        assert pairs is not None
        assert engine.prober.forward
        start, forms = time.process_time(), []
        for v in signs(problem.size, 1, 0, range(PROBES)).double():
            forms.append(float(torch.dot(v, engine.hessian.matvec(v))))
        product = (time.process_time() - start) / PROBES
        engine.hessian.drop()
        cell = traces.coarse(ROWS)
        none = torch.zeros(ROWS // cell, dtype=torch.long)
        start = time.process_time()
        found = engine.prober(none, none + PROBES, cell, whole=False)
        each = (time.process_time() - start) / PROBES
    mean, variance = traces.moments(found.forms)
    variance = variance * PROBES  # of one probe
    h = float(torch.tensor(forms).std())
    equal, shared = float(variance.sum()) ** 0.5 / ROWS, float(variance.sqrt().sum()) * cell**0.5 / ROWS**1.5
    trace = pairs.value + float(mean.sum()) / ROWS
    spreads = f"spread of a probe of H {h:.0f}, of a pass {equal:.0f}, shared out {shared:.0f}"
    less = f"variance {(h / equal) ** 2:.1f} and {(h / shared) ** 2:.1f} times less"
    cost = f"at {each / product:.2f} of a product's cost"
    print(f"   Tr(H) {trace:.0f}, Tr(G) {pairs.value:.0f}; {spreads}: {less}, {cost}")


if __name__ == "__main__":
    given = arguments(__doc__, data="", epochs=[4, 8, 16])
    if not given.data:
        print("no --data with cifar10_train_5000.npz: skipped")
        sys.exit()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ARCHITECTURES.choose(TRAINED["vit-cifar"][0])()
    x, y = images(f"{given.data}/cifar10_train_5000.npz", 5000)
    for done, epochs in zip([0, *given.epochs], given.epochs):
        train(model, x, y, (part for _ in range(epochs - done) for part in torch.randperm(len(x)).view(-1, 40).T))
        with torch.no_grad():
            accuracy = float((model(x).argmax(1) == y).double().mean())
        print(f"{epochs} epochs, training accuracy {accuracy:.2f}", flush=True)
        report(model, x[:ROWS], y[:ROWS])
