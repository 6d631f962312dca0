"""Bounds of binned and smooth calibration errors: level, ties, few rows, and what a gate says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from populations import ece_bounds
from scipy.stats import binom

from calibcli import metrics
from calibcli.cli.app import main
from calibcli.core.statistics import normals
from calibcli.metrics import binned
from calibcli.metrics import binned_bounds as sharp
from calibcli.metrics.registry import Sample
from calibcli.scores.columns import Columns, bin_index
from calibcli.scores.predictions import Predictions

UNSEEN = 2.9957322735539909  # -ln .05: errors that may go unseen in n rows, times n
BOUNDED = ["ece", "oce", "overconfidence_error", "ece_l2", "adaece", "smece", "mmce"]
ALLOWED = 0.05 + 0.03  # two standard errors of a 5 % share over 200 runs


def sample(confidence: Any, correct: Any, **more: Any) -> Sample:
    n = len(confidence)
    zero = np.zeros(n)
    found = Columns(
        numbers={
            **{"confidence": confidence, "rest": 1 - confidence, "nll": zero},
            **{"most": zero + 1.0, "brier": zero, "entropy": zero},
        },
        correct=correct,
        predicted=np.zeros(n, np.int64),
        labels=np.zeros(n, np.int64),
        k=10,
        **more,
    )
    return Sample.of(found)


def wrong(spec: str, population: tuple[Any, Any], n: int, runs: int = 200) -> tuple[float, float]:
    """Share of runs with a false PASS, and with a false FAIL, at the limit that is the population's value."""
    confidence, correct = population
    choices = metrics.choose([spec], 10)
    truth = metrics.estimates(sample(confidence, correct), choices)[0].value
    assert truth is not None
    rng = np.random.default_rng(n)
    passed = failed = 0
    for _ in range(runs):
        rows = rng.integers(0, len(confidence), n)
        e = metrics.estimates(sample(confidence[rows], correct[rows]), choices)[0]
        passed += e.high is not None and e.high <= truth
        failed += e.low is not None and e.low > truth
    return passed / runs, failed / runs


def saturated() -> tuple[Any, Any]:
    """99 % of the rows at c > .9999, .5 % of errors among them."""
    rng = np.random.default_rng(0)
    high = rng.random(60_000) < 0.99
    confidence = np.where(high, 1 - 1e-4 * rng.random(60_000), rng.random(60_000))
    return confidence, rng.random(60_000) < np.where(high, 0.995, confidence)


def votes() -> tuple[Any, Any]:
    """The confidences of five nearest neighbours."""
    rng = np.random.default_rng(1)
    confidence = rng.choice([0.4, 0.6, 0.8, 1.0], 60_000, p=[0.1, 0.15, 0.25, 0.5])
    return confidence, rng.random(60_000) < 0.9 * confidence + 0.02


@pytest.mark.regression("2.1")
@pytest.mark.parametrize("n", [2, 200, 1000])
def test_no_error_seen_is_not_no_error(n: int) -> None:
    """Rows that are all right at c -> 1: the bound is what the number may be with 5 % chance of that."""
    rows = sample(np.full(n, 1 - 1e-9), np.ones(n, bool))
    for e in metrics.estimates(rows, metrics.choose(BOUNDED, 10)):
        assert e.high is not None
        assert e.high >= min(1.0, UNSEEN / n) * (1 - 1e-6), e.name
    for e in metrics.estimates(rows, metrics.choose(["uce", "ece2_debiased"], 10)):
        assert e.high is not None or e.reason
        assert e.high is None or e.high > 1e-9
    z = np.zeros((n, 5))
    z[:, 0] = 40.0
    [e] = metrics.measure(Predictions.of(z, np.zeros(n, np.int64)), ["classwise_ece"])
    assert e.high == pytest.approx(min(1.0, UNSEEN * 2 / 5 / n), rel=1e-6)


@pytest.mark.slow
@pytest.mark.regression("2.1")
@pytest.mark.parametrize("spec", ["oce", "overconfidence_error", "ece_l2"])
@pytest.mark.parametrize("n", [200, 1000])
def test_saturated_models_do_not_pass_at_their_own_error(spec: str, n: int) -> None:
    assert max(wrong(spec, saturated(), n)) <= ALLOWED


@pytest.mark.regression("2.1")
def test_cli_does_not_pass_two_hundred_right_rows(tmp_path: Path, capsys: Any) -> None:
    z = np.zeros((200, 3))
    z[:, 0] = 30.0
    np.savez(tmp_path / "t.npz", logits=z, labels=np.zeros(200, int))
    for metric in ("ece", "oce", "overconfidence_error", "smece", "mmce", "adaece", "ece_l2"):
        assert main(["check", str(tmp_path / "t.npz"), "--max", f"{metric}=0.0001", "-q"]) == 3, metric
    capsys.readouterr()


@pytest.mark.regression("2.6")
@pytest.mark.slow
def test_debiased_square_is_unbiased_under_ties() -> None:
    confidence, correct = votes()
    d = [np.mean((confidence - correct) * (confidence == v)) for v in np.unique(confidence)]
    mass = [np.mean(confidence == v) for v in np.unique(confidence)]
    truth = sum(gap * gap / w for gap, w in zip(d, mass, strict=True))
    rng, found = np.random.default_rng(0), []
    choices = metrics.choose(["ece2_debiased"], 10)
    for _ in range(300):
        rows = rng.integers(0, 60_000, 300)
        found.append(metrics.estimates(sample(confidence[rows], correct[rows]), choices)[0].value)
    assert np.mean(found) == pytest.approx(truth, abs=4 * np.std(found) / 300**0.5)  # type: ignore[arg-type]
    for n in (200, 1000):
        assert max(wrong("ece2_debiased", (confidence, correct), n)) <= ALLOWED


@pytest.mark.regression("2.6")
def test_methods_that_divide_ties_have_no_bound_there() -> None:
    confidence, correct = votes()
    for method, bounded in (("whole", True), ("split", True), ("split-merge", False), ("mukhoti", False)):
        choice = metrics.choose([f"ece2_debiased:method={method}"], 10)
        [e] = metrics.estimates(sample(confidence[:900], correct[:900]), choice)
        assert (e.high is not None) == bounded, method
        assert bounded or "ties" in e.reason
    rng = np.random.default_rng(2)
    own = rng.random(900)
    values = {}
    for method in ("whole", "split", "split-merge"):
        choice = metrics.choose([f"ece2_debiased:method={method}"], 10)
        [e] = metrics.estimates(sample(own, rng.random(900) < 2), choice)
        assert e.high is not None
        values[method] = e.value
    assert len({round(v, 12) for v in values.values() if v is not None}) == 1


@pytest.mark.regression("2.6")
def test_ties_stay_whole_with_weights_and_within_rounding() -> None:
    confidence, correct = votes()
    c, y = confidence[:500], correct[:500]
    choice = metrics.choose(["ece2_debiased", "adaece:method=whole"], 10)
    times = np.random.default_rng(0).integers(0, 4, 500)
    twice = sample(np.repeat(c, times), np.repeat(y, times))
    counted = sample(c, y, weights=times.astype(float), weight_kind="count")
    c = np.where(c == 1, 0.9, c)  # a probability of 1 has no rounding beside it: odds of 1e14 are others
    nudged = sample(c - 1e-14 * np.arange(500) / 500, y)
    plain = sample(c, y)
    for a, b in ((twice, counted), (plain, nudged)):
        for one, other in zip(metrics.estimates(a, choice), metrics.estimates(b, choice), strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-9)
            assert one.high == pytest.approx(other.high, rel=1e-9)


@pytest.mark.regression("2.9")
@pytest.mark.parametrize("method", ["score", "sharp"])
@pytest.mark.parametrize("n", [200, 1000])
def test_constant_confidence_near_one_exactly(n: int, method: Any) -> None:
    """False PASS summed over the binomial, the limit just below each bound: it was 6.7 % at 2.71 / n."""
    uppers = [ece_bounds(np.full(n, 1 - 1e-9), np.arange(n) >= k, method=method).upper for k in range(8)]
    for k, upper in enumerate(uppers):
        assert binom.cdf(k, n, upper + 1e-9) <= 0.0525, k


@pytest.mark.regression("2.12")
def test_foretold_signs_are_the_average_over_all_orders() -> None:
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.02, 0.15):
        r = 0.8 - (rng.random(400) < 0.8 - shift)
        order = np.argsort(rng.random((4000, 400)), axis=1)
        before = np.cumsum(r[order], axis=1)
        earlier = np.where(np.arange(400) > 0, np.roll(before, 1, axis=1), 0)
        wanted = float((np.sign(np.round(earlier, 9)) * r[order]).sum(axis=1).mean()) / 400
        d, variance = np.array([r.mean()]), np.array([float(r @ r) / 400**2])
        x = abs(d) / np.sqrt(variance - d**2 / 400)
        found = float((abs(d) - np.sqrt(variance - d**2 / 400) * sharp._mills(x))[0])
        assert found == pytest.approx(wanted, abs=0.0015), shift


@pytest.mark.regression("2.12")
def test_mills_ratio() -> None:
    from scipy.special import erfcx

    x = np.concatenate([np.linspace(0, 12, 1234), [40.0, 1e8]])
    np.testing.assert_allclose(sharp._mills(x), np.sqrt(np.pi / 2) * erfcx(x / np.sqrt(2)), atol=3e-6)


@pytest.mark.regression("2.12")
def test_more_is_failed_and_as_much_passed() -> None:
    """A model too sure by .08 against .05 at n = 1,000: the plain bound fails it 1 time in 5, this one 1 in 2."""
    rng = np.random.default_rng(0)
    found = np.zeros(3)
    for _ in range(100):
        c = rng.beta(6, 6 * 0.13 / 0.87, 1000)
        y = rng.random(1000) < c - 0.08
        plain, new = ece_bounds(c, y, method="score"), ece_bounds(c, y)
        found += [plain.lower > 0.05, new.lower > 0.05, new.upper <= plain.upper]
    assert new.method == "sharp"
    assert found[1] > 1.6 * found[0]
    assert found[1] > 40
    assert found[2] == 100


@pytest.mark.slow
@pytest.mark.regression("2.12")
@pytest.mark.parametrize("kind", ["votes", "saturated", "within", "between", "under"])
def test_new_bounds_keep_their_level(kind: str) -> None:
    rng = np.random.default_rng(0)
    c = rng.beta(4, 1.2, 60_000)
    gap = {
        "within": np.where(np.floor(c * 30) % 2, 0.15, -0.15),
        "between": np.where(bin_index(c, 15) % 2, 0.05, -0.05),
        "under": np.minimum(0.0, 0.8 * (c - 1)),
    }
    population = {"votes": votes, "saturated": saturated}.get(kind, lambda: (c, rng.random(60_000) < c - gap[kind]))()
    for n in (200, 2000):
        assert max(wrong("ece", population, n, 150)) <= ALLOWED


@pytest.mark.regression("2.4")
def test_too_few_groups_have_no_bound(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([400, 300, 100, *[20] * 20])
    member = np.repeat(np.arange(len(sizes)), sizes)
    c = rng.beta(5, 2, len(member))
    found = ece_bounds(c, rng.random(len(c)) < c, groups=member)
    assert found.groups == 23
    assert found.effective < 10
    assert (found.lower, found.upper) == (0.0, 1.0)
    assert "bounds need 10" in found.reason
    np.savez(tmp_path / "g.npz", probs=np.stack([1 - c, c], 1), labels=(rng.random(len(c)) < c).astype(int), g=member)
    assert main(["check", str(tmp_path / "g.npz"), "--max", "ece=0.5", "--group", "g", "--json", "-q"]) == 5
    [verdict] = json.loads(capsys.readouterr().out)["checks"]
    assert "bounds need 10" in verdict["message"]
    assert main(["metrics", str(tmp_path / "g.npz"), "-m", "ece", "--group", "g", "--json", "-q"]) == 0
    [e] = json.loads(capsys.readouterr().out)["estimates"]
    assert e["high"] is None
    assert "bounds need 10" in e["reason"]


@pytest.mark.regression("2.11")
@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("ece", "binned, 15 bins"),
        ("ece:bins=30,edges=left", "binned, 30 bins, left edges"),
        ("adaece", "binned, 15 bins of equal mass"),
        ("classwise_ece", "binned, 15 bins per class"),
        ("smece", ""),
        ("nll", ""),
    ],
)
def test_gates_say_which_error_they_judge(spec: str, kind: str, tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(600, 4)) * 2
    y = (np.exp(z) / np.exp(z).sum(1, keepdims=True)).cumsum(1) > rng.random((600, 1))
    np.savez(tmp_path / "t.npz", logits=z, labels=y.argmax(1))
    file = str(tmp_path / "t.npz")
    main(["check", file, "--max", f"{spec}=0.4", "--max", f"{spec}=0.3", "-o", str(tmp_path / "r.json")])
    shown, notes = capsys.readouterr()
    assert (f"({kind})" in shown) == bool(kind)
    assert notes.count("does not see gaps that cancel within a bin") == bool(kind)
    result = json.loads((tmp_path / "r.json").read_text())
    assert {c["kind"] for c in result["checks"]} == {kind}
    assert result["checks"][0]["rule"].endswith("<= 0.4")
    if kind:
        main(["check", str(tmp_path / "r.json"), "--max", f"{spec}=0.4"])
        assert "does not see" in capsys.readouterr().err


@pytest.mark.regression("2.13")
def test_a_pilot_gives_a_range_of_n(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 4)) * 2.5
    y = ((np.exp(z) / np.exp(z).sum(1, keepdims=True)).cumsum(1) > rng.random((500, 1))).argmax(1)
    np.savez("p.npz", logits=1.3 * z, labels=y)
    for rule in (["--max", "ece=0.05"], ["--min", "accuracy=0.6"], ["--max", "nll=0.9"], ["--margin", "nll=0"]):
        assert main(["plan", *rule, "--from", "p.npz", "--json", "-q"]) == 0
        [e] = json.loads(capsys.readouterr().out)["estimates"]
        if e["value"] is None:
            assert "do not tell this rule's verdict" in e["reason"], rule
            continue
        assert "pilots of 500 rows say" in e["how"], rule
        assert e["value"] == e["high"] > 1.02 * e["low"], rule
        assert e["low"] <= e["detail"]["rows_at_truth"] <= e["high"], rule
    assert main(["plan", "--max", "ece=0.05", "--from", "p.npz"]) == 0
    assert "80 % interval" in capsys.readouterr().out
    assert main(["plan", "--max", "ece=0.05", "--json", "-q"]) == 0
    [e] = json.loads(capsys.readouterr().out)["estimates"]
    assert e["low"] is None


def test_cuts_between_bins_of_equal_mass_move_as_bridges() -> None:
    rng = np.random.default_rng(2)
    confidence = rng.beta(5, 2, 900)
    view = sample(confidence, rng.random(900) < confidence).view()
    error = metrics.choose(["ece2_debiased:bins=6"], 10)[0](sample(confidence, view.hit))
    table, q = error.table, np.cumsum(error.table.weight)[:-1]
    steps = normals((binned.DRAWS, 6), table.seed + 1) * np.sqrt(table.weight / 900)
    bridge = np.cumsum(steps, axis=1)[:, :-1] - steps.sum(axis=1, keepdims=True) * q
    reach = np.sqrt(q * (1 - q) / 900)
    below, above = (view.ranked.residuals_before(900 * end) / 900 for end in (q - reach, q + reach))
    carried = np.pad(bridge * (above - below) / (2 * reach), ((0, 0), (1, 1)))
    np.testing.assert_allclose(error._cut_noise(), np.diff(carried, axis=1), atol=1e-15)


def test_empty_bins_have_no_simulated_gap() -> None:
    table = sample(np.array([0.2, 0.93, 0.95]), np.array([False, True, False])).view().width_bins(10, "right")
    gaps = table.simulated(500, np.random.default_rng(0))
    assert (gaps[:, table.rows == 0] == 0).all()
    assert sorted(set(gaps[:, 9].round(12))) == pytest.approx([(1.88 - hits) / 3 for hits in (2, 1, 0)])


def test_one_bin_has_no_cut_to_move() -> None:
    one = sample(np.array([0.2, 0.6, 0.9, 0.8]), np.array([True, False, True, False]))
    estimate = metrics.estimates(one, metrics.choose(["ece2_debiased:bins=1"], 10))[0]
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low <= 0 <= estimate.high
    assert one.view().ranked.residuals_before(np.empty(0)).shape == (0,)
