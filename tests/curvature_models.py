"""Small networks and the slow way to their curvature: the explicit Hessian and Gauss-Newton matrix in float64."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from _zoo_plain import Once, Wrong  # noqa: F401

torch.set_num_threads(1)
K = 3


class Focal:
    """-(1-p)^γ log p in log space, with its exact split of the Hessian in the logits."""

    def __init__(self, gamma: float, known: bool = True) -> None:
        self.gamma = gamma
        self.spec = f"focal:gamma={gamma:g}"
        if known:
            self.pair_weights = self._pair_weights

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        m = margin(z, y)
        return torch.exp(-self.gamma * F.softplus(m, threshold=40)) * F.softplus(-m, threshold=40)

    def _pair_weights(self, z: Tensor, y: Tensor) -> Tensor:
        """g p_c - 1[c = y] p_y g'."""
        p, m, c = torch.softmax(z, 1), margin(z, y), self.gamma
        py, rest, log = torch.sigmoid(m), torch.sigmoid(-m), -F.softplus(-m)
        g = rest**c - c * py * rest ** (c - 1) * log
        slope = c * rest ** (c - 2) * (-2 * rest - rest * log + (c - 1) * py * log)
        return (g[:, None] * p).scatter_add(1, y[:, None], (-py * slope)[:, None])


def margin(z: Tensor, y: Tensor) -> Tensor:
    others = z.masked_fill(F.one_hot(y, z.shape[1]).bool(), -math.inf)
    return z.gather(1, y[:, None])[:, 0] - torch.logsumexp(others, 1)


class Attention(nn.Module):
    """One pre-norm block: LayerNorm, fused attention, GELU; tokens in, classes out."""

    def __init__(self, width: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.head = nn.Linear(width, 6), nn.Linear(6, K)
        self.heads = heads

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        n, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, w))
        return self.head(F.gelu(self.up(self.norm2(x)))).mean(1)


class Tied(nn.Module):
    """The same matrix twice: ReLU, and yet H - G has a diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(torch.relu(self.first(x)))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 3, batch_first=True), nn.Linear(3, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, K))


def relu() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, K))


def cnn() -> nn.Module:
    """BatchNorm with running statistics that are not trivial."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, K),
    )
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(32, 2, 6, 6))
    return model


def silu() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, K)
    )


INPUTS: dict[str, Callable[[int], Tensor]] = {
    "mlp": lambda n: torch.randn(n, 4),
    "relu": lambda n: torch.randn(n, 4),
    "tied": lambda n: torch.randn(n, 4),
    "cnn": lambda n: torch.randn(n, 2, 6, 6),
    "silu": lambda n: torch.randn(n, 2, 6, 6),
    "attention": lambda n: torch.randint(0, 6, (n, 4)),
    "gru": lambda n: torch.randn(n, 4, 3),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "relu": relu,
    "tied": Tied,
    "cnn": cnn,
    "silu": silu,
    "attention": Attention,
    "gru": Recurrent,
}


def setup(name: str, n: int = 37, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A float64 model (left in train mode) with inputs and labels."""
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    inputs = INPUTS[name](n)
    return model, inputs.double() if inputs.is_floating_point() else inputs, torch.randint(0, K, (n,))


def dense(
    model: nn.Module, inputs: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """H, G and the gradient of the mean loss, entry by entry; parameters in the order of `parameters()`."""
    model = copy.deepcopy(model).eval()
    tensors = [p for p in model.parameters() if p.requires_grad]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with sdpa_kernel(SDPBackend.MATH):
        logits = model(inputs)
        gradient = flat(torch.autograd.grad(loss(logits, labels).mean(), tensors, create_graph=True))
        h = torch.stack(
            [flat(torch.autograd.grad(g, tensors, retain_graph=True, materialize_grads=True)) for g in gradient]
        )
        ggn = torch.zeros_like(h)
        for n in range(len(labels)):
            z = logits[n]
            a = torch.autograd.functional.hessian(lambda u, n=n: loss(u[None], labels[n : n + 1])[0], z.detach())
            j = rows(logits[n], tensors)
            ggn += j.T @ a @ j / len(labels)
    torch.backends.mha.set_fastpath_enabled(fast)
    return h.detach(), ggn.detach(), gradient.detach()


def rows(values: Tensor, tensors: list[Tensor]) -> Tensor:
    """Jacobian of a vector of values, row by row."""
    parts = [torch.autograd.grad(v, tensors, retain_graph=True, materialize_grads=True) for v in values]
    return torch.stack([flat(p) for p in parts])


def flat(parts: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return torch.cat([p.reshape(-1) for p in parts])
