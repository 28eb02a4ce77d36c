"""Train one config once for each attention: `python tools/train_attentions.py configs/demo/soft_pico_shapes.py`."""

import argparse
import os
from collections.abc import Sequence

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")


from soft_vit.cli import add_run_options, command_line


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    from benchmarks.timer import machine_description
    from soft_vit.engine.accuracy import AccuracyRow, accuracy_table, compare_accuracy
    from soft_vit.layers import ATTENTIONS
    from soft_vit.text_tables import rows_as_csv
    from soft_vit.weights.files import require_place, write_atomically

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG", help="path of the config; its model_name is replaced")
    parser.add_argument("--size", choices=["pico", "tiny", "small"], default="pico", help="(default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue each run from its newest checkpoint")
    add_run_options(parser, list(ATTENTIONS), work_dir="work_dirs/attentions", table="accuracy")
    args = parser.parse_args(argv)
    out = args.out or args.work_dir / "accuracy"

    def write(rows: list[AccuracyRow]) -> str:
        text = f"{machine_description('cpu')}; {args.config}\n\n{accuracy_table(rows)}\n"
        write_atomically(f"{out}.md", text.encode())
        write_atomically(f"{out}.csv", rows_as_csv(rows).encode())
        return text

    require_place(f"{out}.md")
    rows = compare_accuracy(
        args.attentions,
        args.config,
        size=args.size,
        work_dir=args.work_dir,
        jobs=args.jobs,
        options=args.cfg_options,
        resume=args.resume,
        on_row=write,
    )
    print(write(rows))


if __name__ == "__main__":
    main()
