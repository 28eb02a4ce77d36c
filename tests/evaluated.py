"""Checkpoints and images that tests of an evaluation share, and what a loop, torch and timm make of them."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from soft_vit.data import CLASSES, ShapeImages

DEMO = Path(__file__).parents[1] / "configs" / "demo" / "soft_pico_shapes.py"
MODEL = {"num_classes": 10, "img_size": 32, "depths": (1, 1, 1, 1)}
OPTIONS = {
    "image_size": 32,
    "model.depths": [1, 1, 1, 1],
    "test_dataloader.dataset.length": 37,
    "test_dataloader.batch_size": 16,
}


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


def write_folders(root: Path) -> Path:
    """Images of four classes, larger than the model's and not square, in folders `named` and `numbered`."""
    images = ShapeImages(40, "test", size=(50, 71))
    for i in (i for i in range(40) if images.label(i) in (0, 3, 4, 9)):
        sample = images[i]
        for folder in (f"named/{CLASSES[sample.label]}", f"numbered/{sample.label}"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(sample.image).save(root / folder / f"{i:03}.png")
    return root


def list_of_classes(folder: Path) -> Path:
    path = folder / "classes.txt"
    path.write_text("\n".join(CLASSES) + "\n")
    return path


def by_the_book(logits: torch.Tensor, labels: list[int]) -> dict[str, float]:
    x, y = logits.detach().double().numpy(), np.array(labels)
    order = np.argsort(-x, axis=1)
    log_p = x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)
    return {
        "accuracy/top1": 100 * np.mean(order[:, 0] == y),
        "accuracy/top5": 100 * np.mean((order[:, :5] == y[:, None]).any(1)),
        "cross_entropy": -np.mean(log_p[np.arange(len(y)), y]),
        "images": len(y),
    }


def shapes(length: int = 37) -> tuple[torch.Tensor, list[int]]:
    """The demo's test images, normalised as its config says."""
    images = ShapeImages(length, "test", size=32)
    pixels = torch.stack([torch.from_numpy(images[i].image).permute(2, 0, 1) for i in range(length)])
    return (pixels - 127.5) / 64, [images.label(i) for i in range(length)]


def tree(folder: Path, size: int, crop_pct: float, mean: float = 127.5 / 255, std: float = 64 / 255, how="bicubic"):
    """Images of a folder as timm prepares them, and the names of their folders."""
    transform = create_transform(size, interpolation=how, crop_pct=crop_pct, mean=(mean,) * 3, std=(std,) * 3)
    paths = sorted(folder.glob("*/*.png"))
    return torch.stack([transform(Image.open(path)) for path in paths]), [path.parent.name for path in paths]


def agrees(metrics: dict, expected: dict) -> bool:
    """Logits in fp32 in other batches differ by rounding, which is no change of rank here."""
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=2e-4)
    return True
