"""Evaluation files written by the harnesses themselves, of a model that answers at random."""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
from pathlib import Path
from typing import Any

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "naïve", "über", "漢字"]
ROWS = 60


def write(folder: Path) -> list[str]:
    """Files of every harness that is installed; what was written and what was not."""
    said = []
    for name, make in (("lm_eval", of_lm_eval), ("inspect_ai", of_inspect)):
        try:
            made = make(folder)
        except ImportError as error:
            said.append(f"{name} is not installed ({error.name}): left out")
        else:
            said.append(f"{name}: {made}")
    return said


def documents(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Rows as the data sets of stock tasks have them, by task."""

    def text(least: int = 1, most: int = 5) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))

    def texts(k: int) -> list[str]:
        return [f"{text()} {i}" for i in range(k)]

    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TASKS}
    for i in range(ROWS):
        k = rng.choice([3, 4, 5])
        labels = list("ABCDE" if i % 3 else "12345")[:k]
        arc = {
            "question": f"{text()}?",
            "choices": {"text": texts(k), "label": labels},
            "answerKey": rng.choice(labels),
        }
        for name in ("arc_easy", "arc_mutual_info", "arc_norm_only"):
            found[name].append(arc)
        ends = texts(4)
        about = {"activity_label": text(), "ctx_a": text(), "ctx_b": text()}
        found["hellaswag"].append({**about, "endings": ends, "label": str(rng.randrange(4))})
        found["mmlu_law"].append(
            {"question": f"{text()}?", "choices": texts(4), "answer": rng.randrange(4), "subject": "law"}
        )
        found["mmlu_art"].append(
            {"question": f"{text()}?", "choices": texts(4), "answer": rng.randrange(4), "subject": "art"}
        )
        pair = {"option1": text(), "option2": text(), "answer": rng.choice("12")}
        found["winogrande"].append({"sentence": f"The _ {text()} {i}.", **pair})
        found["boolq"].append({"question": text(), "passage": text(), "label": rng.randrange(2)})
        found["yes"].append({"question": text(), "right": rng.random() < 0.5})
        several = [int(rng.random() < 0.5) for _ in range(k - 1)]
        found["truthfulqa_mc1"].append(
            {"question": text(), "mc1_targets": {"choices": texts(k), "labels": [1] + [0] * (k - 1)}}
        )
        found["truthfulqa_mc2"].append(
            {"question": text(), "mc2_targets": {"choices": texts(k), "labels": [1, *several]}}
        )
        found["generated"].append({"question": text(), "answer": text()})
    return found


def _pieces(doc: dict[str, Any]) -> tuple[str, str]:
    at = doc["sentence"].index("_")
    return doc["sentence"][:at], doc["sentence"][at + 1 :].strip()


def _mc2(doc: dict[str, Any], results: Any) -> dict[str, float]:
    import numpy as np

    p = np.exp([value for value, _ in results])
    return {"acc": float((p / p.sum())[np.array(doc["mc2_targets"]["labels"]) == 1].sum())}


def _metrics(*names: str) -> list[dict[str, Any]]:
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


ARC = {
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{choices.label.index(answerKey)}}",
    "doc_to_choice": "{{choices.text}}",
}
MMLU = {
    "doc_to_text": "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}"
    "\nAnswer:",
    "doc_to_choice": ["A", "B", "C", "D"],
    "doc_to_target": "answer",
    "metric_list": _metrics("acc"),
}
TASKS: dict[str, dict[str, Any]] = {
    "arc_easy": {**ARC, "metric_list": _metrics("acc", "acc_norm", "acc_bytes")},
    "arc_mutual_info": {**ARC, "metric_list": _metrics("acc", "acc_norm", "acc_mutual_info")},
    "arc_norm_only": {**ARC, "metric_list": _metrics("acc_norm")},
    "hellaswag": {
        "doc_to_text": "{{activity_label}}: {{ctx_a}} {{ctx_b}}",
        "doc_to_target": "{{label}}",
        "doc_to_choice": "endings",
        "metric_list": _metrics("acc", "acc_norm"),
    },
    "mmlu_law": MMLU,
    "mmlu_art": MMLU,
    "winogrande": {
        "doc_to_text": lambda doc: {"1": 0, "2": 1}[doc["answer"]],
        "doc_to_target": lambda doc: _pieces(doc)[1],
        "doc_to_choice": lambda doc: [_pieces(doc)[0] + doc["option1"], _pieces(doc)[0] + doc["option2"]],
        "metric_list": _metrics("acc"),
    },
    "boolq": {
        "doc_to_text": "{{passage}}\nQuestion: {{question}}?\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": ["no", "yes"],
        "metric_list": _metrics("acc"),
    },
    "yes": {
        "doc_to_text": "{{question}}?",
        "doc_to_target": lambda doc: doc["right"],
        "doc_to_choice": ["no", "yes"],
        "metric_list": _metrics("acc"),
    },
    "truthfulqa_mc1": {
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": 0,
        "doc_to_choice": "{{mc1_targets.choices}}",
        "metric_list": _metrics("acc"),
    },
    "truthfulqa_mc2": {
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": 0,
        "doc_to_choice": "{{mc2_targets.choices}}",
        "process_results": _mc2,
        "metric_list": _metrics("acc"),
    },
    "generated": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "metric_list": _metrics("exact_match"),
        "generation_kwargs": {"until": ["\n"]},
    },
}


def of_lm_eval(folder: Path) -> str:
    """Samples files of tasks whose templates are those of stock tasks, by lm_eval with its model `dummy`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets
    from lm_eval import evaluator
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.loggers import EvaluationTracker

    rows = documents(random.Random(3))
    tasks = {}
    for name, about in TASKS.items():

        def load(own: str = name, **_: Any) -> dict[str, Any]:
            return {"test": datasets.Dataset.from_list(rows[own])}

        config = {"task": name, "custom_dataset": load, "test_split": "test", "output_type": "multiple_choice", **about}
        tasks[name] = ConfigurableTask(config=config)
    random.seed(5)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        found = evaluator.simple_evaluate(
            model="dummy", tasks=list(tasks.values()), log_samples=True, bootstrap_iters=0
        )
        tracker = EvaluationTracker(output_path=str(folder))
        tracker.save_results_aggregated(results={"results": {}}, samples=None)
        for name, samples in found["samples"].items():
            tracker.save_results_samples(task_name=name, samples=samples)
    for path in folder.rglob("samples_*.jsonl"):
        path.replace(folder / f"{path.stem.rpartition('_')[0]}.jsonl")
    return f"{len(tasks)} tasks"


def of_inspect(folder: Path) -> str:
    """Logs of multiple-choice tasks by inspect_ai with its model `mockllm`, as `.eval` and `.json`."""
    from inspect_ai import Epochs, Task
    from inspect_ai import eval as run
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        Logprob,
        Logprobs,
        ModelOutput,
        ModelUsage,
        TopLogprob,
        get_model,
    )
    from inspect_ai.scorer import choice
    from inspect_ai.solver import multiple_choice

    rng = random.Random(4)
    made = 0
    variants = {"plain": {}, "epochs": {"epochs": 3}, "shuffled": {"shuffle": True}, "rearranged": {"dataset": True}}
    for form in ("eval", "json"):
        for name, how in variants.items():
            data = MemoryDataset(
                [
                    Sample(
                        id=i,
                        input=f"question {i}?",
                        choices=[f"{WORDS[c]} {i}" for c in range(3 + i % 3)],
                        target="ABC"[i % 3],
                        metadata={"subject": "law" if i % 2 else "art"},
                    )
                    for i in range(ROWS)
                ]
            )
            if how.get("dataset"):
                data.shuffle_choices(seed=7)

            def answer(input: Any, *_: Any) -> Any:
                letters = [c for c in "ABCDE" if f"\n{c}) " in input[-1].text]
                p = [rng.expovariate(1) for _ in letters]
                total = sum(p) / 0.97
                logs = {c: math.log(v / total) for c, v in zip(letters, p)}
                best = max(logs, key=lambda c: logs[c])
                spaced = {f" {best}": -4.0}
                top = [TopLogprob(token=t, logprob=v) for t, v in {**logs, **spaced}.items()]
                content = [Logprob(token=t, logprob=-0.001, top_logprobs=None) for t in ("ANSWER", ":", " ")]
                content.append(Logprob(token=best, logprob=logs[best], top_logprobs=top))
                message = ChatMessageAssistant(content=f"ANSWER: {best}", source="generate")
                return ModelOutput(
                    model="mockllm/model",
                    usage=ModelUsage(input_tokens=9, output_tokens=4, total_tokens=13),
                    choices=[
                        ChatCompletionChoice(message=message, logprobs=Logprobs(content=content), stop_reason="stop")
                    ],
                )

            task = Task(
                name=f"{name}_{form}",
                dataset=data,
                solver=multiple_choice(shuffle=bool(how.get("shuffle"))),
                scorer=choice(),
                epochs=Epochs(how.get("epochs", 1)),
            )
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                run(
                    task,
                    model=get_model("mockllm/model", custom_outputs=answer),
                    log_dir=str(folder),
                    log_format=form,
                    display="none",
                    logprobs=True,
                    top_logprobs=20,
                )
            made += 1
    for path in [*folder.glob("*.eval"), *folder.glob("*.json")]:
        path.replace(folder / f"inspect_{path.name.split('_')[1].rpartition('-')[0]}{path.suffix}")
    return f"{made} logs"
