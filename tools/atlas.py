"""Measure every attention against the number of tokens, beside fused softmax: python tools/atlas.py --out atlas

A run that was stopped goes on where it was. OUT gets a table as CSV and as Markdown, and pictures. --check says what is
to be mended in a table before it is submitted.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from soft_vit.analysis.atlas.crossover import QUANTITIES
from soft_vit.analysis.atlas.measure import HEAD_DIMS, TOKENS, Plan, measure
from soft_vit.analysis.atlas.pictures import plot_crossovers, plot_groups
from soft_vit.analysis.atlas.report import report
from soft_vit.analysis.atlas.table import MODES, Row, Table, mistakes_in, read_table
from soft_vit.analysis.harness import machine_description, require_device, use_threads
from soft_vit.cli import add_device_option, command_line, command_text
from soft_vit.layers import ATTENTIONS
from soft_vit.weights.files import require_place, write_atomically


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=list(ATTENTIONS), metavar="KIND", help="(default: all)")
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="squares (default: 196 ... 50176)"
    )
    parser.add_argument("--head-dims", type=int, nargs="+", default=HEAD_DIMS, metavar="D", help="(default: 32 64)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="(default: both)")
    parser.add_argument(
        "--seconds", type=float, default=Plan.seconds, help="aimed at for the rounds of one case (default: %(default)g)"
    )
    parser.add_argument(
        "--max-seconds", type=float, default=Plan.max_seconds, help="skip longer calls (default: %(default)g)"
    )
    parser.add_argument(
        "--max-megabytes", type=float, default=Plan.max_megabytes, help="skip larger calls (default: %(default)g)"
    )
    add_device_option(parser)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--out", type=Path, default=Path("atlas"), metavar="FOLDER", help="(default: %(default)s)")
    parser.add_argument("--check", type=Path, metavar="FILE", help="check a table instead")
    args = parser.parse_args(argv)
    if args.check:
        check(args.check)
        return
    use_threads(args.threads)
    require_device(args.device)
    plan = Plan(
        *(args.kinds, args.tokens, args.head_dims, args.modes, args.seconds, args.max_seconds, args.max_megabytes),
        device=args.device,
    )
    path = args.out / "atlas.csv"
    require_place(path)
    command = command_text("tools/atlas.py", argv)
    table = Table(machine_description(args.device), date.today().isoformat(), command, ())
    if path.exists():
        before = read_table(path, Row)
        if before.machine != table.machine:
            raise ValueError(f"{path} is of another machine, {before.machine}; give another --out.")
        table = before
    for rows in measure(plan, table.rows):
        table = replace(table, rows=tuple(rows))
        if rows:
            write_atomically(path, table.as_csv().encode())
    write_report(table, args.out)
    print(f"Written: atlas.csv, README.md and pictures in {args.out}.")


def write_report(table: Table[Row], out: Path) -> None:
    """README.md, and pictures for each width of heads."""
    write_atomically(out / "README.md", report(table).encode())
    for head_dim in sorted({row.head_dim for row in table.rows}):
        for quantity in QUANTITIES:
            plot_groups(table.rows, quantity, head_dim, out / f"{quantity}_{head_dim}.png")
        plot_crossovers(table.rows, head_dim, out / f"crossovers_{head_dim}.png")


def check(path: Path) -> None:
    """Print what is to be mended in a file, and end with 1 if anything is."""
    mistakes = mistakes_in(path, list(ATTENTIONS))
    print("\n".join(mistakes) or f"{path} can be submitted.")
    if mistakes:
        sys.exit(1)


if __name__ == "__main__":
    main()
