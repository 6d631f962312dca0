"""What the finished runs of an arm measure, in each of the ways that its confidence can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibcli import scalers
from calibcli.api.measuring import read
from calibcli.columns import Columns, columns
from calibcli.errors import InputError, UsageError
from calibcli.links import log_softmax
from calibcli.metrics.sample import traits
from calibcli.predictions import ArrayScores, Predictions
from calibcli.study import claims, panels
from calibcli.study.claims import Measured
from calibcli.study.experiment import TRAIN, Study
from calibcli.study.redraws import draws, sums
from calibcli.study.work import Run, logged, record


def measured(study: Study, save: Path, arch: str) -> tuple[dict[str, dict[str, Measured]], dict[str, str]]:
    """Every metric of each arm with all of its runs, and why another has none."""
    complete: dict[str, dict[str, Measured]] = {}
    lost: dict[str, str] = {}
    times = None
    for arm in study.arms:
        records = [record(save, Run(arm, arch, seed)) for seed in range(study.seeds)]
        diverged = [one for one in records if one.get("status") == "diverged"]
        absent = sum(not one for one in records)
        if diverged or absent:
            parts = [f"{len(diverged)} of {study.seeds} diverged"] * bool(diverged) + [f"{absent} not run"] * bool(
                absent
            )
            lost[arm.name] = ", ".join(parts)
            continue
        values: dict[str, list[float]] = {}
        spread: dict[str, list[Any]] = {}
        for seed, one in enumerate(records):
            folder = save / Run(arm, arch, seed).folder
            pair = [read(folder / f"{part}.npz", kind="logits") for part in ("validation", "test")]
            if times is None:
                times = draws(pair[1].n, claims.DRAWS)
            for name, value in _alone(study, folder, one, logged(save, Run(arm, arch, seed)) if study.log else []):
                values.setdefault(name, []).append(value)
            for reading in study.readings:
                validation, test = (
                    answers(rows, study.masked) if study.masked and not reading else rows for rows in pair
                )
                fit = scalers.fit("temperature", validation)
                values.setdefault(f"temperature{reading}", []).append(float(fit["temperature"].value or np.nan))
                mapped = [("", test), (" after", scalers.apply(fit.scaler, test))]
                for spec in study.scalers:
                    mapped.append((f" after {spec}", scalers.apply(scalers.fit(spec, validation).scaler, test)))
                for suffix, rows in mapped:
                    made = unrenormalised(rows, study.masked) if reading else columns(rows, class_bins=())
                    for name in {**dict.fromkeys(study.metrics), **_second(study)}:
                        summed = sums(name, made)
                        values.setdefault(name + suffix + reading, []).append(summed.value)
                        if not traits(name).get("largest_gap"):  # on draws of the rows it is larger than on the rows
                            spread.setdefault(name + suffix + reading, []).append(summed.drawn(times))
        complete[arm.name] = {
            name: Measured(np.array(of), np.stack(spread[name]) if name in spread else None)
            for name, of in values.items()
        }
    return complete, lost


def answers(rows: Predictions, masked: str) -> Predictions:
    """The same rows with the softmax over the other classes alone.

    Raises:
        UsageError: no class is called so, or rows are labelled with it.
    """
    out, logits = _masked(rows, masked), rows.logits.copy()
    logits[:, out] = -np.inf
    return dataclasses.replace(rows, scores=ArrayScores(logits), predicted=None)


def unrenormalised(rows: Predictions, masked: str) -> Columns:
    """The prediction is one of the other classes, and its confidence the softmax over all of them, as in the code of
    Mukhoti et al. (2020): no probability of being right, since what the masked class has of it is lost.

    Raises:
        UsageError: as `answers`.
    """
    of_all, answered = columns(rows, class_bins=()), columns(answers(rows, masked), class_bins=())
    confidence = np.exp(log_softmax(rows.logits))[np.arange(rows.n), answered.predicted]
    return dataclasses.replace(
        of_all,
        confidence=confidence,
        rest=1 - confidence,
        predicted=answered.predicted,
        correct=answered.correct,
    )


def _masked(rows: Predictions, name: str) -> int:
    out = list(rows.classes or ()).index(name) if name in (rows.classes or ()) else -1
    if out < 0 or bool((rows.labels == out).any()):
        problem = f"no class is called '{name}'" if out < 0 else f"rows of class {name} are to be answered"
        raise UsageError(f"{problem}, which `masked` says is never an answer", "correct `masked` in [data]")
    return out


def _alone(
    study: Study, folder: Path, run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, float]]:
    """What a run says by itself, of its record and its log.

    Raises:
        InputError: its record lacks a number, which was not kept when it was trained.
    """
    for name in (*TRAIN, *(f"{name} of {loss}" for name in study.curvature for loss in study.losses)):
        if name not in run:
            problem = f"{folder / 'run.json'} lacks '{name}': the run is older than this number"
            raise InputError(problem, "remove that folder, and train it again: calib study without --report-only")
        yield name, float(run[name])
    for name in study.log:
        for moment in study.moments:
            line = lines[max(0, -(-moment * len(lines) // 100) - 1)]
            yield f"{name} at {moment}%", panels.number(line.get(name))


def _second(study: Study) -> dict[str, None]:
    """The estimator by which a claim about a binned error is judged again."""
    return dict.fromkeys(second for name in study.metrics if (second := traits(name).get("debiased")))
