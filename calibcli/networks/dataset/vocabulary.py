"""Number the words of texts as the tokenizer of Keras does, and read word vectors from a file."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, refusing

FILTERED = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))
VOCABULARY = 20_000  # numbers; 0 stands for no word
LONGEST = 1_000  # words of a text


def words_of(text: str) -> list[str]:
    """Split a text at blanks, in lower case and without punctuation (a carriage return stays part of a word)."""
    return [word for word in text.lower().translate(FILTERED).split(" ") if word]


def vocabulary(texts: Iterable[list[str]], most: int = VOCABULARY) -> list[str]:
    """Return the most frequent words; of ties, the one that occurs first. Number 0 stands for no word.

    >>> vocabulary([["b", "a"], ["a", "c"]], 3)
    ['', 'a', 'b']
    """
    counts = Counter(word for text in texts for word in text)
    return ["", *(word for word, _ in counts.most_common(most - 1))]


def numbers(texts: Sequence[list[str]], words: Sequence[str], longest: int = LONGEST) -> NDArray[np.int32]:
    """Return (N, longest) numbers of the last known words of each text, padded with zeros on the left."""
    place = {word: i for i, word in enumerate(words) if i}
    out = np.zeros((len(texts), longest), np.int32)
    for row, text in zip(out, texts, strict=True):
        codes = [place[word] for word in text if word in place][-longest:]
        row[longest - len(codes) :] = codes
    return out


def vectors(path: str | Path, words: Sequence[str], width: int) -> tuple[NDArray[np.float32], int]:
    """Read (V, width) word vectors, zero for words that the file lacks, and count the words that it has.

    Args:
        path: text, `word f1 ... f_width` per line, as GloVe is published (Pennington et al. 2014).

    Raises:
        InputError: the file cannot be read, has vectors of another width, or none of these words.
    """
    place = {word: i for i, word in enumerate(words) if i}
    out, count = np.zeros((len(words), width), np.float32), 0
    fix = "pass vectors as GloVe has them, and a network with width= as they are long"
    missing = refusing(FileNotFoundError, f"{os.fspath(path)} is missing", f"put it there as it is published, or {fix}")
    failed = refusing((OSError, UnicodeDecodeError), lambda error: f"{os.fspath(path)} is no text of vectors", fix)
    with failed, missing, open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, *values = line.rstrip().rsplit(" ", width)
            header = number == 1 and len(values) == 1 and word.isdigit()
            if header:  # of word2vec: number and length of the vectors
                continue
            if len(values) != width:
                raise InputError(f"{path}: line {number} is not a word and {width} numbers", fix)
            if word not in place:  # nearly all: GloVe's largest has 2 million words of 300 numbers
                continue
            with refusing(ValueError, f"{path}: line {number} is not a word and {width} numbers", fix):
                row = [float(value) for value in values]
            if not all(map(math.isfinite, row)):
                raise InputError(f"{path}: line {number} is not a word and {width} finite numbers", fix)
            out[place[word]] = row
            count += 1
    if not count:
        raise InputError(f"{path} has none of the {len(words) - 1} words", "pass vectors of the texts' language")
    return out, count
