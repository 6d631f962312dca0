"""Files and arrays that are easily read as something else, each with the number that is right."""

from __future__ import annotations

import datetime
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.metrics.registry import METRICS

N, NAMES = 400, ["ant", "bee", "cat", "dog"]
RNG = np.random.default_rng(7)
Z = RNG.normal(size=(N, 4)) * 2
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
Y = (Z + RNG.gumbel(size=Z.shape)).argmax(1)
RIGHT = float(np.mean(P.argmax(1) == Y))


def accuracy(scores: Any, labels: Any = None, **how: Any) -> float:
    value = calibcli.measure(scores, labels, "accuracy", **how)["accuracy"].value
    assert value is not None
    return value


def table(path: Path, scores: np.ndarray, labels: Any, header: list[str]) -> Path:
    rows = [",".join([*map(str, row), str(label)]) for row, label in zip(scores, labels, strict=True)]
    path.write_text("\n".join([",".join([*header, "label"]), *rows, ""]))
    return path


@pytest.mark.parametrize("names", [[3, 5, 7, 9], [1, 2, 3, 4], [1, 0, 3, 2], [-2, -1, 1, 2], [0.0, 2.0, 5.0, 1.0]])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint64, object, str])
def test_labels_that_are_numbers_are_the_names_that_classes_gives(tmp_path: Path, names: list[Any], dtype: Any) -> None:
    """`classes` of scikit-learn: an array and a table give the same number, whatever the labels are held as."""
    if min(names) < 0 and dtype is np.uint64:
        return
    labels = np.array([int(name) for name in names])[Y]
    held = labels.astype(np.int64).astype(dtype)
    held = np.char.add(held, ".0") if dtype is str else held
    order = [str(int(name)) for name in names]
    assert accuracy(P, held, classes=names) == accuracy(P, held, classes=order) == RIGHT
    assert accuracy(table(tmp_path / "a.csv", P, labels, [f"p{i}" for i in range(4)]), classes=order) == RIGHT
    np.savez(tmp_path / "a.npz", probs=P, labels=labels, classes=np.array([int(name) for name in names]))
    assert accuracy(tmp_path / "a.npz") == RIGHT


@pytest.mark.regression
def test_names_and_numbers_among_the_labels(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", P[:2], ["a", "1"], [f"p{i}" for i in range(4)])
    with pytest.raises(calibcli.CalibError, match=r"label '1' \('label'\) is not one of the 4 classes"):
        calibcli.read(path, classes="a,b,c,d")


def test_labels_minus_one_and_one_with_the_fix_that_is_offered() -> None:
    event = Y == 0
    with pytest.raises(calibcli.CalibError, match="negative") as found:
        calibcli.measure(P[:, 0], np.where(event, 1, -1))
    assert "classes='-1,1'" in found.value.fix
    right = calibcli.measure(P[:, 0], event, "brier")["brier"].value
    assert calibcli.measure(P[:, 0], np.where(event, 1, -1), "brier", classes="-1,1")["brier"].value == right


@pytest.mark.parametrize("absent", ["", "nan", "NaN", "NA", "null"])
@pytest.mark.parametrize("header", [NAMES, [f"p{i}" for i in range(4)], [f"prob_{name}" for name in NAMES]])
@pytest.mark.parametrize("numbers", [False, True])
def test_a_row_without_a_label_is_said_by_its_number(
    tmp_path: Path, absent: str, header: list[str], numbers: bool
) -> None:
    labels = [str(i) if numbers else NAMES[i] for i in Y]
    labels[5] = absent
    path = table(tmp_path / "a.csv", P, labels, header)
    with pytest.raises(calibcli.CalibError) as found:
        calibcli.measure(path, classes=None if header[0] != "p0" or numbers else NAMES)
    if header != NAMES or (absent == "" and not numbers):
        assert "1 row has no label" in found.value.problem
        assert "row 5" in found.value.problem


@pytest.mark.parametrize("absent", ["", "NaN", "NA"])
def test_a_row_without_a_label_is_no_third_class_of_one_column(tmp_path: Path, absent: str) -> None:
    for true in ("1", "malignant"):
        for false in ("0", "benign"):
            labels = np.where(Y == 0, true, false).astype(object)
            labels[9] = absent
            path = table(tmp_path / "a.csv", P[:, :1], labels, ["p_malignant"])
            with pytest.raises(calibcli.CalibError, match=r"1 row has no label.*row 9"):
                calibcli.measure(path)


def test_an_empty_label_is_not_the_other_class(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", P[:, :1], np.where(Y == 0, "malignant", ""), ["p_malignant"])
    with pytest.raises(calibcli.CalibError, match="have no label"):
        calibcli.measure(path)


def test_a_class_may_be_called_none(tmp_path: Path) -> None:
    names = ["none", "na", "mild", "severe"]
    path = table(tmp_path / "a.csv", P, [names[i] for i in Y], names)
    assert accuracy(path) == RIGHT


TWO = Z[:, :2] * 1.5
EVENT = np.exp(TWO[:, 1]) / np.exp(TWO).sum(1)
HAPPENED = RNG.random(N) < EVENT


def pipeline(path: Path, *columns: str) -> Path:
    """What a text-classification pipeline gives: the predicted class and its probability, and the truth beside."""
    predicted, truth = np.where(EVENT > 0.5, "POSITIVE", "NEGATIVE"), np.where(HAPPENED, "POSITIVE", "NEGATIVE")
    numbers = {"prediction": (EVENT > 0.5).astype(int), "gold": HAPPENED.astype(int)}
    cells = {"score": np.maximum(EVENT, 1 - EVENT), "label": truth, "pred_label": predicted, **numbers}
    cells |= {"label": predicted} if "gold" in columns else {}
    rows = zip(*(cells[name] for name in columns), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows), ""]))
    return path


@pytest.mark.parametrize(
    ("columns", "how"),
    [
        (("pred_label", "score", "label"), {}),
        (("pred_label", "score", "label"), {"event": "NEGATIVE"}),
        (("label", "score", "gold"), {}),
        (("label", "score", "gold"), {"labels": "gold"}),
        (("prediction", "score", "gold"), {"labels": "gold"}),
    ],
)
def test_the_probability_of_the_predicted_class_is_not_that_of_one_class(
    tmp_path: Path, columns: tuple[str, ...], how: dict[str, Any]
) -> None:
    path, labels = pipeline(tmp_path / "a.csv", *columns), how.pop("labels", None)
    with pytest.raises(calibcli.CalibError, match="'score' is never below") as found:
        calibcli.measure(path, labels, **how)
    if columns[0] != "label":
        assert "confidence='score'" in found.value.fix
        right = float(np.mean((EVENT > 0.5) == HAPPENED))
        assert accuracy(path, labels, confidence="score") == right
    assert accuracy(path, labels, **how, kind="probabilities") < 0.7


def test_a_probability_of_one_class_above_one_half_is_read() -> None:
    """Calibrated or overconfident, with predictions that follow another threshold, constant, or few."""
    rng = np.random.default_rng(3)
    for n in (10, 100, 1000):
        for _ in range(20):
            p = rng.uniform(0.5, 1, n)
            y = rng.random(n) < p
            assert calibcli.measure(p, y, "brier")["brier"].value == pytest.approx(np.mean((p - y) ** 2))
    assert accuracy(np.full(200, 0.8), np.arange(200) % 2) == 0.5


@pytest.mark.parametrize("whole", [100, 255, 7])
@pytest.mark.parametrize("digits", [0, 1, 9])
def test_shares_of_a_hundred_or_of_votes_are_no_logits(tmp_path: Path, whole: int, digits: int) -> None:
    if whole * 10**digits < 100:
        return
    shares = np.round(P * whole, digits)
    for given in (
        (shares, Y), (table(tmp_path / "a.csv", shares, Y, [f"score_{i}" for i in range(4)]), None),
        (table(tmp_path / "b.csv", shares, [NAMES[i] for i in Y], [f"prob_{n}" for n in NAMES]), None),
    ):  # fmt: skip
        with pytest.raises(
            calibcli.CalibError, match=rf"rows sum to {whole}: are these shares of {whole} instead of logits"
        ) as found:
            calibcli.measure(*given)
        assert f"divide by {whole}" in found.value.fix
        assert accuracy(*given, kind="logits") == pytest.approx(RIGHT, abs=0.05)


def test_percents_of_one_class_are_no_log_odds(tmp_path: Path) -> None:
    for header in ("score", "p_ant", "probability"):
        path = table(tmp_path / "a.csv", np.round(P[:, :1] * 100, 1), (Y == 0).astype(int), [header])
        with pytest.raises(calibcli.CalibError, match="shares of 100"):
            calibcli.measure(path)


def test_logits_that_are_not_negative_are_read() -> None:
    assert accuracy(Z - Z.min(1, keepdims=True) + 1, Y) == accuracy(Z + 100, Y) == RIGHT
    assert accuracy(np.abs(Z[:, 0]) + 1, Z[:, 0] > 0) == np.mean(Z[:, 0] > 0)


@pytest.mark.parametrize("column", ["id", "custom_id"])
def test_labels_of_a_file_of_their_own_belong_to_the_rows_by_id(tmp_path: Path, column: str) -> None:
    """As answers of a batch come in any order."""
    ids, order = [f"r{i}" for i in range(N)], np.random.default_rng(1).permutation(N + 5)
    scores, labels = tmp_path / "scores.csv", tmp_path / "labels.csv"
    header = ",".join([column, *(f"p{i}" for i in range(4))])
    scores.write_text("\n".join([header, *(f"r{i}," + ",".join(map(str, P[i])) for i in range(N)), ""]))
    known = [*zip(ids, Y, strict=True), *((f"x{i}", 0) for i in range(5))]
    labels.write_text("\n".join([f"{column},label", *(f"{known[i][0]},{known[i][1]}" for i in order), ""]))
    assert accuracy(scores, str(labels)) == RIGHT
    notes = calibcli.measure(scores, str(labels), "accuracy").notes
    assert any(f"labels.csv belong to the rows by their '{column}'" in note for note in notes)
    np.savez(tmp_path / "a.npz", probs=P, ids=np.array(ids))
    labels.write_text("\n".join(["id,label", *(f"{known[i][0]},{known[i][1]}" for i in order), ""]))
    assert accuracy(tmp_path / "a.npz", str(labels)) == RIGHT
    for text, problem in (("r3,1", "no 'id' is 'r0'"), ("r3,1\nr3,2", "no 'id'")):
        labels.write_text(f"id,label\n{text}\n")
        with pytest.raises(calibcli.CalibError, match=problem):
            calibcli.measure(tmp_path / "a.npz", str(labels))
    labels.write_text("id,label\n" + "\n".join(f"r{i},{Y[i]}" for i in (*range(N), 0)))
    with pytest.raises(calibcli.CalibError, match="names rows twice"):
        calibcli.measure(tmp_path / "a.npz", str(labels))
    labels.write_text("site,label\n" + "\n".join(f"{'ab'[i % 2]},{Y[i]}" for i in range(N)))
    assert accuracy(tmp_path / "a.npz", str(labels)) == RIGHT


@pytest.mark.slow
def test_a_ranking_and_its_notes_recommend_one_method(tmp_path: Path) -> None:
    """focal_temperature may be first by a hair: the simpler map is recommended, reported, and not argued against."""
    from calibcli.calibrators.report import RankingOptions, report

    rng, recommended = np.random.default_rng(5), set()
    for _ in range(4):
        z = rng.normal(size=(600, 4)) * 2
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
        rows = calibcli.from_arrays(z * 1.5, y)
        result, _ = report(rows, RankingOptions(methods=("temperature", "focal-temperature")))
        plain = any("plain temperature is recommended" in note for note in result.notes)
        assert result.facts["recommended"] in ("none", result.facts["method"])
        assert not (plain and result.facts["recommended"] == "focal_temperature")
        recommended.add(result.facts["recommended"])
    assert recommended == {"temperature"}


def test_a_text_where_several_are_taken_is_one_of_them(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", np.column_stack([P, Y % 2]), Y, [*(f"p{i}" for i in range(4)), "site"])
    assert calibcli.measure(path, None, "accuracy", by="site") == calibcli.measure(path, None, "accuracy", by=["site"])
    for one, two in zip(*[[
        calibcli.check(path, max={"ece": 0.9}, min_n=10, by=by).checks,
        calibcli.Watch(max={"ece": 0.9}).update(path, by=by).checks,
        calibcli.find_slices(path, by=by, min_n=20).facts["rules"],
    ] for by in ("site", ["site"])], strict=True):  # fmt: skip
        assert one == two
    one, two = calibcli.from_arrays(P, Y), calibcli.from_arrays(P**2 / (P**2).sum(1, keepdims=True), Y)
    assert list(calibcli.compare(one, two, metrics="nll")) == list(calibcli.compare(one, two, metrics=["nll"]))


def test_slices_are_the_columns_of_a_data_frame_and_no_bare_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"site": Y % 2})
    found = calibcli.measure(P, Y, "accuracy", by=frame)
    assert (
        found["accuracy", "site=1"].value
        == calibcli.measure(P, Y, "accuracy", by={"site": Y % 2})["accuracy", "site=1"].value
    )
    for bare in (frame["site"], Y % 2, [1, 2]):
        with pytest.raises(TypeError, match="of arrays it is a mapping"):
            calibcli.measure(P, Y, "accuracy", by=bare)


def test_what_is_no_file_is_refused_by_name() -> None:
    found = calibcli.measure(P, Y, "ece")
    for baseline in ((P, Y), calibcli.from_arrays(P, Y), found):
        with pytest.raises(TypeError, match=r"a baseline is .*pass the file"):
            calibcli.check(P, Y, baseline=baseline, margin={"nll": 0.1})
    with pytest.raises(calibcli.CalibError, match="labels= has no effect on a stored result"):
        calibcli.check(found, Y, max={"ece": 0.5})
    with pytest.raises(TypeError, match="from_arrays"):
        calibcli.compare(P, P**2)


@pytest.mark.parametrize("night", [datetime.date(2026, 11, 20), np.datetime64("2026-11-20"), "2026-11-20"])
def test_a_night_is_a_date_or_its_text(night: Any) -> None:
    found = calibcli.Watch(max={"ece": 0.5}).update(P, Y, night=night)
    assert found.facts["last_night"] == "2026-11-20"


def test_several_labels_in_a_row_of_arrays() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    pandas = pytest.importorskip("pandas")
    targets = (np.random.default_rng(1).random((N, 3)) < P[:, :3]).astype(int)
    with pytest.raises(calibcli.CalibError) as refused:
        calibcli.measure(P[:, :3], targets)
    assert "multilabel=True" in refused.value.fix
    for held in (targets, targets.astype(float), targets.astype(bool)):
        found = calibcli.measure(P[:, :3], held, "auc", multilabel=True)
        right = [sklearn.roc_auc_score(targets[:, i], P[:, i]) for i in range(3)]
        assert [e.value for e in found.values()] == pytest.approx(right)
    a, b = (pandas.DataFrame(x, columns=list("abc")) for x in (P[:, :3], targets))
    with pytest.raises(calibcli.CalibError, match="different orders"):
        calibcli.measure(a, b[["c", "a", "b"]], "auc", multilabel=True)


def test_the_warning_of_a_scorer_is_true_of_every_metric() -> None:
    """AUC and accuracy are not best for a constant model."""
    for metric in ("auc", "accuracy", "ece", "aurc"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            calibcli.scorer(metric)
        assert not any("shares of the classes" in str(one.message) for one in said)


def test_a_frozen_classifier_that_knows_more_classes_than_the_labels() -> None:
    frozen = pytest.importorskip("sklearn.frozen")
    from sklearn.naive_bayes import GaussianNB

    model, few = GaussianNB().fit(Z, Y), Y < 2
    made = calibcli.Calibrator(frozen.FrozenEstimator(model), "temperature").fit(Z[few], Y[few])
    assert made.classes_.tolist() == [0, 1, 2, 3]
    assert made.predict_proba(Z).shape == (N, 4)
    fit = calibcli.fit_scaler(np.clip(model.predict_proba(Z[few]), 1e-15, 1), Y[few], kind="probabilities")
    assert made.fit_["temperature"].value == pytest.approx(fit["temperature"].value, rel=1e-6)


def test_a_fit_is_saved_as_its_scaler_is(tmp_path: Path) -> None:
    fit = calibcli.fit_scaler(Z, Y)
    calibcli.save_scaler(fit, tmp_path / "a.safetensors")
    assert calibcli.load_scaler(tmp_path / "a.safetensors").spec == fit.scaler.spec


@pytest.mark.parametrize(("offset", "k", "spread"), [(1000, 50, 3), (100, 1000, 1)])
def test_logits_with_a_large_offset_are_no_shares(offset: float, k: int, spread: float) -> None:
    z = RNG.normal(offset, spread, size=(50, k))
    assert accuracy(z, z.argmax(1)) == 1.0
    with pytest.raises(calibcli.CalibError, match="shares of 100"):
        accuracy(P * 100, Y)


def test_columns_of_a_data_frame_are_the_classes_of_labels_that_are_names() -> None:
    pandas, order = pytest.importorskip("pandas"), [2, 0, 3, 1]
    frame = pandas.DataFrame(P, columns=NAMES)
    assert accuracy(frame[[NAMES[i] for i in order]], np.array(NAMES)[Y]) == RIGHT
    assert accuracy(frame.convert_dtypes(), Y) == RIGHT
    with pytest.raises(calibcli.CalibError, match="'label' of the scores holds the labels"):
        accuracy(frame.assign(label=Y), Y)
    with pytest.raises(calibcli.CalibError, match="decimal point"):
        accuracy(frame.map(lambda p: str(p).replace(".", ",")), Y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sampling", "count"])
@pytest.mark.parametrize("k", [2, 3])
def test_a_weight_of_0_is_a_row_less_for_every_metric(kind: str, k: int) -> None:
    z, y, w = Z[:, :k].copy(), np.minimum(Y, k - 1), RNG.integers(0, 4, N).astype(float)
    z[0], y[0], w[0] = 60 * np.eye(k)[0], k - 1, 0  # sure and wrong
    names = [e.name for e in METRICS if k == 2 or not e.traits.two_classes]
    every = calibcli.measure(z, y, *names, weights=w, weight_kind=kind)
    left = calibcli.measure(z[w > 0], y[w > 0], *names, weights=w[w > 0], weight_kind=kind)
    assert len(every.estimates) > 30
    assert [vars(e) for e in every.estimates] == [vars(e) for e in left.estimates]
    assert f"weight 0: {(w == 0).sum()} of 400 rows left out" in every.notes
    top, right = P.max(1), P.argmax(1) == Y
    rows = calibcli.from_confidence(top, right, weights=w, weight_kind=kind)
    fewer = calibcli.from_confidence(top[w > 0], right[w > 0], weights=w[w > 0], weight_kind=kind)
    assert calibcli.measure(rows).estimates == calibcli.measure(fewer).estimates


def test_an_accumulator_reads_every_batch_as_it_read_the_first() -> None:
    made = calibcli.Accumulator().update(Z[:100], Y[:100])
    for batch in ([[0.2, 0.7, 0.9, 0.1]], [[0.0, 0.0, 1.0, 0.0]]):  # the second would pass for probabilities
        made.update(np.array(batch), [2])
    rows = np.concatenate([Z[:100], [[0.2, 0.7, 0.9, 0.1]], [[0.0, 0.0, 1.0, 0.0]]])
    whole = calibcli.measure(rows, [*Y[:100], 2, 2], "nll")["nll"].value
    assert made.result("nll")["nll"].value == pytest.approx(whole, rel=1e-9)


@pytest.mark.regression
@pytest.mark.parametrize("way", ["update", "merge", "load", "pickle", "tensor", "one row", "one column"])
def test_an_accumulator_refuses_probabilities_after_logits(way: str, tmp_path: Path) -> None:
    first = calibcli.Accumulator("nll").update(Z[:200], Y[:200])
    scores: Any = P[200:201] if way == "one row" else P[200:]
    labels = Y[200 : 200 + len(scores)]
    if way == "merge":
        first = calibcli.Accumulator("nll").merge(first)
    elif way == "load":
        first.save(tmp_path / "state.npz")
        first = calibcli.Accumulator.load(tmp_path / "state.npz")
    elif way == "pickle":
        first = pickle.loads(pickle.dumps(first))
    elif way == "tensor":
        scores = pytest.importorskip("torch").tensor(scores)
    elif way == "one column":
        hit, odds = (Y == 0).astype(int), np.log(P[:, 0] / (1 - P[:, 0]))
        first = calibcli.Accumulator("nll").update(odds[:200], hit[:200])
        scores, labels = P[200:, 0], hit[200:]
    with pytest.raises(calibcli.CalibError, match="these rows are probabilities, those before them logits") as refused:
        first.update(scores, labels)
    assert "np.log" in refused.value.fix
    assert first.rows == 200  # nothing was added
    first.update(np.log(scores) if way != "one column" else odds[200:], labels)
    whole = [Z, Y] if way != "one column" else [odds, hit]
    right = calibcli.measure(*[one[: first.rows] for one in whole], "nll")["nll"].value
    assert first.result("nll")["nll"].value == pytest.approx(right, rel=1e-6)


@pytest.mark.regression
@pytest.mark.parametrize("kind", [int, str])
def test_an_id_counts_once_in_an_accumulator(kind: type) -> None:
    """As where a sampler fills its last batch with rows of the first, or where ranges of workers overlap."""
    ids = np.array([kind(i) for i in range(N)])
    right = calibcli.measure(Z, Y, "nll")["nll"].value
    made = calibcli.Accumulator("nll")
    for start in range(0, N, 60):  # overlaps of 4 rows, and a last batch that is filled with the first rows
        rows = np.arange(start, start + 64) % N
        made.update(Z[rows], Y[rows], ids=ids[rows])
    made.update(Z[:120], Y[:120], ids=ids[:120])
    made.update(calibcli.from_arrays(Z[:5], Y[:5], ids=ids[:5]))
    assert made.rows == N
    assert made.result("nll")["nll"].value == pytest.approx(right, rel=1e-12)
    again = 64 * 7 - N + 120 + 5
    assert [note for note in made.result().notes if "left out" in note] == [
        f"{again} rows with an id that was added before left out"
    ]
    assert pickle.loads(pickle.dumps(made)).update(Z[:9], Y[:9], ids=ids[:9]).rows == N
    assert calibcli.Accumulator("nll").merge(made).update(Z[:9], Y[:9], ids=ids[:9]).rows == N
    twice = calibcli.Accumulator("nll").update(np.r_[Z, Z[:7]], np.r_[Y, Y[:7]], ids=np.r_[ids, ids[:7]])
    assert twice.rows == N
    assert calibcli.Accumulator().update(Z[:50], Y[:50]).update(Z[:50], Y[:50]).rows == 100  # without ids: other rows


def test_refusals_name_the_keywords_of_python() -> None:
    odd, right = np.tile([[0.2, 0.7, 0.9]], (30, 1)), [0] * 30
    asked = [
        lambda: calibcli.Accumulator().update(odd, right),
        lambda: calibcli.Watch(max={"ece": 0.1}).update(odd, right),
        lambda: calibcli.from_arrays(odd, right),
    ]
    for ask in asked:
        with pytest.raises(calibcli.CalibError) as found:
            ask()
        assert found.value.fix.endswith("kind='logits'")
    with pytest.raises(calibcli.CalibError, match="scale='100' if they are out of 100"):
        calibcli.from_confidence([0.9, 90.0], [0, 1])


def test_a_verdict_is_no_matter_of_case(tmp_path: Path) -> None:
    rows = [f"{p:.4f},{NAMES[i].upper()},{NAMES[y]}" for p, i, y in zip(P.max(1), P.argmax(1), Y, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["confidence,predicted,label", *rows, ""]))
    with pytest.raises(calibcli.CalibError, match="differ in case alone"):
        calibcli.measure(tmp_path / "a.csv")


def test_confidences_out_of_two_wholes_are_told() -> None:
    sure, right = np.linspace(50, 99, 200), [1, 1, 0, 1] * 50
    one = np.where(np.arange(200) == 7, 0.9, sure)
    assert any("1 of 200 confidences" in note for note in calibcli.from_confidence(one, right, scale="100").notes)
    for share in (0.02, 0.5, 0.98):
        mixed = np.where(np.arange(200) < 200 * share, sure / 100, sure)
        with pytest.raises(calibcli.CalibError, match="some are out of 1 and some out of 100"):
            calibcli.from_confidence(mixed, right, scale="100")
    texts = np.array([f"{c / 10:.1f} %" for c in sure - 50], object)  # each cell says what it is out of
    assert calibcli.from_confidence(texts, right).n == 200


def test_a_further_column_of_numbers_beside_columns_named_as_the_labels(tmp_path: Path) -> None:
    names, age = ["age", *NAMES], RNG.integers(20, 80, N)
    labels = np.array(NAMES)[Y]
    path = table(tmp_path / "a.csv", np.column_stack([age, P.round(6)]), labels, names)
    assert accuracy(path) == RIGHT  # the rows of four of the five columns sum to one
    logits = table(tmp_path / "z.csv", np.column_stack([age, Z.round(6)]), labels, names)
    with pytest.raises(calibcli.CalibError) as found:
        accuracy(logits)
    assert "scores='ant,bee,cat,dog' labels='label'" in found.value.fix
    assert calibcli.measure(path, "label", "accuracy", scores="ant,bee,cat,dog")["accuracy"].value == RIGHT
    fit = calibcli.fit_scaler(path, scores="ant,bee,cat,dog")
    rows = [",".join(map(str, row)) for row in np.column_stack([age, P.round(6)])]
    (tmp_path / "new.csv").write_text("\n".join([",".join(names), *rows, ""]))
    calibcli.apply(fit, tmp_path / "new.csv", save=tmp_path / "out.npz")
    mapped = fit.predict_proba(P.round(6))
    assert np.load(tmp_path / "out.npz")["probabilities"] == pytest.approx(mapped, abs=1e-6)


def test_rounded_probabilities_and_infinite_rows_have_a_fix_that_works() -> None:
    rough = P.round(2)
    with pytest.raises(calibcli.CalibError) as found:
        accuracy(rough, Y)
    assert "kind='probabilities'" in found.value.fix
    assert accuracy(rough, Y, kind="probabilities") > 0.5
    for value in (np.inf, -np.inf):
        z = Z.copy()
        z[3] = value
        with pytest.raises(calibcli.CalibError) as found:
            accuracy(z, Y, kind="logits")
        assert "kind=" not in found.value.fix


def test_a_decimal_comma_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('ant,bee,label\n"0,25","0,75",bee\n"0,5","0,5",ant\n')
    with pytest.raises(calibcli.CalibError) as found:
        calibcli.read(tmp_path / "a.csv")
    assert "decimal point" in found.value.fix


def test_limits_are_shown_in_four_digits() -> None:
    with pytest.raises(calibcli.CalibError, match=r"at least 0\.6931$|at least 0\.6931\n"):
        calibcli.check(Z, Y, max={"nll_wrong": 0.5})
