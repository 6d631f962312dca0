"""What each key of a recipe may be, and an example of it: told with its line before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from calibcli.errors import InputError
from calibcli.spec import Range
from calibcli.wellformed import read

Names = list[str]
Positive = Annotated[float, Range(0, open_low=True)]
Percent = Annotated[int, Range(1, 100)]
Printed = Mapping[str, float | list[float]]
"""A number for each metric, or one for each arm that braces stand for."""
FILLED = ("name", "id")  # not blank, as every one of `Names`
VALUES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("name", "id"), (str, '"a name"')),
    **dict.fromkeys(("question", "paper", "bibtex", "cost", "computes", "text"), (str, '"words"')),
    **{key: (str, '"rows.npz#' + key + '"') for key in ("train", "validation", "test")},
    **dict.fromkeys(("embeddings", "masked", "loss"), (str, '"..."')),
    "split": (Literal["", "stratified", "mukhoti"], '"stratified" or "mukhoti"'),
    "differs": (Names, '["what differs from the paper"]'),
    "arch": (Names, '["resnet:depth=20"]'),
    "seeds": (Annotated[int, Range(1)], "5"),
    "metrics": (Names, '["error", "ece"]'),
    "scalers": (Names, '["focal-temperature"]'),
    "curvature": (Names, '["lambda_max", "trace"]'),
    "losses": (Names, '["ce", "train"]'),
    "log": (Names, '["nll_wrong"]'),
    "moments": (list[Percent], "[10, 100], percent of the epochs"),
    "at": (Mapping[str, float], "{ gamma = 0 }"),
    "printed": (Printed, "{ ece = 0.0435 }"),
    **dict.fromkeys(("metric", "than", "against"), (str, '"ece"')),
    **dict.fromkeys(("a", "b"), (str, '"CE"')),
    "along": (str, '"gamma"'),
    "margin": (Positive, "0.005"),
    **dict.fromkeys(("low", "high"), (float, "1.0")),
    **dict.fromkeys(("first", "last"), (Percent, "10, percent of the epochs")),
    "sign": (Literal["+", "-"], '"+" or "-"'),
}


def wanted(key: str, value: Any) -> str:
    """What to write where a value is not what its key may be; else empty."""
    kind, example = VALUES.get(key, (Any, ""))
    try:
        read(value, kind, "", "")
    except InputError:
        return f"write {key} = {example}"
    names = value if kind is Names else [value] if key in FILLED else []
    return "" if all(map(str.strip, names)) else f"write {key} = {example}"
