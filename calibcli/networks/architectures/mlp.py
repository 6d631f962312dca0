"""Linear classifier and multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast

from torch import Tensor, nn

from calibcli.core.options import Share
from calibcli.networks.architectures.registry import ACTIVATIONS, ARCHITECTURES, Activation, Size, Sizes


@ARCHITECTURES.add("linear")
class Linear(nn.Module):
    """Multinomial logistic regression: one linear layer on flattened rows.

    Cox (1958) for two classes.

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("linear:inputs=2,classes=2,bias=false").parameters())
    4

    Args:
        inputs: features per row.  classes: K.  bias: whether there is one.
        init: PyTorch's draws, or zeros, where every class has the same probability.
    """

    def __init__(
        self, *, inputs: Size, classes: Size = 10, bias: bool = True, init: Literal["default", "zeros"] = "default"
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes, bias)
        if init == "zeros":
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.linear(x.flatten(1)))


@ARCHITECTURES.add("mlp")
class MLP(nn.Module):
    """Linear layers with an activation between them, on flattened rows; `hidden=128/128` are the widths.

    The perceptron of many layers (Rumelhart et al. 1986).

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("mlp:inputs=64").parameters())
    26122

    Args:
        inputs: features per row.  hidden: widths of the hidden layers.  classes: K.
        activation: relu, gelu, silu or tanh.  dropout: probability of dropping a hidden unit in training.
    """

    def __init__(
        self,
        *,
        inputs: Size,
        hidden: Sizes = (128, 128),
        classes: Size = 10,
        activation: Activation = "relu",
        dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.hidden = nn.Sequential()
        for a, b in pairwise(widths):
            dropped = [nn.Dropout(dropout)] if dropout else []
            self.hidden.append(nn.Sequential(nn.Linear(a, b), ACTIVATIONS[activation](), *dropped))
        self.linear = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.linear(self.hidden(x.flatten(1))))
