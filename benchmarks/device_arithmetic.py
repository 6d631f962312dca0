"""What curvature of large networks would take on a GPU: kernels counted on a pretended one, the rest arithmetic.

    python benchmarks/device_arithmetic.py [resnet18] [vit_s16] [resnet50 ...]   (torchvision for the residual networks)

Nothing here has run on a GPU. For two rows of 224 x 224 the pretended device of tests/device counts launches and
`FlopCounterMode` the operations of products; both are carried over to 256 rows in micro-batches that memory takes. A
kernel takes what the host needs to launch it or what its operations take at half the peak, whichever is more in sum.
Memory's bandwidth, occupancy and cuDNN's choices are not in it. Other tools are one plain product (a double backward
whose graph is kept) times the products that they need; ours are counted quantity by quantity.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LAUNCH = 6e-6  # seconds that the host takes for a launch, a usual figure
PEAK = {"float32": 67e12, "TF32": 495e12}  # an H200's dense peaks, operations a second
REACHED = 0.5
MEMORY = 139 << 30  # bytes of an H200, of which a micro-batch's graph may take a quarter
ROWS, FEW = 256, 2
PRODUCTS = {"resnet": (8, 6, 16), "vit": (7, 6, 15)}
"""Those of a ResNet-20 and a ViT on a CPU for λmax to 1e-3 (benchmarks/RESULTS.md): ours before the certificate and
without one, and PyHessian's."""
PROBES = 3230  # Hutchinson's for 1 % of the trace of that ResNet-20
TEST = 3  # plain products of four rows, by kernels, that self-test and plan take (benchmarks/device.py)


class Work(NamedTuple):
    """Launches, and operations of products."""

    kernels: int
    operations: float

    def seconds(self, speed: str, times: float = 1.0, rows: float = 1.0) -> float:
        """Of `times` as many launches and `times * rows` as many operations."""
        return times * max(self.kernels * LAUNCH, rows * self.operations / (REACHED * PEAK[speed]))


def counted(work: Callable[[], Any]) -> Work:
    import pretend
    from torch.utils.flop_counter import FlopCounterMode

    pretend.reset()
    with FlopCounterMode(display=False) as counter:
        work()
    return Work(pretend.kernels(), counter.get_total_flops())


def network(name: str) -> Any:
    if name == "vit_s16":
        from calibcli.architectures import build

        return build("vit:classes=1000,image=224,patch=16,dim=384,depth=12,heads=6")
    sys.path.append(str(ROOT / "tests"))
    import zoos  # noqa: F401  torchvision beside a CPU torch
    from torchvision import models

    return getattr(models, name)()


def plain(model: Any, x: Any, y: Any) -> Work:
    """A double backward of all rows, its graph kept."""
    import torch

    weights = list(model.parameters())
    gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), weights, create_graph=True)
    v = [torch.ones_like(w) for w in weights]
    return counted(lambda: torch.autograd.grad(gradients, weights, v, retain_graph=True))


def measured(name: str) -> tuple[dict[str, Work], int]:
    """The counts for FEW rows, and the bytes of a row's graph."""
    import torch

    from calibcli.hessian import Tensors
    from calibcli.hessian.engine import Engine, Shared
    from calibcli.hessian.problem import Problem
    from calibcli.hessian.selftest import check
    from calibcli.hessian.settings import second_order
    from calibcli.losses import CrossEntropy

    torch.manual_seed(0)
    cuda, out = torch.device("cuda", 0), {}
    model = network(name).to(cuda).eval()
    x, y = torch.randn(FEW, 3, 224, 224).to(cuda), torch.arange(FEW).to(cuda)
    with second_order(cuda):
        out["plain"] = plain(model, x, y)
        problem = Problem(model, Tensors(x, y), device=cuda, dtype=torch.float32)
        check(problem, CrossEntropy())
        engine = Engine(Shared(problem, 0, 0.95, None), CrossEntropy())
        ones = torch.ones(problem.size, device=cuda)
        engine.hessian.matvec(ones)  # its graph is kept
        out["product"] = counted(lambda: engine.hessian.matvec(ones))
        out["trial"], out["certificate"] = (counted(lambda: list(engine.hessian.by_group(ones))) for _ in range(2))
        if not name.startswith("vit"):
            cotangents = torch.ones(FEW, problem.classes, device=cuda)
            engine.shared.norms  # noqa: B018
            out["pairs"] = counted(lambda: engine.shared.norms(torch.arange(FEW), cotangents))
    return out, problem.graph_bytes


def said(name: str, found: dict[str, Work], graph: int) -> str:
    """The lines of a network."""
    micro = 1
    while micro < ROWS and 2 * micro * graph <= MEMORY // 4:
        micro *= 2
    batches, scale = ROWS // micro, micro / FEW
    plain, ours = found["plain"], found["product"]
    lines = [
        f"{name}: {plain.operations / FEW / 1e9:.0f} GFLOP a row and product, {graph >> 20} MiB of graph a row,"
        f" {batches} micro-batches of {micro} rows",
        f"   launches: plain product {plain.kernels:,}, ours {ours.kernels:,} a micro-batch"
        f" ({ours.kernels / plain.kernels:.2f}), certificate {found['trial'].kernels:,} (a second one"
        f" {found['certificate'].kernels:,})",
    ]
    for speed in PEAK:
        one, kept = plain.seconds(speed, 1, ROWS / FEW), ours.seconds(speed, batches, scale)
        by_group = found["trial"].seconds("float32", 1, scale)
        if batches > 1:
            by_group += found["certificate"].seconds("float32", batches - 1, scale)
        test = TEST * plain.seconds(speed, 1, 4 / FEW)
        certified, estimated, others = next(v for key, v in PRODUCTS.items() if name.startswith(key))
        largest, estimate, theirs = test + certified * kept + by_group, test + estimated * kept, others * one
        lines.append(
            f"   {speed:8}: product {kept * 1e3:.0f} ms, plain {one * 1e3:.0f} ({one / kept:.2f}); λmax"
            f" {largest:.1f} s certified, {estimate:.1f} not, PyHessian {theirs:.1f}"
            f" ({theirs / largest:.1f}, {theirs / estimate:.1f})"
        )
        if "pairs" in found:
            traced = 3 * found["pairs"].seconds("float32", batches, scale)
            lines[-1] += (
                f"\n{'':13}trace to 1 % {traced:.2f} s, Hutchinson {PROBES * one:.0f} ({PROBES * one / traced:,.0f})"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["vit_s16", "resnet18"])
    names = parser.parse_args().names
    sys.path.insert(0, str(ROOT / "tests" / "device"))
    import pretend

    pretend.load()
    print(
        f"Arithmetic for {ROWS} rows of 224 x 224 on an H200, from launches counted on a pretended device; no GPU ran."
    )
    for name in names:
        print(said(name, *measured(name)), flush=True)


if __name__ == "__main__":
    main()
