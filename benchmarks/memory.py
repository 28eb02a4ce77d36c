"""Measure the memory of a training step of pyramids, with and without the ways to save it."""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import timm
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from benchmarks.report import Report
from soft_vit.cli import add_img_size_option
from soft_vit.probe.cost import peak_memory
from soft_vit.probe.load import require_pyramid
from soft_vit.text_tables import markdown_table

Result = TypeVar("Result")

REVERSIBLE, CHUNKS = {"reversible": True}, {"mlp_chunks": 4}
SAVINGS: dict[str, dict[str, Any]] = {"plain": {}, "mlp_chunks=4": CHUNKS, "reversible=True": REVERSIBLE}
SAVINGS |= {"reversible=True, mlp_chunks=4": REVERSIBLE | CHUNKS, "set_grad_checkpointing()": {}}
"""Ways to train a pyramid in less memory, and their model arguments."""


def training_memory(build: Callable[..., nn.Module], input_shape: tuple[int, ...], device: str | torch.device) -> int:
    """Return the peak bytes of `training_step` of the model `build(device=...)`, counted as by `step_memory`."""
    return step_memory(build, input_shape, device, training_step)


def training_step(model: nn.Module, x: Tensor) -> None:
    """Compute the gradients of all weights, and drop them."""
    model.train()
    model(x).float().sum().backward()
    model.zero_grad(set_to_none=True)


def step_memory(
    build: Callable[..., nn.Module], input_shape: tuple[int, ...], device: str | torch.device, step: Callable[..., None]
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


def measure_savings(name: str, input_shape: tuple[int, ...], device: str = "cpu", **model_args: Any) -> dict[str, int]:
    """Return the bytes of a training step of a pyramid, by timm name, with each of `SAVINGS`."""
    require_pyramid(name)

    def build(saving: str, device: torch.device) -> nn.Module:
        args = {"img_size": input_shape[-2:], "in_chans": input_shape[1], **model_args, **SAVINGS[saving]}
        model = timm.create_model(name, device=device, **args)
        model.set_grad_checkpointing(saving == "set_grad_checkpointing()")
        return model

    return {saving: training_memory(partial(build, saving), input_shape, device) for saving in SAVINGS}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="pyramids of this package, such as soft_tiny")
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--batch-size", type=int, default=8, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    shape = (args.batch_size, 3, *args.img_size)
    peaks = {name: measure_savings(name, shape, args.device) for name in args.models}
    words = f"batch {args.batch_size}, {args.img_size[0]} x {args.img_size[1]}, float32. MB of a training step beyond "
    words += f"the weights, gradients included: {memory_source(args.device)}."
    rows = [[name, *(f"{peak / 2**20:.0f}" for peak in row.values())] for name, row in peaks.items()]
    return Report("Memory of a training step", words, [markdown_table(["model", *peaks[args.models[0]]], rows)])
