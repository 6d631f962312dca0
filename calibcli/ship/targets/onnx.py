"""A calibrator as an ONNX model, or inside one."""

from __future__ import annotations

from calibcli.errors import UsageError
from calibcli.ship.target import TARGETS, Job, Shipped


@TARGETS.add(suffixes=(".onnx",), data="either")
def onnx(job: Job, *, output: str = "") -> Shipped:
    """ONNX: the calibrator alone (scores to probabilities), or with --model NET.onnx the same network, calibrated.

    Put behind the output `output` (its only one of floats), or before the Softmax or LogSoftmax that it ends in,
    through Identity and Cast; logits stay logits, probabilities stay probabilities. Any batch size. `isotonic`,
    `histogram` and focal maps work in float64 inside. Ours: nodes made with onnx.helper, compared in ONNX Runtime.

    >>> import importlib.util, tempfile
    >>> def limit(fit):
    ...     with tempfile.TemporaryDirectory() as folder:
    ...         return calibcli.export(fit, "onnx", save=f"{folder}/c.onnx", data=logits).facts["limit"]
    >>> installed = importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx")
    >>> limit(calibcli.fit_scaler(logits, labels)) if installed else 1e-06
    1e-06

    Raises:
        UsageError: onnx or onnxruntime is not installed, or no output, or several, may be meant.
    """
    try:
        from calibcli.ship import onnx_files
    except ImportError as error:
        missing = str(error.name).partition(".")[0]
        raise UsageError(f"--to onnx needs {missing}, which is not installed", "pip install 'calibcli[onnx]'") from None
    return onnx_files.ship(job, output)
