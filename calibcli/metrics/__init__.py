"""Metrics of predictions, each with its uncertainty; the shelf that they are chosen from."""

from __future__ import annotations

from calibcli.metrics.sample import DEFAULT, METRICS, Sample, choose, columns_of, estimates, known, measure

__all__ = ["DEFAULT", "METRICS", "Sample", "choose", "columns_of", "estimates", "known", "measure"]
