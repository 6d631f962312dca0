"""Work of curvature on a device: kernels, waits and copies, counted on the pretended device of tests/device.

    python benchmarks/device.py                       all of them
    python benchmarks/device.py --size 16 --rows 64   of fewer pixels and rows

Counts and arithmetic, not a GPU: kernels run on the CPU, and nothing here says how long one takes. The unit is a plain
product: a double backward of the whole batch with its graph kept, as other tools do it. A foreach counts as one kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from _harness import ROOT, arguments, child

LAUNCH = 6e-6  # seconds that the host takes for a launch, a usual figure
Counts = tuple[int, int, int]  # kernels, waits, copies to the device


def counted(work: Callable[[], Any]) -> Counts:
    import pretend

    pretend.reset()
    work()
    return pretend.kernels(), pretend.syncs(), pretend.copies()


def plain(model: Any, x: Any, y: Any) -> Counts:
    """One product by a double backward of the whole batch, its graph kept."""
    import torch
    from torch.nn import functional as F

    weights = list(model.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), weights, create_graph=True)
    v = [torch.ones_like(w) for w in weights]
    return counted(lambda: torch.autograd.grad(gradients, weights, v, retain_graph=True))


def engine(model: Any, rows: tuple[Any, Any], **plan: Any) -> tuple[Any, Counts]:
    """An engine on the device, and what its self-test and plan took."""
    import torch

    from calibcli.networks.curvature import Tensors
    from calibcli.networks.curvature.engine import Engine, Shared
    from calibcli.networks.curvature.problem import CurvatureProblem
    from calibcli.networks.curvature.selftest import check
    from calibcli.networks.losses import CrossEntropy

    cuda = torch.device("cuda", 0)
    problem = CurvatureProblem(model, Tensors(*rows), device=cuda, dtype=torch.float32, **plan)
    test = counted(lambda: check(problem, CrossEntropy()))
    return Engine(Shared(problem, 0, 0.95, None), CrossEntropy()), test


def measured(size: int, rows: int) -> dict[str, Counts]:
    """The counts of every line of the table."""
    sys.path.insert(0, str(ROOT / "tests" / "device"))
    import pretend

    pretend.load()
    import torch

    from calibcli.networks.architectures import build
    from calibcli.networks.curvature.operator import mean_gradient
    from calibcli.networks.curvature.problem import second_order

    torch.manual_seed(0)
    cuda, out = torch.device("cuda", 0), {}
    model = build("resnet:depth=20,classes=10").to(cuda).eval()
    x, y = torch.randn(rows, 3, size, size).to(cuda), (torch.arange(rows) % 10).to(cuda)
    out["plain"] = plain(model, x, y)
    with second_order(cuda):
        found, out["self-test and plan"] = engine(model, (x, y))
        hessian = found.hessian
        v = torch.ones(hessian.size, device=cuda)
        hessian.matvec(v)
        print(found.problem.plan_text, file=sys.stderr)
        out["product"] = counted(lambda: hessian.matvec(v))
        for _ in range(4):
            found.krylov.extend()
        out["Lanczos step"] = counted(found.krylov.extend)
        out["certificate"] = counted(lambda: found.certificate(-1))
        out["second certificate"] = counted(lambda: found.certificate(-2))
        out["gradient norm"] = counted(lambda: mean_gradient(found.hessian))
        out["Tr(G)"] = counted(lambda: found.ggn(found.default_precision))
        out["which tensors bend"] = counted(lambda: found.has_curvature)
        low = engine(model, (x, y), memory="low")[0]
        print(low.problem.plan_text, file=sys.stderr)
        out["product, --memory low"] = counted(lambda: low.hessian.matvec(v))
        vit = build(f"vit:classes=10,image={size},patch=4,dim=32,depth=2,heads=2").to(cuda).eval()
        out["plain, ViT"] = plain(vit, x[:64], y[:64])
        few, out["self-test and plan, ViT"] = engine(vit, (x[:64], y[:64]))
        few.krylov.extend()
        out["certificate, ViT"] = counted(lambda: few.certificate(-1))
        few.has_curvature, few.prober.forward  # noqa: B018
        out["4 probes a cell, ViT"] = counted(lambda: few.probe(0, 4, 0.0))
        out["64 probes a cell, ViT"] = counted(lambda: few.probe(4, 64, 0.0))
    return out


def table(counts: dict[str, Counts]) -> str:
    lines = [f"{'':23}{'kernels':>9}{'x plain':>9}{'waits':>7}{'copies':>7}{'ms':>7}"]
    for name, (kernels, waits, copies) in counts.items():
        unit = counts["plain, ViT" if name.endswith("ViT") else "plain"][0]
        milliseconds = kernels * LAUNCH * 1e3
        lines.append(f"{name:23}{kernels:9,}{kernels / unit:9.2f}{waits:7,}{copies:7,}{milliseconds:7.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    given = arguments(__doc__, size=32, rows=256)
    print(f"ResNet-20, {given.rows} rows of {given.size} x {given.size}, and a ViT of 2 blocks, 64 rows")
    print("Counts on a pretended device and arithmetic, not a GPU: ms is 6 us for each launch.")
    print(table(child(measured, given.size, given.rows)))
