"""Measure speed and memory side by side, in one process: of models, of the attention operator, or of Newton's inverse.

python tools/benchmark.py pvt_v2_b1 soft_tiny soft_tiny+naive
python tools/benchmark.py pvt_v2_b1 soft_tiny+triton soft_tiny+eager --batch-size auto --dtype bfloat16
python tools/benchmark.py --op naive newton cholesky softmax --tokens 784 3136 12544 50176 --bandwidth
python tools/benchmark.py --op newton_inverse-products newton_inverse --problems 4096
"""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.models import MODES, MOST_ON_CPU, MOST_ON_GPU, measure_throughput, throughput_table
from benchmarks.operator import (
    INVERSES,
    OPERATORS,
    copy_bandwidth,
    measure_inverse,
    measure_operator,
    operator_table,
    slope_table,
)
from benchmarks.timer import machine_description, use_threads
from benchmarks.variants import VARIANTS
from soft_vit.cli import add_device_option, add_img_size_option, command_line
from soft_vit.probe.load import require_device
from soft_vit.text_tables import rows_as_csv
from soft_vit.weights.files import require_place, write_atomically


def number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    variants = ", ".join(f"+{name}" for name in VARIANTS)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"timm models, with {variants}; ratios are to the first"
    )
    operators = ", ".join([*OPERATORS, *INVERSES])
    parser.add_argument(
        "--op", nargs="+", choices=[*OPERATORS, *INVERSES], metavar="OPERATOR", help=f"instead of models: {operators}"
    )
    parser.add_argument(
        "--batch-size",
        type=number_or_auto,
        default=8,
        metavar="B",
        help="(default: 8); auto: for each model and mode the fastest of 8, 16, 32 ...",
    )
    parser.add_argument(
        "--max-batch-size",
        type=int,
        metavar="B",
        help=f"last batch that auto tries (default: {MOST_ON_GPU} on a GPU, at 224 pixels, and {MOST_ON_CPU} on a CPU)",
    )
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="(default: both)")
    parser.add_argument("--memory", action="store_true", help="measure the peak memory of a step as well")
    parser.add_argument(
        "--bandwidth",
        action="store_true",
        help="with --op: least bytes moved per second, relative to a copy, and memory beyond inputs and outputs",
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[784, 3136, 12544, 50176], metavar="N")
    parser.add_argument(
        "--problems", type=int, nargs="+", default=[64, 256, 1024], metavar="P", help="matrices for newton_inverse"
    )
    parser.add_argument("--num-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--num-bottleneck", type=int, default=49)
    parser.add_argument(
        "--spread", type=float, default=1.0, help="of the operator's tokens; at 0.3 or less, Newton takes all steps"
    )
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")
    add_device_option(parser)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures, unrounded, to this CSV file")
    return parser


def measure(args: argparse.Namespace) -> tuple[list, str, str, float | None]:
    """The figures, their table, the case in words, and the memory's bandwidth with --bandwidth."""
    common = dict(rounds=args.rounds, device=args.device, dtype=getattr(torch, args.dtype))
    if not args.op:
        height, width = args.img_size
        batches = dict(batch_size=args.batch_size, max_batch_size=args.max_batch_size)
        options = dict(img_size=(height, width), modes=args.modes, memory=args.memory)
        timings = measure_throughput(args.models, **batches, **options, **common)
        return timings, throughput_table(timings, args.memory), f"{height} x {width}", None
    if args.op[0] in INVERSES:
        timings = measure_inverse(args.op, args.problems, num_bottleneck=args.num_bottleneck, **common)
        return timings, operator_table(timings, "problems"), f"{args.num_bottleneck} x {args.num_bottleneck}", None
    bandwidth = copy_bandwidth(args.device, args.rounds) if args.bandwidth else None
    timings = measure_operator(
        args.op,
        args.tokens,
        batch_size=args.batch_size,
        num_heads=args.num_heads,
        head_dim=args.head_dim,
        num_bottleneck=args.num_bottleneck,
        spread_of_tokens=args.spread,
        **common,
    )
    table = f"{operator_table(timings, bandwidth=bandwidth)}\n\n{slope_table(timings)}".rstrip()
    case = f"batch {args.batch_size}, {args.num_heads} heads of {args.head_dim}, M = {args.num_bottleneck}"
    return timings, table, case, bandwidth


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    args = parser.parse_args(argv)
    if bool(args.models) == bool(args.op):
        parser.error("give models, or --op with operators, and not both.")
    of_inverse = bool(args.op) and args.op[0] in INVERSES
    if args.op and not set(args.op) <= set(INVERSES if of_inverse else OPERATORS):
        parser.error("give --op forms of the operator or of newton_inverse, and not both.")
    if args.op and args.batch_size == "auto":
        parser.error("--batch-size auto is for models; give a number with --op.")
    if args.max_batch_size and args.batch_size != "auto":
        parser.error("--max-batch-size is for --batch-size auto; leave it out.")
    if args.bandwidth and (of_inverse or not args.op):
        parser.error("--bandwidth is for --op with forms of the operator; leave it out.")
    use_threads(args.threads)
    require_device(args.device)
    if args.out:
        require_place(args.out)
    try:
        timings, table, case, bandwidth = measure(args)
    except torch.cuda.OutOfMemoryError as error:
        message = "The GPU has no memory for a step; give a smaller --batch-size, --tokens or --problems."
        raise ValueError(message) from error
    machine, today = machine_description(args.device), datetime.date.today().isoformat()
    same = dict(date=today, machine=machine, case=case, dtype=args.dtype)
    head = f"{today}; {machine}; {case}, {args.dtype}"
    if bandwidth:
        same["bandwidth_gb_per_s"] = bandwidth
        head += f"; a copy in memory moves {bandwidth:.3g} GB/s"
    print(f"{head}\n\n{table}")
    if args.out:
        write_atomically(args.out, rows_as_csv(timings, **same).encode())


if __name__ == "__main__":
    main()
