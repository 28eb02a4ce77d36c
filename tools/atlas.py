"""Measure every attention against the number of tokens, beside fused softmax: python tools/atlas.py --out atlas

A run that was stopped goes on where it was. OUT gets a table as CSV and as Markdown, and pictures. --models measures
models instead, in the columns of timm's benchmark results. --check says what is to be mended in a CSV before it is
submitted.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from benchmarks.atlas.crossover import QUANTITIES
from benchmarks.atlas.measure import HEAD_DIMS, TOKENS, Plan, measure
from benchmarks.atlas.models import BATCHES, FORMS, MODELS, ROUNDS, SIZES, check_models, measure_models
from benchmarks.atlas.pictures import plot_crossovers, plot_groups
from benchmarks.atlas.report import report
from benchmarks.atlas.table import MODES, InferRow, Row, RowT, Table, TrainRow, mistakes_in, read_table
from benchmarks.timer import MIN_ROUNDS, machine_description, require_at_least, use_threads
from soft_vit.cli import add_device_option, command_line, command_text, image_size
from soft_vit.layers import ATTENTIONS
from soft_vit.probe.load import require_device
from soft_vit.weights.files import require_place, write_atomically


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--kinds", nargs="+", default=list(ATTENTIONS), metavar="KIND", help="attentions (default: all)")
    what.add_argument(
        "--models", nargs="*", metavar="MODEL", help="timm models instead (default: the smallest of each family)"
    )
    what.add_argument("--check", type=Path, metavar="FILE", help="check a table instead")
    add_device_option(parser)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--out", type=Path, default=Path("atlas"), metavar="FOLDER", help="(default: %(default)s)")
    kinds = parser.add_argument_group("attentions")
    kinds.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="(default: 196 to 50176)")
    kinds.add_argument("--head-dims", type=int, nargs="+", default=HEAD_DIMS, metavar="D", help="(default: 32 64)")
    kinds.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="(default: both)")
    kinds.add_argument(
        "--seconds", type=float, default=Plan.seconds, help="aim for the rounds of one case (default: %(default)g)"
    )
    kinds.add_argument(
        "--max-seconds", type=float, default=Plan.max_seconds, help="skip longer calls (default: %(default)g)"
    )
    kinds.add_argument(
        "--max-megabytes", type=float, default=Plan.max_megabytes, help="skip larger calls (default: %(default)g)"
    )
    models = parser.add_argument_group("models")
    models.add_argument(
        "--sizes", type=image_size, nargs="+", default=SIZES, metavar="SIZE", help="(default: 224 512 800x1333)"
    )
    models.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="(default: both)")
    models.add_argument(
        "--batches", type=batch, nargs="+", choices=BATCHES, default=BATCHES, help="auto: the fastest (default: both)"
    )
    models.add_argument("--max-batch-size", type=int, metavar="B", help="last batch that auto tries")
    models.add_argument("--rounds", type=int, default=ROUNDS, help="(default: %(default)s)")
    return parser


def batch(text: str) -> int | str:
    return text if text == "auto" else int(text)


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    if args.check:
        check(args.check)
        return
    use_threads(args.threads)
    require_device(args.device)
    command = command_text("tools/atlas.py", argv)
    atlas_of_kinds(args, command) if args.models is None else atlas_of_models(args, command)


def atlas_of_kinds(args: argparse.Namespace, command: str) -> None:
    """Measure attentions, write after each case, and draw at the end."""
    plan = Plan(
        *(args.kinds, args.tokens, args.head_dims, args.modes, args.seconds, args.max_seconds, args.max_megabytes),
        device=args.device,
    )
    plan.check()
    path = args.out / "atlas.csv"
    table = open_table(path, Row, args.device, command)
    for rows in measure(plan, table.rows):
        table = save(path, table, rows)
    write_report(table, args.out)
    print(f"Written: atlas.csv, figures.md and pictures in {args.out}.")


def atlas_of_models(args: argparse.Namespace, command: str) -> None:
    """Measure models, and write after each case."""
    check_models(args.models)
    require_at_least(MIN_ROUNDS, rounds=args.rounds)
    if args.max_batch_size is not None:
        require_at_least(1, batch_size=args.max_batch_size)
    paths = [args.out / name for name in ("models_infer.csv", "models_train.csv")]
    infer, train = (
        open_table(path, row_type, args.device, command)
        for path, row_type in zip(paths, (InferRow, TrainRow), strict=True)
    )
    cases = dict(sizes=args.sizes, forms=args.forms, batches=args.batches, max_batch_size=args.max_batch_size)
    how = dict(rounds=args.rounds, device=args.device)
    for both in measure_models(args.models or MODELS, infer.rows, train.rows, **cases, **how):
        infer, train = (save(*given) for given in zip(paths, (infer, train), both, strict=True))
    print(f"Written: models_infer.csv and models_train.csv in {args.out}.")
    if failed := sum(row.lower is None for table in (infer, train) for row in table.rows):
        print(f"{failed} rows have no figures; their notes say why.")


def open_table(path: Path, row_type: type[RowT], device: str, command: str) -> Table[RowT]:
    """The table that is there, or an empty one. ValueError for one of another machine."""
    require_place(path)
    table = Table(machine_description(device), date.today().isoformat(), command, ())
    if not path.exists():
        return table
    before = read_table(path, row_type)
    if before.machine != table.machine:
        raise ValueError(f"{path} is of another machine, {before.machine}; give another --out.")
    commands = before.command.split(" && ")
    return before if command in commands else replace(before, command=" && ".join([*commands, command]))


def save(path: Path, table: Table[RowT], rows: Sequence[RowT]) -> Table[RowT]:
    """The table with these rows, written to its file."""
    table = replace(table, rows=tuple(rows))
    if rows:
        write_atomically(path, table.as_csv().encode())
    return table


def write_report(table: Table[Row], out: Path) -> None:
    """figures.md, and pictures for each width of heads."""
    write_atomically(out / "figures.md", report(table).encode())
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
