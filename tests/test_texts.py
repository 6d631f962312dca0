"""Texts: 20 Newsgroups as it is published and as it is drawn, words as numbers, vectors of words, their network."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.networks import checkpoint
from calibcli.networks.architectures import build
from calibcli.networks.dataset import load, splits, synthetic
from calibcli.networks.dataset.downloads._texts import shuffled
from calibcli.networks.dataset.vocabulary import numbers, vectors, vocabulary, words_of

torch.set_num_threads(1)


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_words_are_those_of_kerass_tokenizer() -> None:
    assert words_of("Re: It's (not) A-test;\n\n'tis_\t42\r\nend") == [
        "re",
        "it's",
        "not",
        "a",
        "test",
        "'tis",
        "42\r",
        "end",
    ]
    texts = [words_of(text) for text in ("b a a", "c b", "d")]
    assert vocabulary(texts) == ["", "b", "a", "c", "d"]  # of ties the first
    assert numbers(texts, vocabulary(texts, 3), 4).tolist() == [[0, 1, 2, 2], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert numbers([list("abcab")], ["", "a", "b"], 3).tolist() == [[2, 1, 2]]  # the last that are known


def test_the_split_has_the_sizes_of_the_paper() -> None:
    parts = shuffled(19_997)
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 15_098, "validation": 900, "test": 3_999}
    assert sorted(np.concatenate([*parts.values()]).tolist()) == list(range(19_997))
    order = np.arange(19_997)
    np.random.RandomState(1).shuffle(order)
    assert parts["test"].tolist() == order[-3_999:].tolist()
    assert parts["train"][:9].tolist() == order[:9].tolist()


def test_posts_in_an_archive_and_in_a_folder_are_the_same(tmp_path: Path) -> None:
    root = synthetic.newsgroups(tmp_path / "20_newsgroups", groups=3, posts=20)
    files = {f"20_newsgroups/{p.relative_to(root).as_posix()}": p.read_bytes() for p in root.glob("*/*")}
    packed = archive(tmp_path / "20_newsgroups.tar.gz", dict(reversed(files.items())))
    assert splits(root) == splits(packed) == ["train", "validation", "test"]
    for role in splits(root):
        a, b = load(f"{root}#{role}"), load(f"{packed}#{role}")
        assert a.ids is not None
        assert b.ids is not None
        assert a.ids.tolist() == b.ids.tolist()
        assert a.classes == b.classes == ["group.0", "group.1", "group.2"]
        assert torch.equal(a.batch(slice(None))[0], b.batch(slice(None))[0])  # type: ignore[arg-type]
        body = (root / str(a.ids[0])).read_text().split("\n\n")[1].rstrip(".\n").split(" ")
        row = a.batch([0])[0][0]  # type: ignore[index]
        assert row.dtype == torch.int64
        assert [a.words[i] for i in row if i] == body
        assert [a.classes[y] for y in a.labels] == [str(i).split("/")[0] for i in a.ids]  # type: ignore[index]


def test_posts_by_date_have_their_own_split(tmp_path: Path) -> None:
    files = {
        f"20news-bydate-{part}/{group}/{n}": f"From: x\n\n{group} {part} post".encode()
        for part, n in (("train", 1), ("train", 2), ("test", 2))
        for group in ("sci.med", "alt.x")
    }
    packed = archive(tmp_path / "20news-bydate.tar.gz", files)
    assert splits(packed) == ["train", "test"]
    train, test = load(f"{packed}#train"), load(f"{packed}#test")
    assert (len(train), len(test), train.classes) == (4, 2, ["alt.x", "sci.med"])
    assert train.words == test.words  # of all posts
    with pytest.raises(InputError, match="no split 'validation'"):
        load(f"{packed}#validation")


def test_what_is_no_newsgroups_is_not_taken_for_it(tmp_path: Path) -> None:
    for group in ("a", "b"):
        (tmp_path / "mixed" / group).mkdir(parents=True)
        (tmp_path / "mixed" / group / "post.txt").write_text("x")
    assert splits(tmp_path / "mixed") == []
    broken = archive(tmp_path / "20_newsgroups.tar.gz", {"g/a/1": b"x" * 3000, "g/b/2": b"y" * 3000})
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(InputError, match="damaged"):
        load(f"{broken}#train")


def test_vectors_of_words(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("the 1 2\n, 3 4\nb 5 6.5\n")
    found, count = vectors(path, ["", "b", "c", "the"], 2)
    assert (found.tolist(), count) == ([[0, 0], [5, 6.5], [0, 0], [1, 2]], 2)
    path.write_text("2 2\nthe 1 2\n")
    assert vectors(path, ["", "the"], 2)[1] == 1
    for text, said in (
        ("the 1\n", "line 1"),
        ("the 1 2\nb x 2\n", "line 2"),
        ("b nan 2\n", "finite"),
        ("z 1 2\n", "none of"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            vectors(path, ["", "b"], 2)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no text of vectors"):
        vectors(path, ["", "b"], 2)
    with pytest.raises(InputError, match=r"absent\.txt is missing"):
        vectors(tmp_path / "absent.txt", ["", "b"], 2)


def test_the_network_is_its_formula() -> None:
    torch.manual_seed(0)
    net: Any = build("text_cnn:vocabulary=30,width=4,filters=5,kernel=3,classes=3").double().eval()
    words = torch.randint(0, 30, (2, 25))
    x = net.vectors[words]  # (N, L, width)
    for number, layer in enumerate(net.convolutions):
        weight, bias = layer.weight, layer.bias
        steps = x.shape[1] - 2
        x = torch.stack([torch.einsum("nkc,ock->no", x[:, t : t + 3], weight) + bias for t in range(steps)], 1).relu()
        if number < 2:
            x = torch.stack([x[:, t : t + 3].amax(1) for t in range(steps - 2)], 1)
    expected = torch.relu(x.amax(1) @ net.hidden.weight.T + net.hidden.bias) @ net.linear.weight.T + net.linear.bias
    torch.testing.assert_close(net(words), expected)
    assert bool((net.vectors[0] == 0).all())
    assert "vectors" in net.state_dict()
    assert "vectors" not in dict(net.named_parameters())


@pytest.mark.slow
def test_fit_with_vectors_and_what_is_refused(tmp_path: Path, capsys: Any) -> None:
    root = synthetic.newsgroups(tmp_path / "20_newsgroups", groups=2, posts=150)
    words = load(f"{root}#train").words
    glove = tmp_path / "glove.txt"
    rng = np.random.default_rng(0)
    glove.write_text("".join(f"{word} {' '.join(f'{v:.3f}' for v in rng.normal(size=6))}\n" for word in words[1:50]))
    net, line = (
        "text_cnn:vocabulary=600,width=6,filters=4",
        ("--epochs", "1", "--batch-size", "32", "--threads", "1", "-q"),
    )
    argv = "fit", net, "--data", str(root), "--embeddings", str(glove), "--save", str(tmp_path / "run"), *line
    assert main([*argv, "-o", str(tmp_path / "x.md")]) == 0
    assert f"49 of {len(words) - 1:,} words have a vector" in (tmp_path / "x.md").read_text()
    model: Any = checkpoint.load(str(tmp_path / "run/model.safetensors")).model
    assert torch.equal(model.vectors[:50], torch.from_numpy(vectors(glove, words, 6)[0][:50]))
    assert bool((model.vectors[50:] == 0).all())
    glove.write_text(glove.read_text().replace(" ", " 1", 1))
    assert main([*argv, "--resume"]) == 2
    assert "vectors" in capsys.readouterr().err
    for argv, said in (
        (["mlp:hidden=4", "--data", str(root)], "--embeddings is for text_cnn and tree_lstm"),
        (["text_cnn:vocabulary=9,width=6,filters=4", "--data", str(root)], "text_cnn:vocabulary="),
        ([str(tmp_path / "run/model.safetensors"), "--data", str(root)], "has its vectors"),
    ):
        assert main(["fit", *argv, "--embeddings", str(glove), *line]) == 2
        assert said in capsys.readouterr().err
