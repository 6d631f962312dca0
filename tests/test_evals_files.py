"""Files that hold evaluations and other recorded outputs: compressed, in Arrow, in folders; damaged ones and bombs."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evals_written as written
import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.scores.files import locations, source
from calibcli.scores.files.evals import lighteval

ASKED = written.questions()
EVEN = written.questions(ragged=False)
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": written.zstd_bytes,
}
KINDS = [pytest.param(suffix, marks=pytest.mark.extra if suffix == ".zst" else ()) for suffix in PACK]


def csv_text() -> bytes:
    rows = [",".join([*map(repr, q.scores), str(q.right)]) for q in EVEN]
    return "\n".join(["logit_0,logit_1,logit_2,logit_3,label", *rows]).encode()


def needs(suffix: str) -> None:
    if suffix == ".zst":
        pytest.importorskip("zstandard")


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("inner", ["a.csv", "samples_mc.jsonl", "t.json", "a.npz", "nothing"])
def test_compressed_files_are_read_as_what_they_hold(tmp_path: Path, suffix: str, inner: str) -> None:
    needs(suffix)
    file = io.BytesIO()
    np.savez(file, logits=np.array([q.scores for q in EVEN]), labels=np.array([q.right for q in EVEN]))
    text = {"samples_mc.jsonl": written.lines(written.lm_eval(EVEN)), "t.json": written.table(EVEN)}
    text |= {"a.npz": file.getvalue(), "nothing": csv_text()}
    data = PACK[suffix](text.get(inner, csv_text()))
    path = tmp_path / (inner + suffix)
    path.write_bytes(data)
    found = calibcli.read(path)
    assert found.labels.tolist() == [q.right for q in EVEN]
    np.testing.assert_array_equal(found.logits, np.array([q.scores for q in EVEN]))
    assert found.sha256 == hashlib.sha256(data).hexdigest()  # of the file, not of what it holds


@pytest.mark.parametrize("suffix", KINDS)
def test_streams_one_after_the_other_are_one(tmp_path: Path, suffix: str) -> None:
    needs(suffix)
    text = csv_text()
    half = len(text) // 2
    (tmp_path / f"a.csv{suffix}").write_bytes(PACK[suffix](text[:half]) + PACK[suffix](text[half:]))
    assert calibcli.read(tmp_path / f"a.csv{suffix}").n == len(EVEN)


@pytest.mark.parametrize("suffix", KINDS)
def test_compressed_files_that_are_cut_or_changed(tmp_path: Path, suffix: str) -> None:
    needs(suffix)
    data = PACK[suffix](csv_text() * 3)
    for cut in (12, len(data) // 2, len(data) - 1):
        (tmp_path / f"a.csv{suffix}").write_bytes(data[:cut])
        with pytest.raises(InputError, match="damaged or cut off"):
            calibcli.read(tmp_path / f"a.csv{suffix}")
    if suffix != ".zst":  # written here without a checksum
        (tmp_path / f"b.csv{suffix}").write_bytes(data[:-40] + bytes(b ^ 255 for b in data[-40:]))
        with pytest.raises(InputError, match=r"damaged or cut off|cannot"):
            calibcli.read(tmp_path / f"b.csv{suffix}")


def test_the_header_of_bzip2_alone_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(csv_text().replace(b"logit_0", b"BZh9_id,logit_0").replace(b"\n", b"\nx,"))
    assert calibcli.read(tmp_path / "a.csv").n == len(EVEN)


def zeros(suffix: str, size: int) -> bytes:
    """A file that unpacks to so many zeros."""
    if suffix == ".zst":  # blocks that say "a zero, 128 kB times"
        count = size >> 17
        blocks = b"".join(((1 << 17 << 3) | 2 | (i == count - 1)).to_bytes(3, "little") + b"\0" for i in range(count))
        return b"\x28\xb5\x2f\xfd" + b"\x00\x88" + blocks
    block = b"\0" * (1 << 20)
    if suffix == ".gz":
        packer: Any = zlib.compressobj(9, zlib.DEFLATED, 31)
    else:
        packer = bz2.BZ2Compressor() if suffix == ".bz2" else lzma.LZMACompressor(preset=0)
    return b"".join([packer.compress(block) for _ in range(size >> 20)]) + packer.flush()


@pytest.mark.parametrize("suffix", KINDS)
def test_bombs_stop_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """No piece is larger than what may come out at once, and none comes after the limit."""
    needs(suffix)
    monkeypatch.setattr(source, "memory_limit", lambda: 6 << 20)
    pieces: list[int] = []
    plain = locations.unpacked

    def counted(*args: Any) -> Any:
        for piece in plain(*args):
            pieces.append(len(piece))
            yield piece

    monkeypatch.setattr(locations, "unpacked", counted)
    data = zeros(suffix, 64 << 20)
    assert len(data) < 1 << 20
    (tmp_path / f"a.csv{suffix}").write_bytes(data)
    with pytest.raises(InputError, match="unpacks to more than"):
        calibcli.read(tmp_path / f"a.csv{suffix}")
    assert sum(pieces) <= 1 << 20
    assert max([0, *pieces]) <= (48 << 20 if suffix == ".zst" else locations.PIECE)


def test_a_dictionary_of_xz_beyond_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    data = lzma.compress(csv_text(), check=lzma.CHECK_CRC32, filters=filters)
    (tmp_path / "a.csv.xz").write_bytes(data)
    with pytest.raises(InputError, match=r"damaged or cut off.*[Mm]emory"):
        calibcli.read(tmp_path / "a.csv.xz")


@pytest.mark.parametrize("name", ["a.csv.zst", "a.eval"])
def test_without_a_reader_of_zstandard_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("compression.zstd", "backports.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    data = written.zstd_bytes(csv_text()) if name.endswith("zst") else zstd_log(written.inspect_samples(ASKED))
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as error:
        calibcli.read(tmp_path / name)
    assert "pip install zstandard" in error.value.fix


def zstd_log(samples: list[dict[str, Any]]) -> bytes:
    """A log whose members have the compression method 93, which zipfile does not write."""
    plain = written.eval_log(samples, zipfile.ZIP_STORED)
    out, entries = b"", b""
    with zipfile.ZipFile(io.BytesIO(plain)) as archive:
        for info in archive.infolist():
            data, name = archive.read(info), info.filename.encode()
            body = written.zstd_bytes(data)
            about = struct.pack("<HHHHHIII", 63, 0, 93, 0, 0x21, zlib.crc32(data), len(body), len(data))
            entries += (
                b"PK\1\2" + struct.pack("<H", 63) + about + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, len(out))
            )
            entries += name
            out += b"PK\3\4" + about + struct.pack("<HH", len(name), 0) + name + body
        count = len(archive.infolist())
    return out + entries + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(entries), len(out), 0)


@pytest.mark.extra
def test_logs_of_inspect_with_zstandard(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    (tmp_path / "a.eval").write_bytes(zstd_log(written.inspect_samples(ASKED)))
    assert calibcli.read(tmp_path / "a.eval").labels.tolist() == [q.right for q in ASKED]


def test_damaged_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose bytes changed, one that says it is larger, two of one name, none, and what is no sample."""
    samples = written.inspect_samples(ASKED)
    whole = written.eval_log(samples, 0)

    def refused(data: bytes, words: str) -> None:
        (tmp_path / "a.eval").write_bytes(data)
        with pytest.raises(InputError, match=words):
            calibcli.read(tmp_path / "a.eval")

    refused(whole.replace(b'"target": "A"', b'"target": "B"', 1), "does not have the checksum|do not have the checksum")
    refused(whole[: len(whole) // 2], "not a readable log")
    refused(written.eval_log([]), "no samples")
    with warnings.catch_warnings(action="ignore"):  # zipfile's, of the name
        refused(written.eval_log([{**samples[0], "id": "q0"}, {**samples[1], "id": "q0"}]), "2 members named")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("samples/0_epoch_1.json", "[1]")
    refused(file.getvalue(), "not a JSON object")
    monkeypatch.setattr(source, "memory_limit", lambda: 1 << 14)
    monkeypatch.setattr(source, "_granted", 0)
    refused(whole, "GB when decoded, more than")


def test_members_over_one_another_are_refused(tmp_path: Path) -> None:
    """Thousands of members that are one part of the file: small on disk, without end when decoded."""
    body = zlib.compress(b'{"id": 1' + b" " * 5000 + b"}")[2:-4]
    head = struct.pack("<HHHHHIII", 20, 0, 8, 0, 0x21, zlib.crc32(b'{"id": 1' + b" " * 5000 + b"}"), len(body), 5009)
    name = b"samples/%04d_epoch_1.json"
    out = b"PK\3\4" + head + struct.pack("<HH", len(name % 0), 0) + name % 0 + body
    entries = b""
    for i in range(2000):
        entries += b"PK\1\2" + struct.pack("<H", 20) + head
        entries += struct.pack("<HHHHHII", len(name % i), 0, 0, 0, 0, 0, 0) + name % i
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 2000, 2000, len(entries), len(out), 0)
    (tmp_path / "a.eval").write_bytes(out + entries + end)
    with pytest.raises(InputError, match="overlap"):
        calibcli.read(tmp_path / "a.eval")


@pytest.mark.extra
def test_lighteval(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def save(rows: list[dict[str, Any]], name: str) -> Path:
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        return tmp_path / name

    rows = written.lighteval(ASKED)
    found = calibcli.read(save(rows, "a.parquet"), by=["doc.task_name"])
    assert found.labels.tolist() == [q.right for q in ASKED]
    for i, q in enumerate(ASKED):
        np.testing.assert_array_equal(found.logits[i][: len(q.scores)], q.scores)
    found = calibcli.read(tmp_path / "a.parquet", lm_norm="char")
    np.testing.assert_allclose(found.logits[0][:3], [s / len(t) for s, t in zip(ASKED[0].scores[:3], ASKED[0].texts)])
    rows[9]["metric"]["acc"] = 1 - rows[9]["metric"]["acc"]
    assert main(["metrics", str(save(rows, "b.parquet"))]) == Exit.REFUSED
    with pytest.raises(InputError, match=r"row 9 of .* has metric.acc"):
        calibcli.read(tmp_path / "b.parquet")
    rows = written.lighteval(ASKED)
    rows[2]["doc"]["gold_index"] = [0, 1]
    with pytest.raises(InputError, match=r"row 2 of .* has 2 right choices"):
        calibcli.read(save(rows, "c.parquet"))
    for row in rows:
        row["model_response"] = {"logprobs": [], "text": ["4"]}
    with pytest.raises(InputError, match="no log-probability per choice"):
        calibcli.read(save(rows, "d.parquet"))


@pytest.mark.regression
def test_lighteval_rows_of_a_list_count_once(tmp_path: Path) -> None:
    """Of a task without scores of choices, whose other columns alone are read: its first row was there twice."""
    rows = written.lighteval(ASKED)
    for row in rows:
        row["model_response"] = {"logprobs": [], "text": ["4"]}
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    for given in (rows, iter(rows)):
        found = lighteval.contents(given, source.Source(tmp_path / "a.parquet"))
        assert {array.shape[0] for array in found.arrays.values()} == {len(rows)}


@pytest.mark.extra
@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather_and_streams(tmp_path: Path, compression: str) -> None:
    pa, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    table = pa.table({"logits": [q.scores for q in EVEN], "label": [q.right for q in EVEN], "site": ["a", "b"] * 30})
    feather.write_feather(table, tmp_path / "a.feather", compression=compression)
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "uncompressed" else compression)
    with pa.ipc.new_stream(tmp_path / "b.arrow", table.schema, options=options) as stream:
        stream.write_table(table, max_chunksize=7)
    for name in ("a.feather", "b.arrow"):
        found = calibcli.read(tmp_path / name, by=["site"])
        np.testing.assert_array_equal(found.logits, np.array([q.scores for q in EVEN]))
        assert found.labels.tolist() == [q.right for q in EVEN]
        (tmp_path / f"cut_{name}").write_bytes((tmp_path / name).read_bytes()[:-300])
        with pytest.raises(InputError):
            calibcli.read(tmp_path / f"cut_{name}")


@pytest.mark.extra
@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_texts_that_are_no_unicode_are_refused(tmp_path: Path, name: str) -> None:
    """The name of a column, and a cell."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table, file = pa.table({"logits": [q.scores for q in EVEN], "site": ["abcdefgh"] * len(EVEN)}), io.BytesIO()
    if name.endswith("parquet"):
        parquet.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)
    else:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    for text in (b"logits", b"abcdefgh"):
        (tmp_path / name).write_bytes(file.getvalue().replace(text, b"\xec" + text[1:]))
        with pytest.raises(InputError, match="not"):
            calibcli.read(tmp_path / name, need_labels=False, by=["site"])  # a text column is read when it is asked for


def saved_to_disk(folder: Path, parts: int = 2) -> Path:
    """As `datasets.Dataset.save_to_disk` leaves it."""
    pa = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    names = list("wxyz")
    features = {"label": {"names": names, "_type": "ClassLabel"}, "logits": {"feature": {"dtype": "float64"}}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pa.table({"logits": [q.scores for q in EVEN], "label": [q.right for q in EVEN]}).replace_schema_metadata(
        about
    )
    files = []
    for i in range(parts):
        files.append(f"data-{i:05}-of-{parts:05}.arrow")
        rows = table.slice(i * len(EVEN) // parts, (i + 1) * len(EVEN) // parts - i * len(EVEN) // parts)
        with pa.ipc.new_stream(folder / files[-1], table.schema) as stream:
            stream.write_table(rows)
    state = {"_data_files": [{"filename": name} for name in files], "_fingerprint": "0", "_indices_data_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


@pytest.mark.extra
@pytest.mark.parametrize("parts", [1, 3])
def test_a_folder_of_save_to_disk(tmp_path: Path, parts: int) -> None:
    found = calibcli.read(saved_to_disk(tmp_path / "set", parts))
    assert found.labels.tolist() == [q.right for q in EVEN]
    np.testing.assert_array_equal(found.logits, np.array([q.scores for q in EVEN]))
    assert found.classes == list("wxyz")
    assert len(found.record.files) == parts


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder without recorded outputs"):
        calibcli.read(tmp_path)
    (tmp_path / "splits" / "test").mkdir(parents=True)
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    (tmp_path / "splits" / "test" / "state.json").write_text("{}")
    with pytest.raises(InputError, match="several splits: test"):
        calibcli.read(tmp_path / "splits")
    for state, words in (
        ("{", "not JSON"),
        ("[]", "names no parts"),
        ('{"_data_files": [{"filename": "../../etc/passwd"}]}', "names no parts"),
        ('{"_data_files": [{"filename": 3}]}', "names no parts"),
        ('{"_data_files": [{"filename": "a"}, {"filename": "b"}, {"filename": "a"}]}', "names the part 'a' twice"),
        ('{"_data_files": [{"filename": "a.arrow"}], "_indices_data_files": [{"filename": "i"}]}', "selection of rows"),
    ):
        (tmp_path / "splits" / "test" / "state.json").write_text(state)
        with pytest.raises(InputError, match=words):
            calibcli.read(tmp_path / "splits" / "test")


def test_columns_beyond_bounds_are_left_out() -> None:
    """Long texts, lists, deep ones and too many of them: what is kept is short and of bounded number."""
    from calibcli.scores.files.evals.answers import COLUMNS, NestedColumns

    found = NestedColumns()
    found.add({"a": {"b": {"c": {"d": {"e": 1}}}}, "x": "y" * 101, "l": [1], "n": None, "t": True})
    found.add({f"k{i}": i for i in range(5000)} | {"n": "late", "t": False})
    found.add({"n": "z" * 500})
    assert len(found.texts) == COLUMNS - 1  # one of them was left out after all
    arrays = found.arrays()
    assert "n" not in arrays
    assert "x" not in arrays
    assert arrays["t"].read(0, 9).tolist() == ["true", "false", ""]
    assert arrays["k0"].read(0, 9).tolist() == ["", "0", ""]
    assert all(array.shape == (3,) for array in arrays.values())


TABLES = {"table.json": (), "commands.json": ("command", "schema")}
"""Evaluations that other programs write as .json, and their further columns: keys that a result of calib has."""


@pytest.mark.regression
@pytest.mark.parametrize("name", TABLES)
def test_a_json_file_is_judged_by_what_it_holds(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluations go to `check`, `compare` and `--baseline` as they go to `metrics`, and results of any name too."""
    rng = np.random.default_rng(0)
    c = rng.uniform(0.5, 1, 400)
    p, y = np.column_stack([1 - c, c]).round(6).tolist(), (rng.random(400) < c).astype(int).tolist()
    paths = [tmp_path / name, tmp_path / f"other.{name}"]
    for path in paths:
        columns = [*TABLES[name], "id", "p_0", "p_1", "label"]
        rows = [[*TABLES[name], i, *row, label] for i, (row, label) in enumerate(zip(p, y, strict=True))]
        path.write_text(json.dumps({"columns": columns, "data": rows}))
    one, other = map(str, paths)
    assert main(["check", one, "--max", "ece=0.3", "-q"]) == 0
    assert main(["check", one, "--baseline", other, "--margin", "accuracy=0.05", "-q"]) == 0
    assert "the same predictions on all of them" in capsys.readouterr().out
    assert main(["compare", one, other, "-q"]) == 0
    capsys.readouterr()
    results = [str(tmp_path / file) for file in ("a.json", "b.json")]
    assert [main(["metrics", one, "-q", "-o", path]) for path in results] == [0, 0]
    plain = tmp_path / "renamed"
    plain.write_bytes(Path(results[0]).read_bytes())
    for result in (*results, str(plain)):
        assert main(["check", result, "--max", "ece=0.3", "-q"]) == 0
    assert main(["compare", *results, "-q"]) == 0
    assert main(["compare", one, results[1], "-q"]) == 2
    assert "scores and results" in capsys.readouterr().err
    plain.write_bytes(Path(results[0]).read_bytes()[:700])
    assert main(["check", str(plain), "--max", "ece=0.3"]) == 4
    assert "pass the .json that a calib command wrote" in capsys.readouterr().err
