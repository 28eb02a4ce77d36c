"""Measure attention of a batch of images of many sizes: packed in one sequence against padded to the longest."""

import argparse
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.operator import PASSES, operators_table
from benchmarks.report import Report
from benchmarks.timer import measure
from soft_vit.functional import PACKED_KINDS, attention, varlen_attention


def make_steps(kind: str, lengths: Tensor, heads: int, dim: int, direction: str, device: str) -> dict[str, Any]:
    """Return one call of each form, `KIND padded` and `KIND packed`, for sequences of these lengths `[S]`."""
    packed = torch.randn(3, int(lengths.sum()), heads, dim, device=device)
    padded = torch.stack([torch.nn.utils.rnn.pad_sequence(x.split(lengths.tolist()), batch_first=True) for x in packed])
    mask = (torch.arange(padded.shape[2]) < lengths[:, None]).to(device)
    boundaries = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to(device)
    forms = {
        "padded": (partial(attention, kind=kind, key_padding_mask=mask), padded.transpose(2, 3).contiguous()),
        "packed": (partial(varlen_attention, kind=kind, cu_seqlens=boundaries), packed),
    }
    tensors = {form: dict(zip(("query", "key", "value"), x, strict=True)) for form, (_, x) in forms.items()}
    return {f"{kind} {form}": partial(PASSES[direction], call, tensors[form]) for form, (call, _) in forms.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kinds", nargs="*", default=PACKED_KINDS, help=f"{', '.join(PACKED_KINDS)} (default: all)")
    parser.add_argument("--images", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, nargs=2, default=(10, 400), metavar=("MIN", "MAX"), help="(10 400)")
    parser.add_argument("--shape", type=int, nargs=2, default=(6, 64), metavar=("H", "D"), help="(6 64)")
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    low, high = args.tokens
    lengths = torch.randint(low, high + 1, (args.images,), generator=torch.Generator().manual_seed(0))
    pairs = []
    for direction, kind in product(PASSES, args.kinds):
        steps = make_steps(kind, lengths, *args.shape, direction, args.device)
        timings = measure(steps, direction, int(lengths.sum()), args.rounds, args.device, steps)
        pairs.append(operators_table(timings))
    # Ratios are within each pair.
    table = "\n".join([pairs[0], *(pair.split("\n", 2)[2] for pair in pairs[1:])])
    words = f"{args.images} images of {low} to {high} tokens, {args.shape[0]} heads of {args.shape[1]}, float32. "
    words += "N: all tokens. Memory is the peak beyond the inputs."
    return Report("Packed against padded", words, [table])
