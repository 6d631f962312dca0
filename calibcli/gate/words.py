"""Which calibration error a gate judges, and what its PASS does not see."""

from __future__ import annotations

from calibcli.shelves import Choice


def kind(choice: Choice | None) -> str:
    """`binned, 15 bins`: how a binned metric is binned, and of which probability; "" for any other."""
    if choice is None or not choice.traits.get("binned"):
        return ""
    options = choice.options
    said = f"binned, {options['bins']} bins"
    if "method" in options:
        said += " of equal mass"
    if "class_bins" in choice.traits:
        said += " per class"
    if options.get("edges", "right") != "right":
        said += f", {options['edges']} edges"
    return said + (", positive class" if options.get("of") == "positive" else "")


def unseen(metric: str, kind: str) -> str:
    """The line under the table of every gate on a binned metric of this kind."""
    return (
        f"{metric} is the binned number ({kind.removeprefix('binned, ')}): a PASS does not see gaps that cancel "
        "within a bin; a FAIL holds without bins too"
    )
