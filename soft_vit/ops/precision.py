"""What keeps distances, kernels and inverses out of half precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in fp32 where it is bf16 or fp16, unchanged where it is fp32 or float64."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def full_precision(x: Tensor) -> AbstractContextManager:
    """A context without autocast for the device of x."""
    device_type = x.device.type
    # Entered only where it changes something: exporters would carry an autocast region into the graph.
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
