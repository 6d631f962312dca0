"""One linear layer."""

from __future__ import annotations

from typing import Literal, cast

from torch import Tensor, nn

from calibcli.architectures.shelf import ARCHITECTURES, Size


@ARCHITECTURES.add("linear")
class Linear(nn.Module):
    """Multinomial logistic regression: one linear layer on flattened rows.

    Cox (1958) for two classes.

    >>> from calibcli.architectures import build
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
