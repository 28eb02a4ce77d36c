"""Memory and time of a backbone a token, as images grow: python tools/benchmark_resolution.py soft_tiny"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from soft_vit.analysis.machine import machine_description, use_threads
from soft_vit.analysis.pyramid import require_pyramid
from soft_vit.analysis.resolution import FORMS, measure_resolutions, resolution_table, slopes_table
from soft_vit.analysis.sides import height_and_width
from soft_vit.weights.files import require_place, write_atomically

SIZES = ("224", "448", "800x1333", "896", "1344", "1792")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="timm name of a softmax-free pyramid")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="SIZE", help="224, or 800x1333 (height x width)")
    parser.add_argument("--rounds", type=int, default=5, help="0: memory alone, which computes nothing on a CPU")
    parser.add_argument("--max-seconds", type=float, default=60, help="leave out steps that would take longer")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads; all by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Markdown file to write the tables to, too")
    args = parser.parse_args(argv)
    try:
        sizes = [height_and_width([int(side) for side in size.split("x")]) for size in args.sizes]
    except ValueError:
        parser.error(f"--sizes has {' '.join(args.sizes)}; give sides such as 224, or 800x1333.")
    try:
        require_pyramid(args.model)
        use_threads(args.threads)
        if args.out:
            require_place(args.out)
        costs = measure_resolutions(
            args.model, sizes, FORMS, device=args.device, rounds=args.rounds, max_seconds=args.max_seconds
        )
    except ValueError as error:
        parser.exit(1, f"error: {error}\n")
    text = f"{machine_description(args.device)}; one image, float32, forward and backward of {args.model}\n\n"
    text += f"{resolution_table(costs)}\n\n{slopes_table(costs)}\n"
    print(text)
    if args.out:
        write_atomically(args.out, text.encode())


if __name__ == "__main__":
    main()
