"""Metrics of recorded outputs, each with its uncertainty, and the registry that they are chosen from."""

from __future__ import annotations

from collections.abc import Sequence

from calibcli.core.result import Estimate
from calibcli.metrics.registry import DEFAULT, METRICS, Sample, choose, columns_of, estimates, known
from calibcli.scores.predictions import Predictions, Progress

__all__ = ["DEFAULT", "METRICS", "Sample", "choose", "columns_of", "estimates", "known", "measure"]


def measure(
    predictions: Predictions,
    specs: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
    threads: int | None = 1,
    progress: Progress | None = None,
) -> list[Estimate]:
    """Measure metrics of predictions, each with its uncertainty or the reason why it has none.

    Args:
        predictions: recorded outputs with labels.
        specs: metric specs (`ece:bins=30`); None: the default set.
        level: confidence level of intervals; one-sided bounds hold at this level each.
        seed: of simulations.
        threads: worker threads of the pass over the scores.
        progress: called with (fraction done, text).

    Raises:
        UsageError: unknown metric or option, or a level outside (0, 1).
    """
    choices = choose(["default"] if specs is None else specs, predictions.k, predictions.top_only)
    table = columns_of(predictions, choices, threads, progress)
    return estimates(Sample.of(table, predictions, seed), choices, level=level)
