"""Files by name: what cannot be read is exit 4, and provenance is the hash of what was read."""

from __future__ import annotations

import builtins
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.core.files import unchanged
from calibcli.scores.files import locations

RNG = np.random.default_rng(8)
Z = RNG.normal(size=(600, 3)).astype(np.float32) * 2
Y = np.array([RNG.choice(3, p=np.exp(z) / np.exp(z).sum()) for z in Z.astype(np.float64)])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", logits=Z[:300], labels=Y[:300])
    np.savez("b.npz", logits=Z[300:], labels=Y[300:])
    Path("gates.toml").write_text('[[gate]]\nmetric = "ece"\nmax = 0.5\n')
    Path("calib.toml").write_text('[[gate]]\nmetric = "ece"\nlimit = 0.5\n')
    assert main(["check", "a.npz", "--max", "ece=0.5", "--keep-rows", "-o", "r.json"]) == 0
    Path("s.json").write_bytes(Path("r.json").read_bytes())
    capsys.readouterr()


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a file unreadable, for root too."""
    names: set[str] = set()

    def lock(path: str) -> None:
        names.add(os.path.abspath(path))
        Path(path).chmod(0)

    def guarded(plain: Any) -> Any:
        def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | Path) and os.path.abspath(path) in names:
                raise PermissionError(13, "Permission denied", str(path))
            return plain(path, *args, **kwargs)

        return opened

    def access(path: Any, *args: Any, **kwargs: Any) -> bool:
        return os.path.abspath(path) not in names and os.path.exists(path)

    monkeypatch.setattr(builtins, "open", guarded(builtins.open))
    monkeypatch.setattr(io, "open", guarded(io.open))
    monkeypatch.setattr(locations, "Opened", guarded(locations.Opened))
    monkeypatch.setattr(os, "access", access)
    return lock


MLP = "mlp:inputs=3,hidden=4,classes=3"
READS = {
    "metrics": ("a.npz", ["metrics", "a.npz"]),
    "scale": ("a.npz", ["scale", "a.npz"]),
    "inspect": ("a.npz", ["inspect", "a.npz"]),
    "labels": ("y.npy", ["metrics", "z.npy", "--labels", "y.npy"]),
    "classes": ("names.txt", ["metrics", "a.npz", "--classes", "names.txt"]),
    "check": ("a.npz", ["check", "a.npz", "--max", "ece=0.5"]),
    "check a result": ("r.json", ["check", "r.json", "--max", "ece=0.5"]),
    "baseline": ("r.json", ["check", "b.npz", "--baseline", "r.json"]),
    "baseline of scores": ("b.npz", ["check", "a.npz", "--baseline", "b.npz"]),
    "config": ("gates.toml", ["check", "a.npz", "--config", "gates.toml"]),
    "calib.toml": ("calib.toml", ["check", "a.npz"]),
    "fit": ("b.npz", ["check", "a.npz", "--max", "ece=0.5", "--fitted-on", "b.npz"]),
    "compare": ("b.npz", ["compare", "a.npz", "b.npz"]),
    "compare results": ("r.json", ["compare", "s.json", "r.json"]),
    "plan": ("a.npz", ["plan", "--max", "ece=0.02", "--from", "a.npz"]),
    "apply": ("a.npz", ["apply", "T.safetensors", "a.npz", "--save", "o.npz"]),
    "model": ("m.pt", ["logits", "m.pt", "--arch", "mlp:inputs=3", "--data", "d.npz", "--save", "o.npz"]),
    "data": ("d.npz", ["logits", "m.pt", "--arch", MLP, "--data", "d.npz", "--save", "o.npz"]),
    "data csv": ("d.csv", ["logits", "m.pt", "--arch", MLP, "--data", "d.csv", "--save", "o.npz"]),
}  # fmt: skip


@pytest.mark.regression("4 an unreadable file")
@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.one_in(5)
def test_an_unreadable_file_is_refused_as_a_missing_one(
    kind: str, missing: bool, locked: Callable[[str], None], capsys: Any
) -> None:
    path, command = READS[kind]
    np.save("z.npy", Z)
    np.save("y.npy", Y)
    np.savez("d.npz", x=Z, y=Y)
    Path("d.csv").write_text("p,q,r,label\n1,2,3,0\n")
    Path("names.txt").write_text("a\nb\nc\n")
    if kind == "apply":
        assert main(["scale", "b.npz", "--save", "T.safetensors"]) == 0
    if kind in ("model", "data", "data csv"):
        torch = pytest.importorskip("torch")
        from calibcli.networks.checkpoint.factory import build

        torch.save(build(MLP).state_dict(), "m.pt")
    capsys.readouterr()
    if missing:
        if kind in ("baseline", "baseline of scores", "calib.toml", "classes"):
            return  # a first night, no configuration, a name of one class
        Path(path).unlink()
    else:
        locked(path)
    code = main([*command, "-q"])
    out, err = capsys.readouterr()
    assert (code, out) == (Exit.REFUSED, ""), err
    assert "Permission denied" in err or missing
    assert Path(path).name in err


@pytest.mark.regression("4 an unreadable file")
@pytest.mark.parametrize("path", ["x" * 5000, "a.npz/x", "/dev/zero", "/dev/null", ".", "nothing/here.npz"])
def test_odd_paths(path: str, capsys: Any) -> None:
    for command in (["metrics", path], ["metrics", "a.npz", "--labels", path], ["check", "a.npz", "--config", path],
                    ["check", path, "--max", "ece=0.5"], ["compare", "a.npz", path],
                    ["logits", path, "--data", path, "--save", "../o.npz"]):  # fmt: skip
        assert main([*command, "-q"]) == Exit.REFUSED, command
    for command in (["check", "a.npz", "--baseline", path], ["metrics", "a.npz", "--classes", path]):
        assert main([*command, "-q"]) in (Exit.REFUSED, Exit.NOT_RUN, Exit.FAIL), command
    assert "bug" not in capsys.readouterr().err


@pytest.mark.regression("3.4")
@pytest.mark.parametrize("swap", ["a.npz", "r.json", "b.npz", "c.toml"])
def test_provenance_is_what_was_read(swap: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A file that is replaced while the gate judges: the result names the file that was judged."""
    from calibcli.gate import check

    before = {name: digest(name) for name in ("a.npz", "r.json", "b.npz")}
    judge = check.check

    def slow(*args: Any, **kwargs: Any) -> Any:
        found = judge(*args, **kwargs)
        Path("new").write_bytes(b"another file")
        os.replace("new", swap)
        return found

    monkeypatch.setattr(check, "check", slow)
    arguments = ["a.npz", "--max", "ece=0.5", "--baseline", "r.json"]
    if swap == "c.toml":
        Path("c.toml").write_text('[[gate]]\nmetric = "ece"\nlimit = 0.5\n')
        before["c.toml"] = digest("c.toml")
        arguments = ["a.npz", "--config", "c.toml"]
    elif swap == "b.npz":
        arguments = ["b.npz", "--max", "ece=0.9"]
    main(["check", *arguments, "--json"])
    found = json.loads(capsys.readouterr().out)["provenance"]["inputs"]
    entries = {entry["path"]: entry["sha256"] for entry in found}
    assert entries[swap] == before[swap] != digest(swap)


@pytest.mark.regression("3.4")
def test_provenance_of_every_input(capsys: Any) -> None:
    arguments = ["check", "a.npz", "--max", "ece=0.5", "--baseline", "r.json", "--fitted-on", "b.npz", "--json"]
    main([*arguments])
    found = json.loads(capsys.readouterr().out)["provenance"]["inputs"]
    assert {e["path"]: e["sha256"] for e in found} == {
        name: digest(name) for name in ("a.npz", "r.json", "b.npz", "calib.toml")
    }
    assert main(["compare", "s.json", "r.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["provenance"]["inputs"]
    assert [e["sha256"] for e in found] == [digest("r.json")] * 2


@pytest.mark.regression("3.4")
def test_files_read_by_name_must_not_change(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["scale", "b.npz", "--save", "T.safetensors"]) == 0

    from calibcli.api import fixing

    load = fixing.load_scaler

    def swapped(path: Any) -> Any:
        found = load(path)
        Path("new").write_bytes(Path(path).read_bytes())
        os.replace("new", path)
        return found

    monkeypatch.setattr(fixing, "load_scaler", swapped)
    capsys.readouterr()
    assert main(["apply", "T.safetensors", "a.npz", "--save", "o.npz"]) == Exit.REFUSED
    assert "T.safetensors changed while it was read" in capsys.readouterr().err
    with pytest.raises(InputError, match="changed"), unchanged("a.npz"):
        Path("a.npz").write_bytes(b"x")
    with pytest.raises(InputError, match="cannot read"), unchanged("none"):
        pass


@pytest.mark.regression("3.4")
def test_a_checkpoint_that_is_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from calibcli.networks import checkpoint
    from calibcli.networks.checkpoint.factory import build

    torch.save(build(MLP).state_dict(), "m.pt")
    torch.save(build(MLP).state_dict(), "n.pt")
    assert checkpoint.load("m.pt", arch=MLP).sha256 == digest("m.pt")
    module = sys.modules["calibcli.networks.checkpoint.loading"]
    print_of = module.fingerprint  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "fingerprint", lambda path: (os.replace("n.pt", "m.pt"), print_of(path))[1])
    with pytest.raises(InputError, match=r"m\.pt changed while it was read"):
        checkpoint.load("m.pt", arch=MLP)
