"""What each key of a recipe may be, and an example of it: told with its line before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _named(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_named, value))


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _percent(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 100


def _percents(value: Any) -> bool:
    return isinstance(value, list) and all(map(_percent, value))


def _places(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_number, value.values()))


def _printed(value: Any) -> bool:
    """A number for each metric, or one for each arm that braces stand for."""
    return isinstance(value, Mapping) and all(
        all(map(_number, one)) if isinstance(one, list) else _number(one) for one in value.values()
    )


Test = Callable[[Any], bool]
VALUES: dict[str, tuple[Test, str]] = {
    **dict.fromkeys(("name", "id"), (_named, '"a name"')),
    **dict.fromkeys(("question", "paper", "bibtex", "cost", "computes", "text"), (_text, '"words"')),
    **{key: (_text, '"rows.npz#' + key + '"') for key in ("train", "validation", "test")},
    **dict.fromkeys(("embeddings", "masked", "loss"), (_text, '"..."')),
    "split": (lambda value: value in ("", "stratified", "mukhoti"), '"stratified" or "mukhoti"'),
    "differs": (_texts, '["what differs from the paper"]'),
    "arch": (_texts, '["resnet:depth=20"]'),
    "seeds": (_count, "5"),
    "metrics": (_texts, '["error", "ece"]'),
    "scalers": (_texts, '["focal-temperature"]'),
    "curvature": (_texts, '["lambda_max", "trace"]'),
    "losses": (_texts, '["ce", "train"]'),
    "log": (_texts, '["nll_wrong"]'),
    "moments": (_percents, "[10, 100], percent of the epochs"),
    "at": (_places, "{ gamma = 0 }"),
    "printed": (_printed, "{ ece = 0.0435 }"),
    **dict.fromkeys(("metric", "than", "against"), (_text, '"ece"')),
    **dict.fromkeys(("a", "b"), (_text, '"CE"')),
    "along": (_text, '"gamma"'),
    "margin": (_positive, "0.005"),
    **dict.fromkeys(("low", "high"), (_number, "1.0")),
    **dict.fromkeys(("first", "last"), (_percent, "10, percent of the epochs")),
    "sign": (lambda value: value in ("+", "-"), '"+" or "-"'),
}


def wanted(key: str, value: Any) -> str:
    """What to write where a value is not what its key may be; else empty."""
    test, example = VALUES.get(key, (lambda _: True, ""))
    return "" if test(value) else f"write {key} = {example}"
