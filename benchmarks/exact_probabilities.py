"""Maps of probabilities that are exactly 0 and 1: log loss after temperature, platt and beta on rows of their own.

    python benchmarks/exact_probabilities.py                       # eight models x five data sets, five splits
    python benchmarks/exact_probabilities.py --only 'forest' --splits 2

Models of scikit-learn are fitted to 40 % of the rows, maps to 30 %, and all are measured on the last 30 %. Columns: the
share of rows with a probability of 0 or 1; mean log loss of the raw probabilities (cut at 1e-15), of
`CalibratedClassifierCV(method="sigmoid")` of scikit-learn on the same rows, and of three maps; the splits in which
`platt` is surely worse than raw (the 95 % interval of `calib scale --test --clip` lies above 0); and its distance to
scikit-learn's. Exit 1 where, of two classes, `platt` is surely worse than raw in a split, or on average more than .005
nats above scikit-learn's.
"""

from __future__ import annotations

import re
import sys
import warnings
from functools import cache
from typing import Any

import _harness  # noqa: F401  (before NumPy, which it holds to one thread)
import numpy as np
from _harness import arguments

import calibcli

METHODS = ("temperature", "platt", "beta")
DATA = ("cancer", "digit 8", "two classes", "ten digits", "four classes")
ALLOWED = 0.005  # nats above scikit-learn's sigmoid


def models() -> dict[str, Any]:
    from sklearn.ensemble import AdaBoostClassifier, GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    return {
        "forest": RandomForestClassifier(100, random_state=0),
        "tree": DecisionTreeClassifier(random_state=0),
        "5 neighbours": KNeighborsClassifier(5),
        "naive Bayes": GaussianNB(),
        "boosted trees": GradientBoostingClassifier(random_state=0),
        "AdaBoost": AdaBoostClassifier(random_state=0),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
        "network": make_pipeline(StandardScaler(), MLPClassifier(max_iter=300, random_state=0)),
    }


@cache
def data(name: str) -> tuple[Any, Any]:
    from sklearn.datasets import load_breast_cancer, load_digits, make_classification

    if name == "cancer":
        return load_breast_cancer(return_X_y=True)  # type: ignore[no-any-return]
    if name in ("digit 8", "ten digits"):
        x, y = load_digits(return_X_y=True)
        return x, (y == 8).astype(int) if name == "digit 8" else y
    k, rows, informative = (2, 1500, 6) if name == "two classes" else (4, 2400, 8)
    drawn = make_classification(rows, 20, n_informative=informative, n_classes=k, flip_y=0.1, random_state=0)
    return drawn  # type: ignore[no-any-return]


def losses(model: Any, name: str, split: int, methods: tuple[str, ...] = METHODS) -> dict[str, Any]:
    """Log loss of each test row (n,), by `raw`, `sigmoid` and the methods; and the share of `exact` rows."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import train_test_split

    x, y = data(name)
    train, rest, y_train, y_rest = train_test_split(x, y, test_size=0.6, random_state=split, stratify=y)
    fit, test, y_fit, y_test = train_test_split(rest, y_rest, test_size=0.5, random_state=split, stratify=y_rest)
    model = model.fit(train, y_train)
    p, p_test = model.predict_proba(fit), model.predict_proba(test)

    def log_loss(q: Any) -> Any:
        return -np.log(np.maximum(q[np.arange(len(q)), y_test], 1e-15))

    theirs = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid").fit(fit, y_fit)
    maps = {name: calibcli.fit_scaler(p, y_fit, name, kind="probabilities") for name in methods}
    found = {"raw": log_loss(p_test), "sigmoid": log_loss(theirs.predict_proba(test))}
    found |= {name: log_loss(fitted.predict_proba(p_test)) for name, fitted in maps.items()}
    rows, others = (
        calibcli.from_arrays(p, y, kind="probabilities", clip=True) for p, y in ((p, y_fit), (p_test, y_test))
    )
    low = calibcli.scale(rows, None, "platt", test=others, metrics=["nll"])["nll", "after minus before"].low
    exact = float(((p <= 0) | (p >= 1)).any(axis=1).mean())
    return {**found, "exact": exact, "worse": low is not None and low > 0}


def main() -> int:
    options = arguments(__doc__, only=".", splits=5)
    heads = ("exact %", "raw", "sigmoid", *METHODS, "worse than raw", "above sigmoid")
    print(f"{'':<28}" + " ".join(f"{head:>14}" for head in heads))
    failed = []
    for name in DATA:
        for label, model in models().items():
            if not re.search(options.only, f"{name}, {label}"):
                continue
            cells = [losses(model, name, split) for split in range(options.splits)]
            means = [float(np.mean([cell[key].mean() for cell in cells])) for key in ("raw", "sigmoid", *METHODS)]
            exact = 100 * float(np.mean([cell["exact"] for cell in cells]))
            worse = sum(cell["worse"] for cell in cells)
            above = means[3] - means[1]
            row = [f"{exact:.0f}", *(f"{mean:.3f}" for mean in means), f"{worse} of {len(cells)}", f"{above:+.4f}"]
            print(f"{f'{name}, {label}':<28}" + " ".join(f"{text:>14}" for text in row), flush=True)
            if len(np.unique(data(name)[1])) == 2 and (worse or above > ALLOWED):
                failed.append(f"{name}, {label}")
    print(f"of two classes, worse than raw or {ALLOWED} nats above scikit-learn's sigmoid: {failed or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
