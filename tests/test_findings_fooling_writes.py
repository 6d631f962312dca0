"""No command writes to one of its inputs: every output option against every input, under every name."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import COMMANDS, main
from calibcli.errors import Exit, UsageError
from calibcli.files import may_write

SAMPLES = Path(__file__).parent.parent / "sample_data"
SUFFIX = {
    "-o": ".json",
    "apply --save": ".npz",
    "scale --save": ".safetensors",
    "logits --save": ".npz",
    "merge --save": ".npz",
    "metrics --partial": ".npz",
}
# command line, input roles in braces, and the parameters that these are
LINES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "metrics": [("{test} --labels {labels}", ("files", "labels")), ("{test} --classes {names}", ("classes",))],
    "merge": [("{state}", ("states",))],
    "scale": [("{validation} --test {test}", ("files", "test"))],
    "apply": [("{calibrator} {test} --save {folder}/free.npz", ("calibrator", "files"))],
    "check": [
        ("{test} --max ece=0.2 --baseline {base} --fitted-on {validation}", ("input", "baseline", "fitted_on")),
        ("--config {config}", ("config",)),
        ("{result} --max ece=0.2", ("input",)),
    ],
    "compare": [("{test} {validation}", ("inputs",)), ("{base} {result}", ("inputs",))],
    "report": [("{base} {result}", ("results",))],
    "plan": [("--max ece=0.02 --from {validation}", ("pilot",))],
    "watch": [
        ("{folder}/state.json {test} --max ece=0.2 --config {config} --night 2026-03-01", ("state", "new", "config")),
        ("{folder}/state.json {test} --margin nll=9 --baseline {validation} --night 2026-03-01", ("baseline",)),
    ],
    "slices": [("{test} --by ink", ("files",))],
    "ood": [
        ("{test} {validation} --with {calibrator}", ("inside", "outside", "calibrator")),
        ("{test} {validation} --against {test_b} --against {validation_b}", ("against",)),
    ],
    "inspect": [("{test}", ("files",))],
    "logits": [
        ("{model} --data {digits}#test --save {folder}/free.npz", ("model", "data")),
        ("{model} --arch-file {code}:make --trust --data {digits}#test --save {folder}/free.npz", ("arch_file",)),
    ],
    "curvature": [
        ("{model} --data {digits}#test", ("model", "data")),
        ("{model} --arch-file {code}:make --data {digits}#test", ("arch_file",)),
    ],
    "export": [
        ("{calibrator} --to vllm --data {test} -o {folder}/free.json", ("calibrator", "data")),
        ("{calibrator} --to checkpoint --model {model} --data {digits}#test -o {folder}/free.safetensors", ("model",)),
        (
            "{calibrator} --to checkpoint --model {model} --arch-file {code}:make -o {folder}/free.safetensors",
            ("arch_file",),
        ),
    ],
    "verify": [
        ("{test} --with {calibrator} --data {validation}", ("deployed", "calibrator", "data")),
        ("{model} --with {calibrator} --before {model} --data {digits}#test --config {config}", ("before", "config")),
        ("{model} --with {calibrator} --before {model} --data {digits}#test --arch-file {code}:make", ("arch_file",)),
    ],
    "study": [("{recipe} --data {digits} --dry-run", ("what", "data"))],
    "fit": [
        ("{model} --data {digits}#train --validation {vals} --test {tests}", ("model", "data", "validation", "test")),
        ("text_cnn --data {digits}#train --embeddings {names}", ("embeddings",)),
        ("mlp:hidden=8 --arch-file {code}:make --data {digits}#train", ("arch_file",)),
    ],
}
OUTPUTS = {"output", "save", "save_baseline", "partial"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    files = {name: Path(shutil.copy(SAMPLES / f"{name}.npz", folder)) for name in ("test", "validation", "digits")}
    files["model"] = Path(shutil.copy(SAMPLES / "model.safetensors", folder))
    files["vals"], files["tests"] = (Path(shutil.copy(files["digits"], folder / f"{n}.npz")) for n in ("vals", "tests"))
    files |= {f"{n}_b": Path(shutil.copy(SAMPLES / f"{n}.npz", folder / f"{n}_b.npz")) for n in ("test", "validation")}
    files["labels"], files["names"] = folder / "labels.npy", folder / "names.txt"
    np.save(files["labels"], np.load(files["test"])["labels"])
    files["names"].write_text("\n".join("abcdefghij"))
    files["code"] = folder / "code.py"
    files["code"].write_text("def make():\n    raise SystemExit\n")
    files["calibrator"] = folder / "t.safetensors"
    assert main(["scale", str(files["validation"]), "--save", str(files["calibrator"]), "-q"]) == 0
    files["state"] = folder / "state.npz"
    assert main(["metrics", str(files["test"]), "--partial", str(files["state"]), "-q"]) == 0
    for name in ("base", "result"):
        files[name] = folder / f"{name}.json"
        main(["check", str(files["test"]), "--max", "ece=0.2", "--keep-rows", "-o", str(files[name]), "-q"])
    files["config"] = folder / "calib.toml"
    files["config"].write_text(
        '[data]\neval = "test.npz"\nfitted_on = "validation.npz"\n[[gate]]\nmetric = "nll"\nbaseline = "base.json"\n'
    )
    files["recipe"] = folder / "recipe.toml"
    files["recipe"].write_text((SAMPLES.parent / "calibcli" / "study" / "builtin" / "step-size.toml").read_text())
    files["folder"] = folder
    return files


def cases() -> list[Any]:
    found = []
    for command, lines in LINES.items():
        for line, _ in lines:
            roles = [part.partition("}")[0] for part in line.split("{")[1:] if not part.startswith("folder")]
            roles += ["test", "validation", "base"] if "config" in roles else []
            for option in ("-o", *(o.split()[1] for o in SUFFIX if o.startswith(f"{command} "))):
                found += [pytest.param(command, line, role, option, id=f"{command}{option}-{role}") for role in roles]
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.finding("3.2")
@pytest.mark.parametrize(("command", "line", "role", "option"), cases())
@pytest.mark.parametrize("how", ["hard link", "symbolic link", "spelling"])
def test_no_output_replaces_an_input(
    command: str,
    line: str,
    role: str,
    option: str,
    how: str,
    made: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    suffix = SUFFIX.get(f"{command} {option}", ".json")
    source = made[role]
    if how == "spelling":
        if source.suffix != suffix:
            pytest.skip("that name is no format")
        target = source.parent / ".." / source.parent.name / source.name
    else:
        target = tmp_path / f"other{suffix}"
        target.hardlink_to(source) if how == "hard link" else target.symlink_to(source)
    before = content(made["folder"])
    argv = line.format(**made).split()
    if option in argv:
        argv[argv.index(option) + 1] = str(target)
    else:
        argv += [option, str(target)]
    assert main([command, *argv, "-q"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "would replace the input" in said
    assert content(made["folder"]) == before


def test_every_command_and_every_input_is_in_the_table() -> None:
    assert set(LINES) == set(COMMANDS) - {"list", "demo"}  # which read no file of the user's
    texts = {"data", "validation", "test", "model", "arch_file", "baseline", "fitted_on", "labels", "classes", "config"}
    for command, lines in LINES.items():
        options = importlib.import_module(f"calibcli.cli.{command}").command.options
        wanted = {name for name, one in options.items() if one.kind is Path or name in texts}
        covered = {name for _, names in lines for name in names} | OUTPUTS
        shared = {"labels", "classes"}  # read in one place for all commands
        assert wanted - covered <= (set() if command == "metrics" else shared), command


@pytest.mark.finding("3.2")
def test_a_failing_check_leaves_its_baseline_alone(
    tmp_path: Path, made: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "b.json"
    argv = ["check", str(made["test"]), "--max", "ece=0.001", "--baseline", str(base), "--keep-rows", "-o", str(base)]
    assert main(argv) == Exit.USAGE  # also before there is one: the next night would overwrite it
    assert not base.exists()
    shutil.copy(made["base"], base)
    before = base.read_bytes()
    assert main(argv) == Exit.USAGE
    assert base.read_bytes() == before


@pytest.mark.finding("3.2")
def test_a_table_does_not_replace_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("label,p0,p1\n" + "0,0.7,0.3\n1,0.2,0.8\n" * 20)
    before = table.read_bytes()
    monkeypatch.chdir(tmp_path)
    for target in ("t.csv", "./t.csv", str(table), f"../{tmp_path.name}/t.csv"):
        assert main(["metrics", "t.csv", "-o", target]) == Exit.USAGE
    (tmp_path / "estimates.csv").write_bytes(before)
    assert main(["metrics", "estimates.csv", "-o", "./"]) == Exit.USAGE  # a folder of reports gets an estimates.csv
    (tmp_path / "by_site.csv").write_bytes(before)
    assert main(["metrics", "by_site.csv", "-o", "."]) == Exit.USAGE
    assert all(p.read_bytes() == before for p in tmp_path.glob("*.csv"))
    assert main(["metrics", "t.csv", "-o", "a.json", "-o", "./a.json"]) == Exit.USAGE
    assert "written twice" in capsys.readouterr().err


@pytest.mark.finding("3.2")
@pytest.mark.parametrize("name", ["validation.npz", "test.npz", "model.safetensors", "model.pt"])
@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume"]])
def test_fit_replaces_no_file_of_somebody_else(
    name: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"mine")
    argv = ["fit", "mlp:hidden=4", "--data", str(SAMPLES / "digits.npz"), "--epochs", "1", "--save", str(tmp_path)]
    assert main([*argv, *more, "-q"]) == Exit.USAGE
    assert f"holds a {name} that is of no run" in capsys.readouterr().err
    assert content(tmp_path) == {name: b"mine"}


@pytest.mark.finding("3.2")
def test_fit_does_not_write_over_what_it_starts_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    argv = ["--data", str(SAMPLES / "digits.npz"), "--epochs", "1", "--save", str(folder), "-q"]
    assert main(["fit", "mlp:hidden=4", *argv]) == 0
    before = content(tmp_path)
    assert main(["fit", str(folder / "model.safetensors"), *argv, "--overwrite"]) == Exit.USAGE
    assert main(["fit", "mlp:hidden=4", *argv, "--overwrite", "--test", str(folder / "test.npz")]) == Exit.USAGE
    assert "would replace the input" in capsys.readouterr().err
    assert content(tmp_path) == before


@pytest.mark.finding("3.2")
def test_nothing_is_written_into_an_input_folder(tmp_path: Path, made: dict[str, Path]) -> None:
    inside = tmp_path / "images" / "cats"
    inside.mkdir(parents=True)
    with pytest.raises(UsageError, match="lies in the input folder"):
        may_write([inside / "logits.npz"], [tmp_path / "images"])
    outside = tmp_path / "link"
    outside.symlink_to(inside)
    with pytest.raises(UsageError, match="lies in the input folder"):
        may_write([outside / "logits.npz"], [tmp_path / "images"])
    may_write([tmp_path / "logits.npz"], [inside, "-", None, "mlp:hidden=3/4", "x" * 5000])


@pytest.mark.finding("4 save-onto-a-folder")
@pytest.mark.parametrize(
    "argv",
    [
        ["scale", "{validation}", "--save", "{taken}.safetensors"],
        ["apply", "{calibrator}", "{test}", "--save", "{taken}.npz"],
        ["logits", "{model}", "--data", "{digits}#test", "--save", "{taken}.npz"],
    ],
)
def test_a_folder_is_no_file(
    argv: list[str], made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in (".safetensors", ".npz"):
        (tmp_path / f"taken{suffix}").mkdir()
    given = [a.format(**made, taken=tmp_path / "taken") for a in argv]
    assert main(given) == Exit.USAGE
    assert "is a folder" in capsys.readouterr().err
