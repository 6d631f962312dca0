"""Patterns, folders of parts and addresses stand for their files; a server on the loopback stands for S3."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.scores.files import locations

N = 240


def scores() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (N, 4))
    return z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parts as engines write them: in folders, beside files that are none."""
    z, y = scores()
    made = tmp_path / "the parts"
    (made / "day=2").mkdir(parents=True)
    for i, name in enumerate(("part-0.npz", "part-1.npz", "day=2/part-0.npz")):
        np.savez(made / name, logits=z[i::3], labels=y[i::3])
    for name in ("_SUCCESS", ".part-0.npz.crc", "_temporary.npz", "readme.txt"):
        (made / name).write_text("no scores")
    return made


def wanted() -> float:
    found = calibcli.measure(*scores(), "ece")["ece"].value
    assert found is not None
    return found


@pytest.mark.parametrize("form", ["{}", "{}/**/part-*.npz", "file://{}", "file:{}", "file://{}/**/part-[01].npz"])
def test_what_stands_for_parts(form: str, folder: Path) -> None:
    text = form.format(str(folder).replace(" ", "%20") if form.startswith("file") else folder)
    for path in (text, Path(text)):  # a `Path` keeps one slash of two
        found = calibcli.read(path)
        assert found.n == N
        assert calibcli.measure(found, "ece")["ece"].value == pytest.approx(wanted(), abs=1e-12)
        assert len(found.record.files) == 3
    assert calibcli.Accumulator().update(text).result("ece")["ece"].value == pytest.approx(wanted(), abs=1e-12)


def test_commands_take_patterns_and_folders(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        ["metrics", str(folder), "-m", "ece"],
        ["metrics", f"{folder}/**/part-*.npz", "-m", "ece", "--partial", str(tmp_path / "state.npz")],
        ["merge", str(tmp_path / "state.npz"), "-m", "ece"],
        ["check", f"file://{folder}", "--max", "ece=0.9"],
    ):
        assert main([*line, "-q", "--json"]) == 0, line
        found = calibcli.Result.from_json(capsys.readouterr().out)
        assert found["ece"].value == pytest.approx(wanted(), abs=1e-12)
    assert main(["metrics", f"{folder}/*.parquet"]) == Exit.REFUSED
    assert "no file matches" in capsys.readouterr().err


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path: Path) -> None:
    z, y = scores()
    np.savez(tmp_path / "a[1]*.npz", logits=z, labels=y)
    assert calibcli.read(tmp_path / "a[1]*.npz").n == N


def test_folders_without_parts_or_with_several_formats(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    with pytest.raises(InputError, match="is a folder without recorded outputs"):
        calibcli.read(tmp_path / "empty")
    (folder / "more.csv").write_text("label,prob_0,prob_1\n")
    with pytest.raises(InputError, match=r"several formats: \.csv, \.npz") as error:
        calibcli.read(folder)
    assert "*.npz'" in error.value.fix  # which most of them are


@pytest.mark.parametrize(
    "path", ["a\0*", "x" * 5000 + "*", "[", "file:///\0", "**", "s3:/", "s3://", "s3:///[", "gs:/*?["]
)
def test_odd_names_are_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow, too: no address is looked up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError):
        calibcli.read(path)
    no_name = "\0" in path  # which no file of any system can have
    assert main(["metrics", path, "-q"]) == (Exit.USAGE if no_name else Exit.REFUSED)


@pytest.mark.parametrize(
    ("path", "is_remote"),
    [("s3://b/k", True), ("s3:/b/k", True), ("gs://b/k", True), ("file:///a", False), ("/s3:/a", False), ("s3", False)],
)
def test_addresses(path: str, is_remote: bool) -> None:
    assert locations.remote(path) is is_remote
    assert locations.remote(Path(path)) is is_remote


class S3(BaseHTTPRequestHandler):
    """Enough of S3 to be read from: HEAD and GET of objects, with ranges, and their list."""

    def __init__(self, *args: Any, root: Path, asked: list[str]) -> None:
        self.root, self.asked = root, asked
        super().__init__(*args)

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        url = urlsplit(self.path)
        name, query = unquote(url.path).strip("/"), {k: v[0] for k, v in parse_qs(url.query).items()}
        if "/" not in name:
            return self.listed(name, query)
        path = self.root / name
        if not path.is_file():
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, found = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not found:
            return self.answer(200, data)
        first, last = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
        return self.answer(206, data[first : last + 1], **{"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def listed(self, bucket: str, query: dict[str, str]) -> None:
        prefix, limit = query.get("prefix", ""), query.get("delimiter", "")
        names = sorted(str(p.relative_to(self.root / bucket)) for p in (self.root / bucket).rglob("*") if p.is_file())
        names = [name for name in names if name.startswith(prefix)]
        inner = {prefix + name[len(prefix) :].split("/")[0] + "/" for name in names if "/" in name[len(prefix) :]}
        names = [name for name in names if not (limit and "/" in name[len(prefix) :])]
        size = {name: (self.root / bucket / name).stat().st_size for name in names}
        body = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{size[name]}</Size>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;0&quot;</ETag></Contents>"
            for name in names
        )
        body += "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in inner if limit)
        text = f"<Name>{bucket}</Name><KeyCount>{len(names)}</KeyCount><IsTruncated>false</IsTruncated>{body}"
        xmlns = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        self.answer(200, f'<?xml version="1.0"?><ListBucketResult {xmlns}>{text}</ListBucketResult>'.encode())

    def answer(self, code: int, data: bytes, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("ETag", '"0"')
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str, list[str]]]:
    """Address of the parts on a server of this machine, what follows a `?`, and what it was asked."""
    pytest.importorskip("pyarrow.fs")
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(S3, root=folder.parent.parent, asked=asked))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    options = f"scheme=http&endpoint_override=127.0.0.1:{server.server_port}&region=us-east-1"
    yield f"s3://{folder.parent.name}/{folder.name}", options, asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.extra
@pytest.mark.parametrize("form", ["", "/", "/**/part-*.npz", "/part-0.npz"])
def test_parts_on_s3(form: str, bucket: tuple[str, str, list[str]]) -> None:
    address, options, asked = bucket
    z, y = scores()
    one = form == "/part-0.npz"
    expected = calibcli.measure(z[::3], y[::3], "ece")["ece"].value if one else wanted()
    for path in (f"{address}{form}?{options}", Path(f"{address}{form}?{options}")):
        found = calibcli.read(path)
        assert calibcli.measure(found, "ece")["ece"].value == pytest.approx(expected, abs=1e-12)
        assert [f["path"][:5] for f in found.record.files] == ["s3://"] * (1 if one else 3)
    assert asked


@pytest.mark.extra
def test_states_on_s3_and_what_is_not_there(
    bucket: tuple[str, str, list[str]], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, options, _ = bucket
    for i, name in enumerate(("part-0", "part-1", "day=2/part-0")):
        state = folder.parent / "states" / f"{i}.npz"
        state.parent.mkdir(exist_ok=True)
        assert main(["metrics", f"{address}/{name}.npz?{options}", "--partial", str(state), "-q"]) == 0
    capsys.readouterr()
    states = f"{address.rpartition('/')[0]}/states?{options}"
    assert main(["merge", states, "-m", "ece", "--json", "-q"]) == 0
    assert calibcli.Result.from_json(capsys.readouterr().out)["ece"].value == pytest.approx(wanted(), abs=1e-12)
    for name, said in (("/no-*.npz", "no file matches"), ("/none.npz", "without recorded outputs")):
        assert main(["metrics", f"{address}{name}?{options}"]) == Exit.REFUSED
        assert said in capsys.readouterr().err


@pytest.mark.extra
def test_google_storage_is_asked_for_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gs://` is passed on: the file system that pyarrow makes of it is read from, and gives up within seconds."""
    fs = pytest.importorskip("pyarrow.fs")
    made: list[str] = []

    def from_uri(address: str) -> tuple[Any, str]:
        made.append(address)
        return fs.LocalFileSystem(), "/" + address.removeprefix("gs://").partition("?")[0].rstrip("/")

    monkeypatch.setattr(locations, "_from_uri", from_uri)
    with pytest.raises(InputError, match="without recorded outputs"):
        calibcli.read("gs://nowhere/at-all")
    assert set(made) == {"gs://nowhere/?retry_limit_seconds=1"}
    made.clear()
    with pytest.raises(InputError, match="without recorded outputs"):
        calibcli.read("gs://nowhere/at-all?retry_limit_seconds=60")
    assert set(made) == {"gs://nowhere/?retry_limit_seconds=60"}


@pytest.mark.extra
@pytest.mark.parametrize("scheme", ["hf", "az"])
def test_addresses_of_fsspec(scheme: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A file, a folder of parts and a pattern, in a file system in memory; without its package the fix installs it."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    class Memory(MemoryFileSystem):  # type: ignore[misc]
        protocol = scheme
        store: dict[str, Any] = {}  # noqa: RUF012
        pseudo_dirs: list[str] = [""]  # noqa: RUF012

    fsspec.register_implementation(scheme, Memory, clobber=True)
    system = fsspec.filesystem(scheme)
    for path in sorted(folder.rglob("part-*.npz")):
        system.pipe(f"/datasets/me/{path.relative_to(folder)}", path.read_bytes())
    for form in ("", "/", "/**/part-*.npz"):
        found = calibcli.read(f"{scheme}://datasets/me{form}")
        assert calibcli.measure(found, "ece")["ece"].value == pytest.approx(wanted(), abs=1e-12)
    assert main(["metrics", f"{scheme}://datasets/me/no.npz", "-q"]) == Exit.REFUSED
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["metrics", f"{scheme}://datasets/me/part-0.npz", "-q"]) == Exit.REFUSED
    assert f"pip install fsspec {'huggingface_hub' if scheme == 'hf' else 'adlfs'}" in capsys.readouterr().err
