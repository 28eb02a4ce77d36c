"""Predict for images: classes, boxes with masks, or maps of classes; drawn on the pictures and as JSON.

python tools/predict.py photos/ cat.jpg --model resnet50 --out predictions
python tools/predict.py "photos/**/*.jpg" --config CONFIG --checkpoint FILE
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def main(argv: Sequence[str] | None = None) -> None:
    from soft_vit.extras import naming_extras

    with naming_extras():
        from soft_vit.engine.arguments import add_config_options
        from soft_vit.engine.errors import plain_errors
        from soft_vit.prediction import load_predictor, predict_files

    parser = argparse.ArgumentParser(
        description="Predict for images: classes, boxes with masks, or maps of classes; drawn and as JSON."
    )
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="file, folder, or quoted pattern such as 'a/**/*.jpg'"
    )
    parser.add_argument("--model", metavar="NAME", help="a classification model of timm")
    parser.add_argument("--config", metavar="FILE", help="the config of any trained model, with --checkpoint")
    parser.add_argument("--checkpoint", metavar="FILE", help="weights; of a timm model in place of its published ones")
    parser.add_argument("--no-pretrained", action="store_true", help="the timm model with random weights")
    parser.add_argument("--out", default="predictions", metavar="FOLDER", help="for the results (default: %(default)s)")
    parser.add_argument("--no-draw", action="store_true", help="write no drawings")
    parser.add_argument("--score-thr", type=float, default=0.3, help="least score of an object (default: %(default)s)")
    parser.add_argument("--topk", type=int, default=5, help="classes of an image (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="images at once (default: %(default)s)")
    parser.add_argument("--device", help="such as cpu or cuda:1 (default: a GPU where there is one)")
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help="side of the images that a classifier sees")
    add_config_options(parser)
    args = parser.parse_args(argv)
    source = {"model": args.model, "config": args.config, "checkpoint": args.checkpoint}
    load = partial(
        load_predictor,
        **source,
        pretrained=not args.no_pretrained,
        img_size=args.img_size,
        score_thr=args.score_thr,
        topk=args.topk,
        device=args.device,
        options=args.cfg_options,
    )
    # Clusters stop a job by SIGTERM: keep its results as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with plain_errors():
        report = predict_files(
            args.images,
            load,
            args.out,
            draw=not args.no_draw,
            batch_size=args.batch_size,
            source=source,
        )
    print(report)
    sys.exit(report.exit_code)


if __name__ == "__main__":
    main()
