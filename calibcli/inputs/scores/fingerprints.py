"""Fingerprints of rows: the same sample twice, or in the fitted and the evaluated file."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from calibcli.errors import InputError
from calibcli.inputs.scores.mistakes import Hashes, mix
from calibcli.predictions import Predictions

OVERLAP = 0.01


def row_hashes(predictions: Predictions) -> Hashes:
    """(N,) fingerprints of the score rows, in one streaming pass: equal rows have equal fingerprints.

    A multilinear hash of the bits of the scores as float32 (modulo 2^64, odd multipliers), so that float64 and
    float32 copies of a row agree. Unequal rows collide with a probability of about 1e-19 a pair.
    """
    out = np.empty(predictions.n, np.uint64)
    with np.errstate(all="ignore"):
        for start, block in predictions.blocks():
            out[start : start + len(block)] = mix(np.ascontiguousarray(block.T))
    return out


def _telling(predictions: Predictions) -> npt.NDArray[np.bool_]:
    """(N,) mask of the rows that are neither certain (one class has all probability) nor the same for every class."""
    out = np.empty(predictions.n, bool)
    for start, block in predictions.blocks():
        second = np.partition(block, block.shape[1] - 2, axis=1)[:, -2]
        out[start : start + len(block)] = (second > -np.inf) & (block.max(axis=1) > block.min(axis=1))
    return out


def refuse_overlap(fit: Predictions, test: Predictions, way_out: str = "leave --test out and use --folds 5") -> str:
    """A note when few rows of `test` are also in `fit`, "" when none are, or no more than by chance; `way_out` is what
    else the error advises.

    By chance a row of `test` has a twin in `fit` as often as a row of `fit` has one among the others of `fit`: of
    samples from one population, the share of twins among n - 1 others estimates that among n. Twins come in pairs,
    which about doubles the variance q (1 - q) / n of either share; what a split puts on both sides it takes from
    within one, so that their errors add up. Rows that give one class all probability tell nothing and are left out.

    Raises:
        InputError: more are than ties by chance explain, by over 1 % and three standard errors.
    """
    a, b = (row_hashes(data)[_telling(data)] for data in (fit, test))
    if not (len(a) and len(b)):
        return ""
    a.sort()
    at = np.minimum(np.searchsorted(a, b), len(a) - 1)
    rows = int((a[at] == b).sum())
    same = a[1:] == a[:-1]
    twins = np.append(same, False) | np.append(False, same)
    share, chance = rows / len(b), float(twins.mean())
    error = math.sqrt(2 * share * (1 - share) / len(b)) + math.sqrt(2 * chance * (1 - chance) / len(a))
    text = (
        f"{rows:,} of {len(b):,} {'rows' if len(b) == test.n else 'uncertain rows'} of {test.source} "
        f"({share:.1%}) are also in {fit.source}; {chance:.1%} would be by chance, as rows tie"
    )
    if share > chance + OVERLAP + 3 * error:
        problem = f"{text}: numbers on rows that were fitted on look better than they are"
        raise InputError(problem, "pass rows that were not fitted on" + (f", or {way_out}" if way_out else ""))
    spread = math.sqrt(2 * chance * (1 - chance) * (1 / len(a) + 1 / len(b)))
    return text if share > chance + 3 * spread else ""
