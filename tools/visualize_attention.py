"""Where a token looks, drawn over an image.

python tools/visualize_attention.py shape.png --model soft_pico --pretrained --stage 2
python tools/visualize_attention.py cat.jpg --model soft_tiny --checkpoint FILE --query 3 5
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from timm.data import resolve_data_config

from soft_vit.analysis.attention.view import attention_row, plot_attention_row
from soft_vit.analysis.pyramid import load_pyramid
from soft_vit.data.images import read_image
from soft_vit.weights import WeightsError
from soft_vit.weights.files import require_place


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Draw the row of a token in the attention of a pyramid over its image, as PNG."
    )
    parser.add_argument("image", type=Path)
    parser.add_argument("--model", required=True, metavar="NAME", help="timm name of a pyramid of this package")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", type=Path, metavar="FILE", help="weights; random ones by default")
    weights.add_argument("--pretrained", action="store_true", help="the weights that are recorded for the model")
    parser.add_argument("--stage", type=int, default=1, help="from 1")
    parser.add_argument("--layer", type=int, default=-1, help="of the stage, from 0; the last by default")
    parser.add_argument("--query", type=int, nargs=2, metavar=("Y", "X"), help="token on the stage's map; its centre")
    parser.add_argument("--img-size", type=int, nargs="+", metavar="SIZE", help="side, or height width")
    parser.add_argument(
        "--mean", type=float, nargs=3, help="of RGB in [0, 1]; the model's own, of ImageNet, by default"
    )
    parser.add_argument("--std", type=float, nargs=3, help="likewise")
    parser.add_argument("--out", type=Path, metavar="PNG", help="default: IMAGE_attention.png in this folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    out = args.out or Path(f"{args.image.stem}_attention.png")
    if args.checkpoint is not None:
        # Our own training's checkpoints hold more than weights; importing this allows what MMEngine puts there.
        with suppress(ImportError):
            import soft_vit.engine  # noqa: F401
    try:
        require_place(out)
        model, title = load_pyramid(
            args.model, args.img_size, checkpoint=args.checkpoint, pretrained=args.pretrained, device=args.device
        )
        pixels = np.asarray(read_image(args.image).resize(model.img_size[::-1], resample=2))
        config = resolve_data_config({}, model=model)
        mean, std = torch.tensor(args.mean or config["mean"]), torch.tensor(args.std or config["std"])
        image = ((torch.from_numpy(pixels / 255) - mean) / std).permute(2, 0, 1).float().to(args.device)
        query = None if args.query is None else tuple(args.query)
        row = attention_row(model, image, args.stage, query, args.layer)
    except (ValueError, OSError, WeightsError) as error:
        parser.exit(1, f"error: {error}\n")
    title += f": {row.attention}, stage {args.stage}, query {row.query[0]} {row.query[1]}"
    try:
        plot_attention_row(row, pixels, out, title)
    except ModuleNotFoundError as error:
        parser.exit(1, f"error: {error}\n")
    print(f"{title}\nWritten: {out}")


if __name__ == "__main__":
    main()
