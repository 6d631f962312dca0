"""Results as Python shows them: printed, in a notebook, as frames and axes; and errors that name keywords."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import render_cases as cases
from pages import Page

import calibcli
from calibcli.cli.app import main
from calibcli.core import python_errors
from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.core.result import Estimate, Result

matplotlib.use("Agg")
ROOT = Path(__file__).parent.parent
FILE = np.load(ROOT / "sample_data" / "test.npz")
Z, Y = FILE["logits"], FILE["labels"]


@pytest.fixture(scope="module")
def found() -> Result:
    return calibcli.measure(Z, Y, "ece", "nll", "mce", by={"ink": FILE["ink"]})


def test_a_result_prints_as_its_table(found: Result) -> None:
    lines = str(found).splitlines()
    assert lines[0].startswith("calib metrics")
    assert re.search(r"(?m)^ece +0\.0646 .*\[0\.0459, 0\.0801\]", str(found))
    assert repr(found) == str(found)
    fit = calibcli.fit_scaler(Z, Y)
    assert re.search(r"(?m)^temperature +2\.81", repr(fit))


def test_an_estimate_is_a_number(found: Result) -> None:
    ece = found["ece"]
    assert float(ece) == ece.value
    assert f"{ece:.3f}" == "0.065"
    assert f"{ece:8.2%}" == "   6.46%"
    assert f"{ece}" == str(ece) == "ece 0.0646 [0.0459, 0.0801] (95 % each)"
    assert str(found["ece", "ink=heavy"]).startswith("ece ink=heavy 0.04")
    assert str(found["nll"]) == "nll 0.464 nats [0.341, 0.849] (95 %)"
    assert repr(ece).startswith("Estimate(name='ece', value=0.0646")
    none = Estimate(name="cox_slope", value=None, reason="one class alone")
    with pytest.raises(ValueError, match="cox_slope has no value: one class alone"):
        float(none)
    with pytest.raises(ValueError, match="has no value"):
        f"{none:.3f}"
    assert str(none) == "cox_slope —: one class alone"


def test_a_notebook_shows_tables_and_runs_nothing(found: Result) -> None:
    check = calibcli.check(Z, Y, max={"ece": 0.05})
    for shown in (found, check, calibcli.fit_scaler(Z, Y), found["ece"], *cases.odd().values()):
        tree = Page(shown._repr_html_())
        assert not {node.tag for node in tree.all()} & {"script", "img", "link", "iframe"}
        assert shown._repr_markdown_()
    cells = [cell.text.strip() for cell in Page(found._repr_html_()).all("td")]
    assert "0.0646" in cells
    assert "how" not in {head.text.strip() for head in Page(found._repr_html_()).all("th")}
    assert "[0.0459, 0.0801]" in cells
    assert Page(check._repr_html_()).all("p")[1].text == "INCONCLUSIVE: 1 inconclusive"
    assert re.search(r"\| `ece` \|[^\n]* 0\.0646 \|", found._repr_markdown_())
    style = Page(found._repr_html_()).all("style")[0].text
    for rule in re.findall(r"(?m)^\s*([^@{}\n]+?)\s*\{", style):  # of this cell, and of nothing else in the notebook
        assert all(".calib" in one for one in rule.split(",") if one.strip()), rule


def test_frames(found: Result) -> None:
    pandas = pytest.importorskip("pandas")
    frame = found.to_frame()
    assert frame["name"].tolist() == [e.name for e in found.estimates]
    assert frame.loc[(frame.name == "ece") & (frame.scope == ""), "value"].item() == found["ece"].value
    assert pandas.isna(frame.loc[frame.name == "mce", "low"]).all()
    assert found["ece"].to_frame().shape == (1, len(frame.columns))
    classes = calibcli.measure(Z, Y, "ece", per_class=True)
    [table] = [t for t in classes.tables if t.name == "per_class"]
    assert classes.to_frame("per_class").shape == (10, len(table.columns))
    with pytest.raises(UsageError, match="there is no table 'per_clas'"):
        classes.to_frame("per_clas")


def test_without_pandas_a_frame_says_what_to_install(found: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        found.to_frame()
    assert caught.value.fix == "pip install pandas"


def test_axes(found: Result) -> None:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2)
    assert calibcli.measure(Z, Y, diagram=True).plot(left) is left
    assert left.get_title(loc="left") or left.get_title()
    assert left.get_ylabel() == "accuracy"
    assert len(left.lines) + len(left.collections) >= 2
    assert found.plot(ax=right) is right
    assert [t.get_text() for t in right.get_yticklabels()][:2] == ["ece (probability)", "nll (nats)"]
    assert calibcli.measure(Z, Y).plot().get_ylabel() == "accuracy"
    own = found["nll"].plot()
    assert own.figure is not figure
    for result in (cases.scale(), cases.everything(), calibcli.fit_scaler(Z, Y)):
        result.plot()
    with pytest.raises(UsageError, match="nothing to draw"):
        Result(command="x").plot()
    pyplot.close("all")


def test_style_stays_the_readers(found: Result) -> None:
    before = dict(matplotlib.rcParams)
    found.plot()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_every_format_can_be_written(found: Result, tmp_path: Path) -> None:
    for suffix in (".html", ".json", ".csv", ".md", ".txt", ".png"):
        found.write(tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").stat().st_size > 200
    assert Result.from_json((tmp_path / "a.json").read_bytes()) == found
    calibcli.fit_scaler(Z, Y).write(str(tmp_path / "fit.html"))
    with pytest.raises(UsageError, match="cannot tell the format"):
        found.write(tmp_path / "a.xyz")


def test_nothing_is_loaded_before_somebody_looks() -> None:
    code = (
        "import sys, calibcli\n"
        "found = calibcli.measure([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1], 'accuracy')\n"
        "float(found['accuracy']), f\"{found['accuracy']:.3f}\"\n"
        "heavy = {'torch', 'matplotlib', 'pandas', 'sklearn', 'jinja2', 'rich', 'calibcli.render'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "str(found), found._repr_markdown_()\n"
        "assert not {'torch', 'matplotlib', 'pandas', 'sklearn', 'jinja2'} & set(sys.modules)\n"
        "found._repr_html_()\n"
        "assert not {'torch', 'matplotlib', 'pandas', 'sklearn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


class TestWords:
    """An option in an error is the keyword of the function that was called, and the option on the command line."""

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (lambda: calibcli.measure(Z, Y + 1), None),
            (lambda: calibcli.measure([[0.5, 0.6], [0.1, 0.2]], [0, 1]), "multilabel=True; of some of the answers"),
            (lambda: calibcli.measure([[0.5, 0.6], [0.1, 0.2]], [0, 1]), "out_of='sum'; logits that happen to"),
            (lambda: calibcli.measure([[0.5, 0.6], [0.1, 0.2]], [0, 1]), "lie there: kind='logits'"),
            (lambda: calibcli.measure([[np.nan, 0.6], [0.1, 0.2]], [0, 1]), "drop_nonfinite=True"),
            (lambda: calibcli.fit_scaler(Z, Y, by={"ink": FILE["ink"]}), "by="),
        ],
        ids=["labels", "flag", "total", "kind", "nan", "by"],
    )  # fmt: skip
    def test_python_reads_keywords(self, call, said) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(CalibError) as caught:
            call()
        assert "--" not in str(caught.value)
        assert said is None or said in str(caught.value)

    def test_the_command_line_reads_options(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        np.savez(tmp_path / "z.npz", logits=np.where(Z[0, 0] == Z, np.nan, Z), labels=Y)
        for _ in range(2):  # also after Python has asked
            assert main(["metrics", str(tmp_path / "z.npz")]) == 4
            assert "--drop-nonfinite" in capsys.readouterr().err
            assert main(["watch", str(tmp_path / "s.json"), str(tmp_path / "z.npz"), "--max", "ece=0.1"]) == 4
            assert "--drop-nonfinite" in capsys.readouterr().err  # of a method, which is of Python alone
            with pytest.raises(CalibError, match="drop_nonfinite=True"):
                calibcli.measure(tmp_path / "z.npz")

    @pytest.mark.parametrize(
        ("option", "keyword"),
        [
            ("pass --label-base 1", "pass label_base=1"),
            ("pass --labels KEY", "pass labels='KEY'"),
            ("--ignore-label -100 drops them", "ignore_label=-100 drops them"),
            ("say --event 'cat'", "say event='cat'"),
            ("with --kind logits.", "with kind='logits'."),
            ("--by splits them", "by= splits them"),
            ("(--clip makes it finite)", "(clip=True makes it finite)"),
            ("--classes cat,dog, or names", "classes='cat,dog', or names"),
            ("--lm-norm sum", "lm_norm='sum'"),
            ("--test FILE", "--test FILE"),
            ("a -- b", "a -- b"),
        ],
    )
    def test_wording(self, option: str, keyword: str) -> None:
        assert python_errors.keywords(option, inspect.signature(calibcli.measure).parameters) == keyword

    def test_limits_are_mappings(self) -> None:
        parameters = inspect.signature(calibcli.check).parameters
        assert python_errors.keywords("write --max ece=0.05", parameters) == "write max={'ece': 0.05}"

    def test_targets_are_keywords(self) -> None:
        parameters = inspect.signature(calibcli.export).parameters
        assert python_errors.keywords("use --to onnx, --to pt2 or x", parameters) == "use to='onnx', to='pt2' or x"
        assert python_errors.keywords("pass --calibrator FILE", parameters) == "pass --calibrator FILE"  # not a keyword

    def test_functions_are_themselves(self) -> None:
        for name in calibcli.__all__:
            one = getattr(calibcli, name)
            assert one is getattr(calibcli, name)
            assert one.__name__ == name
            assert one.__doc__
            if inspect.isfunction(one):
                assert pickle.loads(pickle.dumps(one)) is one


SHAPES = """check_fit_score_takes_y check_estimators_overwrite_params check_estimators_fit_returns_self check_fit1d
    check_readonly_memmap_input check_classifiers_classes check_supervised_y_2d check_classifiers_one_label
    check_classifiers_train check_n_features_in check_fit2d_predict1d check_requires_y_none check_dict_unchanged
    check_f_contiguous_array_estimator check_sample_weights_list check_sample_weight_equivalence_on_dense_data
    check_classifiers_one_label_sample_weights"""
OURS = """check_complex_data check_dtype_object check_estimators_empty_data_messages check_estimators_nan_inf
    check_estimator_sparse_tag check_estimator_sparse_array check_estimator_sparse_matrix check_supervised_y_no_nan
    check_classifiers_regression_target check_n_features_in_after_fitting check_all_zero_sample_weights_error"""
VOTES = """check_classifier_data_not_an_array check_estimators_dtypes check_sample_weights_not_an_array
    check_sample_weights_not_overwritten check_sample_weights_pandas_series check_sample_weights_shape"""


class TestScikitLearn:
    @pytest.mark.slow
    def test_around_a_classifier_it_passes_the_checks(self) -> None:
        pytest.importorskip("sklearn", minversion="1.6")
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC
        from sklearn.utils.estimator_checks import check_estimator

        maps = "temperature", "vector", "bcts", "dirichlet", "matrix"
        for method, model in zip(maps, [LogisticRegression(), LinearSVC(), *[LogisticRegression()] * 3], strict=True):
            found = check_estimator(calibcli.Calibrator(model, method), on_fail=None)
            failed = {one["check_name"]: str(one["exception"]) for one in found if one["status"] == "failed"}
            assert failed == {}
            assert len(found) > 40

    def test_on_scores_those_that_can_hold_do(self) -> None:
        """The checks feed features of any number, of which scores of K classes are only some."""
        pytest.importorskip("sklearn", minversion="1.6")
        from sklearn.utils.estimator_checks import check_estimator

        expected = dict.fromkeys(SHAPES.split(), "features are not scores: their columns are not the classes")
        expected |= dict.fromkeys(OURS.split(), "refused with calib's own error, which is no ValueError")
        expected |= dict.fromkeys(VOTES.split(), "scores that are whole numbers may be votes, and are refused")
        found = check_estimator(calibcli.Calibrator(), expected_failed_checks=expected, on_fail=None)
        assert {one["check_name"] for one in found if one["status"] == "failed"} == set()
        assert sum(one["status"] == "passed" for one in found) > 20

    def test_scores_give_what_fit_scaler_gives(self) -> None:
        model = calibcli.Calibrator(method="vector").fit(Z, Y)
        assert np.array_equal(model.predict_proba(Z), calibcli.fit_scaler(Z, Y, "vector").predict_proba(Z))
        names = np.array([f"class {i}" for i in range(10)])
        named = calibcli.Calibrator(method="vector").fit(Z, names[Y])
        assert np.array_equal(named.predict(Z), names[model.predict(Z)])
        two = calibcli.Calibrator(method="platt").fit(Z[:, :1] - Z[:, 1:2], Y == 0)
        assert two.predict_proba(Z[:3, :1]).shape == (3, 2)
        with pytest.raises(InputError, match="labels have 3 values, the scores 10 columns"):
            calibcli.Calibrator().fit(Z, np.array(["a", "b", "c"])[Y % 3])

    def test_the_map_sees_rows_that_the_classifier_did_not(self) -> None:
        """A nearest neighbour is sure of the rows it has seen, whatever their labels."""
        pytest.importorskip("sklearn")
        from sklearn.neighbors import KNeighborsClassifier

        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(400, 2)), rng.integers(0, 2, 400)
        model = calibcli.Calibrator(KNeighborsClassifier(1), "platt").fit(x, y)
        assert abs(model.predict_proba(x) - 0.5).max() < 0.1

    def test_weights_and_signs_of_scores(self) -> None:
        model = calibcli.Calibrator().fit(Z, Y)
        weights = np.where(Y == 0, 5.0, 1.0)
        expected = calibcli.measure(model.predict_proba(Z), Y, "nll", weights=weights)["nll"].value
        assert calibcli.scorer("nll")(model, Z, Y, sample_weight=weights) == pytest.approx(-expected)
        assert calibcli.scorer("accuracy")(model, Z, Y) == pytest.approx((model.predict(Z) == Y).mean())
        with pytest.warns(UserWarning, match="is not a proper score"):
            gap = calibcli.scorer("confidence_gap")
        assert gap(model, Z, Y) <= 0
        with pytest.warns(UserWarning, match="ece is not a proper score"):
            assert calibcli.scorer("ece")(model, Z, Y) < 0
        for name in ("eec", "entropy"):
            with pytest.raises(UsageError):
                calibcli.scorer(name)

    @pytest.mark.regression
    def test_raw_scores_are_no_probabilities(self) -> None:
        """Boosted trees with an objective of one's own give margins as `predict_proba`; clipped, they rank no more."""
        pytest.importorskip("sklearn")
        from sklearn.linear_model import LogisticRegression

        class Margins(LogisticRegression):
            columns = 1

            def predict_proba(self, X: np.ndarray) -> np.ndarray:
                margin = self.decision_function(X)
                return margin if self.columns == 1 else np.column_stack([-margin, margin])

        rng = np.random.default_rng(3)
        x = rng.normal(size=(600, 2))
        y = (x[:, 0] + rng.normal(size=600) > 0).astype(int)
        for Margins.columns in (1, 2):
            for method in ("platt", "isotonic", "temperature", "beta"):
                with pytest.raises(InputError, match="raw scores") as refused:
                    calibcli.Calibrator(Margins(), method).fit(x, y)
            assert "Calibrator(method=method).fit(scores, labels)" in refused.value.fix
            fitted = Margins().fit(x[:300], y[:300])
            for metric in ("nll", "brier"):
                with pytest.raises(InputError, match="raw scores"):
                    calibcli.scorer(metric)(fitted, x, y)
        Margins.columns = 1
        right = calibcli.Calibrator(LogisticRegression(), "platt").fit(x, y)
        fixed = calibcli.Calibrator(method="platt").fit(fitted.predict_proba(x[300:]), y[300:])  # what the error says
        nll = [calibcli.measure(p, y[300:], "nll")["nll"].value for p in (
            fixed.predict_proba(fitted.predict_proba(x[300:])), right.predict_proba(x[300:]),
        )]  # fmt: skip
        assert nll[0] == pytest.approx(nll[1], abs=0.03)
        sure = calibcli.fit_scaler(right.predict_proba(x), y, "temperature", kind="probabilities")
        with pytest.raises(InputError, match="raw scores"):
            calibcli.Calibrator.from_scaler(sure, fitted).predict_proba(x)
        assert calibcli.Calibrator(LogisticRegression(), "platt").fit(x.astype(np.float32), y).score(x, y) > 0.7

    @pytest.mark.regression
    @pytest.mark.parametrize("name", ["TimeSeriesSplit", "ShuffleSplit", "RepeatedKFold", "RepeatedStratifiedKFold"])
    def test_folds_that_leave_a_row_out_never_or_twice(self, name: str) -> None:
        selection = pytest.importorskip("sklearn.model_selection")
        from sklearn.linear_model import LogisticRegression

        x, y = Z[:, :3], (Y > 4).astype(int)
        with pytest.raises(InputError, match=f"{name} leaves row .* out .* times"):
            calibcli.Calibrator(LogisticRegression(), "platt", cv=getattr(selection, name)()).fit(x, y)
        with pytest.raises(InputError, match="cv leaves row 0 out 0 times"):
            calibcli.Calibrator(LogisticRegression(), "platt", cv=[(np.arange(100), np.arange(100, 997))]).fit(x, y)
        with pytest.raises(UsageError, match="cv is a text") as refused:
            calibcli.Calibrator(LogisticRegression(), "platt", cv="prefit").fit(x, y)
        assert "FrozenEstimator" in refused.value.fix

    @pytest.mark.regression
    def test_rows_of_a_group_are_left_out_together(self) -> None:
        """Copies of a row, of which a nearest neighbour has seen one, unless all are left out with it."""
        selection = pytest.importorskip("sklearn.model_selection")
        from sklearn.neighbors import KNeighborsClassifier

        rng = np.random.default_rng(0)
        groups = rng.permutation(np.repeat(np.arange(200), 3))
        x, y = rng.normal(size=(200, 2))[groups], rng.integers(0, 2, 200)[groups]
        sure = calibcli.Calibrator(KNeighborsClassifier(1), "platt").fit(x, y)
        assert abs(sure.predict_proba(x) - 0.5).max() > 0.4
        for cv in (5, None, selection.GroupKFold(5)):
            model = calibcli.Calibrator(KNeighborsClassifier(1), "platt", cv=cv).fit(x, y, groups=groups)
            assert abs(model.predict_proba(x) - 0.5).max() < 0.15
        with pytest.raises(UsageError, match="GroupKFold splits by groups"):
            calibcli.Calibrator(KNeighborsClassifier(1), "platt", cv=selection.GroupKFold(5)).fit(x, y)
        scores = calibcli.Calibrator(method="platt").fit(x[:, 0], y, groups=groups).fit_
        assert scores.estimates == calibcli.fit_scaler(x[:, 0], y, "platt", group=groups).estimates

    @pytest.mark.regression
    def test_a_weight_is_so_many_rows(self) -> None:
        pytest.importorskip("sklearn")
        from sklearn.linear_model import LogisticRegression

        weights = np.random.default_rng(0).integers(1, 4, len(Y))
        repeated = np.repeat(np.arange(len(Y)), weights)
        one = calibcli.Calibrator(method="vector").fit(Z, Y, sample_weight=weights)
        many = calibcli.Calibrator(method="vector").fit(Z[repeated], Y[repeated])
        assert np.allclose(one.predict_proba(Z), many.predict_proba(Z), atol=1e-4)
        plain, y = LogisticRegression(C=1e3), (Y > 4).astype(int)
        heavy = np.where(y == 1, 5.0, 1.0)
        model = calibcli.Calibrator(plain, "platt").fit(Z[:, :4], y, sample_weight=heavy)
        assert np.allclose(model.estimator_.coef_, plain.fit(Z[:, :4], y, sample_weight=heavy).coef_)
        assert model.predict_proba(Z[:, :4])[:, 1].mean() == pytest.approx(np.average(y, weights=heavy), abs=0.1)

    @pytest.mark.regression
    def test_the_estimator_comes_first(self) -> None:
        pytest.importorskip("sklearn")
        from sklearn.linear_model import LogisticRegression

        for wrong in (calibcli.Calibrator("temperature", LogisticRegression()), calibcli.Calibrator("temperature")):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"the estimator is a text: write Calibrator\(classifier, 'platt'\)"):
                wrong.fit(Z, Y)
        with pytest.raises(TypeError, match="the method is no text"):
            calibcli.Calibrator(None, LogisticRegression()).fit(Z, Y)  # type: ignore[arg-type]

    @pytest.mark.slow
    def test_it_stands_where_other_classifiers_do(self) -> None:
        """In a pipeline, a search, a cross-validation, copies and pickles, with weights of samples."""
        pytest.importorskip("sklearn")
        from sklearn.base import clone
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, cross_val_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        x, weights = Z[:400], np.random.default_rng(0).uniform(0.5, 2, 400)
        names = np.array(["no", "yes"])[(Y[:400] > 4).astype(int)]
        model = make_pipeline(StandardScaler(), calibcli.Calibrator(LogisticRegression(), "sigmoid"))
        assert cross_val_score(model, x, names, cv=3).min() > 0.7
        search = GridSearchCV(
            calibcli.Calibrator(LogisticRegression()),
            {"method": ["platt", "beta"], "estimator__C": [0.1, 1.0]},
            scoring=calibcli.scorer("nll"),
            cv=3,
        ).fit(x, names, sample_weight=weights)
        assert search.best_params_["method"] in ("platt", "beta")
        fitted = model.fit(x, names, calibrator__sample_weight=weights)
        again = pickle.loads(pickle.dumps(fitted))
        assert np.array_equal(again.predict_proba(x), fitted.predict_proba(x))
        assert again.classes_.tolist() == ["no", "yes"]
        copy = clone(fitted[-1])
        assert copy.get_params()["method"] == "sigmoid"
        assert not hasattr(copy, "fit_")

    def test_sigmoid_is_the_name_of_scikit_learn_for_platt(self) -> None:
        one, other = (calibcli.Calibrator(method=name).fit(Z[:, 0], Y == 0) for name in ("sigmoid", "platt"))
        assert np.array_equal(one.predict_proba(Z[:, 0]), other.predict_proba(Z[:, 0]))

    @pytest.mark.regression
    def test_a_label_of_probability_0_has_a_finite_score(self) -> None:
        """One tree, or a nearest neighbour, is sure and wrong somewhere: nan would end a search over all models."""
        pytest.importorskip("sklearn")
        from sklearn.tree import DecisionTreeClassifier

        model = DecisionTreeClassifier(random_state=0).fit(Z[:500], Y[:500])
        p = model.predict_proba(Z[500:])
        wrong = np.mean(p[np.arange(len(p)), Y[500:]] == 0)
        assert wrong > 0
        for weights in (None, np.ones(len(p))):
            score = calibcli.scorer("nll")(model, Z[500:], Y[500:], sample_weight=weights)
            assert score == pytest.approx(wrong * np.log(1e-15), rel=1e-6)
        assert calibcli.scorer("brier")(model, Z[500:], Y[500:]) == pytest.approx(
            -np.mean(((p - np.eye(10)[Y[500:]]) ** 2).sum(1))
        )

    def test_scores_need_no_scikit_learn(self) -> None:
        code = (
            "import sys; sys.modules['sklearn'] = None\n"
            "import numpy as np, calibcli\n"
            "f = np.load('sample_data/test.npz'); z, y = f['logits'], f['labels']\n"
            "model = calibcli.Calibrator().fit(z, y)\n"
            "assert model.predict_proba(z).shape == (997, 10) and calibcli.scorer('nll')(model, z, y) < 0\n"
            "try: calibcli.Calibrator().predict(z)\n"
            "except ValueError as error: assert 'not fitted' in str(error)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
