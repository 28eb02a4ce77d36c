"""Checkpoints and images that tests of an evaluation share, and what torch and timm make of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from engine.runs import NARROW, NARROW_MODEL
from PIL import Image
from timm.data import create_transform

from soft_vit.data import CLASSES, ShapeImages

Model = Callable[[torch.Tensor], torch.Tensor]
# Classes of `write_folders`.
THERE = [0, 3, 4, 9]
MODEL = {"num_classes": 10, "img_size": 32, **NARROW}
OPTIONS = {"image_size": 32, **NARROW_MODEL, "test_dataloader.dataset.length": 37, "test_dataloader.batch_size": 16}


def network(name: str = "soft_pico", seed: int = 0, **kwargs) -> torch.nn.Module:
    """A timm model of this package by name, with weights far enough from the start that classes differ."""
    torch.manual_seed(seed)
    model = timm.create_model(name, **(MODEL | kwargs)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return model


def write_checkpoint(folder: Path, models: dict[str, torch.nn.Module]) -> str:
    """As EMAHook writes one: the average in front."""
    plain = {f"module.{name}": value for name, value in models["plain"].state_dict().items()}
    content = {"state_dict": models["averaged"].state_dict(), "ema_state_dict": {**plain, "steps": torch.tensor(3)}}
    torch.save({**content, "meta": {"dataset_meta": {"classes": CLASSES}}}, folder / "epoch_1.pth")
    return str(folder / "epoch_1.pth")


def write_images(root: Path, images: ShapeImages, folders: dict[int, Sequence[str]]) -> None:
    """Write each image into the folders of its class, if it has any."""
    for i in (i for i in range(len(images)) if images.label(i) in folders):
        for folder in folders[images.label(i)]:
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[i].image).save(root / folder / f"{i:03}.png")


def write_folders(root: Path) -> Path:
    """Images of four classes, larger than the model's and not square, in folders `named` and `numbered`."""
    folders = {label: (f"named/{CLASSES[label]}", f"numbered/{label}") for label in THERE}
    write_images(root, ShapeImages(40, "test", size=(50, 71)), folders)
    return root


def write_tree(root: Path, names: Sequence[str], **counts: int) -> Path:
    """A tree of three class folders, with the shape of a class in each image; counts: of a class in each split."""
    for split, count in counts.items():
        folders = {label: [name] for label, name in zip((0, 5, 9), names, strict=True)}
        write_images(root / split, ShapeImages(10 * count, split, seed=1, size=(60, 64)), folders)
    return root


def by_the_book(logits: torch.Tensor, labels: list[int], topk: tuple[int, ...] = (1, 5)) -> dict[str, float]:
    """Accuracies and cross entropy by their definitions, in float64."""
    x, y = logits.detach().double().numpy(), np.asarray(labels)
    order, x = np.argsort(-x, axis=1), x - x.max(1, keepdims=True)
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    accuracies = {f"accuracy/top{k}": 100 * np.mean((order[:, :k] == y[:, None]).any(1)) for k in topk}
    return {**accuracies, "cross_entropy": -np.mean(log_p[np.arange(len(y)), y])}


def shapes(length: int = 37) -> tuple[torch.Tensor, list[int]]:
    """The demo's test images, normalised as its config says."""
    images = ShapeImages(length, "test", size=32)
    pixels = torch.stack([torch.from_numpy(images[i].image).permute(2, 0, 1) for i in range(length)])
    return (pixels - 127.5) / 64, [images.label(i) for i in range(length)]


def on_shapes(model: Model) -> dict[str, float]:
    images, labels = shapes()
    return {**by_the_book(model(images), labels), "images": len(labels)}


def on_folder(
    model: Model, folder: Path, size: int, crop_pct: float, mean=127.5 / 255, std=64 / 255, interpolation="bicubic"
) -> dict[str, float]:
    """What a model answers for the images of a folder, prepared by timm, among the classes that the folder has."""
    transform = create_transform(size, interpolation=interpolation, crop_pct=crop_pct, mean=(mean,) * 3, std=(std,) * 3)
    paths = sorted(folder.glob("*/*.png"))
    classes = [CLASSES.index(name) if name in CLASSES else int(name) for name in (path.parent.name for path in paths)]
    with torch.no_grad():
        logits = model(torch.stack([transform(Image.open(path)) for path in paths]))
    if logits.shape[1] > len(THERE):
        logits = logits[:, THERE]
    return {**by_the_book(logits, [THERE.index(label) for label in classes]), "images": len(paths)}


def agrees(metrics: dict, expected: dict) -> bool:
    """Logits in fp32 in other batches differ by rounding, which changes ranks nowhere here."""
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=2e-4)
    return True
