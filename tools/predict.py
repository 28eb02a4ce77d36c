"""Predict classes, boxes with masks, or segmentation maps for images, and write drawings and JSON.

python tools/predict.py photos/ cat.jpg --model resnet50 --out predictions
python tools/predict.py photos/*.jpg --config CONFIG --checkpoint FILE --no-draw
python tools/predict.py https://example.org/cat.jpg - --model resnet50 < dog.jpg
"""

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_config_options, add_device_option, add_model_options, command_line


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    from soft_vit.predict import load_predictor, predict_files

    parser = ArgumentParser(__doc__)
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="a file, an address, - for standard input, or a folder, whose images count at any depth",
    )
    add_model_options(parser, config=True)
    parser.add_argument("--out", default="predictions", metavar="FOLDER", help="for the results (default: %(default)s)")
    parser.add_argument("--no-draw", action="store_true", help="write no drawings")
    parser.add_argument(
        "--score-thr", type=float, default=0.3, help="minimum score of an object (default: %(default)s)"
    )
    parser.add_argument("--topk", type=int, default=5, help="classes per image (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="images per batch (default: %(default)s)")
    add_device_option(parser)
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help="side of a classifier's images")
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
    # Clusters stop a job by SIGTERM. Keep the results so far, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = predict_files(
        args.images,
        load,
        args.out,
        draw=not args.no_draw,
        batch_size=args.batch_size,
        source=source,
        say=partial(print, flush=True),
    )
    print(outcome)
    sys.exit(outcome.exit_code)


if __name__ == "__main__":
    main()
