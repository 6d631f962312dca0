"""Small classifiers as people write them, each after a paper or a habit that no list of layers names."""

from __future__ import annotations

from typing import Any

import torch
from _zoo_models import K, Made, Maker, images
from _zoo_plain import Calls, image_net, mlp, rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint_sequential


class Packed(nn.Module):
    """A two-way LSTM over sequences of unequal lengths, packed; its mean is over a row's steps, or the longest's."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.own, self.table = own, nn.Embedding(20, 4, padding_idx=0)
        self.rnn = nn.LSTM(4, 3, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, K)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.table(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (h, _) = self.rnn(packed)
        total = pad_packed_sequence(out, batch_first=True)[0]
        mean = total.sum(1) / lengths[:, None] if self.own else total.mean(1)
        return self.head(torch.cat([mean, h[-1], h[-2]], 1))


class LastWord(nn.Module):
    """A GRU cell over embeddings with a learned start, read at the last word that is no filling."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(20, 4, padding_idx=0), nn.GRUCell(4, 4)
        self.start, self.head = nn.Parameter(torch.zeros(4)), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        h, states = self.start.expand(len(x), -1), []
        for word in self.table(x).unbind(1):
            states.append(h := self.cell(word, h))
        last = (x > 0).sum(1) - 1
        return self.head(torch.stack(states, 1)[torch.arange(len(x)), last])


class Masked(nn.Module):
    """Attention with a band, a learned bias of distance (T5) and rotated queries, twice: by hand and fused."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(8, 24, bias=False), nn.Linear(8, 8), nn.Linear(8, K)
        self.bias, self.norm = nn.Parameter(torch.zeros(2, 11)), nn.LayerNorm(8)
        place = torch.arange(6)
        self.register_buffer("far", (place[:, None] - place).abs() > 3)
        self.register_buffer("angle", place[:, None] * torch.tensor([1.0, 0.1]))
        self.register_buffer("distance", place[:, None] - place + 5)

    def turned(self, x: Tensor) -> Tensor:
        return torch.view_as_real(
            torch.view_as_complex(x.unflatten(-1, (2, 2))) * torch.polar(torch.ones_like(self.angle), self.angle)
        ).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        for fused in (False, True):
            q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            q, k = self.turned(q), self.turned(k)
            bias = self.bias[:, self.distance].masked_fill(self.far, -torch.inf)
            if fused:
                mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            else:
                mixed = torch.einsum(
                    "bhij,bhjd->bhid", (torch.einsum("bhid,bhjd->bhij", q, k) / 2 + bias).softmax(-1), v
                )
            x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return self.head(x.mean(1))


class Experts(nn.Module):
    """The two best of four experts for every row, by gathered rows (Shazeer et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(5, 4), nn.Linear(6, K)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 6)) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Any]:
        score, chosen = self.gate(x).topk(2, 1)
        share, mixed = score.softmax(1), x.new_zeros(len(x), 6)
        for i, expert in enumerate(self.experts):
            row, place = (chosen == i).nonzero(as_tuple=True)
            mixed.index_add_(0, row, share[row, place, None] * expert(x[row]))
        return {"logits": self.head(mixed), "balance": share.mean(), "chosen": chosen}


class Audio(nn.Module):
    """Log spectra, gated convolutions in time with instance norm, statistics pooling (Snyder et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.first, self.norm = nn.Conv1d(9, 8, 3, dilation=2), nn.InstanceNorm1d(8, affine=True)
        self.second, self.head = nn.Conv1d(8, 8, 3, padding=1, groups=2), nn.Linear(8, K)

    def forward(self, x: Tensor) -> Tensor:
        s = torch.stft(x, 16, 8, window=self.window, return_complex=True).abs().pow(2).clamp(min=1e-6).log10()
        h = F.glu(self.second(F.silu(self.norm(self.first(s)))), 1)
        return self.head(torch.cat([h.mean(-1), (h.var(-1) + 1e-5).sqrt()], 1))


class Graph(nn.Module):
    """Two graph convolutions over a sparse adjacency (Kipf and Welling 2017); a row is a node."""

    def __init__(self) -> None:
        super().__init__()
        edges = torch.randint(0, 12, (2, 40))
        self.register_buffer("adjacency", torch.sparse_coo_tensor(edges, torch.rand(40), (12, 12)).coalesce())
        self.register_buffer("features", torch.randn(12, 5))
        self.first, self.last = nn.Linear(5, 6, bias=False), nn.Linear(6, K)

    def forward(self, nodes: Tensor) -> Tensor:
        h = torch.sparse.mm(self.adjacency, self.first(self.features)).relu()
        return torch.sparse.mm(self.adjacency, self.last(h))[nodes]


class Messages(nn.Module):
    """Attention over edges with scattered sums (GAT, by index_add and scatter_reduce), then the largest of each."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.randint(0, 6, (2, 14)))
        self.value, self.score, self.head = nn.Linear(3, 4), nn.Linear(8, 1), nn.Linear(8, K)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.edges
        h = self.value(x)
        e = F.leaky_relu(self.score(torch.cat([h[:, a], h[:, b]], -1)), 0.2).exp()
        total = torch.zeros(len(x), 6, 1, dtype=x.dtype).index_add(1, b, e) + 1e-6
        place = b[None, :, None].expand(len(x), -1, 4)
        top = torch.zeros_like(h).scatter_reduce(1, place, h[:, a], "amax", include_self=False)
        mixed = torch.zeros_like(h).index_add(1, b, h[:, a] * e / total[:, b])
        return self.head(torch.cat([mixed.tanh(), top], -1).mean(1))


class Waves(nn.Module):
    """Complex weights from two real tensors, modReLU, and a filter of frequencies (Rao et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imaginary = nn.Parameter(torch.randn(6, 6) / 3), nn.Parameter(torch.randn(6, 6) / 3)
        self.threshold, self.filter = nn.Parameter(torch.full((6,), -0.1)), nn.Parameter(torch.randn(4, 6, 2) / 2)
        self.head = nn.Linear(6, K)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(self.filter)
        z = z @ torch.complex(self.real, self.imaginary)
        size = z.abs() + 1e-6
        z = torch.polar((size + self.threshold).relu(), z.angle())
        return self.head(torch.fft.irfft(z, n=6, dim=1, norm="ortho").mean(1))


class Fourier(nn.Module):
    """FNet: the real part of a transform over both axes in place of attention (Lee-Thorp et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))
        self.inner, self.head = mlp_of(6, 8, 6), nn.Linear(6, K)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + torch.fft.fft2(x).real)
        return self.head(self.norms[1](x + self.inner(x)).amax(1))


class Cosines(nn.Module):
    """Classes are words: one table embeds them and scores by cosine with a margin's scale (CLIP's is learned)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(9, 6), mlp_of(6, 8, 6)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = F.normalize(self.inner(self.table(x).mean(1)), dim=1)
        return self.scale.exp() * F.cosine_similarity(h[:, None], self.table.weight[None, :K], dim=-1)


class Flow(nn.Module):
    """A network as an equation of time, by four steps of Runge and Kutta (Chen et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.field, self.head = mlp_of(6, 8, 5), nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        def slope(t: float, x: Tensor) -> Tensor:
            return self.field(F.pad(x, (0, 1), value=t))

        for step in range(4):
            t, h = step / 4, 0.25
            a = slope(t, x)
            b = slope(t + h / 2, x + h / 2 * a)
            c = slope(t + h / 2, x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + slope(t + h, x + h * c))
        return self.head(x)


class Energy(nn.Module):
    """Features are the gradient of an energy in the inputs, taken in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.head = mlp_of(5, 8, 1), nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            force = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]
        return self.head(force)


class Scan(nn.Module):
    """A selective state space by an explicit scan (Gu and Dao 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.into, self.out = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.decay, self.head = nn.Parameter(torch.rand(4, 3).log()), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        dt, h, seen = F.softplus(self.rate(x)), x.new_zeros(len(x), 4, 3), []
        for t in range(x.shape[1]):
            kept = (-dt[:, t, :, None] * self.decay.exp()).exp()
            h = kept * h + (dt[:, t] * x[:, t])[..., None] * self.into(x[:, t])[:, None]
            seen.append((h * self.out(x[:, t])[:, None]).sum(-1))
        return self.head(torch.stack(seen, 1)[:, -1])


class Dynamic(nn.Module):
    """Kernels made from each picture, one group a row (Chen et al. 2020), and squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.choose = nn.Parameter(torch.randn(3, 4, 3, 3, 3) / 5), nn.Linear(3, 3)
        self.squeeze, self.head = nn.Linear(4, 4), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        share = self.choose(x.mean((2, 3))).softmax(1)
        weight = torch.einsum("nk,koihw->noihw", share, self.kernels).flatten(0, 1)
        h = F.conv2d(x.reshape(1, -1, *x.shape[2:]), weight, groups=len(x)).view(len(x), 4, 6, 6)
        return self.head((h * self.squeeze(h.mean((2, 3))).sigmoid()[:, :, None, None]).relu().mean((2, 3)))


class Together(nn.Module):
    """Three members by vmap over stacked parameters (functional ensembles)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bias = nn.Parameter(torch.randn(3, 5, 6) / 2), nn.Parameter(torch.zeros(3, 6))
        self.last = nn.Parameter(torch.randn(3, 6, K) / 2)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.vmap(lambda a, b, c: torch.tanh(x @ a + b) @ c)(self.first, self.bias, self.last)
        return each.log_softmax(-1).logsumexp(0)


class Rotation(nn.Module):
    """A rotation by the exponential of a skew matrix, a Cayley transform, and a solve."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = (
            nn.Parameter(torch.randn(5, 5) / 3),
            nn.Parameter(torch.randn(5, 5) / 3),
            nn.Linear(5, K),
        )

    def forward(self, x: Tensor) -> Tensor:
        skew, one = self.b - self.b.T, torch.eye(5, dtype=x.dtype)
        turned = (x @ torch.matrix_exp(self.a - self.a.T)).tanh()
        return self.head(torch.linalg.solve(one + skew, (turned @ (one - skew)).T).T)


class Points(nn.Module):
    """PointNet: the largest over points, the best three, and a median."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = mlp_of(3, 8, 6), nn.Linear(18, K)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.head(torch.cat([h.amax(1), h.topk(3, 1).values.mean(1), h.median(1).values], 1))


class Tree(nn.Module):
    """A soft decision tree of depth 3 (Frosst and Hinton 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.leaves = nn.Linear(5, 7), nn.Parameter(torch.randn(8, K))

    def forward(self, x: Tensor) -> Tensor:
        right = self.gates(x).sigmoid()
        path = x.new_ones(len(x), 1)
        for depth in range(3):
            gate = right[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
            path = torch.stack([path * (1 - gate), path * gate], 2).flatten(1)
        return (path @ self.leaves.softmax(1)).log()


class Bilinear(nn.Module):
    """Covariances of features with a signed root (Lin et al. 2015), by a matrix logarithm of Cholesky's diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(20, K)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x).tanh().flatten(2)
        c = h @ h.mT / h.shape[2] + 0.1 * torch.eye(4, dtype=h.dtype)
        root = (c.sign() * (c.abs() + 1e-3).sqrt()).flatten(1)
        return self.head(torch.cat([root, torch.linalg.cholesky(c).diagonal(dim1=1, dim2=2).log()], 1))


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(6, 1) / 3), nn.Parameter(torch.randn(1, 5) / 3)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.a @ self.b


class Scripted(nn.Module):
    """With control flow that scripting keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        for _ in range(2):
            if h.shape[-1] > 3:
                h = F.avg_pool2d(F.silu(h), 2)
        return self.head(h.mean((2, 3)))


class Cast(nn.Module):
    """Half of it in bfloat16 by autocast, as for speed."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = mlp(), nn.Linear(K, K)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = self.net(x)
        return self.head(h.to(self.head.weight.dtype))


class Frozen(nn.Module):
    """Weights in 8 bits with a scale for each output, under a head in float32."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(6, 5)
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("eight", (weight / self.scale).round().to(torch.int8))
        self.head = mlp_of(6, 5, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(x, self.eight.to(x.dtype) * self.scale.to(x.dtype)).tanh())


def mlp_of(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


def _weight_normed() -> Made:
    norm = nn.utils.weight_norm
    return image_net(
        nn.LeakyReLU(0.1), norm(nn.Conv2d(4, 4, 3, padding=1), dim=None), nn.MaxPool2d(2), nn.ELU()
    ), images(8)


def _spectral() -> Made:
    norm = nn.utils.spectral_norm
    model = nn.Sequential(norm(nn.Conv2d(3, 4, 3)), nn.LeakyReLU(0.2), nn.Flatten(), norm(nn.Linear(144, K)))
    model.train()(images(8))
    return model, images(8)


def _lora() -> Made:
    model = mlp()
    parametrize.register_parametrization(model[0], "weight", LowRank())
    model[0].parametrizations.weight.original.requires_grad_(False)
    return model, rows()


def _segments() -> Made:
    net = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(5, 5), nn.LayerNorm(5), nn.GELU())))
    return Calls(
        lambda m, x: m.head(checkpoint_sequential(m.net, 3, x, use_reentrant=False)), net=net, head=nn.Linear(5, K)
    ), rows()


def _decoder() -> Made:
    layer = nn.TransformerDecoderLayer(4, 2, 6, batch_first=True, norm_first=True)
    model = Calls(
        lambda m, x: m.head(
            m.decoder(m.query.expand(len(x), -1, -1), x, memory_key_padding_mask=torch.arange(5).expand(len(x), 5) > 3)
            .flatten(1)
        ),
        decoder=nn.TransformerDecoder(layer, 2), query=nn.Parameter(torch.randn(2, 4)), head=nn.Linear(8, K),
    )  # fmt: skip
    return model, torch.randn(4, 5, 4)


def written() -> dict[str, Maker]:
    words = torch.tensor([[3, 5, 7, 2, 9, 4], [8, 1, 6, 0, 0, 0], [2, 2, 3, 4, 0, 0], [11, 0, 0, 0, 0, 0]])
    return {
        "weight-normed-cnn": _weight_normed,
        "packed-lstm": lambda: (Packed(own=True), {"x": words, "lengths": (words > 0).sum(1)}),
        "mean-over-the-longest": lambda: (Packed(own=False), {"x": words, "lengths": (words > 0).sum(1)}),
        "gru-over-words": lambda: (LastWord(), words),
        "masked-attention": lambda: (Masked(), torch.randn(4, 6, 8)),
        "experts": lambda: (Experts(), rows()),
        "audio": lambda: (Audio(), torch.randn(4, 96)),
        "graph": lambda: (Graph(), {"nodes": torch.tensor([0, 3, 5, 11])}),
        "messages": lambda: (Messages(), torch.randn(4, 6, 3)),
        "spectral-normed": _spectral,
        "waves": lambda: (Waves(), torch.randn(4, 6, 6)),
        "fourier": lambda: (Fourier(), torch.randn(4, 5, 6)),
        "cosines": lambda: (Cosines(), words.clamp(max=8)),
        "flow": lambda: (Flow(), rows()),
        "energy": lambda: (Energy(), rows()),
        "scan": lambda: (Scan(), torch.randn(4, 6, 4)),
        "dynamic-kernels": lambda: (Dynamic(), images(8)),
        "ensemble-by-vmap": lambda: (Together(), rows()),
        "rotation": lambda: (Rotation(), rows()),
        "points": lambda: (Points(), torch.randn(4, 7, 3)),
        "soft-tree": lambda: (Tree(), rows()),
        "bilinear-pooling": lambda: (Bilinear(), images(8)),
        "low-rank-update": _lora,
        "segments": _segments,
        "decoder": _decoder,
        "scripted": lambda: (torch.jit.script(Scripted()), images(8)),
        "traced": lambda: (torch.jit.trace(Scripted().eval(), images(8)), images(8)),
        "autocast": lambda: (Cast(), rows()),
        "eight-bits": lambda: (Frozen(), rows()),
        "bfloat16-cnn": lambda: (image_net(nn.BatchNorm2d(4), nn.ReLU()).bfloat16(), images(8)),
        "channels-last": lambda: (image_net(nn.GELU()).to(memory_format=torch.channels_last), images(8)),
        "list-output": lambda: (Calls(lambda m, x: [m.net(x), x], net=mlp()), rows()),
        "adaptive-softmax": lambda: (
            Calls(
                lambda m, x: m.last.log_prob(m.first(x)),
                first=nn.Linear(5, 8),
                last=nn.AdaptiveLogSoftmaxWithLoss(8, 6, [2, 4]),
            ),
            rows(),
        ),
    }
