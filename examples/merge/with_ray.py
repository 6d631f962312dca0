"""Metrics of a Ray data set: each batch leaves a state behind, one row of bytes.

python with_ray.py parts/        columns logit_0, ..., label
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import ray.data

from calibcli import Accumulator, Result

ROWS = 1 << 18  # of a batch: few states, each of many rows


def part(batch: dict[str, Any]) -> dict[str, Any]:
    """What one batch leaves behind."""
    logits = np.column_stack([batch[name] for name in sorted(batch, key=_class) if name.startswith("logit_")])
    found = Accumulator(kind="logits").update(logits, batch["label"])
    return {"state": [pickle.dumps(found)]}


def _class(name: str) -> int:
    return int(name.removeprefix("logit_")) if name.startswith("logit_") else -1


def measure(rows: ray.data.Dataset) -> Result:
    found = Accumulator(kind="logits")
    for row in rows.map_batches(part, batch_size=ROWS).iter_rows():
        found.merge(pickle.loads(row["state"]))
    return found.result()


if __name__ == "__main__":
    print(measure(ray.data.read_parquet(sys.argv[1])).to_json())
