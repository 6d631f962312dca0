"""What the trace spends where: settings that change time and spread, never what is estimated.

Each line names the script under `benchmarks/` that shows what it buys.
"""

# Tr(G), by `curvature.py` (time to 1 %) and `curvature_coverage.py` (whether the interval covers)
CHEAP = 3  # pairs of a row, which take a product's time: if there are no more, all are taken
PILOT = 48  # draws from which the number of draws is decided
FEWEST, MOST = 128, 20_000  # draws for the rest
FLOOR = 0.3  # of the mean scale of rows, added to every row's: no pair is out of reach of the draws
OPEN = 0.1  # of the target, that rows which were not looked at may hold if they are as steep as any other
REDONE = 8  # of the heaviest rows, computed again in float64 where every pair was taken
REDONE_PAIRS = 1024  # of those rows at most, but of two rows in any case
ROUNDED = 100.0  # rounding of Tr(G) in units of the dtype's, where no float64 copy tells: that of the worst rows found
FAINT = 1e-4  # of the mean mass: rows below it are mostly left out of the exact part

# Tr(H - G), by `probes.py` (a pass of probes against one of H) and `curvature.py` (the trace of the ViT)
AT_ONCE = 64  # rows times probes whose first derivatives are carried together
AT_ONCE_THERE = 4096  # the same on a device, by counts (`device.py`)
LIGHT = 1 << 30  # on a device, probes times bytes of a cell's graph up to which cells are mapped: launches are dearer
BYTES = 256 << 20  # of directions at once
WORTH = 32 << 20  # probes times bytes of a cell's graph from which carrying derivatives forward pays
FINE = 64  # probes of a cell from which every row has its own: what they then save outweighs the smaller batches
SIMILAR = 4.0  # degrees of freedom that the guess counts for in the variance of a cell
HEAVY = 32  # probes of a cell at least, where it holds HOLDS of the variance, by `curvature_coverage.py --resampled`
HOLDS = 0.1
ROUND = 64  # probes of a cell between two reports

# both, by `curvature_coverage.py`
SHARE = 0.3  # of the sampling error, at which an estimator stops unasked
MISSED = 1.2  # times the precision asked for, from which it counts as missed
PAIRS_SHARE = 0.25  # of the error allowed to Tr(G) where there is a rest to probe, by far the dearer part
