"""An input that is written to while it is read: never a number under the digest of other bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evals_written import eval_log, inspect_samples, questions

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.core.files import atomic, unchanged
from calibcli.scores import array_names
from calibcli.scores.files.source import Source

N, K = 300, 3
RNG = np.random.default_rng(11)
Z = RNG.normal(size=(2, N, K)).round(4)  # of two models, before and after: (model, N, K)
Y = np.array([[RNG.choice(K, p=np.exp(z) / np.exp(z).sum()) for z in model] for model in Z])


def csv(z: Any, y: Any) -> bytes:
    rows = "".join(f"{i},{','.join(f'{v:+.4f}' for v in row)},{label}\n" for i, (row, label) in enumerate(zip(z, y)))
    return b"id,logit_0,logit_1,logit_2,label\n" + rows.encode()


def npz(z: Any, y: Any, save: Callable[..., None] = np.savez) -> bytes:
    buffer = io.BytesIO()
    save(buffer, logits=z, labels=y)
    return buffer.getvalue()


def jsonl(z: Any, y: Any) -> bytes:
    lines = (json.dumps({"logits": row.tolist(), "label": int(label)}) + "\n" for row, label in zip(z, y))
    return "".join(lines).encode()


def table(z: Any, y: Any) -> bytes:
    names = ["logit_0", "logit_1", "logit_2", "label"]
    return json.dumps({"columns": names, "data": np.column_stack([z, y]).tolist()}).encode()


def safetensors(z: Any, y: Any) -> bytes:
    from safetensors.numpy import save

    return save({"logits": z, "labels": y})


def pt(z: Any, y: Any) -> bytes:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save({"logits": torch.from_numpy(z), "labels": torch.from_numpy(y)}, buffer)
    return buffer.getvalue()


def arrow(form: str) -> Callable[[Any, Any], bytes]:
    def write(z: Any, y: Any) -> bytes:
        import pyarrow as pa

        table = pa.table({"label": y, **{f"logit_{k}": z[:, k] for k in range(K)}})
        if form == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, buffer := io.BytesIO())
        else:
            from pyarrow import feather

            feather.write_feather(table, buffer := io.BytesIO())
        return buffer.getvalue()

    return write


FORMATS: dict[str, Callable[[Any, Any], bytes]] = {
    "npz": npz,
    "packed.npz": lambda z, y: npz(z, y, np.savez_compressed),
    "csv": csv,
    "tsv": lambda z, y: csv(z, y).replace(b",", b"\t"),
    "csv.gz": lambda z, y: gzip.compress(csv(z, y), mtime=0),
    "jsonl": jsonl,
    "json": table,
    "eval": lambda z, y: eval_log(inspect_samples(questions(40, ragged=False, seed=int(abs(z).sum())))),
    "safetensors": safetensors,
    "pt": pt,
    "parquet": arrow("parquet"),
    "feather": arrow("feather"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_place(path: str, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


def with_its_old_time(path: str, data: bytes) -> None:
    status = os.stat(path)
    in_place(path, data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def by_a_new_file(path: str, data: bytes) -> None:
    Path("new").write_bytes(data)
    os.replace("new", path)


class Moments:
    """Calls `write` before read number `at` of the process, counted from 0."""

    @property
    def reads(self) -> int:
        return next(self.counter)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, write: Callable[[], None], at: int) -> None:
        self.counter = itertools.count()  # digests are computed in a thread
        for name in ("pread", "preadv"):
            plain = getattr(os, name)

            def hooked(*args: Any, plain: Any = plain) -> Any:
                if next(self.counter) == at:
                    write()
                return plain(*args)

            monkeypatch.setattr(os, name, hooked)


def outcome(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Run a command; return its exit code, the numbers and digests of its result, and what it says on stderr."""
    code = main([*argv, "--format", "json", "-q"])
    out, err = capsys.readouterr()
    if code in (Exit.USAGE, Exit.REFUSED, Exit.BUG):
        return code, None, err
    result = json.loads(out)
    numbers = [[e["name"], e["value"]] for e in result["estimates"]]
    digests = [file.get("sha256") for file in result["provenance"]["inputs"]]
    return code, (numbers, digests), err


def commands(name: str) -> dict[str, list[str]]:
    return {
        "metrics": ["metrics", name],
        "scale": ["scale", name, "--method", "temperature"],
        "check": ["check", name, "--max", "ece=0.5"],
        "inspect": ["inspect", name],
    }


def tried(
    name: str, argv: list[str], data: list[bytes], write: Callable[[str, bytes], None], capsys: Any, most: int = 12
) -> int:
    """Rewrite the file before each of up to `most` reads. What comes out is of one file whole, or the file is refused.

    Returns:
        how often the file was refused.
    """
    known = []
    for content in data[::-1]:
        Path(name).write_bytes(content)
        with pytest.MonkeyPatch.context() as patched:
            moments = Moments(patched, lambda: None, -1)
            code, found, err = outcome(argv, capsys)
        assert found is not None, err
        known.append((hashlib.sha256(content).hexdigest(), found))
    refused = 0
    for at in np.unique(np.linspace(0, moments.reads, most).astype(int)).tolist():
        Path(name).unlink()
        Path(name).write_bytes(data[0])
        with pytest.MonkeyPatch.context() as patched:
            Moments(patched, lambda: write(name, data[1]), at)
            code, found, err = outcome(argv, capsys)
        if code == Exit.REFUSED:
            assert f"{name} changed while it was read" in err
            refused += 1
        else:
            assert found is not None, (code, err)
            assert (found[1][0], found) in known, f"read {at} of {moments.reads}"
    return refused


@pytest.mark.one_in(4)
@pytest.mark.regression
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=pytest.mark.extra if form in ("parquet", "feather") else ()) for form in FORMATS]
)
def test_what_is_written_in_place_is_refused_in_every_format(form: str, capsys: Any) -> None:
    data = [FORMATS[form](z, y) for z, y in zip(Z, Y)]
    assert tried(f"rows.{form}", ["metrics", f"rows.{form}"], data, in_place, capsys) > 0


@pytest.mark.one_in(3)
@pytest.mark.regression
@pytest.mark.parametrize("command", ["scale", "check", "inspect"])
@pytest.mark.parametrize("form", ["npz", "csv"])
def test_what_is_written_in_place_is_refused_by_every_command(command: str, form: str, capsys: Any) -> None:
    data = [FORMATS[form](z, y) for z, y in zip(Z, Y)]
    assert tried(f"rows.{form}", commands(f"rows.{form}")[command], data, in_place, capsys) > 0


@pytest.mark.slow
@pytest.mark.regression
def test_scores_that_are_read_in_several_passes(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(array_names, "HOLD", -1)  # else so few are kept
    for form in ("npz", "safetensors"):
        data = [FORMATS[form](z, y) for z, y in zip(Z, Y)]
        assert tried(f"rows.{form}", ["metrics", f"rows.{form}"], data, in_place, capsys, 30) > 0


@pytest.mark.slow
@pytest.mark.regression
def test_every_kind_of_writing(capsys: Any) -> None:
    data, argv = [npz(z, y) for z, y in zip(Z, Y)], ["metrics", "rows.npz"]
    assert tried("rows.npz", argv, data, with_its_old_time, capsys) > 0
    assert tried("rows.npz", argv, [data[0], npz(Z[1, :200], Y[1, :200])], in_place, capsys) > 0  # cut off
    assert tried("rows.npz", argv, [npz(Z[1, :200], Y[1, :200]), data[0]], in_place, capsys) > 0  # grown
    assert tried("rows.npz", argv, [data[0], data[0]], lambda name, _: os.utime(name), capsys) > 0  # touched
    assert tried("rows.npz", argv, data, by_a_new_file, capsys) == 0  # the old file stays open, and is what counts


@pytest.mark.regression
def test_states_that_are_merged_and_rows_that_are_watched(capsys: Any) -> None:
    states = []
    for i, (z, y) in enumerate(zip(Z, Y)):
        calibcli.Accumulator().update(z, y).save(f"{i}.npz")
        states.append(Path(f"{i}.npz").read_bytes())
    assert tried("state.npz", ["merge", "state.npz"], states, in_place, capsys) > 0
    assert tried("state.npz", ["merge", "state.npz"], states, by_a_new_file, capsys) == 0
    data = [npz(z, y) for z, y in zip(Z, Y)]
    for at in range(8):
        Path("night.npz").write_bytes(data[0])
        with pytest.MonkeyPatch.context() as patched:
            moments = Moments(patched, lambda: in_place("night.npz", data[1]), at)
            code = main(["watch", f"{at}.json", "night.npz", "--max", "ece=0.5", "-q"])
        if moments.reads > at:
            assert code == Exit.REFUSED
            assert not Path(f"{at}.json").exists()


@pytest.mark.regression
def test_rows_that_were_read_in_python_stay_those_of_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_names, "HOLD", -1)
    np.savez("rows.npz", logits=Z[0], labels=Y[0])
    rows = calibcli.read("rows.npz")
    assert calibcli.measure(rows, "accuracy")["accuracy"].n == N
    with open("rows.npz", "r+b") as file:
        file.seek(1000)
        file.write(bytes(100))
    with pytest.raises(InputError, match=r"rows\.npz changed while it was read"):
        calibcli.measure(rows, "accuracy")


@pytest.mark.regression
def test_a_change_within_one_tick_of_the_clock_is_seen() -> None:
    for _ in range(20):
        Path("a").write_bytes(b"before")
        source = Source("a")
        in_place("a", b"behind")
        with pytest.raises(InputError, match="changed"):
            source.pread(6, 0)


@pytest.mark.regression
def test_a_young_file_is_opened_when_the_clock_has_moved_on(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "time", lambda: os.stat("a").st_ctime + 0.001)
    monkeypatch.setattr(time, "sleep", waited.append)
    Path("a").write_bytes(b"before")
    Source("a")
    assert sum(waited) > 0.01


@pytest.mark.regression
@pytest.mark.parametrize(
    "read",
    [
        lambda source: source.pread(6, 0),
        lambda source: source.pread_into(memoryview(bytearray(6)), 0),
        lambda source: source.reader().read(),
        lambda source: source.sha256(),
        lambda source: source.read(),
    ],
)
def test_every_way_to_read_an_open_file_looks_whether_it_changed(read: Callable[[Source], Any]) -> None:
    Path("a").write_bytes(b"before")
    source = Source("a")
    in_place("a", b"behind")
    with pytest.raises(InputError, match="a changed while it was read"):
        read(source)


@pytest.mark.regression
def test_nothing_is_written_from_inputs_that_changed() -> None:
    Path("a").write_bytes(b"before")
    with pytest.raises(InputError, match="changed"), unchanged("a"), atomic("out") as new:  # noqa: PT012
        in_place("a", b"behind")
        new.write_bytes(b"result")
    assert not Path("out").exists()


@pytest.mark.regression
def test_a_redirected_file_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibcli.scores.files import locations

    Path("rows.csv").write_bytes(csv(Z[0], Y[0]))
    with open("rows.csv", "rb") as file:

        class Slow(io.BufferedReader):
            def read(self, size: int | None = -1) -> bytes:
                in_place("rows.csv", csv(Z[1], Y[1]))
                return super().read(size)

        with pytest.raises(InputError, match="stdin changed while it was read"):
            locations.copy_of_pipe(Slow(file.raw))


def test_a_file_at_rest_is_opened_without_waiting() -> None:
    Path("a").write_bytes(b"before")
    time.sleep(0.03)
    start = time.perf_counter()
    for _ in range(50):
        Source("a").pread(6, 0)
    assert time.perf_counter() - start < 0.3
