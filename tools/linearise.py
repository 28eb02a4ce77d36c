"""Give a trained ViT each attention in turn, and tell what is left of its accuracy.

python tools/linearise.py configs/linearise/linear_pico_shapes.py linear performer none

Trains the teacher, then the config once for each attention. A command that was stopped goes on where it was.
"""

import argparse
import os
from collections.abc import Sequence

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")


from soft_vit.cli import add_run_options, command_line


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    from datetime import date

    from benchmarks.timer import machine_description
    from soft_vit.engine.linearised import LinearisedRow, compare_linearised, linearised_table
    from soft_vit.layers import ATTENTIONS
    from soft_vit.text_tables import rows_as_csv
    from soft_vit.weights.files import require_place, write_atomically

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG", help="path of the config; the kind in its model_name is replaced")
    parser.add_argument(
        "--teacher",
        default="configs/linearise/softmax_pico_shapes.py",
        metavar="CONFIG",
        help="of the teacher (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="(default: 0)")
    add_run_options(parser, list(ATTENTIONS), work_dir="work_dirs", table="linearised")
    args = parser.parse_args(argv)
    out = args.out or args.work_dir / "linearised"

    def write(rows: list[LinearisedRow]) -> str:
        teacher = f"teacher {rows[0].teacher:.1f} %" if rows else ""
        text = f"{date.today()}, {machine_description('cpu')}; {args.config}; {teacher}\n\n{linearised_table(rows)}\n"
        write_atomically(f"{out}.md", text.encode())
        write_atomically(f"{out}.csv", rows_as_csv(rows).encode())
        return text

    require_place(f"{out}.md")
    rows = compare_linearised(
        args.attentions,
        args.config,
        args.teacher,
        seeds=args.seeds,
        work_dir=args.work_dir,
        jobs=args.jobs,
        options=args.cfg_options,
        on_row=write,
    )
    print(write(rows))


if __name__ == "__main__":
    main()
