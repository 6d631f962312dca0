"""What entries of the registry of metrics say of each other holds."""

from __future__ import annotations

import pytest

from calibcli.metrics import METRICS


def test_what_entries_state_of_other_metrics_is_there() -> None:
    for entry in METRICS:
        for trait in ("of_top", "debiased"):
            assert (getattr(entry.traits, trait) or entry.name) in METRICS
        other = [name for one in METRICS for name in one.traits.called]
        assert len(other) == len(set(other))
        assert not {*other} & METRICS.entries.keys()


@pytest.mark.parametrize("trait", ["error", "named"])
def test_places_in_sentences_are_those_of_one_metric(trait: str) -> None:
    places = [place for entry in METRICS if (place := getattr(entry.traits, trait))]
    assert sorted(places) == [*range(1, len(places) + 1)]
