"""Measure a checkpoint or a timm model.

python tools/test.py configs/demo/soft_pico_shapes.py work_dirs/soft_pico_shapes/epoch_5.pth
python tools/test.py configs/soft_tiny.py resnet50 --img-size 288 --crop-pct 1.0
python tools/test.py resnet50 --data-root data/imagenet-r --per-class resnet50_r.csv
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# For the sake of its data: a timm model takes the place of its model.
IMAGENET = Path(__file__).parents[1] / "configs" / "soft_tiny.py"


def main(argv: Sequence[str] | None = None) -> None:
    from soft_vit.extras import naming_extras

    with naming_extras():
        from mmengine.dist import is_main_process

        from soft_vit.engine.arguments import add_config_options
        from soft_vit.engine.errors import plain_errors
        from soft_vit.engine.evaluate import Images, Target, evaluate
        from soft_vit.engine.prepare import LAUNCHERS
        from soft_vit.engine.report import Report, metrics_table

    parser = argparse.ArgumentParser(
        description="Measure a checkpoint or a timm model on the test split of a config, or on a folder of images."
    )
    parser.add_argument("config", nargs="?", default=IMAGENET, help="path of the config (default: %(default)s)")
    parser.add_argument("model", help="path of a checkpoint, or name of a timm model")
    parser.add_argument("--weights", metavar="FILE", help="weights of the timm model, in place of its published ones")
    parser.add_argument("--no-pretrained", action="store_true", help="the timm model with random weights")
    parser.add_argument(
        "--ema",
        action=argparse.BooleanOptionalAction,
        help="the averaged or the plain weights of a checkpoint that has both (default: averaged)",
    )
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help="side of the test images")
    parser.add_argument("--crop-pct", type=float, metavar="SHARE", help="side of the crop by that of the resized image")
    parser.add_argument(
        "--tta",
        action="store_true",
        help="test time augmentation by the config's tta_pipeline and tta_model (default for classification: the mean "
        "of the scores of each image and its mirror image)",
    )
    parser.add_argument(
        "--data-root",
        metavar="FOLDER",
        help="folder with a folder of images for each class, such as ImageNetV2, -A or -R; predictions are restricted "
        "to its classes",
    )
    parser.add_argument("--classes", metavar="FILE", help="names of the model's classes, one a line, for --data-root")
    parser.add_argument("--work-dir", help="folder for logs (default: work_dirs/<config name>)")
    parser.add_argument("--out", metavar="FILE", help="JSON file to write the metrics to")
    parser.add_argument("--per-class", metavar="FILE", help="CSV file for the accuracy of each class")
    parser.add_argument("--confusion", metavar="FILE", help="CSV file for the counts of true and predicted classes")
    add_config_options(parser)
    parser.add_argument("--launcher", choices=LAUNCHERS, default="none", help="how the processes were started")
    args = parser.parse_args(argv)
    with plain_errors():
        target = Target(args.config, args.model, args.weights, not args.no_pretrained, args.ema, args.cfg_options)
        images = Images(args.data_root, args.classes, args.img_size, args.crop_pct, args.tta)
        report = Report(args.out, args.per_class, args.confusion, args.work_dir)
        metrics = evaluate(target, images, report, launcher=args.launcher)
    if is_main_process():
        print(metrics_table(metrics))


if __name__ == "__main__":
    main()
