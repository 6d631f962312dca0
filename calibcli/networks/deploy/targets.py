"""Targets that need a network or what runs one. Each imports what it writes with when it is asked for."""

from __future__ import annotations

import json

import numpy as np

from calibcli.calibrators import Scaler
from calibcli.core.errors import UsageError
from calibcli.core.files import atomic
from calibcli.scores.predictions import kind_words
from calibcli.ship.target import TARGETS, ExportRequest, Shipped, of_scores, softmax


@TARGETS.add(suffixes=(), data="inputs")
def checkpoint(job: ExportRequest) -> Shipped:
    """The same checkpoint with the calibrator folded into its last linear layer: W' = A W, b' = A b + c.

    For maps that are linear in the logits: `temperature` (A = I / T), `vector`, `matrix` and `bcts` (A = V (I - 11'/K),
    as rows are centred), `platt` and `beta` with a = b of two classes (Guo et al. 2017). It is folded in float64, then
    cast to the type of the layer; the file says what was folded, and from which rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "checkpoint", model=model, save=f"{folder}/model.pt")
    >>> found.facts["head"], found.facts["predicted classes changed"]
    ('linear', 0)
    """
    from calibcli.networks.deploy import checkpoint_export

    return checkpoint_export.write(job)


@TARGETS.add(suffixes=(".onnx",), data="either")
def onnx(job: ExportRequest, *, output: str = "") -> Shipped:
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
        from calibcli.networks.deploy import _onnx_export as onnx_export
    except ImportError as error:
        missing = str(error.name).partition(".")[0]
        raise UsageError(f"--to onnx needs {missing}, which is not installed", "pip install onnx onnxruntime") from None
    return onnx_export.write(job, output)


@TARGETS.add(suffixes=(".pkl", ".skops"), data="either")
def sklearn(job: ExportRequest) -> Shipped:
    """A fitted `calibcli.Calibrator`, pickled or by skops: of scores, or with --model around a classifier in a file.

    It is a classifier, so it ends a Pipeline. A pickle is code: --model CLASSIFIER.pkl needs --trust, and so does
    `calib verify` of one; a `.skops` file of estimators of scikit-learn does not. Ours: read back, then compared in
    float64.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "sklearn", save=f"{folder}/calibrator.pkl", data=logits)
    >>> found.facts["limit"], found.facts["predicted classes changed"]
    (1e-09, 0)

    Raises:
        UsageError: skops is not installed, where the suffix asks for it.
    """
    from calibcli.networks.deploy._estimator import write

    return write(job)


@TARGETS.add(suffixes=(".pt2",), data="either")
def pt2(job: ExportRequest) -> Shipped:
    """A `torch.export` program of any batch size: scores to probabilities; with --model, inputs to log-probabilities.

    Ours: the map traced and compared in eager torch after it was read back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels, "vector")
    ...     found = calibcli.export(fit, "pt2", save=f"{folder}/calibrator.pt2", data=logits)
    >>> found.facts["limit"]
    1e-06
    """
    from calibcli.networks.deploy._torch_program import write

    return write(job, "pt2")


@TARGETS.add(suffixes=(".pt", ".pth"), data="either")
def torchscript(job: ExportRequest) -> Shipped:
    """A traced TorchScript module of any batch size, for programs that still load one (libtorch before 2.6).

    Ours: the map traced and compared after it was read back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels, "isotonic")
    ...     found = calibcli.export(fit, "torchscript", save=f"{folder}/calibrator.pt", data=logits)
    >>> found.facts["arithmetic"]
    'float64'
    """
    from calibcli.networks.deploy._torch_program import write

    return write(job, "torchscript")


WORDS = (
    "a generation temperature is no calibrator: vLLM reports log-probabilities from before it (logprobs_mode "
    "raw_logprobs), so it changes what is sampled, not what is reported; of answers chosen among few texts, divide the "
    "log-probabilities of the choices by T where they are read, and normalise again"
)


@TARGETS.add(suffixes=(".json",), data="scores")
def vllm(job: ExportRequest) -> Shipped:
    """The pooler's options as JSON, for `vllm serve MODEL --pooler-config "$(cat FILE)"`: logit_sigma, logit_mean.

    vLLM's pooler gives softmax((z - mean) / sigma), of one column sigmoid: `temperature`, and of one column `platt`
    (Kwon et al. 2023). It is compared by that formula in float32, as vLLM itself is not run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "vllm", save=f"{folder}/pooler.json", data=logits)
    >>> found.facts["logit_sigma"].__round__(2)
    2.81

    Raises:
        UsageError: another map, or one of probabilities.
    """
    scaler = job.scaler
    name, parameters = scaler.choice.name, scaler.parameters
    if scaler.kind != "logits":
        problem = f"vLLM's pooler works on logits, the calibrator was fitted on {kind_words(scaler.kind)}"
        raise UsageError(problem, _instead(scaler))
    if name == "temperature" and float(parameters["beta"]) > 0:
        sigma, mean = 1 / float(parameters["beta"]), 0.0
    elif name == "platt" and scaler.columns == 1 and parameters["slope"][0] > 0:
        sigma = 1 / float(parameters["slope"][0])
        mean = -float(parameters["bias"][0]) * sigma
    else:
        problem = f"vLLM's pooler has no '{name}' of {scaler.columns} columns (temperature is one)"
        raise UsageError(problem, _instead(scaler))
    options = {"logit_sigma": sigma, **({"logit_mean": mean} if mean else {})}
    fed = job.fed("float32")
    z = (fed - np.float32(mean)) / np.float32(sigma)
    if scaler.columns == 1:
        z = np.concatenate([np.zeros_like(z), z], axis=1)
    compared = of_scores(scaler, fed, softmax(z), "float32", job.tolerance)
    compared.require(job.path.name)
    with atomic(job.path) as temporary:
        temporary.write_text(json.dumps(options) + "\n", encoding="utf-8")
    return Shipped(files=[job.path], compared=compared, facts=options, notes=[WORDS])


def _instead(scaler: Scaler) -> str:
    """A target that takes this map."""
    from calibcli.networks.deploy import checkpoint_export

    try:
        checkpoint_export.linear(scaler)
    except UsageError as error:
        return error.fix
    return "use --to checkpoint, and serve the folded model"
