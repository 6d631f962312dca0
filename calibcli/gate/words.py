"""Which calibration error a gate judges, and what its PASS does not see."""

from __future__ import annotations

from calibcli.spec import Choice


def kind(choice: Choice) -> str:
    """`binned, 15 bins`: how a binned metric is binned, and of which probability; "" for any other."""
    options, traits = choice.options, choice.traits
    if "bins" not in options or not ("table" in traits or "class_bins" in traits):
        return ""
    said = f"binned, {options['bins']} bins"
    if "method" in options:
        said += " of equal mass"
    if "class_bins" in traits:
        said += " per class"
    if options.get("edges", "right") != "right":
        said += f", {options['edges']} edges"
    return said + (", positive class" if options.get("of") == "positive" else "")


def unseen(choice: Choice) -> str:
    """The line under the table of every gate on a binned metric; "" for any other."""
    said = kind(choice)
    if not said:
        return ""
    return (
        f"{choice.name} is the binned number ({said.removeprefix('binned, ')}): a PASS does not see gaps that cancel "
        "within a bin; a FAIL holds without bins too"
    )
