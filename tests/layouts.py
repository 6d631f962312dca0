"""Files in the layouts of common tools, made here from one seed, each with the numbers that must come out of it.

A layout needs no option, or a decision: then it has the lines of options that settle it, and the numbers of each line.
`refuse` means that no option makes it right. `gates_only` means that the number may be shown with a note that names the
option, but that a gate must not judge the file without it.

Accuracy and ECE are computed here: 15 bins (low, high], of P(second class) where there are two classes and of the top
class of rows that are divided by their sums where there are more.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

N, BINS = 400, 15
RNG = np.random.default_rng(20_240)
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Numbers = tuple[float | None, float | None]
Write = Callable[[Path], Path]


@dataclass(frozen=True)
class Layout:
    """One file.

    Attributes:
        write: writes it, and others that its lines name, into a folder, and returns its path.
        options: lines of options of which each settles it; none where none is needed.
        numbers: accuracy and ECE of each line, or of the file as it is; None where a number is not held against any.
        gate: the rule of `calib check` for which the file is not enough, of `gates_only`.
        stated: the numbers of a line that states something else, which nothing in the file contradicts.
    """

    name: str
    write: Write
    options: tuple[str, ...] = ()
    numbers: tuple[Numbers, ...] = ()
    refuse: bool = False
    gates_only: bool = False
    gate: str = "--max ece=0.9"
    stated: Mapping[str, Numbers] = field(default_factory=dict)

    def right(self, line: Sequence[str]) -> list[Numbers]:
        """The numbers that are right for some line of options."""
        return [*self.numbers, *(numbers for option, numbers in self.stated.items() if option in " ".join(line))]


# Numbers, by code of their own.


def ece(confidence: Iterable[float], hit: Iterable[float]) -> float:
    sums, n = [0.0] * BINS, 0
    for c, h in zip(confidence, hit, strict=True):
        sums[min(max(math.ceil(c * BINS - 1e-9) - 1, 0), BINS - 1)] += c - h
        n += 1
    return sum(map(abs, sums)) / n


def of_event(p: Floats, y: Ints) -> Numbers:
    """The numbers of P(class 1) and labels 0 and 1."""
    return float(np.mean((p > 0.5) == (y == 1))), ece(p.tolist(), y.tolist())


def of_top(p: Floats, y: Ints) -> Numbers:
    """The numbers of the top class of scores (N, K), K > 2."""
    hit = (p.argmax(1) == y).astype(int)
    return float(hit.mean()), ece((p.max(1) / p.sum(1)).tolist(), hit.tolist())


def of_confidence(confidence: Floats, hit: Ints) -> Numbers:
    """The numbers of a confidence in predictions, of which some hit."""
    return float(hit.mean()), ece(confidence.tolist(), hit.tolist())


def off_edges(p: Floats, digits: int) -> Floats:
    """Rounded numbers, none of which lies on the edge of a bin or is the middle of [0, 1]."""
    p = np.round(p, digits)
    step = 10.0**-digits
    on_edge = np.isclose(p * 2 * BINS, np.round(p * 2 * BINS), atol=1e-7)
    return np.where(on_edge, np.round(p + np.where(p < 0.5, step, -step), digits), p)


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def model(rng: np.random.Generator, k: int, n: int = N, sharp: float = 2.3) -> tuple[Floats, Ints]:
    """Overconfident probabilities (N, K) with six digits, and labels; no row has a tie."""
    z = rng.normal(0, 1.6, (n, k))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    p = np.round((softmax(sharp * z) + 1e-4) / (1 + k * 1e-4), 6)
    if k == 2:
        p[:, 1] = np.round(1 - p[:, 0], 6)
    return p, y


# Writing.


def cells(column: Iterable[Any]) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def table(name: str, header: str, *columns: Iterable[Any], cut: str = ",") -> Write:
    """Write a text table; names in its header are parted by `|`, "" leaves it out."""

    def write(folder: Path) -> Path:
        with (path := folder / name).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, delimiter=cut, lineterminator="\n")
            rows.writerows([header.split("|")] if header else [])
            rows.writerows(zip(*map(cells, columns), strict=True))
        return path

    return write


def lines(name: str, rows: Callable[[int], Any], order: Iterable[int] = range(N)) -> Write:
    """Write JSON lines, one object for each row."""

    def write(folder: Path) -> Path:
        (path := folder / name).write_text("".join(json.dumps(rows(i)) + "\n" for i in order))
        return path

    return write


def document(name: str, content: Callable[[], Any]) -> Write:
    def write(folder: Path) -> Path:
        (path := folder / name).write_text(json.dumps(content()))
        return path

    return write


def npz(name: str, **arrays: Any) -> Write:
    def write(folder: Path) -> Path:
        np.savez(folder / name, **arrays)
        return folder / name

    return write


def first_of(*writes: Write) -> Write:
    """Write several files; the first one is read."""

    def write(folder: Path) -> Path:
        path, *_ = [one(folder) for one in writes]
        return path

    return write


# The data: of two, three and four classes. The order of the classes is not that of the alphabet.

TWO, THREE, FOUR = ["stay", "leave"], ["otter", "lynx", "heron"], ["north", "east", "south", "west"]
P3, Y3 = model(RNG, 3)
P2, Y2 = model(RNG, 2)
P4, Y4 = model(RNG, 4)
ROWS = list(range(N))
Q = P2[:, 1]  # P(leave), and P of class 1
R = P2[:, 0]
TEMPERED = off_edges(1 / (1 + np.exp(-np.log(Q / (1 - Q)) / 2)), 6)
CALLS, TOPS = (Q > 0.5).astype(int), P3.argmax(1)
SURE = np.maximum(Q, R)
SURE3 = P3.max(1)
HIT2, HIT3 = (CALLS == Y2).astype(int), (TOPS == Y3).astype(int)
TRUTH2, TRUTH3, TRUTH4 = np.array(TWO)[Y2], np.array(THREE)[Y3], np.array(FOUR)[Y4]
GUESS2, GUESS3, GUESS4 = np.array(TWO)[CALLS], np.array(THREE)[TOPS], np.array(FOUR)[P4.argmax(1)]
EVENT, SOFT, TOP3, TOP4 = of_event(Q, Y2), of_event(TEMPERED, Y2), of_top(P3, Y3), of_top(P4, Y4)
SURE2_NUMBERS, SURE3_NUMBERS = of_confidence(SURE, HIT2), of_confidence(SURE3, HIT3)
RANKS = np.argsort(-P3, axis=1)
RANKED = np.take_along_axis(P3, RANKS, 1)
AGE = RNG.integers(20, 80, N)
SITE = RNG.choice(["river", "wood"], N)
DAY = RNG.integers(0, 7, N)
FOLD = [f"Fold{i % 5}" for i in ROWS]
ABSENT = [i for i in ROWS if i % 33 == 5]  # rows without a label that the model knows
KEPT = np.array([i for i in ROWS if i not in set(ABSENT)])
LEFT3 = of_top(P3[KEPT], Y3[KEPT])
LEFT2 = of_event(Q[KEPT], Y2[KEPT])
WRONG3 = of_confidence(SURE3 / P3.sum(1), np.where(np.isin(ROWS, ABSENT), 0, HIT3))


def without(labels: Sequence[Any], word: str) -> list[str]:
    """The labels, with a word in place of some."""
    gone = set(ABSENT)
    return [word if i in gone else str(label) for i, label in enumerate(labels)]


def shuffled_passes(times: int) -> tuple[Ints, Floats, Ints]:
    """Rows of several noisy passes over the same samples: the sample, P of class 1, the label."""
    noisy = np.log(Q / R) + RNG.normal(0, 0.3, (times, N))
    p = off_edges(1 / (1 + np.exp(-noisy)), 6).reshape(-1)
    return np.tile(ROWS, times), p, np.tile(Y2, times)


LAYOUTS: list[Layout] = []


def reads(name: str, write: Write, numbers: Numbers) -> None:
    """Add a file that is read as it is."""
    LAYOUTS.append(Layout(name, write, numbers=(numbers,)))


def decides(name: str, write: Write, settled: Mapping[str, Numbers], **more: Any) -> None:
    """Add a file that needs a decision, with the numbers of each line of options."""
    LAYOUTS.append(Layout(name, write, tuple(settled), tuple(settled.values()), **more))


def refuses(name: str, write: Write) -> None:
    LAYOUTS.append(Layout(name, write, refuse=True))


# A column for each class: statistics programs and AutoML.

reads("columns_called_by_classes", table("a.csv", "otter|lynx|heron|truth", *P3.T, TRUTH3), TOP3)
reads("columns_called_by_classes_sorted", table("a.csv", "heron|lynx|otter|gold", *P3.T[::-1], TRUTH3), TOP3)
reads("one_score_in_arrays", npz("a.npz", y_prob=Q, test_y=Y2), EVENT)
reads(
    "predicted_and_observed_first",  # caret
    table("a.csv", "yhat|observed|stay|leave|rowIndex|Resample", GUESS2, TRUTH2, R, Q, ROWS, FOLD),
    EVENT,
)
reads(
    "prefix_with_a_point",  # tidymodels
    table(
        "a.csv",
        ".pred_class|.pred_stay|.pred_leave|id|.row|status|.config",
        GUESS2,
        R,
        Q,
        FOLD,
        ROWS,
        TRUTH2,
        ["pre0"] * N,
    ),
    EVENT,
)
decides("fitted_values", table("a.csv", "|y|mu", ROWS, Y2, Q), {"--scores mu": EVENT})
reads("row_names_and_classes", table("a.csv", "|otter|lynx|heron|Klasse", ROWS, *P3.T, TRUTH3), TOP3)
decides(
    "numbered_columns_and_names",
    table("a.csv", "label|score_1|score_2|score_3", np.array(["heron", "lynx", "otter"])[Y3], *P3.T),
    {"--classes heron,lynx,otter": TOP3},
)
decides(
    "numbered_columns_names_and_predictions",  # MATLAB; by the predictions the columns are not in alphabetical order
    table("a.csv", "YWahr|YFit|scores_1|scores_2|scores_3", TRUTH3, GUESS3, *P3.T),
    {"--scores scores_1,scores_2,scores_3 --classes otter,lynx,heron --labels YWahr": TOP3},
)
decides(
    "number_and_name_in_a_cell",  # Weka
    table(
        "a.csv",
        "nr|actual|predicted|error|prediction",
        ROWS,
        [f"{i + 1}:{TWO[i]}" for i in Y2],
        [f"{i + 1}:{TWO[i]}" for i in CALLS],
        np.array(["+", ""])[HIT2],
        SURE,
    ),
    {"--confidence prediction --predicted predicted --labels actual": SURE2_NUMBERS},
)
reads(
    "class_in_parentheses",  # KNIME
    table("a.csv", "risk|P (risk=stay)|P (risk=leave)|Prediction (risk)", TRUTH2, R, Q, GUESS2),
    EVENT,
)
reads("prediction_first", table("a.csv", "guess|otter|lynx|heron|resposta", GUESS3, *P3.T, TRUTH3), TOP3)
reads("answer_first", table("a.csv", "resposta|guess|otter|lynx|heron", TRUTH3, GUESS3, *P3.T), TOP3)
reads(
    "threshold_of_another_height",
    table("a.csv", "decision|stay|leave|moved", np.where(Q > 0.23, "leave", "stay"), R, Q, TRUTH2),
    EVENT,
)
decides(
    "raw_and_calibrated",
    table("a.csv", "predict|raw_0|raw_1|platt_0|platt_1|label", CALLS, R, Q, np.round(1 - TEMPERED, 6), TEMPERED, Y2),
    {"--scores raw_0,raw_1": EVENT, "--scores platt_0,platt_1": SOFT},
)
decides(
    "two_models",
    table("a.csv", "lr_stay|lr_leave|gbm_stay|gbm_leave|truth", R, Q, np.round(1 - TEMPERED, 6), TEMPERED, TRUTH2),
    {"--scores lr_stay,lr_leave": EVENT, "--scores gbm_stay,gbm_leave": SOFT},
)
SECOND = np.round(softmax(np.log(P3) / 1.7), 6)
decides(
    "two_models_of_three_classes",
    table(
        "a.csv",
        "id|p_otter_v1|p_lynx_v1|p_heron_v1|p_otter_v2|p_lynx_v2|p_heron_v2|animal",
        ROWS,
        *P3.T,
        *SECOND.T,
        TRUTH3,
    ),
    {"--scores p_otter_v1,p_lynx_v1,p_heron_v1": TOP3, "--scores p_otter_v2,p_lynx_v2,p_heron_v2": of_top(SECOND, Y3)},
)
reads(
    "label_and_score_of_the_prediction",
    table("a.csv", "age|outcome|prediction_label|prediction_score", AGE, Y2, CALLS, SURE),
    SURE2_NUMBERS,
)
reads(
    "scores_of_each_class_and_prediction",
    table("a.csv", "outcome|prediction_label|prediction_score_0|prediction_score_1", Y2, CALLS, R, Q),
    EVENT,
)
reads(
    "a_column_for_unknown",  # Ludwig
    table(
        "a.csv",
        "kind|kind_predictions|kind_probabilities_<UNK>|kind_probabilities_otter|kind_probabilities_lynx|"
        "kind_probabilities_heron|kind_probability",
        TRUTH3,
        GUESS3,
        np.zeros(N),
        *P3.T,
        SURE3,
    ),
    TOP3,
)
reads(
    "a_column_of_zeros_last",
    table("a.csv", "p=otter|p=lynx|p=heron|p=<unknown>|guess|kind", *P3.T, np.zeros(N), GUESS3, TRUTH3),
    TOP3,
)
reads(
    "scored_probabilities_of_classes",  # Azure
    table(
        "a.csv",
        "Beast|Scored Probabilities_otter|Scored Probabilities_lynx|Scored Probabilities_heron|Scored Labels",
        TRUTH3,
        *P3.T,
        GUESS3,
    ),
    TOP3,
)
reads(
    "class_behind_a_colon",  # CatBoost
    table(
        "a.tsv",
        "SampleId|Probability:Class=otter|Probability:Class=lynx|Probability:Class=heron|Class|Label",
        ROWS,
        *P3.T,
        GUESS3,
        TRUTH3,
        cut="\t",
    ),
    TOP3,
)
reads("columns_called_by_numbers", table("a.csv", "|0|1|2|target", ROWS, *P3.T, Y3), TOP3)
reads(
    "columns_called_by_numbers_among_others",
    table("a.csv", "0|1|2|target|site", *P3.T, Y3, SITE),
    TOP3,
)
for shape in ("proba_{}", "score[{}]", "P({})", "{}_prob", "Pr.{}", "x={}", "out: {} share"):
    family = "|".join(shape.format(name) for name in FOUR)
    key = shape.format("a").strip("{}").replace(" ", "_")
    reads(f"family_{key}", table("a.csv", f"{family}|kind", *P4.T, TRUTH4), TOP4)
    reads(
        f"family_{key}_beside_the_prediction",
        table("a.csv", f"city|guess|{family}|wind", SITE, GUESS4, *P4.T, TRUTH4),
        TOP4,
    )
reads("label_among_features", table("a.csv", "site|day|otter|lynx|heron|seen", SITE, DAY, *P3.T, TRUTH3), TOP3)
decides(
    "two_columns_of_0_and_1",
    table("a.csv", "prob_0|prob_1|smoker|relapse", R, Q, (smoker := RNG.integers(0, 2, N)), Y2),
    {"--labels smoker": of_event(Q, smoker), "--labels relapse": EVENT},
)

# One score per row.

decides(
    "share_beside_a_call",  # Evidently
    table("a.csv", "target|call|share", Y2, CALLS, Q),
    {"--scores share": EVENT},
)
decides(
    "share_of_a_named_class",
    table("a.csv", "status|y_hat|pred_prob", TRUTH2, GUESS2, Q),
    {"--scores pred_prob --event leave": EVENT},
)
decides(
    "share_of_the_first_class",
    table("a.csv", "status|y_hat|pred_prob", TRUTH2, GUESS2, R),
    {"--scores pred_prob --event stay": of_event(R, 1 - Y2)},
)
decides(
    "names_with_spaces",
    table("a.csv", "lapsed|Model Call|Model Risk", Y2, CALLS, Q),
    {"--scores 'Model Risk' --labels lapsed": EVENT},
)
decides("margins", table("a.csv", "raw|label", np.round(np.log(Q / R), 6), Y2), {"--scores raw": EVENT})
decides("unknown_column_of_shares", table("a.csv", "id|risk|label", ROWS, Q, Y2), {"--scores risk": EVENT})
decides("arrays_without_names", npz("a.npz", arr_0=P3, arr_1=Y3), {"--scores arr_0 --labels arr_1": TOP3})
reads("one_column_of_a_network", npz("a.npz", y_prob=Q[:, None], labels=Y2), EVENT)
decides("no_header_label_first", table("a.csv", "", Y2, DAY, Q), {"--no-header --scores 2 --labels 0": EVENT})
decides("no_header_label_last", table("a.csv", "", Q, DAY, AGE, Y2), {"--no-header --scores 0 --labels 3": EVENT})
decides(
    "no_header_and_labels_elsewhere",
    first_of(table("a.txt", "", *P3.T, cut="\t"), table("truth.txt", "", Y3)),
    {"--no-header --labels truth.txt": TOP3},
)
decides(
    "label_is_the_prediction",
    lines("a.jsonl", lambda i: {"text": f"t{i}", "label": str(GUESS3[i]), "score": SURE3[i], "gold": str(TRUTH3[i])}),
    {"--confidence score --predicted label --labels gold": SURE3_NUMBERS},
)
decides(
    "label_is_the_prediction_of_two",
    lines("a.jsonl", lambda i: {"text": f"t{i}", "label": str(GUESS2[i]), "score": SURE[i], "target": str(TRUTH2[i])}),
    {"--confidence score --predicted label --labels target": SURE2_NUMBERS},
)

# Lists and objects, in lines of JSON and in cells.


def pairs(i: int, name: str, value: str) -> list[dict[str, Any]]:
    return [{name: THREE[k], value: float(P3[i, k])} for k in RANKS[i]]


reads(
    "columns_in_json_lines",  # a data frame, one record a line
    lines("a.jsonl", lambda i: {"id": i, "label": str(TRUTH3[i])} | {f"p_{n}": P3[i, k] for k, n in enumerate(THREE)}),
    TOP3,
)
reads(
    "numbered_columns_in_json_lines",
    lines("a.jsonl", lambda i: {"prob_0": R[i], "prob_1": Q[i], "pred": int(CALLS[i]), "y_true": int(Y2[i])}),
    EVENT,
)
reads(
    "vector_object",  # Spark
    lines(
        "a.jsonl",
        lambda i: {
            "rawPrediction": {"type": 1, "values": np.log(P3[i]).round(6).tolist()},
            "probability": {"type": 1, "values": P3[i].tolist()},
            "prediction": float(TOPS[i]),
            "label": float(Y3[i]),
        },
    ),
    TOP3,
)
reads(
    "list_in_a_cell",
    table(
        "a.csv",
        "label|probability|prediction",
        Y3 * 1.0,
        [str(row.tolist()).replace(" ", "") for row in P3],
        TOPS * 1.0,
    ),
    TOP3,
)
reads("list_in_a_cell_with_spaces", table("a.csv", "id|probs|label", ROWS, [str(r.tolist()) for r in P3], Y3), TOP3)
reads(
    "printed_array_in_a_cell",
    table("a.csv", "id|probs|label", ROWS, ["[" + " ".join(f"{v:.6f}" for v in row) + "]" for row in P3], Y3),
    TOP3,
)
reads("list_in_a_cell_of_any_name", table("a.csv", "saida|classe", [str(r.tolist()) for r in P3], Y3), TOP3)
reads(
    "object_in_a_cell",
    table("a.csv", "output|truth", [json.dumps(dict(zip(THREE, r))) for r in P3.tolist()], TRUTH3),
    TOP3,
)
reads(
    "object_by_class",
    lines("a.jsonl", lambda i: {"out": dict(zip(THREE, P3[i].tolist())), "truth": str(TRUTH3[i])}),
    TOP3,
)
reads(
    "list_of_names_and_shares",  # BigQuery
    lines(
        "a.jsonl",
        lambda i: {
            "predicted_kind": str(GUESS3[i]),
            "predicted_kind_probs": pairs(i, "name", "probability"),
            "kind": str(TRUTH3[i]),
        },
    ),
    TOP3,
)
reads(
    "list_of_pairs",
    lines("a.jsonl", lambda i: {"ranking": [[THREE[k], float(P3[i, k])] for k in RANKS[i]], "truth": str(TRUTH3[i])}),
    TOP3,
)
reads(
    "list_in_an_object",  # Elasticsearch
    lines(
        "a.jsonl",
        lambda i: {
            "kind": str(TRUTH3[i]),
            "model": {"guess": str(GUESS3[i]), "train": False, "candidates": pairs(i, "value", "p")},
        },
    ),
    TOP3,
)
reads(
    "list_of_all_classes",
    lines("a.jsonl", lambda i: {"text": f"t{i}", "result": pairs(i, "label", "score"), "gold": str(TRUTH3[i])}),
    TOP3,
)
reads(
    "two_parallel_lists",  # zero-shot pipelines
    lines(
        "a.jsonl",
        lambda i: {
            "sequence": f"t{i}",
            "candidates": [THREE[k] for k in RANKS[i]],
            "weights": RANKED[i].tolist(),
            "truth": str(TRUTH3[i]),
        },
    ),
    TOP3,
)
reads(
    "two_parallel_lists_called_labels",
    lines(
        "a.jsonl",
        lambda i: {"labels": [THREE[k] for k in RANKS[i]], "scores": RANKED[i].tolist(), "gold": str(TRUTH3[i])},
    ),
    TOP3,
)
decides(
    "label_in_an_object",  # Vertex
    lines(
        "a.jsonl",
        lambda i: {
            "request": {"species": str(TRUTH3[i]), "day": int(DAY[i])},
            "reply": {"classes": THREE, "scores": P3[i].tolist()},
        },
    ),
    {"--labels request.species": TOP3},
)
decides(
    "score_in_an_object",  # SageMaker
    lines(
        "a.jsonl",
        lambda i: {
            "label": int(Y2[i]),
            "features": [int(DAY[i])],
            "Answer": {"predicted_label": int(CALLS[i]), "score": Q[i]},
        },
    ),
    {"--scores Answer.score": EVENT},
)
reads("logits_and_label_ids", npz("a.npz", predictions=np.log(P3).astype(np.float32) + 2, label_ids=Y3), TOP3)
reads(
    "columns_and_data",  # Weights & Biases
    document(
        "a.table.json",
        lambda: {
            "columns": ["id", "truth", "guess", *(f"score_{name}" for name in THREE)],
            "data": [[i, str(TRUTH3[i]), str(GUESS3[i]), *P3[i].tolist()] for i in ROWS],
        },
    ),
    TOP3,
)
reads(
    "columns_and_data_of_lists",
    document("a.json", lambda: {"columns": ["target", "probs"], "data": [[int(Y3[i]), P3[i].tolist()] for i in ROWS]}),
    TOP3,
)

# The largest scores of each row, and truth in several columns.

reads(
    "sorted_with_classes",
    table(
        "a.csv",
        "file|top1|top2|top3|p1|p2|p3|y",
        [f"{i}.png" for i in ROWS],
        *np.array(THREE)[RANKS].T,
        *RANKED.T,
        TRUTH3,
    ),
    TOP3,
)
reads(
    "sorted_by_turns",
    table(
        "a.csv",
        "truth|class_1|share_1|class_2|share_2|class_3|share_3",
        TRUTH3,
        *(c for k in range(3) for c in (np.array(THREE)[RANKS[:, k]], RANKED[:, k])),
    ),
    TOP3,
)
refuses(
    "the_largest_two_of_three",
    table("a.csv", "label_0|label_1|prob_0|prob_1|target", *np.array(THREE)[RANKS[:, :2]].T, *RANKED[:, :2].T, TRUTH3),
)
reads(
    "one_hot_truth",
    table("a.csv", "score_x|score_y|score_z|actual_x|actual_y|actual_z", *P3.T, *(1 * (k == Y3) for k in range(3))),
    TOP3,
)
reads(
    "one_hot_truth_first",
    table(
        "a.csv",
        "is_north|is_west|is_east|is_south|p_north|p_east|p_south|p_west",
        *(1 * (k == Y4) for k in (0, 3, 1, 2)),
        *P4.T,
    ),
    TOP4,
)
reads(
    "one_hot_truth_beside_the_bare_classes",
    table(
        "a.csv", "otter|lynx|heron|is_otter|is_lynx|is_heron", *P3.T, *(1 * (k == Y3) for k in range(3))
    ),
    TOP3,
)  # fmt: skip
refuses("the_column_of_a_class_is_lost", table("a.csv", "prob_0|prob_1|target", *P3.T[:2], Y3))
decides(
    "a_class_under_another_name",
    table("a.csv", "home|prob0|prob1|probtie|target", AGE, *P3.T, Y3),
    {"--scores prob0,prob1,probtie": TOP3},
)
refuses("scores_sorted_in_each_row", npz("a.npz", probs=RANKED, labels=Y3))
reads(
    "ranks_before_the_word",
    table("a.csv", "Row|Label|#1 Score|#2 Score|#3 Score|#1 Class|#2 Class|#3 Class", ROWS, Y3, *RANKED.T, *RANKS.T),
    TOP3,
)

# Numbers as people write them.

THIRDS, COARSE = off_edges(Q, 3), off_edges(Q, 2)
PERCENTS = [f"{100 * v:.1f}" for v in THIRDS]
reads(
    "decimal_comma_and_percent",
    table("a.csv", "label|prob", Y2, [f"{v} %".replace(".", ",") for v in PERCENTS], cut=";"),
    of_event(THIRDS, Y2),
)
reads("decimal_comma", table("a.csv", "target|prob", Y2, [str(v).replace(".", ",") for v in Q], cut=";"), EVENT)
reads(
    "decimal_comma_of_three",
    table("a.csv", "otter|lynx|heron|art", *([f"{v:.6f}".replace(".", ",") for v in c] for c in P3.T), TRUTH3, cut=";"),
    TOP3,
)
reads("percent_signs", table("a.csv", "label|prob", Y2, [f"{v}%" for v in PERCENTS]), of_event(THIRDS, Y2))
reads("percent_in_the_name", table("a.csv", "target|chance %", Y2, PERCENTS), of_event(THIRDS, Y2))
decides(
    "out_of_a_hundred",
    table("a.csv", "label|prob", Y2, PERCENTS),
    {"--out-of 100": of_event(THIRDS, Y2)},
    stated={"--kind logits": of_event(1 / (1 + np.exp(-100 * THIRDS)), Y2)},
)
VOTES = np.round(P3 * RNG.choice([3000, 20_000], N)[:, None]).astype(int)
VOTES[ROWS, TOPS] += 1  # so that no two classes have as many
decides(
    "votes",
    table("a.csv", "prob_otter|prob_lynx|prob_heron|label", *([f"{v:,}" for v in c] for c in VOTES.T), TRUTH3),
    {"--out-of sum": of_top(VOTES * 1.0, Y3)},
)
reads("rounded", table("a.csv", "label|prob", Y2, [f"{v:.2f}" for v in COARSE]), of_event(COARSE, Y2))
reads(
    "labels_in_full_precision",
    table("a.csv", "label|prob_0|prob_1|prob_2", *([f"{v:.18e}" for v in c] for c in (Y3, *P3.T))),
    TOP3,
)
reads("labels_with_a_point", table("a.csv", "label|prob_0|prob_1|prob_2", [f"{v}.0" for v in Y3], *P3.T), TOP3)
reads("labels_with_an_exponent", table("a.csv", "y|prob", [f"{v}e0" for v in Y2], Q), EVENT)

# Labels that are missing, or of no class that the model knows.

for told, word in (("nothing", ""), ("na", "NA"), ("nan", "NaN"), ("none", "None"), ("question_mark", "?")):
    by_name = table("a.csv", "label|prob_otter|prob_lynx|prob_heron", without(TRUTH3, word), *P3.T)
    decides(f"missing_label_{told}", by_name, {"--missing drop": LEFT3})
    by_number = table("a.csv", "prob|label", Q, without(Y2.astype(str), word))
    decides(f"missing_number_{told}", by_number, {"--missing drop": LEFT2})
decides(
    "missing_label_null",
    lines("a.jsonl", lambda i: {"probs": P3[i].tolist(), "label": None if i in ABSENT else int(Y3[i])}),
    {"--missing drop": LEFT3},
)
decides(
    "unknown_class",
    table("a.csv", "label|prob_otter|prob_lynx|prob_heron", without(TRUTH3, "bison"), *P3.T),
    {"--missing drop": LEFT3, "--missing wrong": WRONG3},
)

# Rows that are not independent, or not those of the labels.

SAMPLE, NOISY, AGAIN = shuffled_passes(3)
decides(
    "passes_of_a_sample",
    table("a.csv", "id|prob|label", SAMPLE, NOISY, AGAIN),
    {"--group id": of_event(NOISY, AGAIN)},
    gates_only=True,
)
decides(
    "passes_beside_predictions",
    table(
        "a.csv",
        "yhat|obs|stay|leave|imageId|fold",
        np.array(TWO)[1 * (NOISY > 0.5)],
        np.array(TWO)[AGAIN],
        np.round(1 - NOISY, 6),
        NOISY,
        [f"img{i}" for i in SAMPLE],
        [f"F{i % 4}" for i in SAMPLE],
    ),
    {"--group imageId": of_event(NOISY, AGAIN)},
    gates_only=True,
)
refuses("sorted_labels", npz("a.npz", probs=P3, labels=np.sort(Y3)))
refuses("shifted_labels", npz("a.npz", probs=P3, labels=np.roll(Y3, 1)))
refuses("labels_shifted_by_four", table("a.csv", "otter|lynx|heron|truth", *P3.T, np.roll(TRUTH3, 4)))
refuses("labels_turned_round", table("a.csv", "label|prob", Y2[::-1], Q))
P3_OBJECTS = [{"prob": list(row), "label": int(y)} for row, y in zip(P3, Y3, strict=True)]
VERDICT = np.where(Q >= 0.7, "pass", "fail")
refuses("verdict_by_threshold", table("a.csv", "name|success|score", ROWS, VERDICT, Q))
refuses(
    "verdict_by_threshold_in_objects",
    document(
        "a.json",
        lambda: {
            "cases": [
                {
                    "name": f"c{i}",
                    "success": bool(Q[i] >= 0.5),
                    "metrics": [{"name": "truth", "threshold": 0.5, "success": bool(Q[i] >= 0.5), "score": Q[i]}],
                }
                for i in ROWS
            ]
        },
    ),
)
refuses("percentages_of_confidence", table("a.csv", "confidence %|label", 100 * SURE3, HIT3))
refuses("two_lists_in_a_document", document("a.json", lambda: dict.fromkeys(("fold1", "fold2"), P3_OBJECTS)))
refuses("only_predicted_classes", table("a.csv", "id|pred|label", ROWS, GUESS3, TRUTH3))

# Language models: the choices A to C.

ABC = "ABC"
LOGS = np.log(P3 + 1e-9).round(6)


def alternatives(i: int) -> list[dict[str, Any]]:
    return [{"token": ABC[k], "logprob": float(LOGS[i, k])} for k in RANKS[i]]


def chat(i: int) -> list[dict[str, Any]]:
    content = [{**alternatives(i)[0], "top_logprobs": alternatives(i)}]
    message = {"role": "assistant", "content": ABC[TOPS[i]]}
    return [{"index": 0, "message": message, "logprobs": {"content": content}}]


reads(
    "likelihoods_of_choices",  # lm-eval
    lines(
        "a.jsonl",
        lambda i: {
            "doc_id": i,
            "doc": {"question": f"{i}?"},
            "target": str(Y3[i]),
            "filter": "none",
            "acc": float(HIT3[i]),
            "filtered_resps": [[str(v), "False"] for v in LOGS[i].tolist()],
            "arguments": {f"gen_args_{k}": {"arg_0": f"{i}?", "arg_1": f" {c}"} for k, c in enumerate(ABC)},
        },
    ),
    TOP3,
)
decides(
    "batch_of_chats",
    first_of(
        lines(
            "a.jsonl",
            lambda i: {
                "id": f"b{i}",
                "custom_id": f"q{i}",
                "error": None,
                "response": {"status_code": 200, "body": {"object": "chat.completion", "choices": chat(i)}},
            },
        ),
        lines("gold.jsonl", lambda i: {"custom_id": f"q{i}", "target": ABC[Y3[i]]}, ROWS[::-1]),
    ),
    {"--choices A,B,C --labels gold.jsonl": TOP3},
)
decides(
    "completions",
    lines(
        "a.jsonl",
        lambda i: {
            "object": "text_completion",
            "target": ABC[Y3[i]],
            "choices": [
                {
                    "text": ABC[TOPS[i]],
                    "logprobs": {
                        "tokens": [ABC[TOPS[i]]],
                        "token_logprobs": [float(LOGS[i].max())],
                        "top_logprobs": [dict(zip(ABC, LOGS[i].tolist()))],
                    },
                }
            ],
        },
    ),
    {"--choices A,B,C": TOP3},
)
FAILED = {i for i in ROWS if not HIT3[i] and i % 3}
ANSWERED = np.array([i for i in ROWS if i not in FAILED])


def sample(i: int) -> dict[str, Any]:
    """A sample in a log of Inspect; some failed."""
    asked: dict[str, Any] = {"id": f"q{i}", "epoch": 1, "choices": [f"word {c}" for c in ABC], "target": ABC[Y3[i]]}
    if i in FAILED:
        return {**asked, "output": {"choices": []}, "scores": {}, "error": {"message": "overloaded"}}
    score = {"value": "IC"[HIT3[i]], "answer": ABC[TOPS[i]]}
    return {**asked, "output": {"choices": chat(i)}, "scores": {"choice": score}}


decides(
    "failed_samples",
    document(
        "a.json",
        lambda: {
            "version": 2,
            "status": "success",
            "eval": {"task": "quiz", "task_id": "t"},
            "plan": {"config": {}},
            "samples": [sample(i) for i in ROWS],
        },
    ),
    {"--missing drop": of_top(P3[ANSWERED], Y3[ANSWERED]), "--missing wrong": (TOP3[0], None)},
    gates_only=True,
    gate=f"--min accuracy={(TOP3[0] or 0) + 0.05:.2f}",
)
decides(
    "verdict_and_confidence_in_objects",  # promptfoo
    document(
        "a.json",
        lambda: {
            "run": "r1",
            "results": {
                "results": [
                    {
                        "vars": {"q": i},
                        "response": {"output": str(GUESS2[i])},
                        "success": bool(HIT2[i]),
                        "score": int(HIT2[i]),
                        "namedScores": {"certainty": SURE[i]},
                    }
                    for i in ROWS
                ]
            },
        },
    ),
    {"--confidence namedScores.certainty --correct success": SURE2_NUMBERS},
)
