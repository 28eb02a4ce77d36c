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

from soft_vit.cli import ArgumentParser, add_config_options, command_line

# The config whose test data are used by default.
IMAGENET = Path(__file__).parents[1] / "configs" / "soft_tiny.py"


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    from mmengine.dist import is_main_process

    from soft_vit.engine.evaluate import evaluate, metrics_table
    from soft_vit.engine.machine import LAUNCHERS

    parser = ArgumentParser(__doc__)
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=f"the config (default: {IMAGENET})")
    parser.add_argument("subject", nargs="?", metavar="CHECKPOINT", help="weights of the config's model")
    parser.add_argument("--model", metavar="NAME", help="a timm model, instead of CHECKPOINT")
    weights = parser.add_mutually_exclusive_group()
    what = "weights of --model (default: the published ones)"
    weights.add_argument("--checkpoint", dest="weights", metavar="FILE", help=what)
    what = "random weights for --model"
    weights.add_argument("--no-pretrained", dest="pretrained", action="store_false", help=what)
    what = "which, if CHECKPOINT holds both (default: ema)"
    parser.add_argument("--weights", dest="chosen", choices=("ema", "plain"), help=what)
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help="side of the test images")
    what = "side of the crop relative to the resized image, up to 1"
    parser.add_argument("--crop-pct", type=float, metavar="SHARE", help=what)
    what = "test time augmentation: the config's tta_pipeline and tta_model, or for classification the mean of the "
    what += "scores of each image and its mirror image"
    parser.add_argument("--tta", action="store_true", help=what)
    what = "images in a folder per class, as in ImageNetV2, -A or -R; only these classes are predicted"
    parser.add_argument("--data-root", metavar="FOLDER", help=what)
    parser.add_argument("--work-dir", metavar="FOLDER", help="for logs (default: work_dirs/<config name>)")
    parser.add_argument("--out", metavar="FILE", help="write the metrics to this JSON file")
    parser.add_argument("--per-class", metavar="FILE", help="write the accuracy of each class to this CSV file")
    parser.add_argument("--confusion", metavar="FILE", help="write the confusion matrix to this CSV file")
    add_config_options(parser)
    parser.add_argument("--launcher", choices=LAUNCHERS, default="none", help="how the processes were started")
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
