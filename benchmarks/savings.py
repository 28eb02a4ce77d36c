"""Measure the memory of a training step of pyramids, with and without the ways to save it."""

import argparse
from functools import partial
from typing import Any

import timm
import torch
from torch import nn

from benchmarks.memory import memory_source, training_memory
from benchmarks.report import Report
from soft_vit.cli import add_img_size_option
from soft_vit.probe.load import require_pyramid
from soft_vit.text_tables import markdown_table

SAVINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mlp_chunks=4": {"mlp_chunks": 4},
    "reversible=True": {"reversible": True},
    "reversible=True, mlp_chunks=4": {"reversible": True, "mlp_chunks": 4},
    "set_grad_checkpointing()": {},
}
"""Ways to train a pyramid in less memory, and their model arguments."""


def measure_savings(
    name: str, input_shape: tuple[int, int, int, int], device: str | torch.device = "cpu", **model_args: Any
) -> dict[str, int]:
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
    table = markdown_table(["model", *peaks[args.models[0]]], rows)
    return Report("Memory of a training step", words, [table])
