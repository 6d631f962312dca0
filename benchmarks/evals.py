"""Evaluations of language models: the harness's verdict on each row, and the one calib reads from its file.

    python benchmarks/evals.py             files that the installed harnesses write here (lm_eval, inspect_ai)
    python benchmarks/evals.py PATH        every file of a folder
    python benchmarks/evals.py --keep DIR  write them there first

Prints a table: rows, accuracy by the harness, accuracy by calib, rows that differ; or why calib refuses the file. The
verdicts are read from the files by code of its own. Exit 1 where a row differs.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import arguments

import calibcli
from calibcli.core.errors import CalibError

CHOICES = {"chat": "A,B,C,D", "batch": "A,B,C,D"}


NORMS = {None: "acc", "char": "acc_norm", "byte": "acc_bytes", "pmi": "acc_mutual_info"}


def verdicts(path: Path, norm: str | None) -> list[float] | None:
    """The harness's own, row by row; None where the file has none."""
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [float(row[NORMS[norm]]) for row in rows] if NORMS[norm] in rows[0] else None
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return [float(row["metric"]["acc"]) for row in parquet.read_table(path).to_pylist()]
    found = []
    if path.suffix == ".eval":
        found = samples(path)
    elif path.suffix == ".json":
        found = json.loads(path.read_text()).get("samples", [])
    return [float(s["scores"]["choice"]["value"] == "C") for s in found if "choice" in s.get("scores", {})]


def samples(path: Path) -> list[dict[str, Any]]:
    """Of a log of Inspect, in the order of their ids."""
    import zipfile_zstd  # noqa: F401  (lets zipfile read Zstandard)

    with zipfile.ZipFile(path) as archive:
        found = [json.loads(archive.read(name)) for name in archive.namelist() if name.startswith("samples/")]
    return sorted(found, key=lambda s: (len(str(s["id"])), str(s["id"]), s["epoch"]))


def row(path: Path, norm: str | None = None) -> tuple[list[str], int]:
    """A line of the table, and rows that differ."""
    name = path.name + (f" --lm-norm {norm}" if norm else "")
    choices = next((found for word, found in CHOICES.items() if word in path.name), None)
    how = {key: value for key, value in (("lm_norm", norm), ("choices", choices)) if value}
    try:
        read = calibcli.read(path, **how)
    except CalibError as error:
        return [name, "", "", "", f"refused: {error.problem.replace(str(path), 'it')}; {error.fix}"], 0
    right = (read.logits.argmax(axis=1) == read.labels).astype(float)
    try:
        said = verdicts(path, norm)
    except ImportError as error:
        return [name, str(read.n), "", f"{right.mean():.4f}", f"its verdicts need {error.name}"], 0
    if not said:
        return [name, str(read.n), "", f"{right.mean():.4f}", f"{read.record.format}; no verdicts in it"], 0
    differ = int((np.array(said) != right).sum()) if len(said) == read.n else read.n
    return [name, str(read.n), f"{np.mean(said):.4f}", f"{right.mean():.4f}", f"{differ} rows differ"], differ


# files written by the harnesses themselves, of a model that answers at random

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "naïve", "über", "漢字"]
ROWS = 60


def write(folder: Path) -> list[str]:
    """Files of every harness that is installed; what was written and what was not."""
    said = []
    for name, make in (("lm_eval", of_lm_eval), ("inspect_ai", of_inspect)):
        try:
            said.append(f"{name}: {make(folder)}")
        except ImportError as error:
            said.append(f"{name} is not installed ({error.name}): left out")
    return said


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


def documents(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Rows as the data sets of stock tasks have them, by task."""

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 5)))

    def texts(k: int) -> list[str]:
        return [f"{text()} {i}" for i in range(k)]

    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TASKS}
    for i in range(ROWS):
        k = rng.choice([3, 4, 5])
        labels, several = list("ABCDE" if i % 3 else "12345")[:k], [int(rng.random() < 0.5) for _ in range(k - 1)]
        arc = {"choices": {"text": texts(k), "label": labels}, "answerKey": rng.choice(labels)}
        row: dict[str, dict[str, Any]] = {
            **{f"arc_{kind}": arc for kind in ("easy", "mutual_info", "norm_only")},
            "hellaswag": {"ctx": text(), "endings": texts(4), "label": str(rng.randrange(4))},
            "winogrande": {"option1": text(), "option2": text(), "answer": rng.choice("12")},
            "boolq": {"passage": text(), "label": rng.randrange(2)},
            "yes": {"right": rng.random() < 0.5},
            "truthfulqa_mc1": {"mc1_targets": {"choices": texts(k), "labels": [1] + [0] * (k - 1)}},
            "truthfulqa_mc2": {"mc2_targets": {"choices": texts(k), "labels": [1, *several]}},
            "generated": {"answer": text()},
        }
        row["winogrande"]["sentence"] = f"The _ {text()} {i}."
        for subject in ("law", "art"):
            row[f"mmlu_{subject}"] = {"choices": texts(4), "answer": rng.randrange(4), "subject": subject}
        for name, own in row.items():
            found[name].append({"question": f"{text()}?", **own})
    return found


def _pieces(doc: dict[str, Any]) -> tuple[str, str]:
    before, _, after = doc["sentence"].partition("_")
    return before, after.strip()


def _mc2(doc: dict[str, Any], results: Any) -> dict[str, float]:
    p = [math.exp(value) for value, _ in results]
    return {"acc": sum(x for x, right in zip(p, doc["mc2_targets"]["labels"]) if right) / sum(p)}


def _task(text: Any, target: Any, choice: Any, *metrics: str, **more: Any) -> dict[str, Any]:
    """The configuration of a task; `acc` unless there are other metrics."""
    listed = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics or ("acc",)]
    choices = {"doc_to_choice": choice} if choice else {}
    return {"doc_to_text": text, "doc_to_target": target, "metric_list": listed, **choices, **more}


ARC = ("Question: {{question}}\nAnswer:", "{{choices.label.index(answerKey)}}", "{{choices.text}}")
LETTERS = "\n".join(f"{letter}. {{{{choices[{i}]}}}}" for i, letter in enumerate("ABCD"))
MMLU = _task("{{question.strip()}}\n" + LETTERS + "\nAnswer:", "answer", ["A", "B", "C", "D"])
TASKS: dict[str, dict[str, Any]] = {
    "arc_easy": _task(*ARC, "acc", "acc_norm", "acc_bytes"),
    "arc_mutual_info": _task(*ARC, "acc", "acc_norm", "acc_mutual_info"),
    "arc_norm_only": _task(*ARC, "acc_norm"),
    "hellaswag": _task("{{ctx}}", "{{label}}", "endings", "acc", "acc_norm"),
    "mmlu_law": MMLU,
    "mmlu_art": MMLU,
    "winogrande": _task(
        lambda doc: {"1": 0, "2": 1}[doc["answer"]],
        lambda doc: _pieces(doc)[1],
        lambda doc: [_pieces(doc)[0] + doc["option1"], _pieces(doc)[0] + doc["option2"]],
    ),
    "boolq": _task("{{passage}}\nQuestion: {{question}}?\nAnswer:", "label", ["no", "yes"]),
    "yes": _task("{{question}}?", lambda doc: doc["right"], ["no", "yes"]),
    "truthfulqa_mc1": _task("Q: {{question}}\nA:", 0, "{{mc1_targets.choices}}"),
    "truthfulqa_mc2": _task("Q: {{question}}\nA:", 0, "{{mc2_targets.choices}}", process_results=_mc2),
    "generated": _task(
        "{{question}}", "{{answer}}", None, "exact_match",
        output_type="generate_until", generation_kwargs={"until": ["\n"]},
    ),
}  # fmt: skip


def of_lm_eval(folder: Path) -> str:
    """Samples files of tasks whose templates are those of stock tasks, by lm_eval with its model `dummy`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets
    from lm_eval import evaluator
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.loggers import EvaluationTracker

    rows, tasks = documents(random.Random(3)), []
    for name, about in TASKS.items():

        def load(own: str = name, **_: Any) -> dict[str, Any]:
            return {"test": datasets.Dataset.from_list(rows[own])}

        config = {"task": name, "custom_dataset": load, "test_split": "test", "output_type": "multiple_choice", **about}
        tasks.append(ConfigurableTask(config=config))
    random.seed(5)
    with quiet():
        found = evaluator.simple_evaluate(model="dummy", tasks=tasks, log_samples=True, bootstrap_iters=0)
        tracker = EvaluationTracker(output_path=str(folder))
        tracker.save_results_aggregated(results={"results": {}}, samples=None)
        for name, samples in found["samples"].items():
            tracker.save_results_samples(task_name=name, samples=samples)
    for path in folder.rglob("samples_*.jsonl"):
        path.replace(folder / f"{path.stem.rpartition('_')[0]}.jsonl")
    return f"{len(tasks)} tasks"


def of_inspect(folder: Path) -> str:
    """Logs of multiple-choice tasks by inspect_ai with its model `mockllm`, as `.eval` and `.json`."""
    import inspect_ai
    from inspect_ai import model as models
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import choice
    from inspect_ai.solver import multiple_choice

    rng, made = random.Random(4), 0

    def sample(i: int) -> Any:
        choices, subject = [f"{WORDS[c]} {i}" for c in range(3 + i % 3)], {"subject": "law" if i % 2 else "art"}
        return Sample(id=i, input=f"question {i}?", choices=choices, target="ABC"[i % 3], metadata=subject)

    def answer(input: Any, *_: Any) -> Any:
        letters = [c for c in "ABCDE" if f"\n{c}) " in input[-1].text]
        p = [rng.expovariate(1) for _ in letters]
        logs = {c: math.log(0.97 * v / sum(p)) for c, v in zip(letters, p)}
        best = max(logs, key=lambda c: logs[c])
        top = [models.TopLogprob(token=t, logprob=v) for t, v in {**logs, f" {best}": -4.0}.items()]
        content = [models.Logprob(token=t, logprob=-0.001, top_logprobs=None) for t in ("ANSWER", ":", " ")]
        content.append(models.Logprob(token=best, logprob=logs[best], top_logprobs=top))
        message = models.ChatMessageAssistant(content=f"ANSWER: {best}", source="generate")
        said = models.ChatCompletionChoice(
            message=message, logprobs=models.Logprobs(content=content), stop_reason="stop"
        )
        usage = models.ModelUsage(input_tokens=9, output_tokens=4, total_tokens=13)
        return models.ModelOutput(model="mockllm/model", usage=usage, choices=[said])

    for form in ("eval", "json"):
        for name in ("plain", "epochs", "shuffled", "rearranged"):
            data = MemoryDataset([sample(i) for i in range(ROWS)])
            if name == "rearranged":
                data.shuffle_choices(seed=7)
            solver, epochs = (
                multiple_choice(shuffle=name == "shuffled"),
                inspect_ai.Epochs(3 if name == "epochs" else 1),
            )
            task = inspect_ai.Task(name=f"{name}_{form}", dataset=data, solver=solver, scorer=choice(), epochs=epochs)
            model = models.get_model("mockllm/model", custom_outputs=answer)
            how = {"log_dir": str(folder), "log_format": form, "logprobs": True, "top_logprobs": 20}
            with quiet():
                inspect_ai.eval(task, model=model, display="none", **how)
            made += 1
    for path in [*folder.glob("*.eval"), *folder.glob("*.json")]:
        path.replace(folder / f"inspect_{path.name.split('_')[1].rpartition('-')[0]}{path.suffix}")
    return f"{made} logs"


def main() -> int:
    given = arguments(__doc__, "path", keep=Path)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path([given.keep or scratch, *given.path][-1])
        if not given.path:
            folder.mkdir(exist_ok=True)
            print("\n".join(write(folder)))
        lines, wrong = [["file", "rows", "harness", "calib", "what"]], 0
        for path in sorted(p for p in folder.iterdir() if p.is_file() or (p / "state.json").exists()):
            for norm in NORMS if path.name.startswith(("lm_eval", "samples")) else (None,):
                line, differ = row(path, norm)
                if norm is None or not line[-1].startswith(("refused", "jsonl")):
                    lines.append(line)
                    wrong += differ
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    for line in lines:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line[:4], widths)), line[4]]))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
