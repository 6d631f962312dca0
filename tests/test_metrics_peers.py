"""Other libraries as oracles where they compute the same thing; where they do not, a test says by how much and why."""

from __future__ import annotations

import numpy as np
import pytest
from populations import values

from calibcli import metrics
from calibcli.scores.predictions import Predictions

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


def data(n: int = 2000, k: int = 5, seed: int = 0, sharpen: float = 1.7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 2
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return z * sharpen, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def value(z: np.ndarray, y: np.ndarray, spec: str, **fields: object) -> float:
    return values(Predictions.of(z, y, **fields), [spec])[spec]


class TestTorchmetrics:
    tm = pytest.importorskip("torchmetrics.functional.classification")

    def ece(self, p: np.ndarray, y: np.ndarray, norm: str, bins: int = 15) -> float:
        found = self.tm.multiclass_calibration_error(
            torch.from_numpy(p), torch.from_numpy(y), p.shape[1], n_bins=bins, norm=norm
        )
        return float(found)

    @pytest.mark.parametrize(("name", "norm"), [("ece", "l1"), ("ece_l2", "l2"), ("mce", "max")])
    def test_agrees_up_to_its_float32_sums(self, name: str, norm: str) -> None:
        z, y = data()
        wanted = self.ece(softmax(z), y, norm)
        assert value(z, y, f"{name}:edges=torchmetrics") == pytest.approx(wanted, rel=2e-6)
        assert value(z, y, f"{name}:edges=torchmetrics") * 1.01 != pytest.approx(wanted, rel=2e-6)

    def test_puts_confidence_1_into_a_bin_of_its_own(self) -> None:
        z, y = data(400, 3, sharpen=0.6)
        z[:80] = [800.0, 0.0, 0.0]
        y[:80] = np.arange(80) % 2
        theirs = self.ece(softmax(z), y, "l1", bins=2)
        assert value(z, y, "ece:bins=2,edges=torchmetrics") == pytest.approx(theirs, rel=2e-6)
        assert abs(value(z, y, "ece:bins=2") - theirs) > 1e-3

    def test_binary_error_is_of_the_positive_class(self) -> None:
        z, y = data(k=2)
        p = torch.from_numpy(softmax(z)[:, 1])
        theirs = float(self.tm.binary_calibration_error(p, torch.from_numpy(y), n_bins=10, norm="l1"))
        assert value(z, y, "ece:bins=10,edges=torchmetrics") == pytest.approx(theirs, rel=2e-6)


class TestSklearn:
    sk = pytest.importorskip("sklearn.metrics")

    def test_log_loss_and_accuracy(self) -> None:
        z, y = data()
        assert value(z, y, "nll") == pytest.approx(self.sk.log_loss(y, softmax(z), labels=range(5)), rel=1e-12)
        assert value(z, y, "accuracy") == pytest.approx(self.sk.accuracy_score(y, softmax(z).argmax(axis=1)))

    def test_weighted_log_loss(self) -> None:
        z, y = data()
        w = np.random.default_rng(0).random(len(y))
        theirs = self.sk.log_loss(y, softmax(z), labels=range(5), sample_weight=w)
        assert value(z, y, "nll", weights=w) == pytest.approx(theirs, rel=1e-12)

    def test_clips_probabilities_that_we_keep(self) -> None:
        z = np.array([[900.0, 0.0], [3.0, 0.0]])
        theirs = self.sk.log_loss([1, 0], softmax(z), labels=[0, 1])
        assert value(z, np.array([1, 0]), "nll") == pytest.approx(450 + np.log1p(np.exp(-3)) / 2)
        assert theirs < 25

    @pytest.mark.regression("1.5")
    @pytest.mark.parametrize("k", [2, 5, 100])
    def test_brier_is_theirs(self, k: int) -> None:
        z, y = data(k=k)
        p = softmax(z)
        theirs = self.sk.brier_score_loss(y, p[:, 1] if k == 2 else p, labels=range(k), scale_by_half="auto")
        assert value(z, y, "brier") == pytest.approx(theirs, rel=1e-12)

    def test_top_k_accuracy(self) -> None:
        from calibcli.metrics.report import ReportOptions, report

        z, y = data()
        table = next(t for t in report(Predictions.of(z, y), ReportOptions(top_k=3)).tables if t.name == "top_k")
        for row in table.rows:
            assert row[1] == pytest.approx(self.sk.top_k_accuracy_score(y, z, k=row[0], labels=range(5)))

    def test_cox_is_its_logistic_regression_without_penalty(self) -> None:
        linear = pytest.importorskip("sklearn.linear_model")
        z, y = data()
        p = softmax(z)
        c, hit = p.max(axis=1), p.argmax(axis=1) == y
        x = np.log(c / (1 - c))[:, None]
        fit = linear.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, hit)
        assert value(z, y, "cox_slope") == pytest.approx(float(fit.coef_[0, 0]), rel=1e-4)
        assert value(z, y, "cox_intercept") == pytest.approx(float(fit.intercept_[0]), rel=1e-4)


class TestRelplot:
    rp = pytest.importorskip("relplot.metrics")

    def test_smece_agrees_up_to_its_mesh_and_ten_bisections(self) -> None:
        z, y = data()
        p = softmax(z)
        theirs, width = self.rp.smECE(p.max(axis=1), (p.argmax(axis=1) == y) * 1.0, return_width=True)
        assert value(z, y, "smece") == pytest.approx(theirs, abs=2e-3)
        assert value(z, y, "smece") == pytest.approx(width, abs=2e-3)
        assert value(z, y, "smece") * 1.05 != pytest.approx(theirs, abs=2e-3)

    def test_fixed_bandwidth_agrees_up_to_its_200_point_mesh(self) -> None:
        z, y = data(seed=3)
        p = softmax(z)
        theirs = self.rp.smECE_sigma(p.max(axis=1), (p.argmax(axis=1) == y) * 1.0, sigma=0.05)
        assert value(z, y, "smece:sigma=0.05") == pytest.approx(theirs, rel=1e-2)

    @pytest.mark.parametrize(("n", "sharpen", "sigma"), [(50, 1.0, 0.2), (2000, 1.7, 0.05), (3000, 6.0, 0.003)])
    def test_mesh_is_its_number(self, n: int, sharpen: float, sigma: float) -> None:
        z, y = data(n, sharpen=sharpen, seed=n)
        p = softmax(z)
        c, hit = p.max(axis=1), (p.argmax(axis=1) == y) * 1.0
        for spec, theirs in (
            ("smece:variant=relplot", self.rp.smECE(c, hit)),
            (f"smece:variant=relplot,sigma={sigma}", self.rp.smECE_sigma(c, hit, sigma)),
        ):
            assert value(z, y, spec) == pytest.approx(theirs, rel=1e-9)
            assert value(z, y, spec) * 1.01 != pytest.approx(theirs, rel=1e-9)
            counts = np.arange(n) % 3
            repeated = value(np.repeat(z, counts, axis=0), np.repeat(y, counts), spec)
            weighted = value(z, y, spec, weights=counts.astype(float), weight_kind="count")
            assert weighted == pytest.approx(repeated, rel=1e-9)

    def test_mesh_has_no_interval_and_needs_two_points(self) -> None:
        z, y = data(100)
        (e,) = metrics.measure(Predictions.of(z, y), ["smece:variant=relplot"])
        assert (e.low, e.high, e.null) == (None, None, None)
        assert "mesh" in e.reason
