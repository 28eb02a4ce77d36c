"""Pyramids that first learn real pictures without labels, against as many steps with labels.

A run is `DATA_MODEL_BEGIN_LABELS_SEED`. `pretrain` has no labels, `tuned` begins with its weights, `short` does not,
and `scratch` takes the steps of both with labels. `averaged` is `tuned` after predicting features of the running
average instead of pixels. `_long` at the end is more steps without labels, or as many more with them. `gym_TYPE_SEED`
does all of it in fewer steps, for each attention type in one pyramid.
"""

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from soft_vit.engine.models.masked import MaskedImageModel
from soft_vit.layers import ATTENTIONS
from soft_vit.models import model_name
from soft_vit.weights.files import write_atomically
from studies.descent import one_cycle
from studies.real.data import items, solar_cells
from studies.real.runs import SEEDS

PRETRAINED = ("soft_plus_pico", "softmax_pyramid_pico", "mila_pyramid_pico")
SETTINGS = {"fashion": (56, 8), "cells": (64, 16)}
"""Of each data set the side of its images, and that of masked squares, in pixels."""
LABELS: dict[str, int | None] = {"100": 100, "1000": 1000, "all": None}
BATCH, RATE, DECAY, LAYER_DECAY, SHIFT = 64, 1e-3, 0.05, 0.9, 0.08
MOMENTUM = 0.99
STEPS, LONG_STEPS, GYM_STEPS = (600, 200), (2400, 200), (240, 80)
"""Without labels, and with them."""


class Trial(NamedTuple):
    """A run with labels, of `pretrain`, or of the gym: see this file for begin, and for steps."""

    data: str
    model: str
    begin: str
    seed: int
    labels: str = "all"
    steps: tuple[int, int] = STEPS


BEGINNINGS = [("pretrain", "all"), *product(("tuned", "short", "scratch", "averaged"), LABELS)]
PRETRAIN_RUNS = {
    f"{data}_{model}_{begin}_{labels}_{seed}": Trial(data, model, begin, seed, labels)
    for seed, model, data, (begin, labels) in product(SEEDS, PRETRAINED, SETTINGS, BEGINNINGS)
    if begin != "averaged" or model == PRETRAINED[0]
}
PRETRAIN_RUNS |= {
    f"{name}_long": trial._replace(steps=LONG_STEPS)
    for name, trial in PRETRAIN_RUNS.items()
    if trial.model == PRETRAINED[0] and trial.seed == 0 and trial.begin in ("tuned", "scratch")
}
PRETRAIN_RUNS |= {
    f"gym_{kind}_0": Trial("fashion", model_name(kind, "pico"), "gym", 0, "1000", GYM_STEPS) for kind in ATTENTIONS
}


def pictures(root: Path, data: str, test: bool) -> tuple[Tensor, Tensor]:
    """Return images of a data set, uint8 `[n, H, W]` at its size, and classes `[n]`, those of cells grades by types."""
    side = SETTINGS[data][0]
    if data == "fashion":
        images, labels = items(root, "test" if test else "train")
        return F.interpolate(images[:, None], side, mode="bilinear")[:, 0], labels
    cells = solar_cells(root)
    classes = sorted({*zip(cells.grades.tolist(), cells.kinds, strict=True)})
    chosen = np.flatnonzero(cells.is_test == test)
    read = [Image.open(cells.paths[i]).convert("L").resize((side, side), Image.Resampling.BICUBIC) for i in chosen]
    labels = [classes.index((cells.grades[i], cells.kinds[i])) for i in chosen]
    return torch.from_numpy(np.stack([np.asarray(image) for image in read])), torch.tensor(labels)


def prepared(images: Tensor, rng: np.random.Generator | None = None) -> Tensor:
    """Return images `[B, H, W]` normalised, `[B, 3, H, W]`; with rng, each shifted and half of them mirrored."""
    x = (images.float() / 255 - 0.5)[:, None] / 0.25
    if rng is not None:
        side, most = x.shape[-1], round(SHIFT * x.shape[-1])
        x = F.pad(x, (most,) * 4, mode="replicate")
        places = rng.integers(2 * most + 1, size=(len(x), 2))
        x = torch.stack([one[:, i : i + side, j : j + side] for one, (i, j) in zip(x, places, strict=True)])
        x = torch.where(torch.from_numpy(rng.random(len(x)) < 0.5)[:, None, None, None], x.flip(3), x)
    return x.expand(-1, 3, -1, -1)


def learn(model: nn.Module, loss: Any, images: Tensor, steps: int, seed: int, decay: float = 1.0) -> float:
    """Train a model by `loss(images, indices)`; return the mean loss of the last tenth of the steps.

    decay: the factor from the learning rate of a layer to that of the one below.
    """
    model.train()
    groups: Any = {"params": param_groups_layer_decay(model, layer_decay=decay)} if decay < 1 else {}
    descend = one_cycle(model, RATE, steps, DECAY, clip=5.0, **groups)
    found = []
    torch.manual_seed(seed)
    for step in range(steps):
        rng = np.random.default_rng((seed, step))
        chosen = torch.from_numpy(rng.integers(len(images), size=BATCH))
        value = loss(prepared(images[chosen], rng), chosen)
        descend(value)
        found.append(value.item())
    return float(np.mean(found[-max(1, steps // 10) :]))


def masked_model(trial: Trial) -> MaskedImageModel:
    torch.manual_seed(trial.seed)
    side, square = SETTINGS[trial.data]
    momentum = MOMENTUM if trial.begin == "averaged" else None
    return MaskedImageModel(trial.model, mask_patch=square, img_size=side, momentum=momentum)


def without_labels(trial: Trial, root: Path, steps: int) -> tuple[MaskedImageModel, float]:
    """Return a pre-trained model and its loss, of the folder of the study once it was trained."""
    name = f"{trial.data}_{trial.model}_{steps}_{trial.seed}{'_averaged' * (trial.begin == 'averaged')}"
    path = root / "runs" / "pretrain" / f"{name}.safetensors"
    model = masked_model(trial)
    if not path.exists():
        images = pictures(root, trial.data, test=False)[0]
        value = learn(model, lambda x, _: model.loss(x)["loss"], images, steps, trial.seed)
        write_atomically(path, save({**model.state_dict(), "loss": torch.tensor(value)}))
    weights = load_file(path)
    value = weights.pop("loss").item()
    model.load_state_dict(weights)
    return model, value


def with_labels(trial: Trial, root: Path, network: Any, steps: int, decay: float = 1.0) -> float:
    """Train a network with labels of images that follow from the seed; return its accuracy in percent."""
    images, labels = pictures(root, trial.data, test=False)
    kept = torch.from_numpy(np.random.default_rng(trial.seed).permutation(len(images))[: LABELS[trial.labels]])
    torch.manual_seed(trial.seed)
    network.reset_classifier(int(labels.max()) + 1)
    loss = lambda x, chosen: F.cross_entropy(network(x), labels[kept][chosen])  # noqa: E731  short
    learn(network, loss, images[kept], steps, trial.seed, decay)
    tests, right = pictures(root, trial.data, test=True), 0
    with torch.no_grad():
        for x, y in zip(*(part.split(256) for part in tests), strict=True):
            right += int((network.eval()(prepared(x)).argmax(1) == y).sum())
    return 100 * right / len(tests[1])


def learn_masked(name: str, root: Path) -> dict[str, Any]:
    """Do a run of this study; return its loss without labels, and its accuracy with them."""
    trial = PRETRAIN_RUNS[name]
    is_gym = trial.begin == "gym"
    first, second = trial.steps
    found: dict[str, Any] = {**trial._asdict(), "batch": BATCH}
    if trial.begin in ("pretrain", "tuned", "averaged", "gym"):
        model, found["loss"] = without_labels(trial, root, first)
    labelled = {"tuned": second, "averaged": second, "short": second, "scratch": first + second}
    for begin, steps in labelled.items():
        if trial.begin == begin or (is_gym and begin != "averaged"):
            pretrained = begin in ("tuned", "averaged")
            network, decay = (model.model, LAYER_DECAY) if pretrained else (masked_model(trial).model, 1.0)
            found[begin if is_gym else "accuracy"] = with_labels(trial, root, network, steps, decay)
    return found
