"""Claims about two numbers along training, and the curvature that is logged for them."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats
from test_study_curves import refusal

from calibcli.lab.study import claims, experiment, parsing
from calibcli.lab.study import runs as work
from calibcli.lab.study.claims import MeasuredArm
from calibcli.lab.study.report import JudgedClaim, report

ROOT = Path(__file__).parent.parent
RECIPE = """
[study]
name = "along"
[data]
train = "digits#train"
validation = "digits#validation"
test = "digits#test"
[axes]
arch = ["mlp:hidden=8"]
seeds = 2
[train]
epochs = 8
batch_size = 50
[[arm]]
name = "CE"
loss = "ce"
[[arm]]
name = "CE permuted"
from = "CE"
change = "labels:permute"
[measure]
metrics = ["ece", "margin_tail"]
curvature = ["trace"]
log = ["ece", "trace", "margin_tail"]
moments = [25, 50, 75, 100]
[[claim]]
id = "tail"
text = "the trace rises and falls with the tail of the margins"
tracks = { metric = "trace", against = "margin_tail", a = "CE", first = 25, last = 100 }
[[claim]]
id = "permuted"
text = "permuted labels leave the trace as it is"
check = { metric = "trace of ce", a = "CE permuted", b = "CE" }
"""


def moments(values: np.ndarray) -> list[MeasuredArm]:
    """An arm at each moment, of values (S, M)."""
    return [MeasuredArm(one) for one in values.T]


def correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rank correlations (S, S) of the changes of each run's y with those of each run's x."""
    return np.array([[stats.spearmanr(np.diff(b), np.diff(a)).statistic for a in x] for b in y])


def test_the_number_of_a_run_is_the_rank_correlation_of_changes() -> None:
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((2, 6, 9)).cumsum(axis=2)
    x[:, 4] = x[:, 3]  # changes of which some are equal
    for y, word in ((x + 0.2 * noise, "holds"), (0.2 * noise - x, "reversed"), (noise, "undecided")):
        found, each = claims.tracks(moments(x), moments(y)), correlations(x, y).diagonal()
        test = stats.ttest_1samp(each, 0)
        assert (found.word, found.p) == (word, pytest.approx(test.pvalue))
        assert found.difference is not None
        assert found.difference.value == pytest.approx(each.mean())
    assert claims.tracks(moments(x[:, :3]), moments(x[:, :3])).word == "no verdict"
    x[2, 5] = np.nan
    assert claims.tracks(moments(x), moments(x)).why == "a run lacks one of these numbers"


def test_what_is_of_the_run_itself_is_told_from_what_all_runs_go_through() -> None:
    rng = np.random.default_rng(1)
    phase = 3 * np.sin(np.arange(12)) + rng.standard_normal((2, 6, 12)).cumsum(axis=2)
    x, own = phase[0], phase[1] + rng.standard_normal((6, 12)).cumsum(axis=1)
    alike = 0.5 * (x - x.mean(axis=0)) + own
    for y in (own, alike):
        assert claims.tracks(moments(x), moments(y)).word == "holds"  # which the phases alone make
        found, pairs = claims.tracks(moments(x), moments(y), own=True), correlations(x, y)
        sums = np.array([pairs[range(6), order].sum() for order in itertools.permutations(range(6))])
        off = np.abs(sums - sums.mean())
        assert found.p == pytest.approx((off >= off[0] - 1e-12).mean())
        assert found.difference is not None
        others = (pairs.sum() - pairs.trace()) / 30
        assert found.difference.value == pytest.approx(pairs.diagonal().mean() - others)
    assert claims.tracks(moments(x), moments(own), own=True).word == "undecided"
    assert claims.tracks(moments(x), moments(x + 0.1 * own), own=True).word == "holds"
    assert claims.tracks(moments(x[:4]), moments(x[:4]), own=True).word == "no verdict"


def test_a_correlation_that_could_have_been_shown_is_one_and_five_runs_have_too_few_orders_for_many_claims() -> None:
    """`benchmarks/shown.py` has the shares of studies that find a correlation of this size."""
    for own in (False, True):
        sizes = []
        for link in (0.0, 0.8):
            rng = np.random.default_rng(2)
            logged = rng.standard_normal((60, 2, 5, 20)).cumsum(axis=-1)  # studies, x and y, runs, moments
            found = [claims.tracks(moments(x), moments(link * x + (1 - link**2) ** 0.5 * e), own) for x, e in logged]
            sizes.append([np.median([one.difference.shown(m) for one in found if one.difference]) for m in (1, 11, 99)])
            assert {one.least_p for one in found} == {1 / 120 if own else 0.0}
        assert sizes[0] == pytest.approx(sizes[1], rel=0.5 if own else 0.25)
        assert sizes[0][0] == pytest.approx(0.35, abs=0.06)
        assert sizes[0][0] < sizes[0][1] < sizes[0][2] < 1
    study = parsing.parse(RECIPE, "along.toml")
    judged = JudgedClaim("own", study.claims[0], found[0], counted=False)
    assert judged.could_have_shown(5) is not None
    assert judged.could_have_shown(11) is None
    assert judged.too_few(11) == "its p is 0.0083 or more, too much for the first of 11 claims"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.append(str(ROOT / "benchmarks"))
    import _measured_tracks

    return _measured_tracks


@pytest.mark.parametrize(
    ("family", "most", "least"),
    [
        ("unrelated, 10 moments", 6, 0),
        ("own: phases of 4 alone, 10 moments", 6, 0),
        ("own: steps correlated 0.8, phases of 1", 40, 36),
    ],
)
def test_unrelated_runs_are_rarely_associated(bench: ModuleType, family: str, most: int, least: int) -> None:
    """The short form of `benchmarks/claims.py --only tracks tracks-power`: 40 studies of 6 seeds."""
    logged, rng = {**bench.FAMILIES, **bench.POWER}[family], np.random.default_rng(3)
    words = [logged.judge(*bench.measured(logged, 6, 0, rng, run)).word for run in range(40)]
    assert least <= 40 - words.count("undecided") <= most


def test_the_curvature_of_a_log_is_that_of_all_validation_rows_at_its_moments(tmp_path: Path) -> None:
    study = parsing.parse(RECIPE, "along.toml")
    assert parsing.parse(parsing.written(study), "kept").claims == study.claims
    parsing.keep(study, tmp_path)
    work.work(study, tmp_path, lambda fraction, text: None)
    plain = work.StudyRun(study.arms[0], study.arch[0], 0)
    log = work.logged(tmp_path, plain)
    assert [line["epoch"] for line in log if "trace" in line] == [2, 4, 6, 8]
    assert log[-1]["trace"] == pytest.approx(work.record(tmp_path, plain)["trace of ce"], rel=0.05)  # by other probes
    found = report(study, tmp_path)
    each = []
    for seed in range(2):
        lines = work.logged(tmp_path, work.StudyRun(study.arms[0], study.arch[0], seed))
        x, y = (np.array([[line[name] for line in lines if "trace" in line]]) for name in ("margin_tail", "trace"))
        each.append(correlations(x, y).item())
    [tail] = found.checks
    assert tail.estimate is not None
    assert tail.estimate.value == pytest.approx(np.mean(each))
    assert "other rows are not counted" in tail.estimate.how
    [drawn] = [plot for plot in found.plots if plot.name == "claims correlation of trace and margin_tail"]
    assert [curve.label for curve in drawn.curves] == ["", "these rows alone"]
    assert found.facts["checks"] == "1 of 1 pass"
    table = next(table for table in found.tables if table.name.startswith("arms "))
    of_changed = dict(zip(table.columns, next(row for row in table.rows if row[0] == "CE permuted"), strict=True))
    assert (of_changed["trace at 50%"], of_changed["margin_tail"] != "") == ("", True)
    [curve] = next(plot for plot in found.plots if plot.name.startswith("log trace")).curves
    assert curve.x == [2.0, 4.0, 6.0, 8.0]


def test_long_runs_are_evaluated_as_often_as_a_figure_shows() -> None:
    text, source = experiment.text_of("focal-toy")
    long, short = (parsing.parse(text, source, size) for size in ("paper", "small"))
    assert [work.spacing(one, work.runs(one)[0]) for one in (long, short)] == [{"log_every": 500}, {"log_every": 10}]
    stops = parsing.parse(text.replace("epochs = 50000", 'epochs = 50000\nkeep = "best"'), "stops.toml")
    assert work.spacing(stops, work.runs(stops)[0]) == {"log_every": 1}
    curved = parsing.parse(RECIPE.replace("epochs = 8", "epochs = 80"), "along.toml")
    assert work.spacing(curved, work.runs(curved)[0]) == {"log_every": 1, "curvature_every": 20, "curvature_rows": 0}
    assert work.content(curved, work.runs(curved)[0])["curvature_rows"] == 0
    assert "curvature_every" not in work.content(long, work.runs(long)[0])


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('against = "margin_tail"', 'against = "nll"', "'nll at 25%' is not measured"),
        ("last = 100 }", "last = 90 }", "'trace at 90%' is not measured"),
        ("last = 100 }", 'last = 100, own = "yes" }', "write own = true"),
        ('a = "CE", first', 'a = "CE permuted", first', "arm CE permuted is not trained, and has no log"),
        ('log = ["ece", "trace", "margin_tail"]', 'log = ["tail"]', "a study has no number of the log 'tail'"),
    ],
)
def test_mistakes(old: str, new: str, match: str) -> None:
    assert RECIPE.count(old) == 1
    assert match in refusal(RECIPE.replace(old, new))
