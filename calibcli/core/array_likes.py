"""Convert what users pass as arrays, torch tensors included, to NumPy arrays and back, without importing torch.

Whoever passes a tensor has imported torch already, so it is taken from `sys.modules`.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol, TypeVar

import numpy as np

from calibcli.core.errors import InputError, refusing


class TensorLike(Protocol):
    """A tensor of torch, which this package does not import."""

    def detach(self) -> Any: ...

    def cpu(self) -> Any: ...


Tensor = TypeVar("Tensor", bound=TensorLike)


def tensor_of(given: Any) -> Any:
    """Return `given` without its graph if it is a torch tensor, else None."""
    torch = sys.modules.get("torch")
    return given.detach() if torch is not None and isinstance(given, torch.Tensor) else None


def like(values: Any, given: Any) -> Any:
    """Return an array in the form that `given` had: a tensor for a tensor, on its device, in `precision(given)`."""
    tensor = tensor_of(given)
    if tensor is None:
        return values
    return sys.modules["torch"].from_numpy(values.astype(precision(given), copy=False)).to(tensor.device)


def precision(given: Any) -> str:
    """Name the dtype that `like` returns: float32 for tensors of any type but float64, else float64."""
    tensor = tensor_of(given)
    return "float64" if tensor is None or tensor.dtype == sys.modules["torch"].float64 else "float32"


def array(given: Any) -> Any:
    """Convert any array-like to a NumPy array.

    Takes torch tensors too, and lists of them: on any device, with a graph, or of a float type that NumPy lacks
    (bfloat16 becomes float32); and arrays of other libraries in the memory of the host, by the protocol DLPack.

    Raises:
        InputError: a sparse matrix, or an array on a device that only its own library reads.
    """
    if hasattr(given, "toarray") and hasattr(given, "nnz"):
        raise InputError("the array is a sparse matrix", "pass it dense: matrix.toarray()")
    if isinstance(given, list | tuple) and given and hasattr(given[0], "detach"):
        given = [array(one) for one in given]
    if hasattr(given, "detach") and hasattr(given, "cpu"):
        given = given.detach().cpu().resolve_conj().resolve_neg()
        numpy_floats = "torch.float16", "torch.float32", "torch.float64"
        given = given.float() if given.is_floating_point() and str(given.dtype) not in numpy_floats else given
    elif hasattr(given, "__dlpack__") and not hasattr(given, "__array__"):
        fix = "copy it to the host first, as its library does (jax.device_get, cupy.asnumpy)"
        with refusing((BufferError, RuntimeError, TypeError), "the array lies on a device", fix):
            return np.from_dlpack(given)
    return np.asarray(given)
