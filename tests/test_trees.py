"""Trees of words: the Stanford Sentiment Treebank as it is published and as it is drawn, their network, its study."""

from __future__ import annotations

import dataclasses
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibcli import calibrators
from calibcli.core.errors import InputError, UsageError
from calibcli.lab.study import experiment, parsing, runs
from calibcli.lab.study._readings import answers, unrenormalised
from calibcli.lab.study.report import report
from calibcli.networks.architectures import build
from calibcli.networks.dataset import load, splits, synthetic
from calibcli.networks.dataset.downloads import _texts as texts
from calibcli.scores.columns import columns
from calibcli.scores.predictions import Predictions

torch.set_num_threads(1)
Written = Any  # a word, or two trees


def drawn(rng: np.random.Generator, words: int) -> Written:
    if words == 1:
        return int(rng.integers(1, 30))
    first = int(rng.integers(1, words))
    return drawn(rng, first), drawn(rng, words - first)


def postfix(tree: Written) -> list[int]:
    return [tree] if isinstance(tree, int) else [*postfix(tree[0]), *postfix(tree[1]), -1]


def rows(trees: list[Written], longest: int = 25) -> Tensor:
    found = [postfix(tree) for tree in trees]
    return torch.tensor([row + [0] * (longest - len(row)) for row in found])


def state(net: Any, tree: Written) -> tuple[Tensor, Tensor]:
    """c and h of a tree, by recursion and one gate at a time."""
    if isinstance(tree, int):
        x, (w, v), (b, o) = net.vectors[tree], net.word.weight.chunk(2), net.word.bias.chunk(2)
        return (c := w @ x + b), torch.sigmoid(v @ x + o) * torch.tanh(c)
    (c1, h1), (c2, h2) = state(net, tree[0]), state(net, tree[1])
    i, f, g, u = (
        a @ h1 + p + b @ h2 + q
        for a, p, b, q in zip(
            *(part.chunk(4) for side in (net.left, net.right) for part in (side.weight, side.bias)), strict=True
        )
    )
    s = torch.sigmoid
    c = s(i) * torch.tanh(u) + s(f) * c1 + s(g) * c2
    return c, torch.tanh(c)


def test_the_network_is_its_recursion() -> None:
    rng = np.random.default_rng(0)
    trees = [drawn(rng, words) for words in (1, 2, 3, 7, 13, 13)] + [(1, (2, (3, (4, 5)))), ((((1, 2), 3), 4), 5)]
    torch.manual_seed(0)
    net: Any = build("tree_lstm:vocabulary=30,width=4,dim=5").eval()
    wanted = torch.stack([net.linear(state(net, tree)[1]) for tree in trees])
    torch.testing.assert_close(net(rows(trees)), wanted, rtol=1e-6, atol=1e-6)
    net = net.double()
    wanted = torch.stack([net.linear(state(net, tree)[1]) for tree in trees])
    torch.testing.assert_close(net(rows(trees)), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net(rows(trees)[2:3].float()), wanted[2:3], rtol=1e-12, atol=1e-12)


def test_gradients_are_right_twice() -> None:
    torch.manual_seed(1)
    net: Any = build("tree_lstm:vocabulary=30,width=2,dim=2").double().eval()
    names, weights = zip(*net.named_parameters(), strict=True)

    def out(*values: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), rows([((1, 2), (3, (4, 5)))]))

    held = tuple(weight.detach().requires_grad_() for weight in weights)
    assert torch.autograd.gradcheck(out, held)
    assert torch.autograd.gradgradcheck(lambda *values: out(*values).logsumexp(1), held)


@pytest.mark.parametrize("row", [[1, 2, 0], [1, -1, 0], [-1, 1, 0], [0, 0, 0], [1, 2, -1, -1]])
def test_rows_that_are_no_trees(row: list[int]) -> None:
    with pytest.raises(InputError, match="no binary tree"):
        build("tree_lstm:vocabulary=9,width=2,dim=2")(torch.tensor([row]))


def test_lines_are_read_as_they_are_nested() -> None:
    words, nodes = texts.parsed("(3 (2 It) (4 (2 's) (3 (3 so) (1 -LRB-))))")
    assert words == ["It", "'s", "so", "-LRB-", "", "", ""]
    phrases = [(label, words[a:b]) for label, a, b in nodes]
    assert phrases[-1] == (3, words)
    assert (3, ["so", "-LRB-", ""]) in phrases
    assert [label for label, _ in phrases] == [2, 2, 3, 1, 3, 4, 3]


@pytest.mark.regression
def test_a_no_break_space_is_part_of_a_word_as_in_the_published_file(tmp_path: Path) -> None:
    """Three lines of `train.txt` have one between a number and its fraction, and none ends in it."""
    line = "(3 (2 (2 A) (3 8\u00a01\\/2)) (3 (2 wit)\t(3 !)))"
    words, nodes = texts.parsed(line)
    assert [word for word in words if word] == ["A", "8\u00a01\\/2", "wit", "!"]
    assert [label for label, _, _ in nodes] == [2, 3, 2, 2, 3, 3, 3]
    (tmp_path / "train.txt").write_text(f"(4 good)\n{line}\r\n(0 bad)\n", encoding="utf-8", newline="")
    data = load(f"{tmp_path}#train")
    assert len(data.labels) == 9
    assert "8\u00a01\\/2" in data.words


@pytest.mark.parametrize(
    "line",
    [
        "(3 It",
        "(3 (2 It))",
        "(3 (2 a) (2 b) (2 c))",
        "(3 a b)",
        "3 a)",
        "(2 a) (2 b)",
        "(9 a)",
        "(3 (2 a) b)",
        "((2 a)",
    ],
)
def test_lines_that_are_no_trees(line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"node|bracket"):
        texts.parsed(line)
    (tmp_path / "train.txt").write_text(f"(4 good)\n{line}\n")
    with pytest.raises(InputError, match=r"train.txt of .*line 2 is no binary tree"):
        load(f"{tmp_path}#train")


def test_trees_in_an_archive_and_in_a_folder_are_the_same(tmp_path: Path) -> None:
    root = synthetic.sentiment(tmp_path / "trees", train=40, dev=20, test=30)
    packed = tmp_path / "trainDevTestTrees_PTB.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in root.iterdir():
            archive.write(path, f"trees/{path.name}")
    assert splits(root) == splits(packed) == ["train", "validation", "test"]
    for part, file in texts.FILES.items():
        one, other = load(f"{root}#{part}"), load(f"{packed}#{part}")
        assert torch.equal(one.batch(slice(None))[0], other.batch(slice(None))[0])  # type: ignore[arg-type]
        assert one.labels.tolist() == other.labels.tolist()
        trees = [texts.parsed(line) for line in (root / file).read_text().splitlines()]
        told = [tree for tree in trees if tree[1][-1][0] != 2]  # sentences that are neutral are left out
        nodes = [(words, node) for words, found in told for node in (found if part == "train" else found[-1:])]
        assert 0 < len(told) < len(trees)
        assert one.labels.tolist() == [1 + (label > 2) - (label < 2) for _, (label, _, _) in nodes]
        numbers, _ = one.batch(slice(None))
        for row, (words, (_, start, stop)) in zip(numbers, nodes, strict=True):  # type: ignore[arg-type]
            back = ["" if number < 0 else one.words[number] for number in row.tolist() if number]
            assert back == words[start:stop]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.txt").write_text("(2) things that are no trees\n")
    assert splits(tmp_path / "other") == []


def test_two_readings_of_a_confidence() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 2, (500, 3)), rng.choice([0, 2], 500)
    logits[np.arange(500), labels] += 1.5
    three = Predictions.of(logits, labels, classes=["negative", "neutral", "positive"])
    two = Predictions.of(logits[:, [0, 2]], labels // 2)
    one = answers(three, "neutral")
    fit, wanted = calibrators.fit("temperature", one), calibrators.fit("temperature", two)
    assert fit["temperature"].value == pytest.approx(wanted["temperature"].value, rel=1e-9)
    mine, theirs = columns(calibrators.apply(fit.scaler, one)), columns(calibrators.apply(wanted.scaler, two))
    assert np.allclose(mine.nll, theirs.nll, rtol=1e-9)
    assert np.allclose(mine.confidence, theirs.confidence, rtol=1e-9)
    read = unrenormalised(three, "neutral")
    for i in range(500):
        p = [math.exp(z - max(logits[i])) for z in logits[i]]
        answer = 0 if p[0] > p[2] else 2
        assert read.confidence[i] == pytest.approx(p[answer] / sum(p), rel=1e-9)
        assert bool(read.correct[i]) == (answer == labels[i])
        assert read.nll[i] == pytest.approx(-math.log(p[labels[i]] / sum(p)), rel=1e-9)
    with pytest.raises(UsageError, match="no class is called 'other'"):
        answers(three, "other")
    with pytest.raises(UsageError, match="rows of class negative"):
        answers(three, "negative")


@pytest.mark.slow
def test_a_study_of_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small size, made smaller still: both readings stand side by side, and the paper's numbers are of its own."""
    monkeypatch.setitem(
        runs.DRAWN, "drawn-trees", lambda folder: synthetic.sentiment(folder, train=60, dev=40, test=60)
    )
    whole = parsing.parse(*experiment.text_of("sentiment"), "small", seeds=2)
    study = dataclasses.replace(
        whole,
        options={**whole.options, "epochs": 1, "batch_size": 100},
        arms=tuple(one for one in whole.arms if one.name in ("CE", "FLA-53")),
    )
    parsing.keep(study, tmp_path)
    runs.work(study, tmp_path, lambda fraction, text: None)
    found = report(study, tmp_path)
    assert found.facts["runs"] == "4 of 4"
    assert [check.scope for check in found.checks] == [claim.id for claim in whole.claims]
    for arm in study.arms:
        ours, theirs = (found[f"nll{of}", arm.name].value for of in study.readings)
        assert ours is not None
        assert theirs is not None
        assert ours < theirs  # what neutral has is lost
        errors = [found[f"error{after}{of}", arm.name].value for after in ("", " after") for of in study.readings]
        assert len(set(errors)) == 1  # whatever the map and the reading, the answer is the same
    table = next(one for one in found.tables if one.name.startswith("arms"))
    assert not any(str(row[0]).endswith("printed") for row in table.rows)  # drawn sentences are not the Treebank's
    paper = parsing.parse(*experiment.text_of("sentiment"), "paper", "trainDevTestTrees_PTB.zip")
    numbers = paper.paper_numbers("tree_lstm", "Stanford Sentiment Treebank", 1_821)["CE"]
    assert numbers["ece unrenormalised"] == 0.0737
    assert "ece" not in numbers
    assert (paper.embeddings, paper.test) == ("glove.840B.300d.txt", "trainDevTestTrees_PTB.zip#test")
