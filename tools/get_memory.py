"""Measure the memory of a training step, with and without the ways to save it.

python tools/get_memory.py soft_small soft_tiny
"""

import argparse
from collections.abc import Sequence

from benchmarks.memory import memory_source, training_memory_by_saving
from benchmarks.timer import machine_description
from soft_vit.cli import add_device_option, add_img_size_option, command_line
from soft_vit.text_tables import markdown_table


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="pyramids of this package, such as soft_tiny")
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--batch-size", type=int, default=8, help="(default: %(default)s)")
    add_device_option(parser)
    args = parser.parse_args(argv)
    height, width = args.img_size
    shape = (args.batch_size, 3, height, width)
    peaks = {name: training_memory_by_saving(name, shape, args.device) for name in args.models}
    print(f"{machine_description(args.device)}; batch {args.batch_size}, {height} x {width}, float32.")
    print(f"MB of a training step beyond the weights, gradients included: {memory_source(args.device)}.\n")
    rows = [[name, *(f"{peak / 2**20:.0f}" for peak in row.values())] for name, row in peaks.items()]
    print(markdown_table(["model", *peaks[args.models[0]]], rows))


if __name__ == "__main__":
    main()
