"""Importing this makes `import torchvision` work beside a torch for the CPU alone.

PyPI's torchvision is built for CUDA. Its operators do not load without, and its import ends at `nms` and `qnms`, which
it registers whether they did or not. Nothing here calls them, so it is enough that they are declared.
"""

from __future__ import annotations

import importlib
import sys

import torch

try:
    importlib.import_module("torchvision")
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")  # its declarations go when it does
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
