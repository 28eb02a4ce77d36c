"""Memory of a training step, plain and with each way to save some: python tools/get_memory.py soft_small soft_tiny"""

import argparse
from collections.abc import Sequence

import torch

import soft_vit  # noqa: F401 - registers the models
from soft_vit.analysis.machine import machine_description
from soft_vit.analysis.memory import memory_source, training_memory_by_saving
from soft_vit.analysis.sides import height_and_width
from soft_vit.text_tables import markdown_table


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names of pyramids of this package")
    parser.add_argument("--shape", type=int, nargs="+", default=[224], metavar="SIZE", help="side, or height width")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    try:
        height, width = height_and_width(args.shape)
        shape = (args.batch_size, 3, height, width)
        peaks = {name: training_memory_by_saving(name, shape, args.device) for name in args.models}
    except (ValueError, RuntimeError) as error:
        parser.exit(1, f"error: {error}\n")
    print(f"{machine_description(args.device)}; batch {args.batch_size}, {height} x {width}, float32.")
    print(f"MB of a training step beyond the weights, gradients included: {memory_source(args.device)}.\n")
    rows = [[name, *(f"{peak / 2**20:.0f}" for peak in row.values())] for name, row in peaks.items()]
    print(markdown_table(["model", *peaks[args.models[0]]], rows))


if __name__ == "__main__":
    main()
