"""Damaged and hostile files, and a program that reads many of them: `python fuzz_inputs.py KIND EXAMPLES` in a folder.

It runs in a process of its own, whose largest memory is that of these files, and prints one JSON object: the share of
files that were read, by how many kB memory grew, the CPU seconds of the slowest file, and what was warned about.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import re
import resource
import shutil
import struct
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import downloads_written as published
import evals_written as written
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibcli.api import inspecting
from calibcli.cli.app import main
from calibcli.core import memory
from calibcli.core.errors import CalibError, Exit

RNG = np.random.default_rng(5)
Z = RNG.normal(size=(40, 5)).astype(np.float32)
Y = RNG.integers(0, 5, 40)
SETTINGS: dict[str, Any] = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _packed() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, probs=np.eye(5)[Y], labels=Y)
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, Z)
    return file.getvalue()


def _safetensors() -> bytes:
    from safetensors.numpy import save

    return save({"logits": Z, "labels": Y}, metadata={"classes": json.dumps(list("abcde"))})


def _csv() -> bytes:
    head = ",".join([f"logit_{i}" for i in range(5)] + ["label", "site"])
    rows = [",".join([*map(str, z), str(y), "a"]) for z, y in zip(Z.tolist(), Y)]
    return "\n".join([head, *rows]).encode()


def _jsonl() -> bytes:
    return "\n".join(json.dumps({"logits": z, "label": int(y)}) for z, y in zip(Z.tolist(), Y)).encode()


def _samples() -> bytes:
    rows = [
        {"doc_id": i, "filtered_resps": [[v, False] for v in z[: 3 + i % 3]], "target": i % 3, "arguments": []}
        for i, z in enumerate(Z.tolist())
    ]
    return "\n".join(map(json.dumps, rows)).encode()


ASKED = written.questions(40)
EVEN = written.questions(40, ragged=False)


def _arrow(stream: bool) -> bytes:
    import pyarrow as pa

    table, file = pa.table({"logits": Z.astype(float).tolist(), "label": Y.tolist()}), io.BytesIO()
    made = pa.ipc.new_stream if stream else pa.ipc.new_file
    with made(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as sink:
        sink.write_table(table)
    return file.getvalue()


def _lighteval() -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(written.lighteval(ASKED)), file)
    return file.getvalue()


def _confidences(percent: bool) -> bytes:
    sure = RNG.integers(0, 101, 40)
    said = [f"{c} %" if percent else str(c / 100) for c in sure]
    rows = [f"{c},{'yes' if y < 2 else 'no'},q{i}" for i, (c, y) in enumerate(zip(said, Y))]
    return "\n".join(["confidence,correct,id", *rows]).encode()


def _mlflow() -> bytes:
    """As `mlflow.log_table` and pandas write one: rows of lists, texts and nothing."""
    rows = [[q.scores, q.right, q.texts[0], None] for q in EVEN]
    about = {"columns": ["logits", "label", "prompt", "empty"], "index": list(range(len(rows))), "data": rows}
    return json.dumps(about).encode()


def _zstd_eval() -> bytes:
    """A log as Inspect packs it: members in Zstandard (method 93), which `zipfile` does not write here."""
    data = written.eval_log(written.inspect_samples(ASKED), 0)
    with zipfile.ZipFile(io.BytesIO(data)) as plain:
        members = [(info.filename, plain.read(info)) for info in plain.infolist()]
    out, places = io.BytesIO(), []
    for name, body in members:
        packed, place = written.zstd_bytes(body), out.tell()
        sizes = struct.pack("<III", zlib.crc32(body), len(packed), len(body))
        common = struct.pack("<HHHHH", 20, 0, 93, 0, 33) + sizes + struct.pack("<HH", len(name), 0)
        out.write(b"PK\x03\x04" + common + name.encode() + packed)
        places.append(b"PK\x01\x02" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, place))
        places[-1] += name.encode()
    start, directory = out.tell(), b"".join(places)
    out.write(directory + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, *[len(places)] * 2, len(directory), start, 0))
    return out.getvalue()


def _saved(parts: int) -> dict[str, bytes]:
    """A folder of `save_to_disk`; its parts are of any format here."""
    names = [f"data-{i}.csv" for i in range(parts)]
    state = {"_data_files": [{"filename": name} for name in names], "_indices_data_files": None}
    return {"saved/state.json": json.dumps(state).encode()} | {f"saved/{name}": _csv() for name in names}


def _tasks() -> dict[str, bytes]:
    names = ["samples_arc_2026-11-22T10-00-00.1.jsonl", "wino.jsonl", "mcq.eval"]
    return {
        f"tasks/{name}": make()
        for name, make in zip(names, (EVALS["verdicts.jsonl"], EVALS["winogrande.jsonl"], EVALS["eval"]))
    }


def _cifar(made: Callable[..., dict[str, bytes]], k: int, *more: Any) -> dict[str, bytes]:
    return made(published.pictures(19), RNG.integers(0, k, 19), *more)


def _result() -> bytes:
    np.savez("seed.npz", logits=Z, labels=Y)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(["metrics", "seed.npz", "-m", "ece", "-o", "seed.json"])
    return Path("seed.json").read_bytes()


def _pt(legacy: bool) -> bytes:
    import torch

    file = io.BytesIO()
    tree = {"logits": torch.from_numpy(Z), "labels": torch.from_numpy(Y), "names": ["a", "b"], "epoch": 3}
    torch.save(tree, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


SEEDS: dict[str, Callable[[], bytes]] = {
    "npz": lambda: _npz(logits=Z, labels=Y),
    "packed.npz": _packed,
    "npy": _npy,
    "safetensors": _safetensors,
    "csv": _csv,
    "jsonl": _jsonl,
    "samples.jsonl": _samples,
}
EVALS: dict[str, Callable[[], bytes]] = {
    "verdicts.jsonl": lambda: written.lines(written.lm_eval(ASKED)),
    "pmi.jsonl": lambda: written.lines(written.lm_eval(ASKED, free=lambda i, k: -float(k))),
    "winogrande.jsonl": lambda: written.lines(written.winogrande()[0]),
    "eval": lambda: written.eval_log(written.inspect_samples(ASKED)),
    "stored.eval": lambda: written.eval_log(written.inspect_samples(ASKED), 0),
    "log.json": lambda: written.json_log(written.inspect_samples(ASKED)),
    "table.json": lambda: written.table(EVEN),
    "mlflow.json": _mlflow,
    "said.csv": lambda: _confidences(False),
    "percent.csv": lambda: _confidences(True),
    "completions.jsonl": lambda: written.lines(written.completions(EVEN)),
    "batch_chats.jsonl": lambda: written.lines(written.chats(EVEN, batch=True)),
    "chats.jsonl": lambda: written.lines(written.chats(EVEN)),
    "csv.gz": lambda: gzip.compress(_csv()),
    "csv.bz2": lambda: bz2.compress(_csv()),
    "csv.xz": lambda: lzma.compress(_csv()),
}
PACKAGES: dict[str, Callable[[], bytes]] = {  # where pyarrow and zstandard are installed
    "parquet": _lighteval,
    "feather": lambda: _arrow(False),
    "arrow": lambda: _arrow(True),
    "csv.zst": lambda: written.zstd_bytes(_csv()),
    "zstd.eval": _zstd_eval,
}
FOLDERS: dict[str, Callable[[], dict[str, bytes]]] = {
    "saved": lambda: _saved(1),
    "saved in parts": lambda: _saved(3),
    "tasks": _tasks,
}
DOWNLOADS: dict[str, Callable[[], dict[str, bytes]]] = {  # read by `dataset.load`, one member damaged at a time
    "cifar10": lambda: _cifar(published.cifar10, 10),
    "cifar100": lambda: _cifar(published.cifar100, 100),
    "binary 10": lambda: _cifar(published.binary, 10, False),
    "binary 100": lambda: _cifar(published.binary, 100, True),
    "mnist": lambda: published.mnist(False),
    "mnist packed": lambda: published.mnist(True),
    "svhn": lambda: published.svhn(False),
    "svhn packed": lambda: published.svhn(True),
    "tiny imagenet": published.tiny_imagenet,
}
PICKLED = [
    (b"numpy.core.multiarray", b"posix"), (b"_reconstruct", b"system"), (b"numpy\nndarray", b"os\nsystem"),
    (b"numpy\ndtype", b"builtins\neval"), (b"R", b"b"), (b"u1", b"O8"), (b"labels", b"data"), (b"K\x01", b"K\x00"),
    (b"]", b"}"), (b"tb", b"tR"), (b".", b"."), (b"J", b"L"), (b"T", b"B"), (b"X", b"y"), (b"n0", b"../"),
    (b"val_", b"/etc/"), (b"\x1f\x8b", b"BZh9"), (b"MATLAB 5.0", b"MATLAB 7.3"), (b"\t", b"\n"), (b"u", b"t"),
]  # fmt: skip
TORCH: dict[str, Callable[[], bytes]] = {"pt": lambda: _pt(False), "old.pt": lambda: _pt(True)}
SWAPS = [
    (b"'<f4'", b"'|O' "), (b"'<f4'", b"'<f8'"), (b"'<f4'", b"'<U9'"), (b"'<f4'", b"'|V4'"), (b"'<f4'", b"'<c8'"),
    (b"'<f4'", b"[('a','<f4')]"), (b"'<i8'", b"'<M8'"), (b"'<i8'", b"'<f8'"), (b"'<i8'", b"'|b1'"),
    (b"(40, 5)", b"(5, 40)"), (b"(40, 5)", b"(-1, 5)"), (b"(40, 5)", b"(40,) "), (b"(40, 5)", b"(9**9,)"),
    (b"(40, 5)", b"(2, 100)"), (b"(40, 5)", b"(0, 5) "), (b"(40, 5)", b"(99999999999, 5)"), (b"(40,)", b"()   "),
    (b"False", b"True "), (b"logits", b"labels"), (b"labels", b"logits"), (b"logits", b"images"),
    (b"F32", b"F64"), (b"F32", b"BF16"), (b"[40,5]", b"[5,40]"), (b"[40,5]", b"[-4,5]"), (b"[40,5]", b'["40"]'),
    (b"logit_3", b"logit_9"), (b",", b";"), (b"\n", b"\r"), (b"0.", b"nan"), (b"1", b"1e999"), (b"-", b"--"),
    (b"label", b"logit_0"), (b"[", b"{"), (b"]", b""), (b"null", b"NaN"), (b"false", b"Infinity"), (b"0", b"\x00"),
    (b"\"C\"", b"\"I\""), (b"logprob", b"choices"), (b"samples/", b"sample"), (b"[[", b"[[["), (b"{", b"[{"),
    (b"target", b"arguments"), (b"-1", b"1e308"), (b"true", b"\"true\""), (b"epoch", b"id"), (b"\"A\"", b"[\"A\"]"),
    (b"\"", b"'"), (b"PK\x01\x02", b"PK\x03\x04"), (b"1", b"[" * 5000), (b"1", b"9" * 5000),
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, files: dict[str, bytes], swaps: Any = SWAPS) -> tuple[str, bytes]:
    """A valid file with some of its bytes lost, changed, repeated or replaced by what means something else."""
    name = draw(st.sampled_from(sorted(files)))
    data = files[name]
    for _ in range(draw(st.integers(1, 3))):
        if not data:
            break
        how = draw(st.sampled_from(["cut", "flip", "drop", "repeat", "noise", "swap", "swap", "number"]))
        at = draw(st.integers(0, len(data) - 1))
        if how == "cut":
            data = data[:at]
        elif how == "flip":
            data = data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        elif how == "drop":
            data = data[:at] + data[at + draw(st.integers(1, 64)) :]
        elif how == "repeat":
            data = data[:at] + data[max(0, at - draw(st.integers(1, 300))) :]
        elif how == "noise":
            data = data[:at] + draw(st.binary(min_size=1, max_size=16)) + data[at:]
        elif how == "swap":
            data = data.replace(*draw(st.sampled_from(swaps)), draw(st.sampled_from([1, -1])))
        else:  # a length, an offset or a count that is far too large
            size = draw(st.sampled_from(["<H", "<I", "<Q"]))
            value = draw(st.sampled_from([0, 1, 2**15, 2**16 - 1]))
            data = data[:at] + struct.pack(size, value << (8 * (struct.calcsize(size) - 2))) + data[at + 2 :]
    return name, data


@st.composite
def damaged_folders(
    draw: st.DrawFn, layouts: dict[str, dict[str, bytes]], ways: list[str]
) -> tuple[str, str, dict[str, bytes]]:
    """How it is laid, the name of its folder, and files by path: one is damaged, missing, or the archive of all is."""
    files = dict(layouts[draw(st.sampled_from(sorted(layouts)))])
    how = draw(st.sampled_from(ways))
    place = next(iter(files)).split("/")[0]
    if draw(st.integers(0, 9)) == 0:
        del files[draw(st.sampled_from(sorted(files)))]
    elif draw(st.integers(0, 3)) or how == "folder":
        name, data = draw(damaged(files, [*SWAPS, *PICKLED]))
        files[name] = data
    else:
        name = f"{place}.{how}"
        return how, name, dict([draw(damaged({name: packed(how, files)}))])
    return how, place, files


def packed(how: str, files: dict[str, bytes]) -> bytes:
    """An archive of files."""
    out = io.BytesIO()
    if how == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        published.tar(out, files, "w:gz" if how == "tar.gz" else "w")
    return out.getvalue()


SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (6,), (6, 1), (1, 6), (6, 3), (3, 6), (6, 0), (6, 3, 2), (6, 11)]
DTYPES = ["f2", "f4", "f8", ">f4", "i1", "i8", "u1", "u8", "?", "U3", "S3", "c8", "M8[s]", "f4,i4", "g"]
VALUES = st.sampled_from([0.0, 1.0, -1.0, 0.5, np.nan, np.inf, -np.inf, 1e-300, 1e300, 65504.0, -100.0, 2.0**53])


@st.composite
def odd_arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Arrays of any shape, dtype and name."""
    arrays = {}
    names = ["logits", "probs", "labels", "y", "predictions", "log_probs", "ids", "classes", "weights", "x.weight"]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        shape = draw(st.sampled_from(SHAPES))
        dtype = draw(st.sampled_from(DTYPES))
        values = draw(st.lists(VALUES, min_size=1, max_size=18))
        with np.errstate(all="ignore"):
            flat = np.resize(np.array(values), shape)
            try:
                arrays[name] = flat.astype(dtype)
            except (TypeError, ValueError):
                arrays[name] = flat
    return arrays


def peak() -> int:
    """Largest memory of this process so far, in kB; `ru_maxrss` starts with that of the process that started it."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        if found:
            return int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Seen:
    """What happened to the files."""

    def __init__(self) -> None:
        self.read: list[bool] = []
        self.slowest = 0.0
        self.said: list[str] = []
        self.grown = 0

    def take(self, work: Callable[[], bool]) -> None:
        before = time.process_time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.read.append(work())
        self.said += [f"{w.category.__name__}: {w.message}" for w in caught if w.category is not ResourceWarning]
        self.slowest = max(self.slowest, time.process_time() - before)


def inspect(path: str) -> bool:
    """Whether the file was read; anything but a refusal is an error of the test."""
    try:
        inspecting.inspect_outputs([path], {"choices": "A,B,C,D"} if "chats" in path else {})
    except CalibError as refusal:
        told = refusal
    else:
        return True
    return well_said(told)


def well_said(told: CalibError) -> bool:
    assert told.problem
    assert told.fix
    assert len(str(told)) < 1000
    return False


def command(*arguments: str) -> bool:
    """Whether a command took the file; exit codes and streams as promised."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*arguments, "-q"])
    assert code in (0, 1, 2, 3, 4, 5), f"{code} {arguments} {err.getvalue()}"
    assert "Traceback" not in err.getvalue()
    if code in (Exit.USAGE, Exit.REFUSED):
        assert out.getvalue() == ""
        assert err.getvalue().startswith("error: ")
    return code not in (Exit.USAGE, Exit.REFUSED)


def opened(path: str, split: str) -> bool:
    """Whether a data set was read; anything but a refusal is an error of the test."""
    from calibcli.networks import dataset

    try:
        found = dataset.load(f"{path}#{split}" if split else path)
        if len(found):
            found.batch(slice(0, 4))
        dataset.splits(path)
    except CalibError as refusal:
        told = refusal
    else:
        return True
    return well_said(told)


def run_folders(kind: str, examples: int) -> Seen:
    """The same of folders and archives: `folders` of recorded outputs, `downloads` of data sets."""
    seen, number = Seen(), iter(range(10**9))
    layouts = {name: make() for name, make in (FOLDERS if kind == "folders" else DOWNLOADS).items()}

    def one(how: str, name: str, files: dict[str, bytes]) -> None:
        shutil.rmtree("made", ignore_errors=True)
        if how != "folder" and not (len(files) == 1 and name in files):
            name = f"{name}.{how}"
            files = {name: packed(how, files)}
        for path, data in files.items():
            place = Path("made") / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        given = f"made/{name}"
        count = next(number)
        if kind == "folders":
            more = [["--tasks"], []][count % 2]
            seen.take(lambda: command("metrics", given, "-m", "ece", "-m", "accuracy", *more))
            return
        split = ["test", "train", "", "val"][sum(map(len, files.values())) % 4]  # the same whenever it is tried again
        seen.take(lambda: opened(given, split))
        if count % 25 == 0:
            seen.take(lambda: command("fit", "mlp:hidden=2", "--data", given, "--epochs", "1", "--device", "cpu"))

    @settings(max_examples=examples, **SETTINGS)
    @given(damaged_folders(layouts, ["folder"] if kind == "folders" else ["folder", "tar", "tar.gz", "zip"]))
    def each(case: Any) -> None:
        one(*case)

    for files in layouts.values():
        for _ in range(4):
            one("folder", next(iter(files)).split("/")[0], files)
    command("fit", "mlp:hidden=2", "--data", "made/tiny-imagenet-200", "--epochs", "1", "--device", "cpu")
    before = peak()
    memory.MOST_DECODED = 1 << 23  # most that may be decoded
    each()
    seen.grown = peak() - before
    return seen


def run(kind: str, examples: int) -> Seen:
    """Read so many files of a kind: `files`, `evals`, `packages`, `torch`, `results` or `arrays`."""
    if kind in ("folders", "downloads"):
        return run_folders(kind, examples)
    seen, number = Seen(), iter(range(10**9))
    seeds = {"files": SEEDS, "torch": TORCH, "results": {"json": _result}, "evals": EVALS, "packages": PACKAGES}.get(
        kind, {}
    )
    files = {name: make() for name, make in seeds.items()}

    def one(path: str) -> None:
        seen.take(lambda: inspect(path))
        if next(number) % 5 == 0:
            seen.take(lambda: command("metrics", path, "-m", "ece", "-m", "accuracy"))
            if kind == "torch":
                seen.take(lambda: command("logits", path, "--arch", "mlp:inputs=5", "--data", path, "--save", "o.npz"))
        if kind == "results":
            seen.take(lambda: command("check", path, "--max", "ece=0.9"))

    @settings(max_examples=examples, **SETTINGS)
    @given(odd_arrays() if kind == "arrays" else damaged(files))
    def each(case: Any) -> None:
        name, data = ("npz", _npz(**case)) if kind == "arrays" else case
        Path(f"a.{name}").write_bytes(data)
        one(f"a.{name}")

    for name, data in files.items():  # the undamaged ones: what is imported and allocated once
        Path(f"a.{name}").write_bytes(data)
        one(f"a.{name}")
    before = peak()
    memory.MOST_DECODED = 1 << 23  # most that may be decoded
    each()
    seen.grown = peak() - before
    return seen


if __name__ == "__main__":
    found = run(sys.argv[1], int(sys.argv[2]))
    share = float(np.mean(found.read))
    about = {"read": share, "grown": found.grown, "slowest": found.slowest, "said": sorted(set(found.said))[:5]}
    print(json.dumps(about))
