"""Models that learn real pictures: pyramids on Fashion-MNIST, attentions in one ViT, fine-tuning on solar cells."""

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from soft_vit.engine import train
from soft_vit.layers import ATTENTIONS
from soft_vit.models.vit import vit_name
from soft_vit.weights.files import RESOURCES
from studies.descent import one_cycle
from studies.real.data import items, solar_cells, unpack_fashion
from studies.real.runs import SEEDS

PYRAMIDS = ("soft_plus_pico", "softmax_pyramid_pico", "none_pyramid_pico")
PYRAMID_RUNS = tuple(f"{name}_{seed}" for seed, name in product(SEEDS, PYRAMIDS))

# The small ViT: an item of 28 pixels lies anywhere on a ground of GROUND pixels, so that no place has a meaning.
GROUND, PATCH, STEPS, BATCH, RATE = 56, 4, 1200, 64, 2e-3
VIT: dict[str, Any] = dict(img_size=GROUND, patch_size=PATCH, embed_dim=64, depth=4, num_heads=2, num_classes=10)
ATTENTION_RUNS = tuple(f"{kind}_{seed}" for seed, kind in product(SEEDS, ATTENTIONS))

BEGINNINGS: dict[str, tuple[str, str | None]] = {
    "scratch": ("soft_pico", None),
    "shapes": ("soft_pico", "timm://soft_pico.shapes"),
    "fashion": ("soft_plus_pico", "timm://soft_plus_pico.fashion"),
}
"""The model that is fine-tuned, and its weights, all of this package."""
CELL_RUNS = tuple(f"{name}_{seed}" for seed, name in product(SEEDS, BEGINNINGS))


def learn_fashion(name: str, root: Path) -> dict[str, Any]:
    """Train a pyramid by its config; return the accuracy on the 10,000 test images."""
    unpack_fashion(root)
    model, _, seed = name.rpartition("_")
    return _trained(f"fashion_mnist/{model}.py", root / "runs" / "fashion" / name, int(seed), {"data_root": str(root)})


def _trained(config: str, folder: Path, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train by a config, from where the run in a folder stands; return metrics in percent."""
    resume = "auto" if any(folder.glob("*.pth")) else None
    options = {"randomness.seed": seed, **options}
    result = train(RESOURCES / "configs" / config, work_dir=folder, resume=resume, options=options)
    return {"config": config, "seed": seed, "metrics": result.metrics}


def placed(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Return items `[B, 28, 28]` each at a random place of a black ground, normalised, `[B, 3, GROUND, GROUND]`."""
    x, side = torch.zeros(len(images), GROUND, GROUND), images.shape[-1]
    for i, (top, left) in enumerate(rng.integers(GROUND - side + 1, size=(len(images), 2))):
        x[i, top : top + side, left : left + side] = images[i] / 255
    return ((x - 0.5) / 0.5)[:, None].expand(-1, 3, -1, -1)


def learn_places(name: str, root: Path) -> dict[str, Any]:
    """Train a small ViT with an attention type on items at random places; return its accuracy on all test items."""
    kind, _, seed = name.rpartition("_")
    torch.manual_seed(int(seed))
    model = timm.create_model(vit_name(kind, "tiny"), **VIT)
    descend = one_cycle(model, RATE, STEPS, decay=0.05)
    images, labels = items(root, "train")
    for step in tqdm(range(STEPS), unit="step"):
        rng = np.random.default_rng((int(seed), step))
        chosen = torch.from_numpy(rng.integers(len(images), size=BATCH))
        descend(F.cross_entropy(model(placed(images[chosen], rng)), labels[chosen]))
    right, rng = 0, np.random.default_rng(0)
    images, labels = items(root, "test")
    with torch.no_grad():
        for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            right += int((model.eval()(placed(x, rng)).argmax(1) == y).sum())
    return {"kind": kind, "seed": int(seed), "steps": STEPS, "accuracy": 100 * right / len(images)}


def cell_folders(root: Path) -> Path:
    """Write ELPV as a folder for each of its eight classes, grades by types, with its split; return the folder."""
    out, cells = root / "cells", solar_cells(root)
    if (out / "complete").exists():
        return out
    for path, grade, kind, is_test in zip(*cells, strict=True):
        folder = out / ("val" if is_test else "train") / f"{kind}_{grade:.2f}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    (out / "complete").touch()
    return out


def finetune_cells(name: str, root: Path) -> dict[str, Any]:
    """Fine-tune a pyramid on 1,970 photos of solar cells; return the accuracy on the others, in eight classes."""
    begin, _, seed = name.rpartition("_")
    model, weights = BEGINNINGS[begin]
    options: dict[str, Any] = {"data_root": str(cell_folders(root)), "model.model_name": model, "image_size": 96}
    options |= {"load_from": weights, "train_dataloader.num_workers": 0, "val_dataloader.num_workers": 0}
    options |= {"train_dataloader.persistent_workers": False, "val_dataloader.persistent_workers": False}
    return _trained("finetune/soft_tiny_imagefolder.py", root / "runs" / "cells" / name, int(seed), options)
