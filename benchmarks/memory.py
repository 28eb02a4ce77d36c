"""Peak memory of a piece of work: reported by the GPU's allocator, or counted as the bytes of live tensors."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")


class LiveTensors(TorchDispatchMode):
    """Count the bytes of live tensors made by operations under it, and their peak.

    Works on any device, including meta, which computes nothing. Memory that a kernel uses internally is not seen.
    Operations that this package fuses on a CPU in inference, such as a linear layer with GELU, are counted unfused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._live: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            # A view of an existing tensor takes no memory.
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self._track(tensor.untyped_storage())
        return out

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._live:
            return
        size = storage.nbytes()
        self._live.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._live.discard(key)
        self.current -= size


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


def peak_memory(work: Callable[[], Any], device: str | torch.device) -> int:
    """Return the peak bytes of work() above the bytes at its start."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with LiveTensors() as watch:
        work()
    return watch.peak


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
