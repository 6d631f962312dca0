"""Threads of ours and of NumPy's OpenBLAS: results are the same, and only ours run."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import numpy as np
import pytest

import calibcli
from calibcli.core import statistics as module
from calibcli.core.statistics import one_thread
from calibcli.scores import recorded_outputs
from calibcli.scores.columns import ClassBins, columns
from calibcli.scores.predictions import Predictions


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """OpenBLAS with two threads; what it was told since."""
    told = [2]
    monkeypatch.setattr(module, "_blas", lambda: (lambda: told[-1], told.append))
    return told


def test_openblas_has_one_thread_while_any_block_runs(two: list[int]) -> None:
    with one_thread():
        assert two[-1] == 1
        with one_thread():
            pass
        assert two[-1] == 1
    assert two[-1] == 2
    both, go = threading.Barrier(2), threading.Event()

    def first() -> None:
        with one_thread():
            both.wait()
            go.wait()

    thread = threading.Thread(target=first)
    thread.start()
    with one_thread():
        both.wait()
    assert two[-1] == 1  # the other still runs
    go.set()
    thread.join()
    assert two[-1] == 2
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert two[-1] == 2
    assert not module.thread_counts


def test_a_call_holds_it_and_gives_it_back(two: list[int]) -> None:
    z = np.random.default_rng(0).standard_normal((200, 5))
    calibcli.measure(z, z.argmax(axis=1))
    assert two[-1] == 2
    assert 1 in two


def test_the_library_is_found_where_numpy_has_it() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    libraries = [
        one
        for one in threadpoolctl.threadpool_info()
        if one["internal_api"] == "openblas" and "numpy" in one["filepath"]
    ]
    if not libraries:
        pytest.skip("NumPy uses another library")
    found = module._blas()
    assert found is not None
    get, _ = found
    before = get()
    assert before == libraries[0]["num_threads"]
    with one_thread():
        assert get() == 1
    assert get() == before


@pytest.mark.parametrize("k", [3, 40, 700])
def test_files_give_what_arrays_give_however_many_threads(
    k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibcli.scores.array_names.HOLD", 0)  # read again, not kept
    monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", 1 << 18)
    z = np.random.default_rng(k).standard_normal((6_000, k)).astype(np.float32)
    y = np.where(np.arange(6_000) % 3 > 0, z.argmax(axis=1), 0)
    path = tmp_path / "scores.npz"
    np.savez(path, logits=z, labels=y)
    held, read = Predictions.of(z, y), recorded_outputs.read([path])
    assert hasattr(read.scores, "reusing")
    wanted = columns(held, double=True)
    for rows in (held, read):
        for threads in (1, 2, 3):
            got = columns(rows, threads=threads, double=True)
            for name in ("confidence", "nll", "most", "brier", "entropy", "predicted"):
                np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
            for name in ("count", "sum_p", "sum_y"):
                one, two = (getattr(c.classes[ClassBins()], name) for c in (got, wanted))
                np.testing.assert_array_equal(one, two)


def test_a_screen_takes_no_digest_but_checks_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from calibcli.cli.app import main
    from calibcli.scores.files.source import Source

    z = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    path = tmp_path / "scores.npz"
    np.savez(path, logits=z, labels=z.argmax(axis=1))
    taken: list[str] = []
    whole = Source.sha256
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "sha256", lambda *args: taken.append(whole(*args)) or taken[-1])
        for more in ([], ["-q"], ["--json"], ["--verbose"]):
            assert main(["metrics", str(path), *more]) == 0
    assert taken[:2] == ["", ""]
    assert taken[2:] == [hashlib.sha256(path.read_bytes()).hexdigest()] * 2
    assert taken[2] in capsys.readouterr().out
    found = bytearray(path.read_bytes())
    found[found.index(b"\x93NUMPY") + 1000] ^= 1
    path.write_bytes(found)
    assert main(["metrics", str(path)]) == 4
    assert "is damaged" in capsys.readouterr().err
