"""Measure memory and time of a training step of a feature pyramid, per token, as images grow.

python tools/benchmark_resolution.py soft_tiny
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.resolution import FORMS, measure_resolutions, resolution_table, slopes_table
from benchmarks.timer import machine_description, use_threads
from soft_vit.cli import add_device_option, command_line, image_size
from soft_vit.probe.load import require_pyramid
from soft_vit.weights.files import require_place, write_atomically

SIZES = ((224, 224), (448, 448), (800, 1333), (896, 896), (1344, 1344), (1792, 1792))


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a softmax-free pyramid, such as soft_tiny")
    parser.add_argument(
        "--img-size", nargs="+", type=image_size, default=SIZES, metavar="SIZE", help="sizes: 224, or 800x1333 (HxW)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="(default: %(default)s); 0 for memory alone, which a CPU only counts"
    )
    parser.add_argument(
        "--max-seconds", type=float, default=60, help="skip steps expected to take longer (default: %(default)s)"
    )
    add_device_option(parser)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables to this Markdown file as well")
    args = parser.parse_args(argv)
    require_pyramid(args.model)
    use_threads(args.threads)
    if args.out:
        require_place(args.out)
    costs = measure_resolutions(
        args.model, args.img_size, FORMS, device=args.device, rounds=args.rounds, max_seconds=args.max_seconds
    )
    text = f"{machine_description(args.device)}; one image, float32, forward and backward of {args.model}\n\n"
    text += f"{resolution_table(costs)}\n\n{slopes_table(costs)}\n"
    print(text)
    if args.out:
        write_atomically(args.out, text.encode())


if __name__ == "__main__":
    main()
