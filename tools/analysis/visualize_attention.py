"""Draw the attention of a token over its image.

python tools/analysis/visualize_attention.py shape.png --model soft_pico --stage 2
python tools/analysis/visualize_attention.py cat.jpg --model soft_tiny --checkpoint FILE --query 3 5
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from timm.data import resolve_data_config
from torchvision.transforms.functional import normalize, to_tensor

from soft_vit.cli import ArgumentParser, add_device_option, add_img_size_option, add_model_options, command_line
from soft_vit.data.images import read_image
from soft_vit.probe.load import load_pyramid
from soft_vit.probe.view import attention_row, plot_attention_row
from soft_vit.weights.files import ensure_writable


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    parser.add_argument("image", type=Path)
    add_model_options(parser)
    add_img_size_option(parser)
    add_device_option(parser)
    parser.add_argument("--stage", type=int, default=1, help="stage, counted from 1")
    parser.add_argument("--layer", type=int, default=-1, help="layer of the stage, counted from 0 (default: the last)")
    what = "token on the stage's map (default: its centre)"
    parser.add_argument("--query", type=int, nargs=2, metavar=("Y", "X"), help=what)
    parser.add_argument("--out", type=Path, metavar="PNG", help="(default: IMAGE_attention.png in this folder)")
    args = parser.parse_args(argv)
    out = args.out or Path(f"{args.image.stem}_attention.png")
    ensure_writable(out)
    weights = dict(checkpoint=args.checkpoint, pretrained=args.pretrained)
    model, title = load_pyramid(args.model, args.img_size, device=args.device, **weights)
    picture = read_image(args.image).resize(model.img_size[::-1], resample=2)
    config = resolve_data_config({}, model=model)
    image = normalize(to_tensor(picture), config["mean"], config["std"]).to(args.device)
    row = attention_row(model, image, args.stage, tuple(args.query) if args.query else None, args.layer)
    title += f": {row.attention}, stage {args.stage}, query {row.query[0]} {row.query[1]}"
    plot_attention_row(row, np.asarray(picture), out)
    print(f"{title}\nWritten: {out}")


if __name__ == "__main__":
    main()
