"""Find where a model fails: rules on metadata are searched on one half of the rows and confirmed on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from calibcli.core.options import Alpha, Depth, Rows, Seed, check_options, option


@dataclass(frozen=True, kw_only=True)
class Search:
    """Options of a search for slices.

    A gap is the mean confidence minus the accuracy (of two classes: of the event), and is wrong where it is not 0. With
    `confirm="all"` all rows search and confirm, and each p-value is multiplied by the number of rules.
    """

    find: Literal["gap", "error"] = option(
        "gap", "What to search for: gap (miscalibration), or error (more errors than elsewhere)."
    )
    confirm: Literal["split", "all"] = option(
        "split", "split: search one half and confirm on the other; all: test every rule on all rows."
    )
    depth: Depth = option(2, "Largest number of conditions in a rule; 3 needs sliceline.")
    min_n: Rows = option(200, "Fewest rows of a rule.")
    alpha: Alpha = option(0.05, "Family-wise error probability of confirming a rule.")
    seed: Seed = option(0, "Seed of the random halves.")

    def __post_init__(self) -> None:
        check_options(self)
