"""A calibrator folded into the last linear layer: W' = A W, b' = A b + c."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibcli.errors import InputError, UsageError
from calibcli.inputs import inference
from calibcli.inputs.dataset import Dataset
from calibcli.links import log_softmax
from calibcli.scalers import Scaler
from calibcli.scalers.program import NumPy, Operations
from calibcli.ship.comparison import DRAWS, LIMITS

Array = NDArray[Any]
PROBES, SPREAD = 200, 3.0  # rows that tell whether a map is linear: of sure and of unsure predictions
INSTEAD = "use --to onnx, --to pt2 or --to torchscript"
FEW = 1000  # weights, of which a few draws miss the worst
HALF = (torch.float16, torch.bfloat16)


class Scores(NumPy):
    """NumPy's operations without normalisation, which softmax(A z + c) does anyway."""

    def log_softmax(self, z: Any) -> Any:
        return z

    normalised, of_two = log_softmax, Operations.of_two


def linear(scaler: Scaler) -> tuple[Array, Array]:
    """A (K, K) and c (K,) of softmax(A z + c), float64: the map at 0 and at each unit vector, if other rows agree.

    A row is centred before `vector`, `matrix` and `bcts`, which is linear too: A = V (I - 11'/K).

    Raises:
        UsageError: the map is not linear in the logits.
    """
    k, name = scaler.k, scaler.choice.name
    with np.errstate(all="ignore"):
        out = scaler.choice.traits["map"](Scores(k), scaler.parameters, np.eye(k + 1, k, -1))
    a, c = (out[1:] - out[0]).T, out[0]
    rows = np.random.default_rng(0).standard_normal((PROBES, k)) * SPREAD
    limit = LIMITS["float64"]
    if not np.allclose(log_softmax(rows @ a.T + c), scaler.map(rows), rtol=limit, atol=limit):
        raise UsageError(f"'{name}' is not linear in the logits and cannot be folded into a layer", INSTEAD)
    return a, c


def head(model: nn.Module, rows: Dataset, source: str) -> tuple[str, nn.Linear]:
    """Name and module of the linear layer whose output is the model's logits, found by running two rows.

    Raises:
        InputError: none is, several are, it is quantised, used twice, or shares its weights.
    """
    linear = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)}
    made: dict[int, list[Tensor]] = {}
    hooks = [
        m.register_forward_hook(lambda m, _, out: made.setdefault(id(m), []).append(out.detach()))
        for m in {id(m): m for m in linear.values()}.values()
    ]
    try:
        inputs, _ = rows.batch(slice(0, min(2, len(rows))))
        with torch.no_grad():
            out = inference.logits(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, m in linear.items() if any(_same(o, out) for o in made.get(id(m), ()))]
    if not names:
        raise _no_head(model, linear, out.shape[1], source)
    if len(names) > 1:
        raise InputError(f"{source}: the logits come from several heads: {', '.join(names[:6])}", INSTEAD)
    found = linear[names[0]]
    if len(made[id(found)]) > 1:
        raise InputError(f"{source}: the head '{names[0]}' is used {len(made[id(found)])} times in one pass", INSTEAD)
    shared = found.weight.untyped_storage().data_ptr()
    for name, other in model.named_parameters(remove_duplicate=False):
        if name != f"{names[0]}.weight" and other.untyped_storage().data_ptr() == shared:
            problem = f"{source}: the head '{names[0]}' shares its weights with '{name}', which a fold would change too"
            raise InputError(problem, f"untie them, or {INSTEAD}")
    if "parametrizations" in dict(found.named_children()) or "weight" not in found._parameters:
        raise InputError(f"{source}: the weights of the head '{names[0]}' are worked out by code", INSTEAD)
    return names[0], found


def _same(made: Any, logits: Tensor) -> bool:
    if not isinstance(made, Tensor) or made.ndim != 2:
        return False
    return torch.equal(_columns(made), logits)


def _columns(z: Tensor) -> Tensor:
    """Logits of K >= 2 classes; of one column (0, z), as `classify.logits` has it."""
    return torch.cat([torch.zeros_like(z), z], 1) if z.shape[1] == 1 else z


def _no_head(model: nn.Module, linear: dict[str, nn.Linear], k: int, source: str) -> InputError:
    """Why no linear layer's output is the logits."""
    packed = [f"{n} ({type(m).__name__})" for n, m in model.named_modules() if "quant" in type(m).__module__]
    packed += [f"{n} ({type(m).__name__})" for n, m in model.named_modules() if "bnb" in type(m).__module__.split(".")]
    if packed:
        return InputError(f"{source} has quantised layers ({', '.join(packed[:3])}); a head cannot be folded", INSTEAD)
    near = [f"{name} ({m.in_features} to {m.out_features})" for name, m in linear.items() if m.out_features == k]
    if near:
        last = near[-1].partition(" ")[0]
        problem = f"{source}: the logits are not what a linear layer gives; candidates: {', '.join(near[:6])}"
        return InputError(problem, f"something comes after '{last}' (a norm, a scale, several heads): {INSTEAD}")
    shown = ", ".join(f"{n} ({m.in_features} to {m.out_features})" for n, m in list(linear.items())[-6:]) or "none"
    problem = f"{source}: no linear layer gives {k} logits; linear layers: {shown}"
    return InputError(problem, INSTEAD)


def folded(found: nn.Linear, a: Array, c: Array) -> tuple[Tensor, Tensor | None]:
    """The new weight and bias in float64; no bias where there was none and none is needed. Of a head of one logit, that
    of class 1, softmax(A (0, z) + c) is the sigmoid of (A11 - A01) z + c1 - c0.
    """
    if found.out_features == 1:
        a, c = a[1:, 1:] - a[:1, 1:], c[1:] - c[:1]
    weight = torch.from_numpy(a) @ found.weight.detach().double()
    bias = torch.from_numpy(c.copy())
    if found.bias is not None:
        bias = bias + torch.from_numpy(a) @ found.bias.detach().double()
    elif not c.any():
        return weight, None
    return weight, bias


def rounding(features: Tensor, found: nn.Linear, stored: torch.dtype, scaler: Scaler, raw: Array) -> float:
    """What storing a head and working in float32 cost before anything is folded: the largest change of a probability
    when weights and bias are multiplied by a number at random, cast to their type, and the logits divided by it.
    """
    generator, expected, worst = np.random.default_rng(0), np.exp(scaler.map(raw)), 0.0

    def cast(tensor: Tensor | None, factor: float) -> Tensor | float:
        return 0.0 if tensor is None else (tensor.detach().double() * factor).to(stored).to(features.dtype)

    for factor in generator.uniform(0.5, 1, DRAWS if found.weight.numel() > FEW else FEW // DRAWS).tolist():
        weight = cast(found.weight, factor)
        assert isinstance(weight, Tensor)
        z = _columns(features @ weight.T + cast(found.bias, factor)).double().numpy() / factor
        worst = max(worst, float(np.abs(np.exp(scaler.map(z)) - expected).max()))
    return worst
