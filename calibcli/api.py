"""The commands as functions of arrays or files: what `import calibcli` offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import numpy.typing as npt

from calibcli.inputs.logits import read
from calibcli.inputs.memory import Arrays, known, of_arrays
from calibcli.metrics import BySpec
from calibcli.metrics import measure as _measure
from calibcli.predictions import Predictions
from calibcli.result import Estimate, Result
from calibcli.scalers import Fit
from calibcli.scalers import fit as _fit
from calibcli.scalers import load as load_scaler
from calibcli.scalers import save as save_scaler

if TYPE_CHECKING:
    from calibcli.losses import Loss

__all__ = ["check", "fit_scaler", "from_arrays", "load_scaler", "loss", "measure", "read", "save_scaler"]

from_arrays = of_arrays
Scores = Predictions | npt.ArrayLike


def measure(
    scores: Scores,
    labels: npt.ArrayLike | None = None,
    *specs: str,
    level: float = 0.95,
    seed: int = 0,
    **how: Unpack[Arrays],
) -> BySpec[Estimate]:
    """Metrics with their uncertainty, by spec (any spelling of it): the default set, or those named.

    >>> found = measure([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1], "accuracy", "ece:bins=10")
    >>> round(found["accuracy"].value, 4), found["ece:bins=10"].n
    (0.6667, 3)

    Args:
        scores: (N, K) array of logits or probabilities with `labels` (N,), or `Predictions` (of `read` or
            `from_arrays`) without.
        specs: metric specs such as `ece:bins=30`.
        level: confidence level.  seed: of what is simulated.
        how: of arrays, as for `from_arrays`; of parts of the rows, measure each part.

    Raises:
        InputError: arrays that are refused.  UsageError: an unknown metric or option.  TypeError: an unknown keyword.
    """
    predictions = _given(scores, labels, how, "measure")
    return BySpec({e.name: e for e in _measure(predictions, specs or None, level=level, seed=seed)}, predictions.k)


def fit_scaler(
    scores: Scores,
    labels: npt.ArrayLike | None = None,
    spec: str = "temperature",
    *,
    seed: int = 0,
    **how: Unpack[Arrays],
) -> Fit:
    """Fit a calibration map. `fit.predict_proba(scores)` gives probabilities (N, K), `fit.estimates` T and interval.

    The scaler takes what the fit took: logits, probabilities or log-probabilities, one column or K.

    >>> fit = fit_scaler([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [0.0, 4.0]], [0, 1, 1, 1])
    >>> float(fit.scaler([[4.0, 0.0]]).round(4)[0, 0])  # three of four right: log 0.75
    -0.2877
    >>> fit_scaler([0.9, 0.9, 0.1, 0.8], [1, 0, 0, 1], "platt").predict_proba([0.9]).round(3).tolist()
    [[0.411, 0.589]]

    Args:
        scores, labels, how: as for `measure`.
        spec: e.g. `temperature`, `focal_temperature`, `vector`.

    Raises:
        InputError: arrays that are refused, or that the method cannot be fitted to.  UsageError: an unknown method.
    """
    return _fit(spec, _given(scores, labels, how, "fit_scaler"), seed=seed)


def check(
    scores: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    max: Mapping[str, float] | None = None,
    min: Mapping[str, float] | None = None,
    **how: Unpack[Arrays],
) -> Result:
    """The release gate on arrays: PASS, FAIL or INCONCLUSIVE for each limit, in `result.checks`.

    The result as a whole: `.passed`, `.verdict`, `.exit_code` and `.raise_if_failed()`.

    >>> [c.outcome for c in check([[9.0, 0.0]] * 400, [0] * 400, max={"ece": 0.5}, min={"accuracy": 0.9}).checks]
    ['pass', 'pass']
    """
    from calibcli.gate.check import check as judge
    from calibcli.gate.config import Config, limit_rule
    from calibcli.gate.sources import Scores as Source

    gates = [limit_rule(f"{name}={value}", "max") for name, value in (max or {}).items()]
    gates += [limit_rule(f"{name}={value}", "min") for name, value in (min or {}).items()]
    config = Config(gates=tuple(gates))
    return judge(Source(_given(scores, labels, how, "check"), config), config)


def loss(spec: str) -> Loss:
    """A loss as a module, `(logits (N, K), labels (N,)) -> (N,)`: reduce it as you like.

    >>> import torch
    >>> loss("focal:gamma=2")(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))  # 0.5**2 log 2
    tensor([0.1733])
    """
    from calibcli.losses import objective

    return objective(spec).loss


def _given(scores: Scores, labels: npt.ArrayLike | None, how: Arrays, function: str) -> Predictions:
    known(how, Arrays.__annotations__, function)
    if isinstance(scores, Predictions):
        if labels is not None or how:
            raise TypeError(
                f"{function}(predictions) takes neither labels nor options of arrays: these are read already"
            )
        return scores
    if labels is None:
        raise TypeError(f"labels are missing: {function}(scores, labels)")
    return of_arrays(scores, labels, **how)
