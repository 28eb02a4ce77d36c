"""What README shows: one photograph through the teacher and a student, and a trained model in each runtime."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor
from torchvision.transforms.functional import normalize, to_pil_image, to_tensor

from benchmarks.timer import measure
from soft_vit.export import FORMATS, export, load_export_model
from soft_vit.export.verified_file import relative_error
from soft_vit.linearise import make_student
from soft_vit.linearise.report import pca_colours
from studies.gym.study import parse_kind
from studies.real.data import items, photographs
from studies.real.judge import THRESHOLD
from studies.real.students import STUDENTS, load_learned
from studies.real.teacher import load_teacher, saliency_of

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "photo.jpg"
PHOTO, STUDENT, SIZE, ROUNDS = "ColorfulCups", "hedgehog_448_varied", (840, 1344), 5
"""A wallpaper that students do not see, by Dmitri Popov, LGPL-3; its height and width in pixels."""
SCALE, BAND = 3, 22
"""By how much the picture is smaller, and the height of its labels."""
DEPLOYED = "soft_plus_pico.fashion"
EXPORTS = (*FORMATS, "onnx_int8", "openvino_int8")


@torch.no_grad()
def see_photo(name: str, root: Path) -> dict[str, Any]:
    """Draw a photograph's tokens by the teacher and by a student; return how near they are, and seconds of both."""
    (teacher, decoder), (kind, options) = load_teacher(root), parse_kind(STUDENTS[name].kind)
    student = make_student(teacher, kind, **options).eval()
    load_learned(student, name, root)
    path = next(path for _, _, path in photographs(root) if PHOTO in path.parts)
    image = Image.open(path).convert("RGB").resize(SIZE[::-1], Image.Resampling.LANCZOS)
    x = normalize(to_tensor(image), list(teacher.mean), list(teacher.std))[None]
    grid = teacher.feat_size(x)
    steps = {"softmax": partial(teacher, x), kind: partial(student, x)}
    timings = measure(steps, "inference", 1, ROUNDS, "cpu")
    a, b = teacher(x), student(x)
    salient, also = (saliency_of(tokens, decoder, grid, SIZE) > THRESHOLD for tokens in (a, b))
    found: dict[str, Any] = {"photo": PHOTO, "size": SIZE, "student": name, "tokens": grid[0] * grid[1]}
    found["seconds"] = {each.target: each.time for each in timings}
    found["cosine"] = F.cosine_similarity(a, b, dim=-1).mean().item()
    found["overlap"] = float((salient & also).sum() / (salient | also).sum().clamp(min=1))
    maps = [colours.reshape(*grid, 3) for colours in pca_colours(*(y[0, -grid[0] * grid[1] :] for y in (a, b)))]
    labels = ["{} x {} pixels, {tokens} tokens".format(*SIZE, **found)]
    labels += [f"{each.target}: {each.time.median:.1f} s" for each in timings if each.time]
    save_panels([image, *(to_pil_image(np.uint8(255 * colours)) for colours in maps)], labels)
    return found


def save_panels(panels: Sequence[Image.Image], labels: Sequence[str]) -> None:
    """Write pictures side by side, with a label below each."""
    height, width = (side // SCALE for side in SIZE)
    sheet = Image.new("RGB", (width * len(panels), height + BAND), "white")
    for i, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        sheet.paste(panel.resize((width, height), Image.Resampling.NEAREST if i else None), (i * width, 0))
        place = (i * width + width // 2, height + BAND // 2)
        ImageDraw.Draw(sheet).text(place, label, "black", ImageFont.load_default(16), anchor="mm")
    sheet.save(PICTURE, quality=88)


def deploy(name: str, root: Path) -> dict[str, Any]:
    """Write a model trained on Fashion-MNIST in a format; return its difference and accuracy on all test images.

    Both are None for a format whose runtime this machine lacks. name: of a format, with `_int8` for 8 bits.
    """
    format, int8, _ = name.partition("_int8")
    source = load_export_model(DEPLOYED)
    transform: Any = create_transform(**resolve_model_data_config(timm.create_model(DEPLOYED)))
    images, labels = items(root, "test")
    x = torch.stack([transform(to_pil_image(image).convert("RGB")) for image in images])
    suffix, _, open_file, any_batch = FORMATS[format]
    found: dict[str, Any] = {"model": DEPLOYED, "error": None, "accuracy": None}
    with tempfile.TemporaryDirectory() as folder:
        out, given = Path(folder) / f"model{suffix}", Path(folder) / "images"
        if int8:
            write_folder(root, given)
        run = open_file(export(source, out, format, **({"int8": True, "images": given} if int8 else {})))
        with torch.inference_mode():
            expected = torch.cat([source.model(part) for part in x.split(250)])
            found["accuracy_eager"] = accuracy(expected, labels)
            if run:
                logits = torch.cat([run(part)[0] for part in x.split(250 if any_batch else 1)])
                found |= {"error": relative_error([logits], [expected]), "accuracy": accuracy(logits, labels)}
    return found


def write_folder(root: Path, folder: Path) -> None:
    """Write a data set of images in folders of classes by number: 50 of each to calibrate int8, and 100 to judge it."""
    for split, part, count in (("train", "train", 50), ("val", "test", 100)):
        images, labels = items(root, part)
        for label in labels.unique().tolist():
            (folder / split / f"{label}").mkdir(parents=True)
            for i, image in enumerate(images[labels == label][:count]):
                to_pil_image(image).save(folder / split / f"{label}" / f"{i}.png")


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of labels `[n]` that logits `[n, K]` name, in percent."""
    return 100 * (logits.argmax(1) == labels).double().mean().item()
