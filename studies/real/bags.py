"""Bags of items of Fashion-MNIST, positive if they hold one shirt: which pooling finds it, and what a large bag costs.

A run is `POOL_SEED`, or `cost_POOL` in a process of its own.
"""

import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.large import peak_gigabytes
from soft_vit.data.features import read_features, write_features
from soft_vit.engine.metrics import AreaUnderCurve
from soft_vit.engine.models.bags import BagClassifier
from soft_vit.predict.extract import TimmFeatures
from studies.descent import one_cycle
from studies.real.data import items
from studies.real.runs import SEEDS

MODEL, IMAGES = "soft_plus_pico.fashion", 20_000
"""The model of the features, and how many training images they are of."""
SHIRT = 6
LENGTHS, BAGS, BATCH, EPOCHS, RATE, DIM = (50, 150), 400, 8, 15, 1e-3, 128
LARGE = 50_000
"""The length of the bag whose cost is measured."""
POOLINGS: dict[str, dict[str, Any]] = {pool: {"pool": pool} for pool in ("mean", "max", "gated")}
POOLINGS |= {kind: {"attention": kind, "pool": "token"} for kind in ("nystrom", "linear", "softmax_one")}
BAG_RUNS = [*(f"{pool}_{seed}" for seed, pool in product(SEEDS, POOLINGS)), *(f"cost_{pool}" for pool in POOLINGS)]


def instances(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return features `[n, C]` and classes `[n]` of a split, which are computed once."""
    path, (images, classes) = root / "runs" / "bags" / f"{split}.safetensors", items(root, split)
    if not path.exists():
        features = TimmFeatures(MODEL)
        pictures = [Image.fromarray(image.numpy()).convert("RGB") for image in images[:IMAGES]]
        found = [features(pictures[start : start + 256]) for start in range(0, len(pictures), 256)]
        write_features(path, {"features": torch.cat(found).numpy()}, features.made_with)
    features = read_features(path)[0]["features"]
    return features, classes[: len(features)]


def draw(classes: Tensor, count: int, seed: int) -> tuple[list[np.ndarray], Tensor]:
    """Return the instances of bags, of which every second one holds a shirt, and whether they do, `[count]`."""
    rng, is_shirt = np.random.default_rng(seed), (classes == SHIRT).numpy()
    others, shirts = np.flatnonzero(~is_shirt), np.flatnonzero(is_shirt)
    bags = [rng.choice(others, rng.integers(*LENGTHS, endpoint=True)) for _ in range(count)]
    for bag in bags[1::2]:
        bag[rng.integers(len(bag))] = rng.choice(shirts)
    return bags, torch.arange(count) % 2


def new_model(pool: str, width: int, seed: int) -> BagClassifier:
    torch.manual_seed(seed)
    return BagClassifier(width, 2, dim=DIM, **POOLINGS[pool])


def learn_bags(name: str, root: Path) -> dict[str, Any]:
    """Do a run of this study; return accuracy and area under the curve on other bags, or the cost of a large bag."""
    pool, _, seed = name.rpartition("_")
    if name.startswith("cost_"):
        command = [sys.executable, "-m", "studies.real.bags", name.removeprefix("cost_")]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    (features, classes), (tests, test_classes) = (instances(root, split) for split in ("train", "test"))
    bags, labels = draw(classes, BAGS, int(seed))
    model = new_model(pool, features.shape[1], int(seed))
    rng = np.random.default_rng(int(seed))
    descend = one_cycle(model, RATE, EPOCHS * -(-BAGS // BATCH), decay=0.05, clip=5.0)
    for _ in range(EPOCHS):
        for chosen in torch.from_numpy(rng.permutation(BAGS)).split(BATCH):
            descend(nn.functional.cross_entropy(model([features[bags[i]] for i in chosen]), labels[chosen]))
    bags, labels = draw(test_classes, BAGS, 1000)
    with torch.no_grad():
        scores = torch.cat([model.eval()([tests[bag]]) for bag in bags])
    area = AreaUnderCurve().compute_metrics([*zip(scores.softmax(1), labels.tolist(), strict=True)])["auc"]
    accuracy = 100 * (scores.argmax(1) == labels).float().mean().item()
    return {"pool": pool, "seed": int(seed), "accuracy": accuracy, "auc": area}


def cost(pool: str) -> dict[str, Any]:
    """Return CPU seconds of a forward and a backward of one large bag, and the GB that this process has taken."""
    torch.set_num_threads(1)
    model = new_model(pool, 160, 0)
    x, start = torch.randn(LARGE, 160), time.process_time()
    model([x]).sum().backward()
    return {"pool": pool, "seconds": time.process_time() - start, "gigabytes": peak_gigabytes()}


if __name__ == "__main__":
    print(json.dumps(cost(sys.argv[1])))
