"""A pytest plugin (`-p zoos`): torchvision from PyPI can be imported beside a CPU torch.

Its import fails unless its CUDA operators are declared; no operator of it is ever called.
"""

import torch

DECLARED = torch.library.Library("torchvision", "FRAGMENT")  # operators live as long as their library
if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
