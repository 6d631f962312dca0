"""`nccl` over gloo, with what nccl refuses: tensors of the CPU, and two ranks on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def install() -> None:
    """Let `torch.distributed` take "nccl"."""
    import torch
    import torch.distributed as dist

    on = {"nccl": False}
    init, objects = dist.init_process_group, dist.all_gather_object

    def one_device_each(index: int) -> None:
        found: list[Any] = [None] * dist.get_world_size()
        objects(found, index)
        if len(set(found)) < len(found):
            raise dist.DistBackendError(
                f"NCCL error (ncclInvalidUsage): Duplicate GPU detected: ranks on CUDA devices {found}"
            )

    def start(backend: Any = None, *args: Any, **options: Any) -> Any:
        on["nccl"] = backend == "nccl"
        if on["nccl"]:
            options.pop("device_id", None)
        return init("gloo" if on["nccl"] else backend, *args, **options)

    def over(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Any, *args: Any, **options: Any) -> Any:
            if not on["nccl"]:
                return real(tensor, *args, **options)
            if not tensor.is_cuda:
                raise RuntimeError("No backend type associated with device type cpu")
            one_device_each(tensor.device.index)
            host = tensor.detach().cpu()
            real(host, *args, **options)
            tensor.copy_(host)
            return None

        return call

    def gather(out: Any, value: Any, *args: Any, **options: Any) -> Any:
        if on["nccl"]:  # it goes by way of the current device
            one_device_each(torch.ops.pretend.device())
        return objects(out, value, *args, **options)

    dist.init_process_group, dist.all_gather_object = start, gather
    dist.all_reduce, dist.broadcast = over(dist.all_reduce), over(dist.broadcast)
