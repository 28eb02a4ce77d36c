"""Plot the cumulative singular values of attention matrices, which show how close a pyramid is to low rank.

The plot is as in Fig. 1 of Linformer (arXiv 2006.04768).

python tools/analysis/attention_spectrum.py --model soft_pico
python tools/analysis/attention_spectrum.py cat.jpg dog.jpg --model soft_tiny --checkpoint FILE
"""

from collections.abc import Sequence
from pathlib import Path

from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

from soft_vit.cli import ArgumentParser, add_device_option, add_img_size_option, add_model_options, command_line
from soft_vit.data import ShapeImages, normalised_batch
from soft_vit.data.images import read_image
from soft_vit.probe.load import load_pyramid
from soft_vit.probe.spectrum import measure_spectrum, plot_spectrum, spectrum_csv
from soft_vit.weights.files import ensure_writable, write_atomically


def read_images(paths: Sequence[Path], model: nn.Module) -> list[Tensor]:
    """Return images `[3, H, W]`, resized and normalised as in the model's evaluation on ImageNet."""
    transform = create_transform(**resolve_data_config({"input_size": (3, *model.img_size)}, model=model))
    return [transform(read_image(path)) for path in paths]


def draw_shapes(count: int, model: nn.Module) -> list[Tensor]:
    """Return generated test images `[3, H, W]`, normalised for the model."""
    config = resolve_data_config({}, model=model)
    samples = ShapeImages(count, split="test", size=model.img_size)
    return list(normalised_batch(samples, config["mean"], config["std"]))


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    parser.add_argument("images", nargs="*", type=Path, metavar="IMAGE", help="files (default: generated shapes)")
    add_model_options(parser)
    add_img_size_option(parser)
    add_device_option(parser)
    parser.add_argument("--shapes", type=int, default=4, metavar="N", help="number of generated shapes")
    what = "write PREFIX.png and PREFIX.csv (default: MODEL_spectrum)"
    parser.add_argument("--out", type=Path, metavar="PREFIX", help=what)
    args = parser.parse_args(argv)
    out = args.out or Path(f"{args.model}_spectrum")
    png, table = Path(f"{out}.png"), Path(f"{out}.csv")
    ensure_writable(png)
    weights = dict(checkpoint=args.checkpoint, pretrained=args.pretrained)
    model, title = load_pyramid(args.model, args.img_size, device=args.device, **weights)
    images = read_images(args.images, model) if args.images else draw_shapes(args.shapes, model)
    spectra = measure_spectrum(model, [image.to(args.device) for image in images])
    title += f", {' x '.join(map(str, model.img_size))}, images: {len(images)}"
    write_atomically(table, spectrum_csv(spectra).encode())
    print(f"{title}\nWritten: {table}")
    plot_spectrum(spectra, png, title)
    print(f"Written: {png}")


if __name__ == "__main__":
    main()
