"""What keeps distances, kernels and inverses out of half precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in fp32 where it is bf16 or fp16, unchanged where it is fp32 or float64."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def full_precision(x: Tensor) -> AbstractContextManager:
    """A context without autocast for the device of x."""
    # Entered only where it changes something: exporters would carry an autocast region into the graph.
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def full_precision_backward(x: Tensor) -> AbstractContextManager:
    """The same for the backward of an operator, entered whether or not autocast is on.

    torch.compile traces a backward where the forward has switched autocast off, and runs it where it may be on.
    """
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
