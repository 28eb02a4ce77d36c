"""The recipes of the zoo: learning rate, average and names follow from the published rules, and runs resume exactly."""

from pathlib import Path

import pytest
import timm
from engine.runs import assert_same_state, scalars
from models.zoo.families import FAMILIES
from PIL import Image

from soft_vit.data import ShapeImages
from soft_vit.engine import train
from soft_vit.engine.config import resolve
from soft_vit.models import FAMILY_MODELS
from soft_vit.weights import ENTRIES

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "zoo").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_recipe(path):
    config = resolve(path)
    assert config.model.model_name == path.stem in FAMILY_MODELS
    batch = 8 * config.train_dataloader.batch_size
    assert config.auto_scale_lr.base_batch_size == batch
    # Models at 384 go on from those at 224.
    lr = 2e-5 if path.stem.endswith("_384") else 5e-4 * batch / 512
    assert config.optim_wrapper.optimizer.lr == pytest.approx(lr)
    of_ravlt, of_pvt = path.stem.startswith(("ravlt", "mavit")), "_pvt_" in path.stem
    warm_up, cosine = config.param_scheduler
    short = of_ravlt or of_pvt or path.stem.endswith("_384")
    assert (warm_up.end, warm_up.start_factor) == (5 if short else 20, 2e-3 if of_pvt else 1e-3)
    lowest = cosine.eta_min if of_ravlt else cosine.eta_min_ratio * lr
    assert lowest == pytest.approx(1e-5 * batch / 1024 if of_ravlt else (0.02 if of_pvt else 0.01) * lr)
    decay = 0.99996 ** (batch / 512) if of_ravlt else 0.9996 ** (batch / 4096)
    sizes = {config.model.img_size, *(step.img_size for step in config.test_dataloader.dataset.pipeline[1:-1])}
    assert sizes == {timm.get_pretrained_cfg(path.stem).input_size[-1]}
    for hook in config.get("custom_hooks", []):
        if hook.type == "EMAEvalHook":
            assert hook.momentum == pytest.approx(1 - decay, rel=1e-3)
    # Of the size that is quickly built; tests/models/zoo/test_contract.py builds every model as it is.
    row = next(row for row in FAMILIES.values() if path.stem in row.models)
    timm.create_model(path.stem, drop_path_rate=config.model.drop_path_rate, device="meta", **row.small)


def test_every_recorded_file_of_the_zoo_names_its_recipe():
    recorded = {entry.config for entry in ENTRIES.values() if entry.model in FAMILY_MODELS}
    assert recorded <= {str(path.relative_to(ROOT)) for path in CONFIGS}


def test_a_demo_for_every_family():
    families = set()
    for path in (ROOT / "configs" / "demo" / "zoo").glob("*.py"):
        config = resolve(path)
        families.add(timm.model_entrypoint(config.model.model_name).__module__)
    assert families == {timm.model_entrypoint(name).__module__ for name in FAMILY_MODELS}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Twelve images of two classes for training, and two for validation."""
    root = tmp_path_factory.mktemp("images")
    for split, count in (("train", 12), ("val", 2)):
        drawn = ShapeImages(count, split, size=32)
        for i in range(count):
            folder = root / split / str(i % 2)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawn[i].image).save(folder / f"{i}.png")
    return root


# With and without MESA, repeated augmentation, and BatchNorm.
@pytest.mark.parametrize(
    "family",
    ["mila", *(pytest.param(family, marks=pytest.mark.slow) for family in ("h_vit3", "inline_pvt", "ravlt"))],
)
def test_a_recipe_resumes_exactly(family, images, tmp_path):
    """Two epochs of three steps; stopped within the second, in which the loss has the average's term."""
    row = FAMILIES[family]
    recipe = ROOT / "configs" / "zoo" / f"{row.tiny}.py"
    options = {
        "data_root": str(images),
        "image_size": 32,
        "num_classes": 2,
        **{f"model.{name}": value for name, value in row.small.items()},
        **{f"{split}_dataloader.num_workers": 0 for split in ("train", "val")},
        **{f"{split}_dataloader.persistent_workers": False for split in ("train", "val")},
        "train_cfg.max_epochs": 2,
        "train_dataloader.batch_size": 4,
        "default_hooks.logger.interval": 1,
        "default_hooks.checkpoint.by_epoch": False,
        "default_hooks.checkpoint.max_keep_ckpts": 3,
    }
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(recipe, work_dir=whole, options=options)
    steps = [entry for entry in scalars(whole) if "loss" in entry]
    hooks = {hook["type"] for hook in resolve(recipe).get("custom_hooks", [])}
    assert ["loss_mesa" in entry for entry in steps] == [False] * 3 + ["MesaHook" in hooks] * 3
    resumed = train(recipe, work_dir=parts, options=options, resume=str(whole / "iter_4.pth"))
    kept = ["state_dict", *["ema_state_dict"] * ("EMAEvalHook" in hooks)]
    assert_same_state(straight.checkpoint, resumed.checkpoint, *kept)
