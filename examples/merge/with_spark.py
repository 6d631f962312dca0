"""Metrics of a Spark data frame: `mapInPandas` turns each partition into a state, one row of bytes.

spark-submit with_spark.py 's3a://bucket/parts'        columns logit_0, ..., label
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from calibcli import Accumulator, Result


def part(frames: Iterator[Any]) -> Iterator[Any]:
    """What one partition, which comes in several frames, leaves behind."""
    found = Accumulator(kind="logits")
    for frame in frames:
        if len(frame):
            found.update(frame.filter(like="logit_").to_numpy(), frame["label"].to_numpy())
    yield pd.DataFrame({"state": [pickle.dumps(found)]})


def measure(rows: DataFrame) -> Result:
    found = Accumulator(kind="logits")
    for row in rows.mapInPandas(part, "state binary").toLocalIterator():
        found.merge(pickle.loads(row.state))
    return found.result()


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    print(measure(session.read.parquet(sys.argv[1])).to_json())
