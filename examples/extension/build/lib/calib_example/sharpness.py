"""How far the top probabilities are from even."""

from calibcli.extending import METRICS, UNIT, MeanOf, Sample


@METRICS.add(values=UNIT, unit="")
def sharpness(sample: Sample) -> MeanOf:
    """Mean squared confidence, the sharpness of the top label (Murphy 1973)."""
    return MeanOf(sample, sample.columns.confidence**2, ends=(1 / sample.columns.k**2, 1.0))
