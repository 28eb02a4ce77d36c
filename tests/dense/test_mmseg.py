"""mmseg itself on this backbone, with or without a compiled mmcv: training, resuming, testing, predicting."""

import json
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope, init_default_scope
from mmengine.runner import Runner

from soft_vit.data.shape_trees import make_tree
from soft_vit.dense import mmcv_ext  # noqa: F401  before mmseg is imported
from soft_vit.engine import train
from soft_vit.engine.checkpoints.safe_checkpoint import load_checkpoint_file

pytest.importorskip("mmseg", exc_type=ModuleNotFoundError)

CONFIGS = Path(__file__).parents[2] / "configs" / "mmseg"
ADE, SHAPES = CONFIGS / "upernet_soft_norm_small_512_ade20k.py", CONFIGS / "upernet_soft_pico_shapes.py"
# Published, in millions (arXiv 2207.03341).
PARAMETERS = dict(small=54, medium=76)


def build(config: Config) -> torch.nn.Module:
    from mmseg.registry import MODELS
    from mmseg.utils import register_all_modules

    register_all_modules(init_default_scope=False)
    with DefaultScope.overwrite_default_scope("mmseg"):
        return MODELS.build(config.model)


@pytest.mark.parametrize("size", PARAMETERS)
def test_as_many_parameters_as_published(size):
    config = Config.fromfile(str(ADE))
    third = {"small": 320, "medium": 288}[size]
    config.merge_from_dict(
        {
            "model.backbone.arch": f"soft_norm_{size}",
            "model.decode_head.in_channels": [64, 128, third, 512],
            "model.auxiliary_head.in_channels": third,
        }
    )
    with torch.device("meta"):
        model = build(config)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(1e6 * PARAMETERS[size], rel=0.03)


def test_the_160k_recipe():
    """AdamW at 6e-5 and batch 16 in 160,000 steps; no decay of norms and positions."""
    config = Config.fromfile(str(ADE))
    assert 8 * config.train_dataloader.batch_size == config.auto_scale_lr.base_batch_size == 16
    assert config.train_cfg.max_iters == config.param_scheduler[-1].end == 160_000
    with torch.device("meta"):
        model = build(config)
    with DefaultScope.overwrite_default_scope("mmseg"):
        wrapper = build_optim_wrapper(model, config.optim_wrapper)
    groups = {id(group["params"][0]): group for group in wrapper.param_groups}
    decays = {name: groups[id(p)]["weight_decay"] for name, p in model.named_parameters()}
    assert {decays[name] for name in decays if name.endswith(("pos_embed", "cls_token", "bn.weight"))} == {0.0}
    assert {decays[name] for name in decays if name.endswith(("conv.weight", "fc1.weight"))} == {0.01}
    assert {group["lr"] for group in wrapper.param_groups} == {6e-5}


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> dict[str, Path]:
    """Square images to train on, and odd ones that mmseg tests whole and as they are."""
    root = tmp_path_factory.mktemp("trees")
    make_tree(root / "train", "ade", train=8, val=1, size=96)
    make_tree(root / "val", "ade", train=1, val=3, size=(97, 203))
    return {"train": root / "train", "val": root / "val", "test": root / "val"}


def options(trees: dict[str, Path], steps: int) -> dict:
    return {
        **{f"{split}_dataloader.dataset.data_root": str(tree) for split, tree in trees.items()},
        "model.data_preprocessor.size": (96, 96),
        "train_dataloader.batch_size": 4,
        "train_cfg.max_iters": steps,
        "train_cfg.val_interval": steps,
        "default_hooks.checkpoint.interval": steps,
        "default_hooks.logger.interval": 1,
        # A mean over more steps would hide how far the loss has fallen.
        "log_processor.window_size": 1,
        "param_scheduler": [dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=5)],
    }


def scalars(work_dir: Path) -> list[dict]:
    return [json.loads(line) for file in sorted(work_dir.glob("*/vis_data/scalars.json")) for line in file.open()]


def test_train_resume_test_and_predict(trees, tmp_path):
    train(SHAPES, work_dir=tmp_path, options=options(trees, steps=40))
    losses = [entry["loss"] for entry in scalars(tmp_path) if "loss" in entry]
    assert len(losses) == 40
    assert sum(losses[-4:]) / 4 <= losses[0] / 2

    result = train(SHAPES, work_dir=tmp_path, resume="auto", options=options(trees, steps=42))
    log = scalars(tmp_path)
    # AdamW keeps moments of parameters with gradients; parallel processes wait for all of them.
    optimizer = load_checkpoint_file(result.checkpoint)["optimizer"]
    assert len(optimizer["state"]) == sum(len(group["params"]) for group in optimizer["param_groups"])
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, 43))
    assert [entry["loss"] for entry in log if "loss" in entry][40] <= losses[0] / 2

    config = Config.fromfile(str(SHAPES))
    config.merge_from_dict(options(trees, steps=42))
    config.load_from, config.work_dir = str(result.checkpoint), str(tmp_path / "test")
    # As mmseg's own programs do.
    measured = Runner.from_cfg(config).test()
    validated = next(entry for entry in reversed(log) if "mIoU" in entry)
    assert measured["mIoU"] == validated["mIoU"] > 0

    from mmseg.apis import inference_model, init_model

    model = init_model(config, str(result.checkpoint), device="cpu")
    image = next((trees["val"] / "images" / "validation").glob("*.jpg"))
    assert inference_model(model, str(image)).pred_sem_seg.data.shape == (1, 97, 203)
    init_default_scope("mmpretrain")
