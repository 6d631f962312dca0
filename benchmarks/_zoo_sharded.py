"""Networks in half precision, with adapters on an int8 base, and with weights that two processes share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _zoo_models import K, Made, Maker, images
from _zoo_truth import Truth, Verdict, by_hand
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from calibcli import curvature

ASKED = "lambda_max:tol=1e-4", "trace:probes=4"


class Packed(nn.Module):
    """A frozen linear layer of int8 weights with a scale for each output, and an adapter of rank 2 (LoRA)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("packed", (weight / scale).round().to(torch.int8))
        self.register_buffer("bias", layer.bias.detach())
        self.down = nn.Parameter(torch.randn(2, weight.shape[1]) / 4)
        self.up = nn.Parameter(torch.randn(weight.shape[0], 2) / 4)

    def forward(self, x: Tensor) -> Tensor:
        base = F.linear(x, self.packed.to(x.dtype) * self.scale, self.bias)  # type: ignore[operator]
        return base + x @ self.down.T @ self.up.T


class Words(nn.Module):
    """Words to classes, by attention to all others (an encoder) or to those before (causal); the last word tells."""

    def __init__(self, causal: bool, width: int = 8) -> None:
        super().__init__()
        self.causal, self.words = causal, nn.Embedding(16, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 12), nn.Linear(12, width), nn.Linear(width, K)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        n, t, w = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(n, t, 3, 2, w // 2).permute(2, 0, 3, 1, 4)  # (n, heads, t, w / heads)
        h = h + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(n, t, w)
        )
        return self.head((h + self.down(F.gelu(self.up(self.norm2(h)))))[:, -1])


def words(causal: bool) -> Made:
    return Words(causal), torch.randint(16, (6, 5))


def convolutions() -> Made:
    first, second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, stride=2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, K)
    return nn.Sequential(first, nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), *head), images(16)


def half(make: Maker) -> Made:
    model, inputs = make()
    return model.to(torch.bfloat16), inputs


def adapted(make: Maker) -> Made:
    """Adapters on an int8 base, which is frozen."""
    model, inputs = make()
    model.requires_grad_(False)
    for name, layer in [
        (n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and not n.startswith("head")
    ]:
        setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], Packed(layer))
    return model, inputs


SHARDED: dict[str, Callable[[], Made]] = {
    "encoder": partial(words, False),
    "causal": partial(words, True),
    "convolutions": convolutions,
}


def narrow() -> dict[str, Maker]:
    """Five networks; the truth is that of their weights, widened to float64."""
    found: dict[str, Maker] = {f"{name}_bfloat16": partial(half, make) for name, make in SHARDED.items()}
    return found | {f"{name}_int8_lora": partial(adapted, SHARDED[name]) for name in ("encoder", "causal")}


def sharded() -> dict[str, Maker]:
    """Three networks that two processes judge; `verdict` stands for the network."""
    return {name: partial(verdict, name) for name in SHARDED}  # type: ignore[misc]


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, inputs = SHARDED[name]()
    return model.eval(), inputs, torch.arange(len(inputs)) % 2


def verdict(name: str) -> Verdict:
    """Logits, λmax and the trace that two processes find, against a float64 copy on one."""
    start = time.process_time()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, name]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return Verdict("crash", done.stderr.strip().splitlines()[-1])
    found, (model, inputs, labels) = json.loads(done.stdout.splitlines()[-1]), made(name)
    truth = Truth(model, inputs, labels)
    with by_hand():
        h = truth.hessian()
        logits = truth.logits().detach()
    result, wrong = Verdict("equal", parameters=truth.size, block=truth.size), []
    true = {"lambda_max": float(torch.linalg.eigvalsh(h)[-1]), "trace": float(h.trace())}
    for key, (value, low, high) in found["estimates"].items():
        wide = 3 if key == "trace" else 1  # of its interval, which holds in 95 of 100 cases
        if not value - wide * (value - low) <= true[key] <= value + wide * (high - value):
            wrong.append(f"{key} {value:.6g} [{low:.6g}, {high:.6g}], true {true[key]:.6g}")
    if not torch.allclose(torch.tensor(found["logits"], dtype=torch.float64), logits, rtol=1e-4, atol=1e-5):
        wrong.append("logits")
    result.largest["float32"] = abs(found["estimates"]["lambda_max"][0] / true["lambda_max"] - 1)
    result.how, result.text, result.seconds = (
        "differs" if wrong else "equal",
        "; ".join(wrong),
        time.process_time() - start,
    )
    return result


def one_of_two(name: str) -> None:
    """Shard the network, measure it, and print from one process what was found."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model, inputs, labels = made(name)
    mesh = init_device_mesh("cpu", (2,))
    for layer in [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)][1:]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    found = curvature(model, (inputs, labels), *ASKED, products="gradients", device="cpu")
    with torch.no_grad():
        logits = model(inputs).tolist()
    if distributed.get_rank() == 0:
        estimates: dict[str, Any] = {
            e.name.partition(":")[0]: [e.value, e.detail["estimator_low"], e.detail["estimator_high"]]
            for e in found.estimates
        }
        print(json.dumps({"estimates": estimates, "logits": logits}), flush=True)
    distributed.barrier()
    os._exit(0)  # threads of gloo may abort a process that ends


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    one_of_two(sys.argv[1])
