"""A training recipe as plain data: its learning rate, optimizer and augmentation, each from a registry."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from calibcli.core.errors import CalibError, InputError, UsageError, refusing
from calibcli.core.options import Positive, Range, Seed, check_options
from calibcli.core.registries import Choice, Registry, Traits
from calibcli.lab.training.options import Training
from calibcli.networks import losses
from calibcli.networks.dataset import Dataset
from calibcli.networks.deploy.checkpoint_export import last_linear
from calibcli.networks.losses import registry
from calibcli.networks.user_code import FAILURES, NAMES_CODE, from_module
from calibcli.scores.predictions import Ints

# Augmentation of whole batches, on the device.

AUGMENTATIONS = Registry("augmentation", Traits)
Augment = Callable[[Tensor, torch.Generator], Tensor]


@AUGMENTATIONS.add()
def crop(images: Tensor, generator: torch.Generator, *, pad: Annotated[int, Range(0, 10_000)] = 4) -> Tensor:
    """A crop of the image's own size from the image with `pad` zeros around it, at a place of its own per image.

    Zeros are meant after normalisation, so the border has the mean colour.

    Source: He et al. (2016), section 4.2.

    >>> import torch
    >>> from calibcli.lab.training.recipes import pipeline
    >>> pipeline("crop:pad=2", (3, 8, 8))(torch.ones(5, 3, 8, 8), torch.Generator()).shape
    torch.Size([5, 3, 8, 8])
    """
    n, _, height, width = images.shape
    padded = F.pad(images, (pad, pad, pad, pad))
    top = torch.randint(2 * pad + 1, (n, 1), generator=generator, device=images.device)
    left = torch.randint(2 * pad + 1, (n, 1), generator=generator, device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    image = torch.arange(n, device=images.device)[:, None, None]  # (n, 1, 1), for (n, height, width) places
    # advanced indices around a slice put the channels last
    # the places come first, and channels last: (n, height, width, channels)
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


@AUGMENTATIONS.add()
def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2.

    Source: Krizhevsky et al. (2012).

    >>> import torch
    >>> from calibcli.lab.training.recipes import pipeline
    >>> pipeline("flip", (1, 2, 2))(torch.ones(5, 1, 2, 2), torch.Generator()).shape
    torch.Size([5, 1, 2, 2])
    """
    chosen = torch.rand(len(images), generator=generator, device=images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)  # (n, channels, height, width)


@AUGMENTATIONS.add("mixup")
class Mixup:
    """Rows `λx + (1-λ)x'` with the loss `λL(y) + (1-λ)L(y')`, x' another row of the batch, λ of Beta(α, α) a step.

    Of images or any rows of numbers, after the other augmentations; α = 0 leaves them. Source: Zhang et al. (2018).

    >>> import torch
    >>> from calibcli.lab.training.recipes import mixing
    >>> mixed, parts = mixing("mixup:alpha=1")(torch.eye(2), torch.tensor([0, 1]), torch.Generator(), (0, 0))
    >>> bool(torch.allclose(mixed.sum(1), torch.ones(2))), round(sum(share for share, _ in parts), 6)
    (True, 1.0)

    Raises:
        InputError: the rows are not one array of floats.
    """

    def __init__(self, *, alpha: Annotated[float, Range(0, 1e6)] = 0.2) -> None:
        self.alpha = alpha

    def __call__(
        self, inputs: Any, labels: Tensor, generator: torch.Generator, key: tuple[int, int]
    ) -> tuple[Any, list[tuple[float, Tensor]]]:
        """Mixed inputs, and (share, labels) of the rows themselves and of those they are mixed with.

        Args:
            key: seed and step, which decide the share: the same in every process, and after a run goes on.

        Raises:
            InputError: the rows are not one array of floats.
        """
        if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
            raise InputError("--augment mixup needs rows of numbers", "leave mixup out")
        share = 1.0 if self.alpha == 0 else float(np.random.default_rng(key).beta(self.alpha, self.alpha))
        order = torch.randperm(len(inputs), generator=generator, device=inputs.device)
        parts = [(share, labels), (1 - share, labels[order])]
        return share * inputs + (1 - share) * inputs[order], [part for part in parts if part[0]]


def mixing(spec: str) -> Mixup | None:
    """Return the mixup of a spec, or None.

    Raises:
        UsageError: unknown name or option, or two of them.
    """
    mixups: list[Mixup] = [choice() for choice in augmentations(spec) if choice.name == "mixup"]
    if len(mixups) > 1:
        raise UsageError(f"--augment {spec} has mixup twice", "pass it once")
    return mixups[0] if mixups else None


def augmentations(spec: str) -> list[Choice[Traits]]:
    """Read the augmentations of `crop:pad=4+flip`, in order; none for "".

    Raises:
        UsageError: unknown name or option.
    """
    return [AUGMENTATIONS.choose(part) for part in spec.split("+")] if spec.strip() else []


def pipeline(spec: str, shape: tuple[int, ...]) -> Augment | None:
    """Make the augmentation of a spec for rows of this shape, or None for "".

    Raises:
        InputError: the rows are not images.
    """
    chosen = [choice for choice in augmentations(spec) if choice.name != "mixup"]
    if not chosen:
        return None
    if len(shape) != 3:
        raise InputError(f"--augment {spec} needs images, these rows have shape {shape}", "leave --augment out")

    def run(images: Tensor, generator: torch.Generator) -> Tensor:
        for choice in chosen:
            images = choice(images, generator)
        return images

    return run


# Optimizers, and changes to their steps: `sgd:momentum=0.9+sam:rho=0.05`.

OPTIMIZERS = Registry("optimizer", Traits)

Momentum = Annotated[float, Range(0, 1, open_high=True)]
Decay = Annotated[float, Range(0, 1e6)]
Small = Annotated[float, Range(0, 1)]


@OPTIMIZERS.add()
def sgd(
    parameters: list[nn.Parameter],
    lr: float,
    *,
    momentum: Momentum = 0.9,
    weight_decay: Decay = 5e-4,
    nesterov: bool = False,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum; weight decay is added to the gradient.

    Momentum as PyTorch writes it (Sutskever et al. 2013).

    >>> run = calibcli.train(model, None, optimizer="sgd", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'sgd'
    """
    return torch.optim.SGD(parameters, lr, momentum, weight_decay=weight_decay, nesterov=nesterov)


@OPTIMIZERS.add()
def adamw(
    parameters: list[nn.Parameter],
    lr: float,
    *,
    beta1: Momentum = 0.9,
    beta2: Momentum = 0.999,
    weight_decay: Decay = 0.01,
    eps: Small = 1e-8,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    >>> run = calibcli.train(model, None, optimizer="adamw", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adamw'
    """
    return torch.optim.AdamW(parameters, lr, (beta1, beta2), eps, weight_decay)


@OPTIMIZERS.add()
def adam(
    parameters: list[nn.Parameter],
    lr: float,
    *,
    beta1: Momentum = 0.9,
    beta2: Momentum = 0.999,
    weight_decay: Decay = 0.0,
    eps: Small = 1e-8,
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient.

    >>> run = calibcli.train(model, None, optimizer="adam", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adam'
    """
    return torch.optim.Adam(parameters, lr, (beta1, beta2), eps, weight_decay)


@OPTIMIZERS.add()
def adagrad(
    parameters: list[nn.Parameter], lr: float, *, weight_decay: Decay = 0.0, eps: Small = 1e-10
) -> torch.optim.Optimizer:
    """Steps divided by the root of all squared gradients so far (Duchi et al. 2011); weight decay joins the gradient.

    >>> run = calibcli.train(model, None, optimizer="adagrad", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adagrad'
    """
    return torch.optim.Adagrad(parameters, lr, weight_decay=weight_decay, eps=eps)


class Ascent:
    """Move weights uphill by ρ along the gradient, for a second gradient there."""

    def __init__(self, parameters: list[nn.Parameter], rho: float) -> None:
        self.parameters, self.rho = parameters, rho

    @contextlib.contextmanager
    def moved(self, model: nn.Module) -> Iterator[None]:
        """Move the parameters to `w + ρ g/|g|` within it; afterwards they and batch norm's statistics are as before.

        Where the gradient is zero or not finite they stay.
        """
        originals = [(p, p.detach().clone()) for p in self.parameters if p.grad is not None]
        norms = torch.stack([p.grad.norm() for p, _ in originals if p.grad is not None])
        length = norms.norm()
        scale = torch.where(torch.isfinite(length) & (length > 0), self.rho / length, 0.0)
        with torch.no_grad():
            for p, _ in originals:
                assert p.grad is not None
                p.add_(torch.nan_to_num(p.grad) * scale.to(p.dtype))
        statistics = [
            (buffer, buffer.clone())
            for module in model.modules()
            if isinstance(module, _BatchNorm)
            for buffer in module.buffers(recurse=False)
        ]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, before in [*originals, *statistics]:
                    tensor.copy_(before)


@OPTIMIZERS.add()
def sam(parameters: list[nn.Parameter], lr: float, *, rho: Annotated[float, Range(0, 1e3)] = 0.05) -> Ascent:
    """Sharpness-aware minimisation (Foret et al. 2021), around another: the gradient is taken at `w + ρ g/|g|`.

    Two passes a step; batch norm's statistics are those of the first. `sam` alone is `sgd+sam`.

    >>> run = calibcli.train(model, None, optimizer="adam+sam:rho=0.1", epochs=1, device="cpu")
    >>> run.facts["runs"][0]["recipe"]["optimizer"]
    'adam+sam:rho=0.1'
    """
    return Ascent(parameters, rho)


def optimizer_choices(spec: str) -> tuple[Choice[Traits], ...]:
    """Read the optimizer of `sgd:momentum=0.9+sam:rho=0.05`, and the ascent around its steps.

    Raises:
        UsageError: unknown name or option, or two of a kind.
    """
    chosen = [OPTIMIZERS.choose(part) for part in spec.split("+")]
    if chosen[0].name == "sam":
        chosen.insert(0, OPTIMIZERS.choose("sgd"))
    if [choice.name for choice in chosen[1:]] not in ([], ["sam"]):
        raise UsageError(f"--optimizer {spec} names several optimizers", "pass one, or one and +sam")
    return tuple(chosen)


def build(spec: str, parameters: Iterable[nn.Parameter], lr: float) -> tuple[torch.optim.Optimizer, Ascent | None]:
    """Make the optimizer of a spec, and the ascent before its steps where there is one."""
    trained = list(parameters)
    optimizer, *around = (choice(trained, lr) for choice in optimizer_choices(spec))
    return optimizer, around[0] if around else None


# The recipe, and its schedule of the learning rate.

SCHEDULES = Registry("schedule", Traits)

Factor = Annotated[float, Range(0, 1000)]


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """Everything that decides the result of a run, given the model and the data. Specs are canonical.

    Attributes:
        loss: objective spec, `focal:gamma=3+trace:weight=0.01`.
        seed: of batches, augmentation, dropout and probes.
    """

    loss: str = "ce"
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_options(self)
        try:
            build(self.optimizer, [nn.Parameter(torch.zeros(1))], self.lr)
        except CalibError:
            raise
        except ValueError as error:
            raise UsageError(f"--optimizer {self.optimizer}: {str(error).lower()}", "correct its options") from None
        canonical = {
            "loss": losses.objective(self.loss).spec,
            "optimizer": "+".join(choice.spec for choice in optimizer_choices(self.optimizer)),
            "schedule": SCHEDULES.choose(self.schedule).spec,
            "augment": "+".join(choice.spec for choice in augmentations(self.augment)),
        }
        for name, spec in canonical.items():
            object.__setattr__(self, name, spec)

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    def learning_rate(self, step: int, total: int, epochs: int) -> float:
        """Compute the learning rate of a step (0-based) among `total`."""
        warm = round(self.warmup * total)
        if step < warm:
            return self.lr * (step + 1) / warm
        return float(self.lr * _schedule(self.schedule)(step, total, epochs))


def own_loss(loss: str | Callable[..., Any]) -> str:
    """Return the spec of a loss that the user asked for; load one of the user's own, `module:name` or a Python object.

    Raises:
        UsageError, InputError: no such module, or its object is no loss.  TypeError: neither text nor callable.
    """
    if isinstance(loss, losses.Objective):
        return loss.spec
    if isinstance(loss, losses.Penalty):
        raise UsageError(f"{type(loss).__name__} is a penalty, not a loss", "pass its spec: penalty=('mmce:weight=2',)")
    if not isinstance(loss, str):
        spec = registry.spec_of(loss)
        if not (isinstance(loss, losses.Loss) and loss.spec):
            _added(spec, loss)
        return spec
    head = loss.partition("+")[0].strip()
    if NAMES_CODE.fullmatch(head) and head not in registry.OWN:
        module, _, name = head.partition(":")
        _added(head, from_module(module, name))
    return loss


def _added(spec: str, loss: Callable[..., Any]) -> None:
    fix = (
        "let it take logits (N, K) and labels (N,), or be a class or function without arguments that makes such a loss"
    )
    with refusing(FAILURES, lambda e: f"loss {spec} fails ({type(e).__name__}: {e})", fix):
        registry.add(spec, loss)


@functools.cache
def _schedule(spec: str) -> Choice[Traits]:
    return SCHEDULES.choose(spec)


@SCHEDULES.add()
def step(
    number: int,
    total: int,
    epochs: int,
    *,
    at: Annotated[tuple[float, ...], Range(0, 1)] = (3 / 7, 5 / 7),
    factor: Factor = 0.1,
) -> float:
    """Times `factor` at each fraction of the epochs (rounded to whole epochs); 3/7 and 5/7 are 150 and 250 of 350.

    The schedule of He et al. (2016), at the epochs of Mukhoti et al. (2020).

    >>> run = calibcli.train(model, None, schedule="step:at=0", epochs=1, device="cpu")
    >>> round(run.facts["runs"][0]["last_epoch"]["lr"], 4)
    0.01
    """
    epoch = number * epochs // total
    return factor ** sum(epoch >= round(f * epochs) for f in at)


@SCHEDULES.add()
def cosine(number: int, total: int, epochs: int, *, final: Factor = 0.0) -> float:
    """Half a cosine from 1 to `final`, step by step.

    Source: Loshchilov and Hutter (2017), without restarts.

    >>> run = calibcli.train(model, None, schedule="cosine", epochs=1, device="cpu")
    >>> round(run.facts["runs"][0]["last_epoch"]["lr"], 4)
    0.05
    """
    return final + (1 - final) * (1 + math.cos(math.pi * number / total)) / 2


@SCHEDULES.add()
def constant(number: int, total: int, epochs: int) -> float:
    """1 throughout.

    Ours: the learning rate as it is given.

    >>> run = calibcli.train(model, None, schedule="constant", epochs=1, device="cpu")
    >>> round(run.facts["runs"][0]["last_epoch"]["lr"], 4)
    0.1
    """
    return 1.0


# Changes of a trained network, or of the labels that it is measured with; they need no training.


@dataclass(frozen=True, kw_only=True)
class ChangeTraits(Traits):
    """What a change says of itself."""

    labels: bool = False
    """It is a function of the labels (N,) of the rows that a network is measured on; the network stays as it is."""


CHANGES = Registry("change of a network", ChangeTraits)
SAME = 1e-4  # of the largest logit: by how much rounding may move the logits of a function that stays


@CHANGES.add()
def rescale(model: nn.Module, run: Callable[[], Tensor], *, by: Positive) -> None:
    """A layer's weight and bias times `by`, and the weight of the next one divided by it: the same function.

    It is the first of two layers, in the order in which they run, of which this is true: with ReLU or pooling alone in
    between. Of a convolution with batch norm in eval mode that is the norm (Dinh et al. 2017).

    >>> from torch.nn import Linear, ReLU, Sequential
    >>> net, x = Sequential(Linear(2, 3), ReLU(), Linear(3, 2)).requires_grad_(False), torch.ones(1, 2)
    >>> z = net(x)
    >>> rescale(net, lambda: net(x), by=4.0)
    >>> torch.equal(net(x), z)
    True

    Args:
        model: is changed in place.  run: a forward pass of some rows, to their logits.

    Raises:
        InputError: there are no two such layers.
    """
    ran: list[nn.Module] = []
    layers = [m for m in model.modules() if isinstance(m._parameters.get("weight"), Tensor)]
    hooks = [m.register_forward_hook(lambda m, *_: ran.append(m)) for m in layers]
    logits = run()
    for hook in hooks:
        hook.remove()
    for first, after in itertools.pairwise(dict.fromkeys(ran)):
        tensors = [*first.parameters(recurse=False), after.weight]
        kept = [cast(Tensor, tensor).clone() for tensor in tensors]
        for tensor, factor in zip(tensors, [*[by] * (len(tensors) - 1), 1 / by], strict=True):
            cast(Tensor, tensor).mul_(factor)
        if float((run() - logits).abs().max()) <= SAME * float(logits.abs().max()):
            return
        for tensor, before in zip(tensors, kept, strict=True):
            cast(Tensor, tensor).copy_(before)
    raise InputError("no layer of this network can be rescaled against the next one", "leave that arm out")


@CHANGES.add("logits")
def scaled_logits(model: nn.Module, run: Callable[[], Tensor], *, by: Positive) -> None:
    """All logits times `by`: the weight and bias of the layer that gives them.

    It is the temperature 1/`by`, folded in (Guo et al. 2017).

    >>> from torch.nn import Linear, ReLU, Sequential
    >>> net, x = Sequential(Linear(2, 3), ReLU(), Linear(3, 2)).requires_grad_(False), torch.ones(1, 2)
    >>> z = net(x)
    >>> scaled_logits(net, lambda: net(x), by=2.0)
    >>> torch.equal(net(x), 2 * z)
    True

    Args:
        model, run: as of `rescale`.

    Raises:
        InputError: no single linear layer gives the logits.
    """
    for parameter in last_linear(model, run, "the network", "leave that arm out")[1].parameters():
        parameter.mul_(by)


@CHANGES.add("labels", labels=True)
def permuted_labels(labels: Ints, *, permute: bool, seed: Seed = 0) -> Ints:
    """The labels of the rows of each part in an order that is drawn: the same network and inputs, other answers.

    Ours: of a piecewise linear network the trace of cross-entropy depends on inputs and weights alone.

    >>> permuted_labels(np.array([0, 0, 1, 2]), permute=True).tolist()
    [1, 0, 0, 2]

    Args:
        labels: (N,) integers.
    """
    return labels[np.random.default_rng(seed).permutation(len(labels))] if permute else labels


def relabelled(data: Dataset, change: str) -> Dataset:
    """Return the rows that a changed network is measured on: with other labels if the change is one of labels."""
    choice = CHANGES.choose(change)
    return dataclasses.replace(data, labels=choice(data.labels)) if choice.traits.labels else data
