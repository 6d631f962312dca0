"""The examples of merging on Dask, Ray, Spark and torch.distributed say what one process says."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calibcli

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "merge"
K = 12  # more than ten: columns in the order of their numbers, not of their texts


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (3000, K)).astype(np.float32)
    return z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def same(found: Any, wanted: Any) -> None:
    for spec in ("accuracy", "nll", "brier", "ece", "classwise_ece", "mce", "confidence_gap"):
        assert found[spec].value == pytest.approx(wanted[spec].value, abs=1e-12), spec
        assert found[spec].n == wanted[spec].n


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Five files of parquet, and a folder of them."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    z, y = rows()
    (tmp_path / "parts").mkdir()
    for i in range(5):
        frame = pandas.DataFrame({f"logit_{k}": z[i::5, k] for k in range(K)} | {"label": y[i::5]})
        frame.to_parquet(tmp_path / "parts" / f"part-{i}.parquet")
    return tmp_path / "parts"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    yield importlib.import_module
    for name in [name for name in sys.modules if name.startswith("with_")]:
        del sys.modules[name]


@pytest.mark.engines
def test_dask(parts: Path, example: Any) -> None:
    dask = pytest.importorskip("dask")
    dd = pytest.importorskip("dask.dataframe")
    with dask.config.set(scheduler="threads", num_workers=2):
        same(example("with_dask").measure(dd.read_parquet(parts)), calibcli.measure(*rows()))


@pytest.mark.engines
def test_ray(parts: Path, example: Any) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        same(example("with_ray").measure(ray.data.read_parquet(str(parts))), calibcli.measure(*rows()))
    finally:
        ray.shutdown()


@pytest.mark.engines
def test_spark(parts: Path, example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        same(example("with_spark").measure(session.read.parquet(str(parts))), calibcli.measure(*rows()))
    finally:
        session.stop()


@pytest.mark.docs
def test_torch_distributed() -> None:
    """Two ranks; one that got no batch adds nothing. By torchrun, as the example says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(EXAMPLES / "with_torch.py")], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    inputs, labels = torch.randn(4000, 8), torch.randint(4, (4000,))
    wanted = calibcli.measure(model(inputs).detach(), labels)
    found = calibcli.Result.from_json(done.stdout)
    for spec in ("accuracy", "nll", "ece"):  # batches of other sizes round otherwise
        assert found[spec].value == pytest.approx(wanted[spec].value, abs=1e-6), spec
    assert json.loads(done.stdout)["facts"]["n"] == 4000
