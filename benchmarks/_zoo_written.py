"""Small classifiers as people write them, each after a paper or a habit that no list of layers names.

Most are a forward pass `m`, the network, and its inputs; the parts of the network stand beside its name in `written`.
"""

from __future__ import annotations

from typing import Any

import torch
from _zoo_models import K, Made, Maker, images
from _zoo_plain import Calls, image_net, mlp, of, rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint_sequential


def packed(own: bool) -> nn.Module:
    """A two-way LSTM over sequences of unequal lengths, packed; its mean is over a row's steps, or the longest's."""

    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        sequence = pack_padded_sequence(m.table(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (h, _) = m.rnn(sequence)
        total = pad_packed_sequence(out, batch_first=True)[0]
        mean = total.sum(1) / lengths[:, None] if own else total.mean(1)
        return m.head(torch.cat([mean, h[-1], h[-2]], 1))

    rnn = nn.LSTM(4, 3, num_layers=2, batch_first=True, bidirectional=True)
    return Calls(forward, table=nn.Embedding(20, 4, padding_idx=0), rnn=rnn, head=nn.Linear(12, K))


def last_word(m: Any, x: Tensor) -> Tensor:
    """A GRU cell over embeddings with a learned start, read at the last word that is no filling."""
    h, states = m.start.expand(len(x), -1), []
    for word in m.table(x).unbind(1):
        states.append(h := m.cell(word, h))
    return m.head(torch.stack(states, 1)[torch.arange(len(x)), (x > 0).sum(1) - 1])


def masked(m: Any, x: Tensor) -> Tensor:
    """Attention with a band, a learned bias of distance (T5) and rotated queries, twice: by hand and fused."""
    place = torch.arange(6)
    turn = torch.polar(torch.ones_like(m.angle), m.angle)

    def turned(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, 2))) * turn).flatten(-2)

    bias = m.bias[:, place[:, None] - place + 5].masked_fill((place[:, None] - place).abs() > 3, -torch.inf)
    for fused in (False, True):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in m.qkv(m.norm(x)).chunk(3, -1))
        q, k = turned(q), turned(k)
        if fused:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            weight = (torch.einsum("bhid,bhjd->bhij", q, k) / 2 + bias).softmax(-1)
            mixed = torch.einsum("bhij,bhjd->bhid", weight, v)
        x = x + m.out(mixed.transpose(1, 2).flatten(-2))
    return m.head(x.mean(1))


def experts(m: Any, x: Tensor) -> dict[str, Any]:
    """The two best of four experts for every row, by gathered rows (Shazeer et al. 2017)."""
    score, chosen = m.gate(x).topk(2, 1)
    share, mixed = score.softmax(1), x.new_zeros(len(x), 6)
    for i, expert in enumerate(m.experts):
        row, place = (chosen == i).nonzero(as_tuple=True)
        mixed.index_add_(0, row, share[row, place, None] * expert(x[row]))
    return {"logits": m.head(mixed), "balance": share.mean(), "chosen": chosen}


def audio(m: Any, x: Tensor) -> Tensor:
    """Log spectra, gated convolutions in time with instance norm, statistics pooling (Snyder et al. 2018)."""
    s = torch.stft(x, 16, 8, window=m.window, return_complex=True).abs().pow(2).clamp(min=1e-6).log10()
    h = F.glu(m.second(F.silu(m.norm(m.first(s)))), 1)
    return m.head(torch.cat([h.mean(-1), (h.var(-1) + 1e-5).sqrt()], 1))


def graph(m: Any, nodes: Tensor) -> Tensor:
    """Two graph convolutions over a sparse adjacency (Kipf and Welling 2017); a row is a node."""
    h = torch.sparse.mm(m.adjacency, m.first(m.features)).relu()
    return torch.sparse.mm(m.adjacency, m.last(h))[nodes]


def messages(m: Any, x: Tensor) -> Tensor:
    """Attention over edges with scattered sums (GAT, by index_add and scatter_reduce), then the largest of each."""
    a, b = m.edges
    h = m.value(x)
    e = F.leaky_relu(m.score(torch.cat([h[:, a], h[:, b]], -1)), 0.2).exp()
    total = torch.zeros(len(x), 6, 1, dtype=x.dtype).index_add(1, b, e) + 1e-6
    place = b[None, :, None].expand(len(x), -1, 4)
    top = torch.zeros_like(h).scatter_reduce(1, place, h[:, a], "amax", include_self=False)
    mixed = torch.zeros_like(h).index_add(1, b, h[:, a] * e / total[:, b])
    return m.head(torch.cat([mixed.tanh(), top], -1).mean(1))


def waves(m: Any, x: Tensor) -> Tensor:
    """Complex weights from two real tensors, modReLU, and a filter of frequencies (Rao et al. 2021)."""
    z = torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(m.filter)
    z = z @ torch.complex(m.real, m.imaginary)
    z = torch.polar((z.abs() + 1e-6 + m.threshold).relu(), z.angle())
    return m.head(torch.fft.irfft(z, n=6, dim=1, norm="ortho").mean(1))


def fourier(m: Any, x: Tensor) -> Tensor:
    """FNet: the real part of a transform over both axes in place of attention (Lee-Thorp et al. 2022)."""
    x = m.first(x + torch.fft.fft2(x).real)
    return m.head(m.second(x + m.inner(x)).amax(1))


def cosines(m: Any, x: Tensor) -> Tensor:
    """Classes are words: one table embeds them and scores by cosine with a margin's scale (CLIP's is learned)."""
    h = F.normalize(m.inner(m.table(x).mean(1)), dim=1)
    return m.scale.exp() * F.cosine_similarity(h[:, None], m.table.weight[None, :K], dim=-1)


def flow(m: Any, x: Tensor) -> Tensor:
    """A network as an equation of time, by four steps of Runge and Kutta (Chen et al. 2018)."""

    def slope(t: float, x: Tensor) -> Tensor:
        return m.field(F.pad(x, (0, 1), value=t))

    for step in range(4):
        t, h = step / 4, 0.25
        a = slope(t, x)
        b = slope(t + h / 2, x + h / 2 * a)
        c = slope(t + h / 2, x + h / 2 * b)
        x = x + h / 6 * (a + 2 * b + 2 * c + slope(t + h, x + h * c))
    return m.head(x)


def energy(m: Any, x: Tensor) -> Tensor:
    """Features are the gradient of an energy in the inputs, taken in the forward pass."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return m.head(torch.autograd.grad(m.energy(x).sum(), x, create_graph=True)[0])


def scan(m: Any, x: Tensor) -> Tensor:
    """A selective state space by an explicit scan (Gu and Dao 2023)."""
    dt, h, seen = F.softplus(m.rate(x)), x.new_zeros(len(x), 4, 3), []
    for t in range(x.shape[1]):
        kept = (-dt[:, t, :, None] * m.decay.exp()).exp()
        h = kept * h + (dt[:, t] * x[:, t])[..., None] * m.into(x[:, t])[:, None]
        seen.append((h * m.out(x[:, t])[:, None]).sum(-1))
    return m.head(torch.stack(seen, 1)[:, -1])


def dynamic(m: Any, x: Tensor) -> Tensor:
    """Kernels made from each picture, one group a row (Chen et al. 2020), and squeeze and excitation."""
    share = m.choose(x.mean((2, 3))).softmax(1)
    weight = torch.einsum("nk,koihw->noihw", share, m.kernels).flatten(0, 1)
    h = F.conv2d(x.reshape(1, -1, *x.shape[2:]), weight, groups=len(x)).view(len(x), 4, 6, 6)
    return m.head((h * m.squeeze(h.mean((2, 3))).sigmoid()[:, :, None, None]).relu().mean((2, 3)))


def together(m: Any, x: Tensor) -> Tensor:
    """Three members by vmap over stacked parameters (functional ensembles)."""
    each = torch.vmap(lambda a, b, c: torch.tanh(x @ a + b) @ c)(m.first, m.bias, m.last)
    return each.log_softmax(-1).logsumexp(0)


def rotation(m: Any, x: Tensor) -> Tensor:
    """A rotation by the exponential of a skew matrix, a Cayley transform, and a solve."""
    skew, one = m.b - m.b.T, torch.eye(5, dtype=x.dtype)
    turned = (x @ torch.matrix_exp(m.a - m.a.T)).tanh()
    return m.head(torch.linalg.solve(one + skew, (turned @ (one - skew)).T).T)


def points(m: Any, x: Tensor) -> Tensor:
    """PointNet: the largest over points, the best three, and a median."""
    h = m.inner(x)
    return m.head(torch.cat([h.amax(1), h.topk(3, 1).values.mean(1), h.median(1).values], 1))


def tree(m: Any, x: Tensor) -> Tensor:
    """A soft decision tree of depth 3 (Frosst and Hinton 2017)."""
    right, path = m.gates(x).sigmoid(), x.new_ones(len(x), 1)
    for depth in range(3):
        gate = right[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
        path = torch.stack([path * (1 - gate), path * gate], 2).flatten(1)
    return (path @ m.leaves.softmax(1)).log()


def bilinear(m: Any, x: Tensor) -> Tensor:
    """Covariances of features with a signed root (Lin et al. 2015), by a matrix logarithm of Cholesky's diagonal."""
    h = m.conv(x).tanh().flatten(2)
    c = h @ h.mT / h.shape[2] + 0.1 * torch.eye(4, dtype=h.dtype)
    root = (c.sign() * (c.abs() + 1e-3).sqrt()).flatten(1)
    return m.head(torch.cat([root, torch.linalg.cholesky(c).diagonal(dim1=1, dim2=2).log()], 1))


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


def cast(m: Any, x: Tensor) -> Tensor:
    """Half of it in bfloat16 by autocast, as for speed."""
    with torch.autocast("cpu", torch.bfloat16):
        h = m.net(x)
    return m.head(h.to(m.head.weight.dtype))


def frozen() -> Made:
    """Weights in 8 bits with a scale for each output, under a head in float32."""
    weight = torch.randn(6, 5)
    scale = weight.abs().amax(1, keepdim=True) / 127
    eight = (weight / scale).round().to(torch.int8)

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(F.linear(x, m.eight.to(x.dtype) * m.scale.to(x.dtype)).tanh())

    return of(forward, scale=scale, eight=eight, head=mlp_of(6, 5, K))


def mlp_of(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


def weight(*shape: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / scale)


def weight_normed() -> Made:
    norm = nn.utils.weight_norm(nn.Conv2d(4, 4, 3, padding=1), dim=None)
    return image_net(nn.LeakyReLU(0.1), norm, nn.MaxPool2d(2), nn.ELU()), images(8)


def spectral() -> Made:
    norm = nn.utils.spectral_norm
    model = nn.Sequential(norm(nn.Conv2d(3, 4, 3)), nn.LeakyReLU(0.2), nn.Flatten(), norm(nn.Linear(144, K)))
    model.train()(images(8))
    return model, images(8)


def low_rank() -> Made:
    model = mlp()
    update = Calls(lambda m, w: w + m.a @ m.b, a=weight(6, 1, scale=3), b=weight(1, 5, scale=3))
    parametrize.register_parametrization(model[0], "weight", update)
    model[0].parametrizations.weight.original.requires_grad_(False)
    return model, rows()


def segments() -> Made:
    net = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(5, 5), nn.LayerNorm(5), nn.GELU())))
    forward = lambda m, x: m.head(checkpoint_sequential(m.net, 3, x, use_reentrant=False))  # noqa: E731
    return of(forward, net=net, head=nn.Linear(5, K))


def decoder(m: Any, x: Tensor) -> Tensor:
    """Queries that are learned, and a mask of the last position."""
    mask = torch.arange(5).expand(len(x), 5) > 3
    return m.head(m.decoder(m.query.expand(len(x), -1, -1), x, memory_key_padding_mask=mask).flatten(1))


def decoder_layers() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, batch_first=True, norm_first=True), 2)


def written() -> dict[str, Maker]:
    words = torch.tensor([[3, 5, 7, 2, 9, 4], [8, 1, 6, 0, 0, 0], [2, 2, 3, 4, 0, 0], [11, 0, 0, 0, 0, 0]])
    lengths = {"x": words, "lengths": (words > 0).sum(1)}

    def with_head(function: Any, width: int, inputs: Any = None, **parts: Any) -> Made:
        """A network whose last layer has so many inputs, on rows of features unless there are others."""
        return Calls(function, **parts, head=nn.Linear(width, K)), rows() if inputs is None else inputs

    def adjacency() -> Tensor:
        return torch.sparse_coo_tensor(torch.randint(0, 12, (2, 40)), torch.rand(40), (12, 12)).coalesce()

    return {
        "weight-normed-cnn": weight_normed,
        "packed-lstm": lambda: (packed(own=True), lengths),
        "mean-over-the-longest": lambda: (packed(own=False), lengths),
        "gru-over-words": lambda: with_head(
            last_word, 4, words, table=nn.Embedding(20, 4, padding_idx=0), cell=nn.GRUCell(4, 4), start=weight(4)
        ),
        "masked-attention": lambda: with_head(
            masked, 8, torch.randn(4, 6, 8), qkv=nn.Linear(8, 24, bias=False), out=nn.Linear(8, 8),
            norm=nn.LayerNorm(8), bias=nn.Parameter(torch.zeros(2, 11)),
            angle=torch.arange(6)[:, None] * torch.tensor([1.0, 0.1]),
        ),
        "experts": lambda: with_head(
            experts, 6, gate=nn.Linear(5, 4), experts=nn.ModuleList(mlp_of(5, 6, 6) for _ in range(4))
        ),
        "audio": lambda: with_head(
            audio, 8, torch.randn(4, 96), window=torch.hann_window(16), first=nn.Conv1d(9, 8, 3, dilation=2),
            norm=nn.InstanceNorm1d(8, affine=True), second=nn.Conv1d(8, 8, 3, padding=1, groups=2),
        ),
        "graph": lambda: (
            Calls(graph, adjacency=adjacency(), features=torch.randn(12, 5),
                  first=nn.Linear(5, 6, bias=False), last=nn.Linear(6, K)),
            {"nodes": torch.tensor([0, 3, 5, 11])},
        ),
        "messages": lambda: with_head(
            messages, 8, torch.randn(4, 6, 3), edges=torch.randint(0, 6, (2, 14)), value=nn.Linear(3, 4),
            score=nn.Linear(8, 1),
        ),
        "spectral-normed": spectral,
        "waves": lambda: with_head(
            waves, 6, torch.randn(4, 6, 6), real=weight(6, 6, scale=3), imaginary=weight(6, 6, scale=3),
            threshold=nn.Parameter(torch.full((6,), -0.1)), filter=weight(4, 6, 2, scale=2),
        ),
        "fourier": lambda: with_head(
            fourier, 6, torch.randn(4, 5, 6), first=nn.LayerNorm(6), second=nn.LayerNorm(6), inner=mlp_of(6, 8, 6)
        ),
        "cosines": lambda: (
            Calls(cosines, table=nn.Embedding(9, 6), inner=mlp_of(6, 8, 6), scale=nn.Parameter(torch.tensor(1.5))),
            words.clamp(max=8),
        ),
        "flow": lambda: with_head(flow, 5, field=mlp_of(6, 8, 5)),
        "energy": lambda: with_head(energy, 5, energy=mlp_of(5, 8, 1)),
        "scan": lambda: with_head(
            scan, 4, torch.randn(4, 6, 4), rate=nn.Linear(4, 4), into=nn.Linear(4, 3), out=nn.Linear(4, 3),
            decay=nn.Parameter(torch.rand(4, 3).log()),
        ),
        "dynamic-kernels": lambda: with_head(
            dynamic, 4, images(8), kernels=weight(3, 4, 3, 3, 3, scale=5), choose=nn.Linear(3, 3),
            squeeze=nn.Linear(4, 4),
        ),
        "ensemble-by-vmap": lambda: of(
            together, first=weight(3, 5, 6, scale=2), bias=nn.Parameter(torch.zeros(3, 6)),
            last=weight(3, 6, K, scale=2),
        ),
        "rotation": lambda: with_head(rotation, 5, a=weight(5, 5, scale=3), b=weight(5, 5, scale=3)),
        "points": lambda: with_head(points, 18, torch.randn(4, 7, 3), inner=mlp_of(3, 8, 6)),
        "soft-tree": lambda: of(tree, gates=nn.Linear(5, 7), leaves=weight(8, K)),
        "bilinear-pooling": lambda: with_head(bilinear, 20, images(8), conv=nn.Conv2d(3, 4, 3)),
        "low-rank-update": low_rank,
        "segments": segments,
        "decoder": lambda: with_head(decoder, 8, torch.randn(4, 5, 4), decoder=decoder_layers(), query=weight(2, 4)),
        "scripted": lambda: (torch.jit.script(Scripted()), images(8)),
        "traced": lambda: (torch.jit.trace(Scripted().eval(), images(8)), images(8)),
        "autocast": lambda: with_head(cast, K, net=mlp()),
        "eight-bits": frozen,
        "bfloat16-cnn": lambda: (image_net(nn.BatchNorm2d(4), nn.ReLU()).bfloat16(), images(8)),
        "channels-last": lambda: (image_net(nn.GELU()).to(memory_format=torch.channels_last), images(8)),
        "list-output": lambda: of(lambda m, x: [m.net(x), x], net=mlp()),
        "adaptive-softmax": lambda: of(
            lambda m, x: m.last.log_prob(m.first(x)),
            first=nn.Linear(5, 8), last=nn.AdaptiveLogSoftmaxWithLoss(8, 6, [2, 4]),
        ),
    }  # fmt: skip
