"""Speed and memory side by side, in one process, of models, of the attention operator or of Newton's inverse alone.

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

import soft_vit  # noqa: F401 - registers the models
from soft_vit.analysis.bandwidth import copy_bandwidth
from soft_vit.analysis.batch_search import MOST_ON_CPU, MOST_ON_GPU
from soft_vit.analysis.inverse import INVERSES, measure_inverse
from soft_vit.analysis.machine import machine_description, require_device, use_threads
from soft_vit.analysis.operator import OPERATORS, measure_operator, operator_table, slope_table
from soft_vit.analysis.sides import height_and_width
from soft_vit.analysis.throughput import MODES, measure_throughput, throughput_table
from soft_vit.analysis.variants import VARIANTS
from soft_vit.text_tables import rows_as_csv
from soft_vit.weights.files import require_place, write_atomically


def number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    variants = ", ".join(f"+{name}" for name in VARIANTS)
    parser.add_argument("models", nargs="*", help=f"timm names, with {variants}; ratios are against the first")
    of = f"of {', '.join(OPERATORS)}, or of {', '.join(INVERSES)}"
    parser.add_argument("--op", nargs="+", choices=[*OPERATORS, *INVERSES], metavar="OPERATOR", help=of)
    parser.add_argument(
        "--batch-size",
        type=number_or_auto,
        default=8,
        metavar="B",
        help="8 by default; auto: for each model and mode that of most images per second among 8, 16, 32 ...",
    )
    parser.add_argument(
        "--max-batch-size",
        type=int,
        metavar="B",
        help=f"where auto ends at the latest: {MOST_ON_GPU} on a GPU, of 224 pixels, and {MOST_ON_CPU} on a CPU",
    )
    parser.add_argument("--img-size", type=int, nargs="+", default=[224], metavar="SIZE", help="side, or height width")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--memory", action="store_true", help="the peak of a step as well")
    parser.add_argument(
        "--bandwidth",
        action="store_true",
        help="of the operator: the least bytes over the time, against a copy; memory beyond inputs and outputs",
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[784, 3136, 12544, 50176], metavar="N")
    parser.add_argument(
        "--problems", type=int, nargs="+", default=[64, 256, 1024], metavar="P", help="of newton_inverse"
    )
    parser.add_argument("--num-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--num-bottleneck", type=int, default=49)
    parser.add_argument(
        "--spread", type=float, default=1.0, help="of the operator's tokens; Newton takes all steps from 0.3 down"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--threads", type=int, help="CPU threads; all by default")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="the same figures, unrounded")
    return parser


def measure(args: argparse.Namespace) -> tuple[list, str, str, float | None]:
    """The figures that were asked for, their table, the case in words, and the bandwidth of memory if asked for."""
    common = dict(rounds=args.rounds, device=args.device, dtype=getattr(torch, args.dtype))
    if not args.op:
        height, width = height_and_width(args.img_size)
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    args = parser.parse_args(argv)
    if bool(args.models) == bool(args.op):
        parser.error("give models, or --op with operators, and not both.")
    of_inverse = bool(args.op) and args.op[0] in INVERSES
    if args.op and not set(args.op) <= set(INVERSES if of_inverse else OPERATORS):
        parser.error("give forms of the operator, or of newton_inverse, to --op, and not both.")
    if args.op and args.batch_size == "auto":
        parser.error("--batch-size auto is for models; give a number with --op.")
    if args.max_batch_size and args.batch_size != "auto":
        parser.error("--max-batch-size is for --batch-size auto; leave it out.")
    if args.bandwidth and (of_inverse or not args.op):
        parser.error("--bandwidth is for --op with forms of the operator; leave it out.")
    try:
        use_threads(args.threads)
        require_device(args.device)
        if args.csv:
            require_place(args.csv)
        timings, table, case, bandwidth = measure(args)
    except ValueError as error:
        parser.exit(1, f"error: {error}\n")
    except torch.cuda.OutOfMemoryError:
        parser.exit(1, "error: The GPU has no memory for a step; give fewer of --batch-size, --tokens or --problems.\n")
    machine, today = machine_description(args.device), datetime.date.today().isoformat()
    same = dict(date=today, machine=machine, case=case, dtype=args.dtype)
    head = f"{today}; {machine}; {case}, {args.dtype}"
    if bandwidth:
        same["bandwidth_gb_per_s"] = bandwidth
        head += f"; a copy in memory moves {bandwidth:.3g} GB/s"
    print(f"{head}\n\n{table}")
    if args.csv:
        write_atomically(args.csv, rows_as_csv(timings, **same).encode())


if __name__ == "__main__":
    main()
