"""How near a model's attention is to low rank: python tools/attention_spectrum.py soft_tiny cat.jpg dog.jpg"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import timm
import torch
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

from soft_vit.analysis.spectrum import measure_spectrum, plot_spectrum, spectrum_csv
from soft_vit.datasets.images import BadImage, decode_image
from soft_vit.datasets.shapes import ShapeImages
from soft_vit.models.soft import MODELS


def create_model(name: str, img_size: Sequence[int] | None, checkpoint: Path | None) -> nn.Module:
    """A pyramid in evaluation mode; ValueError for what is none, for a size it cannot have, and for a wrong file."""
    if name not in MODELS:
        raise ValueError(f"{name} is not a pyramid of this package; give a name such as soft_tiny.")
    model = timm.create_model(name, **({} if img_size is None else {"img_size": tuple((list(img_size) * 2)[:2])}))
    if checkpoint is not None:
        # Our own training's checkpoints hold more than weights; importing this allows what MMEngine puts there.
        with suppress(ImportError):
            import soft_vit.engine  # noqa: F401
        model.load_pretrained(checkpoint)
    return model.eval()


def read_images(paths: Sequence[Path], model: nn.Module) -> list[Tensor]:
    """Files as the model's evaluation on ImageNet would see them."""
    size = (3, *model.img_size)
    transform = create_transform(**resolve_data_config({"input_size": size}, model=model))
    images = []
    for path in paths:
        try:
            images.append(transform(decode_image(path.read_bytes())))
        except (OSError, BadImage) as error:
            raise ValueError(f"The file {path} cannot be read as an image; give another.") from error
    return images


def draw_shapes(count: int, model: nn.Module) -> list[Tensor]:
    """Test images of the demo, normalised as its configuration does."""
    samples = ShapeImages(count, split="test", size=model.img_size)
    images = [torch.from_numpy(samples[i].image).permute(2, 0, 1).float() for i in range(count)]
    return [(image - 127.5) / 64 for image in images]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Draw the normalised cumulative singular values of attention matrices, as Linformer's Fig. 1 does."
    )
    parser.add_argument("model", help="timm name of a pyramid of this package")
    parser.add_argument("image", nargs="*", type=Path, help="image files; generated shapes by default")
    parser.add_argument("--img-size", type=int, nargs="+", metavar="SIZE", help="side, or height width")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="weights; random ones by default")
    parser.add_argument("--images", type=int, default=4, metavar="N", help="number of generated shapes (default: 4)")
    parser.add_argument(
        "--out", type=Path, metavar="PREFIX", help="what to name the PNG and the CSV (default: MODEL_spectrum)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    out = args.out or Path(f"{args.model}_spectrum")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        model = create_model(args.model, args.img_size, args.checkpoint).to(args.device)
        images = read_images(args.image, model) if args.image else draw_shapes(args.images, model)
        spectra = measure_spectrum(model, [image.to(args.device) for image in images])
    except (ValueError, FileNotFoundError) as error:
        parser.exit(1, f"{error}\n")
    weights = "random weights" if args.checkpoint is None else args.checkpoint.name
    height, width = model.img_size
    title = f"{args.model}, {weights}, {height} x {width}, images: {len(images)}"
    png, table = Path(f"{out}.png"), Path(f"{out}.csv")
    plot_spectrum(spectra, png, title)
    table.write_text(spectrum_csv(spectra))
    print(f"{title}\nWritten: {png}, {table}")


if __name__ == "__main__":
    main()
