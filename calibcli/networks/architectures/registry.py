"""The registry of network architectures, and the logits of any classifier whatever its forward pass returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from calibcli.core.errors import InputError
from calibcli.core.options import Range
from calibcli.core.registries import Registry, Traits

# The registry of networks, and the options that families share.

ARCHITECTURES = Registry("architecture", Traits, package="calibcli.networks.architectures")

Activation = Literal["relu", "gelu", "silu", "tanh"]
Norm = Literal["batch", "group", "none"]
Init = Literal["fan_out", "default"]
Size = Annotated[int, Range(1, 10_000_000)]
Sizes = Annotated[tuple[int, ...], Range(1, 10_000_000)]
Depth = Annotated[int, Range(1, 10_000)]
Factor = Annotated[float, Range(1 / 64, 1000)]  # of 64 channels: at least one is left


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


def initialised(model: nn.Module, init: Init) -> None:
    """Draw convolutions from N(0, 2 / (k² outputs)) (He et al. 2015), or leave them as PyTorch draws them."""
    for module in model.modules() if init == "fan_out" else ():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def norm(name: Norm, channels: int) -> nn.Module:
    """Make batch norm, group norm with at most 8 groups that divide the channels, or the identity."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        return nn.GroupNorm(max(g for g in range(1, 9) if channels % g == 0), channels)
    return nn.Identity()


# The logits of any classifier.

Inputs = Tensor | Mapping[str, Tensor]


def logits(model: Any, inputs: Inputs) -> Tensor:
    """Compute the model's logits on a batch, whatever its forward pass returns.

    Args:
        inputs: a tensor with rows first, or named tensors (tokens, masks) passed as keyword arguments.

    Returns:
        (n, K) with K >= 2; of an output object or dict, its `logits`. One column is the log-odds of class 1 and
        becomes (0, z), which has the same probabilities.

    Raises:
        InputError: the output is not (n, K).
    """
    output = outputs(model, inputs)
    if output.shape[1] == 1:
        return torch.cat([torch.zeros_like(output), output], 1)
    return output


def outputs(model: Any, inputs: Inputs) -> Tensor:
    """Compute what the model gives for a batch, (n, columns), before one column becomes two; see `logits`."""
    output, rows = _returned(model, inputs)
    if output.ndim != 2 or output.shape[0] != rows:
        shape = tuple(output.shape)
        sequence = "of a sequence, those of one position: logits[:, -1]; of all, calib logits with labels of each"
        other = "of one logit a row: z[:, None]" if output.ndim == 1 else sequence
        fix = f"return logits (rows, classes); {other}"
        raise InputError(f"the model's output has shape {shape} for {rows} rows", fix)
    return output


def of_positions(model: Any, inputs: Inputs, inside: tuple[int, ...], class_axis: str | None = None) -> Tensor:
    """Compute the model's logits at every position of a batch, whatever its forward pass returns.

    Args:
        inside: (T,) or (H, W), the positions of a row, as its labels have them. Logits of smaller pictures are
            brought to this size (bilinear), as segmentation models of transformers are trained and evaluated.
        class_axis: `1` or `last` where the shapes leave open which axis is that of the classes.

    Returns:
        (n, *inside, C), a view of the output where that has all positions.

    Raises:
        InputError: the output has another shape, or the axis is open.
    """
    output, rows = _returned(model, inputs)
    shape = tuple(output.shape)
    problem = f"the model's output has shape {shape} for {rows} rows with labels of {inside}"
    if len(shape) != len(inside) + 2 or shape[0] != rows:
        raise InputError(problem, "return logits (n, T, C) or (n, C, H, W), and pass labels (N, T) or (N, H, W)")
    if len(inside) == 2 and shape[2:] != inside and shape[1:-1] != inside and class_axis != "last":
        if not all(0 < small <= whole for small, whole in zip(shape[2:], inside, strict=True)):
            raise InputError(problem, "pass label maps of the size of the model's output, or of its pictures")
        output = nn.functional.interpolate(output, size=inside, mode="bilinear", align_corners=False)  # (n, C, H, W)
        shape = tuple(output.shape)
    axes = [axis for axis, rest in ((1, shape[2:]), (len(shape) - 1, shape[1:-1])) if rest == inside]
    if class_axis:
        axes = [axis for axis in axes if axis == (1 if class_axis == "1" else len(shape) - 1)]
    if len(axes) != 1:
        fix = "--class-axis 1 if the classes are on axis 1, --class-axis last if on the last"
        raise InputError(problem, fix if axes else "pass labels of every position of the output")
    return output.movedim(axes[0], -1)  # (n, ..., C)


def _returned(model: Any, inputs: Inputs) -> tuple[Tensor, int]:
    """Return the tensor that a forward pass gives, of an output object or dict its `logits`, and the number of rows."""
    output: Any = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    rows = first.shape[0]  # len() would write the number of rows into an exported program
    if not isinstance(output, Tensor):
        if isinstance(output, Mapping) and "logits" in output:
            output = output["logits"]
        elif isinstance(output, Mapping) and "out" in output:  # segmentation models of torchvision
            output = output["out"]
        elif hasattr(output, "logits"):
            output = output.logits
        elif isinstance(output, tuple | list) and output:
            output = output[0]
    if not isinstance(output, Tensor):
        names = f" of {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        fix = "return a tensor (rows, classes), or call it 'logits' in a dict"
        raise InputError(f"the model returned {type(output).__name__}{names}, not logits", fix)
    return output, rows
