"""Plot the curves of several training runs.

python tools/analysis/plot_logs.py work_dirs/soft_tiny work_dirs/soft_norm_tiny --keys loss accuracy/top1
"""

from collections.abc import Sequence
from pathlib import Path

from soft_vit.cli import ArgumentParser, command_line
from soft_vit.probe.curves import DEFAULT_KEYS, plot_curves, read_run
from soft_vit.weights.files import ensure_writable


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="work directory of a run, or its scalars.json")
    parser.add_argument("--keys", nargs="+", default=(), help=f"quantities to plot (default: {' '.join(DEFAULT_KEYS)})")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="picture to write")
    args = parser.parse_args(argv)
    ensure_writable(args.out)
    plot_curves({run: read_run(run) for run in args.runs}, args.out, args.keys)
    print(f"Written: {args.out}")


if __name__ == "__main__":
    main()
