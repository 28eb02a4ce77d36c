"""Measure time and memory of attention alone, as a function of queries, keys and values.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import OPERATORS, inputs_of
from benchmarks.report import Report
from benchmarks.timer import Spread, Timing, log_log_slope, measure, numbered, time_in_turn
from soft_vit.text_tables import markdown_table

# More than any cache holds.
COPIED_BYTES = 512 << 20


def make_inputs(
    tokens: int,
    batch_size: int = 1,
    num_heads: int = 2,
    num_bottleneck: int = 49,
    head_dim: int = 32,
    spread: float = 1.0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return q, k, v `[B, H, N, D]` and bottleneck `[B, H, M, D]`.

    spread: standard deviation of a channel before its scaling. At 1, Newton's iteration converges after 7 steps; at 0.3
    or less, it takes all 20.
    """
    scale = spread * head_dim**-0.25
    shapes = {"q": (tokens, scale), "bottleneck": (num_bottleneck, scale), "k": (tokens, scale), "v": (tokens, 1.0)}
    shape = (batch_size, num_heads)
    return {name: (torch.randn(*shape, n, head_dim, device=device) * by).to(dtype) for name, (n, by) in shapes.items()}


def forward(operator: Callable[..., Tensor], inputs: dict[str, Tensor]) -> None:
    with torch.inference_mode():
        operator(**inputs)


def forward_backward(operator: Callable[..., Tensor], inputs: dict[str, Tensor]) -> None:
    inputs = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    out = operator(**inputs)
    torch.autograd.grad(out, list(inputs.values()), torch.ones_like(out), allow_unused=True)


PASSES: dict[str, Callable[..., None]] = {"forward": forward, "forward+backward": forward_backward}


def measure_operators(
    names: Sequence[str],
    tokens: Sequence[int],
    *,
    passes: Sequence[str] = tuple(PASSES),
    rounds: int = 10,
    device: str = "cpu",
    **inputs: Any,
) -> list[Timing]:
    """Time operators by name at each number of tokens, one call of each in turn; names may repeat.

    inputs: options of `make_inputs`. Raises ValueError for an operator that cannot run here.
    """
    operators = {label: OPERATORS[name] for label, name in numbered(names).items()}
    timings = []
    for length in tokens:
        tensors = make_inputs(length, device=device, **inputs)
        for direction in passes:
            call = PASSES[direction]
            steps = {label: partial(call, form, inputs_of(form, tensors)) for label, form in operators.items()}
            timings += measure(steps, direction, length, rounds, device, counted=steps)
    return timings


def copy_bandwidth(device: str | torch.device, rounds: int = 10) -> float:
    """Return the GB/s, read and written, of a copy of 512 MiB within the device's memory."""
    # Written first: reading pages that were never written does not touch memory.
    source = torch.ones(COPIED_BYTES // 4, device=device)
    step = partial(torch.empty_like(source).copy_, source)
    seconds = time_in_turn({"copy": step}, rounds, device, desc="copy")["copy"]
    return 2 * source.nbytes / median(seconds) / 1e9


def row(timing: Timing) -> dict[str, Any]:
    """Return the columns of a CSV file."""
    milliseconds = [1e3 * seconds for seconds in timing.time or ()] or [None] * 3
    figures = dict(zip(("median_ms", "lower_ms", "upper_ms"), milliseconds, strict=True))
    case = {"operator": timing.target, "direction": timing.mode, "tokens": timing.size}
    return {**case, **figures, "memory_mb": timing.megabytes}


def operators_table(timings: Sequence[Timing]) -> str:
    """Return a Markdown table; the ratio is the time of the first operator over that of another."""
    rows = []
    base: dict[tuple[str, int], float | None] = {}
    for timing in timings:
        first = base.setdefault((timing.mode, timing.size), timing.time and timing.time.median)
        cells = ["out of memory", "", "", ""]
        if timing.time:
            milliseconds = Spread(*(1e3 * seconds for seconds in timing.time))
            ratio = "" if first is None else f"{first / timing.time.median:.2f}"
            cells = [*milliseconds.cells(".3g"), ratio, f"{timing.megabytes:.1f}"]
        rows.append([timing.mode, timing.size, timing.target, *cells])
    return markdown_table(["pass", "N", "operator", "ms", "quartiles", "ratio", "memory (MB)"], rows)


def slopes_table(timings: Sequence[Timing], name: str = "operator") -> str:
    """Return a Markdown table of the exponents of time and memory in N, for targets measured at several sizes."""
    series: dict[tuple[str, str], list[Timing]] = {}
    for timing in timings:
        series.setdefault((timing.target, timing.mode), []).append(timing)
    rows = []
    for key, points in series.items():
        memory = [(t.size, t.memory) for t in points if t.memory]
        time = [(t.size, median(t.seconds)) for t in points if t.seconds]
        slopes = [log_log_slope(*zip(*p, strict=True)) if len(p) > 1 else None for p in (time, memory)]
        if any(slopes):
            rows.append([*key, *("not measured" if slope is None else f"{slope:.2f}" for slope in slopes)])
    return markdown_table([name, "pass", "time ~ N^", "memory ~ N^"], rows) if rows else ""


def add_options(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(OPERATORS)
    parser.add_argument("operators", nargs="+", choices=OPERATORS, metavar="OPERATOR", help=f"{names}; the first is 1")
    parser.add_argument("--tokens", type=int, nargs="+", default=[784, 3136, 12544, 50176], metavar="N")
    parser.add_argument("--batch-size", type=int, default=8, metavar="B", help="(default: %(default)s)")
    parser.add_argument("--shape", type=int, nargs=3, default=(2, 32, 49), metavar=("H", "D", "M"), help="(2 32 49)")
    parser.add_argument("--spread", type=float, default=1.0, help="of tokens; at 0.3 or less, Newton takes 20 steps")
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES, help="(default: both)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--bandwidth", action="store_true", help="also measure the bandwidth of a copy in memory")
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    heads, dim, bottleneck = args.shape
    shape = dict(batch_size=args.batch_size, num_heads=heads, head_dim=dim, num_bottleneck=bottleneck)
    shape["dtype"] = getattr(torch, args.dtype)
    same = {"case": f"batch {args.batch_size}, {heads} heads of {dim}, M = {bottleneck}", "dtype": args.dtype}
    if args.bandwidth:
        same["bandwidth_gb_per_s"] = copy_bandwidth(args.device, args.rounds)
    options = dict(passes=args.passes, rounds=args.rounds, device=args.device, spread=args.spread)
    timings = measure_operators(args.operators, args.tokens, **options, **shape)
    words = f"{same['case']}, {args.dtype}. Memory is the peak beyond the inputs."
    tables = [table for table in (operators_table(timings), slopes_table(timings)) if table]
    return Report("Speed of the operator", words, tables, list(map(row, timings)), same)
