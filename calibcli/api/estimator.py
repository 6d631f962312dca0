"""Calibration for scikit-learn: a scorer of any metric, and an estimator. scikit-learn is needed where it is used."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from calibcli.api import fixing, measuring
from calibcli.calibrators import Fit, Scaler, same_order
from calibcli.core import python_errors
from calibcli.core.errors import InputError, UsageError
from calibcli.core.number_format import first_few
from calibcli.core.options import Cut, within
from calibcli.core.result import Estimate
from calibcli.metrics import METRICS
from calibcli.scores import data_frames, from_arrays
from calibcli.scores.files.text_tables import is_number
from calibcli.scores.predictions import UNIT_HIGH, UNIT_LOW, Floats

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ModuleNotFoundError:  # scores need none of it
    BaseEstimator, ClassifierMixin = object, type("ClassifierMixin", (), {})

__all__ = ["Calibrator", "scorer"]

fit_scaler, measure = python_errors.in_python(fixing.fit_scaler), python_errors.in_python(measuring.measure)
ALIASES = {"sigmoid": "platt"}  # names of scikit-learn
LEAST = 1e-15  # smallest probability, as with `clip`, so that an estimator's 0 has a finite logarithm


def scorer(metric: str, *, clip: float | None = None) -> Callable[..., float]:
    """Return a metric as `scoring=` of scikit-learn: larger is better, so losses and errors are negative.

    A calibration error is not proper: it is best for a model that gives every row the class frequencies. Models chosen
    by it may be worse; a warning says so. `nll` and `brier` are proper (Gneiting and Raftery 2007).

    >>> model = Calibrator().fit(logits, labels)  # or any classifier of scikit-learn
    >>> round(scorer("nll")(model, logits, labels), 2), scorer("accuracy")(model, logits, labels) > 0.9
    (-0.26, True)

    Args:
        metric: e.g. `nll`, `brier`, `ece:bins=30`.  clip: what smaller probabilities are raised to.

    Returns:
        `score(estimator, X, y, sample_weight=None)`, of an estimator with `predict_proba` and `classes_`. Where a label
        has probability 0, a loss that would be infinite is that of a probability of `clip`, or of 1e-15, which one
        wrong row of a forest or of nearest neighbours needs to be comparable at all.

    Raises:
        UsageError: an unknown metric, one that is neither good nor bad, or a `clip` that is no small probability.
    """
    if clip is not None:
        within(clip, Cut, "clip=")
    choice = METRICS.choose(metric)
    better = choice.traits.better
    if not better:
        raise UsageError(f"{choice.spec} is neither better high nor low", "choose nll or brier")
    if not choice.traits.proper:
        warnings.warn(
            f"{choice.spec} is not a proper score: other probabilities than the true ones may have the best. "
            "Choose models by scorer('nll') or scorer('brier')",
            stacklevel=2,
        )
    return Scorer(choice.spec, better, clip)


@dataclass(frozen=True)
class Scorer:
    """A metric as `scoring=` of scikit-learn: what `scorer` returns, which workers can be sent.

    Attributes:
        metric: its spec.  better: `higher`, `lower` or `zero`.  clip: what smaller probabilities are raised to.
    """

    metric: str
    better: str
    clip: float | None = None

    @property
    def __name__(self) -> str:
        return f"scorer({self.metric!r}{'' if self.clip is None else f', clip={self.clip:g}'})"

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        data_frames.refuse_other_order({"X": X, "y": y, "sample_weight": sample_weight})
        given, classes = estimator.predict_proba(X), np.asarray(estimator.classes_)
        data_frames.refuse_moved_columns(data_frames.names_of(given), [str(name) for name in classes])
        probabilities, labels = np.asarray(given), _codes(np.asarray(y), classes)
        _refuse_raw(probabilities, estimator)
        how: dict[str, Any] = {"kind": "probabilities", "weights": sample_weight, "clip": self.clip}
        estimate = next(iter(measure(probabilities, labels, self.metric, **how).values()))
        if estimate.value is None:  # the logarithm of a probability of 0
            estimate = next(iter(measure(probabilities, labels, self.metric, **{**how, "clip": True}).values()))
        value = float(estimate)
        return value if self.better == "higher" else -abs(value) if self.better == "zero" else -value


class Calibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """A calibration map with `fit` and `predict_proba`, of scores or around a scikit-learn classifier.

    Around a classifier the map is fitted on cross-validated scores, and the classifier then on all rows: no row is
    scored by a model that saw it (Platt 1999; `ensemble=False` of scikit-learn). A classifier that is fitted already
    goes in as `sklearn.frozen.FrozenEstimator`, with rows that it has not seen.

    >>> Calibrator().fit(logits, labels).predict_proba(logits).shape
    (997, 10)
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = Calibrator(GaussianNB(), "temperature").fit(logits, labels)
    >>> model.fit_["temperature"].value > 1, model.classes_.tolist() == list(range(10))
    (True, True)

    Args:
        estimator: a classifier with `predict_proba` or `decision_function`; None: `X` are the scores, logits or
            probabilities (N, K), and labels the names of their columns in order.
        method: of `fit_scaler`: `temperature`, `vector`, `isotonic`, ...; `sigmoid`, as scikit-learn calls it, is
            `platt`.
        cv: folds, as scikit-learn takes them.
        seed: of what is random in the fit.

    Attributes:
        classes_: the labels, sorted, as columns of `predict_proba`.
        fit_: the `Fit`, with its estimates.  estimator_: the classifier, fitted on all rows.
    """

    def __init__(self, estimator: Any = None, method: str = "temperature", *, cv: Any = 5, seed: int = 0) -> None:
        self.estimator = estimator
        self.method = method
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
        fitted, calibrator = fit.scaler, cls(estimator, fit.scaler.spec)
        names = np.arange(fitted.k) if fitted.classes is None else np.array(fitted.classes)
        if estimator is None:
            calibrator.classes_, calibrator.n_features_in_ = names, fitted.columns
        else:
            calibrator.estimator_, calibrator.classes_ = estimator, np.asarray(estimator.classes_)
            if (k := len(calibrator.classes_)) != fitted.k:
                problem = f"the classifier has {k} classes, the calibrator was fitted on {fitted.k}"
                raise InputError(problem, "fit a calibrator on outputs of this classifier")
            same_order(fitted, calibrator.classes_, "the classifier")
            calibrator._copy_features()
            if fitted.kind == "log_probabilities":  # which nothing in scikit-learn gives by itself
                metadata = {**fitted.metadata, "kind": "probabilities"}
                fit = dataclasses.replace(fit, scaler=dataclasses.replace(fitted, metadata=metadata))
            _way(estimator, fit.scaler.kind)
        calibrator.fit_ = fit
        return calibrator

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Calibrator:
        """Fit the classifier, if there is one, and the map.

        >>> round(Calibrator().fit(logits, labels).fit_["temperature"].value, 2)
        2.81

        Args:
            X: (N, features), or scores (N, K) where there is no classifier.  y: labels (N,).
            sample_weight: (N,), of the map, and of the classifier if its `fit` takes them.
            groups: (N,), rows of one group are left out together, and the intervals are those of groups.

        Raises:
            InputError: scores that the method cannot be fitted to, or folds that do not leave every row out once.
            TypeError: the estimator is a text, or the method is none.
        """
        if isinstance(self.estimator, str) or not isinstance(self.method, str):
            what = "the estimator is a text" if isinstance(self.estimator, str) else "the method is no text"
            raise TypeError(f"{what}: write Calibrator(classifier, 'platt'), or Calibrator(method='platt') for scores")
        data_frames.refuse_other_order({"X": X, "y": y, "sample_weight": sample_weight, "groups": groups})
        names = None
        if self.estimator is None:
            scores, labels = np.asarray(X), np.asarray(y)
            from_arrays.refuse_swapped(X, labels, "fit(scores, labels)")
            self.n_features_in_ = 1 if scores.ndim == 1 else scores.shape[1]
            self.classes_ = _classes(labels, max(self.n_features_in_, 2))
            names = _names_of_classes(data_frames.names_of(X), scores, labels, self.classes_)
            codes, kind = _codes(labels, self.classes_), None
        else:
            scores, codes, kind = self._cross_fitted(X, y, sample_weight, groups)
        if len(self.classes_) > 1:
            cut = LEAST if self.estimator is not None and kind == "probabilities" else None  # the map keeps it
            more = {"kind": kind, "seed": self.seed, "weights": sample_weight, "group": groups, "clip": cut}
            fit = fit_scaler(scores, codes, ALIASES.get(self.method, self.method), **more)
            self.fit_ = dataclasses.replace(fit, scaler=dataclasses.replace(fit.scaler, classes=names))
        return self

    def predict_proba(self, X: Any) -> Floats:
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
            return cast(Floats, self.fit_.predict_proba(X))
        if len(self.classes_) == 1:
            return np.ones((len(self._scores(self.estimator_, X)), 1))
        return cast(Floats, self.fit_.predict_proba(self._scores(self.estimator_, X, self.fit_.scaler.kind)))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the labels (N,) of the highest probability.

        >>> Calibrator().fit(logits, labels).predict(logits[:3]).shape
        (3,)
        """
        probabilities = self.predict_proba(X)
        return cast("npt.NDArray[Any]", self.classes_[probabilities.argmax(1)])

    def _cross_fitted(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> tuple[Any, Any, Any]:
        """Cross-fit the classifier: return scores of every row by a classifier that did not see it, the codes of the
        labels, and the kind of the scores."""
        from sklearn.base import clone
        from sklearn.model_selection import cross_val_predict
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import column_or_1d, has_fit_parameter, indexable

        X, y, sample_weight, groups = indexable(X, y, sample_weight, groups)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weights = {}
        if sample_weight is not None:
            if has_fit_parameter(self.estimator, "sample_weight"):
                weights = {"sample_weight": np.asarray(sample_weight)}
            else:
                name = type(self.estimator).__name__
                warnings.warn(
                    f"{name}.fit takes no sample_weight: the weights are used for the map alone", stacklevel=3
                )
        self.estimator_ = clone(self.estimator).fit(X, y, **weights)
        self._copy_features()
        self.classes_, codes = np.unique(y, return_inverse=True)
        fitted_classes = np.asarray(getattr(self.estimator_, "classes_", self.classes_))
        # nothing else has classes that `y` does not have
        if frozen := not np.array_equal(fitted_classes, self.classes_):
            self.classes_, codes = fitted_classes, _codes(np.asarray(y), fitted_classes)
        if len(self.classes_) == 1:
            return None, codes, None
        method, kind = _way(self.estimator_)
        fewest = int(np.bincount(codes).min())
        if frozen or (isinstance(self.cv, int) and fewest < 2):
            return self._scores(self.estimator_, X), codes, kind  # nothing can be left out
        folds = _folds(min(self.cv, fewest) if isinstance(self.cv, int) else self.cv, X, y, groups)
        scores = cross_val_predict(clone(self.estimator), X, y, cv=folds, method=method, params=weights)
        return _filled(scores, kind, self.estimator), codes, kind

    def _copy_features(self) -> None:
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))

    def _scores(self, estimator: Any, X: Any, kind: str | None = None) -> Any:
        method, kind = _way(estimator, kind)
        return _filled(getattr(estimator, method)(X), kind, estimator)

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
    methods = {"probabilities": "predict_proba", "logits": "decision_function"}
    for gives, method in methods.items():
        if kind in (None, gives) and hasattr(estimator, method):
            return method, gives
    lacks = f"no {methods[kind]}" if kind else "neither predict_proba nor decision_function"
    raise UsageError(f"{type(estimator).__name__} has {lacks}", "pass a classifier that has it")


def _folds(cv: Any, X: Any, y: Any, groups: Any) -> list[tuple[Any, Any]]:
    """Return the rows to fit on and the rows to leave out, of each fold.

    Raises:
        InputError: a row is left out by no fold, or by several.
        UsageError: `cv` is no folds, or its folds need groups.
    """
    from sklearn.model_selection import StratifiedGroupKFold, check_cv

    if isinstance(cv, str):
        problem = f"cv is a text, '{cv[:20]}'"
        raise UsageError(problem, "pass a number of folds; a classifier that is fitted already: FrozenEstimator(model)")
    whole = groups is not None and (cv is None or isinstance(cv, int))
    splitter = StratifiedGroupKFold(cv or 5) if whole else check_cv(cv, y, classifier=True)
    name = type(cv).__name__ if hasattr(cv, "split") else "cv"
    if groups is None and "Group" in name:
        raise UsageError(f"{name} splits by groups, and there are none", "pass them: fit(X, y, groups=groups)")
    folds = [*splitter.split(X, y, groups)]
    times = np.zeros(len(y), np.int64)
    for _, left in folds:
        times[left] += 1
    if (times != 1).any():
        row = int((times != 1).argmax())
        raise InputError(
            f"{name} leaves row {row} out {times[row]} times: the map needs one score of every row, by a classifier "
            "that did not see it",
            "pass folds that leave each row out once, such as cv=5, KFold or GroupKFold; or fit the classifier on the "
            "rows of one part, and the map on the others: Calibrator(FrozenEstimator(model), method).fit(X, y)",
        )
    return folds


def _refuse_raw(values: Any, estimator: Any) -> None:
    """Refuse what `predict_proba` gives if it is no probabilities.

    Raises:
        InputError: numbers outside [0, 1].
    """
    if ((values < UNIT_LOW) | (values > UNIT_HIGH)).any():
        name, low, high = type(estimator).__name__, np.nanmin(values), np.nanmax(values)
        raise InputError(
            f"predict_proba of {name} gives numbers from {low:.4g} to {high:.4g}, which are no probabilities: raw "
            "scores, as boosted trees give with an objective of one's own",
            "fit on them, of rows it was not fitted on: Calibrator(method=method).fit(scores, labels); or give the "
            "classifier a predict_proba of probabilities",
        )


def _filled(scores: Any, kind: str, estimator: Any) -> Any:
    """Convert scores to float64, without what rounding has put outside [0, 1]; the map raises exact zeros itself.

    Raises:
        InputError: `predict_proba` gives other numbers than probabilities.
    """
    values = np.asarray(scores, np.float64)
    if kind != "probabilities":
        return np.clip(values, -1e9, 1e9)
    _refuse_raw(values, estimator)
    return np.clip(values, 0.0, 1.0)


def _names_of_classes(names: list[str], scores: Any, labels: Any, classes: Any) -> tuple[str, ...] | None:
    """Return the names of the classes, for the map to keep; None where they are numbers.

    Args:
        names: of the columns of (N, K) scores, [] where these are no data frame.  labels: (N,).  classes: sorted.

    Raises:
        InputError: columns that are named after the classes are in another order, or have other names.
    """
    class_names = [str(name) for name in classes]
    numbers = all(map(is_number, class_names))
    kept = None if numbers else tuple(class_names)
    if len(names) < 2 or len(set(names)) < len(names):
        return kept
    columns = data_frames.class_columns(names, scores, labels)
    there = list(columns.names or class_names)
    if columns.moved or (there != class_names and sorted(there) == sorted(class_names)):
        order = columns.order if columns.moved else [there.index(name) for name in class_names]
        problem = f"columns {first_few(names, 4)} are in another order than the classes {first_few(class_names, 4)}"
        raise InputError(problem, f"pass scores[{[names[i] for i in order]}]")
    if there != class_names and (not numbers or all(map(is_number, there))):
        problem = f"columns {first_few(names, 4)} are not named after the labels, {first_few(class_names, 4)}"
        raise InputError(problem, "rename them; or pass scores.to_numpy(), if they are in the order of the labels")
    return tuple(there) if there != class_names else kept


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
    position = np.clip(np.searchsorted(classes, labels, sorter=order), 0, len(classes) - 1)
    codes = order[position]
    if (wrong := np.flatnonzero(classes[codes] != labels)).size:
        raise InputError(f"label {labels[wrong[0]]!r} is none of the estimator's classes", "score rows of its classes")
    return codes
