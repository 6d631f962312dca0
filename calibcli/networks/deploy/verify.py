"""Compare a deployed file with the calibrator that it should contain."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibcli.calibrators import LabelCalibrators, check_classes
from calibcli.calibrators.store import from_json
from calibcli.core.errors import InputError, UsageError, check_path, refusing
from calibcli.core.files import reading, sha256
from calibcli.core.result import VERDICTS, Cell, Check, Outcome, Result, Table
from calibcli.gate import check
from calibcli.gate.options import Request
from calibcli.networks.deploy import _estimator as estimator
from calibcli.scores import recorded_outputs
from calibcli.scores.predictions import ArrayScores, Predictions
from calibcli.ship.target import Compared, ExportRequest, compare, estimate, facts_of, fed, of_scores, softmax

Array = NDArray[Any]
TORCH = (".pt2", ".pt", ".pth", ".ckpt")


def verify(job: ExportRequest, before: Path | None, rules: Request) -> Result:
    """Run or read the file at `job.path`, and compare its probabilities with those of the calibrator.

    Args:
        job: the calibrator, the rows, and the deployed file as its path.
        before: the network before calibration if the rows are its inputs; None if they are recorded scores.
        rules: limits to judge the rows by, before and after.

    Raises:
        InputError: a file is refused, holds other rows, or treats small probabilities in another way than these show.
        UsageError: no rows were named.
    """
    if job.data is None:
        raise UsageError("no rows were named", "pass --data ROWS")
    if isinstance(job.scaler, LabelCalibrators):
        return _labels(job, before, rules)
    cost: Callable[[], float | None] = _none
    inputs, run = None, None
    if before is None:
        run = _runner(job)
        rows, deployed, inputs = _scores(job, run)
    else:
        rows, deployed, cost = _networks(job, before)
    check_classes(job.scaler, rows)
    if len(deployed) != rows.n:
        problem = f"{job.path} has {len(deployed):,} rows, {rows.source} has {rows.n:,}"
        raise InputError(problem, "pass the same rows, in the same order")
    # what a program was given was rounded to its dtype: the calibrator is given the same
    expected = job.scaler.map(rows.logits) if inputs is None else np.asarray(job.scaler(inputs))  # log-probabilities
    # where the calibrator keeps predicted classes, they are compared with those of the scores before
    raw = np.asarray(rows.logits) if job.scaler.preserves_accuracy and not rows.top_only else None
    compared = compare(expected, deployed, "float32", job.tolerance, raw=raw, rounding=cost)
    if compared.within and run is not None:
        _require_cut(job, run)
    verdicts, table = _verdicts(rules, rows, deployed, str(job.path))
    return _result(job, compared, rows.notes, verdicts, table, before)


def _labels(job: ExportRequest, before: Path | None, rules: Request) -> Result:
    """Compare the calibrators of a multi-label problem, all in one program, for each label of each row."""
    if before is not None or rules.max or rules.min or job.path.suffix not in (".onnx", *TORCH):
        problem = "calibrators of labels are compared on scores, in a file of calib export, without limits"
        raise UsageError(problem, "leave --before, --max and --min out, or pass the calibrator of one label")
    inputs = job.fed("float32")
    return _result(job, of_scores(job.scaler, inputs, _program(job, inputs), "float32", job.tolerance))


def _program(job: ExportRequest, inputs: Array) -> Array:
    """Run a program that takes scores."""
    if job.path.suffix == ".onnx":
        from calibcli.networks.deploy import _onnx_run as onnx_run

        return onnx_run.probabilities(job.path, inputs)
    from calibcli.networks.deploy import _torch_program as torch_program

    return np.asarray(torch_program.probabilities(job.path, inputs, bool(job.network.get("trust"))))


def _result(
    job: ExportRequest,
    compared: Compared,
    notes: Sequence[str] = (),
    verdicts: Mapping[str, Cell] | None = None,
    table: Sequence[Table] = (),
    before: Path | None = None,
) -> Result:
    facts: dict[str, Cell] = {"deployed": str(job.path), "calibrator": job.scaler.spec}
    facts |= {**facts_of(compared), **(verdicts or {})}
    does = "gives" if compared.within else "does not give"
    headline = f"{job.path.name} {does} what {job.scaler.choice.name.replace('_', ' ')} gives: {compared.text}."
    if verdicts:
        first, second = (VERDICTS[cast(Outcome, verdicts[f"verdict {when}"])] for when in ("before", "after"))
        headline += f" The gate's verdict, which is only shown, is {first} before it and {second} after."
    facts["headline"] = headline
    files = [p for p in (str(job.path), job.calibrator, str(before or "")) if p and os.path.isfile(p)]
    files += [p for p in job.read if os.path.isfile(p)]
    outcome: Outcome = "pass" if compared.within else "fail"
    rule, difference = f"max_dp <= {compared.limit:g}", estimate(compared)
    checks = [Check(rule=rule, outcome=outcome, message=compared.text, estimate=difference, limit=compared.limit)]
    return Result(
        command="verify",
        estimates=[difference],
        checks=checks,
        tables=table,
        notes=notes,
        facts=facts,
        provenance={"inputs": [{"path": path, "sha256": sha256(path)} for path in dict.fromkeys(files)]},
    )


def _verdicts(rules: Request, rows: Predictions, deployed: Array, path: str) -> tuple[dict[str, Cell], list[Table]]:
    """Return the verdicts of the gate on the rows before and on the `deployed` probabilities, if there are rules."""
    if not check.asked(dataclasses.replace(rules, input=rows)).gates:
        return {}, []
    if not rows.record.labelled:
        raise UsageError(f"{rows.source} has no labels, which a gate needs", "pass labelled rows")
    with np.errstate(divide="ignore"):
        scores = ArrayScores(np.log(deployed))
    after = dataclasses.replace(rows, scores=scores, kind="log_probabilities", predicted=None, source=path)
    first, second = (check.run(dataclasses.replace(rules, input=one)) for one in (rows, after))
    pairs = zip(first.checks, second.checks, strict=True)
    lines: list[list[Cell]] = [[a.rule_shown, a.scope, a.outcome, b.outcome, b.message] for a, b in pairs]
    table = Table(name="verdicts", columns=["rule", "scope", "before", "after", "after, in words"], rows=lines)
    return {"verdict before": first.verdict, "verdict after": second.verdict}, [table]


@dataclasses.dataclass(frozen=True)
class _Runner:
    """A deployed file that takes scores (n, columns) of this dtype, as a function to probabilities (n, K)."""

    dtype: str
    call: Callable[[Array], Array]


def _runner(job: ExportRequest) -> _Runner | None:
    """Return the deployed file as a function; None if it holds outputs of a server."""
    path = job.path
    if path.suffix in (".onnx", *TORCH):
        return _Runner("float32", functools.partial(_program, job))
    if path.suffix in estimator.SUFFIXES:
        trust = bool(job.network.get("trust"))
        return _Runner("float64", lambda inputs: estimator.probabilities(path, inputs, "", trust))
    if path.suffix != ".json":
        return None
    reading(path)
    with refusing(OSError, lambda e: f"cannot read {path} ({e.strerror})", check_path(path)):
        text = path.read_bytes()
    return _Runner("float64", lambda inputs: np.asarray(from_json(text, str(path)).predict_proba(inputs)))


SMALL = 1e-12  # a probability that a calibrator without a cut leaves as it is


def _require_cut(job: ExportRequest, run: _Runner) -> None:
    """Refuse a file that raises small probabilities to another smallest one, which rows without them do not show.

    Raises:
        InputError: it maps a class of an eighth of the smallest probability in another way.
    """
    scaler = job.scaler
    if scaler.kind == "logits":
        return
    cut = float(scaler.parameters.get("cut", 0.0))
    probe = np.full((1, scaler.k), (1 - (cut / 8 or SMALL)) / (scaler.k - 1))
    probe[0, -1] = cut / 8 or SMALL
    probe = probe[:, 1:] if scaler.columns == 1 else probe
    probe = (np.log(probe) if scaler.kind == "log_probabilities" else probe).astype(run.dtype)
    compared = of_scores(scaler, probe, run.call(probe), "float32", job.tolerance)
    if not compared.within:
        does = f"raises probabilities below {cut:g} to it" if cut else "leaves small probabilities as they are"
        problem = (
            f"{job.path.name} maps smaller probabilities than these rows have in another way: the calibrator {does}"
        )
        raise InputError(f"{problem}, and max|dp| is {compared.most:.2g} there", "export the calibrator again")


def _scores(job: ExportRequest, run: _Runner | None) -> tuple[Predictions, Array, Array | None]:
    """Return recorded scores, the deployed probabilities (n, K) for them, and the scores that a program was given.

    The last are None where no rounding lies between: a calibrator in JSON runs in float64 as the one at hand does, and
    outputs of a server are read from a file.
    """
    rows = job.data
    if not isinstance(rows, Predictions):
        rows = recorded_outputs.read(rows, **{**job.reading, "need_labels": False})
    check_classes(job.scaler, rows)
    path = job.path
    if run is not None:
        inputs = fed(job.scaler, rows, run.dtype)
        return rows, run.call(inputs), None if path.suffix == ".json" else inputs
    other = recorded_outputs.read(path, need_labels=False)
    if other.k != rows.k:
        raise InputError(f"{path} has {other.k} classes, {rows.source} has {rows.k}", "pass outputs for the same rows")
    for name, a, b in (("ids", rows.ids, other.ids), ("labels", rows.labels, other.labels)):
        comparable = name == "ids" or (rows.record.labelled and other.record.labelled)
        if comparable and a is not None and b is not None and len(a) == len(b) and not np.array_equal(a, b):
            raise InputError(f"{path} has other {name} than {rows.source}", "pass the same rows, in the same order")
    return rows, softmax(other.logits), None


def _none() -> None:
    """Return None: the cost of rounding is unknown."""


def _networks(job: ExportRequest, before: Path) -> tuple[Predictions, Array, Callable[[], float | None]]:
    """Return the log-probabilities of the network before, with labels; the probabilities of the deployed one; and a
    function for the cost of rounding in its head.

    The cost is the largest difference of a probability that storing the head in half precision causes by itself, or
    None where that is not known. It is computed only if the two differ by more than the limit.

    Raises:
        InputError: an output of the deployed network is a class, and not that of its largest score.
    """
    from calibcli.networks import checkpoint, dataset

    cost: Callable[[], float | None] = _none
    if before.suffix == ".onnx":
        from calibcli.networks.deploy import _onnx_export as onnx_export

        rows = onnx_export.opened(before, job)
        if job.path.suffix == ".onnx":
            wrong = onnx_export.contradictions(job.path, rows, _output(job))
            # an output that contradicts the scores of the network before as well is some other class
            if name := next((o for o in wrong if o not in onnx_export.contradictions(before, rows, _output(job))), ""):
                problem = (
                    f"{job.path.name} contradicts itself: its output '{name}' is not the class of its largest score"
                )
                raise InputError(problem, "export it again with this version, which lets that output follow the scores")
        # `kind` says that outputs are logits where they would pass for probabilities
        z, cost = onnx_export.before(before, rows, job.scaler, _output(job), job.kind)
    else:
        if before.suffix in estimator.SUFFIXES:
            rows = dataset.load(job.data, **job.reading)
        else:  # prepared as the model asks
            loaded = checkpoint.load(before, **job.network)
            rows = loaded.open_data(job.data, **job.reading)
            if job.path.suffix not in (".onnx", *estimator.SUFFIXES):
                from calibcli.networks.deploy import checkpoint_export

                rounding = checkpoint_export.stored_rounding
                cost = functools.partial(rounding, loaded, job.path, rows, job.scaler, **job.network)
        with np.errstate(divide="ignore"):
            z = np.log(_outputs(before, rows, job))
    deployed = _outputs(job.path, rows, job)
    read = Predictions.of(z, rows.labels, source=str(before), classes=rows.classes)
    return dataclasses.replace(read, kind="log_probabilities"), deployed, cost


def _output(job: ExportRequest) -> str:
    """Return the output of an ONNX network that has the calibrator; "" if the file does not say."""
    if job.path.suffix != ".onnx":
        return ""
    from calibcli.networks.deploy import _onnx_run as onnx_run

    return onnx_run.said(job.path).get(onnx_run.OUTPUT, "")


def _outputs(path: Path, rows: Any, job: ExportRequest) -> Array:
    """Compute the probabilities (n, K) of a network."""
    if path.suffix == ".onnx":
        from calibcli.networks.deploy import _onnx_export as onnx_export

        return onnx_export.outputs(path, rows, _output(job))
    if path.suffix in estimator.SUFFIXES:
        x, _ = rows.batch(slice(0, len(rows)))
        return estimator.probabilities(path, np.asarray(x), job.scaler.kind, bool(job.network.get("trust")))
    from calibcli.networks import checkpoint, inference
    from calibcli.networks.checkpoint import containers
    from calibcli.networks.deploy._torch_program import logits_of

    network = job.network
    if path.suffix in TORCH and containers.read(path, trust=bool(network.get("trust"))).modules:
        network = {**network, "arch": None, "arch_file": None}  # the file holds a network itself, as a program
    model = checkpoint.load(path, **network).model
    inference.check(rows, model, job.kind)  # refuses outputs that are random, depend on other rows or are no logits
    return softmax(logits_of(model, rows))
