"""Convolutions over words, with a global maximum (GP-CNN)."""

from __future__ import annotations

from typing import Annotated, cast

import torch
from torch import Tensor, nn

from calibcli.architectures.shelf import ARCHITECTURES, Size
from calibcli.spec import Range


@ARCHITECTURES.add("text_cnn")
class TextCNN(nn.Module):
    """Three convolutions over words of fixed vectors, a global maximum and two linear layers (Mukhoti et al. 2020).

    The global-pooling CNN that they train on 20 Newsgroups, with its maxima over `kernel` words after the first two
    convolutions; `stride=5` is the network of Keras's example, theirs has 1. The vectors are no parameters: drawn from
    N(0, 1), or those of `calib fit --embeddings`.

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("text_cnn").parameters())
    247316

    Args:
        vocabulary: words, 0 for none.  width: of a vector.  filters: of each convolution.  kernel: words that it sees.
        stride: of the maxima.  dropout: before the last layer.  classes: K.
    """

    vectors: Tensor

    def __init__(
        self,
        *,
        vocabulary: Size = 20_000,
        width: Size = 100,
        filters: Size = 128,
        kernel: Annotated[int, Range(1, 100)] = 5,
        stride: Annotated[int, Range(1, 100)] = 1,
        dropout: Annotated[float, Range(0, 1, open_high=True)] = 0.3,
        classes: Size = 20,
    ) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.randn(vocabulary, width))
        with torch.no_grad():
            self.vectors[0] = 0
        self.convolutions = nn.Sequential(
            *(nn.Conv1d(inputs, filters, kernel) for inputs in (width, filters, filters)),
        )
        self.pool = nn.MaxPool1d(kernel, stride)
        self.hidden, self.dropout = nn.Linear(filters, filters), nn.Dropout(dropout)
        self.linear = nn.Linear(filters, classes)

    def forward(self, words: Tensor) -> Tensor:
        x = nn.functional.embedding(words.long(), self.vectors).movedim(2, 1)
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x).relu()
            x = self.pool(x) if number < 2 else x.amax(2)
        return cast(Tensor, self.linear(self.dropout(self.hidden(x).relu())))
