"""Peak memory of a step of a model, by `soft_vit.probe.cost`."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from soft_vit.probe.cost import peak_memory

Result = TypeVar("Result")


def training_memory(build: Callable[..., nn.Module], input_shape: tuple[int, ...], device: str | torch.device) -> int:
    """Return the peak bytes of one training step of the model `build(device=...)` on `device`, weights excluded.

    Counted as by `step_memory`.
    """

    def step(model: nn.Module, x: Tensor) -> None:
        model.train()
        model(x).float().sum().backward()
        model.zero_grad(set_to_none=True)

    return step_memory(build, input_shape, device, step)


def step_memory(
    build: Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    device: str | torch.device,
    step: Callable[[nn.Module, Tensor], None],
) -> int:
    """Return the peak bytes of `step(model, x)` beyond weights and input; the model is `build(device=...)`.

    On a GPU the step runs. On other devices nothing is computed: the tensors are fake, but take the device's code
    paths, including its fused attention.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    # timm's constructors read numbers, which fake tensors do not have.
    model = build(device=device if on_gpu else "meta")
    with nullcontext() if on_gpu else FakeTensorMode(allow_non_fake_inputs=True):
        if not on_gpu:
            model.to_empty(device=device)
        x = torch.empty(input_shape, device=device).normal_()
        return peak_memory(partial(step, model, x), device)


def memory_source(device: str | torch.device) -> str:
    """Describe how `peak_memory` measures on a device."""
    return "allocator's peak" if torch.device(device).type == "cuda" else "bytes of live tensors, counted"


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether the device ran out of memory."""
    # The CPU allocator raises a plain RuntimeError.
    return isinstance(error, torch.cuda.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def unless_out_of_memory(work: Callable[[], Result]) -> Result | None:
    """Return what work() returns, or None if it runs out of memory."""
    try:
        return work()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    # After the except clause: the error holds the frames of the failed work, and with them its tensors.
    torch.cuda.empty_cache()
    return None
