"""`calib metrics`: what it says, what it writes, honest odd inputs, and options that each have an effect."""

from __future__ import annotations

import csv
import dataclasses
import gc
import json
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli import metrics
from calibcli.cli.app import main
from calibcli.core.errors import UsageError
from calibcli.core.result import SCHEMA, Result
from calibcli.metrics.diagrams import smooth_curve
from calibcli.metrics.means import murphy
from calibcli.metrics.registry import Sample
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.report import ReportOptions, report, report_multilabel
from calibcli.scores.columns import Columns, bin_index
from calibcli.scores.predictions import Predictions

SAMPLE = str(Path(__file__).parent.parent / "sample_data" / "test.npz")


def logits(n: int, k: int, seed: int = 0, scale: float = 2.0, sharpen: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * scale
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return z * sharpen, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["metrics", *args])
    out = capsys.readouterr()
    return code, out.out, out.err


def json_of(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *args, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_json_is_a_result_and_repeats_to_the_byte(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (run(capsys, SAMPLE, "--json", "-m", "all", "--per-class", "--top-k", "3")[1] for _ in range(2))
    keep = [line for line in first.splitlines() if '"started"' not in line and '"seconds"' not in line]
    assert keep == [line for line in second.splitlines() if '"started"' not in line and '"seconds"' not in line]
    result = Result.from_json(first)
    assert result.to_json() == first
    assert json.loads(first)["schema"] == SCHEMA
    names = [e.name for e in result.estimates]
    assert names == metrics.known(metrics.METRICS.entries, False, 10)
    for e in result.estimates:
        assert e.value is not None or e.reason, e.name
        assert (e.low is not None and e.high is not None) or e.reason, f"{e.name}: an interval, or why there is none"
        assert e.how or e.reason, e.name
        if e.low is not None and e.high is not None:
            assert e.low <= e.value <= e.high, e.name  # type: ignore[operator]


def test_default_set(capsys: pytest.CaptureFixture[str]) -> None:
    data = json_of(capsys, SAMPLE)
    assert [e["name"] for e in data["estimates"]] == list(metrics.DEFAULT)
    ece = next(e for e in data["estimates"] if e["name"] == "ece")
    assert (ece["sided"], ece["level"]) == ("each", pytest.approx(0.9))
    assert 0 < ece["low"] < ece["value"] < ece["high"]
    assert 0 < ece["null"] < ece["null_high"]
    assert [p["name"] for p in data["plots"]] == ["reliability", "reliability_rows"]


@pytest.mark.slow
def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("a.png", "b.svg", "c.pdf", "d.csv", "e.md", "f.json")
    args = [part for name in names for part in ("-o", str(tmp_path / name))]
    code, out, _ = run(capsys, SAMPLE, *args)
    assert code == 0
    assert "Reliability of the top label, n = 997" in out
    heads = {"a.png": b"\x89PNG", "b.svg": b"<?xml", "c.pdf": b"%PDF"}
    for name in names:
        content = (tmp_path / name).read_bytes()
        assert content.startswith(heads.get(name, b"")), name
        assert len(content) > 500
    rows = list(csv.DictReader((tmp_path / "d.csv").open()))
    assert [r["name"] for r in rows] == list(metrics.DEFAULT)
    assert "| `ece` |" in (tmp_path / "e.md").read_text()


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from calibcli.cli.app import main; "
        f"main(['metrics', {SAMPLE!r}, '-q']); "
        "heavy = ('torch', 'scipy.stats', 'scipy.optimize', 'matplotlib', 'rich.console'); "
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("args", "differs"),
    [
        (["-m", "ece"], lambda d: [e["name"] for e in d["estimates"]]),
        (["--bins", "5"], lambda d: d["estimates"]),
        (["--edges", "left", "--bins", "4"], lambda d: d["plots"]),
        (["--level", "0.8"], lambda d: d["estimates"][0]["low"]),
        (["--per-class"], lambda d: (len(d["tables"]), len(d["plots"]))),
        (["--top-k", "3"], lambda d: len(d["tables"])),
        (["--by", "ink"], lambda d: (len(d["tables"]), len(d["estimates"]))),
        (["--seed", "7"], lambda d: [e["null_high"] for e in d["estimates"]]),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)
@pytest.mark.one_in(5)
def test_each_option_has_an_effect(args: list[str], differs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert differs(json_of(capsys, SAMPLE)) != differs(json_of(capsys, SAMPLE, *args))


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["-m", "eec"], "unknown metric 'eec'"),
        (["-m", "ece:bin=3"], "metric 'ece' has no option 'bin'"),
        (["-m", "ece:bins=0"], "ece:bins=0 is out of range"),
        (["-m", "ece:of=positive"], "ece:of=positive is for two classes, these are 10"),
        (["--edges", "top"], "--edges top is not a choice"),
        (["--level", "1.5"], "--level 1.5 is out of range"),
        (["--top-k", "11"], "--top-k 11 of 10 classes"),
        (["-m", "mmce:width=0"], "mmce:width=0 is out of range"),
    ],
)
def test_wrong_requests(args: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, SAMPLE, *args)
    assert (code, out) == (2, "")
    assert problem in err


def test_own_options_of_a_spec_win_over_the_command_line() -> None:
    z, y = logits(300, 3)
    result = report(Predictions.of(z, y), ReportOptions(specs=["ece", "ece:bins=7", "adaece:bins=15"], bins=30))
    assert [e.name for e in result.estimates] == ["ece:bins=30", "ece:bins=7", "adaece:bins=30"]


def odd_inputs() -> dict[str, Predictions]:
    rng = np.random.default_rng(5)
    weak = rng.uniform(0.3, 0.7, 400)
    z20, y20 = logits(400, 20, 1)
    y20[y20 == 7] = 3
    tied = np.zeros((60, 3))
    perfect = np.eye(4)[rng.integers(0, 4, 80)] * 50
    z, y = logits(200, 3, 2)
    return {
        "weak binary": Predictions.of(
            np.log(np.stack([1 - weak, weak], axis=1)), (rng.random(400) < weak).astype(int), kind="probabilities"
        ),
        "a class is absent": Predictions.of(z20, y20),
        "all tied": Predictions.of(tied, rng.integers(0, 3, 60)),
        "n = 1, right": Predictions.of([[2.0, 0.0]], [0]),
        "n = 1, wrong": Predictions.of([[2.0, 0.0, 1.0]], [1]),
        "n = 2": Predictions.of([[2.0, 0.0], [0.0, 1.0]], [0, 0]),
        "every row right": Predictions.of(perfect, perfect.argmax(axis=1)),
        "every row wrong": Predictions.of(perfect, (perfect.argmax(axis=1) + 1) % 4),
        "p = 0 of the label": Predictions.of(np.array([[0.0, -np.inf], [0.0, -1.0], [0.0, -2.0]]), [1, 0, 1]),
        "p in {0, 1}": Predictions.of(np.array([[0.0, -np.inf]] * 40), np.arange(40) % 2),
        "float16 range": Predictions.of(np.where(rng.random((50, 3)) < 0.5, 6e4, -6e4), rng.integers(0, 3, 50)),
        "weights of 0": Predictions.of(z, y, weights=(np.arange(200) % 2).astype(float)),
        "one weight": Predictions.of(z, y, weights=(np.arange(200) == 3).astype(float)),
        "counts": Predictions.of(z, y, weights=np.full(200, 3.0), weight_kind="count"),
        "groups": Predictions.of(z, y, groups=np.arange(200) // 5),
        "one group": Predictions.of(z, y, groups=np.zeros(200, dtype=np.int64)),
        "a group each": Predictions.of(z, y, groups=np.arange(200)),
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(odd_inputs()))
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_honest_odd_inputs(name: str) -> None:
    predictions = odd_inputs()[name]
    specs = metrics.known(metrics.METRICS.entries, False, predictions.k)
    if predictions.k == 2:
        specs += [f"{e.name}:of=top" for e in metrics.METRICS if "of" in e.options]
    result = report(predictions, ReportOptions(specs=specs, per_class=True, top_k=2))
    again = Result.from_json(result.to_json())
    assert again == result
    for e in result.estimates:
        assert e.value is not None or e.reason, e.name
        if e.value is not None and e.low is not None:
            assert e.low <= e.value + 1e-12, e.name
        if e.value is not None and e.high is not None:
            assert e.value <= e.high + 1e-12, e.name


@pytest.mark.regression("1.4")
def test_two_classes_are_measured_for_their_event() -> None:
    predictions = odd_inputs()["weak binary"]
    result = report(predictions)
    assert [e.name for e in result.estimates] == [*metrics.DEFAULT, *metrics.registry.OF_EVENT, "confidence_gap:of=top"]
    assert result.facts["event"] == "y = 1"
    assert result.plots[0].xlabel == "P(y = 1)"
    named = report(dataclasses.replace(predictions, classes=["benign", "malignant"]))
    assert named.facts["event"] == "malignant"
    assert (named.plots[0].xlabel, named.plots[0].ylabel) == ("P(malignant)", "share of malignant")
    assert "event" not in report(odd_inputs()["groups"]).facts


def test_murphy_adds_up() -> None:
    for k in (2, 5):
        z, y = logits(500, k)
        w = np.random.default_rng(1).random(500)
        for weights in (None, w):
            sample = Sample.of(metrics.columns_of(Predictions.of(z, y, weights=weights), []))
            for view in (sample.top, *((sample.positive,) if k == 2 else ())):
                m = murphy(view, view.width_bins(10, "right"))
                parts = m["reliability"] - m["resolution"] + m["uncertainty"] + m["variance"] - m["covariance"]
                assert parts == pytest.approx(m["brier"], rel=1e-12)
                share = np.full(500, 1 / 500) if weights is None else weights / weights.sum()
                assert m["brier"] == pytest.approx(float(share @ (view.p - view.hit) ** 2), rel=1e-9)


def test_slices_are_measured_on_their_rows() -> None:
    z, y = logits(300, 3)
    site = np.array(["A", "B", "B"] * 100)
    result = report(Predictions.of(z, y, slices={"site": site}), ReportOptions(specs=["nll", "classwise_ece"]))
    for name in ("A", "B"):
        alone = metrics.measure(Predictions.of(z[site == name], y[site == name]), ["nll", "classwise_ece"])
        for e in alone:
            assert result[e.name, f"site={name}"].value == pytest.approx(e.value, rel=1e-12)
    assert [row[:2] for row in result.tables[-1].rows] == [["A", 100], ["B", 200]]


def test_per_class_table() -> None:
    z, y = logits(400, 3)
    (table,) = (t for t in report(Predictions.of(z, y), ReportOptions(per_class=True)).tables if t.name == "per_class")
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    for k, row in enumerate(table.rows):
        cells = dict(zip(table.columns, row))
        index = bin_index(p[:, k], 15)
        gap = np.bincount(index, p[:, k] - (y == k), 15)
        said = p.argmax(axis=1) == k
        assert cells["rows"] == (y == k).sum()
        assert cells["mean p"] == pytest.approx(p[:, k].mean())
        assert cells["ece"] == pytest.approx(np.abs(gap).sum() / 400)
        assert cells["precision"] == pytest.approx((y[said] == k).mean())
        assert cells["recall"] == pytest.approx(said[y == k].mean())


def test_top_k_table() -> None:
    z, y = logits(400, 6)
    (table,) = (t for t in report(Predictions.of(z, y), ReportOptions(top_k=6)).tables if t.name == "top_k")
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    order = np.argsort(-p, axis=1)
    for row in table.rows:
        cells = dict(zip(table.columns, row))
        k = cells["k"]
        hit = (order[:, :k] == y[:, None]).any(axis=1)
        assert cells["accuracy"] == pytest.approx(hit.mean())
        assert cells["confidence"] == pytest.approx(np.sort(p, axis=1)[:, -k:].sum(axis=1).mean())


def test_multilabel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(3)
    p = rng.random((200, 3))
    np.savez(tmp_path / "m.npz", probs=p, labels=(rng.random((200, 3)) < p).astype(int))
    data = json_of(capsys, str(tmp_path / "m.npz"), "--multilabel")
    assert {e["scope"] for e in data["estimates"]} == {"label=0", "label=1", "label=2"}
    assert [row[0] for row in data["tables"][0]["rows"]] == ["0", "1", "2", "mean"]
    assert sum(1 for plot in data["plots"] if plot["group"]) == 3
    mean = np.mean([e["value"] for e in data["estimates"] if e["name"] == "nll"])
    heads = data["tables"][0]["columns"]
    assert data["tables"][0]["rows"][-1][heads.index("nll")] == pytest.approx(mean)


def test_warnings() -> None:
    z, y = logits(100, 3, sharpen=1.0)
    notes = " ".join(report(Predictions.of(z, y)).notes)
    assert "fewer than 50 per bin" in notes
    assert "mce: " in notes
    same = " ".join(report(Predictions.of(np.tile([1.0, 0.0], (300, 1)), np.arange(300) % 2)).notes)
    assert "every confidence is the same" in same
    calibrated = " ".join(report(Predictions.of(*logits(3000, 3, sharpen=1.0))).notes)
    assert "is within what a perfectly calibrated model shows by chance" in calibrated


def test_too_many_slices() -> None:
    z, y = logits(300, 3)
    with pytest.raises(UsageError, match="'id' has 300 values"):
        report(Predictions.of(z, y, slices={"id": np.arange(300).astype(str)}))


def test_multilabel_report_needs_no_file() -> None:
    z, y = logits(100, 2)
    result = report_multilabel({"a": Predictions.of(z, y)}, ReportOptions(specs=["ece:of=positive"]))
    assert [e.scope for e in result.estimates] == ["label=a"]


def test_the_smooth_curve_of_a_calibrated_model_is_the_diagonal() -> None:
    """Also for sparse confidences beside crowded ones, which a regression of the hits would drag along."""
    p = np.repeat([0.80, 0.99], [200, 20_000])
    hit = np.concatenate([np.arange(200) < 160, np.arange(20_000) < 19_800])
    view = BinaryOutcomes(p, 1 - p, hit, None, False, None)
    curve = smooth_curve(view, 0.05)
    drawn = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    assert len(drawn) > 10
    assert drawn[0][0] >= 0.79
    assert max(abs(y - x) for x, y in drawn) < 1e-9
    wrong = smooth_curve(
        BinaryOutcomes(p, 1 - p, np.concatenate([hit[:200], np.arange(20_000) < 19_000]), None, False, None), 0.05
    )
    assert wrong.y[99] == pytest.approx(0.99 - 0.04, abs=0.002)


@pytest.mark.parametrize("grouped", [False, True])
def test_rows_are_binned_once_per_binning(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, bounds, null levels, tables and diagrams take one table; so do the claims of a gate."""
    from calibcli.gate import check
    from calibcli.gate.config import Config, Gate
    from calibcli.gate.sources import RecordedOutputs
    from calibcli.metrics import reliability

    binned: Counter[tuple[int, str]] = Counter()
    tables: Counter[tuple[str, int]] = Counter()

    def counted_index(values: Any, bins: int, edges: Any = "right", precision: float = 1e-12) -> Any:
        binned[bins, edges] += len(values)
        return bin_index(values, bins, edges, precision)

    def counted(name: str) -> Any:
        made = getattr(reliability, name)

        def table(view: Any, bins: int, *more: Any) -> Any:
            tables[name, bins] += 1
            return made(view, bins, *more)

        return table

    monkeypatch.setattr(reliability, "bin_index", counted_index)
    for name in ("width_table", "_merged", "_divided", "_whole", "_mukhoti"):
        monkeypatch.setattr(reliability, name, counted(name))
    names = {n for n, m in sys.modules.items() if n.startswith("calibcli.metrics.") and "bin_index" in vars(m)}
    assert names == {"calibcli.metrics.reliability"}
    rng = np.random.default_rng(0)
    z = rng.standard_normal((3000, 4)) * 2
    p = Predictions.of(z, z.argmax(1), groups=np.arange(3000) // 10 if grouped else None)
    report(p, ReportOptions(specs=["default", "oce", "ece_l2", "ece:bins=30", "calibration_p:bins=30"], per_class=True))
    assert binned == {(15, "right"): 3000, (30, "right"): 3000}
    assert tables == {("width_table", 15): 1, ("width_table", 30): 1, ("_merged", 15): 1, ("_whole", 15): 1}
    binned.clear()
    config = Config(gates=(Gate(metric="ece", max=0.9), Gate(metric="ece", max=0.2), Gate(metric="mce", max=0.5)))
    check.check(RecordedOutputs(p, config), config)
    assert binned == {(15, "right"): 3000}


def test_nothing_of_a_measurement_waits_for_the_garbage_collector() -> None:
    """Columns that refer to themselves would pile up, call by call, until it runs."""
    z, y = logits(400, 3)
    calls: list[Callable[[], object]] = [
        lambda: calibcli.measure(z[:, :2], y % 2, "all", diagram=True),
        lambda: calibcli.measure(z, y, "brier", "classwise_ece", weights=y + 1.0, by={"site": y}, per_class=True),
        lambda: calibcli.check(z, y, max={"ece": 0.5, "nll": 9}),
    ]
    for call in calls:
        call()
        gc.collect()
        gc.disable()
        try:
            call()
            left = [one for one in gc.get_objects() if isinstance(one, Columns | Sample | BinaryOutcomes)]
        finally:
            gc.enable()
        assert not left


def test_memory_of_a_report_by_row() -> None:
    """Five million rows, the most that are kept, stay below 1 GB."""
    peaks, sizes = [], (40_000, 120_000)
    for n in sizes:
        z, y = logits(n, 3)
        tracemalloc.start()
        try:
            calibcli.measure(z, y, "nll", "ece", "adaece", "ece2_debiased", "smece", "classwise_ece", diagram=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] - peaks[0] < 170 * (sizes[1] - sizes[0])


def test_the_panel_of_a_class_has_its_ece() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 4)) * 3
    found = calibcli.measure(z, (z + rng.gumbel(size=z.shape) * 2).argmax(1), per_class=True, diagram=True)
    [table] = [t for t in found.tables if t.name == "per_class"]
    at = list(table.columns).index("ece")
    titles = [p.title for p in found.plots if p.name.startswith("class_") and not p.under]
    assert len(titles) == 4
    for title, row in zip(titles, table.rows, strict=True):
        assert float(title.rpartition("ECE ")[2]) == pytest.approx(row[at], rel=5e-3)


def test_equal_confidences_are_noted_wherever_a_calibration_error_is_shown() -> None:
    z, y = np.tile([[2.0, 1.0, -1.0]], (60, 1)), np.arange(60) % 3
    words = "every confidence is the same"
    for options in ({"diagram": True}, {"top_k": 2}, {"per_class": True}):
        assert any(note.startswith(words) for note in calibcli.measure(z, y, "accuracy", **options).notes), options


@pytest.mark.regression
def test_notes_are_of_the_bins_that_a_metric_has() -> None:
    z, y = logits(900, 2, sharpen=1.0)

    def sizes(*specs: str, **options: Any) -> list[str]:
        notes = calibcli.measure(z, y, *specs, **options).notes
        return [note.partition(" are fewer")[0] for note in notes if "are fewer than 50 per bin" in note]

    assert sizes("ece:bins=2") == []
    assert sizes("ece") == []
    assert sizes("ece:bins=200") == ["900 rows over 200 bins"]
    assert sizes("ece:bins=200", "adaece:bins=40", "oce:bins=40", "ece") == [
        "900 rows over 200 bins",
        "900 rows over 40 bins",
    ]
    assert sizes("ece", bins=30) == ["900 rows over 30 bins"]
    largest = [n for n in calibcli.measure(z, y, "mce:bins=100", "mce:bins=2").notes if n.startswith("mce")]
    assert len(largest) == 1
    assert re.fullmatch(r"mce:bins=100: \d+ of (9\d|100) filled bins have fewer than 30 rows", largest[0])


@pytest.mark.regression
def test_two_probabilities_of_the_event_are_not_one_confidence() -> None:
    words = "every confidence is the same"
    p, y = np.tile([0.1, 0.9], 100), np.tile([0, 1], 100)
    y[:20] = 1 - y[:20]
    assert not any(note.startswith(words) for note in calibcli.measure(p, y, "ece").notes)
    assert any(note.startswith(words) for note in calibcli.measure(np.full(200, 0.1), y, "ece").notes)


@pytest.mark.regression
def test_the_number_of_bins_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.metrics.report.BINS", 20)
    found = report(Predictions.of(*logits(900, 2)), ReportOptions(specs=["accuracy"]))
    assert len(next(p for p in found.plots if p.name == "reliability").curves[0].x) == 20
    package = Path(calibcli.__file__).parent
    own = [path for path in package.rglob("*.py") if re.search(r"(Count = |bins or )15\b", path.read_text())]
    assert own == []
