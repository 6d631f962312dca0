"""Parts of a network: the last linear layer, trained alone on features computed once; what is frozen."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from calibcli import device
from calibcli.errors import InputError
from calibcli.inputs import inference
from calibcli.training.batches import Loader


def layer(model: nn.Module) -> nn.Linear:
    """The last linear layer.

    Raises:
        InputError: the model has none.
    """
    found = last_linear(model)
    if found is None:
        raise InputError("the model has no linear layer", "leave --head-only out, or use --freeze")
    return found


def features(model: nn.Module, loader: Loader) -> Loader:
    """What the last linear layer gets, for every row, in eval mode: a loader to train that layer on.

    Raises:
        InputError: the model has no linear layer whose output is the logits.
    """
    found = [*fed(model, layer(model), loader, torch.arange(len(loader)))]
    if not all(made for *_, made in found):
        raise InputError("the last linear layer does not make the logits", "use --freeze instead")
    return Loader.holding(torch.cat([features for features, *_ in found]), loader.labels)


def fed(
    model: nn.Module, head: nn.Linear, loader: Loader, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, bool]]:
    """What the layer gets for these rows, in eval mode; the model's logits, the labels, and whether it makes them."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    model.eval()
    try:
        for chosen in torch.split(rows, 256):
            inputs, labels = loader(chosen)
            with torch.no_grad(), device.full_float32():
                logits = inference.logits(model, inputs)
                f = seen.pop()
                fits = f.ndim == 2 and len(f) == len(chosen)
                made = fits and torch.equal(nn.functional.linear(f, head.weight, head.bias), logits)
            yield f, logits, labels, made
    finally:
        hook.remove()


def freeze(model: nn.Module, globs: tuple[str, ...]) -> list[str]:
    """Keep the parameters that match as they are; their names.

    Raises:
        InputError: a glob that matches nothing.
    """
    from fnmatch import fnmatchcase

    names = dict(model.named_parameters())
    frozen: list[str] = []
    for glob in globs:
        found = [n for n in names if fnmatchcase(n, glob) or fnmatchcase(n, f"{glob}.*")]
        if not found:
            raise InputError(f"--freeze {glob} matches no parameter", f"names are like {', '.join(list(names)[:4])}")
        frozen += found
    for name in frozen:
        names[name].requires_grad_(False)
    return sorted(set(frozen))


def last_linear(model: nn.Module) -> nn.Linear | None:
    """The linear layer defined last, which makes the logits in every usual network."""
    return next((m for m in reversed([*model.modules()]) if isinstance(m, nn.Linear)), None)


def train_mode(model: nn.Module) -> None:
    """Train mode; modules whose parameters are all frozen stay in eval mode, so that their statistics stay too."""
    model.train()
    for module in model.modules():
        own = [*module.parameters()]
        if own and not any(p.requires_grad for p in own):
            module.eval()
