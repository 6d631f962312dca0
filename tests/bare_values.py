"""Metrics without their intervals, which most oracles say nothing of."""

from __future__ import annotations

from collections.abc import Sequence

from calibcli.metrics import Sample, choose, columns_of
from calibcli.predictions import Predictions


def values(predictions: Predictions, specs: Sequence[str], *, threads: int | None = 1) -> dict[str, float]:
    """The numbers by spec as it was asked for; nan where one is not defined."""
    choices = {spec: choose([spec], predictions.k)[0] for spec in specs}
    sample = Sample.of(columns_of(predictions, [*choices.values()], threads), predictions)
    return {spec: float(choice(sample)) for spec, choice in choices.items()}
