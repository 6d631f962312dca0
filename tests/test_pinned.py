"""What was read is recorded and printed, pinned by `calib init`, and held to by every gate."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, UsageError
from calibcli.gate import pins, proposal
from calibcli.gate.config import load
from calibcli.scores import reading_record

ROOT = Path(__file__).parent.parent
N = 600
RNG = np.random.default_rng(11)
P = np.round(1 / (1 + np.exp(-1.5 * RNG.normal(0, 1.5, N))), 6)
Y = (RNG.random(N) < P).astype(int)
IDS = np.arange(N)
Rows = Iterable[Sequence[Any]]


def table(path: Path, head: Sequence[str], rows: Rows, delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(head)
        writer.writerows(rows)
    return path


def export(path: Path) -> Path:
    return table(path, ["id", "p0", "p1", "label"], zip(IDS, 1 - P, P, Y))


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", str(export(tmp_path / "first.csv").name), "-q"]) == Exit.OK
    capsys.readouterr()
    return tmp_path


def judged(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str]]:
    code = main(["check", *argv, "--json", "-q"])
    return code, [check["message"] for check in json.loads(capsys.readouterr().out)["checks"]]


class TestRecord:
    def test_lines_say_scores_classes_event_truth_and_unit(self, tmp_path: Path) -> None:
        rows = calibcli.read(export(tmp_path / "a.csv"))
        first, *others = reading_record.lines(rows.described)
        assert first == "read: p0, p1 as probabilities of 0, 1 (event: 1); truth: label; 600 rows, each its own unit"
        assert not others

    def test_second_line_has_what_was_not_used_left_out_and_stated(self, tmp_path: Path) -> None:
        path = table(tmp_path / "a.csv", ["p0", "p1", "q0", "q1", "y"], zip(1 - P, P, P, 1 - P, np.where(IDS, Y, -1)))
        rows = calibcli.read(path, scores="p0,p1", ignore_label=-1)
        _, second = reading_record.lines(rows.described)
        assert second.strip().startswith("not used: q0 (could be scores too), q1 (could be scores too). left out: 1")
        assert "stated: --scores p0,p1 --ignore-label -1" in second

    def test_a_group_is_the_unit(self, tmp_path: Path) -> None:
        path = table(tmp_path / "a.csv", ["patient", "prob", "label"], zip(IDS // 3, P, Y))
        line = reading_record.lines(calibcli.read(path, group="patient").described)[0]
        assert line.endswith("600 rows, in 200 groups by patient")

    def test_repeated_samples_are_said(self, tmp_path: Path) -> None:
        path = table(tmp_path / "a.csv", ["id", "prob", "label"], [*zip(IDS, P, Y)] * 2)
        assert "samples repeated by id" in reading_record.lines(calibcli.read(path).described)[0]

    def test_many_classes_are_a_number_and_a_digest(self) -> None:
        names = [str(i) for i in range(1000)]
        (text,) = reading_record.class_list(names)
        assert text.startswith("1000, sha256:")
        assert reading_record.class_list(names[::-1]) != [text]

    @pytest.mark.parametrize(
        "argv",
        [
            ["metrics", "a.csv"],
            ["check", "a.csv", "--max", "ece=0.9"],
            ["slices", "a.csv", "--by", "id"],
            ["compare", "a.csv", "b.csv"],
            ["scale", "a.csv", "--method", "platt"],
            ["inspect", "a.csv"],
            ["plan", "--max", "ece=0.5", "--truth", "0", "--from", "a.csv"],
            ["watch", "state.json", "a.csv", "--min", "accuracy=0.5"],
            ["ood", "a.csv", "a.csv"],
            ["threshold", "a.csv", "--max-risk", "0.5"],
            ["init", "a.csv"],
        ],
        ids=lambda argv: argv[0],
    )
    def test_every_command_that_reads_keeps_and_prints_it(
        self, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        export(Path("a.csv"))
        export(Path("b.csv"))
        assert main([*argv, "-q"]) in (0, 1, 3), capsys.readouterr().err
        assert "read: p0, p1 as probabilities of 0, 1" in capsys.readouterr().out
        main([*argv, "-q", "--json", *(["--update"] if argv[0] == "init" else [])])
        inputs = json.loads(capsys.readouterr().out)["provenance"]["inputs"]
        assert any(entry.get("read", {}).get("scores") == "p0,p1" for entry in inputs)


Change = Callable[[Path], Path]
SAME: dict[str, Change] = {
    "order of columns": lambda p: table(p, ["label", "p1", "id", "p0"], zip(Y, P, IDS, 1 - P)),
    "another delimiter": lambda p: table(p, ["id", "p0", "p1", "label"], zip(IDS, 1 - P, P, Y), ";"),
    "a further column": lambda p: table(p, ["id", "p0", "p1", "label", "age"], zip(IDS, 1 - P, P, Y, IDS % 90)),
    "a further family": lambda p: table(
        p, ["id", "p0", "p1", "cal_p0", "cal_p1", "label"], zip(IDS, 1 - P, P, 0.9 - 0.8 * P, 0.1 + 0.8 * P, Y)
    ),
    "a prediction": lambda p: table(p, ["id", "p0", "p1", "label", "pred"], zip(IDS, 1 - P, P, Y, (P > 0.5) * 1)),
    "other rows": lambda p: table(p, ["id", "p0", "p1", "label"], zip(IDS, 1 - P[::-1], P[::-1], Y[::-1])),
}
OTHER: dict[str, tuple[Change, str]] = {
    "columns renamed": (
        lambda p: table(p, ["id", "prob_no", "prob_yes", "label"], zip(IDS, 1 - P, P, Y)),
        "scores: p0, p1 are gone, prob_no, prob_yes are new",
    ),
    "one column": (lambda p: table(p, ["id", "prob", "label"], zip(IDS, P, Y)), "scores: p0, p1 are gone, prob is new"),
    "confidences": (
        lambda p: table(
            p, ["id", "predicted", "confidence", "label"], zip(IDS, (P > 0.5) * 1, np.maximum(P, 1 - P), Y)
        ),
        "kind: probabilities were pinned, confidences alone are read",
    ),
    "log-odds": (
        lambda p: table(p, ["id", "p0", "p1", "label"], zip(IDS, np.zeros(N), np.log(P / (1 - P)), Y)),
        "kind: probabilities were pinned, logits are read",
    ),
    "a third class": (
        lambda p: table(p, ["id", "p0", "p1", "p2", "label"], zip(IDS, 0.9 * (1 - P), 0.9 * P, np.full(N, 0.1), Y)),
        "classes: 2 is new",
    ),
    "ids gone": (lambda p: table(p, ["p0", "p1", "label"], zip(1 - P, P, Y)), "ids: id is gone"),
    "ids renamed": (
        lambda p: table(p, ["request_id", "p0", "p1", "label"], zip(IDS, 1 - P, P, Y)),
        "ids: id is gone, request_id is new",
    ),
    "labels renamed": (
        lambda p: table(p, ["id", "p0", "p1", "y_true"], zip(IDS, 1 - P, P, Y)),
        "labels: label is gone, y_true is new",
    ),
    "labels as names": (
        lambda p: table(p, ["id", "p0", "p1", "label"], zip(IDS, 1 - P, P, np.array(["no", "yes"])[Y])),
        "classes: 0, 1 are gone, no, yes are new",
    ),
}


class TestPins:
    def test_the_pinned_file_is_judged(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert judged(capsys)[0] == Exit.OK

    @pytest.mark.parametrize("name", SAME)
    def test_changes_that_are_none(self, name: str, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _ = judged(capsys, str(SAME[name](pinned / "next.csv")))
        assert code == Exit.OK

    @pytest.mark.parametrize("name", OTHER)
    def test_another_reading_is_not_judged(self, name: str, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        change, said = OTHER[name]
        code, reasons = judged(capsys, str(change(pinned / "next.csv")))
        assert code == Exit.NOT_RUN
        assert all(said in reason and "calib init" in reason for reason in reasons)
        assert len(reasons) == 2

    def test_a_sample_that_comes_three_times(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        table(pinned / "next.csv", ["id", "p0", "p1", "label"], [*zip(IDS, 1 - P, P, Y)] * 3)
        code, reasons = judged(capsys, "next.csv")
        assert code == Exit.NOT_RUN
        assert all("--group id" in reason for reason in reasons)

    def test_the_line_that_accepts_a_change_works(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        OTHER["columns renamed"][0](pinned / "next.csv")
        _, reasons = judged(capsys, "next.csv")
        line = reasons[0].rpartition("accept it: ")[2].split()
        assert main([*line[1:], "-q"]) == Exit.OK
        capsys.readouterr()
        assert judged(capsys, "next.csv")[0] == Exit.OK
        assert "prob_no,prob_yes" in Path("calib.toml").read_text()

    def test_a_result_is_held_to_the_pins(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        OTHER["one column"][0](pinned / "next.csv")
        assert main(["metrics", "next.csv", "-q", "-o", "next.json"]) == Exit.OK
        assert main(["metrics", "first.csv", "-q", "-o", "first.json"]) == Exit.OK
        capsys.readouterr()
        assert judged(capsys, "next.json")[0] == Exit.NOT_RUN
        assert judged(capsys, "first.json")[0] == Exit.OK

    def test_models_to_compare_are_held_to_the_pins(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        SAME["a further family"](pinned / "second.csv")
        assert main(["compare", "first.csv", "second.csv", "--config", "calib.toml", "-q"]) == Exit.OK
        OTHER["columns renamed"][0](pinned / "third.csv")
        assert main(["compare", "first.csv", "third.csv", "--config", "calib.toml", "-q"]) == Exit.REFUSED
        assert "prob_no, prob_yes are new" in capsys.readouterr().err

    def test_a_baseline_of_other_classes_is_not_compared_with(
        self, pinned: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        table(pinned / "yes.csv", ["id", "no", "yes", "label"], zip(IDS, 1 - P, P, np.array(["no", "yes"])[Y]))
        Path("none.toml").write_text("schema = 1\n")
        assert main(["check", "yes.csv", "--config", "none.toml", "--save-baseline", "b.json", "-q"]) == Exit.OK
        capsys.readouterr()
        code, reasons = judged(capsys, "--baseline", "b.json", "--margin", "brier=0.5")
        assert code == Exit.NOT_RUN
        assert "no, yes are gone, 0, 1 are new" in reasons[0]

    @pytest.mark.regression
    def test_classes_of_the_configuration_hold_for_its_other_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Scores of a baseline, and those that were fitted on, whose columns have numbers and whose labels names."""
        monkeypatch.chdir(tmp_path)
        random = np.random.default_rng(5)
        for name in ("new.csv", "old.csv", "fit.csv"):
            p = np.round(random.dirichlet([1, 1, 1], N), 6)
            labels = np.array(["cat", "dog", "fox"])[[random.choice(3, p=row / row.sum()) for row in p]]
            table(
                Path(name),
                ["id", "prob_0", "prob_1", "prob_2", "label"],
                zip(IDS + 900 * (name[0] == "f"), *p.T, labels),
            )
        Path("old.csv").write_text(Path("new.csv").read_text())
        data = '[data]\neval = "new.csv"\nfitted_on = "fit.csv"\nclasses = ["cat", "dog", "fox"]\n'
        gate = '[[gate]]\nmetric = "brier"\nbaseline = "old.csv"\nmargin = 0.5\n'
        Path("calib.toml").write_text(f"schema = 1\n{data}{gate}")
        assert judged(capsys)[0] == Exit.OK

    def test_a_watch_stops_on_the_night_of_the_change(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Thirty nights of an export whose columns change on the twelfth: the state keeps the eleven before."""
        random, exits = np.random.default_rng(1), []
        for night in range(30):
            p = np.round(random.random(N), 6)
            names = ["p0", "p1"] if night < 11 else ["prob_0", "prob_1"]
            rows = zip(IDS + N * night, 1 - p, p, (random.random(N) < p) * 1)
            table(pinned / "n.csv", ["id", *names, "label"], rows)
            exits.append(main(["watch", "s.json", "n.csv", "--night", f"2026-11-{night + 1:02}", "-q"]))
            assert ("p0, p1 are gone" in "".join(capsys.readouterr())) == (night >= 11)
        assert {*exits[:11]} <= {Exit.OK, Exit.FAIL, Exit.INCONCLUSIVE}
        assert {*exits[11:]} == {Exit.REFUSED}
        assert json.loads((pinned / "s.json").read_text())["nights"] == 11

    def test_more_rows_left_out_than_pinned(self, tmp_path: Path) -> None:
        read = {"scores": "p", "rows": 990, "left_out": {"labels": 10}}
        assert pins.of_reading(read)["left_out"] == {"labels": 0.01}
        assert not pins.differences({"left_out": {"labels": 0.01}}, {"rows": 980, "left_out": {"labels": 20}})
        (said,) = pins.differences({"left_out": {"labels": 0.01}}, {"rows": 970, "left_out": {"labels": 30}})
        assert said.startswith("left out: 30 of 1,000 rows (labels)")
        assert pins.differences({"left_out": {}}, {"rows": 999, "left_out": {"labels": 1}})

    def test_classes_and_kind_that_a_user_stated_are_options_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        table(Path("a.csv"), ["prob", "label"], zip(P, np.array(["ill", "well"])[Y]))
        assert main(["metrics", "a.csv", "-q"]) == Exit.REFUSED
        assert main(["init", "a.csv", "--event", "well", "-q"]) == Exit.OK
        capsys.readouterr()
        assert judged(capsys)[0] == Exit.OK
        assert main(["watch", "state.json", "a.csv", "-q"]) in (Exit.OK, Exit.INCONCLUSIVE)


class TestInit:
    def test_rules_are_at_bounds_that_pass_today(self, pinned: Path) -> None:
        rules = {gate.metric: gate for gate in load().gates}
        measured = calibcli.measure("first.csv", None, "ece", "accuracy")
        assert 0 <= rules["ece"].max - measured["ece"].high < 0.001 + 1e-9
        assert 0 <= measured["accuracy"].low - rules["accuracy"].min < 0.001 + 1e-9

    def test_columns_may_be_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        table(Path("a.csv"), ["stated", "came"], zip(P, Y))
        assert main(["init", "a.csv", "--scores", "stated", "--labels", "came", "-q"]) == Exit.OK
        assert load().pins["labels"] == "came"
        capsys.readouterr()
        assert judged(capsys)[0] == Exit.OK

    @pytest.mark.regression
    def test_a_model_that_is_miscalibrated_is_not_blessed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Its configuration says so; limits from the model in use let it fail, whatever file that is given by."""
        test, rules = str(ROOT / "sample_data" / "test.npz"), tmp_path / "calib.toml"
        assert main(["init", test, "--save", str(rules)]) == 0
        said = " ".join(rules.read_text().replace("# ", "").split())
        assert "this model is surely miscalibrated: ece 0.0646 [0.0459, 0.0801], where chance gives" in said
        assert "This model is surely miscalibrated" in " ".join(capsys.readouterr().out.split())
        better = str(tmp_path / "better.npz")
        fit = calibcli.fit_scaler(str(ROOT / "sample_data" / "validation.npz"))
        file = np.load(test)
        np.savez(better, probabilities=fit.predict_proba(file["logits"]), labels=file["labels"])
        assert main(["metrics", better, "-m", "ece", "-m", "accuracy", "--json"]) == 0
        (tmp_path / "better.json").write_text(capsys.readouterr().out)
        limits = []
        for i, baseline in enumerate((better, tmp_path / "better.json")):
            config = tmp_path / f"{i}.toml"
            assert main(["init", test, "--save", str(config), "--baseline", str(baseline)]) == 0
            assert "miscalibrated" not in config.read_text()
            assert "today 0.0646 [0.0459, 0.0801], baseline 0.0" in config.read_text()
            assert main(["check", "--config", str(config), "-q"]) == 1
            limits.append([gate.max or gate.min for gate in load(config).gates])
        assert limits[0] == limits[1]
        capsys.readouterr()
        assert main(["init", test, "--save", str(tmp_path / "c.toml"), "--baseline", str(tmp_path / "none.npz")]) == 4

    def test_a_configuration_that_is_there_stays(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = Path("calib.toml").read_text()
        assert main(["init", "first.csv", "-q"]) == Exit.USAGE
        assert "--update" in capsys.readouterr().err
        assert Path("calib.toml").read_text() == before

    def test_update_keeps_everything_else(self, pinned: Path) -> None:
        old = (
            "# ours\nschema = 1\n\n[data]  # input\neval = 'x.npz'\nfitted_on = 'f.npz'\nscores = 'z'\n\n"
            "[[gate]]\nmetric = 'ece'\nlimit = 0.5  # kept\n"
        )
        read = {"scores": "p0,p1", "kind": "probabilities", "rows": 9, "labels": "label"}
        text = proposal.updated(old, read, "first.csv", "calib.toml")
        assert text.startswith('# ours\nschema = 1\n\n[data]\neval = "first.csv"\nscores = "p0,p1"\n')
        assert text.endswith("fitted_on = 'f.npz'\n\n[[gate]]\nmetric = 'ece'\nlimit = 0.5  # kept\n")
        assert proposal.updated("", read, "a", "b").startswith("[data]\neval")
        with pytest.raises(UsageError, match="cannot be replaced"):
            proposal.updated("data = { eval = 'x' }\n", read, "a", "b")

    def test_paths_are_relative_to_the_configuration(self, pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        Path("ci").mkdir()
        assert main(["init", "first.csv", "--save", "ci/calib.toml", "-q"]) == Exit.OK
        assert 'eval = "../first.csv"' in Path("ci/calib.toml").read_text()
        assert main(["check", "--config", "ci/calib.toml", "-q"]) == Exit.OK

    def test_the_workflow_runs_the_gate(self, pinned: Path) -> None:
        calibcli.init("first.csv", save="other.toml", workflow="calib.yml")
        text = Path("calib.yml").read_text()
        assert "uses: " in text
        assert "first.csv" in text
        with pytest.raises(UsageError, match=r"calib.yml is there already"):
            calibcli.init("first.csv", save="third.toml", workflow="calib.yml")
        assert not Path("third.toml").exists()

    def test_inspect_writes_the_section(self, pinned: Path) -> None:
        assert main(["inspect", "first.csv", "-q", "-o", "data.toml"]) == Exit.OK
        assert load(Path("data.toml")).pins == load().pins
