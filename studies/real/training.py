"""Pyramids that learn Fashion-MNIST by configs/fashion_mnist."""

from itertools import product
from pathlib import Path
from typing import Any

from soft_vit.engine import train
from soft_vit.weights.files import RESOURCES
from studies.real.data import unpack_fashion
from studies.real.runs import SEEDS

PYRAMIDS = ("soft_plus_pico", "softmax_pyramid_pico", "none_pyramid_pico")
PYRAMID_RUNS = tuple(f"{name}_{seed}" for seed, name in product(SEEDS, PYRAMIDS))


def learn_fashion(name: str, root: Path) -> dict[str, Any]:
    """Train a pyramid, from where its run stands; return the accuracy in percent on the 10,000 test images."""
    unpack_fashion(root)
    model, _, seed = name.rpartition("_")
    config, folder = f"fashion_mnist/{model}.py", root / "runs" / "fashion" / name
    resume = "auto" if any(folder.glob("*.pth")) else None
    options = {"randomness.seed": int(seed), "data_root": str(root)}
    result = train(RESOURCES / "configs" / config, work_dir=folder, resume=resume, options=options)
    return {"config": config, "seed": int(seed), "metrics": result.metrics}
