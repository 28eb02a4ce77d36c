"""The configs for generated shapes, made small: overfitted to four images, saved, resumed, tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from soft_vit.data.demo.trees import make_tree
from soft_vit.engine import evaluate, train
from soft_vit.engine.resume.read import load_checkpoint_file

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs" / "detection"
KINDS = {
    "retinanet": {
        "model.head_convs": 1,
        "model.sizes": [[12, 16, 20], [24, 28, 34], [40, 50, 60], [70, 80, 90], [100, 120, 140]],
    },
    "mask_rcnn": {
        "model.sizes": [16, 24, 40, 64, 96],
        "model.box_head_dim": 64,
        "model.mask_head_dims": [32],
        "model.rpn_post_nms_top_n_train": 60,
        "model.rpn_post_nms_top_n_test": 30,
        "model.box_batch_size_per_image": 32,
    },
}
EPOCHS = {"retinanet": 8, "mask_rcnn": 14}


@pytest.fixture(scope="module")
def four_images(tmp_path_factory):
    root = tmp_path_factory.mktemp("four") / "coco"
    make_tree(root, "coco", train=4, val=1, size=(96, 112), seed=3)
    return root


def options_of(kind, root):
    epochs = EPOCHS[kind]
    cosine = {"type": "CosineAnnealingLR", "begin": 0, "end": epochs, "by_epoch": True, "convert_to_iter_based": True}
    options = {"data_root": str(root), "model.min_size": 96, "model.max_size": 112, "model.pyramid_channels": 32}
    for split in ("val", "test"):
        options[f"{split}_dataloader.dataset.ann_file"] = "annotations/instances_train2017.json"
        options[f"{split}_dataloader.dataset.img_dir"] = "train2017"
    return {
        **options,
        **KINDS[kind],
        "train_dataloader.dataset.transforms": [],
        "train_dataloader.batch_size": 2,
        "train_cfg.max_epochs": epochs,
        "train_cfg.val_interval": epochs,
        "param_scheduler": [{**cosine, "eta_min": 1e-4}],
        "optim_wrapper.optimizer.lr": 2e-3,
        "default_hooks.checkpoint.interval": epochs - 2,
        # A loss that is logged is the mean of four, not of all since the start.
        "default_hooks.logger.interval": 4,
        "log_processor.window_size": 4,
    }


# test_detectors.py checks losses and gradients of both; this is one run from end to end.
@pytest.mark.parametrize("kind", [pytest.param("retinanet", marks=pytest.mark.slow), "mask_rcnn"])
def test_four_images_are_learned_and_a_resumed_run_ends_alike(kind, four_images, tmp_path):
    config = CONFIGS / f"{kind}_soft_pico_shapes.py"
    options = options_of(kind, four_images)
    result = train(config, work_dir=tmp_path / "whole", options=options)
    lines = [json.loads(line) for line in next((tmp_path / "whole").rglob("scalars.json")).read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] / 2
    # An untrained detector is at 0.
    assert result.metrics["coco/bbox_mAP_50"] > 0.1
    if kind == "mask_rcnn":
        assert result.metrics["coco/segm_mAP_50"] > 0.1

    final = load_checkpoint_file(result.checkpoint)
    assert final["meta"]["dataset_meta"]["classes"][0] == "circle"
    found = {"test_evaluator.out": str(tmp_path / "found")}
    metrics = evaluate(config, str(result.checkpoint), options={**options, **found}, work_dir=tmp_path / "test")
    for name, value in result.metrics.items():
        assert metrics[name] == pytest.approx(value, abs=1e-6), name
    assert json.loads((tmp_path / "found.bbox.json").read_text())

    # The steps of RetinaNet use no random numbers, which a resumed run would have to repeat.
    if kind == "mask_rcnn":
        before_end = tmp_path / "whole" / f"epoch_{EPOCHS[kind] - 2}.pth"
        resumed = train(config, work_dir=tmp_path / "resumed", resume=str(before_end), options=options)
        again = load_checkpoint_file(resumed.checkpoint)["state_dict"]
        for name, value in final["state_dict"].items():
            assert torch.equal(again[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_one_detector(kind, four_images, tmp_path):
    options = {**options_of(kind, four_images), "train_cfg.max_epochs": 1, "train_dataloader.batch_size": 2}
    # Lists of dicts cannot be given on a command line.
    del options["param_scheduler"], options["train_dataloader.dataset.transforms"]
    pairs = [f"{name}={value}".replace(" ", "") for name, value in options.items()]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    tool = [str(ROOT / "tools" / "train.py"), str(CONFIGS / f"{kind}_soft_pico_shapes.py"), "--launcher", "pytorch"]
    command = [*launch, *tool, "--work-dir", str(tmp_path), "--amp", "--cfg-options", *pairs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "coco/bbox_mAP_50" in done.stdout
