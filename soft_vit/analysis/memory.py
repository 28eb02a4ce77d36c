"""Peak memory of a piece of work: what the GPU's allocator says, or the bytes of live tensors, counted."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import timm
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from soft_vit.analysis.machine import require_device
from soft_vit.analysis.pyramid import require_pyramid
from soft_vit.analysis.sides import check_batch

Result = TypeVar("Result")


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensors that operations make under it, while they live, and their peak.

    Works on any device, meta included, where it computes nothing. What a kernel uses inside itself is not seen.
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
            # A view of a tensor from before makes no bytes.
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


def training_memory(
    build: Callable[..., nn.Module], input_shape: tuple[int, ...], device: str | torch.device, **autocast: Any
) -> int:
    """Bytes that one training step of the model `build(device=...)` holds at its peak on `device`, weights excluded.

    A GPU runs the step. Anywhere else nothing is computed: tensors carry shapes alone, and take the device's paths, its
    fused attention included. autocast: arguments of torch.autocast, none for none.
    """
    device = torch.device(device)
    with nullcontext() if device.type == "cuda" else FakeTensorMode():
        model = build(device=device).train()
        x = torch.empty(input_shape, device=device).normal_()

        def step() -> None:
            with torch.autocast(device.type, **autocast) if autocast else nullcontext():
                loss = model(x).float().sum()
            loss.backward()
            model.zero_grad(set_to_none=True)

        return peak_memory(step, device)


def peak_memory(work: Callable[[], Any], device: str | torch.device) -> int:
    """Bytes that work() holds at its peak beyond what it began with; counted except on a GPU."""
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
    """Where the figures of `peak_memory` come from, for the head of a table."""
    return "allocator's peak" if torch.device(device).type == "cuda" else "bytes of live tensors, counted"


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that the device has no memory left."""
    # The CPU's allocator has no error of its own kind.
    return isinstance(error, torch.cuda.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def unless_out_of_memory(work: Callable[[], Result]) -> Result | None:
    """What work() returns, or None where the device has no memory for it."""
    try:
        return work()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    # Not while the error is handled: it holds the frames, and with them the tensors, of the work that failed.
    torch.cuda.empty_cache()
    return None


SAVINGS = {
    "plain": {},
    "mlp_chunks=4": {"mlp_chunks": 4},
    "reversible=True": {"reversible": True},
    "reversible=True, mlp_chunks=4": {"reversible": True, "mlp_chunks": 4},
    "set_grad_checkpointing()": {},
}
"""The ways of the pyramid to train in less memory, and the model arguments that choose them."""


def training_memory_by_saving(
    name: str, input_shape: tuple[int, int, int, int], device: str | torch.device = "cpu", **model_args: Any
) -> dict[str, int]:
    """`training_memory` of a pyramid, by timm name, in each of the ways in `SAVINGS`.

    Raises ValueError for another model, a device that is not there, or a batch of no image.
    """
    require_pyramid(name)
    require_device(device)
    check_batch(input_shape[0])

    def build(saving: str, device: torch.device) -> nn.Module:
        args = {"img_size": input_shape[-2:], "in_chans": input_shape[1], **model_args, **SAVINGS[saving]}
        model = timm.create_model(name, device=device, **args)
        model.set_grad_checkpointing(saving == "set_grad_checkpointing()")
        return model

    return {saving: training_memory(partial(build, saving), input_shape, device) for saving in SAVINGS}
