"""Classes left out by large negative numbers: all metrics and maps are those of the file with -inf, or a note says why.

    python benchmarks/masks.py [--rows 600] [--classes 2,3,10,100] [--seconds 250]

Prints how many cells (K, number, share of rows, one class or another each row) agree to 1e-9, how many are explained
by a note, and each that is neither. Exit 1 if there is one.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import _harness
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_masks import SPECS, VALUES, masked, rows

import calibcli

SHARES = (0.01, 0.1, 0.5, 0.9, 1.1)


def differs(one: float | None, two: float | None) -> bool:
    return (one is None) != (two is None) or (one is not None and not np.isclose(one, two, rtol=1e-9, atol=1e-9))


def faults(finite: Any, infinite: Any, y: Any) -> list[str]:
    """Return what differs between a file with numbers and the one with -inf."""
    out = []
    one, two = calibcli.measure(finite, y, "all"), calibcli.measure(infinite, y, "all", kind="logits")
    for name, due in two.items():
        out += [
            f"{name} {end}" for end in ("value", "low", "high") if differs(getattr(one[name], end), getattr(due, end))
        ]
    for spec in (
        SPECS if finite.shape[1] <= 10 else [s for s in SPECS if s.partition(":")[0] not in ("matrix", "dirichlet")]
    ):
        try:
            wanted = calibcli.fit_scaler(infinite, y, spec, kind="logits").predict_proba(infinite)
        except calibcli.CalibError as error:
            wanted = error
        try:
            got = calibcli.fit_scaler(finite, y, spec).predict_proba(finite)
        except calibcli.CalibError as error:
            got = error
        if isinstance(wanted, Exception) or isinstance(got, Exception):
            out += [spec] * (str(wanted) != str(got))
        elif np.abs(got - wanted).max() > 1e-9:
            out.append(spec)
    return out


def main() -> int:
    asked = _harness.arguments(__doc__, rows=600, classes="2,3,10,100", seconds=250.0)
    cells = [*itertools.product(map(int, asked.classes.split(",")), VALUES, SHARES, (True, False))]
    order, start = np.random.default_rng(0).permutation(len(cells)), time.monotonic()
    agree = explained = wrong = 0
    for at in order.tolist():
        if time.monotonic() - start > asked.seconds:
            break
        k, value, share, one_class = cells[at]
        z, y, out = rows(k, asked.rows)
        finite, infinite = (masked(z, out, low, share, one_class) for low in (value, -np.inf))
        found = faults(finite, infinite, y)
        notes = calibcli.from_arrays(finite, y).notes
        if not found:
            agree += 1
        elif any("not taken for masks" in note for note in notes):
            explained += 1
        else:
            wrong += 1
            print(f"K = {k}, {value:g} in {min(share, 1):.0%}, {'one class' if one_class else 'any class'}: {found}")
    print(f"{agree} of {agree + explained + wrong} cells agree to 1e-9, {explained} say why not, {wrong} do neither")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
