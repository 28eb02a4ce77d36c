"""Measure a checkpoint, or a timm model with --model, on the test split of a config or on a folder of images.

python tools/test.py configs/demo/soft_pico_shapes.py work_dirs/soft_pico_shapes/epoch_5.pth
python tools/test.py configs/soft_tiny.py --model resnet50 --img-size 288 --crop-pct 1.0
python tools/test.py --model resnet50 --data-root data/imagenet-r --per-class resnet50_r.csv
"""

import os
from collections.abc import Sequence
from pathlib import Path

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_config_options, add_img_size_option, add_scale_option, command_line

# The config whose test data are used by default.
IMAGENET = Path(__file__).parents[1] / "configs" / "soft_tiny.py"


@command_line
def main(argv: Sequence[str]) -> None:
    from mmengine.dist import is_main_process

    from soft_vit.engine.evaluate import evaluate, metrics_table
    from soft_vit.engine.machine import LAUNCHERS

    parser = ArgumentParser(__doc__)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="the config (default: configs/soft_tiny.py)")
    add("subject", nargs="?", metavar="CHECKPOINT", help="weights of the config's model")
    add("--model", metavar="NAME", help="a timm model, instead of CHECKPOINT")
    weights = parser.add_mutually_exclusive_group()
    what = "weights of --model (default: the published ones)"
    weights.add_argument("--checkpoint", dest="weights", metavar="FILE", help=what)
    weights.add_argument("--no-pretrained", dest="pretrained", action="store_false", help="random weights for --model")
    add("--weights", dest="chosen", choices=("ema", "plain"), help="which, if CHECKPOINT holds both (default: ema)")
    add_img_size_option(parser)
    add_scale_option(parser)
    add("--crop-pct", type=float, metavar="SHARE", help="side of the crop over the resized image's")
    what = "test time augmentation: the config's tta_pipeline and tta_model, or for classification the mean of the "
    what += "scores of each image and its mirror image"
    add("--tta", action="store_true", help=what)
    add("--data-root", metavar="FOLDER", help="images in a folder per class; only these classes are predicted")
    add("--work-dir", metavar="FOLDER", help="for logs (default: work_dirs/<config name>)")
    add("--out", metavar="FILE", help="write the metrics to this JSON file")
    add("--per-class", metavar="FILE", help="write the accuracy of each class to this CSV file")
    add("--confusion", metavar="FILE", help="write the confusion matrix to this CSV file")
    add_config_options(parser)
    add("--launcher", choices=LAUNCHERS, default="none", help="how the processes were started")
    arguments = parser.arguments(argv)
    config, subject, model, chosen = (arguments.pop(name) for name in ("config", "subject", "model", "chosen"))
    if model is None and subject is None:
        # A single argument is the checkpoint.
        config, subject = None, config
    if model is None and subject is not None and Path(subject).suffix == ".py":
        parser.error(f"CHECKPOINT or --model NAME must be given with the config {subject}.")
    if (model is None) == (subject is None):
        parser.error("one of CHECKPOINT and --model NAME must be given, and not both.")
    ema = None if chosen is None else chosen == "ema"
    metrics = evaluate(config or IMAGENET, model or subject, ema=ema, **arguments)
    if is_main_process():
        print(metrics_table(metrics))


if __name__ == "__main__":
    main()
