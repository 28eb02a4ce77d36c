"""Measure how fast training images are read, beside timm: python tools/benchmark_data.py --generate 512"""

import argparse
import tempfile
from collections.abc import Sequence

import torch

from soft_vit.cli import command_line


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    from benchmarks.data import measure_data_rate, rate_table, write_photographs
    from benchmarks.timer import machine_description
    from soft_vit.engine.config import load_config

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", nargs="?", metavar="DATA_ROOT", help="folder with train/")
    parser.add_argument("--generate", type=int, metavar="N", help="measure on N generated JPEGs instead")
    parser.add_argument("--config", default="configs/soft_tiny.py", help="whose training data (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 2], help="numbers of worker processes to try (default: 0 2)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    if (args.data_root is None) == (args.generate is None):
        parser.error("give either DATA_ROOT or --generate N")
    if args.generate is not None and args.generate < 1:
        parser.error(f"--generate is {args.generate}; give a number of images, such as 512")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.generate:
            write_photographs(folder, args.generate)
        config = load_config(args.config)
        config.data_root = args.data_root or folder
        rates = measure_data_rate(config, workers=args.workers, batch_size=args.batch_size, rounds=args.rounds)
    what = f"{args.generate} generated JPEGs of 500 x 375" if args.generate else args.data_root
    print(f"{machine_description('cpu')}; {args.config}, {what}\n")
    print(rate_table(rates))


if __name__ == "__main__":
    main()
