"""Counts what makes the host wait for a device, on any device: reads of tensors, and uploads."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operators whose result, or whose result's size, the host must read.
READING = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim",
    "unique_consecutive", "bincount",
}  # fmt: skip
COPYING = (torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.numpy)
UPLOADING = (torch.tensor, torch.as_tensor, torch.from_numpy)


class _Operators(TorchDispatchMode):
    def __init__(self, counter):
        super().__init__()
        self.counter = counter

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        by_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in READING or by_mask:
            self.counter.read(name)
        return function(*args, **(kwargs or {}))


class HostReads(TorchFunctionMode):
    """Within the block, `reads` and `uploads` list what happened, by name.

    On a CPU `.cpu()` copies nothing and is not an operator, so calls are counted, not copies. A tensor that `.cpu()`
    returned is on the host: reading it again costs nothing.
    """

    def __init__(self):
        super().__init__()
        self.reads, self.uploads = [], []
        self._on_host, self._operators = [], _Operators(self)

    def __enter__(self):
        self._operators.__enter__()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._operators.__exit__(*exception)

    def read(self, name: str) -> None:
        self.reads.append(name)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in UPLOADING:
            self.uploads.append(function.__name__)
        elif function in COPYING and not any(args[0] is known for known in self._on_host):
            self.read(function.__name__)
            if function is torch.Tensor.cpu:
                self._on_host.append(result)
        return result
