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
from studies.real.students import save_student

PYRAMIDS = ("soft_plus_pico", "softmax_pyramid_pico", "none_pyramid_pico")
PYRAMID_RUNS = tuple(f"{name}_{seed}" for seed, name in product(SEEDS, PYRAMIDS))

# The small ViT: one of SIDE x SIDE items, each a token of PIXELS x PIXELS, is of another class than the others.
SIDE, PIXELS, STEPS, BATCH, RATE, TESTS = 8, 14, 1200, 64, 2e-3, 4096
VIT: dict[str, Any] = dict(img_size=SIDE * PIXELS, patch_size=PIXELS, embed_dim=64, depth=4, num_heads=2)
ATTENTION_RUNS = tuple(f"{kind}_{seed}" for seed, kind in product(SEEDS, ATTENTIONS))

# A pass of the student, a ViT-S, takes as long as five of a pyramid.
BEGINNINGS: dict[str, dict[str, Any]] = {
    "scratch": {"model.model_name": "soft_pico", "load_from": None},
    "scratch_soft_plus": {"model.model_name": "soft_plus_pico", "load_from": None},
    "shapes": {"model.model_name": "soft_pico", "load_from": "timm://soft_pico.shapes"},
    "fashion": {"model.model_name": "soft_plus_pico", "load_from": "timm://soft_plus_pico.fashion"},
    "student": {"model.pretrained": True, "load_from": None, "image_size": 112, "train_cfg.max_epochs": 6},
}
"""Options of the model that is fine-tuned, and its weights: of this package, or of a student of the real teacher."""
STUDENT = "hedgehog_450_varied"
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


def by_class(root: Path, split: str) -> list[Tensor]:
    """Return the items of each class, at half the size, `[n, PIXELS, PIXELS]` in [-1, 1]."""
    images, labels = items(root, split)
    halved = F.avg_pool2d(images[:, None].float(), 2)[:, 0] / 127.5 - 1
    return [halved[labels == label] for label in range(10)]


def sheets(classes: list[Tensor], count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return images `[count, 3, H, W]` of items of one class, but for one item, and the class of that `[count]`."""
    usual = rng.integers(10, size=count)
    odd = (usual + rng.integers(1, 10, size=count)) % 10
    drawn = [classes[i][rng.integers(len(classes[i]), size=SIDE**2)] for i in usual]
    for sheet, i in zip(drawn, odd, strict=True):
        sheet[rng.integers(SIDE**2)] = classes[i][rng.integers(len(classes[i]))]
    x = torch.stack(drawn).unflatten(1, (SIDE, SIDE)).transpose(2, 3).flatten(3).flatten(1, 2)
    return x[:, None].expand(-1, 3, -1, -1), torch.from_numpy(odd)


def find_odd(name: str, root: Path) -> dict[str, Any]:
    """Train a small ViT with an attention type to name the item that is of another class; return its accuracy."""
    kind, _, seed = name.rpartition("_")
    torch.manual_seed(int(seed))
    model = timm.create_model(vit_name(kind, "tiny"), num_classes=10, **VIT)
    descend, classes = one_cycle(model, RATE, STEPS, decay=0.05), by_class(root, "train")
    for step in tqdm(range(STEPS), unit="step"):
        images, labels = sheets(classes, BATCH, np.random.default_rng((int(seed), step)))
        descend(F.cross_entropy(model(images), labels))
    model, rng, classes = model.eval(), np.random.default_rng(0), by_class(root, "test")
    tests = (sheets(classes, BATCH, rng) for _ in range(TESTS // BATCH))
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in tests)
    return {"kind": kind, "seed": int(seed), "metrics": {"accuracy/top1": 100 * right / TESTS}}


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
    """Fine-tune a model on 1,970 photos of solar cells; return the accuracy on the others, in eight classes."""
    begin, _, seed = name.rpartition("_")
    options: dict[str, Any] = {"data_root": str(cell_folders(root)), "image_size": 96, **BEGINNINGS[begin]}
    if begin == "student":
        options["model.model_name"] = f"local-dir:{save_student(STUDENT, root)}"
    options |= {"train_dataloader.num_workers": 0, "val_dataloader.num_workers": 0}
    return _trained("finetune/soft_tiny_imagefolder.py", root / "runs" / "cells" / name, int(seed), options)
