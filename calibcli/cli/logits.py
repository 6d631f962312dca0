"""`calib logits`: a data set through a model, into a file that every other command reads."""

from __future__ import annotations

from pathlib import Path

from calibcli import device as devices
from calibcli.cli.run import Run, takes
from calibcli.files import claim, known_suffix
from calibcli.inputs import opening
from calibcli.result import Estimate, Result, Screen
from calibcli.spec import Rows, argument, option

PANEL = "Measure"


@takes
def command(
    *,
    model: Path = argument(opening.MODEL),
    save: Path = option(..., "File to write: .npz, .safetensors or .npy.", writes="file"),
    data: str | None = option(None, opening.DATA),
    batch_size: Rows = option(256, "Rows per forward pass."),
    machine: devices.Machine,
    run: Run,
    network: opening.Network,
    rows: opening.Rows,
) -> int:
    """Run a model over a data set and save its logits and labels for the other commands.

    Example: calib logits model.safetensors --data digits.npz#test --save test.npz

    Rows stream through in batches, so memory does not grow with the data set. Of a checkpoint that says where its data
    lies, the test set is used when --data is left out.
    """
    from calibcli.inputs import checkpoint, inference

    target = known_suffix(save, inference.SUFFIXES, "logits")
    claim(*(path for path in inference.files_of(target) if path != target))
    where, precision = devices.pick(machine.device), devices.dtype(machine.dtype)
    devices.set_threads(machine.threads)
    loaded = checkpoint.load(model, **vars(network))
    found = loaded.open_data(data, "test", "validation", **vars(rows), trust=network.trust)
    written = inference.write_logits(
        loaded.model,
        found,
        target,
        batch_size=batch_size,
        device=where,
        dtype=precision,
        progress=run.progress("logits"),
        folded=checkpoint.folded(loaded.metadata),
    )
    facts = loaded.facts(found)
    sizes = {"rows": written.rows, "classes": written.classes, "inputs": list(found.shape)}
    run_with = {"seed": machine.seed, "device": str(where), "dtype": machine.dtype}
    result = Result(
        command="logits",
        estimates=[accuracy(written.correct, written.rows)],
        notes=[*loaded.notes, *found.notes, *written.notes],
        facts={**facts, **sizes, "preprocess": facts["preprocess"]},
        artefacts={"logits" if i == 0 else "labels": str(path) for i, path in enumerate(written.paths)},
        provenance={"inputs": loaded.inputs(found), **run_with},
        screen=Screen(hidden=("container",)),
    )
    return run.finish(result)


def accuracy(correct: int, rows: int) -> Estimate:
    """Share of rows whose largest logit is the label, with its 95 % interval (Clopper and Pearson 1934)."""
    from calibcli.numerics import clopper_pearson

    p = correct / rows
    low, high = clopper_pearson(correct, rows, 0.025)
    return Estimate(
        name="accuracy",
        value=p,
        low=low,
        high=high,
        level=0.95,
        better="higher",
        unit="probability",
        how="share of rows whose largest logit is the label; Clopper-Pearson interval",
        n=rows,
    )
