"""Measure the speed of each family of the zoo beside the softmax transformer whose place it takes.

python tools/benchmark_zoo.py --out benchmarks/results/zoo_cpu.md
"""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from benchmarks.models import measure_throughput, throughput_table
from benchmarks.timer import machine_description, use_threads
from soft_vit.cli import add_device_option, command_line
from soft_vit.probe.load import require_device
from soft_vit.text_tables import rows_as_csv
from soft_vit.weights.files import require_place, write_atomically

# Transformers with softmax, and the models of their body or size. timm has no PVT, so PVTv2 of its size stands for it.
GROUPS = {
    "swin_tiny_patch4_window7_224": (
        "mlla_tiny",
        "h_vittt_tiny",
        "inline_swin_tiny",
        "pola_swin_tiny",
        "flatten_swin_tiny",
    ),
    "pvt_v2_b1": ("inline_pvt_tiny", "pola_pvt_tiny", "flatten_pvt_tiny", "flatten_pvt_v2_b1", "ravlt_t", "mavit_t"),
    "deit_tiny_patch16_224": ("vittt_tiny", "inline_deit_tiny"),
}


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=4, metavar="B", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="(default: %(default)s)")
    add_device_option(parser)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write this Markdown file, and a CSV file beside it")
    args = parser.parse_args(argv)
    use_threads(args.threads)
    require_device(args.device)
    if args.out:
        require_place(args.out)
    machine, today = machine_description(args.device), datetime.date.today().isoformat()
    text = f"""# The zoo beside softmax
`python tools/benchmark_zoo.py --batch-size {args.batch_size} --rounds {args.rounds}`

{today}; {machine}; 224 x 224, float32, random weights. Medians and quartiles over rounds, in which the models of a
table take turns. Ratios are to the first.
"""
    figures = ""
    for first, others in GROUPS.items():
        names = [first, *others]
        timings = measure_throughput(names, batch_size=args.batch_size, rounds=args.rounds, device=args.device)
        text += f"\n## Beside {first}\n{throughput_table(timings)}\n"
        rows = rows_as_csv(timings, date=today, machine=machine, beside=first)
        figures += rows.partition("\n")[2] if figures else rows
    print(text)
    if args.out:
        write_atomically(args.out, text.encode())
        write_atomically(args.out.with_suffix(".csv"), figures.encode())


if __name__ == "__main__":
    main()
