"""The state that the engine needs of torch while it runs, and settings that change its time and spread but never the
estimand.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from calibcli.networks import device as devices
from calibcli.networks.device import Signals, held_signals

# The state the engine needs of torch while it runs, given back afterwards, also after an exception.


@contextlib.contextmanager
def second_order(device: torch.device) -> Iterator[None]:
    """Gradients on; fused attention, autocast, TF32 and compiled parts off; all as before on the way out, random state
    included.

    Scaled-dot-product attention has a second derivative in its math backend only, `nn.MultiheadAttention` none in its
    fused inference path, and what `torch.compile` made none: it runs as it was written.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            devices.full_float32(),
            devices.unchanged_rng(device),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            sdpa_kernel(SDPBackend.MATH),
            torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext(),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def plain_recurrence(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """cuDNN off around a model that holds recurrent layers: its kernels have no second derivative."""
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    return devices.cudnn(enabled=False) if recurrent else contextlib.nullcontext()


@contextlib.contextmanager
def memory_said(problem: Any) -> Iterator[None]:
    """Memory that runs out where no smaller plan would help is an `InputError`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not devices.is_out_of_memory(error):
            raise
        raise problem.too_large() from None


def held_together() -> contextlib.AbstractContextManager[Signals | None]:
    """Signals held until all ranks have heard of them; None, and nothing held, for one process."""
    return held_signals() if devices.world() > 1 else contextlib.nullcontext()


class AttentionWatch(TorchFunctionMode):
    """Notes whether a forward pass calls scaled-dot-product attention."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.seen = True
        return func(*args, **(kwargs or {}))


# What the trace spends where: settings that change time and spread, never what is estimated.
#
# Each line names the script under `benchmarks/` that shows what it buys.


# Tr(G), by `curvature.py` (time to 1 %) and `curvature_coverage.py` (whether the interval covers)
CHEAP = 3  # pairs of a row, which take a product's time: if there are no more, all are taken
PILOT = 48  # draws from which the number of draws is decided
FEWEST, MOST = 128, 20_000  # draws for the rest
FLOOR = 0.3  # of the mean scale of rows, added to every row's: no pair is out of reach of the draws
OPEN = 0.1  # of the target, that rows which were not looked at may hold if they are as steep as any other
REDONE = 8  # of the heaviest rows, computed again in float64 where every pair was taken
REDONE_PAIRS = 1024  # of those rows at most, but of two rows in any case
ROUNDED = 100.0  # rounding of Tr(G) in units of the dtype's, where no float64 copy tells: that of the worst rows found
FAINT = 1e-4  # of the mean mass: rows below it are mostly left out of the exact part

# Tr(H - G), by `probes.py` (a pass of probes against one of H) and `curvature.py` (the trace of the ViT)
AT_ONCE = 64  # rows times probes whose first derivatives are carried together
AT_ONCE_THERE = 4096  # the same on a device, by counts (`device.py`)
LIGHT = 1 << 30  # on a device, probes times bytes of a cell's graph up to which cells are mapped: launches are dearer
BYTES = 256 << 20  # of directions at once
WORTH = 32 << 20  # probes times bytes of a cell's graph from which carrying derivatives forward pays
FINE = 64  # probes of a cell from which every row has its own: what they then save outweighs the smaller batches
SIMILAR = 4.0  # degrees of freedom that the guess counts for in the variance of a cell
HEAVY = 32  # probes of a cell at least, where it holds HOLDS of the variance, by `curvature_coverage.py --resampled`
HOLDS = 0.1
ROUND = 64  # probes of a cell between two reports

# both, by `curvature_coverage.py`
SHARE = 0.3  # of the sampling error, at which an estimator stops unasked
MISSED = 1.2  # times the precision asked for, from which it counts as missed
PAIRS_SHARE = 0.25  # of the error allowed to Tr(G) where there is a rest to probe, by far the dearer part
