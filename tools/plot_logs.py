"""Curves of training runs in one picture.

python tools/plot_logs.py work_dirs/soft_tiny work_dirs/soft_norm_tiny --keys loss accuracy/top1 --smoothing 20
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from soft_vit.analysis.curves import DEFAULT_KEYS, curves_csv, plot_curves
from soft_vit.analysis.run_logs import read_runs
from soft_vit.cli import command_line
from soft_vit.weights.files import require_place, write_atomically


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw curves of training runs in one picture, a panel for each key.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="work directory of a run, or its scalars.json")
    parser.add_argument("--keys", nargs="+", help=f"what to draw (default: {' '.join(DEFAULT_KEYS)})")
    parser.add_argument("--names", nargs="+", help="names of the runs (default: of their folders)")
    parser.add_argument("--smoothing", type=int, default=0, metavar="VALUES", help="average over so many logged values")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="picture to write (default: %(default)s)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the values to a CSV file as well")
    args = parser.parse_args(argv)
    require_place(args.out)
    runs = read_runs(args.runs, args.names)
    if args.csv:
        require_place(args.csv)
        write_atomically(args.csv, curves_csv(runs, args.keys).encode())
    plot_curves(runs, args.out, args.keys, args.smoothing)
    print(f"Curves: {args.out}")


if __name__ == "__main__":
    main()
