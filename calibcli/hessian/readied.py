"""A copy of the user's model that can be differentiated twice; what cannot is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from calibcli.errors import InputError


def readied(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode on the device, its floats in `dtype`; complex buffers stay complex.

    Raises:
        InputError: a model that cannot be copied, complex parameters, or batch norm over the rows of a batch.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile's products have no second derivative
    try:
        made = copied(model).to(device)
        made._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
        raise InputError(
            f"the model cannot be copied ({str(error).splitlines()[0]})",
            "pass a module that copy.deepcopy accepts, without tensors that hold a graph",
        ) from None
    for name, parameter in made.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise InputError(f"parameter '{name}' of a lazy module has no shape yet", "run the model on a batch first")
        if parameter.is_complex():
            raise InputError(
                f"parameter '{name}' is complex; curvature is that of real parameters",
                "hold torch.view_as_real of it, and take torch.view_as_complex in the forward pass",
            )
    for name, module in made.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False  # sparse gradients have no second derivative
        if isinstance(module, _BatchNorm) and (module.running_mean is None or module.running_var is None):
            raise InputError(
                f"'{name}' is a batch norm without running statistics: a row's output depends on the rows beside it",
                "train it with track_running_stats=True, or use a norm of each row, such as GroupNorm",
            )
    nn.Module.train(made, False)  # unbound: exported modules override eval() to refuse
    affine_norm(made)
    return made


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, its parameters leaves: those of a TorchScript module remember what they were copied from, and that
    gradients have its dtype."""
    made = copy.deepcopy(model, memo)
    for parameter in made.parameters():
        if not parameter.is_leaf:
            parameter.detach_().requires_grad_()
    return made


def affine_norm(model: nn.Module) -> None:
    """Let the batch norms of a model in eval mode write out the affine map that they are, in place.

    The function and its derivatives in weight and bias are the same; torch's own second derivative of batch norm
    takes a dozen passes over the activations, a fifth of a Hessian product of a residual network.
    """
    known = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    for module in model.modules():
        if not isinstance(module, _BatchNorm) or type(module).forward not in known:
            continue
        if module.running_mean is not None and module.running_var is not None:
            scale = torch.rsqrt(module.running_var + module.eps)
            module.register_buffer("calib_scale", scale, persistent=False)
            module.register_buffer("calib_shift", -module.running_mean * scale, persistent=False)
            module.forward = MethodType(_affine, module)  # type: ignore[method-assign]


def _affine(self: _BatchNorm, x: Tensor) -> Tensor:
    self._check_input_dim(x)  # type: ignore[no-untyped-call]
    scale, shift = cast(Tensor, self.calib_scale), cast(Tensor, self.calib_shift)
    if self.affine:
        scale, shift = scale * self.weight, self.bias + shift * self.weight
    shape = (1, -1, *[1] * (x.ndim - 2))
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """PyTorch's has a derivative, but no second one."""
    return F.relu6(x + 3) / 6


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """PyTorch's has a second derivative that is not symmetric."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


WRITTEN_OUT: dict[Any, Callable[..., Tensor]] = {
    F.hardsigmoid: hardsigmoid,
    torch.ops.aten.hardsigmoid.default: hardsigmoid,
    torch._weight_norm: weight_norm,
}


class WrittenOut(TorchFunctionMode):
    """While it is on, functions whose second derivative PyTorch lacks or has wrong are made of others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return WRITTEN_OUT.get(func, func)(*args, **(kwargs or {}))
