"""mmdet itself on this backbone, with or without a compiled mmcv: training, resuming, testing, predicting."""

import json
from pathlib import Path

import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope, init_default_scope
from mmengine.runner import Runner

from soft_vit.data.shape_trees import make_tree
from soft_vit.dense import mmcv_ext  # noqa: F401  before mmdet is imported
from soft_vit.engine import train
from soft_vit.engine.checkpoints.safe_checkpoint import load_checkpoint_file

pytest.importorskip("mmdet", exc_type=ModuleNotFoundError)

CONFIGS = Path(__file__).parents[2] / "configs" / "mmdet"
COCO, SHAPES = CONFIGS / "mask_rcnn_soft_norm_tiny_fpn_1x_coco.py", CONFIGS / "mask_rcnn_soft_pico_shapes.py"
# Published, in millions (arXiv 2207.03341).
PARAMETERS = dict(tiny=33, medium=65)


def build(config: Config) -> torch.nn.Module:
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules

    register_all_modules(init_default_scope=False)
    with DefaultScope.overwrite_default_scope("mmdet"):
        return MODELS.build(config.model)


@pytest.mark.parametrize("size", PARAMETERS)
def test_as_many_parameters_as_published(size):
    config = Config.fromfile(str(COCO))
    widths = [64, 128, 288 if size == "medium" else 320, 512]
    config.merge_from_dict({"model.backbone.arch": f"soft_norm_{size}", "model.neck.in_channels": widths})
    with torch.device("meta"):
        model = build(config)
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(1e6 * PARAMETERS[size], rel=0.03)


def test_the_1x_recipe():
    """AdamW at 1e-4 and batch 16 for 12 epochs, a tenth of it after 8 and 11; no decay of norms and positions."""
    config = Config.fromfile(str(COCO))
    assert 8 * config.train_dataloader.batch_size == config.auto_scale_lr.base_batch_size == 16
    assert config.train_cfg.max_epochs == 12
    with torch.device("meta"):
        model = build(config)
    with DefaultScope.overwrite_default_scope("mmdet"):
        wrapper = build_optim_wrapper(model, config.optim_wrapper)
    groups = {id(group["params"][0]): group for group in wrapper.param_groups}
    decays = {name: groups[id(p)]["weight_decay"] for name, p in model.named_parameters()}
    exempt = {name for name, decay in decays.items() if decay == 0}
    norms = {name for name, m in model.named_modules() if isinstance(m, (torch.nn.LayerNorm, torch.nn.BatchNorm2d))}
    embeddings = {name for name in decays if name.endswith(("pos_embed", "cls_token"))}
    assert exempt == {name for name in decays if name.rpartition(".")[0] in norms} | embeddings
    assert {decay for name, decay in decays.items() if name not in exempt} == {1e-4}
    assert {group["lr"] for group in wrapper.param_groups} == {1e-4}
    assert config.param_scheduler[1].milestones == [8, 11]


def test_weights_of_a_classifier_begin_a_detector(tmp_path):
    classifier = timm.create_model("soft_pico", num_classes=10)
    torch.save({"state_dict": classifier.state_dict()}, tmp_path / "classifier.pth")
    config = Config.fromfile(str(SHAPES))
    config.model.backbone.init_cfg = dict(type="Pretrained", checkpoint=str(tmp_path / "classifier.pth"))
    model = build(config)
    model.init_weights()
    body = model.backbone.body["model"].state_dict()
    torch.testing.assert_close(body, {name: classifier.state_dict()[name] for name in body}, rtol=0, atol=0)


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("tree") / "coco"
    make_tree(root, "coco", train=8, val=4, size=96)
    return root


def options(tree: Path, epochs: int) -> dict:
    """Two steps an epoch; tested on what was trained on, because 8 images teach nothing about others."""
    annotations = str(tree / "annotations" / "instances_train2017.json")
    changes = {f"{split}_dataloader.dataset.data_root": str(tree) for split in ("train", "val", "test")}
    for split in ("val", "test"):
        changes[f"{split}_dataloader.dataset.ann_file"] = annotations
        changes[f"{split}_dataloader.dataset.data_prefix"] = dict(img="train2017/")
        changes[f"{split}_evaluator.ann_file"] = annotations
    return {
        **changes,
        # A quicker step that learns the same.
        "model.train_cfg.rcnn.sampler.num": 32,
        "model.train_cfg.rpn_proposal.nms_pre": 200,
        "model.test_cfg.rpn.nms_pre": 100,
        "model.test_cfg.rpn.max_per_img": 50,
        "train_dataloader.batch_size": 4,
        "train_cfg.max_epochs": epochs,
        "train_cfg.val_interval": epochs,
        "default_hooks.checkpoint.interval": epochs,
        "default_hooks.logger.interval": 1,
        # A mean over more steps would hide how far the loss has fallen.
        "log_processor.window_size": 1,
        "param_scheduler": [dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=5)],
    }


def scalars(work_dir: Path) -> list[dict]:
    return [json.loads(line) for file in sorted(work_dir.glob("*/vis_data/scalars.json")) for line in file.open()]


def test_train_resume_test_and_predict(tree, tmp_path):
    train(SHAPES, work_dir=tmp_path, options=options(tree, epochs=20))
    losses = [entry["loss"] for entry in scalars(tmp_path) if "loss" in entry]
    assert len(losses) == 40
    assert sum(losses[-4:]) / 4 <= losses[0] / 2

    result = train(SHAPES, work_dir=tmp_path, resume="auto", options=options(tree, epochs=21))
    log = scalars(tmp_path)
    # AdamW keeps moments of parameters with gradients; parallel processes wait for all of them.
    optimizer = load_checkpoint_file(result.checkpoint)["optimizer"]
    assert len(optimizer["state"]) == sum(len(group["params"]) for group in optimizer["param_groups"])
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, 43))
    assert [entry["loss"] for entry in log if "loss" in entry][40] <= losses[0] / 2

    config = Config.fromfile(str(SHAPES))
    config.merge_from_dict(options(tree, epochs=21))
    config.load_from, config.work_dir = str(result.checkpoint), str(tmp_path / "test")
    # As mmdet's own programs do.
    measured = Runner.from_cfg(config).test()
    validated = next(entry for entry in reversed(log) if "coco/bbox_mAP" in entry)
    for metric in ("bbox_mAP", "segm_mAP"):
        assert measured[f"coco/{metric}"] == validated[f"coco/{metric}"] > 0

    from mmdet.apis import inference_detector, init_detector

    model = init_detector(config, str(result.checkpoint), device="cpu")
    assert model.dataset_meta["classes"][0] == "circle"
    found = inference_detector(model, str(next((tree / "val2017").glob("*.jpg")))).pred_instances
    assert len(found.bboxes) == len(found.scores) == len(found.labels)
    assert found.masks.shape[1:] == (96, 96)
    init_default_scope("mmpretrain")
