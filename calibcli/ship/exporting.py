"""One export from job to result."""

from __future__ import annotations

from pathlib import Path

from calibcli.errors import UsageError
from calibcli.files import known_suffix, sha256
from calibcli.predictions import words
from calibcli.result import Cell, Estimate, Result
from calibcli.scalers import Labels
from calibcli.ship.comparison import Compared
from calibcli.ship.target import TARGETS, Job

OF_LABELS = ("onnx", "pt2", "torchscript")  # targets that hold the calibrators of labels in one


def export(spec: str, job: Job) -> Result:
    """Write what `spec` names, and say how far it is from the calibrator.

    Raises:
        UsageError: an unknown target, a map that it cannot hold, or a path that cannot be.
        InputError: a model or rows that are refused, or what was made is not within its limit: it is not written.
    """
    choice = TARGETS.choose(spec)
    needs, suffixes = choice.traits["data"], choice.traits["suffixes"]
    if needs == "inputs" and job.model is None:
        raise UsageError(f"--to {choice.name} writes a model", "pass --model FILE")
    if needs == "scores" and job.model is not None:
        raise UsageError(f"--to {choice.name} writes the calibrator alone", "leave --model out")
    if isinstance(job.scaler, Labels) and (choice.name not in OF_LABELS or job.model is not None):
        what = f"--to {choice.name}" + (" --model" if choice.name in OF_LABELS else "")
        one = sorted(Path(job.calibrator).glob("*.safetensors"))[0]
        fix = "use --to onnx, --to pt2 or --to torchscript, without --model"
        raise UsageError(f"{what} takes the calibrator of one label, such as {one}", fix)
    if suffixes:
        known_suffix(job.path, suffixes, f"the target {choice.name}")
    shipped = choice(job)
    compared = shipped.compared
    facts: dict[str, Cell] = {
        "target": choice.spec,
        "calibrator": job.scaler.spec,
        "kind": words(job.scaler.kind),
        "classes": job.scaler.k,
        **shipped.facts,
    }
    if compared is not None:
        facts |= facts_of(compared)
    facts["headline"] = _headline(choice.name, job, compared)
    named = needs != "inputs" and job.model is None and isinstance(job.data, str | Path) and Path(job.data).is_file()
    rows = [{"path": str(job.data), "sha256": sha256(job.data)}] if named else []
    return Result(
        command="export",
        estimates=[] if compared is None else [estimate(compared)],
        notes=shipped.notes,
        facts=facts,
        artefacts={path.suffix.lstrip(".") or choice.name: str(path) for path in shipped.files},
        provenance={"inputs": list({e["path"]: e for e in [*job.provenance(), *shipped.inputs, *rows]}.values())},
    )


def _headline(target: str, job: Job, compared: Compared | None) -> str:
    said = f"Wrote {job.scaler.choice.name.replace('_', ' ')} as {target} to {job.path.name}"
    return f"{said}." if compared is None else f"{said}: {compared.text}."


def facts_of(compared: Compared) -> dict[str, Cell]:
    """The comparison, as facts."""
    more: dict[str, Cell] = {} if compared.rounding is None else {"rounding alone costs": compared.rounding}
    return {"limit": compared.limit, "n": compared.n, "predicted classes changed": compared.changed, **more}


def estimate(compared: Compared) -> Estimate:
    """The largest difference of a probability."""
    return Estimate(
        name="max_dp",
        value=compared.most,
        n=compared.n,
        unit="probability",
        better="lower",
        how="largest |p - p of the calibrator in float64| over rows and classes",
        reason="the largest of these rows, measured: it has no sampling error",
    )
