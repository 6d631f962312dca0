"""Evaluations in the layouts of their harnesses, with the right answers beside them: what a reader has to find."""

from __future__ import annotations

import io
import json
import math
import random
import zipfile
from dataclasses import dataclass
from typing import Any

WORDS = ["alpha", "beta", "gamma", "naïve", "über", "漢字"]
SUBJECTS = ("law", "art", "bio")
LETTERS = "ABCDE"


@dataclass
class Question:
    """Scores of the choices, their texts, and the index of the right one."""

    scores: list[float]
    texts: list[str]
    right: int

    @property
    def best(self) -> int:
        return max(range(len(self.scores)), key=lambda i: self.scores[i])


def questions(rows: int = 60, ragged: bool = True, seed: int = 0) -> list[Question]:
    rng = random.Random(seed)
    found = []
    for _ in range(rows):
        k = rng.choice([3, 4, 5]) if ragged else 4
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 5))) + f" {c}" for c in range(k)]
        scores = [-rng.expovariate(0.2) for _ in range(k)]
        best = scores.index(max(scores))
        found.append(Question(scores, texts, best if rng.random() < 0.6 else rng.randrange(k)))
    return found


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def lm_eval(
    asked: list[Question], delimiter: str = " ", target: str = "index", free: Any = None
) -> list[dict[str, Any]]:
    """Rows of a samples file; `free(i, k)` gives likelihoods without the question."""
    rows = []
    for i, q in enumerate(asked):
        alone = [free(i, k) for k in range(len(q.scores))] if free else []
        pairs = [("?", delimiter + text) for text in q.texts] + [("", delimiter + text) for text in q.texts if free]
        given = {"index": str(q.right), "text": q.texts[q.right], "letter": LETTERS[q.right]}[target]
        right = {"acc": q.scores, "acc_norm": [s / len(t) for s, t in zip(q.scores, q.texts)]}
        right["acc_bytes"] = [s / len(t.encode()) for s, t in zip(q.scores, q.texts)]
        if free:
            right["acc_mutual_info"] = [s - a for s, a in zip(q.scores, alone)]
        said = {name: float(values.index(max(values)) == q.right) for name, values in right.items()}
        answers = [[str(s), "False"] for s in q.scores + alone]
        rows.append(
            {
                "doc_id": i,
                "doc": {"question": "?" * 200, "subject": SUBJECTS[i % 3], "meta": {"level": i % 2}},
                "target": given,
                "arguments": {f"gen_args_{j}": {"arg_0": a, "arg_1": b} for j, (a, b) in enumerate(pairs)},
                "resps": [[answer] for answer in answers],
                "filtered_resps": answers,
                "filter": "none",
                "metrics": list(said),
                "doc_hash": "0" * 64,
                **said,
            }
        )
    return rows


def winogrande(rows: int = 40, seed: int = 0) -> tuple[list[dict[str, Any]], list[int]]:
    """Two contexts with one continuation; and the labels, which only `acc` tells."""
    rng = random.Random(seed)
    made, labels = [], []
    for i in range(rows):
        scores, right = [-rng.expovariate(0.2), -rng.expovariate(0.2)], rng.randrange(2)
        labels.append(right)
        arguments = {f"gen_args_{j}": {"arg_0": f"The {j}", "arg_1": " was big."} for j in range(2)}
        acc = float(scores.index(max(scores)) == right)
        answers = [[str(s), "False"] for s in scores]
        made.append({"doc_id": i, "target": "was big.", "arguments": arguments, "filtered_resps": answers, "acc": acc})
    return made, labels


def token(text: str, among: dict[str, float]) -> dict[str, Any]:
    """A generated token in the layout of OpenAI's chats."""
    top = [{"token": name, "logprob": value, "bytes": list(name.encode())} for name, value in among.items()]
    return {"token": text, "logprob": among.get(text, 0.0), "top_logprobs": top}


def distribution(q: Question, mass: float = 0.97) -> dict[str, float]:
    """Log-probabilities of letters, a part of each with a space before it, and of something else."""
    total = sum(math.exp(s / 5) for s in q.scores)
    found = {}
    for letter, score in zip(LETTERS, q.scores):
        p = mass * math.exp(score / 5) / total
        found |= {letter: math.log(0.75 * p), f" {letter}": math.log(0.25 * p)}
    return {**found, "The": math.log(1 - mass)}


def inspect_samples(asked: list[Question], epochs: int = 1) -> list[dict[str, Any]]:
    samples = []
    for epoch in range(1, epochs + 1):
        for i, q in enumerate(asked):
            answer = LETTERS[q.best]
            plain = [{"token": text, "logprob": -0.001} for text in ("ANSWER", ": ")]
            content = [*plain, token(answer, distribution(q))]
            choice = {"message": {"content": f"ANSWER: {answer}"}, "logprobs": {"content": content}}
            samples.append(
                {
                    "id": f"q{i}",
                    "epoch": epoch,
                    "choices": q.texts,
                    "target": LETTERS[q.right],
                    "output": {"choices": [choice]},
                    "scores": {"choice": {"value": "C" if q.best == q.right else "I", "answer": answer}},
                    "metadata": {"subject": SUBJECTS[i % 3]},
                }
            )
    return samples


HEADER = {"version": 2, "status": "success", "eval": {"task": "mcq"}, "plan": {"config": {}}}


def eval_log(samples: list[dict[str, Any]], method: int = zipfile.ZIP_DEFLATED, header: Any = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("_journal/start.json", json.dumps(HEADER))
        for sample in samples:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("header.json", json.dumps(header or HEADER))
    return file.getvalue()


def json_log(samples: list[dict[str, Any]]) -> bytes:
    return json.dumps({**HEADER, "samples": samples}, indent=2).encode()


def chats(asked: list[Question], batch: bool = False) -> list[dict[str, Any]]:
    rows = []
    for i, q in enumerate(asked):
        answer = LETTERS[q.best]
        choice = {"message": {"content": answer}, "logprobs": {"content": [token(answer, distribution(q))]}}
        response = {"id": f"chatcmpl-{i}", "object": "chat.completion", "choices": [choice]}
        if batch:
            rows.append({"custom_id": f"r{i}", "response": {"status_code": 200, "body": response}, "error": None})
        else:
            rows.append({**response, "target": LETTERS[q.right], "subject": SUBJECTS[i % 3]})
    return rows


def completions(asked: list[Question]) -> list[dict[str, Any]]:
    """As vLLM answers `/v1/completions`."""
    rows = []
    for q in asked:
        among = distribution(q)
        answer = LETTERS[q.best]
        logprobs = {"tokens": [answer], "token_logprobs": [among[answer]], "top_logprobs": [among]}
        rows.append(
            {"object": "text_completion", "choices": [{"text": answer, "logprobs": logprobs}], "label": q.right}
        )
    return rows


def lighteval(asked: list[Question]) -> list[dict[str, Any]]:
    return [
        {
            "doc": {"query": "?", "choices": q.texts, "gold_index": [q.right], "id": str(i), "task_name": "mc|0"},
            "metric": {"acc": int(q.best == q.right)},
            "model_response": {"logprobs": q.scores, "text": []},
        }
        for i, q in enumerate(asked)
    ]


def table(asked: list[Question]) -> bytes:
    """As `wandb.Table` and `mlflow.log_table` write one."""
    k = len(asked[0].scores)
    columns = [*(f"logit_{i}" for i in range(k)), "label", "subject"]
    rows = [[*q.scores, q.right, SUBJECTS[i % 3]] for i, q in enumerate(asked)]
    return json.dumps({"columns": columns, "data": rows}).encode()


def zstd_bytes(data: bytes) -> bytes:
    """A Zstandard frame (RFC 8878, Collet and Kucherawy 2021) of blocks that are stored as they are."""
    pieces = [data[i : i + 65536] for i in range(0, len(data), 65536)] or [b""]
    blocks = [
        ((len(piece) << 3) | (i == len(pieces) - 1)).to_bytes(3, "little") + piece for i, piece in enumerate(pieces)
    ]
    return b"\x28\xb5\x2f\xfd" + bytes([0xA0]) + len(data).to_bytes(4, "little") + b"".join(blocks)
