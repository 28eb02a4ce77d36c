"""Detectors and segmentors that train: the package's configs, and those of MMDetection and MMSegmentation."""

import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from engine.runs import assert_same_state, scalars
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import ExifTags, Image

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense import mmcv_ext  # noqa: F401  before mmdet and mmseg are imported
from soft_vit.dense.segmentation.metric import SegmentationMetric, confusion
from soft_vit.engine import evaluate, train
from soft_vit.engine.config import resolve
from soft_vit.engine.models.finetune import start_spec
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.predict import load_predictor, predict_files

# The configs for generated scenes, made small: overfitted to a few images, resumed exactly, tested.


ROOT = Path(__file__).parents[2]
SIZE = "model.min_size"
BOTTLENECK = "model.backbone.max_bottleneck"
DETECTION = {
    SIZE: 64,
    BOTTLENECK: (9, 9),
    "model.max_size": 80,
    "model.pyramid_channels": 32,
    "optim_wrapper.optimizer.lr": 3e-3,
    "train_dataloader.dataset.transforms": [],
    **{f"{split}_dataloader.dataset.ann_file": "annotations/instances_train2017.json" for split in ("val", "test")},
    **{f"{split}_dataloader.dataset.img_dir": "train2017" for split in ("val", "test")},
}
RETINANET = {
    **DETECTION,
    "model.head_convs": 1,
    "model.sizes": [[12, 16, 20], [24, 28, 34], [40, 50, 60], [70, 80, 90], [100, 120, 140]],
}
MASK_RCNN = {
    **DETECTION,
    "model.backbone.frozen_stages": 0,
    "model.sizes": [16, 24, 40, 64, 96],
    "model.box_head_dim": 64,
    "model.mask_head_dims": [32],
    "model.rpn_post_nms_top_n_train": 60,
    "model.rpn_post_nms_top_n_test": 30,
    "model.box_batch_size_per_image": 32,
}
PACK = {"type": "PackSegmentation"}
UPERNET = {
    "model.backbone.pretrained": False,
    "model.backbone.norm_eval": False,
    "model.decoder.channels": 24,
    "model.auxiliary.channels": 16,
    "model.class_weight": [0.1] + [1.0] * 10,
    "model.test_cfg": {"mode": "whole", "scales": (1.0,), "flip": False},
    "data_preprocessor.windows": None,
    "optim_wrapper.optimizer.lr": 4e-3,
    "train_dataloader.dataset.pipeline": [{"type": "SegRandomFlip"}, PACK],
    **{f"{split}_dataloader.dataset.split": "training" for split in ("val", "test")},
    **{f"{split}_dataloader.dataset.pipeline": [PACK] for split in ("val", "test")},
}
# Config, options, unit of its length, the last step that is saved before the end and the length, and its bound: an
# untrained detector is at 0, an untrained segmentor at most at 20 %.
BOXES, MASKS = "coco/bbox_mAP_50", "coco/segm_mAP_50"
RUNS = {
    "retinanet": ("detection/retinanet", RETINANET, "epoch", (6, 8), {BOXES: 0.1}),
    "mask_rcnn": ("detection/mask_rcnn", MASK_RCNN, "epoch", (7, 8), {BOXES: 0.1, MASKS: 0.1}),
    "upernet": ("segmentation/upernet", UPERNET, "iter", (30, 32), {"mIoU": 20}),
}


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Eight images in both layouts, by the folder of a config."""
    root = tmp_path_factory.mktemp("trees")
    for task, name in (("coco", "detection"), ("ade", "segmentation")):
        make_tree(root / name, task, train=4, val=1, size=(64, 80), seed=3)
    return root


def run_of(name, trees):
    """Return the config and the options of a run."""
    start, options, unit, (interval, length), _ = RUNS[name]
    data = {"data_root": str(trees / Path(start).parent), "train_dataloader.batch_size": 2}
    lengths = {f"train_cfg.max_{unit}s": length, "train_cfg.val_interval": length}
    config = ROOT / "configs" / f"{start}_soft_pico_shapes.py"
    return config, {**data, **options, **lengths, "default_hooks.checkpoint.interval": interval}


QUICK_AND_SLOW = ["mask_rcnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("retinanet", "upernet"))]


@pytest.mark.parametrize("name", QUICK_AND_SLOW)
def test_a_run_learns_resumes_exactly_and_is_tested(name, trees, tmp_path, capfd):
    config, options = run_of(name, trees)
    _, _, unit, (interval, _), least = RUNS[name]
    options["param_scheduler"] = [{"type": "LinearLR", "start_factor": 0.1, "by_epoch": False, "begin": 0, "end": 5}]
    whole = train(config, work_dir=tmp_path / "whole", options=options)
    first, *_ = capfd.readouterr().out.partition("(train)")
    # Parameters with options of their own, and frozen ones, have lines in the log file alone.
    assert first.count("\n") <= 25
    (log,) = (tmp_path / "whole").glob("*/*.log")
    assert log.read_text().count("paramwise_options") > 25
    for metric, value in least.items():
        assert whole.metrics[metric] > value
    assert "circle" in load_checkpoint_file(whole.checkpoint)["meta"]["dataset_meta"]["classes"]

    resume = str(tmp_path / "whole" / f"{unit}_{interval}.pth")
    resumed = train(config, work_dir=tmp_path / "resumed", resume=resume, options=options)
    assert resumed.metrics == whole.metrics
    assert_same_state(resumed.checkpoint, whole.checkpoint)

    measured = evaluate(config, str(whole.checkpoint), options=options, work_dir=tmp_path / "test")
    assert {metric: measured[metric] for metric in whole.metrics} == pytest.approx(whole.metrics, abs=1e-6)

    # Without the options, sizes and the backbone are as recorded.
    plain, one = (resolve(config, how, tested=start_spec(str(whole.checkpoint))).model for how in ({}, {SIZE: 96}))
    assert name == "upernet" or (plain.min_size, plain.sizes, one.min_size) == (64, options["model.sizes"], 96)
    assert tuple(plain.backbone.max_bottleneck) == options.get(BOTTLENECK, (7, 7))


# The configs for one's own folders: two paths are enough, from any working folder; runs show data and predictions.


LOADING = ("num_workers", "persistent_workers", "dataset.upright")
FEW_STEPS = {
    **{f"{split}_dataloader.{key}": False for split in ("train", "val", "test") for key in LOADING},
    "train_dataloader.batch_size": 2,
    "model.backbone.model_name": "soft_plus_pico",
    "train_cfg.max_iters": 3,
    "train_cfg.val_interval": 3,
    "optim_wrapper.optimizer.lr": 0.01,
    "param_scheduler": [],
    "default_hooks.logger.interval": 1,
    "custom_hooks": [{"type": "EMAEvalHook", "momentum": 0.1}],
    "val_fraction": 0.5,
}
OF_FOLDERS = {
    "segmentation/upernet_soft_plus_tiny_folder": (
        {"data_root": "ade/images/training", "ann_dir": "ade/annotations/training", "image_size": 64},
        {"model.decoder.channels": 16, "model.auxiliary.channels": 8},
    ),
    "detection/retinanet_soft_plus_tiny_coco_file": (
        {"data_root": "coco/train2017", "ann_file": "coco/annotations/instances_train2017.json"},
        {"model.pyramid_channels": 16, "model.head_convs": 1, "model.min_size": 64, "model.score_thresh": 0.0},
    ),
}


NAMES = [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("detection")) for name in OF_FOLDERS]


@pytest.mark.parametrize("name", NAMES)
def test_two_paths_start_a_run_whose_predictions_are_those_that_count(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    paths, options = OF_FOLDERS[name]
    task = paths["data_root"].partition("/")[0]
    make_tree(tmp_path / task, task, train=6, val=1, size=(64, 80), seed=3)
    for path in Path(paths["data_root"]).iterdir():
        # Labels belong to the stored pixels.
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 3
        Image.open(path).copy().save(path, exif=exif)
    Path("own.py").write_text(f'_base_ = ["configs/{name}.py"]\n')
    options = {**FEW_STEPS, **paths, **options}
    run = train("own.py", options=options)
    first, *_ = capfd.readouterr().out.partition("(train)")
    assert first.count("\n") <= 25
    assert f"{6 - run.images} of 80 x 64 pixels" in first
    assert ("Boxes: " if "detection" in name else "Pixels: value 1 ") in first
    assert {"data.png", "predictions.png", "curve.png"} <= {path.name for path in Path("work_dirs/own").iterdir()}

    # What is tested are the averaged weights, as in a prediction.
    measure = partial(evaluate, "own.py", str(run.checkpoint), options=options, work_dir="test")
    plain, tested = measure(ema=False), measure()
    assert plain != tested
    init_default_scope("mmpretrain")
    if "detection" in name:
        # Held against a test in tests/predict.
        return
    dataset = DATASETS.build(resolve("own.py", options).test_dataloader.dataset)
    infos = [dataset.get_data_info(index) for index in range(run.images)]
    images = [info["files"][0][0] for info in infos]
    load = partial(load_predictor, config="own.py", checkpoint=run.checkpoint, options=options)
    predicted = predict_files([f"{paths['data_root']}/{name}" for name in images], load, "out").results["images"]
    maps = [np.asarray(Image.open(f"out/{entry['map']}")) for entry in predicted]
    truth = [dataset.read(info)[1] for info in infos]
    table = confusion(*(torch.from_numpy(np.stack(one)) for one in (truth, maps)), len(dataset.metainfo["classes"]))
    assert SegmentationMetric().compute_metrics(table)["mIoU"] == pytest.approx(tested["mIoU"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["retinanet", "mask_rcnn"])
def test_two_processes_train_one_detector(name, trees, tmp_path):
    config, options = run_of(name, trees)
    # Lists of dicts cannot be given on a command line.
    del options["train_dataloader.dataset.transforms"]
    pairs = [f"{key}={value}".replace(" ", "") for key, value in {**options, "train_cfg.max_epochs": 1}.items()]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    tool = [str(ROOT / "tools" / "train.py"), str(config), "--launcher", "pytorch", "--work-dir", str(tmp_path)]
    how = dict(capture_output=True, text=True, timeout=300)
    done = subprocess.run([*launch, *tool, "--amp", "--cfg-options", *pairs], **how)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "coco/bbox_mAP_50" in done.stdout


# mmdet and mmseg themselves on this backbone, with or without a compiled mmcv: from training to predicting.


for library in ("mmdet", "mmseg"):
    pytest.importorskip(library, exc_type=ModuleNotFoundError)

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
LIBRARIES = {
    "mmdet": (detection_options, "max_epochs", (8, 9), ("coco/bbox_mAP", "coco/segm_mAP")),
    "mmseg": (segmentation_options, "max_iters", (16, 18), ("mIoU",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_train_resume_test_and_predict(library, tmp_path):
    options_of, key, (first, last), metrics = LIBRARIES[library]
    config_file, folder, work_dir = ROOT / "configs" / library / SMALL[library], tmp_path / "data", tmp_path / "run"
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
