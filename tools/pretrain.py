"""Pre-train a model on images without labels: it predicts what masks hide of them.

python tools/pretrain.py --images photos --model soft_plus_tiny --out DIR
torchrun --nproc_per_node 8 tools/pretrain.py --images photos --model soft_plus_tiny --out DIR --bf16

A stopped run continues if its command is run again. DIR then holds the weights and report.md.
"""

import os
import shlex
from collections.abc import Sequence

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_config_options, command_line


@command_line
def main(argv: Sequence[str]) -> None:
    import soft_vit.engine

    parser = ArgumentParser(__doc__)
    add = parser.add_argument
    add("--images", required=True, metavar="FOLDER", help="a folder, a TAR or a ZIP of images")
    add("--model", required=True, metavar="NAME", help="a timm model, a pyramid or a ViT")
    add("--out", required=True, metavar="DIR", help="folder for weights, report and state")
    add("--epochs", type=int, default=100, metavar="N", help="passes over the images")
    add("--size", type=int, default=192, metavar="PIXELS", help="side of crops")
    add("--batch-size", type=int, default=64, metavar="N", help="images per step and process")
    add("--lr", type=float, default=1e-3, metavar="RATE", help="highest learning rate")
    add("--mask-ratio", type=float, default=0.6, metavar="SHARE", help="share of squares that are masked")
    add("--mask-patch", type=int, default=32, metavar="PIXELS", help="side of a square")
    add("--teacher", metavar="NAME", help="predict the features of this timm model with weights instead of pixels")
    what = "predict the features of the model's own running average, of which a step keeps this share, such as 0.99"
    add("--momentum", type=float, metavar="SHARE", help=what)
    add("--bf16", action="store_true", help="autocast in bfloat16")
    add("--seed", type=int, default=0, metavar="N", help="seed of weights, order, crops and masks")
    add("--workers", type=int, default=2, metavar="N", help="processes that read images")
    add_config_options(parser)
    arguments = parser.arguments(argv)
    soft_vit.engine.pretrain(**arguments, command=shlex.join(["python", "tools/pretrain.py", *argv]))


if __name__ == "__main__":
    main()
