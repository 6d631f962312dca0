"""Small networks in plain PyTorch, each with one unusual feature: some run, some are refused by name."""

from __future__ import annotations

from typing import Any

import torch
from _zoo_models import K, Made, Maker, images, tokens
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

D = 5


class Calls(nn.Module):
    """A network whose forward pass is a function of it and its input."""

    def __init__(self, forward: Any, **parts: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.function(self, *args, **named)


class Once(torch.autograd.Function):
    """x³, with a derivative that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * g


class Wrong(torch.autograd.Function):
    """x², whose second derivative PyTorch takes for 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (x := ctx.saved_tensors[0]) + g * x.detach()


def rows() -> Tensor:
    return torch.randn(4, D)


def mlp(*middle: nn.Module, out: int = K) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 6), *(middle or [nn.Tanh()]), nn.Linear(6, out))


def image_net(*middle: nn.Module) -> nn.Sequential:
    ends = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, K)
    return nn.Sequential(nn.Conv2d(3, 4, 3), *middle, *ends)


def of(function: Any, **parts: Any) -> Made:
    return Calls(function, **parts), rows()


def through(function: Any, make: Any = mlp) -> Maker:
    """A perceptron whose hidden layer is followed by a function, or a convolution that is."""
    return lambda: (make(Calls(lambda self, x: function(x))), rows() if make is mlp else images(8))


def _tied() -> Made:
    table = nn.Embedding(K, 6)
    head = nn.Linear(6, K, bias=False)
    head.weight = table.weight
    model = Calls(lambda m, x: m.head(m.table(x).mean(1).tanh()), table=table, head=head)
    return model, {"x": torch.randint(0, K, (4, 5))}


def _unused() -> Made:
    model, inputs = of(lambda m, x: m.used(x), used=mlp(), idle=nn.Linear(2, 2), frozen=nn.Linear(2, 2))
    model.frozen.requires_grad_(False)
    return model, inputs


def _counting(m: Any, x: Tensor) -> Tensor:
    m.seen += len(x)
    return m.net(x)


def _averaging(m: Any, x: Tensor) -> Tensor:
    m.mean = 0.9 * m.mean + 0.1 * x.detach().mean(0)
    return m.net(x - m.mean)


def _complex(m: Any, x: Tensor) -> Tensor:
    return m.last((x.to(m.weight.dtype) @ m.weight).abs())


def _spectrum(m: Any, x: Tensor) -> Tensor:
    return m.last(torch.fft.rfft(m.first(x)).abs())


def _across(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    return m.last(h - h.mean(0))


def _cosine(m: Any, x: Tensor) -> Tensor:
    return 5 * F.normalize(m.first(x)) @ F.normalize(m.last).T


def _distance(m: Any, x: Tensor) -> Tensor:
    return -torch.cdist(m.first(x), m.last)


def _words(table: Any) -> Maker:
    """The mean of embeddings, or what a bag makes of them."""

    def made() -> Made:
        bag = table()
        forward = lambda m, x: m.head((m.table(x) if m.bag else m.table(x).mean(1)).tanh())  # noqa: E731
        model = Calls(forward, table=bag, head=nn.Linear(4, K))
        model.bag = isinstance(bag, nn.EmbeddingBag)
        return model, {"x": torch.randint(0, 9, (4, 7))}

    return made


def _recurrent(kind: type[nn.RNNBase]) -> Maker:
    return lambda: (
        Calls(lambda m, x: m.head(m.rnn(x)[0][:, -1]), rnn=kind(3, 4, batch_first=True), head=nn.Linear(4, K)),
        torch.randn(4, 5, 3),
    )


def _mha(self: Any, x: Tensor) -> Tensor:
    return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def plain() -> dict[str, Maker]:
    """Every network, most of one layer or habit of code."""
    norm = parametrizations.weight_norm
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    activations = (
        "hardsigmoid", "hardswish", "hardtanh", "relu6", "elu", "celu", "selu", "mish", "softplus", "softsign",
        "softshrink", "hardshrink", "logsigmoid", "leaky-relu",
    )  # fmt: skip

    def first(layer: nn.Module, *middle: nn.Module) -> Made:
        return nn.Sequential(layer, *middle, nn.Linear(6, K)), rows()

    def pictures(*middle: nn.Module) -> Made:
        return image_net(*middle), images(8)

    def sequence(function: Any, width: int = 4, steps: int = 5, **parts: Any) -> Made:
        return Calls(function, **parts, head=nn.Linear(width, K)), torch.randn(4, steps, 4)

    def masked(m: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return m.head((m.table(input_ids) * attention_mask[..., None]).mean(1).tanh())

    return {
        "one-logit": lambda: (mlp(out=1), rows()),
        "dict-output": lambda: of(lambda m, x: {"logits": m.net(x), "hidden": x}, net=mlp()),
        "tuple-output": lambda: of(lambda m, x: (m.net(x), x), net=mlp()),
        "dict-input": lambda: (Calls(masked, table=nn.Embedding(40, 4), head=nn.Linear(4, K)), tokens()),
        "tied": _tied,
        "unused-and-frozen": _unused,
        "weight-norm": lambda: first(norm(nn.Linear(D, 6)), nn.Tanh()),
        "weight-norm-of-old": lambda: first(nn.utils.weight_norm(nn.Linear(D, 6)), nn.Tanh()),
        "spectral-norm": lambda: first(parametrizations.spectral_norm(nn.Linear(D, 6))),
        "orthogonal": lambda: first(parametrizations.orthogonal(nn.Linear(D, 6)), nn.Tanh()),
        "counts-its-rows": lambda: of(_counting, net=mlp(), seen=torch.zeros(())),
        "averages-as-it-goes": lambda: of(_averaging, net=mlp(), mean=torch.zeros(D)),
        "rows-that-see-others": lambda: of(_across, first=nn.Linear(D, 6), last=nn.Linear(6, K)),
        "batchnorm-of-the-batch": lambda: (mlp(nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh()), rows()),
        "batchnorm1d": lambda: (mlp(nn.BatchNorm1d(6), nn.ReLU()), rows()),
        "instance-norm": lambda: pictures(nn.InstanceNorm2d(4, affine=True), nn.ReLU()),
        "group-norm": lambda: pictures(nn.GroupNorm(2, 4), nn.SiLU()),
        "rms-norm": lambda: (mlp(nn.RMSNorm(6), nn.GELU()), rows()),
        "local-response-norm": lambda: pictures(nn.LocalResponseNorm(2)),
        "dropout-left-on": lambda: of(lambda m, x: m.net(F.dropout(x, training=True)), net=mlp()),
        "complex": lambda: of(
            _complex, weight=nn.Parameter(torch.randn(D, 4, dtype=torch.cfloat)), last=nn.Linear(4, K)
        ),
        "fft": lambda: of(_spectrum, first=nn.Linear(D, 6), last=nn.Linear(4, K)),
        "half": lambda: (mlp().half(), rows()),
        "bfloat16": lambda: (mlp().bfloat16(), rows()),
        "checkpointed": lambda: of(lambda m, x: checkpoint(m.net, x, use_reentrant=False), net=mlp()),
        "checkpointed-reentrant": lambda: of(
            lambda m, x: m.last(checkpoint(m.net, x, use_reentrant=True)), net=mlp(), last=nn.Linear(K, K)
        ),
        "data-parallel": lambda: (nn.DataParallel(mlp()), rows()),
        "compiled": lambda: (torch.compile(mlp(), backend="aot_eager"), rows()),
        "fx": lambda: (torch.fx.symbolic_trace(mlp()), rows()),
        "no-grad-inside": lambda: of(
            lambda m, x: m.last(torch.no_grad()(m.first)(x)), first=mlp(), last=nn.Linear(K, K)
        ),
        "no-grad": lambda: of(torch.no_grad()(lambda m, x: m.net(x)), net=mlp()),
        "detached": lambda: of(lambda m, x: m.net(x).detach(), net=mlp()),
        "once-differentiable": through(Once.apply),
        "wrong-derivative": through(Wrong.apply),
        **{name: through(getattr(F, name.replace("-", "_"))) for name in activations},
        "prelu": lambda: (mlp(nn.PReLU(6)), rows()),
        "rrelu": lambda: (mlp(nn.RReLU()), rows()),
        "glu": lambda: of(lambda m, x: m.last(F.glu(m.first(x))), first=nn.Linear(D, 8), last=nn.Linear(4, K)),
        "gelu-tanh": through(lambda x: F.gelu(x, approximate="tanh")),
        "rounded-straight-through": through(lambda x: x + (x.round() - x).detach()),
        "normalize": through(lambda x: F.normalize(x, dim=-1)),
        "cosine": lambda: of(_cosine, first=nn.Linear(D, 4), last=nn.Parameter(torch.randn(K, 4))),
        "cdist": lambda: of(_distance, first=nn.Linear(D, 4), last=nn.Parameter(torch.randn(K, 4))),
        "bilinear": lambda: of(lambda m, x: m.last(x, x), last=nn.Bilinear(D, D, K)),
        "max-pool": through(lambda x: F.max_pool2d(x, 2), image_net),
        "max-pool-adaptive": through(lambda x: F.adaptive_max_pool2d(x, 3), image_net),
        "lp-pool": through(lambda x: F.lp_pool2d(x, 2, 2), image_net),
        "interpolate": through(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), image_net),
        "interpolate-antialias": through(
            lambda x: F.interpolate(x, size=4, mode="bilinear", antialias=True), image_net
        ),
        "grid-sample": through(
            lambda x: F.grid_sample(x, x.new_full((len(x), 5, 5, 2), 0.1), align_corners=False), image_net
        ),
        "pixel-shuffle": through(lambda x: F.pixel_shuffle(x, 2).repeat(1, 4, 1, 1), image_net),
        "reflect-pad": lambda: pictures(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.Tanh()),
        "same-pad": lambda: pictures(nn.Conv2d(4, 4, 3, padding="same"), nn.Tanh()),
        "transposed": lambda: pictures(nn.ConvTranspose2d(4, 4, 3), nn.Tanh()),
        "depthwise": lambda: pictures(nn.Conv2d(4, 4, 3, groups=4), nn.Tanh()),
        "conv1d": lambda: (nn.Sequential(nn.Conv1d(2, 4, 3), *_flat_end()), torch.randn(4, 2, 6)),
        "conv3d": lambda: (nn.Sequential(nn.Conv3d(1, 2, 2), *_flat_end()), torch.randn(4, 1, 3, 3, 3)),
        "embedding-bag": _words(lambda: nn.EmbeddingBag(9, 4)),
        "embedding-bag-max": _words(lambda: nn.EmbeddingBag(9, 4, mode="max")),
        "embedding-sparse": _words(lambda: nn.Embedding(9, 4, sparse=True)),
        "embedding-max-norm": _words(lambda: nn.Embedding(9, 4, max_norm=1.0)),
        "rnn": _recurrent(nn.RNN),
        "lstm": _recurrent(nn.LSTM),
        "gru": _recurrent(nn.GRU),
        "multihead-attention": lambda: sequence(_mha, attention=nn.MultiheadAttention(4, 2, batch_first=True)),
        "transformer-encoder": lambda: sequence(
            lambda m, x: m.head(m.encoder(x).mean(1)), encoder=nn.TransformerEncoder(layer, 2)
        ),
        "flex-attention": lambda: sequence(
            lambda m, x: m.head(_flex(m.first(x)).flatten(1)), 16, 4, first=nn.Linear(4, 4)
        ),
        "per-position": lambda: of(lambda m, x: m.net(x)[:, None].expand(-1, 2, -1), net=mlp()),
        "probabilities": lambda: (nn.Sequential(*mlp(), nn.Softmax(1)), rows()),
        "no-parameters": lambda: (nn.Sequential(nn.Flatten()), rows()),
        "quantized": lambda: (torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}), rows()),
    }


def _flat_end() -> tuple[nn.Module, ...]:
    return nn.Tanh(), nn.Flatten(), nn.Linear(16, K)


def _flex(x: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(x[:, None], x[:, None], x[:, None])[:, 0]
