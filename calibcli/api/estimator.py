"""Calibration for scikit-learn: a scorer of any metric, and an estimator. scikit-learn is needed where it is used."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from calibcli.api import fixing, measuring
from calibcli.calibrators import Fit, Scaler, same_order
from calibcli.core import python_errors
from calibcli.core.errors import InputError, UsageError
from calibcli.core.result import Estimate
from calibcli.metrics import METRICS

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ModuleNotFoundError:  # scores need none of it
    BaseEstimator, ClassifierMixin = object, type("ClassifierMixin", (), {})

__all__ = ["Calibrator", "scorer"]

fit_scaler, measure = python_errors.in_python(fixing.fit_scaler), python_errors.in_python(measuring.measure)
LEAST = 1e-15  # smallest probability, as with `clip`, so that an estimator's 0 has a finite logarithm


def scorer(metric: str) -> Callable[..., float]:
    """Return a metric as `scoring=` of scikit-learn: larger is better, so losses and errors are negative.

    A calibration error is not proper: it is best for a model that gives every row the class frequencies. Models chosen
    by it may be worse; a warning says so. `nll` and `brier` are proper (Gneiting and Raftery 2007).

    >>> model = Calibrator().fit(logits, labels)  # or any classifier of scikit-learn
    >>> round(scorer("nll")(model, logits, labels), 2), scorer("accuracy")(model, logits, labels) > 0.9
    (-0.26, True)

    Args:
        metric: e.g. `nll`, `brier`, `ece:bins=30`.

    Returns:
        `score(estimator, X, y, sample_weight=None)`, of an estimator with `predict_proba` and `classes_`.

    Raises:
        UsageError: an unknown metric, or one that is neither good nor bad.
    """
    choice = METRICS.choose(metric)
    better = choice.traits.get("better", "")
    if not better:
        raise UsageError(f"{choice.spec} is neither better high nor low", "choose nll or brier")
    if not choice.traits.get("proper"):
        warnings.warn(
            f"{choice.spec} is not a proper score: other probabilities than the true ones may have the best. "
            "Choose models by scorer('nll') or scorer('brier')",
            stacklevel=2,
        )

    def score(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        probabilities = np.asarray(estimator.predict_proba(X))
        labels = _codes(np.asarray(y), np.asarray(estimator.classes_))
        measured = measure(probabilities, labels, choice.spec, kind="probabilities", weights=sample_weight)
        value = float(next(iter(measured.values())))
        return value if better == "higher" else -abs(value) if better == "zero" else -value

    score.__name__ = f"scorer({choice.spec!r})"
    return score


class Calibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """A calibration map with `fit` and `predict_proba`, of scores or around a scikit-learn classifier.

    Around a classifier the map is fitted on cross-validated scores, and the classifier then on all rows: no row is
    scored by a model that saw it (Platt 1999; `ensemble=False` of scikit-learn). A classifier that is fitted already
    goes in as `sklearn.frozen.FrozenEstimator`, with rows that it has not seen.

    >>> Calibrator().fit(logits, labels).predict_proba(logits).shape
    (997, 10)
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = Calibrator("temperature", GaussianNB()).fit(logits, labels)
    >>> model.fit_["temperature"].value > 1, model.classes_.tolist() == list(range(10))
    (True, True)

    Args:
        method: of `fit_scaler`: `temperature`, `vector`, `isotonic`, ...
        estimator: a classifier with `predict_proba` or `decision_function`; None: `X` are the scores, logits or
            probabilities (N, K), and labels the names of their columns in order.
        cv: folds, as scikit-learn takes them.
        seed: of what is random in the fit.

    Attributes:
        classes_: the labels, sorted, as columns of `predict_proba`.
        fit_: the `Fit`, with its estimates.  estimator_: the classifier, fitted on all rows.
    """

    _least = LEAST

    def __init__(self, method: str = "temperature", estimator: Any = None, *, cv: Any = 5, seed: int = 0) -> None:
        self.method = method
        self.estimator = estimator
        self.cv = cv
        self.seed = seed

    @classmethod
    def from_scaler(cls, scaler: Scaler | Fit, estimator: Any = None) -> Calibrator:
        """Return a fitted Calibrator with a map that is already fitted, for scores or around a classifier.

        >>> scaler = calibcli.fit_scaler(logits, labels).scaler  # or calibcli.load_scaler("temperature.safetensors")
        >>> Calibrator.from_scaler(scaler).predict(logits[:3]).shape
        (3,)

        Args:
            scaler: of `fit_scaler` or `load_scaler`.
            estimator: a fitted classifier; rows reach the map through its `decision_function` where that was fitted on
                logits, else through its `predict_proba`.

        Raises:
            InputError: the classifier has other classes, or has them in another order.
            UsageError: it has no method that gives such scores.
        """
        if isinstance(scaler, Fit):
            fit = scaler
        else:
            fit = Fit(scaler.parameters, [Estimate(**e) for e in scaler.metadata.get("estimates", ())], scaler=scaler)
        one, calibrator = fit.scaler, cls(fit.scaler.spec, estimator)
        names = np.arange(one.k) if one.classes is None else np.array(one.classes)
        calibrator._least = 0.0
        if estimator is None:
            calibrator.classes_, calibrator.n_features_in_ = names, one.columns
        else:
            calibrator.estimator_, calibrator.classes_ = estimator, np.asarray(estimator.classes_)
            if (k := len(calibrator.classes_)) != one.k:
                problem = f"the classifier has {k} classes, the calibrator was fitted on {one.k}"
                raise InputError(problem, "fit a calibrator on outputs of this classifier")
            same_order(one, calibrator.classes_, "the classifier")
            calibrator._copy_features()
            if one.kind == "log_probabilities":  # which nothing in scikit-learn gives by itself
                metadata = {**one.metadata, "kind": "probabilities"}
                fit = dataclasses.replace(fit, scaler=dataclasses.replace(one, metadata=metadata))
            _way(estimator, fit.scaler.kind)
        calibrator.fit_ = fit
        return calibrator

    def fit(self, X: Any, y: Any) -> Calibrator:
        """Fit the classifier, if there is one, and the map.

        >>> round(Calibrator().fit(logits, labels).fit_["temperature"].value, 2)
        2.81

        Raises:
            InputError: scores that the method cannot be fitted to.
        """
        self._least = LEAST
        if self.estimator is None:
            scores = np.asarray(X)
            self.n_features_in_ = 1 if scores.ndim == 1 else scores.shape[1]
            self.classes_ = _classes(np.asarray(y), max(self.n_features_in_, 2))
            codes, kind = _codes(np.asarray(y), self.classes_), None
        else:
            scores, codes, kind = self._cross_fitted(X, y)
        if len(self.classes_) > 1:
            cut = LEAST if self.estimator is not None and kind == "probabilities" else None  # the map keeps it
            self.fit_ = fit_scaler(scores, codes, self.method, kind=kind, seed=self.seed, clip=cut)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Compute calibrated probabilities (N, K) float64.

        >>> float(Calibrator().fit(logits, labels).predict_proba(logits).sum().round(6))
        997.0

        Raises:
            NotFittedError: this is not fitted.  ValueError: likewise, where scikit-learn is not installed.
        """
        if not self.__sklearn_is_fitted__():
            problem = "this Calibrator is not fitted: call fit(scores, labels) first"
            with contextlib.suppress(ModuleNotFoundError):
                from sklearn.exceptions import NotFittedError

                raise NotFittedError(problem)
            raise ValueError(problem)
        if self.estimator is None:
            return self.fit_.predict_proba(X)
        if len(self.classes_) == 1:
            return np.ones((len(self._scores(self.estimator_, X)), 1))
        return self.fit_.predict_proba(self._scores(self.estimator_, X, self.fit_.scaler.kind))

    def predict(self, X: Any) -> Any:
        """Return the labels (N,) of the highest probability.

        >>> Calibrator().fit(logits, labels).predict(logits[:3]).shape
        (3,)
        """
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def _cross_fitted(self, X: Any, y: Any) -> tuple[Any, Any, Any]:
        """Cross-fit the classifier: return scores of every row by a classifier that did not see it, the codes of the
        labels, and the kind of the scores."""
        from sklearn.base import clone
        from sklearn.model_selection import check_cv, cross_val_predict
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import column_or_1d, indexable

        X, y = indexable(X, y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.estimator_ = clone(self.estimator).fit(X, y)
        self._copy_features()
        self.classes_, codes = np.unique(y, return_inverse=True)
        known = np.asarray(getattr(self.estimator_, "classes_", self.classes_))
        if frozen := not np.array_equal(known, self.classes_):  # nothing else has classes that `y` does not have
            self.classes_, codes = known, _codes(np.asarray(y), known)
        if len(self.classes_) == 1:
            return None, codes, None
        way, kind = _way(self.estimator_)
        fewest = int(np.bincount(codes).min())
        if frozen or (isinstance(self.cv, int) and fewest < 2):
            return self._scores(self.estimator_, X), codes, kind  # nothing can be left out
        folds = check_cv(min(self.cv, fewest) if isinstance(self.cv, int) else self.cv, y, classifier=True)
        scores = cross_val_predict(clone(self.estimator), X, y, cv=folds, method=way)
        return _filled(scores, kind, LEAST), codes, kind

    def _copy_features(self) -> None:
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))

    def _scores(self, estimator: Any, X: Any, kind: str | None = None) -> Any:
        way, kind = _way(estimator, kind)
        return _filled(getattr(estimator, way)(X), kind, self._least)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            from sklearn.utils import get_tags

            tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_") and (hasattr(self, "fit_") or len(self.classes_) == 1)


def _way(estimator: Any, kind: str | None = None) -> tuple[str, str]:
    """Return the method by which an estimator gives scores (of this kind, if given), and their kind."""
    ways = {"probabilities": "predict_proba", "logits": "decision_function"}
    for gives, way in ways.items():
        if kind in (None, gives) and hasattr(estimator, way):
            return way, gives
    lacks = f"no {ways[kind]}" if kind else "neither predict_proba nor decision_function"
    raise UsageError(f"{type(estimator).__name__} has {lacks}", "pass a classifier that has it")


def _filled(scores: Any, kind: str, least: float) -> Any:
    """Convert scores to float64 and clip them: trees and nearest neighbours give probabilities of 0 and 1."""
    values = np.asarray(scores, np.float64)
    return np.clip(values, least, 1.0) if kind == "probabilities" else np.clip(values, -1e9, 1e9)


def _classes(labels: Any, k: int) -> Any:
    """Return the class of each column of scores: 0 to K - 1, or the labels themselves if there are K of them."""
    present = np.unique(labels)
    if np.issubdtype(present.dtype, np.integer) and present.min() >= 0 and present.max() < k:
        return np.arange(k)
    if len(present) != k:
        raise InputError(f"labels have {len(present)} values, the scores {k} columns", "pass labels 0 to K - 1")
    return present


def _codes(labels: Any, classes: Any) -> Any:
    """Convert labels to positions among the classes.

    Raises:
        InputError: a label is not a class.
    """
    order = np.argsort(classes)
    at = np.clip(np.searchsorted(classes, labels, sorter=order), 0, len(classes) - 1)
    codes = order[at]
    if (wrong := np.flatnonzero(classes[codes] != labels)).size:
        raise InputError(f"label {labels[wrong[0]]!r} is none of the estimator's classes", "score rows of its classes")
    return codes
