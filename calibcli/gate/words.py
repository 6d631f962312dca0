"""Which calibration error a gate judges, and what its PASS does not see."""

from __future__ import annotations

from calibcli.shelves import Choice


def kind(choice: Choice | None) -> str:
    """`binned, 15 bins`: how a binned metric is binned, and of which probability; "" for any other."""
    if choice is None:
        return ""
    options, traits = choice.options, choice.traits
    if not traits.get("binned"):
        return ""
    said = f"binned, {options['bins']} bins"
    if "method" in options:
        said += " of equal mass"
    if "class_bins" in traits:
        said += " per class"
    if options.get("edges", "right") != "right":
        said += f", {options['edges']} edges"
    return said + (", positive class" if options.get("of") == "positive" else "")


def unseen(choice: Choice | None) -> str:
    """The line under the table of every gate on a binned metric; "" for any other."""
    said = kind(choice)
    if choice is None or not said:
        return ""
    return (
        f"{choice.name} is the binned number ({said.removeprefix('binned, ')}): a PASS does not see gaps that cancel "
        "within a bin; a FAIL holds without bins too"
    )
