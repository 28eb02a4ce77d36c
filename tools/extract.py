"""Write the features of images, or of the tiles of huge ones, to files that other programs start from.

python tools/extract.py photos/ --model resnet50 --out features
python tools/extract.py slide.svs --model vit_small_patch14_dinov2 --img-size 224 --tiles 256 --out features
python tools/extract.py photos/ --model soft_tiny --checkpoint FILE --maps --format npz --out maps

A stopped run continues if its command is run again.
"""

import os
import sys
from collections.abc import Sequence

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_device_option, add_img_size_option, add_model_options, command_line


@command_line
def main(argv: Sequence[str]) -> None:
    from soft_vit.predict.extract import FORMATS, TimmFeatures, extract_files

    parser = ArgumentParser(__doc__)
    add = parser.add_argument
    add("given", nargs="+", metavar="IMAGE", help="a file, an address, - for standard input, or a folder")
    add_model_options(parser)
    add("--out", default="features", metavar="FOLDER", help="for a file of each image")
    add("--format", dest="file_format", default=FORMATS[0], choices=FORMATS, help="of the files")
    add("--tiles", type=int, metavar="PIXELS", help="side of the tiles that an image is cut into")
    add("--overlap", type=float, default=0.0, metavar="SHARE", help="of tiles, as a share of their side")
    add_img_size_option(parser)
    add("--maps", action="store_true", help="write the last map instead of pooled features")
    add("--batch-size", type=int, default=32, metavar="N", help="tiles at once")
    add("--bits", type=int, help="of the values in images of 16 bits, such as 12")
    add_device_option(parser)
    arguments = parser.arguments(argv)
    how = {name: arguments.pop(name) for name in ("given", "out", "file_format", "batch_size")}
    features = TimmFeatures(arguments.pop("model"), **arguments)
    outcome = extract_files(**how, features=features, notify=print)
    print(outcome)
    sys.exit(outcome.exit_code)


if __name__ == "__main__":
    main()
