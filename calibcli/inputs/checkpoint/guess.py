"""Which built-in architecture do these tensors fit? A suggestion for the error message; nothing is loaded by guess."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from calibcli.architectures import ARCHITECTURES
from calibcli.errors import UsageError
from calibcli.inputs.checkpoint import prefixes
from calibcli.inputs.checkpoint.prefixes import Tensors

HEAD = "linear.weight"
Shapes = Mapping[str, tuple[int, ...]]


def likely(tables: prefixes.Tables, source: str, key: str = "") -> tuple[str | None, str]:
    """The spec of a built-in architecture with the same names and shapes, or None; and how to name the network that is
    meant, where several have them.

    Activations, and the heads of attention, leave no trace in names and shapes, so this is never more than likely.
    """
    for spec in _specs(tables):
        try:
            choice = ARCHITECTURES.choose(spec)
            with torch.device("meta"):
                expected = choice().state_dict()
        except (UsageError, RuntimeError):
            continue
        networks = prefixes.networks(tables, expected, source, key)
        wanted = _measured(expected)
        for found in (_measured(network.tensors) for network in networks):
            same = all(name in found and found[name].shape == value.shape for name, value in wanted.items())
            if same and len(found) == len(wanted):
                names = [network.prefix for network in networks if network.prefix]
                return choice.spec, prefixes.alternatives(source, names) if len(networks) > 1 else ""
    return None, ""


def _specs(tables: prefixes.Tables) -> Iterator[str]:
    """Specs that the shapes speak for, of every prefix that a last layer stands under."""
    for _, tensors in sorted(tables.items()):
        names = {key: key.replace("fc.", "linear.").replace("downsample.", "shortcut.") for key in tensors}
        ends = {name.removesuffix(HEAD) for name in names.values() if name == HEAD or name.endswith(f".{HEAD}")}
        for prefix in sorted(ends, key=lambda prefix: (len(prefix), prefix)):
            inside = ((name, tensors[key].shape) for key, name in names.items() if name.startswith(prefix))
            yield from _candidates({name.removeprefix(prefix): tuple(shape) for name, shape in inside})


def _measured(tensors: Tensors) -> Tensors:
    """Without batch norm's counters, which checkpoints of old do not have."""
    return {key: value for key, value in tensors.items() if not key.endswith("num_batches_tracked")}


def _candidates(shapes: Shapes) -> Iterator[str]:
    head = shapes.get("linear.weight")
    if head is None or len(head) != 2:
        return
    classes = head[0]
    first = shapes.get("conv1.weight")
    if first is not None and len(first) == 4:
        width, channels = first[:2]
        blocks = [_count(shapes, f"layer{stage}.") for stage in (1, 2, 3, 4)]
        options = f"classes={classes},channels={channels}"
        stem = "imagenet" if first[2] == 7 else "cifar"
        for depth in (18, 34, 50):
            yield f"resnet{depth}:width={width / 64},stem={stem},{options}"
        for shortcut in ("A", "B"):
            yield f"resnet:depth={6 * blocks[0] + 2},width={width},shortcut={shortcut},{options}"
        inner = shapes.get("layer1.0.conv1.weight", (16,))[0]
        yield f"wide_resnet:depth={6 * blocks[0] + 4},widen={inner // 16},{options}"
    for part in ("hidden", "features"):
        layers = [shapes.get(f"{part}.{i}.0.weight", (0, 0)) for i in range(_count(shapes, f"{part}."))]
        widths = "/".join(str(shape[0]) for shape in layers)
        if layers and part == "hidden":
            yield f"mlp:inputs={layers[0][-1]},hidden={widths},classes={classes}"
        elif layers:
            for norm in ("batch", "group", "none"):
                yield f"cnn:channels={layers[0][1]},widths={widths},classes={classes},norm={norm}"


def _count(shapes: Shapes, prefix: str) -> int:
    return len({key[len(prefix) :].partition(".")[0] for key in shapes if key.startswith(prefix)})
