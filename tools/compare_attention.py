"""Compare attentions in one model: python tools/compare_attention.py soft softmax linformer --size tiny

--vit compares them in isotropic models, where nothing but attention mixes tokens.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.attentions import compare_attentions, comparison_table
from benchmarks.memory import memory_source
from benchmarks.timer import machine_description
from soft_vit.cli import add_device_option, add_img_size_option, command_line
from soft_vit.layers import ATTENTIONS
from soft_vit.text_tables import rows_as_csv
from soft_vit.weights.files import require_place, write_atomically


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attentions", nargs="*", default=sorted(ATTENTIONS), metavar="ATTENTION", help="(default: all)")
    parser.add_argument(
        "--size", choices=["pico", "tiny", "small", "base"], default="tiny", help="(default: %(default)s)"
    )
    parser.add_argument("--vit", action="store_true", help="in isotropic models such as soft_vit_tiny_patch16")
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--batch-size", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    add_device_option(parser)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--out", type=Path, metavar="PREFIX", help="write PREFIX.md and PREFIX.csv")
    args = parser.parse_args(argv)
    height, width = args.img_size
    if args.out:
        require_place(f"{args.out}.md")
    rows = compare_attentions(
        args.attentions,
        size=args.size,
        vit=args.vit,
        img_size=(height, width),
        batch_size=args.batch_size,
        rounds=args.rounds,
        device=args.device,
        dtype=getattr(torch, args.dtype),
    )
    case = f"{'ViT ' * args.vit}{args.size}, batch {args.batch_size}, {height} x {width}, {args.dtype}"
    text = f"{machine_description(args.device)}; {case}.\nA multiply-add is one FLOP; memory of a training step beyond "
    text += f"the weights: {memory_source(args.device)}.\n\n{comparison_table(rows)}\n"
    print(text)
    if args.out:
        write_atomically(f"{args.out}.md", text.encode())
        write_atomically(f"{args.out}.csv", rows_as_csv(rows).encode())


if __name__ == "__main__":
    main()
