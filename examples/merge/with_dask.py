"""Metrics of a Dask data frame: one accumulator per partition, merged as a tree.

python with_dask.py 'parts/*.parquet'        columns logit_0, ..., label
"""

from __future__ import annotations

import sys
from typing import Any

import dask
import dask.dataframe as dd

from calibcli import Accumulator, Result


def part(frame: Any) -> Accumulator:
    """What one partition leaves behind."""
    found = Accumulator(kind="logits")
    if len(frame):
        found.update(frame.filter(like="logit_").to_numpy(), frame["label"].to_numpy())
    return found


def merged(some: list[Accumulator]) -> Accumulator:
    return Accumulator(kind="logits").merge(*some)


def measure(frame: dd.DataFrame) -> Result:
    left = [dask.delayed(part)(one) for one in frame.to_delayed()]
    while len(left) > 1:
        left = [dask.delayed(merged)(left[i : i + 8]) for i in range(0, len(left), 8)]
    found: Accumulator = left[0].compute()
    return found.result()


if __name__ == "__main__":
    print(measure(dd.read_parquet(sys.argv[1])).to_json())
