"""Arrays as users pass them, torch tensors included, as NumPy arrays and back; torch itself is never imported.

Whoever passes a tensor has imported torch, so that it is found in `sys.modules`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def tensor_of(given: Any) -> Any:
    """`given` without its graph where it is a torch tensor, else None; whoever made one has imported torch."""
    torch = sys.modules.get("torch")
    return given.detach() if torch is not None and isinstance(given, torch.Tensor) else None


def like(found: Any, given: Any) -> Any:
    """A NumPy array as `given` came: of a tensor a tensor on its device, in float64 of float64, else in float32."""
    tensor = tensor_of(given)
    if tensor is None:
        return found
    return sys.modules["torch"].from_numpy(found.astype(precision(given), copy=False)).to(tensor.device)


def precision(given: Any) -> str:
    """The dtype of what `like` gives."""
    tensor = tensor_of(given)
    return "float64" if tensor is None or tensor.dtype == sys.modules["torch"].float64 else "float32"


def array(given: Any) -> Any:
    """`given` as a NumPy array: any array-like; torch tensors of any device, with a graph, of a float type that NumPy
    lacks, or a list of them included.
    """
    if isinstance(given, list | tuple) and given and hasattr(given[0], "detach"):
        given = [array(one) for one in given]
    if hasattr(given, "detach") and hasattr(given, "cpu"):
        given = given.detach().cpu().resolve_conj().resolve_neg()
        known = "torch.float16", "torch.float32", "torch.float64"
        given = given.float() if given.is_floating_point() and str(given.dtype) not in known else given
    return np.asarray(given)
