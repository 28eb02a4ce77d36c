"""mmdet and mmseg themselves on this backbone, with or without a compiled mmcv: from training to predicting."""

from importlib import import_module
from pathlib import Path

import pytest
from engine.runs import scalars
from mmengine.config import Config
from mmengine.registry import init_default_scope

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense import mmcv_ext  # noqa: F401  before mmdet and mmseg are imported
from soft_vit.engine import evaluate, train
from soft_vit.engine.resume.read import load_checkpoint_file

for library in ("mmdet", "mmseg"):
    pytest.importorskip(library, exc_type=ModuleNotFoundError)

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = {"mmdet": "mask_rcnn_soft_pico_shapes.py", "mmseg": "upernet_soft_pico_shapes.py"}


def detection_options(folder: Path) -> dict:
    """Two steps an epoch; tested on the training images, because 4 images do not generalise."""
    make_tree(folder, "coco", train=4, val=1, size=64)
    annotations = str(folder / "annotations" / "instances_train2017.json")
    changes = {f"{split}_dataloader.dataset.data_root": str(folder) for split in ("train", "val", "test")}
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
    }


def segmentation_options(folder: Path) -> dict:
    """Square images to train on, and odd ones that mmseg tests whole and as they are."""
    make_tree(folder / "train", "ade", train=4, val=1, size=96)
    make_tree(folder / "val", "ade", train=1, val=2, size=(97, 203))
    trees = {"train": folder / "train", "val": folder / "val", "test": folder / "val"}
    return {
        **{f"{split}_dataloader.dataset.data_root": str(tree) for split, tree in trees.items()},
        "model.data_preprocessor.size": (96, 96),
    }


def lasting(length: int, key: str) -> dict:
    return {
        "train_dataloader.batch_size": 2,
        f"train_cfg.{key}": length,
        "train_cfg.val_interval": length,
        "default_hooks.checkpoint.interval": length,
        "default_hooks.logger.interval": 1,
        # A mean over more steps would hide how far the loss has fallen.
        "log_processor.window_size": 1,
        "param_scheduler": [dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=5)],
    }


def predict(library: str, config: Config, checkpoint: str, folder: Path) -> None:
    """As the programs of the library do."""
    apis = import_module(f"{library}.apis")
    if library == "mmdet":
        model = apis.init_detector(config, checkpoint, device="cpu")
        assert model.dataset_meta["classes"][0] == "circle"
        found = apis.inference_detector(model, str(next((folder / "val2017").glob("*.jpg")))).pred_instances
        assert len(found.bboxes) == len(found.scores) == len(found.labels)
        assert found.masks.shape[1:] == (64, 64)
    else:
        model = apis.init_model(config, checkpoint, device="cpu")
        image = next((folder / "val" / "images" / "validation").glob("*.jpg"))
        assert apis.inference_model(model, str(image)).pred_sem_seg.data.shape == (1, 97, 203)


# Options, what a run counts, 16 and 18 steps of it, and metrics.
RUNS = {
    "mmdet": (detection_options, "max_epochs", (8, 9), ("coco/bbox_mAP", "coco/segm_mAP")),
    "mmseg": (segmentation_options, "max_iters", (16, 18), ("mIoU",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", RUNS)
def test_train_resume_test_and_predict(library, tmp_path):
    options_of, key, (first, last), metrics = RUNS[library]
    config_file, folder, work_dir = CONFIGS / library / SMALL[library], tmp_path / "data", tmp_path / "run"
    options = options_of(folder)
    train(config_file, work_dir=work_dir, options={**options, **lasting(first, key)})
    result = train(config_file, work_dir=work_dir, resume="auto", options={**options, **lasting(last, key)})
    log = scalars(work_dir)
    steps = {entry["step"]: entry["loss"] for entry in log if "loss" in entry}
    assert list(steps) == list(range(1, 19))
    assert sum(steps[step] for step in range(15, 19)) / 4 < 0.8 * steps[1]
    # AdamW keeps moments of parameters with gradients; parallel processes wait for all of them.
    optimizer = load_checkpoint_file(result.checkpoint)["optimizer"]
    assert len(optimizer["state"]) == sum(len(group["params"]) for group in optimizer["param_groups"])

    options |= lasting(last, key)
    measured = evaluate(config_file, str(result.checkpoint), options=options, work_dir=tmp_path / "test")
    with pytest.raises(ValueError, match="tta_model"):
        evaluate(config_file, str(result.checkpoint), options=options, tta=True)
    validated = next(entry for entry in reversed(log) if metrics[0] in entry)
    for metric in metrics:
        assert measured[metric] == validated[metric] > 0
    config = Config.fromfile(str(config_file))
    config.merge_from_dict(options)
    predict(library, config, str(result.checkpoint), folder)
    init_default_scope("mmpretrain")
