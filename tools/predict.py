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

from soft_vit import cli


@cli.command_line
def main(argv: Sequence[str]) -> None:
    from soft_vit.predict import load_predictor, predict_files

    parser = cli.ArgumentParser(__doc__)
    what = "a file, an address, - for standard input, or a folder, whose images count at any depth"
    parser.add_argument("images", nargs="+", metavar="IMAGE", help=what)
    cli.add_model_options(parser, config=True)
    parser.add_argument("--out", default="predictions", metavar="FOLDER", help="for the results")
    parser.add_argument("--no-draw", dest="draw", action="store_false", help="write no drawings")
    parser.add_argument("--score-thr", type=float, default=0.3, help="minimum score of an object")
    parser.add_argument("--topk", type=int, default=5, help="classes per image")
    parser.add_argument("--batch-size", type=int, default=8, help="images per batch")
    parser.add_argument("--bits", type=int, help="of the values in images of 16 bits, such as 12")
    cli.add_device_option(parser)
    cli.add_scale_option(parser)
    parser.add_argument("--tiles", type=int, metavar="PIXELS", help="side of the tiles that a detector sees")
    parser.add_argument("--overlap", type=float, default=0.2, help="of tiles, as a share of their side")
    cli.add_img_size_option(parser)
    cli.add_config_options(parser)
    arguments = parser.arguments(argv)
    source = {name: arguments[name] for name in ("model", "config", "checkpoint")}
    images, out = arguments.pop("images"), arguments.pop("out")
    how = {name: arguments.pop(name) for name in ("draw", "batch_size", "bits")}
    load = partial(load_predictor, **arguments)
    # Clusters stop a job by SIGTERM. Keep the results so far, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = predict_files(images, load, out, source=source, notify=partial(print, flush=True), **how)
    print(outcome)
    sys.exit(outcome.exit_code)


if __name__ == "__main__":
    main()
