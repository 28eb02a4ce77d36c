"""Measure what each attention of a model contributes.

python tools/analysis/attention_health.py --model soft_pico
python tools/analysis/attention_health.py --model soft_tiny --checkpoint FILE --data imagenet/val

The table shows for each layer the share of its attention in the output, the mean row sum and the effective rank of its
matrix, and the residual of Newton's iteration. With labelled images it also shows the accuracy with this attention off,
with all attentions off, and with all dead attentions off, whose share is below a thousandth.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import timm
import torch
from timm.data import ImageNetInfo, create_transform, infer_imagenet_subset, resolve_data_config
from torch import Tensor, nn

from soft_vit.cli import ArgumentParser, add_device_option, add_img_size_option, add_model_options, command_line
from soft_vit.data import CLASSES, ShapeImages, normalised_batch
from soft_vit.data.images import find_images
from soft_vit.models.base import require_known
from soft_vit.probe.health import MIN_SHARE, health_table, measure_accuracies, measure_health
from soft_vit.probe.load import require_device
from soft_vit.weights.build import model_of_file


def read_folder(folder: Path, count: int, model: nn.Module, img_size: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """Return images `[B, 3, H, W]`, evenly spread over a tree with a folder per class, in any order, and their labels.

    Raises FileNotFoundError for a missing folder, and ValueError for a folder without images or with other classes than
    the model's.
    """
    size = {"input_size": (3, *img_size)} if img_size else {}
    transform = create_transform(**resolve_data_config(size, model=model))
    names, subset = model.pretrained_cfg.get("label_names"), infer_imagenet_subset({"num_classes": model.num_classes})
    found = find_images(folder, "", classes=names or (subset and ImageNetInfo(subset).label_names()))
    if len(found.classes) != model.num_classes:
        raise ValueError(f"--data must be of the model's {model.num_classes} classes, got {len(found.classes)}.")
    total, count = len(found.samples), min(count, len(found.samples))
    # In no order of classes, so that the first images stand for all.
    chosen = [found.samples[i * total // count] for i in random.Random(0).sample(range(count), count)]
    images = torch.stack([transform(found.load(entry)) for entry, _ in chosen])
    return images, torch.tensor([label for _, label in chosen])


def draw_shapes(count: int, model: nn.Module, img_size: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """Return generated test images, normalised for the model, and their labels."""
    config = resolve_data_config({}, model=model)
    samples = list(ShapeImages(count, split="test", size=img_size or config["input_size"][1:]))
    return normalised_batch(samples, config["mean"], config["std"]), torch.tensor([sample.label for sample in samples])


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    add_model_options(parser)
    add_img_size_option(parser)
    add_device_option(parser)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="a folder per class (default: generated shapes)")
    parser.add_argument("--num-images", type=int, default=500, help="images for accuracies")
    parser.add_argument("--num-matrices", type=int, default=4, help="images for other figures")
    args = parser.parse_args(argv)
    require_known(args.model)
    require_device(args.device)
    options = {} if args.img_size is None else {"img_size": args.img_size}
    if args.checkpoint is None:
        model = timm.create_model(args.model, pretrained=args.pretrained, **options)
    else:
        model, _ = model_of_file(args.model, args.checkpoint, "strict", **options)
    model.to(args.device)
    read = draw_shapes if args.data is None else lambda *given: read_folder(args.data, *given)
    images, labels = (x.to(args.device) for x in read(max(args.num_images, args.num_matrices), model, args.img_size))
    health = measure_health(model, list(images[: args.num_matrices]))
    text = ""
    # Models of other classes do not fit the labels of generated shapes. Files may leave the names out.
    names = model.pretrained_cfg.get("label_names") or CLASSES
    if args.data is not None or (model.num_classes == len(CLASSES) and tuple(names) == CLASSES):
        found = measure_accuracies(model, list(zip(images.split(50), labels.split(50), strict=True)), health)
        text += f"\n\nTop-1 {100 * found['none']:.1f} %, with these attentions off {100 * found['all']:.1f} %"
        if "dead" in found:
            text += f", with the dead ones off together {100 * found['dead']:.1f} %"
        text += f", on {len(labels)} images."
    if dead := [name for name, found in health.items() if found.is_dead]:
        text += f"\n\nDead attentions, with shares below {MIN_SHARE:g}: {', '.join(dead)}."
    print(f"{args.model}, {images.shape[2]} x {images.shape[3]}\n\n{health_table(health)}{text}\n")


if __name__ == "__main__":
    main()
