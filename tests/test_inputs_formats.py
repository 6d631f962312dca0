"""safetensors, PyTorch files, JSON lines, lm-eval samples, parquet: the same rows from each."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import os
import re
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.api import catalogue
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.scores import recorded_outputs
from calibcli.scores.files import formats, source
from calibcli.scores.files.arrays import load_any
from calibcli.scores.predictions import Predictions

RNG = np.random.default_rng(1)
Z = RNG.normal(size=(300, 4)).astype(np.float32) * 2
Y = np.where(RNG.uniform(size=300) < 0.7, Z.argmax(axis=1), RNG.integers(0, 4, 300))


def same(p: Predictions, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(p.logits, Z, atol=tolerance)
    np.testing.assert_array_equal(p.labels, Y)


def test_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    about = {"ids": json.dumps([f"r{i}" for i in range(300)]), "classes": json.dumps(list("abcd"))}
    save_file({"logits": Z, "labels": Y}, tmp_path / "a.safetensors", metadata=about)
    p = recorded_outputs.read(tmp_path / "a.safetensors")
    same(p)
    assert p.classes == list("abcd")
    assert p.ids is not None
    assert p.ids[7] == "r7"


def test_safetensors_bfloat16_is_widened(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    z = torch.from_numpy(Z).to(torch.bfloat16)
    save_file({"logits": z, "labels": torch.from_numpy(Y)}, tmp_path / "a.safetensors")
    p = recorded_outputs.read(tmp_path / "a.safetensors")
    assert p.scores.dtype == np.float32
    np.testing.assert_array_equal(p.logits, z.float().numpy())


def test_safetensors_need_no_torch(tmp_path: Path) -> None:
    import subprocess

    from safetensors.numpy import save_file

    save_file({"logits": Z, "labels": Y}, tmp_path / "a.safetensors")
    code = (
        "import sys; from calibcli.scores import recorded_outputs; recorded_outputs.read(sys.argv[1]);"
        "heavy = {'torch', 'scipy.stats', 'scipy.optimize', 'matplotlib', 'pandas'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.safetensors")], check=True)


@pytest.mark.parametrize("legacy", [False, True])
def test_pt(tmp_path: Path, legacy: bool) -> None:
    torch = pytest.importorskip("torch")
    tree = {"logits": torch.from_numpy(Z), "labels": torch.from_numpy(Y), "epoch": 3}
    torch.save(tree, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    same(recorded_outputs.read(tmp_path / "a.pt"))
    torch.save(torch.from_numpy(Z), tmp_path / "b.pth")
    np.save(tmp_path / "y.npy", Y)
    same(recorded_outputs.read(tmp_path / "b.pth", labels=str(tmp_path / "y.npy")))
    torch.save((torch.from_numpy(Z), torch.from_numpy(Y)), tmp_path / "c.pt")
    same(recorded_outputs.read(tmp_path / "c.pt", scores="item0", labels="item1"))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    fired = tmp_path / "fired"
    torch.save({"logits": torch.from_numpy(Z), "labels": Bomb(fired)}, tmp_path / "a.pt")
    torch.save(Bomb(fired), tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    np.savez(tmp_path / "c.npz", logits=Z, labels=np.array([Bomb(fired)] * 300, dtype=object))
    np.save(tmp_path / "d.npy", np.array([Bomb(fired)] * 300, dtype=object), allow_pickle=True)
    for path in ("a.pt", "b.pt", "c.npz", "d.npy"):
        assert main(["inspect", str(tmp_path / path)]) == Exit.REFUSED
        out, err = capsys.readouterr()
        assert out == ""
        assert "Python objects" in err
        assert not fired.exists()


def test_a_tensor_that_repeats_one_number_is_not_spread_out(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(
        {"logits": torch.zeros(1).expand(10**9, 1000), "labels": torch.zeros(1).expand(10**9)}, tmp_path / "a.pt"
    )
    with pytest.raises(InputError, match="allowed here"):
        recorded_outputs.read(tmp_path / "a.pt")


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"id": i, "logits": z, "label": y}) for i, (z, y) in enumerate(zip(Z.tolist(), Y.tolist()))
        )
    )
    p = recorded_outputs.read(path)
    same(p)
    assert p.ids is not None
    assert p.ids[9] == "9"


def test_jsonl_ragged_probabilities(tmp_path: Path) -> None:
    rows = [
        {"probs": [0.2, 0.5, 0.3], "label": 1},
        {"probs": [0.9, 0.1], "label": 0},
        {"probs": [0.1] * 10, "label": 9},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    p = recorded_outputs.read(tmp_path / "a.jsonl")
    assert (p.k, p.kind) == (10, "probabilities")
    np.testing.assert_allclose(np.exp(p.logits[1]), [0.9, 0.1] + [0] * 8, rtol=1e-12)


def test_jsonl_rounded_probabilities(tmp_path: Path) -> None:
    p = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
    rows = [{"probs": [round(float(v), 2) for v in row], "label": int(y)} for row, y in zip(p, Y)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert recorded_outputs.read(tmp_path / "a.jsonl").kind == "probabilities"


def sample(i: int, choices: list[float], target: Any, text: bool) -> dict[str, Any]:
    return {
        "doc_id": i,
        "doc": {"question": "?", "choices": ["x"] * len(choices)},
        "target": target,
        "arguments": [["?", f" choice {c}"] for c in range(len(choices))],
        "resps": [[[c, False]] for c in choices],
        "filtered_resps": [[str(c) if text else c, "False" if text else False] for c in choices],
        "filter": "none",
        "acc": 1.0,
    }


@pytest.mark.parametrize("text", [False, True])
def test_lm_eval_samples(tmp_path: Path, text: bool) -> None:
    """Three to five choices, one of them impossible, targets as number, text, letter."""
    rows = [
        sample(0, [-1.5, -2.0, -7.25], 0, text),
        sample(1, [-3.0, -1.0, -4.0, -5.0, -6.0], "1", text),
        sample(2, [-3.0, float("-inf"), -2.0, -9.0], "choice 2", text),
        sample(3, [-3.0, -0.5, -2.0], "B", text),
    ]
    (tmp_path / "samples_arc.jsonl").write_text("\n".join(map(json.dumps, rows)))
    p = recorded_outputs.read(tmp_path / "samples_arc.jsonl")
    inf = np.inf
    wanted = [[-1.5, -2, -7.25, -inf, -inf], [-3, -1, -4, -5, -6], [-3, -inf, -2, -9, -inf], [-3, -0.5, -2, -inf, -inf]]
    np.testing.assert_array_equal(p.logits, wanted)
    np.testing.assert_array_equal(p.labels, [0, 1, 2, 1])
    assert p.kind == "logits"
    assert any("3 to 5 choices" in note for note in p.notes)
    assert np.asarray(p.ids).tolist() == ["0", "1", "2", "3"]


def test_lm_eval_generation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "samples_gsm8k.jsonl").write_text(json.dumps({"doc_id": 0, "target": "4", "filtered_resps": ["4"]}))
    with pytest.raises(InputError, match="generation"):
        recorded_outputs.read(tmp_path / "samples_gsm8k.jsonl")


def test_trainer_predict_dump(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", predictions=Z, label_ids=Y.astype(np.int32))
    same(recorded_outputs.read(tmp_path / "a.npz"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    with pytest.raises(InputError) as error:
        recorded_outputs.read(tmp_path / "a.parquet")
    assert "pip install pyarrow" in error.value.fix


@pytest.mark.extra
@pytest.mark.parametrize("lists", [False, True])
def test_parquet(tmp_path: Path, lists: bool) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"logits": list(Z)} if lists else {f"logit_{i}": Z[:, i] for i in range(4)}
    parquet.write_table(pa.table({**columns, "label": Y, "site": [f"s{y}" for y in Y]}), tmp_path / "a.parquet")
    p = recorded_outputs.read(tmp_path / "a.parquet", by=["site"])
    same(p)
    assert p.slices["site"][0] == f"s{Y[0]}"
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match="not readable parquet"):
        recorded_outputs.read(tmp_path / "b.parquet")


@pytest.mark.extra
def test_a_parquet_column_of_text_is_read_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 123, 2000))) for _ in Y]
    columns = {f"logit_{i}": Z[:, i] for i in range(4)}
    ids = [f"r{i}" for i in range(len(Y))]
    parquet.write_table(pa.table({"prompt": texts, **columns, "id": ids, "label": Y}), tmp_path / "a.parquet")
    read: list[list[str]] = []
    whole = parquet.ParquetFile.read
    monkeypatch.setattr(
        parquet.ParquetFile, "read", lambda *args, **how: read.append(how["columns"]) or whole(*args, **how)
    )
    p = recorded_outputs.read(tmp_path / "a.parquet")
    same(p)
    assert p.ids.tolist() == ids
    assert not any("prompt" in columns for columns in read)
    monkeypatch.setattr("calibcli.scores.files.source.memory_limit", lambda: 1000 * len(Y))  # of numbers and ids
    monkeypatch.setattr("calibcli.scores.files.source._granted", 0)
    same(recorded_outputs.read(tmp_path / "a.parquet"))
    with pytest.raises(InputError, match="when decoded, more than"):
        recorded_outputs.read(tmp_path / "a.parquet", by=["prompt"])
    monkeypatch.undo()
    assert recorded_outputs.read(tmp_path / "a.parquet", by=["prompt"]).slices["prompt"].tolist() == texts


FLIPPED = """
import pathlib
import calibcli
data = pathlib.Path("a.parquet").read_bytes()
for at in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data)):
    pathlib.Path("b.parquet").write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
    try:
        calibcli.read("b.parquet")
    except calibcli.CalibError:
        pass
print("end")
"""


@pytest.mark.extra
@pytest.mark.regression
def test_no_flipped_bit_of_the_footer_of_a_parquet_file_ends_the_process(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {f"logit_{i}": Z[:, i] for i in range(3)}
    table = pa.table({**columns, "label": Y, "id": [f"r{i}" for i in range(len(Y))]})
    parquet.write_table(table, tmp_path / "a.parquet", compression="none")
    done = subprocess.run([sys.executable, "-c", FLIPPED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "end\n", done.stderr[-300:]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"\xff" * 8, "claims"),
        (struct.pack("<Q", 4) + b"[1]x", "not JSON"),
        (struct.pack("<Q", 4) + b"[1] ", "not an object"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "no dtype"),
        (struct.pack("<Q", 62) + b'{"a":{"dtype":"F32","shape":[9,9],"data_offsets":[0,324]}}    ', "does not fit"),
        (struct.pack("<Q", 62) + b'{"a":{"dtype":"F8","shape":[9,9],"data_offsets":[0,324]}}     ', "dtype F8"),
    ],
)
def test_broken_safetensors(tmp_path: Path, header: bytes, words: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(header + b"\0" * 8)
    with pytest.raises(InputError, match=words):
        recorded_outputs.read(tmp_path / "a.safetensors")


RAW = """
'Raw doubles.'
import numpy as np
from calibcli.scores.files.arrays import FileContents, Memory
SUFFIXES = (".raw",)
def signature(head, size):
    return head.startswith(b"RAW ")
def read(source):
    table = np.frombuffer(source.pread(source.size - 4, 4)).reshape(-1, 3)
    return FileContents("raw", {"logits": Memory(table[:, :2]), "labels": Memory(table[:, 2].astype(int))})
"""


@pytest.mark.parametrize("name", ["a.raw", "a.bin"])
def test_a_format_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "raw.py").write_text(RAW)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    monkeypatch.setitem(source.FORMATS, "raw", f"{formats.__name__}.raw")
    table = np.column_stack([np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2])
    (tmp_path / name).write_bytes(b"RAW " + table.tobytes())
    found = recorded_outputs.read(tmp_path / name)
    np.testing.assert_array_equal(found.labels, table[:, 2])
    assert ["raw", ".raw", "read", "Raw doubles"] in catalogue.listing("formats").tables[0].rows


@pytest.mark.parametrize("name", ["y_score", "y_prob", "p", "prob", "score"])
def test_names_that_people_give_to_one_column(tmp_path: Path, name: str) -> None:
    p = np.random.default_rng(0).random(50)
    y = (np.random.default_rng(1).random(50) < p).astype(int)
    (tmp_path / "a.csv").write_text(f"id,{name},label\n" + "".join(f"r{i},{p[i]:.6f},{y[i]}\n" for i in range(50)))
    found = recorded_outputs.read(tmp_path / "a.csv")
    assert (found.record.scores, found.kind, found.k) == (name, "probabilities", 2)
    if name not in ("prob", "score", "y_prob"):  # what may be something else gives way to what is not
        np.savez(tmp_path / "a.npz", **{name: p}, logits=Z, labels=Y)
        assert recorded_outputs.read(tmp_path / "a.npz").record.scores == "logits"


def test_columns_named_as_the_labels_are_their_scores(tmp_path: Path) -> None:
    p = np.round(np.random.default_rng(0).random(50), 4)
    words = np.where(np.random.default_rng(1).random(50) < p, "malignant", "benign")
    rows = [f"r{i},{p[i]:.4f},{1 - p[i]:.4f},{words[i]}" for i in range(50)]
    (tmp_path / "a.csv").write_text("id,malignant,benign,label\n" + "\n".join(rows))
    found = recorded_outputs.read(tmp_path / "a.csv", event="malignant")
    assert (found.event, found.classes, found.kind) == ("malignant", ["benign", "malignant"], "probabilities")
    np.testing.assert_allclose(np.exp(found.logits[:, 1]), p, rtol=1e-6)
    assert found.labels.tolist() == (words == "malignant").astype(int).tolist()
    further = [f"{row},0.1" for row in rows]  # of three numbers the two that sum to 1 are the scores
    (tmp_path / "b.csv").write_text("id,malignant,benign,label,other\n" + "\n".join(further))
    assert recorded_outputs.read(tmp_path / "b.csv", event="malignant").logits.tolist() == found.logits.tolist()
    rows = [f"r{i},{p[i]:.4f},{0.9 - 0.9 * p[i]:.4f},{words[i]},{0.1 - 0.1 * p[i]:.4f}" for i in range(50)]
    (tmp_path / "c.csv").write_text("id,malignant,benign,label,other\n" + "\n".join(rows))
    whole = recorded_outputs.read(tmp_path / "c.csv")  # a class that no label names, which the others lack
    assert (whole.classes, whole.k) == (["malignant", "benign", "other"], 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.csv", "a.npz.gz", "empty.npz", "broken.npz"])
def test_no_file_stays_open_and_none_warns(name: str, tmp_path: Path) -> None:
    """Neither of a refused file nor of one that the garbage collector lets go, whose parts it ends in any order."""
    np.savez(tmp_path / "a.npz", logits=Z, labels=Y)
    np.save(tmp_path / "a.npy", Z)
    np.save(tmp_path / "a.labels.npy", Y)
    np.savetxt(tmp_path / "a.csv", np.column_stack([Z, Y]), delimiter=",", header="a,b,c,d,label", comments="")
    (tmp_path / "a.npz.gz").write_bytes(gzip.compress((tmp_path / "a.npz").read_bytes()))
    (tmp_path / "empty.npz").touch()
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    gc.collect()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with contextlib.suppress(InputError):
            cycle = [recorded_outputs.read(tmp_path / name), load_any(source.Source(tmp_path / name))]
            cycle.append(cycle)
            del cycle
        gc.collect()
    assert [str(w.message) for w in seen if w.category is ResourceWarning] == []
    if Path("/proc/self/fd").exists():
        names = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ]
        assert [one for one in names if one.startswith(str(tmp_path))] == []


TABLES = {
    "a short row": ('{"columns": ["logit_0", "label"], "data": [[1.0, 2], [1]]}', "row 1 of a.json has 1 cells"),
    "no rows": ('{"columns": ["logit_0", "label"], "data": []}', "write the table again"),
    "true": ('{"columns": ["logit_0", "logit_1", "label"], "data": [[1.0, true, 0]]}', "is 'true', not a number"),
    "lists": (
        '{"columns": ["logits", "label"], "data": [[[1, 2], 0], [[1], 1], [[2, 1], 1]]}',
        "1 numbers in 'logits'",
    ),
    "beyond floats": (
        '{"columns": ["logit_0", "logit_1", "label"], "data": [[1' + "0" * 400 + ", 1, 0]]}",
        "infinite scores",
    ),
    "cut off": ('{"columns": ["logit_0"', "a.json is not JSON"),
    "a log": ('{"version": 2, "status": "success", "eval": {}, "samples": []}', "--log-samples"),
}


@pytest.mark.parametrize("name", TABLES)
def test_json_that_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, said = TABLES[name]
    Path("a.json").write_text(text)
    with pytest.raises(InputError, match=said) as refused:
        recorded_outputs.read("a.json")
    assert refused.value.fix


@pytest.mark.regression
@pytest.mark.parametrize("name", ["m.csv", "m.npz", "m.npy", "m.jsonl", "m.parquet", "m.pt", "m.onnx", "m.safetensors"])
@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1327\n", "git lfs pull"),
        ("<!DOCTYPE html><html><body>Sign in</body></html>", "fetch the file"),
    ],
)
def test_what_was_fetched_in_place_of_a_file_is_named(tmp_path: Path, name: str, text: str, fix: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="not the file itself") as refused:
        recorded_outputs.read(tmp_path / name)
    assert fix in str(refused.value.fix)


@pytest.mark.regression
def test_json_lines_that_end_within_a_row_are_called_truncated(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text('{"probs": [0.2, 0.8], "label": 1}\n{"probs": [0.2, 0.')
    with pytest.raises(InputError, match="row 1 of") as refused:
        recorded_outputs.read(path)
    assert "still being written" in str(refused.value.fix)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"probs": np.empty(0, "U3"), "labels": np.empty(0, bool)}, "are empty"),
        ({"y": np.array("a")}, "no scores"),
        ({"ids": np.array("0.5"), "labels": np.arange(6)}, "no scores"),
    ],
)
def test_arrays_of_text_without_rows_are_refused(
    arrays: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arrays of no row, or of a single text without an axis."""
    np.savez(tmp_path / "a.npz", **arrays)
    assert main(["metrics", str(tmp_path / "a.npz")]) == Exit.REFUSED
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "data", "what", "fix"),
    [
        ("a.rda", gzip.compress(b"RDX3\nX\n", mtime=0), "a file of data of R", 'load("a.rda", e)'),
        ("a.rds", gzip.compress(b"X\n\0\0\0\3", mtime=0), "an object of R", 'readRDS("a.rds")'),
        ("a.arff", b"% run 5\n@RELATION r\n@ATTRIBUTE p NUMERIC\n@DATA\n0.5\n", "an ARFF file", "sed '1,/^@data/Id'"),
    ],
)
def test_a_file_of_another_program_is_named_with_a_command_that_converts_it(
    name: str, data: bytes, what: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(data)
    with pytest.raises(InputError) as refused:
        recorded_outputs.read(name)
    assert refused.value.problem == f"{name} is {what}"
    assert fix in refused.value.fix


def test_the_command_that_converts_arff_gives_a_table_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{0.2 + i / 80},{i % 2}\n" for i in range(40))
    Path("a.arff").write_text(f"@relation r\n@attribute prob numeric\n@attribute label {{0,1}}\n@data\n{rows}")
    with pytest.raises(InputError) as refused:
        recorded_outputs.read("a.arff")
    subprocess.run(refused.value.fix.partition("attributes: ")[2], shell=True, check=True)
    assert recorded_outputs.read("a.arff.csv").n == 40
