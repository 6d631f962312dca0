"""No command writes to one of its inputs: every output option against every input, under every name."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli import COMMANDS
from calibcli.cli.app import main
from calibcli.core.errors import Exit, UsageError
from calibcli.core.files import atomic, claim, guarding, reading

SAMPLES = Path(__file__).parent.parent / "sample_data"
SUFFIX = {
    "-o": ".json",
    "apply --save": ".npz",
    "scale --save": ".safetensors",
    "logits --save": ".npz",
    "merge --save": ".npz",
    "metrics --partial": ".npz",
    "check --save-baseline": ".json",
    "threshold --save": ".json",
    "init --save": ".toml",
    "init --workflow": ".yml",
}
FOLDERS = {"curvature --save-state", "demo --save", "export --save", "fit --save", "scale --save", "study --save"}
"""What is, or may be, a folder: tests of its own below."""
# command line, input roles in braces, and the parameters that these are
LINES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "metrics": [("{test} --labels {labels}", ("files", "labels")), ("{test} --classes {names}", ("classes",))],
    "merge": [("{state}", ("states",))],
    "scale": [("{validation} --test {test}", ("files", "test"))],
    "apply": [
        ("{calibrator} {test} --save {folder}/free.npz", ("calibrator", "files")),
        ("{calibrator} {test} --save {folder}/free.npz --threshold {decision}", ("threshold",)),
    ],
    "check": [
        ("{test} --max ece=0.2 --baseline {base} --fitted-on {validation}", ("input", "baseline", "fitted_on")),
        ("--config {config}", ("config",)),
        ("{result} --max ece=0.2", ("input",)),
        ("{test} --threshold {decision}", ("threshold",)),
    ],
    "init": [("{test} --baseline {validation} --save {folder}/free.toml", ("file", "baseline"))],
    "compare": [
        ("{test} {validation}", ("inputs",)),
        ("{base} {result}", ("inputs",)),
        ("{test} {validation} --config {config}", ("config",)),
    ],
    "report": [("{base} {result}", ("results",))],
    "plan": [("--max ece=0.02 --from {validation}", ("pilot",))],
    "watch": [
        ("{folder}/state.json {test} --max ece=0.2 --config {config} --night 2026-03-01", ("state", "new", "config")),
        ("{folder}/state.json {test} --margin nll=9 --baseline {validation} --night 2026-03-01", ("baseline",)),
        ("{folder}/state.json {test} --threshold {decision} --night 2026-03-01", ("threshold",)),
    ],
    "slices": [("{test} --by ink", ("files",))],
    "threshold": [("{test} --max-risk 0.1 --with {calibrator} --save {folder}/free.json", ("files", "calibrator"))],
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
        ("{model} --data {digits}#test --save-state {folder}/free", ("model",)),
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
    files["decision"] = folder / "decision.json"
    assert (
        main(["threshold", str(files["validation"]), "--max-risk", "0.1", "--save", str(files["decision"]), "-q"]) == 0
    )
    files["config"] = folder / "calib.toml"
    files["config"].write_text(
        '[data]\neval = "test.npz"\nfitted_on = "validation.npz"\n[[gate]]\nmetric = "nll"\nbaseline = "base.json"\n'
    )
    files["recipe"] = folder / "recipe.toml"
    recipes = SAMPLES.parent / "calibcli" / "lab" / "study" / "builtin"
    files["recipe"].write_text((recipes / "step-size.toml").read_text())
    files["folder"] = folder
    return files


def cases() -> list[Any]:
    """Without limits `check --save-baseline` asks no rule of calib.toml, so that it reads no baseline."""
    found = []
    for command, lines in LINES.items():
        for line, _ in lines:
            roles = [part.partition("}")[0] for part in line.split("{")[1:] if not part.startswith("folder")]
            roles += ["test", "validation", "base"] if "config" in roles else []
            for option in ("-o", *(o.split()[1] for o in SUFFIX if o.startswith(f"{command} "))):
                asked = [r for r in roles if (option, r, "{config}" in line) != ("--save-baseline", "base", True)]
                found += [pytest.param(command, line, role, option, id=f"{command}{option}-{role}") for role in asked]
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.regression("3.2")
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


def test_every_command_and_every_path_is_in_the_table() -> None:
    ours = {"completion", "list", "demo"}  # which read no file of the user's
    assert set(LINES) == set(COMMANDS) - ours, "write its command line in LINES: CONTRIBUTING, A command"
    texts = {"data", "validation", "test", "model", "arch_file", "baseline", "fitted_on", "labels", "classes", "config"}
    texts |= {"threshold"}
    written = set()
    for command in COMMANDS:
        options = importlib.import_module(f"calibcli.cli.{command}").command.options
        writes = {name for name, one in options.items() if one.writes}
        written |= {f"{command} {one.flags[0]}" for name, one in options.items() if one.writes and name != "output"}
        if command in LINES:
            wanted = {name for name, one in options.items() if one.kind is Path or name in texts} - writes
            covered = {name for _, names in LINES[command] for name in names}
            shared = {"labels", "classes"}  # read in one place for all commands
            assert wanted - covered <= (set() if command == "metrics" else shared), command
    saved = {name for name in SUFFIX if name != "-o"} | FOLDERS | {"watch --state"}
    assert written == saved


# commands that take several files, or a name of several: what stands before and behind these
SETS = {
    "metrics": ("parts", "", "--shards"),
    "merge": ("states", "", ""),
    "scale": ("parts", "", "--shards"),
    "apply": ("parts", "{calibrator}", "--shards --save {folder}/free.npz"),
    "check": ("parts", "", "--shards --max ece=0.2"),
    "compare": ("parts", "{validation}", ""),
    "report": ("", "", ""),
    "plan": ("parts", "--max ece=0.02 --from", ""),
    "watch": ("parts", "{folder}/watched.json", "--max ece=0.2 --night 2026-03-01"),
    "slices": ("parts", "", "--by ink --shards"),
    "threshold": ("parts", "", "--max-risk 0.1 --shards"),
    "ood": ("parts", "{validation}", "--shards"),
    "inspect": ("parts", "", ""),
    "init": ("", "", ""),
}
ALONE = {"plan", "ood", "inspect", "compare"}
"""Commands that take one file, or one name of several, where the set stands."""
NETWORKS = {"logits", "curvature", "export", "verify", "study", "fit"}
"""Commands whose inputs are models and data sets: a folder, or its files."""


@pytest.fixture(scope="module")
def sets(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two halves of the rows, and with the state of each."""
    folder = tmp_path_factory.mktemp("sets")
    arrays = dict(np.load(made["test"]))
    n = len(arrays["labels"])
    for name in ("parts", "states"):
        (folder / name).mkdir()
    for i, half in enumerate(("a.npz", "b.npz")):
        np.savez(folder / "parts" / half, **{k: v[i::2] if len(v) == n else v for k, v in arrays.items()})
        argv = ["metrics", str(folder / "parts" / half), "--partial", str(folder / "states" / half), "-q"]
        assert main(argv) == 0
    return folder


def test_every_command_takes_sets_of_files_or_networks() -> None:
    assert set(SETS) | NETWORKS == set(LINES)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (command, option)
        for command, (of, *_) in SETS.items()
        for option in ("-o", *(name.split()[1] for name in SUFFIX if name.startswith(f"{command} ")))
        if of
    ],
)
def test_no_output_replaces_a_file_that_a_pattern_folder_list_or_address_stands_for(
    command: str, option: str, made: dict[str, Path], sets: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(sets)
    of, before, behind = SETS[command]
    source = sets / of / "b.npz"
    target = tmp_path / f"other{SUFFIX.get(f'{command} {option}', '.json')}"
    target.hardlink_to(source)
    (tmp_path / "link").symlink_to(sets / of)
    ways = {
        "pattern": [f"{of}/*.npz"],
        "list": [f"{of}/a.npz", f"{of}/b.npz"],
        "folder": [of],
        "linked folder": [str(tmp_path / "link")],
        "address": [f"file://{source}"],
        "address of a folder": [f"file://{sets / of}"],
        "address of a pattern": [f"file://{sets / of}/*.npz"],
    }
    kept = content(sets)
    for way, inputs in ways.items():
        if (way == "list" and command in ALONE) or (way.endswith("folder") and command == "inspect"):
            continue
        line = f"{before} {' '.join(inputs)} {behind}".format(**{**made, "folder": tmp_path}).split()
        for path in {target, source} if source.suffix == target.suffix else {target}:
            argv = [part for part in line if option != "--save" or part not in ("--save", f"{tmp_path}/free.npz")]
            assert main([command, *argv, option, str(path), "-q"]) == Exit.USAGE, way
            said = capsys.readouterr().err
            assert "would replace the input" in said or "lies in the input folder" in said, way
            assert content(sets) == kept, way
    assert not (tmp_path / "watched.json").exists()


def test_nothing_new_is_written_into_a_folder_of_parts(sets: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(sets)
    kept = content(sets)
    for name in ("parts", f"file://{sets}/parts"):
        assert main(["metrics", name, "--partial", "parts/c.npz", "-q"]) == Exit.USAGE
        assert "lies in the input folder" in capsys.readouterr().err
    assert content(sets) == kept


def test_shards_and_descriptions_of_a_model_are_its_inputs(made: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    """Of an index, and of a folder, every file that it consists of."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(made["model"])
    shards = {}
    for i, name in enumerate(sorted(tensors)):
        shards[name] = f"part-{i % 2}.safetensors"
    for file in set(shards.values()):
        save_file({k: v for k, v in tensors.items() if shards[k] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    kept = content(tmp_path)
    arch = ["--arch", "mlp:hidden=64/32"]
    for model in (index, tmp_path):
        for target in (tmp_path / "part-1.safetensors", index):
            argv = ["logits", str(model), *arch, "--data", f"{made['digits']}#test"]
            free = [str(tmp_path.parent / "x.npz"), "-o"] if target == index else []
            more = ["--save", *free, str(target)]
            assert main([*argv, *more, "-q"]) == Exit.USAGE
            said = capsys.readouterr().err
            assert "would replace the input" in said or "lies in the input folder" in said
            assert content(tmp_path) == kept


@pytest.mark.extra
def test_weights_beside_an_onnx_graph_are_its_inputs(made: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    w = numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["logits"])
    x, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 64), ("logits", 10)))
    graph = helper.make_graph([node], "g", [x], [z], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    external = {"save_as_external_data": True, "location": "weights.onnx", "size_threshold": 0}
    onnx.save(model, str(tmp_path / "net.onnx"), **external)
    (tmp_path / "weights.npz").hardlink_to(tmp_path / "weights.onnx")
    (tmp_path / "out").mkdir()
    data = tmp_path / "flat.npz"
    np.savez(data, inputs=np.zeros((20, 64), np.float32), labels=np.arange(20) % 10)
    kept = content(tmp_path)
    network = str(tmp_path / "net.onnx")
    into = ["export", str(made["calibrator"]), "--to", "onnx", "--model", network, "--data", str(data)]
    for argv in (
        [*into, "-o", str(tmp_path / "weights.onnx")],
        [*into, "-o", str(tmp_path / "out" / "weights.onnx")],
        ["logits", str(tmp_path / "net.onnx"), "--data", str(data), "--save", str(tmp_path / "weights.npz")],
    ):
        assert main([*argv, "-q"]) == Exit.USAGE
        said = capsys.readouterr().err
        assert "would replace the input" in said or "written twice" in said
        assert content(tmp_path) == kept


@pytest.mark.slow
def test_programs_beside_a_calibrator_replace_nothing_of_somebody_else(
    made: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    argv = ["export", str(made["calibrator"]), "--to", "json", "--data", str(made["test"])]
    (tmp_path / "model.py").write_text("mine = 1\n")
    assert main([*argv, "-o", str(tmp_path / "model.json"), "-q"]) == Exit.USAGE
    assert "calib did not write it" in capsys.readouterr().err
    assert content(tmp_path) == {"model.py": b"mine = 1\n"}
    (tmp_path / "model.py").write_text("# temperature by calibcli 0.1: logits (10) to probabilities (10)\n")
    code = Path(shutil.copy(made["test"], tmp_path / "rows.py"))
    kept = code.read_bytes()
    assert main([*argv[:-1], str(code), "-o", str(tmp_path / "rows.json"), "-q"]) == Exit.USAGE
    assert code.read_bytes() == kept
    assert main([*argv, "-o", str(tmp_path / "model.json"), "-q"]) == 0  # what calib wrote it writes again
    assert "def " in (tmp_path / "model.py").read_text()


def test_an_input_that_python_holds_is_not_replaced(made: dict[str, Path], tmp_path: Path) -> None:
    import calibcli

    source = Path(shutil.copy(made["test"], tmp_path / "rows.npz"))
    rows, fit = calibcli.read(source), calibcli.fit_scaler(made["validation"])
    kept = source.read_bytes()
    for write in (
        lambda: calibcli.apply(fit, rows, save=source),
        lambda: calibcli.Accumulator().update(str(source)).save(source),
        lambda: calibcli.apply(fit, f"{tmp_path}/*.npz", save=source),
    ):
        with pytest.raises(UsageError, match="would replace the input"):
            write()
    assert source.read_bytes() == kept


@pytest.mark.regression("3.2")
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


@pytest.mark.regression("3.2")
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


@pytest.mark.regression("3.2")
@pytest.mark.parametrize("name", ["validation.npz", "test.npz", "model.safetensors", "model.pt"])
@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume"]])
def test_fit_replaces_no_file_of_somebody_else(
    name: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"mine")
    argv = ["fit", "mlp:hidden=4", "--data", str(SAMPLES / "digits.npz"), "--epochs", "1", "--save", str(tmp_path)]
    assert main([*argv, *more, "-q"]) == Exit.USAGE
    assert f"holds a {name} that belongs to no run" in capsys.readouterr().err
    assert content(tmp_path) == {name: b"mine"}


@pytest.mark.regression("3.2")
def test_fit_does_not_write_over_what_it_starts_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    argv = ["--data", str(SAMPLES / "digits.npz"), "--epochs", "1", "--save", str(folder), "-q"]
    assert main(["fit", "mlp:hidden=4", *argv]) == 0
    before = content(tmp_path)
    assert main(["fit", str(folder / "model.safetensors"), *argv, "--overwrite"]) == Exit.USAGE
    assert main(["fit", "mlp:hidden=4", *argv, "--overwrite", "--test", str(folder / "test.npz")]) == Exit.USAGE
    assert "would replace the input" in capsys.readouterr().err
    assert content(tmp_path) == before


@pytest.mark.regression("3.2")
def test_nothing_is_written_into_an_input_folder(tmp_path: Path, made: dict[str, Path]) -> None:
    inside = tmp_path / "images" / "cats"
    inside.mkdir(parents=True)
    outside = tmp_path / "link"
    outside.symlink_to(inside)

    def written(path: Path) -> None:
        with atomic(path) as temporary:  # it is opened while something is written
            temporary.write_bytes(b"new")
            reading(tmp_path / "images")

    def read(path: Path) -> None:
        reading(tmp_path / "images")

    for path in (inside / "logits.npz", outside / "logits.npz"):
        for first, then in ((read, claim), (claim, read), (read, written), (lambda path: None, written)):
            with guarding():
                first(path)
                with pytest.raises(UsageError, match="lies in the input folder"):
                    then(path)
        assert not any(inside.iterdir())
    with guarding():
        reading(inside, "-", "mlp:hidden=3/4", "x" * 5000, "a\0b")
        claim(tmp_path / "logits.npz")


@pytest.mark.regression("4 save-onto-a-folder")
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
