"""Formats and streams: what is read is what was written, however it was written."""

from __future__ import annotations

import errno
import io
import os
import resource
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import sha256
from calibcli.scores import array_names, from_arrays, predictions, recorded_outputs
from calibcli.scores.files import source
from calibcli.scores.files.arrays import Joined, Memory
from calibcli.scores.predictions import Predictions

RNG = np.random.default_rng(1)
Z = RNG.normal(size=(300, 4)).astype(np.float32) * 2
Y = np.where(RNG.uniform(size=300) < 0.7, Z.argmax(axis=1), RNG.integers(0, 4, 300))
P = np.exp(Z.astype(np.float64))
P /= P.sum(axis=1, keepdims=True)


def softmax_of(p: Predictions) -> np.ndarray:
    z = p.logits.astype(np.float64)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def same(p: Predictions, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(softmax_of(p), P, atol=tolerance)
    np.testing.assert_array_equal(p.labels, Y)
    assert p.labels.dtype == np.int64


def test_npz_stored_and_compressed(tmp_path: Path) -> None:
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", logits=Z, labels=Y)
        p = recorded_outputs.read(tmp_path / "a.npz")
        same(p)
        assert (p.kind, p.scores.dtype, p.n, p.k) == ("logits", np.float32, 300, 4)
        assert len(p.sha256) == 64


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_layouts(tmp_path: Path, dtype: str, order: Any) -> None:
    np.savez(tmp_path / "a.npz", logits=np.array(Z, dtype=dtype, order=order), labels=Y.astype(">i2"))
    same(recorded_outputs.read(tmp_path / "a.npz"))


def test_labels_that_are_not_needed_may_be_wrong(tmp_path: Path) -> None:
    for labels in (np.full(300, -1), Y[:7], np.array(["?"] * 300), Y / 2):
        np.savez(tmp_path / "a.npz", logits=Z, labels=labels)
        p = recorded_outputs.read(tmp_path / "a.npz", need_labels=False)
        assert not p.record.labelled
        assert any("labels are not used" in note for note in p.notes)
        np.testing.assert_array_equal(p.logits, Z)
        with pytest.raises(InputError):
            recorded_outputs.read(tmp_path / "a.npz")


def test_provenance(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "z.labels.npy", Y)
    p = recorded_outputs.read(tmp_path / "z.npy")
    same(p)
    files = [{"path": str(path), "sha256": sha256(path)} for path in (tmp_path / "z.npy", tmp_path / "z.labels.npy")]
    (first, second) = recorded_outputs.provenance(p)
    read = first.pop("read")
    assert [first, second] == files
    assert (read["scores"], read["kind"], read["rows"]) == ("z", "logits", len(Y))
    assert p.sha256 == files[0]["sha256"]


def test_every_command_has_the_same_reading_options() -> None:
    from calibcli.cli import check, compare, inspect, metrics, scale
    from calibcli.scores.reading_options import Reading

    options = {field.name for field in fields(Reading) if field.metadata}
    assert {field.name for field in fields(Reading)} - options == {
        "numbers",
        "need_labels",
        "hashed",
        "judged",
        "skipped",
    }
    for module in (check, compare, inspect, metrics, scale):
        names = set(module.command.options)
        assert options <= names, module.__name__
        assert "reading" not in names


def test_unknown_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown option 'label'") as error:
        recorded_outputs.read(tmp_path / "a.npz", label="y")
    assert "labels" in error.value.fix


def test_npy_with_labels_file(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "y.npy", Y)
    same(recorded_outputs.read(tmp_path / "z.npy", labels=str(tmp_path / "y.npy")))
    with pytest.raises(InputError, match="no labels"):
        recorded_outputs.read(tmp_path / "z.npy")
    (tmp_path / "i.csv").write_text(",prob_0,prob_1\n0,0.2,0.8\n1,0.7,0.3\n")
    with pytest.raises(InputError, match="no labels"):  # what has no name numbers the rows
        recorded_outputs.read(tmp_path / "i.csv")
    unlabelled = recorded_outputs.read(tmp_path / "z.npy", need_labels=False)
    assert not unlabelled.record.labelled


@pytest.mark.parametrize("key", ["probs", "y_proba", "scores", "outputs"])
def test_probabilities_become_logarithms(tmp_path: Path, key: str) -> None:
    np.savez(tmp_path / "a.npz", **{key: P}, y=Y)
    p = recorded_outputs.read(tmp_path / "a.npz")
    same(p, 1e-12)
    assert p.kind == "probabilities"
    np.savez(tmp_path / "a.npz", log_probs=np.log(P), y=Y)
    assert recorded_outputs.read(tmp_path / "a.npz").kind == "log_probabilities"


def test_half_precision_probabilities(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=P.astype(np.float16), y=Y)
    assert recorded_outputs.read(tmp_path / "a.npz").kind == "probabilities"
    np.savez(tmp_path / "a.npz", probs=P.astype(np.float16).astype(np.float32), y=Y)
    same(recorded_outputs.read(tmp_path / "a.npz"), 2e-3)


@pytest.mark.parametrize("header", ["logit_{}", "logit{}", "logits.{}", "score_{}"])
def test_csv(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.csv"
    names = [header.format(i) for i in range(4)]
    rows = [",".join([*names, "label", "site"])]
    rows += [",".join([*map(repr, map(float, z)), str(y), "A" if y else "B"]) for z, y in zip(Z, Y)]
    path.write_text("\n".join(rows) + "\n")
    p = recorded_outputs.read(path, by=("site",))
    same(p)
    np.testing.assert_array_equal(p.slices["site"] == "A", Y > 0)


def test_csv_rounded_probabilities_named_classes(tmp_path: Path) -> None:
    """Three decimals do not sum to one within 1e-4; the tolerance follows the digits."""
    names = ["cat", "dog", "emu", "fox"]
    lines = ["\t".join(["id", *(f"prob_{c}" for c in names), "target"])]
    lines += ["\t".join([f"r{i}", *(f"{v:.3f}" for v in p), names[y]]) for i, (p, y) in enumerate(zip(P, Y))]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    p = recorded_outputs.read(tmp_path / "a.tsv")
    same(p, 2e-3)
    assert p.classes == names
    assert p.ids is not None
    assert p.ids[3] == "r3"


def test_binary_column(tmp_path: Path) -> None:
    lines = ["prob,label"] + [f"{p[1] / (p[0] + p[1])!r},{y % 2}" for p, y in zip(P.tolist(), Y)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    p = recorded_outputs.read(tmp_path / "a.csv")
    np.testing.assert_allclose(softmax_of(p)[:, 1], P[:, 1] / (P[:, 0] + P[:, 1]), rtol=1e-12)
    np.savez(tmp_path / "a.npz", logits=np.log(P[:, 1] / P[:, 0]), labels=Y % 2)
    np.testing.assert_allclose(
        softmax_of(recorded_outputs.read(tmp_path / "a.npz"))[:, 1], P[:, 1] / (P[:, 0] + P[:, 1]), rtol=1e-6
    )


@pytest.mark.parametrize("suffix", ["npz", "npy", "csv"])
def test_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    raw, labels = io.BytesIO(), None
    if suffix == "npz":
        np.savez(raw, logits=Z, labels=Y)
    elif suffix == "npy":
        np.save(raw, Z)
        np.save(tmp_path / "y.npy", Y)
        labels = str(tmp_path / "y.npy")
    else:
        raw.write(
            b"p0,p1,p2,p3,y\n" + b"\n".join(",".join(map(repr, [*p, int(y)])).encode() for p, y in zip(P.tolist(), Y))
        )
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(raw.getvalue())}))
    same(recorded_outputs.read("-", labels=labels))


def test_any_rows_of_many_parts_are_those_of_the_joined_array() -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        parts = [rng.normal(size=(n, 3)).astype(["f4", "f8"][seed % 2]) for n in rng.integers(0, 4, 1 + seed % 7)]
        joined, plain = Joined([Memory(part) for part in parts]), np.concatenate(parts)
        assert (joined.shape, joined.dtype) == (plain.shape, plain.dtype)
        for start in range(len(plain) + 1):
            for stop in range(start, len(plain) + 3):
                assert np.array_equal(joined.read(start, stop), plain[start:stop])


def test_many_parts_cost_no_more_each_than_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are counted once and found by their first row; each has been asked for its shape for every row."""
    asked: list[int] = []
    monkeypatch.setattr(Memory, "shape", property(lambda self: asked.append(1) or self.array.shape))
    joined = Joined([Memory(np.ones((1, 2))) for _ in range(300)])
    for row in range(300):
        joined.read(row, row + 1)
    assert len(asked) < 10 * 300


def test_more_files_are_opened_than_a_shell_allows(tmp_path: Path) -> None:
    for i in range(40):
        np.savez(tmp_path / f"{i:02}.npz", logits=Z[3 * i : 3 * i + 3], labels=Y[3 * i : 3 * i + 3])
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 10, hard))
        assert recorded_outputs.read(tmp_path / "*.npz").n == 120
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_too_many_open_files_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("calibcli.scores.files.locations.open_binary", full)
    with pytest.raises(InputError, match="Too many open files") as error:
        recorded_outputs.read(tmp_path / "a.npz")
    assert "ulimit -n" in error.value.fix
    assert "--partial" in error.value.fix


def test_what_may_be_decoded_is_asked_again_when_much_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = iter([1000, 900, 5])
    monkeypatch.setattr(source, "memory_limit", lambda: next(limits))
    monkeypatch.setattr(source, "_granted", 0)
    for size in (4, 3, 3, 500):
        source.refuse_large(size, "it takes much")
    with pytest.raises(InputError, match="it takes much"):
        source.refuse_large(6, "it takes much")
    assert next(limits, None) is None


def test_shards_join_in_order(tmp_path: Path) -> None:
    paths = []
    for i, part in enumerate((slice(0, 7), slice(7, 250), slice(250, 300))):
        paths.append(tmp_path / f"{i}.npz")
        np.savez(paths[-1], logits=Z[part], labels=Y[part], w=1 + np.arange(300.0)[part], site=Y[part].astype(str))
    p = recorded_outputs.read(paths, shards=True, weights="w", by=["site"], group="site")
    same(p)
    np.testing.assert_array_equal(p.weights, 1 + np.arange(300.0))
    np.testing.assert_array_equal(p.slices["site"], Y.astype(str))
    assert p.groups is not None
    assert set(p.groups.tolist()) == {0, 1, 2, 3}


@pytest.mark.regression
@pytest.mark.parametrize("head", ["prob_{}", "p_{}", "{}", "{} score"])
def test_parts_with_columns_in_another_order_or_labels_of_one_class_are_one_data_set(head: str, tmp_path: Path) -> None:
    """The numbers went by place to the classes of the first file; and one with rows of one class had no scores."""
    rows = slice(0, 90), slice(90, 280), np.flatnonzero(Y == 2)[:5]
    for i, (order, part) in enumerate(zip(([0, 1, 2, 3], [3, 1, 0, 2], [0, 1, 2, 3]), rows, strict=True)):
        cells = [[*(repr(x) for x in p[order].tolist()), "mnqt"[y]] for p, y in zip(P[part], Y[part], strict=True)]
        lines = [[*(head.format("mnqt"[k]) for k in order), "label"], *cells]
        (tmp_path / f"{i}.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    p = recorded_outputs.read(tmp_path / "*.csv")
    np.testing.assert_allclose(softmax_of(p), np.concatenate([P[part] for part in rows]), rtol=1e-12)
    np.testing.assert_array_equal(p.labels, np.concatenate([Y[part] for part in rows]))
    (tmp_path / "3.csv").write_text((tmp_path / "2.csv").read_text().replace("n", "v"))
    with pytest.raises(InputError, match=r"3\.csv has the classes|no such array in .*3\.csv"):
        recorded_outputs.read(tmp_path / "*.csv")


@pytest.mark.regression
def test_every_part_has_a_value_for_each_of_its_rows(tmp_path: Path) -> None:
    """Not one more in one file and one less in the next; and numbers of all files are read to the last digit."""
    part = {"logits": Z[:4], "labels": Y[:4], "w": np.ones(4), "user": 17e11 + np.arange(4)}
    np.savez(tmp_path / "a.npz", **part)
    others: list[tuple[str, Any]] = [("labels", Y[:3]), ("labels", Y[:4, None]), ("w", np.ones(5)), ("w", 1.0)]
    for name, array in others:
        np.savez(tmp_path / "b.npz", **{**part, name: array})
        with pytest.raises(InputError, match=rf"'{name}' in .*b\.npz has shape .* its scores 4 rows"):
            recorded_outputs.read(tmp_path / "*.npz", labels="labels", weights="w")
    np.savez(tmp_path / "b.npz", **{**part, "w": np.full(4, 1 / 3), "user": 17e11 + np.arange(4, 8)})
    p = recorded_outputs.read(tmp_path / "*.npz", weights="w", group="user", by="user")
    assert p.weights is not None
    assert p.weights[7] == 1 / 3
    assert p.groups is not None
    assert p.groups.tolist() == list(range(8))
    assert p.slices["user"].tolist() == [str(17 * 10**11 + i) for i in range(8)]


@pytest.mark.regression
def test_parts_have_ids_as_one_file_has_unless_each_numbers_its_rows_anew(tmp_path: Path) -> None:
    """Two patterns were said to have no ids, or paired by position."""
    for first, second, ids in ((0, 4, list(range(8))), (0, 0, None), (0, 3, None)):
        for name, start in (("a", first), ("b", second)):
            np.savez(tmp_path / f"{name}.npz", logits=Z[:4], labels=Y[:4], id=np.arange(start, start + 4))
        p = recorded_outputs.read(tmp_path / "*.npz")
        assert (p.ids if p.ids is None else p.ids.tolist()) == ids
        assert recorded_outputs.read(tmp_path / "*.npz", ids="id").ids is not None
    np.savez(tmp_path / "b.npz", logits=Z[:4], labels=Y[:4])
    assert recorded_outputs.read(tmp_path / "*.npz").ids is None


def test_rows_that_are_dropped_leave_every_column(tmp_path: Path) -> None:
    z, y = Z.copy(), Y.copy()
    z[[5, 9]] = np.nan
    y[[9, 20]] = -100
    np.savez(tmp_path / "a.npz", logits=z, labels=y, w=1 + np.arange(300.0), ids=np.arange(300))
    p = recorded_outputs.read(tmp_path / "a.npz", ignore_label=-100, drop_nonfinite=True, weights="w")
    kept = np.setdiff1d(np.arange(300), [5, 9, 20])
    np.testing.assert_array_equal(p.ids, kept)
    np.testing.assert_array_equal(p.weights, kept + 1)
    np.testing.assert_array_equal(p.labels, Y[kept])
    np.testing.assert_array_equal(p.logits, Z[kept])


def test_multilabel(tmp_path: Path) -> None:
    targets = (RNG.uniform(size=(300, 3)) < P[:, :3]).astype(int)
    np.savez(tmp_path / "a.npz", probs=P[:, :3], labels=targets)
    found = from_arrays.read(tmp_path / "a.npz", classes="a,b,c")
    assert list(found) == ["a", "b", "c"]
    for i, p in enumerate(found.values()):
        np.testing.assert_allclose(softmax_of(p)[:, 1], P[:, i], rtol=1e-12)
        np.testing.assert_array_equal(p.labels, targets[:, i])
    with pytest.raises(UsageError):
        recorded_outputs.read(tmp_path / "a.npz", multilabel=True)


def test_streamed_blocks_equal_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing held and pieces of 10 rows, every path gives the same rows."""
    monkeypatch.setattr(array_names, "HOLD", 0)
    monkeypatch.setattr(predictions, "CHUNK_BYTES", 160)
    y = np.where(np.arange(300) % 9 == 0, -1, Y)
    keep = y >= 0
    for key, values in (("logits", Z), ("probs", P.astype(np.float32))):
        np.savez(tmp_path / "a.npz", **{key: values}, labels=y)
        p = recorded_outputs.read(tmp_path / "a.npz", ignore_label=-1)
        np.testing.assert_allclose(softmax_of(p), P[keep], atol=1e-6)
        np.testing.assert_array_equal(p.labels, Y[keep])
        np.testing.assert_array_equal(p.scores.read(13, 40), p.logits[13:40])


def test_long_labels_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from calibcli.scores import _per_row as per_row

    monkeypatch.setattr(per_row, "HELD", 100)
    np.savez(tmp_path / "a.npz", logits=Z, labels=Y + 1)
    p = recorded_outputs.read(tmp_path / "a.npz", label_base=1)
    assert not isinstance(p.labels, np.ndarray)
    np.testing.assert_array_equal(p.labels[17:55], Y[17:55])
    np.testing.assert_array_equal(np.asarray(p.labels), Y)
    np.testing.assert_array_equal(p.labels[[4, 2]], Y[[4, 2]])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """160 MB of logits, read and checked by a process that may take 100 MB beyond what it started with."""
    path = tmp_path / "big.npz"
    n = 400_000
    y = np.arange(n) % 100
    z = np.lib.format.open_memmap(tmp_path / "z.npy", "w+", np.float32, (n, 100))
    for start in range(0, n, 50_000):
        z[start : start + 50_000] = np.float32(3) * (y[start : start + 50_000, None] == np.arange(100))
        z[start : start + 50_000, 0] += np.arange(start, start + 50_000) * np.float32(1e-6)
    z.flush()
    import zipfile

    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "z.npy", "logits.npy")
        with archive.open("labels.npy", "w") as file:
            np.lib.format.write_array(file, y)
    code = (
        "import resource, sys\n"
        "from calibcli.scores import recorded_outputs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "p = recorded_outputs.read(sys.argv[1])\n"
        "total = sum(float(block[:, 1].sum()) for _, block in p.blocks())\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, p.n, total)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    grown, rows, total = out.split()
    assert int(rows) == n
    assert float(total) == 3.0 * (n // 100)
    assert int(grown) < 100_000, f"{grown} kB"


def test_a_bomb_is_refused_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "memory_limit", lambda: 1 << 20)
    monkeypatch.setattr(source, "_granted", 0)
    np.savez_compressed(
        tmp_path / "a.npz", logits=np.zeros((1_000_000, 4), np.float32), labels=np.zeros(1_000_000, int)
    )
    with pytest.raises(InputError, match="when decoded") as error:
        recorded_outputs.read(tmp_path / "a.npz")
    assert "np.savez" in error.value.fix
