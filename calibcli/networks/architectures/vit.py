"""Vision transformer (Dosovitskiy et al. 2021), small."""

from __future__ import annotations

from typing import Annotated, cast

import torch
from torch import Tensor, nn

from calibcli.core.errors import UsageError
from calibcli.core.options import Range, Share
from calibcli.networks.architectures.registry import ARCHITECTURES, Depth, Size


class Attention(nn.Module):
    """Multi-head self-attention, written out: fused kernels have no second derivative."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, dim = x.shape
        # (n, tokens, 3, heads, width) to three of (n, heads, tokens, width)
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * (dim // self.heads) ** -0.5).softmax(-1)  # (n, heads, tokens, tokens)
        return cast(Tensor, self.proj((weights @ v).transpose(1, 2).reshape(n, tokens, dim)))  # heads side by side


class TransformerBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.norm1(x)))
        return cast(Tensor, x + self.dropout(self.mlp(self.norm2(x))))


@ARCHITECTURES.add("vit")
class ViT(nn.Module):
    """Vision transformer with a class token and learned positions (the defaults are a tiny one for 32x32 images).

    Source: Dosovitskiy et al. (2021).

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("vit").parameters())
    2693578

    Args:
        image: side of the square images.  patch: side of a patch.  channels: of the images.  dim: token width.
        depth: blocks.  heads: attention heads.  mlp_ratio: hidden width over dim.  classes: K.
        dropout: probability in the residual branches.

    Raises:
        UsageError: `patch` does not divide `image`, or `heads` does not divide `dim`.
    """

    def __init__(
        self,
        *,
        image: Size = 32,
        patch: Size = 4,
        channels: Size = 3,
        dim: Size = 192,
        depth: Depth = 6,
        heads: Size = 3,
        mlp_ratio: Annotated[int, Range(1, 1000)] = 4,
        classes: Size = 10,
        dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        if image % patch:
            raise UsageError(f"vit: image={image} is not a multiple of patch={patch}", "pass a patch that divides it")
        if dim % heads:
            raise UsageError(f"vit: dim={dim} is not a multiple of heads={heads}", "pass heads that divide dim")
        self.patches = nn.Conv2d(channels, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(TransformerBlock(dim, heads, mlp_ratio, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.linear = nn.Linear(dim, classes)
        nn.init.normal_(self.positions, std=0.02)
        nn.init.normal_(self.cls, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)  # (n, patches, width)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.positions
        return cast(Tensor, self.linear(self.norm(self.blocks(tokens))[:, 0]))
