"""How near a model's attention is to low rank.

python tools/attention_spectrum.py soft_pico --pretrained
python tools/attention_spectrum.py soft_tiny cat.jpg dog.jpg --checkpoint FILE
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

from soft_vit.analysis.attention.spectrum import measure_spectrum, plot_spectrum, spectrum_csv
from soft_vit.analysis.pyramid import load_pyramid
from soft_vit.data import ShapeImages, normalised_batch
from soft_vit.data.images import read_image
from soft_vit.weights import WeightsError
from soft_vit.weights.files import require_place, write_atomically


def read_images(paths: Sequence[Path], model: nn.Module) -> list[Tensor]:
    """Files as the model's evaluation on ImageNet would see them."""
    size = (3, *model.img_size)
    transform = create_transform(**resolve_data_config({"input_size": size}, model=model))
    return [transform(read_image(path)) for path in paths]


def draw_shapes(count: int, model: nn.Module, pretrained: bool) -> list[Tensor]:
    """Test images of the demo, normalised as recorded weights want it, otherwise as the demo's config does."""
    config = resolve_data_config({}, model=model) if pretrained else {"mean": 127.5 / 255, "std": 64 / 255}
    samples = ShapeImages(count, split="test", size=model.img_size)
    return list(normalised_batch(samples, config["mean"], config["std"]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Draw the normalised cumulative singular values of attention matrices, as Linformer's Fig. 1 does."
    )
    parser.add_argument("model", help="timm name of a pyramid of this package")
    parser.add_argument("image", nargs="*", type=Path, help="image files; generated shapes by default")
    parser.add_argument("--img-size", type=int, nargs="+", metavar="SIZE", help="side, or height width")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", type=Path, metavar="FILE", help="weights; random ones by default")
    weights.add_argument("--pretrained", action="store_true", help="the weights that are recorded for the model")
    parser.add_argument("--images", type=int, default=4, metavar="N", help="number of generated shapes (default: 4)")
    parser.add_argument(
        "--out", type=Path, metavar="PREFIX", help="what to name the PNG and the CSV (default: MODEL_spectrum)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    out = args.out or Path(f"{args.model}_spectrum")
    png, table = Path(f"{out}.png"), Path(f"{out}.csv")
    if args.checkpoint is not None:
        # Our own training's checkpoints hold more than weights; importing this allows what MMEngine puts there.
        with suppress(ImportError):
            import soft_vit.engine  # noqa: F401
    try:
        require_place(png)
        model, title = load_pyramid(
            args.model, args.img_size, checkpoint=args.checkpoint, pretrained=args.pretrained, device=args.device
        )
        images = read_images(args.image, model) if args.image else draw_shapes(args.images, model, args.pretrained)
        spectra = measure_spectrum(model, [image.to(args.device) for image in images])
    except (ValueError, FileNotFoundError, WeightsError) as error:
        parser.exit(1, f"error: {error}\n")
    height, width = model.img_size
    title += f", {height} x {width}, images: {len(images)}"
    write_atomically(table, spectrum_csv(spectra).encode())
    try:
        plot_spectrum(spectra, png, title)
    except ModuleNotFoundError as error:
        parser.exit(1, f"Written: {table}\nerror: {error}\n")
    print(f"{title}\nWritten: {png}, {table}")


if __name__ == "__main__":
    main()
