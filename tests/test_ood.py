"""`calib ood`: against scikit-learn; pairs, weights, groups, calibrators; what is refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

import calibcli
from calibcli.cli.app import main
from calibcli.metrics.discrimination import Concordance, small_sample_factor
from calibcli.metrics.ood import AveragePrecision, FalsePositives
from calibcli.metrics.reliability import BinaryOutcomes

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(3)
Z, OUT = RNG.normal(size=(300, 5)) * 3, RNG.normal(size=(200, 5)) * 2
Z[:40] = Z[40:80]  # ties
HIT = np.arange(500) < 300


def scores(z: Any) -> dict[str, Any]:
    p = softmax(z, axis=1)
    return {
        "confidence": p.max(1),
        "entropy": (p * np.log(p)).sum(1),
        "energy": 1.5 * logsumexp(z / 1.5, axis=1),
        "max_logit": z.max(1),
    }


@pytest.mark.parametrize("weighted", [False, True])
def test_every_number_is_that_of_scikit_learn(weighted: bool) -> None:
    w = RNG.uniform(0.1, 3, 500)
    rows = [
        calibcli.from_arrays(z, None, **({"weights": v} if weighted else {})) for z, v in ((Z, w[:300]), (OUT, w[300:]))
    ]
    found = calibcli.ood(*rows, temperature=1.5)
    sample = w if weighted else None
    for name, inside in scores(Z).items():
        s = np.round(np.concatenate([inside, scores(OUT)[name]]), 10)  # ties that rounding parted
        false, true, _ = roc_curve(HIT, s, sample_weight=sample, drop_intermediate=False)
        expected = {
            "auroc": roc_auc_score(HIT, s, sample_weight=sample),
            "aupr_in": average_precision_score(HIT, s, sample_weight=sample),
            "aupr_out": average_precision_score(~HIT, -s, sample_weight=sample),
            "fpr95": false[np.argmax(true >= 0.95 - 1e-12)],
        }
        for key, value in expected.items():
            e = found[key, f"score={name}"]
            assert e.value == pytest.approx(value, abs=1e-12), (name, key)
            assert e.low < e.value < e.high
            assert e.n == 500
    kept = (
        (scores(Z)["max_logit"] >= found["fpr95", "score=max_logit"].detail["threshold"] - 1e-9)
        @ w[:300]
        / w[:300].sum()
    )
    assert not weighted or kept >= 0.95 > kept - 0.02


def view(hits: Any, misses: Any, weights: Any = None, groups: Any = None) -> BinaryOutcomes:
    rank = np.unique(np.concatenate([hits, misses]), return_inverse=True)[1] + 1.0
    return BinaryOutcomes(rank, np.ones(len(rank)), np.arange(len(rank)) < len(hits), weights, False, groups)


def test_influences_are_the_derivatives_of_the_average_precision() -> None:
    s = np.round(np.concatenate([RNG.normal(1, 1, 60), RNG.normal(0, 1, 40)]), 1)
    w, hit, eps = RNG.uniform(0.5, 2, 100), np.arange(100) < 60, 1e-7
    statistic = AveragePrecision(view(s[:60], s[60:], w))
    for i in (0, 7, 59, 60, 99):
        side, moved = hit if hit[i] else ~hit, w.copy()
        moved[side] *= 1 - eps
        moved[i] += eps * w[side].sum()
        slope = (average_precision_score(hit, s, sample_weight=moved) - statistic.value) / eps
        share = w[i] / w[side].sum() * small_sample_factor(w[side].sum() ** 2 / (w[side] @ w[side]))
        assert statistic.influence[i] == pytest.approx(slope * share, abs=1e-6)


def test_a_perfect_score_still_has_bounds_and_a_reversed_one_none_above_half() -> None:
    for statistic, bound in ((Concordance, "low"), (AveragePrecision, "low"), (FalsePositives, "high")):
        found = statistic(view(np.arange(100, 200), np.arange(100))).interval(0.95)
        assert 0.005 < abs(getattr(found, bound) - (statistic is not FalsePositives)) < 0.15, statistic
    found = Concordance(view(np.arange(100), np.arange(100, 200))).interval(0.95)
    assert found.low == 0
    assert found.high is not None
    assert found.high < 0.1
    assert "bounds need 10" in FalsePositives(view(np.arange(9), np.arange(50))).interval(0.95).reason


@pytest.mark.slow
def test_intervals_cover_in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("ood")
    found = bench.intervals(2.0, 60, 60, 1.0, 1, 150)
    assert all(max(shares) <= 0.06 for shares in found.values()), found
    grouped = bench.intervals(1.5, 200, 200, 1.0, 5, 100)
    assert all(max(shares) <= 0.08 for shares in grouped.values()), grouped
    wrong, missed = bench.differences(60, 60, 0.5, 150)
    assert wrong <= 0.1
    assert missed <= 0.12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ood")
    y = Z.argmax(1)
    names = np.array([f"r{i}" for i in range(500)])
    np.savez(made / "in.npz", logits=Z, labels=y, ids=names[:300])
    np.savez(made / "out.npz", logits=OUT, ids=names[300:])
    turn = RNG.permutation(300)
    np.savez(
        made / "in_b.npz", logits=(Z + 0.3 * RNG.normal(size=Z.shape))[turn], labels=y[turn], ids=names[:300][turn]
    )
    np.savez(made / "out_b.npz", logits=OUT / 3, ids=names[300:])
    np.savez(made / "p.npz", probabilities=softmax(OUT, axis=1))
    np.savez(made / "three.npz", logits=OUT[:, :3])
    np.savez(made / "odd.npz", logits=OUT, labels=np.full(200, 77))
    return made


def call(capsys: Any, folder: Path, *argv: str) -> tuple[int, str, str]:
    code = main(["ood", *(str(folder / a) if (folder / a).exists() else a for a in argv)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_models_are_paired_by_id_and_differ_as_delong_says(folder: Path, capsys: Any) -> None:
    argv = "in.npz", "out.npz", "--against", "in_b.npz", "--against", "out_b.npz", "--json"
    code, out, err = call(capsys, folder, *argv)
    assert code == 0
    assert "paired by id" in err
    found = calibcli.Result.from_json(out)
    change = found["auroc", "energy: in_b - in"]
    assert change.value == pytest.approx(
        found["auroc", "score=energy, model=in_b"].value - found["auroc", "score=energy"].value
    )
    assert change.low > 0
    assert found["auroc", "confidence: in_b - in"].low > 0
    s, parts = [np.concatenate([logsumexp(Z, axis=1), logsumexp(OUT, axis=1)])], []
    b_in = np.load(folder / "in_b.npz")
    order = np.argsort([int(n[1:]) for n in b_in["ids"]])
    s.append(np.concatenate([logsumexp(b_in["logits"][order], axis=1), logsumexp(OUT / 3, axis=1)]))
    for one in s:  # the textbook's O(m n) components
        wins = (one[:300, None] > one[None, 300:]) + 0.5 * (one[:300, None] == one[None, 300:])
        parts.append((wins.mean(1), wins.mean(0)))
    rows, columns = (parts[1][i] - parts[0][i] for i in (0, 1))
    assert change.se == pytest.approx(np.sqrt(rows.var(ddof=1) / 300 + columns.var(ddof=1) / 200), rel=1e-9)
    assert json.loads(out)["facts"]["headline"].startswith("Confidence tells rows inside from rows outside: AUROC 0.")


def test_a_calibrator_is_compared_with_the_raw_scores(folder: Path, capsys: Any) -> None:
    assert main(["scale", str(ROOT / "sample_data/validation.npz"), "--save", str(folder / "t.safetensors"), "-q"]) == 0
    noise = folder / "noise.npz"
    np.savez(noise, logits=RNG.normal(size=(200, 10)) * 2)
    argv = str(ROOT / "sample_data/test.npz"), str(noise), "--with", str(folder / "t.safetensors")
    assert main(["ood", *argv, "-o", str(folder / "x.png"), "-o", str(folder / "x.md"), "-q"]) == 0
    text = (folder / "x.md").read_text()
    assert "entropy: calibrated - raw" in text
    assert "energy" not in text.split("\n\n")[0]
    assert (folder / "x.png").stat().st_size > 10_000
    assert main(["ood", *argv, "--score", "energy"]) == 4
    assert "a calibrator replaces" in capsys.readouterr().err


def test_the_numbers_of_a_result_can_be_gates(folder: Path, capsys: Any) -> None:
    argv = "in.npz", "out.npz", "-o", str(folder / "r.json"), "-q"
    assert call(capsys, folder, *argv)[0] == 0
    judged = "check", str(folder / "r.json"), "--min", "auroc=0.5", "--scope", "score=energy", "-q"
    assert main([*judged]) == 0
    assert "PASS: auroc >= 0.5 (score=energy)" in capsys.readouterr().out


def test_groups_widen_and_confidences_alone_are_ranked() -> None:
    by_row = calibcli.ood(Z, OUT)["auroc", "score=energy"]
    inside, outside = (
        calibcli.from_arrays(np.repeat(z, 4, 0), None, group=np.repeat(np.arange(len(z)), 4)) for z in (Z, OUT)
    )
    grouped = calibcli.ood(inside, outside)["auroc", "score=energy"]
    assert grouped.value == pytest.approx(by_row.value)
    assert grouped.high - grouped.low == pytest.approx(by_row.high - by_row.low, rel=0.02)
    found = calibcli.ood(*(calibcli.from_confidence(softmax(z, axis=1).max(1), np.ones(len(z))) for z in (Z, OUT)))
    assert next(iter(found)) == ("auroc", "score=confidence")
    assert len(found) == 4
    assert found["auroc", "score=confidence"].value == pytest.approx(
        calibcli.ood(Z, OUT)["auroc", "score=confidence"].value
    )


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["in.npz", "p.npz", "--score", "energy"], 4, "energy needs logits"),
        (["in.npz", "three.npz"], 4, "5 classes"),
        (["in.npz", "out.npz", "--against", "in_b.npz"], 2, "--against INSIDE --against OUTSIDE"),
        (["in.npz", "out.npz", "--against", "out_b.npz", "--against", "in_b.npz"], 4, "do not pair"),
        (["in.npz", "out.npz", "--against", "in.npz", "--against", "out.npz"], 2, "the same input twice"),
        (["in.npz", "out.npz", "--score", "enrgy"], 2, "did you mean 'energy'"),
        (["in.npz", "out.npz", "--by", "ids"], 2, "--by splits them"),
        (["in.npz", "out.npz", "--temperature", "0"], 2, "--temperature 0 is out of range"),
        (["in.npz", "out.npz", "--with", "in.npz"], 4, "in.npz"),
    ],
)
def test_what_is_refused(argv: list[str], code: int, said: str, folder: Path, capsys: Any) -> None:
    found = call(capsys, folder, *argv)
    assert found[0] == code
    assert said in found[2]
    assert "Traceback" not in found[2]


def test_labels_of_the_other_rows_do_not_matter(folder: Path, capsys: Any) -> None:
    code, out, _ = call(capsys, folder, "in.npz", "odd.npz", "--json", "-q")
    assert code == 0
    plain = call(capsys, folder, "in.npz", "out.npz", "--json", "-q")[1]
    assert json.loads(out)["estimates"] == json.loads(plain)["estimates"]
    code, out, err = call(capsys, folder, "in.npz", "p.npz")
    assert code == 0
    assert "energy needs logits" in err
