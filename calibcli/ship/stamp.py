"""What an exported thing says about the calibrator in it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from calibcli import __version__
from calibcli.files import sha256
from calibcli.ship.target import Job


def about(job: Job) -> dict[str, Any]:
    """Calibrator, T, date, rows of the fit, sha256, version."""
    scaler, found = job.scaler, dict[str, Any]()
    found["calibrator"] = scaler.spec
    if "beta" in scaler.parameters and float(scaler.parameters["beta"]) > 0:
        found["temperature"] = 1 / float(scaler.parameters["beta"])
    found["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    found["rows"] = int(scaler.metadata.get("n", 0))
    found["data_sha256"] = str(scaler.metadata.get("sha256", ""))
    found["sha256"] = sha256(job.calibrator) if Path(job.calibrator).is_file() else ""
    found["version"] = __version__
    return found


def stamp(job: Job) -> dict[str, str]:
    """The same as texts by name, for ONNX."""
    return {
        f"calib.{key}": f"{value:.17g}" if isinstance(value, float) else str(value) for key, value in about(job).items()
    }
