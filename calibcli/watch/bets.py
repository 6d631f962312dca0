"""E-processes: the wealth of bets against a rule, of which a look at any time, and as often as one likes, is honest.

Who claims that a mean is at most m may be bet against with 1 + λ(x - m) per row, which grows in no mean if that is
true. The product over rows is an e-process: that it ever reaches 1/α has probability α at the most (Ville 1939), so it
may be looked at after every row, for ever (Waudby-Smith & Ramdas 2024). λ lies on a fixed grid whose products are mixed
equally: a mean of e-processes is one. All arrays are logarithms of wealth, with any dimensions in front.

- A mean: one product per λ.
- The calibration error Σ_b |d_b|: for fixed signs s the mean of x = s(b) r, r = p - y, is at most the error. A table
  (..., B, 2, L) has the wealth of each bin, sign and λ; a set of signs takes one of the two of every bin.
- Drift: products that begin anew each night, those of night k with a share of the first wealth, `begun(k)`. The shares
  of all nights add up to 1, so the sum is an e-process of its own: in all nights together it reaches 1/α with
  probability α at the most. With equal shares it would be the sum of Shiryaev and Roberts, whose bound grows with the
  nights (Shin, Ramdas & Rinaldo 2024); here the shares of a year are equal, and those of later years fall.
"""

from __future__ import annotations

import math

import numpy as np

from calibcli.predictions import Floats

FRACTIONS = 0.95 * 0.5 ** np.arange(8)
"""Bets, as shares of the largest that cannot lose everything."""
LEAST = 1e-3  # of the range of a row: the least distance that a limit is taken to have from its end
SHARES = (0.5, 0.2, 0.3)
"""Of the wealth: on gaps of one sign, on a sign that changes once from low to high confidence, on those seen before."""
YEAR = 365  # nights
MEMORY = 0.99  # per night, of the gaps whose signs tonight is bet on


def stakes(room: float, width: float) -> Floats:
    """(L,) λ of the grid, of rows that may lie `room` on the losing side of the limit, in a range of this width."""
    return np.asarray(FRACTIONS / max(room, LEAST * width))


def mixed(wealth: Floats, shares: Floats | None = None) -> Floats:
    """(...) logarithm of the mean over the last axis, or of the sum with these shares."""
    if shares is None:
        shares = np.full(wealth.shape[-1], 1 / wealth.shape[-1])
    parts = wealth + np.log(shares)
    top = np.maximum(parts.max(axis=-1), -1e300)
    return np.asarray(top + np.log(np.exp(parts - top[..., None]).sum(axis=-1)))


def against(table: Floats, seen: Floats) -> Floats:
    """(...) log E against "the error is at most τ", of the wealth (..., B, 2, L) of gains s r - τ.

    Args:
        seen: (..., L) wealth of bets on the signs that earlier nights showed, see `on_seen`; the other signs are fixed
            in advance, and their wealth is that of all rows in any order.
    """
    return mixed(_strategies(table, seen), shares(table.shape[-3], table.shape[-1]))


def on_seen(tonight: Floats, gaps: Floats) -> Floats:
    """(..., L) wealth of tonight's (..., B, 2, L) on the signs of the gaps (..., B) of earlier nights."""
    return np.asarray(np.where(gaps[..., None] >= 0, tonight[..., 0, :], tonight[..., 1, :]).sum(axis=-2))


def anew(tonight: Floats, gaps: Floats) -> Floats:
    """(..., S) wealth of what is bet on tonight, for `restarted`."""
    return _strategies(tonight, on_seen(tonight, gaps))


def shares(bins: int, count: int) -> Floats:
    """(S,) shares of the wealth of B bins that go to each strategy of `anew`."""
    parts = zip(SHARES, (2, 2 * max(bins - 1, 1), 1), strict=True)
    return np.concatenate([np.full(n * count, share / (n * count)) for share, n in parts])


def _strategies(table: Floats, seen: Floats) -> Floats:
    """(..., S): all + and all -, signs that change once between bins, both ways, and those seen."""
    sums = np.cumsum(table, axis=-3)
    total = sums[..., -1, :, :]
    turned = total[..., None, :, :]
    if table.shape[-3] > 1:
        below = sums[..., :-1, :, :]
        turned = below + (turned - below)[..., ::-1, :]
    parts = [total, turned, seen]
    front = table.shape[:-3]
    return np.concatenate([p.reshape(*front, -1) for p in parts], axis=-1)


def within(table: Floats) -> Floats:
    """(...) log E against "the error is at least τ", of the wealth (..., B, 2, L) of gains τ - s r.

    There are signs s with mean s r >= τ, and the least wealth over all 2^B sets of them is no more than theirs; it
    falls apart into bins.
    """
    return mixed(table.min(axis=-2).sum(axis=-2))


def begun(night: int) -> float:
    """Logarithm of the share of the wealth that is bet on a drift from this night on: year y has 1 / (y (y + 1)),
    the first a half, and its nights equal parts.
    """
    year = (night - 1) // YEAR + 1
    return -math.log(YEAR * year * (year + 1))


def unbegun(night: int) -> float:
    """Logarithm of the wealth that is kept for drifts from later nights on: of this year, and of all later."""
    year, day = divmod(night - 1, YEAR)
    return math.log(1 / (year + 1) - (day + 1) * math.exp(begun(night)))


def restarted(level: Floats, night: int, tonight: Floats) -> Floats:
    """(..., S) the sum over starts after a night: that of earlier nights (-inf before the first) and this one's share,
    times tonight's wealth.
    """
    return np.logaddexp(level, begun(night)) + tonight
