"""Measure attention of a batch of images of many sizes: packed in one sequence against padded to the longest."""

import argparse
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.operator import PASSES, forward, forward_backward
from benchmarks.report import Report
from benchmarks.timer import Timing, measure
from soft_vit.functional import PACKED_KINDS, attention, varlen_attention
from soft_vit.text_tables import markdown_table


def make_steps(
    kind: str, lengths: Tensor, num_heads: int, head_dim: int, direction: str, device: str
) -> dict[str, Any]:
    """Return one call of each form, `KIND padded` and `KIND packed`, for sequences of these lengths `[S]`."""
    packed = torch.randn(3, int(lengths.sum()), num_heads, head_dim, device=device)
    padded = torch.stack([torch.nn.utils.rnn.pad_sequence(x.split(lengths.tolist()), batch_first=True) for x in packed])
    mask = (torch.arange(padded.shape[2]) < lengths[:, None]).to(device)
    boundaries = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to(device)

    def on_padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, kind, key_padding_mask=mask)

    def on_packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return varlen_attention(q, k, v, boundaries, kind)

    call = forward if direction == PASSES[0] else forward_backward
    of_packed, of_padded = (dict(zip("qkv", x, strict=True)) for x in (packed, padded.transpose(2, 3).contiguous()))
    return {
        f"{kind} padded": partial(call, on_padded, of_padded),
        f"{kind} packed": partial(call, on_packed, of_packed),
    }


def packed_table(timings: list[Timing]) -> str:
    """Return a Markdown table; the ratio is the time of the padded form over that of the packed one."""
    rows = []
    for padded, packed in zip(timings[::2], timings[1::2], strict=True):
        cells = [f"{1e3 * x:.3g}" for timing in (padded, packed) for x in timing.time]
        memory = [f"{timing.megabytes:.1f}" for timing in (padded, packed)]
        ratio = f"{padded.time.median / packed.time.median:.2f}"
        kind = padded.target.removesuffix(" padded")
        rows.append(
            [kind, padded.mode, cells[0], " - ".join(cells[1:3]), cells[3], " - ".join(cells[4:]), ratio, *memory]
        )
    header = [
        "kind",
        "pass",
        "padded (ms)",
        "quartiles",
        "packed (ms)",
        "quartiles",
        "ratio",
        "padded (MB)",
        "packed (MB)",
    ]
    return markdown_table(header, rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kinds", nargs="*", default=PACKED_KINDS, help=f"{', '.join(PACKED_KINDS)} (default: all)")
    parser.add_argument("--images", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, nargs=2, default=(10, 400), metavar=("MIN", "MAX"), help="(10 400)")
    parser.add_argument("--shape", type=int, nargs=2, default=(6, 64), metavar=("H", "D"), help="(6 64)")
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    low, high = args.tokens
    lengths = torch.randint(low, high + 1, (args.images,), generator=torch.Generator().manual_seed(0))
    timings = []
    for direction in PASSES:
        for kind in args.kinds:
            steps = make_steps(kind, lengths, *args.shape, direction, args.device)
            timings += measure(
                steps, direction, dict.fromkeys(steps, int(lengths.sum())), args.rounds, args.device, steps
            )
    words = (
        f"{args.images} images of {low} to {high} tokens, {int(lengths.sum())} in all, {args.shape[0]} heads of "
        f"{args.shape[1]}, float32. Memory is the peak beyond the inputs."
    )
    return Report("Packed against padded", words, [packed_table(timings)])
