"""Networks for text: convolutions over words, and LSTMs over binary trees."""

from __future__ import annotations

from typing import Annotated, cast

import numpy as np
import torch
from torch import Tensor, nn

from calibcli.core.errors import InputError
from calibcli.core.options import Range
from calibcli.networks.architectures.registry import ARCHITECTURES, Size


class WordVectors(nn.Module):
    """A network over words, given by number, with fixed vectors drawn from N(0, 1); that of 0, no word, is zero."""

    vectors: Tensor

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.randn(vocabulary, width))
        with torch.no_grad():
            self.vectors[0] = 0


@ARCHITECTURES.add("text_cnn")
class TextCNN(WordVectors):
    """Three convolutions over words of fixed vectors, a global maximum and two linear layers (Mukhoti et al. 2020).

    The global-pooling CNN that they train on 20 Newsgroups, with its maxima over `kernel` words after the first two
    convolutions; `stride=5` is the network of Keras's example, theirs has 1. The vectors are no parameters: drawn from
    N(0, 1), or those of `calib fit --embeddings`.

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("text_cnn").parameters())
    247316

    Args:
        vocabulary: words, 0 for none.  width: of a vector.  filters: of each convolution.  kernel: words that it sees.
        stride: of the maxima.  dropout: before the last layer.  classes: K.
    """

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
        super().__init__(vocabulary, width)
        self.convolutions = nn.Sequential(*(nn.Conv1d(inputs, filters, kernel) for inputs in (width, filters, filters)))
        self.pool = nn.MaxPool1d(kernel, stride)
        self.hidden, self.dropout = nn.Linear(filters, filters), nn.Dropout(dropout)
        self.linear = nn.Linear(filters, classes)

    def forward(self, words: Tensor) -> Tensor:
        x = nn.functional.embedding(words.long(), self.vectors).movedim(2, 1)  # (n, words, width) to (n, width, words)
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x).relu()
            x = self.pool(x) if number < 2 else x.amax(2)
        return cast(Tensor, self.linear(self.dropout(self.hidden(x).relu())))


REFUSED = "a row is no binary tree of words", "pass trees as trainDevTestTrees_PTB.zip has them"
Place = tuple[int, int]  # of a node: its height, its number at that height


@ARCHITECTURES.add("tree_lstm")
class TreeLSTM(WordVectors):
    """An LSTM over binary trees of words of fixed vectors, and a linear layer on the root (Tai et al. 2015).

    As Mukhoti et al. (2020) train it on the Stanford Sentiment Treebank. A word x has `c = W x`, `h = σ(V x) tanh c`;
    two trees joined have `c = i u + f c_left + g c_right`, `h = tanh c`, whose gates i, f, g and u are of both h. A row
    is a tree in postfix order: words by number, -1 where the two trees before it are joined, zeros at the end. The
    vectors are no parameters: drawn from N(0, 1), or those of `calib fit --embeddings`.

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("tree_lstm").parameters())
    271953

    Args:
        vocabulary: words, 0 for none.  width: of a vector.  dim: of h and c.  dropout: before the last layer.
        classes: K.
    """

    def __init__(
        self,
        *,
        vocabulary: Size = 25_000,
        width: Size = 300,
        dim: Size = 150,
        dropout: Annotated[float, Range(0, 1, open_high=True)] = 0.5,
        classes: Size = 3,
    ) -> None:
        super().__init__(vocabulary, width)
        self.word = nn.Linear(width, 2 * dim)
        self.left, self.right = nn.Linear(dim, 4 * dim), nn.Linear(dim, 4 * dim)
        self.dropout, self.linear = nn.Dropout(dropout), nn.Linear(dim, classes)

    def forward(self, trees: Tensor) -> Tensor:
        stops = trees.shape[1] - trees.ne(0).flip(1).int().argmax(1)  # most rows are far shorter than the longest
        rows = zip(trees.long().tolist(), stops.tolist(), strict=True)
        words, levels = _levels([tree[:stop] for tree, stop in rows])
        c, gate = self.word(nn.functional.embedding(words.to(trees.device), self.vectors)).chunk(2, 1)
        h = gate.sigmoid() * c.tanh()
        parts: list[list[Tensor]] = [[] for _ in levels]
        # A node is read once, by the level that joins it. A level therefore takes its own nodes from those before it: a
        # single growing tensor would be copied for every level, and its gradient be filled with zeros for each.
        for level, (sizes, order) in enumerate(levels):
            if level > 0:
                (c_left, c_right), (h_left, h_right) = c.chunk(2), h.chunk(2)
                i, f, g, u = (self.left(h_left) + self.right(h_right)).chunk(4, 1)
                c = i.sigmoid() * u.tanh() + f.sigmoid() * c_left + g.sigmoid() * c_right
                h = c.tanh()
            for part, nodes in zip(parts[level:], torch.split(torch.cat([c, h], 1), sizes), strict=True):
                part.append(nodes)
            c, h = torch.cat(parts[level])[order.to(trees.device)].chunk(2, 1)  # (nodes, 2 dim) to (nodes, dim) each
        return cast(Tensor, self.linear(self.dropout(h)))


def _levels(trees: list[list[int]]) -> tuple[Tensor, list[tuple[list[int], Tensor]]]:
    """Sort trees by height: all words, and for each level what it makes of the nodes before it; the roots come last.

    Of a level: how many of the nodes made just before it are for this level, the next, ..., in this order; and the
    order in which it reads those for it: all left ones, then all right ones.
    """
    words: list[int] = []
    levels: list[list[tuple[Place, Place]]] = []
    roots: list[Place] = []
    for tree in trees:
        stack: list[Place] = []
        for number in tree:
            if number > 0:
                stack.append((0, len(words)))
                words.append(number)
            elif number < 0:
                if len(stack) < 2:
                    raise InputError(*REFUSED)
                right, left = stack.pop(), stack.pop()
                height = max(left[0], right[0])
                if height == len(levels):
                    levels.append([])
                stack.append((height + 1, len(levels[height])))
                levels[height].append((left, right))
        if len(stack) != 1:
            raise InputError(*REFUSED)
        roots += stack
    # Every node once, by the level that reads it: its height, its number there, and that level.
    reads = [[side[i] for i in (0, 1) for side in level] for level in levels] + [roots]
    height, number = np.array([node for read in reads for node in read]).T
    counts = [len(read) for read in reads]
    reader = np.repeat(np.arange(len(reads)), counts)
    sizes = np.bincount(height * len(reads) + reader, minlength=len(reads) ** 2).reshape(len(reads), -1)
    # Nodes of one height stand by the level that reads them, as `split` cuts them.
    places = torch.split(torch.from_numpy(number[np.lexsort([reader, height])]), sizes.sum(1).tolist())
    order = np.empty(len(reader), np.int64)
    order[np.lexsort([height, reader])] = np.concatenate([np.arange(count) for count in counts])
    orders = list(torch.split(torch.from_numpy(order), counts))
    # A level makes its nodes as they stand for those that read them: the columns are left and right of each.
    orders[:-1] = [one.view(2, -1)[:, place].flatten() for one, place in zip(orders[:-1], places[1:], strict=True)]
    cuts = [sizes[level, level:].tolist() for level in range(len(reads))]
    return torch.tensor(words)[places[0]], list(zip(cuts, orders, strict=True))
