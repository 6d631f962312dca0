"""The promises of SECURITY.md: each names a test that exists, and those that no other file tests are tested here."""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from calibcli.cli.app import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| promise"))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_every_promise_names_a_test_that_exists(row: str) -> None:
    promise, named = re.fullmatch(r"\| (.+\.) \| `(.+)` \|", row).groups()  # type: ignore[union-attr]
    path, _, name = named.partition("::")
    assert promise
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, capsys: Any) -> None:
    """In the names of classes, slices and columns, and in what an error quotes."""
    escape = "\x1b]0;owned\x07\x1b[2J"
    rows = ["label,p0,p1,site"] + [
        f"{i % 2},{0.3 + 0.4 * (i % 2)},{0.7 - 0.4 * (i % 2)},a{escape}{i % 3}" for i in range(60)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "odd.csv").write_text(f"label,p{escape},q\nx{escape},0.5,y\n")
    for line in (
        ["metrics", "rows.csv", "--by", "site"],
        ["metrics", "odd.csv"],
        ["inspect", "odd.csv"],
        ["list", escape],
    ):
        main([str(tmp_path / word) if word.endswith(".csv") else word for word in line])
        shown = "".join(capsys.readouterr())
        assert shown
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown


def test_no_command_opens_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    data, test = str(ROOT / "sample_data" / "validation.npz"), str(ROOT / "sample_data" / "test.npz")
    model, calibrator = str(ROOT / "sample_data" / "model.pt"), str(tmp_path / "c.safetensors")
    for line in (
        [
            "scale",
            data,
            "--test",
            test,
            "--method",
            "temperature",
            "--save",
            calibrator,
            "-o",
            str(tmp_path / "r.html"),
        ],
        ["apply", calibrator, test, "--save", str(tmp_path / "p.npz")],
        ["check", test, "--max", "ece=0.5"],
        ["inspect", model],
        ["curvature", model, "-w", "trace", "-n", "20"],
        ["metrics", str(tmp_path / "no_such_file.npz")],
        ["list"],
    ):
        assert main(line) in (0, 2, 4), line
    capsys.readouterr()


def test_code_in_a_recipe_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "hostile.py").write_text("raise SystemExit('this ran')\n")
    recipe = (ROOT / "calibcli" / "lab" / "study" / "builtin" / "overfit.toml").read_text()
    assert 'arch = ["mlp:hidden=64/64"]' in recipe
    (tmp_path / "mine.toml").write_text(recipe.replace("mlp:hidden=64/64", "hostile:network"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["study", "mine.toml", "--save", "out", "--dry-run"]) == 2
    assert "pass --trust" in capsys.readouterr().err


def test_texts_of_a_file_are_texts_on_a_page(tmp_path: Path) -> None:
    """A page that is sent to others shows the names that a file holds, and runs none."""
    rows = ["label,p0,p1,site"] + [f"{i % 3 % 2},0.6,0.4,<script>alert({i % 2})</script>" for i in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    page = tmp_path / "page.html"
    assert main(["metrics", str(tmp_path / "rows.csv"), "--by", "site", "-o", str(page)]) == 0
    assert "&lt;script&gt;alert(1)" in page.read_text()
    assert "<script>alert(" not in page.read_text()
