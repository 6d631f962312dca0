"""Exported calibrators that somebody has edited or that are damaged: refused by name, never with a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit

RNG = np.random.default_rng(0)
Z, Y = RNG.normal(size=(120, 3)), RNG.integers(0, 3, 120)
METHODS = ("temperature", "vector", "dirichlet", "isotonic", "svs", "ensemble-temperature")
OTHERS: tuple[Any, ...] = ("x", None, [], {}, -1, 1e308, 10**30, True, [[[1.5]]], "nan", [None], {"a": {"b": "x"}})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value stands in a JSON document; of a list, its first element stands for all."""
    yield path
    members = (
        value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    )
    for key, one in members:
        yield from places(one, (*path, key))


def edited(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value there, or without the member if it is Ellipsis."""
    if not path:
        return None if value is Ellipsis else value
    made = copy.deepcopy(document)
    at = made
    for key in path[:-1]:
        at = at[key]
    if value is Ellipsis:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return made


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", logits=Z, labels=Y)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_json_calibrator_with_any_field_changed(method: str, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`verify` and `inspect` accept it or refuse it."""
    fit = calibcli.fit_scaler(Z, Y, spec=method)
    calibcli.save_scaler(fit, "c.safetensors")
    assert main(["export", "c.safetensors", "--to", "json", "-o", "c.json", "--data", "rows.npz", "-q"]) == 0
    whole = json.loads(Path("c.json").read_text())
    seen = set()
    for i, path in enumerate(places(whole)):
        for value in (
            Ellipsis,
            *OTHERS[i % 3 :: 3],
            *(OTHERS if path and path[-1] in ("columns", "k", "kind") else ()),
        ):
            Path("e.json").write_text(json.dumps(edited(whole, path, value)))
            for argv in (["verify", "e.json", "--with", "c.safetensors", "--data", "rows.npz"], ["inspect", "e.json"]):
                code = main([*argv, "-q"])
                said = capsys.readouterr().err
                assert code in (Exit.OK, Exit.FAIL, Exit.USAGE, Exit.REFUSED), (path, value, argv, said)
                assert "Traceback" not in said
                seen.add((argv[0], code))
    assert ("verify", Exit.REFUSED) in seen


@pytest.mark.extra
def test_a_damaged_skops_file(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut, flipped or no zip archive at all."""
    pytest.importorskip("skops")
    calibcli.save_scaler(calibcli.fit_scaler(Z, Y), "c.safetensors")
    assert main(["export", "c.safetensors", "--to", "sklearn", "-o", "c.skops", "--data", "rows.npz", "-q"]) == 0
    whole = Path("c.skops").read_bytes()
    damaged = [b"", b"PK", b"not a zip", whole[: len(whole) // 2], whole[:-30]]
    for at in RNG.integers(0, len(whole), 60):
        damaged.append(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    for data in damaged:
        Path("d.skops").write_bytes(data)
        code = main(["verify", "d.skops", "--with", "c.safetensors", "--data", "rows.npz", "-q"])
        said = capsys.readouterr().err
        assert code in (Exit.OK, Exit.FAIL, Exit.USAGE, Exit.REFUSED), (code, said)
        assert data != b"not a zip" or code == Exit.REFUSED
