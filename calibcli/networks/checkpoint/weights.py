"""Decide which tensors of a file are the network and load them into a model; every mismatch is named."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from calibcli.core.errors import InputError, UsageError, nearest
from calibcli.core.number_format import first_few
from calibcli.networks.architectures import ARCHITECTURES
from calibcli.networks.user_code import FAILURES

# Choose the network in a file.
#
# A file may hold several networks: averaged weights beside the plain ones, the query and the key encoder of contrastive
# learning, student and teacher. An entry of a nested dict (`{"ema": {...}}`) and a prefix of names (`ema.conv1`) mean
# the same, and `FILE#NAME` takes either. The order of a dict decides nothing.

USUAL = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "module")
AVERAGED = re.compile(r"(?:^|[._])(?:ema|swa|averaged)(?:[._]|$)", re.IGNORECASE)  # `model_ema`, `ema_model.module`
RENAMED = (("fc.", "linear."), ("downsample.", "shortcut."))  # torchvision's names for parts of a ResNet
WRAPPERS = re.compile(r"(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")  # of layers, within names
AROUND = ("state_dict", "model_state_dict", "module", "_orig_mod")  # entries and wrappers that do not name a network
COUNTERS = ("total_ops", "total_params", "num_batches_tracked")  # added by profilers; missing in old files
DEEPEST = 4  # levels of nested entries that are searched
SHOWN = 8  # names in a message
Tensors = dict[str, Tensor]
Tables = dict[str, Tensors]


@dataclass(frozen=True)
class NetworkTensors:
    """One network of a file.

    Attributes:
        tensors: by the names of the model where it is known.
        prefix: what `FILE#prefix` calls it; "" where nothing but wrappers stand before the names.
        notes: what was taken off, renamed or left out, one sentence each.
    """

    tensors: Tensors
    prefix: str = ""
    notes: list[str] = field(default_factory=list)


def tables(tree: Any, source: str, key: str = "") -> Tables:
    """Collect the dicts of tensors of a file, by the entries that lead to them (`ema.module`, "" for the top).

    Args:
        source: the file, for messages.
        key: an entry or a prefix of names: only tensors below it are kept, and `key` is removed from their names.

    Raises:
        InputError: no tensors by name, or nothing of that name.
    """
    dicts: Tables = {}
    for name, value in _entries(tree):
        state = value.state_dict() if isinstance(value, nn.Module) else value
        tensors = {str(k): v for k, v in state.items() if isinstance(v, Tensor)}
        if tensors:
            dicts[name] = tensors
    if not dicts:
        shown = ", ".join(map(str, list(tree)[:SHOWN])) if isinstance(tree, Mapping) else type(tree).__name__
        raise InputError(f"{source} holds no state dict (found: {shown})", "save model.state_dict()")
    return _under(dicts, source, key) if key else dicts


def modules(tree: Any) -> dict[str, nn.Module]:
    """Collect the pickled networks of a file, by their entries."""
    return {name: value for name, value in _entries(tree) if isinstance(value, nn.Module)}


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dicts and modules of a tree, each once, under the shortest and first of its names."""
    level = [("", tree)]
    seen = set()
    for _ in range(DEEPEST + 1):
        below = []
        for name, value in sorted(level, key=lambda entry: entry[0]):
            if not isinstance(value, Mapping | nn.Module) or id(value) in seen:
                continue
            seen.add(id(value))
            yield name, value
            if isinstance(value, Mapping):
                below += [(joined(name, str(k)), v) for k, v in value.items()]
        level = below


def joined(*parts: str) -> str:
    """Return the full name of nested entries."""
    return ".".join(filter(None, parts))


def _under(tables: Tables, source: str, key: str) -> Tables:
    """Return the tables below `key`, with `key` removed from their names."""
    fulls = [joined(table, name) for table, tensors in tables.items() for name in tensors]
    prefix = _resolved({full[:i] for full in fulls for i in _ends(full)}, source, key)
    below: Tables = {}
    for table, tensors in tables.items():
        full = {joined(table, name): value for name, value in tensors.items()}
        inside = {name.removeprefix(f"{prefix}."): v for name, v in full.items() if name.startswith(f"{prefix}.")}
        if not inside:
            continue
        remaining = table[len(prefix) + 1 :] if table.startswith(f"{prefix}.") else ""
        renamed = {name.removeprefix(f"{remaining}.") if remaining else name: value for name, value in inside.items()}
        below.setdefault(remaining, {}).update(renamed)
    return below


def _ends(name: str) -> list[int]:
    """Return the positions of the dots in a name."""
    return [i for i, letter in enumerate(name) if letter == "."]


def _resolved(names: Collection[str], source: str, key: str) -> str:
    """Return the full name that is `key` or ends with it: `state_dict.ema` for `ema`.

    Raises:
        InputError: none, or several that lie equally deep.
    """
    same = [name for name in names if name == key or name.endswith(f".{key}")]
    if not same:
        tops = sorted({called(name).partition(".")[0] for name in names} - {""}) or ["nothing by name"]
        raise InputError(f"{source} has no entry '{key}'", f"it holds: {', '.join(tops)[:300]}")
    depth = min(name.count(".") for name in same)
    first = [name for name in same if name.count(".") == depth]
    if len(first) > 1:
        raise InputError(f"{source} holds '{key}' {len(first)} times", f"pass {alternatives(source, first)}")
    return first[0]


def alternatives(source: str, names: Collection[str], key: str = "") -> str:
    """List what to pass to choose a network: `FILE#a or FILE#b`."""
    shown = [f"{source}#{joined(key, name)}" for name in sorted(names, key=lambda name: (len(name), name))]
    if len(shown) > SHOWN:
        shown = [*shown[:SHOWN], f"{len(shown) - SHOWN} others"]
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def called(prefix: str) -> str:
    """Strip the entries and wrappers that do not name a network from the ends of a prefix."""
    parts = prefix.split(".")
    while parts and parts[0] in AROUND:
        del parts[0]
    while parts and parts[-1] in AROUND:
        del parts[-1]
    return ".".join(parts)


def _bare(name: str) -> str:
    return WRAPPERS.sub("", name)


def _renamed(name: str) -> str:
    for old, new in RENAMED:
        name = name.replace(old, new)
    return name


READINGS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("", lambda name: name),
    ("the names of layer wrappers (such as _orig_mod.) were removed", _bare),
    ("fc and downsample were read as linear and shortcut", _renamed),
    ("the names of layer wrappers were removed, and fc and downsample were read as linear and shortcut",
     lambda name: _renamed(_bare(name))),
)  # fmt: skip
"""Ways to read names, the plainest first, each with the note that tells the user."""


@dataclass(frozen=True)
class _Candidate:
    """A place where a network may lie: a table, a prefix of its names, and how they are read."""

    table: str
    prefix: str
    reading: int
    tensors: Tensors
    total: int

    @property
    def full(self) -> str:
        return joined(self.table, self.prefix.removesuffix("."))

    @property
    def order(self) -> tuple[int, int, str]:
        return self.reading, len(self.full), self.full

    def notes(self) -> list[str]:
        notes = []
        if self.prefix:
            notes.append(f"prefix '{self.prefix}' was removed from the names")
            if len(self.tensors) < self.total:
                notes.append(f"{self.total - len(self.tensors)} tensors outside '{self.prefix}' were left out")
        return [*notes, *filter(None, [READINGS[self.reading][0]])]


def network(tables: Tables, expected: Mapping[str, Tensor], source: str, key: str = "") -> NetworkTensors:
    """Choose the one network with the names that a model expects.

    Args:
        tables: as `tables` returns them.  source, key: as given there.

    Raises:
        InputError: several networks fit, and nothing says which is meant.
    """
    chosen = networks_of(tables, expected, source, key)
    if len(chosen) > 1:
        raise _several([network.prefix for network in chosen], source)
    return chosen[0]


def networks_of(tables: Tables, expected: Mapping[str, Tensor], source: str, key: str = "") -> list[NetworkTensors]:
    """Return the networks with the most of the names that a model expects, at least one.

    Averaged weights are dropped if others remain; of networks with equal tensors the first is kept.
    """
    candidates = sorted(_candidates(tables, expected), key=lambda c: c.order)
    if not candidates:
        return [NetworkTensors(main(tables), called(key))]
    plain, averaged = _parted([c.full for c in candidates])
    chosen: list[_Candidate] = []
    for candidate in candidates:
        if candidate.full in plain and not any(_equal(candidate.tensors, c.tensors, expected) for c in chosen):
            chosen.append(candidate)
    fitting = [c for c in chosen if not missing_tensors(c.tensors, expected)] or chosen[:1]
    fulls = [c.full for c in fitting]
    distinct = len({called(full) for full in fulls}) == len(fulls)
    networks = []
    for best in fitting:
        tensors = best.tensors
        if not best.prefix:  # copies in the same dict do not belong to the network
            copies = tuple(c.prefix for c in candidates if c.table == best.table and c.prefix)
            tensors = {name: value for name, value in tensors.items() if not name.startswith(copies)}
        full = joined(key, best.full)
        notes = best.notes() + _left(best.full, averaged, source, key)
        networks.append(NetworkTensors(tensors, called(full) if distinct else full, notes))
    return sorted(networks, key=lambda network: (len(network.prefix), network.prefix))


def _candidates(tables: Tables, expected: Mapping[str, Tensor]) -> list[_Candidate]:
    """Return the tables and prefixes with the most expected names, each read in the plainest way that finds them."""
    wanted = {name for name in expected if not name.endswith(COUNTERS)}
    places: dict[tuple[str, str], tuple[int, int]] = {}
    read: dict[tuple[str, int], dict[str, str]] = {}
    for table, tensors in tables.items():
        for reading, (_, rename) in enumerate(READINGS):
            names = {rename(name): name for name in tensors}
            if len(names) < len(tensors):
                continue  # two tensors would get one name
            read[table, reading] = names
            hits = Counter(name[:i] for name in names for i in _starts(name) if name[i:] in wanted)
            for prefix, count in hits.items():
                if count > places.get((table, prefix), (0, 0))[0]:
                    places[table, prefix] = count, reading
    most = max((count for count, _ in places.values()), default=0)
    candidates = []
    for (table, prefix), (count, reading) in places.items():
        if count == most:
            stored, read_as = tables[table], read[table, reading].items()
            inside = {name.removeprefix(prefix): stored[old] for name, old in read_as if name.startswith(prefix)}
            candidates.append(_Candidate(table, prefix, reading, inside, len(stored)))
    return candidates


def _starts(name: str) -> list[int]:
    return [0, *(i + 1 for i in _ends(name))]


def _equal(tensors: Tensors, other: Tensors, expected: Mapping[str, Tensor]) -> bool:
    """Whether two candidates hold equal tensors under the model's names."""
    names = [name for name in expected if not name.endswith(COUNTERS) and (name in tensors or name in other)]
    return all(name in tensors and name in other and _same(tensors[name], other[name]) for name in names)


def _same(tensor: Tensor, other: Tensor) -> bool:
    if tensor is other:
        return True
    return tensor.dtype == other.dtype and tensor.layout == other.layout == torch.strided and torch.equal(tensor, other)


def _parted(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split names into plain and averaged ones; if all are averaged, they count as plain."""
    averaged = [name for name in names if AVERAGED.search(name)]
    plain = [name for name in names if name not in averaged]
    return (plain, sorted(averaged)) if plain else (averaged, [])


def _left(chosen: str, averaged: Sequence[str], source: str, key: str = "") -> list[str]:
    """Return the note that averaged weights were not loaded."""
    if not averaged:
        return []
    loaded = f"'{called(chosen)}' was" if called(chosen) else "the plain weights were"
    shown = called(averaged[0])
    return [f"{loaded} loaded; averaged weights are in '{shown}' (pass {alternatives(source, [shown], key)})"]


def _several(names: Sequence[str], source: str) -> InputError:
    """Return the error that lists the networks to choose from."""
    problem = f"{source} holds {len(names)} networks that fit"
    hint = "" if all(names) else "; the one without a prefix has to be saved by itself"
    return InputError(problem, f"pass {alternatives(source, [name for name in names if name])}{hint}")


def missing_tensors(tensors: Tensors, expected: Mapping[str, Tensor]) -> list[str]:
    """List the names of the model that a file lacks; weights that layers share may be stored under one name."""
    stored = {place_tensors(expected[name]) for name in tensors if name in expected}
    return [
        name
        for name, value in expected.items()
        if name not in tensors and not name.endswith("num_batches_tracked") and place_tensors(value) not in stored
    ]


def place_tensors(tensor: Tensor) -> tuple[Any, ...]:
    """Identify the memory of a tensor, so that tied weights are recognised (on the device `meta` too)."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


def main(tables: Tables) -> Tensors:
    """Return the dict that most likely holds the network if the model is unknown: the top one, else one under a usual
    entry, else the largest."""

    def order(name: str) -> tuple[bool, bool, int, str]:
        usual = all(part in USUAL for part in name.split("."))
        return name != "", not usual, -len(tables[name]), name

    plain, _ = _parted(list(tables))
    return tables[min(plain, key=order)]


def module(networks: Mapping[str, nn.Module], source: str, key: str = "") -> tuple[nn.Module, str, list[str]]:
    """Return the pickled network of a file, the entry that holds it, and notes.

    Raises:
        InputError: several, and nothing says which is meant.
    """
    if key:
        name = _resolved(list(networks), source, key)
        return networks[name], called(name), []
    usual = [name for name in networks if all(part in USUAL for part in name.split("."))]
    averaged = [name for name in networks if AVERAGED.search(name)]
    if "" in networks:
        usual, averaged = [""], []
    names = usual or [name for name in networks if name not in averaged] or averaged
    if len(names) > 1:
        raise _several([called(name) for name in names], source)
    return networks[names[0]], called(names[0]), _left(names[0], averaged if names != averaged else [], source)


# Suggest a built-in architecture that tensors fit. It is only named in the error message, never loaded.

HEAD = "linear.weight"
Shapes = Mapping[str, tuple[int, ...]]


def likely(tables: Tables, source: str, key: str = "") -> tuple[str | None, str]:
    """Suggest the spec of a built-in architecture with the same names and shapes, or None; if several networks fit it,
    also say how to choose one.

    Names and shapes do not show activations or the number of attention heads, so this is only a suggestion.
    """
    for spec in _specs(tables):
        try:
            choice = ARCHITECTURES.choose(spec)
            with torch.device("meta"):
                expected = choice().state_dict()
        except (UsageError, RuntimeError):
            continue
        networks = networks_of(tables, expected, source, key)
        wanted = _measured(expected)
        for tensors in (_measured(network.tensors) for network in networks):
            same = all(name in tensors and tensors[name].shape == value.shape for name, value in wanted.items())
            if same and len(tensors) == len(wanted):
                names = [network.prefix for network in networks if network.prefix]
                return choice.spec, alternatives(source, names) if len(networks) > 1 else ""
    return perceptron(main(tables)), ""


def chain(tensors: Mapping[str, Tensor]) -> list[str]:
    """List the linear layers of tensors that are nothing else, in the order in which they feed each other; [] if none.

    Layers of a sequence that follow each other without a gap have no activation between them: they are no perceptron.
    """
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in tensors))
    if set(tensors) != {joined(layer, part) for layer in layers for part in ("weight", "bias")}:
        return []
    widths = {layer: tuple(tensors[joined(layer, "weight")].shape) for layer in layers}
    if any(len(shape) != 2 for shape in widths.values()):
        return []
    by_number = sorted(layers, key=lambda name: [(int(part), "") if part.isdigit() else (-1, part) for part in
                                                 re.split(r"(\d+)", name) if part])  # fmt: skip
    for ordered in (by_number, layers):
        if all(widths[b][1] == widths[a][0] for a, b in pairwise(ordered)):
            places = [layer.rpartition(".") for layer in ordered]
            beside = [(a[0] == b[0], a[2], b[2]) for a, b in pairwise(places)]
            direct = [same and x.isdigit() and y.isdigit() and int(y) == int(x) + 1 for same, x, y in beside]
            return [] if any(direct) else ordered
    return []


def perceptron(tensors: Tensors) -> str | None:
    """Spell the perceptron whose linear layers these are, with its activation, which weights do not tell; else None."""
    layers = chain(tensors)
    if not layers:
        return None
    shapes = [tuple(tensors[joined(layer, "weight")].shape) for layer in layers]
    ends = f"inputs={shapes[0][1]}", f"classes={shapes[-1][0]}"
    if len(layers) == 1:
        return f"linear:{','.join(ends)}"
    return f"mlp:{ends[0]},hidden={'/'.join(str(shape[0]) for shape in shapes[:-1])},{ends[1]},activation=relu"


def _specs(tables: Tables) -> Iterator[str]:
    """Yield the specs that the shapes suggest, for each prefix that has a last layer."""
    for _, tensors in sorted(tables.items()):
        names = {key: _renamed(key) for key in tensors}
        ends = {name.removesuffix(HEAD) for name in names.values() if name == HEAD or name.endswith(f".{HEAD}")}
        for prefix in sorted(ends, key=lambda prefix: (len(prefix), prefix)):
            inside = ((name, tensors[key].shape) for key, name in names.items() if name.startswith(prefix))
            yield from _candidate_architectures({name.removeprefix(prefix): tuple(shape) for name, shape in inside})


def _measured(tensors: Tensors) -> Tensors:
    """Drop the counters of batch norm, which old checkpoints do not have."""
    return {key: value for key, value in tensors.items() if not key.endswith("num_batches_tracked")}


def _candidate_architectures(shapes: Shapes) -> Iterator[str]:
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


# Load the tensors into a model, and name every mismatch.


def through_hooks(model: nn.Module, tensors: Tensors) -> Tensors | None:
    """Return the tensors as the model's own `load_state_dict` takes them, strictly, where its hooks rename some.

    None where it does not take them, or where it cannot be copied, as with the weight that the old `weight_norm` made.
    The model is left as it was.
    """
    try:
        trial = copy.deepcopy(model)
        trial.load_state_dict(dict(tensors), strict=True)
    except FAILURES:
        return None
    return trial.state_dict()


def _originals(name: str) -> list[tuple[str, str]]:
    """Return the halves g and v of a normed weight with their names in `torch.nn.utils.parametrizations`."""
    module, _, weight = name.rpartition(".")
    place = joined(module, f"parametrizations.{weight}.original")
    return [("g", f"{place}0"), ("v", f"{place}1")]


def _translated(tensors: Tensors, expected: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Read tensors under other names, where what they are is certain; return them with notes on what was read how.

    Pruned weights are `weight_orig` times `weight_mask` (torch.nn.utils.prune). The linear layers of a perceptron are
    taken in their order. Whole numbers that the model does not have, such as `position_ids`, hold no weights.
    """
    read, notes = dict(tensors), list[str]()
    pruned = [n for n in expected if n not in read and {f"{n}_orig", f"{n}_mask"} <= read.keys() - expected.keys()]
    for name in pruned:
        read[name] = read.pop(f"{name}_orig") * read.pop(f"{name}_mask")
    if pruned:
        notes.append(f"{len(pruned)} pruned weights were read as weight_orig times weight_mask: {first_few(pruned, 3)}")
    halves = {
        f"{n[:-2]}_{part}": original for n in expected if n.endswith("_g") for part, original in _originals(n[:-2])
    }
    normed = {n: old for n, old in halves.items() if n in expected and n not in read and old in read}
    read |= {n: read.pop(old) for n, old in normed.items()}
    if normed:
        notes.append(f"weight norm was read under its old names: {first_few(list(normed), 3)}")
    if not read.keys() & expected.keys() and len(read) == len(expected):
        stored, wanted = chain(read), chain(expected)
        pairs = [(joined(a, part), joined(b, part)) for a, b in zip(stored, wanted) for part in ("weight", "bias")]
        if len(pairs) == len(read) and all(read[a].shape == expected[b].shape for a, b in pairs):
            read = {b: read[a] for a, b in pairs}
            layers = ", ".join(f"{a or 'the layer'} as {b}" for a, b in zip(stored, wanted))
            notes.append(f"the linear layers were taken in their order: {layers}")
    whole = [n for n, t in read.items() if n not in expected and not t.is_floating_point() and not t.is_complex()]
    whole = [n for n in whole if not n.endswith(COUNTERS)]
    if whole and not missing_tensors(read, expected):
        read = {name: tensor for name, tensor in read.items() if name not in whole}
        notes.append(f"buffers of whole numbers that the model does not have were left out: {first_few(whole, 3)}")
    return read, notes


def matched(
    tensors: Tensors, expected: Mapping[str, Tensor], source: str, architecture: str
) -> tuple[Tensors, list[str]]:
    """Return the tensors under the model's names, after checking that names and shapes agree, and notes.

    Raises:
        InputError: a sparse tensor, missing or unexpected names (each with the nearest), or shapes that differ.
    """
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            raise InputError(f"{source}: tensor '{name}' is sparse", "save it dense: tensor.to_dense()")
    tensors = {k: v for k, v in tensors.items() if k in expected or not k.endswith(COUNTERS)}
    tensors, notes = _translated(tensors, expected)
    missing = missing_tensors(tensors, expected)
    stored = {place_tensors(expected[k]): v for k, v in tensors.items() if k in expected}
    tied = {k: stored[place] for k, v in expected.items() if k not in tensors and (place := place_tensors(v)) in stored}
    tensors |= tied  # safetensors holds weights that layers share under one name
    unexpected = [k for k in tensors if k not in expected]
    fix = "pass the --arch that this checkpoint was trained with"
    if missing or unexpected:
        odd = filter(None, (_listed("missing", missing, unexpected), _listed("unexpected", unexpected, missing)))
        raise InputError(f"{source} does not fit {architecture}: {'; '.join(odd)}", fix)
    wrong = [k for k in expected if k in tensors and tensors[k].shape != expected[k].shape]
    if wrong:
        first = wrong[0]
        got, want = tuple(tensors[first].shape), tuple(expected[first].shape)
        differing = f"{len(wrong)} of {len(expected)} tensors differ in shape, first '{first}'"
        problem = f"{source} does not fit {architecture}: {differing}: {got} in the file, {want} in the model"
        raise InputError(problem, fix)
    return tensors, notes


def fillable(model: nn.Module, architecture: str, light: bool) -> nn.Module:
    """Return the model if its tensors can be filled with numbers (or, if `light`, replaced).

    Raises:
        InputError: packed integers, or tensors without memory.
    """
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or value.is_quantized:
            problem = f"'{name}' of {architecture} is packed: its layers are quantised"
            raise InputError(problem, "pass the network and the weights before quantisation")
        if value.is_meta and not light:
            raise InputError(f"'{name}' of {architecture} is on the device meta", "make the network on the CPU")
    return model


def sizes(tensors: Tensors, expected: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the numbers of classes and channels of a file if they differ from the model's. A head differs only in its
    first dimension, the stem in its second."""
    heads, stems = set(), set()
    for name, want in expected.items():
        have = tensors[name].shape if name in tensors else want.shape
        if have == want.shape or len(have) != len(want.shape) or not len(have):
            continue
        if have[1:] == want.shape[1:]:
            heads.add((int(want.shape[0]), int(have[0])))
        elif len(have) == 4 and have[0] == want.shape[0] and have[2:] == want.shape[2:]:
            stems.add(int(have[1]))
    differing = {"classes": heads.pop()[1]} if len(heads) == 1 else {}
    return {**differing, "channels": stems.pop()} if len(stems) == 1 else differing


def _listed(title: str, names: list[str], others: list[str], most: int = 4) -> str:
    if not names:
        return ""
    shown = []
    for name in names[:most]:
        near = nearest(name, others[:2000])
        shown.append(f"{name} (nearest: {near})" if near else name)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{title} {', '.join(shown)}{more}"


def finite(model: nn.Module, source: str) -> None:
    """Refuse NaN and infinite weights. Buffers may be infinite: masks and best values so far often are.

    Raises:
        InputError: a parameter or running statistic is not finite, or a buffer NaN.
    """
    tensors = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor) and not v.is_quantized}
    numbers = {k: v.detach() for k, v in tensors.items() if v.is_floating_point() and v.numel()}
    free = {k for k, _ in model.named_buffers() if not k.endswith(("running_mean", "running_var"))}
    # the smallest and largest value show NaN too, and need no memory of the size of the tensor
    ends = {k: [float(end) for end in torch.aminmax(v)] for k, v in numbers.items()}
    odd = [k for k, both in ends.items() if not all(map(math.isfinite, both))]
    bad = [k for k in odd if k not in free or math.isnan(ends[k][0])]
    if bad:
        problem = f"{source}: {len(bad)} of {len(tensors)} tensors hold NaN or infinity, first '{bad[0]}'"
        raise InputError(problem, "use an earlier checkpoint: the training diverged or the file is damaged")
