"""Give a frozen ViT another attention, with unlabelled images, and report what was lost.

python tools/linearise.py --teacher vit_small_patch14_dinov2.lvd142m --kind hedgehog --images photos --out DIR
torchrun --nproc_per_node 8 tools/linearise.py --teacher NAME --kind hedgehog --images photos --out DIR --bf16

A stopped run continues if its command is run again.
"""

import os
import shlex
from collections.abc import Sequence
from typing import get_args

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_device_option, command_line, literal


def option(text: str) -> tuple[str, object]:
    """Return name and value of `NAME=VALUE`, a value of Python if it is one; ValueError for another text."""
    name, value = text.split("=", 1)
    return name, literal(value)


@command_line
def main(argv: Sequence[str]) -> None:
    from soft_vit.linearise import linearise
    from soft_vit.linearise.plan import Match, Plan, Trainable, split_steps

    parser = ArgumentParser(__doc__)
    add = parser.add_argument
    add("--teacher", required=True, metavar="NAME", help="a ViT of timm, a checkpoint, or a folder of transformers")
    add("--kind", required=True, help="an attention, such as hedgehog")
    add("--images", required=True, metavar="FOLDER", help="a folder, a TAR or a ZIP of images")
    add("--out", required=True, metavar="DIR", help="folder for weights, report and state")
    add("--kind-options", nargs="+", type=option, default=[], metavar="NAME=VALUE", help="options of the attention")
    add("--blocks", nargs="+", type=int, metavar="N", help="blocks to change (default: all)")
    add("--keep-softmax", type=int, default=0, metavar="K", help="blocks that keep softmax, chosen by error")
    what = "sides of images; the last steps take the larger ones (default: 224)"
    add("--size", nargs="+", type=int, default=[224], metavar="PIXELS", help=what)
    add("--steps", nargs="+", type=int, default=[3000], metavar="N", help="steps in total or by phase (default: 3000)")
    add("--batch-size", type=int, default=16, metavar="N", help="images per step and process")
    what = "rates of the first phase and of the others (default: 1e-3 1e-4)"
    add("--lr", nargs=2, type=float, default=Plan.lr, metavar="RATE", help=what)
    add("--intermediate", nargs="*", type=int, metavar="N", help="blocks learned as well (default: all but the last)")
    what = "what the first phase learns of attentions: outputs, weights, or both (default of hedgehog; else outputs)"
    add("--match", choices=get_args(Match), help=what)
    what = "what the other phases change: the new attentions (default), or all parameters"
    add("--trainable", choices=get_args(Trainable), default=Plan.trainable, help=what)
    add("--bf16", action="store_true", help="autocast in bfloat16")
    add("--seed", type=int, default=0, metavar="N", help="seed of weights, order and crops")
    add("--workers", type=int, default=2, metavar="N", help="processes that read images")
    add_device_option(parser)
    args = parser.parse_args(argv)
    sizes, intermediates = tuple(args.size), None if args.intermediate is None else tuple(args.intermediate)
    how = dict(lr=tuple(args.lr), match=args.match, trainable=args.trainable, seed=args.seed, bf16=args.bf16)
    plan = Plan(split_steps(args.steps, len(sizes)), sizes, args.batch_size, intermediates=intermediates, **how)
    which = dict(blocks=args.blocks, options=dict(args.kind_options), keep_softmax=args.keep_softmax)
    where = dict(workers=args.workers, device=args.device, command=shlex.join(["python", "tools/linearise.py", *argv]))
    linearise(args.teacher, args.kind, args.images, args.out, plan, **which, **where)


if __name__ == "__main__":
    main()
